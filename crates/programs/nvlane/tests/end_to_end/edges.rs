//! Edge cases of each command, on every kind of storage.

use host::BlockingNamespace;
use host::{BlockRange, Command, Error, Failure};
use wire::id::Nsid;
use wire::sqe::Sqe;
use wire::status::Status;
use zerocopy::IntoBytes;

use crate::setup::{Rig, engines, options};

/// Storage that retains written data.
const KEEPING: [&str; 4] = ["ram:2M", "ram:2M?lba=512", "file:2M", "file:2M?lba=512"];

/// Runs `check` on each kind of storage, with each engine.
fn on_each(storage: &[&str], check: impl Fn(&mut BlockingNamespace)) {
    for engine in engines() {
        for storage in storage {
            let rig = Rig::new(engine, &[storage]);
            check(&mut rig.open(options()));
        }
    }
}

/// The completion of a raw command.
pub(crate) fn status(namespace: &mut BlockingNamespace, command: Command, buffer: Option<Vec<u8>>) -> Status {
    match namespace.run("test", command, buffer) {
        Ok(_) => Status::SUCCESS,
        Err(Error::Failed { failure: Failure::Status(status), .. }) => status,
        Err(error) => panic!("{error}"),
    }
}

fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 7 % 251) as u8 ^ seed).collect()
}

fn block(namespace: &BlockingNamespace) -> usize {
    namespace.namespace().lba_bytes() as usize
}

fn read(namespace: &mut BlockingNamespace, lba: u64, blocks: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; blocks * block(namespace)];
    namespace.read_at(&mut bytes, lba * block(namespace) as u64).expect("a read");
    bytes
}

fn write(namespace: &mut BlockingNamespace, lba: u64, bytes: &[u8]) {
    namespace.write_at(bytes, lba * block(namespace) as u64).expect("a write");
}

#[test]
fn the_last_block_is_there_and_the_one_behind_it_is_not() {
    on_each(&["ram:2M", "file:2M?lba=512", "null:2M"], |namespace| {
        let (count, bytes) = (namespace.namespace().block_count(), block(namespace));
        write(namespace, count - 1, &pattern(1, bytes));
        read(namespace, count - 1, 1);
        let nsid = Nsid::new(1);
        let length = |blocks: u32| blocks * bytes as u32;
        for (lba, blocks) in
            [(count, 1), (count - 1, 2), (count - 3, 4), (u64::MAX, 1), (u64::MAX - 1, 2), (1 << 63, 8)]
        {
            let buffer = || Some(vec![0; length(blocks) as usize]);
            let read = Command::raw_from_controller(Sqe::read(nsid, lba, blocks), length(blocks));
            let write = Command::raw_to_controller(Sqe::write(nsid, lba, blocks), length(blocks));
            let compare = Command::raw_to_controller(Sqe::compare(nsid, lba, blocks), length(blocks));
            for command in [read, write, compare] {
                let found = status(namespace, command, buffer());
                assert_eq!(found, Status::LBA_OUT_OF_RANGE.with_dnr(), "{blocks} blocks at {lba}");
            }
            for sqe in [Sqe::write_zeroes(nsid, lba, blocks, true), Sqe::verify(nsid, lba, blocks)] {
                let found = status(namespace, Command::raw(sqe), None);
                assert_eq!(found, Status::LBA_OUT_OF_RANGE.with_dnr(), "{blocks} blocks at {lba}");
            }
        }
    });
}

#[test]
fn writes_are_read_back_whether_durable_or_flushed() {
    on_each(&KEEPING, |namespace| {
        let bytes = block(namespace);
        for (lba, blocks) in [(0, 1), (3, 2), (16, 16), (100, 128)] {
            let data = pattern(lba as u8, blocks * bytes);
            namespace.write_durably_at(&data, lba * bytes as u64).expect("a durable write");
            assert_eq!(read(namespace, lba, blocks), data);
            namespace.flush().expect("a flush");
            assert_eq!(read(namespace, lba, blocks), data);
        }
        let flush = |nsid| Command::raw(Sqe::flush(nsid));
        assert_eq!(status(namespace, flush(Nsid::ALL), None), Status::SUCCESS);
        let missing = Status::INVALID_NAMESPACE.with_dnr();
        assert_eq!(status(namespace, flush(Nsid::new(2)), None), missing);
        assert_eq!(status(namespace, flush(Nsid::NONE), None), missing);
    });
}

