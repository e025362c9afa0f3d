//! A host whose queues are separate: each I/O queue connects, goes and comes back alone, while its controller and the
//! other queues stay. It is no host of ours: of `host` it has the transport alone.
//!
//! ```text
//! controller: connects ─▶ up ────────────────────────────────────▶ shut down, or lost with all queues
//! each queue:              connects ─▶ live ─▶ closed, reset or lost ─▶ connects again by the same id ─▶ live …
//! ```
//!
//! It writes on one queue and flushes on another, and knows the commands that a lost queue may have taken with it: a
//! command that was out when its queue was lost may have been executed, but not later than the queue is connected
//! again, since the target accepts no second queue of an id before the first has ended.

mod files;
mod queue_end;

use std::collections::BTreeMap;
use std::ops::Range;

use proto::handshake::HostOffer;
use proto::host_controller::{
    ADMIN_QUEUE_ENTRIES, ControllerSettings, HostController, Notice, QueueConnect, RequestData, RequestId,
};
use proto::host_limits::Limits;
use proto::host_queue::{Completion, HostEvent, Transfer};
use wire::id::{Nsid, Qid};
use wire::nqn::HostId;
use wire::sqe::Sqe;
use wire::status::Status;
use wire::zerocopy::IntoBytes;

pub(crate) use self::files::Files;
use self::files::FlushEnd;
use self::queue_end::{QueueEnd, check_loss};
use crate::finding::Finding;
use crate::random::Random;
use crate::scenario::{ErrorOf, MS, SECOND, Scenario, SeparateSettings, US};
use crate::shared::disk::Trouble;
use crate::shared::{Actor, Shared};

/// The subsystem of its namespaces.
pub(crate) const SEPARATE_SUBSYSTEM: &str = "nqn.2026-01.io.nvlane:separate";

/// Its name.
pub(crate) const SEPARATE_HOST: &str = "nqn.2026-01.io.nvlane:host-with-separate-queues";

/// Blocks that one command moves at most.
const BLOCKS_MAX: u64 = 2;

/// In-capsule data of an admin queue, bytes.
const ADMIN_IN_CAPSULE_BYTES: u32 = 8192;

/// Time limit of an answer, ns.
const TIMEOUT_NS: u64 = 5 * SECOND;

/// After this number of attempts that fail a queue is given up with its controller.
const ATTEMPT_COUNT_MAX: u32 = 4;

/// The queue of one of this number of Flushes goes soon, before their answer or after it.
const FLUSH_LOST_ONE_IN: u64 = 6;

/// The id of a queue's Connect among its commands.
const CONNECT: u64 = 0;

/// A command on its namespaces.
#[derive(Clone, Debug)]
enum Kind {
    Read,
    Write { is_durable: bool },
    Flush,
}

/// A command that is out.
#[derive(Clone, Debug)]
struct Command {
    kind: Kind,
    /// The namespaces: several for a Flush of all.
    files: Range<usize>,
    lbas: Range<u64>,
    begin_ns: u64,
    until_ns: u64,
    queue: usize,
}

/// One I/O queue.
#[derive(Default)]
struct Queue {
    end: Option<QueueEnd<u64>>,
    is_live: bool,
    /// When it connects, if it has no connection, and until when it must have connected.
    dial_ns: u64,
    until_ns: u64,
    attempt_count: u32,
    /// Writes of its last connection whose outcome is not known.
    doubtful: Vec<(u64, Command)>,
    /// Flushes likewise, and until when the target may have executed each, ns.
    flushes: Vec<(Command, u64)>,
    had_connection: bool,
    /// When it was last connected.
    live_ns: u64,
    /// When it is to be closed.
    lose_ns: Option<u64>,
}

/// The controller that it has, with its queues.
struct Association {
    admin: QueueEnd<(RequestId, u64)>,
    controller: HostController,
    queues: Vec<Queue>,
    is_initialised: bool,
    is_up: bool,
    /// It is shut down.
    is_ending: bool,
}

pub(crate) struct SeparateHost {
    actor: Actor,
    settings: SeparateSettings,
    controller: ControllerSettings,
    offer: HostOffer,
    choice: Random,
    association: Option<Association>,
    dial_ns: u64,
    act_ns: u64,
    commands: BTreeMap<u64, Command>,
    next_command: u64,
    command_count: u64,
    /// The namespaces of Flushes whose queue was lost: they are sent again.
    again: Vec<Range<usize>>,
    /// By namespace: the queue on which it was last written.
    written_on: Vec<Option<usize>>,
    /// The connections of each association, the admin queue's first.
    connections: Vec<Vec<usize>>,
    /// It makes no more changes.
    is_reading: bool,
    left_to_read: Vec<(usize, u64)>,
    is_closing: bool,
}

