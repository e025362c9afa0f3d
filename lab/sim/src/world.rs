//! The whole of one run: a target, its hosts and their users, and their events.

mod admission;
mod batches;
mod cause;
mod closes;
mod command;
mod commands;
mod configuration;
mod expiry;
mod faults;
mod filters;
mod first_namespace;
mod forgotten;
mod going_back;
mod grains;
mod host_record;
mod judge;
mod late;
mod lists;
mod log_failure;
pub(crate) mod machines;
mod must_fail;
mod open_value;
mod operator;
mod pair_command;
mod pairs;
mod progress;
mod rates;
mod second_namespace;
mod separate;
mod submit;
mod takeover;
mod target;
mod tls;
mod user;
mod values;

use std::sync::Arc;
use std::sync::mpsc::channel;

use linux::random::SplitMix64;
use linux::randomness::Randomness;
use reactor::File;
use store::{MemorySettings, MemoryStore, Store};
use subsystem::MEMCACHED;
use subsystem::audit::Recorder;
use subsystem::control::ControlSettings;
use subsystem::memcached_trust::MemcachedTrust;
use subsystem::message::{ControlMessage, Message, Order, OrderKind, Step};
use subsystem::subsystem::Access;
use wire::id::Nsid;
use wire::nqn::Nqn;

use crate::authentication::authentication;
use crate::host::{Host, SUBSYSTEM};
use crate::leaver::Leaver;
use crate::model::Model;
use crate::offer::{Offer, SERVICE};
use crate::random::Random;
use crate::reactor_io::SimReactor;
use crate::scenario::{Fault, MS, SECOND, Scenario};
use crate::scout::Scout;
use crate::separate::{Files, SeparateHost};
use crate::shared::{Actor, Event, Shared};

use admission::Crowd;
use commands::Commands;
use faults::FaultQueue;
use first_namespace::FirstNamespace;
use going_back::Signs;
use host_record::HostRecord;
use late::LateWindows;
use machines::Machine;
use operator::OperatorState;
use pairs::Pairs;
use progress::Progress;
pub(crate) use progress::Stage;
use second_namespace::SecondNamespace;
use takeover::Takeover;
use target::Target;
use user::User;

/// Maximum time in which commands are submitted, and things go wrong, ns.
const WORK_NS_MAX: u64 = 60 * SECOND;

/// Maximum time to the end of everything once nothing goes wrong any more, ns.
const SETTLE_NS_MAX: u64 = 300 * SECOND;

/// How long after a new target may start the device ends the last write of a killed one at the latest, ns.
const HELD_NS_MAX: u64 = 8 * SECOND;

/// One run.
pub(crate) struct World {
    pub(crate) shared: Shared,
    pub(crate) hosts: Vec<Host>,
    /// What judges remember of each host.
    records: Vec<HostRecord>,
    /// By host and lane.
    users: Vec<Vec<User>>,
    /// Draws the actions of the user whose turn it is.
    choice: Random,
    /// Hosts of the discovery service.
    scouts: Vec<Host>,
    /// A host that comes and goes.
    pub(crate) leaver: Option<Leaver>,
    /// A host with separate queues, and its namespaces.
    separate: Option<(SeparateHost, Files)>,
    crowd: Crowd,
    pub(crate) commands: Commands,
    pub(crate) model: Model,
    progress: Progress,
    faults: FaultQueue,
    target: Target,
    takeover: Takeover,
    operator: OperatorState,
    offer: Offer,
    first: FirstNamespace,
    second: SecondNamespace,
    /// The key-value namespace, if there is one.
    pairs: Option<Pairs>,
    late: LateWindows,
    rates: rates::Passed,
    signs: Signs,
}

fn store(scenario: &Scenario, file: File, block_count: u64) -> Store {
    if scenario.first.is_memory {
        let settings = MemorySettings {
            bytes: block_count * u64::from(scenario.first.block_bytes),
            block_bytes: scenario.first.block_bytes,
            is_read_only: false,
            is_shared: scenario.target.reactor_count > 1,
            huge_pages: false,
            page_bytes: scenario.first.page_bytes,
        };
        return Store::Blocks(Arc::new(MemoryStore::new(&settings).expect("a little memory")));
    }
    machines::disk_store(scenario, file, block_count)
}

