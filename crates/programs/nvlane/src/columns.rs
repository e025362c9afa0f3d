//! Text in columns: tables, and lists of names and values.

use std::fmt;

use wire::text::without_hidden;

/// Space between two columns.
const GAP: &str = "  ";

/// Rows of texts, each column as wide as its widest text.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    rows: Vec<Vec<String>>,
    indent: usize,
}

impl Columns {
    /// A table with a heading line.
    pub(crate) fn titled<const COUNT: usize>(titles: [&str; COUNT]) -> Self {
        Self { rows: vec![titles.map(str::to_owned).to_vec()], indent: 0 }
    }

    /// A table with as many columns as there are titles.
    pub(crate) fn titled_by(titles: Vec<String>) -> Self {
        Self { rows: vec![titles], indent: 0 }
    }

    /// A row of such a table.
    pub(crate) fn row_of(&mut self, row: &[String]) {
        self.rows.push(row.iter().map(|text| without_hidden(text, false).into_owned()).collect());
    }

    /// A list of names and values, indented by two.
    pub(crate) fn list() -> Self {
        Self { rows: Vec::new(), indent: 2 }
    }

    pub(crate) fn row<const COUNT: usize>(&mut self, row: [String; COUNT]) {
        // Cells contain text from targets.
        self.rows.push(row.map(|text| without_hidden(&text, false).into_owned()).into());
    }

    /// A row of a list.
    pub(crate) fn fact(&mut self, name: &str, value: impl fmt::Display) {
        self.row([name.to_owned(), value.to_string()]);
    }
}

impl fmt::Display for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            let texts = self.rows.iter().filter_map(|row| row.get(column));
            texts.map(|text| text.chars().count()).max().unwrap_or(0)
        };
        for row in &self.rows {
            let indent = self.indent;
            let mut line = " ".repeat(indent);
            for (column, text) in row.iter().enumerate() {
                let width = width(column);
                line.push_str(&format!("{text:width$}{GAP}"));
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_stays_on_its_line_whatever_is_in_it() {
        let mut list = Columns::list();
        list.fact("Model", "a\nb\u{202e}c\x1b[2J");
        assert_eq!(list.to_string(), "  Model  a\\nb\\u{202e}c\\u{1b}[2J\n");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_text() {
        let mut table = Columns::titled(["A", "Second", "Last"]);
        table.row(["wide".into(), "b".into(), "c".into()]);
        assert_eq!(table.to_string(), "A     Second  Last\nwide  b       c\n");
        let mut list = Columns::list();
        list.fact("Model", "x");
        list.fact("Serial number", 7);
        assert_eq!(list.to_string(), "  Model          x\n  Serial number  7\n");
    }
}
