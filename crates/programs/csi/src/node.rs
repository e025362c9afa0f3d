//! Volumes on a node: connect, make a file system if there is none, mount, and all of it back.
//!
//! ```text
//! stage     connect to the subsystem ─▶ mkfs if blank ─▶ mount at the staging path     (block: connect only)
//! publish   bind mount from there to the path of a pod                                 (block: of the device)
//! unpublish, unstage: back; the last one disconnects
//! ```
//!
//! Nothing is remembered: what is connected and mounted is read from the kernel at each call, so that a driver that was killed goes on
//! where it was.

mod linux;
mod machine;
mod mounts;
mod publish;
mod stage;
mod usage;

#[cfg(test)]
mod tests;

use tonic::Status;

pub(crate) use self::linux::LinuxMachine;
pub(crate) use self::machine::Machine;
use crate::authentication::OwnSecrets;
use crate::csi_v1::node_service_capability::rpc::Type;
use crate::csi_v1::node_service_capability::{self, Rpc};
use crate::csi_v1::{
    NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeServiceCapability,
};
use crate::name::Id;
use crate::pending::Pending;
use crate::refusal::required;
use crate::topology::{self, Segments};

/// The service of one node.
pub(crate) struct Node {
    pub(crate) machine: Box<dyn Machine>,
    /// Its host NQN.
    pub(crate) node_id: String,
    pub(crate) nqn_prefix: String,
    /// Volumes that it may have at one time; 0 without a limit.
    pub(crate) volume_count_max: u32,
    /// Secrets that it has for volumes whose requests have none.
    pub(crate) secrets: OwnSecrets,
    pub(crate) topology: Segments,
    pub(crate) pending: Pending,
}

impl Node {
    /// Why no volume can be connected.
    pub(crate) fn problem(&self) -> Option<String> {
        self.machine.problem()
    }

    pub(crate) fn capabilities(
        &self,
        _: NodeGetCapabilitiesRequest,
    ) -> Result<NodeGetCapabilitiesResponse, Status> {
        let types =
            [Type::StageUnstageVolume, Type::GetVolumeStats, Type::ExpandVolume, Type::SingleNodeMultiWriter];
        let capability = |kind: Type| NodeServiceCapability {
            r#type: Some(node_service_capability::Type::Rpc(Rpc { r#type: kind.into() })),
        };
        Ok(NodeGetCapabilitiesResponse { capabilities: types.into_iter().map(capability).collect() })
    }

    pub(crate) fn info(&self, _: NodeGetInfoRequest) -> Result<NodeGetInfoResponse, Status> {
        Ok(NodeGetInfoResponse {
            node_id: self.node_id.clone(),
            max_volumes_per_node: self.volume_count_max.into(),
            accessible_topology: topology::of(&self.topology),
        })
    }

    /// The volume in a field, which must be possible.
    fn volume_id(text: &str) -> Result<Id, Status> {
        let text = required("volume_id", text, "fast/pvc-1")?;
        Id::parse(text).ok_or_else(|| Status::not_found(format!("volume_id: there is no volume {text}")))
    }

    fn nqn(&self, id: &Id) -> String {
        id.nqn(&self.nqn_prefix)
    }
}
