//! Create and delete snapshots.

use serde_json::json;
use tonic::Status;

use super::Controller;
use super::parameters::Parameters;
use super::volumes::{checked_name, signed};
use crate::csi_v1::{
    CreateSnapshotRequest, CreateSnapshotResponse, DeleteSnapshotRequest, DeleteSnapshotResponse,
    GetSnapshotRequest, GetSnapshotResponse, Snapshot,
};
use crate::name::Id;
use crate::refusal::required;
use crate::target::{Kind, Object};
use crate::timestamp::Timestamp;
use crate::topology;

impl Controller {
    pub(crate) fn create_snapshot(
        &self,
        request: CreateSnapshotRequest,
    ) -> Result<CreateSnapshotResponse, Status> {
        required("source_volume_id", &request.source_volume_id, "fast/pvc-1")?;
        let name = checked_name("name", &request.name)?;
        Parameters::none_in(&request.parameters)?;
        topology::check(&self.topology, request.accessibility_requirements.as_ref())?;
        let volume_id = self.volume_id("source_volume_id", &request.source_volume_id)?;
        let id = Id::of_snapshot(&volume_id.pool, name);
        let _working = self.pending.begin(id.to_string())?;
        // A name is for one snapshot, in whichever pool it is.
        let elsewhere = self.pools()?.into_iter().map(|pool| Id::of_snapshot(&pool.name, name));
        for other in elsewhere.filter(|other| *other != id) {
            if self.target.find(Kind::Snapshot, &other)?.is_some() {
                return Err(Status::already_exists(format!(
                    "name: {other} is there already, of another volume"
                )));
            }
        }
        let params = json!({ "name": id.to_string(), "volume": volume_id.to_string() });
        let snapshot = match self.target.create("snapshot_create", params)? {
            Ok(snapshot) => snapshot,
            Err(there) => {
                let volume = self.target.find(Kind::Volume, &volume_id)?;
                let is_same = there.kind == Kind::Snapshot
                    && volume.is_some_and(|volume| {
                        there.source.as_ref().is_some_and(|source| source.uuid == volume.uuid)
                    });
                let taken =
                    || Status::already_exists(format!("name: {id} is there already, of another volume"));
                is_same.then_some(there).ok_or_else(taken)?
            }
        };
        Ok(CreateSnapshotResponse { snapshot: Some(self.snapshot(&snapshot)) })
    }

    pub(crate) fn delete_snapshot(
        &self,
        request: DeleteSnapshotRequest,
    ) -> Result<DeleteSnapshotResponse, Status> {
        // What cannot be there is gone.
        let Some(id) = self.id("snapshot_id", &request.snapshot_id)? else {
            return Ok(DeleteSnapshotResponse {});
        };
        let _working = self.pending.begin(id.to_string())?;
        self.target.delete(Kind::Snapshot, &id)?;
        Ok(DeleteSnapshotResponse {})
    }

    pub(crate) fn get_snapshot(&self, request: GetSnapshotRequest) -> Result<GetSnapshotResponse, Status> {
        let id = self.id("snapshot_id", &request.snapshot_id)?;
        let found = id.map(|id| self.target.find(Kind::Snapshot, &id)).transpose()?.flatten();
        let missing =
            || Status::not_found(format!("snapshot_id: there is no snapshot {}", request.snapshot_id));
        Ok(GetSnapshotResponse { snapshot: Some(self.snapshot(&found.ok_or_else(missing)?)) })
    }

    /// The snapshot in an answer.
    pub(super) fn snapshot(&self, object: &Object) -> Snapshot {
        Snapshot {
            size_bytes: signed(object.size_bytes),
            snapshot_id: object.name.clone(),
            source_volume_id: object.source.as_ref().map_or_else(String::new, |source| source.name.clone()),
            creation_time: Some(Timestamp { seconds: object.created_s, nanos: 0 }),
            ready_to_use: true,
            group_snapshot_id: String::new(),
            accessible_topology: topology::of(&self.topology).into_iter().collect(),
        }
    }
}
