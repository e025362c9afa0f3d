//! Sizes as people write them: `64M`, `10G`.

use std::fmt;

/// Bytes, shown with the largest binary suffix that leaves a whole number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

/// Suffixes and their factors, largest first.
const SUFFIXES: [(char, u64); 4] = [('T', 1 << 40), ('G', 1 << 30), ('M', 1 << 20), ('K', 1 << 10)];

impl Size {
    /// Parses digits with an optional suffix: `64M`, `64m` or `64MiB`.
    ///
    /// # Errors
    /// The position of the error, bytes, and its description.
    pub fn parse(text: &str) -> Result<Self, (usize, String)> {
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, suffix) = text.split_at(end);
        if digits.is_empty() {
            return Err((0, "expected a size such as 64M or 10G".into()));
        }
        let factor = match suffix {
            "" => 1,
            _ => SUFFIXES
                .iter()
                .find(|(letter, _)| {
                    matches!(suffix.len(), 1 | 3)
                        && suffix.starts_with([*letter, letter.to_ascii_lowercase()])
                        && matches!(&suffix[1..], "" | "iB")
                })
                .map(|(_, factor)| *factor)
                .ok_or_else(|| (end, format!("no size ends in '{suffix}': use K, M, G or T, as in 64M")))?,
        };
        let bytes = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(factor));
        // File offsets are signed.
        match bytes.filter(|bytes| *bytes <= i64::MAX.cast_unsigned()) {
            Some(bytes) => Ok(Self(bytes)),
            None => Err((0, format!("{text} is more than any namespace can have"))),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fitting = SUFFIXES.iter().find(|(_, factor)| self.0 > 0 && self.0.is_multiple_of(*factor));
        match fitting {
            Some((letter, factor)) => write!(f, "{}{letter}", self.0 / factor),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suffix_is_a_letter_with_or_without_ib() {
        for (text, bytes) in [("512", 512), ("4k", 4096), ("64MiB", 64 << 20), ("1T", 1 << 40)] {
            assert_eq!(Size::parse(text), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "k", "4x", "4xiB", "1GB", "1Gib", "1G ", "1µ", "1µB", "-1", "1.5k"] {
            assert!(Size::parse(text).is_err(), "{text}");
        }
    }
}