impl World {
    pub(crate) fn new(scenario: Scenario, is_traced: bool) -> Self {
        let reactor_count = usize::from(scenario.target.reactor_count);
        let per_host = 1 + usize::from(scenario.hosts.lane_count);
        let first_scout = reactor_count + scenario.hosts.count * per_host;
        let leaver_actor = first_scout + scenario.hosts.scout_count;
        let leaver = scenario.hosts.has_leaver.then(|| Leaver::new(&scenario, leaver_actor));
        let first_client = leaver_actor + usize::from(scenario.hosts.has_leaver);
        let client_count = scenario.pairs.as_ref().map_or(0, |pairs| pairs.client_count);
        // Peers that only open connections have the last one.
        let separate_actor = first_client + client_count;
        let separate = scenario
            .separate
            .as_ref()
            .map(|settings| (SeparateHost::new(&scenario, settings, separate_actor), Files::new(settings)));
        let crowd_actor = separate_actor + usize::from(separate.is_some());
        let actor_count = crowd_actor + 1;
        let pairs = scenario.pairs.clone().map(|pairs| Pairs::new(pairs, scenario.seed, first_client));
        let host = |index| Host::new(&scenario, index, reactor_count + index * per_host);
        let hosts: Vec<Host> = (0..scenario.hosts.count).map(host).collect();
        let scout = |index| Host::scout(&scenario, index, first_scout + index);
        let scouts = (0..scenario.hosts.scout_count).map(scout).collect();
        let main = SUBSYSTEM.parse().expect("a name");
        let offer =
            Offer::new(scenario.seed, scenario.hosts.scout_count, main, Access::Any, scenario.security.tls);
        let mut world = Self {
            model: Model::new(scenario.all_block_count(), scenario.hosts.is_replayed),
            records: vec![HostRecord::default(); scenario.hosts.count],
            users: user::users(&scenario),
            choice: Random::new(scenario.seed, 3),
            crowd: Crowd::new(crowd_actor),
            commands: Commands::new(),
            progress: Progress::new(),
            faults: FaultQueue::default(),
            target: Target::default(),
            takeover: Takeover::default(),
            operator: OperatorState::new(scenario.target.limits),
            first: FirstNamespace::new(
                store(&scenario, File::simulated(0), scenario.first.block_count),
                scenario.first.block_count,
            ),
            second: SecondNamespace::new(&scenario),
            late: LateWindows::default(),
            rates: rates::Passed::default(),
            signs: Signs::default(),
            shared: Shared::new(scenario, actor_count, is_traced),
            hosts,
            scouts,
            leaver,
            separate,
            offer,
            pairs,
        };
        let scenario = is_traced.then(|| format!("scenario: {:?}", world.shared.scenario));
        world.shared.say(|| scenario.unwrap_or_default());
        world.start_target();
        for actor in reactor_count..crowd_actor {
            world.shared.wake(actor);
        }
        world
    }

    /// Runs to the end, or to the first finding.
    pub(crate) fn run(&mut self) {
        while self.progress.stage != Stage::Over && self.shared.findings.is_empty() {
            self.step();
        }
    }

    /// The next event, or the next turn of a thread.
    pub(crate) fn step(&mut self) {
        if !self.progress.count_event(self.commands.ended_count) {
            return self.shared.find("it goes on and on: more events than make sense");
        }
        let event_ns = self.shared.next_event_ns();
        let wake_ns = self.shared.wakes.iter().copied().min().unwrap_or(u64::MAX);
        let next_ns = event_ns.min(wake_ns);
        if next_ns == u64::MAX {
            let left = self.left();
            return self.shared.find(format!("nothing will ever happen again; {left}"));
        }
        self.shared.now_ns = self.shared.now_ns.max(next_ns);
        if self.progress.stage == Stage::Work && self.shared.now_ns > WORK_NS_MAX {
            self.enter(Stage::Settle);
        }
        if self.progress.stage != Stage::Work && self.shared.now_ns > self.progress.since_ns + SETTLE_NS_MAX {
            let left = self.left();
            return self.shared.find(format!("nothing goes wrong any more, and yet it does not end; {left}"));
        }
        if event_ns <= wake_ns {
            if let Some(event) = self.shared.pop_event() {
                self.on_event(event);
            }
        } else if let Some(actor) = self.shared.wakes.iter().position(|at_ns| *at_ns == wake_ns) {
            self.shared.wakes[actor] = u64::MAX;
            self.run_actor(actor);
        }
        self.advance();
    }

