//! Namespaces come, change and go while hosts are connected and reactors learn of it late.

use std::sync::Arc;

use nvlane_subsystem::message::{Message, OrderAnswer, OrderKind, ReactorMessage, Step};
use nvlane_subsystem::namespace_table::NamespaceEntry;
use nvlane_subsystem::step_error::StepError;
use nvlane_subsystem::subsystem::{Access, NamespaceId};
use wire::async_event::AsyncEvents;
use wire::feature::Fid;
use wire::id::Nsid;
use wire::identify::Cns;
use wire::identify::lists::read_nsid_list;
use wire::identify::namespace::IdentifyNamespace;
use wire::log::{GetLogPage, Lid};
use wire::sgl::Sgl;
use wire::sqe::Sqe;
use wire::status::Status;
use wire::uuid::Uuid;
use wire::zerocopy::FromBytes;

use crate::harness::{
    Association, DISKS, HOST, OTHER_HOST, Shape, Target, add_namespace, host, namespace, nqn, subsystem,
};

fn listed(target: &mut Target, association: &Association) -> Vec<u32> {
    let sqe = Sqe::identify(Cns::ACTIVE_NAMESPACES, Nsid::NONE).with_data(Sgl::transport(4096));
    let list = target.data(association.admin, sqe);
    read_nsid_list(&list).map(Nsid::get).collect()
}

fn changed(target: &mut Target, association: &Association) -> Vec<u32> {
    let command = GetLogPage { lid: Lid::CHANGED_NAMESPACES, length_bytes: 4096, ..GetLogPage::default() };
    let page = target.data(association.admin, command.to_sqe(Nsid::ALL).with_data(Sgl::transport(4096)));
    read_nsid_list(&page).map(Nsid::get).collect()
}

fn blocks(target: &mut Target, association: &Association, nsid: u32) -> u64 {
    let sqe = Sqe::identify(Cns::NAMESPACE, Nsid::new(nsid)).with_data(Sgl::transport(4096));
    IdentifyNamespace::read_from_bytes(&target.data(association.admin, sqe)).unwrap().ncap.get()
}

/// Two hosts with event requests.
fn audience(target: &mut Target) -> (Vec<Association>, Vec<nvlane_subsystem::lane_id::CommandId>) {
    let associations = vec![target.ready(host(HOST), DISKS, 1), target.ready(host(OTHER_HOST), DISKS, 1)];
    let mut events = Vec::new();
    for association in &associations {
        let wanted = AsyncEvents::NAMESPACE_ATTRIBUTE.bits();
        target.demand(association.admin, Sqe::set_feature(Fid::ASYNC_EVENTS, Nsid::NONE, wanted));
        events.push(target.send(association.admin, Sqe::async_event_request(), &[]));
    }
    (associations, events)
}

#[test]
fn a_new_namespace_is_shown_when_every_reactor_serves_it() {
    let mut target = Target::new();
    let (hosts, events) = audience(&mut target);
    target.habits.tables_are_taken = false;
    target.apply(vec![add_namespace(2, Shape::blocks(512, 64))]);
    target.take_table(0);
    assert_eq!(listed(&mut target, &hosts[0]), [1, 3], "reactor 1 does not know it");
    assert_eq!(blocks(&mut target, &hosts[0], 2), 0);
    assert!(events.iter().all(|event| target.open.contains(event)));
    target.take_table(1);
    for (association, event) in hosts.iter().zip(events) {
        assert_eq!(target.answer(event).status, Status::SUCCESS);
        assert_eq!(changed(&mut target, association), [2]);
        assert_eq!(listed(&mut target, association), [1, 2, 3]);
        assert_eq!(blocks(&mut target, association, 2), 64);
    }
}

#[test]
fn a_removed_namespace_is_hidden_at_once_and_closed_when_no_reactor_serves_it() {
    let mut target = Target::new();
    let (hosts, events) = audience(&mut target);
    target.habits.tables_are_taken = false;
    let receiver = target.apply(vec![Step::RemoveNamespace { subsystem: nqn(DISKS), nsid: Nsid::new(1) }]);
    assert_eq!(listed(&mut target, &hosts[1]), [3]);
    assert_eq!(blocks(&mut target, &hosts[1], 1), 0);
    target.take_table(1);
    assert!(receiver.try_recv().is_err(), "reactor 0 still uses it");
    assert!(target.open.contains(&events[0]));
    target.take_table(0);
    let Ok(OrderAnswer::Released(stores)) = receiver.try_recv() else { panic!("not released") };
    assert_eq!(stores.len(), 1);
    let store::Store::Blocks(blocks) = &stores[0] else { panic!("it has blocks") };
    assert_eq!(Arc::strong_count(blocks), 1, "nobody else holds it");
    assert_eq!(target.answer(events[0]).status, Status::SUCCESS);
    assert_eq!(changed(&mut target, &hosts[0]), [1]);
}

