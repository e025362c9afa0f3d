//! Coverage of runs: commands in all their forms, the statuses that they end with, PDUs, and other events of a
//! connection, counted from the bytes on the simulated wire; transitions of machines, and limits.

mod queue_stages;
mod requests;
mod stages;

use std::collections::{BTreeMap, BTreeSet};

use host_core::Failure;
use rapidhash::RapidHashMap;
use wire::id::Nsid;
use wire::opcode::{AdminOpcode, FabricsType, NvmOpcode};
use wire::pdu::{CAPSULE_CMD_BYTES, COMMON_HEADER_BYTES, DATA_BYTES, FatalErrorStatus, PduType};
use wire::sqe::{Fuse, SqeFlags};
use wire::status::Status;

use queue_stages::{Change, QueueStages};
pub(crate) use requests::Requests;
pub(crate) use stages::Stages;

/// Something that runs reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Point {
    /// A PDU of this type.
    Pdu(u8),
    /// A command.
    Command(Opcode),
    /// A command that ended with this status code.
    Status(Opcode, u16),
    /// A form of a command or of its data.
    Form(&'static str),
    /// An event of the world.
    Event(&'static str),
    /// A machine has gone from one state to another.
    Transition {
        /// The kind of machine.
        machine: &'static str,
        /// Its state before.
        from: &'static str,
        /// Its state after.
        to: &'static str,
    },
    /// A limit was reached.
    Limit(&'static str),
    /// A command took too long because of this.
    TimedOut(&'static str),
    /// The end of a host's command, and its cause.
    End {
        /// The command.
        command: &'static str,
        /// The outcome that its user received.
        outcome: Ending,
        /// The cause.
        cause: &'static str,
    },
}

/// The outcome of a host's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ending {
    /// Success.
    Done,
    /// This status code, at once or after the retries of the host.
    Status(u16),
    /// A failure on the side of the host.
    Host(&'static str),
}

impl From<Result<u64, Failure>> for Ending {
    fn from(result: Result<u64, Failure>) -> Self {
        match result {
            Ok(_) => Self::Done,
            Err(Failure::Status(status) | Failure::GaveUp { status, .. }) => Self::Status(status.code()),
            Err(Failure::Interrupted) => Self::Host("Interrupted"),
            Err(Failure::TimedOut) => Self::Host("TimedOut"),
            Err(Failure::Unflushed) => Self::Host("Unflushed"),
            Err(Failure::Cancelled) => Self::Host("Cancelled"),
            Err(Failure::Replaced) => Self::Host("Replaced"),
            Err(Failure::Unreachable) => Self::Host("Unreachable"),
            Err(_) => Self::Host("other"),
        }
    }
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Done => f.pad("success"),
            Self::Status(code) => f.pad(&Status::from_code(*code).to_string()),
            Self::Host(failure) => f.pad(failure),
        }
    }
}

/// A command by its table and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Opcode {
    /// A command on blocks.
    Nvm(u8),
    /// A command on an admin queue.
    Admin(u8),
    /// A Fabrics command.
    Fabrics(u8),
}

impl std::fmt::Display for Opcode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::Nvm(opcode) => NvmOpcode::from_raw(opcode).fmt(f),
            Self::Admin(opcode) => write!(f, "admin {}", AdminOpcode::from_raw(opcode)),
            Self::Fabrics(fctype) => write!(f, "fabrics {}", FabricsType::from_raw(fctype)),
        }
    }
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pdu(kind) => match PduType::ALL.into_iter().find(|known| *known as u8 == *kind) {
                Some(known) => write!(f, "pdu: {known:?}"),
                None => write!(f, "pdu: {kind:#04x}"),
            },
            Self::Command(opcode) => write!(f, "command: {opcode}"),
            Self::Status(opcode, code) => write!(f, "status: {opcode}: {}", Status::from_code(*code)),
            Self::Form(form) => write!(f, "form: {form}"),
            Self::Event(event) => write!(f, "event: {event}"),
            Self::Transition { machine, from, to } => write!(f, "transition: {machine}: {from} -> {to}"),
            Self::Limit(limit) => write!(f, "limit: {limit}"),
            Self::TimedOut(cause) => write!(f, "timed out: {cause}"),
            Self::End { command, cause, .. } => write!(f, "end: {command}: {cause}"),
        }
    }
}

