//! The pairs that a namespace of keys and values may hold.
//!
//! Every answer must be explained by an order of the commands on its key, in which each takes effect at one moment
//! between its beginning and its end. All such orders are kept as *configurations*: a state of the key, and the
//! commands that have taken effect in it and are not answered yet. An answer leaves those that explain it:
//!
//! ```text
//! begin ─▶ pending ──end: each order of pending commands that ends with this one and its answer──▶ configurations
//!             ├─lose──▶ pending until it is ruled out, or the target is down
//!             └─deny──▶ without those in which it took effect
//! crash ─▶ what any order of pending commands leaves; unless answers wait for the log, also what was there before
//! ```

mod history;
mod operation;
mod pair;

use std::collections::BTreeMap;
use std::rc::Rc;

use history::History;
pub(crate) use history::{Finding, Origin};
pub(crate) use operation::{Vector, VectorWork};
use pair::Command;
pub(crate) use pair::{Action, Answer, Asked, Mode};

use crate::key_names::{Collision, collision};
use crate::pair_settings::{MemoryPressure, PairDurability, PairSettings};
use crate::scenario::SECOND;

/// The effect that the end of a process or of the power has on pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crash {
    Kill,
    PowerCut,
}

/// All keys.
pub(crate) struct PairModel {
    keys: Vec<History>,
    names: Vec<Rc<str>>,
    colliding_count: usize,
    durability: PairDurability,
    pub(crate) next_id: u64,
    lacks_space: bool,
    /// Since when the log has certainly failed: commands that begin later are refused.
    pub(crate) closed_since_ns: Option<u64>,
    /// Error lines with which a memcached command that ends now may be refused.
    pub(crate) refusals: &'static [&'static str],
    /// Changes that were answered.
    pub(crate) acknowledged_count: u64,
    /// For how long the target's machine was suspended, s.
    pub(crate) suspended_s: i64,
    /// Where pairs are evicted: the keys that surely have a pinned pair, since when and until when at least, ns.
    pins: Option<BTreeMap<usize, (u64, u64)>>,
}

impl PairModel {
    pub(crate) fn new(settings: &PairSettings) -> Self {
        let history = || History::new(settings);
        Self {
            keys: std::iter::repeat_with(history).take(settings.key_count).collect(),
            names: settings.key_names(),
            colliding_count: settings.colliding_count,
            durability: settings.durability,
            next_id: 1,
            lacks_space: false,
            closed_since_ns: None,
            refusals: &[],
            acknowledged_count: 0,
            suspended_s: 0,
            pins: (settings.pressure == MemoryPressure::Evicts).then(BTreeMap::new),
        }
    }

    /// The time by which pairs expire, s.
    fn time_s(&self, now_ns: u64) -> i64 {
        (now_ns / SECOND).cast_signed() + self.suspended_s
    }

    /// The name of a key.
    pub(crate) fn name(&self, key: usize) -> Rc<str> {
        Rc::clone(&self.names[key])
    }

    /// The key with this name.
    pub(crate) fn named(&self, name: &[u8]) -> Option<usize> {
        self.names.iter().position(|known| known.as_bytes() == name)
    }

    /// The intended collision of a key with others.
    pub(crate) fn collision(&self, key: usize) -> Option<Collision> {
        collision(key, self.colliding_count)
    }

    /// Whether one more command on this key can be judged.
    pub(crate) fn has_room(&self, key: usize) -> bool {
        self.keys[key].has_room()
    }

    /// Whether the log may have had no space for a command.
    pub(crate) fn may_lack_space(&self, key: usize, id: u64) -> bool {
        self.keys[key].may_lack_space(id)
    }

    /// The log has no space, or may still have none, or has some.
    pub(crate) fn set_lacks_space(&mut self, lacks_space: bool) {
        if lacks_space || self.lacks_space {
            self.lacks_space = lacks_space;
            self.keys.iter_mut().for_each(|key| key.set_lacks_space(lacks_space));
        }
    }

