//! A namespace on a file or block device: opening, resizing and reopening it.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use reactor::File;

use super::file_backend::FileBackend;
use super::file_health::HealthCell;
use super::file_open::{self, Contents, FileKind, FileSettings, Traits};
use super::file_shared::{Current, Shared, Source, lock, watch_of};
use crate::health::Health;
use crate::namespace::{BLOCK_BYTES_DEFAULT, Backend, BlockStore, Generation, Geometry, Grown, StoreError};
use crate::open_error::{OpenError, check_size};
use crate::size::Size;

/// A namespace on a file or block device.
pub struct FileStore {
    shared: Arc<Shared>,
}

impl FileStore {
    /// Opens a file or device and locks it against use by others.
    ///
    /// # Errors
    /// The problem of the storage, with its remedy.
    pub fn open(settings: &FileSettings) -> Result<Self, OpenError> {
        check_block_bytes(settings)?;
        let opened = file_open::open(settings)?;
        let (bytes, block_bytes, traits) = (opened.bytes, opened.block_bytes, opened.traits);
        let health = HealthCell::default();
        health.note_space(settings, &opened);
        let name = settings.path.display().to_string();
        tracing::debug!(name, bytes, block_bytes, ?traits, "opened");
        let current = Mutex::new(Current {
            opened: Some(opened),
            wanted: settings.bytes,
            noted: None,
            looks: Box::default(),
        });
        let source = Source::Os { settings: settings.clone(), current };
        Ok(Self::new(name, source, bytes, block_bytes, settings.is_read_only, traits, health))
    }

    /// A namespace on a file of a simulated disk. Reads and changes use this description, flushes another one.
    #[must_use]
    pub fn simulated(file: File, geometry: &Geometry) -> Self {
        let traits = Traits {
            is_direct: true,
            has_name: false,
            can_punch: geometry.can_deallocate,
            write_grain_bytes: geometry.preferred_write_blocks * geometry.block_bytes,
            deallocate_grain_bytes: geometry.preferred_deallocate_blocks * geometry.block_bytes,
        };
        let (bytes, source) = (geometry.bytes(), Source::Simulated(file));
        let (name, health) = ("simulated".into(), HealthCell::default());
        Self::new(name, source, bytes, geometry.block_bytes, geometry.is_read_only, traits, health)
    }

    fn new(
        name: String,
        source: Source,
        bytes: u64,
        block_bytes: u32,
        is_read_only: bool,
        traits: Traits,
        health: HealthCell,
    ) -> Self {
        let shared = Shared {
            name,
            source,
            block_bytes,
            gate: AtomicU64::new(0),
            bytes: AtomicU64::new(bytes),
            is_read_only,
            is_direct: AtomicBool::new(traits.is_direct),
            can_punch: AtomicBool::new(traits.can_punch),
            can_zero: AtomicBool::new(true),
            reason: Mutex::default(),
            has_shrunk: AtomicBool::new(false),
            health,
            write_grain_bytes: traits.write_grain_bytes,
            deallocate_grain_bytes: traits.deallocate_grain_bytes,
        };
        Self { shared: Arc::new(shared) }
    }
}

impl BlockStore for FileStore {
    fn geometry(&self) -> Geometry {
        self.shared.geometry()
    }

    fn attach(&self) -> io::Result<Box<dyn Backend>> {
        let shared = Arc::clone(&self.shared);
        // The state is read first: if a reopen comes between, the descriptions are merely requested again.
        let gate = shared.gate();
        let files = shared.describe()?;
        Ok(Box::new(FileBackend::new(shared, gate, files)))
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        let shared = &self.shared;
        check_size(&shared.name, bytes, shared.block_bytes).map_err(io::Error::other)?;
        if shared.is_read_only {
            return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the namespace is read-only"));
        }
        match &shared.source {
            Source::Os { settings, current } => {
                let mut current = lock(current);
                match &mut current.opened {
                    Some(opened) if !shared.gate().is_closed() => {
                        shared.resize_file(settings, opened, bytes)?;
                    }
                    _ => return Err(io::Error::other(StoreError::Closed)),
                }
                if settings.kind == FileKind::Regular {
                    current.wanted = Some(bytes);
                }
                Ok(())
            }
            Source::Simulated(_) => {
                shared.bytes.store(bytes, Ordering::Release);
                Ok(())
            }
        }
    }