    fn left(&self) -> String {
        let commands: Vec<_> = self.commands.out.iter().take(4).collect();
        let lanes: Vec<_> = self.hosts.iter().map(Host::outstanding).collect();
        let disk = self.shared.disk.running_count();
        format!(
            "{:?}: {} commands are left {commands:?}, lanes {lanes:?}, disk {disk}, discovery log {}, pairs {}; {}",
            self.progress.stage,
            self.commands.out.len(),
            if self.is_offer_known() { "known" } else { "not known" },
            self.pairs.as_ref().map_or(String::new(), Pairs::left),
            self.separate.as_ref().map_or(String::new(), |(host, _)| host.left())
        )
    }

    fn on_event(&mut self, event: Event) {
        let now_ns = self.shared.now_ns;
        self.shared.trace.note(now_ns, event_number(event));
        match event {
            Event::Arrival(id, side) => self.shared.on_arrival(id, side),
            Event::Room(id, side) => self.shared.on_room(id, side),
            Event::Accept(id) => {
                if self.shared.on_accept(id)
                    && let Some(home) = self.target.reactors.first_mut()
                {
                    home.accept(id);
                    self.shared.wake(0);
                }
            }
            Event::Dialled(id) => {
                if let Some(owner) = self.shared.connection(id).owners[0] {
                    self.shared.wake(owner);
                }
            }
            Event::DiskPart(number) => self.shared.on_disk_part(number),
            Event::DiskEnd(number) => {
                if let Some((actor, completion)) = self.shared.on_disk_end(number)
                    && let Some(reactor) = self.target.reactors.get_mut(actor)
                {
                    reactor.complete(completion);
                    self.shared.wake(actor);
                }
                if std::mem::take(&mut self.shared.disk.has_failed_sync) {
                    let associations: Vec<u32> = self.hosts.iter().map(|host| host.up_count).collect();
                    self.model.excuse_all(now_ns, &associations);
                    self.reopen_later();
                }
                self.watch_log();
                self.look_at_files();
            }
            Event::Fault(at) => {
                let (_, fault) = self.shared.scenario.faults[at];
                if fault.is_of_operator() && self.is_operator_busy() {
                    return self.shared.at(now_ns + configuration::AGAIN_NS, event);
                }
                if matches!(fault, Fault::Kill { .. })
                    && self.takeover.waits_for_write(&mut self.shared, self.target.is_up(), event)
                {
                    return;
                }
                self.shared.random = self.chance_of_fault(at);
                self.on_fault(fault);
            }
            Event::Start => self.begin_process(false),
            Event::Lock { until_ns, is_rival } => self.try_lock(until_ns, is_rival),
            Event::Oust => {
                if !self.takeover.waits_for_write(&mut self.shared, self.target.is_up(), event) {
                    self.oust();
                }
            }
            Event::Reopen => {
                self.first.on_reopened(now_ns);
                self.model.on_reopened();
                self.shared.reach_event("namespace reopened");
                self.shared.say(|| "the namespace is reopened".into());
                self.shared.disk.forgive();
                if let Err(error) = self.first.store.reopen() {
                    self.shared.find(format!("cannot reopen: {error}"));
                }
            }
            Event::ReopenFile(number) => {
                if let Some((_, files)) = &mut self.separate {
                    files.reopen(&mut self.shared, number);
                }
            }
            Event::Rescue => self.rescue(),
            Event::Restart => self.restart(),
            Event::Grow(block_count) => self.grow(block_count),
            Event::Return | Event::Restore | Event::Admit if self.is_operator_busy() => {
                self.shared.at(now_ns + configuration::AGAIN_NS, event);
            }
            Event::Return => self.return_second(),
            Event::Restore => self.restore_rights(),
            Event::FallBack => self.fall_back(),
            Event::Damaged(id, side) => self.on_damaged(id, side),
            Event::Overdue(id, side) => self.judge_damaged(id, side),
            Event::Admit => {
                self.shared.barred_since_ns = None;
                self.late.barred = None;
                self.set_access();
            }
        }
    }

