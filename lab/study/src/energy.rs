//! Energy counters of the processor (RAPL), from the kernel's powercap directory. Intel's and AMD's have the same form.
//!
//! ```text
//! /sys/class/powercap/intel-rapl:0      name package-0   energy_uj   max_energy_range_uj
//!                     intel-rapl:0:0    name core        a part of the package, not counted twice
//!                     intel-rapl:0:1    name dram        beside the package
//!                     intel-rapl:1      name psys        the whole machine, packages included: not counted
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where the kernel has the counters.
pub(crate) const DIRECTORY: &str = "/sys/class/powercap";

/// Why no energy can be measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoEnergy {
    #[error("the system has no {0}: usual in a virtual machine, else a kernel without intel_rapl_msr")]
    NoDirectory(String),
    #[error("{0} has no counter of a processor package: usual in a virtual machine")]
    NoPackage(String),
    #[error("{path}: {reason}; these counters are for root")]
    Unreadable { path: String, reason: String },
    #[error("{0} has no number")]
    NoNumber(String),
}

/// A counter of energy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Zone {
    counter: PathBuf,
    /// The largest number of the counter, which then begins at 0 again, µJ.
    range_uj: u64,
}

/// The counters of all packages, and of memory beside them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Energy {
    zones: Vec<Zone>,
}

/// The counters at one moment, µJ, in the order of the zones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EnergyReading(Vec<u64>);

impl Energy {
    /// Finds the counters in a directory such as [`DIRECTORY`], and reads each once.
    pub(crate) fn open(directory: &Path) -> Result<Self, NoEnergy> {
        let Ok(entries) = fs::read_dir(directory) else {
            return Err(NoEnergy::NoDirectory(directory.display().to_string()));
        };
        let mut names: Vec<(PathBuf, String)> = entries
            .flatten()
            .filter_map(|entry| Some((entry.path(), fs::read_to_string(entry.path().join("name")).ok()?)))
            .map(|(path, name)| (path, name.trim().to_owned()))
            .collect();
        // intel-rapl and intel-rapl-mmio count the same packages: the first one is taken of each.
        let is_mmio =
            |path: &Path| path.file_name().is_some_and(|file| file.to_string_lossy().contains("mmio"));
        names.sort_by_key(|(path, _)| (is_mmio(path), path.clone()));
        let mut known: Vec<&str> = Vec::new();
        let mut zones = Vec::new();
        for (path, name) in &names {
            let counts = match name.as_str() {
                // Each package has one.
                "dram" => !is_mmio(path),
                package => package.starts_with("package") && !known.contains(&package),
            };
            if counts {
                known.push(name);
                let range_uj = number(&path.join("max_energy_range_uj"))?;
                zones.push(Zone { counter: path.join("energy_uj"), range_uj });
            }
        }
        if !known.iter().any(|name| name.starts_with("package")) {
            return Err(NoEnergy::NoPackage(directory.display().to_string()));
        }
        let energy = Self { zones };
        energy.read()?;
        Ok(energy)
    }

    /// The counters now.
    pub(crate) fn read(&self) -> Result<EnergyReading, NoEnergy> {
        self.zones.iter().map(|zone| number(&zone.counter)).collect::<Result<_, _>>().map(EnergyReading)
    }

    /// Energy between two readings, J. A counter may have begun at 0 again once.
    pub(crate) fn joules(&self, before: &EnergyReading, after: &EnergyReading) -> f64 {
        let readings = before.0.iter().zip(&after.0);
        let each = self.zones.iter().zip(readings).map(|(zone, (&before, &after))| {
            if after >= before { after - before } else { zone.range_uj.saturating_sub(before) + after }
        });
        each.sum::<u64>() as f64 / 1e6
    }
}

/// Identifier of this machine since its boot: two processes with the same one read the same counters.
pub(crate) fn boot_id() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}

fn number(path: &Path) -> Result<u64, NoEnergy> {
    let text = fs::read_to_string(path).map_err(|error: io::Error| NoEnergy::Unreadable {
        path: path.display().to_string(),
        reason: error.to_string(),
    })?;
    text.trim().parse().map_err(|_| NoEnergy::NoNumber(path.display().to_string()))
}

#[cfg(test)]
pub(crate) mod example {
    use super::*;

    /// Writes a zone into a directory like the kernel's.
    pub(crate) fn zone(directory: &Path, file: &str, name: &str, energy_uj: u64) -> PathBuf {
        let zone = directory.join(file);
        fs::create_dir_all(&zone).unwrap();
        fs::write(zone.join("name"), format!("{name}\n")).unwrap();
        fs::write(zone.join("max_energy_range_uj"), "262143328850\n").unwrap();
        fs::write(zone.join("energy_uj"), format!("{energy_uj}\n")).unwrap();
        zone.join("energy_uj")
    }
}

#[cfg(test)]
mod tests {
    use super::example::zone;
    use super::*;

    #[test]
    fn packages_and_memory_count_once_and_their_parts_not() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        let counters = [
            zone(at, "intel-rapl:0", "package-0", 1_000_000),
            zone(at, "intel-rapl:0:0", "core", 500_000),
            zone(at, "intel-rapl:0:1", "dram", 2_000_000),
            zone(at, "intel-rapl:1", "package-1", 3_000_000),
            zone(at, "intel-rapl:2", "psys", 9_000_000),
            zone(at, "intel-rapl-mmio:0", "package-0", 1_000_000),
        ];
        fs::create_dir(at.join("intel-rapl")).unwrap();
        let energy = Energy::open(at).unwrap();
        assert_eq!(energy.zones.len(), 3);
        let before = energy.read().unwrap();
        for counter in &counters {
            let uj: u64 = fs::read_to_string(counter).unwrap().trim().parse().unwrap();
            fs::write(counter, (uj + 4_000_000).to_string()).unwrap();
        }
        assert_eq!(energy.joules(&before, &energy.read().unwrap()), 12.0);
        assert_eq!(energy.joules(&before, &before), 0.0);
    }

    #[test]
    fn a_counter_that_begins_again_goes_on_counting() {
        let directory = tempfile::tempdir().unwrap();
        let counter = zone(directory.path(), "intel-rapl:0", "package-0", 262_143_328_850 - 1_500_000);
        let energy = Energy::open(directory.path()).unwrap();
        let before = energy.read().unwrap();
        fs::write(counter, "500000").unwrap();
        assert_eq!(energy.joules(&before, &energy.read().unwrap()), 2.0);
    }

    #[test]
    fn what_is_missing_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        let told = |at: &Path| Energy::open(at).unwrap_err().to_string();
        assert!(
            told(&at.join("none")).contains("none: usual in a virtual machine"),
            "{}",
            told(&at.join("none"))
        );
        assert!(told(at).ends_with("has no counter of a processor package: usual in a virtual machine"));
        let counter = zone(at, "intel-rapl:0", "package-0", 1);
        fs::write(&counter, "much").unwrap();
        assert!(told(at).ends_with("energy_uj has no number"));
        fs::remove_file(&counter).unwrap();
        assert!(told(at).ends_with("these counters are for root"), "{}", told(at));
    }
}