impl SeparateHost {
    pub(crate) fn new(scenario: &Scenario, settings: &SeparateSettings, actor: Actor) -> Self {
        Self {
            actor,
            settings: settings.clone(),
            controller: ControllerSettings {
                host: SEPARATE_HOST.parse().expect("a name"),
                hostid: HostId::from_bytes([0xDD; 16]),
                subsystem: SEPARATE_SUBSYSTEM.parse().expect("a name"),
                is_discovery: false,
                keep_alive_ms: scenario.hosts.keep_alive_ms,
                queue_pairs: settings.queue_count,
                is_flow_control_disabled: !scenario.hosts.has_flow_control,
            },
            offer: HostOffer {
                alignment: scenario.hosts.alignment,
                digests: scenario.security.digests,
                r2t_limit: scenario.hosts.r2t_limit,
            },
            choice: Random::new(scenario.seed, 92),
            association: None,
            dial_ns: 0,
            act_ns: 0,
            commands: BTreeMap::new(),
            next_command: CONNECT + 1,
            command_count: settings.command_count,
            again: Vec::new(),
            written_on: vec![None; settings.file_count],
            connections: Vec::new(),
            is_reading: false,
            left_to_read: Vec::new(),
            is_closing: false,
        }
    }

    /// Whether an actor is its thread.
    pub(crate) fn owns(&self, actor: Actor) -> bool {
        self.actor == actor
    }

    /// Connections that stand, or are dialled.
    pub(crate) fn open_connections(&self) -> Vec<usize> {
        let Some(association) = &self.association else { return Vec::new() };
        let of_queues = association.queues.iter().filter_map(|queue| queue.end.as_ref()?.id());
        association.admin.id().into_iter().chain(of_queues).collect()
    }

    /// The connections of the association that has this one, the admin queue's first.
    pub(crate) fn association_of(&self, id: usize) -> &[usize] {
        self.connections.iter().find(|of| of.contains(&id)).map_or(&[], Vec::as_slice)
    }

    /// From now on it reads every block once, and changes nothing.
    pub(crate) fn read_all(&mut self, shared: &mut Shared) {
        let SeparateSettings { file_count, block_count, .. } = self.settings;
        self.is_reading = true;
        self.left_to_read =
            (0..file_count).flat_map(|file| (0..block_count).map(move |lba| (file, lba))).collect();
        shared.wake(self.actor);
    }

    pub(crate) fn has_read(&self) -> bool {
        self.is_reading && self.left_to_read.is_empty() && self.commands.is_empty()
    }

    pub(crate) fn close(&mut self, shared: &mut Shared) {
        self.is_closing = true;
        shared.wake(self.actor);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_closing && self.association.is_none()
    }

    pub(crate) fn left(&self) -> String {
        let queues = self.association.iter().flat_map(|association| &association.queues);
        format!(
            "separate: {} commands, {} blocks to read, queues live {:?}",
            self.commands.len(),
            self.left_to_read.len(),
            queues.map(|queue| queue.is_live).collect::<Vec<_>>()
        )
    }

    /// Its thread runs.
    pub(crate) fn run(&mut self, shared: &mut Shared, files: &mut Files) {
        let now_ns = shared.now_ns;
        if self.association.is_none() {
            if self.is_closing {
                return;
            }
            if now_ns >= self.dial_ns {
                self.begin(shared, files);
            }
        }
        if self.association.is_some() && !self.run_admin(shared, files) {
            self.lose(shared, files, true);
        }
        let queue_count = self.association.as_ref().map_or(0, |association| association.queues.len());
        for at in 0..queue_count {
            self.run_queue(shared, files, at);
        }
        self.act(shared, files);
        if let Some(at_ns) = self.next_ns(now_ns) {
            shared.wake_at(self.actor, at_ns.max(now_ns + 1));
        }
    }

