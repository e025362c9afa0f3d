//! UUIDs: 16 bytes on the wire in the order of their text. wire §6.2, wire §10.3

use core::fmt::{self, Write};
use core::str::FromStr;

/// Characters of the text form.
pub const UUID_TEXT_BYTES: usize = 36;

const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";

newtype! {
    /// A UUID.
    #[derive(PartialOrd, Ord)]
    pub Uuid([u8; 16])
}

conversions! { Uuid([u8; 16]): pub from_bytes, to_bytes }

/// Text that is no UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a UUID: expected 32 hexadecimal digits, with hyphens as 8-4-4-4-12 or none")]
pub struct UuidError;

impl Uuid {
    /// All zero, which identifies nothing.
    pub const NIL: Self = Self([0; 16]);

    /// The text form: lower case, hyphens as 8-4-4-4-12.
    #[must_use]
    #[allow(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "16 bytes make 32 digits and 4 hyphens, 36 places in all; a nibble is below 16"
    )]
    pub const fn to_text(self) -> [u8; UUID_TEXT_BYTES] {
        let mut text = [b'-'; UUID_TEXT_BYTES];
        let mut at = 0;
        let mut index = 0;
        while index < self.0.len() {
            if matches!(index, 4 | 6 | 8 | 10) {
                at += 1;
            }
            text[at] = HEX_DIGITS[(self.0[index] >> 4) as usize];
            text[at + 1] = HEX_DIGITS[(self.0[index] & 0xF) as usize];
            at += 2;
            index += 1;
        }
        text
    }

    /// Whether it is all zero.
    #[must_use]
    pub fn is_nil(self) -> bool {
        self == Self::NIL
    }
}

impl FromStr for Uuid {
    type Err = UuidError;

    /// Takes the hyphenated form, or 32 digits without hyphens, in either case.
    fn from_str(text: &str) -> Result<Self, UuidError> {
        let text = text.as_bytes();
        let hyphenated = text.len() == UUID_TEXT_BYTES;
        if !hyphenated && text.len() != 32 {
            return Err(UuidError);
        }
        let is_hyphen = |position| hyphenated && matches!(position, 8 | 13 | 18 | 23);
        if text.iter().enumerate().any(|(position, byte)| is_hyphen(position) && *byte != b'-') {
            return Err(UuidError);
        }
        let digits = text.iter().enumerate().filter(|(position, _)| !is_hyphen(*position));
        let mut digits = digits.map(|(_, byte)| hex_digit(*byte));
        let mut digit = || digits.next().flatten().ok_or(UuidError);
        let mut bytes = [0; 16];
        for byte in &mut bytes {
            *byte = digit()? << 4 | digit()?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.to_text() {
            f.write_char(char::from(byte))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uuid({self})")
    }
}

const fn hex_digit(byte: u8) -> Option<u8> {
    match (byte as char).to_digit(16) {
        Some(digit) => Some((digit & 0xF) as u8),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "01234567-89ab-cdef-0123-456789abcdef";

    #[test]
    fn bytes_follow_the_order_of_the_text() {
        let uuid: Uuid = TEXT.parse().expect("well formed");
        assert_eq!(uuid.to_bytes()[..8], [0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF]);
        assert_eq!(uuid.to_bytes()[8..], [0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF]);
        assert_eq!(uuid.to_string(), TEXT);
        assert_eq!(format!("{uuid:?}"), format!("Uuid({TEXT})"));
    }

    #[test]
    fn case_and_hyphens_do_not_matter_in_text() {
        let uuid: Uuid = TEXT.parse().expect("well formed");
        assert_eq!(TEXT.to_uppercase().parse(), Ok(uuid));
        assert_eq!(TEXT.replace('-', "").parse(), Ok(uuid));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "01234567",
            "01234567-89ab-cdef-0123-456789abcdeg",
            "01234567-89ab-cdef-0123-456789abcde",
            "01234567-89ab-cdef-0123-456789abcdef0",
            "0123456-789ab-cdef-0123-456789abcdef",
            "0123456789abcdef0123456789abcde-",
            "{1234567-89ab-cdef-0123-456789abcde}",
            "0123456\u{e9}89abcdef0123456789abcdef",
        ] {
            assert_eq!(text.parse::<Uuid>(), Err(UuidError), "{text}");
        }
    }

    #[test]
    fn nil_is_all_zero() {
        assert!(Uuid::NIL.is_nil());
        assert!(!Uuid::from_bytes([1; 16]).is_nil());
    }

    proptest! {
        #[test]
        fn text_comes_back_as_the_same_bytes(bytes: [u8; 16]) {
            let uuid = Uuid::from_bytes(bytes);
            prop_assert_eq!(uuid.to_string().parse(), Ok(uuid));
            prop_assert_eq!(uuid.to_bytes(), bytes);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text: String) {
            let _ = text.parse::<Uuid>();
        }
    }
}
