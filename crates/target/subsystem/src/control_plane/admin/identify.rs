//! Identify: data structures of the controller, its subsystem and its namespaces. wire §10

mod controller;
mod namespace;

use wire::id::{Cntlid, Csi, Nsid};
use wire::identify::capabilities::FlushAll;
use wire::identify::command_set::{
    Aocs, CommandSetVectors, CommandSets, KvController, NvmController, NvmNamespace,
};
use wire::identify::descriptors::{NamespaceDescriptor, write_namespace_descriptors};
use wire::identify::lists::{write_controller_list, write_nsid_list};
use wire::identify::{Cns, IDENTIFY_BYTES, IdentifyCommand};
use wire::property::Vs;
use wire::sqe::Sqe;
use wire::status::Status;
use zerocopy::IntoBytes;

use super::{AdminOutcome, Surroundings, reply_with};
use crate::objects::controller::{ControllerKind, ControllerRecord};
use crate::objects::subsystem::{Namespace, Subsystem};

/// A Flush with NSID FFFFFFFFh flushes all namespaces.
const FLUSH_ALL: FlushAll = FlushAll::SUPPORTED;

/// The ANA group of every namespace: there is one, and it is optimized. wire §19
pub(crate) const ANA_GROUP: u32 = 1;

/// Firmware revision: the version of this crate, truncated to the field.
pub(crate) fn firmware() -> &'static str {
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    VERSION.get(..8).unwrap_or(VERSION)
}

/// Whether an Identify requests the controllers of the subsystem.
pub(crate) fn lists_controllers(sqe: &Sqe) -> bool {
    matches!(IdentifyCommand::from_sqe(sqe).cns, Cns::NAMESPACE_CONTROLLERS | Cns::SUBSYSTEM_CONTROLLERS)
}

/// Answers an Identify.
pub(crate) fn execute(record: &ControllerRecord, around: &Surroundings<'_>, sqe: &Sqe) -> AdminOutcome {
    let command = IdentifyCommand::from_sqe(sqe);
    if record.key.kind == ControllerKind::Discovery && command.cns != Cns::CONTROLLER {
        // Nothing else is identified; nvmet answers the same. wire §10.1
        return Err(Status::INVALID_OPCODE.with_dnr());
    }
    let data = match command.cns {
        // Structures of the controller or the subsystem are returned for any NSID, as by nvmet and SPDK. wire §10
        Cns::CONTROLLER => controller::identify(record, around),
        Cns::NAMESPACE | Cns::ALLOCATED_NAMESPACE => of_namespace(around, sqe, |space| {
            let blocks = space.store.blocks().ok_or(Status::INVALID_COMMAND_SET.with_dnr())?;
            let is_read_only = around.is_read_only(space);
            let (geometry, allocated) = (blocks.geometry(), blocks.health().allocated_bytes);
            let structure = namespace::identify(space, &geometry, allocated, is_read_only, around.limits);
            Ok(structure.as_bytes().to_vec())
        })?,
        Cns::ACTIVE_NAMESPACES | Cns::ALLOCATED_NAMESPACES => nsid_list(around, sqe.nsid(), |_| true)?,
        Cns::NAMESPACE_DESCRIPTORS => descriptors(around, sqe.nsid())?,
        Cns::COMMAND_SET_NAMESPACE => {
            known(around, command.csi)?;
            if around.namespace(sqe.nsid()).is_some() && csi_of(around, sqe.nsid()) != command.csi {
                return Err(Status::INVALID_COMMAND_SET.with_dnr());
            }
            of_namespace(around, sqe, |space| {
                Ok(match space.store.key_value() {
                    Some(shape) => {
                        let is_limited = !around.subsystem.is_some_and(Subsystem::has_key_value_only);
                        let shape = (shape, space.store.usage().unwrap_or_default());
                        namespace::key_value(space, shape, around.limits, is_limited).as_bytes().to_vec()
                    }
                    None => NvmNamespace::default().as_bytes().to_vec(),
                })
            })?
        }
        Cns::COMMAND_SET_CONTROLLER => {
            known(around, command.csi)?;
            match command.csi {
                Csi::KV => KvController::new(KV_VERSION).as_bytes().to_vec(),
                _ => nvm_controller(around),
            }
        }
        Cns::COMMAND_SET_ACTIVE_NAMESPACES => {
            known(around, command.csi)?;
            let is_kv = command.csi == Csi::KV;
            nsid_list(around, sqe.nsid(), |namespace| namespace.store.is_key_value() == is_kv)?
        }
        Cns::INDEPENDENT_NAMESPACE => of_namespace(around, sqe, |space| {
            Ok(namespace::independent(space, around.is_read_only(space)).as_bytes().to_vec())
        })?,
        Cns::NAMESPACE_CONTROLLERS => {
            around.namespace(sqe.nsid()).ok_or(Status::INVALID_NAMESPACE.with_dnr())?;
            controller_list(around, command.cntid)
        }
        Cns::SUBSYSTEM_CONTROLLERS => controller_list(around, command.cntid),
        Cns::COMMAND_SETS => {
            let is_this_one = [Cntlid::DYNAMIC, record.key.cntlid].contains(&command.cntid);
            if !is_this_one {
                return Err(Status::INVALID_FIELD.with_dnr());
            }
            let sets =
                if around.has_key_value() { CommandSets::NVM | CommandSets::KV } else { CommandSets::NVM };
            CommandSetVectors::new(&[sets]).as_bytes().to_vec()
        }
        _ => return Err(Status::INVALID_FIELD.with_dnr()),
    };
    debug_assert_eq!(data.len(), IDENTIFY_BYTES as usize);
    reply_with(sqe, data)
}

