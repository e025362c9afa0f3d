//! Scanning a segment from front to back, in pieces of any length, without buffering values.
//!
//! ```text
//! Head ──all of it, genuine──▶ Value ──last byte──▶ Tail ──checksum right──▶ Head …
//!   ├──0──▶ Skip ──the rest of the block is 0──▶ Head
//!   └──anything else, at any point──▶ Ended
//! ```
//!
//! Up to a position before which everything was written, anything else is damage. A wrong bit of a head is corrected,
//! and unreadable ranges are passed over:
//!
//! ```text
//! Head, Skip ──anything else──▶ Search ──one bit of the head, or the next genuine record──▶ Head
//! Tail ──checksum wrong──▶ Head
//! ```

use std::ops::Range;

use super::LogSettings;
use crate::key::KEY_BYTES_MAX;
use crate::record::{Checksum, HEAD_BYTES, Head, KEYED_BYTES_MAX, Location, TAIL_BYTES};

/// How a record ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Its checksum is right.
    Whole,
    /// The record is damaged behind its key.
    Damaged,
    /// It was not written to its end, and no record follows.
    Cut,
}

/// Receives the records of a segment.
pub(crate) trait Sink {
    /// A record begins, at this byte of the segment.
    fn on_head(&mut self, head: &Head, key: &[u8], position: u64);
    /// A part of its value follows.
    fn on_value(&mut self, part: &[u8]);
    /// The record ends.
    fn on_end(&mut self, ending: Ending);
    /// One wrong bit is corrected, or does not matter: at this byte of the segment, or behind it.
    fn on_corrected(&mut self, position: u64);
    /// Records in this range cannot be read.
    fn on_hole(&mut self, range: Range<u64>);
}

/// Scanner of a segment, and its progress.
#[derive(Debug)]
pub(crate) struct Scanner {
    location: Location,
    block_bytes: u64,
    segment_bytes: u64,
    /// Bytes from here on are not read.
    limit: u64,
    /// Everything before this was written.
    whole_to: u64,
    /// One past the last record, and past the rest of its block if that is empty.
    end: u64,
    state: State,
    buffer: [u8; KEYED_BYTES_MAX],
    filled: usize,
    head: Option<Head>,
    /// Where the present record begins, or the empty rest of a block.
    begun_at: u64,
    checksum: Checksum,
    /// Whether the record before is damaged: others may have been in the empty rest of its block.
    is_behind_damage: bool,
    /// The bytes among which a record is sought, and the first of them at which none was found.
    window: Vec<u8>,
    sought: usize,
    /// Bytes passed over that are not zero.
    set_count: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Skip,
    Value { left: usize },
    Tail,
    Search,
    Ended,
}

impl Scanner {
    /// A scanner of a segment of a log from a position on, up to `limit`.
    pub(crate) fn new(location: Location, settings: &LogSettings, limit: u64) -> Self {
        let LogSettings { block_bytes, segment_bytes, .. } = *settings;
        Self {
            location,
            block_bytes,
            segment_bytes,
            limit,
            whole_to: 0,
            end: location.position,
            state: State::Head,
            buffer: [0; HEAD_BYTES + KEY_BYTES_MAX],
            filled: 0,
            head: None,
            begun_at: location.position,
            checksum: Checksum::behind(&[0; HEAD_BYTES]),
            is_behind_damage: false,
            window: Vec::new(),
            sought: 0,
            set_count: 0,
        }
    }

    /// The same, with everything before a position known to be written.
    pub(crate) fn whole_to(self, position: u64) -> Self {
        Self { whole_to: position.min(self.limit), ..self }
    }

    /// Position of the next bytes to read; `None` at the end.
    pub(crate) fn next_position(&self) -> Option<u64> {
        (self.state != State::Ended && self.location.position < self.limit).then_some(self.location.position)
    }

