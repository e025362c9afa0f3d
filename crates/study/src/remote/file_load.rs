//! A load on the server's file itself, without a network: what the file carries, for the comparison with its targets.

use std::collections::BTreeMap;

use load::disturbance::{Disturbance, Side};

use super::protocol::{Reply, Request, StartFileLoad};
use crate::bench::{Bench, Load, value_named};
use crate::cell::Values;
use crate::distribution::Distribution;
use crate::error::Error;

/// Runs a load on the server's file of this size, from as many of the server's cores as the load has of this machine. The
/// distribution of latency is recorded with the bench.
///
/// # Errors
/// The server refuses or is lost, or an operation fails.
pub(crate) fn run(bench: &Bench, bytes: u64, load: &Load) -> Result<Values, Error> {
    let server = bench.server.as_ref().ok_or(Error::Stopped)?;
    let us = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let workload = &load.workload;
    let shares = workload.pattern.shares();
    let start = StartFileLoad {
        bytes,
        pattern: workload.pattern.name().to_owned(),
        read_percent: shares.read,
        io_bytes: workload.sizes.largest_bytes(),
        jobs: workload.lanes,
        depth: workload.depth,
        warm_up_us: us(bench.times.warm_up),
        measure_us: us(bench.times.measure),
        core_count: u32::try_from(load.cores.len()).unwrap_or(u32::MAX).max(1),
    };
    match server.request(&Request::StartFileLoad(start))? {
        Reply::FileLoadStarted => {}
        _ => return Err(server.confused()),
    }
    bench.sleep(bench.times.warm_up + bench.times.measure);
    if bench.is_stopped() {
        return Err(server.loss().unwrap_or(Error::Stopped));
    }
    let Reply::FileLoad { values, bins, loss } = server.request(&Request::EndFileLoad)? else {
        return Err(server.confused());
    };
    let mut disturbance = Disturbance::default();
    disturbance.add(Side::Host, loss);
    bench.note(&disturbance);
    bench.note_latency(Distribution::of(bins));
    Ok(known(values))
}

/// The values with names that this program knows: it has the server's version.
fn known(values: BTreeMap<String, f64>) -> Values {
    values.into_iter().filter_map(|(name, value)| Some((value_named(&name)?, value))).collect()
}
