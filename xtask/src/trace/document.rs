//! Documents that are cited: numbered sections with their status, and the table of hostile inputs.

use super::number::{Number, RowId};

/// Implementation status of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// At least a part of it: product code and tests cite it.
    Implemented,
    /// Not implemented, or a description of how peers behave: needs no citation.
    Background,
}

/// A numbered heading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) number: Number,
    pub(super) title: String,
    pub(super) line: usize,
    /// `None` if the section does not say; the text if it says something unknown.
    pub(super) status: Option<Result<Status, String>>,
}

/// The numbered sections of a document, in its order.
pub(super) fn sections(text: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    let mut is_code = false;
    for (line, text) in (1..).zip(text.lines()) {
        if text.starts_with("```") {
            is_code = !is_code;
        } else if is_code {
        } else if let Some((number, title)) = heading(text) {
            sections.push(Section { number, title, line, status: None });
        } else if let (Some(status), Some(section)) = (text.strip_prefix("Status: "), sections.last_mut()) {
            section.status.get_or_insert_with(|| status_of(status));
        }
    }
    sections
}

fn heading(line: &str) -> Option<(Number, String)> {
    let text = line.trim_start_matches('#');
    let text = text.strip_prefix(' ').filter(|_| line.starts_with("##"))?;
    let (number, title) = Number::parse(text)?;
    let title = title.strip_prefix('.').unwrap_or(title).strip_prefix(' ')?;
    Some((number, title.trim().to_owned()))
}

fn status_of(text: &str) -> Result<Status, String> {
    let is = |start: &str| text.starts_with(start);
    match () {
        () if is("implemented") || is("partly implemented") => Ok(Status::Implemented),
        () if is("not implemented") || is("peers") => Ok(Status::Background),
        () => Err(text.to_owned()),
    }
}

/// A row's entry in the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostileRow {
    pub(super) id: RowId,
    pub(super) line: usize,
    pub(super) checked_by: Result<CheckedBy, String>,
}

/// What checks a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CheckedBy {
    /// `nvlane probe`.
    pub(super) probe: bool,
    /// A test that cites the row.
    pub(super) test: bool,
    /// Nothing, with a reason.
    pub(super) nothing: bool,
}

/// The rows of the tables, in their order: the id is the first cell, what checks it the last.
pub(super) fn hostile_rows(text: &str) -> Vec<HostileRow> {
    let mut rows = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let Some(cells) = text.strip_prefix("| ").and_then(|rest| rest.trim_end().strip_suffix('|')) else {
            continue;
        };
        let Some((id, rest)) = RowId::parse(cells) else { continue };
        if rest.starts_with(" |") {
            let last = cells.rsplit(" | ").next().unwrap_or_default().trim();
            rows.push(HostileRow { id, line, checked_by: checked_by(last) });
        }
    }
    rows
}

fn checked_by(cell: &str) -> Result<CheckedBy, String> {
    if let Some(reason) = cell.strip_prefix("nothing:") {
        let is_reason = reason.trim().len() >= 10;
        let by = CheckedBy { probe: false, test: false, nothing: true };
        return if is_reason { Ok(by) } else { Err(cell.to_owned()) };
    }
    let mut by = CheckedBy { probe: false, test: false, nothing: false };
    for word in cell.split(", ") {
        match word {
            "probe" => by.probe = true,
            "test" => by.test = true,
            _ => return Err(cell.to_owned()),
        }
    }
    Ok(by)
}

/// A row in the source of the probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProbeRow {
    pub(super) id: RowId,
    pub(super) line: usize,
    /// The row is skipped for every peer.
    pub(super) is_skipped: bool,
}

/// The rows that a source file of the probe lists: calls of `row` and `slow_row` with an id.
pub(super) fn probe_rows(text: &str) -> Vec<ProbeRow> {
    let is_call = |before: &str| {
        ["row(", "slow_row("]
            .iter()
            .any(|call| before.strip_suffix(call).is_some_and(|before| before.ends_with(char::is_whitespace)))
    };
    let mut starts = Vec::new();
    for (at, _) in text.match_indices('"') {
        let id = RowId::parse(&text[at + 1..]).filter(|(_, rest)| rest.starts_with("\","));
        if let Some((id, _)) = id.filter(|_| is_call(text[..at].trim_end())) {
            starts.push((id, at));
        }
    }
    let ends = starts.iter().skip(1).map(|(_, at)| *at).chain([text.len()]);
    let rows = starts.iter().zip(ends).map(|((id, at), end)| {
        let row = text[*at..end].split("\n];").next().unwrap_or_default();
        let line = text[..*at].matches('\n').count() + 1;
        ProbeRow { id: *id, line, is_skipped: row.contains("skipped(") }
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_with_numbers_are_sections() {
        let text = "# Title\n## 2. PDUs\ntext\n### 2.1 Header\n\nSource: x\nStatus: implemented.\n```text\n## 3. No\n```\n\
                    ## 4. Others\nStatus: peers.\n### Without\n## 5. Odd\nStatus: perhaps\n####6 no\n";
        let found = sections(text);
        let shown: Vec<_> =
            found.iter().map(|at| (at.number.to_string(), at.title.as_str(), at.line)).collect();
        let right = [("2", "PDUs", 2), ("2.1", "Header", 4), ("4", "Others", 11), ("5", "Odd", 14)];
        assert_eq!(shown, right.map(|(number, title, line)| (number.to_owned(), title, line)));
        let statuses: Vec<_> = found.into_iter().map(|section| section.status).collect();
        assert_eq!(
            statuses,
            [
                None,
                Some(Ok(Status::Implemented)),
                Some(Ok(Status::Background)),
                Some(Err("perhaps".to_owned()))
            ]
        );
    }

    #[test]
    fn a_row_says_what_checks_it() {
        let text = "| Id | Input | Checked by |\n|---|---|---|\n| D5 | a \\| b | probe |\n| C1 | x | probe, test |\n\
                    | A19 | x | nothing: it takes no bytes from a peer |\n| R1 | x | nothing: |\n| R2 | x | both |\nD6 | x |\n";
        let found = hostile_rows(text);
        let by = |probe, test, nothing| Ok(CheckedBy { probe, test, nothing });
        let right = [
            ("D5", 3, by(true, false, false)),
            ("C1", 4, by(true, true, false)),
            ("A19", 5, by(false, false, true)),
            ("R1", 6, Err("nothing:".to_owned())),
            ("R2", 7, Err("both".to_owned())),
        ];
        let shown: Vec<_> =
            found.into_iter().map(|row| (row.id.to_string(), row.line, row.checked_by)).collect();
        assert_eq!(shown, right.map(|(id, line, by)| (id.to_owned(), line, by)));
    }

    #[test]
    fn rows_of_the_probe_are_found_with_those_that_are_always_skipped() {
        let text = "const ROWS: &[Row] = &[\n    row(\"P1\", first),\n    row(\n        \"P2\",\n        \
                    |_| {\n            skipped(\"no way\")\n        },\n    ),\n    slow_row(\"H1\", c),\n];\n\
                    fn first() { skipped(\"K3\"); other(\"K4\", 1); }\n";
        let shown: Vec<_> =
            probe_rows(text).into_iter().map(|row| (row.id.to_string(), row.line, row.is_skipped)).collect();
        let right = [("P1", 2, false), ("P2", 4, true), ("H1", 9, false)];
        assert_eq!(shown, right.map(|(id, line, skipped)| (id.to_owned(), line, skipped)));
    }
}
