//! Durable calls of a target: for each command exactly the calls that it owes its files, in order and before its
//! answer.
//!
//! Commands are sent one at a time, each behind a Read of a block of its own, which marks its beginning. With epoll
//! every call is in strace's output, and strace delays durable ones, so that an answer that does not wait for them
//! overtakes them. With io_uring strace delays each `io_uring_enter`, and the entries that wait in the submission queue
//! meanwhile are read from the `fdinfo` of the ring.

use std::collections::BTreeMap;
use std::fs::{File, read_dir, read_link, read_to_string, remove_dir_all};
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use peer::finding::{Check, differs, holds};
use peer::memcached::Client;
use peer::port::free_address;
use peer::queue::Move;
use peer::raw_host::{Association, RawHost, property};
use rustix::process::{Pid, Signal, kill_process};
use wire::id::Nsid;
use wire::kv::{Key, StoreOptions};
use wire::nqn::{HostId, Nqn};
use wire::nvm::{CopyCommand, CopyFormat, CopySource};
use wire::pdu::Digests;
use wire::property::{Cc, Csts, Property, ShutdownNotification, ShutdownStatus};
use wire::sqe::{Fuse, Sqe};
use zerocopy::IntoBytes;

use super::{LOG, NQN, START_TIMEOUT, Traced, await_listener, target_of, write_config};
use crate::command::{program_path, run as run_command, target_dir};

const BLOCK: [u8; 4096] = [0; 4096];

/// The directory of a target's files.
const FILES: &str = "files";

const ONE: Nsid = Nsid::new(1);
const TWO: Nsid = Nsid::new(2);
const ALWAYS: Nsid = Nsid::new(3);
const BATCH: Nsid = Nsid::new(4);
const NONE: Nsid = Nsid::new(5);

/// Storage of the namespaces, in [`FILES`].
const NAMESPACES: &[&str] = &[
    "file:one?size=16M",
    "file:two?size=16M",
    "kv:file:always?size=8M&memory=4M",
    "kv:file:batch?size=8M&memory=4M&sync=batch",
    "kv:file:none?size=8M&memory=4M&sync=none",
    "file:short?size=2M",
];

/// The first block of those that are read to mark the beginning of a case.
const FIRST_MARK: u64 = 1000;

/// Delay of each durable call with epoll.
const DURABLE_DELAY: Duration = Duration::from_millis(20);

/// Delay of each submission to a ring.
const ENTER_DELAY: Duration = Duration::from_millis(30);

/// Attempts with io_uring: on a busy machine an entry may be submitted before it is seen.
const ATTEMPT_COUNT: u32 = 5;

/// Calls of a target's start and of a reload on each file, in order; "names" is its directory.
const START: &[(&str, &[&str])] = &[
    ("one", NEW_BLOCKS),
    ("two", NEW_BLOCKS),
    ("always", NEW_PAIRS),
    ("batch", NEW_PAIRS),
    ("none", NEW_PAIRS),
    ("short", &["resize", "fsync", "allocate", "label", "fsync", "label", "fsync"]),
    ("state", PLACED),
    // A reload that makes it longer.
    ("short", &["resize", "flush"]),
    ("state", PLACED),
];

/// Calls of logs before the first case: the flush of a start and its superblock, then those of [`Bench::await_logs`]:
/// the first segment, and the superblock that names it.
const LOGS: &[(&str, &[&str])] = &[
    ("always", &["flush", MARK, "durable write", MARK]),
    ("batch", &["flush", MARK, "durable write", MARK]),
    ("none", &["flush", MARK, "durable write", MARK, "flush"]),
];

/// A write of the superblock of a log, which is not part of a command: one is due whenever a log has been idle for 1 s.
const MARK: &str = "durable superblock";

/// Where the superblocks of the log of the only partition are in a file.
const SUPERBLOCKS: Range<u64> = 8192..16384;

/// A file that is written under another name and renamed.
const PLACED: &[&str] = &["fsync", "fsync names"];

/// Size and name; whether it can be punched; the identity; the block size.
const NEW_BLOCKS: &[&str] =
    &["resize", "fsync", "fsync names", "allocate", "label", "fsync", "label", "fsync"];

