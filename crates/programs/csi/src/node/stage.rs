//! Connects a volume to the node, and mounts it where its pods have it from.

use std::net::SocketAddr;
use std::path::Path;

use tonic::Status;

use super::Node;
use super::machine::Export;
use super::mounts::DiskMount;
use crate::authentication::Secrets;
use crate::capability::{Access, FILE_SYSTEMS, Use};
use crate::context::{ADDRESSES, NQN, SECRETS, UUID};
use crate::csi_v1::{
    NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse,
};
use crate::name::Id;
use crate::refusal::{invalid, required};

impl Node {
    pub(crate) fn stage(&self, request: NodeStageVolumeRequest) -> Result<NodeStageVolumeResponse, Status> {
        required("volume_id", &request.volume_id, "fast/pvc-1")?;
        let at = path("staging_target_path", &request.staging_target_path)?;
        let wanted = Use::of("volume_capability", request.volume_capability.as_ref())?;
        let id = Self::volume_id(&request.volume_id)?;
        let mut export = self.export(&id, &request.publish_context)?;
        let needed = request.publish_context.get(SECRETS).map_or("", String::as_str);
        export.secrets = self.secrets.for_volume(needed, &request.secrets)?;
        let _working = self.pending.begin(id.to_string())?;
        let device = self.machine.connect(&export)?;
        let Access::Mount { file_system, options } = &wanted.access else {
            return Ok(NodeStageVolumeResponse {});
        };
        if let Some(mount) = self.machine.mounts()?.iter().rev().find(|mount| mount.at == at) {
            return match mount.is_of(&device) {
                true => Ok(NodeStageVolumeResponse {}),
                false => Err(Status::internal(format!(
                    "staging_target_path: {} is mounted at {} already",
                    mount.source.display(),
                    at.display()
                ))),
            };
        }
        let is_read_only = wanted.only_reads() || self.machine.is_read_only(&device);
        let file_system = self.file_system(&device, file_system.as_deref(), is_read_only)?;
        std::fs::create_dir_all(at)
            .map_err(|error| Status::internal(format!("{}: {error}", at.display())))?;
        let mut all: Vec<&str> = options.iter().map(String::as_str).collect();
        if is_read_only {
            all.push("ro");
        }
        // A clone has the UUID of its source, which may be mounted on this node too.
        if file_system == "xfs" {
            all.push("nouuid");
        }
        // A journal that cannot be replayed.
        match (self.machine.is_read_only(&device), file_system.as_str()) {
            (true, "xfs") => all.push("norecovery"),
            (true, _) => all.push("noload"),
            (false, _) => {}
        }
        let options = all.join(",");
        let (device_text, at_text) = (device.to_string_lossy(), at.to_string_lossy());
        let mut arguments = vec!["-t", &file_system];
        if !options.is_empty() {
            arguments.extend(["-o", &options]);
        }
        arguments.extend([&*device_text, &*at_text]);
        self.machine.run("mount", &arguments)?;
        tracing::info!(volume = %id, device = %device_text, %file_system, "volume mounted");
        if !is_read_only {
            // A clone may be larger than its source, or the volume has grown while no node had it.
            self.grow(&device, &file_system, at)?;
        }
        Ok(NodeStageVolumeResponse {})
    }

    pub(crate) fn unstage(
        &self,
        request: NodeUnstageVolumeRequest,
    ) -> Result<NodeUnstageVolumeResponse, Status> {
        required("volume_id", &request.volume_id, "fast/pvc-1")?;
        let at = path("staging_target_path", &request.staging_target_path)?;
        // What cannot be there is not staged.
        let Some(id) = Id::parse(&request.volume_id) else { return Ok(NodeUnstageVolumeResponse {}) };
        let _working = self.pending.begin(id.to_string())?;
        let nqn = self.nqn(&id);
        let device = self.machine.device(&nqn);
        self.unmount(at, device.as_deref())?;
        if let Some(device) = &device {
            let used = self.machine.mounts()?.into_iter().find(|mount| mount.is_of(device));
            if let Some(mount) = used {
                tracing::warn!(volume = %id, at = %mount.at.display(), "volume stays connected: it is mounted elsewhere");
                return Ok(NodeUnstageVolumeResponse {});
            }
        }
        self.machine.disconnect(&nqn)?;
        if device.is_some() {
            tracing::info!(volume = %id, "volume disconnected");
        }
        Ok(NodeUnstageVolumeResponse {})
    }

