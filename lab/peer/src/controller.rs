//! The answers of a well-behaved controller with block namespaces in memory.

use wire::fabrics::{ConnectCommand, ConnectData, ConnectResult, InvalidParameter, PropertyGet, PropertySet};
use wire::feature::{Fid, GetFeatures, NumberOfQueues, SetFeatures};
use wire::id::{Cntlid, Csi, Nsid};
use wire::identify::capabilities::ControllerType;
use wire::identify::controller::IdentifyController;
use wire::identify::descriptors::{NamespaceDescriptor, write_namespace_descriptors};
use wire::identify::lists::write_nsid_list;
use wire::identify::{Cns, IDENTIFY_BYTES, IdentifyCommand};
use wire::log::GetLogPage;
use wire::nvm::{BlockCommand, CopyCommand, DatasetManagement};
use wire::opcode::{AdminOpcode, FabricsType, NvmOpcode};
use wire::property::Property;
use wire::sgl::DataPointer;
use wire::sqe::{Fuse, Sqe};
use wire::status::Status;
use wire::uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

use crate::finding::{Check, differs};
use crate::stage::{Stage, StageState};
use crate::target_end::{Event, Reply, TargetEnd};

/// A controller as one of its queues sees it.
#[derive(Debug, Default)]
pub struct Controller {
    /// Queue identifier, once Connect has succeeded.
    pub qid: Option<u16>,
    /// Controller identifier, once Connect has succeeded.
    pub cntlid: u16,
    /// Entries of the queue.
    pub entries: u32,
    is_discovery: bool,
    cc: u32,
    /// A Compare that waits for its fused Write.
    fused: Option<(Sqe, Vec<u8>)>,
}

/// The length of the data that a command's R2T asks for, if it needs one.
pub fn wanted(sqe: &Sqe) -> Option<u32> {
    match sqe.dptr.classify() {
        DataPointer::Transport { length } if length > 0 && sqe.opcode & 3 == 1 => Some(length),
        _ => None,
    }
}

impl Controller {
    /// Answers an event over `end` as a well-behaved target does; nothing follows an Asynchronous Event Request.
    ///
    /// # Errors
    /// The event is not one that a host may cause.
    pub fn serve(&mut self, stage: &Stage, end: &mut TargetEnd, event: &Event) -> Check {
        match event {
            Event::IcReq(request) => end.agree(request),
            Event::Command { sqe, data } => match wanted(sqe) {
                Some(length) => end.ask(sqe, 0, length),
                None => self.answer(stage, end, sqe, data)?,
            },
            Event::Asked { sqe, data } => self.answer(stage, end, sqe, data)?,
            // Data in flight for a command that has completed.
            Event::Data { .. } | Event::TermReq { .. } | Event::Closed => {}
        }
        Ok(())
    }

