//! The frame of a table: a region that scrolls sideways, also by keyboard, and a head.

use maud::{Markup, html};

/// A table with these rows. The first column names the rows; a column may have no name.
pub(super) fn table<Column: AsRef<str>>(
    label: &str,
    class: &str,
    columns: impl IntoIterator<Item = Column>,
    rows: &Markup,
) -> Markup {
    html! {
        div.scroll role="region" aria-label=(label) tabindex="0" {
            table class=(class) {
                thead {
                    tr {
                        @for column in columns {
                            @if column.as_ref().is_empty() { td {} } @else { th scope="col" { (column.as_ref()) } }
                        }
                    }
                }
                tbody { (rows) }
            }
        }
    }
}
