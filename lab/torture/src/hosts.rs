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
    Ok(Options::default()
        .with_lanes(lanes)
        .with_depth(32)
        .with_identity(Some(HostIdentity::of_name(name)))
        .with_replay(if replays { ReplayPolicy::Idempotent } else { ReplayPolicy::ReadsOnly })
        .with_reconnect(
            ReconnectSettings::default()
                .with_delay_first(Duration::from_millis(2))
                .with_delay_max(Duration::from_millis(50))
                .with_give_up_after(Some(Duration::from_secs(60))),
        ))
}
