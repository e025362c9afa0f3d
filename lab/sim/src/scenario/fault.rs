//! Events of a scenario besides commands: faults, and actions of an operator.

use crate::coverage::Waiting;

/// The operations that an error of the disk may hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorOf {
    Read,
    Write,
    Flush,
}

/// Something that happens once, most of which goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A connection is reset on both ends.
    Reset,
    /// A connection goes silent forever, without either end learning of it.
    Cut,
    /// Nothing passes for a while.
    Partition {
        ns: u64,
    },
    /// The target's process dies; its writes stay in the kernel.
    Kill {
        down_ns: u64,
    },
    /// The target's machine dies; writes that were not flushed may be lost.
    PowerCut {
        down_ns: u64,
    },
    /// A reactor does not run for a while.
    Stall {
        ns: u64,
    },
    /// The file system of the key-value log has no space for a while.
    NoSpace {
        ns: u64,
    },
    /// The next operation of this kind on the key-value log fails.
    LogError {
        of: ErrorOf,
    },
    /// The memory of the key-value namespace becomes smaller or larger.
    Memory {
        share: u8,
    },
    /// The wall clock of the target's machine is set, to this much ahead of the time; or the machine is suspended.
    SetClock {
        ahead_s: i64,
    },
    Suspend {
        seconds: u64,
    },
    /// The namespace becomes shorter or longer.
    Resize {
        block_count: u64,
    },
    /// A command is cancelled.
    Cancel,
    /// The second namespace is removed under I/O, and perhaps added again, with new storage.
    Remove {
        away_ns: u64,
        returns: bool,
    },
    /// The second namespace gets another identity under I/O, and keeps its storage.
    Rename,
    /// Hosts have other rights to the second namespace for a while: two bits for each.
    Rights {
        which: u64,
        away_ns: u64,
    },
    /// The second host may not connect for a while.
    Bar {
        away_ns: u64,
    },
    /// The target's configuration changes, in this number of steps.
    Offer {
        step_count: u8,
    },
    /// Another machine has the target's address for a while.
    FailOver {
        is_power_cut: bool,
        down_ns: u64,
        away_ns: u64,
    },
    /// The configuration is loaded again, with a change that this number decides.
    Reload {
        which: u8,
    },
    /// A host submits an admin command: its place in the table of them.
    Admin {
        which: u8,
    },
    /// A host resets its controller under I/O.
    ControllerReset,
    /// A second target process starts on the same storage; the first is killed after a while, or not.
    Rival {
        kills_after_ns: Option<u64>,
    },
    /// The threads of a host do not run for a while: its keep-alive expires.
    Freeze {
        ns: u64,
    },
    /// As soon as a command of a host waits like this at the target, its connections go silent, and the disk hangs
    /// until the target must have noticed.
    Unplug {
        waiting: Waiting,
    },
    /// A peer opens as many connections, and sends nothing on them.
    Flood {
        count: u8,
        ns: u64,
    },
    /// The configuration is loaded again, with another key of TLS.
    TlsKey,
    /// The operator sees that the storage of the first namespace has little space left.
    SpaceLow,
}

impl Fault {
    /// Whether it is the operator who reloads the configuration.
    pub(crate) fn is_of_operator(self) -> bool {
        matches!(
            self,
            Self::Remove { .. }
                | Self::Rename
                | Self::Rights { .. }
                | Self::Bar { .. }
                | Self::Offer { .. }
                | Self::Reload { .. }
                | Self::TlsKey
        )
    }

    /// Its name among what runs reach.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reset => "connection reset",
            Self::Cut => "connection silent",
            Self::Partition { .. } => "network partitioned",
            Self::Kill { .. } => "target killed",
            Self::PowerCut { .. } => "power cut",
            Self::Stall { .. } => "reactor stalled",
            Self::NoSpace { .. } => "no space for the log",
            Self::LogError { .. } => "error of the log's disk",
            Self::Memory { .. } => "memory of pairs resized",
            Self::SetClock { .. } => "wall clock set",
            Self::Suspend { .. } => "machine suspended",
            Self::Resize { .. } => "namespace resized",
            Self::Cancel => "command cancelled",
            Self::Remove { .. } => "namespace removed",
            Self::Rename => "namespace renamed",
            Self::Rights { .. } => "rights changed",
            Self::Bar { .. } => "host barred",
            Self::Offer { .. } => "discovery log changed",
            Self::FailOver { .. } => "address failed over",
            Self::Reload { .. } => "configuration reloaded",
            Self::Admin { .. } => "admin command",
            Self::ControllerReset => "controller reset",
            Self::Rival { .. } => "second target starts",
            Self::Freeze { .. } => "host silent",
            Self::Unplug { .. } => "host about to be unplugged",
            Self::Flood { .. } => "flood of connections",
            Self::TlsKey => "TLS: key changed by a reload",
            Self::SpaceLow => "storage without space",
        }
    }
}
