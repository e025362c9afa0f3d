//! The cause of a command's failure: each status and failure needs a fault that was injected, or that follows from the
//! history.

use host_core::Failure;
use store::Kind as RequestKind;
use subsystem::access::Right;
use wire::status::Status;

use super::World;
use super::command::{Command, Kind};
use super::log_failure::log_may_have_failed;
use super::pairs::{PairCommand, Pairs, no_space_until_ns, slow_ns};
use crate::coverage::Point;
use crate::finding::Finding;
use crate::pair_settings::PairDurability;
use crate::scenario::SECOND;
use crate::shared::RECOVERY_NS;
use crate::shared::disk::Trouble;
use crate::shared::network::Connection;

/// A lane without a queue for less than this share of a command's timeout does not make it time out.
const DOWN_SHARE: u64 = 4;

/// Number of transfers of a command whose data is damaged each time: a host repeats it five times.
const REPEATED: u64 = 6;

/// Maximum time in which a log is read after its target has started, ns, on a disk that is not slow.
const READ_NS: u64 = 10 * SECOND;

/// A command that has taken long.
struct Slow {
    host: usize,
    lane: usize,
    begin_ns: u64,
    /// Its host may have held it until its namespace can be reached.
    is_held: bool,
    is_cancelled: bool,
}