/// Size and name; the mark; whether it can be punched; its space; the superblock, those of the logs, and again that of
/// the file; the identity.
const NEW_PAIRS: &[&str] = &[
    "resize",
    "fsync",
    "fsync names",
    "label",
    "allocate",
    "allocate",
    "write",
    "fsync",
    "write",
    "fsync",
    "write",
    "fsync",
    "label",
    "fsync",
];

/// Commands, and the calls that change or flush files before the last answer.
struct Case {
    name: &'static str,
    calls: &'static [&'static str],
    run: fn(&mut Bench) -> Check,
}

const fn case(name: &'static str, calls: &'static [&'static str], run: fn(&mut Bench) -> Check) -> Case {
    Case { name, calls, run }
}

const CASES: &[Case] = &[
    case("Write", &["write one"], |bench| bench.on_block(Sqe::write(ONE, 0, 1))),
    case("Write, FUA", &["durable write one"], |bench| bench.on_block(Sqe::write(ONE, 0, 1).with_fua())),
    case("Write, FUA, its data requested", &["durable write two"], |bench| {
        bench.it.io.must(Sqe::write(TWO, 0, 1).with_fua(), Move::Asked(&BLOCK)).map(drop)
    }),
    case("Compare", &[], |bench| bench.on_block(Sqe::compare(ONE, 0, 1))),
    case("Flush", &["flush one"], |bench| bench.alone(Sqe::flush(ONE))),
    case("Write Zeroes", &["allocate two"], |bench| bench.alone(Sqe::write_zeroes(TWO, 0, 4, false))),
    case("Write Zeroes, FUA", &["allocate two", "flush two"], |bench| {
        bench.alone(Sqe::write_zeroes(TWO, 0, 4, false).with_fua())
    }),
    case("Write Zeroes, Deallocate, FUA", &["allocate two", "flush two"], |bench| {
        bench.alone(Sqe::write_zeroes(TWO, 0, 4, true).with_fua())
    }),
    case("Copy", &["write one"], |bench| bench.copy(false)),
    case("Copy, FUA", &["durable write one"], |bench| bench.copy(true)),
    case("Compare and Write", &["write one"], |bench| bench.pair(Sqe::write(ONE, 0, 1))),
    case("Compare and Write, FUA", &["durable write one"], |bench| {
        bench.pair(Sqe::write(ONE, 0, 1).with_fua())
    }),
    case("Store, sync=always", &["durable write always"], |bench| bench.store(ALWAYS)),
    case("Delete, sync=always", &["durable write always"], |bench| {
        bench.alone(Sqe::kv_delete(ALWAYS, &key()))
    }),
    case("set, sync=always", &["durable write always"], |bench| {
        bench.client.expect("set key 0 0 1\r\nv\r\n", "STORED")
    }),
    case("Store and Flush, sync=batch", &["durable write batch"], |bench| {
        bench.store(BATCH)?;
        bench.alone(Sqe::flush(BATCH))
    }),
    case("Store and Flush, sync=none", &["write none", "flush none"], |bench| {
        bench.store(NONE)?;
        bench.alone(Sqe::flush(NONE))
    }),
    case("Flush of all namespaces", &["flush one", "flush short", "flush two"], |bench| {
        bench.alone(Sqe::flush(Nsid::ALL))
    }),
    case("shutdown", &["flush one", "flush short", "flush two"], Bench::shut_down),
];

/// The peers of a target under test.
struct Bench {
    it: Association,
    client: Client,
}

impl Bench {
    fn new(address: SocketAddr, memcached: SocketAddr) -> Result<Self> {
        let nqn = |nqn: &str| nqn.parse::<Nqn>().map_err(|error| anyhow!("{error}"));
        let host = RawHost {
            address,
            subsystem: nqn(NQN)?,
            nqn: nqn("nqn.2026-01.io.nvlane:durable")?,
            hostid: HostId::from_bytes([7; 16]),
            patience: START_TIMEOUT,
        };
        let it = host.associate(Digests::empty(), 32)?;
        Ok(Self { it, client: Client::connect(memcached, START_TIMEOUT)? })
    }

    /// Local ports of the connections.
    fn ports(&self) -> Result<Vec<u16>> {
        let streams = [self.it.admin.link.stream(), self.it.io.link.stream(), self.client.stream()];
        streams.into_iter().map(|stream| Ok(stream.local_addr()?.port())).collect()
    }

    fn mark(&mut self, number: u64) -> Check {
        self.it.io.must(Sqe::read(ONE, FIRST_MARK + number, 1), Move::Back(4096)).map(drop)
    }

    fn alone(&mut self, sqe: Sqe) -> Check {
        self.it.io.must(sqe, Move::None).map(drop)
    }

    fn on_block(&mut self, sqe: Sqe) -> Check {
        self.it.io.must(sqe, Move::InCapsule(&BLOCK)).map(drop)
    }

    fn store(&mut self, nsid: Nsid) -> Check {
        let sqe = Sqe::kv_store(nsid, &key(), 100, StoreOptions::empty());
        self.it.io.must(sqe, Move::InCapsule(&BLOCK[..100])).map(drop)
    }

    /// Waits until each log has begun its first segment.
    fn await_logs(&mut self) -> Check {
        [ALWAYS, BATCH, NONE].into_iter().try_for_each(|nsid| {
            self.store(nsid)?;
            self.alone(Sqe::flush(nsid))
        })
    }

    fn copy(&mut self, is_fua: bool) -> Check {
        let mut command = CopyCommand::new(8, CopyFormat::FORMAT_0, 1);
        command.control = command.control.with_fua(is_fua);
        let source = CopySource::new(Nsid::NONE, 0, 1);
        self.it.io.must(command.to_sqe(ONE), Move::InCapsule(source.as_bytes())).map(drop)
    }

    fn pair(&mut self, write: Sqe) -> Check {
        let io = &mut self.it.io;
        let first = io.submit(Sqe::compare(ONE, 0, 1).with_fuse(Fuse::FIRST), Move::InCapsule(&BLOCK))?;
        let second = io.submit(write.with_fuse(Fuse::SECOND), Move::InCapsule(&BLOCK))?;
        for answer in io.finish_all(&[(first, &[]), (second, &[])])? {
            holds(answer.status().is_success(), "a half of a pair fails")?;
        }
        Ok(())
    }

    fn shut_down(&mut self) -> Check {
        let admin = &mut self.it.admin;
        let cc = u32::try_from(property(admin, Property::CC)?).map(Cc::from_bits);
        let Ok(cc) = cc else { return differs("CC has more than 32 bits") };
        let cc = cc.with_shn(ShutdownNotification::NORMAL);
        admin.must(Sqe::property_set(Property::CC, cc.bits().into()), Move::None)?;
        let until = Instant::now() + START_TIMEOUT;
        loop {
            let csts = u32::try_from(property(admin, Property::CSTS)?).map(Csts::from_bits);
            if csts.is_ok_and(|csts| csts.shst() == ShutdownStatus::COMPLETE) {
                return Ok(());
            }
            holds(Instant::now() < until, "the shutdown does not end")?;
            sleep(Duration::from_millis(10));
        }
    }
}

fn key() -> Key {
    Key::new(b"key").expect("a short key")
}

/// Runs all cases on a target with this engine.
pub(super) fn check(engine: &str) -> Result<()> {
    let directory = target_dir().join("syscalls").join(engine).join("durable");
    let program = program_path("nvlane");
    let subject = Subject { engine, program: &program, directory: &directory, variable: None };
    let mut left = if subject.has_ring() { ATTEMPT_COUNT } else { 1 };
    loop {
        let seen = subject.observe()?;
        left -= 1;
        match seen.judge() {
            Ok(()) => break,
            Err(error) if seen.is_complete || left == 0 => return Err(error),
            Err(_) => {}
        }
    }
    println!("{engine}: {} kinds of commands make their durable calls before their answers", CASES.len());
    Ok(())
}

/// Calls of a target before the first case.
fn start_calls(has_logs: bool) -> Vec<String> {
    let of_file = |&(file, actions): &(&str, &'static [&'static str])| {
        let file = file.to_owned();
        actions.iter().map(move |action| match action.strip_suffix(" names") {
            Some(action) => format!("{action} {FILES}"),
            None => format!("{action} {file}"),
        })
    };
    let logs = if has_logs { LOGS } else { &[] };
    START.iter().chain(logs).flat_map(of_file).collect()
}

