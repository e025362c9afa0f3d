//! Maps errors of a load, and of a target that was started for it, to exit codes.

use load::runner::RunError;
use load::target_process::TargetError;

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

impl From<TargetError> for Failure {
    fn from(error: TargetError) -> Self {
        Self::new(Kind::Failed, error)
    }
}
