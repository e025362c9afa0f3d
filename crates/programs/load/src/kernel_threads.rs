//! How long the kernel's own threads have run on each core.
//!
//! Where the kernel is a part of the measured system (its NVMe host or target, a file system), its threads do a part of
//! the work, on a core that a thread of the load may have to itself otherwise. The wait of that thread for them is no
//! disturbance.
//!
//! A reading opens three files for each thread of the kernel, which takes milliseconds: both readings are taken outside of the measured
//! time. How long threads ran within it follows from its share of the time between the readings.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use crate::disturbance::{parse_cores, parse_schedstat};

/// The process whose children are the kernel's threads.
const KTHREADD: u32 = 2;

/// Times of the kernel's threads so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelThreads {
    taken: Instant,
    threads: BTreeMap<u32, Thread>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Thread {
    run_ns: u64,
    /// Cores that it may run on.
    cores: Vec<usize>,
}

impl KernelThreads {
    /// All of them, now. None are visible in a container with process numbers of its own.
    #[must_use]
    pub fn now() -> Self {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let read = |process: fs::DirEntry| {
            let pid = process.file_name().to_str()?.parse().ok()?;
            Some((pid, read_thread(&process.path())?))
        };
        Self { taken: Instant::now(), threads: processes.filter_map(read).collect() }
    }

    /// How long threads that may run on this core ran in a part of the time since an `earlier` reading, ns, if they ran evenly; on
    /// any core, without one. Threads that began meanwhile count, those that ended do not.
    #[must_use]
    pub fn ran_since(&self, earlier: &Self, core: Option<usize>, part_ns: u64) -> u64 {
        let may_run_there = |thread: &Thread| core.is_none_or(|core| thread.cores.contains(&core));
        let ran = self.threads.iter().filter(|(_, thread)| may_run_there(thread)).map(|(pid, thread)| {
            let before = earlier.threads.get(pid).map_or(0, |before| before.run_ns);
            thread.run_ns.saturating_sub(before)
        });
        let ran_ns = u128::from(ran.fold(0, u64::saturating_add));
        let whole_ns = self.taken.saturating_duration_since(earlier.taken).as_nanos().max(1);
        let part_ns = u128::from(part_ns).min(whole_ns);
        u64::try_from(ran_ns * part_ns / whole_ns).unwrap_or(u64::MAX)
    }
}

/// A process that is a thread of the kernel.
fn read_thread(directory: &Path) -> Option<Thread> {
    let stat = fs::read_to_string(directory.join("stat")).ok()?;
    if parse_parent(&stat)? != KTHREADD {
        return None;
    }
    let (run_ns, ..) = parse_schedstat(&fs::read_to_string(directory.join("schedstat")).ok()?)?;
    let status = fs::read_to_string(directory.join("status")).ok()?;
    let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(Thread { run_ns, cores: parse_cores(cores.trim()) })
}

/// The parent's number, from `/proc/PID/stat`: the second field behind the name in brackets.
fn parse_parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn threads_count_on_the_cores_that_they_may_run_on() {
        let taken = Instant::now();
        let of = |s: u64, threads: &[(u32, u64, &[usize])]| {
            let thread = |&(pid, run_ns, cores): &(u32, u64, &[usize])| {
                (pid, Thread { run_ns, cores: cores.to_vec() })
            };
            KernelThreads {
                taken: taken + Duration::from_secs(s),
                threads: threads.iter().map(thread).collect(),
            }
        };
        let before = of(0, &[(7, 100, &[0]), (8, 50, &[0, 1]), (9, 10, &[1]), (11, 1000, &[0])]);
        let after = of(2, &[(7, 130, &[0]), (8, 55, &[0, 1]), (9, 17, &[1]), (10, 2, &[0, 1])]);
        let ran = |core, part_s: u64| after.ran_since(&before, core, part_s * 1_000_000_000);
        assert_eq!([ran(Some(0), 2), ran(Some(1), 2), ran(Some(2), 2), ran(None, 2)], [37, 14, 0, 44]);
        assert_eq!([ran(None, 1), ran(None, 0), ran(None, 9)], [22, 0, 44]);
        assert_eq!(before.ran_since(&before, None, 1), 0);
    }

    #[test]
    fn a_kernel_thread_has_kthreadd_as_its_parent() {
        assert_eq!(parse_parent("18 (kworker/0:1H) b) I 2 0 0 0 -1 69238880 0 0\n"), Some(2));
        assert_eq!(parse_parent("18 (a"), None);
    }

    #[test]
    fn no_process_is_among_them() {
        assert!(!KernelThreads::now().threads.contains_key(&std::process::id()));
    }
}
