//! What the thread that serves a directory shares with the rest: settings, the device, the namespaces of the moment.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use host::wire::identify::capabilities::Oncs;
use host::{Namespace, Nsid};

use super::directory::{FileInfo, FileSettings, ROOT};
use crate::exports::{ExportSettings, Exports};

/// How a directory is served.
#[derive(Clone, Debug)]
pub struct FuseSettings {
    /// Name of the file, if it is only one, and whether it may change.
    pub export: ExportSettings,
    /// Owner and permissions of the files.
    pub files: FileSettings,
    /// Other users may use them, as far as their permissions allow.
    pub allow_other: bool,
}

/// A namespace, and its file.
pub(crate) struct Served {
    pub(crate) info: FileInfo,
    pub(crate) namespace: Namespace,
}

/// What the thread shares with the rest.
pub(crate) struct Shared {
    pub(super) exports: Exports,
    pub(super) settings: FuseSettings,
    /// `/dev/fuse`.
    pub(crate) device: OwnedFd,
    /// No further request is taken.
    pub(crate) is_ending: AtomicBool,
    /// Requests in work.
    pub(crate) in_work: AtomicUsize,
    /// Namespaces have changed.
    pub(crate) has_changed: AtomicBool,
}

impl Shared {
    pub(crate) fn file_settings(&self) -> FileSettings {
        self.settings.files
    }

    /// The namespaces of this moment.
    pub(crate) fn served(&self) -> Vec<Served> {
        served(&self.exports, &self.settings.export)
    }
}

/// The node of a namespace's file.
pub(super) fn node(nsid: Nsid) -> u64 {
    ROOT + u64::from(nsid.get())
}

pub(super) fn name(nsid: Nsid, settings: &ExportSettings) -> String {
    if settings.name.is_empty() { format!("ns{nsid}") } else { settings.name.clone() }
}

fn served(exports: &Exports, settings: &ExportSettings) -> Vec<Served> {
    let file = |namespace: Namespace| {
        let nsid = namespace.nsid();
        let info = FileInfo {
            node: node(nsid),
            name: name(nsid, settings),
            size_bytes: namespace.size_bytes(),
            block_bytes: namespace.lba_bytes(),
            is_read_only: settings.is_read_only || namespace.info().is_write_protected,
            can_zero: namespace.limits().commands.contains(Oncs::WRITE_ZEROES),
            is_present: true,
        };
        Served { info, namespace }
    };
    exports.list().into_iter().map(|(_, namespace)| file(namespace)).collect()
}
