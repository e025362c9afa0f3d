//! Lists of volumes and snapshots, page by page.
//!
//! A token is the id of the last entry of a page: entries that are added or deleted between two pages move no other.

use std::collections::BTreeMap;

use tonic::Status;

use super::Controller;
use crate::csi_v1::list_snapshots_response::Entry as SnapshotEntry;
use crate::csi_v1::list_volumes_response::{Entry as VolumeEntry, VolumeStatus};
use crate::csi_v1::{ListSnapshotsRequest, ListSnapshotsResponse, ListVolumesRequest, ListVolumesResponse};
use crate::name::Id;
use crate::refusal::invalid;
use crate::target::{Kind, Object};

impl Controller {
    pub(crate) fn list_volumes(&self, request: ListVolumesRequest) -> Result<ListVolumesResponse, Status> {
        let (page, next_token) =
            self.page(self.target.volumes()?, request.max_entries, &request.starting_token)?;
        let subsystems = self.target.subsystems()?.list.into_iter();
        let mut hosts: BTreeMap<String, Vec<String>> =
            subsystems.map(|subsystem| (subsystem.nqn, subsystem.hosts)).collect();
        let entry = |object: Object| {
            let nqn = Id::parse(&object.name).map(|id| id.nqn(&self.nqn_prefix));
            let published_node_ids = nqn.and_then(|nqn| hosts.remove(&nqn)).unwrap_or_default();
            VolumeEntry {
                volume: Some(self.volume(&object)),
                status: Some(VolumeStatus { published_node_ids }),
            }
        };
        Ok(ListVolumesResponse { entries: page.into_iter().map(entry).collect(), next_token })
    }

    pub(crate) fn list_snapshots(
        &self,
        request: ListSnapshotsRequest,
    ) -> Result<ListSnapshotsResponse, Status> {
        let is_wanted = |object: &Object| {
            let source = object.source.as_ref().map(|source| source.name.as_str());
            request.source_volume_id.is_empty() || source == Some(&request.source_volume_id)
        };
        let mut found = match request.snapshot_id.as_str() {
            "" => self.target.snapshots()?,
            text => match Id::parse(text) {
                Some(id) => self.target.find(Kind::Snapshot, &id)?.into_iter().collect(),
                None => Vec::new(),
            },
        };
        found.retain(is_wanted);
        let (page, next_token) = self.page(found, request.max_entries, &request.starting_token)?;
        let entry = |object: Object| SnapshotEntry { snapshot: Some(self.snapshot(&object)) };
        Ok(ListSnapshotsResponse { entries: page.into_iter().map(entry).collect(), next_token })
    }

    /// The page behind a token, and the token of the next one.
    fn page(
        &self,
        mut all: Vec<Object>,
        count_max: i32,
        token: &str,
    ) -> Result<(Vec<Object>, String), Status> {
        let count_max = match usize::try_from(count_max) {
            Ok(0) => usize::MAX,
            Ok(count_max) => count_max,
            Err(_) => return Err(invalid("max_entries", "a number of entries is not negative")),
        };
        if !token.is_empty() && Id::parse(token).is_none() {
            return Err(Status::aborted("starting_token: no list has given it: begin again without one"));
        }
        all.retain(|object| Id::parse(&object.name).is_some_and(|id| self.may_use(&id.pool)));
        all.sort_by(|one, other| one.name.cmp(&other.name));
        let start = all.partition_point(|object| object.name.as_str() <= token);
        let mut page = all.split_off(start);
        let has_more = page.len() > count_max;
        page.truncate(count_max);
        let next = page.last().filter(|_| has_more).map_or_else(String::new, |last| last.name.clone());
        Ok((page, next))
    }
}
