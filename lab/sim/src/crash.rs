//! Every state that a power cut can leave of every short workload on the file store.
//!
//! A recording reactor stands under the real backend and keeps, of each sector of 512 bytes, all versions since it was
//! last made durable. Before each operation is carried out and after the last, the power goes: every combination of the
//! possible contents of the sectors is a state, whole operations torn at every sector. Each state is opened as a
//! namespace again, read through the backend, and compared with the answers:
//!
//! *A sector holds the content of a write, unless a durable one began after that write was answered.* Durable are
//! writes with FUA, and writes that were answered before a flush began that was answered with success.
//!
//! Workloads are all sequences of up to a given number of requests, one after the other; shorter ones also with their
//! requests begun and their operations carried out in every order; and with every single call failing in every way.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use linux::Moment;
use memory::{Buffer, Pool};
use reactor::{Completion, File, Operation, Timers};
use rustix::io::Errno;
use store::{Backend, BlockStore, FileStore, Geometry, Reply, Request, StoreError, StoreIo, Ticket};

use crate::crash_files::crash_files;
use crate::crash_pool::crash_pool;
use crate::crash_report::CrashReport;

/// Bytes that are written whole or not at all.
const SECTOR_BYTES: usize = 512;

/// Sectors of the namespace.
const SECTOR_COUNT: usize = 4;

/// Sectors of a request, from the first to before the last.
type Extent = (u8, u8);

/// A request of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Write(Extent),
    DurableWrite(Extent),
    Flush,
    Zero(Extent),
    DurableZero(Extent),
    Deallocate(Extent),
}

const ALPHABET: [Ask; 9] = [
    Ask::Write((0, 1)),
    Ask::Write((1, 3)),
    Ask::Write((0, 4)),
    Ask::DurableWrite((0, 1)),
    Ask::DurableWrite((1, 3)),
    Ask::Flush,
    Ask::Zero((0, 2)),
    Ask::DurableZero((1, 3)),
    Ask::Deallocate((1, 4)),
];

/// The abilities of the storage beside reading and writing.
#[derive(Clone, Copy, Debug)]
struct Abilities {
    punches: bool,
    zeroes: bool,
}

const ABILITIES: [Abilities; 3] = [
    Abilities { punches: true, zeroes: true },
    Abilities { punches: true, zeroes: false },
    Abilities { punches: false, zeroes: false },
];

/// The failure of one call.
#[derive(Clone, Copy, Debug)]
enum CallFault {
    Error(Errno),
    /// It stops after this number of bytes.
    Short(usize),
    /// It never comes back.
    Never,
}

const CALL_FAULTS: [CallFault; 9] = [
    CallFault::Error(Errno::IO),
    CallFault::Error(Errno::NOSPC),
    CallFault::Error(Errno::INTR),
    CallFault::Error(Errno::AGAIN),
    CallFault::Error(Errno::CANCELED),
    CallFault::Short(0),
    CallFault::Short(200),
    CallFault::Short(512),
    CallFault::Never,
];

/// Checks all workloads of up to `length_max` requests, or every `share_count`-th of them from `share` on; the first
/// share has the small files too.
#[must_use]
pub fn crash_states(length_max: u32, share: usize, share_count: usize) -> CrashReport {
    let mut report = CrashReport::default();
    if share == 0 {
        crash_files(&mut report);
        crash_pool(&mut report);
    }
    for length in 1..=length_max {
        let count = ALPHABET.len().pow(length);
        for index in (share..count).step_by(share_count) {
            let mut rest = index;
            let mut workload = Vec::new();
            for _ in 0..length {
                workload.push(ALPHABET[rest % ALPHABET.len()]);
                rest /= ALPHABET.len();
            }
            for abilities in ABILITIES {
                report.workload_count += 1;
                check_workload(&workload, abilities, length < length_max, &mut report);
                if report.findings.len() > 3 {
                    return report;
                }
            }
        }
    }
    report
}

