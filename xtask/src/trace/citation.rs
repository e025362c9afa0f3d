//! Finds citations in a text: sections of documents (`wire §2.8`, `docs/kv-commands.md §4.1`) and rows of hostile
//! inputs.

use super::number::{Number, RowId};

/// What a citation names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A section of the document with this path.
    Section(String, Number),
    /// A row of hostile inputs.
    Row(RowId),
    /// A section sign that names no document or no number; the text around it.
    Unclear(String),
}

/// A citation, and the line that it is on, from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Citation {
    pub(super) line: usize,
    pub(super) target: Target,
}

/// The wire reference.
pub(super) const WIRE: &str = "docs/wire.md";

/// The list of hostile inputs.
pub(super) const HOSTILE: &str = "docs/hostile-inputs.md";

const SIGN: char = '\u{a7}';

/// All citations in a text. `own` is the path of a document whose bare section numbers mean its own sections.
pub(super) fn citations(text: &str, own: Option<&str>) -> Vec<Citation> {
    let mut found = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        found.extend(sections(text, own).into_iter().map(|target| Citation { line, target }));
        found.extend(rows(text).into_iter().map(|row| Citation { line, target: Target::Row(row) }));
    }
    found
}

fn sections(line: &str, own: Option<&str>) -> Vec<Target> {
    let mut found = Vec::new();
    let mut document: Option<String> = None;
    let mut end = 0;
    for (at, sign) in line.match_indices(SIGN) {
        let (before, after) = (&line[end..at], &line[at + sign.len()..]);
        // In a list such as "wire §2, §5 and §6" the document is named once.
        let goes_on = [", ", " and ", ", and ", "–", "-", "/"].contains(&before);
        if !goes_on {
            document = named(before).or_else(|| own.map(str::to_owned));
        }
        let number = Number::parse(after);
        end = number.as_ref().map_or(at + sign.len(), |(_, rest)| line.len() - rest.len());
        found.push(match (&document, number) {
            (Some(document), Some((number, _))) => Target::Section(document.clone(), number),
            _ => Target::Unclear(around(line, at).to_owned()),
        });
    }
    found
}

/// The document that the text before a section sign names.
fn named(before: &str) -> Option<String> {
    let word = before.trim_end().rsplit(|next: char| next.is_whitespace() || "([`".contains(next)).next()?;
    let word = word.trim_end_matches([')', ']', '`', '*', ',']);
    let is_wire = before.trim_end().to_ascii_lowercase();
    if is_wire.ends_with("wire") || is_wire.ends_with("wire reference") {
        return Some(WIRE.to_owned());
    }
    let path = word.trim_start_matches("../");
    let is_path = path.strip_suffix(".md").is_some_and(|stem| !stem.is_empty());
    is_path.then(|| if path.contains('/') { path.to_owned() } else { format!("docs/{path}") })
}

fn rows(line: &str) -> Vec<RowId> {
    let mut found = Vec::new();
    let lower_case = line.to_ascii_lowercase();
    for (at, word) in lower_case.match_indices("hostile ") {
        let mut rest = &line[at + word.len()..];
        rest = rest.strip_prefix("inputs ").or_else(|| rest.strip_prefix("input ")).unwrap_or(rest);
        while let Some((row, after)) = RowId::parse(rest) {
            found.push(row);
            let next = after.strip_prefix(", ").or_else(|| after.strip_prefix(" and "));
            rest = next.unwrap_or_default();
        }
    }
    found
}

/// Rows that functions are named after: `fn d7_d12_data_past_its_window` tries D7 and D12.
pub(super) fn rows_of_names(text: &str) -> Vec<Citation> {
    let mut found = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let mut name = text.trim_start().strip_prefix("fn ").unwrap_or_default();
        while let Some((word, rest)) = name.split_once('_') {
            let id = word.to_ascii_uppercase();
            let row = RowId::parse(&id).filter(|(_, rest)| rest.is_empty());
            let Some((row, _)) = row.filter(|_| word.starts_with(|first: char| first.is_ascii_lowercase()))
            else {
                break;
            };
            found.push(Citation { line, target: Target::Row(row) });
            name = rest;
        }
    }
    found
}

