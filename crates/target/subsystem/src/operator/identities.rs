//! Identities of namespaces: given, stored with the file, or derived from the target.
//!
//! Hosts take two namespaces of one identity for one disk, so none is served under the identity of another.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use store::identity::{FileId, Origin, claim, keep_block_bytes, read};
use store::pool::volume_at;
use store::{Source, Spec};
use wire::id::Nsid;
use wire::nqn::Nqn;

use super::diff::{Change, Outline};
use crate::config::{ConfigPlace, Problem, ResolvedNamespace, TargetConfig};
use crate::messages::message::Step;
use crate::names::identity::{self, TargetIdentity, device_name, of_second_namespace, storage_name};
use crate::names::machine::{Machine, hostname};

/// A namespace within the target.
type Key = (Nqn, Nsid);

/// The identities of a target.
pub(super) struct Identities {
    target: TargetIdentity,
    /// The namespaces in place, including those of pending changes.
    taken: BTreeMap<Key, ResolvedNamespace>,
    /// The namespaces that were removed, each with its file: hosts may not have noticed.
    removed: BTreeMap<Key, (ResolvedNamespace, Option<FileId>)>,
    /// The open file of each namespace.
    files: BTreeMap<Key, FileId>,
    /// The identity that each served device reported when it was opened.
    devices: BTreeMap<Key, String>,
}

impl Identities {
    /// Creates it for the target with this configuration whose first listener has this address.
    pub(super) fn new(config: &TargetConfig, first: std::net::SocketAddr) -> Result<Self, Problem> {
        let machine = match Machine::chosen(config.machine.as_deref()) {
            Ok(machine) => machine,
            Err(_) if config.gives_all_identities() => Machine::named(&hostname()),
            Err(error) => return Err(Problem { place: ConfigPlace::Machine, message: error.to_string() }),
        };
        let target = TargetIdentity::new(machine, &hostname(), first);
        Ok(Self {
            target,
            taken: BTreeMap::new(),
            removed: BTreeMap::new(),
            files: BTreeMap::new(),
            devices: BTreeMap::new(),
        })
    }

    /// The source of derived identities.
    pub(super) fn target(&self) -> &TargetIdentity {
        &self.target
    }

    /// Starts changes of `running`: identities of removed namespaces are free.
    pub(super) fn begin(&mut self, running: &Outline, changes: &[Change]) {
        self.taken.clear();
        for (nqn, subsystem) in &running.subsystems {
            let namespaces = subsystem.namespaces.iter();
            self.taken.extend(namespaces.map(|(nsid, namespace)| ((nqn.clone(), *nsid), namespace.clone())));
        }
        let is_removed = |(nqn, nsid): &Key| {
            changes.iter().any(|change| match change {
                Change::RemoveSubsystem(removed) => nqn == removed,
                Change::RemoveNamespace(subsystem, removed, _) => (nqn, nsid) == (subsystem, removed),
                _ => false,
            })
        };
        for (key, namespace) in self.taken.extract_if(.., |key, _| is_removed(key)) {
            let file = self.files.get(&key).copied();
            self.removed.insert(key, (namespace, file));
        }
    }

