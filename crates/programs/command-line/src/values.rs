//! Values of options: durations and lists of cores.

use std::time::Duration;

use linux::CoreList;

/// Longest duration that can be given: 30 years.
const TIME_MAX: Duration = Duration::from_secs(1_000_000_000);

/// Seconds as a number, such as 10 or 0.5, with or without an `s`.
///
/// # Errors
/// It is no such number, or more than 30 years.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text);
    let duration = number.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let duration = duration.filter(|duration| *duration <= TIME_MAX);
    duration.ok_or_else(|| format!("{text:?} is not a number of seconds"))
}

/// Parses a duration of at least a millisecond.
///
/// # Errors
/// As [`seconds`], or it is shorter.
pub fn run_time(text: &str) -> Result<Duration, String> {
    let duration = seconds(text)?;
    let is_some = duration >= Duration::from_millis(1);
    if is_some { Ok(duration) } else { Err("write at least 0.001 seconds".into()) }
}

/// Parses a list of cores that this process may use.
///
/// # Errors
/// It is no list, or names a core that this process may not use.
pub fn cores(text: &str) -> anyhow::Result<CoreList> {
    let wanted = text.parse::<CoreList>()?;
    // The current affinity may be smaller than the set of cores allowed: only pinning shows which are.
    std::thread::scope(|scope| {
        let tried = scope.spawn(|| wanted.cores().iter().try_for_each(|&core| linux::pin(core)));
        tried.join().expect("it does not panic")
    })?;
    Ok(wanted)
}
