//! Carrying a plan out, and taking it back: each step is read back, and a failure undoes all of them.

use crate::change::Change;
use crate::control_group::{Group, PRIVILEGE};
use crate::journal::{Journal, JournalError, JournalFile, Progress};
use crate::kernel::{Failure, Kernel};
use crate::moderation::{self, Moderations};
use crate::plan::{Plan, Step};
use crate::state::DeviceState;

/// Rounds of undoing: taking mqprio back resets settings of a later change, so a second round follows.
const UNDO_ROUNDS_MAX: u32 = 5;

/// Why a layout was not applied or not removed.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// A layout is recorded for the interface.
    #[error("a layout is recorded in {0}: remove it first (`nvlane adq remove`)")]
    Recorded(String),
    /// No layout is recorded for the interface.
    #[error("no layout is recorded in {0}")]
    NotRecorded(String),
    /// The record belongs to another device.
    #[error(
        "{path} records a layout of another device ({recorded}), this one is {present}: delete the file if that device is gone"
    )]
    OtherDevice {
        /// The record.
        path: String,
        /// The device in it.
        recorded: String,
        /// The device here.
        present: String,
    },
    /// The programs of a control group cannot be read, so one that is attached could not be taken back.
    #[error(
        "the sock_ops programs of {group} cannot be read: it takes {PRIVILEGE}, or priority = \"filter\""
    )]
    Hidden {
        /// The control group.
        group: String,
    },
    /// The journal cannot be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The settings cannot be read.
    #[error(transparent)]
    Kernel(#[from] Failure),
    /// A step failed; all steps are taken back.
    #[error("step {number} (`{command}`): {reason}; the device is as before")]
    Step {
        /// The step, from 1.
        number: usize,
        /// The step as a command.
        command: String,
        /// Why it failed.
        reason: String,
    },
    /// The user interrupted; all steps are taken back.
    #[error("interrupted before step {0}; the device is as before")]
    Interrupted(usize),
    /// Not everything could be taken back; the record stays.
    #[error(
        "{cause}. Taking it back is not complete: {rest}. The record stays in {path}; `nvlane adq remove` tries again"
    )]
    NotUndone {
        /// Why it was taken back.
        cause: String,
        /// The part that was not taken back.
        rest: String,
        /// The record.
        path: String,
    },
}

/// The result of removing a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The device is as before the layout.
    Restored,
    /// The machine was restarted since, so nothing of the layout was left.
    EndedWithBoot,
}

/// Carries `plan` out. `before` are the settings that the plan was made for. Calls `on_step` before each step;
/// `is_interrupted` is asked between steps.
///
/// # Errors
/// [`ApplyError`]; the device is as before unless the error is [`ApplyError::NotUndone`].
pub fn apply(
    kernel: &mut impl Kernel,
    plan: &Plan,
    before: &DeviceState,
    file: &JournalFile,
    is_interrupted: impl Fn() -> bool,
    mut on_step: impl FnMut(usize, &Step),
) -> Result<(), ApplyError> {
    let path = || file.path().display().to_string();
    if let Some(recorded) = file.read()? {
        if recorded.plan.device.identity.boot == plan.device.identity.boot {
            return Err(ApplyError::Recorded(path()));
        }
        file.delete()?;
    }
    let is_hidden = |group: &String| before.groups.get(group) == Some(&Group::Hidden);
    if let Some(group) = plan.groups().into_iter().find(is_hidden) {
        return Err(ApplyError::Hidden { group });
    }
    let mut journal = Journal::new(plan.clone(), before.clone());
    file.write(&journal)?;
    for (number, step) in (1..).zip(&plan.steps) {
        if is_interrupted() {
            let cause = ApplyError::Interrupted(number);
            return Err(undone(kernel, &journal, file, cause));
        }
        on_step(number, step);
        let result = kernel.carry_out(&step.change).and_then(|()| kernel.state());
        let deviation = match result {
            Ok(state) => step.change.deviation(&state),
            Err(failure) => Some(failure.to_string()),
        };
        if let Some(reason) = deviation {
            let command = step.change.command(&plan.device.identity.interface);
            return Err(undone(kernel, &journal, file, ApplyError::Step { number, command, reason }));
        }
    }
    journal.progress = Progress::Applied;
    file.write(&journal).map_err(|error| undone(kernel, &journal, file, error.into()))
}