    fn reopen(&self) -> io::Result<()> {
        let shared = &self.shared;
        if let Source::Os { settings, current } = &shared.source {
            let mut current = lock(current);
            // Closed first: nothing may run while another file takes its place.
            if !Generation(shared.gate.fetch_or(1, Ordering::AcqRel)).is_closed() {
                *lock(&shared.reason) = Some("it is being reopened".to_owned());
            }
            current.reopen(settings, shared).map_err(io::Error::other)?;
        }
        shared.health.reset();
        *lock(&shared.reason) = None;
        shared.open_next_generation();
        tracing::info!(name = shared.name, "reopened");
        Ok(())
    }

    fn generation(&self) -> Generation {
        self.shared.gate()
    }

    fn closed_because(&self) -> Option<String> {
        if !self.shared.gate().is_closed() {
            return None;
        }
        // The gate closes a moment before the reason is there.
        Some(lock(&self.shared.reason).clone().unwrap_or_else(|| StoreError::Closed.to_string()))
    }

    fn health(&self) -> Health {
        self.shared.health.get()
    }

    fn can_change_underneath(&self) -> bool {
        matches!(self.shared.source, Source::Os { .. })
    }

    fn revalidate(&self) -> Option<Grown> {
        let shared = &self.shared;
        let Source::Os { settings, current } = &shared.source else { return None };
        let mut current = lock(current);
        let gate = shared.gate();
        if gate.is_closed() {
            return None;
        }
        let opened = current.opened.as_ref()?;
        shared.inspect_open(opened.data.as_fd(), watch_of(settings, opened), gate).ok()?;
        let actual = file_open::size(&opened.data).ok()?;
        current.note_place(settings, &shared.name);
        let Current { opened, looks, .. } = &mut *current;
        if let Some(opened) = opened {
            shared.health.look(looks, settings, opened, &shared.name);
        }
        let before = shared.bytes();
        let after = actual - actual % u64::from(shared.block_bytes);
        if after <= before || settings.contents == Contents::Pairs {
            return None;
        }
        if current.wanted.is_some() {
            let message = format!(
                "it has {} by now, and the namespace keeps {} as the configuration says: write size={}, or leave size out, \
                 to use the rest",
                Size(actual),
                Size(before),
                Size(after)
            );
            current.note(&shared.name, message);
            return None;
        }
        if let Some(opened) = &mut current.opened {
            opened.bytes = after;
        }
        shared.bytes.store(after, Ordering::Release);
        Some(Grown { before, after })
    }
}

