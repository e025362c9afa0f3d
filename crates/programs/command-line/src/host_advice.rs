//! Errors of the host library with the option or command that mends them.

use std::fmt;

use host::security::host::HostFailure;
use host::security::message::Reason;
use host::security::tls::Failure as TlsFailure;
use host::{ControllerError, Error, LinkContext, LinkError};
use wire::fabrics::InvalidParameter;
use wire::nqn::DISCOVERY_NQN;

/// The error's text, and behind it what a user of the programs can do.
pub struct Advised<'a>(pub &'a Error);

impl fmt::Display for Advised<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)?;
        advise(self.0, f)
    }
}

fn advise(error: &Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match error {
        Error::GaveUp { last, .. } => advise(last, f),
        Error::NoSubsystem { .. } => f.write_str(", `nvlane discover` lists what is there"),
        Error::NoNamespace { subsystem, .. } if subsystem == DISCOVERY_NQN => {
            f.write_str(": `nvlane discover` lists the subsystems, whose names go in its place")
        }
        Error::UnusableNamespace { .. } => f.write_str("; `nvlane identify` shows what it is"),
        Error::Link { context, cause } => advise_on_link(cause, context, f),
        _ => Ok(()),
    }
}

fn advise_on_link(cause: &LinkError, context: &LinkContext, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let host = &context.host;
    match cause {
        LinkError::Closed { during: "handshake" } => f.write_str(" (--tls)"),
        LinkError::Authentication(HostFailure::Refused(Reason::SecureChannel))
        | LinkError::NoSecureChannel => f.write_str("; else leave out --concat"),
        LinkError::Tls(TlsFailure::NotTls) => f.write_str("; leave out --tls to connect unencrypted"),
        LinkError::GeneratedKey(TlsFailure::NotTls | TlsFailure::Closed) => {
            f.write_str(": try without --dhchap-ctrl-secret")
        }
        LinkError::ControllerNotAuthenticated => {
            f.write_str("; leave out --dhchap-ctrl-secret if that is intended")
        }
        LinkError::Controller(ControllerError::AuthenticationRequired) => {
            write!(f, "; --dhchap-secret names the file with the secret of {host}")
        }
        LinkError::Controller(ControllerError::SecureChannelRequired) => write!(
            f,
            "; --concat generates the key of TLS with the secret of {host} (--dhchap-secret), or use a key that the target \
             has (--tls, --tls-key)"
        ),
        LinkError::Controller(ControllerError::ConnectRefused {
            parameter: Some(InvalidParameter::SUBNQN),
            ..
        }) => f.write_str(": `nvlane discover` lists what is there"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use wire::id::{Nsid, Qid};
    use wire::status::Status;

    use super::*;

    fn link(cause: LinkError) -> Error {
        let context = LinkContext {
            peer: "192.0.2.1:4420".into(),
            qid: Qid::ADMIN,
            subsystem: "nqn.2016-06.io.nvlane:disk".parse().expect("a name"),
            host: "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555"
                .parse()
                .expect("a name"),
        };
        Error::Link { context: Box::new(context), cause }
    }

    #[test]
    fn errors_name_what_mends_them() {
        let no_subsystem = ControllerError::ConnectRefused {
            qid: Qid::ADMIN,
            status: Status::CONNECT_INVALID_PARAMETERS.with_dnr(),
            parameter: Some(InvalidParameter::SUBNQN),
        };
        let discovery =
            Error::NoNamespace { subsystem: DISCOVERY_NQN.into(), nsid: Nsid::new(1), available: Vec::new() };
        let refused = LinkError::Authentication(HostFailure::Refused(Reason::SecureChannel));
        for (error, end) in [
            (
                Error::NoSubsystem { address: "192.0.2.1".into() },
                "write HOST:PORT/NQN, `nvlane discover` lists what is there",
            ),
            (
                discovery,
                "it is a discovery service: `nvlane discover` lists the subsystems, whose names go in its place",
            ),
            (
                link(LinkError::Closed { during: "handshake" }),
                "is this an NVMe/TCP port? One that demands TLS needs a TLS key (--tls)",
            ),
            (
                link(ControllerError::AuthenticationRequired.into()),
                "; --dhchap-secret names the file with the secret of nqn.2014-08.org.nvmexpress:uuid:\
                 11111111-2222-3333-4444-555555555555",
            ),
            (
                link(ControllerError::SecureChannelRequired.into()),
                "or use a key that the target has (--tls, --tls-key)",
            ),
            (
                link(no_subsystem.into()),
                "there is no subsystem nqn.2016-06.io.nvlane:disk: `nvlane discover` lists what is there",
            ),
            (link(refused), "and a Diffie-Hellman group; else leave out --concat"),
            (link(LinkError::NoSecureChannel), "555555555555; else leave out --concat"),
            (
                link(LinkError::Tls(TlsFailure::NotTls)),
                "does not speak TLS; leave out --tls to connect unencrypted",
            ),
            (
                link(LinkError::GeneratedKey(TlsFailure::NotTls)),
                "for hosts that ask for their secret as well: try without --dhchap-ctrl-secret",
            ),
            (
                link(LinkError::ControllerNotAuthenticated),
                "though a secret was given for it; leave out --dhchap-ctrl-secret if that is intended",
            ),
        ] {
            let advised = Advised(&error).to_string();
            assert!(advised.ends_with(end), "{advised}");
            // Behind the last of several attempts, too.
            if matches!(error, Error::Link { .. }) {
                let gave_up = Error::GaveUp { attempts: 2, last: Arc::new(error) };
                assert!(Advised(&gave_up).to_string().ends_with(end), "{gave_up}");
            }
        }
    }
}