#[test]
fn zeroes_reach_exactly_as_far_as_they_are_told() {
    on_each(&KEEPING, |namespace| {
        let (bytes, count) = (block(namespace), namespace.namespace().block_count() as usize);
        let mut model = pattern(9, count * bytes);
        write(namespace, 0, &model);
        for (lba, blocks, deallocate) in
            [(1, 1, false), (5, 3, true), (17, 100, true), (200, 150, false), (count - 1, 1, true)]
        {
            let (from, length) = (lba * bytes, blocks * bytes);
            namespace.write_zeroes(from as u64, length as u64, deallocate).expect("zeroes");
            model[from..from + length].fill(0);
        }
        assert!(read(namespace, 0, count) == model);
        let all = namespace.namespace().size_bytes();
        namespace.write_zeroes(0, all, true).expect("zeroes everywhere");
        assert!(read(namespace, 0, count).iter().all(|&byte| byte == 0));
    });
}

#[test]
fn many_ranges_are_deallocated_and_nothing_between_them() {
    on_each(&KEEPING, |namespace| {
        let (bytes, count) = (block(namespace), namespace.namespace().block_count() as usize);
        let mut model = pattern(3, count * bytes);
        write(namespace, 0, &model);
        let ranges: Vec<_> =
            (0..count as u64).step_by(2).take(256).map(|lba| BlockRange { lba, blocks: 1 }).collect();
        let command = namespace.namespace().deallocate(&ranges).expect("256 ranges");
        assert_eq!(status(namespace, command, None), Status::SUCCESS);
        for range in &ranges {
            model[range.lba as usize * bytes..][..range.blocks as usize * bytes].fill(0);
        }
        let after = read(namespace, 0, count);
        for (lba, (found, expected)) in after.chunks(bytes).zip(model.chunks(bytes)).enumerate() {
            assert!(found == expected, "block {lba}");
        }
    });
}

#[test]
fn one_range_past_the_end_deallocates_nothing() {
    on_each(&KEEPING, |namespace| {
        let (bytes, count) = (block(namespace), namespace.namespace().block_count());
        write(namespace, 0, &pattern(4, bytes));
        let attributes = wire::nvm::DsmAttributes::DEALLOCATE;
        let sqe = wire::nvm::DatasetManagement { range_count: 2, attributes }.to_sqe(Nsid::new(1));
        let mut deallocate = |ranges: [(u64, u32); 2]| {
            let entry = |(lba, blocks)| wire::nvm::DsmRange::new(lba, blocks);
            let data: Vec<u8> =
                ranges.map(entry).iter().flat_map(|range| range.as_bytes().to_vec()).collect();
            status(namespace, Command::raw_to_controller(sqe, 32), Some(data))
        };
        for past in [(count - 1, 2), (count, 1), (count + 1, 0), (u64::MAX, u32::MAX)] {
            assert_eq!(deallocate([(0, 1), past]), Status::LBA_OUT_OF_RANGE.with_dnr());
        }
        assert_eq!(deallocate([(0, 0), (count, 0)]), Status::SUCCESS, "no blocks at all");
        assert_eq!(read(namespace, 0, 1), pattern(4, bytes));
    });
}

#[test]
fn a_compare_finds_a_difference_of_one_bit() {
    on_each(&KEEPING, |namespace| {
        let bytes = block(namespace);
        for blocks in [1, 2, 8, 64] {
            let mut data = pattern(blocks as u8, blocks * bytes);
            write(namespace, 7, &data);
            let offset = 7 * bytes as u64;
            assert!(namespace.compare_at(&data, offset).expect("a compare"));
            for at in [0, bytes - 1, data.len() / 2, data.len() - 1] {
                data[at] ^= 0x40;
                assert!(!namespace.compare_at(&data, offset).expect("a compare"), "byte {at}");
                data[at] ^= 0x40;
            }
            assert!(namespace.compare_at(&data, offset).expect("a compare"));
        }
    });
}

#[test]
fn a_verify_reads_more_than_a_transfer() {
    on_each(&["ram:4M?lba=512", "file:4M?lba=512"], |namespace| {
        let sqe = Sqe::verify(Nsid::new(1), 0, 8192);
        assert_eq!(status(namespace, Command::raw(sqe), None), Status::SUCCESS);
        namespace.verify(512, 1024).expect("a verify");
    });
}

#[test]
fn a_copy_puts_its_sources_one_after_the_other() {
    on_each(&KEEPING, |namespace| {
        let (bytes, count) = (block(namespace), namespace.namespace().block_count() as usize);
        let mut model = pattern(5, count * bytes);
        write(namespace, 0, &model);
        let half = count as u64 / 2;
        let copies: [(u64, &[(u64, u32)]); 4] = [
            (half, &[(0, 1)]),
            (half + 10, &[(5, 3), (0, 1), (5, 3), (100, 100)]),
            // Onto itself, shifted.
            (21, &[(20, 8)]),
            (half, &[(half - 1, 1), (half + 1, 64)]),
        ];
        for (destination, sources) in copies {
            let ranges: Vec<_> = sources.iter().map(|&(lba, blocks)| BlockRange { lba, blocks }).collect();
            let command = namespace.namespace().copy(destination, &ranges).expect("a copy").fua();
            assert_eq!(status(namespace, command, None), Status::SUCCESS);
            let mut to = destination as usize * bytes;
            for &(lba, blocks) in sources {
                let (from, length) = (lba as usize * bytes, blocks as usize * bytes);
                model.copy_within(from..from + length, to);
                to += length;
            }
            assert!(read(namespace, 0, count) == model, "to {destination}");
        }
    });
}