    /// The operator reopens the namespace after a while.
    fn reopen_later(&mut self) {
        if self.first.on_failed(self.shared.now_ns) {
            let wait_ns = self.shared.random.scaled(MS, 2 * SECOND);
            self.shared.at(self.shared.now_ns + wait_ns, Event::Reopen);
        }
    }

    fn run_actor(&mut self, actor: Actor) {
        self.shared.trace.note(self.shared.now_ns, 1000 + actor as u64);
        if self.crowd.run(&mut self.shared, actor) || self.run_separate(actor) || self.run_client(actor) {
            return;
        }
        let reactor_count = usize::from(self.shared.scenario.target.reactor_count);
        if actor < reactor_count {
            if let Some(reactor) = self.target.reactors.get_mut(actor) {
                reactor.turn(&mut self.shared, &mut self.target.outbox);
                // Also where no flush of the disk has failed: a durable write of several parts that stops before its
                // flush.
                if self.first.store.generation().is_closed() {
                    self.reopen_later();
                }
                self.look_at_files();
            }
            self.signs.check(&self.target.reactors, &mut self.shared);
            self.judge_admission();
            self.judge_closes();
            self.note_expiries();
            self.pull_cables();
            if self.operator.poll_releases() {
                self.second.presence.on_released(self.shared.now_ns);
            }
            self.target.dispatch(&mut self.shared);
            if std::mem::take(&mut self.shared.disk.has_stuck) {
                self.rescue_later();
            }
            return;
        }
        let per_host = 1 + usize::from(self.shared.scenario.hosts.lane_count);
        let (index, part) = ((actor - reactor_count) / per_host, (actor - reactor_count) % per_host);
        if index >= self.hosts.len() {
            let scout = actor - reactor_count - self.hosts.len() * per_host;
            return match &mut self.leaver {
                Some(leaver) if scout == self.scouts.len() => leaver.run(&mut self.shared),
                _ => self.run_scout(scout),
            };
        }
        if part > 0 {
            self.run_user(index, part - 1);
            // One that knows no storage would take that of the second machine for its own, rightly.
            if self.hosts[index].has_gone() && self.target.machine.is_first() {
                // No flush covers the earlier writes of its lanes any more.
                self.model.excuse_host(index);
                self.shared.say(|| format!("host {index} begins anew"));
                self.hosts[index].renew(&mut self.shared);
                self.records[index].covered_losses = 0;
                self.shared.reach_event("host not allowed begins anew");
            }
            return;
        }
        let (up_count, known_count) = (self.hosts[index].up_count, self.hosts[index].known_count);
        self.hosts[index].run_association(&mut self.shared);
        if self.hosts[index].up_count > up_count {
            self.on_up(index);
        }
        if self.hosts[index].known_count > known_count {
            self.judge_grains(index);
        }
    }

    /// A host of the discovery service runs.
    fn run_scout(&mut self, index: usize) {
        self.scouts[index].run_association(&mut self.shared);
        let readings = self.scouts[index].scout.as_mut().map(|scout| std::mem::take(&mut scout.readings));
        for reading in readings.into_iter().flatten() {
            self.commands.ended_count += 1;
            if let Err(finding) = self.offer.judge(index, &reading) {
                self.shared.find(finding);
            }
        }
    }

    /// Whether the hosts of the discovery service know the present offer.
    fn is_offer_known(&self) -> bool {
        let knows = |(index, host): (usize, &Host)| {
            host.scout.as_ref().is_some_and(Scout::is_at_rest) && self.offer.is_known(index)
        };
        self.scouts.iter().enumerate().all(knows)
    }

