//! Admin commands that hosts submit under I/O, and the statuses that they must end with.

use proto::host_controller::RequestData;
use wire::feature::Fid;
use wire::id::{Cntlid, Nsid};
use wire::identify::{Cns, IDENTIFY_BYTES, IdentifyCommand};
use wire::log::Lid;
use wire::opcode::NvmOpcode;
use wire::property::{Cc, Property};
use wire::sqe::Sqe;
use wire::status::Status;

/// One admin command.
pub(crate) struct Request {
    pub(crate) sqe: Sqe,
    pub(crate) data: RequestData,
    /// `None`: it succeeds.
    pub(crate) refused_with: Option<Status>,
}

const FIRST: Nsid = Nsid::new(1);

/// Structures of Identify, with the namespace that each is asked for.
const STRUCTURES: [(Cns, Nsid); 12] = [
    (Cns::CONTROLLER, Nsid::NONE),
    (Cns::NAMESPACE, FIRST),
    (Cns::ACTIVE_NAMESPACES, Nsid::NONE),
    (Cns::NAMESPACE_DESCRIPTORS, FIRST),
    (Cns::COMMAND_SET_NAMESPACE, FIRST),
    (Cns::COMMAND_SET_CONTROLLER, Nsid::NONE),
    (Cns::COMMAND_SET_ACTIVE_NAMESPACES, Nsid::NONE),
    (Cns::INDEPENDENT_NAMESPACE, FIRST),
    (Cns::ALLOCATED_NAMESPACES, Nsid::NONE),
    (Cns::ALLOCATED_NAMESPACE, FIRST),
    (Cns::NAMESPACE_CONTROLLERS, FIRST),
    (Cns::SUBSYSTEM_CONTROLLERS, Nsid::NONE),
];

const PAGES: [Lid; 7] = [
    Lid::SUPPORTED_PAGES,
    Lid::ERROR,
    Lid::SMART,
    Lid::FIRMWARE_SLOTS,
    Lid::CHANGED_NAMESPACES,
    Lid::COMMANDS_AND_EFFECTS,
    Lid::FEATURES_AND_EFFECTS,
];

const FEATURES: [Fid; 10] = [
    Fid::ARBITRATION,
    Fid::POWER_MANAGEMENT,
    Fid::TEMPERATURE_THRESHOLD,
    Fid::VOLATILE_WRITE_CACHE,
    Fid::NUMBER_OF_QUEUES,
    Fid::INTERRUPT_COALESCING,
    Fid::WRITE_ATOMICITY,
    Fid::ASYNC_EVENTS,
    Fid::KEEP_ALIVE,
    Fid::ERROR_RECOVERY,
];

/// The command at a place of the table, which begins anew behind its end.
pub(crate) fn request(which: u8) -> Request {
    let mut all: Vec<Request> = Vec::new();
    let mut add = |sqe, data, refused_with| all.push(Request { sqe, data, refused_with });
    let invalid = Some(Status::INVALID_FIELD.with_dnr());
    for (cns, nsid) in STRUCTURES {
        add(Sqe::identify(cns, nsid), RequestData::FromController(IDENTIFY_BYTES), None);
    }
    let identified = || RequestData::FromController(IDENTIFY_BYTES);
    // Of this controller, whichever it is.
    let command_sets =
        IdentifyCommand { cns: Cns::COMMAND_SETS, cntid: Cntlid::DYNAMIC, ..IdentifyCommand::default() };
    add(command_sets.to_sqe(Nsid::NONE), identified(), None);
    add(Sqe::identify(Cns::DOMAINS, Nsid::NONE), identified(), invalid);
    for lid in PAGES {
        add(Sqe::get_log_page(lid, Nsid::ALL, 512), RequestData::FromController(512), None);
    }
    let unknown = Some(Status::INVALID_LOG_PAGE.with_dnr());
    add(Sqe::get_log_page(Lid::TELEMETRY_HOST, Nsid::ALL, 512), RequestData::FromController(512), unknown);
    for fid in FEATURES {
        let nsid = if fid == Fid::ERROR_RECOVERY { FIRST } else { Nsid::NONE };
        add(Sqe::get_feature(fid, nsid), RequestData::None, None);
    }
    add(Sqe::get_feature(Fid::HOST_BEHAVIOR, Nsid::NONE), RequestData::FromController(512), None);
    add(Sqe::get_feature(Fid::TIMESTAMP, Nsid::NONE), RequestData::FromController(8), None);
    add(Sqe::get_feature(Fid::WRITE_PROTECT, FIRST), RequestData::None, invalid);
    for (fid, value) in [(Fid::ARBITRATION, 7), (Fid::WRITE_ATOMICITY, 1), (Fid::TEMPERATURE_THRESHOLD, 300)]
    {
        add(Sqe::set_feature(fid, Nsid::NONE, value), RequestData::None, None);
    }
    add(Sqe::set_feature(Fid::TIMESTAMP, Nsid::NONE, 0), RequestData::ToController(vec![1; 8]), None);
    add(Sqe::keep_alive(), RequestData::None, None);
    add(Sqe::property_get(Property::CAP), RequestData::None, None);
    add(Sqe::property_get(Property::CSTS), RequestData::None, None);
    let write_zeroes = Sqe::new(NvmOpcode::WRITE_ZEROES.raw() | 0x80, Nsid::NONE);
    add(write_zeroes, RequestData::None, Some(Status::INVALID_OPCODE.with_dnr()));
    let at = usize::from(which) % all.len();
    all.swap_remove(at)
}

/// Disables the controller, which resets it.
pub(crate) fn reset() -> Sqe {
    Sqe::property_set(Property::CC, u64::from(Cc::default().bits()))
}
