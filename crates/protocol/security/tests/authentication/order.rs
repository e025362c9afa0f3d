//! Messages in the wrong order, results that come too late, and transactions after the first.

use nvlane_security::controller::{ControllerAuthentication, Received};
use nvlane_security::group::Group;
use nvlane_security::hash::HashFunction;
use nvlane_security::message::{Kind, MESSAGE_BYTES_MAX, Reason};

use crate::exchange::{Pair, controller_fresh, failure, receive, run, secret, send};

/// A controller in each of its states, with messages of a transaction that succeeds elsewhere.
fn states(pair: &Pair) -> Vec<(&'static str, ControllerAuthentication, Option<Kind>)> {
    let messages = run(&mut pair.host(), &mut pair.controller(), |_, _| ()).messages;
    let reached = |step: usize| {
        let mut controller = pair.controller();
        for (at, message) in messages.iter().take(step).enumerate() {
            if at % 2 == 0 { send(&mut controller, message) } else { drop(receive(&mut controller)) }
        }
        controller
    };
    let mut failing = reached(2);
    send(&mut failing, &[0xEE; 16]);
    let mut failed = reached(2);
    send(&mut failed, &[0xEE; 16]);
    receive(&mut failed);
    vec![
        ("first", reached(0), Some(Kind::Negotiate)),
        ("negotiated", reached(1), None),
        ("challenged", reached(2), Some(Kind::Reply)),
        ("replied", reached(3), None),
        ("succeeding", reached(4), Some(Kind::Success2)),
        ("failing", failing, None),
        ("failed", failed, None),
    ]
}

/// hostile A10
#[test]
fn a_message_in_the_wrong_state_fails_and_authenticates_nobody() {
    let pair = Pair::quick();
    let valid = run(&mut pair.host(), &mut pair.controller(), |_, _| ()).messages;
    let mut messages = valid.clone();
    messages.push(nvlane_security::message::failure(Kind::Failure1, 7, Reason::Failed));
    messages.push(nvlane_security::message::failure(Kind::Failure2, 7, Reason::Failed));
    messages.push([&[9, 0x99, 0, 0, 7, 0][..], &[0; 58]].concat());
    let state_count = states(&pair).len();
    for at in 0..state_count {
        for message in &messages {
            let (state, mut controller, expected) = states(&pair).swap_remove(at);
            let kind = Kind::of(message).ok().map(|(kind, _)| kind);
            if kind.is_some() && kind == expected {
                continue;
            }
            send(&mut controller, message);
            assert_eq!(
                controller.failure(),
                Some(Reason::Failed)
                    .filter(|_| {
                        // The host's own refusal carries its own reason.
                        state == "succeeding" && kind == Some(Kind::Failure2)
                    })
                    .or(Some(Reason::Message)),
                "{kind:?} when {state}"
            );
            assert!(failure(&receive(&mut controller)).is_some(), "{kind:?} when {state}");
            assert_eq!(controller.authenticated(), None, "{kind:?} when {state}");
            assert!(controller.is_over(), "{kind:?} when {state}");
            // Nothing revives it: not even the rest of a transaction that is right.
            for message in valid.iter().step_by(2) {
                send(&mut controller, message);
                let _ = controller.on_receive(MESSAGE_BYTES_MAX);
            }
            assert_eq!(controller.authenticated(), None, "{kind:?} when {state}");
        }
    }
}

/// hostile A10
#[test]
fn a_receive_in_the_wrong_state_fails() {
    let pair = Pair::quick();
    for (state, mut controller, expected) in states(&pair) {
        let message = receive(&mut controller);
        if expected.is_some() || state == "failed" {
            assert_eq!(failure(&message), Some(Reason::Message), "{state}");
        }
        assert_eq!(controller.authenticated(), None, "{state}");
    }
}

#[test]
fn a_response_is_accepted_once() {
    let mut pair = Pair::quick();
    pair.host.controller = None;
    let mut controller = pair.controller();
    let messages = run(&mut pair.host(), &mut controller, |_, _| ()).messages;
    assert!(controller.authenticated().is_some());
    send(&mut controller, &messages[2]);
    assert_eq!(failure(&receive(&mut controller)), Some(Reason::Message));
}

#[test]
fn two_transactions_have_different_challenges_and_public_values() {
    let pair = Pair::new(HashFunction::Sha256, Group::Ffdhe2048, false, None);
    let negotiate = pair.host().next_send().expect("a Negotiate");
    let challenge = |first: u8| {
        let fresh = crate::exchange::fresh(first, first, u32::from(first));
        let mut controller = pair.controller();
        controller.on_send(&negotiate, fresh);
        let exponentiation = controller.next_exponentiation().expect("a group");
        controller.on_exponentiated(exponentiation.run());
        receive(&mut controller)
    };
    let (one, two) = (challenge(1), challenge(2));
    for (what, range) in [("S1", 12..16), ("C1", 16..48), ("public value", 48..304)] {
        assert_ne!(one[range.clone()], two[range], "{what}");
    }
}

#[test]
fn a_queue_authenticates_again_and_a_failure_then_changes_nothing() {
    let pair = Pair::quick();
    let mut controller = pair.controller();
    for _ in 0..3 {
        assert!(run(&mut pair.host(), &mut controller, |_, _| ()).host.is_ok());
        assert!(!controller.is_running());
    }
    let mut wrong = pair.clone();
    wrong.host.host = secret(9, None);
    let outcome = run(&mut wrong.host(), &mut controller, |_, _| ());
    assert!(outcome.host.is_err() && outcome.controller.is_some());
    assert!(!controller.is_over() && !controller.is_running());
    assert_eq!(controller.failure(), Some(Reason::Failed));
    assert!(run(&mut pair.host(), &mut controller, |_, _| ()).host.is_ok());
    assert_eq!(controller.failure(), None);
}

/// hostile A14
#[test]
fn a_transaction_that_takes_too_long_ends() {
    let pair = Pair::quick();
    for (state, mut controller, _) in states(&pair) {
        let was_running = controller.is_running();
        controller.on_timeout();
        assert_eq!(controller.is_over(), was_running || state == "failed", "{state}");
        assert!(!controller.is_running() && controller.authenticated().is_none(), "{state}");
    }
    let mut controller = pair.controller();
    assert!(run(&mut pair.host(), &mut controller, |_, _| ()).host.is_ok());
    send(&mut controller, &pair.host().next_send().expect("a Negotiate"));
    controller.on_timeout();
    assert!(!controller.is_over() && !controller.is_running() && controller.authenticated().is_some());
}

#[test]
fn the_result_of_an_abandoned_exponentiation_is_ignored() {
    let pair = Pair::new(HashFunction::Sha256, Group::Ffdhe2048, false, None);
    let mut controller = pair.controller();
    // An authenticated queue begins again, gives up, and begins once more.
    let negotiate = pair.host().next_send().expect("a Negotiate");
    assert!(run(&mut pair.host(), &mut controller, |_, _| ()).host.is_ok());
    controller.on_send(&negotiate, controller_fresh());
    let late = controller.next_exponentiation().expect("a group");
    controller.on_timeout();
    controller.on_send(&negotiate, controller_fresh());
    let current = controller.next_exponentiation().expect("a group");
    controller.on_exponentiated(late.run());
    assert_eq!(controller.on_receive(MESSAGE_BYTES_MAX), Received::Pending);
    assert!(controller.next_exponentiation().is_none());
    // So does a message that ends the transaction.
    controller.on_send(&negotiate, controller_fresh());
    controller.on_exponentiated(current.run());
    assert_eq!(failure(&receive(&mut controller)), Some(Reason::Message));
}
