//! The host's side of an authentication.

use core::mem;

use crate::controller::Authenticated;
use crate::exponentiation::{Exponentiated, Exponentiation};
use crate::fresh::Fresh;
use crate::group::Group;
use crate::hash::HashFunction;
use crate::message::{self, Challenge, Kind, Negotiate, Reason, Reply, Success1};
use crate::names::Names;
use crate::psk::{Cipher, Psk};
use crate::secret::Secret;
use crate::secret_bytes::SecretBytes;
use crate::secure_channel::SecureChannel;
use crate::transcript::{Side, Transcript};

/// Keys and offers of a host.
#[derive(Clone, Debug)]
pub struct HostSettings {
    /// The association.
    pub names: Names,
    /// The host's secret.
    pub host: Secret,
    /// The secret that the controller must have; `None`: the controller need not authenticate itself.
    pub controller: Option<Secret>,
    /// Offered hash functions. To generate a key, only those of cipher suites of TLS are.
    pub hashes: Vec<HashFunction>,
    /// Offered groups. To generate a key, only those with a Diffie-Hellman exchange are.
    pub groups: Vec<Group>,
    /// The secure channel concatenation to ask for.
    pub secure_channel: SecureChannel,
}

/// Why a host's transaction failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostFailure {
    /// The controller refused the host.
    #[error("the controller refused the host: {0}")]
    Refused(Reason),
    /// The host refuses the controller, and sends the reason.
    #[error("the host refuses the controller: {0}")]
    Refuses(Reason),
}

/// One authentication of one queue, host side.
///
/// ```text
/// Negotiate ─next_send─▶ Challenge ─on_receive─▶ Exponentiation ─on_exponentiated─▶ Reply ─next_send─┐
///                                └──────────────(null group)────────────────────────▲                │
/// Ended ◀─────────────────────────────────────────────── one direction ─── on_receive ── Success1 ◀──┘
///   ▲  ▲                                                                        │
///   │  └─next_send─ Success2 ◀───────────────────────────────── two directions ─┘
///   └─next_send─ Failure2 ◀─ any message that is wrong
/// ```
#[derive(Debug)]
pub struct HostAuthentication {
    names: Names,
    host_key: SecretBytes,
    controller_key: Option<SecretBytes>,
    offer: Negotiate,
    fresh: Fresh,
    state: State,
    exponentiation: Option<Exponentiation>,
    /// Of both challenges; it counts once the transaction has succeeded.
    generated: Option<Psk>,
}

#[derive(Debug)]
enum State {
    /// The offer is to be sent.
    Negotiate,
    /// The challenge is to be received.
    Challenge,
    /// Our public value and the shared secret are being computed.
    Exponentiation(Challenge),
    /// The reply is to be sent.
    Reply(Vec<u8>, Expected),
    /// The success is to be received.
    Success1(Expected),
    /// Our success is to be sent.
    Success2(Authenticated),
    /// Our refusal is to be sent.
    Failure2(Reason),
    Ended(Result<Authenticated, HostFailure>),
}

/// The values that the controller's answer to a reply must have.
#[derive(Debug)]
struct Expected {
    hash: HashFunction,
    group: Group,
    /// R2, if the controller must authenticate itself.
    shared: Option<SecretBytes>,
}

impl HostAuthentication {
    /// A transaction with this id: any number, another one for each transaction of a queue.
    #[must_use]
    pub fn new(settings: HostSettings, transaction: u16, fresh: Fresh) -> Self {
        let HostSettings { names, host, controller, mut hashes, mut groups, secure_channel } = settings;
        if secure_channel.generates_key() {
            hashes.retain(|hash| Cipher::of(*hash).is_some());
            groups.retain(|group| *group != Group::Null);
        }
        Self {
            host_key: host.key_of(names.host.as_str()),
            controller_key: controller.map(|secret| secret.key_of(names.subsystem.as_str())),
            names,
            offer: Negotiate { transaction, secure_channel, hashes, groups },
            fresh,
            state: State::Negotiate,
            exponentiation: None,
            generated: None,
        }
    }

    /// The message to send now by an Authentication Send.
    pub fn next_send(&mut self) -> Option<Vec<u8>> {
        let transaction = self.offer.transaction;
        let (message, next) = match mem::replace(&mut self.state, State::Challenge) {
            State::Negotiate => (self.offer.to_bytes(), State::Challenge),
            State::Reply(message, expected) => (message, State::Success1(expected)),
            State::Success2(authenticated) => {
                (message::success2(transaction), State::Ended(Ok(authenticated)))
            }
            State::Failure2(reason) => {
                let message = message::failure(Kind::Failure2, transaction, reason);
                (message, State::Ended(Err(HostFailure::Refuses(reason))))
            }
            other => {
                self.state = other;
                return None;
            }
        };
        self.state = next;
        Some(message)
    }

    /// Whether a message is to be received now by an Authentication Receive, with room for
    /// [`MESSAGE_BYTES_MAX`](message::MESSAGE_BYTES_MAX) or more.
    #[must_use]
    pub const fn wants_receive(&self) -> bool {
        matches!(self.state, State::Challenge | State::Success1(_))
    }

    /// Whether the controller has the host's reply, and is to say whether it accepts it.
    #[must_use]
    pub const fn awaits_verdict(&self) -> bool {
        matches!(self.state, State::Success1(_))
    }

    /// Takes the message of an Authentication Receive, or the whole of its buffer.
    pub fn on_receive(&mut self, message: &[u8]) {
        self.state = self.accept(message).unwrap_or_else(State::Failure2);
    }

