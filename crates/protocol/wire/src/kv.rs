//! Commands of the key-value command set. wire §23 The folder beside it has our own: docs/kv-commands.md

pub mod batch;
pub mod operation;
pub mod presence;
pub mod value;

use core::fmt;

use crate::bits::{byte, dword};
use crate::id::Nsid;
use crate::opcode::KvOpcode;
use crate::sqe::Sqe;

/// Most bytes of a key in a command itself.
pub const KEY_BYTES_MAX: usize = 16;

/// Most bytes of a key in the data of a command: as many as memcached's have. docs/kv-commands.md §4.3
pub const LONG_KEY_BYTES_MAX: usize = LONG_KEY_LENGTH_MAX as usize;

/// The same as the length of a key has it.
pub const LONG_KEY_LENGTH_MAX: u8 = 250;

const LIST_HEADER_BYTES: usize = 4;
const KEY_LENGTH_BYTES: usize = 2;

/// A key: 1 to 16 bytes, any bytes. Keys of different length are different.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    length: u8,
    /// Zero past `length`.
    bytes: [u8; KEY_BYTES_MAX],
}

impl Key {
    /// A key of these bytes; `None` unless there are 1 to 16.
    #[inline]
    #[must_use]
    pub fn new(key: &[u8]) -> Option<Self> {
        let length = u8::try_from(key.len()).ok().filter(|length| *length != 0)?;
        let mut bytes = [0; KEY_BYTES_MAX];
        bytes.get_mut(..key.len())?.copy_from_slice(key);
        Some(Self { length, bytes })
    }

    /// The key's bytes.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or_default()
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.as_bytes().escape_ascii())
    }
}

/// A key length that no command may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("key of {length} bytes, the limit is {KEY_BYTES_MAX}")]
pub struct KeyTooLong {
    /// As encoded in the command.
    pub length: u8,
}

/// Fields of a key-value command. wire §23
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvCommand {
    /// Bytes of the value (Store) or of the host's buffer (Retrieve, List).
    pub size_bytes: u32,
    /// Bytes of the key as the command has it; see [`KvCommand::key`].
    pub key_length: u8,
    /// Options, whose meaning depends on the opcode; see [`StoreOptions`] and [`RetrieveOptions`].
    pub options: u8,
    /// The key's field, with whatever follows the key.
    pub key_field: [u8; KEY_BYTES_MAX],
}

impl KvCommand {
    /// Reads the fields of a key-value command.
    #[inline]
    #[must_use]
    pub const fn from_sqe(sqe: &Sqe) -> Self {
        let [k0, k1, k2, k3] = sqe.cdw2.to_bytes();
        let [k4, k5, k6, k7] = sqe.cdw3.to_bytes();
        let [k8, k9, k10, k11] = sqe.cdw14.to_bytes();
        let [k12, k13, k14, k15] = sqe.cdw15.to_bytes();
        let cdw11 = sqe.cdw11.get();
        Self {
            size_bytes: sqe.cdw10.get(),
            key_length: byte(cdw11, 0),
            options: byte(cdw11, 1),
            key_field: [k0, k1, k2, k3, k4, k5, k6, k7, k8, k9, k10, k11, k12, k13, k14, k15],
        }
    }

    /// A command with these fields; the data pointer, if it has data, is left to the caller.
    #[inline]
    #[must_use]
    pub fn to_sqe(&self, opcode: KvOpcode, nsid: Nsid) -> Sqe {
        let [k0, k1, k2, k3, k4, k5, k6, k7, k8, k9, k10, k11, k12, k13, k14, k15] = self.key_field;
        let mut sqe = Sqe::new(opcode.raw(), nsid);
        sqe.cdw2 = [k0, k1, k2, k3].into();
        sqe.cdw3 = [k4, k5, k6, k7].into();
        sqe.cdw10.set(self.size_bytes);
        sqe.cdw11.set(dword(u16::from_le_bytes([self.key_length, self.options]), 0));
        sqe.cdw14 = [k8, k9, k10, k11].into();
        sqe.cdw15 = [k12, k13, k14, k15].into();
        sqe
    }

    /// The key; `None` if it has no bytes, which only List allows.
    ///
    /// # Errors
    /// [`KeyTooLong`] above 16 bytes.
    #[inline]
    pub fn key(&self) -> Result<Option<Key>, KeyTooLong> {
        let key = self.key_field.get(..usize::from(self.key_length));
        key.map(Key::new).ok_or(KeyTooLong { length: self.key_length })
    }

