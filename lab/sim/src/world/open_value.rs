//! Knowledge of a value of which a command is out: what is moved, and which of its commands have ended.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use host_core::Failure;
use wire::status::Status;

use crate::pair_model::Asked;

/// Commands of a value that are sent at once, at most.
pub(super) const PART_COUNT_MAX: u16 = 4;

/// The commands of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// Store Data or Collect.
    First,
    /// Another one with its tag.
    Duplicate,
    Submit,
    Flags,
    /// Flags that the value does not wait for.
    OtherFlags,
}

/// The flags of a value that is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flags {
    /// Submit has them, or none are needed.
    Known,
    /// They are sent when the value was.
    Due,
    Sent {
        is_early: bool,
    },
    Taken,
    /// They will not be sent: its host has forgotten them.
    Forgotten,
}

#[derive(Clone, Debug)]
pub(super) enum Work {
    Store { length: usize },
    Retrieve(Asked),
}

/// The end of a command, and the cause of its failure.
pub(super) type End = Result<u64, (Failure, Option<&'static str>)>;

/// A value of which a command is out.
#[derive(Debug)]
pub(super) struct OpenValue {
    pub(super) key: usize,
    pub(super) id: u64,
    pub(super) place: (usize, usize),
    pub(super) work: Work,
    pub(super) flags: Flags,
    /// The flags that it gets.
    pub(super) wanted_flags: u32,
    /// Whether flags follow that are none of its own.
    pub(super) has_other_flags: bool,
    pub(super) has_duplicate: bool,
    /// The status with which both commands must be refused.
    pub(super) slip: Option<Status>,
    /// What the socket has taken of the first command's data, bytes.
    pub(super) sent_bytes: Rc<Cell<usize>>,
    /// The numbers of commands that are out.
    pub(super) out: BTreeMap<Part, u64>,
    pub(super) first: Option<End>,
    /// What the first one received.
    pub(super) received: Rc<[u8]>,
    pub(super) submit: Option<End>,
    /// When Submit ended, the first may have ended before it at the target.
    pub(super) may_miss_first: bool,
    /// The model knows that it is stored.
    pub(super) is_stored_told: bool,
    pub(super) is_judged: bool,
}

impl OpenValue {
    pub(super) fn new(place: (usize, usize), (key, id): (usize, u64), work: Work) -> Self {
        Self {
            key,
            id,
            place,
            work,
            flags: Flags::Known,
            wanted_flags: 0,
            has_other_flags: false,
            has_duplicate: false,
            slip: None,
            sent_bytes: Rc::default(),
            out: BTreeMap::new(),
            first: None,
            received: Rc::default(),
            submit: None,
            may_miss_first: false,
            is_stored_told: false,
            is_judged: false,
        }
    }

    pub(super) fn names(&self) -> [&'static str; 2] {
        match self.work {
            Work::Store { .. } => ["Store Data", "Store Submit"],
            Work::Retrieve(_) => ["Collect of a value", "Retrieve Submit"],
        }
    }

    /// Whether its flags can be sent.
    pub(super) fn is_due(&self) -> bool {
        let is_sent = matches!(self.work, Work::Store { length } if self.sent_bytes.get() >= length);
        self.flags == Flags::Due && self.first.is_none() && is_sent
    }

    pub(super) fn status(end: Option<End>) -> Option<Status> {
        end?.err()?.0.status()
    }
}
