//! Control groups of version 2: where they are, and the sock_ops programs that are attached to one.

use std::fs;

use serde::{Deserialize, Serialize};

/// The programs of a control group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Names of those that are attached to it.
    Programs(Vec<String>),
    /// This process may not read them.
    Hidden,
    /// There can be none, with the reason.
    Unusable(String),
}

/// The privilege without which programs are [`Group::Hidden`].
pub(crate) const PRIVILEGE: &str = "root, or CAP_NET_ADMIN, CAP_BPF and CAP_SYS_ADMIN";

/// The directory of the topmost control group of version 2, by the list of mounts of this process.
#[must_use]
pub fn topmost_group() -> Option<String> {
    topmost_group_in(&fs::read_to_string("/proc/self/mountinfo").ok()?)
}

/// `mountinfo` has the mount point in its fifth word, and the kind of file system behind a lone hyphen.
fn topmost_group_in(mounts: &str) -> Option<String> {
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        (kind.split(' ').next()? == "cgroup2").then(|| place.split(' ').nth(4).map(str::to_owned))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_group_is_where_version_2_is_mounted() {
        let hybrid = "31 24 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      32 24 0:28 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(topmost_group_in(hybrid).as_deref(), Some("/sys/fs/cgroup/unified"));
        assert_eq!(topmost_group_in("24 1 0:22 / /sys rw - sysfs sysfs rw\n"), None);
    }
}
