//! The target of a citation: the number of a section, or the id of a row.

use std::fmt;

/// Number of a section, such as 2.8.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Number(Vec<u32>);

impl Number {
    /// Reads a number at the start of `text`; returns it with the rest of the text.
    pub(super) fn parse(text: &str) -> Option<(Self, &str)> {
        let (first, mut rest) = digits(text)?;
        let mut parts = vec![first];
        while let Some((part, after)) = rest.strip_prefix('.').and_then(digits) {
            parts.push(part);
            rest = after;
        }
        Some((Self(parts), rest))
    }

    /// Whether this is the section `other` or a subsection of it.
    pub(super) fn is_within(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }

    /// Sort key for how far another number is from this one: numbers with a longer common start are nearer.
    pub(super) fn distance(&self, other: &Self) -> (usize, u32, usize) {
        let common = self.0.iter().zip(&other.0).take_while(|(left, right)| left == right).count();
        let part = |number: &Self| number.0.get(common).copied().unwrap_or(0);
        (self.0.len() - common, part(self).abs_diff(part(other)), other.0.len())
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<_> = self.0.iter().map(u32::to_string).collect();
        f.write_str(&parts.join("."))
    }
}

/// Id of a row of hostile inputs, such as D5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RowId {
    pub(super) letter: char,
    pub(super) number: u32,
}

impl RowId {
    /// Reads an id at the start of `text`; returns it with the rest of the text.
    pub(super) fn parse(text: &str) -> Option<(Self, &str)> {
        let letter = text.chars().next().filter(char::is_ascii_uppercase)?;
        let (number, rest) = digits(&text[1..])?;
        let is_whole = !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_');
        is_whole.then_some((Self { letter, number }, rest))
    }
}

impl fmt::Display for RowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.letter, self.number)
    }
}

fn digits(text: &str) -> Option<(u32, &str)> {
    let end = text.find(|next: char| !next.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Number {
        Number::parse(text).expect("a number").0
    }

    #[test]
    fn a_number_ends_where_its_digits_end() {
        for (text, shown, rest) in
            [("2.8", "2.8", ""), ("3.", "3", "."), ("10.1, x", "10.1", ", x"), ("4.1.2: y", "4.1.2", ": y")]
        {
            let (number, after) = Number::parse(text).expect("a number");
            assert_eq!((number.to_string().as_str(), after), (shown, rest));
        }
        assert_eq!(Number::parse("n"), None);
        assert_eq!(Number::parse(""), None);
        assert_eq!(Number::parse("99999999999"), None, "too long for a section");
    }

    #[test]
    fn subsections_are_within_their_section_and_no_other() {
        assert!(number("10.1").is_within(&number("10")));
        assert!(number("10").is_within(&number("10")));
        assert!(!number("10").is_within(&number("10.1")));
        assert!(!number("1.0").is_within(&number("10")));
    }

    #[test]
    fn the_nearest_number_shares_the_longest_start() {
        let known = ["2", "2.1", "2.8", "3", "10", "10.3"].map(number);
        for (wrong, nearest) in
            [("2.9", "2.8"), ("10.4", "10.3"), ("30", "10"), ("4.1", "3"), ("2.8.1", "2.8")]
        {
            let found = known.iter().min_by_key(|known| number(wrong).distance(known)).expect("some");
            assert_eq!(found.to_string(), nearest, "{wrong}");
        }
    }

    #[test]
    fn a_row_is_a_capital_letter_and_a_number() {
        let (row, rest) = RowId::parse("D12: data").expect("a row");
        assert_eq!((row.to_string().as_str(), rest), ("D12", ": data"));
        for text in ["d5", "D", "5", "D5x", "D5_a", "DD5"] {
            assert_eq!(RowId::parse(text), None, "{text}");
        }
    }
}
