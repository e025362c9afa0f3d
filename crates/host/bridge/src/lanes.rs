//! Lanes for threads of bridges.

use std::io;
use std::time::{Duration, Instant};

use host::{Association, Command, DataBuffer, Error, InvalidCommand, Lane};

/// Pause after a lane could not be connected, and between looks whether one is still wanted.
const LANE_PAUSE: Duration = Duration::from_millis(50);

/// Connects a lane of the association. If the target is lost, the bridge tries again until the time is over or the lane is not
/// wanted any more.
///
/// # Errors
/// The target has none left, or is not there at that time.
pub(crate) fn connect_lane<B: DataBuffer>(
    association: &Association,
    is_unwanted: impl Fn() -> bool,
    until: Instant,
) -> Result<Lane<B>, Error> {
    loop {
        let failed = match association.lane_within(LANE_PAUSE) {
            Ok(Some(lane)) => return Ok(lane),
            Ok(None) => {
                let cause = io::Error::from(io::ErrorKind::TimedOut).into();
                Error::System { doing: "reach the lost target", cause }
            }
            Err(error @ Error::Link { .. }) if association.over().is_none() => {
                std::thread::sleep(LANE_PAUSE);
                error
            }
            Err(error) => return Err(error),
        };
        if is_unwanted() || Instant::now() >= until {
            return Err(failed);
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
