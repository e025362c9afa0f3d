//! The configuration that callers see and change: the operator's, with the changes made so far.

use std::path::Path;

use serde_json::{Value, json};
use subsystem::config::TargetConfig;
use subsystem::operator::{ChangeOutcome, Outline, Report};

use crate::changes_file::{ChangesFile, Kept};
use crate::error::{CallError, INTERNAL, REFUSED, REVISION};
use crate::names::Names;
use crate::trace::TraceRequest;
use crate::tree::{self, Difference};

/// The running target, as far as calls concern it.
pub trait Plant {
    /// Applies the differences between two configurations, all of them or none. With `is_forced`, also removals of what
    /// connected hosts use.
    ///
    /// # Errors
    /// Why nothing was changed.
    fn change(
        &mut self,
        before: &TargetConfig,
        wanted: &TargetConfig,
        is_forced: bool,
    ) -> Result<Report, Report>;

    /// What runs; `None` for a plant that only checks.
    fn running(&self) -> Option<&Outline>;

    /// The bound address of the listener with this configured address.
    fn bound(&self, address: &str) -> Option<String>;

    /// Follows storage that has changed: hosts hear of new sizes.
    fn look_after_storage(&mut self);

    /// The state of the target; `None` if it has none.
    fn state(&self) -> Option<Value>;

    /// Begins, reads or ends a trace.
    ///
    /// # Errors
    /// Why there is none.
    fn trace(&mut self, _request: TraceRequest) -> Result<Value, CallError> {
        Err(CallError::new(REFUSED, "nothing runs that could be traced"))
    }
}

/// The configuration with all changes.
pub struct Control {
    /// The operator's configuration, as a tree.
    base: Value,
    /// The same with the changes.
    pub(crate) tree: Value,
    config: TargetConfig,
    revision: u64,
    file: Option<ChangesFile>,
    pub(crate) names: Names,
}

/// A configuration to start or reload with.
pub struct Started {
    /// The configuration with the changes that fit.
    pub control: Control,
    /// The changes that do not fit, because the operator's configuration says something else by now.
    pub dropped: Vec<Difference>,
}

/// A change that is to be made.
pub(crate) struct Edit {
    pub(crate) tree: Value,
    pub(crate) names: Names,
    /// Revision that the caller saw.
    pub(crate) revision: Option<u64>,
    pub(crate) is_forced: bool,
}

impl Control {
    /// Adds the kept changes to the operator's configuration. What the operator has changed since stays as it is there.
    ///
    /// # Errors
    /// The file cannot be used, or the changes and the configuration cannot be had together.
    pub fn start(base: &TargetConfig, file: Option<&Path>) -> Result<Started, String> {
        let opened = file.map(ChangesFile::open).transpose()?;
        Self::start_with(base, opened)
    }

