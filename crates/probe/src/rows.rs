//! The list, section by section.

mod admin;
mod authentication;
mod capsule;
mod common_header;
mod digest;
mod initialisation;
mod key_value;
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
];

/// Each row with its section, in the order of the list.
pub fn all() -> impl Iterator<Item = (&'static Section, &'static Row)> {
    SECTIONS.iter().flat_map(|section| section.rows.iter().map(move |row| (section, row)))
}
