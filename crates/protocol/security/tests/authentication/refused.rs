//! Messages that the controller must refuse, with their reasons.

use nvlane_security::controller::Received;
use nvlane_security::group::Group;
use nvlane_security::hash::HashFunction;
use nvlane_security::host::HostFailure;
use nvlane_security::message::{Kind, Reason};

use crate::exchange::{Pair, controller_fresh, failure, receive, run, send};

/// Sends a Negotiate with changes and returns the controller's reason to refuse it.
fn negotiate_fails(change: impl Fn(&mut Vec<u8>)) -> Option<Reason> {
    let pair = Pair::quick();
    let mut negotiate = pair.host().next_send().expect("a Negotiate");
    change(&mut negotiate);
    let mut controller = pair.controller();
    send(&mut controller, &negotiate);
    let answer = receive(&mut controller);
    assert_eq!(controller.authenticated(), None);
    failure(&answer)
}

/// Runs a transaction with changes to messages of one kind; returns the controller's reason to refuse it.
fn fails(pair: &Pair, kind: Kind, change: impl Fn(&mut Vec<u8>)) -> Option<Reason> {
    let mut controller = pair.controller();
    let outcome = run(&mut pair.host(), &mut controller, |of, message| {
        if of == kind {
            change(message);
        }
    });
    assert_eq!((outcome.controller, outcome.host.is_ok()), (None, false), "{kind}");
    controller.failure()
}

/// hostile A4 hostile A5 hostile A6
#[test]
fn a_negotiate_is_read_strictly() {
    for length in [0, 1, 5, 6, 8, 40, 71] {
        assert_eq!(negotiate_fails(|message| message.truncate(length)), Some(Reason::Payload), "{length}");
    }
    for (at, value, reason) in [
        (7, 0, Reason::Protocol),
        (7, 2, Reason::Payload),
        (7, 255, Reason::Payload),
        (8, 9, Reason::Protocol),
        (10, 31, Reason::Payload),
        (10, 255, Reason::Payload),
        (11, 31, Reason::Payload),
        (11, 255, Reason::Payload),
        (10, 0, Reason::Hash),
        (12, 4, Reason::Hash),
        (11, 0, Reason::Group),
        (42, 6, Reason::Group),
        (6, 1, Reason::SecureChannel),
        (6, 2, Reason::SecureChannel),
        (6, 3, Reason::SecureChannel),
        (6, 255, Reason::SecureChannel),
        (0, 1, Reason::Message),
        (1, 9, Reason::Message),
    ] {
        assert_eq!(negotiate_fails(|message| message[at] = value), Some(reason), "byte {at} is {value}");
    }
    // Repeated and unknown identifiers, more bytes, and a second protocol do no harm.
    assert_eq!(negotiate_fails(|message| message[10..16].copy_from_slice(&[4, 1, 9, 1, 1, 255])), None);
    assert_eq!(negotiate_fails(|message| message.resize(100, 0xEE)), None);
    let second = |message: &mut Vec<u8>| {
        let descriptor = message[8..72].to_vec();
        message[7] = 2;
        message[8] = 0xE0;
        message.extend_from_slice(&descriptor);
    };
    assert_eq!(negotiate_fails(second), None);
}

/// hostile A7 hostile A9
#[test]
fn a_reply_is_read_strictly() {
    for group in [Group::Null, Group::Ffdhe2048] {
        let pair = Pair::new(HashFunction::Sha384, group, true, None);
        for (what, change) in [
            ("a byte short", (|reply: &mut Vec<u8>| reply.truncate(reply.len() - 1)) as fn(&mut Vec<u8>)),
            ("8 bytes", |reply| reply.truncate(8)),
            ("15 bytes", |reply| reply.truncate(15)),
            ("half a response", |reply| reply.truncate(40)),
            ("a byte long", |reply| reply.push(0)),
            ("HL 0", |reply| reply[6] = 0),
            ("HL of another function", |reply| reply[6] = 32),
            ("another DHVLEN", |reply| reply[10] ^= 4),
            ("DHVLEN FFFFh", |reply| reply[10..12].fill(255)),
            ("CVALID 2", |reply| reply[8] = 2),
            ("CVALID 255", |reply| reply[8] = 255),
            ("no sequence number", |reply| reply[12..16].fill(0)),
            ("another transaction", |reply| reply[4] ^= 1),
        ] {
            assert_eq!(fails(&pair, Kind::Reply, change), Some(Reason::Payload), "{what}, {group}");
        }
    }
}

/// hostile A8
#[test]
fn a_public_value_that_reveals_the_secret_is_refused() {
    let pair = Pair::new(HashFunction::Sha256, Group::Ffdhe2048, false, None);
    for value in [0, 1] {
        let change = |reply: &mut Vec<u8>| {
            reply[80..].fill(0);
            reply[335] = value;
        };
        assert_eq!(fails(&pair, Kind::Reply, change), Some(Reason::Payload), "{value}");
    }
    assert_eq!(fails(&pair, Kind::Reply, |reply| reply[80..].fill(0xFF)), Some(Reason::Payload));
    // Another value in range: the two sides have different session keys.
    assert_eq!(fails(&pair, Kind::Reply, |reply| reply[335] ^= 2), Some(Reason::Failed));
}

