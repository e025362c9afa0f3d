//! The kernel's account of a target's process: its processor time, and the time that its threads lost to others. A load
//! reads it as the measurement begins and as it ends, whether the target runs on this machine or on another.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cpu::{self, CpuTime};
use crate::disturbance::{Loss, Snapshot};

/// Reads the account of one target.
pub trait Account: fmt::Debug + Send + Sync {
    /// The account now; `None` if it cannot be read, as after the end of the process.
    fn read(&self) -> Option<Reading>;
}

/// An account at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Processor time of the process; `None` of a target that is a part of the kernel.
    pub time: Option<CpuTime>,
    /// Its threads; `None` where the kernel keeps no such account.
    pub threads: Option<Snapshot>,
    /// Time in which any core of the target's machine did anything, ns, if that is another machine.
    pub machine_busy_ns: Option<u64>,
}

impl Reading {
    /// The account of a process of this machine.
    #[must_use]
    pub fn of_process(pid: u32) -> Option<Self> {
        let time = cpu::of_pid(pid).ok()?;
        Some(Self { time: Some(time), threads: Snapshot::of_process(pid), machine_busy_ns: None })
    }

    /// The account of a target that is not a process.
    #[must_use]
    pub fn of_kernel() -> Self {
        Self { time: None, threads: None, machine_busy_ns: None }
    }

    /// Processor time of all live threads, ns; in ticks where the kernel keeps no account of threads.
    #[must_use]
    pub fn run_ns(&self) -> u64 {
        let counted = || self.time.as_ref().map_or(0, CpuTime::total_ns);
        self.threads.as_ref().map_or_else(counted, Snapshot::run_ns)
    }

    /// Time that the threads lost to others since an `earlier` reading.
    #[must_use]
    pub fn loss_since(&self, earlier: &Self) -> Option<Loss> {
        Some(earlier.threads.as_ref()?.loss_until(self.threads.as_ref()?))
    }
}

/// A process of this machine.
#[derive(Clone, Copy, Debug)]
pub struct ProcessAccount(pub u32);

impl Account for ProcessAccount {
    fn read(&self) -> Option<Reading> {
        Reading::of_process(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_readings_of_a_process_tell_what_it_used_between_them() {
        let account = ProcessAccount(std::process::id());
        let before = account.read().unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_millis(30);
        while std::time::Instant::now() < until {
            std::hint::spin_loop();
        }
        let after = account.read().unwrap();
        assert!(after.run_ns() > before.run_ns());
        assert!(after.loss_since(&before).is_some_and(|loss| loss.elapsed_ns >= 30_000_000));
        let sent = serde_json::to_string(&after).unwrap();
        assert_eq!(serde_json::from_str::<Reading>(&sent).unwrap(), after);
        assert!(ProcessAccount(u32::MAX).read().is_none());
    }
}
