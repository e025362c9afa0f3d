//! Rights of hosts to namespaces: what each host is shown and told, also while a reload changes it. docs/security.md

use nvlane_subsystem::access::HostRights;
use nvlane_subsystem::lane_id::CommandId;
use nvlane_subsystem::message::{OrderAnswer, OrderKind, Step};
use nvlane_subsystem::step_error::StepError;
use nvlane_subsystem::subsystem::Access;
use wire::async_event::AsyncEvents;
use wire::feature::Fid;
use wire::id::{Csi, Nsid};
use wire::identify::Cns;
use wire::identify::command_set::IndependentNamespace;
use wire::identify::controller::IdentifyController;
use wire::identify::lists::{read_controller_list, read_nsid_list};
use wire::identify::namespace::{IdentifyNamespace, Nsattr};
use wire::log::ana::AnaLog;
use wire::log::namespaces::{ChangedNamespaces, read_changed_namespaces};
use wire::log::{GetLogPage, Lid};
use wire::sgl::Sgl;
use wire::sqe::Sqe;
use wire::status::Status;
use wire::zerocopy::FromBytes;

use crate::harness::{
    Association, DISKS, HOST, OTHER_HOST, Shape, Target, add_namespace, host, namespace, nqn,
};

fn only(hosts: &[&str]) -> Access {
    Access::Only(hosts.iter().map(|host| host.parse().unwrap()).collect())
}

fn seen_by(hosts: &[&str]) -> HostRights {
    HostRights { visible_to: only(hosts), ..HostRights::ALL }
}

fn written_by(hosts: &[&str]) -> HostRights {
    HostRights { writable_by: only(hosts), ..HostRights::ALL }
}

fn set(nsid: u32, rights: HostRights) -> Step {
    Step::SetRights { subsystem: nqn(DISKS), nsid: Nsid::new(nsid), rights }
}

fn identify(cns: Cns, nsid: u32) -> Sqe {
    Sqe::identify(cns, Nsid::new(nsid)).with_data(Sgl::transport(4096))
}

fn log(lid: Lid, nsid: Nsid) -> Sqe {
    Sqe::get_log_page(lid, nsid, 4096).with_data(Sgl::transport(4096))
}

fn listed(target: &mut Target, association: &Association) -> Vec<u32> {
    let lists = [Cns::ACTIVE_NAMESPACES, Cns::ALLOCATED_NAMESPACES].map(|cns| {
        let list = target.data(association.admin, identify(cns, 0));
        read_nsid_list(&list).map(Nsid::get).collect::<Vec<_>>()
    });
    assert_eq!(lists[0], lists[1]);
    let by_command_set = Sqe::identify_in(Csi::NVM, Cns::COMMAND_SET_ACTIVE_NAMESPACES, Nsid::NONE);
    let by_command_set = target.data(association.admin, by_command_set.with_data(Sgl::transport(4096)));
    assert_eq!(read_nsid_list(&by_command_set).map(Nsid::get).collect::<Vec<_>>(), lists[0]);
    let ana = target.data(association.admin, log(Lid::ANA, Nsid::ALL));
    let groups: Vec<_> = AnaLog::new(&ana).unwrap().map(Result::unwrap).collect();
    assert_eq!(groups[0].nsids().map(Nsid::get).collect::<Vec<_>>(), lists[0]);
    let [list, _] = lists;
    list
}

/// Whether the structures of a namespace call it write protected.
fn is_protected(target: &mut Target, association: &Association, nsid: u32) -> bool {
    let structure = target.data(association.admin, identify(Cns::NAMESPACE, nsid));
    let structure = IdentifyNamespace::read_from_bytes(&structure).unwrap();
    assert!(structure.nsze.get() > 0, "the host sees it");
    let independent = target.data(association.admin, identify(Cns::INDEPENDENT_NAMESPACE, nsid));
    let independent = IndependentNamespace::read_from_bytes(&independent).unwrap();
    assert_eq!(structure.nsattr, independent.nsattr);
    structure.nsattr.contains(Nsattr::WRITE_PROTECTED)
}

