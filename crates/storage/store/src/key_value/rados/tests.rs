//! Keys in a double of a cluster: the same outcomes as in memory, whatever leaves it, and one owner.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ceph::double::Double;
use kv::log::{Failure, FetchError};
use kv::{Atomic, Attributes, Condition, Extension, Processor, Stored};
use linux::{Moment, MomentClock};
use memory::Pool;
use proptest::collection::vec;
use proptest::prelude::*;
use reactor::{Completion, Operation};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::format::{HEAD_BYTES, PART_BYTES};
use super::*;
use crate::key_value::durable::{Need, Pause};
use crate::namespace::{Reply, StoreIo, Ticket};

/// Long enough that nothing is late on a machine with much else to do, where nothing waits for it.
const LONG: Times = Times {
    renew: Duration::from_secs(600),
    serve: Duration::from_secs(600),
    take: Duration::from_millis(300),
};

fn place(double: &Double, memory_bytes: u64) -> RadosPlace {
    RadosPlace {
        cluster: double.name(),
        pool: "pool".into(),
        namespace: "keys".into(),
        memory_bytes,
        item_bytes: 1 << 20,
        refuses: false,
    }
}

/// A reactor around one partition.
struct Rig {
    store: Option<KeyValueRados>,
    partition: ObjectPartition,
    io: RigIo,
}

struct RigIo {
    pool: Pool,
    clock: MomentClock,
    start: Instant,
    /// Seconds by which all clocks are ahead.
    ahead_s: u64,
    awaited: Vec<Ticket>,
    timers: Vec<(u64, Ticket)>,
}

impl StoreIo for RigIo {
    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64 + self.ahead_s * 1_000_000_000
    }

    fn moment(&self) -> Moment {
        let now = self.clock.at(self.start.elapsed().as_nanos() as u64);
        let ahead_s = self.ahead_s.cast_signed();
        Moment { since_boot_s: now.since_boot_s + ahead_s, unix_s: now.unix_s + ahead_s, ..now }
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn start(&mut self, ticket: Ticket, operation: Operation) {
        assert!(matches!(operation, Operation::Await { .. }));
        self.awaited.push(ticket);
    }

    fn set_timer(&mut self, deadline_ns: u64, ticket: Ticket) {
        self.timers.push((deadline_ns, ticket));
    }

    fn reply(&mut self, _: Ticket, _: Reply) {
        unreachable!("a partition has no requests")
    }
}

impl Rig {
    fn open(place: &RadosPlace, times: Times) -> Result<Self, OpenError> {
        let store = KeyValueRados::open_with(Double::library(), place, times)?;
        store.set_reactor_count(1)?;
        let start = Instant::now();
        let io = RigIo {
            pool: Pool::new(1 << 16).unwrap(),
            clock: MomentClock::new(start),
            start,
            ahead_s: 0,
            awaited: Vec::new(),
            timers: Vec::new(),
        };
        let partition = store.attach_as_it_is(0, io.moment()).unwrap();
        Ok(Self { store: Some(store), partition, io })
    }

    fn of(double: &Double, memory_bytes: u64) -> Self {
        Self::open(&place(double, memory_bytes), LONG).unwrap()
    }