/// Takes everything back after `cause`, and returns the error to report.
fn undone(kernel: &mut impl Kernel, journal: &Journal, file: &JournalFile, cause: ApplyError) -> ApplyError {
    let rest = undo(kernel, journal).and_then(|()| file.delete().map_err(|error| error.to_string()));
    match rest {
        Ok(()) => cause,
        Err(rest) => {
            let (cause, path) = (
                cause.to_string().replace("; the device is as before", ""),
                file.path().display().to_string(),
            );
            ApplyError::NotUndone { cause, rest, path }
        }
    }
}

/// Removes the recorded layout, whole or half applied.
///
/// # Errors
/// [`ApplyError`]; the record stays unless everything is as before.
pub fn remove(kernel: &mut impl Kernel, file: &JournalFile) -> Result<Removal, ApplyError> {
    let path = file.path().display().to_string();
    let journal = file.read()?.ok_or_else(|| ApplyError::NotRecorded(path.clone()))?;
    let present = kernel.device()?.identity;
    let recorded = &journal.plan.device.identity;
    if recorded.boot != present.boot {
        file.delete()?;
        return Ok(Removal::EndedWithBoot);
    }
    if *recorded != present {
        let describe = |identity: &crate::state::Identity| {
            format!("number {}, address {}", identity.ifindex, identity.address)
        };
        return Err(ApplyError::OtherDevice {
            path,
            recorded: describe(recorded),
            present: describe(&present),
        });
    }
    undo(kernel, &journal).map_err(|rest| ApplyError::NotUndone { cause: "removing".into(), rest, path })?;
    file.delete()?;
    Ok(Removal::Restored)
}

/// Takes the steps of a journal back, the last first, until nothing of them is left.
fn undo(kernel: &mut impl Kernel, journal: &Journal) -> Result<(), String> {
    let mut failures = Vec::new();
    for _ in 0..UNDO_ROUNDS_MAX {
        failures.clear();
        let mut has_changed = false;
        for step in journal.plan.steps.iter().rev() {
            let now = kernel.state().map_err(|failure| failure.to_string())?;
            for change in step.change.undo(&journal.before, &now) {
                has_changed = true;
                if let Err(failure) = kernel.carry_out(&change) {
                    let command = change.command(&journal.plan.device.identity.interface);
                    failures.push(format!("`{command}`: {failure}"));
                }
            }
        }
        restore_queues(kernel, journal, &mut has_changed, &mut failures)?;
        if !has_changed {
            return Ok(());
        }
    }
    if failures.is_empty() {
        Err("settings change while they are taken back".into())
    } else {
        Err(failures.join("; "))
    }
}

/// mqprio and a change of the number of queues reset the users of each transmit queue and how long interrupts are
/// delayed, also of queues outside of the classes: all get their former settings back.
fn restore_queues(
    kernel: &mut impl Kernel,
    journal: &Journal,
    has_changed: &mut bool,
    failures: &mut Vec<String>,
) -> Result<(), String> {
    let now = kernel.state().map_err(|failure| failure.to_string())?;
    let before = &journal.before;
    let mut changes = Vec::new();
    for (queue, users) in (0u16..).zip(&before.transmit_queues) {
        if now.transmit_queues.get(usize::from(queue)).is_some_and(|now| now != users) {
            changes.push(Change::TransmitQueue { queue, users: users.clone() });
        }
    }
    if let Moderations::Queues(queues) = &before.moderations {
        let queues = (0..now.queue_pairs()).take(queues.len());
        changes.extend(queues.filter_map(|queue| {
            let wanted = moderation::undo(Some(queue), &before.moderations, &now.moderations)?;
            Some(Change::Moderation { queue: Some(queue), wanted })
        }));
    }
    for change in changes {
        *has_changed = true;
        if let Err(failure) = kernel.carry_out(&change) {
            let command = change.command(&journal.plan.device.identity.interface);
            failures.push(format!("`{command}`: {failure}"));
        }
    }
    Ok(())
}
