//! Secure channel concatenation: who may ask for it, and what makes both ends refuse it. wire §22.3

use nvlane_security::group::Group;
use nvlane_security::hash::HashFunction;
use nvlane_security::host::HostFailure;
use nvlane_security::message::{Kind, Reason};
use nvlane_security::secure_channel::SecureChannel;

use crate::exchange::{Pair, run};

const ALL: [SecureChannel; 3] = [SecureChannel::None, SecureChannel::NewTlsPsk, SecureChannel::ReplaceTlsPsk];

/// A pair whose host asks for one channel on a queue that permits another.
fn pair(asked: SecureChannel, permitted: SecureChannel) -> Pair {
    let mut pair = Pair::new(HashFunction::Sha256, Group::Ffdhe2048, true, None);
    (pair.host.secure_channel, pair.controller.secure_channel) = (asked, permitted);
    pair
}

fn new() -> Pair {
    pair(SecureChannel::NewTlsPsk, SecureChannel::NewTlsPsk)
}

/// hostile A6
#[test]
fn only_what_the_queue_permits_is_accepted() {
    for asked in ALL {
        for permitted in ALL {
            let pair = pair(asked, permitted);
            let (mut host, mut controller) = (pair.host(), pair.controller());
            let outcome = run(&mut host, &mut controller, |_, _| ());
            let is_accepted = asked == SecureChannel::None || asked == permitted;
            assert_eq!(outcome.host.is_ok(), is_accepted, "{asked:?} {permitted:?}");
            let generates_key = is_accepted && asked.generates_key();
            assert_eq!(controller.take_generated().is_some(), generates_key, "{asked:?} {permitted:?}");
            assert_eq!(host.take_generated().is_some(), generates_key, "{asked:?} {permitted:?}");
            if !is_accepted {
                assert_eq!(outcome.host, Err(HostFailure::Refused(Reason::SecureChannel)));
            }
        }
    }
}

/// hostile A6
#[test]
fn a_queue_that_must_generate_a_key_authenticates_in_no_other_way() {
    for asked in ALL {
        let pair = pair(asked, SecureChannel::NewTlsPsk);
        let mut controller = pair.controller().with_secure_channel_required();
        let outcome = run(&mut pair.host(), &mut controller, |_, _| ());
        if asked == SecureChannel::NewTlsPsk {
            assert!(outcome.host.is_ok() && controller.take_generated().is_some());
            // Nor does it later.
            let again = self::pair(SecureChannel::None, SecureChannel::NewTlsPsk);
            let outcome = run(&mut again.host(), &mut controller, |_, _| ());
            assert_eq!(outcome.host, Err(HostFailure::Refused(Reason::SecureChannel)));
            assert!(controller.authenticated().is_some(), "it stays authenticated");
        } else {
            assert_eq!(outcome.host, Err(HostFailure::Refused(Reason::SecureChannel)), "{asked:?}");
            assert!(controller.authenticated().is_none() && controller.take_generated().is_none());
        }
    }
}

/// hostile A6
#[test]
fn a_key_needs_a_group_and_a_hash_function_of_tls() {
    for (hashes, groups, expected) in [
        (&[1, 2, 3][..], &[0, 1, 2][..], Ok((HashFunction::Sha256, Group::Ffdhe2048))),
        (&[2, 3], &[0, 3], Ok((HashFunction::Sha384, Group::Ffdhe4096))),
        (&[1], &[0], Err(Reason::SecureChannel)),
        (&[3], &[1], Err(Reason::Hash)),
        (&[1], &[], Err(Reason::Group)),
    ] {
        let pair = new();
        let (mut host, mut controller) = (pair.host(), pair.controller());
        let mut chosen = None;
        let outcome = run(&mut host, &mut controller, |kind, message| match kind {
            Kind::Negotiate => {
                message[10..72].fill(0);
                message[10] = u8::try_from(hashes.len()).expect("few");
                message[11] = u8::try_from(groups.len()).expect("few");
                message[12..12 + hashes.len()].copy_from_slice(hashes);
                message[42..42 + groups.len()].copy_from_slice(groups);
            }
            Kind::Challenge => {
                chosen = HashFunction::from_id(message[8]).zip(Group::from_id(message[9]));
            }
            _ => {}
        });
        match expected {
            Ok(expected) => assert_eq!(chosen, Some(expected)),
            Err(reason) => assert_eq!(outcome.host, Err(HostFailure::Refused(reason))),
        }
    }
}

