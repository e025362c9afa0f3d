//! Key-value commands over NVMe, vendor commands included, with partitions on one reactor and on several.

use host::BlockingKeyValue;
use host::{
    AtomicFunction, AtomicOperation, ElementCode, Failure, Key, StoreOptions, VectorComparison,
    VectorFunction,
};
use reactor::EngineKind;
use subsystem::config::Threads;
use wire::kv::batch::{BatchCollect, BatchSubmit};
use wire::status::Status;

use crate::setup::{PATIENCE, Rig, engines, options};

const KEY_COUNT: u32 = 300;

fn rig(threads: u16) -> Rig {
    Rig::with(EngineKind::Epoll, &["kv:ram:64M"], |config| config.reactors.threads = Threads::Count(threads))
}

pub(crate) fn connect(rig: &Rig) -> BlockingKeyValue {
    let association = rig.connect(options().with_lanes(1));
    let namespace = association.addressed_key_value().expect("a namespace of keys and values");
    BlockingKeyValue::new(&association, namespace).expect("a lane")
}

fn key(number: u32) -> Key {
    Key::new(format!("key-{number}").as_bytes()).expect("1 to 16 bytes")
}

fn failure<T>(ended: Result<T, host::Error>) -> Option<Failure> {
    ended.err().and_then(|error| match error {
        host::Error::Failed { failure, .. } => Some(failure),
        _ => None,
    })
}

#[test]
fn values_come_back_whatever_their_length_and_partition() {
    for engine in engines() {
        let rig = Rig::with(engine, &["kv:ram:64M"], |_| {});
        let mut keys = connect(&rig);
        for (number, length) in [(0, 0), (1, 1), (2, 4096), (3, 8193), (4, 100_000), (5, 1 << 20)] {
            let value: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            keys.store(&key(number), &value).expect("stored");
            assert!(keys.retrieve(&key(number)).expect("there") == Some(value), "{length} bytes");
            assert!(keys.exist(&key(number)).expect("asked"));
        }
        assert!(!keys.store_if(&key(1), b"x", StoreOptions::MUST_NOT_EXIST).expect("asked"));
        assert!(!keys.store_if(&key(9), b"x", StoreOptions::MUST_EXIST).expect("asked"));
        keys.delete(&key(1)).expect("deleted");
        keys.delete(&key(1)).expect("deleting what is not there is no failure");
        assert_eq!(keys.retrieve(&key(1)).expect("asked"), None);
    }
}

#[test]
fn every_key_is_listed_once() {
    let rig = rig(3);
    let mut keys = connect(&rig);
    let mut batch = keys.batch().expect("a batch");
    for number in 0..6000 {
        if batch.store(&key(number), b"v", StoreOptions::empty()).is_err() {
            assert!(keys.run_batch(&mut batch).expect("run").all(|outcome| outcome.status.is_success()));
            batch.clear();
            batch.store(&key(number), b"v", StoreOptions::empty()).expect("room");
        }
    }
    assert!(keys.run_batch(&mut batch).expect("run").all(|outcome| outcome.status.is_success()));
    let mut found = Vec::new();
    keys.for_each_key(|key| {
        found.push(*key);
        true
    })
    .expect("listed");
    assert_eq!(found.len(), 6000);
    found.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
    found.dedup();
    assert_eq!(found.len(), 6000);
}

