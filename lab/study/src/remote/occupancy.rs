//! One study at a time.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time in which a study that has just ended may make room for the next one.
const OCCUPY_TIME: Duration = Duration::from_secs(2);

/// The study that runs, and since when.
#[derive(Debug, Default)]
pub(super) struct Occupancy(Mutex<Option<(SocketAddr, Instant)>>);

impl Occupancy {
    /// Reserves the server for a study. Waits for one that has just ended and may still have to stop its targets.
    pub(super) fn occupy(&self, study: SocketAddr) -> Result<Occupied<'_>, String> {
        let end = Instant::now() + OCCUPY_TIME;
        loop {
            match self.try_occupy(study) {
                Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(50)),
                outcome => return outcome,
            }
        }
    }

    fn try_occupy(&self, study: SocketAddr) -> Result<Occupied<'_>, String> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((other, since)) = *running {
            return Err(format!(
                "a study from {} runs since {} s, and one runs at a time",
                other.ip(),
                since.elapsed().as_secs()
            ));
        }
        *running = Some((study, Instant::now()));
        Ok(Occupied(self))
    }
}

/// The server is reserved for a study while this exists.
#[derive(Debug)]
pub(super) struct Occupied<'a>(&'a Occupancy);

impl Drop for Occupied<'_> {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_study_is_told_of_the_first() {
        let occupancy = Occupancy::default();
        let [first, second] = ["192.0.2.1:1", "192.0.2.2:2"].map(|text| text.parse().unwrap());
        let occupied = occupancy.occupy(first).unwrap();
        let refused = occupancy.occupy(second).unwrap_err();
        assert!(refused.starts_with("a study from 192.0.2.1 runs since 2 s"), "{refused}");
        drop(occupied);
        assert!(occupancy.occupy(second).is_ok());
    }
}
