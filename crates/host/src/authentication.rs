//! In-band authentication of one queue. wire §22.1

use std::num::NonZeroU32;

use proto::host_controller::{ControllerError, ControllerSettings, RequestData};
use reactor::randomness::Randomness;
use security::fresh::{Fresh, RANDOM_BYTES};
use security::group::Group;
use security::hash::HashFunction;
use security::host::{HostAuthentication, HostSettings};
use security::names::Names;
use security::psk::Psk;
use security::secret::Secret;
use security::secure_channel::SecureChannel;
use wire::fabrics::AuthenticationCommand;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::error::LinkError;

/// Room for a message of the controller, bytes: what Linux offers.
const ROOM_BYTES: u32 = 4096;

/// The secrets of a host, and what it offers with them.
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
        let settings = HostSettings { names, host, controller, hashes, groups, secure_channel };
        let fresh = Fresh::new(&random, sequence);
        let machine = HostAuthentication::new(settings, u16::from_le_bytes([t0, t1]), fresh);
        Ok(Self { machine, out: None })
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

    /// The command has ended; `data` is what the controller sent. Returns whether the queue is authenticated.
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
    pub(crate) fn take_generated(&mut self) -> Option<Psk> {
        self.machine.take_generated()
    }

    /// Why it has failed, once the controller was told. The controller need not answer that, and may close the
    /// connection first.
    pub(crate) fn failure(&self) -> Option<LinkError> {
        let outcome = self.machine.outcome()?;
        outcome.err().map(LinkError::Authentication)
    }
}

#[cfg(test)]
mod tests {
    use wire::nqn::HostId;

    use super::*;

    #[test]
    fn the_reason_is_kept_whatever_the_controller_does_once_it_was_told() {
        let name = |text: &str| text.parse().expect("a name");
        let settings = ControllerSettings {
            host: name("nqn.2026-01.io.nvlane:host"),
            hostid: HostId::from(wire::uuid::Uuid::from_bytes([1; 16])),
            subsystem: name("nqn.2026-01.io.nvlane:disk"),
            is_discovery: false,
            keep_alive_ms: 0,
            queue_pairs: 1,
            is_flow_control_disabled: false,
        };
        let secret = Secret::new(None, vec![1; 32].into()).expect("a secret");
        let credentials = Credentials::new(secret, None);
        let mut queue = QueueAuthentication::new(Some(&credentials), &settings, SecureChannel::None)
            .expect("random numbers");
        // The offer is sent, and answered with nonsense.
        assert!(queue.next_command().is_some());
        assert!(!queue.on_completion(Status::SUCCESS, &[]).expect("it goes on"));
        assert!(queue.next_command().is_some() && queue.failure().is_none());
        assert!(!queue.on_completion(Status::SUCCESS, &[7; 64]).expect("the controller is to be told"));
        assert!(queue.failure().is_none());
        let (_, message) = queue.next_command().expect("the refusal");
        assert!(matches!(message, RequestData::ToController(_)));
        let told = queue.failure().expect("it has failed").to_string();
        assert!(told.contains("the host refuses the controller"), "{told}");
        let refused = queue.on_completion(Status::INVALID_FIELD.with_dnr(), &[]).expect_err("it has failed");
        assert_eq!(refused.to_string(), told);
    }
}
