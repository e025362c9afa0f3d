//! Output of a connection: bytes of answers, and between them long values sent without copying.
//!
//! ```text
//! bytes │ value: chunks, then pieces of the rest, each requested once the previous one is sent │ bytes …
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use memory::CHUNK_BYTES;

use kv::{ChunkList, Kept};

/// A value that is not copied into an answer.
#[derive(Clone, Debug)]
pub struct LongValue {
    /// Its whole mebibytes, if there are any.
    pub(super) chunks: Option<ChunkList>,
    /// The pinned value that the bytes after them come from; `None` if these are copied.
    pub(super) kept: Option<Arc<Kept>>,
}

impl LongValue {
    fn chunk(&self, number: usize) -> Option<&[u8]> {
        Some(self.chunks.as_ref()?.get(number)?)
    }

    fn chunk_bytes(&self) -> usize {
        self.chunks.as_ref().map_or(0, |chunks| chunks.len() * CHUNK_BYTES)
    }

    /// Bytes that are not copied.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kept.as_ref().map_or_else(|| self.chunk_bytes(), |kept| kept.len())
    }

    /// Whether it has no such bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Bytes to send, in order.
#[derive(Debug, Default)]
pub struct Output {
    bytes: Vec<u8>,
    /// Number of bytes already sent.
    sent_bytes: usize,
    /// Bytes of the long values that are not completely sent.
    long_bytes: usize,
    /// The long values, if there are any.
    long: Option<Box<LongValues>>,
}

/// Long values that are not completely sent; never empty.
#[derive(Debug, Default)]
struct LongValues {
    /// Each with the index of the byte it precedes.
    queue: VecDeque<(usize, LongValue)>,
    /// Bytes of the first value already sent.
    sent_bytes: usize,
    /// The current piece of its rest, as far as received.
    piece: Vec<u8>,
    piece_sent_bytes: usize,
    /// Whether the next piece has been requested.
    is_requested: bool,
}

impl LongValues {
    /// Accounts for `count` sent bytes, of which the first belong to the first value. Returns how many did not, and
    /// whether the value is completely sent.
    fn on_sent(&mut self, count: usize) -> (usize, bool) {
        let Some((_, value)) = self.queue.front() else { return (count, false) };
        let of_chunks = count.min(value.chunk_bytes().saturating_sub(self.sent_bytes));
        let of_piece = (count - of_chunks).min(self.piece.len() - self.piece_sent_bytes);
        self.sent_bytes += of_chunks + of_piece;
        self.piece_sent_bytes += of_piece;
        if self.piece_sent_bytes == self.piece.len() {
            (self.piece, self.piece_sent_bytes) = (Vec::new(), 0);
        }
        let is_over = self.sent_bytes == value.len();
        if is_over {
            self.queue.pop_front();
            self.sent_bytes = 0;
        }
        (count - of_chunks - of_piece, is_over)
    }
}

impl Output {
    /// The bytes, for appending.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Inserts long values at their offsets in the bytes appended last.
    pub fn insert(&mut self, values: impl Iterator<Item = (usize, LongValue)>) {
        for (before, value) in values {
            self.long_bytes += value.len();
            self.long.get_or_insert_default().queue.push_back((before, value));
        }
    }

