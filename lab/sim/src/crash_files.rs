//! Every state that a power cut can leave of the small files that are replaced or made whole: the host's identity, the
//! state that a target writes.
//!
//! Names and contents become durable independently of each other, and in any order, unless they were made so: a name
//! may stand for a file that is empty, has lost any of its sectors, or is the one before. The power goes before each
//! call and after the last; and each call fails, with the power going then.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use linux::whole_file::{FileCalls, place_new, replace};
use rustix::io::Errno;

use crate::crash_report::CrashReport;

/// Bytes that are written whole or not at all.
const SECTOR_BYTES: usize = 512;

const PATH: &str = "/state/file";

/// A change of a file.
#[derive(Clone, Copy, Debug)]
enum Task {
    PlaceNew,
    Replace,
}

/// Lengths of the new content: within a sector, and several of them.
const LENGTHS: [usize; 3] = [1, 37, 3 * SECTOR_BYTES + 100];

const ERRORS: [Errno; 4] = [Errno::IO, Errno::NOSPC, Errno::INTR, Errno::ROFS];

/// One file's content.
#[derive(Clone, Debug)]
struct Content {
    bytes: Vec<u8>,
    is_durable: bool,
}

/// A change of a directory.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Name(PathBuf, usize),
    /// In one step.
    Move(PathBuf, PathBuf),
    Remove(PathBuf),
}

pub(crate) type Names = BTreeMap<PathBuf, usize>;

/// A file system that remembers changes that are not durable yet.
#[derive(Clone, Debug)]
pub(crate) struct Disk<C> {
    pub(crate) contents: Vec<C>,
    pub(crate) durable_names: Names,
    pub(crate) changes: Vec<Change>,
}

impl<C> Default for Disk<C> {
    fn default() -> Self {
        Self { contents: Vec::new(), durable_names: Names::new(), changes: Vec::new() }
    }
}

/// The calls of one run: cuts the power before each.
struct Recorder<'a> {
    disk: Disk<Content>,
    before: Option<Vec<u8>>,
    after: Vec<u8>,
    fault: Option<(usize, Errno)>,
    call_count: usize,
    what: String,
    report: &'a mut CrashReport,
}

/// Checks all states of all tasks.
pub(crate) fn crash_files(report: &mut CrashReport) {
    for task in [Task::PlaceNew, Task::Replace] {
        for is_there in [false, true] {
            for length in LENGTHS {
                report.workload_count += 1;
                let call_count = run(task, is_there, length, None, report);
                for nth in 0..call_count {
                    for errno in ERRORS {
                        run(task, is_there, length, Some((nth, errno)), report);
                    }
                }
            }
        }
    }
}

fn run(
    task: Task,
    is_there: bool,
    length: usize,
    fault: Option<(usize, Errno)>,
    report: &mut CrashReport,
) -> usize {
    report.run_count += 1;
    let before = is_there.then(|| vec![b'o'; 700]);
    let mut disk = Disk::default();
    if let Some(bytes) = &before {
        disk.contents.push(Content { bytes: bytes.clone(), is_durable: true });
        disk.durable_names.insert(PATH.into(), 0);
    }
    let after = vec![b'n'; length];
    let what = format!("{task:?} of {length} bytes, {fault:?}");
    let mut calls = Recorder { disk, before, after: after.clone(), fault, call_count: 0, what, report };
    let path = Path::new(PATH);
    let ended = match task {
        Task::PlaceNew => place_new(&mut calls, path, &after).map(|is_placed| is_placed || !is_there),
        Task::Replace => replace(&mut calls, path, &after).map(|()| true),
    };
    calls.cut();
    let found = calls.disk.read(&calls.disk.names(usize::MAX));
    match &ended {
        Ok(true) => {
            // The call reported that the file is there: so it is, with and without a power cut.
            calls.before = None;
            calls.expect(found.as_ref(), false);
            calls.cut_to_the(false);
        }
        Ok(false) => {
            calls.after = calls.before.take().unwrap_or_default();
            calls.expect(found.as_ref(), false);
            calls.cut_to_the(false);
        }
        Err(_) => calls.expect(found.as_ref(), true),
    }
    if ended.is_err() && fault.is_none() {
        calls.find("it failed by itself");
    }
    calls.call_count
}

impl<C> Disk<C> {
    /// The names with those changes made whose bits are set.
    pub(crate) fn names(&self, made: usize) -> Names {
        let mut names = self.durable_names.clone();
        for (_, change) in self.changes.iter().enumerate().filter(|(at, _)| made >> at & 1 == 1) {
            match change {
                Change::Name(path, content) => drop(names.insert(path.clone(), *content)),
                Change::Move(from, to) => {
                    // Where the first name was lost with its directory, the new one still has its file.
                    let content = names.remove(from).or_else(|| self.named(from));
                    content.map(|content| names.insert(to.clone(), content));
                }
                Change::Remove(path) => drop(names.remove(path)),
            }
        }
        names
    }

    /// The content that a name was given last.
    fn named(&self, path: &Path) -> Option<usize> {
        self.changes.iter().rev().find_map(|change| match change {
            Change::Name(name, content) if name == path => Some(*content),
            _ => None,
        })
    }

    pub(crate) fn now(&self) -> Names {
        self.names(usize::MAX)
    }

    /// Makes the names durable.
    pub(crate) fn sync_names(&mut self) {
        self.durable_names = self.now();
        self.changes.clear();
    }