#[test]
fn versions_may_be_skipped_by_a_slow_reactor() {
    let mut target = Target::new();
    let (hosts, events) = audience(&mut target);
    target.habits.tables_are_taken = false;
    for nsid in [10, 11, 12] {
        target.apply(vec![add_namespace(nsid, Shape::blocks(512, 64))]);
    }
    target.take_table(0);
    assert_eq!(listed(&mut target, &hosts[0]), [1, 3]);
    // A reactor that claims to be ahead of everything, or is not there at all.
    target.control.on_table_in_use(7, u64::MAX);
    target.take_table(1);
    assert_eq!(listed(&mut target, &hosts[0]), [1, 3, 10, 11, 12]);
    assert_eq!(target.answer(events[0]).status, Status::SUCCESS);
    assert_eq!(changed(&mut target, &hosts[0]), [10, 11, 12], "told once, listed all");
}

#[test]
fn a_resized_namespace_is_told_to_every_host() {
    let mut target = Target::new();
    let (hosts, events) = audience(&mut target);
    let store = Shape::blocks(512, 64);
    target.apply(vec![add_namespace(2, store.clone())]);
    for (association, event) in hosts.iter().zip(events) {
        target.answer(event);
        changed(&mut target, association);
    }
    let events: Vec<_> =
        hosts.iter().map(|host| target.send(host.admin, Sqe::async_event_request(), &[])).collect();
    store.resize(512 * 128).unwrap();
    target.apply(vec![Step::StorageChanged {
        subsystem: nqn(DISKS),
        nsid: Nsid::new(2),
        storage: Some("shape:larger".into()),
    }]);
    for (association, event) in hosts.iter().zip(events) {
        assert_eq!(target.answer(event).status, Status::SUCCESS);
        assert_eq!(changed(&mut target, association), [2]);
        assert_eq!(blocks(&mut target, association, 2), 128);
    }
    assert_eq!(target.state().subsystems[0].namespaces[1].storage, "shape:larger");
}

#[test]
fn storage_that_moved_stays_the_same_namespace() {
    let mut target = Target::new();
    let (hosts, _) = audience(&mut target);
    target.habits.tables_are_taken = false;
    let mut moved = namespace(1, Shape::blocks(512, 99));
    moved.storage = "shape:moved".into();
    let replace = |namespace| Step::ReplaceNamespace { subsystem: nqn(DISKS), nsid: Nsid::new(1), namespace };
    let receiver = target.apply(vec![replace(moved.clone())]);
    assert_eq!(listed(&mut target, &hosts[0]), [1, 3], "never gone");
    target.take_table(0);
    target.take_table(1);
    assert!(matches!(receiver.try_recv(), Ok(OrderAnswer::Released(stores)) if stores.len() == 1));
    // The same storage under another identity is another namespace.
    moved.uuid = Uuid::from_bytes([0xAA; 16]);
    let receiver = target.apply(vec![replace(moved)]);
    assert_eq!(listed(&mut target, &hosts[0]), [3], "until every reactor serves the new one");
    target.take_table(0);
    target.take_table(1);
    assert_eq!(listed(&mut target, &hosts[0]), [1, 3]);
    assert!(receiver.try_recv().is_err(), "its storage is still in use");
}

/// What the last table calls each namespace's storage, by number, in each subsystem.
fn storage_names(target: &Target) -> Vec<Vec<(u32, NamespaceId)>> {
    let mut tables = target.messages.iter().rev().filter_map(|(_, message)| match message {
        Message::Reactor(ReactorMessage::Table(table)) => Some(table),
        _ => None,
    });
    let entries =
        |entries: &Vec<NamespaceEntry>| entries.iter().map(|entry| (entry.nsid.get(), entry.id)).collect();
    tables.next().expect("one was sent").subsystems.values().map(entries).collect()
}

/// Reactors go on with what they have attached: RAM of one reactor can be attached only once, keys in RAM would be
/// gone.
#[test]
fn storage_keeps_its_name_under_another_identity_and_in_another_subsystem() {
    let mut target = Target::new();
    target.habits.tables_are_taken = false;
    let store = Shape::blocks(512, 64);
    target.apply(vec![add_namespace(2, store.clone())]);
    let before = storage_names(&target);
    let mut renamed = namespace(2, store.clone());
    renamed.uuid = Uuid::from_bytes([0xAA; 16]);
    let replace = |namespace| Step::ReplaceNamespace { subsystem: nqn(DISKS), nsid: Nsid::new(2), namespace };
    target.apply(vec![replace(renamed)]);
    assert_eq!(storage_names(&target), before);
    let other = "nqn.2026-01.io.nvlane:other";
    let receiver = target.apply(vec![
        Step::RemoveNamespace { subsystem: nqn(DISKS), nsid: Nsid::new(2) },
        Step::AddSubsystem(subsystem(other, Access::Any)),
        Step::AddNamespace { subsystem: nqn(other), nsid: Nsid::new(5), namespace: namespace(5, store) },
    ]);
    let after = storage_names(&target);
    assert_eq!((after[0].len(), after[1][0].1), (2, before[0][1].1));
    target.take_table(0);
    target.take_table(1);
    assert!(receiver.try_recv().is_err(), "its storage is still in use");
    // Other storage in its place is not what they have attached.
    target.apply(vec![Step::ReplaceNamespace {
        subsystem: nqn(other),
        nsid: Nsid::new(5),
        namespace: namespace(5, Shape::blocks(512, 64)),
    }]);
    assert_ne!(storage_names(&target)[1], after[1]);
}