    /// A host has a new association.
    fn on_up(&mut self, index: usize) {
        let now_ns = self.shared.now_ns;
        if std::mem::take(&mut self.records[index].was_limited) {
            self.shared.reach_event("host comes back that was refused for a limit");
        }
        let doubtful = std::mem::take(&mut self.records[index].doubtful);
        if self.shared.scenario.is_prompt {
            // The target has learned of the end of the old one before, and has waited for all of it.
            for (lba, command) in doubtful {
                self.model.close_write(lba, command, now_ns);
            }
        } else {
            self.await_late_writes(index, doubtful);
        }
        if self.shared.scenario.security.authentication.is_some() {
            self.shared.reach_event("host and target authenticate each other");
        }
        self.shared.reach_event(if self.hosts[index].up_count > 1 {
            "association up again"
        } else {
            "association up"
        });
        for lane in &self.hosts[index].lanes {
            let actor = lane.actor;
            self.shared.wake(actor);
        }
    }

    fn start_target(&mut self) {
        let scenario = self.shared.scenario.clone();
        if !scenario.first.is_memory {
            if self.target.machine.is_first() {
                self.first.store = store(&scenario, self.shared.disk.open(0), self.first.block_count);
            }
            self.shared.disk.forgive();
        }
        self.target.start_count += 1;
        if self.target.start_count > 1 {
            self.shared.slow_until("target down", u64::MAX, self.shared.now_ns);
        }
        self.shared.started_ns = self.shared.now_ns;
        self.first.on_target_start(self.shared.now_ns);
        self.model.on_reopened();
        let settings = ControlSettings {
            limits: self.operator.limits,
            reactor_count: scenario.target.reactor_count,
            discovery_nqn: SERVICE.parse().expect("a name"),
            entropy: scenario.seed ^ self.target.start_count << 32,
            randomness: Randomness::Simulated(SplitMix64::new(scenario.seed ^ self.target.start_count << 48)),
            now_ns: self.shared.now_ns,
            wall_ns: self.shared.clocks.unix_ns(self.shared.now_ns),
            audit: Recorder::default(),
        };
        if let Machine::Second { since_ns } = &mut self.target.machine {
            *since_ns = Some(self.shared.now_ns);
        }
        let namespace = self.first_namespace();
        let mut steps = self.start_operator();
        let subsystem: Nqn = SUBSYSTEM.parse().expect("a name");
        if let Some(authentication) = authentication(&scenario) {
            let (subsystem, authentication) = (subsystem.clone(), Arc::new(authentication));
            steps.push(Step::SetAuthentication { subsystem, authentication, overlap_ms: 0 });
        }
        steps.push(Step::AddNamespace { subsystem, nsid: Nsid::new(1), namespace });
        if let Some(pairs) = &mut self.pairs {
            steps.push(pairs.step(&mut self.shared, self.target.start_count));
        }
        steps.extend(self.separate_steps());
        self.regain_second();
        self.second.filters.renew(&self.shared.network);
        self.offer.on_start(self.shared.now_ns);
        let timeouts = scenario.target.timeouts;
        let gate =
            self.operator.thread.as_ref().map(|operator| Arc::clone(operator.gate())).unwrap_or_default();
        // Clients of the memcached protocol come in at a listener of the simulation.
        gate.set_memcached(MEMCACHED, MemcachedTrust::default());
        let applications = subsystem::server::applications(
            settings,
            &timeouts,
            scenario.target.zero_copy,
            scenario.target.c2h_data_bytes,
            &gate,
            steps,
        );
        let count = applications.len();
        let numbered = applications.into_iter().enumerate();
        let make =
            |(index, application)| SimReactor::new(application, index, count, scenario.target.pool_bytes);
        self.target.reactors = numbered.map(make).collect();
        for reactor in &mut self.target.reactors {
            reactor.start(&mut self.shared, &mut self.target.outbox);
        }
        self.target.dispatch(&mut self.shared);
        self.second.presence.on_back(self.shared.now_ns + scenario.order_ns_max());
        self.shared.say(|| "the target starts".into());
        self.shared.on_target_up();
    }

