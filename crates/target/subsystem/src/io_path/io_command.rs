//! An I/O command between its lane and the backends: who begins it, how it begins and how it ends.

use std::ops::Range;

use memory::Payload;
use store::Ticket;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::io_path::attached::ViewIndex;
use crate::io_path::running::Owner;
use crate::messages::key_value::arriving::Intake;

/// Limits of I/O commands, as reported to hosts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IoLimits {
    /// MDTS, bytes.
    pub(crate) transfer_bytes_max: u32,
    /// In-capsule data of I/O commands, bytes.
    pub(crate) in_capsule_bytes: u32,
    /// The same of commands on keys and values, in subsystems that have only such namespaces.
    pub(crate) key_value_in_capsule_bytes: u32,
    /// Blocks of a fused Compare and Write (ACWU).
    pub(crate) compare_and_write_blocks_max: u32,
    /// Blocks of one source range of a Copy (MSSRL).
    pub(crate) copy_range_blocks_max: u32,
    /// Blocks of a Copy in all (MCL).
    pub(crate) copy_blocks_max: u32,
    /// Source ranges of a Copy (MSRC).
    pub(crate) copy_range_count_max: u16,
}

/// The sender of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) owner: Owner,
    /// The namespaces that it reaches.
    pub(crate) view: ViewIndex,
    /// Data sent must stay as it is: a digest is computed over it.
    pub(crate) needs_stable_copy: bool,
}

/// The way in which a command begins.
#[derive(Debug)]
pub(crate) enum Begun {
    /// It has ended, without data for the host.
    Complete(Status, u64),
    /// It has succeeded: the host gets this number of bytes of the payload.
    Data(Payload, u32),
    /// It has succeeded with this result: the host gets this number of bytes of the payload.
    Value(Payload, u32, u64),
    /// Request this number of bytes, then begin the command again with them.
    RequestData(u32),
    /// It is in the running table, and completes through `Commands::next_ended`.
    Started { ticket: Ticket, hold: Hold },
}

/// The effect of a running command on those behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Nothing.
    None,
    /// No buffer was free for its in-capsule data: input of its lane is held back until it continues.
    Capsule,
    /// It waits in its lane's line, and so do those behind it that bring no data.
    Line,
}

/// A command that did not end at once has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) owner: Owner,
    pub(crate) sqe: Sqe,
    pub(crate) status: Status,
    pub(crate) result: u64,
    /// The payload for the host, and the number of its bytes that the host gets.
    pub(crate) data: Option<(Payload, u32)>,
    /// The status of the second half of a fused pair; `status` is that of the first.
    pub(crate) second: Option<Status>,
    /// The command has waited for this room, to receive this part of its data into. It has not ended.
    pub(crate) room: Option<(Intake, Range<u32>)>,
    /// Its success is in the traffic of its namespace already: it waited, and then succeeded as it began.
    pub(crate) is_counted: bool,
}

impl Ended {
    pub(crate) fn new(owner: Owner, sqe: Sqe, status: Status) -> Self {
        Self { owner, sqe, status, result: 0, data: None, second: None, room: None, is_counted: false }
    }
}
