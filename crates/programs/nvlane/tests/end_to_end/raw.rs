//! A raw host whose steps must succeed: every step panics with what the target did wrong.

use std::net::{SocketAddr, TcpStream};

use peer::finding::Check;
use peer::link::{Got, Link, Window, plain_request};
use peer::pdu::{Draft, in_capsule};
use wire::admin::AbortResult;
use wire::cqe::Cqe;
use wire::id::{Nsid, Qid};
use wire::nqn::{HostId, Nqn};
use wire::nvm::{CopyCommand, CopyFormat, CopySource};
use wire::pdu::Digests;
use wire::sgl::Sgl;
use wire::sqe::Sqe;
use wire::status::Status;
use wire::uuid::Uuid;
use zerocopy::IntoBytes;

use crate::setup::{NQN, PATIENCE, Rig};

/// Entries of the I/O queue.
const IO_ENTRIES: u32 = 128;

/// One connected queue, answers in the order they arrive.
pub(crate) struct RawLane {
    link: Link,
    next_cid: u16,
}

/// A controller and one I/O queue of it.
pub(crate) struct RawHost {
    pub(crate) admin: RawLane,
    pub(crate) io: RawLane,
}

#[track_caller]
fn must<T>(step: Check<T>) -> T {
    step.unwrap_or_else(|finding| panic!("{finding}"))
}

/// Connects with a receive buffer of `buffer_bytes`, which bounds what the target can send unread.
fn connect_with_buffer(target: SocketAddr, buffer_bytes: usize) -> Link {
    use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};
    let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket(family, SocketType::STREAM, None).expect("a socket");
    sockopt::set_socket_recv_buffer_size(&socket, buffer_bytes).expect("an option of sockets");
    connect(&socket, &target).expect("the target listens");
    let mut link = must(Link::over(TcpStream::from(socket), PATIENCE));
    must(link.handshake(&plain_request()));
    link
}

impl RawLane {
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        must(self.link.send(bytes));
    }

    /// Sends a command with `data` in its capsule. Returns its identifier.
    pub(crate) fn command(&mut self, sqe: Sqe, data: &[u8]) -> u16 {
        self.next_cid += 1;
        let draft = Draft::command(self.link.form, sqe.with_cid(self.next_cid), data);
        self.send(&draft.seal());
        self.next_cid
    }

    /// Sends a command with its data in the capsule.
    pub(crate) fn write_in_capsule(&mut self, sqe: Sqe, data: &[u8]) -> u16 {
        self.next_cid += 1;
        let draft = in_capsule(self.link.form, sqe.with_cid(self.next_cid), data);
        self.send(&draft.seal());
        self.next_cid
    }

    /// Sends a Copy of one range.
    pub(crate) fn copy(&mut self, from: u64, blocks: u32, to: u64) -> u16 {
        let command = CopyCommand::new(to, CopyFormat::FORMAT_0, 1).to_sqe(Nsid::new(1));
        self.write_in_capsule(command, CopySource::new(Nsid::NONE, from, blocks).as_bytes())
    }

    /// Runs a command to its end, with its data in the capsule.
    pub(crate) fn run_in_capsule(&mut self, sqe: Sqe, data: &[u8]) -> Status {
        let cid = self.write_in_capsule(sqe, data);
        self.completion(cid).status()
    }

    /// Sends a command whose data travels in PDUs of its own.
    pub(crate) fn transport(&mut self, sqe: Sqe, length: u32) -> u16 {
        self.command(sqe.with_data(Sgl::transport(length)), &[])
    }

    /// Sends the data that an R2T asks for.
    pub(crate) fn data(&mut self, window: &Window, data: &[u8]) {
        assert_eq!(window.length as usize, data.len());
        let Window { cid, ttag, offset, .. } = *window;
        let draft = Draft::h2c_data(self.link.form, cid, ttag, offset, data, true);
        self.send(&draft.seal());
    }

    /// Receives `count` bytes as they are.
    pub(crate) fn receive(&mut self, count: usize) -> Vec<u8> {
        must(self.link.receive_bytes(count))
    }

    /// The next PDU.
    pub(crate) fn next(&mut self) -> Got {
        must(self.link.receive())
    }

    /// The completion of this command, which comes next.
    pub(crate) fn completion(&mut self, cid: u16) -> Cqe {
        match self.next() {
            Got::Completion(cqe) if cqe.cid.get() == cid => cqe,
            other => panic!("instead of the completion of {cid}: {other}"),
        }
    }

    /// The R2T for this command, which comes next.
    pub(crate) fn r2t(&mut self, cid: u16) -> Window {
        match self.next() {
            Got::R2t(window) if window.cid == cid => window,
            other => panic!("instead of an R2T for {cid}: {other}"),
        }
    }

    /// Ends `count` commands, in any order, whose R2Ts ask for `length` bytes each: copies of the low byte of the
    /// command's identifier.
    pub(crate) fn finish(&mut self, count: usize, length: usize) {
        let mut ended = Vec::new();
        while ended.len() < count {
            match self.next() {
                Got::R2t(r2t) => self.data(&r2t, &vec![r2t.cid as u8; length]),
                Got::Completion(cqe) => {
                    assert_eq!(cqe.status(), Status::SUCCESS);
                    ended.push(cqe.cid.get());
                }
                other => panic!("after {ended:?}: {other:?}"),
            }
        }
    }

    /// Runs a command to its end, with `data` in its capsule.
    pub(crate) fn run(&mut self, sqe: Sqe, data: &[u8]) -> Status {
        let cid = self.command(sqe, data);
        self.completion(cid).status()
    }

    /// Reads `length` bytes.
    pub(crate) fn read(&mut self, sqe: Sqe, length: u32) -> Vec<u8> {
        let cid = self.transport(sqe, length);
        let mut read = Vec::new();
        loop {
            match self.next() {
                Got::Data { cid: of, offset, data, .. } if of == cid && offset as usize == read.len() => {
                    read.extend(data);
                }
                Got::Completion(cqe) if cqe.cid.get() == cid => {
                    assert_eq!(cqe.status(), Status::SUCCESS);
                    assert_eq!(read.len(), length as usize);
                    return read;
                }
                other => panic!("instead of read data: {other}"),
            }
        }
    }

    /// Receives until the target closes.
    pub(crate) fn await_close(&mut self) {
        while self.next() != Got::Closed {}
    }
}

