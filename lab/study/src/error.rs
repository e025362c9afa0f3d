//! Errors of an experiment.

use std::io;
use std::net::SocketAddr;

/// Why there are no results.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant is documented by its message")]
pub enum Error {
    #[error("{0}")]
    Lacking(String),
    #[error("{doing}: {cause}")]
    System { doing: &'static str, cause: io::Error },
    #[error("the target {0}")]
    Target(String),
    #[error(transparent)]
    Process(#[from] load::target_process::TargetError),
    #[error(transparent)]
    Host(#[from] host::Error),
    #[error(transparent)]
    Run(#[from] load::runner::RunError),
    #[error("the load went wrong: {0}")]
    Load(String),
    #[error("the study server at {address}: {reason}")]
    Server { address: SocketAddr, reason: String },
    #[error("stopped before the first round was over")]
    Stopped,
}

impl Error {
    pub(crate) fn system(doing: &'static str, cause: io::Error) -> Self {
        Self::System { doing, cause }
    }
}

/// Says what the study was doing when a call failed.
pub(crate) trait Doing<T> {
    /// The value, or an error with these words.
    fn doing(self, doing: &'static str) -> Result<T, Error>;
}

impl<T, Cause: Into<io::Error>> Doing<T> for Result<T, Cause> {
    fn doing(self, doing: &'static str) -> Result<T, Error> {
        self.map_err(|cause| Error::system(doing, cause.into()))
    }
}