/// The events by the file of their calls, those of each file in their order: logs begin while the target starts.
fn by_file(events: &[Event]) -> Vec<Event> {
    let mut events = events.to_vec();
    events.sort_by_key(|event| match event {
        Event::Calls(call) => file_of(call).to_owned(),
        _ => String::new(),
    });
    events
}

/// The file that a call is made on.
fn file_of(call: &str) -> &str {
    call.rsplit(' ').next().unwrap_or(call)
}

/// A target to be traced.
pub(super) struct Subject<'a> {
    pub(super) engine: &'a str,
    pub(super) program: &'a Path,
    /// Its configuration, its files and strace's output.
    pub(super) directory: &'a Path,
    /// An additional variable of its environment.
    pub(super) variable: Option<(&'a str, &'a str)>,
}

/// Observations of a target.
pub(super) struct Seen {
    /// In order.
    events: Vec<Event>,
    /// Whether every entry of the ring was seen.
    is_complete: bool,
    /// Whether the calls of logs before the first case are among them: a ring is watched only from there on.
    has_logs: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    /// A block was read.
    Marked(u64),
    /// A call that changes or flushes a file has ended, or was submitted to a ring.
    Calls(String),
    /// A send to a peer begins.
    Sends,
}

impl Seen {
    pub(super) fn judge(&self) -> Result<()> {
        let place = |number: usize| {
            let mark = Event::Marked(FIRST_MARK + number as u64);
            self.events.iter().position(|event| *event == mark)
        };
        let from =
            |number: usize| place(number).with_context(|| format!("no mark of {}", CASES[number].name));
        let mut expected = start_calls(self.has_logs);
        expected.sort_by(|one, other| file_of(one).cmp(file_of(other)));
        let mut found = difference("start", &by_file(&self.events[..from(0)?]), &expected);
        for (number, case) in CASES.iter().enumerate() {
            let is_last = number + 1 == CASES.len();
            let until = if is_last { self.events.len() } else { from(number + 1)? };
            let is_mark = |event: &&Event| matches!(event, Event::Calls(call) if call.starts_with(MARK));
            let events = self.events[from(number)?..until].iter().filter(|event| !is_mark(event));
            let events: Vec<Event> = events.cloned().collect();
            let answered = events.iter().rposition(|event| *event == Event::Sends).unwrap_or(0);
            found += &difference(case.name, &events[..answered], case.calls);
            let late = events[answered..].iter().find(|event| matches!(event, Event::Calls(_)));
            // The target flushes again at its end.
            if let (Some(Event::Calls(late)), false) = (late, is_last) {
                found += &format!("{}: answered before {late:?}\n", case.name);
            }
        }
        ensure!(found.is_empty(), "{found}");
        Ok(())
    }
}

