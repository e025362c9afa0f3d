//! A load on the server's file itself, without a network: the limit of the file, for the comparison with its targets.

use std::collections::BTreeMap;
use std::time::Duration;

use load::disturbance::Loss;
use load::workload::Workload;

use super::connection::ServerConnection;
use super::protocol::{Reply, Request, StartFileLoad};
use crate::cell::Values;
use crate::error::Error;
use crate::load_values::value_named;

/// A load that a study server runs.
#[derive(Debug)]
pub(crate) struct RemoteFileLoad<'a>(&'a ServerConnection);

/// The outcome of a load on the file.
#[derive(Debug)]
pub(crate) struct FileLoadOutcome {
    /// Throughput, latency and processor time.
    pub(crate) values: Values,
    /// Latencies, us, and their numbers of operations.
    pub(crate) bins: Vec<(f64, u64)>,
    /// Its loss to other load.
    pub(crate) loss: Option<Loss>,
}

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
        match server.request(&Request::StartFileLoad(start))? {
            Reply::FileLoadStarted => Ok(Self(server)),
            _ => Err(server.confused()),
        }
    }

    /// Its outcome, once its time is over.
    ///
    /// # Errors
    /// The server is lost, or an operation failed.
    pub(crate) fn end(self) -> Result<FileLoadOutcome, Error> {
        match self.0.request(&Request::EndFileLoad)? {
            Reply::FileLoad { values, bins, loss } => {
                Ok(FileLoadOutcome { values: known(values), bins, loss })
            }
            _ => Err(self.0.confused()),
        }
    }
}

/// The values with names that this program knows: it has the server's version.
fn known(values: BTreeMap<String, f64>) -> Values {
    values.into_iter().filter_map(|(name, value)| Some((value_named(&name)?, value))).collect()
}
