//! The cost of idle lanes: the target's processor time and memory once their last command is long over.

use std::time::{Duration, Instant};

use crate::bench::Bench;
use crate::cell::Values;
use crate::descriptors::target_lane_count_max;
use crate::error::Error;
use crate::held_lanes::HeldLanes;
use crate::keys::Keys;
use crate::served::Served;

/// Depth of each lane, as Linux hosts have it.
const DEPTH: u16 = 128;

/// Time from the last command until lanes are idle: they have returned their buffers after at most 10 s, and the
/// timers of their connects have expired.
const SETTLING: Duration = Duration::from_secs(11);

/// Checks that a target may have this number of lanes.
///
/// # Errors
/// [`Error::Lacking`]: the limit on descriptors is too low.
pub(crate) fn check(bench: &Bench, lanes: u64) -> Result<(), Error> {
    let most = match &bench.server {
        Some(server) => server.machine.lane_count_max,
        None => target_lane_count_max(linux::allow_descriptors()),
    };
    if lanes <= most {
        return Ok(());
    }
    Err(Error::Lacking(format!(
        "a target with {lanes} lanes needs more descriptors than this user may have: raise the limit (`ulimit -Hn 65536` \
         as root)"
    )))
}

/// Connects lanes to a fresh target, with TLS if there are keys, has each execute a few reads, and measures the target once
/// they are idle.
///
/// # Errors
/// A lane does not connect or answer; the target's account cannot be read.
pub(crate) fn measure(
    bench: &Bench,
    served: Served,
    lanes: u64,
    keys: Option<&Keys>,
) -> Result<Values, Error> {
    let tls_key = keys.map(Keys::tls_path);
    // The first lane makes the target allocate the memory that all lanes share.
    let mut first = HeldLanes::connect(&served, 1, DEPTH, tls_key)?;
    first.exercise()?;
    let before_bytes = served.own_memory_bytes()?;

    let start = Instant::now();
    let mut held_lanes = HeldLanes::connect(&served, lanes, DEPTH, tls_key)?;
    let connect_us = start.elapsed().as_secs_f64() * 1e6;
    let fresh_bytes = served.own_memory_bytes()?;
    held_lanes.exercise()?;
    if lanes > 0 {
        bench.sleep(SETTLING);
    }

    let (from, before) = (Instant::now(), served.reading()?);
    bench.sleep(bench.times.idle);
    let (after, passed) = (served.reading()?, from.elapsed());
    let used_ns = after.run_ns().saturating_sub(before.run_ns());
    let used_bytes = served.own_memory_bytes()?;

    let percent = Duration::from_nanos(used_ns).as_secs_f64() * 100.0 / passed.as_secs_f64();
    let mut values = Values::from([("cpu_percent", percent), ("memory_mib", mib(used_bytes))]);
    if lanes > 0 {
        values.insert("bytes_per_lane", each(used_bytes, before_bytes, lanes));
        values.insert("fresh_bytes_per_lane", each(fresh_bytes, before_bytes, lanes));
        values.insert("connect_us", connect_us / lanes as f64);
    }
    drop((first, held_lanes));
    served.stop()?;
    Ok(values)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn each(after_bytes: u64, before_bytes: u64, lanes: u64) -> f64 {
    after_bytes.saturating_sub(before_bytes) as f64 / lanes as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_lanes_than_descriptors_are_refused_with_the_remedy() {
        let bench = Bench::for_tests();
        assert!(check(&bench, 1).is_ok());
        let error = check(&bench, u64::MAX).unwrap_err().to_string();
        assert!(error.contains("ulimit -Hn"), "{error}");
    }
}
