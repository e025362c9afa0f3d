//! Doorbell policies and ways to receive, and the options that set them on host and target.

use host::{DoorbellPolicy, Receive};

use crate::bench::{Bench, Load};
use crate::experiment::Error;
use crate::kept::Kept;
use crate::served::Served;
use crate::served_options::ServedOptions;
use crate::target_options::TargetTuning;

/// All policies, from the simplest on.
pub(crate) const POLICIES: [&str; 4] = [IMMEDIATE, TURN, FIXED, ADAPTIVE];

/// Sends each command and each response separately.
pub(crate) const IMMEDIATE: &str = "immediate";
/// Sends everything of a turn together.
pub(crate) const TURN: &str = "turn";
/// Sends after a number of commands or bytes, or a time.
pub(crate) const FIXED: &str = "fixed";
/// Sends when waiting cannot make the batch larger (the default).
pub(crate) const ADAPTIVE: &str = "adaptive";

/// Every PDU in a send and a receive of its own.
pub(crate) const SINGLE: &str = "single";
/// Everything that is due leaves in one send, and receives take all available bytes.
pub(crate) const CARAVANS: &str = "caravans";

/// The first and the last step of `ablation`: name, doorbell policy of both sides, and how both receive.
pub(crate) const WAYS: [(&str, &str, Receive); 2] =
    [(SINGLE, IMMEDIATE, Receive::Pdu), (CARAVANS, ADAPTIVE, Receive::Staging)];

impl Load {
    /// Options with this doorbell policy for commands.
    ///
    /// # Panics
    /// On an unknown policy.
    pub(crate) fn with_doorbell(mut self, policy: &str) -> Self {
        let policy: DoorbellPolicy = policy.parse().expect("a known policy");
        self.options.tuning.doorbell = policy;
        self
    }

    /// Options with this way to receive.
    pub(crate) fn with_receive(mut self, receive: Receive) -> Self {
        self.options.tuning.receive = receive;
        self
    }
}

/// Starts a target with this policy and these other options.
pub(crate) fn serve(bench: &Bench, policy: &str, tuning: TargetTuning) -> Result<Served, Error> {
    let tuning = TargetTuning { doorbell: policy.parse().ok(), ..tuning };
    bench.serve_with(ServedOptions::of(["null:1T"]).tuned(tuning))
}

/// One target for each policy and way to receive, started on first use.
#[derive(Debug, Default)]
pub(crate) struct PolicyTargets(Kept<(String, Receive), Served>);

impl PolicyTargets {
    /// The target with this policy.
    pub(crate) fn get(&mut self, bench: &Bench, policy: &str) -> Result<&Served, Error> {
        self.get_with(bench, policy, Receive::default())
    }

    /// The target with this policy and way to receive.
    pub(crate) fn get_with(
        &mut self,
        bench: &Bench,
        policy: &str,
        receive: Receive,
    ) -> Result<&Served, Error> {
        let tuning = TargetTuning { receive: Some(receive), ..TargetTuning::default() };
        let make = || serve(bench, policy, tuning);
        Ok(self.0.get((policy.to_owned(), receive), make)?)
    }
}
