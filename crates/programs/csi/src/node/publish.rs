//! Gives a staged volume to a pod, and takes it back.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::path::Path;

use tonic::Status;

use super::Node;
use super::mounts::{DiskMount, Mount};
use super::stage::path;
use crate::capability::Use;
use crate::csi_v1::volume_capability::access_mode::Mode;
use crate::csi_v1::{
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse,
};
use crate::name::Id;
use crate::refusal::required;

/// Mounts on top of each other that are taken away at one path.
const DEPTH_MAX: usize = 16;

impl Node {
    pub(crate) fn publish(
        &self,
        request: NodePublishVolumeRequest,
    ) -> Result<NodePublishVolumeResponse, Status> {
        required("volume_id", &request.volume_id, "fast/pvc-1")?;
        let at = path("target_path", &request.target_path)?;
        let wanted = Use::of("volume_capability", request.volume_capability.as_ref())?;
        let staged_at = path("staging_target_path", &request.staging_target_path)?;
        let id = Self::volume_id(&request.volume_id)?;
        let _working = self.pending.begin(id.to_string())?;
        let not_staged =
            || Status::failed_precondition(format!("the volume {id} is not staged on this node"));
        let device = self.machine.device(&self.nqn(&id)).ok_or_else(not_staged)?;
        let mounts = self.machine.mounts()?;
        let only_reads = request.readonly || wanted.only_reads();
        if let Some(mount) = mounts.iter().rev().find(|mount| mount.at == at) {
            return match mount.is_of(&device) && (wanted.is_block() || mount.is_read_only == only_reads) {
                true => Ok(NodePublishVolumeResponse {}),
                false => Err(Status::already_exists(format!(
                    "target_path: {} is mounted at {} already, {}",
                    mount.source.display(),
                    at.display(),
                    if mount.is_read_only { "read-only" } else { "for writing" }
                ))),
            };
        }
        let elsewhere = |mount: &&Mount| mount.is_of(&device) && mount.at != staged_at && mount.at != at;
        if let Some(mount) =
            mounts.iter().find(elsewhere).filter(|_| wanted.mode == Mode::SingleNodeSingleWriter)
        {
            return Err(Status::failed_precondition(format!(
                "volume_capability.access_mode: the volume is for one path at a time, and is at {}",
                mount.at.display()
            )));
        }
        let from = match wanted.is_block() {
            true => device.as_path(),
            false => {
                let is_staged = mounts.iter().rev().find(|mount| mount.at == staged_at);
                is_staged.filter(|mount| mount.is_of(&device)).ok_or_else(not_staged)?;
                staged_at
            }
        };
        if wanted.is_block() && only_reads && !self.machine.is_read_only(&device) {
            // A mount that is read-only does not keep anybody from writing to a device.
            return Err(Status::failed_precondition(
                "readonly: the node may write to the block volume: publish it to the node as read-only",
            ));
        }
        create(at, wanted.is_block())
            .map_err(|error| Status::internal(format!("{}: {error}", at.display())))?;
        let (from, to) = (from.to_string_lossy(), at.to_string_lossy());
        let mut mounted = self.machine.run("mount", &["--bind", &from, &to]);
        if mounted.is_ok() && only_reads && !wanted.is_block() {
            mounted = self.machine.run("mount", &["-o", "remount,bind,ro", &to]);
        }
        if mounted.is_err() {
            // A pod must not find a volume that it may write to by mistake.
            let _ = self.unmount(at, Some(&device));
            let _ = remove(at);
        }
        mounted?;
        tracing::info!(volume = %id, at = %to, "volume published");
        Ok(NodePublishVolumeResponse {})
    }

    pub(crate) fn unpublish(
        &self,
        request: NodeUnpublishVolumeRequest,
    ) -> Result<NodeUnpublishVolumeResponse, Status> {
        required("volume_id", &request.volume_id, "fast/pvc-1")?;
        let at = path("target_path", &request.target_path)?;
        // What cannot be there is not published.
        let Some(id) = Id::parse(&request.volume_id) else { return Ok(NodeUnpublishVolumeResponse {}) };
        let _working = self.pending.begin(id.to_string())?;
        let device = self.machine.device(&self.nqn(&id));
        self.unmount(at, device.as_deref())?;
        let is_free = !self.machine.mounts()?.iter().any(|mount| mount.at == at);
        if is_free {
            remove(at)
                .map_err(|error| Status::internal(format!("target_path: {}: {error}", at.display())))?;
        }
        Ok(NodeUnpublishVolumeResponse {})
    }

    /// Unmounts a volume at a path, as often as it is there. The device of a lost target may be gone, and its mount still there.
    pub(super) fn unmount(&self, at: &Path, device: Option<&Path>) -> Result<(), Status> {
        let is_ours =
            |mount: &Mount| device.map_or_else(|| mount.is_of_volume(), |device| mount.is_of(device));
        for _ in 0..DEPTH_MAX {
            let mounts = self.machine.mounts()?;
            match mounts.iter().rev().find(|mount| mount.at == at) {
                Some(mount) if is_ours(mount) => self.machine.run("umount", &[&at.to_string_lossy()])?,
                _ => return Ok(()),
            }
        }
        Err(Status::internal(format!("{}: still mounted after {DEPTH_MAX} times", at.display())))
    }
}

/// Makes what is mounted over: a directory, or a file for a block device.
fn create(at: &Path, is_block: bool) -> std::io::Result<()> {
    match is_block {
        true => {
            if let Some(parent) = at.parent() {
                fs::create_dir_all(parent)?;
            }
            OpenOptions::new().create(true).append(true).open(at).map(drop)
        }
        false => fs::create_dir_all(at),
    }
}

/// Removes that again. A directory with files in it, or a file with bytes, is not what was made.
fn remove(at: &Path) -> std::io::Result<()> {
    match fs::symlink_metadata(at) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(metadata) if metadata.is_dir() => fs::remove_dir(at),
        Ok(metadata) if metadata.is_file() && metadata.len() == 0 => fs::remove_file(at),
        Ok(_) => Err(std::io::Error::other("it is neither an empty directory nor an empty file: it stays")),
    }
}
