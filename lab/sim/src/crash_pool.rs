//! Every state that a power cut can leave of a pool of volumes: each history of a few changes, with the power going before each
//! call of the last change and after it, and with each of its calls failing.
//!
//! In each state a pool has the volumes of before the change or those of after it, whole; once the change has been reported, those
//! of after it. The change can then be repeated, and leaves nothing beside the volumes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linux::whole_file::FileCalls;
use rustix::io::Errno;
use store::pool::{NewData, Pool, PoolCalls, PoolEntry, PoolError, Volume, VolumeKind};

use crate::crash_files::{Change, Disk};
use crate::crash_report::CrashReport;

const DIRECTORY: &str = "/pool";

const BYTES: u64 = 1 << 20;

/// A change of a pool, always of the same names: `a` is a volume, `s` a snapshot of it, `b` a clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Create,
    /// A host writes to `a`, and flushes.
    Write,
    Grow,
    Snapshot,
    CloneSnapshot,
    /// With more blocks than its source.
    CloneVolume,
    RollBack,
    DeleteVolume,
    DeleteSnapshot,
}

const STEPS: [Step; 9] = [
    Step::Create,
    Step::Write,
    Step::Grow,
    Step::Snapshot,
    Step::CloneSnapshot,
    Step::CloneVolume,
    Step::RollBack,
    Step::DeleteVolume,
    Step::DeleteSnapshot,
];

/// Changes in a history, after the first volume is there.
const LENGTH_MAX: u32 = 3;

/// What a file is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    record: Option<Vec<u8>>,
    bytes: u64,
    /// Number of the content: 0 for zeroes.
    content: u64,
}

/// A file, and what of it survives.
#[derive(Clone, Debug, Default)]
struct Content {
    now: State,
    durable: Option<State>,
}

impl Content {
    /// The states after a power cut.
    fn leftovers(&self) -> Vec<State> {
        let Self { now, durable } = self;
        match durable {
            Some(durable) if durable == now => vec![now.clone()],
            Some(durable) => vec![durable.clone(), now.clone()],
            None => {
                let records = [None, now.record.clone()];
                let parts = [(0, 0), (now.bytes, 0), (now.bytes / 2, now.content), (now.bytes, now.content)];
                let all = records.into_iter().flat_map(|record| {
                    parts.map(|(bytes, content)| State { record: record.clone(), bytes, content })
                });
                all.collect()
            }
        }
    }
}

/// A machine with a pool.
#[derive(Clone, Debug, Default)]
struct Machine {
    disk: Disk<Content>,
    /// The call that fails.
    fault: Option<(usize, Errno)>,
    call_count: usize,
    /// The disk before each call.
    moments: Vec<Disk<Content>>,
    /// A mistake, for a test of this file: contents are never made durable.
    forgets_contents: bool,
}

/// The calls of a pool on a machine that outlives it.
#[derive(Clone)]
struct Calls(Arc<Mutex<Machine>>);

/// A volume as its user knows it: what, its size, its content, where that came from, and the UUID if it was known before.
type Known = (VolumeKind, u64, u64, Option<String>);

/// What the user of a pool knows.
type Model = BTreeMap<String, Known>;

/// Checks all states of all histories.
pub(crate) fn crash_pool(report: &mut CrashReport) {
    check_histories(LENGTH_MAX, false, report);
}

fn check_histories(length_max: u32, forgets_contents: bool, report: &mut CrashReport) {
    let first = Machine { forgets_contents, ..Machine::default() };
    let mut histories = vec![(Vec::new(), first, Model::new())];
    for _ in 0..=length_max {
        let mut longer = Vec::new();
        for (steps, machine, model) in &histories {
            for step in STEPS {
                let mut history: Vec<Step> = steps.clone();
                history.push(step);
                let Some(after) = expected(model, step, history.len()) else { continue };
                report.workload_count += 1;
                let mut trial = Trial { history: &history, before: model, after: &after, report };
                let machine = trial.check(machine);
                longer.push((history, machine, after));
            }
        }
        histories = longer;
    }
}

/// What the user knows after a step; `None` if it makes no sense.
fn expected(model: &Model, step: Step, number: usize) -> Option<Model> {
    let mut after = model.clone();
    let new = |name: &str| (!model.contains_key(name)).then(|| name.to_owned());
    let (volume, snapshot) = (model.get("a").cloned(), model.get("s").cloned());
    match step {
        Step::Create => drop(after.insert(new("a")?, (VolumeKind::Volume, BYTES, 0, None))),
        Step::Write => after.get_mut("a")?.2 = number as u64,
        Step::Grow => after.get_mut("a")?.1 += BYTES,
        Step::Snapshot => {
            let (_, bytes, content, _) = volume?;
            after.insert(new("s")?, (VolumeKind::Snapshot, bytes, content, Some("a".into())));
        }
        Step::CloneSnapshot => {
            let (_, bytes, content, _) = snapshot?;
            after.insert(new("b")?, (VolumeKind::Volume, bytes, content, Some("s".into())));
        }
        Step::CloneVolume => {
            let (_, bytes, content, _) = volume?;
            after.insert(new("b")?, (VolumeKind::Volume, bytes + BYTES, content, Some("a".into())));
        }
        Step::RollBack => {
            let ((kind, _, _, source), (_, bytes, content, _)) = (volume?, snapshot?);
            after.insert("a".into(), (kind, bytes, content, source));
        }
        Step::DeleteVolume => drop(after.remove("a")?),
        Step::DeleteSnapshot => drop(after.remove("s")?),
    }
    Some(after)
}

