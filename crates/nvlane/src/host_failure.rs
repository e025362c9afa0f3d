//! Maps errors of the host library to exit codes.

use host::{Error, Failure as CommandFailure};

use crate::exit::{Failure, Kind};

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let advice = match &error {
            Error::UnusableNamespace { .. } => "; `nvlane identify` shows what it is",
            _ => "",
        };
        Self::new(kind(&error), format!("{error}{advice}"))
    }
}

/// The exit code by cause: the caller's options, the connection to the target, or what happened afterwards.
fn kind(error: &Error) -> Kind {
    match error {
        Error::Address(_)
        | Error::NoSubsystem { .. }
        | Error::WhichNamespace { .. }
        | Error::TooFewQueues { .. }
        | Error::NoLane { .. }
        | Error::Command(_) => Kind::Usage,
        Error::Link { .. } | Error::GaveUp { .. } | Error::NoNamespace { .. } | Error::Ended => {
            Kind::Unreachable
        }
        Error::UnusableNamespace { .. } => Kind::Unreachable,
        Error::Failed { failure: CommandFailure::Unreachable, .. } => Kind::Unreachable,
        _ => Kind::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_ends_with_its_code() {
        let address = "a:b:c".parse::<host::Address>().expect_err("no brackets");
        let refused = |failure| Error::Failed { command: "Identify", failure };
        for (error, kind) in [
            (Error::Address(address), Kind::Usage),
            (Error::NoSubsystem { address: "192.0.2.1".into() }, Kind::Usage),
            (Error::TooFewQueues { lane: 3, granted: 2 }, Kind::Usage),
            (Error::Ended, Kind::Unreachable),
            (refused(CommandFailure::Unreachable), Kind::Unreachable),
            (refused(CommandFailure::TimedOut), Kind::Failed),
            (Error::Answer { command: "Identify", why: "it is too short" }, Kind::Failed),
        ] {
            assert_eq!(super::kind(&error), kind, "{error}");
        }
    }
}
