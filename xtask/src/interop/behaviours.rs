//! The behaviours, as data: one row per script of `interop/`.

/// Which side is the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// `nvlane target` runs outside; the guest's kernel is the host.
    LinuxHost,
    /// nvmet runs in the guest; `nvlane` is the host, outside.
    LinuxTarget,
    /// `nvlane` runs in the guest and sets its network devices.
    Network,
    /// `nvlane` runs in the guest and serves its block devices to the guest's kernel.
    Disk,
    /// `nvlane target` and `nvlane attach vhost-user` run outside: namespace 1 is a disk of the guest, which is booted for
    /// this behaviour alone.
    VhostUser,
}

/// One behaviour: what its script needs from the outside.
#[derive(Debug)]
pub(crate) struct Behaviour {
    pub(crate) side: Side,
    /// The script's name, without `.sh`.
    pub(crate) name: &'static str,
    /// Namespaces the target starts with: `NSID=ram:SIZE` or `NSID=file:NAME:SIZE`, each with
    /// `@4096` for blocks of that size instead of 512, or `NSID=kv:ram:SIZE`.
    pub(crate) namespaces: &'static [&'static str],
    /// After this many seconds the behaviour has failed. Several times what an idle machine takes.
    pub(crate) limit_s: u64,
    /// Whether the older kernels are left out unless they are named: they differ in little that it tries.
    pub(crate) newest_only: bool,
    /// Whether `make test` leaves it out: it takes over a minute, and other behaviours try most of what it tries.
    pub(crate) soak_only: bool,
}

impl Behaviour {
    const fn on_newest(self) -> Self {
        Self { newest_only: true, ..self }
    }

    const fn in_soak(self) -> Self {
        Self { soak_only: true, ..self }
    }

    /// Where its script is below `interop/`, without `.sh`; also what users call it.
    pub(crate) fn path(&self) -> String {
        match self.side {
            Side::LinuxHost => format!("linux-host/{}", self.name),
            Side::LinuxTarget => format!("linux-target/{}", self.name),
            Side::Network => format!("network/{}", self.name),
            Side::Disk => format!("disk/{}", self.name),
            Side::VhostUser => format!("vhost-user/{}", self.name),
        }
    }
}

