//! Samples of a target's threads, on the machine where it runs.

use crate::error::Error;
use crate::profile::{ProcessSampling, Resolver, Sampled};
use crate::remote::sampling::RemoteSampling;

/// A target that is sampled.
pub(crate) enum TargetSampling {
    /// By this process.
    Here(ProcessSampling),
    /// By the study server of its machine.
    There(RemoteSampling),
}

/// Names the functions of samples, unless their machine has done so.
pub(crate) type Naming = Box<dyn FnOnce(&mut Resolver) -> Result<Sampled, Error>>;

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
    pub(crate) fn end(self) -> Result<Naming, Error> {
        match self {
            Self::Here(mut sampling) => {
                sampling.end();
                Ok(Box::new(move |resolver| sampling.place(resolver)))
            }
            Self::There(sampling) => sampling.end().map(|sampled| -> Naming { Box::new(|_| Ok(sampled)) }),
        }
    }
}
