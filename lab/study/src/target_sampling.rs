//! Samples of a target's threads, on the machine where it runs.

use crate::error::Error;
use crate::profile::{ProcessSampling, Resolver, Sampled, Unplaced};
use crate::remote::sampling::RemoteSampling;

/// A target that is sampled.
pub(crate) enum TargetSampling {
    /// By this process.
    Here(ProcessSampling),
    /// By the study server of its machine.
    There(RemoteSampling),
}

/// Samples of a target, before or after their functions have names.
pub(crate) enum TargetSamples {
    /// Of this machine.
    Unplaced(Unplaced),
    /// Of another one, which names the functions of its kernel and programs.
    Placed(Sampled),
}

impl TargetSampling {
    /// Takes samples out of the buffers.
    pub(crate) fn collect(&mut self) {
        match self {
            Self::Here(sampling) => sampling.collect(),
            // The server does.
            Self::There(_) => {}
        }
    }

    /// Ends the sampling.
    ///
    /// # Errors
    /// The server has no samples, or is lost.
    pub(crate) fn finish(self) -> Result<TargetSamples, Error> {
        match self {
            Self::Here(sampling) => Ok(TargetSamples::Unplaced(sampling.finish())),
            Self::There(sampling) => sampling.end().map(TargetSamples::Placed),
        }
    }
}

impl TargetSamples {
    /// Names the functions.
    ///
    /// # Errors
    /// The mappings of the process cannot be read.
    pub(crate) fn place(self, resolver: &mut Resolver) -> Result<Sampled, Error> {
        match self {
            Self::Unplaced(samples) => samples.place(resolver),
            Self::Placed(sampled) => Ok(sampled),
        }
    }
}