fn check_workload(workload: &[Ask], abilities: Abilities, is_short: bool, report: &mut CrashReport) {
    let call_count = run(workload, abilities, Order::Sequential, None, report);
    if !is_short {
        return;
    }
    for nth in 0..call_count {
        for fault in CALL_FAULTS {
            run(workload, abilities, Order::Sequential, Some((nth, fault)), report);
        }
    }
    // Beside each other, in every order: choices are counted up like digits.
    let mut script = Vec::new();
    while workload.len() > 1 {
        let mut taken = Choices { script: script.clone(), at: 0, widths: Vec::new() };
        run(workload, abilities, Order::Any(&mut taken), None, report);
        script = taken.script;
        script.resize(taken.widths.len(), 0);
        let Some(last) = (0..script.len()).rev().find(|&at| script[at] + 1 < taken.widths[at]) else { break };
        script.truncate(last + 1);
        script[last] += 1;
    }
}

/// The choice of the next one of several operations.
struct Choices {
    script: Vec<usize>,
    at: usize,
    widths: Vec<usize>,
}

impl Choices {
    fn choose(&mut self, width: usize) -> usize {
        if self.at == self.script.len() {
            self.script.push(0);
        }
        self.widths.push(width);
        self.at += 1;
        self.script[self.at - 1]
    }
}

enum Order<'a> {
    Sequential,
    Any(&'a mut Choices),
}

/// The known state of a request's write to a sector.
#[derive(Clone, Copy, Debug)]
struct Written {
    value: u8,
    request: usize,
    begin: usize,
    /// When it was answered.
    end: usize,
    is_done: bool,
    is_durable: bool,
}

/// Possible contents of one sector after a power cut.
#[derive(Clone, Debug, Default)]
struct Sector {
    stable: u8,
    /// By number of the operation.
    versions: Vec<(usize, u8)>,
    /// Versions that a failed flush has made clean: no later flush writes them.
    forgotten: usize,
}

/// The reactor under the backend.
struct Recorder {
    now_ns: u64,
    pool: Pool,
    timers: Timers,
    abilities: Abilities,
    fault: Option<(usize, CallFault)>,
    call_count: usize,
    running: Vec<Running>,
    /// The call that never comes back.
    stuck: Option<Running>,
    replies: Vec<(Ticket, Reply)>,
    sectors: Vec<Sector>,
    /// The current image, as reads see it.
    bytes: Vec<u8>,
    next: usize,
}

struct Running {
    ticket: Ticket,
    number: usize,
    operation: Operation,
    /// Of a flush: how many versions of each sector there were.
    covered: Vec<usize>,
}

impl StoreIo for Recorder {
    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn moment(&self) -> Moment {
        Moment::default()
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn start(&mut self, ticket: Ticket, operation: Operation) {
        self.next += 1;
        let newest = |sector: &Sector| sector.versions.last().map_or(0, |(number, _)| *number);
        let covered = self.sectors.iter().map(newest).collect();
        self.running.push(Running { ticket, number: self.next, operation, covered });
    }

    fn set_timer(&mut self, deadline_ns: u64, ticket: Ticket) {
        self.timers.set(deadline_ns, ticket.0);
    }

    fn reply(&mut self, ticket: Ticket, reply: Reply) {
        self.replies.push((ticket, reply));
    }
}

impl Recorder {
    /// The sectors that an operation is to change, and their new contents.
    fn changes(operation: &Operation) -> Vec<(usize, u8)> {
        match operation {
            Operation::Write { offset, buffer, skip, .. } => {
                let first = offset_of(*offset) / SECTOR_BYTES;
                let sectors = buffer[*skip..].chunks_exact(SECTOR_BYTES).enumerate();
                sectors.map(|(at, bytes)| (first + at, bytes[0])).collect()
            }
            Operation::Allocate { offset, length, .. } => {
                let (first, count) = (offset_of(*offset) / SECTOR_BYTES, offset_of(*length) / SECTOR_BYTES);
                (first..first + count).map(|sector| (sector, 0)).collect()
            }
            Operation::Read { .. }
            | Operation::Sync { .. }
            | Operation::Await { .. }
            | Operation::FindData { .. } => Vec::new(),
        }
    }

    fn put(&mut self, sector: usize, value: u8, number: usize) {
        self.bytes[sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES].fill(value);
        self.sectors[sector].versions.push((number, value));
    }

