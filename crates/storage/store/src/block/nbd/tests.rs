//! Namespaces on exports of a double of a server, driven by reactors.
#![allow(clippy::single_range_in_vec_init)] // Lists of ranges.

use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

use nbd_wire::negotiation::{FIXED_NEWSTYLE, GREETING_MAGIC, REPLY_MAGIC, info, option, reply};
use nbd_wire::{CommandFlags, ExportFlags, ReplyForm, Request, chunk, command};
use proptest::collection::vec;
use proptest::prelude::*;
use reactor::{DataMap, EngineKind};

use super::place::NBD_DEADLINE_S_DEFAULT;
use super::{NbdPlace, NbdServer, NbdStore};
use crate::block::remote::RemoteSettings;
use crate::block::remote::suite::{self, BLOCK, BLOCKS, Disk, Server, SharedDisk};
use crate::namespace::{BlockStore, StoreError};
use crate::testing::{Bench, Rig, Step, model_steps, promise_steps};

/// How the server behaves.
#[derive(Clone)]
struct Manner {
    flags: ExportFlags,
    is_simple: bool,
    /// Data of reads comes in pieces, the last one first.
    is_scattered: bool,
    /// Longest data.
    payload_bytes_max: u32,
    flush_fails: bool,
    /// What replaces the replies to reads.
    garbage: Option<Vec<u8>>,
    /// A write there ends the connection.
    end_at: Option<u64>,
    /// A size that is not that of the disk.
    told_bytes: Option<u64>,
    status: BlockStatus,
}

/// What it tells of holes.
#[derive(Clone, PartialEq)]
enum BlockStatus {
    /// It has no metadata contexts.
    Unknown,
    /// Extents of the whole range.
    True,
    /// The first extent of the range, or this many bytes of it.
    Piecemeal(u64),
    /// Whatever is there, these extents: lengths and status.
    Told(Vec<(u32, u32)>),
    /// Chunks, their types and payloads, the last of which is followed by the end of the reply.
    Chunks(Vec<(u16, Vec<u8>)>),
    Fails,
    /// It never answers.
    Silent,
}

/// The number of the context.
const CONTEXT: u32 = 7;

fn status_payload(extents: &[(u32, u32)]) -> Vec<u8> {
    let numbers = extents.iter().flat_map(|(length, status)| [*length, *status]);
    std::iter::once(CONTEXT).chain(numbers).flat_map(u32::to_be_bytes).collect()
}

/// The chunks that answer a request for block status.
fn status_chunks(current: &[u8], request: Request, status: &BlockStatus) -> Vec<(u16, Vec<u8>)> {
    let extents = match status {
        BlockStatus::Chunks(chunks) => return chunks.clone(),
        BlockStatus::Told(extents) => extents.clone(),
        _ => {
            let mut extents: Vec<(u32, u32)> = Vec::new();
            for block in current[request.offset as usize..][..request.length as usize].chunks(512) {
                let status = if block.iter().all(|byte| *byte == 0) { 3 } else { 0 };
                match extents.last_mut().filter(|last| last.1 == status) {
                    Some(last) => last.0 += 512,
                    None => extents.push((512, status)),
                }
            }
            if let BlockStatus::Piecemeal(bytes_max) = status {
                extents.truncate(1);
                extents[0].0 = extents[0].0.min(*bytes_max as u32);
            }
            extents
        }
    };
    vec![(chunk::BLOCK_STATUS, status_payload(&extents))]
}

fn full() -> ExportFlags {
    ExportFlags::BASE.with(ExportFlags::WRITE_ZEROES).with(ExportFlags::TRIM)
}

impl Default for Manner {
    fn default() -> Self {
        Self {
            flags: full(),
            is_simple: false,
            is_scattered: false,
            payload_bytes_max: 64 << 10,
            flush_fails: false,
            garbage: None,
            end_at: None,
            told_bytes: None,
            status: BlockStatus::True,
        }
    }
}

impl suite::Manner for Manner {
    type Place = NbdPlace;

    const IS_ALONE: bool = false;

