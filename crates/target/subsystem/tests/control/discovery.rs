//! The discovery service towards several hosts. wire §20, §28.26

use std::collections::BTreeSet;

use nvlane_subsystem::discovery::Referral;
use nvlane_subsystem::lane_id::CommandId;
use nvlane_subsystem::message::Step;
use nvlane_subsystem::subsystem::Access;
use wire::async_event::{AsyncEvent, AsyncEvents};
use wire::discovery::{DiscoveryLog, SubsystemType};
use wire::feature::Fid;
use wire::id::Nsid;
use wire::log::{GetLogPage, Lid};
use wire::nqn::Nqn;
use wire::sgl::Sgl;
use wire::sqe::Sqe;

use crate::harness::{
    Association, DISKS, HOST, OTHER_HOST, SERVICE, Shape, Target, add_namespace, host, nqn, subsystem,
};

/// The generation and the names listed.
fn listed(target: &mut Target, association: &Association) -> (u64, Vec<Nqn>) {
    let sqe = Sqe::get_log_page(Lid::DISCOVERY, Nsid::NONE, 16 * 1024).with_data(Sgl::transport(16 * 1024));
    let page = target.data(association.admin, sqe);
    let log = DiscoveryLog::new(&page).unwrap();
    let nvm = log.entries.iter().filter(|entry| entry.subtype == SubsystemType::NVM);
    (log.header.genctr.get(), nvm.map(|entry| entry.subsystem().unwrap()).collect())
}

fn audience(target: &mut Target) -> [(Association, CommandId); 2] {
    target.listen(true, true);
    target.local = Some("127.0.0.1:4420".parse().unwrap());
    [HOST, OTHER_HOST].map(|name| {
        let association = target.ready(host(name), SERVICE, 0);
        let events = AsyncEvents::DISCOVERY.bits();
        target.demand(association.admin, Sqe::set_feature(Fid::ASYNC_EVENTS, Nsid::NONE, events));
        let event = target.send(association.admin, Sqe::async_event_request(), &[]);
        (association, event)
    })
}

#[test]
fn a_host_is_told_when_what_it_sees_has_changed_and_not_else() {
    let mut target = Target::new();
    let [(first, first_event), (second, second_event)] = audience(&mut target);
    let before = listed(&mut target, &first);
    assert_eq!(before.1, [nqn(DISKS)]);
    // Namespaces are not listed.
    target.apply(vec![add_namespace(9, Shape::blocks(512, 8))]);
    assert_eq!(listed(&mut target, &first), before);
    // A subsystem for one host only.
    let only = Access::Only(BTreeSet::from([nqn(OTHER_HOST).into()]));
    let theirs = nqn("nqn.2026-01.io.nvlane:theirs");
    target.apply(vec![Step::AddSubsystem(subsystem(theirs.as_str(), only))]);
    assert!(target.open.contains(&first_event));
    assert_eq!(target.answer(second_event).result, u64::from(AsyncEvent::DISCOVERY_CHANGE.bits()));
    assert_eq!(listed(&mut target, &first).1, [nqn(DISKS)]);
    let (generation, names) = listed(&mut target, &second);
    assert_eq!(names, [nqn(DISKS), theirs.clone()]);
    assert!(generation > before.0);
    // The other one is let in as well.
    target.apply(vec![Step::SetAccess(theirs.clone(), Access::Any)]);
    assert_eq!(target.answer(first_event).result, u64::from(AsyncEvent::DISCOVERY_CHANGE.bits()));
    assert_eq!(listed(&mut target, &first).1, [nqn(DISKS), theirs]);
    assert!(listed(&mut target, &first).0 > generation, "allow lists count as well");
}

/// A host reads the log in parts: all are of the log that the first one is of.
#[test]
fn parts_of_a_log_are_of_one_log_although_it_changes_meanwhile() {
    let mut target = Target::new();
    let [(first, _), _] = audience(&mut target);
    let part = |target: &mut Target, offset: u64, length: u32| {
        let command =
            GetLogPage { lid: Lid::DISCOVERY, offset, length_bytes: length.into(), ..GetLogPage::default() };
        target.data(first.admin, command.to_sqe(Nsid::NONE).with_data(Sgl::transport(length)))
    };
    let whole = part(&mut target, 0, 3072);
    assert_eq!(part(&mut target, 0, 1024), whole[..1024]);
    let nobody = Access::Only(BTreeSet::new());
    target.apply(vec![Step::SetAccess(nqn(DISKS), nobody)]);
    assert_eq!(part(&mut target, 1024, 1024), whole[1024..2048]);
    assert_eq!(part(&mut target, 2048, 1024), whole[2048..3072]);
    assert_ne!(part(&mut target, 0, 1024), whole[..1024], "from the beginning it is the new one");
}

#[test]
fn listeners_and_referrals_are_visible_changes() {
    let mut target = Target::new();
    let [(first, first_event), _] = audience(&mut target);
    let (generation, _) = listed(&mut target, &first);
    let referral = Referral { address: "192.0.2.7:8009".parse().unwrap(), nqn: Nqn::discovery() };
    target.apply(vec![Step::SetReferrals(vec![referral])]);
    target.answer(first_event);
    let event = target.send(first.admin, Sqe::async_event_request(), &[]);
    assert!(listed(&mut target, &first).0 > generation);
    target.listen(true, false);
    target.answer(event);
    assert_eq!(listed(&mut target, &first).1.len(), 2, "once per listener");
}

#[test]
fn the_unique_name_reaches_the_same_service() {
    let mut target = Target::new();
    target.listen(true, true);
    target.local = Some("127.0.0.1:4420".parse().unwrap());
    let known = target.ready(host(HOST), wire::nqn::DISCOVERY_NQN, 0);
    let unique = target.ready(host(HOST), SERVICE, 0);
    assert_eq!(listed(&mut target, &known), listed(&mut target, &unique));
    let state = target.state();
    assert_eq!(state.discovery_controllers.len(), 2);
    assert_eq!((state.discovery_nqn.as_str(), state.listeners.len()), (SERVICE, 1));
}
