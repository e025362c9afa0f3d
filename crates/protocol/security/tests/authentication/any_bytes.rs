//! Any bytes at any time: no panic, and nobody is authenticated by them.

use nvlane_security::controller::Received;
use nvlane_security::group::Group;
use nvlane_security::hash::HashFunction;
use nvlane_security::message::{Challenge, Kind, MESSAGE_BYTES_MAX, Negotiate, Reply, Success1};
use nvlane_security::secure_channel::SecureChannel;
use proptest::prelude::*;

use crate::exchange::{Pair, run, send};

/// Bytes that often are nearly a message.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let begin = prop::sample::select(vec![[0, 0], [1, 1], [1, 2], [1, 3], [1, 4], [0, 0xF0], [0, 0xF1]]);
    let nearly =
        (begin, prop::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(32), any::<u8>()], 0..400))
            .prop_map(|(begin, rest)| [&begin[..], &[0, 0, 7, 0], &rest].concat());
    prop_oneof![3 => nearly, 1 => prop::collection::vec(any::<u8>(), 0..1300)]
}

#[derive(Clone, Debug)]
enum Step {
    Send(Vec<u8>),
    /// The next message of a valid transaction.
    Valid,
    Receive(usize),
    Timeout,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => bytes().prop_map(Step::Send),
        2 => Just(Step::Valid),
        4 => (0..2 * MESSAGE_BYTES_MAX).prop_map(Step::Receive),
        1 => Just(Step::Timeout),
    ]
}

fn ids() -> impl Strategy<Value = (HashFunction, Group)> {
    (prop::sample::select(HashFunction::ALL.to_vec()), prop::sample::select(Group::ALL.to_vec()))
}

proptest! {
    #[test]
    fn no_bytes_authenticate_a_host_without_the_secret(steps in prop::collection::vec(step(), 1..20)) {
        let pair = Pair::quick();
        let mut wrong = pair.clone();
        wrong.host.host = crate::exchange::secret(3, None);
        let mut host = wrong.host();
        let mut controller = pair.controller();
        for step in steps {
            match step {
                Step::Send(message) => send(&mut controller, &message),
                Step::Valid => {
                    if let Some(message) = host.next_send() {
                        send(&mut controller, &message);
                    }
                }
                Step::Receive(room) => {
                    if let Received::Message(message) = controller.on_receive(room) {
                        prop_assert!(message.len() <= room && Kind::of(&message).is_ok());
                        if host.wants_receive() {
                            host.on_receive(&message);
                        }
                    }
                }
                Step::Timeout => controller.on_timeout(),
            }
            prop_assert_eq!(controller.authenticated(), None);
        }
    }

    #[test]
    fn no_bytes_satisfy_a_host(message in bytes(), at in 0..2) {
        let pair = Pair::quick();
        let (mut host, mut controller, mut count) = (pair.host(), pair.controller(), 0);
        let outcome = run(&mut host, &mut controller, |kind, original| {
            if matches!(kind, Kind::Challenge | Kind::Success1) {
                if count == at {
                    original.clone_from(&message);
                    // The helper looks at the kind of what follows, so a made-up message may not be cut.
                    original.resize(original.len().max(8), 0);
                }
                count += 1;
            }
        });
        prop_assert!(outcome.host.is_err() && outcome.controller.is_none());
    }

    #[test]
    fn messages_are_read_as_they_were_written(
        (hash, group) in ids(),
        transaction: u16,
        sequence in 1..u32::MAX,
        is_bidirectional: bool,
        byte: u8,
    ) {
        let (digest, public) = (vec![byte; hash.digest_bytes()], vec![byte; group.public_bytes()]);
        let challenge =
            Challenge { transaction, hash, group, sequence, challenge: digest.clone(), public: public.clone() };
        prop_assert_eq!(Challenge::read(&challenge.to_bytes(), transaction), Ok(challenge));
        let own = is_bidirectional.then(|| (digest.clone(), sequence));
        let reply = Reply { transaction, response: digest.clone(), challenge: own, public };
        prop_assert!(reply.to_bytes().len() <= MESSAGE_BYTES_MAX);
        prop_assert_eq!(Reply::read(&reply.to_bytes(), transaction, hash, group), Ok(reply));
        let success = Success1 { transaction, response: is_bidirectional.then_some(digest) };
        prop_assert_eq!(Success1::read(&success.to_bytes(hash), transaction, hash), Ok(success));
        let negotiate = Negotiate { transaction, secure_channel: SecureChannel::NewTlsPsk, hashes: vec![hash], groups: Group::ALL.to_vec() };
        prop_assert_eq!(Negotiate::read(&negotiate.to_bytes(), transaction), Ok(negotiate));
    }
}
