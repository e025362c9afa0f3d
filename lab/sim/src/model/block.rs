//! A block as a register: the knowledge of each value that was written to it, and whether that is one history.

use super::content::Value;
use crate::finding::Finding;

/// Marks the value of a Copy, which is unknown until it is read.
pub(super) const COPIED: Value = 1 << 63;

/// No end yet.
pub(super) const NEVER: u64 = u64::MAX;

/// Knowledge of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteState {
    /// Not answered.
    Pending,
    Done,
    /// It may have been done.
    Perhaps,
    /// It was reported not to have been done.
    NotDone,
    /// One of several that a power cut may have left.
    Survivor,
}

#[derive(Clone, Debug)]
pub(super) struct Cluster {
    pub(super) value: Value,
    /// The command that wrote it.
    pub(super) command: u64,
    pub(super) state: WriteState,
    /// Start of the command that wrote it: no earlier read can return it.
    pub(super) written_ns: u64,
    /// The latest begin of a command that saw or made it.
    pub(super) begin_ns: u64,
    /// The earliest end of one.
    pub(super) end_ns: u64,
    pub(super) is_seen: bool,
    pub(super) is_durable: bool,
    /// Its value is zeroes, or that of a Copy that may have brought them.
    pub(super) may_be_zero: bool,
    /// Written before a flush failed: no later flush covers it.
    pub(super) is_excused: bool,
    /// Its begin and end before the last power cut.
    pub(super) before: (u64, u64),
}

impl Cluster {
    /// Whether it surely was in the block at some time.
    pub(super) fn is_certain(&self) -> bool {
        self.state == WriteState::Done || self.is_seen
    }

    /// Whether it surely came before `other`.
    pub(super) fn precedes(&self, other: &Self) -> bool {
        self.end_ns < other.begin_ns && other.end_ns >= self.begin_ns
    }

    /// Whether it surely was replaced by `other`, unless that was done before it.
    fn is_replaced_by(&self, other: &Self) -> bool {
        other.command != self.command
            && other.is_certain()
            && (other.value != 0 || other.state == WriteState::Done)
            && self.end_ns < other.begin_ns
    }

    /// Whether both cannot be in one history.
    pub(super) fn contradicts(&self, other: &Self) -> bool {
        let (a, b) = (self, other);
        match (a.end_ns < a.begin_ns, b.end_ns < b.begin_ns) {
            (true, true) => a.end_ns.max(b.end_ns) < a.begin_ns.min(b.begin_ns),
            (true, false) => a.end_ns < b.begin_ns && b.end_ns < a.begin_ns,
            (false, true) => b.end_ns < a.begin_ns && a.end_ns < b.begin_ns,
            (false, false) => false,
        }
    }
}

/// The history of one block.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) clusters: Vec<Cluster>,
    /// Power cuts so far.
    pub(super) epoch: u32,
    /// Values that a Compare and Write has replaced, each with the new value.
    pub(super) swapped: Vec<(Value, Value)>,
    /// Values that, as it turned out, the last power cut has not left.
    pub(super) gone: Vec<Cluster>,
    pub(super) is_replayed: bool,
}

impl Block {
    /// The place of a value that is not zeroes among the clusters, which are in the order of their commands as a rule.
    fn position(&self, value: Value) -> Option<usize> {
        let command = (value & !COPIED) >> 8;
        let start = self.clusters.partition_point(|cluster| cluster.command < command);
        if self.clusters.get(start).is_some_and(|cluster| cluster.value == value) {
            return Some(start);
        }
        self.clusters.iter().position(|cluster| cluster.value == value)
    }

    /// Whether a value that is not zeroes was surely replaced before `begin_ns`, or never was here.
    pub(super) fn is_surely_gone(&self, value: Value, begin_ns: u64) -> bool {
        let Some(at) = self.position(value) else { return true };
        let (earlier, later) = self.clusters.split_at(at);
        let this = &later[0];
        let replaces = |other: &Cluster| this.is_replaced_by(other) && other.end_ns < begin_ns;
        // The value that replaced it is next to it as a rule: long histories are searched from there.
        later.iter().any(replaces) || earlier.iter().any(replaces)
    }

    /// By when a value that is not zeroes was surely replaced, ns; 0 if it never was here, [`NEVER`] if it was not.
    pub(super) fn replaced_ns(&self, value: Value) -> u64 {
        let Some(at) = self.position(value) else { return 0 };
        let this = &self.clusters[at];
        let replacing = self.clusters.iter().filter(|other| this.is_replaced_by(other));
        replacing.map(|other| other.end_ns).min().unwrap_or(NEVER)
    }

    /// Whether [`read`](Self::read) would find nothing wrong.
    pub(super) fn may_read(&self, value: Value, begin_ns: u64, now_ns: u64) -> bool {
        if value == 0 {
            return self.clusters.iter().any(|zero| self.may_be_zero(zero, begin_ns, now_ns));
        }
        let Some(at) = self.position(value) else { return false };
        let this = &self.clusters[at];
        if this.state == WriteState::NotDone || this.written_ns > now_ns {
            return false;
        }
        // A value that was read before its write was answered may have been done once before, and replaced.
        let was_repeated = self.is_replayed && this.state == WriteState::Done && now_ns <= this.end_ns;
        if was_repeated || self.may_be_repeated(this) {
            return true;
        }
        let is_lone_survivor = this.state == WriteState::Survivor && !this.is_seen;
        let this = Cluster {
            is_seen: true,
            begin_ns: this.begin_ns.max(begin_ns),
            end_ns: this.end_ns.min(now_ns),
            ..this.clone()
        };
        let rules_out = |other: &Cluster| {
            other.command != this.command
                && !(is_lone_survivor && other.state == WriteState::Survivor)
                && other.is_certain()
                && (other.value != 0 || other.state == WriteState::Done)
                && this.contradicts(other)
        };
        !self.clusters.iter().any(rules_out)
    }

