//! Against a target of another make, named by `NVLANE_ADDR`: everything on it is overwritten. Without that, nothing is done.
//!
//! ```text
//! NVLANE_ADDR=127.0.0.1:4420/nqn.2024-01.example:disk cargo test -p nvlane-host --test peer
//! ```
#![allow(clippy::cast_possible_truncation)]

use std::time::{Duration, Instant};

use nvlane_host::{
    Address, Association, BlockRange, Completion, Error, Failure, LaneSet, Namespace, Options, blocking,
    discovery,
};
use wire::feature::Fid;
use wire::id::Nsid;
use wire::identify::capabilities::Oncs;
use wire::pdu::Digests;
use wire::property::Property;

const SECOND: Duration = Duration::from_secs(1);

fn address() -> Option<Address> {
    let text = std::env::var("NVLANE_ADDR");
    if text.is_err() {
        eprintln!("skipped: NVLANE_ADDR names no target");
    }
    Some(text.ok()?.parse().expect("an address"))
}

/// The bytes that block `lba` holds after its `version`th write.
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

/// Writes a region in extents, then reads it, as deep as asked for, on all lanes at once; every byte is checked.
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

#[test]
fn every_size_depth_and_number_of_lanes_reads_what_it_wrote() {
    let Some(address) = address() else { return };
    let mut version = 0;
    for digests in 0..4 {
        for lanes in [1, 2, 4] {
            let digests = Digests::from_bits_retain(digests);
            let options = Options { lanes, digests, ..Options::default() };
            let association =
                Association::connect(&address, options).unwrap_or_else(|error| panic!("{error}"));
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

#[test]
fn the_controller_answers_what_tools_ask() {
    let Some(address) = address() else { return };
    let association = Association::connect(&address, Options::default()).unwrap();
    let identify = association.identify_controller().unwrap();
    eprintln!("{} {} {}", identify.model(), identify.serial(), identify.firmware());
    let controller = association.controller();
    eprintln!("version {}, {:?}, {} queues", controller.vs, controller.limits, controller.queue_pairs);
    assert_eq!(association.property(Property::CSTS).unwrap() & 1, 1);
    let nsid = association.addressed_namespace().unwrap().nsid();
    assert!(association.active_namespaces(Nsid::NONE).unwrap().contains(&nsid));
    assert!(association.identify_namespace(nsid).unwrap().is_present());
    eprintln!("{:?}", association.namespaces());
    association.smart_log(Nsid::ALL).unwrap();
    eprintln!("keep-alive {:?}", association.feature(Fid::KEEP_ALIVE, Nsid::NONE));
    eprintln!("errors {:?}", association.error_log(4).map(|log| log.len()));
    eprintln!("firmware {:?}", association.firmware_slots().map(|slots| slots.afi));
    let csi = wire::id::Csi::NVM;
    eprintln!("effects of read {:?}", association.effects_log(csi).map(|log| log.io(2)));
}

#[test]
fn blocks_are_zeroed_compared_and_given_back() {
    let Some(address) = address() else { return };
    let mut disk = blocking::Namespace::connect(&address, Options::default()).unwrap();
    let data: Vec<u8> = (0..1 << 20).map(|index| (index * 31 + index / 253) as u8).collect();
    disk.write_at(0, &data).unwrap();
    disk.write_durably_at(1 << 20, &data).unwrap();
    disk.flush().unwrap();
    let mut back = vec![1; 1 << 20];
    let commands = disk.info().limits().commands;
    if commands.contains(Oncs::WRITE_ZEROES) {
        disk.write_zeroes(65536, 131_072, false).unwrap();
        disk.read_at(0, &mut back).unwrap();
        assert!(back[65536..65536 + 131_072].iter().all(|&byte| byte == 0));
        assert!(back[..65536] == data[..65536]);
    }
    if commands.contains(Oncs::DATASET_MANAGEMENT) {
        disk.deallocate(0, 1 << 20).unwrap();
        let ranges: Vec<_> = (0..100).map(|index| BlockRange { lba: index * 16, blocks: 8 }).collect();
        let command = disk.info().deallocate(&ranges).unwrap();
        disk.run("Deallocate", command, None).unwrap();
    }
    disk.read_at(1 << 20, &mut back).unwrap();
    assert!(back == data);
    match disk.compare_at(1 << 20, &data) {
        Ok(is_equal) => assert!(is_equal),
        Err(error) => assert!(matches!(error, Error::Command(_)), "{error}"),
    }
    let beyond = disk.info().size_bytes();
    assert!(disk.read_at(beyond, &mut back).is_err());
}

#[test]
fn its_discovery_service_lists_it() {
    let Some(address) = address() else { return };
    // nvmet and SPDK answer to the discovery name on the subsystem's own port.
    let service = Address { subsystem: None, port: Some(address.port()), nsid: None, ..address.clone() };
    let found = discovery::discover(&service, Options::default()).unwrap();
    for entry in &found.entries {
        eprintln!("{} {} {}", entry.subtype, entry.address(), entry.service_id());
    }
    let names = found.entries.iter().filter_map(|entry| entry.subsystem().ok());
    assert!(names.into_iter().any(|name| Some(&name) == address.subsystem.as_ref()));
    let persistent = discovery::Discovery::connect(&service, Options::default()).unwrap();
    assert_eq!(persistent.log().unwrap().generation, found.generation);
    assert!(!persistent.wait(Duration::from_millis(200)).unwrap());
}

#[test]
fn wrong_names_are_refused_in_words() {
    let Some(address) = address() else { return };
    let wrong = address.with_subsystem("nqn.2016-06.io.nvlane:nobody".parse().unwrap());
    let error = Association::connect(&wrong, Options::default()).unwrap_err();
    eprintln!("{error}");
    assert!(error.is_permanent() && error.to_string().contains("there is no subsystem"), "{error}");
}

/// Run by hand with a target that goes away and comes back meanwhile: `NVLANE_SECONDS` says for how long.
#[test]
fn a_load_goes_on_while_the_target_comes_and_goes() {
    let Some(address) = address() else { return };
    let Some(seconds) = std::env::var("NVLANE_SECONDS").ok().and_then(|text| text.parse().ok()) else {
        return;
    };
    let association = Association::connect(&address, Options::default()).unwrap();
    let events = association.events();
    let namespace = association.addressed_namespace().unwrap();
    let mut lane = association.lane::<Vec<u8>>().unwrap();
    let (mut counts, mut user) = ([0u64; 5], 0u64);
    let (start, mut completions) = (Instant::now(), Vec::new());
    while start.elapsed() < Duration::from_secs(seconds) || lane.outstanding() > 0 {
        while start.elapsed() < Duration::from_secs(seconds) && lane.has_room(1) {
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
            eprintln!("{:6.2} s {event:?}", start.elapsed().as_secs_f64());
        }
    }
    eprintln!("done, interrupted, unflushed, status, other: {counts:?}, {user} submitted");
    assert_eq!(counts.iter().sum::<u64>(), user, "each command ends once");
    assert_eq!(counts[3] + counts[4], 0);
}

/// Run by hand while namespaces and subsystems are added and removed: `NVLANE_SECONDS` says for how long.
#[test]
fn changes_on_the_target_are_told() {
    let Some(address) = address() else { return };
    let Some(seconds) = std::env::var("NVLANE_SECONDS").ok().and_then(|text| text.parse().ok()) else {
        return;
    };
    let association = Association::connect(&address, Options::default()).unwrap();
    let events = association.events();
    let service = Address { subsystem: None, port: Some(address.port()), nsid: None, ..address };
    let persistent = discovery::Discovery::connect(&service, Options::default()).unwrap();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(seconds) {
        if persistent.wait(Duration::from_millis(100)).unwrap() {
            let found = persistent.log().unwrap();
            eprintln!("{:6.2} s {} entries", start.elapsed().as_secs_f64(), found.entries.len());
        }
        for event in events.try_iter() {
            let count = association.namespaces().len();
            eprintln!("{:6.2} s {event:?}, {count} namespaces", start.elapsed().as_secs_f64());
        }
    }
}
