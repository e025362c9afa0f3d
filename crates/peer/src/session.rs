//! One connection of a host to the fake target, and the default behaviour of that target: one controller with one
//! namespace in memory. A reaction may replace the default for any event.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use wire::cqe::Cqe;
use wire::digest::{DIGEST_BYTES, data_digest, header_digest};
use wire::fabrics::{ConnectCommand, ConnectData, ConnectResult, PropertyGet, PropertySet};
use wire::feature::Fid;
use wire::id::{Cntlid, Csi, Nsid};
use wire::identify::controller::IdentifyController;
use wire::identify::descriptors::{NamespaceDescriptor, write_namespace_descriptors};
use wire::identify::lists::write_nsid_list;
use wire::identify::namespace::{IdentifyNamespace, LbaFormat};
use wire::identify::{Cns, IDENTIFY_BYTES, IdentifyCommand};
use wire::log::{GetLogPage, Lid};
use wire::nvm::BlockCommand;
use wire::opcode::{AdminOpcode, FabricsType, NvmOpcode};
use wire::pdu::{
    CapsuleCmd, CommonHeader, DataAlignment, DataPdu, Digests, IcReq, IcResp, PduFlags, PduType, TermReq,
};
use wire::property::{Cap, Property, Vs};
use wire::sgl::DataPointer;
use wire::sqe::Sqe;
use wire::status::Status;
use wire::uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

use crate::finding::{Check, Finding, differs, holds};
use crate::link::Term;
use crate::pdu::{Draft, Form};
use crate::stage::{BLOCK_BYTES, BLOCK_COUNT, Stage};

/// MAXH2CDATA, bytes.
const H2C_DATA_BYTES_MAX: u32 = 128 << 10;

/// In-capsule data size of I/O commands, bytes.
pub const IN_CAPSULE_BYTES: u32 = 8192;

/// Time limit for the rest of a PDU that has begun.
const PATIENCE: Duration = Duration::from_secs(20);

/// Length of the discovery log, bytes.
const LOG_BYTES: usize = 2048;

/// A PDU from the host, or the end of the connection.
#[derive(Clone, Debug)]
pub enum Event {
    /// An ICReq.
    IcReq(Box<IcReq>),
    /// A command capsule.
    Command {
        /// The command.
        sqe: Sqe,
        /// In-capsule data.
        data: Vec<u8>,
    },
    /// An H2CData PDU.
    Data {
        /// Its header.
        header: Box<DataPdu>,
        /// The data.
        data: Vec<u8>,
    },
    /// An H2CTermReq.
    TermReq {
        /// Fatal error status.
        fes: u16,
        /// Fatal error information.
        fei: u32,
    },
    /// The host closed the connection.
    Closed,
}

/// What the session does after a reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The default for this event.
    AsUsual,
    /// Nothing: the reaction replaced the default.
    GoOn,
    /// Close the connection.
    End,
}

/// One connection of a host.
#[derive(Debug)]
pub struct Session<'a> {
    stream: TcpStream,
    /// Layout of PDUs in both directions.
    pub form: Form,
    /// State shared by all sessions of the target.
    pub stage: &'a Stage,
    /// Queue identifier, once Connect has succeeded.
    pub qid: Option<u16>,
    is_discovery: bool,
    cc: u32,
    /// Events that arrived while H2CData was awaited.
    early: VecDeque<Event>,
}

impl<'a> Session<'a> {
    /// A session over a connection that nothing was received on.
    #[must_use]
    pub fn new(stream: TcpStream, stage: &'a Stage) -> Self {
        let _ = stream.set_nodelay(true);
        Self {
            stream,
            form: Form::PLAIN,
            stage,
            qid: None,
            is_discovery: false,
            cc: 0,
            early: VecDeque::new(),
        }
    }

    /// Serves the connection to its end. `react` sees each event first.
    ///
    /// # Errors
    /// The host violates the protocol, or as `react` finds.
    pub fn serve(&mut self, react: &dyn Fn(&mut Self, &Event) -> Check<Then>) -> Check {
        loop {
            let event = self.receive()?;
            if matches!(event, Event::Closed | Event::TermReq { .. }) {
                return Ok(());
            }
            let then = match react(self, &event)? {
                Then::AsUsual => self.as_usual(&event)?,
                then => then,
            };
            if then == Then::End {
                let _ = self.stream.shutdown(Shutdown::Both);
                return Ok(());
            }
        }
    }