    /// Carries out an operation, if it comes back.
    fn perform(&mut self, at: usize) -> Option<(Ticket, Completion)> {
        let fault = self.fault.filter(|(nth, _)| *nth == self.call_count).map(|(_, fault)| fault);
        self.call_count += 1;
        if let Some(CallFault::Never) = fault {
            self.stuck = Some(self.running.remove(at));
            return None;
        }
        let Running { ticket, number, mut operation, covered } = self.running.remove(at);
        let mut result = self.outcome(&operation, fault);
        let is_sync = matches!(operation, Operation::Sync { .. } | Operation::Write { durable: true, .. });
        match (&mut operation, &result) {
            (Operation::Read { offset, buffer, skip, .. }, Ok(count)) => {
                let start = offset_of(*offset);
                buffer[*skip..*skip + count].copy_from_slice(&self.bytes[start..start + count]);
            }
            (Operation::Write { durable, .. }, Ok(count)) => {
                let (whole, durable) = (count / SECTOR_BYTES, *durable);
                for (sector, value) in Self::changes(&operation).into_iter().take(whole) {
                    self.put(sector, value, number);
                    if durable {
                        self.settle(sector, number);
                    }
                }
            }
            (Operation::Write { .. }, Err(error))
                if error.raw_os_error() == Some(Errno::IO.raw_os_error()) =>
            {
                // All of it may have been done, or nothing: a power cut decides.
                for (sector, value) in Self::changes(&operation) {
                    self.put(sector, value, number);
                }
            }
            (Operation::Allocate { .. }, Ok(_)) => {
                for (sector, value) in Self::changes(&operation) {
                    self.put(sector, value, number);
                }
            }
            (Operation::Sync { .. }, Ok(_)) => {
                for (sector, newest) in covered.into_iter().enumerate() {
                    if newest > self.sectors[sector].forgotten {
                        self.settle(sector, newest);
                    }
                }
            }
            _ => {}
        }
        // A durable write that finds no space is refused before anything is written: that says nothing of others.
        let is_flush = matches!(operation, Operation::Sync { .. });
        let is_loss = |error: &io::Error| match Errno::from_io_error(error) {
            Some(Errno::INTR | Errno::AGAIN) => false,
            Some(Errno::NOSPC) => is_flush,
            _ => true,
        };
        if is_sync && result.as_ref().is_err_and(is_loss) {
            for sector in &mut self.sectors {
                sector.forgotten = sector.versions.last().map_or(sector.forgotten, |(number, _)| *number);
            }
        }
        if let (Operation::Sync { .. } | Operation::Allocate { .. }, Ok(count)) = (&operation, &mut result) {
            *count = 0;
        }
        let buffer = match operation {
            Operation::Read { buffer, .. } | Operation::Write { buffer, .. } => Some(buffer),
            Operation::Sync { .. }
            | Operation::Await { .. }
            | Operation::Allocate { .. }
            | Operation::FindData { .. } => None,
        };
        Some((ticket, Completion { token: ticket.0, result, buffer }))
    }

    fn outcome(&self, operation: &Operation, fault: Option<CallFault>) -> io::Result<usize> {
        use reactor::Allocation::{Punch, Zero};
        let length = match operation {
            Operation::Read { buffer, skip, .. } | Operation::Write { buffer, skip, .. } => {
                buffer.len() - skip
            }
            Operation::Allocate { change: Punch, .. } if !self.abilities.punches => {
                return Err(Errno::OPNOTSUPP.into());
            }
            Operation::Allocate { change: Zero, .. } if !self.abilities.zeroes => {
                return Err(Errno::OPNOTSUPP.into());
            }
            Operation::Allocate { .. }
            | Operation::Sync { .. }
            | Operation::Await { .. }
            | Operation::FindData { .. } => usize::MAX,
        };
        match fault {
            Some(CallFault::Error(errno)) => Err(errno.into()),
            Some(CallFault::Short(count)) => Ok(count.min(length)),
            Some(CallFault::Never) | None => Ok(length),
        }
    }