    fn next_ns(&self, now_ns: u64) -> Option<u64> {
        let Some(association) = &self.association else {
            return (!self.is_closing).then_some(self.dial_ns);
        };
        let of_admin = association.admin.machine.commands().map(|(_, (_, until_ns))| until_ns);
        let connects_ns = if association.is_initialised { u64::MAX } else { self.dial_ns };
        let of_queues =
            association.queues.iter().filter(|_| association.is_up).map(|queue| match &queue.end {
                None if association.is_ending => u64::MAX,
                None => queue.dial_ns,
                Some(_) if !queue.is_live => queue.until_ns,
                Some(_) => queue.lose_ns.unwrap_or(u64::MAX),
            });
        let of_commands = self.commands.values().map(|command| command.until_ns);
        let acts = association.is_up && (self.command_count > 0 || self.is_reading);
        let act_ns = if acts && self.act_ns > now_ns { self.act_ns } else { u64::MAX };
        let all = of_admin.chain(of_queues).chain(of_commands).chain(association.controller.next_deadline());
        all.chain([act_ns, connects_ns]).min().filter(|at_ns| *at_ns < u64::MAX)
    }

    /// Another controller.
    fn begin(&mut self, shared: &mut Shared, files: &mut Files) {
        let admin = QueueEnd::dial(shared, self.actor, self.offer, ADMIN_QUEUE_ENTRIES - 1);
        self.connections.push(admin.id().into_iter().collect());
        files.on_connecting(shared.now_ns);
        let mut association = Association {
            admin,
            controller: HostController::new(self.controller.clone()),
            queues: Vec::new(),
            is_initialised: false,
            is_up: false,
            is_ending: false,
        };
        association.admin.machine.set_in_capsule_bytes(ADMIN_IN_CAPSULE_BYTES);
        association.queues.resize_with(self.settings.queue_count.into(), Queue::default);
        self.dial_ns = shared.now_ns + TIMEOUT_NS;
        self.association = Some(association);
    }

    /// All queues of the controller are lost, or given up.
    fn lose(&mut self, shared: &mut Shared, files: &mut Files, at_once: bool) {
        let Some(association) = self.association.take() else { return };
        shared.say(|| "a host with separate queues gives its controller up".into());
        association.admin.hang_up(shared, at_once);
        for queue in association.queues {
            self.end_queue(shared, files, queue, at_once);
        }
        files.on_lost();
        self.again.clear();
        self.dial_ns = shared.now_ns + self.choice.scaled(MS, SECOND);
    }

    /// The commands of a queue that is lost: their outcome is not known.
    fn end_queue(
        &mut self,
        shared: &mut Shared,
        files: &mut Files,
        mut queue: Queue,
        at_once: bool,
    ) -> Queue {
        (queue.is_live, queue.lose_ns) = (false, None);
        let Some(end) = queue.end.take() else { return queue };
        for unfinished in end.hang_up(shared, at_once) {
            let Some(command) = self.commands.remove(&unfinished.user) else { continue };
            match command.kind {
                Kind::Write { .. } if unfinished.is_unsent => {
                    let unsent = files.on_unsent(command.files.start, command.lbas, unfinished.user);
                    unsent.unwrap_or_else(|finding| shared.find(finding));
                }
                Kind::Write { .. } => {
                    files.on_doubt(command.files.start, command.lbas.clone(), unfinished.user, None);
                    queue.doubtful.push((unfinished.user, command));
                }
                Kind::Flush => {
                    self.again.push(command.files.clone());
                    queue.flushes.push((command, u64::MAX));
                }
                Kind::Read => self
                    .left_to_read
                    .extend(command.lbas.filter(|_| self.is_reading).map(|lba| (command.files.start, lba))),
            }
        }
        queue
    }