/// The last step of a history, and what the user knows before and after it.
struct Trial<'a> {
    history: &'a [Step],
    before: &'a Model,
    after: &'a Model,
    report: &'a mut CrashReport,
}

impl Trial<'_> {
    /// Checks the step, which begins with a machine in order. Returns the machine after it.
    fn check(&mut self, machine: &Machine) -> Machine {
        let Self { history, before, after, .. } = *self;
        let run = |fault| {
            let machine = Machine { fault, call_count: 0, moments: Vec::new(), ..machine.clone() };
            let calls = Calls(Arc::new(Mutex::new(machine)));
            let ended = calls.perform(history, before);
            let machine = calls.machine().clone();
            (ended, machine)
        };
        let (ended, clean) = run(None);
        match &ended {
            Ok(()) => {
                let is_wrong = read(&clean.disk.now(), &clean.disk) != *after;
                self.find_if(is_wrong, "it has another outcome");
            }
            // The volume of a snapshot is gone, and another one has its name.
            Err(PoolError::Missing { .. }) if history.last() == Some(&Step::RollBack) => {
                return machine.clone();
            }
            Err(error) => self.find_if(true, &format!("it fails: {error}")),
        }
        self.examine(&clean, true);
        for nth in 0..clean.call_count {
            for errno in [Errno::IO, Errno::NOSPC] {
                let (ended, machine) = run(Some((nth, errno)));
                self.examine(&machine, ended.is_ok());
            }
        }
        Machine { moments: Vec::new(), ..clean }
    }

    /// Cuts the power at each moment of a run, and after it.
    fn examine(&mut self, machine: &Machine, is_done: bool) {
        self.report.run_count += 1;
        for disk in &machine.moments {
            self.cut(disk, false);
        }
        self.cut(&machine.disk, is_done);
    }

    fn cut(&mut self, disk: &Disk<Content>, is_done: bool) {
        let Self { history, before, after, .. } = *self;
        self.report.cut_count += 1;
        for made in 0..1_usize << disk.changes.len() {
            let names = disk.names(made);
            let mut all: Vec<BTreeMap<PathBuf, State>> = vec![BTreeMap::new()];
            for (path, content) in &names {
                let states = disk.contents[*content].leftovers();
                let with = |known: &BTreeMap<PathBuf, State>| -> Vec<BTreeMap<PathBuf, State>> {
                    let add = |state: &State| {
                        let mut all = known.clone();
                        all.insert(path.clone(), state.clone());
                        all
                    };
                    states.iter().map(add).collect()
                };
                all = all.iter().flat_map(with).collect();
            }
            for files in all {
                self.report.state_count += 1;
                let mut machine = Machine::default();
                for (path, state) in files {
                    machine.disk.durable_names.insert(path, machine.disk.contents.len());
                    machine.disk.contents.push(Content { durable: Some(state.clone()), now: state });
                }
                let found = read(&machine.disk.durable_names, &machine.disk);
                let is_right = found == *after || !is_done && found == *before;
                self.find_if(!is_right, &format!("a power cut leaves {found:?}"));
                let calls = Calls(Arc::new(Mutex::new(machine)));
                if is_right && found == *before && history.last() != Some(&Step::Write) {
                    let repeated = calls.perform(history, before);
                    let machine = calls.machine();
                    let names = machine.disk.now();
                    let is_whole = read(&names, &machine.disk) == *after && names.len() == after.len();
                    self.find_if(repeated.is_err() || !is_whole, "it cannot be repeated");
                }
            }
        }
    }

    fn find_if(&mut self, is_wrong: bool, finding: &str) {
        if is_wrong && self.report.findings.len() <= 3 {
            self.report.findings.push(format!("pool, {:?}: {finding}", self.history));
        }
    }
}

/// What the user of the pool finds.
fn read(names: &BTreeMap<PathBuf, usize>, disk: &Disk<Content>) -> Model {
    let contents = &disk.contents;
    let disk = Disk { durable_names: names.clone(), changes: Vec::new(), contents: contents.clone() };
    let machine = Machine { disk, ..Machine::default() };
    let mut pool = Calls(Arc::new(Mutex::new(machine))).pool();
    let known = |volume: Volume| {
        let content = names[&Path::new(DIRECTORY).join(&volume.record.name)];
        let content = contents[content].now.content;
        let source = volume.record.source.map(|source| source.name);
        (volume.record.name, (volume.record.kind, volume.bytes, content, source))
    };
    pool.list().map(|volumes| volumes.into_iter().map(known).collect()).unwrap_or_default()
}

