//! Core assignment: real attackers do not run on the target's cores, so these must not either.
//!
//! The target has the first core, the healthy host the second, and the attackers the rest. Without a third core the
//! attackers share the healthy host's, and run only while it is idle (`SCHED_IDLE`).

use anyhow::{Context, Result};
use linux::{CoreList, pin, step_back};

/// The assignment of cores.
#[derive(Clone, Debug)]
pub(super) struct Cores {
    target: usize,
    healthy: usize,
    /// First core of the attackers; the healthy host's if there are no others.
    attackers: Vec<usize>,
}

impl Cores {
    /// Separate cores, as far as this machine has them; `None` with one core.
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

    /// The target's core, for `nvlane target --cores`.
    pub(super) fn of_target(&self) -> String {
        self.target.to_string()
    }

    /// The core of a target on the attackers' side.
    pub(super) fn of_decoy(&self) -> String {
        self.attackers[0].to_string()
    }

    /// Moves the calling thread, and all threads that it will start, to the healthy host's core.
    pub(super) fn place_healthy(&self) -> Result<()> {
        pin(self.healthy).context("the core of the healthy host")
    }

    /// Moves the calling thread to the core of attacker number `at`.
    pub(super) fn place_attacker(&self, at: usize) -> Result<()> {
        pin(self.attackers[at % self.attackers.len()]).context("the cores of the attackers")?;
        if self.are_shared() { step_back().context("cannot lower an attacker's priority") } else { Ok(()) }
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
