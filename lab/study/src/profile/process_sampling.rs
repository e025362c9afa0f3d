//! The samples of one process, from the start of its sampling to their names.

use super::maps::Maps;
use super::resolver::{Placed, Resolver};
use super::sampler::{Sampler, Samples, Scope};
use crate::error::Error;

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

/// Samples the threads of a process.
pub(crate) struct ProcessSampling {
    pid: u32,
    scope: Scope,
    sampler: Sampler,
}

/// Samples of a process whose functions have no names yet. The process still runs.
pub(crate) struct Unplaced {
    pid: u32,
    scope: Scope,
    samples: Samples,
}

impl ProcessSampling {
    /// Starts with the threads that the process has now and whose name is wanted.
    ///
    /// # Errors
    /// A thread cannot be sampled.
    pub(crate) fn start(pid: u32, scope: Scope, is_wanted: impl Fn(&str) -> bool) -> Result<Self, Error> {
        Ok(Self { pid, scope, sampler: Sampler::start(pid, scope, is_wanted)? })
    }

    /// Takes the samples out of the buffers, which the kernel fills while the threads run.
    pub(crate) fn collect(&mut self) {
        self.sampler.collect();
    }

    /// Ends the sampling.
    pub(crate) fn finish(self) -> Unplaced {
        Unplaced { pid: self.pid, scope: self.scope, samples: self.sampler.finish() }
    }
}

impl Unplaced {
    /// Names the functions.
    ///
    /// # Errors
    /// The mappings of the process cannot be read.
    pub(crate) fn place(&self, resolver: &mut Resolver) -> Result<Sampled, Error> {
        let placed = resolver.place(&self.samples, &Maps::of(self.pid)?);
        let limits = self.scope.limit().into_iter().chain(resolver.limits()).collect();
        Ok(Sampled { placed, scope: self.scope, lost: self.samples.lost, limits })
    }
}