    /// Makes a version of a sector durable, and with it all before it.
    fn settle(&mut self, sector: usize, number: usize) {
        let sector = &mut self.sectors[sector];
        if let Some(at) = sector.versions.iter().position(|(version, _)| *version == number) {
            sector.stable = sector.versions[at].1;
            sector.versions.drain(..=at);
        }
    }
}

fn offset_of(offset: u64) -> usize {
    usize::try_from(offset).expect("a small file")
}

fn geometry(abilities: Abilities) -> Geometry {
    let geometry = Geometry::new(SECTOR_BYTES as u32, SECTOR_COUNT as u64);
    Geometry { can_deallocate: abilities.punches, ..geometry }
}

/// A run under way.
struct Run<'a> {
    workload: &'a [Ask],
    abilities: Abilities,
    backend: Box<dyn Backend>,
    io: Recorder,
    /// By sector.
    written: Vec<Vec<Written>>,
    /// By request: when it began.
    begun: BTreeMap<usize, usize>,
    moment: usize,
    fault: Option<(usize, CallFault)>,
    report: &'a mut CrashReport,
    reader: Reader,
}

/// Carries a workload out and cuts the power everywhere. Returns the number of calls.
fn run(
    workload: &[Ask],
    abilities: Abilities,
    mut order: Order<'_>,
    fault: Option<(usize, CallFault)>,
    report: &mut CrashReport,
) -> usize {
    report.run_count += 1;
    let store = FileStore::simulated(File::simulated(0), &geometry(abilities));
    let backend = match store.attach() {
        Ok(backend) => backend,
        Err(error) => {
            report.findings.push(format!("cannot attach: {error}"));
            return 0;
        }
    };
    let first = Written { value: 0, request: usize::MAX, begin: 0, end: 0, is_done: true, is_durable: true };
    POOL.with(|pool| {
        let io = Recorder {
            now_ns: 0,
            pool: pool.clone(),
            timers: Timers::default(),
            abilities,
            fault,
            call_count: 0,
            running: Vec::new(),
            stuck: None,
            replies: Vec::new(),
            sectors: vec![Sector::default(); SECTOR_COUNT],
            bytes: vec![0; SECTOR_COUNT * SECTOR_BYTES],
            next: 0,
        };
        let mut run = Run {
            workload,
            abilities,
            backend,
            io,
            written: vec![vec![first]; SECTOR_COUNT],
            begun: BTreeMap::new(),
            moment: 1,
            fault,
            report,
            reader: Reader::new(abilities),
        };
        match &mut order {
            Order::Sequential => {
                for request in 0..workload.len() {
                    run.start(request);
                    while run.step(0) {}
                }
            }
            Order::Any(choices) => {
                let mut next = 0;
                loop {
                    let running = run.io.running.len();
                    let may_start = usize::from(next < workload.len());
                    // Nothing runs: whether the next begins before or after a timer rings makes no difference.
                    let chosen = if running == 0 { 0 } else { choices.choose(running + may_start) };
                    if may_start == 1 && chosen == running {
                        run.start(next);
                        next += 1;
                    } else if !run.step(chosen) {
                        break;
                    }
                }
            }
        }
        run.cut();
        run.check_end();
        run.io.call_count
    })
}

thread_local! {
    static POOL: Pool = Pool::new(1).expect("a little memory");
}

