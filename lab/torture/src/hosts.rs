//! Hosts that survive kills of their target.

use std::time::Duration;

use anyhow::Result;
use host::{HostIdentity, Options, ReconnectSettings, ReplayPolicy};
use wire::nqn::Nqn;

/// Kills that one association survives.
pub(crate) const KILLS_PER_HOST: u32 = 4;

/// Options of host number `number`, with its own NQN. Every second one has its library repeat interrupted writes.
pub(crate) fn options(number: u64, lanes: u16) -> Result<Options> {
    let replays = number % 2 == 1;
    let name = format!("nqn.2026-01.io.nvlane:host-{number}").parse::<Nqn>()?;
    Ok(Options {
        lanes,
        depth: 32,
        identity: Some(HostIdentity::of_name(name)),
        replay: if replays { ReplayPolicy::Idempotent } else { ReplayPolicy::ReadsOnly },
        reconnect: ReconnectSettings {
            delay_first: Duration::from_millis(2),
            delay_max: Duration::from_millis(50),
            give_up_after: Some(Duration::from_secs(60)),
        },
        ..Options::default()
    })
}