    /// Returns whether the controller stands.
    fn run_admin(&mut self, shared: &mut Shared, files: &mut Files) -> bool {
        let now_ns = shared.now_ns;
        let Some(association) = &mut self.association else { return false };
        if !association.is_initialised && now_ns >= self.dial_ns {
            return false;
        }
        if self.is_closing && !association.is_ending {
            if !association.is_up {
                return false;
            }
            association.is_ending = true;
            association.controller.shut_down();
        }
        let names = (&self.controller.host, &self.controller.subsystem);
        let patience_ns = patience_ns(shared);
        loop {
            let mut events = Vec::new();
            let exchanged = association.admin.exchange(shared, names, &mut events);
            let has_news = !events.is_empty();
            for event in events {
                match event {
                    HostEvent::Initialised(_) => association.is_initialised = true,
                    HostEvent::Completed(Completion { user: (id, _), status, result, buffer, .. }) => {
                        let was_connected = association.controller.cntlid().get() != u16::MAX;
                        let data = buffer.unwrap_or_default();
                        let taken = association.controller.on_completion(id, (status, result), &data, now_ns);
                        if let Err(cause) = taken {
                            shared.say(|| format!("a host with separate queues: {cause}"));
                            return false;
                        }
                        if !was_connected && association.controller.cntlid().get() != u16::MAX {
                            files.on_up(now_ns);
                        }
                    }
                }
            }
            if let Err(cause) = exchanged {
                shared.say(|| format!("a host with separate queues loses its admin queue: {cause}"));
                check_loss(shared, association.admin.id(), &cause);
                return false;
            }
            while let Some(notice) = association.controller.next_notice() {
                match notice {
                    Notice::Live => {
                        association.is_up = true;
                        shared.reach_event("controller of a host with separate queues");
                        for queue in &mut association.queues {
                            queue.dial_ns = now_ns + self.choice.scaled(1, 10 * MS);
                        }
                        self.act_ns = now_ns + 1;
                    }
                    Notice::Down => return false,
                    _ => {}
                }
            }
            let is_late =
                |(_, (id, until_ns)): (&Sqe, (RequestId, u64))| id != RequestId::Event && until_ns <= now_ns;
            if association.admin.machine.commands().any(is_late) {
                shared.say(|| "a host with separate queues waits in vain for its controller".into());
                return false;
            }
            let mut has_sent = false;
            while association.admin.machine.has_room() {
                let request = match association.controller.next_request(now_ns) {
                    Ok(Some(request)) => request,
                    Ok(None) => break,
                    Err(cause) => {
                        shared.say(|| format!("a host with separate queues: {cause}"));
                        return false;
                    }
                };
                has_sent = true;
                let transfer = match request.data {
                    RequestData::None => Transfer::None,
                    RequestData::ToController(data) => Transfer::ToController(data),
                    RequestData::FromController(bytes) => {
                        Transfer::FromController { buffer: vec![0; bytes as usize], is_exact: false }
                    }
                };
                let until_ns = if request.id == RequestId::Event { u64::MAX } else { now_ns + patience_ns };
                association.admin.machine.submit_where_room(request.sqe, transfer, (request.id, until_ns));
            }
            if !has_sent && !has_news {
                return true;
            }
        }
    }

    fn run_queue(&mut self, shared: &mut Shared, files: &mut Files, at: usize) {
        let now_ns = shared.now_ns;
        let patience_ns = patience_ns(shared);
        let Some(association) = self.association.as_mut().filter(|association| association.is_up) else {
            return;
        };
        let queue = &mut association.queues[at];
        if queue.end.is_none() && !association.is_ending && now_ns >= queue.dial_ns {
            let end = QueueEnd::dial(shared, self.actor, self.offer, self.settings.depth);
            if let Some(of) = self.connections.last_mut() {
                of.extend(end.id());
            }
            (queue.end, queue.until_ns) = (Some(end), now_ns + patience_ns);
        }
        let Some(end) = &mut queue.end else { return };
        let names = (&self.controller.host, &self.controller.subsystem);
        let mut events = Vec::new();
        let mut exchanged = end.exchange(shared, names, &mut events);
        for event in events {
            match event {
                HostEvent::Initialised(_) => self.connect(at),
                HostEvent::Completed(completion) if completion.user == CONNECT => {
                    self.on_connected(shared, files, at, &completion);
                }
                HostEvent::Completed(completion) => self.on_completion(shared, files, completion),
            }
        }
        let Some(association) = &mut self.association else { return };
        let queue = &mut association.queues[at];
        let Some(end) = &mut queue.end else { return };
        if exchanged.is_ok() {
            exchanged = end.send(shared);
        }
        let is_late = |command: &Command| command.queue == at && command.until_ns <= now_ns;
        let is_over = queue.lose_ns.is_some_and(|at_ns| at_ns <= now_ns);
        let is_silent = self.commands.values().any(is_late) || !queue.is_live && queue.until_ns <= now_ns;
        if let Err(cause) = &exchanged {
            shared.say(|| format!("a host with separate queues loses queue {at}: {cause}"));
            check_loss(shared, end.id(), cause);
        }
        if is_silent {
            shared.say(|| format!("a host with separate queues waits in vain for queue {at}"));
        }
        if exchanged.is_err() || is_silent || is_over {
            let at_once = !is_over || self.choice.one_in(2);
            self.lose_queue(shared, files, at, at_once);
        }
    }

