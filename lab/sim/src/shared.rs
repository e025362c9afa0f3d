//! The common part of the simulated world: time, chance, and the next events.

pub(crate) mod clocks;
pub(crate) mod disk;
pub(crate) mod network;
pub(crate) mod tls_view;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::coverage::{Coverage, Point};
use crate::random::Random;
use crate::scenario::{MS, SECOND, Scenario, US};
use crate::timeline::About;
use crate::tls_keys::TlsKeys;
use crate::trace::Trace;
use clocks::Clocks;
use disk::{Disk, LOG_OPERATIONS, separate_disks};
use network::Network;

/// An actor that runs on events: a reactor, an association's thread, a lane's thread.
pub(crate) type Actor = usize;

/// Which end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Host,
    Target,
}

impl Side {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Host => Self::Target,
            Self::Target => Self::Host,
        }
    }
}

/// A power cut takes whole sectors of the log, bytes.
const SECTOR_BYTES: usize = 512;

/// A delay below this share of a command's timeout does not make it time out.
const SLOW_SHARE: u64 = 64;

/// Maximum age of the time by which a thread acts, ns.
pub(crate) const CLOCK_AGE_NS_MAX: u64 = 5 * MS;

/// How long after the end of a fault a host may be without an association: timeouts, delays between attempts, and a
/// Connect that waits for the host's previous lanes.
pub(crate) const RECOVERY_NS: u64 = 25 * SECOND;

/// Something that happens at its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// Bytes, or the end, arrive at this end.
    Arrival(usize, Side),
    /// There is room again for what this end sends.
    Room(usize, Side),
    /// A connection reaches the target.
    Accept(usize),
    /// A connection stands, or was refused, for its host.
    Dialled(usize),
    /// A disk operation does its next part.
    DiskPart(u64),
    DiskEnd(u64),
    /// The next fault of the list.
    Fault(usize),
    /// The target starts again.
    Start,
    /// A process that starts, a second one or not, tries to lock its storage until then.
    Lock {
        until_ns: u64,
        is_rival: bool,
    },
    /// The process that serves is killed, for one that waits.
    Oust,
    /// The operator reopens the namespace.
    Reopen,
    /// The operator sees that the disk is stuck.
    Rescue,
    /// The operator sees that the log of the key-value namespace has failed.
    Restart,
    /// The operator reopens a namespace of the host with separate queues.
    ReopenFile(usize),
    /// The operator makes the namespace longer again.
    Grow(u64),
    /// The operator adds the second namespace again.
    Return,
    /// The operator allows the second host again.
    Admit,
    /// The operator gives all hosts every right to the second namespace again.
    Restore,
    /// The first machine has its address again.
    FallBack,
    /// An end has received all of a record in which a bit is wrong.
    Damaged(usize, Side),
    /// It must have closed the connection.
    Overdue(usize, Side),
}

