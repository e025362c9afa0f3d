//! A repeatable source of small random decisions.

/// A xorshift generator; its state is never 0.
#[derive(Clone, Debug)]
pub(crate) struct Choice(u64);

impl Choice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % limit
    }

    /// The length of a cut: mostly short, sometimes long, at most `limit`.
    pub(crate) fn cut(&mut self, limit: usize) -> usize {
        let limit = [1, 8, 80, 4000, 100_000][self.below(5)].min(limit);
        1 + self.below(limit)
    }
}