/// Counts of the points that were reached.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    counts: RapidHashMap<Point, u64>,
}

impl Coverage {
    /// Counts a point.
    pub(crate) fn reach(&mut self, point: Point) {
        *self.counts.entry(point).or_default() += 1;
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        other.counts.iter().for_each(|(point, count)| *self.counts.entry(*point).or_default() += count);
    }

    /// The points that were reached, in order, and how often.
    pub fn iter(&self) -> impl Iterator<Item = (Point, u64)> {
        let counts: BTreeMap<_, _> = self.counts.iter().map(|(point, count)| (*point, *count)).collect();
        counts.into_iter()
    }

    /// The lines of a list of points that were not reached.
    #[must_use]
    pub fn missing<'a>(&self, list: &'a str) -> Vec<&'a str> {
        let reached: BTreeSet<String> = self.counts.keys().map(Point::to_string).collect();
        list.lines().filter(|line| !line.is_empty() && !reached.contains(*line)).collect()
    }
}

/// The headers that go by in one direction of a connection.
#[derive(Clone, Debug, Default)]
struct Headers {
    header: Vec<u8>,
    /// Bytes of the PDU behind its header.
    rest: usize,
    /// Bytes that went by.
    passed_bytes: u64,
}

impl Headers {
    /// The next header, once it is complete.
    fn next(&mut self, bytes: &mut &[u8]) -> Option<Vec<u8>> {
        loop {
            let skipped = self.rest.min(bytes.len());
            *bytes = &bytes[skipped..];
            self.rest -= skipped;
            self.passed_bytes += skipped as u64;
            let length = match self.header.get(2) {
                Some(hlen) if self.header.len() >= COMMON_HEADER_BYTES => {
                    usize::from(*hlen).max(COMMON_HEADER_BYTES)
                }
                _ => COMMON_HEADER_BYTES,
            };
            let taken = (length - self.header.len()).min(bytes.len());
            self.header.extend_from_slice(&bytes[..taken]);
            *bytes = &bytes[taken..];
            self.passed_bytes += taken as u64;
            if self.header.len() < length {
                return None;
            }
            if length > COMMON_HEADER_BYTES {
                let header = std::mem::take(&mut self.header);
                self.rest = (dword(&header, 4) as usize).saturating_sub(length);
                return Some(header);
            }
            if self.header[2] as usize <= COMMON_HEADER_BYTES {
                // Not a header: the rest of this stream cannot be parsed.
                (self.header, self.rest) = (Vec::new(), usize::MAX);
                return None;
            }
        }
    }
}

impl Headers {
    /// Takes back the memory of a header that was looked at.
    fn reuse(&mut self, mut header: Vec<u8>) {
        if self.header.is_empty() {
            header.clear();
            self.header = header;
        }
    }

    /// The end of the PDU whose header went by last, in bytes of the stream.
    fn pdu_end(&self) -> u64 {
        self.passed_bytes + self.rest as u64
    }
}

fn word(header: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([header[at], header[at + 1]])
}