    /// One past the last record, and past the rest of its block if that is empty.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Ends the scan: no more can be read, or there is nothing more.
    pub(crate) fn on_end(&mut self, sink: &mut impl Sink) {
        // A head that ends behind the limit is none.
        while self.state == State::Search
            || self.state == State::Head && self.filled > 0 && self.begun_at < self.whole_to
        {
            if self.state == State::Head {
                self.begin_search(self.filled);
            }
            self.search(true, sink);
            if self.state == State::Search {
                self.end_hole(self.whole_to, sink);
                self.state = State::Ended;
            }
        }
        if matches!(self.state, State::Value { .. } | State::Tail) {
            sink.on_end(Ending::Cut);
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
                    let is_empty = bytes[..count].iter().all(|&byte| byte == 0);
                    if !is_empty && self.begun_at < self.whole_to {
                        self.buffer.fill(0);
                        self.begin_search((self.location.position - self.begun_at) as usize);
                        continue;
                    }
                    if !is_empty {
                        return self.on_end(sink);
                    }
                    if left == count {
                        self.state = State::Head;
                        self.end = to_block;
                        if std::mem::take(&mut self.is_behind_damage) && self.begun_at < self.whole_to {
                            sink.on_hole(self.begun_at..to_block);
                        }
                    }
                    count
                }
                State::Head => {
                    let before = self.filled;
                    match self.on_head(bytes, sink) {
                        Some(count) => count,
                        None if self.begun_at < self.whole_to => {
                            let count = self.filled - before;
                            self.begin_search(self.filled);
                            count
                        }
                        None => return self.on_end(sink),
                    }
                }
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
                        let is_whole = self.buffer[..TAIL_BYTES] == self.checksum.finish().to_le_bytes();
                        if !is_whole && self.begun_at >= self.whole_to {
                            return self.on_end(sink);
                        }
                        sink.on_end(if is_whole { Ending::Whole } else { Ending::Damaged });
                        self.is_behind_damage = !is_whole;
                        self.end = self.location.position + count as u64;
                        (self.state, self.filled, self.head) = (State::Head, 0, None);
                    }
                    count
                }
                State::Search => {
                    let count = bytes.len().min(KEYED_BYTES_MAX);
                    self.window.extend_from_slice(&bytes[..count]);
                    self.location.position += count as u64;
                    bytes = &bytes[count..];
                    self.search(false, sink);
                    continue;
                }
            };
            self.location.position += count as u64;
            bytes = &bytes[count..];
        }
    }

    /// Handles bytes up to the value. Returns `None` if they are not of a record.
    fn on_head(&mut self, bytes: &[u8], sink: &mut impl Sink) -> Option<usize> {
        self.begun_at = self.location.position - self.filled as u64;
        if self.filled == 0 && bytes[0] == 0 {
            // At the start of a block this means that nothing was written.
            if self.begun_at.is_multiple_of(self.block_bytes) {
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
                self.bytes_of(&head, self.begun_at)?;
                self.head = Some(head);
                if head.key_bytes > 0 {
                    return Some(count);
                }
                head
            }
        };
        let location = Location { position: self.begun_at, ..self.location };
        if !Head::is_genuine(&self.buffer[..self.filled], location) {
            return None;
        }
        sink.on_head(&head, &self.buffer[HEAD_BYTES..self.filled], self.begun_at);
        self.checksum = Checksum::behind(&self.buffer);
        self.filled = 0;
        let value_bytes = head.value_bytes_in(self.bytes_of(&head, self.begun_at)?);
        self.state = if value_bytes == 0 { State::Tail } else { State::Value { left: value_bytes } };
        Some(count)
    }

    /// Size of a record at a position of the segment; `None` if not all of it may be read.
    fn bytes_of(&self, head: &Head, position: u64) -> Option<usize> {
        let bytes = head.bytes_at(position, self.segment_bytes)?;
        (position + bytes as u64 <= self.limit).then_some(bytes)
    }

    /// Begins to look for the next record: none begins at `begun_at`. The first `count` bytes there are known: zeros,
    /// or in the buffer.
    fn begin_search(&mut self, count: usize) {
        self.window.clear();
        self.window.extend(self.buffer.iter().copied().chain(std::iter::repeat(0)).take(count));
        (self.state, self.filled, self.head, self.sought, self.set_count) = (State::Search, 0, None, 0, 0);
    }

    /// Looks for a record in the window, whose bytes end where those that were handled do. `is_last` if no more follow.
    fn search(&mut self, is_last: bool, sink: &mut impl Sink) {
        while self.state == State::Search && self.sought < self.window.len() {
            if self.window.len() - self.sought < KEYED_BYTES_MAX && !is_last {
                // The window need not hold bytes that were searched.
                self.window.drain(..self.sought);
                self.sought = 0;
                return;
            }
            let position = self.location.position - (self.window.len() - self.sought) as u64;
            let location = Location { position, ..self.location };
            let rest = &self.window[self.sought..];
            let fits = |head: &Head| self.bytes_of(head, position).is_some();
            if position == self.begun_at {
                let count = rest.len().min(KEYED_BYTES_MAX);
                let mut keyed = rest[..count].to_vec();
                if Head::correct(&mut keyed, location).filter(fits).is_some() {
                    self.window[self.sought..][..count].copy_from_slice(&keyed);
                    sink.on_corrected(position);
                    self.go_on(sink);
                    continue;
                }
            }
            if position >= self.whole_to || Head::read(rest, location).filter(fits).is_some() {
                self.end_hole(position, sink);
                self.go_on(sink);
                continue;
            }
            self.set_count += usize::from(rest[0] != 0);
            self.sought += 1;
        }
    }

    /// Reports the range that was passed over, up to a position.
    fn end_hole(&mut self, position: u64, sink: &mut impl Sink) {
        // The empty rest of a block with one wrong byte hides no record.
        let is_rest = !self.begun_at.is_multiple_of(self.block_bytes)
            && position == self.begun_at.next_multiple_of(self.block_bytes);
        if is_rest && self.set_count <= 1 {
            sink.on_corrected(self.begun_at);
        } else {
            sink.on_hole(self.begun_at..position);
        }
        self.end = position;
    }

    /// Goes on with the bytes of the window at which the search has ended.
    fn go_on(&mut self, sink: &mut impl Sink) {
        let rest = self.window.split_off(self.sought);
        self.location.position -= rest.len() as u64;
        self.state = State::Head;
        self.on_bytes(&rest, sink);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Sync;
    use super::*;
    use crate::record::Kind;

    const BLOCK_BYTES: usize = 512;

    /// The number of whole records.
    struct Count(usize);

    impl Sink for Count {
        fn on_head(&mut self, _head: &Head, _key: &[u8], _position: u64) {}

        fn on_value(&mut self, _part: &[u8]) {}

        fn on_end(&mut self, ending: Ending) {
            self.0 += usize::from(ending == Ending::Whole);
        }

        fn on_corrected(&mut self, _position: u64) {}

        fn on_hole(&mut self, _range: Range<u64>) {}
    }

    #[test]
    fn the_rest_of_a_block_counts_if_all_of_it_is_empty() {
        let position = BLOCK_BYTES as u64;
        let settings = LogSettings {
            identity: 1,
            run: 1,
            superblock_start: 0,
            start: 2 * position,
            segment_bytes: 2 * position,
            segment_count: 1,
            block_bytes: position,
            sync: Sync::Always,
        };
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
                let location = Location { run: 1, generation: 2, position };
                let (mut scanner, mut count) = (Scanner::new(location, &settings, 2 * position), Count(0));
                block.chunks(piece_bytes).for_each(|piece| scanner.on_bytes(piece, &mut count));
                assert_eq!((scanner.end(), count.0), (end as u64, 1), "pieces of {piece_bytes} bytes");
            }
        }
    }
}
