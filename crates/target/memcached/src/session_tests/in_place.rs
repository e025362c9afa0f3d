//! Sessions whose thread uses all partitions in place, beside others.

use std::sync::{Arc, Barrier};
use std::thread;

use super::*;
use crate::execute::{Executor, Service};
use crate::in_place::InPlace;
use kv::{ExclusiveGuard, KeyHash, Partition, PartitionAccess, PartitionSet, Processor};
use linux::Moment;
use linux::random::SplitMix64;

const NOW: Moment = Moment { boot: 1, since_boot_s: 1000, unix_s: 1_700_000_000 };

/// A thread's route to all partitions.
struct Thread<'a> {
    access: &'a PartitionAccess,
    service: Service,
    own: Option<ExclusiveGuard<'a>>,
}

impl<'a> Thread<'a> {
    fn new(access: &'a PartitionAccess) -> Self {
        Self { access, service: Service::new(ListenerSettings::default()), own: None }
    }
}

impl Router for Thread<'_> {
    fn executor(&mut self) -> Executor<'_> {
        let (own, _) = self.access.position();
        let guard = self.own.get_or_insert_with(|| self.access.exclusive_at(own, NOW));
        self.service.on(guard)
    }
    fn in_place(&mut self) -> Option<InPlace<'_>> {
        self.own = None;
        Some(InPlace { access: self.access, service: &mut self.service, now: NOW })
    }
    fn position(&self) -> (usize, usize) {
        self.access.position()
    }
    fn session(&self) -> u64 {
        0
    }
    fn send(&mut self, _: usize, _: AnswerId, _: KeyHash, _: &Command<'_>) {
        unreachable!("all commands are executed in place")
    }
    fn send_all(&mut self, _: AnswerId, _: CollectiveRequest, _: bool) {
        unreachable!("nothing is asked of all partitions")
    }
    fn reserve(&mut self, _: usize, _: usize) {
        unreachable!("no value is that long")
    }
    fn store_large(&mut self, _: usize, _: AnswerId, _: crate::LargeStore) {
        unreachable!("no value is that long")
    }
    fn fetch(&mut self, _: usize, _: Arc<kv::Kept>, _: usize) {
        unreachable!("no value is that long")
    }
    fn request_connections(&mut self, _: AnswerId) {
        unreachable!("no command of these tests lists connections")
    }
    fn listeners(&self) -> Vec<crate::ListenerAddress> {
        Vec::new()
    }
    fn listener_stats(&self) -> crate::ListenerStats {
        crate::ListenerStats::default()
    }
    fn reset_listener_stats(&mut self) {}
    fn authenticate(&mut self, _: &[u8], _: &[u8]) -> bool {
        false
    }
}

fn set(count: usize) -> Arc<PartitionSet> {
    let set = Arc::new(PartitionSet::new(count, settings().seed, None));
    for number in 0..count {
        set.put(number, Partition::new(Processor::new(settings()).expect("memory"), NOW));
    }
    set
}

/// All answers to the input, which arrives in pieces.
fn answers(session: &mut Session, router: &mut impl Router, input: &[u8], piece: usize) -> Vec<u8> {
    let mut answers = Vec::new();
    for piece in input.chunks(piece) {
        let mut progress = session.on_bytes(router, piece);
        loop {
            answers.extend_from_slice(session.output());
            session.on_sent(session.output().len());
            if progress != Progress::Stalled {
                break;
            }
            progress = session.resume(router);
        }
        assert_eq!(progress, Progress::Open);
    }
    answers
}

/// A random script of commands on a few keys, whose answers depend on the order of those on one key.
fn script(random: &mut SplitMix64, length: usize) -> Vec<u8> {
    let mut script = String::new();
    for at in 0..length {
        let key = format!("key{}", random.below(12));
        let keys = format!("{key} key{} key{} missing key{}", random.below(12), random.below(12), at % 12);
        script += &match random.below(16) {
            0 | 1 => format!("set {key} {at} 0 3\r\n{:03}\r\n", at % 1000),
            2 => format!("set {key} 0 0 {}\r\n{}\r\n", 100 + at % 50, "x".repeat(100 + at % 50)),
            3 => format!("append {key} 0 0 2\r\n{:02}\r\n", at % 100),
            4 => format!("incr {key} {at}\r\nincr {key} 1\r\nincr {key} 1 noreply\r\n"),
            5 => format!("delete {key}\r\n"),
            6 => format!("add {key} 0 0 1\r\n{}\r\n", at % 10),
            7 => format!("set {key} 0 0 1 noreply\r\n7\r\n"),
            8 => format!("mg {key} v f k\r\nmn\r\n"),
            9 => format!("ms {key} 2 T0\r\n{:02}\r\nmd {key} q\r\n", at % 100),
            10 => "bogus\r\n".into(),
            11 | 12 => format!("get {key}\r\n"),
            13 => format!("decr {key} {at}\r\nget {keys}\r\n"),
            _ => format!("get {keys}\r\n"),
        };
    }
    script.into_bytes()
}

