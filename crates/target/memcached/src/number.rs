//! Parsing and formatting of numbers, and base64.

/// A decimal number without sign, at most 20 digits, that fits in 64 bits.
#[inline]
pub(crate) fn parse(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 20 {
        return None;
    }
    if text.len() < 20 {
        // Nineteen digits cannot overflow.
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

/// The number that a stored text begins with, as `strtoull` reads it: after white space and a sign, up to white space,
/// a zero byte or the end.
#[expect(clippy::arithmetic_side_effects, reason = "a digit is at least `0`")]
pub(crate) fn parse_stored(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii_start();
    let (is_negative, text) = match text {
        [b'-', text @ ..] => (true, text),
        [b'+', text @ ..] => (false, text),
        _ => (false, text),
    };
    let (digits, rest) = text.split_at(text.iter().take_while(|byte| byte.is_ascii_digit()).count());
    let is_end = rest.first().is_none_or(|&byte| byte == 0 || byte.is_ascii_whitespace());
    let add = |number: u64, digit: &u8| number.checked_mul(10)?.checked_add((digit - b'0').into());
    let number = digits.iter().try_fold(0, add)?;
    (!digits.is_empty() && is_end && !(is_negative && number > 0)).then_some(number)
}

/// A decimal number with or without a minus sign.
pub(crate) fn parse_signed(text: &[u8]) -> Option<i64> {
    match text.strip_prefix(b"-") {
        Some(digits) => parse(digits).and_then(|number| 0i64.checked_sub_unsigned(number)),
        None => parse(text).and_then(|number| i64::try_from(number).ok()),
    }
}

/// The digits of a number in words, the first digit in the lowest byte, to be stored whole: bytes written one by one
/// and copied at once right after cost more than computing them.
pub(crate) struct Digits {
    words: [u64; 3],
    length: usize,
}

impl Digits {
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "one to eight digits in front, and no more than twenty"
    )]
    pub(crate) fn new(number: u64) -> Self {
        if number < EIGHT {
            let (first, length) = without_zeroes(number);
            return Self { words: [first, 0, 0], length };
        }
        let (front, last) = (number / EIGHT, eight_digits(number % EIGHT));
        // Shifts two words by a number of digits.
        let behind = |word: u64, digits: usize| {
            let bits = 8 * digits as u32;
            (word.checked_shl(bits).unwrap_or(0), word >> (64 - bits))
        };
        if front < EIGHT {
            let (first, length) = without_zeroes(front);
            let (low, high) = behind(last, length);
            return Self { words: [first | low, high, 0], length: length + 8 };
        }
        let (first, length) = without_zeroes(front / EIGHT);
        let (low, middle) = behind(eight_digits(front % EIGHT), length);
        let (upper, high) = behind(last, length);
        Self { words: [first | low, middle | upper, high], length: length + 16 }
    }

    /// Number of digits.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Appends them.
    #[inline]
    pub(crate) fn append_to(&self, out: &mut Vec<u8>) {
        let length = out.len().saturating_add(self.length);
        let [first, more @ ..] = self.words;
        out.extend_from_slice(&first.to_le_bytes());
        if self.length > 8 {
            for word in more {
                out.extend_from_slice(&word.to_le_bytes());
            }
        }
        out.truncate(length);
    }

    /// Writes them to the front of `to`, as many as fit.
    #[inline]
    pub(crate) fn write_to(&self, to: &mut [u8]) {
        let Some(to) = to.get_mut(..self.length) else { return };
        for (to, word) in to.chunks_mut(8).zip(self.words) {
            let bytes = word.to_le_bytes();
            match to.first_chunk_mut() {
                Some(to) => *to = bytes,
                None => to.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte),
            }
        }
    }
}

/// The last digits of a counter, eight or all of them. Consecutive commands on one counter depend on each other here,
/// so all digits are added at once.
#[derive(Clone, Copy)]
pub(crate) struct LastDigits {
    /// The digits as text, the last in the lowest byte, padded with zeroes.
    word: u64,
    count: usize,
}

