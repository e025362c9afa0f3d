//! The frame of a table: a region that scrolls sideways, also by keyboard, and a head.

use std::fmt::Write;

use crate::format::escape;

/// Begins a table up to its first row. The first column names the rows; a column may have no name.
pub(super) fn begin<'a>(
    page: &mut String,
    label: &str,
    class: &str,
    columns: impl IntoIterator<Item = &'a str>,
) {
    let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
    let _ = write!(
        page,
        "<div class=\"scroll\" role=\"region\" aria-label=\"{}\" tabindex=\"0\"><table{class}>\n<thead><tr>",
        escape(label)
    );
    for column in columns {
        if column.is_empty() {
            page.push_str("<td></td>");
        } else {
            let _ = write!(page, "<th scope=\"col\">{}</th>", escape(column));
        }
    }
    page.push_str("</tr></thead>\n<tbody>\n");
}

/// Ends a table.
pub(super) fn end(page: &mut String) {
    page.push_str("</tbody>\n</table></div>\n");
}
