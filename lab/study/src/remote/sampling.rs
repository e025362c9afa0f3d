//! Samples of the threads of a target that a study server has started.

use std::sync::Arc;
use std::time::Duration;

use super::connection::ServerConnection;
use super::protocol::Request;
use super::sampled::SentSamples;
use crate::error::Error;
use crate::profile::Sampled;

/// A sampling on the server's machine, which ends with its target or with the next one at the latest.
#[derive(Debug)]
pub(crate) struct RemoteSampling(Arc<ServerConnection>);

impl RemoteSampling {
    /// Starts to sample all threads of a target, for a measurement of this length.
    ///
    /// # Errors
    /// [`Error::Lacking`]: the server's machine does not permit it. Another: the server is lost.
    pub(super) fn start(
        server: &Arc<ServerConnection>,
        target: u32,
        measure: Duration,
    ) -> Result<Self, Error> {
        let started = server.request(&Request::StartSampling { target, measure });
        started.map(|()| Self(Arc::clone(server))).map_err(|error| server.as_lacking(error))
    }

    /// Ends it; returns the samples, by layer and function.
    pub(crate) fn end(self) -> Result<Sampled, Error> {
        let sent: SentSamples =
            self.0.request(&Request::EndSampling).map_err(|error| self.0.as_lacking(error))?;
        sent.into_sampled().ok_or_else(|| self.0.failed("it has more samples than there can be"))
    }
}
