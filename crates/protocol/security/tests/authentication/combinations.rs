//! All 144 combinations of hash function, group, direction and secret form.

use nvlane_security::controller::Authenticated;
use nvlane_security::group::Group;
use nvlane_security::hash::HashFunction;
use nvlane_security::host::HostFailure;
use nvlane_security::message::Reason;
use nvlane_security::secure_channel::SecureChannel;

use crate::exchange::{Pair, run, secret};

/// wire §22.4
#[test]
fn every_combination_authenticates_and_a_wrong_secret_never_does() {
    let mut count = 0;
    let forms = [None].into_iter().chain(HashFunction::ALL.map(Some));
    for (hash, group) in HashFunction::ALL.into_iter().flat_map(|hash| Group::ALL.map(|group| (hash, group)))
    {
        for (is_bidirectional, form) in
            [false, true].into_iter().flat_map(|both| forms.clone().map(move |form| (both, form)))
        {
            count += 1;
            let what = format!("{hash} {group} {is_bidirectional} {form:?}");
            let pair = Pair::new(hash, group, is_bidirectional, form);
            let outcome = run(&mut pair.host(), &mut pair.controller(), |_, _| ());
            let secure_channel = SecureChannel::None;
            let expected =
                Authenticated { hash, group, is_bidirectional, by_former_secret: false, secure_channel };
            assert_eq!((outcome.host, outcome.controller), (Ok(expected), Some(expected)), "{what}");
            assert_eq!(outcome.messages.len(), if is_bidirectional { 5 } else { 4 }, "{what}");

            // Exponentiations of the largest groups take long, and wrong secrets fail behind them.
            if group > Group::Ffdhe3072 {
                continue;
            }
            let mut wrong = pair.clone();
            wrong.host.host = secret(0x02, form);
            let outcome = run(&mut wrong.host(), &mut wrong.controller(), |_, _| ());
            assert_eq!(outcome.host, Err(HostFailure::Refused(Reason::Failed)), "{what}");
            assert_eq!(outcome.controller, None, "{what}");
            if is_bidirectional {
                let mut wrong = pair;
                wrong.controller.controller = Some(secret(0x82, form));
                let outcome = run(&mut wrong.host(), &mut wrong.controller(), |_, _| ());
                assert_eq!(outcome.host, Err(HostFailure::Refuses(Reason::Failed)), "{what}");
                assert_eq!(outcome.controller, None, "{what}");
            }
        }
    }
    assert_eq!(count, 144);
}

#[test]
fn the_controller_s_first_choice_that_the_host_offers_is_used() {
    let mut pair = Pair::quick();
    pair.host.hashes = HashFunction::ALL.to_vec();
    pair.host.groups = vec![Group::Null, Group::Ffdhe2048];
    pair.controller.hashes = vec![HashFunction::Sha384, HashFunction::Sha256];
    pair.controller.groups = vec![Group::Ffdhe8192, Group::Ffdhe2048, Group::Null];
    let authenticated =
        run(&mut pair.host(), &mut pair.controller(), |_, _| ()).controller.expect("authenticated");
    assert_eq!((authenticated.hash, authenticated.group), (HashFunction::Sha384, Group::Ffdhe2048));
}

#[test]
fn a_host_that_asks_a_controller_without_a_key_is_refused() {
    let mut pair = Pair::quick();
    pair.controller.controller = None;
    let outcome = run(&mut pair.host(), &mut pair.controller(), |_, _| ());
    assert_eq!((outcome.host, outcome.controller), (Err(HostFailure::Refused(Reason::Failed)), None));
}

#[test]
fn a_host_that_does_not_ask_does_not_need_the_controller_s_key() {
    let mut pair = Pair::quick();
    pair.host.controller = None;
    let outcome = run(&mut pair.host(), &mut pair.controller(), |_, _| ());
    assert!(outcome.host.is_ok_and(|authenticated| !authenticated.is_bidirectional));
    assert!(outcome.controller.is_some_and(|authenticated| !authenticated.is_bidirectional));
}

#[test]
fn while_secrets_change_those_of_before_are_accepted_together() {
    let (old, mut new) = (Pair::quick(), Pair::quick());
    (new.host.host, new.host.controller) = (secret(0x02, None), Some(secret(0x82, None)));
    new.controller.host = new.host.host.clone();
    new.controller.controller = new.host.controller.clone();
    new.controller.earlier = vec![(old.controller.host.clone(), old.controller.controller.clone())];
    for pair in [&old, &new] {
        let outcome = run(&mut pair.host(), &mut new.controller(), |_, _| ());
        assert!(outcome.host.is_ok_and(|authenticated| authenticated.is_bidirectional));
        let is_present = new.controller.host.is_same(&pair.host.host);
        assert_eq!(outcome.controller.map(|seen| seen.by_former_secret), Some(!is_present));
    }
    // A controller that knows the new secret of the host shows its new one.
    new.host.controller = old.host.controller.clone();
    let outcome = run(&mut new.host(), &mut new.controller(), |_, _| ());
    assert_eq!((outcome.host, outcome.controller), (Err(HostFailure::Refuses(Reason::Failed)), None));
    // Afterwards only the new ones are accepted.
    new.controller.earlier.clear();
    let outcome = run(&mut old.host(), &mut new.controller(), |_, _| ());
    assert_eq!(outcome.controller, None);
}