    /// One turn: takes in what has ended, if it ends soon, and goes on.
    fn turn(&mut self) {
        self.partition.poll(&mut self.io);
        let bell = self.partition.bell_of_test();
        let mut polled = [PollFd::new(bell, PollFlags::IN)];
        let ready = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 2_000_000 })).unwrap();
        if ready > 0
            && let Some(ticket) = self.io.awaited.pop()
        {
            let completion = Completion { token: ticket.0, result: Ok(0), buffer: None };
            self.partition.on_completion(&mut self.io, ticket, completion);
        }
        let now_ns = self.io.now_ns();
        let (due, rest) = self.io.timers.iter().partition(|(at_ns, _)| *at_ns <= now_ns);
        self.io.timers = rest;
        let due: Vec<(u64, Ticket)> = due;
        for (_, ticket) in due {
            self.partition.on_timer(&mut self.io, ticket);
        }
    }

    fn turns_until(&mut self, what: &str, mut is: impl FnMut(&mut Self) -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        while !is(self) {
            assert!(Instant::now() < until, "{what}");
            self.turn();
        }
    }

    /// As a command does: has its key fetched, if it must be, and then executed.
    fn run_now<T>(
        &mut self,
        key: &[u8],
        need: Need,
        run: impl FnOnce(&mut Processor) -> T,
    ) -> Result<T, FetchError> {
        self.partition.partition().set_now(self.io.moment());
        while self.partition.must_fetch(key, need) {
            self.partition.fetch(key);
            let mut loaded = None;
            self.turns_until("a key is fetched", |rig| {
                loaded = rig.partition.next_loaded();
                loaded.is_some()
            });
            let loaded = loaded.expect("just seen");
            assert_eq!(&*loaded.key, key);
            loaded.result?;
        }
        Ok(run(&mut self.partition.partition().processor))
    }

    /// As a command that is answered once its change is durable.
    fn run<T>(&mut self, key: &[u8], need: Need, run: impl FnOnce(&mut Processor) -> T) -> T {
        let outcome = self.run_now(key, need, run).unwrap();
        let hash = self.partition.partition().processor.hash(key);
        if let Some(number) = self.partition.awaited(hash) {
            self.turns_until("a change settles", |rig| rig.partition.is_settled(number));
        }
        outcome
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Stored {
        self.run(key, Need::Nothing, |processor| store(processor, key, value, 0, Condition::Always))
    }

    /// As a command that is not answered yet: the change that its answer waits for.
    fn begin_set(&mut self, key: &[u8], value: &[u8]) -> u64 {
        let set = |processor: &mut Processor| store(processor, key, value, 0, Condition::Always);
        assert_eq!(self.run_now(key, Need::Nothing, set), Ok(Stored::Done));
        let hash = self.partition.partition().processor.hash(key);
        self.partition.awaited(hash).expect("it is not written yet")
    }

    fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        self.run(key, Need::Value, |processor| value_of(processor, key))
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        self.run(key, Need::Presence, |processor| processor.delete(processor.hash(key), key))
    }

    /// Stops as a target does that ends.
    fn stop(mut self) {
        self.partition.stop(&mut self.io);
        self.turns_until("it stops", |rig| rig.partition.has_stopped());
        drop(self.partition);
        drop(self.store.take());
    }

    /// Ends as a target does that is killed: nothing of it does anything any more.
    fn die(self, double: &Double) {
        let session = self.store.as_ref().expect("open").tenure.session();
        double.blocklist(session.heads.cluster().client_id());
        std::mem::forget(self);
    }

    fn list(&mut self) -> Vec<Vec<u8>> {
        self.partition.begin_list(true);
        let mut listed = None;
        self.turns_until("a list ends", |rig| {
            listed = rig.partition.next_listed();
            listed.is_some()
        });
        listed.flatten().expect("it is listed").iter().map(|key| key.to_vec()).collect()
    }
}

fn store(processor: &mut Processor, key: &[u8], value: &[u8], seconds: u32, condition: Condition) -> Stored {
    let expiry_s = if seconds == 0 { 0 } else { processor.now_s() + seconds };
    let attributes = Attributes { flags: (value.len() as u32).wrapping_mul(77_777), expiry_s };
    processor.store(processor.hash(key), key, value, attributes, condition)
}

fn value_of(processor: &mut Processor, key: &[u8]) -> Option<Vec<u8>> {
    let place = processor.find(processor.hash(key), key)?;
    Some(processor.value(place).to_vec())
}

/// Bytes that tell a value from others.
fn bytes(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at / 4099) as u8 ^ (at as u8).wrapping_mul(31) ^ seed).collect()
}

fn parts_of(double: &Double) -> Vec<String> {
    double.objects("pool", "keys.parts").into_keys().collect()
}

