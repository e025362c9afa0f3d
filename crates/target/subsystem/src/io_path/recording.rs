//! Every command of one lane with the times of its phases, while slow commands are logged or a trace runs.
//!
//! A command that is with a backend costs no clock read: it has the time of the turn in which its backend replied. A command
//! that ends when it begins costs one, which is where the next one of the same receive begins. Each caravan costs two.

use proto::Slot;
use proto::doorbell::{DoorbellCounters, Reason};
use wire::nvm::BlockCommand;
use wire::sqe::Sqe;
use wire::status::Status;

/// One command in this number is added to the histograms of phases, as without a record.
const SAMPLE_INTERVAL: u32 = 64;

/// Doorbells that are kept until the reactor takes them.
const RING_COUNT_MAX: usize = 64;

/// A command that has begun.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Command {
    /// When the turn began in which it was received, or when it had arrived if its lane was held back, ns.
    pub(crate) arrived_ns: u64,
    /// When its backend, or the request for its data, began, ns.
    pub(crate) begun_ns: u64,
    /// For how long its data was waited for, ns.
    pub(crate) data_ns: u64,
    /// For how long it waited for rate limits, ns.
    pub(crate) limit_ns: u64,
    pub(crate) slba: u64,
    pub(crate) nsid: u32,
    pub(crate) blocks: u32,
    /// Bytes of its data pointer.
    pub(crate) bytes: u32,
    pub(crate) cid: u16,
    pub(crate) opcode: u8,
    flags: u8,
}

/// It executes.
const LIVE: u8 = 1;
/// It is one of those that the histograms of phases have.
const SAMPLED: u8 = 2;
/// It has waited for a buffer, or behind commands that did.
const WAITED: u8 = 4;
/// It was logged while it was under way.
const TOLD: u8 = 8;
/// It had begun before the record did: it is older than it seems.
const OLDER: u8 = 16;
/// Its data was asked for.
const AWAITS_DATA: u8 = 32;
/// It waits for a rate limit.
const AWAITS_LIMIT: u8 = 64;

impl Command {
    pub(crate) fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    pub(crate) fn has_waited(&self) -> bool {
        self.flags & WAITED != 0
    }

    pub(crate) fn is_older(&self) -> bool {
        self.flags & OLDER != 0
    }

    /// Whether it is logged for the first time while it is under way.
    pub(crate) fn is_told_first(&mut self) -> bool {
        let is_first = self.flags & TOLD == 0;
        self.flags |= TOLD;
        is_first
    }
}

/// A command whose response waits to be sent, or is leaving.
#[derive(Clone, Copy, Debug)]
struct Ended {
    command: Command,
    ended_ns: u64,
    status: Status,
}

/// A command whose response the socket has taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    pub(crate) command: Command,
    pub(crate) status: Status,
    ended_ns: u64,
    rung_ns: u64,
    taken_ns: u64,
}

/// The times of the phases of a command, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PhaseTimes {
    pub(crate) socket_ns: u64,
    pub(crate) limit_ns: u64,
    pub(crate) data_ns: u64,
    pub(crate) storage_ns: u64,
    pub(crate) doorbell_ns: u64,
    pub(crate) send_ns: u64,
}

impl Finished {
    /// From its arrival until its response was taken by the socket, ns.
    pub(crate) fn total_ns(&self) -> u64 {
        self.taken_ns.saturating_sub(self.command.arrived_ns)
    }

    pub(crate) fn phases(&self) -> PhaseTimes {
        let Self { command, ended_ns, rung_ns, taken_ns, .. } = self;
        let waited_ns = command.data_ns.saturating_add(command.limit_ns);
        PhaseTimes {
            socket_ns: command.begun_ns.saturating_sub(command.arrived_ns).saturating_sub(waited_ns),
            limit_ns: command.limit_ns,
            data_ns: command.data_ns,
            storage_ns: ended_ns.saturating_sub(command.begun_ns),
            doorbell_ns: rung_ns.saturating_sub(*ended_ns),
            send_ns: taken_ns.saturating_sub(*rung_ns),
        }
    }
}