#[test]
fn a_session_is_answered_in_place_as_by_one_partition() {
    for seed in 0..60 {
        let mut random = SplitMix64::new(seed);
        let script = script(&mut random, 400);
        let piece = 1 + random.index(3000);
        let mut alone = Partitions::new(1, &settings(), ListenerSettings::default());
        let new_session = || Session::new(ListenerSettings::default());
        let expected = answers(&mut new_session(), &mut alone, &script, script.len());
        let set = set(1 + random.index(6));
        let access = PartitionAccess::new(set, 0);
        let mut thread = Thread::new(&access);
        let answered = answers(&mut new_session(), &mut thread, &script, piece);
        assert!(
            answered == expected,
            "seed {seed}: {}\nnot {}",
            String::from_utf8_lossy(&answered),
            String::from_utf8_lossy(&expected)
        );
        // All reactors' counts together are those of one.
        let counted = |service: &Service| {
            let c = &service.counters;
            (c.get_count, c.get_hit_count, c.get_miss_count, c.set_count, c.increment_hit_count)
        };
        assert_eq!(counted(&thread.service), counted(&alone.all[0].1));
    }
}

/// As long as not all partitions are there, commands are sent to them. Those that are not answered when partitions begin to be
/// used in place come before all behind them.
#[test]
fn commands_keep_their_order_when_partitions_begin_to_be_used_in_place() {
    let mut waited_count = 0;
    for seed in 0..60 {
        let mut random = SplitMix64::new(seed);
        let script = script(&mut random, 300);
        let expected = {
            let mut alone = Partitions::new(1, &settings(), ListenerSettings::default());
            answers(&mut Session::new(ListenerSettings::default()), &mut alone, &script, script.len())
        };
        let mut client = Client::with(IN_PLACE);
        client.partitions.sends_until_in_place = 1 + random.index(150);
        let (mut answered, mut has_waited) = (Vec::new(), false);
        for piece in script.chunks(1 + random.index(900)) {
            let mut progress = client.session.on_bytes(&mut client.partitions, piece);
            loop {
                has_waited |= progress == Progress::Stalled && !client.session.is_full();
                if progress == Progress::Stalled || random.below(3) == 0 {
                    client.partitions.deliver(&mut client.session);
                }
                answered.extend_from_slice(client.session.output());
                client.session.on_sent(client.session.output().len());
                if progress != Progress::Stalled {
                    break;
                }
                progress = client.session.resume(&mut client.partitions);
            }
        }
        assert_eq!(client.partitions.sends_until_in_place, 0);
        waited_count += u32::from(has_waited);
        client.partitions.deliver(&mut client.session);
        answered.extend_from_slice(client.session.output());
        assert!(
            answered == expected,
            "seed {seed}: {}\nnot {}",
            String::from_utf8_lossy(&answered),
            String::from_utf8_lossy(&expected)
        );
    }
    // In the others, nothing was under way.
    assert!(waited_count > 20, "{waited_count}");
}

#[test]
fn a_look_up_tells_of_those_before_it_in_its_batch() {
    for (length, count) in [(1, 1), (1, 3), (300, 1), (300, 3)] {
        let access = PartitionAccess::new(set(count), 0);
        let (mut session, mut thread) = (Session::new(ListenerSettings::default()), Thread::new(&access));
        let value = "x".repeat(length);
        for key in ["a", "b"] {
            let stored = format!("set {key} 0 0 {length}\r\n{value}\r\n");
            assert_eq!(answers(&mut session, &mut thread, stored.as_bytes(), 1 << 20), b"STORED\r\n");
        }
        let said = b"mg a h u\r\nmg a h u\r\nmg a s\r\nmg b h\r\nmg b h\r\nmg a h\r\n";
        let answered = answers(&mut session, &mut thread, said, said.len());
        // A short pair in the index has no mark of use before a client asks for one.
        let of_a = u8::from(length > 1);
        let expected = format!("HD h0\r\nHD h0\r\nHD s{length}\r\nHD h0\r\nHD h1\r\nHD h{of_a}\r\n");
        assert_eq!(String::from_utf8_lossy(&answered), expected, "{length} bytes, {count} partitions");
    }
}

