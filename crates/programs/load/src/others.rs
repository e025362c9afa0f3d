//! Processor time that an experiment did not get: that of programs outside of the experiment, and that of the hypervisor.
//!
//! One measure judges every stack. The time that a stack's own threads wait does not: threads of nvlane and SPDK spin and are
//! interrupted, threads that sleep do not wait, and the kernel's host and target run in kernel threads and interrupts, which belong
//! to no process. So the time of all *other* programs is counted, whichever stack is measured:
//!
//! ```text
//! Census (start) ──┐  each process: time, parent, core        own: this process and its descendants, and the kernel's threads
//!                  ├─▶ Others: time of all that is not own  + time stolen from the cores
//! Census (end)   ──┘  each core: time in processes, stolen
//! ```
//!
//! The time of a process that begins and ends between two readings is in its parent's sum over children. Where `/proc` does not show
//! all processes (a container, `hidepid`), the time of others is the time that the cores spent in processes, less our own. The
//! kernel samples that time once per tick, and it includes kernel threads.

use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::cpu;

/// Time of others from which on a measurement is invalid, percent of one side's time.
pub const OTHERS_PERCENT_MAX: f64 = 5.0;

/// A thread of the kernel (`PF_KTHREAD`).
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Times of processes and cores so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Census {
    taken: Instant,
    /// Processes that belong to the experiment, with their descendants.
    own: Vec<u32>,
    processes: BTreeMap<u32, Process>,
    cores: BTreeMap<usize, Core>,
    tick_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    parent: u32,
    is_kernel: bool,
    /// When it began: another process may have its number later.
    began: u64,
    /// Of all its threads, ticks.
    ticks: u64,
    /// Of its children that have ended, and of theirs, ticks.
    children_ticks: u64,
    /// Where it ran last.
    core: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Core {
    /// In processes and threads of the kernel, ticks.
    ticks: u64,
    stolen_ticks: u64,
}

/// Time of others on the cores of an experiment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Others {
    /// Time that passed, ns.
    pub elapsed_ns: u64,
    /// Cores of the experiment on this machine.
    pub core_count: u64,
    /// Processor time of other programs, ns.
    pub run_ns: u64,
    /// Taken by the hypervisor from all of the cores, ns.
    pub stolen_ns: u64,
}

impl Others {
    /// Time of others, percent of the time of one side, which has half of the cores. Programs may all have been on one side; the
    /// hypervisor takes from each core alike.
    #[must_use]
    pub fn percent(&self) -> f64 {
        let side = (self.core_count as f64 / 2.0).max(1.0);
        self.percent_of_core(self.run_ns) / side
            + self.percent_of_core(self.stolen_ns) / self.core_count.max(1) as f64
    }

    /// A time in percent of one core.
    #[must_use]
    pub fn percent_of_core(&self, ns: u64) -> f64 {
        if self.elapsed_ns == 0 { 0.0 } else { ns as f64 * 100.0 / self.elapsed_ns as f64 }
    }
}

