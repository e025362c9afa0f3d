//! A load on the server's file itself, without a network: the limit of the file, for the comparison with its targets.

use std::time::Duration;

use load::workload::Workload;

use super::connection::ServerConnection;
use super::protocol::{FileLoadOutcome, Request, StartFileLoad};
use crate::error::Error;

/// A load that a study server runs.
#[derive(Debug)]
pub(crate) struct RemoteFileLoad<'a>(&'a ServerConnection);

impl<'a> RemoteFileLoad<'a> {
    /// Starts a load on the server's file of this size, from this number of the server's cores.
    ///
    /// # Errors
    /// The server refuses or is lost.
    pub(crate) fn start(
        server: &'a ServerConnection,
        (bytes, core_count): (u64, u32),
        workload: &Workload,
        (warm_up, measure): (Duration, Duration),
    ) -> Result<Self, Error> {
        let [warm_up_us, measure_us] =
            [warm_up, measure].map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        let start = StartFileLoad {
            bytes,
            pattern: workload.pattern.name().to_owned(),
            read_percent: workload.pattern.shares().read,
            io_bytes: workload.sizes.largest_bytes(),
            jobs: workload.lanes,
            depth: workload.depth,
            warm_up_us,
            measure_us,
            core_count,
        };
        server.request(&Request::StartFileLoad(start)).map(|()| Self(server))
    }

    /// Its outcome, once its time is over.
    ///
    /// # Errors
    /// The server is lost, or an operation failed.
    pub(crate) fn end(self) -> Result<FileLoadOutcome, Error> {
        self.0.request(&Request::EndFileLoad)
    }
}
