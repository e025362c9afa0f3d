//! Volumes of the target: create, delete, grow, and let nodes connect.
//!
//! A volume is served while nodes have it: publishing it to the first node creates a subsystem with one namespace, and the list of
//! the subsystem's hosts is that of the nodes. Taking it from the last one removes the subsystem. Each is one change of the
//! configuration, so that a crash leaves all of it or nothing.

mod list;
mod parameters;
mod publish;
mod snapshots;
mod volumes;

#[cfg(test)]
mod tests;

use tonic::Status;

use crate::csi_v1::controller_service_capability::rpc::Type;
use crate::csi_v1::controller_service_capability::{self, Rpc};
use crate::csi_v1::{
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse, ControllerServiceCapability,
};
use crate::name::Id;
use crate::pending::Pending;
use crate::refusal::required;
use crate::target::{Pool, Target};
use crate::topology::Segments;

/// The service for the volumes of one target.
pub(crate) struct Controller {
    pub(crate) target: Target,
    /// Pools that it may use, the usual one first; all of the target if it is empty.
    pub(crate) pools: Vec<String>,
    pub(crate) nqn_prefix: String,
    /// Addresses that nodes connect to, in place of the target's listeners.
    pub(crate) portals: Vec<String>,
    pub(crate) topology: Segments,
    pub(crate) pending: Pending,
}

impl Controller {
    /// Why no call can work: the target does not answer.
    pub(crate) fn problem(&self) -> Option<String> {
        self.target.pools().err().map(|status| status.message().to_owned())
    }

    /// What the target's pools can do. Snapshots and clones are there if a file system shares blocks.
    ///
    /// # Errors
    /// The target does not answer.
    pub(crate) fn capabilities(
        &self,
        _: ControllerGetCapabilitiesRequest,
    ) -> Result<ControllerGetCapabilitiesResponse, Status> {
        let mut types = vec![
            Type::CreateDeleteVolume,
            Type::PublishUnpublishVolume,
            Type::PublishReadonly,
            Type::ListVolumes,
            Type::ListVolumesPublishedNodes,
            Type::GetVolume,
            Type::GetCapacity,
            Type::ExpandVolume,
            Type::SingleNodeMultiWriter,
        ];
        if self.pools()?.iter().any(|pool| pool.can_clone) {
            types.extend([
                Type::CreateDeleteSnapshot,
                Type::ListSnapshots,
                Type::GetSnapshot,
                Type::CloneVolume,
            ]);
        }
        let capability = |kind: Type| ControllerServiceCapability {
            r#type: Some(controller_service_capability::Type::Rpc(Rpc { r#type: kind.into() })),
        };
        Ok(ControllerGetCapabilitiesResponse { capabilities: types.into_iter().map(capability).collect() })
    }

    /// The pools that it may use.
    fn pools(&self) -> Result<Vec<Pool>, Status> {
        let mut pools = self.target.pools()?;
        pools.retain(|pool| self.may_use(&pool.name));
        pools.sort_by_key(|pool| self.pools.iter().position(|name| *name == pool.name));
        Ok(pools)
    }

    fn may_use(&self, pool: &str) -> bool {
        self.pools.is_empty() || self.pools.iter().any(|name| name == pool)
    }

    /// The volume or snapshot in a field; `None` if there cannot be one of this name.
    fn id(&self, field: &str, text: &str) -> Result<Option<Id>, Status> {
        let text = required(field, text, "fast/pvc-1")?;
        Ok(Id::parse(text).filter(|id| self.may_use(&id.pool)))
    }

    /// The volume in a field, which must be possible.
    fn volume_id(&self, field: &str, text: &str) -> Result<Id, Status> {
        self.id(field, text)?.ok_or_else(|| Status::not_found(format!("{field}: there is no volume {text}")))
    }
}
