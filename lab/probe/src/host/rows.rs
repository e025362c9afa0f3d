//! Section 14: the faults that the fake target injects, and the reaction that each requires of the host.

mod ana;
mod authentication;
pub(crate) mod case;
mod completion;
mod connection;
mod discovery;
mod prelude;
mod read_data;
mod setup;
mod write_data;

use peer::finding::Check;

use self::case::Case;
use crate::document::Words;
use crate::row::{Row, row};

/// A row for hosts: the cases of one kind of fault.
pub(crate) type HostRow = Row<fn() -> Check<Vec<Case>>>;

const ROWS: &[HostRow] = &[
    row("H1", connection::ic_resp),
    row("H2", read_data::header_length),
    row("H3", read_data::data_for_others),
    row("H4", read_data::data_out_of_place),
    row("H5", read_data::short_reads),
    row("H6", completion::completions),
    row("H7", write_data::empty_r2t),
    row("H8", write_data::r2t_for_read),
    row("H9", write_data::r2t_out_of_place),
    row("H10", write_data::r2t_again),
    row("H11", connection::term_reqs),
    row("H12", read_data::data_digest),
    row("H13", completion::no_answer),
    row("H14", setup::identify),
    row("H15", ana::cases),
    row("H16", discovery::discovery),
    row("H17", discovery::escapes),
    row("H18", connection::ends),
    row("H19", authentication::cases),
    row("H20", setup::cntlids),
    row("H21", completion::events),
    row("H22", setup::failing_setup),
    row("H23", write_data::in_capsule),
];

/// Each row with its words.
pub(crate) fn all() -> impl Iterator<Item = (Words, &'static HostRow)> {
    ROWS.iter().map(|row| (Words::new(14, row.id), row))
}

/// The words of all rows for hosts.
pub fn words() -> impl Iterator<Item = Words> {
    all().map(|(words, _)| words)
}
