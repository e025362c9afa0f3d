//! The file systems of configured storage.

use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open, statfs};
use store::{Source, Spec};
use subsystem::config::TargetConfig;

use super::finding::Finding;
use super::shell;
use crate::human_size::HumanSize;

/// A file system.
#[derive(Clone, Copy)]
struct Kind {
    magic: u64,
    name: &'static str,
    /// Copies of files may share their blocks.
    has_reflinks: bool,
    /// It is on another machine, or in another process.
    is_far: bool,
    /// It is gone after a power cut.
    is_memory: bool,
}

const fn kind(magic: u64, name: &'static str) -> Kind {
    Kind { magic, name, has_reflinks: false, is_far: false, is_memory: false }
}

const KINDS: [Kind; 14] = [
    Kind { has_reflinks: true, ..kind(0x5846_5342, "XFS") },
    Kind { has_reflinks: true, ..kind(0x9123_683e, "Btrfs") },
    Kind { has_reflinks: true, ..kind(0xca45_1a4e, "bcachefs") },
    kind(0xef53, "ext4"),
    kind(0xf2f5_2010, "F2FS"),
    kind(0x2fc1_2fc1, "ZFS"),
    kind(0x794c_7630, "overlayfs"),
    Kind { is_memory: true, ..kind(0x0102_1994, "tmpfs") },
    Kind { is_far: true, ..kind(0x6969, "NFS") },
    Kind { is_far: true, ..kind(0xff53_4d42, "CIFS") },
    Kind { is_far: true, ..kind(0xfe53_4d42, "SMB") },
    Kind { is_far: true, ..kind(0x0102_1997, "9p") },
    Kind { is_far: true, ..kind(0x6573_5546, "FUSE") },
    Kind { is_far: true, ..kind(0x00c3_6400, "Ceph") },
];

pub(super) fn examine(config: &TargetConfig) -> Vec<Finding> {
    let namespaces = config.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
    namespaces.flat_map(|namespace| of_spec(&namespace.storage)).collect()
}

fn of_spec(spec: &Spec) -> Vec<Finding> {
    let (path, is_device) = match &spec.source {
        Source::File { path, .. } | Source::KeyValueFile { path, .. } | Source::Volume { path } => {
            (path, false)
        }
        Source::Device { path } => (path, true),
        Source::Memory { .. }
        | Source::Null { .. }
        | Source::KeyValue { .. }
        | Source::KeyValueRados(_)
        | Source::Rbd(_)
        | Source::Nbd(_)
        | Source::VhostUser(_) => {
            return Vec::new();
        }
    };
    let mut findings = Vec::new();
    if !is_device {
        let directory = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .map_or_else(|| PathBuf::from("."), Path::to_owned);
        let place = if path.exists() { path } else { &directory };
        if let Ok(found) = statfs(place) {
            // The field has another type on other machines.
            #[allow(clippy::cast_sign_loss, clippy::unnecessary_cast)]
            let magic = found.f_type as u64 & 0xffff_ffff;
            findings.push(file_system(path, KINDS.iter().find(|kind| kind.magic == magic)));
        }
        if let Some((missing, free)) = spec.lacking_space() {
            findings.push(
                Finding::warning(
                    "space",
                    format!(
                        "{} can grow by {}, and its file system has {} free",
                        path.display(),
                        HumanSize(missing.into()),
                        HumanSize(free.into())
                    ),
                )
                .because("writes end with Capacity Exceeded once the file system is full")
                .change("make room, or grow the file system")
                .by(format!("df -h {}", shell(place))),
            );
        }
    }
    findings.extend(direct_io(path));
    findings
}

fn file_system(path: &Path, kind: Option<&Kind>) -> Finding {
    const CHECK: &str = "file system";
    let shown = path.display();
    let Some(kind) = kind else {
        return Finding::note(CHECK, format!("{shown}: of a kind that is not known here"));
    };
    let name = kind.name;
    if kind.is_memory {
        return Finding::warning(CHECK, format!("{shown} is in memory ({name})"))
            .because("it is gone after a power cut, whatever hosts have flushed")
            .change("put it on a disk");
    }
    if kind.is_far {
        return Finding::warning(CHECK, format!("{shown} is on {name}"))
            .because("flushes and locks are those of another machine or process: their promises and their time are not the disk's")
            .change("put it on a disk of this machine, if there is one")
            .by(format!("df {}", shell(path)));
    }
    match kind.has_reflinks {
        true => Finding::ok(CHECK, format!("{shown}: {name}, with reflinks where it was made with them")),
        false => Finding::ok(
            CHECK,
            format!("{shown}: {name}, without reflinks: copies of it take their full size"),
        ),
    }
}

/// Whether a file can be read past the page cache.
fn direct_io(path: &Path) -> Option<Finding> {
    const CHECK: &str = "direct I/O";
    let plain = open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty());
    // It is not there, or not for this user: the configuration's checks have that.
    plain.ok()?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::DIRECT;
    Some(match open(path, flags, Mode::empty()) {
        Ok(_) => Finding::ok(CHECK, format!("{}: available", path.display())),
        Err(error) => Finding::note(CHECK, format!("{}: not available, {error}", path.display()))
            .because("reads and writes go through the page cache, which takes memory and time of a core")
            .change("put it on a file system with direct I/O (ext4, XFS, Btrfs)"),
    })
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn storage_that_is_far_or_in_memory_is_told() {
        let of = |magic| file_system(Path::new("/x"), KINDS.iter().find(|kind| kind.magic == magic)).level;
        assert_eq!(
            [0x6969, 0x0102_1994, 0xef53, 0x5846_5342, 0x1234].map(of),
            [Level::Warning, Level::Warning, Level::Ok, Level::Ok, Level::Note]
        );
    }

    #[test]
    fn a_file_is_looked_at_and_a_namespace_in_memory_is_not() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let spec: Spec = format!("file:{}?size=1M", file.path().display()).parse().expect("a specification");
        let checks: Vec<&str> = of_spec(&spec).iter().map(|finding| finding.check).collect();
        assert!(checks.contains(&"file system") && checks.contains(&"direct I/O"), "{checks:?}");
        assert!(of_spec(&"ram:1M".parse().expect("a specification")).is_empty());
    }
}
