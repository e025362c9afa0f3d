//! Scanning a segment from front to back, in pieces of any length, without buffering values.
//!
//! ```text
//! Head ──all of it, genuine──▶ Value ──last byte──▶ Tail ──checksum right──▶ Head …
//!   ├──0──▶ Skip ──the rest of the block is 0──▶ Head
//!   └──anything else, at any point──▶ Ended
//! ```

use crate::key::KEY_BYTES_MAX;
use crate::record::{Checksum, HEAD_BYTES, Head, Kind, Location, TAIL_BYTES};

/// Receives the records of a segment.
pub(crate) trait Sink {
    /// A record begins, at this byte of the segment.
    fn on_head(&mut self, head: &Head, key: &[u8], position: u64);
    /// A part of its value follows.
    fn on_value(&mut self, part: &[u8]);
    /// The record ends; `is_whole` if its checksum is right.
    fn on_end(&mut self, is_whole: bool);
}

/// Scanner of a segment, and its progress.
#[derive(Debug)]
pub(crate) struct Scanner {
    location: Location,
    block_bytes: u64,
    /// Bytes from here on are not read.
    limit: u64,
    /// One past the last whole record, and past the rest of its block if that is empty.
    end: u64,
    state: State,
    buffer: [u8; HEAD_BYTES + KEY_BYTES_MAX],
    filled: usize,
    head: Option<Head>,
    checksum: Checksum,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Skip,
    Value { left: usize },
    Tail,
    Ended,
}

impl Scanner {
    /// A scanner of a segment from its second block on, up to `limit`.
    pub(crate) fn new(run: u64, generation: u64, block_bytes: u64, limit: u64) -> Self {
        Self {
            location: Location { run, generation, position: block_bytes },
            block_bytes,
            limit,
            end: block_bytes,
            state: State::Head,
            buffer: [0; HEAD_BYTES + KEY_BYTES_MAX],
            filled: 0,
            head: None,
            checksum: Checksum::behind(&[0; HEAD_BYTES]),
        }
    }

    /// Position of the next bytes to read; `None` at the end.
    pub(crate) fn next_position(&self) -> Option<u64> {
        (self.state != State::Ended && self.location.position < self.limit).then_some(self.location.position)
    }

    /// One past the last whole record, and past the rest of its block if that is empty.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Ends the scan: no more can be read, or there is nothing more.
    pub(crate) fn on_end(&mut self, sink: &mut impl Sink) {
        if matches!(self.state, State::Value { .. } | State::Tail) {
            sink.on_end(false);
        }
        self.state = State::Ended;
    }