#[test]
fn a_batch_does_what_its_operations_would_do_one_by_one() {
    for threads in [1, 3] {
        let rig = rig(threads);
        let mut keys = connect(&rig);
        let mut batch = keys.batch().expect("a batch");
        for number in 0..KEY_COUNT {
            let value = number.to_le_bytes().repeat(number as usize % 20);
            batch.store(&key(number), &value, StoreOptions::empty()).expect("room");
        }
        let stored: Vec<_> = keys.run_batch(&mut batch).expect("run").map(|outcome| outcome.status).collect();
        assert_eq!(stored, vec![Status::SUCCESS; KEY_COUNT as usize]);
        batch.clear();
        // One key in three does not exist; some buffers are shorter than their value.
        for number in 0..KEY_COUNT {
            batch.retrieve(&key(number * 3 / 2), 64).expect("room");
        }
        let outcomes = keys.run_batch(&mut batch).expect("run");
        let mut count = 0;
        for (number, outcome) in (0..KEY_COUNT).map(|number| number * 3 / 2).zip(outcomes) {
            count += 1;
            if number >= KEY_COUNT {
                assert_eq!(outcome.status, Status::KEY_DOES_NOT_EXIST, "key {number}");
                continue;
            }
            let value = number.to_le_bytes().repeat(number as usize % 20);
            assert_eq!((outcome.status, outcome.result), (Status::SUCCESS, value.len() as u64));
            assert_eq!(outcome.data, &value[..value.len().min(64)], "key {number}");
        }
        assert_eq!(count, KEY_COUNT);
        batch.clear();
        // Commands on one key see each other's effects.
        let (counter, add) = (key(9999), AtomicOperation::new(AtomicFunction::ADD, 2));
        for _ in 0..100 {
            batch.atomic(&counter, &add.or_create(5)).expect("room");
        }
        batch.delete(&counter).expect("room");
        batch.exist(&counter).expect("room");
        let results: Vec<_> =
            keys.run_batch(&mut batch).expect("run").map(|outcome| outcome.result).collect();
        let expected: Vec<u64> = (0..100).map(|at| 5 + 2 * at).chain([0, 0]).collect();
        assert_eq!(results, expected);
    }
}

#[test]
fn numbers_and_vectors_change_where_they_are() {
    for threads in [1, 3] {
        let rig = rig(threads);
        let mut keys = connect(&rig);
        for number in 0..20 {
            let (counter, vector) = (key(number), key(1000 + number));
            let missing = keys.fetch_add(&counter, 1, None);
            let absent = Failure::Status(Status::KEY_DOES_NOT_EXIST.with_dnr());
            assert_eq!(failure(missing), Some(absent));
            assert_eq!(keys.fetch_add(&counter, 3, Some(10)).expect("created"), 10);
            assert_eq!(keys.fetch_add(&counter, 4, Some(10)).expect("added"), 13);
            let swap = keys.compare_and_swap(&counter, 17, 1).expect("swapped");
            assert!(swap.took_effect && swap.before == 17);
            let stays = keys.compare_and_swap(&counter, 17, 2).expect("compared");
            assert!(!stays.took_effect && stays.before == 1);
            let value: Vec<u8> = (0..5000u32).flat_map(u32::to_le_bytes).collect();
            keys.store(&vector, &value).expect("stored");
            let add = (ElementCode::U32, VectorFunction::ADD);
            assert_eq!(keys.vector_scalar(&vector, add, 1).expect("updated"), 20_000);
            keys.vector_vector(&vector, add, &value).expect("updated");
            let sum = keys.vector_reduce(&vector, add, 0).expect("folded");
            assert_eq!(sum, 5000 + 4999 * 5000);
            let above = (ElementCode::U32, VectorComparison::GREATER);
            let kept = keys.vector_filter(&vector, above, 9995, 4096).expect("filtered");
            assert_eq!(kept, [9997u32, 9999].map(u32::to_le_bytes).as_flattened());
            let old = keys.vector_fetch(&vector, add, 1, 8).expect("fetched");
            assert_eq!(old, [1u32, 3].map(u32::to_le_bytes).as_flattened());
        }
    }
}

#[test]
fn increments_from_many_lanes_all_count() {
    let rig = rig(3);
    let hot = key(0);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let mut keys = connect(&rig);
                let mut batch = keys.batch().expect("a batch");
                let add = AtomicOperation::new(AtomicFunction::ADD, 1).or_create(0);
                for _ in 0..50 {
                    batch.clear();
                    for _ in 0..20 {
                        batch.atomic(&hot, &add).expect("room");
                    }
                    let before: Vec<u64> =
                        keys.run_batch(&mut batch).expect("run").map(|outcome| outcome.result).collect();
                    assert!(before.len() == 20 && before.is_sorted_by(|a, b| a < b));
                    keys.fetch_add(&hot, 1, None).expect("there");
                }
            });
        }
    });
    assert_eq!(connect(&rig).fetch_add(&hot, 0, None).expect("there"), 6 * 50 * 21);
}

