//! A host and a controller, and what they say to each other.

use std::num::NonZeroU32;

use nvlane_security::controller::{Authenticated, ControllerAuthentication, ControllerSettings, Received};
use nvlane_security::fresh::{Fresh, RANDOM_BYTES};
use nvlane_security::group::Group;
use nvlane_security::hash::HashFunction;
use nvlane_security::host::{HostAuthentication, HostFailure, HostSettings};
use nvlane_security::message::{Kind, MESSAGE_BYTES_MAX, Reason};
use nvlane_security::names::Names;
use nvlane_security::secret::Secret;
use nvlane_security::secure_channel::SecureChannel;

pub(crate) const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
pub(crate) const SUBSYSTEM: &str = "nqn.2016-06.io.nvlane:sub1";
pub(crate) const TRANSACTION: u16 = 7;

pub(crate) fn names() -> Names {
    Names { host: HOST.parse().expect("a name"), subsystem: SUBSYSTEM.parse().expect("a name") }
}

/// Bytes from `first` on, each one more than the last.
pub(crate) fn count_up(first: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| first.wrapping_add(at.to_le_bytes()[0])).collect()
}

/// A secret with bytes from `first` on; with a transforming function it is as long as its digest.
pub(crate) fn secret(first: u8, transform: Option<HashFunction>) -> Secret {
    let length = transform.map_or(32, HashFunction::digest_bytes);
    Secret::new(transform, count_up(first, length).into()).expect("a length there is")
}

/// Randomness that is not random.
pub(crate) fn fresh(challenge: u8, exponent: u8, sequence: u32) -> Fresh {
    let bytes = [count_up(challenge, RANDOM_BYTES / 2), count_up(exponent, RANDOM_BYTES / 2)].concat();
    Fresh::new(&bytes.try_into().expect("all of them"), NonZeroU32::new(sequence).expect("not 0"))
}

/// A host and a controller with one host key, and one of the controller in both directions.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) host: HostSettings,
    pub(crate) controller: ControllerSettings,
}

impl Pair {
    pub(crate) fn new(
        hash: HashFunction,
        group: Group,
        is_bidirectional: bool,
        transform: Option<HashFunction>,
    ) -> Self {
        let host_secret = secret(0x01, transform);
        let controller_secret = is_bidirectional.then(|| secret(0x81, transform));
        Self {
            host: HostSettings {
                names: names(),
                host: host_secret.clone(),
                controller: controller_secret.clone(),
                hashes: vec![hash],
                groups: vec![group],
                secure_channel: SecureChannel::None,
            },
            controller: ControllerSettings {
                names: names(),
                host: host_secret,
                controller: controller_secret,
                earlier: Vec::new(),
                hashes: HashFunction::ALL.to_vec(),
                groups: Group::ALL.to_vec(),
                secure_channel: SecureChannel::None,
            },
        }
    }

    /// Both directions without a Diffie-Hellman exchange: the quickest.
    pub(crate) fn quick() -> Self {
        Self::new(HashFunction::Sha256, Group::Null, true, None)
    }

    pub(crate) fn host(&self) -> HostAuthentication {
        HostAuthentication::new(self.host.clone(), TRANSACTION, fresh(0x60, 0x33, 0x0102_0305))
    }

    pub(crate) fn controller(&self) -> ControllerAuthentication {
        ControllerAuthentication::new(self.controller.clone())
    }
}

pub(crate) fn controller_fresh() -> Fresh {
    fresh(0x10, 0xA0, 0x0102_0304)
}

/// Sends a message and runs the exponentiation that it causes.
pub(crate) fn send(controller: &mut ControllerAuthentication, message: &[u8]) {
    controller.on_send(message, controller_fresh());
    if let Some(exponentiation) = controller.next_exponentiation() {
        assert_eq!(controller.on_receive(MESSAGE_BYTES_MAX), Received::Pending);
        controller.on_exponentiated(exponentiation.run());
    }
}

/// Receives a message.
pub(crate) fn receive(controller: &mut ControllerAuthentication) -> Vec<u8> {
    match controller.on_receive(MESSAGE_BYTES_MAX) {
        Received::Message(message) => message,
        other => panic!("{other:?}"),
    }
}

/// The reason of a failure of the controller.
pub(crate) fn failure(message: &[u8]) -> Option<Reason> {
    let is_failure = Kind::of(message).is_ok_and(|(kind, _)| kind == Kind::Failure1) && message[6] == 1;
    is_failure.then(|| nvlane_security::message::failure_reason(message))
}

/// What was said, and its outcome on both sides.
pub(crate) struct Outcome {
    pub(crate) messages: Vec<Vec<u8>>,
    pub(crate) host: Result<Authenticated, HostFailure>,
    pub(crate) controller: Option<Authenticated>,
}

/// Runs a transaction of a new host, with each message changed on its way by `tamper`.
pub(crate) fn run(
    host: &mut HostAuthentication,
    controller: &mut ControllerAuthentication,
    mut tamper: impl FnMut(Kind, &mut Vec<u8>),
) -> Outcome {
    let mut messages = Vec::new();
    let mut on_its_way = |mut message: Vec<u8>| {
        let (kind, _) = Kind::of(&message).expect("a message of ours");
        tamper(kind, &mut message);
        messages.push(message.clone());
        message
    };
    let host_outcome = loop {
        if let Some(outcome) = host.outcome() {
            break outcome;
        }
        if let Some(message) = host.next_send() {
            send(controller, &on_its_way(message));
        } else if let Some(exponentiation) = host.next_exponentiation() {
            assert!(!host.wants_receive());
            host.on_exponentiated(exponentiation.run());
        } else {
            assert!(host.wants_receive());
            let mut buffer = on_its_way(receive(controller));
            // Hosts get the whole buffer.
            buffer.resize(MESSAGE_BYTES_MAX, 0);
            host.on_receive(&buffer);
        }
    };
    Outcome { messages, host: host_outcome, controller: controller.authenticated() }
}
