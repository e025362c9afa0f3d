//! Local storage under load: a file or block device, driven through a ring for each thread.

use std::path::Path;
use std::time::Duration;

use host::Error;
use memory::{Buffer, Pool};
use reactor::{Allocation, File, Operation, SpinPolicy, StorageRing};
use store::{Contents, FileKind, FileSettings, OpenError, RawFile};

use super::buffer::fill;
use super::queues::{Closed, DataRoom, Destination, Done, Queues, Refusal, RingUse};
use super::{Finished, JITTER, Observer, RunError, RunSettings, Thread, drive};
use crate::environment::Environment;
use crate::recorder::Failure;
use crate::report::StorageResult;
use crate::stream::Step;
use crate::workload::{Deallocated, Geometry, Kind, Mix, Plan, Workload};

/// A file or block device to put load on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalStorage {
    /// Its path.
    pub path: std::path::PathBuf,
    /// The kind that it must be of.
    pub kind: FileKind,
    /// Bytes of a block; if `None`, 4096, and for devices their own block size.
    pub block_bytes: Option<u32>,
    /// Whether idle threads spin before they sleep.
    pub spin: SpinPolicy,
}

impl LocalStorage {
    /// Storage at a path, with the defaults.
    #[must_use]
    pub fn new(path: &Path, kind: FileKind) -> Self {
        Self { path: path.to_owned(), kind, block_bytes: None, spin: SpinPolicy::default() }
    }

    /// Opens it: for reading together with others, for writing alone.
    fn open(&self, is_read_only: bool) -> Result<RawFile, OpenError> {
        let settings = FileSettings {
            path: self.path.clone(),
            kind: self.kind,
            contents: Contents::Blocks,
            bytes: None,
            block_bytes: self.block_bytes,
            is_read_only,
            is_sparse: false,
        };
        RawFile::open(&settings).map_err(|error| match error {
            // Nothing is created here.
            OpenError::Missing { path, .. } if self.kind == FileKind::Regular => {
                OpenError::Missing { path, remedy: "create it first, as with `fallocate -l 10G`" }
            }
            OpenError::Empty { name, .. } => {
                OpenError::Empty { name, remedy: "give it a size first, as with `fallocate -l 10G`" }
            }
            other => other,
        })
    }
}

/// Whether a load changes nothing.
fn only_reads(workload: &Workload) -> bool {
    workload.pattern.shares().read == 100 && workload.pattern.mix != Mix::WriteThenRead && !workload.fill
}

/// Puts `workload` on local storage, and reports. Settings about lanes and targets are ignored. The kernel's threads do
/// a part of the work.
///
/// The storage is opened as a target would open it: locked for the time of the run, and a device that is mounted is
/// not written.
///
/// # Errors
/// [`RunError`], before the load has begun. Later failures are in the report.
///
/// # Panics
/// If a thread of the run panics.
pub fn run_local(
    storage: &LocalStorage,
    workload: &Workload,
    settings: &RunSettings,
    observer: &mut dyn Observer,
) -> Result<Finished, RunError> {
    let is_read_only = only_reads(workload);
    let file = storage.open(is_read_only)?;
    let block_bytes = file.block_bytes();
    let geometry = Geometry {
        lba_bytes: block_bytes,
        block_count: file.bytes() / u64::from(block_bytes),
        transfer_limit_bytes: u32::try_from(memory::BLOCK_BYTES_MAX).ok(),
        deallocated: Deallocated::Zeroes,
    };
    let plan = workload.plan(&geometry, crate::verify::new_run_id())?;
    if is_read_only && file.hole_bytes().is_ok_and(|bytes| bytes > 0) {
        tracing::warn!(
            path = %storage.path.display(),
            "parts of the file have never been written: reads of them do not reach the disk (--fill writes all of it)"
        );
    }
    let environment = Environment::collect(None, JITTER);
    let local = Local { file: &file, spin_ns_max: storage.spin.limit_ns() };
    let settings = RunSettings { beside_kernel_threads: true, ..settings.clone() };
    let (mut finished, rings) = drive(&local, &plan, environment, &settings, observer)?;
    let kind = match storage.kind {
        FileKind::Regular => "file",
        FileKind::Device => "device",
    };
    finished.report.target = format!("{kind}:{}", storage.path.display());
    finished.report.storage = rings.map(|rings| StorageResult {
        bytes: file.bytes(),
        is_direct: file.is_direct(),
        has_registered_buffers: rings.has_registered_buffers,
        has_registered_file: rings.has_registered_file,
        operation_count: rings.counters.completion_count,
        call_count: rings.counters.call_count,
        sleep_count: rings.counters.sleep_count,
    });
    Ok(finished)
}

/// An open file, as the threads of a run see it.
struct Local<'a> {
    file: &'a RawFile,
    spin_ns_max: u64,
}