/// How calls differ from those expected, in order; but storage threads may flush different files in any order.
fn difference(name: &str, events: &[Event], expected: &[impl AsRef<str>]) -> String {
    let mut calls: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Calls(call) => Some(call.as_str()),
            _ => None,
        })
        .collect();
    for flushes in calls.chunk_by_mut(|one, other| one.starts_with("flush") && other.starts_with("flush")) {
        flushes.sort_unstable();
    }
    let expected: Vec<_> = expected.iter().map(AsRef::as_ref).collect();
    if calls == expected {
        return String::new();
    }
    format!("{name}: calls before the answer: {calls:?}, not {expected:?}\n")
}

impl Subject<'_> {
    fn has_ring(&self) -> bool {
        self.engine == "uring"
    }

    /// Starts the target under strace and runs all cases.
    pub(super) fn observe(&self) -> Result<Seen> {
        let dir = self.directory;
        let _ = remove_dir_all(dir);
        std::fs::create_dir_all(dir.join(FILES)).with_context(|| dir.display().to_string())?;
        File::create(dir.join(FILES).join("short"))?.set_len(1 << 20)?;
        let (port, memcached, log) = (free_address()?.port(), free_address()?.port(), dir.join(LOG));
        let mut command = Command::new("strace");
        // Without --seccomp-bpf every call of the target would stop it.
        command.args(["-f", "--seccomp-bpf", "-qq", "-yy", "-s", "0", "-o"]).arg(&log);
        let on_files =
            "pread64,pwrite64,pwritev2,fdatasync,fsync,sync_file_range,fallocate,ftruncate,fsetxattr,linkat";
        let (delayed, delay) = if self.has_ring() {
            ("io_uring_enter", ENTER_DELAY)
        } else {
            ("fdatasync,pwritev2", DURABLE_DELAY)
        };
        command.args(["-e", &format!("trace={on_files},sendmsg,sendto,io_uring_enter")]);
        command.args(["-e", &format!("inject={delayed}:delay_enter={}", delay.as_micros())]);
        let files = format!("file:{}/", dir.join(FILES).display());
        let config = |namespaces: &[&str]| {
            let storage = namespaces.iter().map(|spec| spec.replace("file:", &files));
            write_config(dir, (self.engine, 1), [port, memcached], storage)
        };
        command.arg(self.program).args(["target", "--config"]).arg(config(NAMESPACES)?);
        let state = dir.join(FILES).join("state.json");
        command.arg("--state").arg(&state).envs(self.variable);
        let child = command.stdin(Stdio::null()).spawn().context("cannot run strace")?;
        let mut traced = Traced { child, log: &log };
        let [address, memcached] =
            [port, memcached].map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        await_listener(address, &mut traced.child)?;
        let target = target_of(&log)?;
        let mut bench = Bench::new(address, memcached)?;
        let ports = bench.ports()?;
        let (_, others) = NAMESPACES.split_last().context("a namespace")?;
        config(&[others, &["file:short?size=4M"]].concat())?;
        let until = Instant::now() + START_TIMEOUT;
        while !state.exists() {
            ensure!(Instant::now() < until, "the target writes no state");
            sleep(Duration::from_millis(10));
        }
        run_command(Command::new(self.program).args(["reload", "--timeout", "60", "--state"]).arg(state))?;
        bench.await_logs()?;
        let seen = if self.has_ring() {
            let (entries, answered) = watch_cases(&mut bench, target)?;
            of_ring(entries, &answered, &of_trace(&read_to_string(&log)?, &[]))
        } else {
            run_cases(&mut bench, |_| {})?;
            Seen { events: of_trace(&read_to_string(&log)?, &ports), is_complete: true, has_logs: true }
        };
        kill_process(target, Signal::TERM)?;
        let status = traced.child.wait()?;
        ensure!(status.success(), "the target ended with {status}");
        Ok(seen)
    }
}

