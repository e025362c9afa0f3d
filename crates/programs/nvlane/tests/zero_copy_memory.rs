//! The kernel reads zero-copy data only when it leaves, which is late if the peer reads slowly. Here freed memory is
//! overwritten and namespaces are rewritten all the time: neither may show in the data that the peer receives.
#![allow(clippy::cast_possible_truncation)]

#[allow(dead_code)] // Each test program uses a part of it.
#[path = "end_to_end/raw.rs"]
mod raw;
#[allow(dead_code)]
#[path = "end_to_end/setup.rs"]
mod setup;

use std::time::{Duration, Instant};

use allocators::{POISON, PoisoningAllocator};
use host::ZeroCopy;
use reactor::EngineKind;
use subsystem::config::Threads;
use subsystem::lane_counters::LaneReport;
use wire::id::Nsid;
use wire::pdu::{CapsuleResp, CommonHeader, DataPdu, PduType};
use wire::sqe::Sqe;
use zerocopy::FromBytes;

use raw::RawHost;
use setup::{PATIENCE, Rig, engines, options};

#[global_allocator]
static ALLOCATOR: PoisoningAllocator = PoisoningAllocator;

const ONE: Nsid = Nsid::new(1);
const MIB: usize = 1 << 20;

/// The largest atomic block.
const BLOCK_BYTES: usize = 64 << 10;

/// Length of a read: a whole number of blocks, and more than one send transfers.
const READ_BYTES: usize = MIB;

/// Number of reads: enough that sends stop anywhere in a block.
const READ_COUNT: usize = 24;

/// Smaller than a loopback segment, so that nearly all sent data waits on the target's side.
const RECEIVE_BUFFER_BYTES: usize = 4 << 10;

/// Bytes per receive of the slow host: enough that the target soon sends again, and no multiple of a block.
const STEP_BYTES: usize = 40_000;

fn rig(engine: EngineKind, zero_copy: ZeroCopy) -> Rig {
    Rig::with(engine, &["ram:2M?lba=65536"], |config| {
        config.reactors.zero_copy = zero_copy;
        config.reactors.threads = Threads::Count(1);
        config.reactors.pool_bytes = 24 * MIB;
    })
}

fn reports(rig: &Rig) -> Vec<LaneReport> {
    let queues = rig.controllers().into_iter().flat_map(|controller| controller.queues);
    queues.filter(|queue| queue.qid > 0).map(|queue| queue.counters).collect()
}

/// The data of each read in arrival order, from the PDUs of a connection without digests.
fn data_of(mut bytes: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    while let Ok((header, _)) = CommonHeader::read_from_prefix(bytes) {
        let (pdu, rest) = bytes.split_at(header.plen.get() as usize);
        match header.pdu_type() {
            Ok(PduType::C2hData) => {
                let length = DataPdu::read_from_prefix(pdu).expect("a data PDU").0.length.get() as usize;
                data.extend_from_slice(&pdu[header.pdo.into()..][..length]);
            }
            Ok(PduType::CapsuleResp) => {
                assert!(CapsuleResp::read_from_prefix(pdu).expect("a response").0.cqe.status().is_success());
            }
            other => panic!("a target says {other:?}"),
        }
        bytes = rest;
    }
    data
}

/// Reads through a nearly closed window while another host rewrites everything between two receives.
fn slow_reads(rig: &Rig) -> Vec<u8> {
    let mut writer = rig.open(options());
    let mut version = 1;
    let mut write = |version: &mut u8| {
        // Neither zero nor poison: each byte value is a version.
        *version = if *version >= 200 { 1 } else { *version + 1 };
        writer.write_at(&vec![*version; 2 * MIB], 0).expect("a write");
    };
    write(&mut version);
    let mut slow = RawHost::with_receive_buffer(rig, RECEIVE_BUFFER_BYTES);
    for at in 0..READ_COUNT {
        let blocks = (READ_BYTES / BLOCK_BYTES) as u32;
        let lba = (at % 2) as u64 * u64::from(blocks);
        slow.io.transport(Sqe::read(ONE, lba, blocks), READ_BYTES as u32);
    }
    let until = Instant::now() + PATIENCE;
    while !reports(rig).iter().any(|lane| lane.blocked_count > 0) {
        assert!(Instant::now() < until, "nothing waits in the socket: {:?}", reports(rig));
        std::thread::sleep(Duration::from_millis(1));
    }
    let (mut bytes, mut ended) = (Vec::new(), 0);
    while ended < READ_COUNT * READ_BYTES {
        // A header and a part of the data; never more than remains.
        let left = READ_COUNT * READ_BYTES - ended;
        bytes.extend(slow.io.receive(STEP_BYTES.min(left)));
        ended += STEP_BYTES.min(left);
        write(&mut version);
    }
    // The space of headers and completions is now available for data.
    let mut whole = data_bytes_in(&bytes);
    while whole.1 < READ_COUNT * READ_BYTES {
        bytes.extend(slow.io.receive(whole.0));
        whole = data_bytes_in(&bytes);
    }
    data_of(&bytes)
}

/// Missing bytes of the last PDU (or of the next common header), and the data in complete PDUs.
fn data_bytes_in(mut bytes: &[u8]) -> (usize, usize) {
    let mut data = 0;
    loop {
        let Ok((header, _)) = CommonHeader::read_from_prefix(bytes) else { return (8 - bytes.len(), data) };
        let length = header.plen.get() as usize;
        if bytes.len() < length {
            return (length - bytes.len(), data);
        }
        if header.pdu_type() == Ok(PduType::C2hData) {
            data += DataPdu::read_from_prefix(bytes).expect("a data PDU").0.length.get() as usize;
        }
        bytes = &bytes[length..];
    }
}

#[test]
fn every_block_that_a_slow_host_receives_is_one_version_of_it() {
    for engine in engines() {
        for zero_copy in [ZeroCopy::Off, ZeroCopy::From(1)] {
            let rig = rig(engine, zero_copy);
            let data = slow_reads(&rig);
            let is_torn = |block: &&[u8]| block.iter().any(|byte| *byte != block[0]);
            let torn = data.chunks(BLOCK_BYTES).filter(is_torn).count();
            let freed = data.iter().filter(|byte| **byte == POISON).count();
            assert_eq!((torn, freed), (0, 0), "torn blocks, freed bytes: {engine:?}, zero-copy {zero_copy}");
            assert!(data.len() == READ_COUNT * READ_BYTES && !data.contains(&0));
        }
    }
}