    /// Settles the identity of a namespace whose storage has just been opened, with blocks of this size if it has any, and
    /// with the name that the storage has on every machine.
    pub(super) fn settle(
        &mut self,
        nqn: &Nqn,
        nsid: Nsid,
        namespace: &ResolvedNamespace,
        block_bytes: Option<u32>,
        of_storage: Option<String>,
    ) -> Result<ResolvedNamespace, String> {
        let key = (nqn.clone(), nsid);
        let mut settled = namespace.clone();
        let file = path(&namespace.spec).and_then(|path| FileId::of(path).ok());
        match file {
            Some(file) => drop(self.files.insert(key.clone(), file)),
            None => drop(self.files.remove(&key)),
        }
        match &namespace.spec.source {
            Source::Device { path } => drop(self.devices.insert(key.clone(), device_name(path))),
            _ => drop(self.devices.remove(&key)),
        }
        if let (Some(path), false) = (file_path(&namespace.spec), namespace.is_uuid_given) {
            self.claim(path, &mut settled);
        }
        if let Source::Volume { path } = &namespace.spec.source {
            settled.identify(volume_at(path)?.record.uuid);
        }
        if let Some(identity) = of_storage {
            settled.identify(identity::of_storage(&identity));
        }
        if let (Source::File { path, .. }, Some(block_bytes)) = (&namespace.spec.source, block_bytes)
            && let Err(error) = keep_block_bytes(path, block_bytes)
        {
            tracing::warn!(
                file = %path.display(), %error,
                "its block size cannot be kept with the file: give lba={block_bytes} at each start"
            );
        }
        let others = self.taken.iter().filter(|(other, _)| **other != key);
        let storage = storage_name(&namespace.spec);
        let has_it = |other: &ResolvedNamespace| {
            storage.is_some() && storage_name(&other.spec) == storage && other.uuid == settled.uuid
        };
        if others.clone().any(|(_, other)| has_it(other)) {
            let uuid = of_second_namespace(settled.uuid, nqn, nsid);
            settled.identify(uuid);
        }
        let is_same = |other: &ResolvedNamespace| other.uuid == settled.uuid || other.nguid == settled.nguid;
        if let Some(((other_nqn, other_nsid), other)) = others.clone().find(|(_, other)| is_same(other)) {
            return Err(format!(
                "{} has the uuid {} of {} ({other_nqn} namespace {other_nsid}), and hosts would take them for one disk: if it is a copy, \
                 write another uuid= with it",
                namespace.spec, settled.uuid, other.spec
            ));
        }
        // A volume that was rolled back is another file, and is meant to be the same disk.
        let is_volume = matches!(namespace.spec.source, Source::Volume { .. });
        if let Some((removed, removed_file)) = self.removed.get(&key)
            && *removed_file != file
            && !is_volume
            && is_same(removed)
        {
            return Err(format!(
                "it has the uuid {} of {}, which was removed, and hosts that have not noticed would take it for that: write another \
                 uuid= with it, or give it another nsid",
                settled.uuid, removed.spec
            ));
        }
        self.taken.insert(key, settled.clone());
        Ok(settled)
    }

    fn claim(&self, path: &Path, namespace: &mut ResolvedNamespace) {
        let shown = path.display();
        let machine = self.target.machine();
        match claim(path, machine.uuid(), machine.former_uuid()) {
            Ok((uuid, origin)) => {
                namespace.identify(uuid);
                match origin {
                    Origin::Kept | Origin::New => {}
                    Origin::Moved => tracing::warn!(
                        file = %shown, %uuid,
                        "the file was moved or copied here and keeps its identity: if the original is served too, give one of them \
                         another uuid="
                    ),
                    Origin::CopyOf(original) => tracing::info!(
                        file = %shown, %uuid, original = %original.display(),
                        "the file is a copy and gets an identity of its own"
                    ),
                }
            }
            Err(error) => tracing::warn!(
                file = %shown, uuid = %namespace.uuid, %error,
                "no identity can be kept with the file: it is that of its path, and changes when the file moves; uuid= fixes it"
            ),
        }
    }

    /// Follows files that have another path now. Returns a line for each, and the step that records its path.
    pub(super) fn follow_renamed(&self, running: &mut Outline, wanted: &Outline) -> Vec<(String, Step)> {
        let mut followed = Vec::new();
        for (nqn, subsystem) in &mut running.subsystems {
            let Some(wanted) = wanted.subsystems.get(nqn) else { continue };
            for (nsid, namespace) in &mut subsystem.namespaces {
                let Some(wanted) = wanted.namespaces.get(nsid) else { continue };
                let is_renamed = storage_name(&wanted.spec) != storage_name(&namespace.spec)
                    && self.is_open(nqn, *nsid, &wanted.spec);
                let paths = (path_mut(&mut namespace.spec), file_path(&wanted.spec));
                if let (true, (Some(known), Some(path))) = (is_renamed, paths) {
                    path.clone_into(known);
                    let path = path.display();
                    let line = format!("follow {nqn} namespace {nsid} to {path}: done, it is the same file");
                    let storage = Some(namespace.spec.to_string());
                    let step = Step::StorageChanged { subsystem: nqn.clone(), nsid: *nsid, storage };
                    followed.push((line, step));
                }
            }
        }
        followed
    }