fn run_cases(bench: &mut Bench, mut on_answer: impl FnMut(Instant)) -> Result<()> {
    for (number, case) in (0..).zip(CASES) {
        bench.mark(number)?;
        (case.run)(bench).with_context(|| case.name)?;
        on_answer(Instant::now());
    }
    Ok(())
}

/// Runs the cases while another thread watches the ring: its entries, and when the cases were answered.
fn watch_cases(bench: &mut Bench, target: Pid) -> Result<(Vec<Entry>, Vec<Instant>)> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| watch_ring(target, &is_over));
        let mut answered = Vec::new();
        let run = run_cases(bench, |at| answered.push(at));
        is_over.store(true, Ordering::Relaxed);
        let entries = watch.join().expect("no panic")?;
        run.map(|()| (entries, answered))
    })
}

/// The events in strace's output: calls on files as they end, sends to these ports as they begin. Calls on a file that
/// gets its name later are under that name.
fn of_trace(text: &str, ports: &[u16]) -> Vec<Event> {
    let names = names_given(text);
    let mut events = events_of(text, ports);
    for event in &mut events {
        if let Event::Calls(call) = event
            && let Some(name) = names.get(file_of(call))
        {
            *call = call.replace(file_of(call), name);
        }
    }
    events
}

/// The names that files without one got, by what strace calls them before.
fn names_given(text: &str) -> BTreeMap<&str, &str> {
    let (mut nameless, mut names) = (BTreeMap::new(), BTreeMap::new());
    for line in text.lines() {
        let Some((_, call)) = line.trim_start().split_once(' ') else { continue };
        if let Some(arguments) = call.trim_start().strip_prefix("linkat(") {
            let paths: Vec<&str> = arguments.split('"').collect();
            if let [_, from, _, to, ..] = paths[..]
                && let Some(file) = nameless.get(last_part(from))
            {
                names.insert(*file, last_part(to));
            }
        } else if let Some((_, arguments)) = call.split_once('(')
            && let Some((descriptor, rest)) = arguments.split_once('<')
            && let Some((path, _)) = rest.split_once('>')
            && last_part(path).starts_with('#')
        {
            nameless.insert(descriptor, last_part(path));
        }
    }
    names
}

