//! Keys by their number, and self-describing values.

use host::Key;

use crate::random::mix;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// The key of this number: its sixteen hexadecimal digits.
#[inline]
#[must_use]
pub fn key(number: u64) -> Key {
    named(number, None)
}

/// The counter of this number: `#` and fifteen digits, so that it is no key of a value.
#[inline]
#[must_use]
pub fn counter(number: u64) -> Key {
    named(number, Some(b'#'))
}

#[inline]
fn named(number: u64, first: Option<u8>) -> Key {
    let mut bytes = [0; 16];
    for (byte, half) in bytes.iter_mut().zip((0..16).rev()) {
        *byte = DIGITS[usize::try_from(number >> (4 * half) & 0xF).expect("four bits")];
    }
    if let Some(first) = first {
        bytes[0] = first;
    }
    Key::new(&bytes).expect("16 bytes")
}

/// The word at `at` of the value that was stored as `version` of a key.
#[inline]
fn word(number: u64, version: u64, at: u64) -> [u8; 8] {
    mix(mix(number).wrapping_add(version.wrapping_mul(0x9e37_79b9_7f4a_7c15)) ^ at).to_le_bytes()
}

/// Fills a value: its first word is the version, the others follow from key, version and place.
pub fn fill(number: u64, version: u64, value: &mut [u8]) {
    let version = if value.len() < 8 { 0 } else { version };
    for (at, chunk) in (0..).zip(value.chunks_mut(8)) {
        let word =
            if at == 0 && chunk.len() == 8 { version.to_le_bytes() } else { word(number, version, at) };
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// Whether a value is one that [`fill`] made for this key.
#[must_use]
pub fn check(number: u64, value: &[u8]) -> bool {
    let version = value.first_chunk::<8>().map_or(0, |first| u64::from_le_bytes(*first));
    let mut chunks = (0..).zip(value.chunks(8));
    chunks
        .all(|(at, chunk)| at == 0 && chunk.len() == 8 || chunk == &word(number, version, at)[..chunk.len()])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_are_their_numbers_and_counters_are_no_keys() {
        assert_eq!(key(0xAB).as_bytes(), b"00000000000000ab");
        assert_eq!(counter(0xAB).as_bytes(), b"#0000000000000ab");
        assert_eq!(key(u64::MAX).as_bytes(), b"ffffffffffffffff");
    }

    proptest! {
        #[test]
        fn a_value_is_known_by_its_key_and_nothing_else(number: u64, version: u64, length in 0usize..200, at: prop::sample::Index) {
            let mut value = vec![0; length];
            fill(number, version, &mut value);
            prop_assert!(check(number, &value));
            if length > 8 {
                prop_assert!(!check(number ^ 1, &value));
                let at = 8 + at.index(length - 8);
                value[at] ^= 0x10;
                prop_assert!(!check(number, &value));
            }
        }
    }
}
