//! A key-value log whose disk fails: its namespace is closed until the operator starts the target again.

use super::World;
use crate::scenario::{MS, SECOND};
use crate::shared::disk::Trouble;
use crate::shared::{Event, Shared};

/// Maximum time until the operator starts the target again, ns.
const RESTART_NS_MAX: u64 = 5 * SECOND;

/// Maximum time until a client reads an answer, ns.
const LATE_ANSWER_NS: u64 = 30 * SECOND;

/// When the log failed under the target that serves: from then on nothing may be executed. A read that fails may concern
/// a single value.
pub(super) fn log_failed_ns(shared: &Shared) -> Option<u64> {
    let first = |trouble| shared.log_disk.first_trouble_ns(trouble, shared.started_ns);
    [Trouble::Write, Trouble::Sync].into_iter().filter_map(first).min()
}

/// Whether a command that began then may have met a log that has failed, or that has lost values.
pub(super) fn log_may_have_failed(shared: &Shared, begin_ns: u64) -> bool {
    let last = |trouble| shared.log_disk.last_trouble_ns(trouble);
    let last_ns = [Trouble::Read, Trouble::Write, Trouble::Sync].into_iter().filter_map(last).max();
    shared.log_disk.has_lost_blocks || last_ns.is_some_and(|at_ns| at_ns + RESTART_NS_MAX >= begin_ns)
}

/// The refusals that memcached clients may receive now.
pub(super) fn refusals(shared: &Shared) -> &'static [&'static str] {
    let was = |trouble| {
        let at_ns = shared.log_disk.last_trouble_ns(trouble);
        at_ns.is_some_and(|at_ns| at_ns + RESTART_NS_MAX + LATE_ANSWER_NS >= shared.now_ns)
    };
    const OF_VALUE: [&str; 1] = ["SERVER_ERROR the value cannot be read\r\n"];
    const OF_READ: [&str; 2] = ["SERVER_ERROR the log cannot be read\r\n", OF_VALUE[0]];
    // A file that a write or a flush has closed cannot be read either.
    const ALL: [&str; 3] = [OF_READ[0], OF_READ[1], "SERVER_ERROR the log cannot be written\r\n"];
    match (was(Trouble::Read), was(Trouble::Write) || was(Trouble::Sync)) {
        // A value of a block that is lost cannot be read until it is replaced.
        (false, false) if shared.log_disk.has_lost_blocks => &OF_VALUE,
        (false, false) => &[],
        (true, false) => &OF_READ,
        (_, true) => &ALL,
    }
}

impl World {
    /// After an operation of the disk: the operator sees that the log has failed, and starts the target again later.
    pub(super) fn watch_log(&mut self) {
        if std::mem::take(&mut self.shared.log_disk.has_failed)
            && !std::mem::replace(&mut self.operator.is_restarting, true)
        {
            let wait_ns = self.shared.random.scaled(MS, RESTART_NS_MAX);
            self.shared.at(self.shared.now_ns + wait_ns, Event::Restart);
        }
    }

    /// The operator starts the target again, unless that has happened.
    pub(super) fn restart(&mut self) {
        self.operator.is_restarting = false;
        let started_ns = self.shared.started_ns;
        let has_failed = |trouble| self.shared.log_disk.first_trouble_ns(trouble, started_ns).is_some();
        if ![Trouble::Read, Trouble::Write, Trouble::Sync].into_iter().any(has_failed) {
            return;
        }
        self.shared.reach_event("target restarted for its log");
        let scenario = &self.shared.scenario;
        let may_cut = !scenario.first.is_memory && !scenario.is_swift();
        let is_power_cut = may_cut && self.shared.random.one_in(2);
        let down_ns = self.shared.random.scaled(MS, SECOND);
        self.kill_target(is_power_cut, down_ns);
    }
}
