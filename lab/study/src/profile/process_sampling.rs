//! The samples of one process, from the start of its sampling to their names.

use std::fs;
use std::io;

use super::maps::Maps;
use super::resolver::{Placed, Resolver};
use super::samples::{Samples, Scope};
use crate::error::{Doing, Error};

/// Buffer of the samples of a thread, bytes: those of a tenth of a second and more.
const BUFFER_BYTES: usize = 128 << 10;

/// Samples of a process, by layer and function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sampled {
    /// The samples.
    pub(crate) placed: Placed,
    /// The scope that the kernel permits.
    pub(crate) scope: Scope,
    /// Samples for which there was no room.
    pub(crate) lost: u64,
    /// Why some samples have no name.
    pub(crate) limits: Vec<String>,
}

/// Samples the threads of a process, which still runs when their functions get names.
pub(crate) struct ProcessSampling {
    pid: u32,
    scope: Scope,
    threads: Vec<perf_event::Sampler>,
    samples: Samples,
}

impl ProcessSampling {
    /// Starts with the threads that the process has now and whose name is wanted.
    pub(crate) fn start(pid: u32, scope: Scope, is_wanted: impl Fn(&str) -> bool) -> Result<Self, Error> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).doing("the threads of a process")?;
        let mut threads = Vec::new();
        for task in tasks.flatten() {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            let id = task.file_name().to_str().and_then(|id| id.parse().ok());
            let Some(id) = id.filter(|_| is_wanted(name.trim_end())) else { continue };
            match thread(id, scope) {
                Ok(sampler) => threads.push(sampler),
                // It has ended.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => return Err(refused(error)),
            }
        }
        Ok(Self { pid, scope, threads, samples: Samples::default() })
    }

    /// Takes the samples out of the buffers, which the kernel fills while the threads run.
    pub(crate) fn collect(&mut self) {
        for thread in &mut self.threads {
            while let Some(record) = thread.next_record() {
                self.samples.add_record(record.ty(), &record.to_contiguous());
            }
        }
    }

    /// Ends the sampling.
    pub(crate) fn end(&mut self) {
        for thread in &mut self.threads {
            // A thread that has ended has no more.
            let _ = thread.disable();
        }
        self.collect();
        self.threads.clear();
    }

    /// Names the functions of the samples.
    pub(crate) fn place(&self, resolver: &mut Resolver) -> Result<Sampled, Error> {
        let placed = resolver.place(&self.samples, &Maps::of(self.pid)?);
        let limits = self.scope.limit().into_iter().chain(resolver.limits()).collect();
        Ok(Sampled { placed, scope: self.scope, lost: self.samples.lost, limits })
    }
}

fn thread(id: i32, scope: Scope) -> io::Result<perf_event::Sampler> {
    let mut sampler = scope.builder().observe_pid(id).build()?.sampled(BUFFER_BYTES)?;
    sampler.enable()?;
    Ok(sampler)
}

fn refused(error: io::Error) -> Error {
    if error.raw_os_error() == Some(libc::EPERM) {
        return Error::Lacking(
            "no memory for samples of threads: sysctl kernel.perf_event_mlock_kb=2048, or a larger ulimit -l"
                .to_owned(),
        );
    }
    Error::system("sample a thread", error)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::samples::is_in_kernel;
    use super::*;

    #[test]
    fn a_busy_thread_of_ours_is_sampled_where_that_is_permitted() {
        let Ok(scope) = Scope::permitted() else { return };
        let busy = move || {
            let mut sampler =
                ProcessSampling::start(std::process::id(), scope, |name| name == "sampled").unwrap();
            let end = Instant::now() + Duration::from_secs(5);
            let mut samples = 0;
            while samples < 5 && Instant::now() < end {
                sampler.collect();
                samples = sampler.samples.user.values().chain(sampler.samples.kernel.values()).sum();
            }
            sampler.end();
            sampler.samples
        };
        let samples = std::thread::Builder::new().name("sampled".into()).spawn(busy).unwrap().join().unwrap();
        assert!(samples.user.values().chain(samples.kernel.values()).sum::<u64>() >= 5, "{samples:?}");
        assert!(samples.user.keys().all(|address| !is_in_kernel(*address)));
    }
}
