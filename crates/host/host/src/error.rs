//! Errors of associations.

use std::fmt;
use std::io;
use std::sync::Arc;

use host_core::failure::Failure;
use host_core::link_error::{IoError, LinkContext, LinkError};
use host_core::namespace::InvalidCommand;
use host_core::queue_map::{LaneClass, QueueMap};
use host_core::submit::RefusedReason;
use proto::Violation;
use proto::host_controller::ControllerError;
use proto::host_namespaces::Unusable;
#[cfg(feature = "authentication")]
use security::host::HostFailure;
#[cfg(feature = "authentication")]
use security::message::Reason;
#[cfg(feature = "tls")]
use security::tls::{Alert as TlsAlert, Failure as TlsFailure};
use wire::fabrics::InvalidParameter;
use wire::id::Nsid;
use wire::lba_status::InvalidLbaStatus;
use wire::nqn::DISCOVERY_NQN;
use wire::status::Status;

use crate::address::AddressError;
use crate::invalid_spread::InvalidSpread;

/// An error of the host library. Commands end with a [`Failure`] of their own.
///
/// Its text has those of its causes, and advice where there is any; [`source`](std::error::Error::source) leads to them,
/// down to the [`io::Error`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is malformed.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The address names no subsystem.
    #[error("{address} names no subsystem: write HOST:PORT/NQN")]
    NoSubsystem {
        /// The address.
        address: String,
    },
    /// A connection failed or was lost.
    #[error("{context}: {cause}{}", Advice(cause, context))]
    Link {
        /// The connection.
        context: Box<LinkContext>,
        /// Why.
        #[source]
        cause: LinkError,
    },
    /// The association was lost, and reconnecting was given up.
    #[error("could not reconnect (attempts: {attempts}); last error: {last}")]
    GaveUp {
        /// Attempts made.
        attempts: u32,
        /// Error of the last attempt.
        #[source]
        last: Arc<Error>,
    },
    /// No such namespace.
    #[error("{subsystem} has no namespace {nsid}; {}", WhatIsThere(subsystem, available))]
    NoNamespace {
        /// The subsystem.
        subsystem: String,
        /// The requested namespace.
        nsid: Nsid,
        /// Existing namespaces.
        available: Vec<Nsid>,
    },
    /// Several namespaces, and the address names none.
    #[error("{subsystem} has several namespaces: add ?ns=NUMBER to the address; {}", List(available))]
    WhichNamespace {
        /// The subsystem.
        subsystem: String,
        /// Existing namespaces.
        available: Vec<Nsid>,
    },
    /// The namespace exists, but cannot be read or written.
    #[error("namespace {nsid} cannot be used: {cause}")]
    UnusableNamespace {
        /// The namespace.
        nsid: Nsid,
        /// Why.
        #[source]
        cause: Unusable,
    },
    /// The controller sent malformed data.
    #[error("the controller sent a malformed {what}")]
    Malformed {
        /// The expected form of the data.
        what: &'static str,
    },
    /// The controller grants fewer queues than lanes were requested.
    #[error("lane {lane}: the controller grants {granted} I/O queues: request fewer lanes")]
    TooFewQueues {
        /// The lane, from 1.
        lane: u16,
        /// Queues granted.
        granted: u16,
    },
    /// All lanes of a class are in use, or the association has none.
    #[error("no {class} lane is free: the association has {queues}")]
    NoLane {
        /// The class.
        class: LaneClass,
        /// Lanes of the association.
        queues: QueueMap,
    },
    /// A command is invalid.
    #[error(transparent)]
    Command(#[from] InvalidCommand),
    /// The controller's list of allocated blocks makes no sense.
    #[error("the controller's list of allocated blocks: {0}")]
    LbaStatus(#[from] InvalidLbaStatus),
    /// Keys cannot be spread over these targets.
    #[error(transparent)]
    Spread(#[from] InvalidSpread),
    /// A command failed.
    #[error("{command} failed: {failure}")]
    Failed {
        /// Name of the command.
        command: &'static str,
        /// Why.
        #[source]
        failure: Failure,
    },
    /// A command was refused by the lane.
    #[error("{command} was not submitted: {reason}")]
    Refused {
        /// Name of the command.
        command: &'static str,
        /// Why.
        #[source]
        reason: RefusedReason,
    },
    /// The answer to a command is malformed.
    #[error("{command}: malformed answer: {why}")]
    Answer {
        /// Name of the command.
        command: &'static str,
        /// Why.
        why: &'static str,
    },
    /// A system call of this host failed: for example no thread or descriptor is available.
    #[error("cannot {doing}: {cause}")]
    System {
        /// The purpose of the call.
        doing: &'static str,
        /// The system's error.
        #[source]
        cause: IoError,
    },
    /// The options demand what this build of the library does not have.
    #[error("{needed} is not in this build: it needs the feature `{feature}` of nvlane-host")]
    NotBuilt {
        /// What is needed.
        needed: &'static str,
        /// The feature of the library that has it.
        feature: &'static str,
    },
    /// The association was closed.
    #[error("the association has ended")]
    Ended,
}

impl Error {
    /// Whether another attempt would fail in the same way, as long as host and target are configured as they are.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Link { cause, .. } => cause.is_permanent(),
            Self::GaveUp { .. } | Self::System { .. } => false,
            Self::Failed { failure, .. } => failure.status().is_some_and(Status::dnr),
            _ => true,
        }
    }

    pub(crate) fn system(doing: &'static str, cause: io::Error) -> Self {
        Self::System { doing, cause: cause.into() }
    }
}

