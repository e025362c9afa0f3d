//! Admin commands, one file each, and their common code.
// Input from a host must never cause a panic: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]

pub(crate) mod abort;
pub(crate) mod get_features;
pub(crate) mod get_log_page;
pub(crate) mod identify;
pub(crate) mod set_features;

use wire::async_event::AsyncEvents;
use wire::id::{Cntlid, Nsid};
use wire::nqn::HostName;
use wire::sgl::DataPointer;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::names::lane_counters::LaneTotals;
use crate::names::limits::Limits;
use crate::objects::access::Right;
use crate::objects::catalog::Catalog;
use crate::objects::controller::ControllerKind;
use crate::objects::subsystem::{Namespace, Subsystem};

/// The outcome of a successful command.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    /// Result dwords.
    pub(crate) result: u64,
    /// Data for the host.
    pub(crate) data: Option<Box<[u8]>>,
}

/// The outcome of a command.
pub(crate) type AdminOutcome = Result<Reply, Status>;

/// Context of an admin command beside its controller.
pub(crate) struct Surroundings<'a> {
    pub(crate) limits: &'a Limits,
    /// The controller's own; `None` for a discovery controller.
    pub(crate) subsystem: Option<&'a Subsystem>,
    /// The host of the controller.
    pub(crate) host: &'a HostName,
    pub(crate) catalog: &'a Catalog,
    /// Ids of the controllers of the subsystem, in ascending order, if the command is about them.
    pub(crate) cntlids: &'a [Cntlid],
    /// Traffic of all controllers of the subsystem since the target started, if the command reports it.
    pub(crate) traffic: LaneTotals,
    /// The version of the namespace table that every reactor serves.
    pub(crate) version_in_use: u64,
    pub(crate) now_ns: u64,
    /// When the target started.
    pub(crate) boot_ns: u64,
}

impl<'a> Surroundings<'a> {
    /// Namespaces visible to the host, in ascending order.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = (Nsid, &'a Namespace)> {
        let all = self.subsystem.into_iter().flat_map(|subsystem| &subsystem.namespaces);
        let shown = all.filter(|(_, namespace)| self.right(namespace) != Right::None);
        shown.map(|(nsid, namespace)| (*nsid, namespace))
    }

    /// The namespace with this id, if it is visible to the host.
    pub(crate) fn namespace(&self, nsid: Nsid) -> Option<&'a Namespace> {
        let namespace = self.subsystem?.namespaces.get(&nsid)?;
        (self.right(namespace) != Right::None).then_some(namespace)
    }

    /// The right of the host to a namespace on every reactor.
    fn right(&self, namespace: &Namespace) -> Right {
        if namespace.shown_from > self.version_in_use {
            return Right::None;
        }
        namespace.rights.of(self.host, self.version_in_use)
    }

    /// Whether a namespace is write protected: for every host, or for this one.
    pub(crate) fn is_read_only(&self, namespace: &Namespace) -> bool {
        namespace.store.is_read_only() || self.right(namespace) < Right::Write
    }

    /// Whether the subsystem has a namespace of the key-value command set.
    pub(crate) fn has_key_value(&self) -> bool {
        self.subsystem.is_some_and(Subsystem::has_key_value)
    }

    /// Whether `nsid` is a valid namespace id here, allocated or not.
    pub(crate) fn is_possible(&self, nsid: Nsid) -> bool {
        (1..=self.limits.nsid_max).contains(&nsid.get())
    }
}

/// Events that a controller of this kind can send. wire §12, §13
pub(crate) fn possible_events(kind: ControllerKind) -> AsyncEvents {
    match kind {
        ControllerKind::Io(_) => AsyncEvents::NAMESPACE_ATTRIBUTE | AsyncEvents::ANA,
        ControllerKind::Discovery => AsyncEvents::DISCOVERY,
    }
}

/// Size of the host's buffer, bytes.
pub(crate) fn room(sqe: &Sqe) -> Result<usize, Status> {
    match sqe.dptr.classify() {
        DataPointer::Transport { length: 0 } => Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr()),
        DataPointer::Transport { length } => Ok(usize::try_from(length).unwrap_or(usize::MAX)),
        DataPointer::InCapsule { .. } => Err(Status::INVALID_FIELD.with_dnr()),
        DataPointer::Other { .. } => Err(Status::SGL_TYPE_INVALID.with_dnr()),
    }
}

/// Completes a command with data of a length that the command fixes: less room is an error, more is left unused.
/// wire §5.3
pub(crate) fn reply_with(sqe: &Sqe, data: Vec<u8>) -> AdminOutcome {
    if room(sqe)? < data.len() {
        return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
    }
    Ok(Reply { result: 0, data: Some(data.into()) })
}

/// Completes a command with dword 0 as its result.
pub(crate) fn reply_dw0(dw0: u32) -> AdminOutcome {
    Ok(Reply { result: dw0.into(), data: None })
}

#[cfg(test)]
mod tests {
    use wire::opcode::AdminOpcode;
    use wire::sgl::Sgl;

    use super::*;

    #[test]
    fn data_can_go_to_the_host_by_the_transport_only() {
        let sqe = |dptr| Sqe::new(AdminOpcode::IDENTIFY.raw(), Nsid::NONE).with_data(dptr);
        assert_eq!(room(&sqe(Sgl::transport(100))), Ok(100));
        assert_eq!(room(&sqe(Sgl::none())), Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr()));
        assert_eq!(room(&sqe(Sgl::in_capsule(100))), Err(Status::INVALID_FIELD.with_dnr()));
        let mut keyed = Sgl::transport(100);
        keyed.identifier = 0x40;
        assert_eq!(room(&sqe(keyed)), Err(Status::SGL_TYPE_INVALID.with_dnr()));
    }
}
