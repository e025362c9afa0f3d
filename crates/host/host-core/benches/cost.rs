//! Cost of a lane without sockets: ns (and, under callgrind, instructions) per 4 KiB read and write at depth 128.
//!
//! `cargo bench -p nvlane-host-core --bench cost`, or with the number of rounds, and reads or writes alone:
//! `… --bench cost -- 1000 read`.
#![allow(clippy::cast_possible_truncation)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use nvlane_host_core::attachment::Attachment;
use nvlane_host_core::connection_tls::IdentityOffer;
use nvlane_host_core::lane_core::{LaneAction, LaneCore, LaneSettings};
use nvlane_host_core::{Command, Completion, ReplayPolicy};
use proto::handshake::{ControllerOffer, HostOffer};
use proto::host_controller::ControllerSettings;
use proto::host_limits::Limits;
use wire::U16;
use wire::cqe::Cqe;
use wire::id::{Cntlid, Nsid, Qid};
use wire::identify::controller::IdentifyController;
use wire::pdu::{CapsuleResp, DataPdu, Digests, PduFlags, PduLayout, PduType};
use wire::property::Cap;
use wire::sqe::Sqe;
use wire::status::Status;
use zerocopy::IntoBytes;

const DEPTH: u16 = 128;
const BLOCK: usize = 4096;

/// The caravan being sent, as bytes.
fn sent(core: &mut LaneCore<Vec<u8>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    while core.ring() {
        let start = bytes.len();
        core.for_each_piece(|piece| {
            bytes.extend_from_slice(piece);
            true
        });
        core.on_sent(bytes.len() - start);
    }
    bytes
}

fn live() -> LaneCore<Vec<u8>> {
    let mut core = LaneCore::new(LaneSettings {
        qid: Qid::new(1),
        depth: DEPTH,
        offer: HostOffer::default(),
        in_capsule_bytes_max: u32::MAX,
        connect_timeout_ns: u64::MAX,
        command_timeout_ns: 1 << 40,
        retry_limit: 5,
        path_timeout_ns: 30_000_000_000,
        fast_fail_ns: None,
        replay: ReplayPolicy::default(),
        reauthenticate: None,
        partition_queues: None,
    });
    let mut identify = IdentifyController::fabrics();
    identify.set_in_capsule_bytes(8192);
    let nqn: wire::nqn::Nqn = "nqn.2016-06.io.nvlane:bench".parse().expect("a name");
    let attachment = Attachment {
        generation: 1,
        cntlid: Cntlid::new(1),
        peer: ([127, 0, 0, 1], 4420).into(),
        credentials: None,
        generated: None,
        identities: IdentityOffer::default(),
        settings: ControllerSettings {
            host: nqn.clone(),
            hostid: "11111111-2222-3333-4444-555555555555".parse().expect("an id"),
            subsystem: nqn,
            is_discovery: false,
            keep_alive_ms: 0,
            queue_pairs: 1,
            is_flow_control_disabled: true,
        },
        limits: Limits::new(Cap::from_bits(0).with_queue_entries_max(1024), &identify).expect("usable"),
        queue_pairs: 1,
        partition_count: 0,
        has_long_values: false,
        inaccessible: Arc::new([]),
    };
    core.attach(&Arc::new(attachment), 0);
    assert!(matches!(core.next_action(), Some(LaneAction::Open(_))));
    core.on_connected(0);
    sent(&mut core);
    let (answer, _) = ControllerOffer::default().on_ic_req(&HostOffer::default().ic_req()).expect("agreed");
    core.on_bytes(&mut answer.as_bytes(), 0, &mut |_| {}).expect("a handshake");
    let connect = sent(&mut core);
    let cid = U16::from_bytes([connect[10], connect[11]]);
    let answer = CapsuleResp::new(Digests::empty(), Cqe::new(cid, 0, Status::SUCCESS).with_result(1));
    core.on_bytes(&mut answer.as_bytes(), 0, &mut |_| {}).expect("a Connect");
    assert!(core.is_live());
    core
}

struct Costs {
    submit_ns: f64,
    gather_ns: f64,
    receive_ns: f64,
}

type Lane = LaneCore<Vec<u8>>;

// Each phase is a function of its own, so that callgrind counts its instructions separately.

#[inline(never)]
fn submit_reads(core: &mut Lane, buffers: &mut Vec<Vec<u8>>, lba: u64) {
    for user in 0..u64::from(DEPTH) {
        let command = Command::raw_from_controller(Sqe::read(Nsid::new(1), lba, 8), BLOCK as u32).read_only();
        core.submit(command, buffers.pop(), user).expect("room");
    }
}

#[inline(never)]
fn submit_writes(core: &mut Lane, buffers: &mut Vec<Vec<u8>>, lba: u64) {
    for user in 0..u64::from(DEPTH) {
        let command = Command::raw_to_controller(Sqe::write(Nsid::new(1), lba, 8), BLOCK as u32).idempotent();
        core.submit(command, buffers.pop(), user).expect("room");
    }
}