impl Run<'_> {
    fn start(&mut self, request: usize) {
        self.moment += 1;
        let value = request as u8 + 1;
        let bytes = |sectors: u8| u64::from(sectors) * SECTOR_BYTES as u64;
        let ask = self.workload[request];
        let (extent, value, ask) = match ask {
            Ask::Write(extent) | Ask::DurableWrite(extent) => {
                let length = (extent.1 - extent.0) as usize * SECTOR_BYTES;
                let mut buffer = self.io.pool.take(length).expect("nothing else uses the pool");
                buffer.fill(value);
                let is_durable = matches!(ask, Ask::DurableWrite(_));
                (Some(extent), value, Request::Write { offset: bytes(extent.0), buffer, is_durable })
            }
            Ask::Flush => (None, 0, Request::Flush),
            Ask::Zero(extent) | Ask::DurableZero(extent) => {
                let is_durable = matches!(ask, Ask::DurableZero(_));
                let (offset, length) = (bytes(extent.0), bytes(extent.1 - extent.0));
                let request = Request::WriteZeroes { offset, length, is_durable, may_deallocate: is_durable };
                (Some(extent), 0, request)
            }
            Ask::Deallocate(extent) => {
                let (offset, length) = (bytes(extent.0), bytes(extent.1 - extent.0));
                (Some(extent), 0, Request::Deallocate { offset, length })
            }
        };
        for sector in extent.map_or(0..0, |(first, last)| usize::from(first)..usize::from(last)) {
            let (begin, end) = (self.moment, usize::MAX);
            let written = Written { value, request, begin, end, is_done: false, is_durable: false };
            self.written[sector].push(written);
        }
        self.begun.insert(request, self.moment);
        self.backend.start(&mut self.io, Ticket(request as u64), ask);
        self.take_replies();
    }

    /// Cuts the power, then carries out one operation, or lets time pass if there is none. Returns whether there was
    /// anything to do.
    fn step(&mut self, at: usize) -> bool {
        if self.io.running.is_empty() {
            let Some(deadline_ns) = self.io.timers.next_deadline_ns() else { return false };
            self.io.now_ns = self.io.now_ns.max(deadline_ns);
            while let Some(token) = self.io.timers.next_due(self.io.now_ns) {
                self.backend.on_timer(&mut self.io, Ticket(token));
            }
            self.take_replies();
            return true;
        }
        self.cut();
        let performed = self.io.perform(at);
        self.moment += 1;
        let Some((ticket, completion)) = performed else { return true };
        self.backend.on_completion(&mut self.io, ticket, completion);
        self.take_replies();
        true
    }

    fn take_replies(&mut self) {
        for (ticket, reply) in std::mem::take(&mut self.io.replies) {
            self.moment += 1;
            let request = ticket.0 as usize;
            let Some(begin) = self.begun.remove(&request) else {
                self.find("a request was answered twice");
                continue;
            };
            self.on_reply(request, begin, reply.result);
        }
    }

    fn on_reply(&mut self, request: usize, begin: usize, result: Result<(), StoreError>) {
        let (ask, moment) = (self.workload[request], self.moment);
        let is_durable = matches!(ask, Ask::DurableWrite(_) | Ask::DurableZero(_));
        // Deallocation is a hint: whether it was followed is unknown.
        let is_done = result.is_ok() && !matches!(ask, Ask::Deallocate(_));
        for written in self.written.iter_mut().flatten() {
            if written.request == request {
                written.end = moment;
                written.is_done = is_done;
                written.is_durable = is_done && is_durable;
            } else if ask == Ask::Flush && result.is_ok() && written.is_done && written.end < begin {
                written.is_durable = true;
            }
        }
        if self.fault.is_none() && result.is_err() {
            self.find(&format!("{ask:?} failed by itself: {result:?}"));
        }
    }

    /// Everything was answered, except for requests that wait for a call that never comes back; and only that call
    /// keeps a buffer.
    fn check_end(&mut self) {
        let is_stuck =
            |request: &usize| self.io.stuck.as_ref().is_some_and(|stuck| stuck.ticket.0 == *request as u64);
        // A flush waits for the one that runs.
        let may_wait = |request: &usize| {
            let ask = self.workload[*request];
            self.io.stuck.is_some() && matches!(ask, Ask::Flush | Ask::DurableWrite(_) | Ask::DurableZero(_))
        };
        if !self.begun.keys().all(|request| is_stuck(request) || may_wait(request)) {
            self.find("requests were never answered");
        }
        let kept = self.io.stuck.as_ref().map_or(0, |stuck| match &stuck.operation {
            Operation::Read { buffer, .. } | Operation::Write { buffer, .. } => buffer.capacity(),
            Operation::Sync { .. }
            | Operation::Await { .. }
            | Operation::Allocate { .. }
            | Operation::FindData { .. } => 0,
        });
        let out = self.io.pool.capacity_bytes() - self.io.pool.free_bytes();
        if out > kept && self.begun.len() <= 1 {
            self.find(&format!("{out} bytes of buffers are out, {kept} of them with the call"));
        }
    }

    /// The power goes: checks every state that may be left.
    fn cut(&mut self) {
        self.report.cut_count += 1;
        let mut options: Vec<BTreeSet<u8>> = Vec::new();
        for sector in &self.io.sectors {
            let versions = sector.versions.iter().map(|(_, value)| *value);
            options.push(versions.chain([sector.stable]).collect());
        }
        for running in self.io.running.iter().chain(&self.io.stuck) {
            for (sector, value) in Recorder::changes(&running.operation) {
                options[sector].insert(value);
            }
        }
        let options: Vec<Vec<u8>> = options.into_iter().map(|values| values.into_iter().collect()).collect();
        let mut state = [0; SECTOR_COUNT];
        loop {
            let values: Vec<u8> = state.iter().zip(&options).map(|(at, values)| values[*at]).collect();
            self.report.state_count += 1;
            self.check_state(&values);
            let Some(at) = (0..SECTOR_COUNT).find(|&at| state[at] + 1 < options[at].len()) else { return };
            state[at] += 1;
            state[..at].fill(0);
        }
    }

    fn check_state(&mut self, values: &[u8]) {
        match self.reader.read(values) {
            Ok(read) if read == values => {}
            other => return self.find(&format!("a disk of {values:?} reads as {other:?}")),
        }
        for (sector, value) in values.iter().enumerate() {
            let written = &self.written[sector];
            let is_replaced =
                |old: &Written| written.iter().any(|newer| newer.is_durable && old.end < newer.begin);
            if !written.iter().any(|old| old.value == *value && !is_replaced(old)) {
                return self.find(&format!("after a power cut sector {sector} holds {value}: {written:?}"));
            }
        }
    }

    fn find(&mut self, finding: &str) {
        if self.report.findings.len() > 3 {
            return;
        }
        let (workload, abilities, fault) = (self.workload, self.abilities, self.fault);
        self.report.findings.push(format!("{workload:?} {abilities:?} {fault:?}: {finding}"));
    }
}

