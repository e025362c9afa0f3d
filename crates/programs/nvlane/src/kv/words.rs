//! Keys and values on the command line: text, or hexadecimal.

use std::ops::Range;

use command_line::exit::{Failure, Kind};
use host::{Error, Failure as CommandFailure, Key};
use wire::kv::LONG_KEY_BYTES_MAX;
use wire::kv::value::is_long_key;
use wire::status::Status;
use wire::text::to_hex;

/// The bytes of hexadecimal digits, with or without `0x` before them.
pub(super) fn from_hex(text: &str) -> Option<Vec<u8>> {
    wire::text::from_hex(text.strip_prefix("0x").unwrap_or(text).as_bytes())
}

/// The bytes that a word stands for.
pub(super) fn bytes(word: &str, is_hex: bool) -> Result<Vec<u8>, Failure> {
    if !is_hex {
        return Ok(word.as_bytes().to_vec());
    }
    from_hex(word)
        .ok_or_else(|| Failure::usage(format!("{word:?}: --hex expects pairs of hexadecimal digits")))
}

/// The key that a word names.
pub(super) fn key(word: &str, is_hex: bool) -> Result<Key, Failure> {
    let bytes = bytes(word, is_hex)?;
    Key::new(&bytes).ok_or_else(|| {
        Failure::usage(format!("{word:?} has {} bytes: keys of NVMe have 1 to 16", bytes.len()))
    })
}

/// The key that a word names, of a command that takes long ones.
pub(super) fn long_key(word: &str, is_hex: bool) -> Result<Vec<u8>, Failure> {
    let bytes = bytes(word, is_hex)?;
    if is_long_key(&bytes) {
        return Ok(bytes);
    }
    Err(Failure::usage(format!("{word:?} has {} bytes: keys have 1 to {LONG_KEY_BYTES_MAX}", bytes.len())))
}

/// Parses a range of bytes.
pub(super) fn range(word: &str) -> Result<Range<u32>, String> {
    let range = word.split_once(':').and_then(|(offset, length)| {
        let (offset, length): (u32, u32) = (offset.parse().ok()?, length.parse().ok()?);
        Some(offset..offset.checked_add(length)?)
    });
    range
        .filter(|range| !range.is_empty())
        .ok_or_else(|| format!("{word:?} is not a range: write OFFSET:LENGTH in bytes, as in 4096:512"))
}

/// Message for a failed command on a key: plain words for common statuses, the library's for the rest. `wanted`
/// describes the value that the command needs.
pub(super) fn failed(error: Error, key: &Key, is_hex: bool, wanted: &str) -> Failure {
    let status = match &error {
        Error::Failed { failure: CommandFailure::Status(status), .. } => *status,
        _ => return error.into(),
    };
    if status.is(Status::KEY_DOES_NOT_EXIST) {
        absent(key, is_hex)
    } else if status.is(Status::INVALID_VALUE_SIZE) {
        Failure::new(Kind::Failed, format!("{} is not {wanted}", shown(key, is_hex)))
    } else {
        error.into()
    }
}

/// Failure of a command whose key does not exist.
pub(super) fn absent(key: &impl AsRef<[u8]>, is_hex: bool) -> Failure {
    Failure::new(Kind::Failed, format!("{} does not exist", shown(key, is_hex)))
}

/// A key as text if it is text, else hexadecimal.
pub(super) fn shown(key: &impl AsRef<[u8]>, is_hex: bool) -> String {
    let key = key.as_ref();
    match std::str::from_utf8(key) {
        Ok(text) if !is_hex && !text.chars().any(char::is_control) => text.to_owned(),
        _ if is_hex => to_hex(key),
        _ => format!("0x{}", to_hex(key)),
    }
}

/// Parses a number: decimal with an optional sign, or hexadecimal after `0x`. Negative numbers wrap.
pub(super) fn number(word: &str) -> Result<u64, String> {
    let none = || format!("{word:?} is not a 64-bit number");
    if let Some(digits) = word.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).map_err(|_| none());
    }
    if word.starts_with('-') {
        return word.parse::<i64>().map(i64::cast_unsigned).map_err(|_| none());
    }
    word.parse().map_err(|_| none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_goes_both_ways() {
        assert_eq!(from_hex("0x00fFa5"), Some(vec![0, 0xFF, 0xA5]));
        assert_eq!(to_hex(&[0, 0xFF, 0xA5]), "00ffa5");
        for bad in ["0", "0x123", "zz", "é0", "+1"] {
            assert_eq!(from_hex(bad), None, "{bad}");
        }
        assert_eq!(from_hex(""), Some(Vec::new()));
    }

    #[test]
    fn keys_have_1_to_16_bytes() {
        assert!(key("", false).is_err() && key("0123456789abcdefg", false).is_err());
        assert_eq!(key("ff00", true).expect("a key").as_bytes(), [0xFF, 0]);
        assert_eq!(shown(&key("ab", false).expect("a key"), false), "ab");
        assert_eq!(shown(&key("00ff", true).expect("a key"), false), "0x00ff");
        assert_eq!(shown(&key("ab", false).expect("a key"), true), "6162");
    }

    #[test]
    fn ranges_are_an_offset_and_a_length() {
        assert_eq!(range("4096:512"), Ok(4096..4608));
        for bad in ["", "1", "1:", ":1", "1:0", "4294967295:1", "-1:5", "1-2", "1:2:3"] {
            assert!(range(bad).is_err(), "{bad}");
        }
        assert_eq!(long_key(&"k".repeat(250), false).expect("a key").len(), 250);
        assert!(long_key(&"k".repeat(251), false).is_err() && long_key("", true).is_err());
    }

    #[test]
    fn numbers_may_be_negative_or_hexadecimal() {
        assert_eq!(number("-1"), Ok(u64::MAX));
        assert_eq!(number("0x10"), Ok(16));
        assert_eq!(number("18446744073709551615"), Ok(u64::MAX));
        assert!(number("18446744073709551616").is_err() && number("1.5").is_err() && number("").is_err());
    }
}