    /// Where a volume is served, by what its controller has told.
    pub(super) fn export(
        &self,
        id: &Id,
        context: &std::collections::BTreeMap<String, String>,
    ) -> Result<Export, Status> {
        let value = |key: &str| {
            let field = format!("publish_context.{key}");
            let text = context
                .get(key)
                .ok_or_else(|| invalid(&field, "missing: publish the volume to this node first"))?;
            Ok::<_, Status>((field, text.as_str()))
        };
        let (field, nqn) = value(NQN)?;
        if nqn != self.nqn(id) {
            let right =
                format!("{nqn:?} is not of this volume: controller and nodes have the same --nqn-prefix");
            return Err(invalid(&field, right));
        }
        let (field, addresses) = value(ADDRESSES)?;
        let addresses: Result<Vec<SocketAddr>, _> = addresses.split(',').map(str::parse).collect();
        let addresses =
            addresses.map_err(|_| invalid(&field, "write ADDR:PORT, with commas between several"))?;
        let (field, uuid) = value(UUID)?;
        let is_uuid = uuid.len() == 36 && uuid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        match is_uuid {
            true => Ok(Export { nqn: nqn.into(), addresses, uuid: uuid.into(), secrets: Secrets::default() }),
            false => Err(invalid(&field, "write the UUID of a namespace")),
        }
    }

    /// The file system on a device, which is made if the device is blank.
    fn file_system(&self, device: &Path, wanted: Option<&str>, is_read_only: bool) -> Result<String, Status> {
        let shown = device.display();
        if let Some(found) = self.machine.content(device)? {
            let is_meant = match wanted {
                Some(wanted) => wanted == found,
                None => FILE_SYSTEMS.contains(&found.as_str()),
            };
            return match is_meant {
                true => Ok(found),
                false => Err(Status::failed_precondition(format!(
                    "volume_capability.mount.fs_type: the volume has {found}, and not {}: nothing is changed there",
                    wanted.unwrap_or("a file system that is known")
                ))),
            };
        }
        if is_read_only {
            return Err(Status::failed_precondition(format!(
                "volume_capability: the volume is blank, and read-only: {shown} gets no file system"
            )));
        }
        let kind = wanted.unwrap_or(FILE_SYSTEMS[0]);
        let device = device.to_string_lossy();
        match kind {
            "xfs" => self.machine.run("mkfs.xfs", &["-q", &device])?,
            // Blocks that only root may fill are of no use to pods.
            kind => self.machine.run(&format!("mkfs.{kind}"), &["-q", "-m", "0", &device])?,
        }
        Ok(kind.to_owned())
    }

    /// Lets a mounted file system have all of its device.
    pub(super) fn grow(&self, device: &Path, file_system: &str, at: &Path) -> Result<(), Status> {
        match file_system {
            "xfs" => self.machine.run("xfs_growfs", &[&at.to_string_lossy()]),
            _ => self.machine.run("resize2fs", &[&device.to_string_lossy()]),
        }
    }
}

/// The absolute path in a field.
pub(super) fn path<'a>(field: &str, text: &'a str) -> Result<&'a Path, Status> {
    let text = required(field, text, "/var/lib/kubelet/…")?;
    match Path::new(text) {
        path if path.is_absolute() => Ok(path),
        _ => Err(invalid(field, "write an absolute path")),
    }
}
