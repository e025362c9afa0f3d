//! Objects of keys and values: their names, and what a head has before its value.
//!
//! ```text
//! NAMESPACE        %owner     who owns the keys (see `lease`)
//!                  KEY        head of 56 bytes │ value of up to 4 MiB
//!                  KEY        head of a longer value
//! NAMESPACE.parts  KEY%V.N    part N of the value that its head calls version V: 4 MiB, the last one less
//! ```
//!
//! In names, all bytes of a key but letters, digits and `._-:/@+=,~` are written as `%` and two hexadecimal digits. So no
//! name of a key has a `%` that two digits do not follow, and `%owner` is none.

use std::ffi::{CStr, CString};
use std::fmt::Write;

use kv::{KEY_BYTES_MAX, Marks};
use memory::crc32c;

/// The longest value beside its head, and the length of the parts of longer ones.
pub(super) const PART_BYTES: usize = 4 << 20;

/// Bytes of a head.
pub(super) const HEAD_BYTES: usize = 56;

/// The first bytes of each head, with the version of the format.
const MAGIC: [u8; 6] = *b"nvkv\x01\0";

/// The name of the object that says who owns the keys.
pub(super) const OWNER: &CStr = c"%owner";

/// What a head says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) flags: u32,
    pub(super) marks: Marks,
    pub(super) cas: u64,
    /// Unix time, s, or 0 for never.
    pub(super) expires_s: i64,
    pub(super) value_bytes: u64,
    /// In the names of the value's parts.
    pub(super) version: u64,
}

impl Head {
    /// Number of parts of the value; 0 if it follows the head.
    pub(super) fn part_count(&self) -> u64 {
        part_count(self.value_bytes)
    }

    pub(super) fn encode(&self) -> [u8; HEAD_BYTES] {
        let Marks { is_fetched, is_stale, is_won } = self.marks;
        let mut bytes = [0; HEAD_BYTES];
        bytes[..6].copy_from_slice(&MAGIC);
        bytes[6] = u8::from(is_fetched) | u8::from(is_stale) << 1 | u8::from(is_won) << 2;
        bytes[8..12].copy_from_slice(&self.flags.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.cas.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.expires_s.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.value_bytes.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.version.to_le_bytes());
        let checksum = crc32c::checksum(&bytes[..52]);
        bytes[52..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The head at the beginning of an object; `None` if there is none.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEAD_BYTES] = bytes.first_chunk()?;
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let short = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        if bytes[..6] != MAGIC || short(52) != crc32c::checksum(&bytes[..52]) {
            return None;
        }
        let has = |bit: u8| bytes[6] & 1 << bit != 0;
        Some(Self {
            flags: short(8),
            marks: Marks { is_fetched: has(0), is_stale: has(1), is_won: has(2) },
            cas: long(16),
            expires_s: long(24).cast_signed(),
            value_bytes: long(32),
            version: long(40),
        })
    }
}

/// Number of parts of a value of this length; 0 if it follows its head.
pub(super) fn part_count(value_bytes: u64) -> u64 {
    if value_bytes <= PART_BYTES as u64 { 0 } else { value_bytes.div_ceil(PART_BYTES as u64) }
}

fn escaped(key: &[u8]) -> String {
    let mut name = String::with_capacity(key.len());
    for &byte in key {
        if byte.is_ascii_alphanumeric() || b"._-:/@+=,~".contains(&byte) {
            name.push(byte.into());
        } else {
            let _ = write!(name, "%{byte:02X}");
        }
    }
    name
}

fn c_string(name: String) -> CString {
    CString::new(name).expect("zero bytes are escaped")
}

/// The name of the head of a key.
pub(super) fn head_name(key: &[u8]) -> CString {
    c_string(escaped(key))
}

/// The key that a head has the name of.
pub(super) fn key_of(name: &CStr) -> Option<Box<[u8]>> {
    unescaped(name.to_bytes())
}

fn unescaped(mut name: &[u8]) -> Option<Box<[u8]>> {
    let mut key = Vec::with_capacity(name.len());
    while let Some((&byte, rest)) = name.split_first() {
        name = rest;
        if byte != b'%' {
            key.push(byte);
            continue;
        }
        let digits = std::str::from_utf8(name.get(..2)?).ok()?;
        key.push(u8::from_str_radix(digits, 16).ok()?);
        name = &name[2..];
    }
    (1..=KEY_BYTES_MAX).contains(&key.len()).then(|| key.into())
}

/// The name of a part of a value.
pub(super) fn part_name(key: &[u8], version: u64, number: u64) -> CString {
    c_string(format!("{}%{version}.{number}", escaped(key)))
}

/// The key, version and number that a part has in its name.
pub(super) fn part_of(name: &CStr) -> Option<(Box<[u8]>, u64, u64)> {
    let name = name.to_str().ok()?;
    let (key, place) = name.rsplit_once('%')?;
    let (version, number) = place.split_once('.')?;
    Some((unescaped(key.as_bytes())?, version.parse().ok()?, number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn names_have_their_keys(key in vec(any::<u8>(), 1..=KEY_BYTES_MAX), version: u64, number: u64) {
            let name = head_name(&key);
            prop_assert_eq!(key_of(&name), Some(Box::from(&key[..])));
            prop_assert_eq!(part_of(&name), None);
            prop_assert_eq!(part_of(&part_name(&key, version, number)), Some((key.into(), version, number)));
            prop_assert_ne!(&*name, OWNER);
        }

        #[test]
        fn heads_say_what_was_written(
            flags: u32, marks: [bool; 3], cas: u64, expires_s: i64, value_bytes: u64, at in 0..HEAD_BYTES, bit in 0..8_u8,
        ) {
            let [is_fetched, is_stale, is_won] = marks;
            let marks = Marks { is_fetched, is_stale, is_won };
            let head = Head { flags, marks, cas, expires_s, value_bytes, version: !cas };
            let mut bytes = head.encode();
            prop_assert_eq!(Head::decode(&bytes), Some(head));
            prop_assert_eq!(Head::decode(&bytes[1..]), None);
            bytes[at] ^= 1_u8 << bit;
            prop_assert_eq!(Head::decode(&bytes), None, "a wrong bit is seen");
        }
    }

    #[test]
    fn only_names_of_keys_are_those_of_keys() {
        assert_eq!(key_of(OWNER), None);
        assert_eq!(key_of(c"%2"), None);
        assert_eq!(key_of(c""), None);
        assert_eq!(key_of(c"user:%00"), Some(b"user:\0"[..].into()));
        assert_eq!(part_of(c"key%1"), None);
    }
}