    /// Sends the Connect of a queue.
    fn connect(&mut self, at: usize) {
        let Some(association) = &mut self.association else { return };
        let Some((connect, limits)) = queue_connect(association, at, self.settings.depth) else { return };
        let Some(end) = &mut association.queues[at].end else { return };
        let (sqe, data) = connect.command(&self.controller);
        end.machine.set_in_capsule_bytes(limits.in_capsule_bytes);
        end.machine.submit_where_room(sqe, Transfer::ToController(data.as_bytes().to_vec()), CONNECT);
    }

    fn on_connected(
        &mut self,
        shared: &mut Shared,
        files: &mut Files,
        at: usize,
        completion: &Completion<Vec<u8>, u64>,
    ) {
        let now_ns = shared.now_ns;
        let Some(association) = &mut self.association else { return };
        let Some((connect, _)) = queue_connect(association, at, self.settings.depth) else { return };
        let queue = &mut association.queues[at];
        if let Err(cause) = connect.on_completion(completion.status, completion.result) {
            shared.say(|| format!("queue {at} of a host with separate queues: {cause}"));
            queue.until_ns = now_ns;
            return;
        }
        (queue.is_live, queue.live_ns, queue.attempt_count) = (true, now_ns, 0);
        // The queue that had its id before has ended, with all that came over it.
        for (number, command) in queue.doubtful.drain(..) {
            files.on_over(command.files.start, command.lbas, number, now_ns);
        }
        queue.flushes.iter_mut().for_each(|(_, until_ns)| *until_ns = now_ns.min(*until_ns));
        let was_here = std::mem::replace(&mut queue.had_connection, true);
        let others = association.queues.iter().filter(|queue| queue.is_live).count() - 1;
        if was_here && others > 0 {
            shared.reach_event("queue connects again beside others of its controller");
        }
    }

    /// A queue goes, and comes back later.
    fn lose_queue(&mut self, shared: &mut Shared, files: &mut Files, at: usize, at_once: bool) {
        let Some(association) = &mut self.association else { return };
        let queue = std::mem::take(&mut association.queues[at]);
        let was_live = queue.is_live;
        let mut queue = self.end_queue(shared, files, queue, at_once);
        queue.attempt_count += u32::from(!was_live);
        queue.dial_ns = shared.now_ns + self.choice.scaled(US, 200 * MS);
        let is_given_up = queue.attempt_count >= ATTEMPT_COUNT_MAX;
        files.on_queue_lost();
        if let Some(association) = &mut self.association {
            association.queues[at] = queue;
        }
        if is_given_up {
            self.lose(shared, files, true);
        }
    }

    /// Its own actions.
    fn act(&mut self, shared: &mut Shared, files: &mut Files) {
        let now_ns = shared.now_ns;
        let is_up =
            self.association.as_ref().is_some_and(|association| association.is_up && !association.is_ending);
        if !is_up || now_ns < self.act_ns || self.is_closing {
            return;
        }
        if self.is_reading {
            return self.read_next(shared, files);
        }
        if self.command_count == 0 {
            return;
        }
        self.act_ns = now_ns + self.choice.scaled(1, self.settings.think_ns);
        self.command_count -= 1;
        if shared.is_hostile && self.choice.one_in(self.settings.loses_one_in) {
            self.harm(shared, files);
        }
        if self.choice.one_in(self.settings.closes_one_in) {
            let at = self.choice.below(self.settings.queue_count.into()) as usize;
            let at_once = self.choice.one_in(2);
            let is_live = self.association.as_ref().is_some_and(|association| association.queues[at].is_live);
            if is_live {
                shared.reach_event(if at_once { "queue reset alone" } else { "queue closed alone" });
                return self.lose_queue(shared, files, at, at_once);
            }
        }
        if self.choice.one_in(300) {
            let Some(association) = &mut self.association else { return };
            if self.choice.one_in(2) {
                return self.lose(shared, files, true);
            }
            association.is_ending = true;
            association.controller.shut_down();
            return shared.wake(self.actor);
        }
        if let Some(of) = self.again.pop() {
            if self.submit(shared, files, Kind::Flush, of.clone(), 0..1) {
                shared.reach_event("Flush sent again whose queue was lost");
            } else {
                self.again.push(of);
            }
            return;
        }
        let file = self.choice.below(files.count() as u64) as usize;
        let (kind, files_of) = match self.choice.below(20) {
            0..9 => (Kind::Write { is_durable: self.choice.one_in(8) }, file..file + 1),
            9..13 => (Kind::Read, file..file + 1),
            13..18 => (Kind::Flush, file..file + 1),
            _ => (Kind::Flush, 0..files.count()),
        };
        let lba = self.choice.below(files.block_count());
        let end = lba + self.choice.between(1, BLOCKS_MAX.min(files.block_count() - lba));
        self.submit(shared, files, kind, files_of, lba..end);
    }