fn dword(header: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

/// The low bits of the opcode of a command with data of the host.
const FROM_HOST: u8 = 1;

/// Where a capsule's header has the length of the data.
const CAPSULE_DATA_BYTES_AT: usize = 40;

/// The parts of one command that have gone by.
#[derive(Clone, Copy, Debug)]
struct Seen {
    opcode: Opcode,
    r2t_count: u32,
    /// Windows that are granted and not filled.
    open_count: u32,
    /// H2CData in the current window.
    h2c_count: u32,
    c2h_count: u32,
    fuse: Fuse,
    /// Data that the host sends beside the capsule, and the part of it that went by, bytes.
    data_bytes: (u64, u64),
    /// The end of its last data, in bytes that the host sends.
    end: u64,
    /// The change that its answer makes.
    change: Change,
    requests: Requests,
}

impl Seen {
    /// Whether all of it has arrived at a target that has received this number of bytes.
    fn is_whole(&self, received_bytes: u64) -> bool {
        self.end <= received_bytes && self.data_bytes.1 >= self.data_bytes.0
    }
}

/// The event or resource that a command at the target waits for, as far as the wire shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// An event to report.
    Event,
    /// An R2T, which is sent once there is a buffer.
    Grant,
    /// Data that an R2T has asked for.
    Data,
    /// The first half of a pair: the second one, or its data.
    SecondHalf,
    /// A Flush: the storage.
    Flush,
    /// Another command with all its data: the storage, or a buffer.
    Storage,
}

impl Waiting {
    /// Those of commands on I/O queues.
    pub(crate) const OF_IO: [Self; 5] =
        [Self::Grant, Self::Data, Self::SecondHalf, Self::Flush, Self::Storage];

    /// Its name among what runs reach, if the keep-alive timeout expires meanwhile.
    pub(crate) fn name_at_expiry(self) -> &'static str {
        match self {
            Self::Event => "keep-alive expired: Asynchronous Event Request",
            Self::Grant => "keep-alive expired: command waits for a buffer for its data",
            Self::Data => "keep-alive expired: command waits for its data",
            Self::SecondHalf => "keep-alive expired: Compare waits for the other half of its pair",
            Self::Flush => "keep-alive expired: Flush waits for the storage",
            Self::Storage => "keep-alive expired: command waits for the storage",
        }
    }
}

/// The limits that a connection is held to; 0 if they are not known yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WireLimits {
    pub(crate) in_capsule_bytes: u32,
    pub(crate) transfer_bytes: u32,
    /// Requests that a range of the second namespace takes at most.
    pub(crate) parts_max: u64,
    pub(crate) window_bytes: u32,
    pub(crate) window_count: u32,
    pub(crate) c2h_data_bytes: u32,
    pub(crate) abort_count: u32,
    pub(crate) io_queue_count: u32,
    pub(crate) queue_entries: u32,
    /// The target has as few controllers as this run needs.
    pub(crate) is_short_of_controllers: bool,
    /// From ICReq: R2Ts of a command at once.
    pub(crate) r2t_count: u32,
    /// From ICResp.
    pub(crate) h2c_data_bytes: u32,
    /// From Connect: commands of the queue.
    pub(crate) command_count: u32,
}

/// The traffic of one connection.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    from_host: Headers,
    from_target: Headers,
    is_io: bool,
    /// Its host has sent a Connect.
    pub(crate) has_sent_connect: bool,
    /// Its Connect was refused, since the target, or its host, has too many controllers or old ones.
    pub(crate) is_refused_as_busy: bool,
    /// Its host has disabled the controller, or has shut it down.
    pub(crate) is_shut_down: bool,
    /// Its Connect has succeeded.
    pub(crate) is_connected: bool,
    /// Its host has sent a command of a controller, which it does after authentication.
    pub(crate) is_in_use: bool,
    /// A message of authentication was refused.
    pub(crate) is_unproved: bool,
    commands: BTreeMap<u16, Seen>,
    /// One end has reported that the other has broken the protocol: FES and FEI.
    pub(crate) term_req: Option<(FatalErrorStatus, u32)>,
    /// Its host has sent more commands, or more Aborts, than it may.
    pub(crate) has_exceeded: bool,
    /// Requests to the second namespace.
    pub(crate) requests: Requests,
    limits: WireLimits,
    stages: QueueStages,
}

