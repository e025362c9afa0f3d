//! The controller's side of an authentication.

use core::mem;

use crate::exponentiation::{Exponentiated, Exponentiation, KeyPair};
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

/// How a queue was authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authenticated {
    /// Hash function.
    pub hash: HashFunction,
    /// Group of the Diffie-Hellman exchange.
    pub group: Group,
    /// Whether the controller has shown its key, too.
    pub is_bidirectional: bool,
    /// The host has a former secret, which is still accepted.
    pub by_former_secret: bool,
    /// Which key of TLS it has generated.
    pub secure_channel: SecureChannel,
}

/// Keys and choices of a controller for one host.
#[derive(Clone, Debug)]
pub struct ControllerSettings {
    /// The association.
    pub names: Names,
    /// The secret that the host must have.
    pub host: Secret,
    /// The secret that the controller shows to a host that asks for it.
    pub controller: Option<Secret>,
    /// Former secrets of host and controller, accepted as well during the overlap after a change.
    pub earlier: Vec<(Secret, Option<Secret>)>,
    /// Usable hash functions, the preferred one first.
    pub hashes: Vec<HashFunction>,
    /// Usable groups, the preferred one first.
    pub groups: Vec<Group>,
    /// The secure channel concatenation that the host may ask for on this queue; any other one is refused.
    pub secure_channel: SecureChannel,
}

impl ControllerSettings {
    /// The keys of host and controller, the newest first.
    fn keys(&self) -> Vec<(SecretBytes, Option<SecretBytes>)> {
        let Self { names, host, controller, earlier, .. } = self;
        let key_of = |host: &Secret, controller: Option<&Secret>| {
            let controller = controller.map(|secret| secret.key_of(names.subsystem.as_str()));
            (host.key_of(names.host.as_str()), controller)
        };
        let earlier = earlier.iter().map(|(host, controller)| key_of(host, controller.as_ref()));
        core::iter::once(key_of(host, controller.as_ref())).chain(earlier).collect()
    }
}

/// The outcome of an Authentication Receive.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// This message; the rest of the buffer is zero.
    Message(Vec<u8>),
    /// Nothing yet: hold the command and ask again after [`ControllerAuthentication::on_exponentiated`].
    Pending,
    /// The message is longer than the buffer. It is kept; the command fails.
    TooShort,
}

/// Authentication of one queue, controller side: the first transaction and later ones.
///
/// ```text
/// Idle ─on_send Negotiate─▶ KeyPair ─on_exponentiated─▶ Challenge ─on_receive─▶ Reply ─on_send Reply─┐
///  ▲        (null group: straight to Challenge, and from Reply to Success1)                          │
///  │                                                                                                 ▼
///  ├──────────────────────one direction─── on_receive ◀── Success1 ◀─on_exponentiated────── Agreement
///  └─on_send Success2── Success2 ◀───────two directions───────┘
///
/// any ─wrong message─▶ Failure1 ─on_receive─▶ Idle if a transaction succeeded before, else Failed
/// ```
///
/// The queue stays authenticated once a transaction has succeeded: a later one that fails changes nothing here, and its
/// [refusal](Self::take_refusal) is for the caller to judge.
#[derive(Debug)]
pub struct ControllerAuthentication {
    names: Names,
    /// Of the host, with that of the controller; the newest first.
    keys: Vec<(SecretBytes, Option<SecretBytes>)>,
    hashes: Vec<HashFunction>,
    groups: Vec<Group>,
    /// The only one that is permitted.
    permitted: SecureChannel,
    /// Of the host's last Negotiate.
    secure_channel: SecureChannel,
    state: State,
    /// Of the host's last Negotiate.
    transaction: u16,
    authenticated: Option<Authenticated>,
    /// The host has proved itself before.
    is_trusted: bool,
    /// Each transaction must generate a key of TLS.
    must_generate_key: bool,
    generated: Option<Psk>,
    failure: Option<Reason>,
    /// Of the host's last Negotiate.
    offered: Vec<Group>,
    /// Why a later transaction was refused, once the host knows or does not ask.
    refusal: Option<Reason>,
    exponentiation: Option<Exponentiation>,
    exponentiation_count: u64,
}

#[derive(Debug)]
enum State {
    Idle,
    /// The public value is being computed.
    KeyPair(Challenge),
    /// The challenge is to be received.
    Challenge(Challenge, SecretBytes),
    /// The host is to reply.
    Reply(Challenge, SecretBytes),
    /// The shared secret is being computed.
    Agreement(Challenge, Reply),
    /// The success is to be received.
    Success1(Success1, Proof),
    /// The host is to judge our response.
    Success2(Proof),
    /// The failure is to be received.
    Failure1(Reason),
    /// The first transaction failed, and the host knows.
    Failed,
}

