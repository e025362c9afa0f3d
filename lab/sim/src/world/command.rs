//! A command that a simulated user has submitted: its kind, its blocks, its lane and its time.

use store::Kind as RequestKind;
use wire::status::Status;

use crate::model::Content;

/// A command that is out.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(super) kind: Kind,
    pub(super) lba: u64,
    pub(super) blocks: u32,
    pub(super) begin_ns: u64,
    pub(super) host: usize,
    pub(crate) lane: usize,
    /// How often its lane had lost its connection when it began.
    pub(super) loss_count: u32,
    /// How often its host had lost its association then.
    pub(super) host_loss_count: u32,
    /// Of these, those that a flush had covered.
    pub(super) covered_losses: u32,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Read,
    Write {
        is_durable: bool,
    },
    WriteZeroes {
        is_durable: bool,
    },
    /// These blocks, of one range or several.
    Deallocate {
        lbas: Vec<u64>,
    },
    /// From these blocks, one by one.
    Copy {
        sources: Vec<u64>,
        is_durable: bool,
    },
    Flush,
    /// Of all namespaces: it covers the writes of all hosts.
    FlushAll,
    Verify,
    /// Dataset Management without effect.
    Hint,
    /// Get LBA Status of allocated blocks.
    LbaStatus,
    /// It must be refused with this status.
    Refused {
        status: Status,
    },
    Compare {
        expected: Vec<Content>,
    },
    /// The first of a pair.
    PairCompare,
    /// The second of a pair, with the content that the first compares with, block by block.
    PairWrite {
        expected: Vec<Content>,
        is_durable: bool,
    },
}

impl Command {
    /// Whether it concerns any of these blocks.
    pub(super) fn touches(&self, blocks: &std::ops::Range<u64>) -> bool {
        let is_own = self.lba < blocks.end && blocks.start < self.lba + u64::from(self.blocks);
        is_own
            || match &self.kind {
                Kind::Copy { sources: lbas, .. } | Kind::Deallocate { lbas } => {
                    lbas.iter().any(|lba| blocks.contains(lba))
                }
                _ => false,
            }
    }
}

impl Kind {
    /// Whether its effect is to survive a power cut.
    pub(super) fn is_durable(&self) -> bool {
        matches!(
            self,
            Self::Write { is_durable: true }
                | Self::WriteZeroes { is_durable: true }
                | Self::Copy { is_durable: true, .. }
                | Self::PairWrite { is_durable: true, .. }
        )
    }

    /// Whether it changes blocks, as one command or with its other half.
    pub(super) fn changes_blocks(&self) -> bool {
        let changing = [RequestKind::Write, RequestKind::WriteZeroes, RequestKind::Deallocate];
        self.requests().iter().any(|request| changing.contains(request))
    }

    /// The kinds of requests to the storage that it causes.
    pub(super) fn requests(&self) -> &'static [RequestKind] {
        match self {
            Self::Read | Self::Compare { .. } | Self::Verify | Self::LbaStatus => &[RequestKind::Read],
            Self::Write { .. } => &[RequestKind::Write],
            Self::WriteZeroes { .. } => &[RequestKind::WriteZeroes],
            Self::Deallocate { .. } => &[RequestKind::Deallocate],
            // Of a pair those of either half.
            Self::Copy { .. } | Self::PairCompare | Self::PairWrite { .. } => {
                &[RequestKind::Read, RequestKind::Write]
            }
            Self::Flush | Self::FlushAll => &[RequestKind::Flush],
            Self::Hint | Self::Refused { .. } => &[],
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Read => "Read",
            Self::Write { is_durable: false } => "Write",
            Self::Write { is_durable: true } => "Write with FUA",
            Self::WriteZeroes { .. } => "Write Zeroes",
            Self::Deallocate { .. } => "Deallocate",
            Self::Copy { .. } => "Copy",
            Self::Flush => "Flush",
            Self::FlushAll => "Flush of all",
            Self::Verify => "Verify",
            Self::Hint => "Dataset Management",
            Self::LbaStatus => "Get LBA Status",
            Self::Refused { .. } => "refused",
            Self::Compare { .. } => "Compare",
            Self::PairCompare => "Compare of a pair",
            Self::PairWrite { .. } => "Write of a pair",
        }
    }

    /// Details that its name does not show, for a timeline.
    pub(super) fn details(&self) -> String {
        match self {
            Self::Copy { sources, .. } => format!(", from blocks {sources:?}"),
            Self::Deallocate { lbas } => format!(", on blocks {lbas:?}"),
            Self::Compare { expected } | Self::PairWrite { expected, .. } => {
                let expected: Vec<_> = expected.iter().map(|content| in_words(*content)).collect();
                format!(", expecting {}", expected.join(", "))
            }
            _ => String::new(),
        }
    }
}

/// The content of a block in words.
pub(super) fn in_words((origin, value): Content) -> String {
    match value {
        0 => "zeroes".into(),
        _ => format!("what command {} wrote to block {origin}", value >> 8),
    }
}
