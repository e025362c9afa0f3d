//! The host with separate queues in its world: a subsystem of its own, with several files.

use subsystem::message::Step;
use subsystem::subsystem::{Access, Subsystem};
use wire::id::Nsid;
use wire::nqn::{HostName, Nqn};

use super::World;
use super::machines::named;
use crate::separate::{SEPARATE_HOST, SEPARATE_SUBSYSTEM};
use crate::shared::Actor;

/// The source of the first namespace's identity, and after it of the others.
const FIRST_NAME: u8 = 0x40;

impl World {
    /// The steps with which a target of the first machine starts.
    pub(super) fn separate_steps(&mut self) -> Vec<Step> {
        let settings = self.shared.scenario.separate.clone();
        let (Some(settings), Some((_, files))) = (settings, &mut self.separate) else { return Vec::new() };
        if !self.target.machine.is_first() {
            return Vec::new();
        }
        let subsystem: Nqn = SEPARATE_SUBSYSTEM.parse().expect("a name");
        // Hidden from all others.
        let host: HostName = SEPARATE_HOST.parse::<Nqn>().expect("a name").into();
        let mut steps =
            vec![Step::AddSubsystem(Subsystem::new(subsystem.clone(), Access::Only([host].into())))];
        for (store, number) in files.open(&mut self.shared, &settings).into_iter().zip(0u8..) {
            let namespace = named(store, FIRST_NAME + number);
            let nsid = Nsid::new(u32::from(number) + 1);
            steps.push(Step::AddNamespace { subsystem: subsystem.clone(), nsid, namespace });
        }
        steps
    }

    /// Runs the actor if it is its thread; returns whether it is.
    pub(super) fn run_separate(&mut self, actor: Actor) -> bool {
        let Some((host, files)) = self.separate.as_mut().filter(|(host, _)| host.owns(actor)) else {
            return false;
        };
        host.run(&mut self.shared, files);
        true
    }

    /// Notes changes of its namespaces.
    pub(super) fn look_at_files(&mut self) {
        if let Some((_, files)) = &mut self.separate {
            files.look(&mut self.shared);
        }
    }
}