    /// Executes a command whose data is there, and answers it.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub fn answer(&mut self, stage: &Stage, end: &mut TargetEnd, sqe: &Sqe, data: &[u8]) -> Check {
        for (sqe, reply) in self.execute(stage, sqe, data)? {
            end.reply(&sqe, &reply);
        }
        end.entries = self.qid.map(|_| self.entries);
        Ok(())
    }

    /// Executes a command whose data is there. Returns all commands that end by it: none for the first of a fused
    /// pair and for an Asynchronous Event Request.
    ///
    /// # Errors
    /// The command is not one that a host may send.
    pub fn execute(&mut self, stage: &Stage, sqe: &Sqe, data: &[u8]) -> Check<Vec<(Sqe, Reply)>> {
        if sqe.opcode == AdminOpcode::FABRICS.raw() {
            return Ok(vec![(*sqe, self.fabrics(stage, sqe, data)?)]);
        }
        if self.qid == Some(0) {
            return Ok(self.admin(stage, sqe).map(|reply| (*sqe, reply)).into_iter().collect());
        }
        match sqe.flags.fuse() {
            Fuse::FIRST => {
                self.fused = Some((*sqe, data.to_vec()));
                Ok(Vec::new())
            }
            Fuse::SECOND => {
                let Some((first, expected)) = self.fused.take() else {
                    return differs("a fused command without its first");
                };
                let compared = block(&mut stage.state(), &first, &expected);
                let second = match compared.status.is_success() {
                    true => block(&mut stage.state(), sqe, data),
                    false => Reply::status(Status::ABORTED_FAILED_FUSED),
                };
                Ok(vec![(first, compared), (*sqe, second)])
            }
            _ => Ok(vec![(*sqe, block(&mut stage.state(), sqe, data))]),
        }
    }

    fn fabrics(&mut self, stage: &Stage, sqe: &Sqe, data: &[u8]) -> Check<Reply> {
        Ok(match sqe.fctype() {
            FabricsType::CONNECT => self.connect(stage, sqe, data)?,
            FabricsType::PROPERTY_GET => match PropertyGet::from_sqe(sqe).property {
                Property::CAP => Reply::result(stage.setup.cap.bits()),
                Property::VS => Reply::result(stage.setup.vs.bits().into()),
                Property::CC => Reply::result(self.cc.into()),
                Property::CSTS => {
                    let is_down = self.cc >> 14 & 3 != 0;
                    Reply::result(u64::from(self.cc & 1) | if is_down { 8 } else { 0 })
                }
                // Without DNR, which is how nvme-cli recognizes an unsupported property.
                _ => Reply::status(Status::INVALID_FIELD),
            },
            FabricsType::PROPERTY_SET => {
                let set = PropertySet::from_sqe(sqe);
                if set.property == Property::CC {
                    self.cc = u32::try_from(set.value & 0xFFFF_FFFF).expect("masked");
                }
                Reply::DONE
            }
            _ => Reply::status(Status::INVALID_OPCODE.with_dnr()),
        })
    }

    /// Executes Connect.
    ///
    /// # Errors
    /// It does not have the data of a Connect.
    pub fn connect(&mut self, stage: &Stage, sqe: &Sqe, data: &[u8]) -> Check<Reply> {
        let command = ConnectCommand::from_sqe(sqe);
        let Ok(data) = ConnectData::read_from_bytes(data) else {
            return differs("Connect without its data");
        };
        let Ok(subsystem) = data.subsystem() else { return differs("Connect without a subsystem") };
        let mut state = stage.state();
        let invalid = |parameter: InvalidParameter| Reply {
            result: parameter.bits().into(),
            ..Reply::status(Status::CONNECT_INVALID_PARAMETERS.with_dnr())
        };
        let (is_admin, cntlid) = (command.qid.is_admin(), data.cntlid().get());
        if let Some((status, dw0)) = state.refuse_connect {
            return Ok(Reply { result: dw0.into(), ..Reply::status(status) });
        } else if subsystem != stage.subsystem && !subsystem.is_discovery() {
            return Ok(invalid(InvalidParameter::SUBNQN));
        } else if !is_admin && state.refuse_io_connect {
            return Ok(invalid(InvalidParameter::QID));
        } else if !is_admin && !state.controllers.contains(&cntlid) {
            return Ok(invalid(InvalidParameter::CNTLID));
        }
        self.cntlid = if is_admin { state.add_controller() } else { cntlid };
        self.is_discovery = subsystem.is_discovery();
        self.qid = Some(command.qid.get());
        self.entries = command.queue_entries;
        state.connects.push((command.qid.get(), self.cntlid));
        Ok(Reply::result(ConnectResult::default().with_cntlid(self.cntlid).bits().into()))
    }

    fn admin(&self, stage: &Stage, sqe: &Sqe) -> Option<Reply> {
        Some(match AdminOpcode::from_raw(sqe.opcode) {
            AdminOpcode::IDENTIFY => match self.identify(stage, sqe) {
                Some(page) => Reply::data(page),
                None => Reply::status(Status::INVALID_FIELD.with_dnr()),
            },
            AdminOpcode::GET_LOG_PAGE => {
                let get = GetLogPage::from_sqe(sqe);
                let log = stage.state().log(&get);
                let mut part = get.part_of(&log).to_vec();
                part.resize(usize::try_from(get.length_bytes).unwrap_or(usize::MAX).min(1 << 20), 0);
                Reply::data(part)
            }
            AdminOpcode::SET_FEATURES => {
                let set = SetFeatures::from_sqe(sqe);
                if set.fid == Fid::NUMBER_OF_QUEUES {
                    return Some(Reply::result(NumberOfQueues::pairs(stage.setup.queue_pairs).bits().into()));
                }
                stage.state().features.insert(set.fid.raw(), set.value);
                Reply::DONE
            }
            AdminOpcode::GET_FEATURES => {
                let fid = GetFeatures::from_sqe(sqe).fid.raw();
                Reply::result(stage.state().features.get(&fid).copied().unwrap_or(0).into())
            }
            AdminOpcode::ASYNC_EVENT_REQUEST => return None,
            AdminOpcode::KEEP_ALIVE => Reply::DONE,
            // Not aborted.
            AdminOpcode::ABORT => Reply::result(1),
            _ => Reply::status(Status::INVALID_OPCODE.with_dnr()),
        })
    }

    /// A page of Identify; `None` if this controller does not have it.
    pub fn identify(&self, stage: &Stage, sqe: &Sqe) -> Option<Vec<u8>> {
        let state = stage.state();
        let is_there = state.blocks(sqe.nsid()) > 0;
        let mut page = vec![0; IDENTIFY_BYTES as usize];
        match IdentifyCommand::from_sqe(sqe).cns {
            Cns::CONTROLLER => page = self.identify_controller(stage).as_bytes().to_vec(),
            Cns::ACTIVE_NAMESPACES => {
                let there = (1..).zip(&state.namespaces).filter(|(_, blocks)| **blocks > 0);
                write_nsid_list(&mut page, sqe.nsid(), there.map(|(nsid, _)| Nsid::new(nsid)));
            }
            Cns::NAMESPACE if is_there => page = state.identify_namespace(sqe.nsid()).as_bytes().to_vec(),
            Cns::NAMESPACE => {}
            Cns::NAMESPACE_DESCRIPTORS if is_there => {
                let number = u8::try_from(sqe.nsid().get()).unwrap_or(u8::MAX);
                let uuid = NamespaceDescriptor::Uuid(Uuid::from_bytes([number.wrapping_add(6); 16]));
                let csi = NamespaceDescriptor::Csi(Csi::NVM);
                let _ = write_namespace_descriptors(&mut page, &[uuid, csi]);
            }
            _ => return None,
        }
        Some(page)
    }

    /// The Identify Controller page.
    pub fn identify_controller(&self, stage: &Stage) -> IdentifyController {
        let mut controller = stage.setup.identify;
        // Keep what the test has set.
        if controller.cntlid() == Cntlid::new(0) {
            controller.set_cntlid(Cntlid::new(self.cntlid));
        }
        controller.cntrltype = if self.is_discovery { ControllerType::DISCOVERY } else { ControllerType::IO };
        controller
    }
}