#[derive(Clone, Debug)]
enum Step {
    Store(u8, u16, u8, Kind),
    Get(u8),
    Delete(u8),
    Append(u8, u16),
    Add(u8, u64),
    Touch(u8, bool),
    Pass(u8),
    Restart,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Always,
    Absent,
    Present,
    /// With the number that a get had, if any.
    Unchanged,
    /// For some seconds.
    Expiring(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let kind = prop_oneof![
        4 => Just(Kind::Always),
        1 => Just(Kind::Absent),
        1 => Just(Kind::Present),
        2 => Just(Kind::Unchanged),
        2 => (1u8..20).prop_map(Kind::Expiring),
    ];
    let key = 0u8..24;
    let length = prop_oneof![0u16..100, 0u16..50_000, Just(8)];
    let step = prop_oneof![
        8 => (key.clone(), length.clone(), any::<u8>(), kind).prop_map(|(key, length, seed, kind)| Step::Store(key, length, seed, kind)),
        6 => key.clone().prop_map(Step::Get),
        2 => key.clone().prop_map(Step::Delete),
        1 => (key.clone(), 0u16..3000).prop_map(|(key, length)| Step::Append(key, length)),
        2 => (key.clone(), any::<u64>()).prop_map(|(key, operand)| Step::Add(key, operand)),
        1 => (key, any::<bool>()).prop_map(|(key, ends)| Step::Touch(key, ends)),
        1 => (1u8..10).prop_map(Step::Pass),
        1 => Just(Step::Restart),
    ];
    vec(step, 1..60)
}

/// The outcome of a step, without numbers that differ.
type Outcome = (Option<Stored>, Option<Vec<u8>>, Option<(u32, u32)>, bool);

/// Carries a step out. `cas` has the numbers that gets had, by key.
fn carry_out(processor: &mut Processor, step: &Step, cas: &mut HashMap<u8, u64>) -> Outcome {
    let name = |key: u8| vec![b'k', key, 0, b'%'];
    match *step {
        Step::Store(key, length, seed, kind) => {
            let condition = match kind {
                Kind::Always | Kind::Expiring(_) => Condition::Always,
                Kind::Absent => Condition::Absent,
                Kind::Present => Condition::Present,
                Kind::Unchanged => Condition::Unchanged(cas.get(&key).copied().unwrap_or(0)),
            };
            let seconds = if let Kind::Expiring(seconds) = kind { u32::from(seconds) } else { 0 };
            let stored = store(processor, &name(key), &bytes(length.into(), seed), seconds, condition);
            (Some(stored), None, None, false)
        }
        Step::Get(key) => {
            let (name, hash) = (name(key), processor.hash(&name(key)));
            let Some(place) = processor.find(hash, &name) else { return (None, None, None, false) };
            let Attributes { flags, expiry_s } = processor.attributes(place);
            let left_s = if expiry_s == 0 { 0 } else { expiry_s - processor.now_s() };
            let value = processor.value(place).to_vec();
            cas.extend(processor.cas(hash, &name).map(|cas| (key, cas)));
            (None, Some(value), Some((flags, left_s)), true)
        }
        Step::Delete(key) => (None, None, None, processor.delete(processor.hash(&name(key)), &name(key))),
        Step::Append(key, length) => {
            let (name, hash) = (name(key), processor.hash(&name(key)));
            let Some(place) = processor.find(hash, &name) else { return (None, None, None, false) };
            let rest = bytes(length.into(), key);
            let more = Extension { at_end: true, chunks: &[], rest: &rest };
            (Some(processor.extend(hash, &name, place, more)), None, None, true)
        }
        Step::Add(key, operand) => {
            let (name, hash) = (name(key), processor.hash(&name(key)));
            let Some(place) = processor.find(hash, &name) else { return (None, None, None, false) };
            let result = processor.atomic(hash, &name, place, Atomic::Add(operand));
            (None, Some(format!("{result:?}").into_bytes()), None, true)
        }
        Step::Touch(key, ends) => {
            let expiry_s = if ends { processor.now_s() + 5 } else { 0 };
            (None, None, None, processor.set_expiry(processor.hash(&name(key)), &name(key), expiry_s))
        }
        Step::Pass(_) | Step::Restart => (None, None, None, false),
    }
}

fn need_of(step: &Step) -> (Vec<u8>, Need) {
    let (key, need) = match *step {
        Step::Store(key, .., Kind::Always | Kind::Expiring(_)) => (key, Need::Nothing),
        Step::Store(key, .., Kind::Absent | Kind::Present) | Step::Delete(key) => (key, Need::Presence),
        Step::Store(key, ..)
        | Step::Get(key)
        | Step::Append(key, _)
        | Step::Add(key, _)
        | Step::Touch(key, _) => (key, Need::Value),
        Step::Pass(_) | Step::Restart => (0, Need::Nothing),
    };
    (vec![b'k', key, 0, b'%'], need)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// In a memory that holds a part of them, and over restarts.
    #[test]
    fn keys_in_a_cluster_are_keys_in_memory(steps in steps()) {
        let double = Double::new();
        let mut rig = Rig::of(&double, 256 << 10);
        let model = kv::Settings { memory_bytes: 16 << 20, inline_bytes_max: 0, ..kv::Settings::default() };
        let mut model = Partition::new(Processor::new(model).unwrap(), rig.io.moment());
        let (mut cas, mut model_cas) = (HashMap::new(), HashMap::new());
        for step in steps {
            match step {
                Step::Pass(seconds) => rig.io.ahead_s += u64::from(seconds),
                Step::Restart => {
                    let ahead_s = rig.io.ahead_s;
                    rig.stop();
                    rig = Rig::of(&double, 256 << 10);
                    rig.io.ahead_s = ahead_s;
                }
                step => {
                    let (key, need) = need_of(&step);
                    let now = rig.io.moment();
                    model.set_now(now);
                    let expected = carry_out(&mut model.processor, &step, &mut model_cas);
                    let outcome = rig.run(&key, need, |processor| carry_out(processor, &step, &mut cas));
                    // The second may have changed between the two.
                    let is_same_second = rig.io.moment() == now;
                    if is_same_second {
                        prop_assert_eq!(outcome, expected, "{:?}", step);
                    } else {
                        return Ok(());
                    }
                }
            }
        }
        rig.stop();
    }
}

#[test]
fn long_values_are_in_parts_which_go_with_them() {
    let double = Double::new();
    let mut rig = Rig::of(&double, 64 << 20);
    let lengths = [PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES, 9_500_000];
    for (seed, length) in (0..).zip(lengths) {
        assert_eq!(rig.set(b"long", &bytes(length, seed)), Stored::Done);
        rig.turns_until("old parts are removed", |_| {
            parts_of(&double).len() == if length > PART_BYTES { length.div_ceil(PART_BYTES) } else { 0 }
        });
        // It is read anew by another owner.
        rig.stop();
        rig = Rig::of(&double, 64 << 20);
        assert!(rig.get(b"long").unwrap() == bytes(length, seed), "{length}");
    }
    assert_eq!(rig.set(b"long", b"short"), Stored::Done);
    rig.turns_until("parts go with a short value", |_| parts_of(&double).is_empty());
    assert_eq!(rig.set(b"long", &bytes(PART_BYTES * 2, 9)), Stored::Done);
    assert!(rig.delete(b"long"));
    rig.turns_until("parts go with the key", |_| parts_of(&double).is_empty());
    assert_eq!(rig.get(b"long"), None);
    rig.stop();
}

#[test]
fn an_owner_that_dies_leaves_the_value_before_or_after_and_its_strays_are_removed() {
    let (old, new) = (bytes(9_000_000, 1), bytes(13_000_000, 2));
    let mut seen = [false; 2];
    for change_count in 0..10 {
        let double = Double::new();
        let times = Times { serve: Duration::from_secs(60), ..LONG };
        let mut rig = Rig::open(&place(&double, 64 << 20), times).unwrap();
        assert_eq!(rig.set(b"key", &old), Stored::Done);
        double.die_after(Some(change_count));
        let number = rig.begin_set(b"key", &new);
        for _ in 0..20 {
            rig.turn();
        }
        let was_answered = rig.partition.settled() >= number;
        rig.die(&double);
        double.die_after(None);
        let mut rig = Rig::of(&double, 64 << 20);
        let value = rig.get(b"key").expect("a value is there");
        let is_new = value == new;
        assert!(is_new || value == old, "after {change_count} changes it is neither");
        assert!(is_new || !was_answered, "what was answered is there");
        seen[usize::from(is_new)] = true;
        rig.turns_until("strays are removed", |_| {
            parts_of(&double).len() == value.len().div_ceil(PART_BYTES)
        });
        rig.stop();
    }
    assert_eq!(seen, [true; 2]);
}

#[test]
fn a_second_owner_is_refused_by_the_name_of_the_first_until_that_has_ended() {
    let double = Double::new();
    let times = Times { renew: Duration::from_millis(20), ..LONG };
    let mut rig = Rig::open(&place(&double, 1 << 20), times).unwrap();
    assert_eq!(rig.set(b"key", b"value"), Stored::Done);
    for refuses in [false, true] {
        let refused = Rig::open(&RadosPlace { refuses, ..place(&double, 1 << 20) }, times).err();
        let message = refused.expect("it is refused").to_string();
        let process = std::process::id();
        assert!(message.contains("its keys are owned by nvlane on "), "{message}");
        assert!(message.contains(&format!("process {process}: end that target")), "{message}");
    }
    // The same pool has other keys in another namespace.
    let other = RadosPlace { namespace: "other".into(), ..place(&double, 1 << 20) };
    let mut other = Rig::open(&other, times).unwrap();
    assert_eq!(other.get(b"key"), None);
    other.stop();
    assert_eq!(rig.get(b"key").as_deref(), Some(&b"value"[..]));
    rig.stop();
    let started = Instant::now();
    let mut next =
        Rig::open(&place(&double, 1 << 20), Times { take: Duration::from_secs(30), ..times }).unwrap();
    assert!(started.elapsed() < Duration::from_secs(20), "a lease that was given back is not waited for");
    assert_eq!(next.get(b"key").as_deref(), Some(&b"value"[..]));
    next.stop();
}

/// As a process that is stopped for a while: it renews nothing.
#[test]
fn an_owner_that_was_passed_over_serves_and_writes_nothing_until_the_keys_are_its_own_again() {
    let double = Double::new();
    let times = Times { take: Duration::from_secs(3), ..LONG };
    let mut first = Rig::open(&place(&double, 64 << 20), times).unwrap();
    for key in [b"key", b"old"] {
        assert_eq!(first.set(key, b"first"), Stored::Done);
    }
    assert_eq!(first.get(b"absent"), None);
    let times = Times { renew: Duration::from_millis(20), ..LONG };
    let mut second = Rig::open(&place(&double, 64 << 20), times).unwrap();
    assert_eq!(second.set(b"key", b"second"), Stored::Done);
    assert_eq!(second.set(b"absent", b"there"), Stored::Done);
    assert!(second.delete(b"old"));
    // It may not have noticed: what it sends is refused.
    let (late, long) =
        (first.begin_set(b"key", b"late"), first.begin_set(b"long", &bytes(2 * PART_BYTES, 1)));
    first.turns_until("it notices", |rig| rig.partition.pause() == Some(Pause::Taken));
    assert!(first.partition.ready_partition().is_none() && first.partition.failure().is_none());
    let why = first.store.as_ref().unwrap().closed_because();
    assert!(why.is_some());
    // While the other owner lives, it goes without.
    for _ in 0..20 {
        first.turn();
        first.partition.begin_anew();
    }
    assert_eq!(first.partition.pause(), Some(Pause::Taken));
    assert!(!first.partition.is_settled(late) && !first.partition.is_settled(long));
    assert_eq!(second.get(b"key").as_deref(), Some(&b"second"[..]));
    second.stop();
    first.turns_until("the keys are its own again", |rig| {
        rig.partition.begin_anew();
        rig.partition.is_ready()
    });
    assert_eq!(first.store.as_ref().unwrap().closed_because(), None);
    // Nothing of what it had in memory, or knew to be absent.
    assert_eq!(first.get(b"key").as_deref(), Some(&b"second"[..]));
    assert_eq!(first.get(b"absent").as_deref(), Some(&b"there"[..]));
    assert_eq!((first.get(b"old"), first.get(b"long")), (None, None));
    first.turns_until("strays are removed", |_| parts_of(&double).is_empty());
    assert_eq!(first.set(b"key", b"third"), Stored::Done);
    first.stop();
    let mut next = Rig::of(&double, 1 << 20);
    assert_eq!(next.get(b"key").as_deref(), Some(&b"third"[..]));
    next.stop();
}

#[test]
fn an_owner_that_an_administrator_has_refused_owns_the_keys_again() {
    let double = Double::new();
    let times = Times { renew: Duration::from_millis(20), take: Duration::from_millis(100), ..LONG };
    let mut rig = Rig::open(&place(&double, 1 << 20), times).unwrap();
    for round in 0..3 {
        let value = [round; 10];
        assert_eq!(rig.set(b"key", &value), Stored::Done);
        let before = rig.partition.partition().processor.last_cas();
        let refused = rig.store.as_ref().unwrap().tenure.session().heads.cluster().client_id();
        double.blocklist(refused);
        rig.turns_until("it notices", |rig| rig.partition.pause() == Some(Pause::Taken));
        rig.turns_until("the keys are its own again", |rig| {
            rig.partition.begin_anew();
            rig.partition.is_ready()
        });
        assert_eq!(rig.get(b"key").as_deref(), Some(&value[..]));
        assert!(rig.partition.partition().processor.last_cas() > before, "no number is given twice");
    }
    rig.stop();
}

#[test]
fn without_an_answer_of_the_cluster_nothing_is_served_until_there_is_one() {
    let double = Double::new();
    let times = Times {
        renew: Duration::from_millis(20),
        serve: Duration::from_millis(400),
        take: Duration::from_millis(600),
    };
    let mut rig = Rig::open(&place(&double, 1 << 20), times).unwrap();
    assert_eq!(rig.set(b"key", b"value"), Stored::Done);
    double.set_hanging(true);
    rig.turns_until("the lease ends", |rig| rig.partition.pause() == Some(Pause::Unreachable));
    assert!(rig.partition.ready_partition().is_none() && rig.partition.failure().is_none());
    double.set_hanging(false);
    rig.turns_until("it is served again", |rig| rig.partition.is_ready());
    assert_eq!(rig.get(b"key").as_deref(), Some(&b"value"[..]));
    rig.stop();
}

#[test]
fn a_write_without_space_is_repeated_and_one_that_is_refused_ends_it() {
    let double = Double::new();
    let mut rig = Rig::of(&double, 1 << 20);
    double.fail_next(Errno::NOSPC);
    let number = rig.begin_set(b"key", b"value");
    rig.turns_until("it is full", |rig| rig.partition.is_full());
    assert!(rig.partition.settled() < number);
    rig.turns_until("it is written", |rig| rig.partition.settled() >= number);
    assert!(!rig.partition.is_full());
    double.fail_next(Errno::PERM);
    let number = rig.begin_set(b"key", b"other");
    rig.turns_until("it fails", |rig| rig.partition.failure() == Some(Failure::Refused));
    assert!(rig.partition.settled() < number);
    rig.stop();
}

#[test]
fn an_answer_waits_for_its_own_change_and_a_flush_for_all() {
    let double = Double::new();
    let mut rig = Rig::of(&double, 64 << 20);
    double.fail_next(Errno::NOSPC);
    let first = rig.begin_set(b"first", b"value");
    rig.turns_until("the first finds no space", |rig| rig.partition.is_full());
    let second = rig.begin_set(b"second", b"value");
    let both = rig.partition.both(Some(first), Some(second)).unwrap();
    let flush = rig.partition.request_flush();
    rig.turns_until("the second is written", |rig| rig.partition.is_settled(second));
    for number in [first, both, flush] {
        assert!(!rig.partition.is_settled(number), "the first is repeated after a second");
    }
    assert_eq!(rig.partition.both(None, Some(second)), Some(second));
    rig.turns_until("all are written", |rig| rig.partition.is_settled(flush));
    assert!(rig.partition.is_settled(first) && rig.partition.is_settled(both));
    rig.stop();
}

#[test]
fn expired_pairs_are_absent_and_removed_when_they_are_asked_for() {
    let double = Double::new();
    let mut rig = Rig::of(&double, 1 << 20);
    let set = |rig: &mut Rig, key: &[u8], seconds: u32| {
        let stored = rig
            .run(key, Need::Nothing, |processor| store(processor, key, b"value", seconds, Condition::Always));
        assert_eq!(stored, Stored::Done);
    };
    set(&mut rig, b"short", 100);
    set(&mut rig, b"long", 10_000);
    rig.stop();
    let mut rig = Rig::of(&double, 1 << 20);
    rig.io.ahead_s = 1000;
    assert_eq!(rig.get(b"short"), None);
    assert!(rig.get(b"long").is_some());
    rig.turns_until("it is removed", |_| {
        let objects = double.objects("pool", "keys");
        !objects.contains_key("short") && objects.contains_key("long")
    });
    rig.stop();
}

#[test]
fn a_list_has_all_keys_and_no_other_objects() {
    let double = Double::new();
    let mut rig = Rig::of(&double, 1 << 20);
    assert!(rig.list().is_empty());
    let mut expected: Vec<Vec<u8>> =
        (0..200_u8).map(|number| vec![number; 1 + usize::from(number) % 5]).collect();
    for key in &expected {
        assert_eq!(rig.set(key, b"value"), Stored::Done);
    }
    assert!(rig.delete(&expected.remove(17)));
    expected.sort();
    expected.dedup();
    assert_eq!(rig.list(), expected);
    rig.stop();
}

#[test]
fn an_object_that_is_none_of_a_pair_is_damage() {
    let double = Double::new();
    let mut rig = Rig::of(&double, 1 << 20);
    assert_eq!(rig.set(b"key", b"value"), Stored::Done);
    let session = rig.store.as_ref().unwrap().tenure.session();
    let written = double.objects("pool", "keys")["key"].clone();
    assert_eq!(&written[HEAD_BYTES..], b"value");
    for wrong in [&b"text"[..], &written[..written.len() - 1], &[&written[..], b"x"].concat(), &[]] {
        assert!(session.heads.replace(c"key", Some(&[]), wrong).unwrap());
        rig.partition.partition().clear();
        assert_eq!(rig.run_now(b"key", Need::Value, |_| ()), Err(FetchError::Damaged), "{wrong:?}");
    }
    assert_eq!(rig.set(b"key", b"new"), Stored::Done);
    assert_eq!(rig.get(b"key").as_deref(), Some(&b"new"[..]));
    drop(session);
    rig.stop();
}

#[test]
fn what_cannot_be_opened_is_said() {
    let double = Double::new();
    let open = |place: &RadosPlace| Rig::open(place, LONG).err().expect("it is refused").to_string();
    let missing = open(&RadosPlace { pool: "missing".into(), ..place(&double, 1 << 20) });
    assert!(
        missing.contains("cannot find the pool missing") && missing.contains("ceph osd pool"),
        "{missing}"
    );
    let little = open(&place(&double, 1000));
    assert!(little.contains("memory"), "{little}");
    let mut rig = Rig::of(&double, 1 << 20);
    let session = rig.store.as_ref().unwrap().tenure.session();
    assert!(session.heads.replace(format::OWNER, Some(&[]), b"something else").unwrap());
    let foreign = open(&place(&double, 1 << 20));
    assert!(foreign.contains("%owner") && foreign.contains("namespace="), "{foreign}");
    drop(session);
    rig.partition.stop(&mut rig.io);
}