/// Look-ups of all forms are answered as by one partition that takes them for changes, in batches of nothing else and alone:
/// also what they tell of the look-ups before them.
#[test]
fn look_ups_are_answered_in_place_as_by_one_partition() {
    let flags = [
        "v",
        "v k q",
        "f s t",
        "c",
        "c v",
        "h",
        "l v",
        "h u v",
        "u v",
        "t q",
        "O1 k",
        "b",
        "v x",
        "C999999 v",
    ];
    for seed in 0..60 {
        let mut random = SplitMix64::new(seed);
        let mut said = String::new();
        for number in 0..12 {
            let value = "x".repeat([1, 8, 30, 300, 5000][random.index(5)]);
            let (time, kept) = ([0, 0, 50][random.index(3)], [0, 7, 70_000][random.index(3)]);
            said += &format!("set key{number} {kept} {time} {}\r\n{value}\r\n", value.len());
        }
        said += "md key1 I\r\nms key2 1 I\r\nv\r\n";
        for _ in 0..150 {
            // One key is missing.
            let key = format!("key{}", random.below(13));
            said += &match random.below(8) {
                0 => "mn\r\n".to_owned(),
                1 => format!("gets {key} key{}\r\n", random.below(13)),
                2 => format!("get {key}\r\n"),
                3 if random.below(8) == 0 => {
                    format!("mg {key} T30 t\r\nmg {key} N30 v\r\nmg {key} R60 v\r\n")
                }
                // `E` would number a new pair, so it stands for nothing here but that the command may change one.
                _ => format!("mg {key} {} E1\r\n", flags[random.index(flags.len())]),
            };
        }
        let changing = said.clone().into_bytes();
        let said = said.replace(" E1\r\n", "\r\n").into_bytes();
        let new_session = || Session::new(ListenerSettings::default());
        let mut alone = Partitions::new(1, &settings(), ListenerSettings::default());
        let expected = answers(&mut new_session(), &mut alone, &changing, changing.len());
        // A piece may be a single command.
        for piece in [said.len(), 1 + random.index(60)] {
            let access = PartitionAccess::new(set(1 + random.index(5)), 0);
            let mut thread = Thread::new(&access);
            let answered = answers(&mut new_session(), &mut thread, &said, piece);
            let without_numbers = |answers: &[u8]| {
                // Numbers of values are those of each partition.
                let text = String::from_utf8_lossy(answers).into_owned();
                text.split("\r\n").map(without_cas).collect::<Vec<_>>()
            };
            assert_eq!(without_numbers(&answered), without_numbers(&expected), "seed {seed}");
            let counted = |service: &Service| {
                let c = &service.counters;
                (c.get_count, c.get_hit_count, c.get_miss_count, c.meta_count, c.touch_count)
            };
            assert_eq!(counted(&thread.service), counted(&alone.all[0].1), "seed {seed}");
        }
    }
}

/// A line of an answer without the number of the value.
fn without_cas(line: &str) -> String {
    let words = line.split(' ');
    if line.starts_with("VALUE") {
        return words.take(4).collect::<Vec<_>>().join(" ");
    }
    words.filter(|word| !word.starts_with('c')).collect::<Vec<_>>().join(" ")
}

#[test]
fn what_is_read_under_shared_locks_is_marked_as_read() {
    let access = PartitionAccess::new(set(3), 1);
    let mut thread = Thread::new(&access);
    let mut session = Session::new(ListenerSettings::default());
    for (said, hit) in [("get key none\r\n", 0), ("mg key h\r\n", 1)] {
        if hit == 0 {
            let value = "v".repeat(50);
            let store = format!("set key 0 0 50\r\n{value}\r\n");
            assert_eq!(answers(&mut session, &mut thread, store.as_bytes(), 1000), b"STORED\r\n");
            assert_eq!(answers(&mut session, &mut thread, b"mg key h\r\n", 1000), b"HD h0\r\n");
            // A meta get marks the pair as well: it is stored anew.
            answers(&mut session, &mut thread, store.as_bytes(), 1000);
        }
        let answer = answers(&mut session, &mut thread, said.as_bytes(), 1000);
        assert_eq!(answer.starts_with(b"HD h1"), hit == 1, "{}", String::from_utf8_lossy(&answer));
    }
}