/// Executes a block command.
fn block(state: &mut StageState, sqe: &Sqe, data: &[u8]) -> Reply {
    let lba_bytes = state.lba_bytes;
    let bytes = |blocks: u64| usize::try_from(blocks.saturating_mul(lba_bytes)).unwrap_or(usize::MAX);
    let range = |slba: u64, blocks: u32| bytes(slba)..bytes(slba).saturating_add(bytes(blocks.into()));
    let Some(memory) = state.memory_of(sqe.nsid()) else {
        return Reply::status(Status::INVALID_NAMESPACE.with_dnr());
    };
    let outside = Reply::status(Status::LBA_OUT_OF_RANGE.with_dnr());
    let opcode = NvmOpcode::from_raw(sqe.opcode);
    match opcode {
        NvmOpcode::DATASET_MANAGEMENT => {
            for part in DatasetManagement::from_sqe(sqe).ranges(data).into_iter().flatten() {
                match memory.get_mut(range(part.slba.get(), part.blocks.get())) {
                    Some(blocks) => blocks.fill(0),
                    None => return outside,
                }
            }
            return Reply::DONE;
        }
        NvmOpcode::COPY => {
            let copy = CopyCommand::from_sqe(sqe);
            let mut to = bytes(copy.destination);
            for part in copy.sources(data).into_iter().flatten() {
                let from = range(part.slba.get(), part.blocks());
                let next = to.saturating_add(from.len());
                if from.end.max(next) > memory.len() {
                    return outside;
                }
                memory.copy_within(from, to);
                to = next;
            }
            return Reply::DONE;
        }
        NvmOpcode::FLUSH => return Reply::DONE,
        _ => {}
    }
    let command = BlockCommand::from_sqe(sqe);
    let Some(blocks) = memory.get_mut(range(command.slba, command.blocks)) else { return outside };
    match opcode {
        NvmOpcode::READ => return Reply::data(blocks.to_vec()),
        NvmOpcode::WRITE if data.len() == blocks.len() => blocks.copy_from_slice(data),
        NvmOpcode::COMPARE if *blocks == *data => {}
        NvmOpcode::COMPARE => return Reply::status(Status::COMPARE_FAILURE),
        NvmOpcode::WRITE_ZEROES => blocks.fill(0),
        NvmOpcode::VERIFY => {}
        _ => return Reply::status(Status::INVALID_OPCODE.with_dnr()),
    }
    Reply::DONE
}
