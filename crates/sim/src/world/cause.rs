//! Why a command did not succeed: each status and failure needs something that was injected, or that follows from the
//! history.

use host::Failure;
use wire::status::Status;

use super::World;
use super::command::{Command, Kind};
use super::log_failure::log_may_have_failed;
use super::pairs::{PairCommand, Pairs, no_space_until_ns, slow_ns};
use crate::coverage::Point;
use crate::finding::Finding;
use crate::pair_settings::PairDurability;
use crate::scenario::SECOND;
use crate::shared::disk::Trouble;
use crate::shared::network::Connection;

/// The cause of what an error filter of the second namespace has failed.
pub(super) const FILTERED: &str = "failed by a filter";

/// A log is read within so long after its target has started, ns, on a disk that is not slow.
const READ_NS: u64 = 10 * SECOND;

impl World {
    /// Why a command may have ended so.
    ///
    /// # Errors
    /// Nothing explains it.
    pub(super) fn cause(
        &mut self,
        number: u64,
        command: &Command,
        failure: Failure,
    ) -> Result<&'static str, Finding> {
        let now_ns = self.shared.now_ns;
        let Command { host, lane, begin_ns, .. } = *command;
        let has_waited = now_ns - begin_ns >= self.shared.scenario.command_timeout_ns;
        let has_waited = has_waited && self.slowness(begin_ns).is_some();
        let has_lost = self.hosts[host].lanes[lane].loss_count > command.loss_count;
        let cause = match failure {
            Failure::Interrupted if has_lost => Some("connection lost"),
            Failure::Interrupted if self.may_be_partly_deallocated(command) => Some("held after a part"),
            Failure::TimedOut if has_waited => self.timed_out(begin_ns),
            // It may have ended before one that covers the loss, and come after it.
            Failure::Unflushed if self.hosts[host].loss_count > command.covered_losses => {
                Some("the first after a reconnect")
            }
            Failure::Unflushed if self.hosts[host].is_shut_out => Some("host is not allowed"),
            Failure::Cancelled if self.cancelled.contains(&number) => Some("cancelled"),
            Failure::Unreachable if self.hosts[host].is_shut_out => Some("host is not allowed"),
            Failure::Status(status) | Failure::GaveUp { status, .. } => {
                let was_stopped = self.cancelled.contains(&number) || has_waited;
                let is_half = status.is(Status::ABORTED_MISSING_FUSED);
                if (status.is(Status::ABORT_REQUESTED) || is_half) && was_stopped {
                    Some("aborted")
                } else if status.is(Status::ANA_PERSISTENT_LOSS) && self.met_second_machine(host, begin_ns) {
                    Some("other storage answers")
                } else {
                    let is_all = matches!(command.kind, Kind::FlushAll);
                    let has_first = is_all || command.lba < self.shared.scenario.block_count;
                    let first = if has_first { self.cause_in_first(command, status) } else { None };
                    let has_second = is_all || !has_first;
                    let cause = first
                        .or_else(|| if has_second { self.cause_in_second(command, status) } else { None });
                    // A host repeats it, unless it has stopped.
                    let of_pairs = self.shared.scenario.pairs.as_ref();
                    let has_log = of_pairs.is_some_and(|pairs| pairs.durability != PairDurability::Memory);
                    let is_patient = self.shared.scenario.path_timeout_ns > 0;
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
        let is_cancelled = self.cancelled.contains(&number);
        let PairCommand { host, lane, begin_ns, .. } = *command;
        let scenario = &self.shared.scenario;
        let has_waited = self.shared.now_ns - begin_ns >= scenario.command_timeout_ns;
        let has_waited = has_waited && self.slowness(begin_ns).is_some();
        let host_of = &self.hosts[host];
        match failure {
            Failure::Interrupted => {
                (host_of.lanes[lane].loss_count > command.loss_count).then_some("connection lost")
            }
            Failure::TimedOut if has_waited => self.timed_out(begin_ns),
            Failure::Unflushed if host_of.loss_count > command.covered_losses => {
                Some("the first after a reconnect")
            }
            Failure::Cancelled => is_cancelled.then_some("cancelled"),
            Failure::Unflushed | Failure::Unreachable => host_of.is_shut_out.then_some("host is not allowed"),
            Failure::Status(status) | Failure::GaveUp { status, .. } => {
                if status.is(Status::ABORT_REQUESTED) && (has_waited || is_cancelled) {
                    return Some("aborted");
                }
                if status.is(Status::ANA_PERSISTENT_LOSS) && self.met_second_machine(host, begin_ns) {
                    return Some("other storage answers");
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
                    || scenario.path_timeout_ns == 0
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

    /// What has made a command slow that began at this time, if anything has: a fault since, or the run's own network
    /// and disk, which may be slower than its timeouts.
    fn slowness(&self, begin_ns: u64) -> Option<&'static str> {
        let scenario = &self.shared.scenario;
        let timeout_ns = scenario.command_timeout_ns;
        let own = || {
            if self.shared.disk.is_stuck() {
                Some("operation that hangs")
            } else if 2 * scenario.transfers_ns_max() >= timeout_ns {
                Some("narrow network")
            } else if 2 * scenario.disk_ns_max() >= timeout_ns {
                Some("busy disk")
            } else if scenario.second.as_deref().is_some_and(|spec| spec.contains("unreachable")) {
                Some("command held for its path")
            } else {
                None
            }
        };
        self.shared.slowed_since(begin_ns).or_else(own)
    }

    /// The cause of a timeout.
    fn timed_out(&mut self, begin_ns: u64) -> Option<&'static str> {
        let what = self.slowness(begin_ns)?;
        self.shared.coverage.reach(Point::TimedOut(what));
        Some("timed out")
    }

    /// Whether the target may have been reading its logs since this time.
    fn may_be_reading(&self, begin_ns: u64) -> bool {
        let read_until_ns = self.shared.started_ns + READ_NS + 4 * self.shared.scenario.order_ns_max();
        read_until_ns + slow_ns(&self.shared) >= begin_ns
    }

    /// Whether a bit was wrong on a connection of the command's host since it began.
    fn was_damaged(&self, command: &Command) -> bool {
        let host = &self.hosts[command.host];
        let is_it = |connection: &Connection| {
            host.owns(connection.dialler)
                && connection.damaged_ns.is_some_and(|at_ns| at_ns >= command.begin_ns)
        };
        self.shared.network.connections.iter().rev().any(is_it)
    }

    /// Whether some ranges of a command that the host holds may have been deallocated, and another one was unreachable.
    fn may_be_partly_deallocated(&self, command: &Command) -> bool {
        let spec = self.shared.scenario.second.as_deref().unwrap_or_default();
        matches!(command.kind, Kind::Deallocate { .. }) && spec.contains("unreachable")
    }

    /// What may happen in any namespace.
    fn cause_of_any(&self, number: u64, command: &Command, failure: Failure) -> Option<&'static str> {
        let status = failure.status()?;
        match &command.kind {
            Kind::Compare { .. } | Kind::PairCompare if status.is(Status::COMPARE_FAILURE) => {
                Some("blocks differ, or may")
            }
            Kind::PairCompare | Kind::PairWrite { .. } if status.is(Status::ABORTED_FAILED_FUSED) => {
                let other = if matches!(command.kind, Kind::PairCompare) { number + 1 } else { number - 1 };
                let has_failed = self.commands.contains_key(&other) || self.failed_halves.contains(&other);
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

    /// What may happen in the first namespace.
    fn cause_in_first(&self, command: &Command, status: Status) -> Option<&'static str> {
        let (begin_ns, disk) = (command.begin_ns, &self.shared.disk);
        let order_ns = self.shared.scenario.order_ns_max();
        let had = |trouble| disk.had_trouble(trouble, begin_ns, |blocks| command.touches(&blocks));
        let flush_failed = |trouble| disk.had_trouble(trouble, begin_ns, |blocks| blocks.is_empty());
        let was_short =
            self.short_until_ns.is_some_and(|until_ns| until_ns.saturating_add(order_ns) >= begin_ns);
        let was_closed =
            self.closed_until_ns.is_some_and(|until_ns| until_ns.saturating_add(order_ns) >= begin_ns);
        let is_flush = matches!(command.kind, Kind::Flush | Kind::FlushAll);
        let has_flushed = flush_failed(Trouble::Sync) || flush_failed(Trouble::Passing);
        if status.is(Status::UNRECOVERED_READ_ERROR) {
            if had(Trouble::Read) || had(Trouble::Passing) {
                return Some("read failed");
            }
            return was_short.then_some("namespace was cut");
        }
        if status.is(Status::WRITE_FAULT) {
            if is_flush && has_flushed {
                return Some("flush failed");
            }
            let of_blocks = had(Trouble::Write) || had(Trouble::Passing);
            if !is_flush && (of_blocks || command.kind.is_durable() && has_flushed) {
                return Some("write failed");
            }
            if is_flush && self.closed_until_ns.is_some() {
                return Some("the first after a reopening");
            }
            return was_short.then_some("namespace was cut");
        }
        if status.is(Status::CAPACITY_EXCEEDED) {
            return had(Trouble::NoSpace).then_some("no space");
        }
        if status.is(Status::NAMESPACE_NOT_READY) {
            return was_closed.then_some("namespace is closed");
        }
        if status.is(Status::LBA_OUT_OF_RANGE) {
            return was_short.then_some("namespace was cut");
        }
        None
    }

    /// What may happen in the second one: by its filters, or because it is removed.
    fn cause_in_second(&self, command: &Command, status: Status) -> Option<&'static str> {
        let spec = self.shared.scenario.second.as_deref().unwrap_or_default();
        let [reads, writes, flushes] = command.kind.requests();
        if status.is(Status::UNRECOVERED_READ_ERROR) {
            return (reads && spec.contains("error=read:1/")).then_some(FILTERED);
        }
        if status.is(Status::WRITE_FAULT) {
            return (writes && spec.contains("error=write:1/")).then_some(FILTERED);
        }
        if status.is(Status::INTERNAL_PATH_ERROR) {
            let unreachable = spec.split('&').find(|filter| filter.contains("as=unreachable"))?;
            let is_met = match unreachable.strip_prefix("error=").and_then(|rest| rest.split_once(':')) {
                Some(("read", _)) => reads,
                Some(("write", _)) => writes,
                Some(("flush", _)) => flushes,
                _ => true,
            };
            return is_met.then_some("unreachable by a filter");
        }
        if status.is(Status::INVALID_NAMESPACE) || status.is(Status::NAMESPACE_NOT_READY) {
            return self.second_state.was_missing(command.begin_ns).then_some("namespace was removed");
        }
        None
    }
}
