//! Comparing a device with its recorded layout.

use serde::Serialize;

use crate::change::Change;
use crate::control_group::{Group, PRIVILEGE};
use crate::journal::{Journal, Progress};
use crate::opponent;
use crate::state::{Device, DeviceState};

/// One difference between the layout and the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Deviation {
    /// The difference.
    pub what: String,
    /// The command that set it, or another remedy.
    pub remedy: String,
}

/// The differences of the device from its recorded layout; empty if it is in line.
#[must_use]
pub fn verify(journal: &Journal, device: &Device, state: &DeviceState) -> Vec<Deviation> {
    let recorded = &journal.plan.device.identity;
    let again = "nvlane adq remove, then apply";
    let whole = |what: String| vec![Deviation { what, remedy: again.into() }];
    if recorded.boot != device.identity.boot {
        return whole("the machine was restarted since the layout was applied".into());
    }
    if *recorded != device.identity {
        return whole(format!("{} is another device than the layout was applied to", recorded.interface));
    }
    let mut deviations = Vec::new();
    if journal.progress == Progress::Applying {
        deviations.extend(whole("applying the layout was not completed".into()));
    }
    for step in journal.plan.lasting_steps().filter(|step| !is_hidden(&step.change, state)) {
        if let Some(what) = step.change.deviation(state) {
            deviations.push(Deviation { what, remedy: step.change.command(&recorded.interface) });
        }
    }
    for opponent in
        device.opponents.iter().filter(|opponent| !journal.plan.device.opponents.contains(opponent))
    {
        let interface = &recorded.interface;
        let what = format!("new since the layout was applied: {}", opponent::effect(opponent, interface));
        deviations.push(Deviation { what, remedy: opponent::remedy(opponent, interface) });
    }
    deviations
}

/// Settings that were not read or may not be read, so that [`verify`] does not check them.
#[must_use]
pub fn unknown(journal: &Journal, state: &DeviceState) -> Vec<Deviation> {
    let steps = journal.plan.steps.iter().filter(|step| is_hidden(&step.change, state));
    let deviation = |what| Deviation { what, remedy: format!("run it as {PRIVILEGE}") };
    steps.filter_map(|step| step.change.deviation(state).map(deviation)).collect()
}

fn is_hidden(change: &Change, state: &DeviceState) -> bool {
    let is_read = |group: &String| !matches!(state.groups.get(group), None | Some(Group::Hidden));
    matches!(change, Change::AttachProgram(program) if !is_read(&program.group))
}