    fn new(key: Option<&Key>, size_bytes: u32, options: u8) -> Self {
        let (key_length, key_field) = key.map_or((0, [0; KEY_BYTES_MAX]), |key| (key.length, key.bytes));
        Self { size_bytes, key_length, options, key_field }
    }
}

tables! {
    /// Options of Store. wire §23
    pub flags StoreOptions: u8 {
        [0] MUST_EXIST, "Only if the key exists.";
        [1] MUST_NOT_EXIST, "Only if the key does not exist.";
        [2] NO_COMPRESSION, "Do not compress the value.";
    }

    /// Options of Retrieve. wire §23
    pub flags RetrieveOptions: u8 {
        [0] RAW, "Do not decompress the value.";
    }
}

impl Sqe {
    /// Stores a value of this size under a key.
    #[must_use]
    pub fn kv_store(nsid: Nsid, key: &Key, value_bytes: u32, options: StoreOptions) -> Self {
        KvCommand::new(Some(key), value_bytes, options.bits()).to_sqe(KvOpcode::STORE, nsid)
    }

    /// Reads the value of a key into a buffer of this size; dword 0 of the completion is the value's size.
    #[must_use]
    pub fn kv_retrieve(nsid: Nsid, key: &Key, buffer_bytes: u32, options: RetrieveOptions) -> Self {
        KvCommand::new(Some(key), buffer_bytes, options.bits()).to_sqe(KvOpcode::RETRIEVE, nsid)
    }

    /// Reads keys into a buffer of this size, from the given key on or from the first.
    #[must_use]
    pub fn kv_list(nsid: Nsid, from: Option<&Key>, buffer_bytes: u32) -> Self {
        KvCommand::new(from, buffer_bytes, 0).to_sqe(KvOpcode::LIST, nsid)
    }

    /// Deletes a key and its value.
    #[must_use]
    pub fn kv_delete(nsid: Nsid, key: &Key) -> Self {
        KvCommand::new(Some(key), 0, 0).to_sqe(KvOpcode::DELETE, nsid)
    }

    /// Asks whether a key exists.
    #[must_use]
    pub fn kv_exist(nsid: Nsid, key: &Key) -> Self {
        KvCommand::new(Some(key), 0, 0).to_sqe(KvOpcode::EXIST, nsid)
    }
}

/// Writes the data of a List into a buffer, key by key. wire §23
///
/// ```text
/// count u32 ├─ length u16, key, zeros to a dword ─┤├─ … ─┤
/// ```
#[derive(Debug)]
pub struct KeyListWriter<'a> {
    list: &'a mut [u8],
    end: usize,
    count: u32,
}

impl<'a> KeyListWriter<'a> {
    /// Begins a list; `None` if the buffer has no room for the count.
    #[must_use]
    pub fn new(list: &'a mut [u8]) -> Option<Self> {
        list.get_mut(..LIST_HEADER_BYTES)?.fill(0);
        Some(Self { list, end: LIST_HEADER_BYTES, count: 0 })
    }

    /// Adds a key; `false`, and nothing added, if it does not fit with its padding.
    #[must_use = "whether there was room"]
    pub fn push(&mut self, key: &Key) -> bool {
        let name = key.as_bytes();
        let end = self.end.saturating_add(entry_bytes(name.len()));
        let Some(entry) = self.list.get_mut(self.end..end) else { return false };
        let Some((length, rest)) = entry.split_first_chunk_mut() else { return false };
        let Some((place, padding)) = rest.split_at_mut_checked(name.len()) else { return false };
        *length = u16::from(key.length).to_le_bytes();
        place.copy_from_slice(name);
        padding.fill(0);
        self.end = end;
        self.count = self.count.saturating_add(1);
        true
    }

    /// Writes the count, zeroes the rest of the buffer and returns the bytes of the list.
    #[must_use = "the length of the list"]
    pub fn finish(self) -> usize {
        if let Some(header) = self.list.first_chunk_mut() {
            *header = self.count.to_le_bytes();
        }
        if let Some(rest) = self.list.get_mut(self.end..) {
            rest.fill(0);
        }
        self.end
    }
}

/// The data of a List that cannot be read; nor can the data that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyListError {
    /// It ends in the middle of a key.
    #[error("list ends in the key at byte {offset}")]
    Truncated {
        /// Where the key begins.
        offset: usize,
    },
    /// A key has no bytes, or more than 16.
    #[error("key of {length} bytes at byte {offset} of the list")]
    Length {
        /// Where the key begins.
        offset: usize,
        /// Its length.
        length: u16,
    },
}

