//! Several partitions on one thread as a session's router, for tests and fuzzers: used in place, or with messages to other
//! partitions, which are answered on request.

use std::sync::{Arc, Mutex};

use kv::{
    ExclusiveGuard, Kept, KeyHash, MemoryLimit, Partition, PartitionAccess, PartitionSet, Processor, Settings,
};
use linux::Moment;

use crate::answer::AnswerId;
use crate::collective::CollectiveRequest;
use crate::command::Command;
use crate::connection_stats::{self, ConnectionState, ConnectionStats, ListenerAddress};
use crate::counters::ListenerStats;
use crate::execute::{Executor, Service};
use crate::in_place::InPlace;
use crate::incoming::LargeStore;
use crate::output::Output;
use crate::remote::RemoteBatch;
use crate::router::Router;
use crate::session::Session;
use crate::settings::ListenerSettings;
use crate::watch::Watchers;

/// Size of the pieces in which kept values are fetched, bytes.
const PIECE_BYTES: usize = 1000;

/// All partitions on one thread.
pub struct Partitions {
    /// Each with its service; the first is the session's own.
    pub all: Vec<(Place, Service)>,
    /// All partitions in place, if they are used so. Behind them, so that none is held once it is given back.
    access: Option<Lent>,
    /// Commands that are sent to other partitions before all of them can be used in place.
    pub sends_until_in_place: usize,
    /// Messages in the order in which they were sent.
    pub sent: Vec<Sent>,
    now: Moment,
}

/// Where a partition is.
pub enum Place {
    /// Here.
    Here(Box<Partition>),
    /// In a set, with its number.
    Shared(&'static PartitionAccess, usize, Option<ExclusiveGuard<'static>>),
}

impl Place {
    /// The partition. One of a set is held until all are released.
    fn partition(&mut self) -> &mut Partition {
        match self {
            Self::Here(partition) => partition,
            Self::Shared(access, number, held) => held.get_or_insert_with(|| access.exclusive(*number)),
        }
    }
}

/// Sets that are used again, with the seed of their keys: their partitions are replaced.
static UNUSED: Mutex<Vec<(u64, &'static PartitionAccess)>> = Mutex::new(Vec::new());

/// A set in use.
struct Lent(u64, &'static PartitionAccess);

impl Lent {
    /// A set of these partitions, whose keys are hashed with a seed.
    fn new(partitions: Vec<Partition>, seed: u64) -> Self {
        let is_fit = |unused: &mut (u64, &PartitionAccess)| {
            unused.0 == seed && unused.1.position().1 == partitions.len()
        };
        let unused = UNUSED.lock().expect("no holder panics").extract_if(.., is_fit).next();
        if let Some((seed, access)) = unused {
            for (number, partition) in partitions.into_iter().enumerate() {
                *access.exclusive(number) = partition;
            }
            return Self(seed, access);
        }
        let set = Arc::new(PartitionSet::new(partitions.len(), seed, None));
        for (number, partition) in partitions.into_iter().enumerate() {
            set.put(number, partition);
        }
        Self(seed, Box::leak(Box::new(PartitionAccess::new(set, 0))))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Ok(mut unused) = UNUSED.lock() {
            unused.push((self.0, self.1));
        }
    }
}

/// A message to a partition.
#[derive(Debug)]
pub enum Sent {
    /// Commands.
    To(usize, RemoteBatch),
    /// A request to all partitions from this one on.
    ToAll(AnswerId, CollectiveRequest, usize),
    /// A request for memory, MiB.
    Reserve(usize, usize),
    /// A value that has arrived.
    Large(usize, AnswerId, LargeStore),
    /// A request for the connections of all reactors.
    Connections(AnswerId),
    /// A request for a piece of a value.
    Fetch(usize, Arc<Kept>, usize),
}

impl Router for Partitions {
    fn executor(&mut self) -> Executor<'_> {
        self.at(0)
    }
    fn in_place(&mut self) -> Option<InPlace<'_>> {
        let access = self.access.as_ref().filter(|_| self.sends_until_in_place == 0)?.1;
        self.release();
        Some(InPlace { access, service: &mut self.all[0].1, now: self.now })
    }
    fn position(&self) -> (usize, usize) {
        (0, self.all.len())
    }
    fn session(&self) -> u64 {
        0
    }
    fn send(&mut self, to: usize, id: AnswerId, hash: KeyHash, command: &Command<'_>) {
        self.sends_until_in_place = self.sends_until_in_place.saturating_sub(1);
        let mut batch = RemoteBatch::default();
        batch.push(0, id, hash, command);
        self.sent.push(Sent::To(to, batch));
    }
    fn send_all(&mut self, id: AnswerId, request: CollectiveRequest, with_own: bool) {
        self.sent.push(Sent::ToAll(id, request, usize::from(!with_own)));
    }
    fn reserve(&mut self, to: usize, count: usize) {
        self.sent.push(Sent::Reserve(to, count));
    }
    fn store_large(&mut self, to: usize, id: AnswerId, store: LargeStore) {
        self.sent.push(Sent::Large(to, id, store));
    }
    fn fetch(&mut self, to: usize, kept: Arc<Kept>, offset: usize) {
        self.sent.push(Sent::Fetch(to, kept, offset));
    }
    fn request_connections(&mut self, id: AnswerId) {
        self.sent.push(Sent::Connections(id));
    }
    fn listeners(&self) -> Vec<ListenerAddress> {
        vec![(1000, connection_stats::path("/run/keys"))]
    }
    fn listener_stats(&self) -> ListenerStats {
        ListenerStats { thread_count: 1, ..ListenerStats::default() }
    }
    fn reset_listener_stats(&mut self) {}
    fn authenticate(&mut self, user: &[u8], password: &[u8]) -> bool {
        (user, password) == (b"user", b"password")
    }
}

