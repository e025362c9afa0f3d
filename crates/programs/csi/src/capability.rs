//! How a volume is to be used: as a file system or as a block device, by which nodes.

use tonic::Status;

use crate::csi_v1::VolumeCapability;
use crate::csi_v1::volume_capability::AccessType;
use crate::csi_v1::volume_capability::access_mode::Mode;
use crate::refusal::invalid;

/// File systems, the usual one first. Not Btrfs: a kernel takes two with one UUID, as clones have it, for one file system.
pub(crate) const FILE_SYSTEMS: [&str; 3] = ["ext4", "xfs", "ext3"];

/// A use that is possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) access: Access,
    pub(crate) mode: Mode,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Block,
    Mount {
        /// `None` for the usual one.
        file_system: Option<String>,
        options: Vec<String>,
    },
}

impl Use {
    /// The use that this part of a request asks for.
    ///
    /// # Errors
    /// It is missing, unknown or impossible.
    pub(crate) fn of(field: &str, capability: Option<&VolumeCapability>) -> Result<Self, Status> {
        let capability =
            capability.ok_or_else(|| invalid(field, "missing: say how the volume is to be used"))?;
        let mode = capability.access_mode.map(|mode| mode.mode());
        let mode = mode.filter(|mode| *mode != Mode::Unknown).ok_or_else(|| {
            invalid(&format!("{field}.access_mode"), "missing or unknown, such as SINGLE_NODE_WRITER")
        })?;
        let access = match &capability.access_type {
            Some(AccessType::Block(_)) => Access::Block,
            Some(AccessType::Mount(mount)) => {
                let known = |name: &&str| FILE_SYSTEMS.contains(name);
                let file_system = match mount.fs_type.as_str() {
                    "" => None,
                    name => Some(Some(name).filter(known).ok_or_else(|| {
                        let right = format!("write {}, not {name:?}", FILE_SYSTEMS.join(", "));
                        invalid(&format!("{field}.mount.fs_type"), right)
                    })?),
                };
                if !mount.volume_mount_group.is_empty() {
                    let right = "leave it out: kubelet changes the group of files (fsGroup)";
                    return Err(invalid(&format!("{field}.mount.volume_mount_group"), right));
                }
                if [Mode::MultiNodeMultiWriter, Mode::MultiNodeSingleWriter].contains(&mode) {
                    let right = "a file system is for one node, or for readers: take a block volume (volumeMode: Block) or \
                                 another access mode";
                    return Err(invalid(&format!("{field}.access_mode"), right));
                }
                Access::Mount {
                    file_system: file_system.map(str::to_owned),
                    options: mount.mount_flags.clone(),
                }
            }
            None => return Err(invalid(&format!("{field}.access_type"), "missing: write block or mount")),
        };
        Ok(Self { access, mode })
    }

    /// Checks a list of uses, of which there must be one.
    pub(crate) fn all_of(field: &str, capabilities: &[VolumeCapability]) -> Result<(), Status> {
        if capabilities.is_empty() {
            return Err(invalid(field, "missing: say how the volume is to be used"));
        }
        capabilities.iter().try_for_each(|capability| Self::of(field, Some(capability)).map(drop))
    }

    pub(crate) fn is_block(&self) -> bool {
        self.access == Access::Block
    }

    /// Whether all nodes only read.
    pub(crate) fn only_reads(&self) -> bool {
        matches!(self.mode, Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly)
    }

    /// Whether one node at a time may use it.
    pub(crate) fn is_for_one_node(&self) -> bool {
        matches!(
            self.mode,
            Mode::SingleNodeWriter
                | Mode::SingleNodeReaderOnly
                | Mode::SingleNodeSingleWriter
                | Mode::SingleNodeMultiWriter
        )
    }
}