/// A doorbell that was rung.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rung {
    pub(crate) at_ns: u64,
    pub(crate) pdus: u32,
    /// `None` if its lane ends.
    pub(crate) reason: Option<Reason>,
}

/// Responses that go together.
#[derive(Debug, Default)]
struct Group {
    commands: Vec<Ended>,
    has_sampled: bool,
    /// When the oldest one had arrived, ns.
    oldest_ns: Option<u64>,
}

impl Group {
    fn push(&mut self, ended: Ended) {
        self.has_sampled |= ended.command.is_sampled();
        let arrived_ns = ended.command.arrived_ns;
        self.oldest_ns = Some(self.oldest_ns.map_or(arrived_ns, |oldest_ns| oldest_ns.min(arrived_ns)));
        self.commands.push(ended);
    }

    fn clear(&mut self) {
        self.commands.clear();
        (self.has_sampled, self.oldest_ns) = (false, None);
    }
}

/// The record of a lane.
#[derive(Debug)]
pub(crate) struct LaneRecord {
    /// By slot.
    begun: Vec<Command>,
    waiting: Group,
    leaving: Group,
    rung_ns: u64,
    /// When a clock was last read in the turn that began at `turn_ns`.
    clock_ns: u64,
    turn_ns: u64,
    count: u32,
    /// Commands that took this time are kept for the reactor, ns.
    keeps_ns: u64,
    /// Whether doorbells are kept, too.
    keeps_rings: bool,
    rings_before: DoorbellCounters,
    finished: Vec<Finished>,
    rings: Vec<Rung>,
    lost_rings: u64,
}

impl LaneRecord {
    /// Keeps commands that take this time or longer.
    pub(crate) fn new(keeps_ns: u64, keeps_rings: bool, doorbell: DoorbellCounters) -> Self {
        Self {
            begun: Vec::new(),
            waiting: Group::default(),
            leaving: Group::default(),
            rung_ns: 0,
            clock_ns: 0,
            turn_ns: u64::MAX,
            count: 0,
            keeps_ns,
            keeps_rings,
            rings_before: doorbell,
            finished: Vec::new(),
            rings: Vec::new(),
            lost_rings: 0,
        }
    }

    pub(crate) fn set_kept(&mut self, keeps_ns: u64, keeps_rings: bool) {
        (self.keeps_ns, self.keeps_rings) = (keeps_ns, keeps_rings);
    }

    /// When a command begins, ns: when the one before it in this turn has ended, else now.
    pub(crate) fn begin_ns(&mut self, turn_ns: u64, clock: impl FnOnce() -> u64) -> u64 {
        if self.turn_ns != turn_ns {
            (self.turn_ns, self.clock_ns) = (turn_ns, clock());
        }
        self.clock_ns
    }

    /// A command begins. Its namespace has it, or its data is asked for.
    pub(crate) fn begin(&mut self, slot: Slot, cid: u16, sqe: &Sqe, arrived_ns: u64, begun_ns: u64) {
        let is_sampled = self.count.is_multiple_of(SAMPLE_INTERVAL);
        self.count = self.count.wrapping_add(1);
        let BlockCommand { slba, blocks, .. } = BlockCommand::from_sqe(sqe);
        let command = Command {
            arrived_ns,
            begun_ns,
            data_ns: 0,
            limit_ns: 0,
            slba,
            nsid: sqe.nsid().get(),
            blocks,
            bytes: sqe.dptr.length.get(),
            cid,
            opcode: sqe.opcode,
            flags: LIVE | if is_sampled { SAMPLED } else { 0 },
        };
        if self.begun.len() <= slot.index() {
            self.begun.resize(slot.index().saturating_add(1), Command::default());
        }
        if let Some(place) = self.begun.get_mut(slot.index()) {
            *place = command;
        }
    }

