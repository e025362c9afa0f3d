//! `lru_crawler metadump`, `mgdump` and `stats cachedump`: all keys, partition by partition and piece by piece.
//!
//! A piece is the answer to a command of its own, so it may come from another partition. Behind its lines it has the
//! position at which the next piece continues, which the session removes:
//!
//! ```text
//! lines ─ position (12 bytes) ─ CONTINUES        or: lines ─ ENDS
//! ```
//!
//! Each key that is there throughout a dump is in it once, whatever happens to others meanwhile. The crawler's dumps
//! are served one at a time, as in memcached, unless a client does not take its own.

use std::ops::Range;
use std::sync::Arc;

use crate::answer::AnswerId;
use crate::command::DumpForm;
use crate::crawler::{Crawler, CrawlerTurn};
use crate::execute::Executor;
use crate::meta::push_item_fields;
use crate::number;
use kv::{ITEM_HEADER_BYTES, KeyHash, ListPosition};

/// Keys of a piece.
const PIECE_COUNT: usize = 256;

/// Last bytes of a piece: no line ends with one of them.
const CONTINUES: u8 = 0;
const ENDS: u8 = 1;

/// A dump of a session.
#[derive(Debug)]
pub(crate) struct Dump {
    pub(crate) form: DumpForm,
    /// The partition of the next piece.
    pub(crate) partition: usize,
    /// The end of those that it is about.
    partition_end: usize,
    /// Where it begins there.
    pub(crate) position: [u8; ListPosition::BYTES],
    /// The piece under way.
    pub(crate) awaited: Option<AnswerId>,
    /// Keeps others from a dump of the crawler.
    turn: Option<CrawlerTurn>,
}

impl Dump {
    /// Begins a dump of these partitions. `None` if it has to wait for that of another session.
    pub(crate) fn begin(
        form: DumpForm,
        partitions: Range<usize>,
        crawler: &Arc<Crawler>,
        now_s: u32,
    ) -> Option<Self> {
        let turn = match form {
            DumpForm::Fields | DumpForm::Commands => Some(CrawlerTurn::take(crawler, now_s)?),
            DumpForm::Items { .. } => None,
        };
        let Range { start: partition, end: partition_end } = partitions;
        Some(Self { form, partition, partition_end, position: [0; ListPosition::BYTES], awaited: None, turn })
    }

    /// Notes that the next piece is requested, because the client has taken the one before it.
    pub(crate) fn on_request(&mut self, id: AnswerId, now_s: u32) {
        self.awaited = Some(id);
        if let Some(turn) = &self.turn {
            turn.note(now_s);
        }
    }

    /// Takes the position off a piece, and appends the line after all keys to the last one. Returns whether it is the
    /// last.
    pub(crate) fn on_piece(&mut self, piece: &mut Vec<u8>) -> bool {
        self.awaited = None;
        match piece.pop() {
            Some(CONTINUES) => {
                self.position = piece.last_chunk().copied().unwrap_or_default();
                piece.truncate(piece.len().saturating_sub(self.position.len()));
            }
            Some(ENDS) => {
                self.partition += 1;
                self.position = [0; ListPosition::BYTES];
            }
            // The reason why there are no more.
            last => {
                piece.extend(last);
                return true;
            }
        }
        let mut is_last = self.partition == self.partition_end;
        if let DumpForm::Items { left: Some(left) } = &mut self.form {
            let line_count = memchr::memchr_iter(b'\n', piece).count();
            *left = left.saturating_sub(u32::try_from(line_count).unwrap_or(u32::MAX));
            is_last |= *left == 0;
        }
        if is_last {
            piece.extend_from_slice(self.form.end());
        }
        is_last
    }
}

impl Executor<'_> {
    /// Appends the piece of a dump that begins at a position.
    pub(crate) fn dump(&mut self, form: DumpForm, position: &[u8], out: &mut Vec<u8>) {
        let (mut keys, mut ends) = (Vec::new(), Vec::with_capacity(PIECE_COUNT));
        let count_max = match form {
            DumpForm::Items { left: Some(left) } => PIECE_COUNT.min(left as usize),
            _ => PIECE_COUNT,
        };
        let next = self.partition.processor.list(ListPosition::from_bytes(position), |key| {
            let has_room = ends.len() < count_max;
            if has_room {
                keys.extend_from_slice(key);
                ends.push(keys.len());
            }
            has_room
        });
        let mut start = 0;
        for end in &ends {
            let key = &keys[start..*end];
            match form {
                DumpForm::Fields => self.push_fields(self.partition.processor.hash(key), key, out),
                DumpForm::Commands => push_command(key, out),
                DumpForm::Items { .. } => self.push_item(self.partition.processor.hash(key), key, out),
            }
            start = *end;
        }
        match next {
            None => out.push(ENDS),
            Some(position) => {
                out.extend_from_slice(&position.to_bytes());
                out.push(CONTINUES);
            }
        }
    }

    /// Appends the fields of a pair. A pair in the index has a CAS number from the first request for it on; before, 0
    /// is appended.
    fn push_fields(&mut self, hash: KeyHash, key: &[u8], out: &mut Vec<u8>) {
        let processor = &mut self.partition.processor;
        let Some(place) = processor.find(hash, key) else { return };
        let (attributes, marks) = (processor.attributes(place), processor.marks(place));
        let size = processor.value_bytes(place) + key.len() + ITEM_HEADER_BYTES;
        let cas = if place.item().is_some() { processor.cas(hash, key).unwrap_or(0) } else { 0 };
        let clock = *processor.clock();
        let unix_s = |at_s: u32| clock.unix_of(at_s).max(0).cast_unsigned();
        let accessed_s = unix_s(processor.last_access_s(place).unwrap_or(processor.now_s()));
        out.extend_from_slice(b"key=");
        number::push_url_encoded(out, key);
        out.extend_from_slice(b" exp=");
        match attributes.expiry_s {
            0 => out.extend_from_slice(b"-1"),
            expiry_s => number::push(out, unix_s(expiry_s)),
        }
        push_item_fields(out, accessed_s, cas, marks, size);
        out.extend_from_slice(b" flags=");
        number::push(out, attributes.flags.into());
        out.extend_from_slice(b" \n");
    }

    /// Appends the length and the expiry of a pair, unless its key would not be one word of a line.
    fn push_item(&mut self, hash: KeyHash, key: &[u8], out: &mut Vec<u8>) {
        if key.iter().any(|byte| *byte <= b' ' || *byte == 0x7f) {
            return;
        }
        let processor = &mut self.partition.processor;
        let Some(place) = processor.find(hash, key) else { return };
        let expires_s = match processor.attributes(place).expiry_s {
            0 => 0,
            expiry_s => processor.clock().unix_of(expiry_s).max(0).cast_unsigned(),
        };
        out.extend_from_slice(b"ITEM ");
        out.extend_from_slice(key);
        out.extend_from_slice(b" [");
        number::push(out, processor.value_bytes(place) as u64);
        out.extend_from_slice(b" b; ");
        number::push(out, expires_s);
        out.extend_from_slice(b" s]\r\n");
    }
}

/// Appends the command that gets a key; a key that no line can have is in base64.
fn push_command(key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"mg ");
    if key.iter().all(u8::is_ascii_graphic) {
        out.extend_from_slice(key);
    } else {
        number::push_base64(out, key);
        out.extend_from_slice(b" b");
    }
    out.extend_from_slice(b"\r\n");
}