    fn place(socket: &Path) -> NbdPlace {
        NbdPlace {
            server: NbdServer::Unix(socket.into()),
            export: "disk".into(),
            connection_limit: 64,
            deadline_s: NBD_DEADLINE_S_DEFAULT,
        }
    }

    fn set_deadline(place: &mut NbdPlace, seconds: u32) {
        place.deadline_s = seconds;
    }

    fn set_flush_fails(&mut self, fails: bool) {
        self.flush_fails = fails;
    }

    fn serve(client: UnixStream, disk: &Arc<SharedDisk<Self>>) {
        let _ = serve(client, disk);
    }
}

fn take<const N: usize>(client: &mut UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    client.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn answer(client: &mut UnixStream, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
    let length = (data.len() as u32).to_be_bytes();
    let head = [&REPLY_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &kind.to_be_bytes(), &length];
    client.write_all(&[&head.concat()[..], data].concat())
}

/// Serves a client until it or the server ends.
fn serve(mut client: UnixStream, shared: &SharedDisk<Manner>) -> io::Result<()> {
    client.write_all(&[&GREETING_MAGIC[..], &[0, FIXED_NEWSTYLE as u8]].concat())?;
    take::<4>(&mut client)?;
    let manner = || shared.lock().manner.clone();
    let mut is_structured = false;
    loop {
        let head = take::<16>(&mut client)?;
        let [option, length] = [8, 12].map(|at| u32::from_be_bytes(head[at..at + 4].try_into().unwrap()));
        let mut data = vec![0; length as usize];
        client.read_exact(&mut data)?;
        match option {
            option::STRUCTURED_REPLY if !manner().is_simple => {
                is_structured = true;
                answer(&mut client, option, reply::ACK, &[])?;
            }
            option::SET_META_CONTEXT if manner().status != BlockStatus::Unknown => {
                assert!(is_structured && data.ends_with(b"\0\0\0\x01\0\0\0\x0fbase:allocation"));
                let context = [&CONTEXT.to_be_bytes()[..], b"base:allocation"].concat();
                answer(&mut client, option, reply::META_CONTEXT, &context)?;
                answer(&mut client, option, reply::ACK, &[])?;
            }
            option::GO if data[4..8] == *b"disk" => {
                let size = manner().told_bytes.unwrap_or(shared.lock().current.len() as u64);
                let flags = manner().flags.bits().to_be_bytes();
                let info = [&info::EXPORT.to_be_bytes()[..], &size.to_be_bytes(), &flags].concat();
                answer(&mut client, option, reply::INFO, &info)?;
                let [least, most] = [512, manner().payload_bytes_max].map(u32::to_be_bytes);
                let sizes = [&info::BLOCK_SIZE.to_be_bytes()[..], &least, &least, &most].concat();
                answer(&mut client, option, reply::INFO, &sizes)?;
                answer(&mut client, option, reply::ACK, &[])?;
                break;
            }
            option::GO => answer(&mut client, option, reply::ERR_UNKNOWN, b"no such disk")?,
            _ => answer(&mut client, option, reply::ERR_UNSUP, &[])?,
        }
    }
    loop {
        let head = take::<28>(&mut client)?;
        let request = Request::from_bytes(ReplyForm::Structured, &head).unwrap().unwrap();
        let mut data = vec![0; if request.command == command::WRITE { request.length as usize } else { 0 }];
        client.read_exact(&mut data)?;
        if request.command == command::DISCONNECT {
            return Ok(());
        }
        let Some(mut disk) = shared.answering(|| false) else { return Ok(()) };
        let manner = disk.manner.clone();
        if request.command == command::WRITE && manner.end_at == Some(request.offset) {
            return client.shutdown(std::net::Shutdown::Both);
        }
        let is_status = request.command == command::BLOCK_STATUS;
        if is_status && manner.status == BlockStatus::Silent {
            continue;
        }
        let (errno, read) = match () {
            () if !is_status => carry_out(&mut disk, request, &data),
            () if manner.status == BlockStatus::Fails => (22, Vec::new()),
            () => (0, Vec::new()),
        };
        let extents = if is_status { status_chunks(&disk.current, request, &manner.status) } else { vec![] };
        drop(disk);
        if let (command::READ, Some(garbage)) = (request.command, &manner.garbage) {
            client.write_all(garbage)?;
            continue;
        }
        let cookie = request.cookie.to_be_bytes();
        if !is_structured {
            let head = [&chunk::SIMPLE_MAGIC.to_be_bytes()[..], &errno.to_be_bytes(), &cookie].concat();
            client.write_all(&[head, read].concat())?;
            continue;
        }
        let send = |client: &mut UnixStream, kind: u16, is_last: bool, payload: &[u8]| {
            let length = (payload.len() as u32).to_be_bytes();
            let flags = u16::from(is_last).to_be_bytes();
            let head = [&chunk::CHUNK_MAGIC.to_be_bytes()[..], &flags, &kind.to_be_bytes(), &cookie, &length];
            client.write_all(&[&head.concat()[..], payload].concat())
        };
        if errno != 0 {
            let text = b"it fails";
            let payload = [&errno.to_be_bytes()[..], &(text.len() as u16).to_be_bytes(), text].concat();
            send(&mut client, chunk::ERROR, true, &payload)?;
        } else if is_status {
            for (kind, payload) in extents {
                send(&mut client, kind, false, &payload)?;
            }
            send(&mut client, chunk::NONE, true, &[])?;
        } else if manner.is_scattered {
            for (at, block) in read.chunks(512).enumerate().rev() {
                let offset = (request.offset + at as u64 * 512).to_be_bytes();
                if block.iter().all(|byte| *byte == 0) {
                    let hole = [&offset[..], &(block.len() as u32).to_be_bytes()].concat();
                    send(&mut client, chunk::OFFSET_HOLE, false, &hole)?;
                } else {
                    send(&mut client, chunk::OFFSET_DATA, false, &[&offset[..], block].concat())?;
                }
            }
            send(&mut client, chunk::NONE, true, &[])?;
        } else if request.command == command::READ {
            let payload = [&request.offset.to_be_bytes()[..], &read].concat();
            send(&mut client, chunk::OFFSET_DATA, true, &payload)?;
        } else {
            send(&mut client, chunk::NONE, true, &[])?;
        }
    }
}

/// The error of a request, and the data of a read.
fn carry_out(disk: &mut Disk<Manner>, request: Request, data: &[u8]) -> (u32, Vec<u8>) {
    let range = request.offset as usize..(request.offset + request.length) as usize;
    let is_durable = request.flags.has(CommandFlags::FUA);
    assert!(!is_durable || disk.manner.flags.has(ExportFlags::FUA), "a flag that is not offered");
    if range.end > disk.current.len() || data.len() > disk.manner.payload_bytes_max as usize {
        return (22, Vec::new());
    }
    match request.command {
        command::READ => return (0, disk.current[range].to_vec()),
        command::WRITE => disk.current[range.clone()].copy_from_slice(data),
        command::WRITE_ZEROES => {
            assert!(disk.manner.flags.has(ExportFlags::WRITE_ZEROES), "a command that is not offered");
            disk.current[range.clone()].fill(0);
        }
        command::FLUSH if disk.manner.flush_fails => return (5, Vec::new()),
        command::FLUSH => {
            disk.stable = disk.current.clone();
            return (0, Vec::new());
        }
        other => panic!("command {other} is not expected"),
    }
    if is_durable {
        disk.stable[range.clone()].copy_from_slice(&disk.current[range]);
    }
    (0, Vec::new())
}

/// Servers with different abilities.
fn manners() -> [Manner; 4] {
    let bare = ExportFlags::HAS_FLAGS.with(ExportFlags::FLUSH);
    [
        Manner::default(),
        Manner { is_simple: true, flags: bare, ..Manner::default() },
        Manner { is_scattered: true, ..Manner::default() },
        Manner { is_scattered: true, flags: full().without(ExportFlags::FUA), ..Manner::default() },
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn an_export_is_a_vector_of_bytes(steps in model_steps(BLOCKS, false)) {
        suite::equals_the_model(manners(), &steps)?;
    }

    /// Whether the server has FUA or not.
    #[test]
    fn what_is_promised_survives_a_loss_of_power(steps in promise_steps(), has_fua: bool) {
        let flags = if has_fua { full() } else { full().without(ExportFlags::FUA) };
        suite::promises_survive(Manner { flags, ..Manner::default() }, steps)?;
    }

    #[test]
    fn no_block_status_breaks_a_namespace(chunks in vec(any_chunk(), 0..4)) {
        let Some((server, _store, mut rig)) = with_holes(Manner::default()) else { return Ok(()) };
        server.with(|disk| disk.manner.status = BlockStatus::Chunks(chunks));
        match rig.find_data(BLOCK..BYTES) {
            Ok(found) => {
                prop_assert!(found.iter().all(|part| part.start < part.end), "{:?}", found);
                prop_assert!(found.is_sorted_by(|a, b| a.end < b.start), "{:?}", found);
                prop_assert!(found.iter().all(|part| part.start >= BLOCK && part.end <= BYTES), "{:?}", found);
            }
            Err(error) => prop_assert_eq!(error, StoreError::Unsupported),
        }
        prop_assert_eq!(rig.read(3 * BLOCK, 512), Ok(vec![1; 512]));
    }

    #[test]
    fn garbage_ends_the_connection(garbage in vec(any::<u8>(), 1..80), magic in 0usize..3) {
        let begin = [vec![], chunk::CHUNK_MAGIC.to_be_bytes().into(), chunk::SIMPLE_MAGIC.to_be_bytes().into()];
        // Longer than any head, so that the reply is judged.
        let garbage = [&begin[magic][..], &garbage, &[0xff; 40]].concat();
        suite::a_breach_ends_the_connection(|manner: &mut Manner| manner.garbage = Some(garbage))?;
    }
}

/// A chunk in answer to a request for block status.
fn any_chunk() -> impl Strategy<Value = (u16, Vec<u8>)> {
    let kind = prop_oneof![
        8 => Just(chunk::BLOCK_STATUS),
        1 => prop::sample::select(vec![chunk::OFFSET_DATA, chunk::OFFSET_HOLE, chunk::ERROR]),
        1 => any::<u16>(),
    ];
    let length = prop_oneof![Just(0), 1..1024u32, (1..BLOCKS as u32).prop_map(|n| n * 512), any::<u32>()];
    let status = prop_oneof![0..4u32, any::<u32>()];
    let extents = vec((length, status), 0..20).prop_map(|extents| status_payload(&extents));
    (kind, prop_oneof![4 => extents, 1 => vec(any::<u8>(), 0..40)])
}

/// A server whose blocks 3, 4 and 9 have data, the namespace on it and a reactor.
fn with_holes(manner: Manner) -> Option<(Server<Manner>, Arc<dyn BlockStore>, Rig)> {
    let server = Server::new(manner);
    let store = server.open();
    let mut rig = Rig::attach(&store, EngineKind::Epoll)?;
    assert!(rig.write(3 * BLOCK, &[1; 1024]).is_ok() && rig.write(9 * BLOCK, &[1; 512]).is_ok());
    Some((server, store, rig))
}

const BYTES: u64 = BLOCKS * BLOCK;
const DATA: [Range<u64>; 2] = [3 * BLOCK..5 * BLOCK, 9 * BLOCK..10 * BLOCK];

#[test]
fn holes_are_what_the_server_tells() {
    for status in [BlockStatus::True, BlockStatus::Piecemeal(u64::MAX), BlockStatus::Piecemeal(512)] {
        let flags = full().without(ExportFlags::MULTI_CONN);
        let manner = Manner { status, flags, ..Manner::default() };
        let Some((_server, store, mut rig)) = with_holes(manner) else { return };
        // One that has the connection, and one that asks it.
        let Some(mut guest) = Rig::attach(&store, EngineKind::Epoll) else { return };
        for rig in [&mut rig, &mut guest] {
            assert_eq!(rig.find_data(0..BYTES), Ok(DATA.into()));
            assert_eq!(rig.find_data(4 * BLOCK..9 * BLOCK), Ok([4 * BLOCK..5 * BLOCK].into()));
            assert_eq!(rig.find_data(10 * BLOCK..BYTES), Ok(vec![]));
            assert_eq!(rig.find_data(0..BYTES + BLOCK), Err(StoreError::Truncated));
        }
        let map = Arc::new(DataMap::new(0..BYTES, 1));
        assert!(guest.run(Step::FindData(Arc::clone(&map))).is_ok());
        assert_eq!(map.covered(&map.take()), 5 * BLOCK, "there was no room for more");
    }
}

#[test]
fn a_server_that_does_not_tell_has_no_holes() {
    for manner in [
        Manner { status: BlockStatus::Unknown, ..Manner::default() },
        Manner { is_simple: true, ..Manner::default() },
    ] {
        let Some((_server, _store, mut rig)) = with_holes(manner) else { return };
        assert_eq!(rig.find_data(0..BYTES), Err(StoreError::Unsupported));
    }
    let Some((server, _store, mut rig)) = with_holes(Manner::default()) else { return };
    server.with(|disk| disk.manner.status = BlockStatus::Fails);
    assert_eq!(rig.find_data(BLOCK..BYTES), Ok([BLOCK..BYTES].into()));
    server.with(|disk| disk.manner.status = BlockStatus::True);
    assert_eq!(rig.find_data(0..BYTES), Ok(DATA.into()), "it is asked again");
}

/// Whatever a server tells: no request fails, and it is not asked again if it makes no sense.
#[test]
fn block_status_that_makes_no_sense_is_not_used() {
    let (hole, all) = (3, BYTES as u32);
    let chunk = |extents: &[(u32, u32)]| (chunk::BLOCK_STATUS, status_payload(extents));
    let of_other_context =
        (chunk::BLOCK_STATUS, [&8u32.to_be_bytes()[..], &status_payload(&[(all, hole)])[4..]].concat());
    let too_long = (chunk::BLOCK_STATUS, [&status_payload(&[(all, hole)])[..], b"more"].concat());
    for (status, found, is_refuted) in [
        // Longer than the range: allowed.
        (BlockStatus::Told(vec![(5120, 0), (u32::MAX, hole)]), vec![0..5120], false),
        (BlockStatus::Told(vec![(5120, 1), (all, 2)]), vec![0..BYTES], false),
        (BlockStatus::Chunks(vec![]), vec![0..BYTES], false),
        (BlockStatus::Told(vec![(0, hole)]), vec![0..BYTES], true),
        (BlockStatus::Told(vec![(512, hole), (0, 0), (all, hole)]), vec![0..BYTES], true),
        (BlockStatus::Told(vec![(all, hole), (512, 0)]), vec![0..BYTES], true),
        (BlockStatus::Told(vec![(0, 0); 20_000]), vec![0..BYTES], true),
        (BlockStatus::Chunks(vec![chunk(&[(512, hole)]), chunk(&[(512, 0)])]), vec![0..BYTES], true),
        (BlockStatus::Chunks(vec![of_other_context]), vec![0..BYTES], true),
        (BlockStatus::Chunks(vec![chunk(&[])]), vec![0..BYTES], true),
        (BlockStatus::Chunks(vec![too_long]), vec![0..BYTES], true),
    ] {
        let Some((server, _store, mut rig)) = with_holes(Manner::default()) else { return };
        server.with(|disk| disk.manner.status = status);
        assert_eq!(rig.find_data(0..BYTES), Ok(found));
        assert_eq!(rig.read(3 * BLOCK, 512), Ok(vec![1; 512]));
        let again = rig.find_data(0..BYTES);
        assert_eq!(again == Err(StoreError::Unsupported), is_refuted, "{again:?}");
    }
}

#[test]
fn a_search_without_an_end_ends() {
    let server = Server::new(Manner { status: BlockStatus::Piecemeal(512), ..Manner::default() });
    server.resize(1 << 12);
    let store = server.open();
    let Some(mut rig) = Rig::attach(&store, EngineKind::Epoll) else { return };
    let Ok(found) = rig.find_data(0..BLOCK << 12) else { panic!("it fails") };
    let [rest] = &found[..] else { panic!("{found:?}") };
    assert!(rest.start > 0 && rest.start <= 1024 * BLOCK && rest.end == BLOCK << 12, "{rest:?}");
    // A search reports the parts that it has found; the caller begins another search for the rest.
    assert!(rig.write(0, &[1; 512]).is_ok());
    let map = Arc::new(DataMap::new(0..BLOCK << 12, 9));
    assert!(rig.run(Step::FindData(Arc::clone(&map))).is_ok());
    let parts = map.take();
    assert_eq!((map.covered(&parts), parts), (512, vec![0..512]));
}

#[test]
fn a_server_that_does_not_answer_for_holes_serves_all_else() {
    let server = Server::new(Manner { status: BlockStatus::Silent, ..Manner::default() });
    let mut settings = server.settings();
    settings.place.deadline_s = 1;
    let store: Arc<dyn BlockStore> = Arc::new(NbdStore::open(settings).unwrap());
    let Some(mut rig) = Rig::attach(&store, EngineKind::Epoll) else { return };
    assert_eq!(rig.find_data(0..BYTES), Ok([0..BYTES].into()));
    assert_eq!(rig.write(0, &[1; 512]), Ok(vec![]));
    assert_eq!(rig.find_data(0..BYTES), Err(StoreError::Unsupported), "one is enough");
    assert_eq!(rig.read(0, 512), Ok(vec![1; 512]));
    server.go_down();
    server.with(|disk| disk.manner.status = BlockStatus::True);
    server.come_back();
    suite::eventually("no holes", || rig.find_data(0..BYTES) == Ok([0..512].into()));
}

#[test]
fn a_search_goes_on_with_a_server_that_comes_back() {
    for status in [BlockStatus::True, BlockStatus::Unknown] {
        let Some((server, _store, mut rig)) = with_holes(Manner::default()) else { return };
        assert!(rig.flush().is_ok());
        server.hold(true);
        let found = if status == BlockStatus::True { DATA.to_vec() } else { vec![0..BYTES] };
        let searching = std::thread::spawn(move || rig.find_data(0..BYTES));
        server.go_down();
        server.with(|disk| disk.manner.status = status);
        server.hold(false);
        server.come_back();
        // The search may have begun on the next connection.
        let all = searching.join().unwrap();
        assert!(all == Ok(found) || all == Err(StoreError::Unsupported), "{all:?}");
    }
}

#[test]
fn a_server_that_takes_one_client_serves_all_reactors() {
    for flags in [full(), full().without(ExportFlags::MULTI_CONN)] {
        let server = Server::new(Manner { flags, ..Manner::default() });
        let (rigs, count) = suite::reactors_at_work(&server.open());
        let expected = if flags.has(ExportFlags::MULTI_CONN) { count } else { 1 };
        assert_eq!(server.with(|disk| disk.connection_count) as usize, expected);
        suite::reactors_leave(rigs);
    }
}

#[test]
fn commands_wait_for_a_server_that_comes_back() {
    suite::commands_wait_for_a_server_that_comes_back::<Manner>();
}

#[test]
fn hosts_learn_that_unflushed_writes_may_be_lost() {
    suite::hosts_learn_that_unflushed_writes_may_be_lost::<Manner>();
}

#[test]
fn commands_end_within_the_deadline() {
    suite::commands_end_within_the_deadline::<Manner>();
}

/// The commands before it are repeated each time.
#[test]
fn a_request_whose_last_command_ends_each_connection_is_late_in_the_end() {
    let manner = Manner { payload_bytes_max: 64 << 10, end_at: Some(64 << 10), ..Manner::default() };
    let server = Server::new(manner);
    server.resize(256 << 10 >> BLOCK.ilog2());
    let mut settings = server.settings();
    settings.place.deadline_s = 1;
    let store: Arc<dyn BlockStore> = Arc::new(NbdStore::open(settings).unwrap());
    let Some(mut rig) = Rig::attach(&store, EngineKind::Epoll) else { return };
    assert_eq!(rig.write(0, &vec![1; 128 << 10]), Err(StoreError::Unreachable));
    server.with(|disk| disk.manner.end_at = None);
    suite::eventually("it does not go on", || rig.write(0, &vec![1; 128 << 10]).is_ok());
}

#[test]
fn a_failed_flush_closes_the_namespace() {
    suite::a_failed_flush_closes_the_namespace::<Manner>();
}

#[test]
fn a_flush_under_way_does_not_cover_what_was_lost() {
    let server = Server::new(Manner::default());
    let store = server.open();
    let Some(mut rig) = Rig::attach(&store, EngineKind::Epoll) else { return };
    assert!(rig.write(0, &[1; 512]).is_ok());
    server.hold(true);
    let flushing = std::thread::spawn(move || rig.flush());
    // The server drops its connection with the flush in it, whether it arrived or not.
    std::thread::yield_now();
    server.go_down();
    server.hold(false);
    server.come_back();
    let flushed = flushing.join().unwrap();
    let is_told = flushed == Err(StoreError::WriteFailed(5)) || store.generation().closing_count() == 1;
    assert!(is_told, "{flushed:?}");
}

#[test]
fn an_export_may_grow_and_not_shrink() {
    let server = Server::new(Manner::default());
    let store = server.open();
    let Some(mut rig) = Rig::attach(&store, EngineKind::Epoll) else { return };
    assert!(rig.read(0, 512).is_ok());
    let resize = |blocks: u64| {
        server.go_down();
        server.resize(blocks);
        server.come_back();
    };
    resize(2 * BLOCKS);
    suite::growth_is_seen(&store, &mut rig);
    resize(BLOCKS);
    suite::a_smaller_one_is_closed(&store, &mut rig);
}

#[test]
fn what_cannot_be_served_is_refused_with_its_remedy() {
    let server = Server::new(Manner::default());
    let no_flush = Server::new(Manner { flags: ExportFlags::HAS_FLAGS, ..Manner::default() });
    let small = Server::new(Manner { payload_bytes_max: 4096, ..Manner::default() });
    let endless = Server::new(Manner { told_bytes: Some(1 << 63), ..Manner::default() });
    let memcached = tempfile::tempdir().unwrap();
    let stranger = UnixListener::bind(memcached.path().join("socket")).unwrap();
    let talks = std::thread::spawn(move || {
        stranger.accept().unwrap().0.write_all(b"220 mail.example ESMTP ready\r\n")
    });
    let refusals = [
        server.refusal(|settings| settings.place.export = "other".into()),
        server.refusal(|settings| settings.place.server = NbdServer::Unix("/nowhere".into())),
        server
            .refusal(|settings| {
                settings.place.server = NbdServer::Unix(memcached.path().join("socket"));
            })
            .replace(&*memcached.path().to_string_lossy(), "DIR"),
        server.refusal(|settings| settings.block_bytes = Some(1000)),
        server.refusal(|settings| settings.block_bytes = Some(65536)),
        no_flush.refusal(|_| {}),
        endless.refusal(|_| {}),
        small.refusal(|_| {}),
    ];
    talks.join().unwrap().unwrap();
    insta::assert_snapshot!(refusals.join("\n"), @r"
    nbd+unix:///other?socket=PATH: the server has no export of this name: `nbdinfo --list` shows what it has (it says: no such disk)
    nbd+unix:///disk?socket=/nowhere: cannot connect: No such file or directory (os error 2)
    nbd+unix:///disk?socket=DIR/socket: this is no NBD server
    a logical block cannot have 1000 bytes: take a power of two from 512 to 65536
    nbd+unix:///disk?socket=PATH is empty: make it larger where its server is
    nbd+unix:///disk?socket=PATH: its server has no flush, so nothing would ever be known to be durable: give readonly to serve it for reading
    nbd+unix:///disk?socket=PATH: it has 9223372036854775808 bytes, more than any namespace can have
    nbd+unix:///disk?socket=PATH: its requests have 4096 bytes at most: 65536 are needed
    ");
    let read_only = NbdStore::open(RemoteSettings { is_read_only: true, ..no_flush.settings() }).unwrap();
    assert!(read_only.geometry().is_read_only);
    assert!(Path::new(&no_flush.path).exists());
}