impl Census {
    /// Of this machine, now. To this process belong `partners`, too.
    #[must_use]
    pub fn now(partners: &[u32]) -> Self {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let stats = entries.filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            // A process may end between listing and reading.
            Some((pid, fs::read_to_string(entry.path().join("stat")).ok()?))
        });
        let machine = fs::read_to_string("/proc/stat").unwrap_or_default();
        let own = [&[std::process::id()], partners].concat();
        Self::of(own, stats, &machine, Instant::now())
    }

    /// Of the texts of `/proc/PID/stat` and `/proc/stat`.
    fn of(
        own: Vec<u32>,
        stats: impl IntoIterator<Item = (u32, String)>,
        machine: &str,
        taken: Instant,
    ) -> Self {
        let processes = stats.into_iter().filter_map(|(pid, text)| Some((pid, parse_process(&text)?)));
        Self {
            taken,
            own,
            processes: processes.collect(),
            cores: machine.lines().filter_map(parse_core).collect(),
            tick_ns: 1_000_000_000 / cpu::ticks_per_second(),
        }
    }

    /// Time of others on these cores since an `earlier` census; without cores, on all.
    #[must_use]
    pub fn others_since(&self, earlier: &Self, cores: &[usize]) -> Others {
        let has_all = cores.is_empty() || self.cores.keys().all(|core| cores.contains(core));
        let is_there = |core: usize| has_all || cores.contains(&core);
        let seen = self.seen_since(earlier, &is_there);
        let counted: Vec<_> = self
            .cores
            .iter()
            .filter(|(core, _)| is_there(**core))
            .filter_map(|(core, now)| Some((now, earlier.cores.get(core)?)))
            .collect();
        let ticks = if self.sees_all() {
            seen
        } else {
            let all = counted.iter().map(|(now, then)| now.ticks.saturating_sub(then.ticks)).sum::<u64>();
            seen.max(all.saturating_sub(self.own_since(earlier)))
        };
        // Ticks are counted in whole: the first may have been nearly over.
        let stolen = counted
            .iter()
            .map(|(now, then)| now.stolen_ticks.saturating_sub(then.stolen_ticks).saturating_sub(1));
        let elapsed = self.taken.saturating_duration_since(earlier.taken);
        Others {
            elapsed_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
            core_count: counted.len() as u64,
            run_ns: ticks.saturating_mul(self.tick_ns),
            stolen_ns: stolen.sum::<u64>().saturating_mul(self.tick_ns),
        }
    }

    /// Whether the processes of everybody are visible.
    fn sees_all(&self) -> bool {
        self.processes.values().any(|process| process.is_kernel)
    }

    /// Ticks of visible processes that are neither ours nor the kernel's.
    fn seen_since(&self, earlier: &Self, is_there: &dyn Fn(usize) -> bool) -> u64 {
        let is_other = |pid: u32, process: &Process| {
            !process.is_kernel && is_there(process.core) && !self.is_own(earlier, pid)
        };
        let (mut ticks, mut children_ticks) = (0u64, 0u64);
        for (&pid, now) in self.processes.iter().filter(|(pid, process)| is_other(**pid, process)) {
            let then = earlier.processes.get(&pid).filter(|then| then.began == now.began);
            let (own, children) = then.map_or((0, 0), |then| (then.ticks, then.children_ticks));
            ticks += now.ticks.saturating_sub(own);
            children_ticks += now.children_ticks.saturating_sub(children);
        }
        // A process that has ended takes all of its time into its parent's account of children, also that from before.
        let has_ended =
            |pid: u32, then: &Process| self.processes.get(&pid).is_none_or(|now| now.began != then.began);
        let ended =
            earlier.processes.iter().filter(|(pid, then)| has_ended(**pid, then) && is_other(**pid, then));
        let before = ended.map(|(_, then)| then.ticks + then.children_ticks).sum::<u64>();
        ticks + children_ticks.saturating_sub(before)
    }

    /// Ticks of this process and its descendants.
    fn own_since(&self, earlier: &Self) -> u64 {
        let of = |census: &Self| {
            let own = census.processes.iter().filter(|(pid, _)| self.is_own(earlier, **pid));
            own.map(|(_, process)| process.ticks + process.children_ticks).sum::<u64>()
        };
        of(self).saturating_sub(of(earlier))
    }

    /// Whether a process of one of both readings is this one or a descendant.
    fn is_own(&self, earlier: &Self, pid: u32) -> bool {
        let mut pid = pid;
        // No chain of parents is longer; a number used again could close a circle.
        for _ in 0..64 {
            if self.own.contains(&pid) {
                return true;
            }
            match self.processes.get(&pid).or_else(|| earlier.processes.get(&pid)) {
                Some(process) => pid = process.parent,
                None => return false,
            }
        }
        false
    }
}

/// The fields of `/proc/PID/stat` behind the name in brackets.
fn parse_process(text: &str) -> Option<Process> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    // Numbered from 3 in proc(5).
    let field = |number: usize| fields.get(number - 3)?.parse::<i64>().ok();
    let count = |number: usize| Some(u64::try_from(field(number)?).unwrap_or(0));
    Some(Process {
        parent: u32::try_from(field(4)?).ok()?,
        is_kernel: count(9)? & KERNEL_THREAD != 0,
        began: count(22)?,
        ticks: count(14)? + count(15)?,
        children_ticks: count(16)? + count(17)?,
        core: usize::try_from(field(39)?).ok()?,
    })
}