fn last_part(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn events_of(text: &str, ports: &[u16]) -> Vec<Event> {
    let mut unfinished = BTreeMap::new();
    let mut events = Vec::new();
    for line in text.lines() {
        let Some((pid, rest)) = line.split_once(' ') else { continue };
        let rest = rest.trim_start();
        let is_to_peer = |port: &u16| rest.contains(&format!(":{port}]>"));
        if rest.starts_with("send") {
            events.extend(ports.iter().any(is_to_peer).then_some(Event::Sends));
        } else if let Some(begun) = rest.strip_suffix(" <unfinished ...>") {
            unfinished.insert(pid, begun);
        } else if let Some((_, end)) = rest.split_once("resumed>") {
            let begun = unfinished.remove(pid).unwrap_or_default();
            events.extend(of_call(&format!("{begun}{end}")));
        } else {
            events.extend(of_call(rest));
        }
    }
    events
}

/// The event of a whole call on a file, if it is one.
fn of_call(call: &str) -> Option<Event> {
    let (name, arguments) = call.split_once('(')?;
    let file = arguments.split_once('>')?.0.rsplit('/').next()?.split('.').next()?;
    let (arguments, _) = call.rsplit_once(')')?;
    let action = match name {
        "pread64" => {
            let offset: u64 = arguments.rsplit(", ").next()?.parse().ok()?;
            return (file == "one").then_some(Event::Marked(offset / BLOCK.len() as u64));
        }
        "pwritev2" if arguments.contains("RWF_DSYNC") => {
            durable_write(file, arguments.rsplit(", ").nth(1)?.parse().ok()?)
        }
        "pwrite64" | "pwritev2" => "write",
        "fallocate" => "allocate",
        "fdatasync" => "flush",
        "ftruncate" => "resize",
        "fsetxattr" => "label",
        "fsync" | "sync_file_range" => name,
        _ => return None,
    };
    Some(Event::Calls(format!("{action} {file}")))
}

/// What a durable write at an offset of a file is.
fn durable_write(file: &str, offset: u64) -> &'static str {
    let has_log = LOGS.iter().any(|(name, _)| *name == file);
    if has_log && SUPERBLOCKS.contains(&offset) { MARK } else { "durable write" }
}

/// An entry of the submission queue.
struct Entry {
    number: u64,
    seen: Instant,
    event: Option<Event>,
}

/// Reads the submission queue of the target's ring until all cases are over.
fn watch_ring(target: Pid, is_over: &AtomicBool) -> Result<Vec<Entry>> {
    let process = format!("/proc/{}", target.as_raw_nonzero());
    let is_ring = |path: &Path| read_link(path).is_ok_and(|file| file.ends_with("anon_inode:[io_uring]"));
    let mut files = read_dir(format!("{process}/fd"))?.filter_map(|entry| Some(entry.ok()?.path()));
    let ring = files.find(|path| is_ring(path)).context("the target has no ring")?;
    let path = Path::new(&process).join("fdinfo").join(ring.file_name().context("a number")?);
    let mut entries: Vec<Entry> = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        sleep(Duration::from_micros(500));
        let text = read_to_string(&path)?;
        let head = text.lines().find_map(|line| line.strip_prefix("SqHead:"));
        // The kernel shows no queue while it takes entries from it.
        let Some(head) = head.and_then(|head| head.trim().parse::<u64>().ok()) else { continue };
        for (number, line) in (head..).zip(text.lines().filter(|line| line.contains("opcode:"))) {
            if entries.last().is_none_or(|last| last.number < number) {
                entries.push(Entry { number, seen: Instant::now(), event: of_entry(&process, line) });
            }
        }
    }
    Ok(entries)
}

