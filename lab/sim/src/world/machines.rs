//! Two machines: for a while the address of the target is answered by another one, with a copy of its configuration and
//! storage of its own.
//!
//! ```text
//! First ──fails over──▶ (down) ──▶ Second ──falls back──▶ (down) ──▶ First
//! ```
//!
//! Namespace ids, sizes and names are the same on both, identities and contents are not. A host that knows the storage
//! of the first machine must neither read that of the second nor write to it, and finds its own as it was when the
//! first one answers again.

use std::sync::Arc;

use reactor::File;
use store::{FileStore, Geometry, Store};
use subsystem::access::HostRights;
use subsystem::message::NewNamespace;
use subsystem::rate_limit::RateLimits;
use wire::uuid::Uuid;

use super::command::Command;
use super::{Stage, World};
use crate::finding::Finding;
use crate::foreign::FOREIGN_NAME;
use crate::model;
use crate::scenario::{MS, SECOND, Scenario};
use crate::shared::Event;

/// The content of the second machine's disk: no command writes it.
const FOREIGN: u64 = 1 << 62;

/// The source of the first namespace's identity.
const FIRST_NAME: u8 = 7;

/// The machine that answers, or is to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Machine {
    #[default]
    First,
    /// `since_ns`: when it has started, once it has.
    Second { since_ns: Option<u64> },
}

impl Machine {
    pub(crate) fn is_first(self) -> bool {
        self == Self::First
    }

    pub(crate) fn disk(self) -> u64 {
        (!self.is_first()).into()
    }
}

/// A namespace on a file of the simulated disk.
pub(super) fn disk_store(scenario: &Scenario, file: File, block_count: u64) -> Store {
    let geometry = Geometry {
        preferred_write_blocks: scenario.grain_blocks(scenario.first.write_grain_bytes),
        preferred_deallocate_blocks: scenario.grain_blocks(scenario.first.deallocate_grain_bytes),
        ..Geometry::new(scenario.first.block_bytes, scenario.first.first_block + block_count)
    };
    Store::Blocks(Arc::new(FileStore::simulated(file, &geometry)))
}

/// A namespace with an identity made from a number.
pub(super) fn named(store: Store, name: u8) -> NewNamespace {
    let nguid = [name; 16];
    NewNamespace {
        store,
        storage: "simulated".into(),
        uuid: Uuid::from_bytes(nguid),
        nguid,
        rights: HostRights::ALL,
        limits: RateLimits::default(),
    }
}

fn foreign_block(block: &mut [u8], lba: u64) {
    model::fill(block, lba, FOREIGN | lba);
}

impl World {
    /// The first namespace, or that of the second machine in its place.
    pub(super) fn first_namespace(&mut self) -> NewNamespace {
        let namespace = match self.target.machine {
            Machine::First => named(self.first.store.clone(), FIRST_NAME),
            Machine::Second { .. } => {
                let file = self.shared.disk.open(1);
                let scenario = &self.shared.scenario;
                named(disk_store(scenario, file, scenario.first.block_count), FIRST_NAME | FOREIGN_NAME)
            }
        };
        NewNamespace { limits: self.shared.scenario.rates.first, ..namespace }
    }

    /// The first machine goes, and the second takes its address.
    pub(super) fn fail_over(&mut self, is_power_cut: bool, down_ns: u64, away_ns: u64) {
        let has_second = self.second.presence.is_configured() && self.shared.scenario.second.spec.is_some();
        // A host that knows no storage would take that of the second machine for its own, rightly.
        let is_known = |host: &crate::host::Host| host.up_count > 0 && (host.sees_second || !has_second);
        if self.progress.stage > Stage::Settle
            || !self.target.is_up()
            || !self.target.machine.is_first()
            || !self.hosts.iter().all(is_known)
        {
            return;
        }
        self.shared.reach_event("second machine takes the address");
        self.shared.disk.fill(1, foreign_block);
        self.kill_target(is_power_cut, down_ns);
        self.target.machine = Machine::Second { since_ns: None };
        self.shared.at(self.shared.now_ns + down_ns + away_ns, Event::FallBack);
    }

    /// The first machine has its address again.
    pub(super) fn fall_back(&mut self) {
        let down_ns = self.shared.random.scaled(MS, SECOND);
        // If it is down, the first machine is on its way already.
        self.kill_target(false, down_ns);
        self.target.machine = Machine::First;
        self.hosts.iter().for_each(|host| host.wake_lanes(&mut self.shared));
        if !self.shared.disk.is_filled(1, foreign_block) {
            self.shared.find("a host has written to the disk of the second machine");
        }
    }

    /// Whether a command that has ended like this may have met the second machine alone.
    pub(super) fn judge_machine(&self, command: &Command) -> Result<(), Finding> {
        match self.target.machine {
            Machine::Second { since_ns: Some(since_ns) } if command.begin_ns > since_ns => {
                Err(format!("succeeded, though another machine answers since {since_ns} ns"))
            }
            _ => Ok(()),
        }
    }

    /// Whether a host may have found the second machine while a command that began then was out.
    pub(super) fn met_second_machine(&self, host: usize, begin_ns: u64) -> bool {
        let slack_ns = self.shared.scenario.order_ns_max();
        let until_ns = self.hosts[host].misled_until_ns;
        until_ns.is_some_and(|until_ns| until_ns.saturating_add(slack_ns) >= begin_ns)
    }
}
