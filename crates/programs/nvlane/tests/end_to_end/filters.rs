//! Hosts see exactly the effects of storage filters.

use std::time::{Duration, Instant};

use host::BlockRange;
use host::BlockingNamespace;
use linux::random::SplitMix64;
use wire::id::Nsid;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::edges::status;
use crate::exercise::{Load, Model};
use crate::raw::RawHost;
use crate::setup::{PATIENCE, Rig, engines, options};

const ONE: Nsid = Nsid::new(1);

fn read(namespace: &mut BlockingNamespace, lba: u64) -> Status {
    let command = namespace.namespace().read(lba, 1).expect("a read");
    status(namespace, command, Some(vec![0; 4096]))
}

fn write(namespace: &mut BlockingNamespace, lba: u64) -> Status {
    let command = namespace.namespace().write(lba, 1).expect("a write");
    status(namespace, command, Some(vec![1; 4096]))
}

fn flush(namespace: &mut BlockingNamespace) -> Status {
    let command = namespace.namespace().flush();
    status(namespace, command, None)
}

#[test]
fn a_delay_holds_back_what_it_names_and_nothing_else() {
    for engine in engines() {
        let rig = Rig::new(engine, &["ram:1M?delay=read:300ms"]);
        let mut namespace = rig.open(options());
        let geometry = namespace.namespace().clone();
        let lane = namespace.lane_mut();
        let start = Instant::now();
        for lba in 0..64 {
            lane.submit(geometry.read(lba, 1).expect("a read"), Some(vec![0; 4096]), lba).expect("room");
        }
        lane.submit(geometry.write(0, 1).expect("a write"), Some(vec![1; 4096]), 100).expect("room");
        let mut ended = Vec::new();
        while lane.outstanding() > 0 {
            lane.wait(&mut ended, PATIENCE);
        }
        assert_eq!(ended[0].user, 100, "only reads wait");
        assert!(start.elapsed() >= Duration::from_millis(300), "{:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_millis(300) * 32, "those that wait do so together");
    }
}

#[test]
fn errors_of_storage_become_the_status_that_says_so() {
    let errors = [
        ("injected", Status::UNRECOVERED_READ_ERROR, Status::WRITE_FAULT),
        ("eio", Status::UNRECOVERED_READ_ERROR, Status::WRITE_FAULT),
        ("truncated", Status::UNRECOVERED_READ_ERROR, Status::WRITE_FAULT),
        ("closed", Status::NAMESPACE_NOT_READY.with_dnr(), Status::NAMESPACE_NOT_READY.with_dnr()),
        ("nospace", Status::CAPACITY_EXCEEDED.with_dnr(), Status::CAPACITY_EXCEEDED.with_dnr()),
        (
            "readonly",
            Status::NAMESPACE_WRITE_PROTECTED.with_dnr(),
            Status::NAMESPACE_WRITE_PROTECTED.with_dnr(),
        ),
        ("unsupported", Status::INVALID_OPCODE.with_dnr(), Status::INVALID_OPCODE.with_dnr()),
        ("unreachable", Status::INTERNAL_PATH_ERROR, Status::INTERNAL_PATH_ERROR),
    ];
    for engine in engines() {
        for (name, of_read, of_write) in errors {
            let rig = Rig::new(engine, &[&format!("ram:1M?error=1/1,as={name},at=0-64K")]);
            let mut namespace = rig.open(options().tuned(|tuning| tuning.path_timeout = Duration::ZERO));
            assert_eq!(read(&mut namespace, 0), of_read, "{name}");
            assert_eq!(write(&mut namespace, 1), of_write, "{name}");
            let info = namespace.namespace().clone();
            let compare = info.compare(2, 1).expect("a compare");
            assert_eq!(status(&mut namespace, compare, Some(vec![0; 4096])), of_read, "{name}");
            let zeroes = info.write_zeroes(3, 1, false).expect("zeroes");
            assert_eq!(status(&mut namespace, zeroes, None), of_write, "{name}");
            let range = [BlockRange { lba: 100, blocks: 1 }, BlockRange { lba: 4, blocks: 1 }];
            let deallocate = info.deallocate(&range).expect("ranges");
            assert_eq!(status(&mut namespace, deallocate, None), of_write, "{name}");
            let verify = info.verify(0, 200).expect("a verify");
            assert_eq!(status(&mut namespace, verify, None), of_read, "{name}");
            assert!(!namespace.compare_and_write_at(&[0; 4096], &[1; 4096], 0).is_ok_and(|done| done));
            // Beyond the filter's range everything works.
            assert_eq!(
                (read(&mut namespace, 16), write(&mut namespace, 17)),
                (Status::SUCCESS, Status::SUCCESS)
            );
        }
    }
}

#[test]
fn a_flush_that_fails_is_not_reported_done() {
    for engine in engines() {
        let rig = Rig::new(engine, &["file:1M?error=flush:1/2,as=eio", "file:1M"]);
        let mut namespace = rig.open(options());
        let results: Vec<_> = (0..4).map(|_| flush(&mut namespace)).collect();
        assert_eq!(results.iter().filter(|status| status.is_success()).count(), 2, "{results:?}");
        // A command on all namespaces succeeds only if it did for each.
        let all: Vec<_> =
            (0..4).map(|_| status(&mut namespace, host::Command::raw(Sqe::flush(Nsid::ALL)), None)).collect();
        assert_eq!(all.iter().filter(|status| status.is_success()).count(), 2, "{all:?}");
    }
}

#[test]
fn a_copy_that_fails_says_which_range_is_the_first_not_copied() {
    for engine in engines() {
        for (at, expected) in
            [("0-4K", 0), ("40K-44K", 1), ("1M-1028K", 0), ("1032K-1036K", 1), ("1040K-1044K", 2)]
        {
            let rig = Rig::new(engine, &[&format!("ram:2M?error=1/1,at={at}")]);
            let mut host = RawHost::new(&rig);
            let source = |lba| wire::nvm::CopySource::new(Nsid::NONE, lba, 2);
            let sources = [source(0), source(10), source(20)];
            let format = wire::nvm::CopyFormat::FORMAT_0;
            let copy = wire::nvm::CopyCommand::new(256, format, 3).to_sqe(ONE);
            let cid = host.io.write_in_capsule(copy, zerocopy::IntoBytes::as_bytes(&sources));
            let end = host.io.completion(cid);
            assert!(!end.status().is_success());
            assert_eq!(end.dw0(), expected, "error at {at}");
        }
    }
}

#[test]
fn a_limit_lets_everything_pass_in_time() {
    for engine in engines() {
        let rig = Rig::new(engine, &["ram:1M?lba=512&limit=2000iops,40M/s,burst=1ms"]);
        let association = rig.connect(options().with_lanes(2));
        let namespace = association.addressed_namespace().expect("one namespace");
        let mut lanes = association.lanes().expect("two lanes");
        let start = Instant::now();
        let load = Load { commands: 300, bytes: 4 << 20, blocks_max: 256 };
        Model::new(&namespace, 1).run(&mut lanes, &namespace, load, &mut SplitMix64::new(1));
        assert!(start.elapsed() >= Duration::from_millis(140), "{:?}", start.elapsed());
    }
}

/// Its ranges are carried out one after the other: those that are left when the connection ends are left alone.
#[test]
fn a_deallocation_of_many_ranges_ends_with_its_connection() {
    const COUNT: u64 = 250;
    const BYTES: usize = 2 << 20;
    for engine in engines() {
        let rig = Rig::new(engine, &["ram:2M?delay=deallocate:20ms"]);
        let mut namespace = rig.open(options());
        namespace.write_at(&vec![1; BYTES], 0).expect("all blocks are written");
        let mut deallocated_count = || {
            let mut all = vec![0; BYTES];
            namespace.read_at(&mut all, 0).expect("all blocks are read");
            all.chunks(4096).filter(|block| block.iter().all(|byte| *byte == 0)).count()
        };
        let mut host = RawHost::new(&rig);
        let range = |place| zerocopy::IntoBytes::as_bytes(&wire::nvm::DsmRange::new(2 * place, 1)).to_vec();
        let ranges: Vec<u8> = (0..COUNT).flat_map(range).collect();
        let attributes = wire::nvm::DsmAttributes::DEALLOCATE;
        let command = wire::nvm::DatasetManagement { range_count: COUNT as u16, attributes };
        host.io.write_in_capsule(command.to_sqe(ONE), &ranges);
        let since = Instant::now();
        while deallocated_count() == 0 {
            assert!(since.elapsed() < PATIENCE, "nothing is deallocated");
        }
        drop(host);
        // A host that connects again waits for the end of what is under way.
        let _again = RawHost::new(&rig);
        let count = deallocated_count();
        assert!(count < COUNT as usize, "all {count} ranges are deallocated");
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(deallocated_count(), count, "it goes on");
    }
}
