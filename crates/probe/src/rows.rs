//! The list, section by section.

mod common_header;
mod initialisation;

use crate::row::{Row, Section};

/// All rows for targets.
pub const SECTIONS: &[Section] = &[
    Section { number: 1, title: "PDU common header", rows: common_header::ROWS },
    Section { number: 2, title: "connection initialisation", rows: initialisation::ROWS },
];

/// Each row with its section, in the order of the list.
pub fn all() -> impl Iterator<Item = (&'static Section, &'static Row)> {
    SECTIONS.iter().flat_map(|section| section.rows.iter().map(move |row| (section, row)))
}