/// Up to 20 characters before and after a place in a line.
fn around(line: &str, at: usize) -> &str {
    let start = line[..at].char_indices().rev().take(20).last().map_or(at, |(index, _)| index);
    let end = line[at..].char_indices().nth(20).map_or(line.len(), |(index, _)| at + index);
    line[start..end].trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The section sign is written as an escape here, so that these lines cite nothing themselves.
    fn shown(line: &str, own: Option<&str>) -> Vec<String> {
        let shown = |citation: Citation| match citation.target {
            Target::Section(document, number) => format!("{document} {number}"),
            Target::Row(row) => row.to_string(),
            Target::Unclear(text) => format!("unclear: {text}"),
        };
        citations(line, own).into_iter().map(shown).collect()
    }

    #[test]
    fn one_document_may_be_named_for_several_sections() {
        let wire = |numbers: &[&str]| {
            numbers.iter().map(|number| format!("docs/wire.md {number}")).collect::<Vec<_>>()
        };
        assert_eq!(shown("/// Ready to transfer. wire \u{a7}2.8", None), wire(&["2.8"]));
        assert_eq!(shown("// as it must be. wire \u{a7}3.", None), wire(&["3"]));
        assert_eq!(shown("//! wire \u{a7}2.2, \u{a7}2.3", None), wire(&["2.2", "2.3"]));
        assert_eq!(shown("//! wire \u{a7}6.2, wire \u{a7}15", None), wire(&["6.2", "15"]));
        assert_eq!(
            shown("/// tables of wire \u{a7}2, \u{a7}5 and \u{a7}6 byte", None),
            wire(&["2", "5", "6"])
        );
        assert_eq!(shown("gives up (wire reference \u{a7}28.29).", None), wire(&["28.29"]));
        assert_eq!(shown("/// Wire \u{a7}4: x", None), wire(&["4"]));
    }

    #[test]
    fn other_documents_are_named_by_their_path() {
        assert_eq!(
            shown("// wire \u{a7}23, docs/kv-commands.md \u{a7}4.1", None),
            ["docs/wire.md 23", "docs/kv-commands.md 4.1"]
        );
        assert_eq!(shown("see [wire.md](../wire.md) \u{a7}2", None), ["docs/wire.md 2"]);
        assert_eq!(shown("| 81h | to the controller | \u{a7}4.1 |", Some("docs/a.md")), ["docs/a.md 4.1"]);
        assert_eq!(shown("wire \u{a7}4.1", Some("docs/a.md")), ["docs/wire.md 4.1"]);
    }

    #[test]
    fn a_section_of_no_document_is_unclear() {
        assert_eq!(shown("/// Linux does so. \u{a7}24", None), ["unclear: /// Linux does so. \u{a7}24"]);
        assert_eq!(shown("/// wire \u{a7}n in comments", None), ["unclear: /// wire \u{a7}n in comments"]);
        assert_eq!(shown("/// as wire\n/// \u{a7}24 says", None), ["unclear: /// \u{a7}24 says"]);
        assert_eq!(shown("// wire \u{a7} 2.8", None), ["unclear: // wire \u{a7} 2.8"]);
    }

    #[test]
    fn rows_follow_their_word_one_by_one() {
        let line = |text: &str| text.replace('@', "hostile");
        assert_eq!(shown(&line("/// @ R1"), None), ["R1"]);
        assert_eq!(shown(&line("/// Hostile\u{20}input R1: x"), None), ["R1"]);
        assert_eq!(shown(&line("/// @ H7, H8, H9 and H10."), None), ["H7", "H8", "H9", "H10"]);
        assert_eq!(shown(&line("//! wire \u{a7}10, @ inputs M1, M8"), None), ["docs/wire.md 10", "M1", "M8"]);
        assert_eq!(shown(&line("/// A @ Nqn, a @ host, @ D5x"), None), [""; 0]);
    }

    #[test]
    fn functions_may_be_named_after_rows() {
        let text = "fn d7_d12_data_past() {}\n    fn h2c_data() {}\nfn nothing() {}\n// fn p1_x\nfn p3() {}\nfn g1_wrong() {}\n";
        let found: Vec<_> =
            rows_of_names(text).into_iter().map(|citation| (citation.line, citation.target)).collect();
        let row = |text| Target::Row(RowId::parse(text).expect("a row").0);
        assert_eq!(found, [(1, row("D7")), (1, row("D12")), (6, row("G1"))]);
    }

    #[test]
    fn lines_count_from_one() {
        let found = citations("a\n\n// wire \u{a7}1\n", None);
        assert_eq!(found.iter().map(|citation| citation.line).collect::<Vec<_>>(), [3]);
    }
}
