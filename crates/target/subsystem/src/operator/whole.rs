//! A change that is applied as a whole or not at all: that of a caller of the control socket.
//!
//! The steps are those of a reload. Everything that may fail is done before the control plane gets an order; if it
//! refuses a step in spite of that, the others are taken back.

use super::diff::{Change, Outline, diff};
use super::{ChangeOutcome, Operator, Post, Prepared, Read, Report};
use crate::config::{Problem, TargetConfig};

impl Operator {
    /// Applies the differences between two configurations, all of them or none. Differences between the running
    /// configuration and `before` stay: a failed reload, say, or a setting that waits for a restart. May block.
    ///
    /// # Errors
    /// Why nothing was changed.
    pub fn change(
        &mut self,
        before: &TargetConfig,
        wanted: &TargetConfig,
        post: Post<'_>,
    ) -> Result<Report, Report> {
        let read = self.read(wanted).map_err(failed)?;
        let ports = u16::try_from(self.reactor_count).unwrap_or(u16::MAX);
        let mut before = self.outline_before(&before.with_ports(ports));
        let running = self.running.clone();
        let overlap_ms = read.outline.config.timeouts.secret_overlap_ms;
        self.running.config.timeouts.secret_overlap_ms = overlap_ms;
        before.config.timeouts.secret_overlap_ms = overlap_ms;
        let outcome = self.change_from(&mut before, read, &running, post);
        if outcome.is_err() {
            let former_ms = running.config.timeouts.secret_overlap_ms;
            self.running.config.timeouts.secret_overlap_ms = former_ms;
            self.restore_gate();
        }
        outcome
    }

    /// What a caller has seen. Secrets that cannot be read any more are those that run: the change may be to remove them.
    fn outline_before(&self, before: &TargetConfig) -> Outline {
        Outline::with_secrets(before, self.identities.target()).unwrap_or_else(|_| {
            let mut outline = Outline::new(before, self.identities.target());
            for (nqn, subsystem) in &mut outline.subsystems {
                if let Some(running) = self.running.subsystems.get(nqn) {
                    subsystem.authentication.clone_from(&running.authentication);
                }
            }
            outline
        })
    }

    fn change_from(
        &mut self,
        before: &mut Outline,
        read: Read,
        running: &Outline,
        post: Post<'_>,
    ) -> Result<Report, Report> {
        let Read { outline: mut wanted, keyring, trust, keeps_memcached, .. } = read;
        self.identities.carry_over(&self.running, before);
        self.identities.carry_over(&self.running, &mut wanted);
        let pending = diff(&self.running, before);
        let mut changes = diff(&self.running, &wanted);
        changes.retain(|change| !pending.contains(change));
        if self.keeps_used {
            self.keep_used(&mut changes, post);
        }
        let (mut report, mut later) = (Report::default(), Report::default());
        if keeps_memcached && before.config.memcached != wanted.config.memcached {
            let line = "change memcached listeners to or from ?partitions: takes a restart";
            later.add(ChangeOutcome::NeedsRestart, line.into());
        }
        let mut refused = Report::default();
        for change in &changes {
            match change {
                Change::Refused { why, .. } => {
                    refused.add(ChangeOutcome::Failed, format!("{change}: not done, {why}"));
                }
                Change::NeedsRestart(_) => {
                    later.add(ChangeOutcome::NeedsRestart, format!("{change}: takes a restart"));
                }
                _ => {}
            }
        }
        if !refused.lines.is_empty() {
            return Err(refused);
        }
        changes.retain(|change| !matches!(change, Change::NeedsRestart(_)));
        self.identities.begin(&self.running, &changes);
        let prepared = self.prepare_all(changes, &trust)?;
        let former_keyring = self.gate.keyring();
        self.carry_out(prepared, keyring, &trust, post, &mut report);
        if !report.is_complete() {
            report.lines.retain(|line| line.outcome == ChangeOutcome::Failed);
            self.take_back(running, former_keyring, post, &mut report);
            return Err(report);
        }
        report.lines.append(&mut later.lines);
        Ok(report)
    }

    /// Performs the blocking parts of changes, in an order in which nothing is left if one fails: what is resized comes
    /// last.
    fn prepare_all(
        &mut self,
        changes: Vec<Change>,
        trust: &[super::memcached::NewTrust],
    ) -> Result<Vec<Prepared>, Report> {
        let resizes =
            |change: &Change| matches!(change, Change::ResizeNamespace { .. } | Change::SetMemory { .. });
        let mut order: Vec<usize> = (0..changes.len()).collect();
        order.sort_by_key(|at| resizes(&changes[*at]));
        let mut prepared: Vec<Option<_>> = changes.iter().map(|_| None).collect();
        for at in order {
            let change = &changes[at];
            let ready = self.prepare(change, trust).map_err(|why| {
                let mut refused = Report::default();
                refused.add(ChangeOutcome::Failed, format!("{change}: not done, {why}"));
                refused
            })?;
            prepared[at] = Some(ready);
        }
        let all = changes.into_iter().zip(prepared.into_iter().flatten());
        Ok(all.map(|(change, (step, effect))| Prepared { change, step, effect }).collect())
    }

    /// Returns to the configuration that ran before, as far as that is possible.
    fn take_back(
        &mut self,
        running: &Outline,
        keyring: std::sync::Arc<security::tls::Keyring>,
        post: Post<'_>,
        report: &mut Report,
    ) {
        let back = diff(&self.running, running);
        self.identities.begin(&self.running, &back);
        let mut prepared = Vec::new();
        for change in back {
            match self.prepare(&change, &[]) {
                Ok((step, effect)) => prepared.push(Prepared { change, step, effect }),
                Err(why) => {
                    report.add(ChangeOutcome::Failed, format!("{change}, to take it back: not done, {why}"));
                }
            }
        }
        let mut outcome = Report::default();
        self.carry_out(prepared, keyring, &[], post, &mut outcome);
        let failed = outcome.lines.into_iter().filter(|line| line.outcome != ChangeOutcome::Done);
        report.lines.extend(failed);
    }

    /// Gives the listeners the requirements of the running configuration: those of a change that failed may hold.
    fn restore_gate(&self) {
        for listener in &self.listeners {
            self.gate.set_policy(listener.tag, listener.config.tls);
            self.gate.set_allowed(listener.tag, listener.config.allow.clone());
        }
        for listener in &self.memcached {
            self.gate.set_memcached(listener.tag, listener.trust.clone());
            self.gate.set_allowed(listener.tag, listener.config.allow.clone());
        }
    }
}

fn failed(problems: Vec<Problem>) -> Report {
    let mut report = Report::default();
    problems.into_iter().for_each(|problem| report.add(ChangeOutcome::Failed, problem.message));
    report
}