    /// As [`start`](Self::start), with a file that is open.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(base: &TargetConfig, file: Option<(ChangesFile, Kept)>) -> Result<Started, String> {
        let (file, kept) = file.map_or((None, Kept::default()), |(file, kept)| (Some(file), kept));
        let base_tree = tree::of_config(base);
        let mut changed = base_tree.clone();
        let dropped = tree::apply(&mut changed, &kept.changes);
        // Without changes it is what the operator wrote, to the letter.
        let config = match changed == base_tree {
            true => base.clone(),
            false => tree::to_config(&changed).map_err(|error| {
                let place =
                    file.as_ref().map_or_else(String::new, |file| format!(" in {}", file.path().display()));
                format!("the changes kept{place} do not fit the configuration: {}", error.message)
            })?,
        };
        let mut control = Self {
            base: base_tree,
            tree: tree::of_config(&config),
            config,
            revision: kept.revision,
            file,
            names: kept.spdk,
        };
        if !dropped.is_empty() {
            control.revision = control.revision.saturating_add(1);
            control.keep();
        }
        Ok(Started { control, dropped })
    }

    /// Takes over a new configuration of the operator. Returns the changes that do not fit any more.
    ///
    /// # Errors
    /// The changes and the configuration cannot be had together; nothing was changed.
    pub fn rebase(&mut self, base: &TargetConfig) -> Result<Vec<Difference>, String> {
        let base_tree = tree::of_config(base);
        let mut changed = base_tree.clone();
        let dropped = tree::apply(&mut changed, &self.differences());
        let config = match changed == base_tree {
            true => base.clone(),
            false => tree::to_config(&changed).map_err(|error| {
                format!("the changes made by control calls do not fit the configuration: {}", error.message)
            })?,
        };
        if config != self.config {
            self.revision = self.revision.saturating_add(1);
        }
        let is_new = base_tree != self.base;
        self.base = base_tree;
        self.tree = tree::of_config(&config);
        self.config = config;
        if is_new {
            self.keep();
        }
        Ok(dropped)
    }

    /// The configuration with all changes.
    #[must_use]
    pub fn config(&self) -> &TargetConfig {
        &self.config
    }

    /// Number of changes so far.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether changes survive the target.
    pub(crate) fn is_kept(&self) -> bool {
        self.file.is_some()
    }

    /// The differences to the operator's configuration.
    #[must_use]
    pub fn differences(&self) -> Vec<Difference> {
        tree::differences(&self.base, &self.tree)
    }

    /// The configuration as one file.
    ///
    /// # Errors
    /// It cannot be written as TOML.
    pub fn export(&self) -> Result<String, CallError> {
        tree::to_text(&self.tree).map_err(|error| CallError::new(INTERNAL, error))
    }

    /// Writes the file, where no change is applied that could be taken back.
    fn keep(&mut self) {
        let kept = Kept::new(self.revision, self.differences(), self.names.clone());
        let Some(file) = &mut self.file else { return };
        let written = file.stage(&kept).and_then(|staged| file.commit(staged)?);
        if let Err(error) = written {
            tracing::warn!(%error, file = %file.path().display(), "control changes: the file could not be written");
        }
    }

    /// Makes a change: checks it, writes it beside the file, applies it, and gives the file its name.
    pub(crate) fn edit(&mut self, edit: Edit, plant: &mut dyn Plant) -> Result<Value, CallError> {
        let Edit { tree: mut changed, names, revision, is_forced } = edit;
        if let Some(seen) = revision.filter(|seen| *seen != self.revision) {
            let message = format!(
                "the configuration has revision {}, and the change was made for {seen}: look at it again, then repeat the change",
                self.revision
            );
            let data = Some(json!({ "revision": self.revision }));
            return Err(CallError { code: REVISION, message, data });
        }
        tree::drop_empty(&mut changed);
        let config = tree::to_config(&changed)?;
        if config.control != self.config.control {
            let message = "the control socket is not changed through itself: change the configuration file, and restart";
            return Err(CallError::invalid(Some("control"), message));
        }
        let changed = tree::of_config(&config);
        if changed == self.tree && names == self.names {
            return Ok(self.answer(&Report::default()));
        }
        let kept = Kept::new(self.revision.saturating_add(1), tree::differences(&self.base, &changed), names);
        let path = self.file.as_ref().map(|file| file.path().to_owned()).unwrap_or_default();
        let cannot_keep = |error: std::io::Error| {
            let message =
                format!("nothing changed: the change cannot be kept in {}: {error}", path.display());
            CallError::new(INTERNAL, message)
        };
        let staged = match &mut self.file {
            Some(file) => Some(file.stage(&kept).map_err(cannot_keep)?),
            None => None,
        };
        let report = match plant.change(&self.config, &config, is_forced) {
            Ok(report) => report,
            Err(report) => {
                if let (Some(file), Some(staged)) = (&mut self.file, staged) {
                    file.discard(staged);
                }
                return Err(refusal(&report));
            }
        };
        if let (Some(file), Some(staged)) = (&mut self.file, staged) {
            match file.commit(staged) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(%error, file = %file.path().display(), "control changes: a power cut may take the last one back");
                }
                Err(error) => {
                    if let Err(left) = plant.change(&config, &self.config, true) {
                        tracing::error!("control changes: not taken back: {left}");
                    }
                    return Err(cannot_keep(error));
                }
            }
        }
        self.names = kept.spdk;
        self.revision = kept.revision;
        self.config = config;
        self.tree = changed;
        Ok(self.answer(&report))
    }

    /// The answer to a reload.
    #[must_use]
    pub fn answer_reload(&self, report: &Report) -> Value {
        let mut answer = self.answer(report);
        answer["is_complete"] = report.is_complete().into();
        answer
    }

    /// The answer to a change.
    fn answer(&self, report: &Report) -> Value {
        json!({ "revision": self.revision, "kept": self.is_kept(), "changes": lines(report) })
    }
}

/// The lines of a report.
pub(crate) fn lines(report: &Report) -> Vec<Value> {
    let line = |line: &subsystem::operator::ReportLine| {
        let outcome = match line.outcome {
            ChangeOutcome::Done => "done",
            ChangeOutcome::Failed => "failed",
            ChangeOutcome::NeedsRestart => "needs restart",
        };
        json!({ "outcome": outcome, "text": line.text })
    };
    report.lines.iter().map(line).collect()
}

fn refusal(report: &Report) -> CallError {
    // The target's own words for a reload.
    let message = report.to_string().replace("nvlane reload --force", "--force (\"force\": true)");
    CallError { code: REFUSED, message, data: Some(json!({ "changes": lines(report) })) }
}
