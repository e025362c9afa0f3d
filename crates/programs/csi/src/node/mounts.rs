//! Which mounts are of namespaces' disks.

use std::ffi::OsStr;
use std::path::Path;

pub(crate) use linux::mounts::{Mount, parse};

/// A mount of a disk, or of its file.
pub(crate) trait DiskMount {
    /// Whether the device is mounted there, or its file.
    fn is_of(&self, device: &Path) -> bool;

    /// Whether it is the device's own file, as pods with a block volume have it.
    fn is_file_of(&self, device: &Path) -> bool;

    /// Whether it is of a namespace's disk, whichever that is.
    fn is_of_volume(&self) -> bool;
}

impl DiskMount for Mount {
    fn is_of(&self, device: &Path) -> bool {
        self.source == device || self.is_file_of(device)
    }

    fn is_file_of(&self, device: &Path) -> bool {
        device_file(self).is_some_and(|file| Some(file) == device.file_name())
    }

    fn is_of_volume(&self) -> bool {
        let is_disk = |name: &OsStr| name.as_encoded_bytes().starts_with(b"nvme");
        device_file(self).or_else(|| self.source.strip_prefix("/dev").ok()?.file_name()).is_some_and(is_disk)
    }
}

/// The name of the device whose file is mounted.
fn device_file(mount: &Mount) -> Option<&OsStr> {
    let of_devices = mount.file_system == "devtmpfs" || mount.file_system == "tmpfs";
    mount.root.file_name().filter(|_| of_devices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_of_a_device_or_of_its_file() {
        let text = b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            90 22 259:1 / /var/lib/a ro,nosuid - xfs /dev/nvme0n1 rw,attr2\n\
            91 22 0:5 /nvme1n1 /pods/1 rw master:2 propagate_from:3 - devtmpfs udev rw\n";
        let mounts = parse(text);
        assert!(
            mounts[1].is_of(Path::new("/dev/nvme0n1")) && !mounts[1].is_file_of(Path::new("/dev/nvme0n1"))
        );
        assert!(mounts[2].is_of(Path::new("/dev/nvme1n1")) && !mounts[2].is_of(Path::new("/dev/nvme1n11")));
        assert!(!mounts[0].is_file_of(Path::new("/dev/vda")));
        assert_eq!(mounts.iter().map(DiskMount::is_of_volume).collect::<Vec<_>>(), [false, true, true]);
    }
}
