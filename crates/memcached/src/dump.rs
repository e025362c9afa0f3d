//! `lru_crawler metadump` and `mgdump`: all keys, partition by partition and piece by piece.
//!
//! A piece is the answer to a command of its own, so it may come from another partition. Behind its lines it has the
//! position at which the next piece continues, which the session removes:
//!
//! ```text
//! lines ─ position (8 bytes) ─ CONTINUES        or: lines ─ ENDS
//! ```
//!
//! Each key that is there throughout a dump is in it once, whatever happens to others meanwhile.

use crate::answer::AnswerId;
use crate::command::DumpForm;
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
    /// Number of partitions.
    count: usize,
    /// The partition of the next piece.
    pub(crate) partition: usize,
    /// Where it begins there.
    pub(crate) position: [u8; 8],
    /// The piece under way.
    pub(crate) awaited: Option<AnswerId>,
}

impl Dump {
    pub(crate) fn new(form: DumpForm, count: usize) -> Self {
        Self { form, count, partition: 0, position: [0; 8], awaited: None }
    }

    /// Takes the position off a piece, and appends the line after all keys to the last one. Returns whether it is the
    /// last.
    pub(crate) fn on_piece(&mut self, piece: &mut Vec<u8>) -> bool {
        self.awaited = None;
        match piece.pop() {
            Some(CONTINUES) => {
                self.position = piece.last_chunk().copied().unwrap_or_default();
                piece.truncate(piece.len().saturating_sub(self.position.len()));
                false
            }
            Some(ENDS) => {
                self.partition += 1;
                self.position = [0; 8];
                if self.partition == self.count {
                    piece.extend_from_slice(self.form.end());
                }
                self.partition == self.count
            }
            // The reason why there are no more.
            last => {
                piece.extend(last);
                true
            }
        }
    }
}

impl Executor<'_> {
    /// Appends the piece of a dump that begins at a position.
    pub(crate) fn dump(&mut self, form: DumpForm, position: &[u8], out: &mut Vec<u8>) {
        let (mut keys, mut ends) = (Vec::new(), Vec::with_capacity(PIECE_COUNT));
        let next = self.partition.processor.list(ListPosition::from_bytes(position), |key| {
            let has_room = ends.len() < PIECE_COUNT;
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

    /// Appends the fields of a pair. A pair in the index has a CAS number from the first request for it on; before, 0 is
    /// appended.
    fn push_fields(&mut self, hash: KeyHash, key: &[u8], out: &mut Vec<u8>) {
        let processor = &mut self.partition.processor;
        let Some(place) = processor.find(hash, key) else { return };
        let (attributes, marks) = (processor.attributes(place), processor.marks(place));
        let size = processor.value_bytes(place) + key.len() + ITEM_HEADER_BYTES;
        let cas = if place.item().is_some() { processor.cas(hash, key).unwrap_or(0) } else { 0 };
        let unix_s = |at_s: u32| processor.clock().base_s().cast_unsigned() + u64::from(at_s);
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
