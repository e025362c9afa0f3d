//! The commands of users: those that are out, and what is known of those that have ended.

use std::collections::{BTreeMap, BTreeSet};

use super::command::{Command, Kind};
use crate::scenario::CommandId;

#[derive(Debug)]
pub(crate) struct Commands {
    /// Those that are out, by number.
    pub(super) out: BTreeMap<u64, Command>,
    /// The number of the next one.
    pub(super) next: u64,
    /// Commands whose turn has come, of all lanes.
    pub(super) turn_count: u64,
    /// Those that were submitted.
    pub(crate) submitted: Vec<CommandId>,
    pub(crate) ended_count: u64,
    /// Those that were cancelled, with the other halves of pairs.
    pub(super) cancelled: BTreeSet<u64>,
    /// Halves of pairs that have failed, and the first ones that found a difference.
    pub(super) failed_halves: BTreeSet<u64>,
    pub(super) mismatched: BTreeSet<u64>,
}

impl Commands {
    pub(super) fn new() -> Self {
        Self {
            out: BTreeMap::new(),
            next: 1,
            turn_count: 0,
            submitted: Vec::new(),
            ended_count: 0,
            cancelled: BTreeSet::new(),
            failed_halves: BTreeSet::new(),
            mismatched: BTreeSet::new(),
        }
    }

    /// The number of a command that begins.
    pub(super) fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// A command is cancelled: both halves of a pair are.
    pub(super) fn cancel(&mut self, number: u64) {
        self.cancelled.insert(number);
        match self.out.get(&number).map(|command| &command.kind) {
            Some(Kind::PairCompare) => self.cancelled.insert(number + 1),
            Some(Kind::PairWrite { .. }) => self.cancelled.insert(number - 1),
            _ => false,
        };
    }
}
