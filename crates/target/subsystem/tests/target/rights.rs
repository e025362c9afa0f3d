//! Two hosts of a running target whose rights to namespaces differ, and change by reloads. docs/security.md

use std::time::{Duration, Instant};

use nvlane_subsystem::access::HostRights;
use nvlane_subsystem::config::{NamespaceConfig, TargetConfig, TimeoutConfig};
use nvlane_subsystem::server::Target;
use nvlane_subsystem::subsystem::Access;
use peer::queue::{Move, Queue, Step};
use peer::raw_host::{Association, RawHost, identify};
use wire::id::Nsid;
use wire::identify::Cns;
use wire::identify::lists::read_nsid_list;
use wire::kv::batch::{BatchCollect, BatchSubmit, Operation};
use wire::kv::operation::{AtomicFunction, AtomicOperation, ElementCode, VectorFunction};
use wire::kv::{Key, RetrieveOptions, StoreOptions};
use wire::nvm::{CopyCommand, CopyFormat, CopySource, DatasetManagement, DsmAttributes, DsmRange};
use wire::opcode::KvOpcode;
use wire::pdu::Digests;
use wire::sqe::{Fuse, Sqe};
use wire::status::Status;
use wire::zerocopy::IntoBytes;

use crate::support;

const BLOCKS: Nsid = Nsid::new(1);
const KEYS: Nsid = Nsid::new(2);
/// No namespace has it.
const ABSENT: Nsid = Nsid::new(9);

const WRITER: &str = "nqn.2026-01.io.nvlane:writer";
const READER: &str = "nqn.2026-01.io.nvlane:reader";
const STRANGER: &str = "nqn.2026-01.io.nvlane:stranger";

const BLOCK: [u8; 512] = [9; 512];
const PROTECTED: Status = Status::NAMESPACE_WRITE_PROTECTED.with_dnr();

fn only(hosts: &[&str]) -> Access {
    Access::Only(hosts.iter().map(|host| host.parse().expect("a name")).collect())
}

fn rights(visible_to: &[&str], writable_by: &[&str]) -> HostRights {
    HostRights { visible_to: only(visible_to), writable_by: only(writable_by), ..HostRights::ALL }
}

/// A target with a namespace of blocks and one of keys, which have these rights.
fn config(threads: u16, rights: &HostRights) -> TargetConfig {
    let mut config = support::block_config(threads, TimeoutConfig::default());
    let namespaces = &mut config.subsystems[0].namespaces;
    namespaces.push(NamespaceConfig::new("kv:ram:16M".parse().expect("a namespace")));
    namespaces.iter_mut().for_each(|namespace| namespace.rights = rights.clone());
    config
}

fn associate(target: &Target, name: &str) -> Association {
    let hostid = wire::nqn::HostId::from_bytes([u8::try_from(name.len()).expect("a short name"); 16]);
    let host = RawHost { nqn: name.parse().expect("a name"), hostid, ..support::host(target) };
    host.associate(Digests::empty(), 64).expect("an association")
}

fn key() -> Key {
    Key::new(b"key").expect("a key")
}

/// Commands that change blocks, each with its data.
fn block_writes(nsid: Nsid) -> Vec<(Sqe, Vec<u8>)> {
    let deallocate = DatasetManagement { range_count: 1, attributes: DsmAttributes::DEALLOCATE };
    let copy = CopyCommand::new(8, CopyFormat::FORMAT_0, 1);
    vec![
        (Sqe::write(nsid, 0, 1), BLOCK.to_vec()),
        (Sqe::write_zeroes(nsid, 0, 1, true), Vec::new()),
        (deallocate.to_sqe(nsid), DsmRange::new(0, 1).as_bytes().to_vec()),
        (copy.to_sqe(nsid), CopySource::new(Nsid::NONE, 0, 1).as_bytes().to_vec()),
    ]
}