/// docs/kv-commands.md §4
#[test]
fn a_batch_that_cannot_be_is_refused_as_a_whole() {
    let rig = rig(2);
    let mut keys = connect(&rig);
    let nsid = keys.namespace().nsid();
    let submit = |tag, count, data: &[u8], outcome_bytes| {
        let data_bytes = data.len() as u32;
        let sqe =
            BatchSubmit { data_bytes, count, tag, outcome_bytes, ..BatchSubmit::default() }.to_sqe(nsid);
        host::Command::raw_to_controller(sqe, data_bytes)
    };
    let collect = |tag, buffer_bytes| {
        let sqe = BatchCollect { buffer_bytes, tag }.to_sqe(nsid);
        host::Command::raw_from_controller(sqe, buffer_bytes)
    };
    let store = *b"\x01\x01\0\0\x01\0\0\0\0\0\0\0kv\0\0";
    let status = |completion: &host::Completion<Vec<u8>>| match completion.result {
        Err(Failure::Status(status)) => status,
        other => panic!("{other:?}"),
    };
    let lane = keys.lane_mut();
    let run = |lane: &mut host::Lane<Vec<u8>>, count| {
        let mut done = Vec::new();
        while done.len() < count {
            let ended = lane.wait(&mut done, std::time::Duration::from_secs(60));
            assert!(ended > 0, "{} of {count} commands have ended, and no more do", done.len());
        }
        done.sort_by_key(|completion| completion.user);
        done
    };
    // No command waits for this value.
    lane.submit(submit(1, 1, &store, 16), Some(store.to_vec()), 0).expect("taken");
    assert!(status(&run(lane, 1)[0]).is(Status::COMMAND_SEQUENCE_ERROR));
    let truncated = &store[..12];
    for (count, data, outcome_bytes, buffer, expected) in [
        (2, &store[..], 16, 64, Status::INVALID_FIELD),
        (0, &store[..], 16, 64, Status::INVALID_FIELD),
        (1025, &store[..], 16, 64, Status::INVALID_FIELD),
        (1, &store[..], 15, 64, Status::INVALID_FIELD),
        (1, truncated, 16, 64, Status::INVALID_FIELD),
        (1, &store[..0], 16, 64, Status::INVALID_FIELD),
        (1, &store[..], 65, 64, Status::DATA_SGL_LENGTH_INVALID),
    ] {
        lane.submit(collect(7, buffer), Some(vec![0; buffer as usize]), 0).expect("taken");
        lane.submit(submit(7, count, data, outcome_bytes), Some(data.to_vec()), 1).expect("taken");
        let done = run(lane, 2);
        assert!(
            done.iter().all(|done| status(done).is(expected)),
            "{count} of {} bytes: {done:?}",
            data.len()
        );
    }
    // Two waiting commands with one tag cannot be told apart; the first waits until it is cancelled.
    for user in [0, 1] {
        lane.submit(collect(3, 64), Some(vec![0; 64]), user).expect("taken");
    }
    let done = run(lane, 1);
    assert!(done[0].user == 1 && status(&done[0]).is(Status::COMMAND_SEQUENCE_ERROR));
    lane.cancel(0);
    assert_eq!(run(lane, 1)[0].result, Err(Failure::Cancelled));
    assert_eq!(keys.retrieve(&Key::new(b"k").expect("a key")).expect("asked"), None, "nothing was stored");
}