    fn kill_target(&mut self, is_power_cut: bool, down_ns: u64) {
        if !self.target.is_up() {
            return;
        }
        let what = if is_power_cut { "the power goes" } else { "the target is killed" };
        self.shared.say(|| format!("{what} for {down_ns} ns"));
        let now_ns = self.shared.now_ns;
        for reactor in self.target.reactors.drain(..) {
            reactor.kill(&mut self.shared);
        }
        self.second.presence.on_target_down(now_ns);
        self.operator.thread = None;
        self.operator.releases.clear();
        self.shared.orphan_all(is_power_cut);
        let held_until_ns = now_ns + down_ns + self.shared.random.scaled(MS, HELD_NS_MAX);
        if let Some(pairs) = &mut self.pairs {
            pairs.on_down(&mut self.shared, is_power_cut, held_until_ns);
        }
        if is_power_cut {
            self.shared.disk.on_power_cut(&mut self.shared.random);
            if let Err(finding) = self.model.on_power_cut(now_ns) {
                self.shared.find(finding);
            }
        } else {
            let goes_on = self.shared.scenario.target.writes_outlive_kill;
            if self.shared.disk.on_kill(&mut self.shared.random, goes_on, held_until_ns) > 0 {
                self.shared.reach_event("writes of a killed target go on");
            }
            self.model.on_kill(now_ns);
        }
        if let Some((_, files)) = &mut self.separate {
            files.on_down(&mut self.shared, is_power_cut);
        }
        self.lose_second();
        if self.shared.disk.is_stuck() {
            self.rescue_later();
        }
        self.shared.slow_until("target down", u64::MAX, now_ns + down_ns);
        self.shared.at(now_ns + down_ns, Event::Start);
    }

    fn on_fault(&mut self, fault: Fault) {
        self.shared.say(|| format!("fault: {fault:?}"));
        self.shared.reach_event(fault.name());
        let leavers = self.leaver.as_ref().and_then(Leaver::connection);
        let separate = self.separate.iter().flat_map(|(host, _)| host.open_connections());
        let clients = self.pairs.iter().flat_map(Pairs::connections);
        let hosts = self.hosts.iter().chain(&self.scouts).flat_map(Host::connections);
        let connections: Vec<usize> = hosts.chain(leavers).chain(clients).chain(separate).collect();
        match fault {
            Fault::Reset if !connections.is_empty() => {
                let id = self.shared.random.pick(&connections);
                self.shared.break_connection(id);
            }
            Fault::Cut if !connections.is_empty() => {
                let id = self.shared.random.pick(&connections);
                self.shared.cut(id);
            }
            Fault::Reset | Fault::Cut => {}
            Fault::Partition { ns } => {
                let until_ns = self.shared.now_ns + ns;
                let network = &mut self.shared.network;
                network.partition_until_ns = network.partition_until_ns.max(until_ns);
                self.shared.slow_until("network partitioned", ns, until_ns);
            }
            Fault::Kill { down_ns } => self.kill_target(false, down_ns),
            Fault::PowerCut { down_ns } => self.kill_target(true, down_ns),
            Fault::Stall { ns } => {
                let count = u64::from(self.shared.scenario.target.reactor_count);
                let at = self.shared.random.below(count) as usize;
                self.shared.stall(at, ns);
            }
            Fault::NoSpace { ns } => {
                let until_ns = &mut self.shared.log_disk.no_space_until_ns;
                *until_ns = (*until_ns).max(self.shared.now_ns + ns);
                let until_ns = *until_ns;
                self.shared.slow_until("no space for the log", ns, until_ns);
            }
            Fault::LogError { of } => self.shared.log_disk.next_error = Some(of),
            Fault::Memory { share } => self.resize_pairs(share),
            Fault::SetClock { .. } | Fault::Suspend { .. } => self.change_clocks(fault),
            Fault::Resize { block_count } => self.shrink(block_count),
            Fault::Cancel => self.cancel_one(),
            Fault::Remove { away_ns, returns } => self.remove_second(away_ns, returns),
            Fault::Rename => self.rename_second(),
            Fault::Rights { which, away_ns } => self.change_rights(which, away_ns),
            Fault::Bar { away_ns } => self.bar(away_ns),
            Fault::Offer { step_count } => self.change_offer(step_count),
            Fault::Reload { which } => self.change_configuration(which),
            Fault::FailOver { is_power_cut, down_ns, away_ns } => {
                self.fail_over(is_power_cut, down_ns, away_ns);
            }
            Fault::Admin { which } => {
                let host = usize::from(which) % self.hosts.len();
                self.hosts[host].submit_admin(&mut self.shared, which);
            }
            Fault::ControllerReset => {
                let host = self.shared.random.below(self.hosts.len() as u64) as usize;
                self.hosts[host].reset_controller(&mut self.shared);
                let actor = self.hosts[host].actor;
                self.shared.lose("controller reset", actor);
            }
            Fault::Rival { kills_after_ns } => self.start_rival(kills_after_ns),
            Fault::Freeze { ns } => {
                let host = self.shared.random.below(self.hosts.len() as u64) as usize;
                self.hosts[host].freeze(&mut self.shared, ns);
            }
            Fault::Unplug { waiting } => self.faults.unplugs.push(waiting),
            Fault::Flood { count, ns } if self.progress.stage == Stage::Work => {
                self.crowd.flood(&mut self.shared, count, ns);
            }
            Fault::Flood { .. } => {}
            Fault::TlsKey => self.change_tls_key(),
            Fault::SpaceLow => self.warn_of_space(),
        }
    }

