//! Lanes for threads of bridges.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use host::{Association, Command, DataBuffer, Error, InvalidCommand, Lane};

/// Pause after a lane could not be connected.
const LANE_PAUSE: Duration = Duration::from_millis(50);

/// A lane of the association. While the target is lost, or about to be noticed as lost, it is tried again.
///
/// # Errors
/// The target has none left, or is not there at that time.
pub(crate) fn connect_lane<B: DataBuffer>(
    association: &Association,
    is_ending: &AtomicBool,
    until: Instant,
) -> Result<Lane<B>, Error> {
    loop {
        match association.lane() {
            Err(Error::Link { .. })
                if association.over().is_none()
                    && !is_ending.load(Ordering::Relaxed)
                    && Instant::now() < until =>
            {
                std::thread::sleep(LANE_PAUSE);
            }
            lane => return lane,
        }
    }
}

/// Submits a command. Returns its buffer if it is invalid, or if the lane refuses it.
#[inline]
pub(crate) fn submit<B: DataBuffer>(
    lane: &mut Lane<B>,
    command: Result<Command, InvalidCommand>,
    buffer: Option<B>,
    user: u64,
) -> Option<Option<B>> {
    match command {
        Ok(command) => lane.submit(command, buffer, user).err().map(|refused| {
            tracing::debug!(reason = %refused.reason, "command refused");
            refused.buffer
        }),
        Err(error) => {
            tracing::debug!(%error, "command invalid");
            Some(buffer)
        }
    }
}