/// The results of a transaction; they count once the transaction has succeeded.
#[derive(Debug)]
struct Proof {
    authenticated: Authenticated,
    psk: Option<Psk>,
}

impl ControllerAuthentication {
    /// A queue that has not authenticated.
    #[must_use]
    pub fn new(settings: ControllerSettings) -> Self {
        Self {
            keys: settings.keys(),
            names: settings.names,
            hashes: settings.hashes,
            groups: settings.groups,
            permitted: settings.secure_channel,
            secure_channel: SecureChannel::None,
            state: State::Idle,
            transaction: 0,
            authenticated: None,
            is_trusted: false,
            must_generate_key: false,
            generated: None,
            failure: None,
            offered: Vec::new(),
            refusal: None,
            exponentiation: None,
            exponentiation_count: 0,
        }
    }

    /// A queue whose connection has TLS by a key that an authentication has generated: its host need not authenticate, and
    /// a transaction that fails changes nothing.
    #[must_use]
    pub fn of_secure_channel(settings: ControllerSettings) -> Self {
        Self { is_trusted: true, ..Self::new(settings) }
    }

    /// A queue each of whose transactions must generate a key of TLS.
    #[must_use]
    pub fn with_secure_channel_required(self) -> Self {
        Self { must_generate_key: true, ..self }
    }

    /// Takes the secrets, hash functions and groups for the transactions to come, between two of them. Without settings
    /// the host has no secret any more, and none of its transactions succeeds. The names and the permitted key
    /// generation stay.
    pub fn set_secrets(&mut self, settings: Option<&ControllerSettings>) {
        debug_assert!(!self.is_running(), "a transaction ends with the secrets that it began with");
        match settings {
            Some(settings) => {
                self.keys = settings.keys();
                (self.hashes, self.groups) = (settings.hashes.clone(), settings.groups.clone());
            }
            None => self.keys.clear(),
        }
    }

    /// The host begins another transaction before the present one, which is not its first, has ended: one of its
    /// commands may have failed on the way. A refusal stands.
    pub fn restart(&mut self) {
        if self.is_running() && !self.is_owed() && !matches!(self.state, State::Failure1(_)) {
            self.abandon();
            self.state = State::Idle;
        }
    }

    /// How the queue was authenticated by the last transaction that succeeded.
    #[must_use]
    pub const fn authenticated(&self) -> Option<Authenticated> {
        self.authenticated
    }

    /// The key that the last transaction which succeeded has generated, once.
    pub fn take_generated(&mut self) -> Option<Psk> {
        self.generated.take()
    }

    /// Why the last transaction failed, if it did.
    #[must_use]
    pub const fn failure(&self) -> Option<Reason> {
        self.failure
    }

    /// Why the host was refused in a transaction after its first, once: when it has received the failure, or has not done so in
    /// time.
    pub fn take_refusal(&mut self) -> Option<Reason> {
        self.refusal.take()
    }

    /// Whether a transaction has begun and not ended: it needs a deadline.
    #[must_use]
    pub const fn is_running(&self) -> bool {
        !matches!(self.state, State::Idle | State::Failed)
    }

