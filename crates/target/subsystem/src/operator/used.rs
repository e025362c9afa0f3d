//! Namespaces that a reload is to remove while hosts are connected to them: kept, unless the operator insists.

use wire::id::Nsid;
use wire::nqn::{HostName, Nqn};

use super::diff::Change;
use super::{Operator, Post, counted, state};
use crate::messages::state::TargetState;
use crate::names::identity::storage_name;
use crate::objects::access::Right;

/// Hosts that are named in a refusal.
const NAMED_HOST_COUNT: usize = 3;

impl Operator {
    /// Whether reloads from now on keep namespaces and subsystems to which hosts are connected.
    pub fn set_keeps_used(&mut self, keeps: bool) {
        self.keeps_used = keeps;
    }

    /// Refuses removals of namespaces and subsystems that connected hosts use, and additions that need storage that
    /// stays.
    pub(super) fn keep_used(&self, changes: &mut [Change], post: Post<'_>) {
        let is_removal =
            |change: &Change| matches!(change, Change::RemoveSubsystem(_) | Change::RemoveNamespace(..));
        if !changes.iter().any(is_removal) {
            return;
        }
        // A target that has stopped has no hosts.
        let Some(state) = state(post) else { return };
        let mut kept = Vec::new();
        for change in changes.iter_mut() {
            let (nqn, nsid) = match change {
                Change::RemoveSubsystem(nqn) => (nqn.clone(), None),
                Change::RemoveNamespace(nqn, nsid, _) => (nqn.clone(), Some(*nsid)),
                _ => continue,
            };
            let hosts = self.hosts(&state, &nqn, nsid);
            if hosts.is_empty() {
                continue;
            }
            let (first, others) = hosts.split_at(hosts.len().min(NAMED_HOST_COUNT));
            let more = if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
            let why = format!(
                "{} connected and would lose it: {}{more}. Disconnect there, or insist with nvlane reload --force",
                is_or_are(hosts.len()),
                first.join(", ")
            );
            *change = Change::Refused { what: change.to_string(), why };
            let of_subsystem = self.running.subsystems.get(&nqn).into_iter();
            let namespaces = of_subsystem.flat_map(|subsystem| &subsystem.namespaces);
            let stays = namespaces.filter(|(known, _)| nsid.is_none_or(|nsid| nsid == **known));
            kept.extend(stays.filter_map(|(known, namespace)| {
                Some((storage_name(&namespace.spec)?, format!("{nqn} namespace {known}")))
            }));
        }
        for change in changes.iter_mut() {
            let Change::AddNamespace(_, _, namespace) = change else { continue };
            let name = storage_name(&namespace.spec);
            if let Some((_, place)) = kept.iter().find(|(storage, _)| Some(storage) == name.as_ref()) {
                let why = format!("its storage stays {place}, which hosts use");
                *change = Change::Refused { what: change.to_string(), why };
            }
        }
    }

    /// The connected hosts that see a namespace, or any of a subsystem.
    fn hosts(&self, state: &TargetState, nqn: &Nqn, nsid: Option<Nsid>) -> Vec<String> {
        let Some(running) = self.running.subsystems.get(nqn) else { return Vec::new() };
        let sees = |host: &&String| {
            let mut namespaces =
                running.namespaces.iter().filter(|(known, _)| nsid.is_none_or(|nsid| nsid == **known));
            let Ok(host) = host.parse::<HostName>() else { return true };
            namespaces.any(|(_, namespace)| namespace.rights.of(&host) != Right::None)
        };
        let of_subsystem = state.subsystems.iter().filter(|subsystem| subsystem.nqn == nqn.as_str());
        let mut hosts: Vec<String> = of_subsystem
            .flat_map(|subsystem| &subsystem.controllers)
            .map(|controller| &controller.host)
            .filter(sees)
            .cloned()
            .collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }
}

fn is_or_are(count: usize) -> String {
    format!("{} {}", counted(count, "host"), if count == 1 { "is" } else { "are" })
}
