//! Who runs where: nobody who floods a target runs on its cores, so here they do not either.
//!
//! The target has the first core to itself, the healthy host the second, and those who flood the rest. Where there is no third they
//! share the healthy host's, and run only while it does not (`SCHED_IDLE`).

use anyhow::{Context, Result};
use reactor::{CoreList, pin, step_back};

/// Which cores are whose.
#[derive(Clone, Debug)]
pub(super) struct Cores {
    target: usize,
    healthy: usize,
    /// The first of those for the attackers; the healthy host's if there are no more.
    attackers: Vec<usize>,
}

impl Cores {
    /// Apart, as far as this machine has cores; `None` with one core.
    pub(super) fn apart() -> Result<Option<Self>> {
        let allowed = CoreList::allowed().context("the cores of this machine")?;
        Ok(match *allowed.cores() {
            [target, healthy, ref rest @ ..] => {
                let attackers = if rest.is_empty() { vec![healthy] } else { rest.to_vec() };
                Some(Self { target, healthy, attackers })
            }
            _ => None,
        })
    }

    /// For `nvlane target --cores`.
    pub(super) fn of_target(&self) -> String {
        self.target.to_string()
    }

    /// The same for a target on the attackers' side.
    pub(super) fn of_decoy(&self) -> String {
        self.attackers[0].to_string()
    }

    /// Puts the calling thread on the healthy host's core, and all threads that it will start.
    pub(super) fn place_healthy(&self) -> Result<()> {
        pin(self.healthy).context("the core of the healthy host")
    }

    /// Puts the calling thread where number `at` of the attackers belongs.
    pub(super) fn place_attacker(&self, at: usize) -> Result<()> {
        pin(self.attackers[at % self.attackers.len()]).context("the cores of the attackers")?;
        if self.are_shared() { step_back().context("an attacker cannot step back") } else { Ok(()) }
    }

    /// Whether attackers run on the healthy host's core.
    pub(super) fn are_shared(&self) -> bool {
        self.attackers == [self.healthy]
    }
}

impl std::fmt::Display for Cores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "target on core {}, healthy host on {}, attackers on ", self.target, self.healthy)?;
        match self.attackers.as_slice() {
            _ if self.are_shared() => write!(f, "{} while it has nothing to do", self.healthy),
            [one] => write!(f, "{one}"),
            [first, .., last] => write!(f, "{first} to {last}"),
            [] => Ok(()),
        }
    }
}