#[test]
fn a_host_offers_only_what_a_key_can_be_made_with() {
    let mut pair = new();
    pair.host.hashes = HashFunction::ALL.to_vec();
    pair.host.groups = Group::ALL.to_vec();
    let negotiate = pair.host().next_send().expect("a Negotiate");
    assert_eq!((negotiate[6], negotiate[10], negotiate[11]), (2, 2, 5));
    assert_eq!((&negotiate[12..15], &negotiate[42..48]), (&[1, 2, 0][..], &[1, 2, 3, 4, 5, 0][..]));
}

/// A controller that chooses the null group, or another function, all the same. hostile H19
#[test]
fn a_host_refuses_what_no_key_can_be_made_with() {
    for (bytes, reason) in [([32, 0, 1, 0, 0, 0], Reason::Group), ([64, 0, 3, 1, 0, 1], Reason::Hash)] {
        let pair = new();
        let (mut host, mut controller) = (pair.host(), pair.controller());
        let outcome = run(&mut host, &mut controller, |kind, message| {
            if kind == Kind::Challenge {
                message[6..12].copy_from_slice(&bytes);
                message.resize(16 + 64 + 256, 7);
            }
        });
        assert_eq!(outcome.host, Err(HostFailure::Refuses(reason)));
        assert!(host.take_generated().is_none() && controller.take_generated().is_none());
    }
}

/// Without the controller's secret: C2 comes with S2 = 0, as Linux sends it.
#[test]
fn a_host_without_the_controller_s_secret_generates_a_key_too() {
    let mut pair = new();
    pair.host.controller = None;
    let (mut host, mut controller) = (pair.host(), pair.controller());
    let outcome = run(&mut host, &mut controller, |_, _| ());
    let reply = &outcome.messages[2];
    assert_eq!((reply[8], &reply[12..16]), (1, &[0; 4][..]));
    assert_eq!((outcome.messages.len(), outcome.messages[3][8]), (4, 0), "no response, and no Success2");
    assert!(!outcome.host.expect("authenticated").is_bidirectional);
    let [one, other] = [host.take_generated(), controller.take_generated()].map(|key| key.expect("a key"));
    assert_eq!(one.key().expose(), other.key().expose());
}

/// hostile A7
#[test]
fn a_reply_without_c2_generates_no_key() {
    let mut pair = new();
    for is_bidirectional in [true, false] {
        if !is_bidirectional {
            pair.host.controller = None;
        }
        let (mut host, mut controller) = (pair.host(), pair.controller());
        let outcome = run(&mut host, &mut controller, |kind, message| {
            if kind == Kind::Reply {
                message[8] = 0;
            }
        });
        assert_eq!(outcome.host, Err(HostFailure::Refused(Reason::Payload)));
        assert!(host.take_generated().is_none() && controller.take_generated().is_none());
    }
}

/// The value of SC_C is part of both responses: who changes it on the way ends the transaction.
#[test]
fn responses_cover_the_channel_that_was_asked_for() {
    for (asked, seen) in [(0, 2), (2, 0)] {
        let mut pair = new();
        pair.host.secure_channel = SecureChannel::from_code(asked).expect("a value with a meaning");
        let (mut host, mut controller) = (pair.host(), pair.controller());
        let outcome = run(&mut host, &mut controller, |kind, message| {
            if kind == Kind::Negotiate {
                message[6] = seen;
            }
        });
        assert_eq!(outcome.host, Err(HostFailure::Refused(Reason::Failed)), "{asked} {seen}");
        assert!(host.take_generated().is_none() && controller.take_generated().is_none());
    }
}

/// A key counts only once both sides have proved what they must.
#[test]
fn a_transaction_that_fails_generates_no_key() {
    for kind in [Kind::Reply, Kind::Success1] {
        let pair = new();
        let (mut host, mut controller) = (pair.host(), pair.controller());
        let outcome = run(&mut host, &mut controller, |of, message| {
            if of == kind {
                message[16] ^= 1;
            }
        });
        assert!(outcome.host.is_err() && outcome.controller.is_none());
        assert!(host.take_generated().is_none() && controller.take_generated().is_none(), "{kind}");
    }
}
