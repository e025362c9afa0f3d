//! Exercises a target of any make through the host library and checks every byte. All data on the namespace is
//! overwritten.
//!
//! ```text
//! cargo run -p nvlane-host --example foreign_target -- 127.0.0.1:4420/nqn.2024-01.example:disk
//! ```
//! With a number of seconds as second argument it instead runs a load and prints events for that long, while someone
//! restarts the target or changes its namespaces by hand.
#![allow(clippy::cast_possible_truncation)]

use std::time::{Duration, Instant};

use nvlane_host::wire::identify::capabilities::Oncs;
use nvlane_host::{
    Address, Association, BlockRange, BlockingNamespace, Completion, Csi, Digests, Error, Failure, Fid,
    LaneSet, Namespace, Nsid, Options, Property, discovery,
};

const SECOND: Duration = Duration::from_secs(1);

/// A check of the target at an address; it panics on failure.
type Check = fn(&Address);

fn main() {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: foreign_target HOST[:PORT]/NQN[?ns=1] [SECONDS]";
    let address: Address = arguments.next().expect(usage).parse().unwrap_or_else(|error| panic!("{error}"));
    if let Some(seconds) = arguments.next() {
        let seconds = Duration::from_secs(seconds.parse().expect(usage));
        std::thread::scope(|scope| {
            scope.spawn(|| run_load_through_losses(&address, seconds));
            scope.spawn(|| print_changes(&address, seconds));
        });
        return;
    }
    let checks: [(&str, Check); 5] = [
        ("every size, depth and lane count reads what it wrote", check_transfers),
        ("admin commands that tools use", check_admin),
        ("write zeroes, deallocate, compare", check_other_commands),
        ("the discovery service lists the subsystem", check_discovery),
        ("an unknown subsystem is refused", check_unknown_subsystem),
    ];
    for (name, check) in checks {
        println!("{name}");
        check(&address);
    }
    println!("all checks passed");
}