/// Advice, where there is any: "; is the target running?"
struct Advice<'a>(&'a LinkError, &'a LinkContext);

impl fmt::Display for Advice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(cause, context) = self;
        match cause {
            LinkError::Socket(error) => match error.kind() {
                io::ErrorKind::ConnectionRefused => {
                    f.write_str("; nothing listens there: is the target running, and is this its port?")
                }
                io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
                    f.write_str("; no route leads there: is the address right?")
                }
                _ => Ok(()),
            },
            LinkError::Resolve(_) => f.write_str("; is it spelled right? An IP address works as well"),
            LinkError::TimedOut { to: "TCP connect", .. } => f.write_str(
                "; is the address right, and does every firewall on the way let this port through?",
            ),
            LinkError::Closed { during: "handshake" } => {
                f.write_str("; is this an NVMe/TCP port? One that demands TLS needs a TLS key")
            }
            LinkError::TimedOut { to: "handshake", .. } => f.write_str("; is this an NVMe/TCP port?"),
            LinkError::Violation(Violation::UnsupportedParameter { offset: 11 }) => {
                f.write_str("; it does not accept the requested digests: connect with others, or with none")
            }
            LinkError::Violation(Violation::Sequence | Violation::HeaderField { offset: 0..=7 }) => {
                f.write_str("; is this an NVMe/TCP port?")
            }
            LinkError::Controller(error) => advise(error, context, f),
            LinkError::ClosedOnReply => write!(f, "; is it the secret of {}?", context.host),
            #[cfg(feature = "authentication")]
            LinkError::Authentication(HostFailure::Refused(Reason::Failed)) => {
                write!(f, "; is it the secret of {}?", context.host)
            }
            #[cfg(feature = "authentication")]
            LinkError::Authentication(HostFailure::Refuses(Reason::Failed)) => {
                write!(f, "; is it the secret of {}?", context.subsystem)
            }
            #[cfg(feature = "authentication")]
            LinkError::Authentication(HostFailure::Refused(Reason::SecureChannel)) => f.write_str(
                "; the target must allow TLS on this listener (tls = \"allowed\" or \"concatenated\") and a Diffie-Hellman group",
            ),
            LinkError::NoSecureChannel => {
                write!(f, "; the target needs the secret of {}", context.host)
            }
            // Linux targets close the connection where others send an alert.
            #[cfg(feature = "tls")]
            LinkError::Tls(TlsFailure::Alert(_) | TlsFailure::Closed) => {
                write!(f, "; is it the TLS key that the target has for {} and {}?", context.host, context.subsystem)
            }
            #[cfg(feature = "tls")]
            LinkError::GeneratedKey(TlsFailure::Alert(TlsAlert::UNKNOWN_PSK_IDENTITY)) => {
                f.write_str("; the target has forgotten the key: if it was restarted, connect again")
            }
            #[cfg(feature = "tls")]
            LinkError::GeneratedKey(TlsFailure::Alert(TlsAlert::DECRYPT_ERROR)) => f.write_str(
                "; the target has forgotten the key (if it was restarted, connect again), or derives another one, as Linux \
                 before 7.1 does",
            ),
            #[cfg(feature = "tls")]
            LinkError::GeneratedKey(TlsFailure::NotTls | TlsFailure::Closed) => f.write_str(
                "; does the target allow TLS on this listener? Some generate no key for hosts that ask for their secret as \
                 well",
            ),
            _ => Ok(()),
        }
    }
}