#[test]
fn the_table_has_what_lanes_need() {
    let mut target = Target::new();
    target.habits.tables_are_taken = false;
    target.apply(vec![Step::AddSubsystem(subsystem("nqn.2026-01.io.nvlane:empty", Access::Any))]);
    let tables: Vec<_> = target
        .messages
        .iter()
        .filter_map(|(reactor, message)| match message {
            Message::Reactor(ReactorMessage::Table(table)) => Some((*reactor, Arc::clone(table))),
            _ => None,
        })
        .collect();
    assert_eq!(tables.iter().map(|(reactor, _)| *reactor).collect::<Vec<_>>(), [0, 1]);
    let table = &tables[0].1;
    let shapes: Vec<Vec<u32>> = table
        .subsystems
        .values()
        .map(|entries| entries.iter().map(|entry| entry.nsid.get()).collect())
        .collect();
    assert_eq!(shapes, [vec![1, 3], vec![]]);
    assert_eq!(table.version, 2);
}

/// hostile inputs Q13
#[test]
fn removing_a_subsystem_ends_its_associations_and_lets_go_of_its_storage() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 1);
    let receiver = target.apply(vec![Step::RemoveSubsystem(nqn(DISKS))]);
    assert!(matches!(receiver.try_recv(), Ok(OrderAnswer::Released(stores)) if stores.len() == 2));
    assert!(target.state().subsystems.is_empty());
    let (_, answer) = target.connect(&association.queue(1));
    assert_eq!(answer.status, Status::CONNECT_INVALID_PARAMETERS.with_dnr());
    // The name may come again; nothing of the former one is left.
    target.apply(vec![Step::AddSubsystem(subsystem(DISKS, Access::Any))]);
    let association = target.ready(host(HOST), DISKS, 1);
    assert_eq!(listed(&mut target, &association), [0; 0]);
}

/// hostile inputs Q13
#[test]
fn an_admin_command_meets_a_subsystem_that_is_going() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 1);
    target.habits.lanes_end = false;
    target.apply(vec![Step::RemoveSubsystem(nqn(DISKS))]);
    let sqe = Sqe::identify(Cns::CONTROLLER, Nsid::NONE).with_data(Sgl::transport(4096));
    assert_eq!(target.ask(association.admin, sqe).status, Status::COMMAND_SEQUENCE_ERROR);
}

#[test]
fn a_step_that_cannot_be_leaves_the_others_in_place() {
    let mut target = Target::new();
    let elsewhere = nqn("nqn.2026-01.io.nvlane:elsewhere");
    let steps = vec![
        Step::RemoveNamespace { subsystem: nqn(DISKS), nsid: Nsid::new(9) },
        add_namespace(1, Shape::blocks(512, 8)),
        Step::AddSubsystem(subsystem(DISKS, Access::Any)),
        Step::RemoveSubsystem(elsewhere.clone()),
        Step::SetCntlids(elsewhere, 1..=2),
        Step::RemoveListener { tag: 77 },
        add_namespace(2, Shape::blocks(512, 8)),
    ];
    let receiver = target.order(OrderKind::Apply(steps));
    let Ok(OrderAnswer::Applied(outcomes)) = receiver.try_recv() else { panic!("not applied") };
    assert_eq!(
        outcomes,
        [
            Err(StepError::NoNamespace),
            Err(StepError::NamespaceExists),
            Err(StepError::SubsystemExists),
            Err(StepError::NoSubsystem),
            Err(StepError::NoSubsystem),
            Err(StepError::NoListener),
            Ok(0)
        ]
    );
    let association = target.ready(host(HOST), DISKS, 0);
    assert_eq!(listed(&mut target, &association), [1, 2, 3]);
}

#[test]
fn listeners_open_when_reactors_are_ready() {
    let mut target = Target::new();
    target.habits.tables_are_taken = false;
    let tag = target.listen(true, true);
    let is_open = |target: &Target| {
        target.messages.iter().any(
            |(reactor, message)| matches!(message, Message::Reactor(ReactorMessage::Listen(at, _)) if *at == tag && *reactor == 0),
        )
    };
    target.take_table(0);
    assert!(!is_open(&target));
    target.take_table(1);
    assert!(is_open(&target));
    target.apply(vec![Step::RemoveListener { tag }]);
    assert!(
        target.messages.iter().any(
            |(_, message)| matches!(message, Message::Reactor(ReactorMessage::Unlisten(at)) if *at == tag)
        )
    );
}
