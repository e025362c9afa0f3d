//! The sysfs of this network namespace. The one at `/sys` may be another's: a process enters a network namespace
//! (`unshare --net`, `nsenter --net`, a container's) without a mount of sysfs for it.

use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::kernel::Failure;
use crate::netlink::link::Link;

/// Interfaces in sysfs.
#[derive(Debug)]
pub struct Sysfs {
    interfaces: PathBuf,
    /// The descriptor of a detached mount, which ends with it; `None` for the mount at `/sys`.
    _mount: Option<OwnedFd>,
}

impl Sysfs {
    /// The sysfs of the network namespace with these interfaces: that at `/sys`, if it shows the same names, numbers
    /// and addresses, else a mount of its own, which takes the privilege.
    ///
    /// # Errors
    /// [`Failure`] if `/sys` shows another namespace, and sysfs cannot be mounted.
    pub fn of(links: &[Link]) -> Result<Self, Failure> {
        let interfaces = PathBuf::from("/sys/class/net");
        if shows(&interfaces, links) {
            return Ok(Self { interfaces, _mount: None });
        }
        let (interfaces, mount) = mount().map_err(|errno| {
            Failure(format!(
                "/sys shows the interfaces of another network namespace, and a sysfs of this one cannot be mounted ({errno}): \
                 it takes CAP_SYS_ADMIN, or a /sys of this namespace, as `ip netns exec` provides it"
            ))
        })?;
        Ok(Self { interfaces, _mount: Some(mount) })
    }

    /// The directory of an interface.
    #[must_use]
    pub fn directory(&self, interface: &str) -> PathBuf {
        self.interfaces.join(interface)
    }
}

/// A path as users know it: below `/sys`.
pub(crate) fn known_path(path: &Path) -> PathBuf {
    match path.to_str().and_then(|path| path.split_once("/class/net/")) {
        Some((_, below)) => Path::new("/sys/class/net").join(below),
        None => path.to_owned(),
    }
}

/// Mounts sysfs where no path leads, and returns the directory of its interfaces.
fn mount() -> Result<(PathBuf, OwnedFd), Errno> {
    let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
    let interfaces = PathBuf::from(format!("/proc/self/fd/{}/class/net", mount.as_raw_fd()));
    // Without procfs no path leads there.
    if interfaces.is_dir() { Ok((interfaces, mount)) } else { Err(Errno::NOENT) }
}

/// Whether a directory has exactly these interfaces, with their numbers and addresses.
fn shows(interfaces: &Path, links: &[Link]) -> bool {
    let read = |link: &Link, name: &str| {
        let text = fs::read_to_string(interfaces.join(&link.name).join(name)).unwrap_or_default();
        text.trim().to_owned()
    };
    let is_same = |link: &Link| {
        read(link, "ifindex") == link.ifindex.to_string() && read(link, "address") == link.address
    };
    // `bonding_masters` is a file among them.
    let count =
        fs::read_dir(interfaces).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir());
    count.count() == links.len() && links.iter().all(is_same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sysfs_with_other_interfaces_is_told_from_ours() {
        let directory = tempfile::tempdir().unwrap();
        let link = |ifindex, name: &str, address: &str| Link {
            ifindex,
            name: name.into(),
            address: address.into(),
            kind: None,
            is_up: true,
        };
        let links = [link(1, "lo", "00:00:00:00:00:00"), link(2, "eth0", "02:00:5e:10:00:01")];
        for Link { ifindex, name, address, .. } in &links {
            let interface = directory.path().join(name);
            fs::create_dir(&interface).unwrap();
            fs::write(interface.join("ifindex"), format!("{ifindex}\n")).unwrap();
            fs::write(interface.join("address"), format!("{address}\n")).unwrap();
        }
        fs::write(directory.path().join("bonding_masters"), "\n").unwrap();
        assert!(shows(directory.path(), &links));
        assert!(!shows(directory.path(), &links[..1]), "one more");
        let mut other = links.clone();
        other[1].address = "02:00:5e:10:00:02".into();
        assert!(!shows(directory.path(), &other), "another device of this name and number");
        other = links.clone();
        other[1].ifindex = 3;
        assert!(!shows(directory.path(), &other), "another number");
    }
}