impl RawHost {
    /// Connects, without keep-alive.
    pub(crate) fn new(rig: &Rig) -> Self {
        Self::with_keep_alive(rig, 0)
    }

    pub(crate) fn with_keep_alive(rig: &Rig, kato_ms: u32) -> Self {
        let host = Self::dialler(rig);
        let link = must(host.link(Digests::empty()));
        Self::with(&host, kato_ms, link)
    }

    /// Connects with an I/O queue whose socket has a receive buffer of `bytes`.
    pub(crate) fn with_receive_buffer(rig: &Rig, bytes: usize) -> Self {
        Self::with(&Self::dialler(rig), 0, connect_with_buffer(rig.socket_address(), bytes))
    }

    pub(crate) fn dialler(rig: &Rig) -> peer::raw_host::RawHost {
        let uuid = Uuid::from_bytes([0xaa; 16]);
        peer::raw_host::RawHost {
            address: rig.socket_address(),
            subsystem: NQN.parse().expect("a good name"),
            nqn: Nqn::from_uuid(uuid),
            hostid: HostId::from(uuid),
            patience: PATIENCE,
        }
    }

    fn with(host: &peer::raw_host::RawHost, kato_ms: u32, io: Link) -> Self {
        let (admin, cntlid) = must(host.admin_with(Digests::empty(), kato_ms));
        let io = must(host.connect_io_over(io, cntlid, 1, IO_ENTRIES));
        let [admin, io] = [admin, io].map(|queue| RawLane { link: queue.link, next_cid: 0 });
        Self { admin, io }
    }

    /// Sends an Abort for an I/O command. Returns whether the controller aborted it.
    pub(crate) fn abort(&mut self, cid: u16) -> bool {
        self.abort_on(1, cid)
    }

    pub(crate) fn abort_on(&mut self, qid: u16, cid: u16) -> bool {
        let abort = self.admin.command(Sqe::abort(Qid::new(qid), cid), &[]);
        let cqe = self.admin.completion(abort);
        assert_eq!(cqe.status(), Status::SUCCESS);
        !AbortResult::from_bits(cqe.dw0()).not_aborted()
    }
}