    /// Makes the next flush of a disk fail, or the operator reopen a namespace.
    fn harm(&mut self, shared: &mut Shared, files: &mut Files) {
        let file = self.choice.below(files.count() as u64) as usize;
        if self.choice.one_in(2) {
            return files.reopen_soon(shared, file);
        }
        shared.separate_disks[file].next_error = Some(ErrorOf::Flush);
    }

    /// Reads the next blocks of the last look at all.
    fn read_next(&mut self, shared: &mut Shared, files: &mut Files) {
        let Some((file, lba)) = self.left_to_read.pop() else { return };
        self.act_ns = shared.now_ns + MS;
        if !self.submit(shared, files, Kind::Read, file..file + 1, lba..lba + 1) {
            self.left_to_read.push((file, lba));
        }
        shared.wake_at(self.actor, self.act_ns);
    }

    /// Submits a command on any queue that has room; returns whether there was one.
    fn submit(
        &mut self,
        shared: &mut Shared,
        files: &mut Files,
        kind: Kind,
        of: Range<usize>,
        lbas: Range<u64>,
    ) -> bool {
        let until_ns = shared.now_ns + patience_ns(shared);
        let Some(association) = &mut self.association else { return false };
        let has_room =
            |queue: &Queue| queue.is_live && queue.end.as_ref().is_some_and(|end| end.machine.has_room());
        let places: Vec<usize> =
            (0..association.queues.len()).filter(|at| has_room(&association.queues[*at])).collect();
        if places.is_empty() {
            return false;
        }
        let at = self.choice.pick(&places);
        let number = self.next_command;
        self.next_command += 1;
        let nsid = if of.len() > 1 { Nsid::ALL } else { Nsid::new(of.start as u32 + 1) };
        let count = (lbas.end - lbas.start) as u32;
        let bytes = files.block_bytes() * count as usize;
        let (sqe, transfer) = match kind {
            Kind::Read => (
                Sqe::read(nsid, lbas.start, count),
                Transfer::FromController { buffer: vec![0; bytes], is_exact: true },
            ),
            Kind::Write { is_durable } => {
                let sqe = Sqe::write(nsid, lbas.start, count);
                files.begin_write(of.start, lbas.clone(), number, shared.now_ns);
                let data = files.data(lbas.clone(), number);
                (if is_durable { sqe.with_fua() } else { sqe }, Transfer::ToController(data))
            }
            Kind::Flush => (Sqe::flush(nsid), Transfer::None),
        };
        let queue = &mut association.queues[at];
        if matches!(kind, Kind::Flush) && self.choice.one_in(FLUSH_LOST_ONE_IN) {
            queue.lose_ns = Some(shared.now_ns + self.choice.scaled(US, 4 * MS));
        }
        let Some(end) = &mut queue.end else { return false };
        end.machine.submit_where_room(sqe, transfer, number);
        shared.say(|| format!("separate queue {at}: command {number}: {kind:?} of {of:?}, blocks {lbas:?}"));
        let command = Command { kind, files: of, lbas, begin_ns: shared.now_ns, until_ns, queue: at };
        self.commands.insert(number, command);
        shared.wake(self.actor);
        true
    }

    fn on_completion(
        &mut self,
        shared: &mut Shared,
        files: &mut Files,
        completion: Completion<Vec<u8>, u64>,
    ) {
        let Completion { user: number, status, buffer, .. } = completion;
        let Some(command) = self.commands.remove(&number) else {
            return shared.find(format!("separate command {number} ends, and is not out"));
        };
        shared.say(|| format!("separate queue {}: command {number} ends: {status}", command.queue));
        let judged = self.judge(shared, files, number, command, status, buffer.as_deref().unwrap_or(&[]));
        if let Err(finding) = judged {
            shared.find(format!("separate command {number}: {finding}"));
        }
    }