/// Hosts keep partition tables and file systems by block number: a file is not served with another block size than
/// before.
fn check_block_bytes(settings: &FileSettings) -> Result<(), OpenError> {
    if settings.kind != FileKind::Regular || settings.contents != Contents::Blocks {
        return Ok(());
    }
    let block_bytes = settings.block_bytes.unwrap_or(BLOCK_BYTES_DEFAULT);
    match crate::identity::kept_block_bytes(&settings.path) {
        Some(kept) if kept != block_bytes => {
            Err(OpenError::OtherBlockSize { path: settings.path.clone(), block_bytes, kept })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Contents;
    use crate::testing::{Bench, Rig, Step, StepResult, check_against_model, model_steps, open_in_time};
    use proptest::prelude::*;
    use reactor::EngineKind;
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::path::{Path, PathBuf};
    use tempfile::TempDir;

    const ENGINES: [EngineKind; 2] = [EngineKind::Uring, EngineKind::Epoll];

    fn settings(path: &Path, bytes: u64) -> FileSettings {
        FileSettings {
            path: path.to_owned(),
            kind: FileKind::Regular,
            contents: Contents::Blocks,
            bytes: Some(bytes),
            block_bytes: Some(512),
            is_read_only: false,
            is_sparse: true,
        }
    }

    /// Directories on the file systems of this machine: with direct I/O, and without zeroing of ranges.
    fn directories() -> Vec<TempDir> {
        let mut all = vec![tempfile::tempdir().unwrap()];
        match tempfile::tempdir_in("/dev/shm") {
            Ok(directory) => all.push(directory),
            Err(error) => eprintln!("skipped: no tmpfs in /dev/shm: {error}"),
        }
        all
    }

    /// A new file in each of them, with each engine that there is.
    fn on_every_system(bytes: u64, mut check: impl FnMut(&Path, &Arc<dyn BlockStore>, &mut Rig)) {
        for directory in directories() {
            for engine in ENGINES {
                let path = directory.path().join(format!("{engine:?}"));
                let store: Arc<dyn BlockStore> = Arc::new(FileStore::open(&settings(&path, bytes)).unwrap());
                if let Some(mut rig) = Rig::attach(&store, engine) {
                    check(&path, &store, &mut rig);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn a_file_is_a_vector_of_bytes(steps in model_steps(64, true)) {
            let mut result = Ok(());
            on_every_system(64 * 512, |_, store, rig| {
                if result.is_ok() {
                    result = check_against_model(&**store, rig, steps.clone());
                }
            });
            result?;
        }
    }

    #[test]
    fn space_that_is_deallocated_comes_back() {
        const BYTES: u64 = 8 << 20;
        on_every_system(BYTES, |path, store, rig| {
            let used = || std::fs::metadata(path).unwrap().blocks() * 512;
            assert_eq!(used(), 0, "a new file is sparse");
            for offset in (0..BYTES).step_by(1 << 20) {
                assert_eq!(rig.write(offset, &vec![1; 1 << 20]), Ok(vec![]));
            }
            assert_eq!(rig.flush(), Ok(vec![]));
            assert!(used() >= BYTES);
            assert!(store.geometry().can_deallocate);
            assert_eq!(rig.run(Step::Deallocate { offset: 0, length: BYTES / 2 }), Ok(vec![]));
            assert!(used() <= BYTES / 2 + (1 << 16), "{} are used", used());
            let zeroes = Step::WriteZeroes {
                offset: BYTES / 2,
                length: BYTES / 2,
                is_durable: true,
                may_deallocate: true,
            };
            assert_eq!(rig.run(zeroes), Ok(vec![]));
            assert!(used() <= 1 << 16, "{} are used", used());
            assert_eq!(rig.read(BYTES - 4096, 4096), Ok(vec![0; 4096]));
        });
    }

    #[test]
    fn a_storm_of_durable_writes_and_flushes_ends() {
        on_every_system(1 << 20, |_, _, rig| {
            let steps = (0..1500u64).map(|n| match n % 3 {
                0 => Step::Flush,
                1 => {
                    Step::Write { offset: n % 256 * 4096, data: vec![n as u8; 512], is_durable: n % 30 == 1 }
                }
                _ => Step::WriteZeroes {
                    offset: n % 256 * 4096 + 2048,
                    length: 1024,
                    is_durable: true,
                    may_deallocate: n % 2 == 0,
                },
            });
            assert!(rig.run_all(steps.collect()).iter().all(StepResult::is_ok));
        });
    }

    #[test]
    fn two_reactors_see_one_namespace() {
        on_every_system(1 << 20, |_, store, rig| {
            let Some(mut other) = Rig::attach(store, EngineKind::Epoll) else { return };
            rig.write(4096, &[3; 4096]).unwrap();
            assert_eq!(other.read(4096, 4096), Ok(vec![3; 4096]));
            store.resize(8192).unwrap();
            store.resize(1 << 20).unwrap();
            other.write(8192, &[4; 512]).unwrap();
            assert_eq!(rig.read(8192, 1024), Ok([[4; 512], [0; 512]].concat()));
        });
    }

    fn zeroes_at(offset: u64, is_durable: bool, may_deallocate: bool) -> Step {
        Step::WriteZeroes { offset, length: 4096, is_durable, may_deallocate }
    }

    /// Everything that a host may ask of blocks that are still there.
    fn one_of_each() -> Vec<Step> {
        vec![
            Step::Read { offset: 0, length: 512 },
            Step::Write { offset: 0, data: vec![2; 4096], is_durable: false },
            Step::Write { offset: 0, data: vec![2; 4096], is_durable: true },
            zeroes_at(0, true, true),
            zeroes_at(0, false, false),
            Step::Deallocate { offset: 0, length: 4096 },
            Step::Flush,
        ]
    }

    fn open_for_writing(path: &Path) -> std::fs::File {
        std::fs::OpenOptions::new().write(true).open(path).unwrap()
    }

    #[test]
    fn whatever_meets_a_cut_file_first_closes_it_until_it_is_reopened() {
        let first_to_meet = [
            Step::Write { offset: 4096, data: vec![2; 4096], is_durable: false },
            Step::Write { offset: 0, data: vec![2; 4096], is_durable: true },
            Step::Read { offset: 65536, length: 4096 },
            Step::Read { offset: 4096, length: 4096 },
            zeroes_at(65536, true, true),
            zeroes_at(0, false, false),
            Step::Deallocate { offset: 65536, length: 4096 },
            Step::Flush,
        ];
        for step in first_to_meet {
            on_every_system(1 << 20, |path, store, rig| {
                let mut other = Rig::attach(store, EngineKind::Epoll).unwrap();
                rig.write(0, &[1; 8192]).unwrap();
                let file = open_for_writing(path);
                file.set_len(6000).unwrap();
                assert_eq!(rig.run(step.clone()), Err(StoreError::Truncated), "{step:?}");
                assert_eq!(file.metadata().unwrap().len(), 6000, "{step:?} made it longer");
                let why = store.closed_because().expect("closed");
                assert!(why.contains("cut from 1M to"), "{why}");
                // It is as long as before, and what lay behind the cut reads as zeroes.
                file.set_len(1 << 20).unwrap();
                for bench in [rig, &mut other] {
                    for next in one_of_each() {
                        assert_eq!(
                            bench.run(next.clone()),
                            Err(StoreError::Closed),
                            "{next:?} after {step:?}"
                        );
                    }
                }
            });
        }
    }

    #[test]
    fn a_file_that_is_too_short_for_its_size_is_not_reopened() {
        on_every_system(1 << 20, |path, store, rig| {
            rig.write(0, &[1; 8192]).unwrap();
            let file = open_for_writing(path);
            file.set_len(8192).unwrap();
            assert_eq!(rig.flush(), Err(StoreError::Truncated));
            let refused = store.reopen().unwrap_err().to_string();
            assert!(refused.contains("has 8K and size=1M is more: it was cut"), "{refused}");
            assert_eq!(rig.read(0, 512), Err(StoreError::Closed));
            file.set_len(1 << 20).unwrap();
            let before = store.generation();
            store.reopen().unwrap();
            assert!(before.is_closed() && store.generation() == before.open());
            assert_eq!(store.closed_because(), None);
            assert_eq!(rig.read(0, 512), Ok(vec![1; 512]));
            for step in one_of_each() {
                assert!(rig.run(step.clone()).is_ok(), "{step:?}");
            }
        });
    }

    #[test]
    fn a_file_without_a_size_is_reopened_as_it_is_and_the_namespace_is_smaller() {
        on_every_system(1 << 20, |path, _, _| {
            let settings = FileSettings { bytes: None, ..settings(path, 0) };
            std::fs::rename(path, path.with_extension("b")).unwrap();
            let settings = FileSettings { path: path.with_extension("b"), ..settings };
            let Ok(_) = std::fs::File::open(&settings.path) else { return };
            // The first store still has the lock on this file: a copy of its own.
            std::fs::copy(&settings.path, path).unwrap();
            let settings = FileSettings { path: path.to_owned(), ..settings };
            let store: Arc<dyn BlockStore> = Arc::new(open_in_time(|| FileStore::open(&settings)).unwrap());
            let mut rig = Rig::attach(&store, EngineKind::Epoll).unwrap();
            rig.write(0, &[1; 4096]).unwrap();
            open_for_writing(path).set_len(8192 + 100).unwrap();
            assert_eq!(store.revalidate(), None);
            assert!(store.closed_because().is_some(), "the look alone closes it");
            assert!(store.reopen().is_err(), "no whole number of blocks");
            open_for_writing(path).set_len(8192).unwrap();
            store.reopen().unwrap();
            assert_eq!(store.geometry().block_count, 16);
            assert_eq!(rig.read(0, 4096), Ok(vec![1; 4096]));
            assert_eq!(rig.read(8192, 512), Err(StoreError::Truncated), "past its end now");
            assert_eq!(store.closed_because(), None, "which closes nothing");
        });
    }

    #[test]
    fn a_namespace_grows_with_its_file_if_no_size_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        std::fs::File::create(&path).unwrap().set_len(65536).unwrap();
        let store: Arc<dyn BlockStore> =
            Arc::new(FileStore::open(&FileSettings { bytes: None, ..settings(&path, 0) }).unwrap());
        let mut rig = Rig::attach(&store, EngineKind::Epoll).unwrap();
        assert_eq!(store.revalidate(), None);
        let file = open_for_writing(&path);
        file.write_all_at(&[9; 1000], 65536).unwrap();
        assert_eq!(
            store.revalidate(),
            Some(Grown { before: 65536, after: 65536 + 512 }),
            "whole blocks only"
        );
        assert_eq!(rig.read(65536, 512), Ok(vec![9; 512]), "with what was written there");
        assert_eq!(store.revalidate(), None, "once");
        assert_eq!(rig.write(65536, &[1; 512]), Ok(vec![]));
        drop(rig);
        drop(store);

        let store = open_in_time(|| FileStore::open(&settings(&path, 131_072))).unwrap();
        file.set_len(200_000).unwrap();
        assert_eq!(store.revalidate(), None, "the configuration says its size");
        assert_eq!(store.geometry().bytes(), 131_072);
        assert!(store.resize(150_016).unwrap_err().to_string().contains("already"), "nothing is cut off");
        assert_eq!(file.metadata().unwrap().len(), 200_000);
    }

    #[test]
    fn what_a_late_write_left_behind_the_end_never_comes_into_the_namespace() {
        on_every_system(65536, |path, store, rig| {
            store.resize(32768).unwrap();
            open_for_writing(path).write_all_at(&[9; 8192], 32768).unwrap();
            store.resize(65536).unwrap();
            assert_eq!(rig.read(32768, 32768), Ok(vec![0; 32768]));
        });
    }

    #[test]
    fn what_another_program_has_written_behind_the_end_comes_into_the_namespace() {
        on_every_system(65536, |path, store, rig| {
            open_for_writing(path).write_all_at(&[9; 8192], 65536).unwrap();
            store.resize(65536 + 8192).unwrap();
            assert_eq!(rig.read(65536, 8192), Ok(vec![9; 8192]));
        });
    }

    #[test]
    fn a_file_that_was_deleted_or_replaced_closes_its_namespace_until_it_is_back() {
        on_every_system(65536, |path, store, rig| {
            let claimed = {
                let machine = crate::identity::random().unwrap();
                crate::identity::claim(path, machine, machine)
            };
            rig.write(0, &[1; 4096]).unwrap();
            let other = path.with_extension("other");
            std::fs::write(&other, vec![9; 65536]).unwrap();
            std::fs::rename(&other, path).unwrap();
            assert_eq!(rig.write(0, &[2; 4096]), Err(StoreError::Gone));
            for step in one_of_each() {
                assert_eq!(rig.run(step), Err(StoreError::Closed));
            }
            assert!(store.attach().is_err(), "no reactor may begin with the other file");
            let refused = store.reopen().unwrap_err().to_string();
            assert!(refused.contains("another file than the one that was served"), "{refused}");
            std::fs::remove_file(path).unwrap();
            assert!(store.reopen().is_err());
            assert_eq!(rig.read(0, 4096), Err(StoreError::Closed));
            assert!(!path.exists(), "reopening creates nothing");
            // While it is open its data can be brought back, and its identity with it.
            let why = store.closed_because().unwrap();
            let named = why.split_whitespace().find(|word| word.starts_with("/proc/")).expect("where it is");
            let is_it = |at: &PathBuf| {
                std::fs::read_link(at)
                    .is_ok_and(|to| to.to_string_lossy() == format!("{} (deleted)", path.display()))
            };
            // If that descriptor was closed meanwhile, the file is open under another number.
            let all = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
            let from =
                std::iter::once(PathBuf::from(named)).chain(all).find(is_it).expect("it is still open");
            let copied =
                std::process::Command::new("cp").arg("--preserve=xattr").arg(&from).arg(path).status();
            assert!(copied.unwrap().success());
            match claimed {
                Ok((uuid, _)) => {
                    store.reopen().unwrap();
                    assert_eq!(rig.read(0, 4096), Ok(vec![1; 4096]));
                    assert_eq!(crate::identity::read(path), Some(uuid));
                }
                Err(_) => assert!(store.reopen().is_err(), "nothing tells that it is a copy"),
            }
        });
    }

    #[test]
    fn a_file_that_was_moved_stays_open() {
        on_every_system(65536, |path, store, rig| {
            let elsewhere = path.with_extension("moved");
            std::fs::rename(path, &elsewhere).unwrap();
            assert_eq!(store.revalidate(), None);
            assert_eq!(store.closed_because(), None);
            assert_eq!(rig.write(0, &[2; 4096]), Ok(vec![]));
            assert_eq!(rig.flush(), Ok(vec![]));
            assert_eq!(std::fs::read(elsewhere).unwrap()[..4096], [2; 4096]);
        });
    }

    #[test]
    fn a_reopened_file_is_locked_as_before() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(&directory.path().join("a"), 65536);
        let store = FileStore::open(&settings).unwrap();
        store.reopen().unwrap();
        assert!(matches!(FileStore::open(&settings), Err(OpenError::Locked { .. })));
        // Also if it could not be reopened.
        let file = open_for_writing(&settings.path);
        file.set_len(512).unwrap();
        assert!(store.reopen().is_err());
        file.set_len(65536).unwrap();
        assert!(matches!(FileStore::open(&settings), Err(OpenError::Locked { .. })));
        drop(store);
        assert!(open_in_time(|| FileStore::open(&settings)).is_ok());
    }

    #[test]
    fn a_second_target_cannot_take_the_lock_during_a_reopening() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(&directory.path().join("a"), 65536);
        let store = FileStore::open(&settings).unwrap();
        let attempt = || matches!(FileStore::open(&settings), Err(OpenError::Locked { .. }));
        std::thread::scope(|scope| {
            let second = scope.spawn(|| (0..20_000).all(|_| attempt()));
            while !second.is_finished() {
                store.reopen().unwrap();
            }
            assert!(second.join().unwrap());
        });
    }

    #[test]
    fn what_is_being_written_keeps_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(&directory.path().join("a"), 65536);
        let store = FileStore::open(&settings).unwrap();
        if !store.shared.is_direct.load(Ordering::Relaxed) {
            return;
        }
        // As the kernel keeps it while a write runs, even if the process is killed.
        let running = store.shared.describe().unwrap().data;
        drop(store);
        assert!(matches!(FileStore::open(&settings), Err(OpenError::Locked { .. })));
        drop(running);
        assert!(open_in_time(|| FileStore::open(&settings)).is_ok());
    }

    #[test]
    fn a_loop_device_is_a_vector_of_bytes() {
        let Some(device) = LoopDevice::new(64 << 10) else { return };
        let mut settings = FileSettings {
            kind: FileKind::Device,
            bytes: None,
            block_bytes: None,
            ..settings(&device.path, 0)
        };
        let store = FileStore::open(&settings).unwrap();
        assert_eq!(store.geometry().block_bytes, 4096, "what the device has");
        assert_eq!(store.geometry().bytes(), 64 << 10);
        assert!(store.resize(32 << 10).is_err() && store.resize(64 << 10).is_ok());
        assert!(matches!(FileStore::open(&settings), Err(OpenError::Locked { .. })));
        let store: Arc<dyn BlockStore> = Arc::new(store);
        for engine in ENGINES {
            let Some(rig) = Rig::attach(&store, engine) else { continue };
            let rig = std::cell::RefCell::new(rig);
            proptest!(ProptestConfig::with_cases(8), |(steps in model_steps(16, false))| {
                // As new.
                let zeroes =
                    Step::WriteZeroes { offset: 0, length: 64 << 10, is_durable: true, may_deallocate: true };
                prop_assert_eq!(rig.borrow_mut().run(zeroes), Ok(vec![]));
                check_against_model(&*store, &mut *rig.borrow_mut(), steps)?;
            });
            store.reopen().unwrap();
            assert_eq!(rig.into_inner().flush(), Ok(vec![]));
        }
        for step in [
            Step::Write { offset: 32 << 10, data: vec![1; 4096], is_durable: false },
            Step::Read { offset: 32 << 10, length: 4096 },
            Step::Flush,
        ] {
            for engine in ENGINES {
                let Some(mut rig) = Rig::attach(&store, engine) else { continue };
                device.size(32 << 10);
                assert_eq!(rig.run(step.clone()), Err(StoreError::Truncated));
                device.size(64 << 10);
                assert_eq!(rig.write(0, &[1; 4096]), Err(StoreError::Closed));
                assert_eq!(rig.flush(), Err(StoreError::Closed));
                store.reopen().unwrap();
                assert_eq!(rig.flush(), Ok(vec![]));
            }
        }
        device.size(128 << 10);
        assert_eq!(store.revalidate(), Some(Grown { before: 64 << 10, after: 128 << 10 }));
        device.size(64 << 10);
        assert_eq!(store.revalidate(), None);
        assert!(store.closed_because().is_some());
        store.reopen().unwrap();
        assert_eq!(store.geometry().bytes(), 64 << 10, "a device has the size that it has");
        drop(store);
        settings.block_bytes = Some(512);
        let refused = FileStore::open(&settings).err().unwrap();
        assert!(matches!(refused, OpenError::BlockTooSmall { block_bytes_min: 4096, .. }), "{refused}");
    }

    #[test]
    fn a_device_that_is_read_only_is_refused_or_write_protected_as_long_as_it_is() {
        let Some(device) = LoopDevice::new(64 << 10) else { return };
        let set = |option: &str| {
            let status = std::process::Command::new("blockdev").arg(option).arg(&device.path).status();
            assert!(status.unwrap().success());
        };
        let settings = FileSettings {
            kind: FileKind::Device,
            bytes: None,
            block_bytes: None,
            ..settings(&device.path, 0)
        };
        set("--setro");
        let refused = FileStore::open(&settings).err().expect("hosts could not write").to_string();
        assert!(refused.contains("?readonly") && refused.contains("--setrw"), "{refused}");
        let to_read = FileSettings { is_read_only: true, ..settings.clone() };
        assert!(FileStore::open(&to_read).unwrap().geometry().is_read_only);
        set("--setrw");
        let store: Arc<dyn BlockStore> = Arc::new(open_in_time(|| FileStore::open(&settings)).unwrap());
        for engine in ENGINES {
            let Some(mut rig) = Rig::attach(&store, engine) else { continue };
            assert_eq!(rig.write(0, &[1; 4096]), Ok(vec![]));
            for found_by_look in [false, true] {
                set("--setro");
                if found_by_look {
                    store.revalidate();
                }
                for is_durable in [false, true] {
                    let write = Step::Write { offset: 0, data: vec![2; 4096], is_durable };
                    assert_eq!(rig.run(write), Err(StoreError::ReadOnly));
                }
                assert!(store.health().is_write_protected && store.geometry().is_read_only);
                assert_eq!(rig.flush(), Ok(vec![]), "of what was written before");
                assert_eq!(rig.read(0, 4096), Ok(vec![1; 4096]));
                assert_eq!(store.closed_because(), None);
                set("--setrw");
                store.revalidate();
                assert!(!store.health().is_write_protected && !store.geometry().is_read_only);
                assert_eq!(rig.write(0, &[1; 4096]), Ok(vec![]));
            }
        }
    }

    /// A file system of this size, for as long as it lives; `None` without the right to mount one.
    struct SmallDisk(TempDir);

    impl SmallDisk {
        fn new(bytes: u64) -> Option<Self> {
            let directory = tempfile::tempdir().unwrap();
            let made = std::process::Command::new("mount")
                .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"])
                .arg(directory.path())
                .output();
            if made.as_ref().is_ok_and(|output| output.status.success()) {
                return Some(Self(directory));
            }
            eprintln!("skipped: no file system can be mounted here (that takes root): {made:?}");
            None
        }
    }

    impl Drop for SmallDisk {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg("--lazy").arg(self.0.path()).status();
        }
    }

    #[test]
    fn a_full_disk_is_seen_until_there_is_space_again() {
        const MIB: u64 = 1 << 20;
        let Some(disk) = SmallDisk::new(8 * MIB) else { return };
        let path = disk.0.path().join("a");
        let store: Arc<dyn BlockStore> = Arc::new(FileStore::open(&settings(&path, 32 * MIB)).unwrap());
        for engine in ENGINES {
            let Some(mut rig) = Rig::attach(&store, engine) else { continue };
            let allocated = store.health().allocated_bytes;
            assert_eq!(allocated, Some(0), "of a new file");
            store.revalidate();
            assert!(!store.health().lacks_space(), "{:?}", store.health());
            let other = disk.0.path().join("other");
            std::fs::write(&other, vec![1; 4 << 20]).unwrap();
            store.revalidate();
            let health = store.health();
            assert!((40..=50).contains(&health.spare_percent) && !health.lacks_space(), "{health:?}");
            let refused = (0..32).map(|at| rig.write(at * MIB, &vec![1; 1 << 20])).find(Result::is_err);
            assert_eq!(refused, Some(Err(StoreError::NoSpace)));
            let health = store.health();
            assert!(health.is_full && health.lacks_space(), "at once: {health:?}");
            store.revalidate();
            store.revalidate();
            let health = store.health();
            assert!(health.is_full, "nothing has changed: {health:?}");
            assert!(
                health.allocated_bytes.is_some_and(|bytes| (MIB..5 * MIB).contains(&bytes)),
                "{health:?}"
            );
            assert_eq!(store.closed_because(), None);
            std::fs::remove_file(other).unwrap();
            store.revalidate();
            let health = store.health();
            assert!(!health.is_full && !health.lacks_space(), "{health:?}");
            assert_eq!(rig.run(Step::Deallocate { offset: 0, length: 32 * MIB }), Ok(vec![]));
            store.revalidate();
            assert_eq!(store.health().allocated_bytes, Some(0));
        }
    }

    #[test]
    fn a_file_is_not_served_with_another_block_size_than_before() {
        let beside = std::env::current_exe().unwrap();
        let directory = tempfile::tempdir_in(beside.parent().unwrap()).unwrap();
        let settings = settings(&directory.path().join("a"), 65536);
        drop(FileStore::open(&settings).unwrap());
        if crate::identity::keep_block_bytes(&settings.path, 512).is_err() {
            eprintln!("skipped: the build directory keeps no attributes");
            return;
        }
        for block_bytes in [None, Some(4096)] {
            let other = FileSettings { block_bytes, bytes: Some(131_072), ..settings.clone() };
            let refused = open_in_time(|| FileStore::open(&other)).err().expect("refused").to_string();
            assert!(refused.contains("lba=512") && refused.contains("setfattr -x"), "{refused}");
        }
        assert_eq!(std::fs::metadata(&settings.path).unwrap().len(), 65536, "it has not grown");
        drop(open_in_time(|| FileStore::open(&settings)).unwrap());
        let status = rustix::fs::removexattr(&settings.path, crate::identity::BLOCK_SIZE_ATTRIBUTE);
        assert_eq!(status, Ok(()));
        open_in_time(|| FileStore::open(&FileSettings { block_bytes: None, ..settings.clone() })).unwrap();
    }

    #[test]
    fn a_file_that_others_write_is_refused_with_their_name() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(&directory.path().join("a"), 65536);
        drop(FileStore::open(&settings).unwrap());
        let to_read = FileSettings { is_read_only: true, ..settings.clone() };
        let refusal = || {
            let found = open_in_time(|| FileStore::open(&settings)).map(drop);
            let seen = file_open::check_writable(&settings).unwrap_err().to_string();
            let refused = found.unwrap_err();
            assert!(matches!(refused, OpenError::Held { .. }), "{refused}");
            assert_eq!(refused.to_string(), seen, "check says the same");
            drop(open_in_time(|| FileStore::open(&to_read)).unwrap());
            seen
        };
        // As QEMU has it: a right that is not shared, by a description that cannot write.
        let locking = std::fs::File::open(&settings.path).unwrap();
        linux::lock_range_shared(locking.as_fd(), 201, 1).unwrap();
        assert!(refusal().contains("QEMU"));
        drop(locking);
        let mut writer = std::process::Command::new("sh")
            .args(["-c", "exec 9>>\"$1\"; exec sleep 60", "sh"])
            .arg(&settings.path)
            .spawn()
            .unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while crate::holders::writers(&settings.path).first().is_none_or(|holder| holder.name != "sleep") {
            assert!(std::time::Instant::now() < until, "the other process is not seen");
        }
        assert!(refusal().contains(&format!("sleep (process {})", writer.id())));
        writer.kill().unwrap();
        writer.wait().unwrap();
        let store = open_in_time(|| FileStore::open(&settings)).unwrap();
        let other = std::fs::File::open(&settings.path).unwrap();
        assert!(linux::is_range_locked(other.as_fd(), 201, 1).unwrap(), "QEMU keeps away");
        drop(store);
        if let Some(device) = LoopDevice::on(&settings.path) {
            assert!(refusal().contains(device.path.to_str().unwrap()));
        }
    }

    #[test]
    fn what_cannot_be_written_is_not_reopened() {
        let Some(device) = LoopDevice::new(64 << 10) else { return };
        let settings = FileSettings {
            kind: FileKind::Device,
            bytes: None,
            block_bytes: None,
            ..settings(&device.path, 0)
        };
        let store: Arc<dyn BlockStore> = Arc::new(open_in_time(|| FileStore::open(&settings)).unwrap());
        // Its storage is gone, and the device is there.
        device.file.as_file().set_len(0).unwrap();
        let refused = store.reopen().unwrap_err().to_string();
        assert!(refused.contains("cannot"), "{refused}");
        assert!(store.closed_because().is_some());
        device.file.as_file().set_len(64 << 10).unwrap();
        store.reopen().unwrap();
        assert_eq!(store.closed_because(), None);
    }

    /// A block device on a file, for as long as it lives.
    struct LoopDevice {
        path: PathBuf,
        file: tempfile::NamedTempFile,
    }

    /// The same on a file that stays.
    struct Attached {
        path: PathBuf,
    }

    impl Drop for Attached {
        fn drop(&mut self) {
            let _ = std::process::Command::new("losetup").arg("--detach").arg(&self.path).status();
        }
    }

    impl LoopDevice {
        fn new(bytes: u64) -> Option<Self> {
            let file = tempfile::NamedTempFile::new().unwrap();
            file.as_file().set_len(bytes).unwrap();
            let made = std::process::Command::new("losetup")
                .args(["--find", "--show", "--sector-size", "4096"])
                .arg(file.path())
                .output();
            match made {
                Ok(output) if output.status.success() => {
                    let path = String::from_utf8(output.stdout).unwrap();
                    Some(Self { path: path.trim().into(), file })
                }
                other => {
                    eprintln!("skipped: no loop device can be made here (that takes root): {other:?}");
                    None
                }
            }
        }

        fn on(path: &Path) -> Option<Attached> {
            let made = std::process::Command::new("losetup").args(["--find", "--show"]).arg(path).output();
            let output = made.ok().filter(|output| output.status.success())?;
            Some(Attached { path: String::from_utf8(output.stdout).unwrap().trim().into() })
        }

        fn size(&self, bytes: u64) {
            self.file.as_file().set_len(bytes).unwrap();
            let status = std::process::Command::new("losetup").arg("--set-capacity").arg(&self.path).status();
            assert!(status.unwrap().success());
        }
    }

    impl Drop for LoopDevice {
        fn drop(&mut self) {
            let _ = std::process::Command::new("losetup").arg("--detach").arg(&self.path).status();
        }
    }
}
