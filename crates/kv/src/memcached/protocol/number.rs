//! Numbers as text.

/// A decimal number without sign, at most 20 digits, that fits in 64 bits.
#[inline]
pub(crate) fn parse(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 20 {
        return None;
    }
    if text.len() < 20 {
        // Nineteen digits fit.
        let mut number = 0u64;
        for &digit in text {
            let digit = digit.wrapping_sub(b'0');
            if digit > 9 {
                return None;
            }
            number = number.wrapping_mul(10).wrapping_add(digit.into());
        }
        return Some(number);
    }
    text.iter().try_fold(0u64, |number, &digit| {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number.checked_mul(10)?.checked_add(digit.into())
    })
}

/// A decimal number with or without a minus.
pub(crate) fn parse_signed(text: &[u8]) -> Option<i64> {
    match text.strip_prefix(b"-") {
        Some(digits) => parse(digits).and_then(|number| 0i64.checked_sub_unsigned(number)),
        None => parse(text).and_then(|number| i64::try_from(number).ok()),
    }
}

/// Digits of a number, without allocating.
pub(crate) struct Digits {
    bytes: [u8; 20],
    start: u8,
}

impl Digits {
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "a number of 64 bits has at most 20 digits"
    )]
    pub(crate) fn new(mut number: u64) -> Self {
        let mut bytes = [0; 20];
        let mut start = 20;
        loop {
            start -= 1;
            bytes[start] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        Self { bytes, start: start as u8 }
    }

    #[inline]
    pub(crate) fn text(&self) -> &[u8] {
        self.bytes.get(usize::from(self.start)..).unwrap_or_default()
    }
}

/// The digit of a number below ten.
#[inline]
const fn digit(number: u64) -> u8 {
    b'0'.wrapping_add(number as u8)
}

/// Appends a number.
#[inline]
pub(crate) fn push(out: &mut Vec<u8>, number: u64) {
    match number {
        // Flags and short lengths.
        0..10 => out.push(digit(number)),
        10..100 => out.extend_from_slice(&[digit(number / 10), digit(number % 10)]),
        _ => out.extend_from_slice(Digits::new(number).text()),
    }
}

/// Decodes base64 with padding. `None` if it is none, or longer than `into`.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "letters of their ranges, four in a group, and the length was held against `into`"
)]
pub(crate) fn decode_base64(text: &[u8], into: &mut [u8]) -> Option<usize> {
    if text.is_empty() || !text.len().is_multiple_of(4) {
        return None;
    }
    let padding = text.iter().rev().take_while(|&&letter| letter == b'=').count();
    if padding > 2 {
        return None;
    }
    let length = text.len() / 4 * 3 - padding;
    if length > into.len() {
        return None;
    }
    let mut at = 0;
    for (group, letters) in text.chunks_exact(4).enumerate() {
        let mut bits = 0u32;
        for (place, &letter) in letters.iter().enumerate() {
            let six = match letter {
                b'A'..=b'Z' => letter - b'A',
                b'a'..=b'z' => letter - b'a' + 26,
                b'0'..=b'9' => letter - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                b'=' if group * 4 + place >= text.len() - padding => 0,
                _ => return None,
            };
            bits = bits << 6 | u32::from(six);
        }
        for byte in &bits.to_be_bytes()[1..] {
            if at < length {
                into[at] = *byte;
                at += 1;
            }
        }
    }
    Some(length)
}

/// Appends bytes as base64 with padding.
#[cfg(test)]
fn push_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for group in bytes.chunks(3) {
        let mut wide = [0; 3];
        wide[..group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes([0, wide[0], wide[1], wide[2]]);
        for place in 0..4 {
            let six = (bits >> (18 - 6 * place)) & 63;
            out.push(if place <= group.len() { LETTERS[six as usize] } else { b'=' });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_have_limits() {
        assert_eq!(parse(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse(b"00000000000000000012"), Some(12));
        for text in [&b"18446744073709551616"[..], b"", b"+1", b"-1", b"0x1", b"1 ", b"000000000000000000001"]
        {
            assert_eq!(parse(text), None, "{text:?}");
        }
        assert_eq!(parse_signed(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse_signed(b"9223372036854775808"), None);
        assert_eq!(parse_signed(b"--1"), None);
    }

    proptest! {
        #[test]
        fn numbers_and_base64_read_back(number: u64, bytes in prop::collection::vec(any::<u8>(), 1..200)) {
            prop_assert_eq!(parse(Digits::new(number).text()), Some(number));
            let mut text = Vec::new();
            push_base64(&mut text, &bytes);
            let mut back = [0; 200];
            let length = decode_base64(&text, &mut back);
            prop_assert_eq!(length.map(|length| &back[..length]), Some(&bytes[..]));
        }

        #[test]
        fn base64_of_anything_is_decoded_or_refused(text in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = decode_base64(&text, &mut [0; 40]);
        }
    }
}