#[test]
fn sessions_on_threads_keep_their_order_and_lose_no_addition() {
    const ROUNDS: usize = 300;
    let (count, set) = (3, set(3));
    let barrier = Barrier::new(count);
    thread::scope(|scope| {
        for own in 0..count {
            let (set, barrier) = (Arc::clone(&set), &barrier);
            scope.spawn(move || {
                let access = PartitionAccess::new(set, own);
                let mut thread = Thread::new(&access);
                let mut session = Session::new(ListenerSettings::default());
                let (mut random, mut created) = (SplitMix64::new(own as u64), String::new());
                for shared in 0..8 {
                    created += &format!("add sum{shared} 0 0 1 noreply\r\n0\r\n");
                }
                answers(&mut session, &mut thread, created.as_bytes(), 10_000);
                barrier.wait();
                for round in 0..ROUNDS {
                    // Each of the thread's own keys is stored, read and stored again; the sums are everybody's.
                    let (mut said, mut expected) = (String::new(), String::new());
                    for key in 0..30 {
                        let (first, second) = (format!("{round:05}"), format!("{key:05}"));
                        said += &format!("set own{own}-{key} 0 0 5\r\n{first}\r\nget own{own}-{key}\r\n");
                        expected += &format!("STORED\r\nVALUE own{own}-{key} 0 5\r\n{first}\r\nEND\r\n");
                        said += &format!("incr sum{} 1 noreply\r\n", key % 8);
                        said += &format!("set own{own}-{key} 0 0 5\r\n{second}\r\n");
                        expected += "STORED\r\n";
                    }
                    for key in 0..30 {
                        said += &format!("get own{own}-{key} sum-missing\r\n");
                        expected += &format!("VALUE own{own}-{key} 0 5\r\n{key:05}\r\nEND\r\n");
                    }
                    let piece = 50 + random.index(4000);
                    let answered = answers(&mut session, &mut thread, said.as_bytes(), piece);
                    assert!(answered == expected.as_bytes(), "{}", String::from_utf8_lossy(&answered));
                }
            });
        }
    });
    let access = PartitionAccess::new(set, 0);
    let mut thread = Thread::new(&access);
    for sum in 0..8 {
        let said = format!("get sum{sum}\r\n");
        let answer =
            answers(&mut Session::new(ListenerSettings::default()), &mut thread, said.as_bytes(), 100);
        let keys = (0..30).filter(|key| key % 8 == sum).count();
        let total = (keys * ROUNDS * count).to_string();
        let text = String::from_utf8_lossy(&answer).into_owned();
        let value = text.split("\r\n").nth(1).expect("a value").trim_end();
        assert_eq!(value, total);
    }
}

/// What is asked of all partitions goes by message: what a client sends behind it waits for their answers.
#[test]
fn commands_behind_a_flush_wait_until_all_partitions_have_flushed() {
    let mut client = Client::with(IN_PLACE);
    for key in 0..20 {
        client.talk(&format!("set key{key} 0 0 1|x|"), "STORED|");
    }
    let mut said = b"flush_all\r\n".to_vec();
    (0..20).for_each(|key| said.extend(format!("get key{key}\r\nset key{key} 0 0 1\r\ny\r\n").bytes()));
    assert_eq!(client.session.on_bytes(&mut client.partitions, &said), Progress::Stalled);
    assert!(client.session.output().is_empty());
    assert_eq!(client.session.resume(&mut client.partitions), Progress::Stalled);
    client.partitions.deliver(&mut client.session);
    assert!(client.session.can_resume());
    assert_eq!(client.session.resume(&mut client.partitions), Progress::Open);
    let expected = format!("OK\r\n{}", "END\r\nSTORED\r\n".repeat(20));
    assert_eq!(String::from_utf8_lossy(client.session.output()), expected);
}

/// Of a batch on several partitions, values beyond the limit of the output are kept where they lie.
#[test]
fn a_batch_beyond_the_limit_of_the_output_copies_little() {
    let mut client = Client::with(IN_PLACE);
    for key in 0..30 {
        let value = "v".repeat(60_000);
        client.talk(&format!("set key{key} 0 0 60000|{value}|"), "STORED|");
    }
    // Look-ups alone would stop at the limit.
    let mut said = b"delete none\r\n".to_vec();
    said.extend((0..30).flat_map(|key| format!("mg key{key} v\r\n").into_bytes()));
    client.session.on_bytes(&mut client.partitions, &said);
    assert!(client.session.is_full() && client.session.has_long());
    let copied_bytes: usize = client.session.pieces().map(<[u8]>::len).sum();
    assert!(copied_bytes < 400_000, "{copied_bytes}");
    let answer = client.send(b"");
    assert_eq!(answer.len(), b"NOT_FOUND\r\n".len() + 30 * (b"VA 60000\r\n\r\n".len() + 60_000));
}
