//! Lanes for threads of bridges.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use host::{Association, Error, Lane};

use crate::buffers::Buffer;

/// Pause after a lane could not be connected.
const LANE_PAUSE: Duration = Duration::from_millis(50);

/// A lane of the association. While the target is lost, or about to be noticed as lost, it is tried again.
///
/// # Errors
/// The target has none left, or is not there at that time.
pub(crate) fn connect_lane(
    association: &Association,
    is_ending: &AtomicBool,
    until: Instant,
) -> Result<Lane<Buffer>, Error> {
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