/// Opens the storage after a power cut, and reads it.
struct Reader {
    backend: Option<Box<dyn Backend>>,
}

impl Reader {
    fn new(abilities: Abilities) -> Self {
        Self { backend: FileStore::simulated(File::simulated(1), &geometry(abilities)).attach().ok() }
    }

    fn read(&mut self, values: &[u8]) -> Result<Vec<u8>, StoreError> {
        let backend = self.backend.as_mut().ok_or(StoreError::Closed)?;
        let buffer = POOL.with(|pool| pool.take(SECTOR_COUNT * SECTOR_BYTES)).ok_or(StoreError::Closed)?;
        let mut io = Replay { operation: None, reply: None };
        backend.start(&mut io, Ticket(0), Request::Read { offset: 0, buffer });
        while let Some((ticket, operation)) = io.operation.take() {
            let Operation::Read { mut buffer, .. } = operation else { return Err(StoreError::Unsupported) };
            for (sector, value) in buffer.chunks_exact_mut(SECTOR_BYTES).zip(values) {
                sector.fill(*value);
            }
            let completion = Completion { token: 0, result: Ok(buffer.len()), buffer: Some(buffer) };
            backend.on_completion(&mut io, ticket, completion);
        }
        let reply = io.reply.ok_or(StoreError::Closed)?;
        reply.result?;
        let buffer: Buffer = reply.buffer.ok_or(StoreError::Closed)?;
        Ok(buffer.chunks_exact(SECTOR_BYTES).map(|sector| sector[SECTOR_BYTES - 1]).collect())
    }
}

/// A reactor that reads one thing.
struct Replay {
    operation: Option<(Ticket, Operation)>,
    reply: Option<Reply>,
}

impl StoreIo for Replay {
    fn now_ns(&self) -> u64 {
        0
    }

    fn moment(&self) -> Moment {
        Moment::default()
    }

    fn pool(&self) -> &Pool {
        unreachable!("a read brings its buffer")
    }

    fn start(&mut self, ticket: Ticket, operation: Operation) {
        self.operation = Some((ticket, operation));
    }

    fn set_timer(&mut self, _: u64, _: Ticket) {}

    fn reply(&mut self, _: Ticket, reply: Reply) {
        self.reply = Some(reply);
    }
}
