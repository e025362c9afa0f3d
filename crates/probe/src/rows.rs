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
mod queue_setup;
mod reservation;
mod resource;
mod tls;
mod write_data;

use crate::row::{Row, Section};

/// All rows for targets.
pub const SECTIONS: &[Section] = &[
    Section { number: 1, title: "PDU common header", rows: common_header::ROWS },
    Section { number: 2, title: "connection initialisation", rows: initialisation::ROWS },
    Section { number: 3, title: "command capsules and SGLs", rows: capsule::ROWS },
    Section { number: 4, title: "R2T and H2CData", rows: write_data::ROWS },
    Section { number: 5, title: "digests", rows: digest::ROWS },
    Section { number: 6, title: "authentication", rows: authentication::ROWS },
    Section { number: 7, title: "Connect, queues, properties, discovery", rows: queue_setup::ROWS },
    Section { number: 8, title: "admin commands", rows: admin::ROWS },
    Section { number: 9, title: "NVM commands", rows: nvm::ROWS },
    Section { number: 10, title: "key-value commands", rows: key_value::ROWS },
    Section { number: 11, title: "reservations", rows: reservation::ROWS },
    Section { number: 12, title: "exhaustion and time", rows: resource::ROWS },
    Section { number: 13, title: "TLS", rows: tls::ROWS },
    Section { number: 15, title: "memcached", rows: memcached::ROWS },
];

/// Each row with its section, in the order of the document.
pub fn all() -> impl Iterator<Item = (&'static Section, &'static Row)> {
    SECTIONS.iter().flat_map(|section| section.rows.iter().map(move |row| (section, row)))
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
        ('T', 9),
        ('E', 13),
        ('H', 23),
    ];

    #[test]
    fn every_row_of_the_list_has_its_check() {
        let wanted: BTreeSet<String> = COUNTS
            .into_iter()
            .flat_map(|(letter, count)| (1..=count).map(move |number| format!("{letter}{number}")))
            .collect();
        let for_targets: Vec<_> = all().map(|(_, row)| row.id.to_owned()).collect();
        let for_hosts: Vec<_> = crate::host::rows::ROWS.iter().map(|row| row.id.to_owned()).collect();
        let have: BTreeSet<String> = for_targets.iter().chain(&for_hosts).cloned().collect();
        assert_eq!(have, wanted);
        assert_eq!((for_targets.len(), for_hosts.len()), (175, 23), "each once, and H23 for both");
    }
}