    fn judge(
        &mut self,
        shared: &mut Shared,
        files: &mut Files,
        number: u64,
        command: Command,
        status: Status,
        data: &[u8],
    ) -> Result<(), Finding> {
        let now_ns = shared.now_ns;
        let Command { kind, files: of, lbas, begin_ns, queue, .. } = command;
        // A bit of its data was wrong.
        let is_damaged = status.is(Status::TRANSIENT_TRANSPORT_ERROR) && shared.scenario.network.corrupt > 0;
        // A read of no bytes is the end of the file.
        let had_passing = |file: usize| {
            let disk = &shared.separate_disks[file];
            disk.had_trouble(Trouble::Passing, begin_ns, |blocks| !blocks.is_empty())
        };
        let is_read_error = matches!(kind, Kind::Read) && status.is(Status::UNRECOVERED_READ_ERROR);
        let is_cut_short = is_read_error && of.clone().any(had_passing);
        if !status.is_success()
            && !is_damaged
            && !is_cut_short
            && !matches!(kind, Kind::Flush)
            && !files.may_be_refused(of.clone(), begin_ns)
        {
            return Err(format!("fails, and its namespace was not closed: {status}"));
        }
        match kind {
            Kind::Read if status.is_success() => files.on_read(of.start, lbas, data, (begin_ns, now_ns)),
            Kind::Read => {
                self.left_to_read.extend(lbas.filter(|_| self.is_reading).map(|lba| (of.start, lba)));
                Ok(())
            }
            Kind::Write { is_durable } if status.is_success() => {
                self.written_on[of.start] = Some(queue);
                files.on_written(of.start, lbas, number, now_ns, is_durable)
            }
            Kind::Write { .. } => {
                files.on_doubt(of.start, lbas, number, Some(now_ns));
                Ok(())
            }
            Kind::Flush => {
                let end = self.flush_end(&of, begin_ns);
                if !status.is_success() {
                    // The target takes back what it reported on a queue when it closes it, before this host hears of it.
                    if self.has_unheard_loss(shared) {
                        files.on_queue_lost();
                    }
                    return files.on_flush_failed(shared, of, end);
                }
                if self.written_on[of.clone()].iter().any(|on| on.is_some_and(|on| on != queue)) {
                    shared.reach_event("Flush on another queue than the write before it");
                }
                files.on_flushed(shared, of, end)
            }
        }
    }

    /// Whether the target has closed a queue that this host takes for connected.
    fn has_unheard_loss(&self, shared: &Shared) -> bool {
        let mut ends = self
            .association
            .iter()
            .flat_map(|association| &association.queues)
            .filter_map(|queue| queue.end.as_ref());
        ends.any(|end| {
            end.id().is_some_and(|id| shared.network.connections[id].closed_by_target_ns.is_some())
        })
    }

    /// The end of a Flush of these namespaces, with the other Flushes of them and the lost queues since it began.
    fn flush_end(&self, of: &Range<usize>, begin_ns: u64) -> FlushEnd {
        let is_other = |other: &Command| {
            matches!(other.kind, Kind::Flush) && other.files.start < of.end && of.start < other.files.end
        };
        let queues = || self.association.iter().flat_map(|association| &association.queues);
        let mut in_doubt = queues().flat_map(|queue| &queue.flushes);
        let has_other = self.commands.values().any(is_other)
            || in_doubt.any(|(other, until_ns)| is_other(other) && *until_ns >= begin_ns);
        let was_lost = |queue: &Queue| queue.had_connection && (!queue.is_live || queue.live_ns >= begin_ns);
        FlushEnd { begin_ns, has_other, is_unsure: queues().any(was_lost) }
    }
}

/// Time limit of an answer, ns: when nothing goes wrong any more, until earlier faults are over.
fn patience_ns(shared: &Shared) -> u64 {
    TIMEOUT_NS * if shared.is_hostile { 1 } else { 12 }
}

/// The Connect of a queue, and the limits of its controller.
fn queue_connect(association: &Association, at: usize, depth: u16) -> Option<(QueueConnect, Limits)> {
    let limits = *association.controller.limits()?;
    let connect = QueueConnect {
        qid: Qid::new(at as u16 + 1),
        cntlid: association.controller.cntlid(),
        entries: limits.queue_size(depth).0,
        near_partition: None,
    };
    Some((connect, limits))
}