fn changed(target: &mut Target, association: &Association) -> Vec<u32> {
    let command =
        GetLogPage { lid: Lid::CHANGED_NAMESPACES, length_bytes: 4096, rae: false, ..GetLogPage::default() };
    let page = target.data(association.admin, command.to_sqe(Nsid::ALL).with_data(Sgl::transport(4096)));
    match read_changed_namespaces(&page) {
        ChangedNamespaces::These(nsids) => nsids.map(Nsid::get).collect(),
        ChangedNamespaces::Any => panic!("a few"),
    }
}

/// Two hosts, and an event request of each.
struct Two {
    target: Target,
    one: Association,
    other: Association,
    requests: [CommandId; 2],
}

impl Two {
    fn new() -> Self {
        let mut target = Target::new();
        let [one, other] = [HOST, OTHER_HOST].map(|name| target.ready(host(name), DISKS, 1));
        let requests = [&one, &other].map(|association| {
            let events = AsyncEvents::NAMESPACE_ATTRIBUTE.bits();
            target.demand(association.admin, Sqe::set_feature(Fid::ASYNC_EVENTS, Nsid::NONE, events));
            target.send(association.admin, Sqe::async_event_request(), &[])
        });
        Self { target, one, other, requests }
    }

    fn listed(&mut self) -> [Vec<u32>; 2] {
        [&self.one, &self.other].map(|association| listed(&mut self.target, association))
    }

    /// The namespaces that each host is told of by an event and its log; nothing for a host without an event.
    fn told(&mut self) -> [Vec<u32>; 2] {
        [0, 1].map(|at| {
            let association = [&self.one, &self.other][at];
            if self.target.open.contains(&self.requests[at]) {
                assert_eq!(changed(&mut self.target, association), [0; 0], "no event, no entry");
                return Vec::new();
            }
            assert_eq!(self.target.answer(self.requests[at]).status, Status::SUCCESS);
            let nsids = changed(&mut self.target, association);
            self.requests[at] = self.target.send(association.admin, Sqe::async_event_request(), &[]);
            nsids
        })
    }
}

#[test]
fn a_namespace_that_a_host_does_not_see_is_not_there_for_it() {
    let mut two = Two::new();
    let mut new = namespace(5, Shape::blocks(512, 8));
    new.rights = seen_by(&[OTHER_HOST]);
    two.target.apply(vec![Step::AddNamespace { subsystem: nqn(DISKS), nsid: Nsid::new(5), namespace: new }]);
    assert_eq!(two.listed(), [vec![1, 3], vec![1, 3, 5]]);
    assert_eq!(two.told(), [vec![], vec![5]]);
    let (admin, other) = (two.one.admin, two.other.admin);
    let target = &mut two.target;
    // As for an NSID that nothing has: 7.
    for cns in [Cns::NAMESPACE, Cns::ALLOCATED_NAMESPACE, Cns::INDEPENDENT_NAMESPACE] {
        assert_eq!(target.data(admin, identify(cns, 5)), target.data(admin, identify(cns, 7)));
        assert_ne!(target.data(other, identify(cns, 5)), [0; 4096]);
    }
    for sqe in [
        identify(Cns::NAMESPACE_DESCRIPTORS, 5),
        identify(Cns::NAMESPACE_CONTROLLERS, 5),
        log(Lid::SMART, Nsid::new(5)),
        Sqe::get_feature(Fid::ERROR_RECOVERY, Nsid::new(5)),
        Sqe::set_feature(Fid::ERROR_RECOVERY, Nsid::new(5), 1),
    ] {
        assert_eq!(target.ask(admin, sqe).status, Status::INVALID_NAMESPACE.with_dnr(), "{sqe:?}");
        assert_eq!(target.ask(other, sqe).status, Status::SUCCESS, "{sqe:?}");
    }
    // Its controllers are those of the hosts that see it; limits are those of the subsystem.
    let attached = target.data(other, identify(Cns::NAMESPACE_CONTROLLERS, 5));
    assert_eq!(read_controller_list(&attached).collect::<Vec<_>>(), [two.other.cntlid]);
    let all = target.data(other, identify(Cns::NAMESPACE_CONTROLLERS, 1));
    assert_eq!(read_controller_list(&all).count(), 2);
    let limits = [admin, other].map(|admin| {
        let data = target.data(admin, identify(Cns::CONTROLLER, 0));
        let controller = IdentifyController::read_from_bytes(&data).unwrap();
        (controller.nn.get(), controller.mnan.get(), controller.oncs().bits())
    });
    assert_eq!(limits[0], limits[1]);
    // What happens to it is told only to those who see it.
    two.target.apply(vec![Step::StorageChanged { subsystem: nqn(DISKS), nsid: Nsid::new(5), storage: None }]);
    assert_eq!(two.told(), [vec![], vec![5]]);
    two.target.apply(vec![Step::RemoveNamespace { subsystem: nqn(DISKS), nsid: Nsid::new(5) }]);
    assert_eq!(two.told(), [vec![], vec![5]]);
}

