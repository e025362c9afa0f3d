//! A table of some cells and values, beside that of all of them; `page` writes it.

/// A table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Title.
    pub title: String,
    /// Caption.
    pub note: String,
    /// Keys of the values, one column each.
    pub columns: Vec<&'static str>,
    /// Rows, in groups that stand together.
    pub groups: Vec<Vec<Row>>,
}

/// A row: the values of one cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its name in this table.
    pub name: String,
    /// Name of the cell.
    pub cell: String,
}
