//! A host that may say anything: every byte of a command is the test's.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use wire::U16;
use wire::admin::AbortResult;
use wire::cqe::Cqe;
use wire::fabrics::{ConnectAttributes, ConnectCommand, ConnectData};
use wire::id::{Cntlid, Qid};
use wire::nqn::{HostId, Nqn};
use wire::pdu::{
    CapsuleCmd, CapsuleResp, CommonHeader, DataAlignment, DataPdu, Digests, IcReq, PduLayout, PduType, R2t,
};
use wire::property::{Cc, CommandSetSelection, Property};
use wire::sgl::Sgl;
use wire::sqe::Sqe;
use wire::status::Status;
use wire::uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

use crate::setup::{NQN, PATIENCE, Rig};

/// What a target says.
#[derive(Debug)]
pub(crate) enum Said {
    Completion(Cqe),
    R2t(R2t),
    Data { cid: u16, offset: u32, bytes: Vec<u8> },
    TermReq,
    Closed,
}

/// One connection.
pub(crate) struct RawLane {
    stream: TcpStream,
    next_cid: u16,
}

/// A controller, and one I/O queue of it.
pub(crate) struct RawHost {
    pub(crate) admin: RawLane,
    pub(crate) io: RawLane,
}

/// Connects with a receive buffer of so many bytes, which bounds what the target can send unread.
fn connect_with_buffer(peer: SocketAddr, buffer_bytes: usize) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};
    let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket(family, SocketType::STREAM, None).expect("a socket");
    sockopt::set_socket_recv_buffer_size(&socket, buffer_bytes).expect("an option of sockets");
    connect(&socket, &peer).expect("the target listens");
    socket.into()
}

impl RawLane {
    fn new(rig: &Rig) -> Self {
        Self::over(TcpStream::connect(rig.socket_address()).expect("the target listens"))
    }

    fn over(stream: TcpStream) -> Self {
        stream.set_nodelay(true).expect("an option of TCP");
        stream.set_write_timeout(Some(PATIENCE)).expect("an option of TCP");
        stream.set_read_timeout(Some(PATIENCE)).expect("an option of TCP");
        let mut lane = Self { stream, next_cid: 0 };
        lane.send(IcReq::new(DataAlignment::NONE, Digests::empty(), 1).as_bytes());
        let mut answer = [0; 128];
        lane.stream.read_exact(&mut answer).expect("an ICResp");
        lane
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("a connection");
    }

    /// Sends a command with these bytes in its capsule. Gives its id.
    pub(crate) fn command(&mut self, sqe: Sqe, in_capsule: &[u8]) -> u16 {
        self.next_cid += 1;
        let cid = self.next_cid;
        let layout = match u32::try_from(in_capsule.len()).expect("a capsule") {
            0 => PduLayout::without_data(PduType::CapsuleCmd, Digests::empty()),
            length => PduLayout::new(PduType::CapsuleCmd, Digests::empty(), DataAlignment::NONE, length)
                .expect("a capsule"),
        };
        let capsule = CapsuleCmd::new(&layout, sqe.with_cid(cid));
        self.send(&[capsule.as_bytes(), in_capsule].concat());
        cid
    }

    /// Sends a command with its data in the capsule.
    pub(crate) fn write_in_capsule(&mut self, sqe: Sqe, data: &[u8]) -> u16 {
        let length = u32::try_from(data.len()).expect("a capsule");
        self.command(sqe.with_data(Sgl::in_capsule(length)), data)
    }

    /// Sends a command whose data moves in PDUs of its own.
    pub(crate) fn transport(&mut self, sqe: Sqe, length: u32) -> u16 {
        self.command(sqe.with_data(Sgl::transport(length)), &[])
    }

    /// Answers an R2T.
    pub(crate) fn data(&mut self, r2t: &R2t, data: &[u8]) {
        assert_eq!(r2t.length.get() as usize, data.len());
        let length = r2t.length.get();
        let layout = PduLayout::new(PduType::H2cData, Digests::empty(), DataAlignment::NONE, length);
        let pdu = DataPdu::h2c(&layout.expect("data"), r2t.cid, r2t.ttag, r2t.offset.get(), true);
        self.send(&[pdu.as_bytes(), data].concat());
    }