/// Commands that change values, each with its data, but for batches.
fn key_value_writes(nsid: Nsid) -> Vec<(Sqe, Vec<u8>)> {
    let atomic = AtomicOperation::new(AtomicFunction::ADD, 1);
    let (u64, add) = (ElementCode::U64, VectorFunction::ADD);
    vec![
        (Sqe::kv_store(nsid, &key(), 5, StoreOptions::empty()), b"value".to_vec()),
        (Sqe::kv_delete(nsid, &key()), Vec::new()),
        (Sqe::kv_atomic(nsid, &key(), &atomic), atomic.to_bytes().to_vec()),
        (Sqe::kv_vector_scalar(nsid, &key(), u64, add, 0), 1u64.to_le_bytes().to_vec()),
        (Sqe::kv_vector_vector(nsid, &key(), u64, add, 8), 1u64.to_le_bytes().to_vec()),
    ]
}

fn status(queue: &mut Queue, sqe: Sqe, data: &[u8]) -> Status {
    let data = if data.is_empty() { Move::None } else { Move::InCapsule(data) };
    queue.run(sqe, data).expect("an answer").status()
}

fn statuses(queue: &mut Queue, commands: Vec<(Sqe, Vec<u8>)>) -> Vec<Status> {
    commands.into_iter().map(|(sqe, data)| status(queue, sqe, &data)).collect()
}

fn pair(queue: &mut Queue, nsid: Nsid) -> [Status; 2] {
    let first = Sqe::compare(nsid, 0, 1).with_fuse(Fuse::FIRST);
    let first = queue.submit(first, Move::InCapsule(&BLOCK)).expect("sent");
    let second = Sqe::write(nsid, 0, 1).with_fuse(Fuse::SECOND);
    let second = queue.submit(second, Move::InCapsule(&BLOCK)).expect("sent");
    let answers = queue.finish_all(&[(first, &[]), (second, &[])]).expect("answers");
    [answers[0].status(), answers[1].status()]
}

fn collect(queue: &mut Queue, nsid: Nsid) -> u16 {
    queue.submit(BatchCollect { buffer_bytes: 4096, tag: 1 }.to_sqe(nsid), Move::Back(4096)).expect("sent")
}

/// The statuses of a Collect and its Submit.
fn batch(queue: &mut Queue, nsid: Nsid, opcodes: &[KvOpcode]) -> [Status; 2] {
    let mut data = Vec::new();
    for opcode in opcodes {
        assert!(Operation::new(*opcode, &key()).append_to(&mut data));
    }
    let collect = collect(queue, nsid);
    let submit = BatchSubmit {
        data_bytes: u32::try_from(data.len()).expect("a few"),
        count: u16::try_from(opcodes.len()).expect("a few"),
        tag: 1,
        outcome_bytes: 4096,
        ..BatchSubmit::default()
    };
    let submit = queue.submit(submit.to_sqe(nsid), Move::InCapsule(&data)).expect("sent");
    let answers = queue.finish_all(&[(collect, &[]), (submit, &[])]).expect("answers");
    [answers[0].status(), answers[1].status()]
}

fn listed(association: &mut Association) -> Vec<u32> {
    let list = identify(&mut association.admin, Cns::ACTIVE_NAMESPACES, Nsid::NONE).expect("a list");
    read_nsid_list(&list).map(Nsid::get).collect()
}