    pub(crate) fn enter(&mut self, stage: Stage) {
        self.shared.say(|| format!("stage: {stage:?}"));
        self.progress.stage = stage;
        self.progress.since_ns = self.shared.now_ns;
        if stage == Stage::Settle {
            self.shared.is_hostile = false;
            self.faults.unplugs.clear();
            self.crowd.is_over = true;
        }
        if stage == Stage::Read
            && let Some((host, _)) = &mut self.separate
        {
            host.read_all(&mut self.shared);
        }
        self.wake_users();
    }

    pub(crate) fn wake_users(&mut self) {
        for actor in usize::from(self.shared.scenario.target.reactor_count)..self.shared.wakes.len() {
            self.shared.wake(actor);
        }
    }

    fn lane_count(&self) -> u64 {
        self.users.iter().map(|users| users.len() as u64).sum()
    }

    /// Draws the details of a fault, which depend on no other.
    fn chance_of_fault(&self, at: usize) -> Random {
        let (after, fault) = self.shared.scenario.faults[at];
        let name = fault.name().bytes().fold(0, |name: u64, byte| name.rotate_left(7) ^ u64::from(byte));
        Random::of(self.shared.scenario.chance, 23, &[after, name])
    }

    /// The faults whose time has come.
    pub(crate) fn fire_faults(&mut self) {
        while let Some((at, _)) = self.shared.scenario.faults.get(self.faults.next)
            && at * self.lane_count() * self.shared.scenario.load.lane_command_count
                < self.commands.turn_count * self.shared.scenario.load.command_count
        {
            let (_, fault) = self.shared.scenario.faults[self.faults.next];
            if self.shared.scenario.cuts_at_answers && matches!(fault, Fault::PowerCut { .. }) {
                self.faults.held_cuts.push(self.faults.next);
                self.faults.next += 1;
                continue;
            }
            let delay_ns = self.chance_of_fault(self.faults.next).scaled(1, 3 * MS);
            self.shared.at(self.shared.now_ns + delay_ns, Event::Fault(self.faults.next));
            self.faults.next += 1;
        }
    }

