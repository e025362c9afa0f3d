//! A host that comes, changes and reads blocks for a while, and goes, again and again.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use host::{Address, Association};
use load::random::Prng;
use load::verify::new_run_id;
use wire::id::Nsid;

use super::{Round, connect};
use crate::checked::{Account, Checked, Counts};
use crate::hosts;

/// The host of some namespaces, which no other one changes.
pub(super) struct BlockHost {
    nsids: &'static [u32],
    /// Whether the contents outlive the target's process.
    is_kept: bool,
    accounts: Vec<Account>,
    number: u64,
    random: Prng,
    counts: Counts,
    findings: Vec<String>,
}

impl BlockHost {
    pub(super) fn new(nsids: &'static [u32], is_kept: bool) -> Self {
        Self {
            nsids,
            is_kept,
            accounts: Vec::new(),
            number: u64::from(nsids[0]) << 32,
            random: Prng::new(new_run_id()),
            counts: Counts::default(),
            findings: Vec::new(),
        }
    }

    /// Counts and findings since the last call.
    pub(super) fn take_report(&mut self) -> (Counts, Vec<String>) {
        (std::mem::take(&mut self.counts), std::mem::take(&mut self.findings))
    }

    /// Connects as a new host, with other options than the last one.
    fn arrive(&mut self, address: &Address, round: &Round) -> Result<Option<Association>> {
        self.number += 1;
        let lanes = 1 + u16::try_from(self.random.below(4))?;
        let options = hosts::options(self.number, lanes)?;
        let options = if self.random.below(3) == 0 { options.with_digests() } else { options };
        connect(address, &options, round)
    }

    /// Changes and reads blocks, with one host after the other, until the round is over.
    pub(super) fn load(&mut self, address: &Address, round: &Round) -> Result<()> {
        while !round.is_over() {
            let stay = Instant::now() + Duration::from_millis(200 + self.random.below(4000));
            let Some(association) = self.arrive(address, round)? else { return Ok(()) };
            let is_kept = self.is_kept;
            self.visit(&association, |mut checked| {
                checked.run(|_| round.is_over() || Instant::now() >= stay)?;
                if !round.is_killed() {
                    // A target that lives may still carry out what this host leaves behind.
                    checked.drain()?;
                }
                let (counts, findings) = checked.abandon();
                // A host that is slow to hear of the kill may have read the empty memory of the next process.
                let counts_for_nothing = round.is_killed() && !is_kept;
                Ok((counts, if counts_for_nothing { Vec::new() } else { findings }))
            })?;
            association.close();
        }
        Ok(())
    }

    /// Reads every block.
    pub(super) fn verify(&mut self, address: &Address, is_killed: bool, round: &Round) -> Result<()> {
        if is_killed && !self.is_kept {
            self.accounts.clear();
        }
        let association = self.arrive(address, round)?.ok_or_else(|| anyhow!("the target is gone"))?;
        self.visit(&association, |mut checked| {
            checked.verify()?;
            Ok(checked.abandon())
        })?;
        association.close();
        Ok(())
    }

    fn visit(
        &mut self,
        association: &Association,
        act: impl FnOnce(Checked<'_>) -> Result<(Counts, Vec<String>)>,
    ) -> Result<()> {
        let is_first = self.accounts.is_empty();
        if is_first {
            let run_id = new_run_id();
            for &nsid in self.nsids {
                self.accounts.push(Account::new(association.namespace(Nsid::new(nsid))?, run_id));
            }
        }
        let mut checked = Checked::new(association, &mut self.accounts, self.random.draw())?;
        if is_first {
            checked.fill()?;
        }
        let (counts, findings) = act(checked)?;
        self.counts.add(counts);
        self.findings.extend(findings);
        Ok(())
    }
}