#[test]
fn a_host_that_may_only_read_changes_nothing() {
    for threads in [1, 2] {
        let target =
            Target::start(&config(threads, &rights(&[WRITER, READER], &[WRITER]))).expect("a target");
        let mut writer = associate(&target, WRITER);
        for (sqe, data) in block_writes(BLOCKS) {
            assert_eq!(status(&mut writer.io, sqe, &data), Status::SUCCESS, "{sqe:?}");
        }
        let store = Sqe::kv_store(KEYS, &key(), 8, StoreOptions::empty());
        assert_eq!(status(&mut writer.io, store, &7u64.to_le_bytes()), Status::SUCCESS);
        assert_eq!(status(&mut writer.io, Sqe::write(BLOCKS, 0, 1), &BLOCK), Status::SUCCESS);
        let mut reader = associate(&target, READER);
        assert_eq!(listed(&mut reader), [1, 2]);
        let queue = &mut reader.io;
        assert_eq!(statuses(queue, block_writes(BLOCKS)), [PROTECTED; 4]);
        assert_eq!(statuses(queue, key_value_writes(KEYS)), [PROTECTED; 5]);
        let failed = Status::ABORTED_FAILED_FUSED.with_dnr();
        assert_eq!(pair(queue, BLOCKS)[1], PROTECTED);
        assert_eq!(pair(queue, BLOCKS)[0].with_dnr(), failed);
        assert_eq!(batch(queue, KEYS, &[KvOpcode::EXIST, KvOpcode::DELETE]), [PROTECTED; 2]);
        // Data that is asked for is not.
        let write = queue.run(Sqe::write(BLOCKS, 0, 1), Move::Asked(&BLOCK)).expect("an answer");
        assert_eq!(write.status(), PROTECTED);
        // All else works, and nothing has changed.
        let hint = DatasetManagement { range_count: 1, attributes: DsmAttributes::empty() };
        let range = DsmRange::new(0, 1);
        assert_eq!(status(queue, hint.to_sqe(BLOCKS), range.as_bytes()), Status::SUCCESS);
        for nsid in [BLOCKS, KEYS, Nsid::ALL] {
            assert_eq!(status(queue, Sqe::flush(nsid), &[]), Status::SUCCESS);
        }
        assert_eq!(status(queue, Sqe::compare(BLOCKS, 0, 1), &BLOCK), Status::SUCCESS);
        assert_eq!(status(queue, Sqe::verify(BLOCKS, 0, 1), &[]), Status::SUCCESS);
        assert_eq!(queue.must(Sqe::read(BLOCKS, 0, 1), Move::Back(512)).expect("a read").data, BLOCK);
        let retrieve = Sqe::kv_retrieve(KEYS, &key(), 8, RetrieveOptions::empty());
        assert_eq!(queue.must(retrieve, Move::Back(8)).expect("a value").data, 7u64.to_le_bytes());
        assert_eq!(status(queue, Sqe::kv_exist(KEYS, &key()), &[]), Status::SUCCESS);
        assert_eq!(batch(queue, KEYS, &[KvOpcode::EXIST; 2]), [Status::SUCCESS; 2]);
        target.stop().expect("a good end");
    }
}

#[test]
fn a_namespace_that_a_host_does_not_see_is_one_that_does_not_exist() {
    let target = Target::start(&config(2, &rights(&[WRITER], &[WRITER]))).expect("a target");
    let mut stranger = associate(&target, STRANGER);
    assert_eq!(listed(&mut stranger), [0; 0]);
    let queue = &mut stranger.io;
    for hidden in [BLOCKS, KEYS] {
        let reads = |nsid| {
            let back = Move::Back(512);
            [
                (Sqe::read(nsid, 0, 1), back),
                (Sqe::verify(nsid, 0, 1), Move::None),
                (Sqe::flush(nsid), Move::None),
                (Sqe::kv_exist(nsid, &key()), Move::None),
                (Sqe::kv_list(nsid, None, 512), back),
                (BatchCollect { buffer_bytes: 512, tag: 1 }.to_sqe(nsid), back),
            ]
        };
        for (to_hidden, to_absent) in reads(hidden).into_iter().zip(reads(ABSENT)) {
            let answers =
                [to_hidden, to_absent].map(|(sqe, data)| queue.run(sqe, data).expect("an answer").status());
            assert_eq!(answers, [Status::INVALID_NAMESPACE.with_dnr(); 2], "{:?}", to_hidden.0);
        }
        for commands in [block_writes as fn(Nsid) -> _, key_value_writes] {
            let (to_hidden, to_absent) =
                (statuses(queue, commands(hidden)), statuses(queue, commands(ABSENT)));
            assert_eq!(to_hidden, to_absent);
            assert!(to_hidden.iter().all(|status| *status == Status::INVALID_NAMESPACE.with_dnr()));
        }
        assert_eq!(pair(queue, hidden), pair(queue, ABSENT));
    }
    // A flush of everything is one of nothing.
    assert_eq!(status(queue, Sqe::flush(Nsid::ALL), &[]), Status::SUCCESS);
    target.stop().expect("a good end");
}

