//! Text of peers: fixed-width fields, ASCII, padded with spaces or NULs (wire §10.1, wire §20), and how text of any
//! kind is shown in logs and on terminals.

use core::fmt::{self, Write};

/// Text of a fixed-width field without its padding.
///
/// Ends at the first NUL, then loses trailing spaces: peers pad with either (wire §20). Any byte may be in it;
/// [`Display`] escapes bytes that are not printable ASCII, so it is safe in a log line.
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
    /// Something other than printable ASCII.
    #[error("byte {position} of the text is not printable ASCII")]
    NotPrintable {
        /// Index of the first such byte.
        position: usize,
    },
}

/// The padding of a text field.
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

    /// The text as it came, for output that has its own way to quote; bytes that are not UTF-8 become U+FFFD.
    #[must_use]
    pub fn to_string_lossy(self) -> std::borrow::Cow<'a, str> {
        String::from_utf8_lossy(self.0)
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
                f.write_char(char::from(*byte))?;
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

/// Bytes of a text that [`Quoted`] and [`Escaped`] show.
pub const SHOWN_BYTES_MAX: usize = 256;

/// Whether a character does not show as itself: control characters, line and paragraph separators, characters that
/// change the direction of text, and those without width.
#[must_use]
pub fn is_hidden(char: char) -> bool {
    char.is_control()
        || matches!(
            char,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// Text of a peer as a value in a log line: in quotes, with escapes as in [`Escaped`], so that it ends where it seems
/// to and cannot pass for further fields.
#[derive(Clone, Copy)]
pub struct Quoted<'a>(&'a [u8]);

/// Text of a peer for a terminal: without quotes; unprintable characters and bytes that are not UTF-8 as escapes of
/// Rust literals; cut with an ellipsis after [`SHOWN_BYTES_MAX`] bytes.
#[derive(Clone, Copy)]
pub struct Escaped<'a>(&'a [u8]);

/// Text of a peer as a value in a log line.
#[must_use]
pub fn quoted(text: &(impl AsRef<[u8]> + ?Sized)) -> Quoted<'_> {
    Quoted(text.as_ref())
}

/// Text of a peer for a terminal.
#[must_use]
pub fn escaped(text: &(impl AsRef<[u8]> + ?Sized)) -> Escaped<'_> {
    Escaped(text.as_ref())
}

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        let is_cut = write_escaped(f, self.0, true)?;
        f.write_str(if is_cut { "\"\u{2026}" } else { "\"" })
    }
}

impl fmt::Debug for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if write_escaped(f, self.0, false)? { f.write_char('\u{2026}') } else { Ok(()) }
    }
}

impl fmt::Debug for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Untrusted text, safe for a terminal: hidden characters are escaped, and lines stay lines if `has_lines`.
#[must_use]
pub fn without_hidden(text: &str, has_lines: bool) -> std::borrow::Cow<'_, str> {
    let is_escaped = |char: char| is_hidden(char) && !(has_lines && char == '\n');
    if !text.chars().any(is_escaped) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        if is_escaped(char) { write_hidden(&mut shown, char).unwrap_or(()) } else { shown.push(char) }
    }
    shown.into()
}

/// Writes a hidden character as an escape.
///
/// # Errors
/// The writer's.
pub fn write_hidden(writer: &mut impl Write, char: char) -> fmt::Result {
    match char {
        '\n' | '\r' | '\t' => write!(writer, "{}", char.escape_default()),
        char => write!(writer, "{}", char.escape_unicode()),
    }
}

/// Writes text with escapes. Returns whether it was cut.
fn write_escaped(f: &mut fmt::Formatter<'_>, text: &[u8], is_quoted: bool) -> Result<bool, fmt::Error> {
    let mut left = SHOWN_BYTES_MAX;
    for chunk in text.utf8_chunks() {
        for char in chunk.valid().chars() {
            let Some(after) = left.checked_sub(char.len_utf8()) else { return Ok(true) };
            left = after;
            match char {
                '"' if is_quoted => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                char if is_hidden(char) => write_hidden(f, char)?,
                char => f.write_char(char)?,
            }
        }
        for byte in chunk.invalid() {
            let Some(after) = left.checked_sub(1) else { return Ok(true) };
            left = after;
            write!(f, "\\x{byte:02x}")?;
        }
    }
    Ok(false)
}

const fn is_printable(byte: u8) -> bool {
    matches!(byte, b' '..=b'~')
}

/// The hexadecimal digits of bytes.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or_default();
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// The bytes of hexadecimal digits; `None` unless there is an even number of them, and nothing else.
#[must_use]
pub fn from_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect()
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
    fn quoted_text_ends_where_it_seems_to() {
        let shown = |text: &str| quoted(text).to_string();
        assert_eq!(shown("nqn.a"), r#""nqn.a""#);
        assert_eq!(shown("a cntlid=1 reason=\"b\""), r#""a cntlid=1 reason=\"b\"""#);
        assert_eq!(shown(r#"a\" x"#), r#""a\\\" x""#);
        assert_eq!(shown("\u{e9}\u{4e2d}"), "\"\u{e9}\u{4e2d}\"");
        assert_eq!(
            shown("a\u{202e}b\u{2028}c\x1b[2J\r\n\t\0"),
            r#""a\u{202e}b\u{2028}c\u{1b}[2J\r\n\t\u{0}""#
        );
        assert_eq!(quoted(b"a\xffb\xe2\x82").to_string(), r#""a\xffb\xe2\x82""#);
        assert_eq!(escaped("say \"a\u{9b}\"").to_string(), r#"say "a\u{9b}""#);
        assert_eq!(format!("{:?} {:?}", quoted("a"), escaped("b")), r#""a" b"#);
    }

    #[test]
    fn only_hidden_characters_are_escaped_in_text_of_our_own() {
        assert!(matches!(without_hidden("a\\x1b \"b\"", false), std::borrow::Cow::Borrowed(_)));
        assert_eq!(without_hidden("a\nb\u{202e}\x1b[m", true), "a\nb\\u{202e}\\u{1b}[m");
        assert_eq!(without_hidden("a\nb\r", false), r"a\nb\r");
    }

    #[test]
    fn long_text_is_cut_with_an_ellipsis() {
        let text = "x".repeat(SHOWN_BYTES_MAX);
        assert_eq!(quoted(&text).to_string(), format!("\"{text}\""));
        assert_eq!(quoted(&format!("{text}y")).to_string(), format!("\"{text}\"\u{2026}"));
        let shown = escaped(&[0xff; 1000]).to_string();
        assert_eq!(shown, format!("{}\u{2026}", r"\xff".repeat(SHOWN_BYTES_MAX)));
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
        fn any_bytes_are_shown_on_one_line_of_what_prints(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            for shown in [quoted(&bytes).to_string(), escaped(&bytes).to_string()] {
                prop_assert!(!shown.chars().any(is_hidden));
                prop_assert!(shown.chars().count() <= 3 + SHOWN_BYTES_MAX * 10);
            }
        }

        #[test]
        fn quoted_text_has_only_escaped_quotes_within(text in "[\"\\\\a=\u{202e} ]{0,40}") {
            let shown = quoted(&text).to_string();
            let within = shown.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).expect("quotes");
            let mut is_escape = false;
            for char in within.chars() {
                prop_assert!(is_escape || char != '"');
                is_escape = char == '\\' && !is_escape;
            }
            prop_assert!(!is_escape, "the last quote is not escaped");
        }

        #[test]
        fn any_field_displays_as_printable_ascii(field in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(Text::of(&field).to_string().bytes().all(is_printable));
        }
    }
}