/// The event of an entry of the submission queue, if it is on a file.
fn of_entry(process: &str, line: &str) -> Option<Event> {
    let field = |name: &str| line.split_once(name)?.1.split([',', ' ']).next();
    let file = read_link(format!("{process}/fd/{}", field("fd:")?)).ok()?;
    let file = file.file_name()?.to_string_lossy().into_owned();
    let flags = u32::from_str_radix(field("rw_flags:0x")?, 16).ok()?;
    let action = match (field("opcode:")?, flags) {
        ("READ" | "READ_FIXED", _) => {
            let offset: u64 = field("off:")?.parse().ok()?;
            return (file == "one").then_some(Event::Marked(offset / BLOCK.len() as u64));
        }
        ("WRITE" | "WRITE_FIXED", 0) => "write",
        ("WRITE" | "WRITE_FIXED", DSYNC) => durable_write(&file, field("off:")?.parse().ok()?),
        ("FSYNC", DATASYNC) => "flush",
        ("FSYNC", _) => "fsync",
        ("FALLOCATE", _) => "allocate",
        _ => return None,
    };
    Some(Event::Calls(format!("{action} {file}")))
}

/// Flags of entries: `RWF_DSYNC` and `IORING_FSYNC_DATASYNC`.
const DSYNC: u32 = 2;
const DATASYNC: u32 = 1;

/// The events of a ring's entries, of the moments of the answers, and before them those of the start.
fn of_ring(entries: Vec<Entry>, answered: &[Instant], start: &[Event]) -> Seen {
    let is_complete = entries.windows(2).all(|pair| pair[1].number == pair[0].number + 1);
    let mut events: Vec<(Instant, Event)> =
        entries.into_iter().filter_map(|entry| Some((entry.seen, entry.event?))).collect();
    events.extend(answered.iter().map(|at| (*at, Event::Sends)));
    events.sort_by_key(|(at, _)| *at);
    let events = start.iter().cloned().chain(events.into_iter().map(|(_, event)| event)).collect();
    Seen { events, is_complete, has_logs: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_on_a_file_without_a_name_are_under_the_one_that_it_gets() {
        let text = "\
            1 ftruncate(7</tmp/#12>, 4096) = 0\n\
            1 linkat(AT_FDCWD</>, \"/proc/self/fd/7\", AT_FDCWD</>, \"/tmp/one\", AT_SYMLINK_FOLLOW) = 0\n\
            1 ftruncate(7</tmp/#13>, 4096) = 0\n\
            1 fallocate(7</tmp/#12>(deleted), 0, 0, 4096) = 0\n";
        let calls = ["resize one", "resize #13", "allocate one"].map(|call| Event::Calls(call.into()));
        assert_eq!(of_trace(text, &[]), calls);
    }

    #[test]
    fn a_call_counts_when_it_ends() {
        let text = "\
            1 pread64(5</tmp/one>, \"\"..., 4096, 4096000) = 4096\n\
            2 fdatasync(6</tmp/one> <unfinished ...>\n\
            1 sendmsg(9<TCP:[127.0.0.1:4420->127.0.0.1:5000]>, {}, 0) = 24\n\
            2 <... fdatasync resumed>)          = 0\n\
            2 pwritev2(5</tmp/two>, [{}], 1, 8192, RWF_DSYNC) = 4096\n\
            2 pwritev2(5</tmp/batch>, [{}], 1, 8192, RWF_DSYNC) = 4096\n\
            2 pwritev2(5</tmp/batch>, [{}], 1, 16384, RWF_DSYNC) = 4096\n\
            2 pwrite64(5</tmp/two>, \"\"..., 4096, 0) = 4096\n\
            1 sendmsg(9<TCP:[127.0.0.1:4420->127.0.0.1:6000]>, {}, 0) = 24\n";
        let calls = |call: &str| Event::Calls(call.into());
        let expected = [
            Event::Marked(1000),
            Event::Sends,
            calls("flush one"),
            calls("durable write two"),
            calls("durable superblock batch"),
            calls("durable write batch"),
            calls("write two"),
        ];
        assert_eq!(of_trace(text, &[5000]), expected);
    }
}