/// hostile A9
#[test]
fn any_changed_bit_of_a_response_is_noticed() {
    let pair = Pair::quick();
    for at in 0..32 * 8 {
        let change = |reply: &mut Vec<u8>| reply[16 + at / 8] ^= 1 << (at % 8);
        assert_eq!(fails(&pair, Kind::Reply, change), Some(Reason::Failed), "bit {at}");
    }
}

/// What a response covers: whatever of it changes, the other side refuses the response.
#[test]
fn a_response_covers_challenge_sequence_transaction_and_names() {
    let pair = Pair::quick();
    // The host responds to what the controller did not say.
    for at in [12, 13, 14, 15, 16, 47] {
        let changed = fails(&pair, Kind::Challenge, |challenge| challenge[at] ^= 1);
        assert_eq!(changed, Some(Reason::Failed), "byte {at} of the challenge");
    }
    // The controller responds to what the host did not say: the host refuses, and says so.
    for at in [12, 48, 79] {
        let changed = fails(&pair, Kind::Reply, |reply| reply[at] ^= 1);
        assert_eq!(changed, Some(Reason::Failed), "byte {at} of the reply");
    }
    // A transaction that a third party renumbers on both ways.
    let mut controller = pair.controller();
    let outcome = run(&mut pair.host(), &mut controller, |kind, message| {
        if !matches!(kind, Kind::Failure1 | Kind::Failure2) {
            message[4] ^= 0x55;
        }
    });
    assert!(outcome.host.is_err() && controller.failure() == Some(Reason::Failed));
    for (host, subsystem) in [
        ("nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555556", None),
        ("NQN.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555", None),
        ("", Some("nqn.2016-06.io.nvlane:sub2")),
    ] {
        // hostile A17
        let mut other = Pair::quick();
        match subsystem {
            None => other.controller.names.host = host.parse().expect("a name"),
            Some(name) => other.controller.names.subsystem = name.parse().expect("a name"),
        }
        let outcome = run(&mut other.host(), &mut other.controller(), |_, _| ());
        assert_eq!((outcome.host.is_ok(), outcome.controller), (false, None), "{host} {subsystem:?}");
        // The host's response alone, too.
        other.host.controller = None;
        let outcome = run(&mut other.host(), &mut other.controller(), |_, _| ());
        assert_eq!((outcome.host.is_ok(), outcome.controller), (false, None), "{host} {subsystem:?}");
    }
}

/// hostile A15
#[test]
fn a_reply_of_another_transaction_is_refused() {
    let pair = Pair::quick();
    let replayed = run(&mut pair.host(), &mut pair.controller(), |_, _| ()).messages;
    let mut controller = pair.controller();
    controller.on_send(&replayed[0], crate::exchange::fresh(0x11, 0, 9));
    assert_ne!(receive(&mut controller)[16..48], replayed[1][16..48], "the challenge is another");
    send(&mut controller, &replayed[2]);
    assert_eq!(failure(&receive(&mut controller)), Some(Reason::Failed));
    assert_eq!(controller.authenticated(), None);
}

/// hostile A16
#[test]
fn a_reflected_challenge_is_refused() {
    let pair = Pair::quick();
    let mut c1 = Vec::new();
    let mut controller = pair.controller();
    let outcome = run(&mut pair.host(), &mut controller, |kind, message| match kind {
        Kind::Challenge => c1 = message[16..48].to_vec(),
        Kind::Reply => message[48..80].copy_from_slice(&c1),
        _ => (),
    });
    // It is the controller that refuses: an answer would be that to a question of its own.
    assert_eq!((outcome.controller, outcome.host), (None, Err(HostFailure::Refused(Reason::Failed))));
}

/// hostile A11
#[test]
fn a_message_is_kept_until_there_is_room_for_it() {
    let pair = Pair::quick();
    let (mut host, mut controller) = (pair.host(), pair.controller());
    controller.on_send(&host.next_send().expect("a Negotiate"), controller_fresh());
    for room in [0, 1, 8, 15, 16, 47] {
        assert_eq!(controller.on_receive(room), Received::TooShort, "{room}");
    }
    let Received::Message(challenge) = controller.on_receive(48) else { panic!("there is room") };
    host.on_receive(&challenge);
    controller.on_send(&host.next_send().expect("a Reply"), controller_fresh());
    assert_eq!(controller.on_receive(47), Received::TooShort);
    assert_eq!(controller.authenticated(), None, "the host does not know yet");
    let Received::Message(success) = controller.on_receive(48) else { panic!("there is room") };
    host.on_receive(&success);
    controller.on_send(&host.next_send().expect("a Success2"), controller_fresh());
    assert!(controller.authenticated().is_some());
    // A failure needs eight bytes.
    controller.on_send(&[], controller_fresh());
    assert_eq!(controller.on_receive(7), Received::TooShort);
    assert!(matches!(controller.on_receive(8), Received::Message(_)));
}