impl LastDigits {
    /// The last digits of a text, if it is a number of at most nineteen digits without a leading 0.
    #[inline]
    pub(crate) fn of(text: &[u8]) -> Option<Self> {
        let (word, count, front) = match text.split_last_chunk::<8>() {
            Some((front, last)) => (u64::from_be_bytes(*last), 8, front),
            None => {
                (text.iter().fold(ZEROES, |word, &byte| word << 8 | u64::from(byte)), text.len(), &[][..])
            }
        };
        // Bytes outside of `0` to `9` are too small or too large.
        let others = (word.wrapping_add(u64::from_ne_bytes([0x46; 8])) | word.wrapping_sub(ZEROES)) & TOPS;
        let is_number = others == 0 && front.len() <= 11 && front.iter().all(u8::is_ascii_digit);
        (is_number && !matches!(text.first(), None | Some(b'0'))).then_some(Self { word, count })
    }

    /// Adds a number. Returns `false` if that would carry past these digits or change the length.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "one to eight bytes, of two digits and a carry each")]
    pub(crate) fn add(&mut self, number: u64) -> bool {
        const TO_CARRY: u64 = u64::from_ne_bytes([0xf6; 8]);
        let added = match number {
            0..10 => number,
            10..EIGHT => eight_digits(number).swap_bytes() - ZEROES,
            _ => return false,
        };
        let Some(sum) = (self.word - ZEROES + added).checked_add(TO_CARRY) else { return false };
        // Bytes without a carry.
        let rest = ((sum & TOPS) >> 7) * 0xf6;
        let sum = sum - rest;
        if self.count < 8 && sum >> (8 * self.count) != 0 {
            return false;
        }
        self.word = sum + ZEROES;
        true
    }

    /// The digits with the first in the lowest byte.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "one to eight digits")]
    fn in_order(self) -> [u8; 8] {
        (self.word.swap_bytes() >> (8 * (8 - self.count))).to_le_bytes()
    }

    /// Writes them back into the text they came from.
    #[inline]
    pub(crate) fn write_to(self, text: &mut [u8]) {
        let bytes = self.in_order();
        match text.last_chunk_mut() {
            Some(end) => *end = bytes,
            None => text.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte),
        }
    }

    /// Appends the text they came from with these digits in it, without reading bytes that were just written.
    #[inline]
    pub(crate) fn append_to(self, text: &[u8], out: &mut Vec<u8>) {
        let length = out.len().saturating_add(text.len());
        out.extend_from_slice(text.get(..text.len().saturating_sub(8)).unwrap_or_default());
        out.extend_from_slice(&self.in_order());
        out.truncate(length);
    }
}

/// The digits of a number below 10^8 without leading zeroes, and their count. The last digit always stays.
#[inline]
#[expect(clippy::arithmetic_side_effects, reason = "seven zeroes in front at most")]
const fn without_zeroes(number: u64) -> (u64, usize) {
    let word = eight_digits(number) - ZEROES;
    let zeroes = word.trailing_zeros() / 8;
    let zeroes = if zeroes > 7 { 7 } else { zeroes };
    ((word + ZEROES) >> (8 * zeroes), 8 - zeroes as usize)
}

/// Eight digits are below this.
const EIGHT: u64 = 100_000_000;

const ZEROES: u64 = u64::from_ne_bytes([b'0'; 8]);
const TOPS: u64 = u64::from_ne_bytes([0x80; 8]);

/// The eight digits of a number below 10^8, the first in the lowest byte: halves, then pairs, then single digits, in
/// parallel.
#[inline]
#[expect(clippy::arithmetic_side_effects, reason = "each part stays within its bits")]
const fn eight_digits(number: u64) -> u64 {
    let fours = (number / 10_000) | ((number % 10_000) << 32);
    let hundreds = ((fours * 10_486) >> 20) & 0x7f_0000_007f;
    let twos = hundreds | ((fours - 100 * hundreds) << 16);
    let tens = ((twos * 103) >> 10) & 0x000f_000f_000f_000f;
    (tens | ((twos - 10 * tens) << 8)) + ZEROES
}

