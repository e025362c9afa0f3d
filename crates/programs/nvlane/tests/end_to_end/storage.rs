//! Storage that other programs change underneath a target: no lost data is reported as present.

use std::fs::OpenOptions;
use std::time::Instant;

use host::BlockingNamespace;
use host::{Command, Event};
use wire::id::Nsid;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::edges::status;
use crate::setup::{PATIENCE, Rig, engines, open, options_of};

const BYTES: u64 = 1 << 20;
const NOT_READY: Status = Status::NAMESPACE_NOT_READY.with_dnr();
const LOST: Status = Status::WRITE_FAULT.with_dnr();

fn read(namespace: &mut BlockingNamespace) -> Status {
    let command = namespace.namespace().read(0, 1).expect("a read");
    status(namespace, command, Some(vec![0; 4096]))
}

fn write(namespace: &mut BlockingNamespace, is_fua: bool) -> Status {
    let command = namespace.namespace().write(0, 1).expect("a write");
    let command = if is_fua { command.fua() } else { command };
    status(namespace, command, Some(vec![1; 4096]))
}

fn flush(namespace: &mut BlockingNamespace) -> Status {
    let command = namespace.namespace().flush();
    status(namespace, command, None)
}

fn flush_all(namespace: &mut BlockingNamespace) -> Status {
    status(namespace, Command::raw(Sqe::flush(Nsid::ALL)), None)
}

#[test]
fn a_namespace_whose_file_is_cut_is_closed_until_it_is_reopened_and_every_host_learns_of_it() {
    for engine in engines() {
        let mut rig = Rig::new(engine, &["file:1M", "file:1M"]);
        let mut hosts: Vec<BlockingNamespace> = (1..=3).map(|host| rig.open(options_of(host))).collect();
        let mut beside = open(&rig.connect(options_of(4)), 2);
        for host in &mut hosts {
            assert_eq!(write(host, false), Status::SUCCESS);
        }
        let file = OpenOptions::new().write(true).open(rig.file(0)).expect("its file");
        file.set_len(BYTES / 2).expect("cut");
        assert_eq!(flush(&mut hosts[0]), Status::WRITE_FAULT);
        // As before, with zeroes in place of the data.
        file.set_len(BYTES).expect("long again");
        for host in &mut hosts[..2] {
            assert_eq!(
                [write(host, true), write(host, false), read(host), flush(host), flush_all(host)],
                [NOT_READY; 5],
                "{engine:?}"
            );
        }
        assert_eq!((write(&mut beside, true), flush(&mut beside)), (Status::SUCCESS, Status::SUCCESS));
        let why = rig.state().subsystems[0].namespaces[0].closed.clone().expect("closed");
        assert!(why.contains("was cut from 1M to 512K"), "{why}");

        rig.reload(|_| {});
        assert_eq!(rig.state().subsystems[0].namespaces[0].closed, None);
        assert_eq!(write(&mut hosts[1], true), Status::SUCCESS);
        assert_eq!(
            flush(&mut hosts[1]),
            Status::SUCCESS,
            "one of its flushes has failed while it was closed"
        );
        // The third host had no command in that time.
        assert_eq!(read(&mut hosts[2]), Status::SUCCESS);
        assert_eq!(flush(&mut hosts[2]), LOST, "{engine:?}: its writes may be lost");
        assert_eq!(flush(&mut hosts[2]), Status::SUCCESS);
        let mut late = rig.open(options_of(5));
        assert_eq!((write(&mut late, false), flush(&mut late)), (Status::SUCCESS, Status::SUCCESS));
        assert_eq!(flush_all(&mut beside), LOST, "which is a flush of the first namespace, too");
        assert_eq!(flush_all(&mut beside), Status::SUCCESS);
    }
}

#[test]
fn a_file_that_grows_or_is_cut_is_noticed_without_any_io() {
    for engine in engines() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("disk.img");
        let file = std::fs::File::create(&path).expect("a file");
        file.set_len(BYTES).expect("its size");
        let mut rig = Rig::new(engine, &["ram:1M"]);
        let spec = format!("file:{}", path.display());
        let disk = rig.namespace_config(1, &spec);
        // Without its scheme it would be a new file of that size.
        assert_eq!(disk.storage.to_string(), spec);
        rig.reload(|config| config.subsystems[0].namespaces.push(disk));
        let association = rig.connect(options_of(1).with_lanes(2));
        let events = association.events();
        let size = |bytes: u64| {
            let until = Instant::now() + PATIENCE;
            loop {
                let namespace = association.namespace(Nsid::new(2)).expect("it is there");
                if namespace.block_count() * u64::from(namespace.lba_bytes()) == bytes {
                    return;
                }
                let left = until.saturating_duration_since(Instant::now());
                let event = events.recv_timeout(left).expect("an event");
                assert!(matches!(event, Event::NamespacesChanged(_) | Event::Controller(_)), "{event:?}");
            }
        };
        size(BYTES);
        assert!(rig.look().lines.is_empty(), "nothing has changed");
        file.set_len(2 * BYTES).expect("longer");
        let report = rig.look();
        assert!(report.is_complete(), "{report}");
        assert!(report.to_string().contains("from 1M to 2M"), "{report}");
        size(2 * BYTES);
        assert!(rig.look().lines.is_empty(), "said once");

        let mut namespace = open(&association, 2);
        assert_eq!((read(&mut namespace), flush(&mut namespace)), (Status::SUCCESS, Status::SUCCESS));
        file.set_len(BYTES).expect("cut");
        let report = rig.look();
        assert!(report.to_string().contains("is closed: its storage was cut from 2M to 1M"), "{report}");
        assert_eq!([read(&mut namespace), flush(&mut namespace)], [NOT_READY; 2]);
        // The operator accepts the remaining data: the configuration sets no size.
        rig.reload(|_| {});
        size(BYTES);
        let mut namespace = open(&association, 2);
        assert_eq!((read(&mut namespace), flush(&mut namespace)), (Status::SUCCESS, Status::SUCCESS));
    }
}
