//! Messages that the host must refuse.

use nvlane_security::group::Group;
use nvlane_security::hash::HashFunction;
use nvlane_security::host::HostFailure;
use nvlane_security::message::{Kind, Reason, failure};

use crate::exchange::{Pair, run};

/// Runs a transaction with changes to messages of one kind; returns the outcome of the host.
fn outcome(pair: &Pair, kind: Kind, change: impl Fn(&mut Vec<u8>)) -> Option<HostFailure> {
    let mut controller = pair.controller();
    let outcome = run(&mut pair.host(), &mut controller, |of, message| {
        if of == kind {
            change(message);
        }
    });
    assert_eq!(outcome.controller, None, "{kind}");
    outcome.host.err()
}

/// hostile H19
#[test]
fn a_challenge_that_was_not_asked_for_is_refused() {
    let pair = Pair::new(HashFunction::Sha256, Group::Ffdhe2048, true, None);
    for (what, change, reason) in [
        ("6 bytes", (|challenge: &mut Vec<u8>| challenge[6..].fill(0)) as fn(&mut Vec<u8>), Reason::Hash),
        ("HL 0", |challenge| challenge[6] = 0, Reason::Payload),
        ("HL 255", |challenge| challenge[6] = 255, Reason::Payload),
        ("an unknown hash", |challenge| challenge[8] = 77, Reason::Hash),
        ("another hash", |challenge| challenge[6..9].copy_from_slice(&[48, 0, 2]), Reason::Hash),
        ("an unknown group", |challenge| challenge[9] = 99, Reason::Group),
        ("no group", |challenge| challenge[9..12].fill(0), Reason::Group),
        ("another group", |challenge| challenge[9..12].copy_from_slice(&[2, 128, 1]), Reason::Group),
        ("a group without its value", |challenge| challenge[10..12].fill(0), Reason::Payload),
        ("a value of FFFFh bytes", |challenge| challenge[10..12].fill(255), Reason::Payload),
        ("public value 0", |challenge| challenge[48..].fill(0), Reason::Payload),
        ("public value p or above", |challenge| challenge[48..].fill(255), Reason::Payload),
        ("another transaction", |challenge| challenge[5] ^= 1, Reason::Payload),
        ("a success instead", |challenge| challenge[1] = 3, Reason::Message),
        ("no message", |challenge| challenge.fill(0xEE), Reason::Message),
    ] {
        assert_eq!(outcome(&pair, Kind::Challenge, change), Some(HostFailure::Refuses(reason)), "{what}");
    }
    let mut host = pair.host();
    host.next_send();
    host.on_receive(&[1, 1, 0, 0, 7]);
    host.next_send();
    assert_eq!(host.outcome(), Some(Err(HostFailure::Refuses(Reason::Payload))));
}

/// hostile H19
#[test]
fn a_controller_must_show_its_key_when_asked() {
    let pair = Pair::quick();
    for (what, change, reason) in [
        ("no response", (|success: &mut Vec<u8>| success[8] = 0) as fn(&mut Vec<u8>), Reason::Failed),
        ("RVALID 2", |success| success[8] = 2, Reason::Payload),
        ("HL 0", |success| success[6] = 0, Reason::Payload),
        ("HL of another function", |success| success[6] = 48, Reason::Payload),
        ("another response", |success| success[16] ^= 1, Reason::Failed),
        ("another end", |success| success[47] ^= 1, Reason::Failed),
        ("a challenge instead", |success| success[1] = 1, Reason::Message),
        ("another transaction", |success| success[4] ^= 1, Reason::Payload),
    ] {
        assert_eq!(outcome(&pair, Kind::Success1, change), Some(HostFailure::Refuses(reason)), "{what}");
    }
}

#[test]
fn a_response_that_was_not_asked_for_is_refused() {
    let mut pair = Pair::quick();
    pair.host.controller = None;
    let mut controller = pair.controller();
    let outcome = run(&mut pair.host(), &mut controller, |kind, message| {
        if kind == Kind::Success1 {
            message[8] = 1;
            message.resize(48, 0);
        }
    });
    assert_eq!(outcome.host, Err(HostFailure::Refuses(Reason::Payload)));
}

#[test]
fn a_challenge_that_equals_ours_is_refused() {
    // The host's own challenge, which it has not sent yet.
    let change =
        |challenge: &mut Vec<u8>| challenge[16..48].copy_from_slice(&crate::exchange::count_up(0x60, 32));
    assert_eq!(outcome(&Pair::quick(), Kind::Challenge, change), Some(HostFailure::Refuses(Reason::Failed)));
}

#[test]
fn the_controller_s_reason_is_passed_on() {
    for kind in [Kind::Challenge, Kind::Success1] {
        for reason in [Reason::Failed, Reason::Hash, Reason::Message] {
            let pair = Pair::quick();
            let told = outcome(&pair, kind, |message| *message = failure(Kind::Failure1, 7, reason));
            assert_eq!(told, Some(HostFailure::Refused(reason)), "{kind}");
        }
    }
    // A failure without a reason.
    let told = outcome(&Pair::quick(), Kind::Challenge, |message| {
        message.copy_from_slice(&[&[0, 0xF1][..], &[0; 46]].concat());
    });
    assert_eq!(told, Some(HostFailure::Refused(Reason::Failed)));
}
