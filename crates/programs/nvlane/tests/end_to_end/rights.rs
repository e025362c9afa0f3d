//! Two hosts with different rights to the namespaces of a subsystem, and reloads that change them under load.
//! docs/security.md

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use host::{Association, BlockingKeyValue, BlockingNamespace, Events, HostIdentity, Key};
use subsystem::access::HostRights;
use subsystem::config::NamespaceConfig;
use subsystem::subsystem::Access;
use wire::id::Nsid;
use wire::status::Status;

use crate::edges::status;
use crate::setup::{Over, PATIENCE, Rig, await_more, engines, open, options};

const ONE: &str = "nqn.2026-01.io.nvlane:one";
const OTHER: &str = "nqn.2026-01.io.nvlane:other";

const PROTECTED: Status = Status::NAMESPACE_WRITE_PROTECTED.with_dnr();
const GONE: Status = Status::INVALID_NAMESPACE.with_dnr();

fn only(hosts: &[&str]) -> Access {
    Access::Only(hosts.iter().map(|host| host.parse().expect("a name")).collect())
}

fn rights(visible_to: &[&str], writable_by: &[&str]) -> HostRights {
    HostRights { visible_to: only(visible_to), writable_by: only(writable_by), ..HostRights::ALL }
}

fn set(rig: &mut Rig, nsid: u32, rights: HostRights) {
    rig.reload(|config| {
        let is_it = |namespace: &&mut NamespaceConfig| namespace.nsid == Some(Nsid::new(nsid));
        let namespace = config.subsystems[0].namespaces.iter_mut().find(is_it);
        namespace.expect("a namespace").rights = rights;
    });
}

fn connect(rig: &Rig, name: &str) -> Association {
    let identity = Some(HostIdentity::of_name(name.parse().expect("a name")));
    rig.connect(options().with_identity(identity).with_lanes(2))
}

fn write(namespace: &mut BlockingNamespace) -> Status {
    let command = namespace.namespace().write(0, 1).expect("a write");
    let bytes = namespace.namespace().lba_bytes() as usize;
    status(namespace, command, Some(vec![7; bytes]))
}

fn read(namespace: &mut BlockingNamespace) -> Status {
    let command = namespace.namespace().read(0, 1).expect("a read");
    let bytes = namespace.namespace().lba_bytes() as usize;
    status(namespace, command, Some(vec![0; bytes]))
}

/// Waits for events until the host has these namespaces.
fn await_namespaces(association: &Association, events: &Events, nsids: &[u32]) {
    let until = Instant::now() + PATIENCE;
    loop {
        let known: Vec<u32> = association.namespaces().iter().map(|info| info.nsid.get()).collect();
        if known == nsids {
            return;
        }
        let left = until.saturating_duration_since(Instant::now());
        events.recv_timeout(left).unwrap_or_else(|_| panic!("{known:?} stay, and not {nsids:?}"));
    }
}

#[test]
fn each_host_finds_what_it_may_use_and_a_reload_changes_it() {
    for engine in engines() {
        let mut rig = Rig::with(engine, &["ram:1M", "file:1M", "kv:ram:16M"], |config| {
            let namespaces = &mut config.subsystems[0].namespaces;
            namespaces[1].rights = rights(&[ONE], &[ONE]);
            namespaces[2].rights = HostRights { writable_by: only(&[ONE]), ..HostRights::ALL };
        });
        let (one, other) = (connect(&rig, ONE), connect(&rig, OTHER));
        let events = [&one, &other].map(Association::events);
        await_namespaces(&one, &events[0], &[1, 2, 3]);
        await_namespaces(&other, &events[1], &[1, 3]);
        assert!(other.namespace(Nsid::new(2)).is_err());
        let mut disk = open(&one, 2);
        assert_eq!((write(&mut disk), read(&mut disk)), (Status::SUCCESS, Status::SUCCESS));
        let mut keys = [&one, &other].map(|association| {
            let namespace = association.key_value(Nsid::new(3)).expect("keys and values");
            BlockingKeyValue::new(association, namespace).expect("a lane")
        });
        let key = Key::new(b"key").expect("a key");
        keys[0].store(&key, b"value").expect("stored");
        let refused = keys[1].store(&key, b"other").expect_err("write protected").to_string();
        assert!(refused.to_lowercase().contains("write protected"), "{refused}");
        assert_eq!(keys[1].retrieve(&key).expect("there").as_deref(), Some(&b"value"[..]));
        // The other host gains it, to read.
        set(&mut rig, 2, rights(&[ONE, OTHER], &[ONE]));
        await_namespaces(&other, &events[1], &[1, 2, 3]);
        let mut of_other = open(&other, 2);
        assert_eq!((write(&mut of_other), read(&mut of_other)), (PROTECTED, Status::SUCCESS));
        // They change places.
        set(&mut rig, 2, rights(&[OTHER], &[OTHER]));
        await_namespaces(&one, &events[0], &[1, 3]);
        assert_eq!((write(&mut disk), read(&mut disk)), (GONE, GONE));
        assert_eq!((write(&mut of_other), read(&mut of_other)), (Status::SUCCESS, Status::SUCCESS));
        let namespaces = &rig.state().subsystems[0].namespaces;
        assert_eq!(namespaces[1].hosts, Some(vec![OTHER.to_owned()]));
        assert_eq!((&namespaces[2].hosts, &namespaces[2].write_hosts), (&None, &Some(vec![ONE.to_owned()])));
    }
}

/// Both hosts write and read without a pause. Once a reload has come into force, a host that has lost a right writes
/// nothing more; one whose rights stay notices nothing.
#[test]
fn rights_change_under_load() {
    for engine in engines() {
        let mut rig = Rig::new(engine, &["ram:1M"]);
        let (one, other) = (connect(&rig, ONE), connect(&rig, OTHER));
        let mut disks = [open(&one, 1), open(&other, 1)];
        let (counts, is_over) = ([const { AtomicU64::new(0) }; 2], AtomicBool::new(false));
        // What the second host may be answered now, as bits: success, write protected, gone.
        let allowed = AtomicU64::new(1);
        std::thread::scope(|scope| {
            let [first, second] = &mut disks;
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(write(first), Status::SUCCESS, "the rights of the first host stay");
                    counts[0].fetch_add(1, Ordering::Relaxed);
                }
            });
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let before = allowed.load(Ordering::SeqCst);
                    let answer = match write(second) {
                        Status::SUCCESS => 1,
                        PROTECTED => 2,
                        GONE => 4,
                        status => panic!("{status:?}"),
                    };
                    let after = allowed.load(Ordering::SeqCst);
                    assert!((before | after) & answer != 0, "{answer} where {before} to {after} may be");
                    counts[1].fetch_add(1, Ordering::Relaxed);
                }
            });
            let _over = Over(&is_over);
            for round in 0..30 {
                let (rights, answer) = match round % 3 {
                    0 => (rights(&[ONE, OTHER], &[ONE]), 2),
                    1 => (rights(&[ONE], &[ONE]), 4),
                    _ => (HostRights::ALL, 1),
                };
                allowed.fetch_or(answer, Ordering::SeqCst);
                // Returns once every reactor serves the new rights.
                set(&mut rig, 1, rights);
                allowed.store(answer, Ordering::SeqCst);
                counts.iter().for_each(|count| await_more(count, 20));
            }
        });
    }
}