    /// Bytes waiting to be sent; those of a long value count until it is completely sent.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.sent_bytes + self.long_bytes
    }

    /// Whether there is nothing to send.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether there are long values to send.
    #[inline]
    #[must_use]
    pub fn has_long(&self) -> bool {
        self.long.is_some()
    }

    /// The bytes to send, in order, up to the first piece that must still be fetched.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let mut at = self.sent_bytes;
        let (mut skip, mut piece) = self
            .long
            .as_ref()
            .map_or((0, &[][..]), |long| (long.sent_bytes, &long.piece[long.piece_sent_bytes..]));
        let mut values = self.long.iter().flat_map(|long| &long.queue).peekable();
        std::iter::from_fn(move || {
            loop {
                match values.peek() {
                    Some((before, _)) if at < *before => {
                        let bytes = &self.bytes[at..*before];
                        at = *before;
                        return Some(bytes);
                    }
                    Some((_, value)) => {
                        if let Some(chunk) = value.chunk(skip / CHUNK_BYTES) {
                            let bytes = &chunk[skip % CHUNK_BYTES..];
                            skip += bytes.len();
                            return Some(bytes);
                        }
                        if !piece.is_empty() {
                            skip += piece.len();
                            return Some(std::mem::take(&mut piece));
                        }
                        if skip < value.len() {
                            // The rest of it must be fetched.
                            return None;
                        }
                        values.next();
                        skip = 0;
                    }
                    None => {
                        let bytes = &self.bytes[at..];
                        at = self.bytes.len();
                        return (!bytes.is_empty()).then_some(bytes);
                    }
                }
            }
        })
    }

    /// The value whose next piece must be fetched, and its offset; it counts as requested.
    pub fn wanted(&mut self) -> Option<(Arc<Kept>, usize)> {
        let long = self.long.as_mut().filter(|long| !long.is_requested && long.piece.is_empty())?;
        let (_, value) = long.queue.front().filter(|(_, value)| long.sent_bytes >= value.chunk_bytes())?;
        let kept = value.kept.as_ref()?;
        long.is_requested = true;
        Some((Arc::clone(kept), long.sent_bytes))
    }

    /// Handles the requested piece.
    pub fn on_piece(&mut self, piece: Vec<u8>) {
        if let Some(long) = &mut self.long {
            (long.piece, long.is_requested) = (piece, false);
        }
    }

    /// Accounts for `count` sent bytes.
    #[inline]
    pub fn on_sent(&mut self, count: usize) {
        if self.long.is_none() {
            self.sent_bytes += count;
            debug_assert!(self.sent_bytes <= self.bytes.len());
        } else {
            self.on_sent_with_long(count);
        }
        if self.is_empty() {
            self.bytes.clear();
            self.sent_bytes = 0;
        }
    }

    #[cold]
    fn on_sent_with_long(&mut self, mut count: usize) {
        while let Some(long) = &mut self.long
            && let Some((before, value)) = long.queue.front()
        {
            let bytes = count.min(before - self.sent_bytes);
            self.sent_bytes += bytes;
            if self.sent_bytes < *before {
                return;
            }
            let value_bytes = value.len();
            let (left, is_over) = long.on_sent(count - bytes);
            if !is_over {
                return;
            }
            count = left;
            self.long_bytes -= value_bytes;
            if long.queue.is_empty() {
                self.long = None;
            }
        }
        self.sent_bytes += count;
    }

    /// Appends other output, nothing of which has been sent.
    pub fn append(&mut self, other: Self) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        let values = other.long.into_iter().flat_map(|long| long.queue);
        self.insert(values.map(|(before, value)| (start + before, value)));
    }

    /// Frees buffer memory beyond `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        self.bytes.shrink_to(bytes);
    }
}

impl From<Vec<u8>> for Output {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kv::{Attributes, Condition, Processor, Settings, Stored};

    #[test]
    fn bytes_and_values_are_sent_in_order_whatever_is_taken_at_a_time() {
        let mut processor =
            Processor::new(Settings { memory_bytes: 12 << 20, ..Settings::default() }).expect("memory");
        let mut value = |key: &[u8], length: usize, is_kept: bool| {
            let bytes: Vec<u8> = (0..length).map(|at| (at / 1000) as u8 ^ key[0]).collect();
            let hash = processor.hash(key);
            let stored = processor.store(hash, key, &bytes, Attributes::default(), Condition::Always);
            assert_eq!(stored, Stored::Done);
            let place = processor.find(hash, key).expect("stored");
            let chunks = processor.chunks(place).cloned();
            let kept = is_kept.then(|| Arc::new(processor.keep(place).expect("an item")));
            (LongValue { chunks, kept }, bytes)
        };
        let values = [
            value(b"a", 2 * CHUNK_BYTES, false),
            value(b"b", 300_000, true),
            value(b"c", CHUNK_BYTES + 700_000, true),
            value(b"d", CHUNK_BYTES, false),
        ];
        for step in [1_000, 700_001, CHUNK_BYTES, 5 * CHUNK_BYTES] {
            let mut output = Output::from(b"headxend".to_vec());
            let places = [4, 5, 5, 8];
            output.insert(places.into_iter().zip(values.iter().map(|(value, _)| value.clone())));
            let expected = [
                b"head",
                &values[0].1[..],
                b"x",
                &values[1].1[..],
                &values[2].1[..],
                b"end",
                &values[3].1[..],
            ]
            .concat();
            let mut first = Output::from(b"".to_vec());
            first.append(output);
            let mut output = first;
            assert_eq!(output.len(), expected.len());
            let mut sent = Vec::new();
            while !output.is_empty() {
                if let Some((kept, offset)) = output.wanted() {
                    assert!(output.wanted().is_none(), "one at a time");
                    output.on_piece(processor.piece(&kept, offset, 256 << 10).expect("there is more"));
                }
                let mut taken = Vec::new();
                for piece in output.pieces() {
                    let count = piece.len().min(step - taken.len());
                    taken.extend_from_slice(&piece[..count]);
                    if taken.len() == step {
                        break;
                    }
                }
                assert!(!taken.is_empty(), "nothing to send, and nothing to wait for");
                output.on_sent(taken.len());
                sent.extend_from_slice(&taken);
            }
            assert!(sent == expected, "{step} bytes at a time");
            assert!(!output.has_long());
        }
    }
}
