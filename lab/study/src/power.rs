//! Mean power of the machines of a study, from their processors' energy counters.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use crate::energy::{DIRECTORY, Energy, EnergyReading, boot_id};
use crate::error::Error;
use crate::remote::ServerConnection;
use crate::remote::energy::RemoteEnergy;

/// The energy counters of this machine, and between two machines those of the targets' one.
#[derive(Clone, Debug)]
pub(crate) struct Power {
    here: Energy,
    there: Option<Arc<ServerConnection>>,
}

/// The counters at one moment.
#[derive(Clone, Debug)]
pub(crate) struct PowerReading {
    here: (Instant, EnergyReading),
    there: Option<RemoteEnergy>,
}

impl Power {
    /// Finds the counters. A study server on this machine has the same ones, which count once.
    ///
    /// # Errors
    /// [`Error::Lacking`]: which machine has none, and why. Another: the server is lost.
    pub(crate) fn open(server: Option<&Arc<ServerConnection>>) -> Result<Self, Error> {
        let there = server.map(|server| RemoteEnergy::read(server));
        let there = match there.transpose() {
            Ok(reading) => Ok(reading),
            Err(Error::Lacking(reason)) => Err(reason),
            Err(error) => return Err(error),
        };
        Self::of(Path::new(DIRECTORY), server.cloned(), there).map_err(Error::Lacking)
    }

    /// The counters in a directory such as [`DIRECTORY`], and those of a server that gave this reading.
    fn of(
        directory: &Path,
        server: Option<Arc<ServerConnection>>,
        reading: Result<Option<RemoteEnergy>, String>,
    ) -> Result<Self, String> {
        let is_between_two = !matches!(reading, Ok(None));
        let here = Energy::open(directory).map_err(|reason| match is_between_two {
            true => format!("on the host's machine: {reason}"),
            false => reason.to_string(),
        });
        match (here, reading) {
            (Ok(here), Ok(reading)) => {
                let is_this = reading.is_some_and(|reading| reading.is_of(boot_id().as_deref()));
                Ok(Self { here, there: server.filter(|_| !is_this) })
            }
            (Ok(_), Err(reason)) | (Err(reason), Ok(_)) => Err(reason),
            (Err(here), Err(there)) => Err(format!("{here}; {there}")),
        }
    }

    /// Whether the counters are those of this machine alone.
    pub(crate) fn is_of_one(&self) -> bool {
        self.there.is_none()
    }

    /// Reads them.
    pub(crate) fn read(&self) -> Result<PowerReading, Error> {
        let there = self.there.as_ref().map(|server| RemoteEnergy::read(server)).transpose()?;
        let here = self.here.read().map_err(|reason| Error::Lacking(reason.to_string()))?;
        Ok(PowerReading { here: (Instant::now(), here), there })
    }

    /// Mean power between two readings, all machines together, W.
    pub(crate) fn watts(&self, before: &PowerReading, after: &PowerReading) -> f64 {
        let (start, end) = (&before.here, &after.here);
        let seconds = end.0.duration_since(start.0).as_secs_f64().max(1e-9);
        let here = self.here.joules(&start.1, &end.1) / seconds;
        let there = before.there.as_ref().zip(after.there.as_ref());
        here + there.map_or(0.0, |(before, after)| RemoteEnergy::watts(before, after))
    }
}

#[cfg(test)]
pub(crate) mod example {
    use super::*;

    /// The counters of this machine alone, in a directory such as the kernel's.
    pub(crate) fn here(directory: &Path) -> Power {
        Power::of(directory, None, Ok(None)).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::energy::example::zone;

    fn of_server(joules: f64, seconds: f64) -> RemoteEnergy {
        RemoteEnergy { joules, seconds, boot: Some("another".to_owned()) }
    }

    #[test]
    fn power_is_the_energy_of_the_time_between_on_each_machine() {
        let directory = tempfile::tempdir().unwrap();
        let counter = zone(directory.path(), "intel-rapl:0", "package-0", 1_000_000);
        let power = example::here(directory.path());
        let (start, first_here) = (Instant::now(), power.here.read().unwrap());
        std::fs::write(counter, "31000000").unwrap();
        let second_here = power.here.read().unwrap();
        let end = start + Duration::from_millis(1500);
        let between = |first, second| {
            let before = PowerReading { here: (start, first_here.clone()), there: first };
            let after = PowerReading { here: (end, second_here.clone()), there: second };
            power.watts(&before, &after)
        };
        assert_eq!(between(None, None), 20.0);
        // The server's clock decides the time of its machine.
        assert_eq!(between(Some(of_server(100.0, 7.0)), Some(of_server(116.0, 9.0))), 28.0);
    }

    #[test]
    fn the_machine_without_counters_is_named() {
        let with = tempfile::tempdir().unwrap();
        zone(with.path(), "intel-rapl:0", "package-0", 1);
        let without = tempfile::tempdir().unwrap();
        let reason = |at: &Path, reading| Power::of(at, None, reading).unwrap_err();
        let lacking = || Err("on the targets' machine, 192.0.2.2: none".to_owned());
        assert_eq!(reason(with.path(), lacking()), "on the targets' machine, 192.0.2.2: none");
        let here = reason(without.path(), Ok(Some(of_server(0.0, 0.0))));
        assert!(here.starts_with("on the host's machine: ") && !here.contains(';'), "{here}");
        let both = reason(without.path(), lacking());
        assert!(both.starts_with("on the host's machine: ") && both.ends_with("192.0.2.2: none"), "{both}");
        let alone = reason(without.path(), Ok(None));
        assert!(!alone.contains("machine:"), "{alone}");
    }
}
