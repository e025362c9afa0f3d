//! The rows of docs/hostile-inputs.md for targets, section by section.

mod admin;
mod authentication;
mod authentication_messages;
mod capsule;
mod common_header;
mod digest;
mod initialisation;
mod key_value;
mod memcached;
mod nvm;
mod prelude;
mod queue_setup;
mod reservation;
mod resource;
mod tls;
mod tls_session;
mod write_data;

use peer::finding::Check;

use crate::document::Words;
use crate::row::Row;
use crate::target::Target;

/// A row for targets.
pub(crate) type TargetRow = Row<fn(&Target) -> Check>;

/// The rows of each section, by its number.
const SECTIONS: [(u8, &[TargetRow]); 15] = [
    (1, common_header::ROWS),
    (2, initialisation::ROWS),
    (3, capsule::ROWS),
    (4, write_data::ROWS),
    (5, digest::ROWS),
    (6, authentication::ROWS),
    (7, queue_setup::ROWS),
    (8, admin::ROWS),
    (9, nvm::ROWS),
    (10, key_value::ROWS),
    (11, reservation::ROWS),
    (12, resource::ROWS),
    (13, tls::ROWS),
    (13, tls_session::ROWS),
    (15, memcached::ROWS),
];

/// Sections whose rows need no NVMe/TCP connection in cleartext: those of TLS and of memcached clients.
const SECTIONS_WITHOUT_CLEAR: [u8; 2] = [13, 15];

/// A row as it stands in the document.
pub(crate) struct Listed {
    pub(crate) words: Words,
    pub(crate) row: &'static TargetRow,
    /// It connects to the target in cleartext.
    pub(crate) is_in_clear: bool,
}

/// Each row with its words, in the order of the document.
pub(crate) fn all() -> impl Iterator<Item = Listed> {
    SECTIONS.into_iter().flat_map(|(number, rows)| {
        rows.iter().map(move |row| Listed {
            words: Words::new(number, row.id),
            row,
            is_in_clear: !SECTIONS_WITHOUT_CLEAR.contains(&number),
        })
    })
}

/// The words of all rows for targets.
pub fn words() -> impl Iterator<Item = Words> {
    all().map(|listed| listed.words)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Number of rows of each letter in the document; rows H are for hosts, except the one that applies to both.
    const COUNTS: [(char, u32); 15] = [
        ('P', 16),
        ('I', 11),
        ('C', 16),
        ('D', 16),
        ('G', 7),
        ('A', 20),
        ('Q', 17),
        ('M', 8),
        ('N', 11),
        ('K', 10),
        ('V', 6),
        ('R', 14),
        ('T', 20),
        ('E', 13),
        ('H', 23),
    ];

    #[test]
    fn every_row_of_the_list_has_its_check() {
        let wanted: BTreeSet<String> = COUNTS
            .into_iter()
            .flat_map(|(letter, count)| (1..=count).map(move |number| format!("{letter}{number}")))
            .collect();
        let ids = |words: Words| {
            assert!(!words.sent.is_empty() && !words.right.is_empty(), "{words:?}");
            words.id.to_owned()
        };
        let for_targets: Vec<_> = words().map(ids).collect();
        let for_hosts: Vec<_> = crate::host::rows::words().map(ids).collect();
        let have: BTreeSet<String> = for_targets.iter().chain(&for_hosts).cloned().collect();
        assert_eq!(have, wanted);
        assert_eq!((for_targets.len(), for_hosts.len()), (186, 23), "each once, and H23 for both");
    }
}
