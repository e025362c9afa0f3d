//! Limits on the requests of a study: what exceeds one is refused with the reason.

use std::time::Duration;

use load::workload::format_bytes;

use crate::process::available_bytes;

/// Warm-up and measurement together.
pub(super) const TIME_MAX: Duration = Duration::from_secs(600);

/// Checks a number of `what`, such as "queues of a load".
pub(super) fn within(what: &str, number: u64, max: u64) -> Result<(), String> {
    if (1..=max).contains(&number) {
        return Ok(());
    }
    Err(format!("{what}: 1 to {max}, and this asks for {number}"))
}

/// Checks that the memory for which `who` asks, "a program asks", is free.
pub(super) fn memory_is_free(who: &str, wanted_bytes: u64) -> Result<(), String> {
    let free_bytes = available_bytes().map_err(|error| error.to_string())?;
    if wanted_bytes <= free_bytes {
        return Ok(());
    }
    let (wanted, free_mib) = (format_bytes(wanted_bytes), free_bytes >> 20);
    Err(format!("{who} for {wanted} of memory, and {free_mib} MiB are free"))
}
