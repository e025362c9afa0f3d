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

/// A target that follows this policy, told `arguments` besides.
///
/// # Errors
/// If it does not start.
pub(crate) fn serve(bench: &Bench, policy: &str, arguments: &[&str]) -> Result<Served, Error> {
    let words = ["--doorbell", policy];
    let arguments = words.iter().chain(arguments).map(|word| (*word).into()).collect();
    bench.serve_with(ServedOptions { arguments, ..ServedOptions::of(["null:1T"]) })
}

/// Targets that each follow another policy, started when first needed.
#[derive(Debug, Default)]
pub(crate) struct PolicyTargets(Vec<(String, Served)>);

impl PolicyTargets {
    /// The target that follows this policy.
    ///
    /// # Errors
    /// If it does not start.
    pub(crate) fn get(&mut self, bench: &Bench, policy: &str) -> Result<&Served, Error> {
        let index = match self.0.iter().position(|(known, _)| known == policy) {
            Some(index) => index,
            None => {
                self.0.push((policy.to_owned(), serve(bench, policy, &[])?));
                self.0.len() - 1
            }
        };
        Ok(&self.0[index].1)
    }
}