impl World {
    /// The cause of a command's end.
    pub(super) fn cause(
        &mut self,
        number: u64,
        command: &Command,
        failure: Failure,
    ) -> Result<&'static str, Finding> {
        let now_ns = self.shared.now_ns;
        let Command { host, lane, begin_ns, .. } = *command;
        let is_cancelled = self.commands.cancelled.contains(&number);
        let slow = Slow { host, lane, begin_ns, is_held: self.may_be_held(command), is_cancelled };
        let has_waited = now_ns - begin_ns >= self.shared.scenario.hosts.command_timeout_ns;
        let has_waited = has_waited && self.slowness(&slow).is_some();
        let has_lost = self.hosts[host].lanes[lane].loss_count > command.loss_count;
        let cause = match failure {
            Failure::Interrupted if has_lost => Some("connection lost"),
            Failure::Interrupted if self.may_be_partly_deallocated(command) => Some("held after a part"),
            Failure::TimedOut if has_waited => self.timed_out(&slow),
            // It may have ended before one that covers the loss, and come after it.
            Failure::Unflushed if self.hosts[host].loss_count > command.covered_losses => {
                Some("the first after a reconnect")
            }
            Failure::Unflushed if self.hosts[host].is_shut_out => Some("host is not allowed"),
            Failure::Cancelled if self.commands.cancelled.contains(&number) => Some("cancelled"),
            Failure::Replaced if self.met_second_machine(host, begin_ns) => Some("other storage answers"),
            Failure::Unreachable if self.hosts[host].is_shut_out => Some("host is not allowed"),
            Failure::Status(status) | Failure::GaveUp { status, .. } => {
                let was_stopped = self.commands.cancelled.contains(&number) || has_waited;
                let is_half = status.is(Status::ABORTED_MISSING_FUSED);
                if (status.is(Status::ABORT_REQUESTED) || is_half) && was_stopped {
                    Some("aborted")
                } else {
                    let is_all = matches!(command.kind, Kind::FlushAll);
                    let has_first = is_all || command.lba < self.shared.scenario.first.block_count;
                    let first = if has_first { self.cause_in_first(command, status) } else { None };
                    let has_second = is_all || !has_first;
                    let cause = first
                        .or_else(|| if has_second { self.cause_in_second(command, status) } else { None });
                    // A host repeats it, unless it has stopped.
                    let of_pairs = self.shared.scenario.pairs.as_ref();
                    let has_log = of_pairs.is_some_and(|pairs| pairs.durability != PairDurability::Memory);
                    let is_patient = self.shared.scenario.hosts.path_timeout_ns > 0;
                    let has_stopped = was_stopped || !is_patient || matches!(failure, Failure::GaveUp { .. });
                    let may_be_read = is_all && has_log && has_stopped && self.may_be_reading(begin_ns);
                    let no_space_until_ns = no_space_until_ns(&self.shared);
                    let lacks_space = no_space_until_ns.is_some_and(|until_ns| command.begin_ns < until_ns);
                    let is_of_log = is_all && status.is(Status::KV_UNRECOVERED_ERROR);
                    let has_failed = is_of_log && log_may_have_failed(&self.shared, begin_ns);
                    let cause = cause.or_else(|| has_failed.then_some("the log has failed"));
                    let cause = cause.or_else(|| {
                        // A log that is opened writes first.
                        let [full, opened] = [Status::CAPACITY_EXCEEDED, Status::NAMESPACE_NOT_READY];
                        let is_it = is_all && lacks_space && (status.is(full) || status.is(opened));
                        is_it.then_some("no space for the log")
                    });
                    cause.or_else(|| {
                        (may_be_read && status.is(Status::NAMESPACE_NOT_READY))
                            .then_some("a log is being read")
                    })
                }
            }
            _ => None,
        };
        let cause = cause.or_else(|| self.cause_of_any(number, command, failure));
        cause.ok_or_else(|| format!("{:?} ended with {failure:?}, which nothing explains", command.kind))
    }

    /// Why a key-value command may have ended with a failure that is no answer about its key.
    pub(super) fn cause_on_pairs(
        &mut self,
        number: u64,
        command: &PairCommand,
        failure: Failure,
    ) -> Option<&'static str> {
        let is_cancelled = self.commands.cancelled.contains(&number);
        let PairCommand { host, lane, begin_ns, .. } = *command;
        let scenario = &self.shared.scenario;
        let slow = Slow { host, lane, begin_ns, is_held: false, is_cancelled };
        let has_waited = self.shared.now_ns - begin_ns >= scenario.hosts.command_timeout_ns;
        let has_waited = has_waited && self.slowness(&slow).is_some();
        let host_of = &self.hosts[host];
        match failure {
            Failure::Interrupted => {
                (host_of.lanes[lane].loss_count > command.loss_count).then_some("connection lost")
            }
            Failure::TimedOut if has_waited => self.timed_out(&slow),
            Failure::Unflushed if host_of.loss_count > command.covered_losses => {
                Some("the first after a reconnect")
            }
            Failure::Cancelled => is_cancelled.then_some("cancelled"),
            Failure::Replaced => self.met_second_machine(host, begin_ns).then_some("other storage answers"),
            Failure::Unflushed | Failure::Unreachable => host_of.is_shut_out.then_some("host is not allowed"),
            Failure::Status(status) | Failure::GaveUp { status, .. } => {
                if status.is(Status::ABORT_REQUESTED) && (has_waited || is_cancelled) {
                    return Some("aborted");
                }
                if status.is(Status::TRANSIENT_TRANSPORT_ERROR) {
                    return self.was_lane_damaged(host, lane, begin_ns).then_some("data damaged on the way");
                }
                let durability = scenario.pairs.as_ref().map(|pairs| pairs.durability);
                if durability.is_none_or(|durability| durability == PairDurability::Memory) {
                    return None;
                }
                if status.is(Status::KV_UNRECOVERED_ERROR) {
                    return log_may_have_failed(&self.shared, begin_ns).then_some("the log has failed");
                }
                let closed_since_ns = self.pairs.as_ref().and_then(Pairs::closed_since_ns);
                if closed_since_ns.is_some_and(|since_ns| begin_ns > since_ns) {
                    return None;
                }
                // A host repeats it, unless it has stopped.
                let is_final = matches!(failure, Failure::GaveUp { .. })
                    || scenario.hosts.path_timeout_ns == 0
                    || is_cancelled;
                let lacks_space = no_space_until_ns(&self.shared).is_some_and(|until_ns| begin_ns < until_ns);
                if lacks_space
                    && (status.is(Status::CAPACITY_EXCEEDED) || status.is(Status::NAMESPACE_NOT_READY))
                {
                    return Some("no space");
                }
                let may_be_read = (is_final || has_waited) && self.may_be_reading(begin_ns);
                (status.is(Status::NAMESPACE_NOT_READY) && may_be_read).then_some("a log is being read")
            }
            _ => None,
        }
    }

    /// The cause of a command's delay, if there is one: a fault that concerns it; a lane that had no queue, since a
    /// fault; or the run's own network and disk, which may be slower than its timeouts.
    fn slowness(&self, slow: &Slow) -> Option<&'static str> {
        let Slow { host, lane, begin_ns, is_held, is_cancelled } = *slow;
        let (scenario, of_host) = (&self.shared.scenario, &self.hosts[host]);
        let connections = &self.shared.network.connections;
        // Commands of one host wait for another one's if these have the last buffers, or the lock of a pair.
        let waits_for_others = scenario.can_use_up_the_pool()
            || scenario.hosts.depth > 1 && scenario.load.mix.compare_and_write > 0;
        let timeout_ns = scenario.hosts.command_timeout_ns;
        let own = || {
            let actor = of_host.lanes[lane].actor;
            let is_silent = |connection: &Connection| {
                connection.dialler == actor && connection.was_silent_since(begin_ns)
            };
            let is_vain = |connection: &Connection| connection.was_served_in_vain(begin_ns);
            let is_damaged = |connection: &Connection| {
                connection.dialler == actor && connection.damaged_ns.is_some_and(|at_ns| at_ns >= begin_ns)
            };
            // Its Abort goes over the queue of the association.
            let is_mute = |connection: &Connection| {
                is_cancelled && connection.dialler == of_host.actor && connection.was_silent_since(begin_ns)
            };
            // It ends with the command's timeout at the latest.
            let is_longer = |connection: &Connection| {
                let until_ns = connection.damaged_ns.map_or(0, |at_ns| at_ns + 2 * timeout_ns);
                connection.dialler == actor && connection.tls.has_damaged_length && until_ns >= begin_ns
            };
            if connections.iter().any(is_silent) {
                Some("silent connection")
            } else if connections.iter().any(is_mute) {
                Some("silent connection of the association")
            } else if connections.iter().any(is_longer) {
                Some("record of TLS with another length")
            } else if waits_for_others && connections.iter().any(is_vain) {
                Some("silent connection of another host")
            } else if self.shared.disk.is_stuck() {
                Some("operation that hangs")
            } else if 2 * scenario.wait_ns_max(0) >= timeout_ns {
                Some("narrow network")
            } else if connections.iter().any(is_damaged)
                && 2 * REPEATED * scenario.wait_ns_max(0) >= timeout_ns
            {
                Some("damaged data on a narrow network")
            } else if 2 * scenario.disk_ns_max() >= timeout_ns {
                Some("busy disk")
            } else if 2 * scenario.second_ns_max() >= timeout_ns {
                Some("slow second namespace")
            } else if is_held {
                Some("command held for its path")
            } else {
                None
            }
        };
        let lost = || {
            let lost_ns = begin_ns.saturating_sub(RECOVERY_NS);
            let down_ns = of_host.down_ns(lane, begin_ns, self.shared.now_ns);
            let was_down = down_ns >= timeout_ns / DOWN_SHARE;
            was_down.then(|| self.shared.lost_since(lost_ns, |actor| of_host.owns(actor))).flatten()
        };
        let is_concerned = |actor| waits_for_others || of_host.owns(actor);
        self.shared.slowed_since(begin_ns, is_concerned).or_else(lost).or_else(own)
    }

    /// The cause of a timeout.
    fn timed_out(&mut self, slow: &Slow) -> Option<&'static str> {
        let what = self.slowness(slow)?;
        self.shared.coverage.reach(Point::TimedOut(what));
        Some("timed out")
    }

    /// Whether a command on blocks may be held until its namespace can be reached.
    fn may_be_held(&self, command: &Command) -> bool {
        let is_in_second =
            command.lba >= self.shared.scenario.first.block_count || matches!(command.kind, Kind::FlushAll);
        is_in_second && self.second.filters.may_fail(&command.kind, Status::INTERNAL_PATH_ERROR)
    }

    /// Whether the target may have been reading its logs since this time.
    pub(super) fn may_be_reading(&self, begin_ns: u64) -> bool {
        let read_until_ns = self.shared.started_ns + READ_NS + 4 * self.shared.scenario.order_ns_max();
        read_until_ns + slow_ns(&self.shared) >= begin_ns
    }

    /// Whether a bit was wrong on a connection of the command's lane since it began.
    pub(super) fn was_damaged(&self, command: &Command) -> bool {
        self.was_lane_damaged(command.host, command.lane, command.begin_ns)
    }

    /// Whether a bit was wrong on a connection of a lane at this time or later.
    fn was_lane_damaged(&self, host: usize, lane: usize, since_ns: u64) -> bool {
        let lane = self.hosts[host].lanes[lane].actor;
        let is_it = |connection: &Connection| {
            connection.dialler == lane && connection.damaged_ns.is_some_and(|at_ns| at_ns >= since_ns)
        };
        self.shared.network.connections.iter().rev().any(is_it)
    }

    /// Whether some ranges of a command that the host holds may have been deallocated, and another one was unreachable.
    pub(super) fn may_be_partly_deallocated(&self, command: &Command) -> bool {
        matches!(command.kind, Kind::Deallocate { .. }) && self.may_be_held(command)
    }

    /// Failures that may happen in any namespace.
    fn cause_of_any(&self, number: u64, command: &Command, failure: Failure) -> Option<&'static str> {
        let status = failure.status()?;
        match &command.kind {
            Kind::Compare { .. } | Kind::PairCompare if status.is(Status::COMPARE_FAILURE) => {
                Some("blocks differ, or may")
            }
            Kind::PairCompare | Kind::PairWrite { .. } if status.is(Status::ABORTED_FAILED_FUSED) => {
                let other = if matches!(command.kind, Kind::PairCompare) { number + 1 } else { number - 1 };
                let has_failed =
                    self.commands.out.contains_key(&other) || self.commands.failed_halves.contains(&other);
                has_failed.then_some("the other half failed")
            }
            // The pair holds its data, and the pool has no third buffer.
            Kind::PairCompare if status.is(Status::COMMAND_INTERRUPTED) => {
                self.shared.scenario.can_use_up_the_pool().then_some("no buffer")
            }
            // Of a pair one half, or the data of one.
            _ if [
                Status::TRANSIENT_TRANSPORT_ERROR,
                Status::ABORTED_MISSING_FUSED,
                Status::ABORTED_FAILED_FUSED,
            ]
            .into_iter()
            .any(|damaged| status.is(damaged)) =>
            {
                self.was_damaged(command).then_some("data damaged on the way")
            }
            _ => None,
        }
    }

    /// Whether the first namespace was closed at this time or later.
    pub(super) fn was_closed_since(&self, begin_ns: u64) -> bool {
        let order_ns = self.shared.scenario.order_ns_max();
        self.first.was_closed_since(begin_ns.saturating_sub(order_ns))
    }

    /// Failures that may happen in the first namespace.
    fn cause_in_first(&mut self, command: &Command, status: Status) -> Option<&'static str> {
        let (begin_ns, disk) = (command.begin_ns, &self.shared.disk);
        let order_ns = self.shared.scenario.order_ns_max();
        let had = |trouble| disk.had_trouble(trouble, begin_ns, |blocks| command.touches(&blocks));
        let flush_failed = |trouble| disk.had_trouble(trouble, begin_ns, |blocks| blocks.is_empty());
        let was_short = command
            .touches(&(self.first.shortest_block_count..self.shared.scenario.first.block_count))
            && self.first.was_short_since(begin_ns.saturating_sub(order_ns));
        let was_closed = self.was_closed_since(begin_ns);
        let is_flush = matches!(command.kind, Kind::Flush | Kind::FlushAll);
        let is_deallocation = matches!(command.kind, Kind::Deallocate { .. });
        let has_flushed = flush_failed(Trouble::Sync) || flush_failed(Trouble::Passing);
        let [reads, writes] =
            [RequestKind::Read, RequestKind::Write].map(|kind| command.kind.requests().contains(&kind));
        let writes = writes || command.kind.requests().contains(&RequestKind::WriteZeroes);
        if status.is(Status::UNRECOVERED_READ_ERROR) && reads {
            if had(Trouble::Read) || had(Trouble::Passing) {
                return Some("read failed");
            }
            return was_short.then_some("namespace was cut");
        }
        if status.is(Status::WRITE_FAULT) {
            if is_flush && has_flushed {
                return Some("flush failed");
            }
            let of_blocks = (writes || is_deallocation) && (had(Trouble::Write) || had(Trouble::Passing));
            if !is_flush && (of_blocks || command.kind.is_durable() && has_flushed) {
                return Some("write failed");
            }
            // The flushes of one association that are out then may fail, and none after them.
            let host = command.host;
            // The target may have answered that one before it was reopened once more.
            let (told_begin_ns, told_ns) = self.records[host].told_ns;
            let is_first = self.first.was_closed_since(told_begin_ns)
                || told_ns >= begin_ns
                // The lane of that one has ended: its host may not have received the answer.
                || self.shared.has_ended_since(host, told_begin_ns);
            if is_flush && self.first.was_closed_since(0) && is_first {
                self.records[host].told_ns = (begin_ns, self.shared.now_ns);
                return Some("the first after a reopening");
            }
            return was_short.then_some("namespace was cut");
        }
        if status.is(Status::CAPACITY_EXCEEDED) {
            return ((writes || is_deallocation) && had(Trouble::NoSpace)).then_some("no space");
        }
        if status.is(Status::NAMESPACE_NOT_READY) {
            return was_closed.then_some("namespace is closed");
        }
        if status.is(Status::LBA_OUT_OF_RANGE) {
            return was_short.then_some("namespace was cut");
        }
        None
    }

    /// Failures that may happen in the second one: by its filters, or because it is removed.
    fn cause_in_second(&self, command: &Command, status: Status) -> Option<&'static str> {
        if self.second.filters.may_fail(&command.kind, status) {
            let is_unreachable = status.is(Status::INTERNAL_PATH_ERROR);
            return Some(if is_unreachable { "unreachable by a filter" } else { "failed by a filter" });
        }
        let may_have_been =
            |right| self.second.rights.may_have_been(command.host, |held| held == right, command.begin_ns);
        if status.is(Status::NAMESPACE_WRITE_PROTECTED) && command.kind.changes_blocks() {
            return may_have_been(Right::Read).then_some("host may only read");
        }
        if status.is(Status::INVALID_NAMESPACE) && may_have_been(Right::None) {
            return Some("host does not see the namespace");
        }
        if status.is(Status::INVALID_NAMESPACE) || status.is(Status::NAMESPACE_NOT_READY) {
            return self.second.presence.was_missing(command.begin_ns).then_some("namespace was removed");
        }
        None
    }
}
