//! Counters of a target and of its network device, read as a measurement begins and as it ends.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::cell::Values;
use crate::error::{Doing, Error};
use crate::process::{busy_polled_packets, context_switches, run_ns};

/// The counters at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counters {
    /// Processor time of the target, ns.
    run_ns: u64,
    /// Context switches of its threads.
    switches: u64,
    /// Soft interrupts for received packets, on all processors of the target's machine: on one machine also those of the
    /// load's side.
    softirqs: u64,
    /// Interrupts of the device, if it has some.
    interrupts: Option<u64>,
    /// Packets that a polling thread of the target took in by itself.
    pub(crate) polled: Option<u64>,
}

impl Counters {
    /// Reads the counters of a process, and of a device at this place in sysfs.
    pub(crate) fn read(pid: u32, device: Option<&Path>) -> Result<Self, Error> {
        let text = |path: &str| fs::read_to_string(path).doing("interrupts");
        let interrupts = match device {
            Some(device) => device_interrupts(&text("/proc/interrupts")?, &interrupt_numbers(device)),
            None => None,
        };
        Ok(Self {
            run_ns: run_ns(pid)?,
            switches: context_switches(pid)?,
            softirqs: sum_of_row(&text("/proc/softirqs")?, "NET_RX").unwrap_or(0),
            interrupts,
            polled: busy_polled_packets(pid),
        })
    }

    /// The cost of an operation, with `earlier` as the counters before the first of them.
    pub(crate) fn per_operation(&self, earlier: &Self, operations: u64) -> Values {
        let each = |now: u64, before: u64| now.saturating_sub(before) as f64 / operations.max(1) as f64;
        let mut values = Values::from([
            ("server_ns", each(self.run_ns, earlier.run_ns)),
            ("switches", each(self.switches, earlier.switches)),
            ("softirqs", each(self.softirqs, earlier.softirqs)),
        ]);
        let both = |now: Option<u64>, before: Option<u64>| Some(each(now?, before?));
        values.extend(both(self.interrupts, earlier.interrupts).map(|each| ("interrupts", each)));
        // The target receives at least one packet for each operation.
        values.extend(both(self.polled, earlier.polled).map(|each| ("polled_percent", each * 100.0)));
        values
    }
}

/// Numbers of the interrupts of a device; those of a virtio device belong to the device above it.
fn interrupt_numbers(device: &Path) -> Vec<u32> {
    let places = [device.join("msi_irqs"), device.join("../msi_irqs")];
    let entries = places.iter().filter_map(|place| fs::read_dir(place).ok()).flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Sum over all processors of the rows of `/proc/interrupts` with these numbers; `None` if there are none.
fn device_interrupts(table: &str, numbers: &[u32]) -> Option<u64> {
    let rows: Vec<_> = numbers.iter().filter_map(|number| sum_of_row(table, &number.to_string())).collect();
    if rows.is_empty() { None } else { Some(rows.iter().sum()) }
}

/// Sum of a row: its name, a colon, a count for each processor, and perhaps words.
fn sum_of_row(table: &str, name: &str) -> Option<u64> {
    let rest = table.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))?;
    Some(rest.split_ascii_whitespace().map_while(|word| word.parse::<u64>().ok()).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_are_counted_over_all_processors() {
        let table = "            CPU0       CPU1\n   9:  5  0  IO-APIC 9 acpi\n  29:  120  3  PCI-MSIX-0000:00:03.0 1-edge ice-eth1-TxRx-0\n \
                      30:  7  0  PCI-MSIX-0000:00:03.0 2-edge ice-eth1-TxRx-1\n";
        assert_eq!(device_interrupts(table, &[29, 30]), Some(130));
        assert_eq!(device_interrupts(table, &[]), None);
        assert_eq!(sum_of_row("      TIMER:  1 2\n     NET_RX:  40 2\n", "NET_RX"), Some(42));
    }

    #[test]
    fn counters_are_told_for_each_operation() {
        let early = Counters { run_ns: 1000, switches: 5, softirqs: 10, interrupts: None, polled: Some(1) };
        let late =
            Counters { run_ns: 9000, switches: 25, softirqs: 30, interrupts: Some(3), polled: Some(11) };
        let values = late.per_operation(&early, 10);
        assert_eq!((values["server_ns"], values["switches"], values["softirqs"]), (800.0, 2.0, 2.0));
        assert_eq!(values["polled_percent"], 100.0);
        assert!(!values.contains_key("interrupts"));
    }
}