/// Reads the data of a List: as many keys as it counts, within its bounds. After an error it ends. wire §23
#[derive(Clone, Debug)]
pub struct KeyList<'a> {
    list: &'a [u8],
    offset: usize,
    left: u32,
}

impl<'a> KeyList<'a> {
    /// Reads the count; `None` if even that is not there.
    #[must_use]
    pub fn new(list: &'a [u8]) -> Option<Self> {
        let (count, _) = list.split_first_chunk::<LIST_HEADER_BYTES>()?;
        Some(Self { list, offset: LIST_HEADER_BYTES, left: u32::from_le_bytes(*count) })
    }

    /// Keys the list still counts, which need not be there.
    #[must_use]
    pub const fn left(&self) -> u32 {
        self.left
    }

    fn key(&self) -> Result<Key, KeyListError> {
        let truncated = KeyListError::Truncated { offset: self.offset };
        let rest = self.list.get(self.offset..).ok_or(truncated)?;
        let (length, rest) = rest.split_first_chunk::<KEY_LENGTH_BYTES>().ok_or(truncated)?;
        let length = u16::from_le_bytes(*length);
        if !(1..=KEY_BYTES_MAX).contains(&usize::from(length)) {
            return Err(KeyListError::Length { offset: self.offset, length });
        }
        rest.get(..usize::from(length)).and_then(Key::new).ok_or(truncated)
    }
}

/// Bytes of an entry of a list: the length of the key, the key, and padding to whole dwords.
fn entry_bytes(key_length: usize) -> usize {
    KEY_LENGTH_BYTES.saturating_add(key_length).checked_next_multiple_of(4).unwrap_or(usize::MAX)
}