    /// Receives so many bytes, of whatever PDUs.
    pub(crate) fn receive(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).expect("a connection");
        bytes
    }

    /// What comes next.
    pub(crate) fn next(&mut self) -> Said {
        let mut common = [0; size_of::<CommonHeader>()];
        if self.stream.read_exact(&mut common).is_err() {
            return Said::Closed;
        }
        let header = CommonHeader::read_from_bytes(&common).expect("8 bytes");
        let mut pdu = common.to_vec();
        pdu.resize(header.plen.get() as usize, 0);
        if self.stream.read_exact(&mut pdu[8..]).is_err() {
            return Said::Closed;
        }
        match header.pdu_type() {
            Ok(PduType::CapsuleResp) => {
                Said::Completion(CapsuleResp::read_from_prefix(&pdu).expect("a response").0.cqe)
            }
            Ok(PduType::R2t) => Said::R2t(R2t::read_from_prefix(&pdu).expect("an R2T").0),
            Ok(PduType::C2hData) => {
                let data = DataPdu::read_from_prefix(&pdu).expect("a data PDU").0;
                let bytes = pdu[header.pdo.into()..][..data.length.get() as usize].to_vec();
                Said::Data { cid: data.cid.get(), offset: data.offset.get(), bytes }
            }
            Ok(PduType::C2hTermReq) => Said::TermReq,
            other => panic!("a target says {other:?}"),
        }
    }

    /// The end of this command, which comes next.
    pub(crate) fn completion(&mut self, cid: u16) -> Cqe {
        match self.next() {
            Said::Completion(cqe) if cqe.cid.get() == cid => cqe,
            other => panic!("instead of the end of {cid}: {other:?}"),
        }
    }

    /// The R2T for this command, which comes next.
    pub(crate) fn r2t(&mut self, cid: u16) -> R2t {
        match self.next() {
            Said::R2t(r2t) if r2t.cid == U16::new(cid) => r2t,
            other => panic!("instead of an R2T for {cid}: {other:?}"),
        }
    }

    /// Runs a command to its end, with data in its capsule or none.
    pub(crate) fn run(&mut self, sqe: Sqe, in_capsule: &[u8]) -> Status {
        let cid = self.command(sqe, in_capsule);
        self.completion(cid).status()
    }

    /// Reads with the connection as it is.
    pub(crate) fn read(&mut self, sqe: Sqe, length: u32) -> Vec<u8> {
        let cid = self.transport(sqe, length);
        let mut read = Vec::new();
        loop {
            match self.next() {
                Said::Data { cid: of, offset, bytes } if of == cid && offset as usize == read.len() => {
                    read.extend(bytes);
                }
                Said::Completion(cqe) if cqe.cid.get() == cid => {
                    assert_eq!(cqe.status(), Status::SUCCESS);
                    assert_eq!(read.len(), length as usize);
                    return read;
                }
                other => panic!("instead of a read: {other:?}"),
            }
        }
    }

    /// What comes after everything is over.
    pub(crate) fn await_close(&mut self) {
        while !matches!(self.next(), Said::Closed) {}
    }
}

impl RawHost {
    /// Connects, without keep-alive.
    pub(crate) fn new(rig: &Rig) -> Self {
        Self::with_keep_alive(rig, 0)
    }

    pub(crate) fn with_keep_alive(rig: &Rig, kato_ms: u32) -> Self {
        Self::with(rig, kato_ms, RawLane::new(rig))
    }

    /// Connects with an I/O queue whose socket has a receive buffer of so many bytes.
    pub(crate) fn with_receive_buffer(rig: &Rig, bytes: usize) -> Self {
        Self::with(rig, 0, RawLane::over(connect_with_buffer(rig.socket_address(), bytes)))
    }

    fn with(rig: &Rig, kato_ms: u32, mut io: RawLane) -> Self {
        let uuid = Uuid::from_bytes([0xaa; 16]);
        let connect = |lane: &mut RawLane, qid: u16, cntlid: Cntlid, kato_ms| {
            let attributes = ConnectAttributes::default();
            let queue_entries = if qid == 0 { 32 } else { 128 };
            let command =
                ConnectCommand { recfmt: 0, qid: Qid::new(qid), queue_entries, attributes, kato_ms };
            let subsystem: Nqn = NQN.parse().expect("a good name");
            let data = ConnectData::new(HostId::from(uuid), cntlid, &subsystem, &Nqn::from_uuid(uuid));
            let cid = lane.command(command.to_sqe(), data.as_bytes());
            let cqe = lane.completion(cid);
            assert_eq!(cqe.status(), Status::SUCCESS);
            Cntlid::new((cqe.dw0() & 0xffff) as u16)
        };
        let mut admin = RawLane::new(rig);
        let cntlid = connect(&mut admin, 0, Cntlid::DYNAMIC, kato_ms);
        let cc = Cc::new(CommandSetSelection::NVM).with_en(true);
        let enable = Sqe::property_set(Property::CC, cc.bits().into());
        assert_eq!(admin.run(enable, &[]), Status::SUCCESS);
        connect(&mut io, 1, cntlid, 0);
        Self { admin, io }
    }

    /// Asks for an I/O command to be aborted; says whether it was.
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
