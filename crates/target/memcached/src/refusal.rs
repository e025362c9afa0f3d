//! Refusals: how a client learns that a partition does not execute its command.

use crate::binary_response as response;
use crate::command::{Header, Verb};

/// Why a command is not executed, or why it is unknown whether its change survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The line of the text protocol, with its end.
    pub line: &'static [u8],
    /// The status of the binary protocol.
    pub status: u16,
}

impl Refusal {
    /// Binary status: there is no memory or no space.
    pub const OUT_OF_MEMORY: u16 = response::NO_MEMORY;
    /// Binary status: the server has failed.
    pub const INTERNAL_ERROR: u16 = response::INTERNAL_ERROR;
    /// Binary status: the command may be repeated later.
    pub const TEMPORARY_FAILURE: u16 = response::TEMPORARY_FAILURE;
}

/// How a command that waits for its answer is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalForm {
    /// The client wants no answer.
    None,
    /// By a line.
    Line,
    /// By a line after which the connection ends: it is a part of a command whose other parts have answers as well, and
    /// the client takes the line for the end of all of them.
    LastLine,
    /// By a response of the binary protocol.
    Binary(Header),
}

impl RefusalForm {
    pub(crate) fn of(verb: &Verb) -> Self {
        match *verb {
            Verb::Binary(header) | Verb::Refused { binary: Some(header), .. } => Self::Binary(header),
            _ if verb.is_silent() => Self::None,
            Verb::Get { .. } | Verb::Dump(_) => Self::LastLine,
            _ => Self::Line,
        }
    }

    /// Appends the answer.
    pub(crate) fn write(self, refusal: Refusal, out: &mut Vec<u8>) {
        match self {
            Self::None => {}
            Self::Line | Self::LastLine => out.extend_from_slice(refusal.line),
            Self::Binary(header) => response::refuse(out, header, refusal.status),
        }
    }
}