const fn host(name: &'static str, namespaces: &'static [&'static str], limit_s: u64) -> Behaviour {
    Behaviour { side: Side::LinuxHost, name, namespaces, limit_s, newest_only: false, soak_only: false }
}

const fn target(name: &'static str, limit_s: u64) -> Behaviour {
    Behaviour {
        side: Side::LinuxTarget,
        name,
        namespaces: &[],
        limit_s,
        newest_only: false,
        soak_only: false,
    }
}

const fn network(name: &'static str, limit_s: u64) -> Behaviour {
    Behaviour { side: Side::Network, name, namespaces: &[], limit_s, newest_only: false, soak_only: false }
}

const fn disk(name: &'static str, limit_s: u64) -> Behaviour {
    Behaviour { side: Side::Disk, name, namespaces: &[], limit_s, newest_only: false, soak_only: false }
}

const fn vhost_user(name: &'static str, namespaces: &'static [&'static str], limit_s: u64) -> Behaviour {
    Behaviour { side: Side::VhostUser, name, namespaces, limit_s, newest_only: false, soak_only: false }
}

/// In execution order: long ones first, so that no guest is left with one at the end.
pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    target("brd", 400).on_newest().in_soak(),
    target("file", 300).on_newest(),
    target("target-returns", 120).on_newest(),
    target("ana", 120).on_newest(),
    target("ana-loss", 60).on_newest(),
    target("namespace-disabled", 120).on_newest(),
    target("authentication", 400),
    target("tls", 180),
    target("discover", 30),
    network("adq", 300).on_newest(),
    network("adq-sock-ops", 240).on_newest(),
    network("stacks", 300).on_newest().in_soak(),
    network("study-interface", 600).on_newest().in_soak(),
    vhost_user("disk", &["1=file:disk:256M"], 400).on_newest().in_soak(),
    disk("power-cuts", 400).on_newest(),
    disk("clock", 240).on_newest(),
    disk("ublk", 900).on_newest().in_soak(),
    disk("csi", 900).on_newest().in_soak(),
    disk("nbd", 400).on_newest().in_soak(),
    host("fio-verify", &["1=ram:64M"], 240),
    host("fstrim", &["1=file:disk:512M"], 180).on_newest(),
    host("ext4", &["1=file:disk:512M"], 120).on_newest(),
    host("xfs", &["1=file:disk:512M@4096"], 120).on_newest(),
    host("target-killed", &["1=file:disk:64M"], 240),
    host("keep-alive-expiry", &["1=ram:16M"], 120).on_newest(),
    host("two-machines", &["1=ram:16M"], 120),
    host("storage-swapped", &["1=file:disk:64M"], 120).on_newest(),
    host("reset", &["1=ram:64M"], 120),
    host("namespace-added", &["1=ram:64M"], 90).on_newest(),
    host("namespace-resized", &["1=file:disk:64M"], 90).on_newest(),
    host("storage-changed", &["1=file:disk", "2=file:other:32M"], 120).on_newest(),
    host("namespace-removed", &["1=file:disk:64M", "2=file:other:32M"], 90).on_newest(),
    host("connect", &["1=ram:64M"], 60),
    host("authentication", &["1=ram:16M"], 400),
    host("tls", &["1=ram:64M"], 300),
    host("connect-all", &["1=ram:16M"], 60),
    host("digests", &["1=ram:64M"], 90).on_newest(),
    host("io-queues", &["1=ram:64M"], 60).on_newest(),
    host("nvm-commands", &["1=ram:64M"], 60).on_newest(),
    host("key-value", &["1=ram:16M", "2=kv:ram:64M"], 60).on_newest(),
    host("discover", &["1=ram:16M"], 30),
    host("refused", &["1=ram:16M"], 30),
    host("host-name", &["1=ram:16M"], 120).on_newest(),
    host("id-ctrl", &["1=ram:16M"], 30).on_newest(),
    host("id-ns", &["1=ram:64M", "2=ram:32M@4096"], 30).on_newest(),
    host("lba-status", &["1=file:disk:64M@4096"], 30).on_newest(),
    host("ns-descs", &["1=ram:16M", "2=ram:16M"], 30).on_newest(),
    host("list-ns", &["1=ram:16M", "2=ram:16M", "7=ram:16M"], 30).on_newest(),
    host("smart-log", &["1=ram:64M"], 30).on_newest(),
    host("error-log", &["1=ram:64M"], 30).on_newest(),
    host("fw-log", &["1=ram:16M"], 30).on_newest(),
    host("effects-log", &["1=ram:16M"], 30).on_newest(),
    host("get-feature", &["1=ram:16M"], 60).on_newest(),
    host("show-regs", &["1=ram:16M"], 30).on_newest(),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::BEHAVIOURS;
    use crate::command::root;

    #[test]
    fn every_script_has_one_row_and_every_row_a_script() {
        let mut scripts = BTreeSet::new();
        for side in ["linux-host", "linux-target", "network", "disk", "vhost-user"] {
            for entry in std::fs::read_dir(root().join("interop").join(side)).expect("scripts are there") {
                let name = entry.expect("readable").file_name().into_string().expect("plain name");
                scripts.insert(format!("{side}/{}", name.trim_end_matches(".sh")));
            }
        }
        let rows: BTreeSet<_> = BEHAVIOURS.iter().map(super::Behaviour::path).collect();
        assert_eq!(rows.len(), BEHAVIOURS.len(), "a row is there twice");
        assert_eq!(rows, scripts);
    }

    #[test]
    fn every_script_has_a_summary() {
        for behaviour in BEHAVIOURS {
            let summary = crate::interop::summary(behaviour).expect("a head");
            assert!(summary.len() > 20 && !summary.ends_with('.'), "{}: {summary}", behaviour.path());
        }
    }
}
