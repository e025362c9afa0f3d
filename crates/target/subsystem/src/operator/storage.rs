//! Storage that changes while it is served: files that grow or are cut by other programs, devices that are resized or
//! removed, and namespaces that were closed and are reopened.

use std::collections::BTreeSet;

use store::{Generation, Size, Store};
use wire::id::Nsid;
use wire::nqn::Nqn;

use super::{ChangeOutcome, Operator, Post, Report, announce};
use crate::messages::message::Step;

/// The state of a namespace's storage last reported to hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    generation: Generation,
    bytes: u64,
    is_write_protected: bool,
    lacks_space: bool,
}

impl Seen {
    fn of(store: &Store) -> Self {
        let health = store.health();
        Self {
            generation: store.generation(),
            bytes: store.bytes(),
            is_write_protected: health.is_write_protected,
            lacks_space: health.lacks_space(),
        }
    }
}

impl Operator {
    /// Whether any storage can change without the target.
    #[must_use]
    pub fn has_storage_to_watch(&self) -> bool {
        self.stores.values().any(Store::can_change_underneath)
    }

    /// The namespaces that are closed.
    pub(super) fn closed(&self) -> BTreeSet<(Nqn, Nsid)> {
        let closed = self.stores.iter().filter(|(_, store)| store.closed_because().is_some());
        closed.map(|(key, _)| key.clone()).collect()
    }

    /// Reopens the closed namespaces, and notifies hosts of all changed storage. May block.
    pub fn reopen_closed(&mut self, post: Post<'_>) -> Report {
        let mut report = Report::default();
        let stores: Vec<_> = self.stores.iter().map(|(key, store)| (key.clone(), store.clone())).collect();
        for ((nqn, nsid), store) in stores {
            let Some(why) = store.closed_because() else { continue };
            let name = self.name_of(&nqn, nsid);
            let reopened = self
                .identities
                .check_device(&nqn, nsid)
                .and_then(|()| store.reopen().map_err(|error| error.to_string()));
            match reopened {
                Ok(()) => {
                    let size = Size(store.bytes());
                    let text = format!(
                        "reopen {name}: done, it has {size}; it was closed because {why}, and what was written before \
                         and not flushed may be lost"
                    );
                    report.add(ChangeOutcome::Done, text);
                }
                Err(error) => report.add(
                    ChangeOutcome::Failed,
                    format!("reopen {name}: not done, {error}; closed because {why}"),
                ),
            }
        }
        report.lines.append(&mut self.look_after_storage(post).lines);
        report
    }

    /// Checks whether storage has changed underneath, and notifies hosts of changes. May block.
    pub fn look_after_storage(&mut self, post: Post<'_>) -> Report {
        let mut report = Report::default();
        let mut steps = Vec::new();
        self.seen.retain(|key, _| self.stores.contains_key(key));
        for ((nqn, nsid), store) in &self.stores {
            store.revalidate();
            let now = Seen::of(store);
            let key = (nqn.clone(), *nsid);
            let Some(before) = self.seen.insert(key, now).filter(|before| *before != now) else { continue };
            let name = self.name_of(nqn, *nsid);
            let shape = |seen: Seen| Seen { lacks_space: false, ..seen };
            if shape(now) != shape(before) {
                steps.push(Step::StorageChanged { subsystem: nqn.clone(), nsid: *nsid, storage: None });
            }
            if now.lacks_space && !before.lacks_space {
                steps.push(Step::SpaceLow { subsystem: nqn.clone(), nsid: *nsid });
            }
            told(&name, before, now, store, &mut report);
            if now.bytes != before.bytes && !now.generation.is_closed() {
                let (was, is) = (Size(before.bytes), Size(now.bytes));
                report.add(
                    ChangeOutcome::Done,
                    format!("resize {name} with its storage: done, from {was} to {is}"),
                );
            }
            if now.generation.is_closed() && !before.generation.is_closed() {
                let why = store.closed_because().unwrap_or_default();
                report.add(ChangeOutcome::Failed, format!("{name} is closed: {why}"));
            }
        }
        announce(steps, post, &mut report);
        report
    }

    /// Records that hosts know the current state of this namespace.
    pub(super) fn see(&mut self, nqn: &Nqn, nsid: Nsid) {
        let key = (nqn.clone(), nsid);
        if let Some(store) = self.stores.get(&key) {
            self.seen.insert(key, Seen::of(store));
        }
    }

    /// Records that hosts know the current state of all namespaces.
    pub(super) fn see_all(&mut self) {
        self.seen = self.stores.iter().map(|(key, store)| (key.clone(), Seen::of(store))).collect();
    }

    fn name_of(&self, nqn: &Nqn, nsid: Nsid) -> String {
        let namespace =
            self.running.subsystems.get(nqn).and_then(|subsystem| subsystem.namespaces.get(&nsid));
        let storage = namespace.map_or_else(String::new, |namespace| format!(" ({})", namespace.spec));
        format!("{nqn} namespace {nsid}{storage}")
    }
}

/// Reports changes of the space and the write protection of open storage.
fn told(name: &str, before: Seen, now: Seen, store: &Store, report: &mut Report) {
    if now.generation.is_closed() {
        return;
    }
    match (before.is_write_protected, now.is_write_protected) {
        (false, true) => {
            report.add(
                ChangeOutcome::Failed,
                format!("{name} is write protected: its storage is read-only now"),
            );
        }
        (true, false) => report.add(ChangeOutcome::Done, format!("{name} is not write protected any more")),
        _ => {}
    }
    let health = store.health();
    let free = health.free_bytes.map_or_else(String::new, |free| format!(", {} are free", Size(free)));
    match (before.lacks_space, now.lacks_space) {
        (false, true) => {
            let what = if health.is_full { "has no space left for writes" } else { "has little space left" };
            report.add(ChangeOutcome::Failed, format!("{name} {what}{free}: hosts see it in the SMART log"));
        }
        (true, false) => report.add(ChangeOutcome::Done, format!("{name} has space again{free}")),
        _ => {}
    }
}
