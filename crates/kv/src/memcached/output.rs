//! What a client is sent: bytes of answers, and between them chunks of values from where they lie.

use std::collections::VecDeque;

use reactor::CHUNK_BYTES;

use crate::chunked::ChunkList;

/// Bytes to send, in order.
#[derive(Debug, Default)]
pub struct Output {
    bytes: Vec<u8>,
    /// How many of the bytes are sent.
    sent_bytes: usize,
    /// Chunks, each list before this one of the bytes.
    large: VecDeque<(usize, ChunkList)>,
    /// How much of the first list is sent.
    sent_chunk_bytes: usize,
}

impl Output {
    /// The bytes, to be appended to.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Puts chunks where they belong among the bytes appended last.
    pub fn insert(&mut self, large: impl Iterator<Item = (usize, ChunkList)>) {
        self.large.extend(large);
    }

    /// Bytes that wait, those of chunks left out.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.sent_bytes
    }

    /// Whether nothing is to be sent.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.large.is_empty()
    }

    /// Whether chunks are to be sent.
    #[inline]
    #[must_use]
    pub fn has_large(&self) -> bool {
        !self.large.is_empty()
    }

    /// What is to be sent, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let (mut at, mut skip) = (self.sent_bytes, self.sent_chunk_bytes);
        let mut large = self.large.iter().peekable();
        std::iter::from_fn(move || {
            loop {
                match large.peek() {
                    Some((before, _)) if at < *before => {
                        let piece = &self.bytes[at..*before];
                        at = *before;
                        return Some(piece);
                    }
                    Some((_, chunks)) => {
                        if let Some(chunk) = chunks.get(skip / CHUNK_BYTES) {
                            let piece = &chunk[skip % CHUNK_BYTES..];
                            skip += piece.len();
                            return Some(piece);
                        }
                        large.next();
                        skip = 0;
                    }
                    None => {
                        let piece = &self.bytes[at..];
                        at = self.bytes.len();
                        return (!piece.is_empty()).then_some(piece);
                    }
                }
            }
        })
    }

    /// So many bytes were sent.
    #[inline]
    pub fn on_sent(&mut self, count: usize) {
        if self.large.is_empty() {
            self.sent_bytes += count;
            debug_assert!(self.sent_bytes <= self.bytes.len());
        } else {
            self.on_sent_large(count);
        }
        if self.sent_bytes == self.bytes.len() && self.large.is_empty() {
            self.bytes.clear();
            self.sent_bytes = 0;
        }
    }

    #[cold]
    fn on_sent_large(&mut self, mut count: usize) {
        while let Some((before, chunks)) = self.large.front() {
            let bytes = count.min(before - self.sent_bytes);
            self.sent_bytes += bytes;
            count -= bytes;
            let left = chunks.len() * CHUNK_BYTES - self.sent_chunk_bytes;
            if self.sent_bytes < *before || count < left {
                self.sent_chunk_bytes += count;
                return;
            }
            count -= left;
            self.sent_chunk_bytes = 0;
            self.large.pop_front();
        }
        self.sent_bytes += count;
    }

    /// Appends other output of which nothing is sent.
    pub fn append(&mut self, other: Self) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.large.extend(other.large.into_iter().map(|(before, chunks)| (start + before, chunks)));
    }

    /// Gives memory back beyond so many bytes.
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
    use std::sync::Arc;

    use reactor::Chunks;

    use super::*;

    #[test]
    fn bytes_and_chunks_are_sent_in_order_whatever_is_taken_at_a_time() {
        let mut source = Chunks::new(3).expect("address space");
        let mut list = |fills: &[u8]| {
            let chunks = fills.iter().map(|&fill| {
                source.open();
                let mut chunk = source.take().expect("opened");
                chunk.fill(fill);
                chunk
            });
            Arc::new(chunks.collect::<Vec<_>>())
        };
        for step in [1_000, 700_001, CHUNK_BYTES, 5 * CHUNK_BYTES] {
            let mut output = Output::from(b"headend".to_vec());
            output.insert([(4, list(&[1, 2])), (7, list(&[3]))].into_iter());
            let mut expected = b"head".to_vec();
            expected.extend(std::iter::repeat_n(1, CHUNK_BYTES).chain(std::iter::repeat_n(2, CHUNK_BYTES)));
            expected.extend_from_slice(b"end");
            expected.extend(std::iter::repeat_n(3, CHUNK_BYTES));
            let mut first = Output::from(b"".to_vec());
            first.append(output);
            let mut output = first;
            let mut sent = Vec::new();
            while !output.is_empty() {
                let mut taken = Vec::new();
                for piece in output.pieces() {
                    let count = piece.len().min(step - taken.len());
                    taken.extend_from_slice(&piece[..count]);
                    if taken.len() == step {
                        break;
                    }
                }
                output.on_sent(taken.len());
                sent.extend_from_slice(&taken);
            }
            assert!(sent == expected, "{step} bytes at a time");
        }
    }
}
