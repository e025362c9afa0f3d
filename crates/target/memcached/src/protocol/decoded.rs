//! The result of decoding a client's bytes.

use crate::command::{DumpForm, Header};

/// The result of one decoding step.
#[derive(Debug)]
pub enum Decoded<'a> {
    /// A command on a key, written to the caller's command.
    Command,
    /// A command with a long value, which begins with the next byte; a line end follows it with `has_line_end`. The
    /// command, without its value, is written to the caller's command.
    Large {
        /// Length of the value, bytes.
        length: usize,
        /// Whether a line end follows it.
        has_line_end: bool,
    },
    /// The answer to a request without key.
    Answer(&'static [u8]),
    /// `version`.
    Version,
    /// Removes all pairs, now or later.
    Flush {
        /// Seconds, or Unix time.
        delay: i64,
        /// Whether there is no answer.
        is_quiet: bool,
        /// The header, if it came in the binary protocol.
        binary: Option<Header>,
    },
    /// A request for statistics.
    Stats {
        /// Their kind; empty for the general ones.
        of: &'a [u8],
        /// The header, if it came in the binary protocol.
        binary: Option<Header>,
    },
    /// A request to set the memory limit.
    Limit {
        /// The limit, MiB.
        megabytes: u64,
        /// Whether there is no answer.
        is_quiet: bool,
    },
    /// A request for all keys.
    Dump(DumpForm),
    /// A request for a line per event of these kinds.
    Watch(u8),
    /// The status that answers a binary command without key.
    Binary(Header, u16),
    /// More bytes are needed: at least this many, counted from the start of the remaining input.
    More(usize),
    /// Close the connection after answering this.
    BinaryQuit(Header),
    /// Close the connection, as the client wishes.
    Quit,
    /// Close the connection, because of what the client has sent.
    Close,
}
