//! Looks for the fewest commands and faults, and the plainest settings, with which a seed still fails in the same way.
//!
//! Things are left out in large pieces first, then in smaller ones (delta debugging). Chance events are not the same
//! any more without them, so each attempt is repeated with other chances.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::case::Case;
use crate::finding::kind;
use crate::run::{RunOutcome, run_case};
use crate::setting::{SETTINGS, Setting};

/// Chances that an attempt has.
const CHANCE_COUNT: u64 = 10;

/// Values that are tried for a setting: the plain one, and those half way back.
const STEP_COUNT: usize = 3;

/// The smallest run that was found.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The rest.
    pub case: Case,
    /// Its finding.
    pub finding: String,
    /// Runs so far.
    pub run_count: u64,
    /// Commands, faults and settings that are left, and that there were.
    pub left: [(usize, usize); 3],
}

/// Makes a failing run smaller, step by step.
struct Search<'a> {
    kind: String,
    best: Case,
    finding: String,
    runs: AtomicU64,
    jobs: usize,
    end: Instant,
    /// Commands and faults of the whole run, and settings that are not plain.
    whole: [usize; 3],
    report: &'a mut dyn FnMut(&Shrunk),
}

/// Shrinks a seed that fails, with this number of threads, for this time at most, and reports each success.
#[must_use]
pub fn shrink(case: &Case, jobs: usize, time: Duration, report: &mut dyn FnMut(&Shrunk)) -> Option<Shrunk> {
    let outcome = run_case(case, false);
    let finding = outcome.finding?;
    let scenario = case.scenario();
    let is_special = |setting: &&Setting| (setting.get)(&scenario) != setting.plain;
    // Events after the finding have nothing to do with it.
    let mut best = case.clone();
    best.commands = Some(outcome.submitted.into_iter().collect());
    best.faults.get_or_insert_with(|| (0..scenario.faults.len()).collect());
    let whole = [
        best.commands.as_ref().map_or(0, BTreeSet::len),
        scenario.faults.len(),
        SETTINGS.iter().filter(is_special).count(),
    ];
    let kind = kind(&finding);
    let end = Instant::now() + time;
    let mut search = Search { kind, best, finding, runs: 1.into(), jobs, end, whole, report };
    loop {
        let before = search.best.clone();
        search.drop_commands();
        search.drop_faults();
        search.simplify();
        if search.is_over() || search.best == before {
            return Some(search.shrunk());
        }
    }
}

impl Search<'_> {
    fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    fn shrunk(&self) -> Shrunk {
        let scenario = self.best.scenario();
        let special = SETTINGS.iter().filter(|setting| (setting.get)(&scenario) != setting.plain).count();
        let [commands, faults, settings] = self.whole;
        Shrunk {
            case: self.best.clone(),
            finding: self.finding.clone(),
            run_count: self.runs.load(Ordering::Relaxed),
            left: [
                (self.best.commands.as_ref().map_or(commands, BTreeSet::len), commands),
                (scenario.faults.len(), faults),
                (special, settings),
            ],
        }
    }

    /// Keeps a case if it fails in the same way, with the chance of before or another one.
    fn attempt(&mut self, case: &Case) -> bool {
        if self.is_over() {
            return false;
        }
        let found = Mutex::new(None);
        let next = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..self.jobs {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= CHANCE_COUNT || found.lock().is_ok_and(|found| found.is_some()) {
                            return;
                        }
                        // 0 is the case's own.
                        let chance = if number == 0 { case.chance } else { number };
                        let case = Case { chance, ..case.clone() };
                        self.runs.fetch_add(1, Ordering::Relaxed);
                        let RunOutcome { finding, .. } = run_case(&case, false);
                        if let Some(finding) = finding.filter(|finding| kind(finding) == self.kind)
                            && let Ok(mut found) = found.lock()
                        {
                            *found = Some((case, finding));
                        }
                    }
                });
            }
        });
        let Some((case, finding)) = found.into_inner().ok().flatten() else { return false };
        (self.best, self.finding) = (case, finding);
        let shrunk = self.shrunk();
        (self.report)(&shrunk);
        true
    }

    fn drop_commands(&mut self) {
        let commands: Vec<_> = self.best.commands.iter().flatten().copied().collect();
        drop_some(commands, |left| {
            let commands = Some(left.iter().copied().collect());
            self.attempt(&Case { commands, ..self.best.clone() })
        });
    }

    fn drop_faults(&mut self) {
        let faults: Vec<_> = self.best.faults.iter().flatten().copied().collect();
        drop_some(faults, |left| {
            let faults = Some(left.iter().copied().collect());
            self.attempt(&Case { faults, ..self.best.clone() })
        });
    }

    /// Makes each setting plain, or at least plainer.
    fn simplify(&mut self) {
        for Setting { name, plain, get, .. } in SETTINGS {
            let mut value = *plain;
            for _ in 0..STEP_COUNT {
                let now = get(&self.best.scenario());
                let mut case = self.best.clone();
                case.settings.insert(name, value);
                if value == now || self.attempt(&case) {
                    break;
                }
                value = value.midpoint(now);
            }
        }
    }
}

/// Leaves items out, in pieces of half of them at first, as long as the rest passes.
fn drop_some<T: Clone>(mut items: Vec<T>, mut passes: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut length = items.len();
    while length > 0 {
        let mut start = 0;
        while start < items.len() {
            let end = items.len().min(start + length);
            let left = [&items[..start], &items[end..]].concat();
            if passes(&left) {
                items = left;
            } else {
                start = end;
            }
        }
        length /= 2;
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_is_left() {
        let mut attempts = 0;
        let left = drop_some((0..1000).collect(), |left| {
            attempts += 1;
            [3, 500, 501].iter().all(|needed| left.contains(needed))
        });
        assert_eq!(left, [3, 500, 501]);
        assert!(attempts < 120, "{attempts}");
        assert!(drop_some(vec![1, 2], |_| true).is_empty());
    }
}