/// The line of a core in `/proc/stat`.
fn parse_core(line: &str) -> Option<(usize, Core)> {
    let mut words = line.strip_prefix("cpu")?.split_ascii_whitespace();
    let core = words.next().filter(|_| !line.starts_with("cpu "))?.parse().ok()?;
    let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
    let &[user, nice, system, _idle, _disk_wait, _interrupt, _soft_interrupt, stolen_ticks, ..] =
        ticks.as_slice()
    else {
        return None;
    };
    Some((core, Core { ticks: user + nice + system, stolen_ticks }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A process as `/proc/PID/stat` shows it: number, parent, flags, ticks, those of its children, core.
    type Line = (u32, u32, u64, u64, u64, usize);

    const KERNEL: u64 = KERNEL_THREAD | 0x40;

    fn stat(&(pid, parent, flags, ticks, children, core): &Line) -> (u32, String) {
        let (user, system) = (ticks / 2, ticks - ticks / 2);
        let text = format!(
            "{pid} (a) b) S {parent} 1 1 0 -1 {flags} 0 0 0 0 {user} {system} {children} 0 20 0 4 0 77 1000 10 1 1 1 1 1 1 1 \
             0 0 0 0 0 0 17 {core} 0 0 0 0 0"
        );
        (pid, text)
    }

    /// A reading after this number of seconds: processes, and ticks in processes and stolen of each core.
    fn census(seconds: u64, processes: &[Line], cores: &[(u64, u64)]) -> Census {
        let begun = *START.get_or_init(Instant::now);
        let core = |(core, (ticks, stolen)): (usize, &(u64, u64))| {
            format!("cpu{core} {ticks} 0 0 9 0 3 50 {stolen} 0 0\n")
        };
        let machine =
            format!("cpu  1 1 1 1 1 1 1 1 0 0\n{}", cores.iter().enumerate().map(core).collect::<String>());
        let mut census =
            Census::of(vec![100], processes.iter().map(stat), &machine, begun + Duration::from_secs(seconds));
        census.tick_ns = 10_000_000;
        census
    }

    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();

    const CALM: [(u64, u64); 2] = [(0, 0), (0, 0)];

    /// Time of others on both cores in a second, ms and percent of a side.
    fn others(before: &[Line], after: &[Line]) -> (u64, f64) {
        let others = census(1, after, &CALM).others_since(&census(0, before, &CALM), &[0, 1]);
        (others.run_ns / 1_000_000, others.percent())
    }

    #[test]
    fn every_stack_on_a_calm_machine_is_calm() {
        let shell = (7, 1, 0, 50, 900, 0);
        // nvlane and SPDK: two processes that spin.
        let spinning = others(
            &[(2, 0, KERNEL, 5, 0, 0), shell, (100, 7, 0, 10, 5, 0), (101, 100, 0, 3, 0, 1)],
            &[(2, 0, KERNEL, 5, 0, 0), shell, (100, 7, 0, 110, 5, 0), (101, 100, 0, 103, 0, 1)],
        );
        // The kernel's host and target: its threads have both cores.
        let kernel = others(
            &[(2, 0, KERNEL, 5, 0, 0), (18, 2, KERNEL, 10, 0, 1), shell, (100, 7, 0, 10, 5, 0)],
            &[(2, 0, KERNEL, 5, 0, 0), (18, 2, KERNEL, 160, 0, 1), shell, (100, 7, 0, 40, 5, 0)],
        );
        assert_eq!([spinning, kernel], [(0, 0.0); 2]);
    }

    #[test]
    fn the_same_load_of_others_is_the_same_for_every_stack() {
        let kernel = |ticks| (18, 2, KERNEL, ticks, 0, 1);
        let busy = |ticks| (55, 7, 0, ticks, 0, 1);
        let stacks: [[&[Line]; 2]; 3] = [
            // Spinning, with a descendant of a descendant.
            [
                &[(100, 7, 0, 10, 0, 0), (101, 100, 0, 0, 0, 1), (102, 101, 0, 0, 0, 1)],
                &[(100, 7, 0, 110, 0, 0), (101, 100, 0, 1, 0, 1), (102, 101, 0, 60, 0, 1)],
            ],
            // In threads of the kernel.
            [&[kernel(0), (100, 7, 0, 10, 0, 0)], &[kernel(70), (100, 7, 0, 30, 0, 0)]],
            // Asleep nearly always.
            [&[(100, 7, 0, 10, 0, 0)], &[(100, 7, 0, 11, 0, 0)]],
        ];
        for [before, after] in stacks {
            let with = |stack: &[Line], ticks| [&[(2, 0, KERNEL, 1, 0, 0), busy(ticks)], stack].concat();
            assert_eq!(others(&with(before, 500), &with(after, 540)), (400, 40.0));
            assert_eq!(others(&with(before, 500), &with(after, 504)), (40, 4.0));
        }
    }

    #[test]
    fn what_began_and_ended_in_between_is_in_its_parents_account() {
        let kthreadd = (2, 0, KERNEL, 1, 0, 0);
        // A compiler of 300 ticks from before ends after 20 more, another begins and ends: 35 ticks.
        let before = [kthreadd, (7, 1, 0, 5, 1000, 0), (55, 7, 0, 250, 50, 1), (100, 7, 0, 0, 0, 0)];
        let after = [kthreadd, (7, 1, 0, 6, 1000 + 300 + 20 + 35, 0), (100, 7, 0, 0, 0, 0)];
        assert_eq!(others(&before, &after).0, 560);
        // One whose parent ignores its end leaves nothing behind, and takes nothing from others.
        let after = [kthreadd, (7, 1, 0, 6, 1000, 0), (66, 1, 0, 30, 0, 0), (100, 7, 0, 0, 0, 0)];
        assert_eq!(others(&before, &after).0, 310);
        // Its number is given to another.
        let mut again = census(1, &[kthreadd, (7, 1, 0, 5, 1300, 0), (55, 7, 0, 12, 0, 1)], &CALM);
        again.processes.get_mut(&55).unwrap().began = 99;
        assert_eq!(again.others_since(&census(0, &before, &CALM), &[]).run_ns, 120_000_000);
        // A target of ours that ended is ours.
        let before = [kthreadd, (100, 7, 0, 0, 0, 0), (101, 100, 0, 70, 0, 1)];
        assert_eq!(others(&before, &[kthreadd, (100, 7, 0, 5, 90, 0)]).0, 0);
    }

    #[test]
    fn other_cores_have_room_for_others() {
        let processes = |ticks| [(2, 0, KERNEL, 1, 0, 0), (55, 7, 0, ticks, 0, 3), (56, 7, 0, ticks, 0, 1)];
        let cores = [(0, 0); 4];
        let since = |cores_of: &[usize]| {
            census(1, &processes(50), &cores).others_since(&census(0, &processes(0), &cores), cores_of)
        };
        assert_eq!(since(&[0, 1]).percent(), 50.0, "of the one that was last on our core");
        assert_eq!(since(&[0, 2]).percent(), 0.0);
        assert_eq!(since(&[]).percent(), 50.0, "two halves of a core, of two cores a side");
    }

    #[test]
    fn who_is_not_seen_is_counted_by_what_the_cores_did() {
        // A container: no thread of the kernel is visible.
        let before = census(0, &[(1, 0, 0, 5, 0, 0), (100, 1, 0, 10, 0, 0)], &[(1000, 0), (500, 0)]);
        let after = census(1, &[(1, 0, 0, 5, 0, 0), (100, 1, 0, 70, 30, 0)], &[(1095, 0), (560, 0)]);
        assert_eq!(after.others_since(&before, &[0, 1]).run_ns, 650_000_000);
        let calm = census(1, &[(1, 0, 0, 5, 0, 0), (100, 1, 0, 120, 60, 0)], &[(1095, 0), (560, 0)]);
        assert_eq!(calm.others_since(&before, &[0, 1]).run_ns, 0);
    }

    #[test]
    fn stolen_time_is_of_each_core() {
        let processes = [(2, 0, KERNEL, 1, 0, 0), (100, 7, 0, 0, 0, 0)];
        let before = census(0, &processes, &CALM);
        let after = census(1, &processes, &[(0, 7), (0, 9)]).others_since(&before, &[0, 1]);
        assert_eq!((after.stolen_ns, after.percent()), (140_000_000, 7.0), "without the ticks under way");
    }

    #[test]
    fn this_process_is_its_own() {
        let before = Census::now(&[]);
        let until = Instant::now() + Duration::from_millis(60);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        let after = Census::now(&[]);
        assert!(after.is_own(&before, std::process::id()) && !after.is_own(&before, 1));
        assert!(after.own_since(&before) > 0);
        let others = after.others_since(&before, &[]);
        assert!(others.elapsed_ns >= 60_000_000 && others.core_count > 0);
    }
}