    /// As [`begin`](Self::begin), for a command that runs already.
    pub(crate) fn adopt(&mut self, slot: Slot, cid: u16, sqe: &Sqe, now_ns: u64) {
        self.begin(slot, cid, sqe, now_ns, now_ns);
        if let Some(command) = self.live(slot) {
            command.flags = LIVE | OLDER;
        }
    }

    /// A command of this slot waits for a buffer, or in its lane's line.
    pub(crate) fn note_wait(&mut self, slot: Slot) {
        if let Some(command) = self.live(slot) {
            command.flags |= WAITED;
        }
    }

    /// The command of this slot waits for its data.
    pub(crate) fn await_data(&mut self, slot: Slot) {
        if let Some(command) = self.live(slot) {
            command.flags |= AWAITS_DATA;
        }
    }

    /// The command of this slot waits for a rate limit.
    pub(crate) fn await_limit(&mut self, slot: Slot) {
        if let Some(command) = self.live(slot) {
            command.flags |= AWAITS_LIMIT;
        }
    }

    /// A command goes on in the turn that began at `turn_ns`: all its data has come, or it has passed its rate limits.
    /// Returns whether it has waited for that.
    pub(crate) fn go_on(&mut self, slot: Slot, cid: u16, turn_ns: u64, begun_ns: u64) -> bool {
        let waits =
            |command: &&mut Command| command.cid == cid && command.flags & (AWAITS_DATA | AWAITS_LIMIT) != 0;
        let Some(command) = self.live(slot).filter(waits) else { return false };
        let waited_ns = turn_ns.saturating_sub(command.begun_ns);
        match command.flags & AWAITS_LIMIT {
            0 => command.data_ns = command.data_ns.saturating_add(waited_ns),
            _ => command.limit_ns = command.limit_ns.saturating_add(waited_ns),
        }
        command.flags &= !(AWAITS_DATA | AWAITS_LIMIT);
        command.begun_ns = begun_ns;
        true
    }

    /// A command ends when it begins, with the next read of the clock.
    pub(crate) fn end_now(&mut self, slot: Slot, status: Status, clock: impl FnOnce() -> u64) {
        self.clock_ns = clock();
        self.end(slot, status, self.clock_ns);
    }

    /// A command that was under way ends in the turn that began at `turn_ns`.
    pub(crate) fn end_later(
        &mut self,
        slot: Slot,
        status: Status,
        turn_ns: u64,
        clock: impl FnOnce() -> u64,
    ) {
        let Some(command) = self.live(slot) else { return };
        // It may have begun in this very turn.
        let is_exact = command.is_sampled() || command.begun_ns >= turn_ns;
        let ended_ns = if is_exact { clock() } else { turn_ns };
        self.end(slot, status, ended_ns);
    }

    fn end(&mut self, slot: Slot, status: Status, ended_ns: u64) {
        let Some(command) = self.live(slot) else { return };
        command.flags &= !LIVE;
        let command = *command;
        self.waiting.push(Ended { command, ended_ns, status });
    }

    /// The command of this slot leaves without a response, or on a path that is not recorded.
    pub(crate) fn forget(&mut self, slot: Slot) {
        if let Some(command) = self.live(slot) {
            command.flags &= !LIVE;
        }
    }

    /// The command that executes in this slot.
    pub(crate) fn live(&mut self, slot: Slot) -> Option<&mut Command> {
        self.begun.get_mut(slot.index()).filter(|command| command.flags & LIVE != 0)
    }

    /// The waiting responses leave.
    pub(crate) fn on_rung(&mut self, now_ns: u64, pdus: u32, doorbell: &DoorbellCounters) {
        self.rung_ns = now_ns;
        if self.keeps_rings {
            let before = self.rings_before.rings.iter().zip(&doorbell.rings);
            let changed = Reason::ALL.into_iter().zip(before).find(|(_, (before, after))| before != after);
            let reason = changed.map(|(reason, _)| reason);
            if self.rings.len() < RING_COUNT_MAX {
                self.rings.push(Rung { at_ns: now_ns, pdus, reason });
            } else {
                self.lost_rings = self.lost_rings.saturating_add(1);
            }
        }
        self.rings_before = *doorbell;
        if self.leaving.commands.is_empty() {
            std::mem::swap(&mut self.waiting, &mut self.leaving);
        } else {
            for ended in std::mem::take(&mut self.waiting).commands {
                self.leaving.push(ended);
            }
        }
    }

