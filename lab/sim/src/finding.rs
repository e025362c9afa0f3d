//! The findings of a run.

/// A finding in words: first the command and the block that it is about, as `command 3: block 5: …`.
pub(crate) type Finding = String;

/// The common part of findings of the same kind: their words without numbers, lists and details.
pub(crate) fn kind(finding: &str) -> String {
    let mut kind = String::new();
    let mut depth = 0u32;
    let mut is_number = false;
    for letter in finding.split(';').next().unwrap_or_default().chars() {
        match letter {
            '[' | '(' | '{' => depth += 1,
            ']' | ')' | '}' => depth = depth.saturating_sub(1),
            _ if depth > 0 => {}
            _ if letter.is_ascii_digit() || (is_number && (letter == 'x' || letter.is_ascii_hexdigit())) => {
                if !is_number {
                    kind.push('#');
                }
            }
            _ => kind.push(letter),
        }
        is_number = letter.is_ascii_digit() || (is_number && (letter == 'x' || letter.is_ascii_hexdigit()));
    }
    kind.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::kind;

    #[test]
    fn findings_that_differ_in_numbers_and_details_are_of_one_kind() {
        let one =
            "command 12: block 5: read value 0x1a00, which it cannot hold: [0x0 by 0 Done] [0x300 by 3 Done]";
        let other = "command 7: block 31: read value 0x2, which it cannot hold: [0x0 by 0 Done]";
        assert_eq!(kind(one), kind(other));
        assert_eq!(kind(one), "command #: block #: read value #, which it cannot hold:");
        assert_ne!(kind(one), kind("command 7: block 31: read zeroes, which were replaced: [0x0]"));
    }
}