#[test]
fn a_reload_changes_rights_under_commands_in_flight() {
    let both = rights(&[WRITER, READER], &[WRITER, READER]);
    let mut config = config(2, &both);
    let mut target = Target::start(&config).expect("a target");
    let mut other = associate(&target, READER);
    let queue = &mut other.io;
    // A Write whose data the target awaits, half of a pair, and a Collect.
    let begin = |queue: &mut Queue| {
        let write = queue.submit(Sqe::write(BLOCKS, 0, 1), Move::Asked(&BLOCK)).expect("sent");
        let Ok(Step::Wants(window)) = queue.step(write) else { panic!("a request for data") };
        (write, window)
    };
    let (write, window) = begin(queue);
    let waiting = collect(queue, KEYS);
    let mut reload = |target: &mut Target, rights: &HostRights, lines: &str| {
        config.subsystems[0].namespaces.iter_mut().for_each(|namespace| namespace.rights = rights.clone());
        let report = target.reload(&config);
        assert!(report.is_complete(), "{report}");
        assert_eq!(report.to_string(), lines);
        let is_settled = |target: &Target| {
            let subsystem = &target.state().expect("a target that runs").subsystems[0];
            subsystem.namespaces.iter().all(|namespace| namespace.shown)
        };
        let until = Instant::now() + support::PATIENCE;
        while !is_settled(target) {
            assert!(Instant::now() < until, "a namespace that no host is shown");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let line =
        |nsid: u32, to: &str| format!("show nqn.2026-01.io.nvlane:tested namespace {nsid} to {to}: done");
    let lines = |to: &str| format!("{}\n{}", line(1, to), line(2, to));
    reload(
        &mut target,
        &rights(&[WRITER, READER], &[WRITER]),
        &lines("2 hosts only, for writing to 1 host only"),
    );
    queue.serve(&window, &BLOCK).expect("sent");
    assert_eq!(queue.finish(write, &BLOCK).expect("an answer").status(), PROTECTED);
    assert_eq!(status(queue, Sqe::write(BLOCKS, 0, 1), &BLOCK), PROTECTED);
    reload(&mut target, &rights(&[WRITER], &[WRITER]), &lines("1 host only, for writing to 1 host only"));
    let gone = Status::INVALID_NAMESPACE.with_dnr();
    assert_eq!(queue.finish(waiting, &[]).expect("an answer").status(), gone, "no Submit can come");
    assert_eq!(queue.run(Sqe::read(BLOCKS, 0, 1), Move::Back(512)).expect("an answer").status(), gone);
    assert_eq!(listed(&mut other), [0; 0]);
    reload(&mut target, &HostRights::ALL, &lines("all hosts of the subsystem"));
    assert_eq!(listed(&mut other), [1, 2]);
    let queue = &mut other.io;
    assert_eq!(queue.must(Sqe::read(BLOCKS, 0, 1), Move::Back(512)).expect("a read").data, [0; 512]);
    let (write, window) = begin(queue);
    queue.serve(&window, &BLOCK).expect("sent");
    assert_eq!(queue.finish(write, &BLOCK).expect("an answer").status(), Status::SUCCESS);
    target.stop().expect("a good end");
}
