//! Values that are created on first use and kept.

/// One value for each key.
#[derive(Debug)]
pub(crate) struct Kept<Key, Thing>(Vec<(Key, Thing)>);

impl<Key, Thing> Default for Kept<Key, Thing> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<Key: PartialEq, Thing> Kept<Key, Thing> {
    /// The value for this key, created if it does not exist.
    pub(crate) fn get<Error>(
        &mut self,
        key: Key,
        make: impl FnOnce() -> Result<Thing, Error>,
    ) -> Result<&mut Thing, Error> {
        let at = match self.0.iter().position(|(known, _)| *known == key) {
            Some(at) => at,
            None => {
                self.0.push((key, make()?));
                self.0.len() - 1
            }
        };
        Ok(&mut self.0[at].1)
    }
}
