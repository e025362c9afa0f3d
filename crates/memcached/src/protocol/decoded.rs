//! What came out of some bytes of a client.

use crate::command::Header;

/// What came out of some bytes.
#[derive(Debug)]
pub enum Decoded<'a> {
    /// A command on a key: it is where the caller wanted it.
    Command,
    /// A command with a long value, which begins with the next byte; behind it comes the end of a line,
    /// if so told. The command is where the caller wanted it, without its value.
    Large {
        /// Bytes of the value.
        length: usize,
        /// Whether a line ends behind it.
        has_line_end: bool,
    },
    /// What needs no key: the answer.
    Answer(&'static [u8]),
    /// The answer to `version`.
    Version,
    /// Removes everything, after so many seconds, with an answer or without.
    Flush {
        /// Seconds, or a moment in Unix time.
        delay: i64,
        /// No answer.
        is_quiet: bool,
        /// Asked in the binary protocol.
        binary: Option<Header>,
    },
    /// Asks for statistics, of a kind.
    Stats {
        /// Which; empty for the general ones.
        of: &'a [u8],
        /// Asked in the binary protocol.
        binary: Option<Header>,
    },
    /// Wants the memory to be so many MiB.
    Limit {
        /// How many.
        megabytes: u64,
        /// Without an answer.
        is_quiet: bool,
    },
    /// The answer to a binary command without key: its status.
    Binary(Header, u16),
    /// More bytes are needed: so many from the start of what is left, at least.
    More(usize),
    /// The connection is over once this is answered.
    BinaryQuit(Header),
    /// The connection is over.
    Close,
}