#[test]
fn a_host_is_told_what_it_gains_and_loses_once_every_reactor_serves_it() {
    let mut two = Two::new();
    two.target.habits.tables_are_taken = false;
    two.target.apply(vec![set(1, seen_by(&[HOST])), set(3, seen_by(&[OTHER_HOST]))]);
    assert_eq!(two.listed(), [[1], [3]], "what is lost is hidden at once");
    assert_eq!(two.told(), [[0; 0]; 2]);
    two.target.take_table(0);
    assert_eq!(two.told(), [[0; 0]; 2], "one reactor serves the old table");
    two.target.take_table(1);
    assert_eq!(two.told(), [[3], [1]]);
    // The other way round, and with other changes in one step.
    two.target.apply(vec![
        set(1, seen_by(&[OTHER_HOST])),
        set(3, HostRights::ALL),
        add_namespace(4, Shape::blocks(512, 8)),
    ]);
    assert_eq!(two.listed(), [vec![], vec![3]], "what is gained is not shown yet");
    two.target.take_table(0);
    assert_eq!(two.listed(), [vec![], vec![3]]);
    two.target.take_table(1);
    assert_eq!(two.listed(), [[3, 4].as_slice(), &[1, 3, 4]]);
    assert_eq!(
        two.told(),
        [[1, 3, 4].as_slice(), &[1, 4]],
        "nothing changes for the other host in namespace 3"
    );
}

#[test]
fn a_host_that_may_only_read_is_shown_a_write_protected_namespace() {
    let mut two = Two::new();
    two.target.habits.tables_are_taken = false;
    two.target.apply(vec![set(1, written_by(&[HOST]))]);
    let protected = |two: &mut Two| [&two.one, &two.other].map(|host| is_protected(&mut two.target, host, 1));
    assert_eq!(protected(&mut two), [false, true], "a right that is lost is lost at once");
    two.target.take_table(0);
    two.target.take_table(1);
    assert_eq!(two.told(), [vec![], vec![1]]);
    two.target.apply(vec![set(1, written_by(&[OTHER_HOST]))]);
    assert_eq!(
        protected(&mut two),
        [true, true],
        "a right that is gained is shown once every reactor grants it"
    );
    two.target.take_table(0);
    two.target.take_table(1);
    assert_eq!(protected(&mut two), [true, false]);
    assert_eq!(two.told(), [[1], [1]]);
    assert!(!is_protected(&mut two.target, &two.one, 3), "another namespace is not concerned");
    assert_eq!(two.listed(), [[1, 3], [1, 3]]);
}

#[test]
fn the_table_has_the_newest_rights_and_a_replacement_keeps_them() {
    let mut two = Two::new();
    two.target.apply(vec![set(3, seen_by(&[HOST]))]);
    // With the identity that it has.
    let same = namespace(3, Shape::blocks(4096, 16));
    two.target.apply(vec![Step::ReplaceNamespace {
        subsystem: nqn(DISKS),
        nsid: Nsid::new(3),
        namespace: same,
    }]);
    assert_eq!(two.listed(), [[1, 3].as_slice(), &[1]]);
    assert_eq!(two.told(), [[3], [3]], "the other host has lost it");
    let kind = OrderKind::Apply(vec![set(9, HostRights::ALL)]);
    let receiver = two.target.order(kind);
    let Ok(OrderAnswer::Applied(outcomes)) = receiver.try_recv() else { panic!("an answer") };
    assert_eq!(outcomes, [Err(StepError::NoNamespace)]);
}
