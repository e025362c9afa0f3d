//! Doorbell policies, and how host and target are told of them: what experiments about them vary.

use host::DoorbellPolicy;

use crate::bench::{Bench, Load};
use crate::experiment::Error;
use crate::served::{Served, ServedOptions};

/// Policies that there are, the plainest first.
pub(crate) const POLICIES: [&str; 4] = [IMMEDIATE, TURN, FIXED, ADAPTIVE];

/// Each command and each response by itself.
pub(crate) const IMMEDIATE: &str = "immediate";
/// All of a turn together.
pub(crate) const TURN: &str = "turn";
/// After so many commands or bytes, or so long.
pub(crate) const FIXED: &str = "fixed";
/// When waiting cannot pay any more.
pub(crate) const ADAPTIVE: &str = "adaptive";

impl Load {
    /// With a doorbell policy for commands.
    ///
    /// # Panics
    /// On a policy that there is not.
    pub(crate) fn with_doorbell(mut self, policy: &str) -> Self {
        let policy: DoorbellPolicy = policy.parse().expect("a policy that there is");
        self.options.doorbell = policy;
        self
    }
}

/// Targets that each follow another policy, started when first needed.
#[derive(Debug, Default)]
pub(crate) struct PolicyTargets {
    started: Vec<(String, Served)>,
    /// What all of them are told besides.
    arguments: &'static [&'static str],
}

impl PolicyTargets {
    /// Targets that are all told this besides.
    pub(crate) fn with(arguments: &'static [&'static str]) -> Self {
        Self { started: Vec::new(), arguments }
    }

    /// The target that follows this policy.
    ///
    /// # Errors
    /// If it does not start.
    pub(crate) fn get(&mut self, bench: &Bench, policy: &str) -> Result<&Served, Error> {
        let index = match self.started.iter().position(|(known, _)| known == policy) {
            Some(index) => index,
            None => {
                let words = ["--doorbell", policy];
                let arguments = words.iter().chain(self.arguments).map(|word| (*word).into()).collect();
                let options = ServedOptions { arguments, ..ServedOptions::of(["null:1T"]) };
                self.started.push((policy.to_owned(), bench.serve_with(options)?));
                self.started.len() - 1
            }
        };
        Ok(&self.started[index].1)
    }
}