    /// Handles bytes from [`next_position`](Self::next_position) on.
    pub(crate) fn on_bytes(&mut self, mut bytes: &[u8], sink: &mut impl Sink) {
        let left = self.limit - self.location.position;
        bytes = &bytes[..bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
        while !bytes.is_empty() {
            let count = match self.state {
                State::Ended => return,
                State::Skip => {
                    let to_block = (self.location.position + 1).next_multiple_of(self.block_bytes);
                    let left = (to_block - self.location.position) as usize;
                    let count = left.min(bytes.len());
                    if bytes[..count].iter().any(|&byte| byte != 0) {
                        return self.on_end(sink);
                    }
                    if left == count {
                        self.state = State::Head;
                        self.end = to_block;
                    }
                    count
                }
                State::Head => match self.on_head(bytes, sink) {
                    Some(count) => count,
                    None => return self.on_end(sink),
                },
                State::Value { left } => {
                    let part = &bytes[..left.min(bytes.len())];
                    self.checksum.update(part);
                    sink.on_value(part);
                    self.state = if part.len() == left {
                        self.filled = 0;
                        State::Tail
                    } else {
                        State::Value { left: left - part.len() }
                    };
                    part.len()
                }
                State::Tail => {
                    let count = (TAIL_BYTES - self.filled).min(bytes.len());
                    self.buffer[self.filled..self.filled + count].copy_from_slice(&bytes[..count]);
                    self.filled += count;
                    if self.filled == TAIL_BYTES {
                        if self.buffer[..TAIL_BYTES] != self.checksum.finish().to_le_bytes() {
                            return self.on_end(sink);
                        }
                        sink.on_end(true);
                        self.end = self.location.position + count as u64;
                        (self.state, self.filled, self.head) = (State::Head, 0, None);
                    }
                    count
                }
            };
            self.location.position += count as u64;
            bytes = &bytes[count..];
        }
    }

    /// Handles bytes up to the value. Returns `None` if they are not of a record.
    fn on_head(&mut self, bytes: &[u8], sink: &mut impl Sink) -> Option<usize> {
        let start = self.location.position - self.filled as u64;
        if self.filled == 0 && bytes[0] == 0 {
            // At the start of a block this means that nothing was written.
            if start.is_multiple_of(self.block_bytes) {
                return None;
            }
            self.state = State::Skip;
            return Some(0);
        }
        let wanted = HEAD_BYTES + self.head.map_or(0, |head| head.key_bytes);
        let count = (wanted - self.filled).min(bytes.len());
        self.buffer[self.filled..self.filled + count].copy_from_slice(&bytes[..count]);
        self.filled += count;
        if self.filled < wanted {
            return Some(count);
        }
        let head = match self.head {
            Some(head) => head,
            None => {
                let first = self.buffer[..HEAD_BYTES].try_into().expect("its length");
                let head = Head::decode(first)?;
                if start + head.record_bytes() as u64 > self.limit {
                    return None;
                }
                self.head = Some(head);
                if head.key_bytes > 0 {
                    return Some(count);
                }
                head
            }
        };
        if !Head::is_genuine(&self.buffer[..self.filled], Location { position: start, ..self.location }) {
            return None;
        }
        if head.kind != Kind::Pair && head.value_bytes != 0 {
            return None;
        }
        sink.on_head(&head, &self.buffer[HEAD_BYTES..self.filled], start);
        self.checksum = Checksum::behind(&self.buffer);
        self.filled = 0;
        self.state =
            if head.value_bytes == 0 { State::Tail } else { State::Value { left: head.value_bytes } };
        Some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK_BYTES: usize = 512;

    /// The number of whole records.
    struct Count(usize);

    impl Sink for Count {
        fn on_head(&mut self, _head: &Head, _key: &[u8], _position: u64) {}

        fn on_value(&mut self, _part: &[u8]) {}

        fn on_end(&mut self, is_whole: bool) {
            self.0 += usize::from(is_whole);
        }
    }

    #[test]
    fn the_rest_of_a_block_counts_if_all_of_it_is_empty() {
        let position = BLOCK_BYTES as u64;
        let head = Head {
            kind: Kind::Removed,
            key_bytes: 1,
            marks: 0,
            value_bytes: 0,
            flags: 0,
            cas: 1,
            expiry_s: 0,
            is_first: true,
        };
        let mut block = [0; BLOCK_BYTES];
        let checksum = head.encode(b"k", Location { run: 1, generation: 2, position }, &mut block);
        let record_bytes = head.record_bytes();
        block[record_bytes - TAIL_BYTES..record_bytes].copy_from_slice(&checksum.finish().to_le_bytes());
        for (last, end) in [(0, 2 * BLOCK_BYTES), (1, BLOCK_BYTES + record_bytes)] {
            block[BLOCK_BYTES - 1] = last;
            for piece_bytes in [1, 7, 300, BLOCK_BYTES] {
                let (mut scanner, mut count) = (Scanner::new(1, 2, position, 2 * position), Count(0));
                block.chunks(piece_bytes).for_each(|piece| scanner.on_bytes(piece, &mut count));
                assert_eq!((scanner.end(), count.0), (end as u64, 1), "pieces of {piece_bytes} bytes");
            }
        }
    }
}
