//! Probe of the kernel's features, made once at start.

use std::io;

use io_uring::{IoUring, opcode};

use crate::event::EngineKind;

/// The setup of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSetup {
    /// One thread submits, and the kernel's deferred work runs only when that thread asks (Linux 6.1).
    pub deferred_task_work: bool,
    /// The kernel's deferred work does not interrupt us (Linux 5.19).
    pub cooperative_task_work: bool,
}

/// The features of this machine.
#[derive(Debug)]
pub struct Features {
    /// The setup of a ring, or the error that prevents one.
    pub ring: io::Result<RingSetup>,
    /// Memory that may be locked (and so registered), bytes; `None` if unlimited.
    pub locked_bytes_limit: Option<u64>,
}

impl Features {
    /// Probes the machine.
    #[must_use]
    pub fn probe() -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
        Self { ring: Self::of_ring(), locked_bytes_limit: limit.current }
    }

    /// The engine to use when none is asked for.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        if self.ring.is_ok() { EngineKind::Uring } else { EngineKind::Epoll }
    }
}

impl RingSetup {
    /// Makes the best ring that the kernel accepts, and that completes an operation.
    ///
    /// # Errors
    /// The error for the plainest ring: forbidden by a container's profile or by `kernel.io_uring_disabled`,
    /// or no memory. A system call filter may allow `io_uring_setup` and forbid `io_uring_enter`.
    pub(crate) fn best(entries: u32, completion_entries: u32) -> io::Result<(IoUring, Self)> {
        let builder = || {
            let mut builder = IoUring::builder();
            builder.setup_clamp().setup_cqsize(completion_entries).dontfork();
            builder
        };
        let deferred =
            builder().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().build(entries);
        match deferred.and_then(proven) {
            Ok(ring) => {
                let setup = Self { deferred_task_work: true, cooperative_task_work: false };
                return Ok((ring, setup));
            }
            // Other features would not make it smaller.
            Err(error) if is_out_of_memory(&error) => return Err(error),
            Err(_) => {}
        }
        let cooperative = builder().setup_coop_taskrun().setup_taskrun_flag().build(entries);
        if let Ok(ring) = cooperative.and_then(proven) {
            let setup = Self { deferred_task_work: false, cooperative_task_work: true };
            return Ok((ring, setup));
        }
        let ring = builder().build(entries).and_then(proven)?;
        Ok((ring, Self { deferred_task_work: false, cooperative_task_work: false }))
    }
}

/// The ring, if it completes a NOP.
fn proven(mut ring: IoUring) -> io::Result<IoUring> {
    // SAFETY: a NOP touches no memory of ours. A new queue has room.
    unsafe { ring.submission().push(&opcode::Nop::new().build()) }.map_err(io::Error::other)?;
    loop {
        match ring.submit_and_wait(1) {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let result = ring.completion().next().map(|completion| completion.result());
    match result {
        Some(0) => Ok(ring),
        Some(result) => Err(io::Error::from_raw_os_error(-result)),
        None => Err(io::Error::other("a ring completes no operation")),
    }
}

pub(crate) fn is_out_of_memory(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::OutOfMemory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_io_uring_gets_epoll() {
        let features =
            Features { ring: Err(io::ErrorKind::PermissionDenied.into()), locked_bytes_limit: None };
        assert_eq!(features.engine(), EngineKind::Epoll);
    }
}