impl Calls {
    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pool(&self) -> Pool {
        Pool::with_calls(Path::new(DIRECTORY), None, Box::new(self.clone()))
    }

    /// Performs the last step of a history.
    fn perform(&self, history: &[Step], before: &Model) -> Result<(), PoolError> {
        let bytes = before.get("a").map_or(0, |(_, bytes, ..)| *bytes);
        let mut pool = self.pool();
        match history.last() {
            Some(Step::Create) => pool.create("a", BYTES, 4096).map(drop),
            Some(Step::Write) => {
                let mut machine = self.machine();
                let volume = Path::new(DIRECTORY).join("a");
                let Content { now, durable } = machine.disk.content(&volume).expect("it is there");
                now.content = history.len() as u64;
                *durable = Some(now.clone());
                Ok(())
            }
            Some(Step::Grow) => pool.resize("a", bytes + BYTES).map(drop),
            Some(Step::Snapshot) => pool.snapshot("s", "a").map(drop),
            Some(Step::CloneSnapshot) => pool.clone_volume("b", "s", None).map(drop),
            Some(Step::CloneVolume) => pool.clone_volume("b", "a", Some(bytes + BYTES)).map(drop),
            Some(Step::RollBack) => pool.roll_back("s").map(drop),
            Some(Step::DeleteVolume) => pool.delete("a", VolumeKind::Volume),
            Some(Step::DeleteSnapshot) => pool.delete("s", VolumeKind::Snapshot),
            None => Ok(()),
        }
    }

    /// The power may go before a call, which then fails if it is to.
    fn call(&self) -> (MutexGuard<'_, Machine>, io::Result<()>) {
        let mut machine = self.machine();
        let disk = machine.disk.clone();
        machine.moments.push(disk);
        machine.call_count += 1;
        let failed = match machine.fault {
            Some((nth, errno)) if nth + 1 == machine.call_count => Err(errno.into()),
            _ => Ok(()),
        };
        (machine, failed)
    }
}

impl FileCalls for Calls {
    fn write(&mut self, path: &Path, record: &[u8]) -> io::Result<()> {
        let (mut machine, failed) = self.call();
        // A write that fails may have made the file.
        let record = failed.is_ok().then(|| record.to_vec());
        let now = State { record, ..State::default() };
        machine.disk.add(path, Content { now, durable: None });
        failed
    }

    fn sync(&mut self, path: &Path) -> io::Result<()> {
        let (mut machine, failed) = self.call();
        failed?;
        if path == Path::new(DIRECTORY) {
            machine.disk.sync_names();
        } else if !machine.forgets_contents {
            let Content { now, durable } = machine.disk.content(path)?;
            *durable = Some(now.clone());
        }
        Ok(())
    }

    fn link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (mut machine, failed) = self.call();
        failed?;
        machine.disk.link(from, to)
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (mut machine, failed) = self.call();
        failed?;
        machine.disk.changes.push(Change::Move(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        let (mut machine, failed) = self.call();
        failed?;
        machine.disk.change(path, Change::Remove(path.to_owned()))
    }
}

impl PoolCalls for Calls {
    fn fill(&mut self, path: &Path, data: &NewData) -> io::Result<()> {
        let (mut machine, failed) = self.call();
        let (bytes, content) = match data {
            NewData::Zeroes { bytes } => (*bytes, 0),
            NewData::Shared { with, bytes, .. } => (*bytes, machine.disk.content(with)?.now.content),
        };
        let now = &mut machine.disk.content(path)?.now;
        // One that fails may have got a part of it.
        now.bytes = if failed.is_ok() { bytes } else { bytes / 2 };
        now.content = content;
        failed
    }

    fn grow(&mut self, path: &Path, bytes: u64) -> io::Result<()> {
        let (mut machine, failed) = self.call();
        let forgets = machine.forgets_contents;
        let Content { now, durable } = machine.disk.content(path)?;
        now.bytes = bytes;
        if failed.is_ok() && !forgets {
            *durable = Some(now.clone());
        }
        failed
    }

    fn list(&mut self, _: &Path) -> io::Result<Vec<PoolEntry>> {
        let machine = self.machine();
        let entry = |(path, content): (PathBuf, usize)| {
            let State { record, bytes, .. } = machine.disk.contents[content].now.clone();
            let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            PoolEntry { name, record, bytes, allocated_bytes: 0 }
        };
        Ok(machine.disk.now().into_iter().map(entry).collect())
    }

    fn lock(&mut self, _: &Path) -> io::Result<Option<File>> {
        Ok(None)
    }

    fn is_in_use(&mut self, _: &Path) -> io::Result<bool> {
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_has_the_volumes_of_before_a_change_or_those_of_after_it() {
        let mut report = CrashReport::default();
        crash_pool(&mut report);
        assert_eq!(report.findings, [""; 0]);
        assert!(report.workload_count > 100 && report.state_count > 10_000, "{report:?}");
    }

    #[test]
    fn volumes_that_are_not_made_durable_are_found() {
        let mut report = CrashReport::default();
        check_histories(0, true, &mut report);
        assert!(!report.findings.is_empty());
    }
}