#[test]
fn batches_whose_operations_are_asked_for_are_carried_out_too() {
    for threads in [1, 3] {
        let rig = rig(threads);
        let mut keys = connect(&rig);
        let mut batch = keys.batch().expect("a batch");
        let value = |number: u32| number.to_le_bytes().repeat(500);
        for number in 0..200 {
            batch.store(&key(number), &value(number), StoreOptions::empty()).expect("room");
        }
        assert!(batch.data().len() > 400_000, "more than any capsule carries");
        assert!(keys.run_batch(&mut batch).expect("run").all(|outcome| outcome.status.is_success()));
        batch.clear();
        for number in 0..200 {
            batch.retrieve(&key(number), 2000).expect("room");
            batch.store(&key(number), b"new", StoreOptions::MUST_NOT_EXIST).expect("room");
        }
        let mut outcomes = keys.run_batch(&mut batch).expect("run");
        for number in 0..200 {
            assert_eq!(outcomes.next().expect("an outcome").data, value(number));
            assert_eq!(outcomes.next().expect("an outcome").status, Status::KEY_EXISTS);
        }
        assert!(outcomes.next().is_none());
    }
}

#[test]
fn capsules_bring_more_where_there_is_nothing_but_keys_and_values() {
    let told = |namespaces: &[&str]| {
        let rig = Rig::with(EngineKind::Epoll, namespaces, |_| {});
        let association = rig.connect(options().with_lanes(1));
        association.controller().limits.in_capsule_bytes
    };
    assert_eq!((told(&["kv:ram:64M"]), told(&["kv:ram:64M", "ram:1M"])), (64 << 10, 8192));
    let rig = rig(1);
    let mut keys = connect(&rig);
    for length in [8192, 8193, 64 << 10, (64 << 10) + 1] {
        let value = vec![7; length];
        keys.store(&key(1), &value).expect("stored");
        assert!(keys.retrieve(&key(1)).expect("there") == Some(value), "{length} bytes");
    }
}

struct Unpark(std::thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.unpark();
    }
}

pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let waker = std::task::Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    let until = std::time::Instant::now() + PATIENCE;
    loop {
        assert!(std::time::Instant::now() < until, "the future is pending");
        let mut context = std::task::Context::from_waker(&waker);
        if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::park_timeout(std::time::Duration::from_secs(1));
    }
}

#[test]
fn asynchronous_callers_have_the_same_commands() {
    let rig = rig(2);
    let association = rig.connect(options().with_lanes(1));
    let namespace = association.addressed_key_value().expect("keys and values");
    let keys = block_on(host::AsyncKeyValue::new(&association, namespace)).expect("lanes");
    block_on(async {
        let value = vec![7; 20_000];
        keys.store(&key(1), value.clone()).await.expect("stored");
        assert!(keys.retrieve(&key(1)).await.expect("there") == Some(value));
        assert!(!keys.exist(&key(2)).await.expect("asked"));
        let (stored, _) = keys.store_if(&key(1), vec![1], StoreOptions::MUST_NOT_EXIST).await.expect("asked");
        assert!(!stored);
        assert_eq!(keys.fetch_add(&key(3), 2, Some(5)).await.expect("created"), 5);
        assert!(keys.compare_and_swap(&key(3), 7, 1).await.expect("swapped").took_effect);
        let mut batch = keys.batch().expect("a batch");
        for number in 0..100 {
            batch.store(&key(number), &number.to_le_bytes(), StoreOptions::empty()).expect("room");
            batch.retrieve(&key(number), 8).expect("room");
        }
        let outcomes = keys.run_batch(batch).await.expect("run");
        let got: Vec<_> = outcomes.iter().skip(1).step_by(2).map(|outcome| outcome.data.to_vec()).collect();
        assert_eq!(got, (0..100u32).map(|number| number.to_le_bytes().to_vec()).collect::<Vec<_>>());
        assert_eq!(keys.list(None).await.expect("listed").len(), 100);
        keys.delete(&key(1)).await.expect("deleted");
        assert_eq!(keys.retrieve(&key(1)).await.expect("asked"), None);
    });
}