impl Watch {
    /// A connection that is dialled.
    pub(crate) fn new(limits: WireLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// The connection stands.
    pub(crate) fn on_open(&mut self, coverage: &mut Coverage) {
        self.stages.on_open(coverage);
    }

    /// The connection ends like this, or goes silent.
    pub(crate) fn on_end(&mut self, how: &'static str, coverage: &mut Coverage) {
        self.stages.on_end(how, coverage);
    }

    /// Bytes go out, from the target or from the host. Returns each header.
    pub(crate) fn on_sent(
        &mut self,
        is_from_target: bool,
        mut bytes: &[u8],
        coverage: &mut Coverage,
        mut give: impl FnMut(&[u8]),
    ) {
        loop {
            let headers = if is_from_target { &mut self.from_target } else { &mut self.from_host };
            let Some(header) = headers.next(&mut bytes) else { return };
            let end = headers.pdu_end();
            self.on_header(&header, end, coverage);
            give(&header);
            let headers = if is_from_target { &mut self.from_target } else { &mut self.from_host };
            headers.reuse(header);
        }
    }

    /// The start of the last header in the bytes that the target sends next.
    pub(crate) fn last_header(&self, bytes: &[u8]) -> Option<usize> {
        let (mut headers, mut rest, mut last) = (self.from_target.clone(), bytes, None);
        loop {
            let start = bytes.len() - rest.len() + headers.rest.min(rest.len());
            if headers.header.is_empty() && start < bytes.len() {
                last = Some(start);
            }
            if headers.next(&mut rest).is_none() {
                return last;
            }
        }
    }

    /// Whether a Connect has arrived at a target that has received this number of bytes, and is not answered.
    pub(crate) fn has_open_connect(&self, received_bytes: u64) -> bool {
        let connect = Opcode::Fabrics(FabricsType::CONNECT.raw());
        self.commands.values().any(|seen| seen.opcode == connect && seen.is_whole(received_bytes))
    }

    /// Whether a message of authentication is not answered, or its answer was not sent as a whole.
    pub(crate) fn owes_verdict(&self) -> bool {
        let send = Opcode::Fabrics(FabricsType::AUTHENTICATION_SEND.raw());
        self.commands.values().any(|seen| seen.opcode == send)
    }

    /// The requests of commands that are not answered.
    pub(crate) fn open_requests(&self) -> Requests {
        let mut open = Requests::default();
        self.commands.values().for_each(|seen| open.add(&seen.requests));
        open
    }

    /// Bytes of PDUs that the target has sent.
    pub(crate) fn passed_from_target_bytes(&self) -> u64 {
        self.from_target.passed_bytes
    }

    /// Whether it is an admin queue, or is to be one.
    pub(crate) fn is_admin(&self) -> bool {
        self.has_sent_connect && !self.is_io
    }

    /// Aborts that are not answered.
    fn abort_count(&self) -> usize {
        let is_abort = |seen: &&Seen| seen.opcode == Opcode::Admin(AdminOpcode::ABORT.raw());
        self.commands.values().filter(is_abort).count()
    }

    /// The wait of each unanswered command, at a target that has received this number of bytes.
    pub(crate) fn waiting(&self, received_bytes: u64) -> impl Iterator<Item = Waiting> {
        let second = self.commands.values().find(|seen| seen.fuse == Fuse::SECOND);
        let has_second = second.is_some_and(|second| second.is_whole(received_bytes));
        let arrived = self.commands.values().filter(move |seen| {
            // With data on its way only the capsule counts, whose end is no longer known: it came before an R2T.
            seen.end <= received_bytes || seen.r2t_count > 0
        });
        arrived.map(move |seen| match seen.opcode {
            Opcode::Admin(raw) if raw == AdminOpcode::ASYNC_EVENT_REQUEST.raw() => Waiting::Event,
            _ if seen.data_bytes.0 > 0 && seen.r2t_count == 0 => Waiting::Grant,
            _ if !seen.is_whole(received_bytes) => Waiting::Data,
            _ if seen.fuse == Fuse::FIRST && !has_second => Waiting::SecondHalf,
            Opcode::Nvm(raw) if raw == NvmOpcode::FLUSH.raw() => Waiting::Flush,
            _ => Waiting::Storage,
        })
    }

    fn on_header(&mut self, header: &[u8], end: u64, coverage: &mut Coverage) {
        let kind = header[0];
        coverage.reach(Point::Pdu(kind));
        let form = |coverage: &mut Coverage, form| coverage.reach(Point::Form(form));
        let limits = &mut self.limits;
        let reach = |coverage: &mut Coverage, value: u32, limit: u32, name| {
            if value == limit && limit > 0 {
                coverage.reach(Point::Limit(name));
            }
        };
        if header[1] & 1 != 0 {
            form(coverage, "header digest");
        }
        if header[1] & 2 != 0 {
            form(coverage, "data digest");
        }
        if kind == PduType::H2cTermReq as u8 || kind == PduType::C2hTermReq as u8 {
            let reason = header.get(8..14).map_or((0, 0), |reason| (word(reason, 0), dword(reason, 2)));
            self.term_req = Some((FatalErrorStatus::from_raw(reason.0), reason.1));
        }
        if kind == PduType::IcReq as u8 && header.len() >= 16 {
            limits.r2t_count = dword(header, 12).saturating_add(1);
        } else if kind == PduType::IcResp as u8 && header.len() >= 16 {
            limits.h2c_data_bytes = dword(header, 12);
            return self.stages.on_initialized(coverage);
        }
        if kind == PduType::CapsuleCmd as u8 && header.len() >= CAPSULE_CMD_BYTES {
            return self.on_command(header, end, coverage);
        }
        if kind == PduType::CapsuleResp as u8 && header.len() >= 24 {
            let status = Status::from_wire(word(header, 22));
            if let Some(seen) = self.commands.remove(&word(header, 20)) {
                self.is_connected |=
                    seen.opcode == Opcode::Fabrics(FabricsType::CONNECT.raw()) && status.is_success();
                self.is_unproved |= seen.opcode == Opcode::Fabrics(FabricsType::AUTHENTICATION_SEND.raw())
                    && !status.is_success();
                coverage.reach(Point::Status(seen.opcode, status.code()));
                self.requests.on_answer(&seen.requests, status);
                if limits.is_short_of_controllers
                    && seen.change == (Change::Connect { is_io: false })
                    && status.is(Status::CONNECT_CONTROLLER_BUSY)
                {
                    coverage.reach(Point::Limit("controllers of the target"));
                }
                self.is_refused_as_busy |= seen.change == (Change::Connect { is_io: false })
                    && status.is(Status::CONNECT_CONTROLLER_BUSY);
                self.stages.on_answer(seen.change, status.is_success(), dword(header, 8), coverage);
            }
            return;
        }
        if header.len() < DATA_BYTES {
            return;
        }
        let Some(seen) = self.commands.get_mut(&word(header, 8)) else { return };
        let is_last = header[1] & 4 != 0;
        if kind == PduType::R2t as u8 {
            seen.r2t_count += 1;
            seen.open_count += 1;
            if seen.r2t_count > 1 {
                form(coverage, "a second R2T of a command");
            }
            if seen.open_count > 1 {
                form(coverage, "two R2Ts of a command at once");
                reach(coverage, seen.open_count, limits.r2t_count, "R2Ts of a command at once: the host's");
                reach(
                    coverage,
                    seen.open_count,
                    limits.window_count,
                    "R2Ts of a command at once: the target's",
                );
            }
            reach(coverage, dword(header, 16), limits.window_bytes, "data of an R2T");
        } else if kind == PduType::H2cData as u8 {
            seen.h2c_count += 1;
            seen.data_bytes.1 += u64::from(dword(header, 16));
            seen.end = end;
            reach(coverage, dword(header, 16), limits.h2c_data_bytes, "data of an H2CData");
            if seen.h2c_count > 1 {
                form(coverage, "a second H2CData in a window");
            }
            if is_last {
                (seen.h2c_count, seen.open_count) = (0, seen.open_count.saturating_sub(1));
            }
        } else if kind == PduType::C2hData as u8 {
            seen.c2h_count += 1;
            reach(coverage, dword(header, 16), limits.c2h_data_bytes, "data of a C2HData");
            if seen.c2h_count > 1 {
                form(coverage, "a second C2HData of a command");
            }
            if header[1] & 8 != 0 {
                form(coverage, "C2HData with SUCCESS");
                coverage.reach(Point::Status(seen.opcode, 0));
                self.commands.remove(&word(header, 8));
            }
        }
    }

    fn on_command(&mut self, header: &[u8], end: u64, coverage: &mut Coverage) {
        let (raw, flags, cid) = (header[8], SqeFlags::from_bits(header[9]), word(header, 10));
        let nsid = Nsid::new(dword(header, 12));
        let (cdw10, cdw12) = (dword(header, 48), dword(header, 56));
        let has_data = dword(header, 4) as usize > header.len() + 8;
        let opcode = if raw == AdminOpcode::FABRICS.raw() {
            Opcode::Fabrics(header[12])
        } else if self.is_io {
            Opcode::Nvm(raw)
        } else {
            Opcode::Admin(raw)
        };
        coverage.reach(Point::Command(opcode));
        let before_use =
            [FabricsType::CONNECT, FabricsType::AUTHENTICATION_SEND, FabricsType::AUTHENTICATION_RECEIVE];
        self.is_in_use |= !before_use.iter().any(|kind| opcode == Opcode::Fabrics(kind.raw()));
        if opcode == Opcode::Fabrics(FabricsType::CONNECT.raw()) {
            self.is_io = cdw10 >> 16 != 0;
            self.has_sent_connect = true;
            let qid = cdw10 >> 16;
            if qid > 0 && qid == self.limits.io_queue_count {
                coverage.reach(Point::Limit("I/O queues of a controller"));
            }
            if dword(header, 52) & 0xffff == self.limits.queue_entries - 1 {
                coverage.reach(Point::Limit("entries of a queue"));
            }
            // One less than the entries, all but one of which are in use at most.
            self.limits.command_count = dword(header, 52) & 0xffff;
        }
        let length = dword(header, CAPSULE_DATA_BYTES_AT);
        let asks = raw & 3 == FROM_HOST && !has_data;
        let data_bytes = if asks { u64::from(length) } else { 0 };
        let fabrics =
            if let Opcode::Fabrics(kind) = opcode { Some(FabricsType::from_raw(kind)) } else { None };
        let value = u64::from(cdw12) | u64::from(dword(header, 60)) << 32;
        let change = fabrics.map_or(Change::None, |kind| Change::of(kind, [cdw10, dword(header, 52)], value));
        self.is_shut_down |= change.ends_controller();
        self.stages.on_command(fabrics, coverage);
        let range_count = match opcode {
            Opcode::Nvm(raw) if raw == NvmOpcode::COPY.raw() => u64::from(cdw12 & 0xff) + 1,
            _ => u64::from(cdw10 & 0xff) + 1,
        };
        let requests = match opcode {
            Opcode::Nvm(raw) => Requests::of(raw, nsid, range_count, self.limits.parts_max),
            _ => Requests::default(),
        };
        self.requests.add(&requests);
        if matches!(change, Change::Configure(_)) {
            // A shutdown flushes every namespace.
            self.requests.add(&Requests::of(NvmOpcode::FLUSH.raw(), Nsid::ALL, 1, 1));
        }
        let seen = Seen {
            opcode,
            r2t_count: 0,
            open_count: 0,
            h2c_count: 0,
            c2h_count: 0,
            fuse: flags.fuse(),
            data_bytes: (data_bytes, 0),
            end,
            change,
            requests,
        };
        self.commands.insert(cid, seen);
        let mut limit = |is_reached: bool, name| {
            if is_reached {
                coverage.reach(Point::Limit(name));
            }
        };
        let limits = &self.limits;
        if opcode == Opcode::Admin(AdminOpcode::ABORT.raw()) {
            let count = self.abort_count();
            limit(count == limits.abort_count as usize, "Aborts of a controller at once");
            self.has_exceeded |= count > limits.abort_count as usize;
        }
        let Opcode::Nvm(_) = opcode else { return };
        limit(self.commands.len() == limits.command_count as usize, "commands of a queue");
        self.has_exceeded |= self.commands.len() > limits.command_count as usize;
        limit(has_data && length == limits.in_capsule_bytes, "in-capsule data");
        limit(raw & 3 != 0 && length == limits.transfer_bytes, "data of a command");
        let is_fua = cdw12 >> 30 & 1 != 0;
        let is_fused = flags.fuse() != Fuse::NONE;
        let mut form = |is_so: bool, form| {
            if is_so {
                coverage.reach(Point::Form(form));
            }
        };
        match NvmOpcode::from_raw(raw) {
            NvmOpcode::READ => form(is_fua, "Read with FUA"),
            NvmOpcode::WRITE if is_fused => {
                form(is_fua, "a pair with FUA");
                form(cdw12 & 0xffff > 0, "a pair of several blocks");
                form(has_data, "a pair with in-capsule data");
            }
            NvmOpcode::WRITE => {
                form(is_fua, "Write with FUA");
                form(has_data, "Write with in-capsule data");
                form(!has_data, "Write with R2T");
            }
            NvmOpcode::COMPARE => form(is_fua && !is_fused, "Compare with FUA"),
            NvmOpcode::VERIFY => form(is_fua, "Verify with FUA"),
            NvmOpcode::WRITE_ZEROES => {
                form(is_fua, "Write Zeroes with FUA");
                form(cdw12 >> 25 & 1 != 0, "Write Zeroes with DEAC");
            }
            NvmOpcode::FLUSH => form(nsid == Nsid::ALL, "Flush of all namespaces"),
            NvmOpcode::DATASET_MANAGEMENT => {
                form(dword(header, 52) & 4 == 0, "Dataset Management with hints");
                form(cdw10 & 0xff > 0, "Dataset Management of several ranges");
            }
            NvmOpcode::COPY => {
                form(is_fua, "Copy with FUA");
                form(cdw12 & 0xff > 0, "Copy of several ranges");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use wire::zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn headers_are_found_however_the_stream_is_cut() {
        let mut pdu = vec![PduType::CapsuleResp as u8, 0, 24, 0, 34, 0, 0, 0];
        pdu.resize(34, 7);
        let stream = [pdu.clone(), pdu.clone(), pdu].concat();
        for step in 1..stream.len() {
            let (mut watch, mut coverage) = (Watch::default(), Coverage::default());
            stream.chunks(step).for_each(|bytes| watch.on_sent(true, bytes, &mut coverage, |_| {}));
            assert_eq!(coverage.iter().collect::<Vec<_>>(), [(Point::Pdu(5), 3)], "{step}");
        }
        assert_eq!(Watch::default().last_header(&stream[..80]), Some(68));
        assert_eq!(Watch::default().last_header(&stream[..60]), Some(34));
        let mut coverage = Coverage::default();
        coverage.reach(Point::Form("x"));
        assert_eq!(coverage.missing("form: x\npdu: R2t\n"), ["pdu: R2t"]);
    }

    #[test]
    fn a_term_req_is_known_by_its_reason_however_the_stream_is_cut() {
        let fes = FatalErrorStatus::INVALID_HEADER_FIELD;
        let mut pdu = wire::pdu::TermReq::from_controller(fes, 0x0403_0208, 8).as_bytes().to_vec();
        pdu.extend([0; 8]);
        for step in 1..=pdu.len() {
            let (mut watch, mut coverage) = (Watch::default(), Coverage::default());
            pdu.chunks(step).for_each(|bytes| watch.on_sent(true, bytes, &mut coverage, |_| {}));
            assert_eq!(watch.term_req, Some((fes, 0x0403_0208)), "{step}");
        }
    }
}
