//! Fixed-width text fields: ASCII, padded with spaces or NULs. wire §10.1, wire §20

use core::fmt;

/// Text of a fixed-width field without its padding.
///
/// Ends at the first NUL, then loses trailing spaces: peers pad with either (wire §20). Any byte may be in
/// it; [`Display`] escapes what is not printable ASCII, so it is safe in a log line.
///
/// [`Display`]: fmt::Display
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Text<'a>(&'a [u8]);

/// Text that does not go into a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// More bytes than the field has.
    #[error("text of {length} bytes in a field of {limit}")]
    TooLong {
        /// Bytes of the text.
        length: usize,
        /// Bytes of the field.
        limit: usize,
    },
    /// Something else than printable ASCII.
    #[error("byte {position} of the text is not printable ASCII")]
    NotPrintable {
        /// Index of the first such byte.
        position: usize,
    },
}

/// What fills a text field up to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// Spaces: serial number, model, firmware.
    Space,
    /// NULs: addresses, service ids.
    Nul,
}

impl<'a> Text<'a> {
    /// Strips the padding off a field.
    #[must_use]
    pub fn of(field: &'a [u8]) -> Self {
        let mut text = field.split(|byte| *byte == 0).next().unwrap_or_default();
        while let [rest @ .., b' '] = text {
            text = rest;
        }
        Self(text)
    }

    /// The bytes as they came.
    #[must_use]
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The text, if it is printable ASCII throughout.
    #[must_use]
    pub fn as_str(self) -> Option<&'a str> {
        if self.0.iter().all(|byte| is_printable(*byte)) { core::str::from_utf8(self.0).ok() } else { None }
    }

    /// Whether nothing but padding was there.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            if is_printable(*byte) {
                fmt::Write::write_char(f, char::from(*byte))?;
            } else {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Text({self})")
    }
}

/// Writes `text` into `field` and pads the rest.
pub(crate) fn write_text(field: &mut [u8], text: &str, padding: Padding) -> Result<(), TextError> {
    if let Some(position) = text.bytes().position(|byte| !is_printable(byte)) {
        return Err(TextError::NotPrintable { position });
    }
    let limit = field.len();
    let Some((head, tail)) = field.split_at_mut_checked(text.len()) else {
        return Err(TextError::TooLong { length: text.len(), limit });
    };
    head.copy_from_slice(text.as_bytes());
    tail.fill(match padding {
        Padding::Space => b' ',
        Padding::Nul => 0,
    });
    Ok(())
}

const fn is_printable(byte: u8) -> bool {
    matches!(byte, b' '..=b'~')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_kinds_of_padding_come_off() {
        for field in [b"4420\0\0\0\0", b"4420    ", b"4420  \0\0", b"4420\0 x "] {
            assert_eq!(Text::of(field).as_str(), Some("4420"));
        }
        assert!(Text::of(b"   \0").is_empty());
        assert_eq!(Text::of(b"12345678").as_str(), Some("12345678"));
        assert_eq!(Text::of(b" a b ").as_str(), Some(" a b"));
    }

    #[test]
    fn unprintable_bytes_are_shown_escaped() {
        let text = Text::of(b"a\nb\xFF");
        assert_eq!(text.as_str(), None);
        assert_eq!(text.as_bytes(), b"a\nb\xFF");
        insta::assert_snapshot!(text, @r"a\x0ab\xff");
        assert_eq!(format!("{text:?}"), r"Text(a\x0ab\xff)");
    }

    #[test]
    fn text_that_does_not_fit_is_refused_and_leaves_the_field() {
        let mut field = *b"........";
        assert_eq!(
            write_text(&mut field, "123456789", Padding::Nul),
            Err(TextError::TooLong { length: 9, limit: 8 })
        );
        assert_eq!(
            write_text(&mut field, "ab\tc", Padding::Nul),
            Err(TextError::NotPrintable { position: 2 })
        );
        assert_eq!(&field, b"........");
        assert_eq!(write_text(&mut field, "12345678", Padding::Nul), Ok(()));
        assert_eq!(&field, b"12345678");
    }

    proptest! {
        #[test]
        fn written_text_reads_back(text in "[!-~]([ -~]{0,18}[!-~])?", spaces: bool) {
            let mut field = [0xAA; 20];
            let padding = if spaces { Padding::Space } else { Padding::Nul };
            write_text(&mut field, &text, padding).expect("printable and short");
            prop_assert_eq!(Text::of(&field).as_str(), Some(text.as_str()));
            prop_assert_eq!(Text::of(&field).to_string(), text);
        }

        #[test]
        fn any_field_displays_as_printable_ascii(field in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(Text::of(&field).to_string().bytes().all(is_printable));
        }
    }
}