/// Fills blocks from `lba` on with the bytes of their `version`th write.
fn fill(buffer: &mut [u8], lba: u64, version: u32, lba_bytes: usize) {
    for (index, block) in buffer.chunks_exact_mut(lba_bytes).enumerate() {
        let seed = (lba + index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(version) << 32;
        for (word, at) in block.chunks_exact_mut(8).zip(0u64..) {
            word.copy_from_slice(&(seed ^ at.wrapping_mul(0xbf58_476d_1ce4_e5b9)).to_le_bytes());
        }
    }
}

struct Load {
    blocks: u32,
    depth: u16,
    count: u64,
}

/// Writes a region in extents, then reads it back, on all lanes at once at the load's depth; every byte is checked.
fn verified(set: &mut LaneSet, namespace: &Namespace, load: &Load, version: u32) {
    let lba_bytes = namespace.lba_bytes() as usize;
    let length = load.blocks as usize * lba_bytes;
    let lanes = set.lanes().len() as u64;
    let extents = load.count.min(namespace.block_count() / u64::from(load.blocks) / lanes);
    let lba_of = |lane: u64, extent: u64| (lane * extents + extent) * u64::from(load.blocks);
    for is_write in [true, false] {
        let mut next = vec![0u64; lanes as usize];
        let mut done = 0;
        let mut expected = vec![0; length];
        let start = Instant::now();
        while done < extents * lanes {
            for (lane, next) in (0u64..).zip(&mut next) {
                while *next < extents && set.lanes()[lane as usize].outstanding() < load.depth {
                    let lba = lba_of(lane, *next);
                    let mut buffer = vec![0; length];
                    let command = if is_write {
                        fill(&mut buffer, lba, version, lba_bytes);
                        namespace.write(lba, load.blocks).unwrap()
                    } else {
                        namespace.read(lba, load.blocks).unwrap()
                    };
                    if set.lanes_mut()[lane as usize].submit(command, Some(buffer), *next).is_err() {
                        break;
                    }
                    *next += 1;
                }
            }
            set.wait_with(
                &mut |lane, completion: Completion<Vec<u8>>| {
                    assert_eq!(completion.result, Ok(0), "{} blocks, depth {}", load.blocks, load.depth);
                    if !is_write {
                        let lba = lba_of(lane as u64, completion.user);
                        fill(&mut expected, lba, version, lba_bytes);
                        assert!(completion.buffer.unwrap() == expected, "block {lba}");
                    }
                    done += 1;
                },
                SECOND,
            );
            assert!(start.elapsed() < 60 * SECOND, "{done} of {}", extents * lanes);
        }
    }
}

fn check_transfers(address: &Address) {
    let mut version = 0;
    for digests in 0..4 {
        for lanes in [1, 2, 4] {
            let digests = Digests::from_bits_retain(digests);
            let options = Options::default().with_lanes(lanes).with_only_digests(digests);
            let association =
                Association::connect(address, options).unwrap_or_else(|error| panic!("{error}"));
            let namespace = association.addressed_namespace().unwrap();
            let lanes = lanes.min(association.controller().queue_pairs);
            let lanes = (0..lanes).map(|_| association.lane()).collect::<Result<_, _>>().unwrap();
            let mut set = LaneSet::new(lanes).unwrap();
            for (bytes, count) in
                [(512, 200), (4096, 200), (16384, 64), (65536, 32), (131_072, 16), (1 << 20, 6)]
            {
                let blocks = (bytes / namespace.lba_bytes()).clamp(1, namespace.transfer_blocks_max());
                for depth in [1, 8, 128] {
                    version += 1;
                    let count = if depth == 1 { count / 4 + 1 } else { count };
                    verified(&mut set, &namespace, &Load { blocks, depth, count }, version);
                }
            }
            let flush = namespace.flush();
            set.lanes_mut()[0].submit(flush, None, 0).unwrap();
            set.wait_with(&mut |_, completion| assert_eq!(completion.result, Ok(0)), SECOND);
        }
    }
}

fn check_admin(address: &Address) {
    let association = Association::connect(address, Options::default()).unwrap();
    let identify = association.identify_controller().unwrap();
    println!("{} {} {}", identify.model(), identify.serial(), identify.firmware());
    let controller = association.controller();
    println!("version {}, {:?}, {} queues", controller.vs, controller.limits, controller.queue_pairs);
    assert_eq!(association.property(Property::CSTS).unwrap() & 1, 1);
    let nsid = association.addressed_namespace().unwrap().nsid();
    assert!(association.active_namespaces(Nsid::NONE).unwrap().contains(&nsid));
    assert!(association.identify_namespace(nsid).unwrap().is_present());
    println!("{:?}", association.namespaces());
    association.smart_log(Nsid::ALL).unwrap();
    println!("keep-alive {:?}", association.feature(Fid::KEEP_ALIVE, Nsid::NONE));
    println!("errors {:?}", association.error_log(4).map(|log| log.len()));
    println!("firmware {:?}", association.firmware_slots().map(|slots| slots.afi));
    let csi = Csi::NVM;
    println!("effects of read {:?}", association.effects_log(csi).map(|log| log.io(2)));
}

fn check_other_commands(address: &Address) {
    let mut disk = BlockingNamespace::connect(address, Options::default()).unwrap();
    let data: Vec<u8> = (0..1 << 20).map(|index| (index * 31 + index / 253) as u8).collect();
    disk.write_at(&data, 0).unwrap();
    disk.write_durably_at(&data, 1 << 20).unwrap();
    disk.flush().unwrap();
    let mut back = vec![1; 1 << 20];
    let commands = disk.namespace().limits().commands;
    if commands.contains(Oncs::WRITE_ZEROES) {
        disk.write_zeroes(65536, 131_072, false).unwrap();
        disk.read_at(&mut back, 0).unwrap();
        assert!(back[65536..65536 + 131_072].iter().all(|&byte| byte == 0));
        assert!(back[..65536] == data[..65536]);
    }
    if commands.contains(Oncs::DATASET_MANAGEMENT) {
        disk.deallocate(0, 1 << 20).unwrap();
        let ranges: Vec<_> = (0..100).map(|index| BlockRange { lba: index * 16, blocks: 8 }).collect();
        let command = disk.namespace().deallocate(&ranges).unwrap();
        disk.run("Deallocate", command, None).unwrap();
    }
    disk.read_at(&mut back, 1 << 20).unwrap();
    assert!(back == data);
    match disk.compare_at(&data, 1 << 20) {
        Ok(is_equal) => assert!(is_equal),
        Err(error) => assert!(matches!(error, Error::Command(_)), "{error}"),
    }
    let beyond = disk.namespace().size_bytes();
    assert!(disk.read_at(&mut back, beyond).is_err());
}

fn check_discovery(address: &Address) {
    // nvmet and SPDK answer to the discovery name on the subsystem's own port.
    let service = Address { subsystem: None, port: Some(address.port()), nsid: None, ..address.clone() };
    let found = discovery::discover(&service, Options::default()).unwrap();
    for entry in &found.entries {
        println!("{} {} {}", entry.subtype, entry.address(), entry.service_id());
    }
    let names = found.entries.iter().filter_map(|entry| entry.subsystem().ok());
    assert!(names.into_iter().any(|name| Some(&name) == address.subsystem.as_ref()));
    let persistent = discovery::Discovery::connect(&service, Options::default()).unwrap();
    assert_eq!(persistent.log().unwrap().generation, found.generation);
    assert!(!persistent.wait(Duration::from_millis(200)).unwrap());
}

fn check_unknown_subsystem(address: &Address) {
    let wrong = address.clone().with_subsystem("nqn.2016-06.io.nvlane:nobody".parse().unwrap());
    let error = Association::connect(&wrong, Options::default()).unwrap_err();
    println!("{error}");
    assert!(error.is_permanent() && error.to_string().contains("there is no subsystem"), "{error}");
}

/// Reads, writes and flushes for `time`; each command must complete exactly once, however often the target restarts.
fn run_load_through_losses(address: &Address, time: Duration) {
    let association = Association::connect(address, Options::default()).unwrap();
    let events = association.events();
    let namespace = association.addressed_namespace().unwrap();
    let mut lane = association.lane::<Vec<u8>>().unwrap();
    let (mut counts, mut user) = ([0u64; 5], 0u64);
    let (start, mut completions) = (Instant::now(), Vec::new());
    while start.elapsed() < time || lane.outstanding() > 0 {
        while start.elapsed() < time && lane.has_room(1) {
            let (lba, data) = (user % 4096, vec![user as u8; 512]);
            let (command, buffer) = match user % 100 {
                99 => (namespace.flush(), None),
                odd if odd % 2 == 1 => (namespace.write(lba, 1).unwrap(), Some(data)),
                _ => (namespace.read(lba, 1).unwrap(), Some(data)),
            };
            lane.submit(command, buffer, user).unwrap();
            user += 1;
        }
        lane.wait(&mut completions, SECOND);
        for completion in completions.drain(..) {
            let kind = match completion.result {
                Ok(_) => 0,
                Err(Failure::Interrupted) => 1,
                Err(Failure::Unflushed) => 2,
                Err(Failure::Status(_)) => 3,
                Err(_) => 4,
            };
            counts[kind] += 1;
        }
        for event in events.try_iter() {
            println!("{:6.2} s {event:?}", start.elapsed().as_secs_f64());
        }
    }
    println!("done, interrupted, unflushed, status, other: {counts:?}, {user} submitted");
    assert_eq!(counts.iter().sum::<u64>(), user, "each command ends once");
    assert_eq!(counts[3] + counts[4], 0);
}

/// Prints changes of namespaces and of the discovery log for `time`.
fn print_changes(address: &Address, time: Duration) {
    let association = Association::connect(address, Options::default()).unwrap();
    let events = association.events();
    let service = Address { subsystem: None, port: Some(address.port()), nsid: None, ..address.clone() };
    let persistent = discovery::Discovery::connect(&service, Options::default()).unwrap();
    let start = Instant::now();
    while start.elapsed() < time {
        if persistent.wait(Duration::from_millis(100)).unwrap() {
            let found = persistent.log().unwrap();
            println!("{:6.2} s {} entries", start.elapsed().as_secs_f64(), found.entries.len());
        }
        for event in events.try_iter() {
            let count = association.namespaces().len();
            println!("{:6.2} s {event:?}, {count} namespaces", start.elapsed().as_secs_f64());
        }
    }
}
