//! Processes that start on one storage: the lock lets one of them serve, and only once the writes of the previous one
//! have ended.
//!
//! ```text
//! starts ──lock is free──▶ serves
//!    └──lock is held for 5 s──▶ refused ──held by I/O of a dead process──▶ starts again
//! ```
//!
//! A rival is a second process that starts while the first serves. In a share of the runs the writes that a killed
//! process has given to the device go on without it, and in half of these a kill waits until there is such a write.

use super::{Stage, World};
use crate::scenario::{MS, SECOND, US};
use crate::shared::disk::LOG_FILE;
use crate::shared::{Event, Shared};

/// How long a target that starts waits for the lock of its storage, ns.
const LOCK_WAIT_NS: u64 = 5 * SECOND;

/// Time between two attempts, ns.
const LOCK_POLL_NS: u64 = 5 * MS;

/// How long the service manager waits before it starts a target again that could not start, ns.
const RESTART_NS: u64 = 100 * MS;

/// How long a kill waits for a write, and the time between two looks, ns.
const WRITE_WAIT_NS: u64 = 20 * MS;
const WRITE_POLL_NS: u64 = 20 * US;

/// Processes that wait: a rival for the lock of the storage, a kill for a write.
#[derive(Debug, Default)]
pub(super) struct Takeover {
    pub(super) is_rival_waiting: bool,
    /// Until when a kill waits.
    kill_waits_until_ns: Option<u64>,
}

impl Takeover {
    /// Whether a kill waits until a write is under way: it comes again soon.
    pub(super) fn waits_for_write(&mut self, shared: &mut Shared, is_target_up: bool, kill: Event) -> bool {
        let Shared { scenario, disk, log_disk, now_ns, .. } = shared;
        let now_ns = *now_ns;
        let is_wanted = scenario.target.kills_at_writes && is_target_up;
        if !is_wanted || disk.is_written() || log_disk.is_written() {
            self.kill_waits_until_ns = None;
            return false;
        }
        if now_ns >= *self.kill_waits_until_ns.get_or_insert(now_ns + WRITE_WAIT_NS) {
            self.kill_waits_until_ns = None;
            return false;
        }
        shared.at(now_ns + WRITE_POLL_NS, kill);
        true
    }
}

impl World {
    /// A process starts.
    pub(super) fn begin_process(&mut self, is_rival: bool) {
        let until_ns = self.shared.now_ns + LOCK_WAIT_NS;
        self.try_lock(until_ns, is_rival);
    }

    /// A process tries to lock its storage, and serves if it can.
    pub(super) fn try_lock(&mut self, until_ns: u64, is_rival: bool) {
        let now_ns = self.shared.now_ns;
        let is_served = self.target.is_up();
        if is_rival && (!self.target.machine.is_first() || self.progress.stage > Stage::Settle) {
            self.takeover.is_rival_waiting = false;
            return;
        }
        let disk = self.target.machine.disk();
        if !is_served && !self.is_storage_locked(disk) {
            let Shared { disk: blocks, log_disk, .. } = &self.shared;
            if blocks.is_written_by_dead(disk) || log_disk.is_written_by_dead(LOG_FILE) {
                return self.shared.find("a target can lock its storage, and writes of the last one go on");
            }
            if is_rival {
                self.takeover.is_rival_waiting = false;
                self.shared.reach_event("second target takes over");
            }
            return self.start_target();
        }
        if !is_served {
            self.shared.reach_event(match is_rival {
                true => "second target waits for writes of the first",
                false => "target waits for writes of the last one",
            });
        }
        if now_ns < until_ns {
            return self.shared.at(now_ns + LOCK_POLL_NS, Event::Lock { until_ns, is_rival });
        }
        self.shared.say(|| "a target that starts is refused: its storage is in use".into());
        if is_rival {
            self.takeover.is_rival_waiting = false;
        }
        if is_served {
            self.shared.reach_event("target refused: another one serves");
        } else {
            self.shared.reach_event("target refused: writes of the last one go on");
            if !is_rival {
                self.shared.at(now_ns + RESTART_NS, Event::Start);
            }
        }
    }

    /// Whether I/O of a process that is gone holds the lock of the storage that the next one opens.
    fn is_storage_locked(&self, disk: u64) -> bool {
        self.shared.disk.is_locked(disk) || self.shared.log_disk.is_locked(LOG_FILE)
    }

    /// A second process starts; the first is killed after a while, or not.
    pub(super) fn start_rival(&mut self, kills_after_ns: Option<u64>) {
        if self.progress.stage > Stage::Settle
            || !self.target.machine.is_first()
            || self.takeover.is_rival_waiting
        {
            return;
        }
        self.takeover.is_rival_waiting = true;
        self.begin_process(true);
        if let Some(ns) = kills_after_ns {
            self.shared.at(self.shared.now_ns + ns, Event::Oust);
        }
    }

    /// The process that serves is killed, for one that waits.
    pub(super) fn oust(&mut self) {
        if self.takeover.is_rival_waiting && self.progress.stage <= Stage::Settle {
            let down_ns = self.shared.random.scaled(MS, 20 * SECOND);
            self.kill_target(false, down_ns);
        }
    }
}