impl Partitions {
    /// `count` empty partitions.
    ///
    /// # Panics
    /// If the system refuses the memory.
    #[must_use]
    pub fn new(count: usize, settings: &Settings, listener: ListenerSettings) -> Self {
        let limit = Arc::new(MemoryLimit::new((settings.memory_bytes * count) as u64));
        limit.divide(count);
        let watchers = Arc::<Watchers>::default();
        let now = Moment { boot: 1, since_boot_s: 1000, unix_s: 1_700_000_000 };
        let partition = || {
            let processor = Processor::new(settings.clone()).expect("memory");
            let service = Service::new(listener).watched_by(Arc::clone(&watchers));
            (Place::Here(Box::new(Partition::new(processor, now).within(&limit))), service)
        };
        let all = (0..count).map(|_| partition()).collect();
        Self { all, access: None, sends_until_in_place: 0, sent: Vec::new(), now }
    }

    /// The same partitions, used in place.
    #[must_use]
    pub fn in_place(self, settings: &Settings) -> Self {
        let (mut partitions, mut services) = (Vec::new(), Vec::new());
        for (place, service) in self.all {
            services.push(service);
            if let Place::Here(partition) = place {
                partitions.push(*partition);
            }
        }
        let lent = Lent::new(partitions, settings.seed);
        let access = lent.1;
        let places = (0..).map(|number| Place::Shared(access, number, None));
        Self { all: places.zip(services).collect(), access: Some(lent), ..self }
    }

    /// Releases all partitions.
    fn release(&mut self) {
        for (place, _) in &mut self.all {
            if let Place::Shared(_, _, held) = place {
                *held = None;
            }
        }
    }

    /// The executor of a partition.
    pub fn at(&mut self, at: usize) -> Executor<'_> {
        self.release();
        let (place, service) = &mut self.all[at];
        service.on(place.partition())
    }

    /// Executes all messages under way, and answers the last one first.
    ///
    /// # Panics
    /// If a kept value is gone.
    pub fn deliver(&mut self, session: &mut Session) {
        let mut answers = Vec::new();
        for sent in std::mem::take(&mut self.sent) {
            match sent {
                Sent::To(to, batch) => batch.for_each(|_, id, hash, command| {
                    let mut answer = Vec::new();
                    self.at(to).execute(hash, command, &mut answer);
                    let mut answer = Output::from(answer);
                    answer.insert(self.at(to).take_long_values());
                    answers.push((id, answer));
                }),
                Sent::Reserve(to, count) => {
                    let room = self.at(to).partition.processor.take_chunks(count);
                    session.on_room(self, room.unwrap_or_default());
                }
                Sent::Large(to, id, store) => {
                    let mut answer = Vec::new();
                    self.at(to).execute_large(store, &mut answer);
                    answers.push((id, answer.into()));
                }
                Sent::Fetch(to, kept, offset) => {
                    let piece = self.at(to).partition.processor.piece(&kept, offset, PIECE_BYTES);
                    assert!(session.on_piece(piece.unwrap_or_default()), "a piece of it");
                }
                Sent::Connections(id) => {
                    for at in 0..self.all.len() {
                        let connection = ConnectionStats {
                            number: 40 + at as u32,
                            listener: 1000,
                            peer: None,
                            state: ConnectionState::Executing,
                            idle_s: 3,
                        };
                        session.on_connections(self, id, &[connection]);
                    }
                }
                Sent::ToAll(id, request, first) => {
                    for at in first..self.all.len() {
                        let stats = self.at(at).collect(request);
                        session.on_stats(self, id, &stats);
                    }
                }
            }
        }
        while let Some((id, answer)) = answers.pop() {
            session.on_reply(id, answer);
        }
    }

    /// Ends a turn of all reactors: the session, a watcher, gets its lines.
    pub fn end_turn(&mut self, session: &mut Session) {
        for at in 0..self.all.len() {
            let mut all = Vec::new();
            self.at(at).flush_watched(1_700_000_000_000_005, |_, _, lines| all.extend(lines));
            session.on_watched(&all);
            self.at(at).service.begin_client(|| 40 + at as u32);
        }
    }

    /// Lets time pass.
    pub fn wait(&mut self, seconds: i64) {
        self.now.since_boot_s += seconds;
        self.set_wall_clock(seconds);
    }

    /// Sets the wall clock this much forward, or back.
    pub fn set_wall_clock(&mut self, seconds: i64) {
        self.now.unix_s += seconds;
        for at in 0..self.all.len() {
            let now = self.now;
            self.at(at).partition.set_now(now);
        }
    }
}
