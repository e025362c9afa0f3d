//! In-band authentication of one queue. wire §22.1

use std::num::NonZeroU32;

pub use security::psk::TlsPsk;
pub(crate) use security::secure_channel::SecureChannel;

use linux::randomness::Randomness;
use proto::host_controller::{ControllerError, ControllerSettings, RequestData};
use security::fresh::{Fresh, RANDOM_BYTES};
use security::group::Group;
use security::hash::HashFunction;
use security::host::{HostAuthentication, HostSettings};
use security::names::Names;
use security::psk::IdentityVersion;
use security::secret::Secret;
use wire::fabrics::AuthenticationCommand;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::link_error::LinkError;

/// Room for a message of the controller, bytes: as Linux has it.
const ROOM_BYTES: u32 = 4096;

/// The secrets of a host, and the algorithms that it offers.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The host's secret.
    pub host: Secret,
    /// The controller's secret: the controller must show that it has it.
    pub controller: Option<Secret>,
    /// Hash functions offered.
    pub hashes: Vec<HashFunction>,
    /// Groups of the Diffie-Hellman exchange offered.
    pub groups: Vec<Group>,
    /// Source of challenges and exponents: another than the system's only in simulations.
    pub randomness: Randomness,
}

impl Credentials {
    /// Credentials that offer all hash functions and groups.
    #[must_use]
    pub fn new(host: Secret, controller: Option<Secret>) -> Self {
        Self {
            host,
            controller,
            hashes: HashFunction::ALL.to_vec(),
            groups: Group::ALL.to_vec(),
            randomness: Randomness::System,
        }
    }

    /// Checks that an admin queue may go on although the controller did not ask for authentication. I/O queues need not be asked:
    /// Linux 7.3 asks on the admin queue only.
    ///
    /// # Errors
    /// The controller must show its secret, which it does only within an authentication.
    pub(crate) fn check_unasked(credentials: Option<&Self>) -> Result<(), LinkError> {
        let must_show = credentials.is_some_and(|credentials| credentials.controller.is_some());
        if must_show { Err(LinkError::ControllerNotAuthenticated) } else { Ok(()) }
    }
}

/// The authentication of one queue, a command at a time.
#[derive(Debug)]
pub(crate) struct QueueAuthentication {
    machine: HostAuthentication,
    names: Names,
    out: Option<Out>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Out {
    Send,
    Receive,
}

impl QueueAuthentication {
    /// The controller has asked for it. It generates a key of TLS for `secure_channel`.
    ///
    /// # Errors
    /// There are no secrets, or no random numbers.
    pub(crate) fn new(
        credentials: Option<&Credentials>,
        settings: &ControllerSettings,
        secure_channel: SecureChannel,
    ) -> Result<Self, LinkError> {
        let Credentials { host, controller, hashes, groups, mut randomness } =
            credentials.ok_or(ControllerError::AuthenticationRequired)?.clone();
        let mut random = [0; RANDOM_BYTES];
        let mut numbers = [0; 6];
        randomness.fill(&mut random)?;
        randomness.fill(&mut numbers)?;
        let [s0, s1, s2, s3, t0, t1] = numbers;
        let sequence = NonZeroU32::new(u32::from_le_bytes([s0, s1, s2, s3])).unwrap_or(NonZeroU32::MIN);
        let names = Names { host: settings.host.clone().into(), subsystem: settings.subsystem.clone() };
        let settings =
            HostSettings { names: names.clone(), host, controller, hashes, groups, secure_channel };
        let fresh = Fresh::new(&random, sequence);
        let machine = HostAuthentication::new(settings, u16::from_le_bytes([t0, t1]), fresh);
        Ok(Self { machine, names, out: None })
    }

    /// The next command, and its data; `None` while one is outstanding, and at the end. May compute for milliseconds.
    pub(crate) fn next_command(&mut self) -> Option<(Sqe, RequestData)> {
        if self.out.is_some() {
            return None;
        }
        if let Some(exponentiation) = self.machine.next_exponentiation() {
            self.machine.on_exponentiated(exponentiation.run());
        }
        if let Some(message) = self.machine.next_send() {
            self.out = Some(Out::Send);
            let length = u32::try_from(message.len()).expect("a kilobyte");
            return Some((
                AuthenticationCommand::new(length).to_send_sqe(),
                RequestData::ToController(message),
            ));
        }
        self.machine.wants_receive().then(|| {
            self.out = Some(Out::Receive);
            let sqe = AuthenticationCommand::new(ROOM_BYTES).to_receive_sqe();
            (sqe, RequestData::FromController(ROOM_BYTES))
        })
    }

    /// The command has ended; `data` is from the controller. Returns whether the queue is authenticated.
    ///
    /// # Errors
    /// It failed.
    pub(crate) fn on_completion(&mut self, status: Status, data: &[u8]) -> Result<bool, LinkError> {
        let out = self.out.take();
        if status.is_success() && out == Some(Out::Receive) {
            self.machine.on_receive(data);
        }
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        if !status.is_success() {
            let command =
                if out == Some(Out::Send) { "Authentication Send" } else { "Authentication Receive" };
            return Err(ControllerError::Refused { command, status }.into());
        }
        Ok(self.machine.outcome().is_some())
    }