    /// The content of a file.
    pub(crate) fn content(&mut self, path: &Path) -> io::Result<&mut C> {
        let at = *self.now().get(path).ok_or(Errno::NOENT)?;
        self.contents.get_mut(at).ok_or_else(|| Errno::NOENT.into())
    }

    /// A new file.
    pub(crate) fn add(&mut self, path: &Path, content: C) {
        self.contents.push(content);
        self.changes.push(Change::Name(path.to_owned(), self.contents.len() - 1));
    }

    /// Gives a file another name that is free.
    pub(crate) fn link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let names = self.now();
        let content = *names.get(from).ok_or(Errno::NOENT)?;
        if names.contains_key(to) {
            return Err(Errno::EXIST.into());
        }
        self.changes.push(Change::Name(to.to_owned(), content));
        Ok(())
    }

    /// Makes a change of a name that is there.
    pub(crate) fn change(&mut self, path: &Path, change: Change) -> io::Result<()> {
        self.now().get(path).ok_or(Errno::NOENT)?;
        self.changes.push(change);
        Ok(())
    }
}

impl Disk<Content> {
    fn read(&self, names: &Names) -> Option<Vec<u8>> {
        names.get(Path::new(PATH)).map(|content| self.contents[*content].bytes.clone())
    }

    /// The possible contents of a file after a power cut.
    fn leftovers(&self, content: usize) -> Vec<Vec<u8>> {
        let Content { bytes, is_durable } = &self.contents[content];
        if *is_durable {
            return vec![bytes.clone()];
        }
        let sector_count = bytes.len().div_ceil(SECTOR_BYTES);
        let mut all = vec![Vec::new()];
        for kept in 0..1usize << sector_count {
            let sectors = bytes.chunks(SECTOR_BYTES).enumerate();
            let left = sectors.flat_map(|(at, sector)| {
                sector.iter().map(move |byte| if kept >> at & 1 == 1 { *byte } else { 0 })
            });
            all.push(left.collect());
        }
        // Half of the length may have become durable.
        all.push(bytes[..bytes.len() / SECTOR_BYTES * SECTOR_BYTES].to_vec());
        all
    }
}

impl Recorder<'_> {
    /// The power goes before a call, which then fails if it is to.
    fn call(&mut self) -> io::Result<()> {
        self.cut();
        self.call_count += 1;
        match self.fault {
            Some((nth, errno)) if nth + 1 == self.call_count => Err(errno.into()),
            _ => Ok(()),
        }
    }

    fn cut(&mut self) {
        self.cut_to_the(true);
    }

    /// Checks every state that a power cut may leave; with `may_be_old` the former content is as good as the new one.
    fn cut_to_the(&mut self, may_be_old: bool) {
        self.report.cut_count += 1;
        for made in 0..1usize << self.disk.changes.len() {
            let names = self.disk.names(made);
            let Some(content) = names.get(Path::new(PATH)) else {
                self.report.state_count += 1;
                self.expect(None, may_be_old);
                continue;
            };
            for left in self.disk.leftovers(*content) {
                self.report.state_count += 1;
                self.expect(Some(&left), may_be_old);
            }
        }
    }

    fn expect(&mut self, found: Option<&Vec<u8>>, may_be_old: bool) {
        let is_new = found == Some(&self.after);
        let is_old = may_be_old && found == self.before.as_ref();
        if !is_new && !is_old {
            let length = found.map(Vec::len);
            self.find(&format!("after call {} there is a file of {length:?} bytes", self.call_count));
        }
    }

    fn find(&mut self, finding: &str) {
        if self.report.findings.len() <= 3 {
            self.report.findings.push(format!("{}: {finding}", self.what));
        }
    }
}

impl FileCalls for Recorder<'_> {
    fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let failed = self.call();
        // A write that fails has made the file, and may have written a part.
        let length = if failed.is_ok() { bytes.len() } else { bytes.len() / 2 };
        self.disk.add(path, Content { bytes: bytes[..length].to_vec(), is_durable: false });
        failed
    }

    fn sync(&mut self, path: &Path) -> io::Result<()> {
        self.call()?;
        if Path::new(PATH).parent() == Some(path) {
            self.disk.sync_names();
        } else {
            self.disk.content(path)?.is_durable = true;
        }
        Ok(())
    }

    fn link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.call()?;
        self.disk.link(from, to)
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.call()?;
        self.disk.change(from, Change::Move(from.to_owned(), to.to_owned()))
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.call()?;
        self.disk.change(path, Change::Remove(path.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_there_as_a_whole_or_not_at_all() {
        let mut report = CrashReport::default();
        crash_files(&mut report);
        assert_eq!(report.findings, [""; 0]);
        assert!(report.state_count > 1000, "{}", report.state_count);
    }

    #[test]
    fn a_file_that_is_not_made_durable_first_is_found_torn() {
        let mut report = CrashReport::default();
        let mut calls = Recorder {
            disk: Disk::default(),
            before: None,
            after: vec![b'n'; 600],
            fault: None,
            call_count: 0,
            what: String::new(),
            report: &mut report,
        };
        let beside = Path::new("/state/beside");
        calls.write(beside, &[b'n'; 600]).unwrap();
        calls.rename(beside, Path::new(PATH)).unwrap();
        calls.cut();
        assert!(!report.findings.is_empty());
    }
}