/// Version of the key-value command set whose structures are filled in: 1.3.
const KV_VERSION: Vs = Vs::from_bits(0x0001_0300);

/// Checks that the subsystem has this command set: key value only if one of its namespaces is of it.
fn known(around: &Surroundings<'_>, csi: Csi) -> Result<(), Status> {
    match csi {
        Csi::NVM => Ok(()),
        Csi::KV if around.has_key_value() => Ok(()),
        _ => Err(Status::INVALID_FIELD.with_dnr()),
    }
}

/// The command set of a namespace.
fn csi_of(around: &Surroundings<'_>, nsid: Nsid) -> Csi {
    let is_kv = around.namespace(nsid).is_some_and(|namespace| namespace.store.is_key_value());
    if is_kv { Csi::KV } else { Csi::NVM }
}

/// A structure of one namespace: all zero for an inactive one, as hosts expect. wire §10
fn of_namespace(
    around: &Surroundings<'_>,
    sqe: &Sqe,
    structure: impl FnOnce(&Namespace) -> Result<Vec<u8>, Status>,
) -> Result<Vec<u8>, Status> {
    match around.namespace(sqe.nsid()) {
        Some(namespace) => structure(namespace),
        None if around.is_possible(sqe.nsid()) => Ok(empty()),
        None => Err(Status::INVALID_NAMESPACE.with_dnr()),
    }
}

fn empty() -> Vec<u8> {
    vec![0; IDENTIFY_BYTES as usize]
}

fn nsid_list(
    around: &Surroundings<'_>,
    after: Nsid,
    is_meant: impl Fn(&Namespace) -> bool,
) -> Result<Vec<u8>, Status> {
    // The last two ids are reserved: no list can start after them.
    if after >= Nsid::new(0xFFFF_FFFE) {
        return Err(Status::INVALID_NAMESPACE.with_dnr());
    }
    let mut list = empty();
    let meant = around.namespaces().filter(|(_, namespace)| is_meant(namespace));
    write_nsid_list(&mut list, after, meant.map(|(nsid, _)| nsid));
    Ok(list)
}

fn controller_list(around: &Surroundings<'_>, from: Cntlid) -> Vec<u8> {
    let mut list = empty();
    write_controller_list(&mut list, from, around.cntlids.iter().copied());
    list
}

#[expect(clippy::expect_used, reason = "three descriptors of ours")]
fn descriptors(around: &Surroundings<'_>, nsid: Nsid) -> Result<Vec<u8>, Status> {
    let namespace = around.namespace(nsid).ok_or(Status::INVALID_NAMESPACE.with_dnr())?;
    let mut list = empty();
    let descriptors = [
        NamespaceDescriptor::Nguid(namespace.nguid),
        NamespaceDescriptor::Uuid(namespace.uuid),
        NamespaceDescriptor::Csi(csi_of(around, nsid)),
    ];
    write_namespace_descriptors(&mut list, &descriptors).expect("three descriptors fit into 4096 bytes");
    Ok(list)
}

fn nvm_controller(around: &Surroundings<'_>) -> Vec<u8> {
    let mut controller = NvmController::default();
    let page_bytes = around.limits.cap().page_bytes_min();
    // Verify and Dataset Management are processed in parts: their fields are the only limit.
    controller.set_write_zeroes_limit_bytes(Some(around.limits.write_zeroes_bytes_max), page_bytes);
    controller.set_aocs(Aocs::ALLOCATED_LBA);
    controller.as_bytes().to_vec()
}
