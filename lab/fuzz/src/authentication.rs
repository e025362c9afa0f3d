//! In-band authentication: a host and a controller whose messages are changed, replaced and repeated on the way. wire §22.1
//!
//! Input: who has which secret and what is negotiated, then what happens to each message.

use std::num::NonZeroU32;

use security::controller::{ControllerAuthentication, ControllerSettings, Received};
use security::fresh::{Fresh, RANDOM_BYTES};
use security::group::Group;
use security::hash::HashFunction;
use security::host::{HostAuthentication, HostSettings};
use security::message::MESSAGE_BYTES_MAX;
use security::names::Names;
use security::secret::Secret;
use security::secure_channel::SecureChannel;

use crate::input::Input;

/// Messages of one run: more than a transaction has.
const STEP_COUNT: u8 = 12;

/// An end without the secret is never authenticated, whatever happens to the messages. If no message is changed, both ends come
/// to the same outcome.
pub fn authentication(data: &[u8]) {
    let mut input = Input::new(data);
    let flags = input.byte();
    let is = |bit: u8| flags & 1 << bit != 0;
    let (host_knows, controller_knows, is_mutual, generates) = (!is(0), !is(1), is(2), is(3));
    let hash = HashFunction::ALL[usize::from(flags >> 4) % HashFunction::ALL.len()];
    let channel = if generates { SecureChannel::NewTlsPsk } else { SecureChannel::None };
    // An exponentiation takes milliseconds, and only keys need a group.
    let group = if generates { Group::Ffdhe2048 } else { Group::Null };
    let mut host = HostAuthentication::new(
        HostSettings {
            names: names(),
            host: secret(1),
            controller: is_mutual.then(|| secret(2)),
            hashes: vec![hash],
            groups: vec![group],
            secure_channel: channel,
        },
        7,
        fresh(1),
    );
    let mut controller = ControllerAuthentication::new(ControllerSettings {
        names: names(),
        host: secret(if host_knows { 1 } else { 3 }),
        controller: Some(secret(if controller_knows { 2 } else { 4 })),
        earlier: Vec::new(),
        hashes: HashFunction::ALL.to_vec(),
        groups: Group::ALL.to_vec(),
        secure_channel: channel,
    });
    let mut is_changed = false;
    for step in 0..STEP_COUNT {
        if let Some(exponentiation) = host.next_exponentiation() {
            host.on_exponentiated(exponentiation.run());
        }
        if let Some(exponentiation) = controller.next_exponentiation() {
            controller.on_exponentiated(exponentiation.run());
        }
        if let Some(message) = host.next_send() {
            let (messages, has_changed) = on_the_way(&mut input, message);
            is_changed |= has_changed;
            for message in messages {
                controller.on_send(&message, fresh(2 + step));
            }
        } else if host.wants_receive() {
            let Received::Message(message) = controller.on_receive(MESSAGE_BYTES_MAX) else { continue };
            let (messages, has_changed) = on_the_way(&mut input, message);
            is_changed |= has_changed;
            for message in messages {
                host.on_receive(&message);
            }
        } else if host.outcome().is_some() {
            break;
        }
    }
    let host_succeeds = host.outcome().is_some_and(|outcome| outcome.is_ok());
    let controller_succeeds = controller.authenticated().is_some();
    assert!(host_knows || !controller_succeeds, "a host without the secret is authenticated");
    assert!(!host_succeeds || !is_mutual || controller_knows, "a controller without the secret is trusted");
    // SHA-512 belongs to no cipher suite, so it generates no key.
    let is_possible = !generates || hash != HashFunction::Sha512;
    if !is_changed {
        let expected = host_knows && (!is_mutual || controller_knows) && is_possible;
        assert_eq!((host_succeeds, controller_succeeds), (expected, expected));
        let keys = (host.take_generated().is_some(), controller.take_generated().is_some());
        assert_eq!(keys, (expected && generates, expected && generates));
    }
    controller.on_timeout();
    assert!(!controller.is_running());
}

/// What becomes of a message: the messages that arrive, and whether these are others.
fn on_the_way(input: &mut Input<'_>, mut message: Vec<u8>) -> (Vec<Vec<u8>>, bool) {
    let before = message.clone();
    match input.byte() & 7 {
        1 | 2 => input.damage(&mut message),
        3 => {
            let length = usize::from(input.word());
            message = input.bytes(length.min(4 * MESSAGE_BYTES_MAX)).to_vec();
        }
        4 => message.truncate(usize::from(input.word())),
        5 => message.extend_from_slice(input.bytes(64)),
        6 => return (vec![message.clone(), message], true),
        7 => return (Vec::new(), true),
        _ => {}
    }
    let has_changed = message != before;
    (vec![message], has_changed)
}

fn names() -> Names {
    Names {
        host: "nqn.2026-01.io.nvlane:host".parse().expect("a name"),
        subsystem: "nqn.2026-01.io.nvlane:disk".parse().expect("a name"),
    }
}

fn secret(byte: u8) -> Secret {
    Secret::new(None, vec![byte; 32].into()).expect("a length that exists")
}

/// Randomness that is not random, and another for each transaction.
fn fresh(byte: u8) -> Fresh {
    Fresh::new(&[byte; RANDOM_BYTES], NonZeroU32::MIN.saturating_add(byte.into()))
}
