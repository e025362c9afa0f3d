//! Namespaces on images of a double of Ceph's libraries, driven by reactors.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ceph::double::Double;
use ceph::{Cluster, Image, ImageName};
use proptest::collection::vec;
use proptest::prelude::*;
use reactor::{DataMap, EngineKind};
use rustix::io::Errno;

use super::rbd::RbdStore;
use super::rbd_shared::{DEADLINE_S_DEFAULT, LockPolicy, RbdPlace, RbdSettings};
use super::rbd_sharing::Sharing;
use crate::namespace::{BlockStore, StoreError};
use crate::open_error::OpenError;
use crate::store::Store;
use crate::testing::{
    Bench, Rig, Step, StepResult, check_against_model, check_promises, model_steps, promise_steps,
};

const ENGINES: [EngineKind; 2] = [EngineKind::Uring, EngineKind::Epoll];
const PATH: &str = "pool//image";
const BLOCK: u64 = 512;

fn settings(double: &Double) -> RbdSettings {
    let image =
        ImageName { pool: "pool".into(), namespace: String::new(), image: "image".into(), snapshot: None };
    let place = RbdPlace {
        cluster: double.name(),
        image,
        create_bytes: Some(64 * BLOCK),
        lock: LockPolicy::Refuse,
        sharing: None,
        deadline_s: DEADLINE_S_DEFAULT,
    };
    RbdSettings { lock_wait: Duration::from_millis(100), ..RbdSettings::new(place, Some(512), false) }
}

fn open(settings: &RbdSettings) -> Result<Arc<dyn BlockStore>, OpenError> {
    Ok(Arc::new(RbdStore::open_with(Double::library(), settings)?))
}

