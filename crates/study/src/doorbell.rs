//! Doorbell policies and ways to receive, and the options that set them on host and target.

use host::{DoorbellPolicy, Receive};

use crate::bench::{Bench, Load};
use crate::experiment::Error;
use crate::kept::Kept;
use crate::served::{Served, ServedOptions};

/// All policies, the plainest first.
pub(crate) const POLICIES: [&str; 4] = [IMMEDIATE, TURN, FIXED, ADAPTIVE];

/// Each command and each response by itself.
pub(crate) const IMMEDIATE: &str = "immediate";
/// All of a turn together.
pub(crate) const TURN: &str = "turn";
/// After a number of commands or bytes, or a time.
pub(crate) const FIXED: &str = "fixed";
/// When waiting cannot pay any more.
pub(crate) const ADAPTIVE: &str = "adaptive";

impl Load {
    /// With a doorbell policy for commands.
    ///
    /// # Panics
    /// On an unknown policy.
    pub(crate) fn with_doorbell(mut self, policy: &str) -> Self {
        let policy: DoorbellPolicy = policy.parse().expect("a known policy");
        self.options.tuning.doorbell = policy;
        self
    }

    /// With this way to receive.
    pub(crate) fn with_receive(mut self, receive: Receive) -> Self {
        self.options.tuning.receive = receive;
        self
    }
}

/// A target with this policy and these additional arguments.
///
/// # Errors
/// If it does not start.
pub(crate) fn serve(bench: &Bench, policy: &str, arguments: &[&str]) -> Result<Served, Error> {
    let words = ["--doorbell", policy];
    let arguments = words.iter().chain(arguments).map(|word| (*word).into()).collect();
    bench.serve_with(ServedOptions { arguments, ..ServedOptions::of(["null:1T"]) })
}

/// Targets that each follow another policy, or receive another way, started when first needed.
#[derive(Debug, Default)]
pub(crate) struct PolicyTargets(Kept<(String, Receive), Served>);

impl PolicyTargets {
    /// The target that follows this policy.
    ///
    /// # Errors
    /// If it does not start.
    pub(crate) fn get(&mut self, bench: &Bench, policy: &str) -> Result<&Served, Error> {
        self.get_with(bench, policy, Receive::default())
    }

    /// The target that follows this policy and receives this way.
    ///
    /// # Errors
    /// If it does not start.
    pub(crate) fn get_with(
        &mut self,
        bench: &Bench,
        policy: &str,
        receive: Receive,
    ) -> Result<&Served, Error> {
        let make = || serve(bench, policy, &["--receive", &receive.to_string()]);
        Ok(self.0.get((policy.to_owned(), receive), make)?)
    }
}
