//! Failures and kills at each step of a change.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use linux::whole_file::{FileCalls, PrivateFiles};
use serde_json::json;

use super::{FakePlant, TOML, call, config, specs};
use crate::Control;
use crate::changes_file::ChangesFile;

/// System calls that fail from one on: for good, as those of a killed process, or that one only.
struct Failing {
    left: Arc<AtomicUsize>,
    is_killed: bool,
}

const NEVER: usize = usize::MAX / 2;

impl Failing {
    fn step(&self) -> io::Result<()> {
        let left = self.left.load(Ordering::Relaxed);
        match left {
            0 if self.is_killed => return Err(io::Error::other("killed")),
            0 => self.left.store(NEVER, Ordering::Relaxed),
            _ => {
                self.left.store(left - 1, Ordering::Relaxed);
                return Ok(());
            }
        }
        Err(io::Error::other("failed"))
    }
}

impl FileCalls for Failing {
    fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        if let Err(error) = self.step() {
            // Killed half way.
            PrivateFiles.write(path, &bytes[..bytes.len() / 2])?;
            return Err(error);
        }
        PrivateFiles.write(path, bytes)
    }

    fn sync(&mut self, path: &Path) -> io::Result<()> {
        self.step()?;
        PrivateFiles.sync(path)
    }

    fn link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        PrivateFiles.link(from, to)
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        PrivateFiles.rename(from, to)
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.step()?;
        PrivateFiles.remove(path)
    }
}

/// The steps of a change: write, sync, rename, sync of the directory.
const STEPS: usize = 4;

fn namespaces(text: &str, file: &Path) -> Vec<String> {
    specs(super::start(text, file).0.config())
}

#[test]
fn a_change_that_is_killed_or_fails_at_any_step_is_there_as_a_whole_or_not_at_all() {
    for is_killed in [true, false] {
        for step in 0..=STEPS {
            let directory = tempfile::tempdir().expect("a directory");
            let file = directory.path().join("changes.json");
            let left = Arc::new(AtomicUsize::new(NEVER));
            let calls = Box::new(Failing { left: Arc::clone(&left), is_killed });
            let opened = ChangesFile::open_with(&file, calls).expect("a file");
            let started = Control::start_with(&config(TOML), Some(opened));
            let mut control = started.unwrap_or_else(|error| panic!("{error}")).control;
            let mut plant = FakePlant::new(&control);
            let add = |size: &str| json!({ "noun": "namespace", "values": { "storage": size } });
            call(&mut control, &mut plant, "add", add("ram:5M")).expect("done");
            let before = specs(control.config());
            left.store(step, Ordering::Relaxed);
            let answer = call(&mut control, &mut plant, "add", add("ram:6M"));
            let after: Vec<String> = before.iter().cloned().chain(["ram:6M".into()]).collect();
            let found = namespaces(TOML, &file);
            let what = format!("step {step}, killed: {is_killed}, {answer:?}, {found:?}");
            match &answer {
                // The last step only makes the name durable.
                Ok(_) => assert!(step >= STEPS - 1 && found == after, "{what}"),
                Err(_) => assert!(step < STEPS - 1 && found == before, "{what}"),
            }
            assert_eq!(specs(&plant.running), found, "what runs is what a start finds: {what}");
            assert_eq!(specs(control.config()), found, "{what}");
            let others = std::fs::read_dir(directory.path()).expect("a directory").count();
            assert_eq!(others, 1, "nothing is left beside the file: {what}");
            if !is_killed {
                left.store(NEVER, Ordering::Relaxed);
                call(&mut control, &mut plant, "add", add("ram:7M")).expect("it goes on");
                assert!(namespaces(TOML, &file).contains(&"ram:7M".into()));
            }
        }
    }
}