    /// The key of TLS that it has generated, once the queue is authenticated.
    pub(crate) fn take_generated(&mut self) -> Option<Result<TlsPsk, LinkError>> {
        let psk = self.machine.take_generated()?;
        let Names { host, subsystem } = &self.names;
        tracing::debug!(%subsystem, cipher = %psk.cipher(), "key of TLS generated: connecting again with TLS");
        // An identity of version 1 has any length.
        let key = psk.tls(IdentityVersion::One, host.as_str(), subsystem.as_str());
        Some(key.ok_or(LinkError::NoSecureChannel))
    }

    /// Why it has failed, once the failure was sent to the controller. The controller need not answer that, and may
    /// close the connection first.
    fn failure(&self) -> Option<LinkError> {
        let outcome = self.machine.outcome()?;
        outcome.err().map(LinkError::Authentication)
    }

    /// Why the connection was lost during the authentication, for which the socket says `cause`. Linux targets shut the
    /// connection down while they send their refusal, which may then be lost.
    pub(crate) fn cause_of_loss(&self, cause: LinkError) -> LinkError {
        if let Some(failure) = self.failure() {
            return failure;
        }
        if self.machine.awaits_verdict() && cause.is_close_by_peer() {
            return LinkError::ClosedOnReply;
        }
        cause
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use security::controller::{ControllerAuthentication, ControllerSettings as ControllerSide, Received};
    use wire::nqn::HostId;

    use super::*;

    const HOST: &str = "nqn.2026-01.io.nvlane:host";
    const SUBSYSTEM: &str = "nqn.2026-01.io.nvlane:disk";

    fn queue_of(credentials: &Credentials) -> QueueAuthentication {
        let settings = ControllerSettings {
            host: HOST.parse().expect("a name"),
            hostid: HostId::from(wire::uuid::Uuid::from_bytes([1; 16])),
            subsystem: SUBSYSTEM.parse().expect("a name"),
            is_discovery: false,
            keep_alive_ms: 0,
            queue_pairs: 1,
            is_flow_control_disabled: false,
        };
        QueueAuthentication::new(Some(credentials), &settings, SecureChannel::None).expect("random numbers")
    }

    fn secret(byte: u8) -> Secret {
        Secret::new(None, vec![byte; 32].into()).expect("a secret")
    }

    fn closed() -> LinkError {
        LinkError::Closed { during: "authentication" }
    }

    #[test]
    fn a_close_in_place_of_the_verdict_is_told_as_such() {
        let mut credentials = Credentials::new(secret(1), None);
        credentials.groups = vec![Group::Null];
        let mut queue = queue_of(&credentials);
        let mut controller = ControllerAuthentication::new(ControllerSide {
            names: Names {
                host: HOST.parse().expect("a name"),
                subsystem: SUBSYSTEM.parse().expect("a name"),
            },
            host: secret(2),
            controller: None,
            earlier: Vec::new(),
            hashes: credentials.hashes.clone(),
            groups: credentials.groups.clone(),
            secure_channel: SecureChannel::None,
        });
        let fresh = || Fresh::new(&[1; RANDOM_BYTES], NonZeroU32::MIN);
        let mut receives = 0;
        while let Some((_, data)) = queue.next_command() {
            match data {
                RequestData::ToController(message) => {
                    controller.on_send(&message, fresh());
                    assert!(!queue.on_completion(Status::SUCCESS, &[]).expect("it goes on"));
                }
                _ if receives == 1 => break,
                _ => {
                    assert!(matches!(queue.cause_of_loss(closed()), LinkError::Closed { .. }));
                    let Received::Message(message) = controller.on_receive(4096) else {
                        panic!("the challenge")
                    };
                    assert!(!queue.on_completion(Status::SUCCESS, &message).expect("it goes on"));
                    receives += 1;
                }
            }
        }
        // The controller has judged the reply, and the connection ends before its refusal is received.
        assert!(controller.failure().is_some());
        let reset = io::Error::from(io::ErrorKind::ConnectionReset);
        for cause in [closed(), reset.into()] {
            let told = queue.cause_of_loss(cause);
            assert!(matches!(told, LinkError::ClosedOnReply) && !told.is_permanent(), "{told}");
        }
        let late = LinkError::TimedOut { to: "Authentication Receive", waited: Duration::from_millis(1) };
        assert!(matches!(queue.cause_of_loss(late), LinkError::TimedOut { .. }));
    }

    #[test]
    fn the_reason_is_kept_whatever_the_controller_does_once_it_was_told() {
        let mut queue = queue_of(&Credentials::new(secret(1), None));
        // The offer is sent, and answered with nonsense.
        assert!(queue.next_command().is_some());
        assert!(!queue.on_completion(Status::SUCCESS, &[]).expect("it goes on"));
        assert!(queue.next_command().is_some());
        assert!(matches!(queue.cause_of_loss(closed()), LinkError::Closed { .. }));
        assert!(!queue.on_completion(Status::SUCCESS, &[7; 64]).expect("the controller is to be told"));
        assert!(matches!(queue.cause_of_loss(closed()), LinkError::Closed { .. }));
        let (_, message) = queue.next_command().expect("the refusal");
        assert!(matches!(message, RequestData::ToController(_)));
        let told = queue.cause_of_loss(closed()).to_string();
        assert!(told.contains("the host refuses the controller"), "{told}");
        let refused = queue.on_completion(Status::INVALID_FIELD.with_dnr(), &[]).expect_err("it has failed");
        assert_eq!(refused.to_string(), told);
    }
}
