//! Section 14: the faults that the fake target injects, and the reaction that each requires of the host.

mod ana;
mod authentication;
pub(crate) mod case;
mod completion;
mod connection;
mod discovery;
mod read_data;
mod setup;
mod write_data;

use peer::finding::Check;

use self::case::Case;

/// A row for hosts: one kind of fault.
pub struct HostRow {
    /// Identifier.
    pub id: &'static str,
    /// What the target does.
    pub sent: &'static str,
    /// The required reaction of the host.
    pub right: &'static str,
    /// The reason, where the specification does not demand the reaction.
    pub judgement: Option<&'static str>,
    pub(crate) cases: fn() -> Check<Vec<Case>>,
}

impl std::fmt::Debug for HostRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostRow({})", self.id)
    }
}

const fn row(
    id: &'static str,
    sent: &'static str,
    right: &'static str,
    cases: fn() -> Check<Vec<Case>>,
) -> HostRow {
    HostRow { id, sent, right, judgement: None, cases }
}

/// The rows.
pub const ROWS: &[HostRow] = &[
    row("H1", "an ICResp that is wrong, partial, or none", "the connect fails", connection::ic_resp),
    row("H2", "C2HData with HLEN 255 and header digest", "TermReq 01 at 2", read_data::header_length),
    row("H3", "C2HData for no command, a write, a flush", "TermReq 01 at 8", read_data::data_for_others),
    row(
        "H4",
        "C2HData out of place, of no length, too much",
        "TermReq 04, or 01 at the length",
        read_data::data_out_of_place,
    ),
    row("H5", "SUCCESS without LAST, success after a short read", "never success", read_data::short_reads),
    row("H6", "completions for no command, twice, too early", "TermReq 02", completion::completions),
    row("H7", "an R2T of length 0", "TermReq 01 at 16", write_data::empty_r2t),
    row("H8", "an R2T for a read", "TermReq 02, and no data", write_data::r2t_for_read),
    row("H9", "R2Ts beyond the command, with gaps, that wrap", "TermReq 04", write_data::r2t_out_of_place),
    row("H10", "an R2T again, more than MAXR2T", "TermReq 05", write_data::r2t_again),
    row("H11", "TermReqs, right and wrong", "closed without a TermReq; comes back", connection::term_reqs),
    row(
        "H12",
        "a data digest that is wrong",
        "the read fails or is repeated, never success",
        read_data::data_digest,
    ),
    row(
        "H13",
        "no answer; an answer after the host has given up",
        "no buffer used twice",
        completion::no_answer,
    ),
    row("H14", "an Identify with values that cannot be", "refused or clamped", setup::identify),
    row(
        "H15",
        "ANA logs that contradict themselves, and events without end",
        "refused, or not requested",
        ana::cases,
    ),
    row("H16", "discovery logs that are huge, odd, or never the same", "limited", discovery::discovery),
    row("H17", "terminal escapes in names", "escaped when they are shown", discovery::escapes),
    row(
        "H18",
        "the end of the connection at every PDU",
        "comes back, one result for each command",
        connection::ends,
    ),
    row(
        "H19",
        "a target that wants authentication, and is wrong at its own",
        "the connect fails",
        authentication::cases,
    ),
    row("H20", "a CNTLID that changes from queue to queue", "the connect fails", setup::cntlids),
    row("H21", "a flood of events", "bounded work", completion::events),
    row("H22", "setup that fails at each step", "ends, and can be tried again", setup::failing_setup),
    row("H23", "writes that fit in a capsule", "come in the capsule", write_data::in_capsule),
];