    /// Gives the wanted configuration the running identities where it sets none and the storage is the same.
    pub(super) fn carry_over(&self, running: &Outline, wanted: &mut Outline) {
        for (nqn, subsystem) in &mut wanted.subsystems {
            let Some(running) = running.subsystems.get(nqn) else { continue };
            for (nsid, namespace) in &mut subsystem.namespaces {
                let Some(running) = running.namespaces.get(nsid) else { continue };
                if storage_name(&running.spec) != storage_name(&namespace.spec) {
                    continue;
                }
                if !running.is_uuid_given {
                    namespace.identify(running.uuid);
                } else if let Some(uuid) = file_path(&namespace.spec).and_then(read) {
                    namespace.identify(uuid);
                }
            }
        }
    }

    /// Checks that the path of a device leads to the device that the namespace has open.
    ///
    /// # Errors
    /// The text for the operator if it leads to another one.
    pub(super) fn check_device(&self, nqn: &Nqn, nsid: Nsid) -> Result<(), String> {
        let key = (nqn.clone(), nsid);
        let (Some(before), Some(namespace)) = (self.devices.get(&key), self.taken.get(&key)) else {
            return Ok(());
        };
        // If nothing is there, opening reports it.
        let Some(path) = path(&namespace.spec).filter(|path| path.exists()) else { return Ok(()) };
        let now = device_name(path);
        if now == *before {
            return Ok(());
        }
        Err(format!(
            "{} is another device now ({now:?} instead of {before:?}), and hosts would take the two for one disk: remove the namespace, reload, \
             and add it under another nsid",
            path.display()
        ))
    }

    /// Whether `spec` leads to the file that a namespace has open.
    fn is_open(&self, nqn: &Nqn, nsid: Nsid, spec: &Spec) -> bool {
        let (Some(path), Some(open)) = (path(spec), self.files.get(&(nqn.clone(), nsid))) else {
            return false;
        };
        FileId::of(path).is_ok_and(|file| file == *open)
    }

    /// As above, or `true` where the namespace's storage is in no file.
    pub(super) fn has_open(&self, nqn: &Nqn, nsid: Nsid, spec: &Spec) -> bool {
        !self.files.contains_key(&(nqn.clone(), nsid)) || self.is_open(nqn, nsid, spec)
    }

    /// Reports namespaces whose path leads to another file than the one they have open. For `closed` ones, reopening
    /// reports it.
    pub(super) fn replaced_files(
        &self,
        running: &Outline,
        wanted: &Outline,
        closed: &BTreeSet<Key>,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        for (nqn, subsystem) in &running.subsystems {
            for (nsid, namespace) in &subsystem.namespaces {
                let wanted = wanted.subsystems.get(nqn).and_then(|subsystem| subsystem.namespaces.get(nsid));
                let is_wanted =
                    |wanted: &ResolvedNamespace| storage_name(&wanted.spec) == storage_name(&namespace.spec);
                let Some(path) = path(&namespace.spec).filter(|_| wanted.is_some_and(is_wanted)) else {
                    continue;
                };
                if closed.contains(&(nqn.clone(), *nsid)) || self.has_open(nqn, *nsid, &namespace.spec) {
                    continue;
                }
                let shown = path.display();
                lines.push(if FileId::of(path).is_ok() {
                    format!(
                        "serve the file that is now at {shown} as {nqn} namespace {nsid}: not done, hosts would take it for the file \
                         that was served: remove the namespace, reload, and add it again under another nsid"
                    )
                } else {
                    format!(
                        "keep {nqn} namespace {nsid}: {shown} is gone, and the open file's contents are lost when the target ends"
                    )
                });
            }
        }
        lines
    }
}

impl TargetConfig {
    /// Whether no identity is derived that could be the same on another machine.
    fn gives_all_identities(&self) -> bool {
        self.subsystems.iter().all(|subsystem| {
            subsystem.serial.is_some()
                && subsystem.namespaces.iter().all(|namespace| namespace.uuid().is_some())
        })
    }
}

/// The path of storage that has one.
fn path(spec: &Spec) -> Option<&Path> {
    match &spec.source {
        Source::Device { path } | Source::Volume { path } => Some(path),
        _ => file_path(spec),
    }
}

fn path_mut(spec: &mut Spec) -> Option<&mut std::path::PathBuf> {
    match &mut spec.source {
        Source::File { path, .. } | Source::KeyValueFile { path, .. } => Some(path),
        _ => None,
    }
}

fn file_path(spec: &Spec) -> Option<&Path> {
    match &spec.source {
        Source::File { path, .. } | Source::KeyValueFile { path, .. } => Some(path),
        _ => None,
    }
}
