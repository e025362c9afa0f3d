//! How full a volume is, and what it has to do to be larger.

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tonic::Status;

use super::Node;
use super::mounts::{DiskMount, Mount};
use crate::csi_v1::volume_usage::Unit;
use crate::csi_v1::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    VolumeUsage,
};
use crate::refusal::{invalid, required};

/// Time for the kernel to see the size that the target has given a namespace.
const SIZE_TIME: Duration = Duration::from_secs(20);

const LOOK_TIME: Duration = Duration::from_millis(50);

impl Node {
    pub(crate) fn stats(
        &self,
        request: NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse, Status> {
        let (mount, device) = self.mounted(&request.volume_id, &request.volume_path)?;
        if mount.is_file_of(&device) {
            let total =
                self.machine.size_bytes(&device).and_then(|bytes| i64::try_from(bytes).ok()).unwrap_or(0);
            let bytes = VolumeUsage { available: 0, total, used: 0, unit: Unit::Bytes.into() };
            return Ok(NodeGetVolumeStatsResponse { usage: vec![bytes] });
        }
        let found = rustix::fs::statvfs(&mount.at);
        let found = found.map_err(|error| Status::internal(format!("{}: {error}", mount.at.display())))?;
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let bytes = |count: u64| signed(count.saturating_mul(found.f_frsize));
        let usage = vec![
            VolumeUsage {
                available: bytes(found.f_bavail),
                total: bytes(found.f_blocks),
                used: bytes(found.f_blocks.saturating_sub(found.f_bfree)),
                unit: Unit::Bytes.into(),
            },
            VolumeUsage {
                available: signed(found.f_ffree),
                total: signed(found.f_files),
                used: signed(found.f_files.saturating_sub(found.f_ffree)),
                unit: Unit::Inodes.into(),
            },
        ];
        Ok(NodeGetVolumeStatsResponse { usage })
    }

    pub(crate) fn expand(
        &self,
        request: NodeExpandVolumeRequest,
    ) -> Result<NodeExpandVolumeResponse, Status> {
        let required_bytes = request.capacity_range.map_or(0, |range| range.required_bytes);
        let required_bytes = u64::try_from(required_bytes)
            .map_err(|_| invalid("capacity_range.required_bytes", "a size is not negative"))?;
        let (mount, device) = self.mounted(&request.volume_id, &request.volume_path)?;
        let _working = self.pending.begin(request.volume_id.clone())?;
        let deadline = Instant::now() + SIZE_TIME;
        let size = loop {
            match self.machine.size_bytes(&device) {
                Some(size) if size >= required_bytes => break size,
                size if Instant::now() > deadline => {
                    return Err(Status::unavailable(format!(
                        "{} has {} bytes yet, and is to have {required_bytes}",
                        device.display(),
                        size.unwrap_or(0)
                    )));
                }
                _ => {}
            }
            // The target has sent an event; a kernel that has missed it looks again.
            let id = Self::volume_id(&request.volume_id)?;
            self.machine.rescan(&self.nqn(&id));
            sleep(LOOK_TIME);
        };
        if !mount.is_file_of(&device) && !self.machine.is_read_only(&device) {
            self.grow(&device, &mount.file_system, &mount.at)?;
        }
        Ok(NodeExpandVolumeResponse { capacity_bytes: i64::try_from(size).unwrap_or(i64::MAX) })
    }

    /// The mount at the path of a volume, and its device.
    fn mounted(&self, volume_id: &str, volume_path: &str) -> Result<(Mount, PathBuf), Status> {
        required("volume_id", volume_id, "fast/pvc-1")?;
        let volume_path = required("volume_path", volume_path, "/var/lib/kubelet/…")?;
        let id = Self::volume_id(volume_id)?;
        let missing = || Status::not_found(format!("volume_path: the volume {id} is not at {volume_path}"));
        let device = self.machine.device(&self.nqn(&id)).ok_or_else(missing)?;
        let mounts = self.machine.mounts()?;
        let mount = mounts.into_iter().rev().find(|mount| mount.at == Path::new(volume_path));
        let mount = mount.filter(|mount| mount.is_of(&device)).ok_or_else(missing)?;
        Ok((mount, device))
    }
}
