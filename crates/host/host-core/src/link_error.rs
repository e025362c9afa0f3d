//! Errors of connections.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use proto::Violation;
use proto::host_controller::ControllerError;
#[cfg(feature = "authentication")]
use security::host::HostFailure;
#[cfg(feature = "tls")]
use security::tls::Failure as TlsFailure;
use wire::id::Qid;
use wire::nqn::Nqn;

/// The connection that an error is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkContext {
    /// The target's address, as given.
    pub peer: String,
    /// The queue.
    pub qid: Qid,
    /// The subsystem.
    pub subsystem: Nqn,
    /// NQN of this host.
    pub host: Nqn,
}

/// An I/O error that clones of an error share. Its [`source`](std::error::Error::source) is the [`io::Error`] itself.
#[derive(Clone, Debug)]
pub struct IoError(Arc<io::Error>);

impl From<io::Error> for IoError {
    fn from(error: io::Error) -> Self {
        Self(Arc::new(error))
    }
}

impl Deref for IoError {
    type Target = io::Error;

    fn deref(&self) -> &io::Error {
        &self.0
    }
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for IoError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0)
    }
}

/// Why a connection failed.
///
/// Its text has those of its causes; [`source`](std::error::Error::source) leads to them, down to the [`io::Error`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The name could not be resolved.
    #[error("cannot resolve the name: {0}")]
    Resolve(#[source] IoError),
    /// TCP failed to connect, or broke.
    #[error(transparent)]
    Socket(IoError),
    /// The target closed the connection.
    #[error("the target closed the connection during {during}")]
    Closed {
        /// Phase of the connection.
        during: &'static str,
    },
    /// No answer in time.
    #[error("no answer to {to} in {} ms", waited.as_millis())]
    TimedOut {
        /// The request or step without an answer.
        to: &'static str,
        /// Time waited.
        waited: Duration,
    },
    /// The association has exceeded `Options::deadline`.
    #[error("the deadline of {} ms has passed during {during}", limit.as_millis())]
    Deadline {
        /// The limit.
        limit: Duration,
        /// Phase of the connection.
        during: &'static str,
    },
    /// The target violated the transport protocol.
    #[error("the target broke the protocol: {0}")]
    Violation(#[from] Violation),
    /// The controller cannot be used.
    #[error(transparent)]
    Controller(#[from] ControllerError),
    /// Authentication failed.
    #[cfg(feature = "authentication")]
    #[error("authentication failed: {0}")]
    Authentication(#[source] HostFailure),
    /// The target closed the connection when it had the host's proof of its secret, as a target that refuses the proof
    /// may do.
    #[error(
        "authentication failed: the target closed the connection instead of answering the host's DH-HMAC-CHAP reply"
    )]
    ClosedOnReply,
    /// The controller does not ask for authentication, so it does not prove that it has the secret that was given for
    /// it.
    #[error("the controller does not authenticate itself, though a secret was given for it")]
    ControllerNotAuthenticated,
    /// TLS failed.
    #[cfg(feature = "tls")]
    #[error("TLS: {0}")]
    Tls(#[source] TlsFailure),
    /// TLS failed with the key that an authentication has generated.
    #[cfg(feature = "tls")]
    #[error("TLS with the generated key: {0}")]
    GeneratedKey(#[source] TlsFailure),
    /// The controller does not ask for authentication, so no key of TLS is generated.
    #[error("the controller does not authenticate the host, so there is no secure channel")]
    NoSecureChannel,
    /// The controller demands what this build of the library does not have.
    #[error("{needed} is not in this build: it needs the feature `{feature}` of nvlane-host")]
    NotBuilt {
        /// What is needed.
        needed: &'static str,
        /// The feature of the library that has it.
        feature: &'static str,
    },
    /// The association is lost, and was not connected again in the time that the caller waits for it.
    #[error("the association is lost, and was not connected again in {} ms", waited.as_millis())]
    Lost {
        /// Time waited.
        waited: Duration,
    },
    /// Another connection of the association was lost; this one was closed with it.
    #[error("the association was lost")]
    Association,
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> Self {
        #[cfg(feature = "tls")]
        if let Some(failure) = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsFailure>()) {
            return Self::Tls(failure.clone());
        }
        Self::Socket(error.into())
    }
}

impl LinkError {
    /// Whether the peer has closed the connection, in whatever way.
    #[cfg(feature = "authentication")]
    pub(crate) fn is_close_by_peer(&self) -> bool {
        match self {
            Self::Closed { .. } => true,
            Self::Socket(error) => {
                matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
            }
            _ => false,
        }
    }

    /// Whether another attempt would fail in the same way, as long as host and target are configured as they are.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Controller(error) => error.is_permanent(),
            #[cfg(feature = "authentication")]
            Self::Authentication(_) => true,
            Self::ControllerNotAuthenticated | Self::NoSecureChannel | Self::NotBuilt { .. } => true,
            #[cfg(feature = "tls")]
            Self::Tls(failure) => {
                matches!(failure, TlsFailure::Alert(_) | TlsFailure::NotTls | TlsFailure::NoProof)
            }
            // The target answers the same handshake in the same way.
            Self::Violation(violation) => matches!(violation, Violation::UnsupportedParameter { .. }),
            _ => false,
        }
    }

    /// Whether the keys or secrets of host and target do not match, or one side demands what the other does not do.
    #[must_use]
    pub fn is_refusal_of_trust(&self) -> bool {
        match self {
            #[cfg(feature = "authentication")]
            Self::Authentication(_) => true,
            #[cfg(feature = "tls")]
            Self::Tls(_) | Self::GeneratedKey(_) => true,
            Self::ClosedOnReply | Self::ControllerNotAuthenticated | Self::NoSecureChannel => true,
            Self::Controller(error) => {
                matches!(
                    error,
                    ControllerError::AuthenticationRequired | ControllerError::SecureChannelRequired
                )
            }
            _ => false,
        }
    }

    /// Whether it ends an association that has been up at once, without further attempts to reconnect.
    ///
    /// A refusal of trust does not: a target that was restarted may not have its keys yet, an operator may be replacing
    /// them, and a bit error on the way fails a TLS handshake as a wrong key does. Nothing is sent to a target that is
    /// not trusted, so the attempts go on until their time limit. A status with Do Not Retry, on the other hand, is the
    /// controller's own statement that they are useless.
    pub(crate) fn ends_attempts(&self) -> bool {
        self.is_permanent() && !self.is_refusal_of_trust()
    }
}

impl fmt::Display for LinkContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.peer)?;
        match self.qid {
            Qid::ADMIN => f.write_str("admin queue"),
            qid => write!(f, "lane {qid}"),
        }
    }
}