/// The digit of a number below ten.
#[inline]
pub(crate) const fn digit(number: u64) -> u8 {
    b'0'.wrapping_add(number as u8)
}

/// Appends a number.
#[inline(always)]
pub(crate) fn push(out: &mut Vec<u8>, number: u64) {
    match number {
        // Flags and short lengths.
        0..10 => out.push(digit(number)),
        10..100 => out.extend_from_slice(&[digit(number / 10), digit(number % 10)]),
        _ => push_long(out, number),
    }
}

#[inline(never)]
fn push_long(out: &mut Vec<u8>, number: u64) {
    Digits::new(number).append_to(out);
}

/// Decodes base64 with padding. `None` if it is malformed, or longer than `into`.
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
pub(crate) fn push_base64(out: &mut Vec<u8>, bytes: &[u8]) {
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

/// Appends a key with all bytes in hexadecimal that are neither letters, digits nor `-._~`.
pub(crate) fn push_url_encoded(out: &mut Vec<u8>, key: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in key {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte);
        } else {
            out.extend_from_slice(&[b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
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
        fn numbers_and_base64_read_back(
            number: u64,
            shift in 0..64u32,
            bytes in prop::collection::vec(any::<u8>(), 1..200),
        ) {
            let number = number >> shift;
            let digits = Digits::new(number);
            let (mut appended, mut written) = (Vec::new(), vec![0; digits.len()]);
            digits.append_to(&mut appended);
            digits.write_to(&mut written);
            prop_assert_eq!(std::str::from_utf8(&appended), Ok(&*number.to_string()));
            prop_assert_eq!(&written, &appended);
            prop_assert_eq!(parse(&appended), Some(number));
            let mut text = Vec::new();
            push_base64(&mut text, &bytes);
            let mut back = [0; 200];
            let length = decode_base64(&text, &mut back);
            prop_assert_eq!(length.map(|length| &back[..length]), Some(&bytes[..]));
        }

        #[test]
        fn digits_are_added_at_once(number: u64, shift in 0..64u32, more: u64, less in 0..64u32, other: u8, at in 0..20usize) {
            let (number, more) = (number >> shift, more >> less);
            let sum = number.checked_add(more).map(|sum| sum.to_string());
            let mut text = number.to_string().into_bytes();
            let added = |text: &[u8]| LastDigits::of(text).and_then(|mut last| last.add(more).then_some(last));
            if let Some(last) = added(&text) {
                let mut appended = vec![b'x'];
                last.append_to(&text, &mut appended);
                last.write_to(&mut text);
                prop_assert_eq!(std::str::from_utf8(&text).ok(), sum.as_deref());
                prop_assert_eq!(&appended[1..], &text);
            } else {
                let is_longer = sum.is_none_or(|sum| sum.len() > text.len());
                let may_carry = number % EIGHT + more >= EIGHT || more >= EIGHT;
                prop_assert!(number == 0 || is_longer || text.len() > 19 || may_carry);
            }
            if let Some(byte) = text.get_mut(at) {
                *byte = other;
                let is_number = text.iter().all(u8::is_ascii_digit) && text[0] != b'0';
                prop_assert!(is_number || added(&text).is_none());
            }
        }

        #[test]
        fn what_does_not_fit_changes_no_digits(number in 1..u64::MAX, deltas in prop::collection::vec(any::<u64>(), 0..20)) {
            let text = number.to_string().into_bytes();
            let Some(mut last) = LastDigits::of(&text) else { return Ok(()) };
            let mut sum = number;
            for (at, delta) in deltas.into_iter().enumerate() {
                let delta = delta >> (at * 7 % 64);
                if last.add(delta) {
                    sum += delta;
                }
                let mut appended = Vec::new();
                last.append_to(&text, &mut appended);
                prop_assert_eq!(std::str::from_utf8(&appended), Ok(&*sum.to_string()));
            }
        }

        #[test]
        fn base64_of_anything_is_decoded_or_refused(text in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = decode_base64(&text, &mut [0; 40]);
        }
    }
}
