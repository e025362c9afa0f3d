//! Maps errors of the host library to exit codes.

use std::io;

use host::{Error, Failure as CommandFailure, LinkError};
use rustix::io::Errno;

use crate::exit::{Failure, Kind};
use crate::host_advice::Advised;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(kind(&error), Advised(&error))
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
        Error::GaveUp { last, .. } if kind(last) == Kind::Failed => Kind::Failed,
        Error::Link { cause: LinkError::Socket(error) | LinkError::Resolve(error), .. }
            if is_own_limit(error) =>
        {
            Kind::Failed
        }
        Error::Link { .. } | Error::GaveUp { .. } | Error::NoNamespace { .. } | Error::Ended => {
            Kind::Unreachable
        }
        Error::UnusableNamespace { .. } => Kind::Unreachable,
        Error::Failed { failure: CommandFailure::Unreachable, .. } => Kind::Unreachable,
        _ => Kind::Failed,
    }
}

/// Whether this process or machine may open no more sockets: that says nothing about the target.
fn is_own_limit(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use host::LinkContext;
    use wire::id::Qid;
    use wire::nqn::Nqn;

    use super::*;

    #[test]
    fn each_error_ends_with_its_code() {
        let address = "a:b:c".parse::<host::Address>().expect_err("no brackets");
        let refused = |failure| Error::Failed { command: "Identify", failure };
        let link = |error: Errno| Error::Link {
            context: Box::new(LinkContext {
                peer: "192.0.2.1".into(),
                qid: Qid::ADMIN,
                subsystem: Nqn::discovery(),
                host: Nqn::discovery(),
            }),
            cause: LinkError::Socket(io::Error::from(error).into()),
        };
        let gave_up = |error| Error::GaveUp { attempts: 3, last: Arc::new(link(error)) };
        for (error, kind) in [
            (Error::Address(address), Kind::Usage),
            (Error::NoSubsystem { address: "192.0.2.1".into() }, Kind::Usage),
            (Error::TooFewQueues { lane: 3, granted: 2 }, Kind::Usage),
            (Error::Ended, Kind::Unreachable),
            (link(Errno::CONNREFUSED), Kind::Unreachable),
            (link(Errno::MFILE), Kind::Failed),
            (link(Errno::NFILE), Kind::Failed),
            (gave_up(Errno::TIMEDOUT), Kind::Unreachable),
            (gave_up(Errno::MFILE), Kind::Failed),
            (refused(CommandFailure::Unreachable), Kind::Unreachable),
            (refused(CommandFailure::TimedOut), Kind::Failed),
            (Error::Answer { command: "Identify", why: "it is too short" }, Kind::Failed),
        ] {
            assert_eq!(super::kind(&error), kind, "{error}");
        }
    }
}