fn advise(error: &ControllerError, context: &LinkContext, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let LinkContext { subsystem, host, .. } = context;
    match error {
        ControllerError::ConnectRefused { status, parameter, .. } => match (status.code(), parameter) {
            (_, Some(InvalidParameter::SUBNQN)) => {
                write!(f, "; there is no subsystem {subsystem}")
            }
            (_, Some(InvalidParameter::HOSTNQN)) => write!(f, "; our host name is {host}"),
            (_, Some(parameter)) if *parameter == InvalidParameter::command(46) => {
                f.write_str("; it may require SQ flow control: try with flow control on")
            }
            (code, _) if code == Status::CONNECT_INVALID_HOST.code() => {
                write!(f, "; the target must allow our host name, {host}")
            }
            (code, _) if code == Status::CONNECT_CONTROLLER_BUSY.code() => {
                f.write_str("; the target has no controller left for us: try again later")
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

/// The namespaces of a subsystem, or that it is a discovery service, which has none.
struct WhatIsThere<'a>(&'a str, &'a [Nsid]);

impl fmt::Display for WhatIsThere<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            DISCOVERY_NQN => f.write_str("it is a discovery service"),
            _ => List(self.1).fmt(f),
        }
    }
}

/// "there are namespaces 1, 2" or "there is none".
struct List<'a>(&'a [Nsid]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("there is none"),
            [nsid] => write!(f, "there is {nsid}"),
            [first, rest @ ..] => {
                write!(f, "there are {first}")?;
                // At most 16 of them.
                for nsid in rest.iter().take(15) {
                    write!(f, ", {nsid}")?;
                }
                if rest.len() > 15 { write!(f, " and {} more", rest.len() - 15) } else { Ok(()) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use wire::id::Qid;

    use super::*;

    fn message(cause: impl Into<LinkError>) -> String {
        Error::Link { context: Box::new(context()), cause: cause.into() }.to_string()
    }

    fn context() -> LinkContext {
        LinkContext {
            peer: "192.0.2.1:4420".into(),
            qid: Qid::ADMIN,
            subsystem: "nqn.2016-06.io.nvlane:disk".parse().unwrap(),
            host: "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555".parse().unwrap(),
        }
    }

    #[test]
    fn errors_say_what_to_do() {
        let refused = |status: Status, parameter| ControllerError::ConnectRefused {
            qid: Qid::ADMIN,
            status: status.with_dnr(),
            parameter,
        };
        let invalid = Status::CONNECT_INVALID_PARAMETERS;
        let refused_socket: LinkError = io::Error::from(io::ErrorKind::ConnectionRefused).into();
        for (message, hint) in [
            (message(refused_socket), "is the target running"),
            (message(Violation::UnsupportedParameter { offset: 11 }), "digests"),
            (message(LinkError::Closed { during: "handshake" }), "NVMe/TCP port"),
            (
                message(refused(invalid, Some(InvalidParameter::SUBNQN))),
                "no subsystem nqn.2016-06.io.nvlane:disk",
            ),
            (message(refused(Status::CONNECT_INVALID_HOST, None)), "allow our host name, nqn.2014-08"),
            #[cfg(feature = "tls")]
            (message(LinkError::Tls(TlsFailure::Alert(TlsAlert::DECRYPT_ERROR))), "is it the TLS key"),
        ] {
            assert!(message.starts_with("192.0.2.1:4420 admin queue: "), "{message}");
            assert!(message.contains(hint), "{message}");
        }
    }

    #[test]
    fn sources_lead_to_the_error_of_the_system() {
        let cause = LinkError::from(io::Error::from(io::ErrorKind::ConnectionRefused));
        let context = Box::new(context());
        let last = Arc::new(Error::Link { context, cause });
        let error = Error::GaveUp { attempts: 3, last };
        let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| {
            std::error::Error::source(*error)
        });
        let kinds: Vec<_> =
            causes.filter_map(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind).collect();
        assert_eq!(kinds, [io::ErrorKind::ConnectionRefused]);
    }

    #[test]
    fn a_list_of_namespaces_stays_short() {
        let error = Error::WhichNamespace {
            subsystem: "nqn.x".into(),
            available: (1..1000).map(Nsid::new).collect(),
        };
        let message = error.to_string();
        assert!(message.ends_with("15, 16 and 983 more") && message.len() < 200, "{message}");
    }
}