    /// Whether it may be done again later: a read of it says nothing of the order.
    pub(super) fn may_be_repeated(&self, cluster: &Cluster) -> bool {
        self.is_replayed
            && matches!(cluster.state, WriteState::Pending | WriteState::Perhaps)
            && cluster.end_ns == NEVER
    }

    /// Whether zeroes that a command saw may have been these.
    pub(super) fn may_be_zero(&self, zero: &Cluster, begin_ns: u64, now_ns: u64) -> bool {
        let replaces = |other: &Cluster| {
            other.value != 0 && other.is_certain() && zero.end_ns < other.begin_ns && other.end_ns < begin_ns
        };
        zero.may_be_zero
            && zero.state != WriteState::NotDone
            && zero.written_ns <= now_ns
            && !self.clusters.iter().any(replaces)
    }

    /// A command that began at `begin_ns` saw a value.
    pub(super) fn read(&mut self, lba: u64, value: Value, begin_ns: u64, now_ns: u64) -> Result<(), Finding> {
        if value == 0 {
            return self.read_zeroes(lba, begin_ns, now_ns);
        }
        let block = &mut *self;
        let Some(at) = block.position(value) else {
            return Err(format!(
                "block {lba}: read value {value:#x}, which it cannot hold: {}",
                block.describe()
            ));
        };
        if block.clusters[at].state == WriteState::NotDone {
            return Err(format!(
                "block {lba}: read the data of command {}, which is said not to be done",
                (value & !COPIED) >> 8
            ));
        }
        if block.clusters[at].written_ns > now_ns {
            // It would have come with a Copy that was over before the write.
            return Err(format!(
                "block {lba}: {value:#x} was read before it was written: {}",
                block.describe()
            ));
        }
        if block.may_be_repeated(&block.clusters[at]) {
            return Ok(());
        }
        if block.clusters[at].state == WriteState::Survivor && !block.clusters[at].is_seen {
            // The power cut has left this one, and no other.
            block.settle(value);
        }
        let cluster = block.clusters.iter_mut().find(|cluster| cluster.value == value).expect("kept");
        cluster.is_seen = true;
        cluster.begin_ns = cluster.begin_ns.max(begin_ns);
        cluster.end_ns = cluster.end_ns.min(now_ns);
        let command = cluster.command;
        self.check(lba, command)
    }

    pub(super) fn read_zeroes(&mut self, lba: u64, begin_ns: u64, now_ns: u64) -> Result<(), Finding> {
        let block = self;
        let may_be = |zero: &&Cluster| block.may_be_zero(zero, begin_ns, now_ns);
        let has_copy = block.clusters.iter().any(|cluster| cluster.value & COPIED != 0 && may_be(&cluster));
        let zeroes: Vec<WriteState> = block.clusters.iter().filter(may_be).map(|zero| zero.state).collect();
        if zeroes.is_empty() {
            return Err(format!("block {lba}: read zeroes, which were replaced: {}", block.describe()));
        }
        if !has_copy && zeroes.iter().all(|state| *state == WriteState::Survivor) {
            block.settle(0);
        }
        Ok(())
    }

    /// Checks the knowledge of a value against all others.
    pub(super) fn check(&self, lba: u64, command: u64) -> Result<(), Finding> {
        let block = self;
        let Some(this) = block.clusters.iter().find(|cluster| cluster.command == command) else {
            return Ok(());
        };
        if !this.is_certain() {
            return Ok(());
        }
        let other = block.clusters.iter().find(|other| {
            other.command != command
                && other.is_certain()
                && (other.value != 0 || other.state == WriteState::Done)
                && this.contradicts(other)
        });
        match other {
            None => Ok(()),
            Some(other) => Err(format!(
                "block {lba}: commands {command} and {} contradict each other: {}",
                other.command,
                block.describe()
            )),
        }
    }

    /// The power cut has left this value and no other.
    pub(super) fn settle(&mut self, value: Value) {
        let is_other = |cluster: &Cluster| cluster.state == WriteState::Survivor && cluster.value != value;
        self.gone.extend(self.clusters.iter().filter(|cluster| is_other(cluster)).cloned());
        self.clusters.retain(|cluster| !is_other(cluster));
        for cluster in &mut self.clusters {
            cluster.is_seen |= cluster.state == WriteState::Survivor;
        }
    }

    pub(super) fn describe(&self) -> String {
        let time =
            |ns: u64| if ns == NEVER { "…".into() } else { format!("{}.{:03}us", ns / 1000, ns % 1000) };
        let one = |cluster: &Cluster| {
            format!(
                "[{:#x} by {} {:?}{}{}: begin {}, end {}]",
                cluster.value,
                cluster.command,
                cluster.state,
                if cluster.is_seen { " seen" } else { "" },
                if cluster.is_durable { " durable" } else { "" },
                time(cluster.begin_ns),
                time(cluster.end_ns)
            )
        };
        let last = self.clusters.len().saturating_sub(12);
        self.clusters[last..].iter().map(one).collect::<Vec<_>>().join(" ")
    }
}
