//! Energy of the study server's machine, for a study: one sum of all counters, which never begins at 0 again.

use std::path::Path;
use std::time::Instant;

use super::energy::RemoteEnergy;
use crate::energy::{DIRECTORY, Energy, EnergyReading, NoEnergy, boot_id};

/// The sum, from the first request of a study on; `None` before it.
#[derive(Debug, Default)]
pub(super) struct FarEnergy(Option<Sum>);

#[derive(Debug)]
struct Sum {
    energy: Energy,
    began: Instant,
    last: EnergyReading,
    joules: f64,
}

impl FarEnergy {
    /// The sum now.
    pub(super) fn read(&mut self) -> Result<RemoteEnergy, String> {
        let (joules, seconds) = self.read_in(Path::new(DIRECTORY)).map_err(|reason| reason.to_string())?;
        Ok(RemoteEnergy { joules, seconds, boot: boot_id() })
    }

    /// Joules and seconds since the first reading, of the counters in a directory such as [`DIRECTORY`].
    fn read_in(&mut self, directory: &Path) -> Result<(f64, f64), NoEnergy> {
        let sum = match &mut self.0 {
            Some(sum) => sum,
            None => self.0.insert(Sum::begin(directory)?),
        };
        let now = sum.energy.read()?;
        sum.joules += sum.energy.joules(&sum.last, &now);
        sum.last = now;
        Ok((sum.joules, sum.began.elapsed().as_secs_f64()))
    }
}

impl Sum {
    fn begin(directory: &Path) -> Result<Self, NoEnergy> {
        let energy = Energy::open(directory)?;
        let last = energy.read()?;
        Ok(Self { energy, began: Instant::now(), last, joules: 0.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::energy::example::zone;

    #[test]
    fn the_sum_goes_on_where_a_counter_begins_again() {
        let directory = tempfile::tempdir().unwrap();
        let counter = zone(directory.path(), "intel-rapl:0", "package-0", 262_143_328_850 - 1_500_000);
        let mut energy = FarEnergy::default();
        let mut joules = || energy.read_in(directory.path()).unwrap().0;
        let first = joules();
        std::fs::write(&counter, "500000").unwrap();
        let second = joules();
        std::fs::write(&counter, "3500000").unwrap();
        assert_eq!((first, second, joules()), (0.0, 2.0, 5.0));
    }

    #[test]
    fn a_machine_without_counters_says_so_at_each_request() {
        let directory = tempfile::tempdir().unwrap();
        let mut energy = FarEnergy::default();
        for _ in 0..2 {
            let reason = energy.read_in(directory.path()).unwrap_err().to_string();
            assert!(reason.contains("no counter of a processor package"), "{reason}");
        }
        zone(directory.path(), "intel-rapl:0", "package-0", 7);
        assert_eq!(energy.read_in(directory.path()).unwrap().0, 0.0);
    }
}