    /// The socket has taken the responses that were leaving.
    pub(crate) fn on_taken(&mut self, now_ns: u64) {
        let longest_ns = self.leaving.oldest_ns.map_or(0, |oldest_ns| now_ns.saturating_sub(oldest_ns));
        if longest_ns >= self.keeps_ns || self.leaving.has_sampled {
            let (rung_ns, keeps_ns) = (self.rung_ns, self.keeps_ns);
            let is_kept = |ended: &&Ended| {
                ended.command.is_sampled() || now_ns.saturating_sub(ended.command.arrived_ns) >= keeps_ns
            };
            let kept = self.leaving.commands.iter().filter(is_kept);
            self.finished.extend(kept.map(|&Ended { command, ended_ns, status }| Finished {
                command,
                status,
                ended_ns,
                rung_ns,
                taken_ns: now_ns,
            }));
        }
        self.leaving.clear();
    }

    /// A command whose response waits in the target or in front of a full socket since `before_ns` or earlier, and was not
    /// logged yet.
    pub(crate) fn unsent_since(&mut self, before_ns: u64) -> Option<Command> {
        let groups = [&mut self.leaving, &mut self.waiting];
        let late = groups
            .into_iter()
            .filter(|group| group.oldest_ns.is_some_and(|oldest_ns| oldest_ns <= before_ns));
        let mut late = late.flat_map(|group| &mut group.commands);
        let command = &mut late
            .find(|ended| ended.command.arrived_ns <= before_ns && ended.command.flags & TOLD == 0)?
            .command;
        command.flags |= TOLD;
        Some(*command)
    }

    /// Whether the reactor has something to take.
    pub(crate) fn has_kept(&self) -> bool {
        !self.finished.is_empty() || !self.rings.is_empty()
    }

