//! Maps errors of a load to exit codes.

use load::runner::RunError;

use crate::exit::{Failure, Kind};

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Workload(invalid) => Self::usage(invalid),
            RunError::Storage(error) => Self::usage(error),
            RunError::Host(error) => error.into(),
            stopped => Self::new(Kind::Failed, stopped),
        }
    }
}