    /// A command is sent.
    pub(crate) fn begin(&mut self, key: usize, action: Action, origin: Origin, now_ns: u64) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        if action.changes()
            && let Some(pins) = &mut self.pins
        {
            pins.remove(&key);
        }
        let command = Command { id, action, begin_s: self.time_s(now_ns), begin_ns: now_ns, step_s: 0 };
        self.keys[key].begin(command, origin);
        id
    }

    /// A command is answered.
    pub(crate) fn end(&mut self, key: usize, id: u64, answer: &Answer, now_ns: u64) -> Result<(), Finding> {
        let now_s = self.time_s(now_ns);
        let begin_ns = self.keys[key].begin_ns(id);
        if let Some(since_ns) = self.closed_since_ns
            && begin_ns.is_some_and(|begin_ns| begin_ns > since_ns)
        {
            return Err(format!(
                "key {key}: {id} is answered with {answer:?}, and the log has failed before"
            ));
        }
        if let (Some(begin_ns), Answer::Missing) = (begin_ns, answer)
            && let Some((since_ns, until_ns)) = self.pins.as_ref().and_then(|pins| pins.get(&key))
            && (since_ns..until_ns).contains(&&begin_ns)
            && now_ns < *until_ns
        {
            return Err(format!("key {key}: {id} finds no pair, which is pinned since {since_ns} ns"));
        }
        self.acknowledged_count += u64::from(self.keys[key].is_change(id) && answer.reports_change());
        self.keys[key].end(id, answer, now_s, now_ns).map_err(|finding| format!("key {key}: {finding}"))
    }

    /// A pair was pinned.
    pub(crate) fn pin(&mut self, key: usize, now_ns: u64, until_ns: u64) {
        if let Some(pins) = &mut self.pins
            && self.keys[key].stays()
        {
            pins.insert(key, (now_ns, until_ns));
        }
    }

    /// Leases may end early from now on: the memory changes, or time.
    pub(crate) fn forget_pins(&mut self) {
        self.pins = None;
    }

    /// It was not executed, and will not be.
    pub(crate) fn deny(&mut self, key: usize, id: u64) -> Result<(), Finding> {
        self.keys[key].deny(id).map_err(|finding| format!("key {key}: {finding}"))
    }

    /// It may take effect without those that were sent before it.
    pub(crate) fn unorder(&mut self, key: usize, id: u64) {
        self.keys[key].unorder(id);
    }

    /// No answer will come: it may take effect at any time, or never.
    pub(crate) fn lose(&mut self, key: usize, id: u64, now_ns: u64) {
        self.keys[key].lose(id, now_ns);
    }

    /// Commands that were lost before this moment have taken effect by now, or never will.
    pub(crate) fn rule_out(&mut self, before_ns: u64, now_ns: u64) {
        let now_s = self.time_s(now_ns);
        self.keys.iter_mut().for_each(|key| key.rule_out(before_ns, now_s));
    }

    /// Everything that was answered before `begin_ns` is durable.
    pub(crate) fn settle(&mut self, begin_ns: u64) {
        self.keys.iter_mut().for_each(|key| key.settle(begin_ns));
    }

    /// The log has been idle since `begin_ns`: all changes from before are in the kernel, and durable unless writes to
    /// the log are not.
    pub(crate) fn on_idle_log(&mut self, begin_ns: u64) {
        match self.durability {
            PairDurability::Batch | PairDurability::Always => self.settle(begin_ns),
            PairDurability::None => self.keys.iter_mut().for_each(|key| key.settle_process(begin_ns)),
            PairDurability::Memory => {}
        }
    }

    /// The target is down.
    pub(crate) fn on_crash(&mut self, crash: Crash, now_ns: u64) {
        let now_s = self.time_s(now_ns);
        let durability = self.durability;
        self.pins.iter_mut().for_each(BTreeMap::clear);
        self.keys.iter_mut().for_each(|key| key.on_crash(durability, crash, now_s));
    }

    /// The wall clock was set by this step: an absolute time of a command that is out may be converted before or after.
    pub(crate) fn on_wall_set(&mut self, step_s: u64) {
        self.keys.iter_mut().for_each(|key| key.on_wall_set(step_s.cast_signed()));
    }

    /// The wall clock was set while the target read a log of an earlier boot: the step counts as time that has passed.
    pub(crate) fn on_wall_set_in_recovery(&mut self) {
        self.keys.iter_mut().for_each(History::on_wall_set_in_recovery);
    }

    /// The target starts again after the power went at `cut_ns`: its wall clock shows how long ago that was, if it is
    /// right.
    pub(crate) fn on_boot(&mut self, cut_ns: u64, now_ns: u64, is_wall_right: bool) {
        let (cut_s, now_s) = (self.time_s(cut_ns), self.time_s(now_ns));
        self.keys.iter_mut().for_each(|key| key.on_boot(cut_s, now_s, is_wall_right));
    }

    /// All commands that are pending and were not lost: for a report.
    pub(crate) fn pending(&self) -> BTreeMap<usize, usize> {
        let counts = self.keys.iter().enumerate().map(|(key, history)| (key, history.pending_count()));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}

/// A value that names the command that brings it.
pub(crate) fn value(id: u64, length: usize) -> Rc<[u8]> {
    let name = format!("{id:x}:");
    let filler = (0..).map(|at: usize| b'g' + ((at * 7 + id as usize * 13) % 17) as u8);
    name.bytes().chain(filler).take(length).collect()
}