/// The common part of the world.
pub(crate) struct Shared {
    pub(crate) scenario: Scenario,
    pub(crate) random: Random,
    pub(crate) now_ns: u64,
    pub(crate) trace: Trace,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    event_count: u64,
    /// When each actor runs next, ns.
    pub(crate) wakes: Vec<u64>,
    stalled_until_ns: Vec<u64>,
    /// Draws how late each actor runs.
    delays: Vec<Random>,
    pub(crate) network: Network,
    pub(crate) tls_keys: TlsKeys,
    /// Of the first namespace.
    pub(crate) disk: Disk,
    /// Of the key-value namespace.
    pub(crate) log_disk: Disk,
    /// Of the namespaces of the host with separate queues, one each.
    pub(crate) separate_disks: Vec<Disk>,
    /// Of the target's machine.
    pub(crate) clocks: Clocks,
    /// The points that the run has reached.
    pub(crate) coverage: Coverage,
    /// When the target last started.
    pub(crate) started_ns: u64,
    /// Since when the second host is not allowed.
    pub(crate) barred_since_ns: Option<u64>,
    /// Faults that come by chance still do.
    pub(crate) is_hostile: bool,
    /// Draws calls of the target that its kernel refuses.
    refusals: Random,
    /// Faults that may have made commands slow, of the host that has this thread or of all, and until when, ns.
    slowed: BTreeMap<(&'static str, Option<Actor>), u64>,
    /// Other faults that have cost hosts a connection, the one that has this thread or all, and until when, ns.
    lost: BTreeMap<(&'static str, Option<Actor>), u64>,
    pub(crate) findings: Vec<String>,
}

impl Shared {
    pub(crate) fn new(scenario: Scenario, actor_count: usize, is_traced: bool) -> Self {
        let (block_bytes, block_count) =
            (scenario.first.block_bytes as usize, scenario.first.block_count as usize);
        let disk = Disk::new(block_bytes, block_count, scenario.disk_count(), scenario.disk, 0);
        let log_blocks = scenario.pairs.as_ref().map_or(0, |pairs| pairs.file_bytes() / SECTOR_BYTES);
        let log_settings = scenario.disk.without_errors();
        let log_disk = Disk::new(SECTOR_BYTES, log_blocks, 1, log_settings, LOG_OPERATIONS);
        let separate_disks = scenario.separate.iter().flat_map(separate_disks).collect();
        Self {
            random: Random::new(scenario.chance, 2),
            now_ns: 0,
            trace: Trace::new(is_traced),
            events: BinaryHeap::new(),
            event_count: 0,
            wakes: vec![u64::MAX; actor_count],
            stalled_until_ns: vec![0; actor_count],
            delays: (0..actor_count as u64).map(|actor| Random::of(scenario.chance, 20, &[actor])).collect(),
            network: Network::default(),
            tls_keys: TlsKeys::default(),
            disk,
            log_disk,
            separate_disks,
            clocks: Clocks::new(),
            coverage: Coverage::default(),
            started_ns: 0,
            barred_since_ns: None,
            is_hostile: true,
            refusals: Random::new(scenario.chance, 26),
            slowed: BTreeMap::new(),
            lost: BTreeMap::new(),
            findings: Vec::new(),
            scenario,
        }
    }

    /// Schedules an event.
    pub(crate) fn at(&mut self, at_ns: u64, event: Event) {
        self.event_count += 1;
        self.events.push(Reverse((at_ns.max(self.now_ns), self.event_count, event)));
    }

    /// When the next event is.
    pub(crate) fn next_event_ns(&self) -> u64 {
        self.events.peek().map_or(u64::MAX, |Reverse((at_ns, ..))| *at_ns)
    }

    pub(crate) fn pop_event(&mut self) -> Option<Event> {
        self.events.pop().map(|Reverse((.., event))| event)
    }

    /// Something takes this much longer than usual, and is over at this time.
    pub(crate) fn slow_until(&mut self, what: &'static str, longer_ns: u64, until_ns: u64) {
        self.slow(what, None, longer_ns, until_ns);
    }

    /// As above, for an actor: all hosts if it is a reactor, else its host.
    pub(crate) fn slow_actor_until(
        &mut self,
        what: &'static str,
        actor: Actor,
        longer_ns: u64,
        until_ns: u64,
    ) {
        let of_host = (actor >= usize::from(self.scenario.target.reactor_count)).then_some(actor);
        self.slow(what, of_host, longer_ns, until_ns);
    }

    fn slow(&mut self, what: &'static str, of_host: Option<Actor>, longer_ns: u64, until_ns: u64) {
        if longer_ns >= self.scenario.hosts.command_timeout_ns / SLOW_SHARE {
            let known_ns = self.slowed.entry((what, of_host)).or_default();
            *known_ns = until_ns.max(*known_ns);
        }
    }

    /// A fault that has made things slow at this time or later, for all hosts or for one with such a thread.
    pub(crate) fn slowed_since(
        &self,
        since_ns: u64,
        is_concerned: impl Fn(Actor) -> bool,
    ) -> Option<&'static str> {
        self.slowed.iter().find_map(|((what, of_host), until_ns)| {
            (*until_ns >= since_ns && of_host.is_none_or(&is_concerned)).then_some(*what)
        })
    }

    /// Whether the kernel of the target's machine refuses a call: one for each `rarity` of the calls that it refuses
    /// most.
    pub(crate) fn refuses(&mut self, call: &'static str, rarity: u32) -> bool {
        let is_refused = self.is_hostile && self.refusals.happens(self.scenario.target.refusals / rarity);
        if is_refused {
            self.reach_event(call);
        }
        is_refused
    }

    /// A connection of an actor's host is lost, or not accepted.
    pub(crate) fn lose(&mut self, what: &'static str, actor: Actor) {
        self.lost.insert((what, Some(actor)), self.now_ns);
    }

    /// Connections of any host may be lost, or not be accepted, until this time.
    pub(crate) fn lose_any_until(&mut self, what: &'static str, until_ns: u64) {
        let known_ns = self.lost.entry((what, None)).or_default();
        *known_ns = until_ns.max(*known_ns);
    }

    /// A fault that may explain a lost connection of a host with such threads at this time or later.
    pub(crate) fn lost_since(
        &self,
        since_ns: u64,
        is_concerned: impl Fn(Actor) -> bool,
    ) -> Option<&'static str> {
        let mut lost = self.lost.iter();
        let lost =
            lost.find(|((_, of_host), until_ns)| **until_ns >= since_ns && of_host.is_none_or(&is_concerned));
        lost.map(|((what, _), _)| *what).or_else(|| self.slowed_since(since_ns, is_concerned))
    }