#[inline(never)]
fn gather(core: &mut Lane) -> usize {
    assert!(core.ring());
    let mut length = 0;
    core.for_each_piece(|piece| {
        length += black_box(piece).len();
        true
    });
    length
}

#[inline(never)]
fn receive(core: &mut Lane, sent: usize, mut input: &[u8], completions: &mut Vec<Completion<Vec<u8>>>) {
    core.on_sent(sent);
    core.on_bytes(&mut input, 0, &mut |completion| completions.push(completion)).expect("good bytes");
}

fn run(core: &mut Lane, rounds: u32, is_write: bool) -> Costs {
    let mut buffers: Vec<_> = (0..DEPTH).map(|_| vec![0u8; BLOCK]).collect();
    let mut completions: Vec<Completion<Vec<u8>>> = Vec::with_capacity(DEPTH.into());
    // The target's answer, except for the command ids.
    let answer = if is_write {
        CapsuleResp::new(Digests::empty(), Cqe::new(U16::ZERO, 0, Status::SUCCESS)).as_bytes().to_vec()
    } else {
        let layout = PduLayout::new(PduType::C2hData, Digests::empty(), Default::default(), BLOCK as u32);
        let flags = PduFlags::LAST | PduFlags::SUCCESS;
        let pdu = DataPdu::c2h(&layout.expect("short"), U16::ZERO, 0, flags);
        [pdu.as_bytes(), &[7; BLOCK]].concat()
    };
    let cid_at = if is_write { 20 } else { 8 };
    let mut staging = answer.repeat(DEPTH.into());
    let mut costs = Costs { submit_ns: 0.0, gather_ns: 0.0, receive_ns: 0.0 };
    let mut cids = Vec::with_capacity(DEPTH.into());
    for round in 0..rounds {
        let start = Instant::now();
        let submit = if is_write { submit_writes } else { submit_reads };
        submit(core, &mut buffers, u64::from(round) * 8);
        costs.submit_ns += start.elapsed().as_nanos() as f64;
        let start = Instant::now();
        let length = gather(core);
        costs.gather_ns += start.elapsed().as_nanos() as f64;
        cids.clear();
        core.for_each_piece(|piece| {
            if piece.len() != BLOCK {
                cids.extend(piece.chunks_exact(72).map(|capsule| [capsule[10], capsule[11]]));
            }
            true
        });
        for (record, cid) in staging.chunks_exact_mut(answer.len()).zip(&cids) {
            record[cid_at..cid_at + 2].copy_from_slice(cid);
        }
        let start = Instant::now();
        receive(core, length, &staging, &mut completions);
        costs.receive_ns += start.elapsed().as_nanos() as f64;
        assert_eq!(completions.len(), usize::from(DEPTH));
        buffers.extend(completions.drain(..).filter_map(|completion| completion.buffer));
    }
    let count = f64::from(rounds) * f64::from(DEPTH);
    costs.submit_ns /= count;
    costs.gather_ns /= count;
    costs.receive_ns /= count;
    costs
}

/// The cost of only copying the data of the reads.
fn copy_ns(rounds: u32) -> f64 {
    let mut buffers: Vec<_> = (0..DEPTH).map(|_| vec![0u8; BLOCK]).collect();
    let staging = vec![7u8; (BLOCK + 24) * usize::from(DEPTH)];
    let start = Instant::now();
    for _ in 0..rounds {
        for (buffer, record) in buffers.iter_mut().zip(staging.chunks_exact(BLOCK + 24)) {
            black_box(&mut *buffer).copy_from_slice(black_box(&record[24..]));
        }
    }
    start.elapsed().as_nanos() as f64 / f64::from(rounds) / f64::from(DEPTH)
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let rounds: u32 = args.iter().filter_map(|arg| arg.parse().ok()).next().unwrap_or(5000);
    let wants =
        |name: &str, other: &str| args.iter().any(|arg| arg == name) || !args.iter().any(|arg| arg == other);
    let mut core = live();
    println!(
        "4 KiB at depth {DEPTH}, ns per command (of reads, {:.0} are the copy of the data)",
        copy_ns(rounds)
    );
    println!("{:6} {:>8} {:>8} {:>8} {:>8}", "", "submit", "gather", "receive", "all");
    for (name, other, is_write) in [("read", "write", false), ("write", "read", true)] {
        if !wants(name, other) {
            continue;
        }
        let costs = run(&mut core, rounds, is_write);
        let Costs { submit_ns, gather_ns, receive_ns } = costs;
        let all = submit_ns + gather_ns + receive_ns;
        println!("{name:6} {submit_ns:8.1} {gather_ns:8.1} {receive_ns:8.1} {all:8.1}");
    }
}