    /// The exponentiation to run, once. Its group says how long it takes.
    pub fn next_exponentiation(&mut self) -> Option<Exponentiation> {
        self.exponentiation.take()
    }

    /// Takes the result of the exponentiation.
    pub fn on_exponentiated(&mut self, result: Exponentiated) {
        match mem::replace(&mut self.state, State::Challenge) {
            State::Exponentiation(challenge) => {
                self.state = self.reply(&challenge, result.public, result.shared);
            }
            other => self.state = other,
        }
    }

    /// The outcome, once there is one and it was sent to the controller.
    #[must_use]
    pub const fn outcome(&self) -> Option<Result<Authenticated, HostFailure>> {
        match &self.state {
            State::Ended(outcome) => Some(*outcome),
            _ => None,
        }
    }

    /// The key that the transaction has generated, once it has succeeded.
    pub fn take_generated(&mut self) -> Option<Psk> {
        matches!(self.state, State::Ended(Ok(_))).then(|| self.generated.take()).flatten()
    }

    /// The next state after a message; the reason to refuse the controller otherwise.
    fn accept(&mut self, message: &[u8]) -> Result<State, Reason> {
        let state = mem::replace(&mut self.state, State::Failure2(Reason::Message));
        let (kind, transaction) = Kind::of(message)?;
        let wanted = match (&state, kind) {
            (State::Challenge | State::Success1(_), Kind::Failure1) => {
                let reason = message::failure_reason(message);
                return Ok(State::Ended(Err(HostFailure::Refused(reason))));
            }
            (State::Challenge, Kind::Challenge) | (State::Success1(_), Kind::Success1) => state,
            _ => return Err(Reason::Message),
        };
        if transaction != self.offer.transaction {
            return Err(Reason::Payload);
        }
        match wanted {
            State::Success1(expected) => {
                let success = Success1::read(message, transaction, expected.hash)?;
                self.judge(&success, &expected)
            }
            _ => self.challenged(Challenge::read(message, transaction)?),
        }
    }

    /// Checks that the controller chose from the offer.
    fn challenged(&mut self, challenge: Challenge) -> Result<State, Reason> {
        // By reading, Linux 6.12 targets may choose a group that was not offered.
        if !self.offer.hashes.contains(&challenge.hash) {
            return Err(Reason::Hash);
        }
        if !self.offer.groups.contains(&challenge.group) {
            return Err(Reason::Group);
        }
        let group = challenge.group;
        if group == Group::Null {
            return Ok(self.reply(&challenge, Vec::new(), None));
        }
        if !group.has_public_value(&challenge.public) {
            return Err(Reason::Payload);
        }
        self.exponentiation = Some(Exponentiation {
            number: 0,
            group,
            exponent: self.fresh.exponent(group).into(),
            wants_public: true,
            peer: Some(challenge.public.clone()),
        });
        Ok(State::Exponentiation(challenge))
    }

    fn reply(&mut self, challenge: &Challenge, public: Vec<u8>, shared: Option<SecretBytes>) -> State {
        let Challenge { transaction, hash, group, sequence, .. } = *challenge;
        let transcript = self.transcript(hash, shared.as_ref());
        let response = transcript.response(Side::Host, &self.host_key, &challenge.challenge, sequence);
        let generates_key = self.offer.secure_channel.generates_key();
        // 0: the controller need not show its key, and C2 serves to generate a key only.
        let sequence = if self.controller_key.is_some() { self.fresh.sequence().get() } else { 0 };
        let own = (generates_key || sequence != 0).then(|| (self.fresh.challenge(hash), sequence));
        if own.as_ref().is_some_and(|(own, _)| *own == challenge.challenge) {
            // Either side repeats challenges.
            return State::Failure2(Reason::Failed);
        }
        let c2 = own.as_ref().filter(|_| generates_key).map(|(own, _)| own);
        let psk = c2.and_then(|c2| transcript.generated_psk(&challenge.challenge, c2));
        if psk.is_none() && generates_key {
            return State::Failure2(Reason::SecureChannel);
        }
        self.generated = psk;
        let response = response.expose().to_vec();
        let reply = Reply { transaction, response, challenge: own, public };
        State::Reply(reply.to_bytes(), Expected { hash, group, shared })
    }

    /// Compares the controller's response, which must be there exactly if it was asked for.
    fn judge(&self, success: &Success1, expected: &Expected) -> Result<State, Reason> {
        let Expected { hash, group, shared } = expected;
        let is_bidirectional = self.controller_key.is_some();
        let secure_channel = self.offer.secure_channel;
        let authenticated = Authenticated {
            hash: *hash,
            group: *group,
            is_bidirectional,
            by_former_secret: false,
            secure_channel,
        };
        match (&self.controller_key, &success.response) {
            (None, None) => Ok(State::Ended(Ok(authenticated))),
            (Some(key), Some(response)) => {
                let (c2, s2) = (self.fresh.challenge(*hash), self.fresh.sequence().get());
                let transcript = self.transcript(*hash, shared.as_ref());
                if !transcript.is_response(response, Side::Controller, key, &c2, s2) {
                    return Err(Reason::Failed);
                }
                Ok(State::Success2(authenticated))
            }
            // Linux before 6.12.117 took a success without a response.
            (Some(_), None) => Err(Reason::Failed),
            (None, Some(_)) => Err(Reason::Payload),
        }
    }

    fn transcript<'a>(&'a self, hash: HashFunction, shared: Option<&'a SecretBytes>) -> Transcript<'a> {
        let Negotiate { transaction, secure_channel, .. } = self.offer;
        Transcript { hash, transaction, secure_channel, names: &self.names, shared }
    }
}