    /// Runs an actor soon: as soon as its thread gets the processor.
    pub(crate) fn wake(&mut self, actor: Actor) {
        let random = &mut self.delays[actor];
        let mut delay_ns = random.between(1, 5 * US);
        let late_ns = if random.happens(self.scenario.target.late) {
            random.below(self.scenario.target.late_ns)
        } else {
            0
        };
        delay_ns += late_ns;
        self.slow_actor_until("late thread", actor, late_ns, self.now_ns + delay_ns);
        self.wake_at(actor, self.now_ns + delay_ns);
    }

    /// Age of the time by which a thread of the target acts that runs now, ns: its delay since it read the clock.
    pub(crate) fn clock_age_ns(&mut self, actor: Actor) -> u64 {
        if !self.scenario.target.has_old_clocks || !self.is_hostile {
            return 0;
        }
        let random = &mut self.delays[actor];
        if random.one_in(8) { random.below(CLOCK_AGE_NS_MAX) } else { 0 }
    }

    /// Runs an actor at a time, if it does not run before.
    pub(crate) fn wake_at(&mut self, actor: Actor, at_ns: u64) {
        self.wakes[actor] = self.wakes[actor].min(at_ns.max(self.now_ns).max(self.stalled_until_ns[actor]));
    }

    /// Whether an actor does not run for now.
    pub(crate) fn is_stalled(&self, actor: Actor) -> bool {
        self.stalled_until_ns[actor] > self.now_ns
    }

    /// An actor does not run before some time.
    pub(crate) fn stall(&mut self, actor: Actor, ns: u64) {
        let until_ns = self.now_ns + ns;
        self.slow_actor_until("thread that stops", actor, ns, until_ns);
        self.stalled_until_ns[actor] = self.stalled_until_ns[actor].max(until_ns);
        if self.wakes[actor] != u64::MAX {
            self.wakes[actor] = self.wakes[actor].max(until_ns);
        }
    }

    pub(crate) fn say(&mut self, line: impl FnOnce() -> String) {
        self.tell(About::World, line);
    }

    /// Records an event: where, a colon, and what.
    pub(crate) fn tell(&mut self, about: About, line: impl FnOnce() -> String) {
        self.trace.tell(self.now_ns, about, line);
    }

    /// Something has happened to the world.
    pub(crate) fn reach_event(&mut self, event: &'static str) {
        self.coverage.reach(Point::Event(event));
    }

    pub(crate) fn find(&mut self, finding: impl Into<String>) {
        let finding = finding.into();
        self.say(|| format!("found: {finding}"));
        self.findings.push(finding);
    }
}