#[test]
fn a_copy_of_a_large_range_onto_itself_moves_it() {
    on_each(&["ram:4M?lba=512", "file:4M?lba=512"], |namespace| {
        let (bytes, count) = (block(namespace), namespace.namespace().block_count() as usize);
        for (from, to) in [(0, 300), (300, 0), (10, 11), (11, 10)] {
            let mut model = pattern(6, count * bytes);
            for (at, part) in model.chunks_mut(bytes).enumerate() {
                part[..8].copy_from_slice(&(at as u64).to_le_bytes());
            }
            write(namespace, 0, &model);
            let command =
                namespace.namespace().copy(to, &[BlockRange { lba: from, blocks: 2048 }]).expect("a copy");
            assert_eq!(status(namespace, command, None), Status::SUCCESS);
            let from = from as usize * bytes;
            model.copy_within(from..from + 2048 * bytes, to as usize * bytes);
            assert!(read(namespace, 0, count) == model, "from {from} to {to}");
        }
    });
}

#[test]
fn a_copy_past_the_end_copies_nothing() {
    on_each(&KEEPING, |namespace| {
        let (bytes, count) = (block(namespace), namespace.namespace().block_count());
        write(namespace, 0, &pattern(8, bytes));
        write(namespace, count - 1, &pattern(9, bytes));
        let source = |lba: u64, blocks: u16| {
            let entry = wire::nvm::CopySource::new(Nsid::NONE, lba, u32::from(blocks));
            entry.as_bytes().to_vec()
        };
        for (destination, data) in [
            (count - 1, [source(0, 1), source(0, 1)].concat()),
            (1, [source(0, 1), source(count, 1)].concat()),
            (u64::MAX, [source(0, 1), source(0, 1)].concat()),
        ] {
            let format = wire::nvm::CopyFormat::FORMAT_0;
            let sqe = wire::nvm::CopyCommand::new(destination, format, 2).to_sqe(Nsid::new(1));
            let command = Command::raw_to_controller(sqe, 64);
            assert_eq!(status(namespace, command, Some(data)), Status::LBA_OUT_OF_RANGE.with_dnr());
        }
        assert_eq!(read(namespace, count - 1, 1), pattern(9, bytes));
    });
}

#[test]
fn nothing_changes_a_read_only_namespace() {
    for engine in engines() {
        let mut rig = Rig::new(engine, &["ram:1M?readonly", "file:1M"]);
        let protected = Status::NAMESPACE_WRITE_PROTECTED.with_dnr();
        let association = rig.connect(options());
        let check = |namespace: &mut BlockingNamespace| {
            let info = namespace.namespace().clone();
            let bytes = info.lba_bytes();
            let buffer = || Some(vec![1; bytes as usize]);
            assert_eq!(status(namespace, info.write(0, 1).expect("a write"), buffer()), protected);
            let zeroes = info.write_zeroes(0, 1, true).expect("zeroes");
            assert_eq!(status(namespace, zeroes, None), protected);
            let copy = info.copy(8, &[BlockRange { lba: 0, blocks: 1 }]).expect("a copy");
            assert_eq!(status(namespace, copy, None), protected);
            assert_eq!(status(namespace, info.flush(), None), Status::SUCCESS);
            assert!(read(namespace, 0, 1).iter().all(|&byte| byte == 0));
            assert!(namespace.compare_at(&vec![0; bytes as usize], 0).expect("a compare"));
        };
        check(&mut crate::setup::open(&association, 1));
        drop(association);
        // A file with existing data.
        let path = rig.config.subsystems[0].namespaces[1].storage.clone();
        rig.reload(|config| {
            config.subsystems[0].namespaces.remove(1);
        });
        let mut read_only = path;
        read_only.is_read_only = true;
        if let store::Source::File { bytes, .. } = &mut read_only.source {
            *bytes = None;
        }
        rig.reload(|config| {
            config.subsystems[0].namespaces.push(subsystem::config::NamespaceConfig::new(read_only));
        });
        let association = rig.connect(options());
        check(&mut crate::setup::open(&association, 2));
    }
}