    /// Goes on to the next stage when this one is over.
    fn advance(&mut self) {
        self.end_late_writes();
        self.note_namespaces();
        if !self.commands.out.is_empty() || !self.pairs.as_ref().is_none_or(Pairs::is_idle) {
            return;
        }
        match self.progress.stage {
            Stage::Work if self.users.iter().flatten().all(|user| self.is_done(user)) => {
                self.enter(Stage::Settle);
            }
            Stage::Settle if self.is_calm() => {
                let cuts = self.shared.scenario.ends_with_power_cut;
                let scenario = &self.shared.scenario;
                let has_second = self.second.presence.is_configured();
                let end = if has_second { scenario.all_block_count() } else { scenario.first.block_count };
                self.progress.left_to_read = (0..end).rev().collect();
                self.enter(if cuts { Stage::Flush } else { Stage::Read });
            }
            Stage::Flush if self.progress.had_last_cut => {
                self.kill_target(true, SECOND);
                self.enter(Stage::Read);
            }
            Stage::Read
                if self.progress.left_to_read.is_empty()
                    && self.pairs.as_ref().is_none_or(Pairs::has_read)
                    && self.separate.as_ref().is_none_or(|(host, _)| host.has_read()) =>
            {
                self.enter(Stage::Close);
                for host in self.hosts.iter_mut().chain(&mut self.scouts) {
                    host.close(&mut self.shared);
                }
                if let Some(leaver) = &mut self.leaver {
                    leaver.close(&mut self.shared);
                }
                if let Some((host, _)) = &mut self.separate {
                    host.close(&mut self.shared);
                }
            }
            Stage::Close
                if self.hosts.iter().chain(&self.scouts).all(Host::is_over)
                    && self.leaver.as_ref().is_none_or(Leaver::is_over)
                    && self.separate.as_ref().is_none_or(|(host, _)| host.is_over())
                    && self.pairs.as_ref().is_none_or(Pairs::are_clients_closed) =>
            {
                if !self.may_stop() {
                    return;
                }
                self.enter(Stage::Stop);
                let (answers, _) = channel();
                self.target.post(
                    &mut self.shared,
                    0,
                    Message::Control(ControlMessage::Order(Order {
                        kind: OrderKind::Stop { grace_ms: 60_000 },
                        answers,
                    })),
                );
                self.target.is_stopping = true;
            }
            Stage::Stop if self.target.reactors.iter().all(SimReactor::has_stopped) => {
                self.check_target();
                let Self { model, second, shared, .. } = self;
                if let Err(finding) = model.check_swaps().and_then(|()| second.filters.check(&shared.network))
                {
                    self.shared.find(finding);
                }
                self.enter(Stage::Over);
            }
            _ => {}
        }
    }

    /// Counts changes of the namespaces' state.
    fn note_namespaces(&mut self) {
        let Self { first, second, target, shared, .. } = self;
        first.note(target.is_up(), &mut shared.coverage);
        second.note(&mut shared.coverage);
    }

    /// Whether the target is up and as large as it should be, no fault is on its way, and hosts know the namespaces.
    fn is_calm(&self) -> bool {
        let has_second = self.shared.scenario.second.spec.is_some() && self.second.presence.is_configured();
        self.target.is_up()
            && self.target.machine.is_first()
            && self.hosts.iter().all(|host| host.misled_until_ns != Some(u64::MAX))
            && self.first.block_count == self.shared.scenario.first.block_count
            && !self.first.is_reopening
            && self.separate.as_ref().is_none_or(|(_, files)| files.is_calm())
            && !self.operator.is_to_help()
            && !self.shared.log_disk.is_failing()
            && !self.takeover.is_rival_waiting
            && !self.is_operator_busy()
            && self.shared.barred_since_ns.is_none()
            && !self.second.presence.is_to_return()
            && self.second.rights.are_whole()
            && self.is_offer_known()
            && self.hosts.iter().all(|host| host.up_count == 0 || host.sees_second == has_second)
    }
}

fn event_number(event: Event) -> u64 {
    match event {
        Event::Arrival(id, side) => (id as u64) << 8 | side as u64,
        Event::Room(id, side) => (id as u64) << 8 | 2 | side as u64,
        Event::Accept(id) => (id as u64) << 8 | 4,
        Event::Dialled(id) => (id as u64) << 8 | 5,
        Event::DiskPart(number) => number << 8 | 6,
        Event::DiskEnd(number) => number << 8 | 7,
        Event::Fault(at) => (at as u64) << 8 | 8,
        Event::Start => 9,
        Event::Reopen => 10,
        Event::Grow(_) => 11,
        Event::Return => 12,
        Event::Rescue => 13,
        Event::Admit => 14,
        Event::FallBack => 15,
        Event::Lock { .. } => 16,
        Event::Oust => 17,
        Event::Restart => 18,
        Event::Restore => 19,
        Event::ReopenFile(number) => (number as u64) << 8 | 24,
        Event::Damaged(id, side) => (id as u64) << 8 | 20 | side as u64,
        Event::Overdue(id, side) => (id as u64) << 8 | 22 | side as u64,
    }
}