impl Destination for Local<'_> {
    type Queues = LocalQueues;

    fn open(&self, thread: &Thread, plan: &Plan) -> Result<LocalQueues, Error> {
        let system = |doing| move |error: std::io::Error| Error::System { doing, cause: error.into() };
        let count = thread.loads.len() * plan.workload().depth as usize;
        let limit = u32::try_from(count).unwrap_or(u32::MAX);
        let room = plan.buffer_bytes().next_power_of_two().max(memory::BLOCK_BYTES_MIN);
        let pool = Pool::new(count.saturating_mul(room)).map_err(system("have memory for the buffers"))?;
        let mut ring = StorageRing::new(&pool, limit, self.spin_ns_max)
            .map_err(system("use io_uring on this machine"))?;
        let file = self.file.handle().map_err(system("open the file once more"))?;
        let registered = ring.register_file(&file);
        if let Err(error) = &registered {
            tracing::debug!(%error, "the file is not registered");
        }
        Ok(LocalQueues {
            ring,
            pool,
            file,
            block_bytes: u64::from(plan.geometry().lba_bytes),
            never_sleeps: self.spin_ns_max == u64::MAX,
            has_registered_file: registered.is_ok(),
        })
    }

    fn open_timeout(&self) -> Duration {
        Duration::ZERO
    }

    fn abandon(&self) {}
}

/// The ring of one thread, which all of its loads share.
struct LocalQueues {
    ring: StorageRing,
    pool: Pool,
    file: File,
    block_bytes: u64,
    never_sleeps: bool,
    has_registered_file: bool,
}

impl Queues for LocalQueues {
    type Buffer = Buffer;

    fn buffer(&mut self, capacity: usize, seed: u64) -> Result<Buffer, Error> {
        let mut buffer = self.pool.take(capacity).expect("the pool has room for every operation");
        fill(&mut buffer, seed);
        Ok(buffer)
    }

    #[inline]
    fn submit(
        &mut self,
        _load: usize,
        step: Step,
        buffer: Option<Buffer>,
        user: u64,
    ) -> Result<(), Refusal<Buffer>> {
        let file = self.file.clone();
        let offset = step.slba * self.block_bytes;
        let length = u64::from(step.blocks) * self.block_bytes;
        let buffer = || buffer.expect("reads and writes have one");
        let operation = match step.kind {
            Kind::Read => Operation::Read { file, offset, buffer: buffer(), skip: 0 },
            Kind::Write => Operation::Write { file, offset, buffer: buffer(), skip: 0, durable: false },
            Kind::Trim => Operation::Allocate { file, offset, length, change: Allocation::Punch },
            Kind::WriteZeroes => Operation::Allocate { file, offset, length, change: Allocation::Zero },
        };
        self.ring.start(user, operation).map_err(|operation| Refusal {
            error: Box::new(Error::Refused { command: step.kind.name(), reason: host::RefusedReason::Full }),
            buffer: operation.into_buffer(),
        })
    }

    #[inline]
    fn outstanding(&self) -> usize {
        self.ring.outstanding()
    }

    fn never_sleeps(&self) -> bool {
        self.never_sleeps
    }

    #[inline]
    fn take(&mut self, timeout: Duration, each: &mut impl FnMut(Done<Buffer>)) -> Result<(), Error> {
        let mut each = |completion: reactor::Completion| {
            let reactor::Completion { token: user, result, buffer } = completion;
            let wanted = buffer.as_ref().map_or(0, |buffer| buffer.len());
            let result = match result {
                Ok(moved) if moved == wanted => Ok(()),
                Ok(_) => Err(Failure::Short),
                Err(error) => Err(Failure::System(error.raw_os_error().unwrap_or(0))),
            };
            each(Done { user, result, buffer });
        };
        let taken = match timeout {
            Duration::ZERO => self.ring.poll(&mut each),
            timeout => self.ring.wait(timeout, &mut each),
        };
        taken.map_err(|error| Error::System { doing: "wait for the ring", cause: error.into() })
    }

    fn close(&mut self, _thread: &Thread) -> Closed {
        let ring = RingUse {
            counters: self.ring.counters(),
            has_registered_buffers: self.ring.has_registered_buffers(),
            has_registered_file: self.has_registered_file,
        };
        Closed { ring: Some(ring), ..Closed::default() }
    }
}