    /// What was kept.
    pub(crate) fn take_finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.finished)
    }

    /// The doorbells that were rung, and the number of those that were not kept.
    pub(crate) fn take_rings(&mut self) -> (Vec<Rung>, u64) {
        (std::mem::take(&mut self.rings), std::mem::take(&mut self.lost_rings))
    }

    /// Releases memory: no command executes.
    pub(crate) fn shrink(&mut self) {
        self.begun = Vec::new();
        if self.leaving.commands.is_empty() && self.waiting.commands.is_empty() {
            (self.leaving, self.waiting) = (Group::default(), Group::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use wire::id::Nsid;

    use super::*;

    const MS: u64 = 1_000_000;

    fn slot(number: u16) -> Slot {
        Slot::new(number)
    }

    fn rung(record: &mut LaneRecord, now_ns: u64) {
        record.on_rung(now_ns, 1, &DoorbellCounters::default());
    }

    #[test]
    fn a_slow_command_is_kept_with_the_time_of_each_phase() {
        let mut record = LaneRecord::new(10 * MS, false, DoorbellCounters::default());
        let sqe = Sqe::flush(Nsid::new(7));
        // The first one is sampled, too.
        for cid in 0..2 {
            assert_eq!(record.begin_ns(100 * MS, || 101 * MS), 101 * MS);
            record.begin(slot(cid), cid, &sqe, 100 * MS, 101 * MS);
        }
        assert!(!record.go_on(slot(1), 1, 101 * MS, 101 * MS), "it waits for nothing");
        record.await_limit(slot(1));
        assert!(!record.go_on(slot(1), 2, 101 * MS, 101 * MS), "another command");
        assert!(record.go_on(slot(1), 1, 102 * MS, 102 * MS));
        record.await_data(slot(1));
        assert!(record.go_on(slot(1), 1, 104 * MS, 105 * MS));
        record.end_later(slot(0), Status::SUCCESS, 102 * MS, || 103 * MS);
        record.end_later(slot(1), Status::WRITE_FAULT, 112 * MS, || {
            unreachable!("it has the time of its turn")
        });
        rung(&mut record, 114 * MS);
        assert!(!record.has_kept(), "the socket has not taken them");
        record.on_taken(119 * MS);
        let finished = record.take_finished();
        assert_eq!(finished.len(), 2);
        let phases = PhaseTimes {
            socket_ns: 2 * MS,
            limit_ns: MS,
            data_ns: 2 * MS,
            storage_ns: 7 * MS,
            doorbell_ns: 2 * MS,
            send_ns: 5 * MS,
        };
        assert_eq!((finished[1].phases(), finished[1].total_ns()), (phases, 19 * MS));
        assert_eq!((finished[1].command.cid, finished[1].command.nsid), (1, 7));
        assert_eq!((finished[1].status, finished[1].command.is_sampled()), (Status::WRITE_FAULT, false));
        assert!(!record.has_kept());
    }

    #[test]
    fn commands_below_the_threshold_are_dropped_one_by_one() {
        let mut record = LaneRecord::new(10 * MS, false, DoorbellCounters::default());
        let sqe = Sqe::flush(Nsid::new(1));
        for (cid, arrived_ns) in [(0, 0), (1, MS), (2, 9 * MS)] {
            record.begin(slot(cid), cid, &sqe, arrived_ns, arrived_ns);
            record.end_now(slot(cid), Status::SUCCESS, || arrived_ns);
        }
        rung(&mut record, 9 * MS);
        record.on_taken(11 * MS);
        let kept: Vec<u16> = record.take_finished().iter().map(|finished| finished.command.cid).collect();
        assert_eq!(kept, [0, 1]);
        // A response that joined a later caravan is not sent with this one.
        record.begin(slot(3), 3, &sqe, 20 * MS, 20 * MS);
        record.end_now(slot(3), Status::SUCCESS, || 21 * MS);
        record.on_taken(50 * MS);
        assert!(!record.has_kept());
        rung(&mut record, 51 * MS);
        record.on_taken(52 * MS);
        assert_eq!(record.take_finished().first().map(Finished::total_ns), Some(32 * MS));
    }

    #[test]
    fn commands_that_end_as_they_begin_follow_each_other() {
        let mut record = LaneRecord::new(0, false, DoorbellCounters::default());
        let sqe = Sqe::flush(Nsid::new(1));
        for (cid, clock_ns) in [(0, 15), (1, 27)] {
            let begun_ns = record.begin_ns(10, || 12);
            record.begin(slot(cid), cid, &sqe, 10, begun_ns);
            record.end_now(slot(cid), Status::SUCCESS, || clock_ns);
        }
        rung(&mut record, 30);
        record.on_taken(30);
        let times: Vec<_> =
            record.take_finished().iter().map(|finished| finished.phases().storage_ns).collect();
        assert_eq!(times, [3, 12]);
    }

    #[test]
    fn a_command_is_told_once_while_it_is_under_way_and_none_that_is_gone() {
        let mut record = LaneRecord::new(10 * MS, false, DoorbellCounters::default());
        let sqe = Sqe::flush(Nsid::new(1));
        record.adopt(slot(4), 9, &sqe, 0);
        assert!(record.live(slot(4)).is_some_and(|command| command.is_older() && command.is_told_first()));
        assert!(record.live(slot(4)).is_some_and(|command| !command.is_told_first()));
        record.begin(slot(5), 10, &sqe, 0, 0);
        record.forget(slot(5));
        assert!(record.live(slot(5)).is_none() && record.live(slot(6)).is_none());
        record.begin(slot(6), 11, &sqe, MS, MS);
        record.end_now(slot(6), Status::SUCCESS, || MS);
        assert!(record.unsent_since(0).is_none(), "it is younger");
        rung(&mut record, 2 * MS);
        assert_eq!(record.unsent_since(MS).map(|command| command.cid), Some(11));
        assert!(record.unsent_since(MS).is_none(), "it was told");
    }
}
