//! One seed from beginning to end.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::case::Case;
use crate::coverage::Coverage;
use crate::scenario::CommandId;
use crate::timeline::Timeline;
use crate::world::World;

/// Result of a seed.
#[derive(Clone, Debug, Default)]
pub struct RunOutcome {
    /// The finding, if there is one.
    pub finding: Option<String>,
    /// Commands that ended.
    pub command_count: u64,
    /// Blocks that were read and judged.
    pub read_count: u64,
    /// How often a host has shut its controller down in good order and come again.
    pub departure_count: u64,
    /// Virtual time that passed, ns.
    pub virtual_ns: u64,
    /// Transitions, statuses, command forms and limits that the run reached.
    pub coverage: Coverage,
    /// The same for the same run.
    pub digest: u64,
    /// Commands that users have submitted.
    pub submitted: Vec<CommandId>,
    /// The events, if they were to be kept.
    pub timeline: Timeline,
}

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Remembers the message of a thread's panic instead of printing it.
fn catch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let is_ours = PANIC.with(|message| message.borrow().is_some());
            if is_ours {
                PANIC.with(|message| *message.borrow_mut() = Some(panic.to_string()));
            } else {
                before(panic);
            }
        }));
    });
}

/// Runs all of a seed. With `is_traced` the outcome has the events.
#[must_use]
pub fn run_seed(seed: u64, is_traced: bool) -> RunOutcome {
    run_case(&Case::of(seed), is_traced)
}

/// Runs a seed, or a part of it, as [`run_seed`] does.
#[must_use]
pub fn run_case(case: &Case, is_traced: bool) -> RunOutcome {
    catch_panics();
    PANIC.with(|message| *message.borrow_mut() = Some(String::new()));
    let scenario = case.scenario();
    let mut world = World::new(scenario, is_traced);
    let ended = catch_unwind(AssertUnwindSafe(|| world.run()));
    let panic = PANIC.with(|message| message.borrow_mut().take());
    let mut finding = world.shared.findings.first().cloned();
    if ended.is_err() {
        finding = Some(panic.unwrap_or_default());
        // State that a panic has left may not be fit to be dropped.
        let outcome = outcome(&mut world, finding);
        std::mem::forget(world);
        return outcome;
    }
    outcome(&mut world, finding)
}

fn outcome(world: &mut World, finding: Option<String>) -> RunOutcome {
    RunOutcome {
        finding,
        departure_count: world.leaver.as_ref().map_or(0, |leaver| leaver.departure_count),
        command_count: world.commands.ended_count,
        read_count: world.model.read_count,
        virtual_ns: world.shared.now_ns,
        coverage: std::mem::take(&mut world.shared.coverage),
        submitted: std::mem::take(&mut world.commands.submitted),
        digest: world.shared.trace.digest,
        timeline: world.shared.trace.take_timeline(),
    }
}