impl Iterator for KeyList<'_> {
    type Item = Result<Key, KeyListError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let key = self.key();
        match &key {
            Ok(key) => self.offset = self.offset.saturating_add(entry_bytes(key.as_bytes().len())),
            Err(_) => self.left = 0,
        }
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    fn key(bytes: &[u8]) -> Key {
        Key::new(bytes).expect("1 to 16 bytes")
    }

    #[test]
    fn a_store_has_its_key_at_both_places_of_the_reference() {
        let sixteen = key(b"0123456789abcdef");
        let sqe = Sqe::kv_store(Nsid::new(1), &sixteen, 0x0102_0304, StoreOptions::MUST_NOT_EXIST);
        let mut expected = [0; 64];
        expected[..5].copy_from_slice(&[0x01, 0x40, 0, 0, 1]);
        expected[8..16].copy_from_slice(b"01234567");
        expected[39] = 0x5A;
        expected[40..48].copy_from_slice(&[4, 3, 2, 1, 16, 0b10, 0, 0]);
        expected[56..].copy_from_slice(b"89abcdef");
        assert_eq!(sqe.as_bytes(), expected);
    }

    #[test]
    fn the_other_commands_differ_in_opcode_size_and_options() {
        let (nsid, short) = (Nsid::new(1), key(b"k"));
        for (sqe, opcode, dwords) in [
            (Sqe::kv_retrieve(nsid, &short, 4096, RetrieveOptions::RAW), 0x02, [0, 0x10, 0, 0, 1, 1, 0, 0]),
            (Sqe::kv_list(nsid, Some(&short), 512), 0x06, [0, 2, 0, 0, 1, 0, 0, 0]),
            (Sqe::kv_delete(nsid, &short), 0x10, [0, 0, 0, 0, 1, 0, 0, 0]),
            (Sqe::kv_exist(nsid, &short), 0x14, [0, 0, 0, 0, 1, 0, 0, 0]),
        ] {
            assert_eq!(sqe.opcode, opcode);
            assert_eq!(sqe.as_bytes()[40..48], dwords, "opcode {opcode:#x}");
            assert_eq!(sqe.as_bytes()[8..16], *b"k\0\0\0\0\0\0\0");
        }
        assert_eq!(Sqe::kv_list(nsid, None, 512).as_bytes()[40..48], [0, 2, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn keys_are_1_to_16_bytes_of_any_kind() {
        assert_eq!(Key::new(b""), None);
        assert_eq!(Key::new(&[0; 17]), None);
        assert_eq!(Key::new(&[0; 300]), None);
        assert_ne!(key(b"a"), key(b"a\0"));
        assert_eq!(key(&[0xFF; 16]).as_bytes(), [0xFF; 16]);
        insta::assert_snapshot!(format!("{:?}", key(b"a\0\n")), @r"Key(a\x00\n)");
    }

    #[test]
    fn bytes_past_the_key_do_not_belong_to_it() {
        let mut command = KvCommand::from_sqe(&Sqe::kv_exist(Nsid::new(1), &key(b"ab")));
        command.key_field[2..].fill(0xEE);
        assert_eq!(command.key(), Ok(Some(key(b"ab"))));
        command.key_length = 0;
        assert_eq!(command.key(), Ok(None));
        command.key_length = 17;
        assert_eq!(command.key(), Err(KeyTooLong { length: 17 }));
    }

    #[test]
    fn a_list_has_the_bytes_of_the_reference() {
        let mut list = [0xAA; 24];
        let mut writer = KeyListWriter::new(&mut list).expect("room");
        assert!(writer.push(&key(b"ab")));
        assert!(writer.push(&key(b"abc")));
        assert!(!writer.push(&key(b"0123456789")));
        assert!(writer.push(&key(b"x")));
        assert_eq!(writer.finish(), 20);
        assert_eq!(list[..12], [3, 0, 0, 0, 2, 0, b'a', b'b', 3, 0, b'a', b'b']);
        assert_eq!(list[12..], [b'c', 0, 0, 0, 1, 0, b'x', 0, 0, 0, 0, 0]);
        assert!(KeyListWriter::new(&mut [0; 3]).is_none());
    }

    #[test]
    fn a_malformed_list_ends_with_an_error() {
        let read = |list: &[u8]| KeyList::new(list).map(Iterator::last);
        let truncated = |offset| Some(Some(Err(KeyListError::Truncated { offset })));
        assert_eq!(read(&[1, 0, 0]), None);
        assert_eq!(read(&[0, 0, 0, 0, 1, 2]), Some(None));
        assert_eq!(read(&[1, 0, 0, 0]), truncated(4));
        assert_eq!(read(&[1, 0, 0, 0, 2, 0, 7]), truncated(4));
        assert_eq!(read(&[0xFF, 0xFF, 0xFF, 0xFF, 1, 0, 7, 0]), truncated(8));
        let length = |length| Some(Some(Err(KeyListError::Length { offset: 4, length })));
        assert_eq!(read(&[2, 0, 0, 0, 0, 0, 7, 0, 1, 0, 7, 0]), length(0));
        assert_eq!(read(&[2, 0, 0, 0, 17, 0, 7, 0, 1, 0, 7, 0]), length(17));
        // Padding of the last key may be missing.
        assert_eq!(read(&[1, 0, 0, 0, 1, 0, 7]), Some(Some(Ok(key(&[7])))));
    }

    proptest! {
        #[test]
        fn commands_give_back_what_they_were_made_of(
            size_bytes: u32, key_length: u8, options: u8, key_field: [u8; 16], opcode: u8,
        ) {
            let command = KvCommand { size_bytes, key_length, options, key_field };
            let sqe = command.to_sqe(KvOpcode::from_raw(opcode), Nsid::new(1));
            prop_assert_eq!(KvCommand::from_sqe(&sqe), command);
            prop_assert_eq!(command.key().is_err(), key_length > 16);
        }

        #[test]
        fn any_command_and_list_are_read_within_bounds(
            bytes: [[u8; 32]; 2], list in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let sqe = Sqe::read_from_bytes(bytes.as_flattened()).expect("64 bytes");
            let _ = KvCommand::from_sqe(&sqe).key();
            if let Some(list) = KeyList::new(&list) {
                prop_assert!(list.count() <= 200 / 4);
            }
        }

        #[test]
        fn a_list_reads_back_as_far_as_there_was_room(
            keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..=16), 0..20),
            room in 4usize..300,
        ) {
            let mut list = vec![0xAA; room];
            let mut writer = KeyListWriter::new(&mut list).expect("room for the count");
            let keys = keys.iter().map(|bytes| key(bytes));
            let written: Vec<Key> = keys.take_while(|key| writer.push(key)).collect();
            let length = writer.finish();
            prop_assert!(length <= room && length.is_multiple_of(4));
            let mut reader = KeyList::new(&list).expect("a count");
            for (at, key) in written.iter().enumerate() {
                prop_assert_eq!(reader.left() as usize, written.len() - at);
                prop_assert_eq!(reader.next(), Some(Ok(*key)));
            }
            prop_assert_eq!((reader.left(), reader.next()), (0, None));
        }
    }
}