impl DataRoom for Buffer {
    #[inline]
    fn resize(&mut self, length: usize) {
        self.set_len(length);
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        self
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use tempfile::NamedTempFile;

    use super::*;
    use crate::workload::{Pattern, Sizes, Stop};

    const BYTES: u64 = 4 << 20;

    fn file(bytes: u64) -> NamedTempFile {
        let file = NamedTempFile::new().unwrap();
        file.as_file().set_len(bytes).unwrap();
        file
    }

    fn storage(path: &Path) -> LocalStorage {
        LocalStorage { spin: SpinPolicy::Never, ..LocalStorage::new(path, FileKind::Regular) }
    }

    fn workload(pattern: &str) -> Workload {
        Workload {
            pattern: Pattern::named(pattern, Some(50)).unwrap(),
            depth: 8,
            warm_up: Duration::ZERO,
            stop: Stop { operations: Some(500), ..Stop::default() },
            ..Workload::default()
        }
    }

    fn run(storage: &LocalStorage, workload: &Workload) -> Result<Finished, RunError> {
        run_local(storage, workload, &RunSettings::default(), &mut ())
    }

    fn has_ring() -> bool {
        let has_ring = reactor::Features::probe().ring.is_ok();
        if !has_ring {
            eprintln!("skipped: no io_uring here");
        }
        has_ring
    }

    #[test]
    fn every_block_that_was_written_is_read_back_by_each_queue() {
        if !has_ring() {
            return;
        }
        let file = file(BYTES);
        let sizes: Sizes = "4k/70:64k/30".parse().unwrap();
        for pattern in ["randrw", "verify", "randtrim", "writezeroes"] {
            let workload =
                Workload { lanes: 3, verify: true, fill: true, sizes: sizes.clone(), ..workload(pattern) };
            let finished = run(&storage(file.path()), &workload).unwrap();
            let report = &finished.report;
            assert_eq!((report.counters.mismatch_count, finished.unanswered), (0, 0), "{pattern}");
            // Some file systems cannot give ranges back, or zero them.
            if pattern == "randrw" || pattern == "verify" {
                assert_eq!((report.total.operations, report.total.error_count), (500, 0), "{pattern}");
                assert!(report.counters.blocks_checked > 0);
            }
            assert_eq!(report.target, format!("file:{}", file.path().display()));
            assert!(report.lanes.is_empty() && report.phases.is_empty());
            let ring = report.storage.as_ref().expect("a ring");
            assert_eq!(ring.bytes, BYTES);
            // The fill is counted too.
            assert!(ring.operation_count >= 500 && ring.call_count <= ring.operation_count);
            assert!(ring.has_registered_file);
        }
    }

    #[test]
    fn the_same_file_has_the_same_content_afterwards() {
        if !has_ring() {
            return;
        }
        let file = file(BYTES);
        let fill = Workload { fill: true, verify: true, ..workload("randread") };
        assert_eq!(run(&storage(file.path()), &fill).unwrap().report.counters.mismatch_count, 0);
        let before = std::fs::read(file.path()).unwrap();
        run(&storage(file.path()), &workload("randread")).unwrap();
        assert!(std::fs::read(file.path()).unwrap() == before, "reads change nothing");
        run(&storage(file.path()), &workload("randwrite")).unwrap();
        assert!(std::fs::read(file.path()).unwrap() != before);
    }

    #[test]
    fn what_cannot_be_used_is_refused_before_anything_is_written() {
        let told = |storage: &LocalStorage, workload: &Workload| {
            run(storage, workload).map(drop).expect_err("refused").to_string()
        };
        let missing = storage(&PathBuf::from("/no/such/file"));
        assert_eq!(
            told(&missing, &workload("read")),
            "/no/such/file does not exist: create it first, as with `fallocate -l 10G`"
        );
        let empty = file(0);
        assert!(told(&storage(empty.path()), &workload("read")).contains("is empty: give it a size first"));
        let short = file(8192);
        let large = Workload { sizes: Sizes::one(64 << 10), ..workload("read") };
        assert!(told(&storage(short.path()), &large).contains("2 blocks do not give 1 lanes"));
        let huge = Workload { sizes: Sizes::one(8 << 20), ..workload("read") };
        assert!(told(&storage(short.path()), &huge).contains("at most 4194304 is possible"));
        let device = LocalStorage { kind: FileKind::Device, ..storage(short.path()) };
        assert!(
            told(&device, &workload("read")).contains("is a regular file: write file: in place of device:")
        );
    }

    #[test]
    fn a_file_in_use_is_not_written_and_can_be_read_by_several() {
        let file = file(BYTES);
        let storage = storage(file.path());
        let user = storage.open(false).unwrap();
        for pattern in ["randwrite", "randread", "verify"] {
            let told = run(&storage, &workload(pattern)).map(drop).expect_err("refused").to_string();
            assert!(told.contains("is in use"), "{told}");
        }
        drop(user);
        if !has_ring() {
            return;
        }
        let _reader = storage.open(true).unwrap();
        run(&storage, &workload("randread")).unwrap();
        assert!(run(&storage, &workload("randwrite")).is_err());
        assert!(run(&storage, &Workload { fill: true, ..workload("randread") }).is_err(), "a fill writes");
    }

    #[test]
    fn a_file_that_is_cut_under_load_fails_its_operations() {
        struct Cuts<'a>(&'a std::fs::File);
        impl Observer for Cuts<'_> {
            fn stops(&mut self) -> bool {
                self.0.set_len(4096).unwrap();
                false
            }
        }
        if !has_ring() {
            return;
        }
        let file = file(BYTES);
        let stop = Stop { runtime: Some(Duration::from_millis(200)), ..Stop::default() };
        let workload = Workload { stop, ..workload("randread") };
        let finished =
            run_local(&storage(file.path()), &workload, &RunSettings::default(), &mut Cuts(file.as_file()));
        let errors = finished.unwrap().report.total.errors;
        assert!(errors.contains_key("the file ends within it"), "{errors:?}");
    }
}