/// A message without the numbers of clients, which differ each time.
fn without_numbers(message: &str) -> String {
    let words = message.split(' ').map(|word| match word {
        client if client.starts_with("client.") => "client.N",
        address if address.starts_with("127.0.0.1:0/") => {
            if address.ends_with(',') {
                "ADDRESS,"
            } else {
                "ADDRESS"
            }
        }
        word => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

fn refusal(settings: &RbdSettings) -> String {
    open(settings).err().expect("it is refused").to_string()
}

/// A new image with each engine that there is.
fn on_every_engine(mut check: impl FnMut(&Double, &Arc<dyn BlockStore>, &mut Rig)) {
    for engine in ENGINES {
        let double = Double::new();
        let store = open(&settings(&double)).unwrap();
        if let Some(mut rig) = Rig::attach(&store, engine) {
            check(&double, &store, &mut rig);
        }
    }
}

fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn an_image_is_a_vector_of_bytes(steps in model_steps(64, true)) {
        let mut result = Ok(());
        on_every_engine(|_, store, rig| {
            if result.is_ok() {
                result = check_against_model(&**store, rig, steps.clone());
            }
        });
        result?;
    }

    /// Without librbd's cache every write that has ended survives; with it, what was flushed or written durably.
    #[test]
    fn what_is_promised_survives_a_loss_of_power(
        steps in promise_steps(),
        has_cache: bool,
    ) {
        let double = Double::new();
        double.set_cache(has_cache);
        let store = open(&settings(&double)).unwrap();
        let Some(mut rig) = Rig::attach(&store, EngineKind::Epoll) else { return Ok(()) };
        check_promises(&mut rig, steps, !has_cache, || {
            double.cut_power(PATH);
            double.bytes(PATH)
        })?;
    }
}

#[test]
fn each_reactor_gets_the_ends_of_its_own_requests() {
    for engine in ENGINES {
        let double = Double::new();
        let store = open(&settings(&double)).unwrap();
        let rigs: Vec<_> = (0..3).filter_map(|_| Rig::attach(&store, engine)).collect();
        let run = |(number, mut rig): (u8, Rig)| {
            let store = Arc::clone(&store);
            std::thread::spawn(move || {
                for round in 0..50u8 {
                    // A reactor leaves, perhaps the one that takes in all ends, and another comes.
                    if round % 10 == number * 3 {
                        rig = Rig::attach(&store, engine).unwrap();
                    }
                    let places = 0..20u64;
                    let offset = |place| (u64::from(number) * 20 + place) * BLOCK;
                    let byte =
                        |place: u64| number.wrapping_mul(50).wrapping_add(round).wrapping_add(place as u8);
                    let write = |place| Step::Write {
                        offset: offset(place),
                        data: vec![byte(place); 512],
                        is_durable: place % 3 == 0,
                    };
                    let written = rig.run_all(places.clone().map(write).collect());
                    assert!(written.iter().all(StepResult::is_ok), "{written:?}");
                    let read = |place| Step::Read { offset: offset(place), length: 512 };
                    let found = rig.run_all(places.clone().map(read).collect());
                    let expected: Vec<StepResult> = places.map(|place| Ok(vec![byte(place); 512])).collect();
                    assert_eq!(found, expected);
                }
            })
        };
        let threads: Vec<_> = (0u8..).zip(rigs).map(run).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// A new image whose requests have a deadline of a second.
fn with_short_deadline(engine: EngineKind) -> Option<(Double, Arc<dyn BlockStore>, Rig)> {
    let double = Double::new();
    let mut settings = settings(&double);
    settings.place.deadline_s = 1;
    let store = open(&settings).unwrap();
    let rig = Rig::attach(&store, engine)?;
    Some((double, store, rig))
}

#[test]
fn a_cluster_that_does_not_answer_ends_commands_by_their_deadline_and_holds_up_none() {
    for (double, store, mut rig) in ENGINES.into_iter().filter_map(with_short_deadline) {
        rig.write(0, &[1; 512]).unwrap();
        double.set_hanging(true);
        let begun = Instant::now();
        let both = vec![
            Step::Write { offset: 0, data: vec![2; 512], is_durable: true },
            Step::Read { offset: 0, length: 512 },
        ];
        assert_eq!(rig.run_all(both), vec![Err(StoreError::Unreachable); 2]);
        assert!(begun.elapsed() > Duration::from_secs(1));
        // From now on nothing is started.
        assert_eq!(rig.write(0, &[3; 512]), Err(StoreError::Unreachable));
        assert_eq!(rig.flush(), Err(StoreError::Unreachable));
        assert!(begun.elapsed() < Duration::from_secs(30));
        assert!(store.generation().is_first(), "it is not closed");
        double.set_hanging(false);
        eventually("it is not reached again", || rig.read(512, 512).is_ok());
        assert_eq!(rig.read(0, 512), Ok(vec![2; 512]), "a refused write was carried out");
        assert_eq!(rig.write(0, &[4; 512]), Ok(vec![]));
        assert_eq!(double.bytes(PATH)[..512], [4; 512]);
    }
}

#[test]
fn a_target_that_lost_its_lock_writes_no_more_until_it_is_reopened() {
    for blocklists in [true, false] {
        on_every_engine(|double, store, rig| {
            rig.write(0, &[1; 512]).unwrap();
            double.take_lock(PATH, blocklists);
            let before = double.bytes(PATH);
            assert_eq!(rig.write(0, &[2; 512]), Err(StoreError::Fenced));
            assert!(store.generation().is_closed());
            let calls = double.call_count();
            for step in [
                Step::Write { offset: 0, data: vec![3; 512], is_durable: true },
                Step::Read { offset: 0, length: 512 },
                Step::WriteZeroes { offset: 0, length: 512, is_durable: false, may_deallocate: true },
                Step::Flush,
            ] {
                assert_eq!(rig.run(step), Err(StoreError::Fenced));
            }
            assert_eq!((double.call_count(), double.bytes(PATH)), (calls, before));
            let shown = Store::Blocks(Arc::clone(store));
            assert_eq!(shown.closed_kind(), Some("lock"), "{:?}", shown.closed_because());
            // The other one lives.
            double.set_lock_owner(PATH, Some(7), true);
            let error = store.reopen().unwrap_err().to_string();
            assert!(error.contains("held by client.7 at 127.0.0.1:0/7"), "{error}");
            assert_eq!(rig.read(0, 512), Err(StoreError::Fenced));
            double.set_lock_owner(PATH, None, false);
            store.reopen().unwrap();
            assert_eq!(rig.write(0, &[4; 512]), Ok(vec![]));
            assert_eq!(rig.read(0, 512), Ok(vec![4; 512]));
        });
    }
}

#[test]
fn a_lock_that_is_lost_while_nothing_is_written_is_noticed() {
    on_every_engine(|double, store, rig| {
        assert!(store.can_change_underneath());
        double.take_lock(PATH, false);
        eventually("the loss is not noticed", || {
            store.revalidate();
            store.closed_because().is_some()
        });
        assert_eq!(rig.read(0, 512), Err(StoreError::Fenced));
    });
}

#[test]
fn the_lock_of_another_client_is_respected_unless_it_is_to_be_broken() {
    let double = Double::new();
    let mut settings = settings(&double);
    drop(open(&settings).unwrap());
    assert_eq!(double.lock_owner(PATH), None, "it was given up");
    double.set_lock_owner(PATH, Some(7), true);
    insta::assert_snapshot!(refusal(&settings), @"image pool/image: its exclusive lock is held by client.7 at 127.0.0.1:0/7: end that client, or take it away with lock=break");
    // Reading needs no lock.
    settings.is_read_only = true;
    let reader = open(&settings).unwrap();
    assert!(reader.geometry().is_read_only);
    settings.is_read_only = false;
    settings.place.lock = LockPolicy::Break;
    let broken = open(&settings).unwrap();
    assert!(double.lock_owner(PATH).is_some_and(|owner| owner != 7));
    // A second target before the same image.
    settings.place.lock = LockPolicy::Refuse;
    let cluster = settings.place.cluster.clone();
    settings.place.cluster.id = Some("second".into());
    assert!(refusal(&settings).contains("its exclusive lock is held by client."));
    settings.place.cluster = cluster;
    drop(broken);
    // A holder that is dead is nobody's loss.
    double.set_lock_owner(PATH, Some(8), false);
    drop(open(&settings).unwrap());
}

/// Another target, with controller IDs of its own, that shares the image.
fn sharing(double: &Double, target: &str, cntlids: RangeInclusive<u16>) -> RbdSettings {
    let mut settings = settings(double);
    settings.place.cluster.id = Some(target.into());
    settings.place.lock = LockPolicy::Share;
    settings.place.sharing = Some(Sharing { subsystem: "nqn.2026-01.com.example:db".into(), cntlids });
    settings
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn two_targets_that_share_an_image_write_to_one_disk(
        steps in vec((any::<bool>(), 0u64..16, any::<u8>()), 1..30),
    ) {
        let double = Double::new();
        let stores = [("one", 1..=1000), ("two", 1001..=2000)]
            .map(|(target, cntlids)| open(&sharing(&double, target, cntlids)).unwrap());
        prop_assert_eq!(stores[0].identity(), stores[1].identity());
        prop_assert!(stores.iter().all(|store| store.geometry().has_other_writers));
        let rigs: Vec<_> = stores.iter().filter_map(|store| Rig::attach(store, EngineKind::Epoll)).collect();
        let Ok(mut rigs) = <[Rig; 2]>::try_from(rigs) else { return Ok(()) };
        let mut model = [0; 16];
        for (is_second, block, value) in steps {
            let (writer, reader) = (usize::from(is_second), usize::from(!is_second));
            prop_assert_eq!(rigs[writer].write(block * BLOCK, &[value; 512]), Ok(vec![]));
            model[block as usize] = value;
            let other = (block + 7) % 16;
            for place in [block, other] {
                let expected = vec![model[place as usize]; 512];
                prop_assert_eq!(rigs[reader].read(place * BLOCK, 512), Ok(expected));
            }
        }
        // Moments at which the other one has the lock are no loss.
        for store in &stores {
            store.revalidate();
            prop_assert_eq!(store.closed_because(), None);
        }
    }
}

#[test]
fn an_image_is_shared_only_where_all_ask_for_it() {
    let double = Double::new();
    let mut alone = settings(&double);
    let owner = open(&alone).unwrap();
    let second = sharing(&double, "second", 1..=1000);
    insta::assert_snapshot!(without_numbers(&refusal(&second)), @"image pool/image: its exclusive lock is held by client.N at ADDRESS, which does not share it: end that client, or take it away with lock=break");
    assert!(double.metadata(PATH).is_empty(), "{:?}", double.metadata(PATH));
    drop(owner);
    let first = open(&sharing(&double, "first", 1..=1000)).unwrap();
    alone.place.cluster.id = Some("alone".into());
    insta::assert_snapshot!(without_numbers(&refusal(&alone)), @"image pool/image: it is shared by client.N at ADDRESS (controller IDs 1 to 1000 of nqn.2026-01.com.example:db): end that client, or share it as well with lock=share");
    // Reading needs no lock, as before.
    alone.is_read_only = true;
    assert!(!open(&alone).unwrap().geometry().has_other_writers);
    let third = sharing(&double, "third", 1000..=1001);
    insta::assert_snapshot!(without_numbers(&refusal(&third)), @"image pool/image: it is shared by client.N at ADDRESS (controller IDs 1 to 1000 of nqn.2026-01.com.example:db), and a host could get the same IDs from both: give each target a range of its own, as in cntlids = [1, 1000]");
    assert_eq!(double.metadata(PATH).len(), 1, "{:?}", double.metadata(PATH));
    // Another subsystem has controller IDs of its own.
    let mut other = sharing(&double, "other", 1..=1000);
    other.place.sharing.as_mut().unwrap().subsystem = "nqn.2026-01.com.example:other".into();
    drop(open(&other).unwrap());
    drop(first);
    assert!(double.metadata(PATH).is_empty(), "{:?}", double.metadata(PATH));
    assert_eq!(double.lock_owner(PATH), None);
    // What one target has in its cache the others would not see.
    double.set_cache(true);
    assert!(refusal(&third).contains("rbd config image set pool/image rbd_cache false"));
}

#[test]
fn a_dead_target_leaves_its_controller_ids_to_the_next() {
    let double = Double::new();
    let first = open(&sharing(&double, "first", 1..=1000)).unwrap();
    let Some(mut rig) = Rig::attach(&first, EngineKind::Epoll) else { return };
    rig.write(0, &[1; 512]).unwrap();
    let dead = double.lock_owner(PATH).unwrap();
    double.end_client(PATH, dead);
    let next = open(&sharing(&double, "next", 1..=1000)).unwrap();
    let entries = double.metadata(PATH);
    assert!(
        entries.len() == 1 && !entries.keys().any(|key| key.starts_with(&format!("nvlane.target.{dead}."))),
        "{entries:?}"
    );
    // It is not dead after all: the cluster refuses what it still writes.
    let before = double.bytes(PATH);
    assert_eq!(rig.write(0, &[2; 512]), Err(StoreError::Fenced));
    assert_eq!(double.bytes(PATH), before);
    assert!(first.generation().is_closed() && next.generation().is_first());
}

#[test]
fn a_sharing_target_whose_lock_is_kept_from_it_writes_no_more_until_it_is_reopened() {
    for engine in ENGINES {
        let double = Double::new();
        let store = open(&sharing(&double, "first", 1..=1000)).unwrap();
        let Some(mut rig) = Rig::attach(&store, engine) else { continue };
        rig.write(0, &[1; 512]).unwrap();
        double.set_lock_owner(PATH, Some(7), true);
        let before = double.bytes(PATH);
        assert_eq!(rig.write(0, &[2; 512]), Err(StoreError::Fenced));
        assert_eq!(rig.read(0, 512), Err(StoreError::Fenced));
        assert_eq!(double.bytes(PATH), before);
        double.set_lock_owner(PATH, None, false);
        // Its earlier entry is its own, and bars nobody.
        store.reopen().unwrap();
        assert_eq!(rig.write(0, &[3; 512]), Ok(vec![]));
    }
}

#[test]
fn a_snapshot_is_read_and_not_written() {
    let double = Double::new();
    let mut settings = settings(&double);
    let store = open(&settings).unwrap();
    let Some(mut rig) = Rig::attach(&store, EngineKind::Epoll) else { return };
    rig.write(512, &[5; 512]).unwrap();
    double.snapshot(PATH, "monday");
    rig.write(512, &[6; 512]).unwrap();
    settings.place.image.snapshot = Some("monday".into());
    let snapshot = open(&settings).unwrap();
    let Some(mut reader) = Rig::attach(&snapshot, EngineKind::Epoll) else { return };
    assert_eq!(reader.read(512, 512), Ok(vec![5; 512]));
    assert_eq!(reader.write(512, &[7; 512]), Err(StoreError::ReadOnly));
    assert_eq!(reader.flush(), Ok(vec![]));
    assert!(snapshot.geometry().is_read_only && !snapshot.geometry().can_deallocate);
    assert_ne!(snapshot.identity(), store.identity());
    settings.place.image.snapshot = Some("tuesday".into());
    assert!(refusal(&settings).contains("cannot open the image pool/image@tuesday: No such file"));
}

#[test]
fn an_image_or_snapshot_that_is_removed_while_it_is_read_is_closed() {
    for is_snapshot in [false, true] {
        let double = Double::new();
        let mut settings = settings(&double);
        drop(open(&settings).unwrap());
        double.snapshot(PATH, "monday");
        settings.is_read_only = true;
        settings.place.image.snapshot = is_snapshot.then(|| "monday".into());
        let store = open(&settings).unwrap();
        let Some(mut rig) = Rig::attach(&store, EngineKind::Epoll) else { return };
        store.revalidate();
        assert_eq!(rig.read(0, 512), Ok(vec![0; 512]));
        match is_snapshot {
            true => double.remove_snapshot(PATH, "monday"),
            false => double.remove(PATH),
        }
        eventually("the removal is not noticed", || {
            store.revalidate();
            store.closed_because().is_some_and(|why| why == "its image or snapshot was removed")
        });
        assert_eq!(rig.read(0, 512), Err(StoreError::Closed));
    }
}

#[test]
fn an_image_that_others_resize_is_seen_as_it_is() {
    on_every_engine(|double, store, rig| {
        for blocks in [128, 32] {
            double.resize(PATH, blocks * 512);
            eventually("the size is not noticed", || {
                store.revalidate();
                store.geometry().block_count == blocks as u64
            });
            let end = blocks as u64 * BLOCK;
            assert_eq!(rig.write(end - BLOCK, &[1; 512]), Ok(vec![]));
            assert_eq!(rig.write(end, &[1; 512]), Err(StoreError::Truncated));
        }
        // It was made shorter, and nobody has looked yet.
        double.resize(PATH, 512);
        assert_eq!(rig.write(BLOCK, &[1; 512]), Err(StoreError::Truncated));
        assert!(store.generation().is_first());
    });
}

/// Gives the parts with data of a range of an image of 64 blocks, whose objects have 8 blocks each.
fn find(rig: &mut Rig, blocks: Range<u64>) -> Result<Vec<Range<u64>>, StoreError> {
    let found = rig.find_data(blocks.start * BLOCK..blocks.end * BLOCK)?;
    Ok(found.into_iter().map(|part| part.start / BLOCK..part.end / BLOCK).collect())
}

#[test]
fn objects_that_are_not_there_are_holes_where_the_object_map_is_right() {
    on_every_engine(|double, _, rig| {
        assert_eq!(find(rig, 0..64), Ok(vec![]));
        for block in [3, 16, 60] {
            rig.write(block * BLOCK, &[1; 512]).unwrap();
        }
        assert_eq!(find(rig, 0..64), Ok(vec![0..8, 16..24, 56..64]));
        assert_eq!(find(rig, 2..57), Ok(vec![2..8, 16..24, 56..57]), "clipped");
        assert_eq!(find(rig, 25..55), Ok(vec![]));
        let zeroes =
            Step::WriteZeroes { offset: 0, length: 8 * BLOCK, is_durable: false, may_deallocate: true };
        rig.run(zeroes).unwrap();
        assert_eq!(find(rig, 0..64), Ok(vec![16..24, 56..64]));
        let map = Arc::new(DataMap::new(0..64 * BLOCK, 1));
        rig.run(Step::FindData(Arc::clone(&map))).unwrap();
        let parts = map.take();
        assert_eq!(parts.first(), Some(&(16 * BLOCK..24 * BLOCK)));
        assert_eq!(map.covered(&parts), 24 * BLOCK, "no room for more");
        double.fail_next(Errno::IO);
        assert_eq!(find(rig, 0..64), Err(StoreError::Unsupported), "all may be data");
        double.set_object_maps(false);
        assert_eq!(find(rig, 0..64), Err(StoreError::Unsupported));
        double.set_object_maps(true);
        double.set_parent(PATH, 4096);
        assert_eq!(find(rig, 0..64), Err(StoreError::Unsupported), "its parent may have data");
    });
}

#[test]
fn searches_end_by_their_deadline_and_hold_up_no_writes() {
    for (double, store, mut rig) in ENGINES.into_iter().filter_map(with_short_deadline) {
        double.set_hanging(true);
        let map = || Step::FindData(Arc::new(DataMap::new(0..64 * BLOCK, 9)));
        let begun = Instant::now();
        let many = rig.run_all((0..70).map(|_| map()).collect());
        assert_eq!(many, vec![Err(StoreError::Unsupported); 70], "all may be data");
        assert!(begun.elapsed() > Duration::from_secs(1));
        double.set_hanging(false);
        assert_eq!(rig.write(0, &[1; 512]), Ok(vec![]), "searches say nothing about the cluster");
        eventually("none waits any more", || find(&mut rig, 8..64) == Ok(vec![]));
        // Closed while a search runs: its thread closes the image.
        double.set_hanging(true);
        assert_eq!(find(&mut rig, 0..64), Err(StoreError::Unsupported));
        drop((rig, store));
        double.set_hanging(false);
        eventually("it is closed", || double.clients(PATH).is_empty());
    }
}

#[test]
fn errors_end_what_they_must_and_no_more() {
    on_every_engine(|double, store, rig| {
        double.fail_next(Errno::DQUOT);
        assert_eq!(rig.write(0, &[1; 512]), Err(StoreError::NoSpace));
        assert!(store.health().is_full);
        assert_eq!(rig.write(0, &[1; 512]), Ok(vec![]));
        assert!(!store.health().is_full, "there is space again");
        double.fail_next(Errno::IO);
        assert_eq!(rig.read(0, 512), Err(StoreError::ReadFailed(5)));
        double.fail_next(Errno::IO);
        assert_eq!(rig.write(0, &[2; 512]), Err(StoreError::WriteFailed(5)));
        double.fail_next(Errno::TIMEDOUT);
        assert_eq!(rig.write(0, &[2; 512]), Err(StoreError::Unreachable));
        assert_eq!(rig.write(0, &[3; 512]), Ok(vec![]));
        // The writes that it covers may be lost.
        double.fail_next(Errno::IO);
        assert!(rig.flush().is_err());
        assert_eq!(rig.read(0, 512), Err(StoreError::Closed));
        store.reopen().unwrap();
        assert_eq!(rig.read(0, 512), Ok(vec![3; 512]));
    });
}

#[test]
fn an_image_keeps_its_identity_and_no_other_has_it() {
    let double = Double::new();
    let mut settings = settings(&double);
    let first = open(&settings).unwrap().identity().unwrap();
    assert_eq!(open(&settings).unwrap().identity().unwrap(), first);
    settings.place.image.image = "other".into();
    assert_ne!(open(&settings).unwrap().identity().unwrap(), first);
}

#[test]
fn what_cannot_be_opened_is_said_with_its_remedy() {
    let double = Double::new();
    let with = |change: &dyn Fn(&mut RbdSettings)| {
        let mut settings = settings(&double);
        settings.place.create_bytes = None;
        change(&mut settings);
        refusal(&settings)
    };
    let refusals = [
        with(&|_| {}),
        with(&|settings| settings.place.image.pool = "missing".into()),
        with(&|settings| settings.place.cluster.cluster = Some("none".into())),
        with(&|settings| settings.block_bytes = Some(1000)),
        with(&|settings| (settings.place.create_bytes, settings.block_bytes) = (Some(512), Some(4096))),
    ];
    insta::assert_snapshot!(refusals.join("\n"), @r"
    image pool/image: cannot open the image pool/image: No such file or directory (os error 2): create it with `rbd create`, or give create=SIZE
    image missing/image: cannot find the pool missing: No such file or directory (os error 2): see `ceph osd pool ls`
    image pool/image: cannot read Ceph's configuration file: No such file or directory (os error 2): give conf=/etc/ceph/ceph.conf or the path of your own
    a logical block cannot have 1000 bytes: take a power of two from 512 to 65536
    pool/image is empty: make it larger with rbd resize
    ");
    let cluster = Cluster::connect(Double::library(), &double.name(), 1).unwrap();
    let name = settings(&double).place.image;
    assert!(Image::create(&Arc::new(cluster), &name, 512).is_err(), "it was created before it was refused");
}
