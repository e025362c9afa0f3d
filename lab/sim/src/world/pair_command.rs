//! Knowledge of the commands of hosts on keys: their verbs, batches of which a half is out, Lists in pages.

use std::collections::BTreeSet;

use host_core::Failure;
use wire::kv::{Key, StoreOptions};

use crate::pair_model::Mode;
use crate::random::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Retrieve,
    Exist,
    /// It gives the length.
    ExistInBatch,
    /// For so many seconds.
    Pin {
        seconds: u32,
    },
    Store,
    Delete,
    Atomic,
    VectorUpdate,
    VectorFetch,
    /// The bits of an element.
    VectorReduce {
        mask: u64,
    },
    VectorFilter,
}

impl Verb {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Retrieve => "Retrieve",
            Self::Exist | Self::ExistInBatch => "Exist",
            Self::Pin { .. } => "Pin",
            Self::Store => "Store",
            Self::Delete => "Delete",
            Self::Atomic => "Atomic",
            Self::VectorUpdate => "Vector Update",
            Self::VectorFetch => "Vector Fetch and Update",
            Self::VectorReduce { .. } => "Vector Reduce",
            Self::VectorFilter => "Vector Filter",
        }
    }

    /// Whether its answer has a value.
    pub(super) fn brings(self) -> bool {
        matches!(self, Self::Retrieve | Self::VectorFetch | Self::VectorFilter)
    }
}

/// One of the two commands of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    Collect,
    Submit,
}

impl Half {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Collect => "Batch Collect",
            Self::Submit => "Batch Submit",
        }
    }
}

/// An operation of a batch, as the model knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) key: usize,
    pub(super) id: u64,
    pub(super) verb: Verb,
    /// Data of its outcome, at most, bytes.
    pub(super) room_bytes: u32,
}

/// A batch of which a half is out.
#[derive(Debug, Default)]
pub(super) struct OpenBatch {
    pub(super) operations: Vec<Operation>,
    /// The end of Collect: with this number of failures, or with a failure of its own, of a known cause or not.
    pub(super) collected: Option<Result<u32, (Failure, Option<&'static str>)>>,
    /// The end of Submit.
    pub(super) submitted: Option<Result<u64, (Failure, Option<&'static str>)>>,
    /// When Submit ended, its Collect may have ended before it at the target.
    pub(super) may_miss_collect: bool,
}

/// A List in pages.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// The number that the next command on a key had when it began.
    pub(super) number: u64,
    /// Looks at keys that no page has had, from before the first page on.
    pub(super) watched: Vec<(usize, u64)>,
    /// Keys that the pages have had.
    pub(super) seen: BTreeSet<usize>,
    pub(super) last: Option<Key>,
    pub(super) is_out: bool,
}

/// The condition of a host's Store.
pub(super) fn draw_mode(choice: &mut Random) -> (Mode, StoreOptions) {
    match choice.below(6) {
        0 => (Mode::Add, StoreOptions::MUST_NOT_EXIST),
        1 => (Mode::Replace, StoreOptions::MUST_EXIST),
        _ => (Mode::Set, StoreOptions::empty()),
    }
}