    /// Whether the first transaction failed and the host knows: the connection is to be closed.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.state, State::Failed)
    }

    /// Takes the message of an Authentication Send, which always completes with success: the host learns of errors in
    /// the message by its next Receive.
    #[allow(clippy::needless_pass_by_value)] // Taken, so that no other transaction can use it.
    pub fn on_send(&mut self, message: &[u8], fresh: Fresh) {
        match self.accept(message, &fresh) {
            Ok(state) => self.state = state,
            Err(reason) => self.fail(reason),
        }
    }

    /// Gives an Authentication Receive with room for `room_bytes` its message.
    pub fn on_receive(&mut self, room_bytes: usize) -> Received {
        let message = match &self.state {
            State::KeyPair(_) | State::Agreement(..) => return Received::Pending,
            State::Challenge(challenge, _) => challenge.to_bytes(),
            State::Success1(success, proof) => success.to_bytes(proof.authenticated.hash),
            State::Failure1(reason) => message::failure(Kind::Failure1, self.transaction, *reason),
            State::Idle | State::Reply(..) | State::Success2(_) | State::Failed => {
                self.fail(Reason::Message);
                message::failure(Kind::Failure1, self.transaction, Reason::Message)
            }
        };
        if message.len() > room_bytes {
            return Received::TooShort;
        }
        self.state = match mem::replace(&mut self.state, State::Idle) {
            State::Challenge(challenge, exponent) => State::Reply(challenge, exponent),
            State::Success1(_, proof) if proof.authenticated.is_bidirectional => State::Success2(proof),
            State::Success1(_, proof) => self.succeed(proof),
            State::Failure1(_) if self.is_owed() => State::Failed,
            State::Failure1(reason) => {
                self.refusal = Some(reason);
                State::Idle
            }
            _ => State::Idle,
        };
        Received::Message(message)
    }

    /// The exponentiation to run.
    #[must_use]
    pub const fn exponentiation(&self) -> Option<&Exponentiation> {
        self.exponentiation.as_ref()
    }

    /// Takes a key pair in place of the exponentiation that would make one in its group; does nothing without such a one.
    pub fn use_key_pair(&mut self, pair: KeyPair) {
        let is_for = |to_run: &Exponentiation| to_run.is_key_pair() && to_run.group() == pair.group();
        if self.exponentiation.as_ref().is_some_and(is_for) {
            self.exponentiation = None;
            self.on_exponentiated(pair.into_result(self.exponentiation_count));
        }
    }

    /// The groups that the host has offered last, if none of them is usable.
    #[must_use]
    pub fn unusable_groups(&self) -> Option<&[Group]> {
        (self.failure == Some(Reason::Group)).then_some(&self.offered)
    }

    /// The exponentiation to run, once. Its group says how long it takes.
    pub fn next_exponentiation(&mut self) -> Option<Exponentiation> {
        self.exponentiation.take()
    }

    /// Takes the result of an exponentiation. That of an abandoned transaction is ignored.
    pub fn on_exponentiated(&mut self, result: Exponentiated) {
        if result.number != self.exponentiation_count {
            return;
        }
        let next = match mem::replace(&mut self.state, State::Idle) {
            State::KeyPair(challenge) => {
                Ok(State::Challenge(Challenge { public: result.public, ..challenge }, result.exponent))
            }
            State::Agreement(challenge, reply) => self.judge(&challenge, reply, result.shared.as_ref()),
            other => Ok(other),
        };
        match next {
            Ok(state) => self.state = state,
            Err(reason) => self.fail(reason),
        }
    }

    /// Abandons a transaction that takes too long: the queue is as before it, or over if that was the first.
    pub fn on_timeout(&mut self) {
        if self.is_running() {
            if let State::Failure1(reason) = self.state
                && !self.is_owed()
            {
                self.refusal = Some(reason);
            }
            self.failure = Some(Reason::Failed);
            self.abandon();
            self.state = if self.is_owed() { State::Failed } else { State::Idle };
        }
    }

    /// The next state after a message.
    fn accept(&mut self, message: &[u8], fresh: &Fresh) -> Result<State, Reason> {
        let state = mem::replace(&mut self.state, State::Failed);
        let (kind, transaction) = Kind::of(message)?;
        match (kind, state) {
            (Kind::Negotiate, State::Idle) => {
                self.transaction = transaction;
                self.failure = None;
                self.challenge(&Negotiate::read(message, transaction)?, fresh)
            }
            (Kind::Reply, State::Reply(challenge, exponent)) => {
                self.check_transaction(transaction)?;
                let reply = Reply::read(message, transaction, challenge.hash, challenge.group)?;
                // C2 without S2 serves to generate a key only, and a key is generated with C2 only.
                let is_fit = match reply.challenge {
                    Some((_, 0)) | None => self.secure_channel.generates_key() == reply.challenge.is_some(),
                    Some(_) => true,
                };
                if !is_fit {
                    return Err(Reason::Payload);
                }
                if challenge.group == Group::Null {
                    return self.judge(&challenge, reply, None);
                }
                if !challenge.group.has_public_value(&reply.public) {
                    return Err(Reason::Payload);
                }
                self.compute(challenge.group, exponent, Some(reply.public.clone()));
                Ok(State::Agreement(challenge, reply))
            }
            (Kind::Success2, State::Success2(proof)) => {
                self.check_transaction(transaction)?;
                // Its length is fixed; nothing in it is.
                let is_whole = message.len() >= message::success2(transaction).len();
                is_whole.then(|| self.succeed(proof)).ok_or(Reason::Payload)
            }
            // The host refuses us: it is not authenticated either.
            (Kind::Failure2, State::Success2(_)) => Err(message::failure_reason(message)),
            _ => Err(Reason::Message),
        }
    }

    fn check_transaction(&self, transaction: u16) -> Result<(), Reason> {
        (transaction == self.transaction).then_some(()).ok_or(Reason::Payload)
    }

    /// Whether no transaction has succeeded that must.
    fn is_owed(&self) -> bool {
        self.authenticated.is_none() && !self.is_trusted
    }

    /// Chooses hash function and group, and makes the challenge.
    fn challenge(&mut self, offer: &Negotiate, fresh: &Fresh) -> Result<State, Reason> {
        self.secure_channel = offer.secure_channel;
        self.offered = offer.groups.clone();
        let (hash, group) = self.choose(offer)?;
        let challenge = Challenge {
            transaction: offer.transaction,
            hash,
            group,
            sequence: fresh.sequence().get(),
            challenge: fresh.challenge(hash),
            public: Vec::new(),
        };
        let exponent = SecretBytes::from(fresh.exponent(group));
        if group == Group::Null {
            return Ok(State::Challenge(challenge, exponent));
        }
        self.compute(group, exponent, None);
        Ok(State::KeyPair(challenge))
    }

    /// Chooses hash function and group. A key is generated with a Diffie-Hellman exchange and a hash function of TLS only.
    fn choose(&self, offer: &Negotiate) -> Result<(HashFunction, Group), Reason> {
        let generates_key = offer.secure_channel.generates_key();
        let is_permitted =
            if generates_key { offer.secure_channel == self.permitted } else { !self.must_generate_key };
        if !is_permitted {
            return Err(Reason::SecureChannel);
        }
        let mut hashes: Vec<_> = self.hashes.iter().filter(|hash| offer.hashes.contains(hash)).collect();
        let mut groups: Vec<_> = self.groups.iter().filter(|group| offer.groups.contains(group)).collect();
        if generates_key {
            hashes.retain(|hash| Cipher::of(**hash).is_some());
            // SHA-256 first: Linux hosts with GnuTLS 3.8 cannot use keys of SHA-384.
            hashes.sort_by_key(|hash| hash.digest_bytes());
            if groups == [&Group::Null] {
                return Err(Reason::SecureChannel);
            }
            groups.retain(|group| **group != Group::Null);
        }
        let hash = hashes.first().ok_or(Reason::Hash)?;
        let group = groups.first().ok_or(Reason::Group)?;
        Ok((**hash, **group))
    }

    /// Compares the host's response and prepares ours.
    fn judge(
        &self,
        challenge: &Challenge,
        reply: Reply,
        shared: Option<&SecretBytes>,
    ) -> Result<State, Reason> {
        let transcript = Transcript {
            hash: challenge.hash,
            transaction: self.transaction,
            secure_channel: self.secure_channel,
            names: &self.names,
            shared,
        };
        let (c1, s1) = (&challenge.challenge, challenge.sequence);
        let is_of_host =
            |(key, _): &&(_, _)| transcript.is_response(&reply.response, Side::Host, key, c1, s1);
        let (at, (_, controller_key)) =
            self.keys.iter().enumerate().find(|(_, keys)| is_of_host(keys)).ok_or(Reason::Failed)?;
        let psk = match &reply.challenge {
            // Hash function and group were chosen for it.
            Some((c2, _)) if self.secure_channel.generates_key() => {
                Some(transcript.generated_psk(c1, c2).ok_or(Reason::SecureChannel)?)
            }
            _ => None,
        };
        let response = match reply.challenge {
            None => None,
            // Our own challenge, reflected.
            Some((c2, _)) if c2 == *c1 => return Err(Reason::Failed),
            // The controller need not show its key.
            Some((_, 0)) => None,
            Some((c2, s2)) => {
                let key = controller_key.as_ref().ok_or(Reason::Failed)?;
                Some(transcript.response(Side::Controller, key, &c2, s2).expose().to_vec())
            }
        };
        let authenticated = Authenticated {
            hash: challenge.hash,
            group: challenge.group,
            is_bidirectional: response.is_some(),
            by_former_secret: at > 0,
            secure_channel: self.secure_channel,
        };
        let success = Success1 { transaction: self.transaction, response };
        Ok(State::Success1(success, Proof { authenticated, psk }))
    }

    fn succeed(&mut self, proof: Proof) -> State {
        self.authenticated = Some(proof.authenticated);
        self.generated = proof.psk;
        State::Idle
    }

    fn fail(&mut self, reason: Reason) {
        self.failure = Some(reason);
        self.abandon();
        self.state = State::Failure1(reason);
    }

    /// Drops the exponentiation; a result on its way is ignored.
    fn abandon(&mut self) {
        self.exponentiation = None;
        self.exponentiation_count = self.exponentiation_count.wrapping_add(1);
    }

    fn compute(&mut self, group: Group, exponent: SecretBytes, peer: Option<Vec<u8>>) {
        self.abandon();
        let wants_public = peer.is_none();
        let number = self.exponentiation_count;
        self.exponentiation = Some(Exponentiation { number, group, exponent, wants_public, peer });
    }
}