    /// Sends bytes. That the host has closed shows with the next event.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    fn fill(&mut self, bytes: &mut [u8], until: Instant) -> Check<Option<()>> {
        let mut have = 0;
        while have < bytes.len() {
            if self.stage.is_over() {
                return Ok(None);
            }
            if Instant::now() > until && have > 0 {
                return Err(Finding::Hangs("it stops within a PDU".into()));
            }
            let _ = self.stream.set_read_timeout(Some(Duration::from_millis(50)));
            match self.stream.read(&mut bytes[have..]) {
                Ok(0) => return Ok(None),
                Ok(count) => have += count,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    _ => return Ok(None),
                },
            }
        }
        Ok(Some(()))
    }

    /// The next event. Every PDU is checked.
    ///
    /// # Errors
    /// The PDU is malformed, or not one that a host sends.
    pub fn receive(&mut self) -> Check<Event> {
        match self.early.pop_front() {
            Some(event) => Ok(event),
            None => self.receive_pdu(),
        }
    }

    fn receive_pdu(&mut self) -> Check<Event> {
        let mut common = [0; 8];
        let until = Instant::now() + PATIENCE;
        if self.fill(&mut common, until)?.is_none() {
            return Ok(Event::Closed);
        }
        let header: CommonHeader = zerocopy::transmute!(common);
        let Some(kind) = header.pdu_type().ok().filter(|kind| kind.is_from_host()) else {
            return differs(format!("the host sends a PDU of type {:#04x}", common[0]));
        };
        let (hlen, plen) = (kind.header_length(), header.plen.get());
        let is_right = header.hlen == hlen && (u32::from(hlen)..=2 << 20).contains(&plen);
        holds(is_right, format!("the host's {kind:?} has HLEN {} and PLEN {plen}", header.hlen))?;
        let mut bytes = vec![0; plen as usize];
        bytes[..8].copy_from_slice(&common);
        if self.fill(&mut bytes[8..], until)?.is_none() {
            return Ok(Event::Closed);
        }
        self.stage.count_pdu();
        self.read(kind, header, &bytes)
    }

    fn read(&self, kind: PduType, header: CommonHeader, bytes: &[u8]) -> Check<Event> {
        let hlen = usize::from(kind.header_length());
        if kind.may_carry_header_digest() && self.form.digests.contains(Digests::HEADER) {
            let digest = header_digest(&bytes[..hlen]).to_le_bytes();
            holds(
                bytes.get(hlen..hlen + DIGEST_BYTES) == Some(&digest[..]),
                "the host's header digest is wrong",
            )?;
        }
        let has_data = kind.may_carry_data() && header.pdo != 0;
        let mut data = Vec::new();
        if has_data {
            let trailer = if self.form.digests.contains(Digests::DATA) { DIGEST_BYTES } else { 0 };
            let end = bytes.len() - trailer;
            data = bytes.get(header.pdo.into()..end).unwrap_or_default().to_vec();
            let digest = data_digest(&data).to_le_bytes();
            holds(trailer == 0 || bytes[end..] == digest, "the host's data digest is wrong")?;
        }
        Ok(match kind {
            PduType::IcReq => Event::IcReq(Box::new(IcReq::read_from_bytes(bytes).expect("128 bytes"))),
            PduType::CapsuleCmd => {
                let (capsule, _) = CapsuleCmd::read_from_prefix(bytes).expect("72 bytes");
                Event::Command { sqe: capsule.sqe, data }
            }
            PduType::H2cData => {
                let (header, _) = DataPdu::read_from_prefix(bytes).expect("24 bytes");
                Event::Data { header: Box::new(header), data }
            }
            _ => {
                let (header, _) = TermReq::read_from_prefix(bytes).expect("24 bytes");
                Event::TermReq { fes: header.fes.get(), fei: header.fei.get() }
            }
        })
    }

    /// Expects one of these TermReqs. Commands and data that were in flight may precede it.
    ///
    /// # Errors
    /// The host does something else.
    pub fn expect_term_req(&mut self, rights: &[Term]) -> Check<Then> {
        for _ in 0..1000 {
            match self.receive()? {
                Event::TermReq { fes, fei } => {
                    let is_right =
                        |right: &Term| right.fes.raw() == fes && right.fei.is_none_or(|wanted| wanted == fei);
                    holds(
                        rights.iter().any(is_right),
                        format!("the host's TermReq is {fes:#04x} with {fei:#x}, not {rights:?}"),
                    )?;
                    return Ok(Then::End);
                }
                Event::Closed => return differs("the host closes without a TermReq"),
                Event::Command { .. } | Event::Data { .. } | Event::IcReq(_) => {}
            }
        }
        differs("the host goes on as if nothing were wrong")
    }

    /// Expects the host to close without a TermReq.
    ///
    /// # Errors
    /// The host does something else.
    pub fn expect_closed(&mut self) -> Check<Then> {
        for _ in 0..1000 {
            match self.receive()? {
                Event::TermReq { fes, .. } => {
                    return differs(format!("a TermReq {fes:#04x} in answer to one"));
                }
                Event::Closed => return Ok(Then::End),
                _ => {}
            }
        }
        differs("the host goes on as if nothing were wrong")
    }

    /// Completes a command.
    pub fn complete(&mut self, sqe: &Sqe, status: Status, result: u64) {
        let bytes = Draft::completion(self.form, Cqe::new(sqe.cid, 0, status).with_result(result)).seal();
        self.send(&bytes);
    }

    /// Sends the data of a read as one C2HData PDU.
    pub fn send_data(&mut self, sqe: &Sqe, data: &[u8]) {
        let bytes = Draft::c2h_data(self.form, sqe.cid.get(), 0, data, PduFlags::LAST).seal();
        self.send(&bytes);
    }

    /// The default behaviour.
    fn as_usual(&mut self, event: &Event) -> Check<Then> {
        match event {
            Event::IcReq(request) => {
                let response = IcResp::new(DataAlignment::NONE, request.dgst, H2C_DATA_BYTES_MAX);
                self.shake(response);
            }
            Event::Command { sqe, data } if sqe.opcode == AdminOpcode::FABRICS.raw() => {
                self.fabrics(sqe, data)?;
            }
            Event::Command { sqe, data } if self.qid == Some(0) => self.admin(sqe, data),
            Event::Command { sqe, data } => return self.io(sqe, data),
            // Data in flight for a command that has completed.
            Event::Data { .. } | Event::TermReq { .. } | Event::Closed => {}
        }
        Ok(Then::GoOn)
    }

    /// Answers the handshake with `response`.
    pub fn shake(&mut self, response: IcResp) {
        self.send(response.as_bytes());
        self.form = Form { digests: response.dgst, alignment: DataAlignment::NONE };
    }

    fn fabrics(&mut self, sqe: &Sqe, data: &[u8]) -> Check {
        match sqe.fctype() {
            FabricsType::CONNECT => {
                let command = ConnectCommand::from_sqe(sqe);
                let Ok(data) = ConnectData::read_from_bytes(data) else {
                    return differs("Connect without its data");
                };
                self.is_discovery = data.subsystem().is_ok_and(|nqn| nqn.is_discovery());
                self.qid = Some(command.qid.get());
                let result = ConnectResult::default().with_cntlid(self.stage.cntlid());
                self.complete(sqe, Status::SUCCESS, result.bits().into());
            }
            FabricsType::PROPERTY_GET => {
                let value = match PropertyGet::from_sqe(sqe).property {
                    Property::CAP => Cap::default()
                        .with_queue_entries_max(128)
                        .with_ready_timeout_ms(5000)
                        .with_css_nvm(true)
                        .bits(),
                    Property::VS => Vs::V1_4.bits().into(),
                    Property::CC => self.cc.into(),
                    Property::CSTS => {
                        let is_down = self.cc >> 14 & 3 != 0;
                        u64::from(self.cc & 1) | if is_down { 8 } else { 0 }
                    }
                    _ => {
                        self.complete(sqe, Status::INVALID_FIELD.with_dnr(), 0);
                        return Ok(());
                    }
                };
                self.complete(sqe, Status::SUCCESS, value);
            }
            FabricsType::PROPERTY_SET => {
                let set = PropertySet::from_sqe(sqe);
                if set.property == Property::CC {
                    self.cc = u32::try_from(set.value & 0xFFFF_FFFF).expect("masked");
                }
                self.complete(sqe, Status::SUCCESS, 0);
            }
            _ => self.complete(sqe, Status::INVALID_OPCODE.with_dnr(), 0),
        }
        Ok(())
    }

    fn admin(&mut self, sqe: &Sqe, _: &[u8]) {
        match AdminOpcode::from_raw(sqe.opcode) {
            AdminOpcode::IDENTIFY => match self.identify(sqe) {
                Some(page) => {
                    self.send_data(sqe, &page);
                    self.complete(sqe, Status::SUCCESS, 0);
                }
                None => self.complete(sqe, Status::INVALID_FIELD.with_dnr(), 0),
            },
            AdminOpcode::GET_LOG_PAGE => {
                let page = GetLogPage::from_sqe(sqe);
                let log = match page.lid {
                    Lid::DISCOVERY => discovery_log(self.stage),
                    _ => vec![0; 8192],
                };
                let length = usize::try_from(page.length_bytes).unwrap_or(usize::MAX).min(64 << 10);
                let start = usize::try_from(page.offset).unwrap_or(usize::MAX).min(log.len());
                let mut part = log[start..].to_vec();
                part.resize(length, 0);
                self.send_data(sqe, &part);
                self.complete(sqe, Status::SUCCESS, 0);
            }
            AdminOpcode::SET_FEATURES => {
                let is_queues = sqe.cdw10.get() & 0xFF == u32::from(Fid::NUMBER_OF_QUEUES.raw());
                self.complete(sqe, Status::SUCCESS, if is_queues { 0x0003_0003 } else { 0 });
            }
            AdminOpcode::ASYNC_EVENT_REQUEST => {}
            AdminOpcode::KEEP_ALIVE => self.complete(sqe, Status::SUCCESS, 0),
            AdminOpcode::ABORT => self.complete(sqe, Status::SUCCESS, 1),
            AdminOpcode::GET_FEATURES => self.complete(sqe, Status::SUCCESS, 0),
            _ => self.complete(sqe, Status::INVALID_OPCODE.with_dnr(), 0),
        }
    }

    /// A page of Identify; `None` if this controller does not have it.
    #[must_use]
    pub fn identify(&self, sqe: &Sqe) -> Option<Vec<u8>> {
        let command = IdentifyCommand::from_sqe(sqe);
        let mut page = vec![0; IDENTIFY_BYTES as usize];
        match command.cns {
            Cns::CONTROLLER => page = self.controller().as_bytes().to_vec(),
            Cns::ACTIVE_NAMESPACES => {
                write_nsid_list(&mut page, sqe.nsid(), [Nsid::new(1)]);
            }
            Cns::NAMESPACE if sqe.nsid() == Nsid::new(1) => page = namespace().as_bytes().to_vec(),
            Cns::NAMESPACE => {}
            Cns::NAMESPACE_DESCRIPTORS if sqe.nsid() == Nsid::new(1) => {
                let uuid = NamespaceDescriptor::Uuid(Uuid::from_bytes([7; 16]));
                let csi = NamespaceDescriptor::Csi(Csi::NVM);
                let _ = write_namespace_descriptors(&mut page, &[uuid, csi]);
            }
            _ => return None,
        }
        Some(page)
    }

    /// The default Identify Controller data.
    #[must_use]
    pub fn controller(&self) -> IdentifyController {
        use wire::identify::capabilities::{ControllerType, Lpa, Vwc};
        let mut controller = IdentifyController::fabrics();
        let _ = controller.set_serial("FAKE");
        let _ = controller.set_model("fake target");
        let _ = controller.set_firmware("1");
        controller.set_cntlid(Cntlid::new(self.stage.cntlid()));
        controller.set_version(Vs::V1_4);
        controller.cntrltype = if self.is_discovery { ControllerType::DISCOVERY } else { ControllerType::IO };
        controller.set_in_capsule_bytes(IN_CAPSULE_BYTES);
        controller.set_keep_alive_granularity_ms(100);
        controller.set_transfer_limit_bytes(Some(1 << 20), 4096);
        controller.maxcmd.set(128);
        controller.nn.set(1);
        controller.mnan.set(1);
        controller.lpa = Lpa::EXTENDED_DATA;
        controller.vwc = Vwc::default().with_present(true);
        controller.set_oaes(wire::async_event::AsyncEvents::NAMESPACE_ATTRIBUTE);
        controller.set_subsystem(&self.stage.subsystem);
        controller
    }

    fn io(&mut self, sqe: &Sqe, data: &[u8]) -> Check<Then> {
        let command = BlockCommand::from_sqe(sqe);
        let end = command.end().filter(|end| *end <= BLOCK_COUNT);
        let opcode = NvmOpcode::from_raw(sqe.opcode);
        if !matches!(opcode, NvmOpcode::READ | NvmOpcode::WRITE) {
            let is_flush = opcode == NvmOpcode::FLUSH;
            let status = if is_flush { Status::SUCCESS } else { Status::INVALID_OPCODE.with_dnr() };
            self.complete(sqe, status, 0);
            return Ok(Then::GoOn);
        }
        if end.is_none() {
            self.complete(sqe, Status::LBA_OUT_OF_RANGE.with_dnr(), 0);
            return Ok(Then::GoOn);
        }
        let start = usize::try_from(command.slba * u64::from(BLOCK_BYTES)).expect("in the namespace");
        let length = command.blocks * BLOCK_BYTES;
        if opcode == NvmOpcode::READ {
            let data = self.stage.read(start, length as usize);
            self.send_data(sqe, &data);
            self.complete(sqe, Status::SUCCESS, 0);
            return Ok(Then::GoOn);
        }
        let data = match sqe.dptr.classify() {
            DataPointer::InCapsule { .. } => data.to_vec(),
            _ => match self.ask(sqe, 0, length)? {
                Some(data) => data,
                None => return Ok(Then::End),
            },
        };
        holds(data.len() == length as usize, "the host sends another length than it writes")?;
        self.stage.write(start, &data);
        self.complete(sqe, Status::SUCCESS, 0);
        Ok(Then::GoOn)
    }

    /// Sends an R2T and waits for all of its data; `None` if the host closes.
    ///
    /// # Errors
    /// The H2CData PDUs do not match the R2T.
    pub fn ask(&mut self, sqe: &Sqe, offset: u32, length: u32) -> Check<Option<Vec<u8>>> {
        const TAG: u16 = 0x7A67;
        let bytes = Draft::r2t(self.form, sqe.cid.get(), TAG, offset, length).seal();
        self.send(&bytes);
        let mut all = Vec::new();
        let mut others = VecDeque::new();
        while all.len() < length as usize {
            match self.receive()? {
                Event::Data { header, data } => {
                    holds(
                        header.cid == sqe.cid && header.ttag.get() == TAG,
                        "H2CData for another command or tag",
                    )?;
                    let at = header.offset.get() as usize;
                    holds(at == offset as usize + all.len(), "H2CData at another offset than the next")?;
                    holds(header.length.get() as usize == data.len(), "DATAL does not fit PLEN")?;
                    all.extend_from_slice(&data);
                    let is_last = header.common.flags.contains(PduFlags::LAST);
                    holds(is_last == (all.len() >= length as usize), "LAST is not on the last H2CData")?;
                }
                Event::Closed | Event::TermReq { .. } => return Ok(None),
                other => others.push_back(other),
            }
        }
        self.early.append(&mut others);
        Ok(Some(all))
    }
}

/// The default Identify Namespace data.
#[must_use]
pub fn namespace() -> IdentifyNamespace {
    let mut namespace = IdentifyNamespace::default();
    for field in [&mut namespace.nsze, &mut namespace.ncap, &mut namespace.nuse] {
        field.set(BLOCK_COUNT);
    }
    namespace.set_format_count(1);
    namespace.lbaf[0] = LbaFormat::new(BLOCK_BYTES).expect("a power of two");
    namespace
}

/// The default discovery log: one entry, the subsystem.
#[must_use]
pub fn discovery_log(stage: &Stage) -> Vec<u8> {
    use wire::discovery::{DiscoveryEntry, DiscoveryHeader};
    let entry = DiscoveryEntry::tcp(stage.address.ip(), stage.address.port(), &stage.subsystem);
    let mut log = [DiscoveryHeader::new(1, 1).as_bytes(), entry.as_bytes()].concat();
    log.resize(LOG_BYTES, 0);
    log
}
