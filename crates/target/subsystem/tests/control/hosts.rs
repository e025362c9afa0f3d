//! The commands of real hosts in their order, and every field that they look at.

use wire::admin::AbortResult;
use wire::async_event::{AsyncEvent, AsyncEvents};
use wire::discovery::{DiscoveryLog, SubsystemType};
use wire::feature::{Fid, NumberOfQueues, SetFeatures, Timestamp};
use wire::id::{Csi, Nsid, Qid};
use wire::identify::capabilities::{ControllerType, Oncs, Sgls};
use wire::identify::command_set::{CommandSetVectors, CommandSets, IndependentNamespace, NvmController};
use wire::identify::controller::IdentifyController;
use wire::identify::descriptors::{NamespaceDescriptor, NamespaceDescriptors};
use wire::identify::lists::read_nsid_list;
use wire::identify::namespace::{IdentifyNamespace, Nmic};
use wire::identify::{Cns, IdentifyCommand};
use wire::log::ana::{AnaLog, AnaState, ana_log_bytes};
use wire::log::health::HealthLog;
use wire::log::namespaces::{ChangedNamespaces, read_changed_namespaces};
use wire::log::support::{CommandsAndEffects, SupportedPages};
use wire::log::{GetLogPage, Lid};
use wire::opcode::{AdminOpcode, NvmOpcode};
use wire::property::{
    Cap, Cc, CommandSetSelection, Csts, Property, ShutdownNotification, ShutdownStatus, Vs,
};
use wire::sgl::Sgl;
use wire::sqe::Sqe;
use wire::status::Status;
use wire::uuid::Uuid;
use wire::zerocopy::FromBytes;

use crate::harness::{ConnectSpec, DISKS, HOST, SECOND_NS, SERVICE, Shape, Target, add_namespace, host, nqn};

fn identify(cns: Cns, nsid: u32) -> Sqe {
    Sqe::identify(cns, Nsid::new(nsid)).with_data(Sgl::transport(4096))
}

fn identify_in(csi: Csi, cns: Cns, nsid: u32) -> Sqe {
    Sqe::identify_in(csi, cns, Nsid::new(nsid)).with_data(Sgl::transport(4096))
}

fn log(lid: Lid, length_bytes: u32) -> Sqe {
    Sqe::get_log_page(lid, Nsid::ALL, length_bytes.into()).with_data(Sgl::transport(length_bytes))
}

/// wire §24
#[test]
fn a_linux_host_finds_all_it_checks() {
    let mut target = Target::new();
    // 1: Connect.
    let association = target.associate(host(HOST), DISKS);
    let admin = association.admin;
    // 3 to 6: properties, enabling.
    let cap = Cap::from_bits(target.property(admin, Property::CAP));
    assert_eq!((cap.queue_entries_max(), cap.css_csi(), cap.crims()), (1024, true, false));
    assert!(cap.ready_timeout_ms() >= 500 && cap.css_nvm());
    let cc = Cc::new(CommandSetSelection::NVM);
    target.demand(admin, Sqe::property_set(Property::CC, cc.bits().into()));
    assert_eq!(target.property(admin, Property::CC), u64::from(cc.bits()));
    target.demand(admin, Sqe::property_set(Property::CC, cc.with_en(true).bits().into()));
    let csts = Csts::from_bits(u32::try_from(target.property(admin, Property::CSTS)).unwrap());
    assert!(csts.rdy() && !csts.cfs());
    assert_eq!(target.property(admin, Property::VS), u64::from(Vs::V2_0.bits()));
    // 7: Identify controller.
    let controller =
        IdentifyController::read_from_bytes(&target.data(admin, identify(Cns::CONTROLLER, 0))).unwrap();
    assert_eq!(controller.cntlid(), association.cntlid);
    assert_eq!(controller.keep_alive_granularity_ms(), 1000);
    assert_eq!(controller.cmic.bits(), 0b1011, "ports, controllers, ANA");
    assert_eq!(controller.cntrltype, ControllerType::IO);
    assert_eq!(controller.subsystem(), Ok(nqn(DISKS)));
    assert_eq!(controller.serial().as_str(), Some("SERIAL1"));
    assert_eq!(controller.transfer_limit_bytes(4096), Some(1 << 20));
    assert_eq!(
        (controller.anacap.bits() & 1, controller.anagrpmax.get(), controller.nanagrpid.get()),
        (1, 1, 1)
    );
    assert!(controller.mnan.get() > 0 && controller.mnan.get() <= controller.nn.get());
    // 8, 9: effects, ANA.
    let effects =
        CommandsAndEffects::read_from_bytes(&target.data(admin, log(Lid::COMMANDS_AND_EFFECTS, 4096)))
            .unwrap();
    assert_eq!(
        effects.admin(AdminOpcode::SET_FEATURES.raw()).bits(),
        1,
        "supported, nothing to freeze queues for"
    );
    assert_eq!(effects.io(NvmOpcode::WRITE.raw()).bits(), 3, "changes content");
    let ana_bytes = u32::try_from(ana_log_bytes(1, controller.mnan.get())).unwrap();
    assert!(u64::from(ana_bytes) <= controller.transfer_limit_bytes(4096).unwrap());
    let ana = target.data(admin, log(Lid::ANA, ana_bytes));
    assert_eq!(ana.len(), ana_bytes as usize);
    let groups: Vec<_> = AnaLog::new(&ana).unwrap().map(Result::unwrap).collect();
    assert_eq!(groups.len(), 1);
    assert_eq!((groups[0].grpid, groups[0].state), (1, AnaState::OPTIMIZED));
    assert_eq!(groups[0].nsids().map(Nsid::get).collect::<Vec<_>>(), [1, 3]);
    // 10: timestamp, as oncs says; SMART and thresholds for the temperature.
    assert!(controller.oncs().contains(Oncs::TIMESTAMP));
    let now = Timestamp::default().with_milliseconds(1_700_000_000_000).bits().to_le_bytes();
    let set = Sqe::set_feature(Fid::TIMESTAMP, Nsid::NONE, 0).with_data(Sgl::in_capsule(8));
    assert_eq!(target.ask_with(admin, set, &now).status, Status::SUCCESS);
    HealthLog::read_from_bytes(&target.data(admin, log(Lid::SMART, 512))).unwrap();
    target.demand(admin, Sqe::get_feature(Fid::TEMPERATURE_THRESHOLD, Nsid::NONE));
    // 11: what it checks of the transport.
    assert_eq!((controller.in_capsule_offset_bytes(), controller.sgls()), (0, Sgls::TCP));
    assert_eq!((controller.maxcmd.get(), controller.command_capsule_bytes()), (1024, 64 + 8192));
    assert_eq!(controller.response_capsule_bytes(), 16);
    // 12, 13: queues.
    let wanted = NumberOfQueues::pairs(4);
    let granted = target.demand(admin, Sqe::set_feature(Fid::NUMBER_OF_QUEUES, Nsid::NONE, wanted.bits()));
    assert_eq!(granted.result, u64::from(wanted.bits()));
    for qid in 1..=4 {
        assert_eq!(target.connect(&association.queue(qid)).1.status, Status::SUCCESS);
    }
    // 14, 15: keep-alive, events.
    target.demand(admin, Sqe::keep_alive());
    let linux =
        AsyncEvents::NAMESPACE_ATTRIBUTE | AsyncEvents::FIRMWARE | AsyncEvents::ANA | AsyncEvents::DISCOVERY;
    let wanted = controller.oaes() & linux;
    assert_eq!(wanted, AsyncEvents::NAMESPACE_ATTRIBUTE | AsyncEvents::ANA);
    target.demand(admin, Sqe::set_feature(Fid::ASYNC_EVENTS, Nsid::NONE, wanted.bits()));
    let event = target.send(admin, Sqe::async_event_request().with_cid(31), &[]);
    // 16: the limits of the command set, the list.
    let limits = NvmController::read_from_bytes(
        &target.data(admin, identify_in(Csi::NVM, Cns::COMMAND_SET_CONTROLLER, 0)),
    )
    .unwrap();
    assert_eq!(limits.write_zeroes_limit_bytes(4096), Some(32 << 20));
    assert_eq!((limits.dmrl, limits.dmrsl.get(), limits.dmsl.get()), (0, 0, 0));
    let list = target.data(admin, identify(Cns::ACTIVE_NAMESPACES, 0));
    assert_eq!(read_nsid_list(&list).map(Nsid::get).collect::<Vec<_>>(), [1, 3]);
    // 17: each namespace.
    for (nsid, block_bytes, blocks) in [(1, 512, 1 << 21), (3, 4096, 1 << 18)] {
        let descriptors = target.data(admin, identify(Cns::NAMESPACE_DESCRIPTORS, nsid));
        let id = [u8::try_from(nsid).unwrap(); 16];
        assert_eq!(
            NamespaceDescriptors::new(&descriptors).map(Result::unwrap).collect::<Vec<_>>(),
            [
                NamespaceDescriptor::Nguid(id),
                NamespaceDescriptor::Uuid(Uuid::from_bytes(id)),
                NamespaceDescriptor::Csi(Csi::NVM)
            ]
        );
        let independent = IndependentNamespace::read_from_bytes(
            &target.data(admin, identify(Cns::INDEPENDENT_NAMESPACE, nsid)),
        )
        .unwrap();
        assert_eq!(
            (independent.nstat.bits(), independent.nmic),
            (1, Nmic::SHARED),
            "newer kernels look here"
        );
        let namespace =
            IdentifyNamespace::read_from_bytes(&target.data(admin, identify(Cns::NAMESPACE, nsid))).unwrap();
        assert_eq!((namespace.nsze.get(), namespace.ncap.get()), (blocks, blocks));
        assert_eq!((namespace.block_bytes(), namespace.nmic), (Some(block_bytes), Nmic::SHARED));
        assert_eq!((namespace.anagrpid.get(), namespace.nguid), (1, id));
        assert_eq!((namespace.write_granularity_blocks(), namespace.deallocate_granularity_blocks()), (8, 4));
        assert_eq!(namespace.dlfeat.bits(), 0b1001, "zeroes after deallocation, which Write Zeroes may use");
    }
    // A namespace is added, the host is notified and reads it.
    target.apply(vec![add_namespace(7, Shape::blocks(512, 8))]);
    assert_eq!(target.answer(event).result, u64::from(AsyncEvent::NAMESPACE_ATTRIBUTE.bits()));
    let changed = target.data(admin, log(Lid::CHANGED_NAMESPACES, 4096));
    let ChangedNamespaces::These(nsids) = read_changed_namespaces(&changed) else { panic!("one") };
    assert_eq!(nsids.map(Nsid::get).collect::<Vec<_>>(), [7]);
    // It goes: shutdown, then every connection.
    let shutdown = cc.with_en(true).with_shn(ShutdownNotification::NORMAL);
    target.demand(admin, Sqe::property_set(Property::CC, shutdown.bits().into()));
    let csts = Csts::from_bits(u32::try_from(target.property(admin, Property::CSTS)).unwrap());
    assert_eq!(csts.shst(), ShutdownStatus::COMPLETE);
    target.end(admin);
    assert!(target.state().subsystems[0].controllers.is_empty());
}

/// wire §25
#[test]
fn an_spdk_host_finds_all_it_needs() {
    let mut target = Target::new();
    let mut spec = ConnectSpec::admin(host(HOST), DISKS);
    spec.command.kato_ms = 10_000;
    let (admin, _) = target.connect(&spec);
    let vs = Vs::from_bits(u32::try_from(target.property(admin, Property::VS)).unwrap());
    assert!(vs >= Vs::V1_3, "namespace descriptors from here on");
    let cap = Cap::from_bits(target.property(admin, Property::CAP));
    assert_eq!((cap.page_bytes_min(), cap.cqr()), (4096, true));
    assert_eq!(target.property(admin, Property::CC), 0);
    target.enable(admin);
    assert_eq!(target.property(admin, Property::CSTS), 1);
    let controller =
        IdentifyController::read_from_bytes(&target.data(admin, identify(Cns::CONTROLLER, 0))).unwrap();
    assert!(controller.command_capsule_bytes() >= 64);
    assert!(controller.sgls().in_capsule_offset() && controller.sgls().transport());
    assert_eq!(controller.ctratt().bits() & 1, 1, "128-bit host identifiers");
    // Every critical warning, and what oaes has.
    let events = AsyncEvents::SMART | controller.oaes();
    target.demand(admin, Sqe::set_feature(Fid::ASYNC_EVENTS, Nsid::NONE, events.bits()));
    for _ in 0..controller.aer_limit() {
        target.send(admin, Sqe::async_event_request(), &[]);
    }
    assert_eq!(target.open.len(), 4, "they wait");
    let one_more = target.ask(admin, Sqe::async_event_request());
    assert_eq!(one_more.status, Status::AER_LIMIT_EXCEEDED);
    let keep_alive = target.demand(admin, Sqe::get_feature(Fid::KEEP_ALIVE, Nsid::NONE));
    assert_eq!(keep_alive.result, 10_000);
    target.demand(admin, identify_in(Csi::NVM, Cns::COMMAND_SET_CONTROLLER, 0));
    let wanted = NumberOfQueues::pairs(1024);
    let granted = target.demand(admin, Sqe::set_feature(Fid::NUMBER_OF_QUEUES, Nsid::NONE, wanted.bits()));
    assert_eq!(granted.result, u64::from(NumberOfQueues::pairs(128).bits()));
    let list = target.data(admin, identify(Cns::ACTIVE_NAMESPACES, 0));
    for nsid in read_nsid_list(&list).collect::<Vec<_>>() {
        target.demand(admin, identify(Cns::NAMESPACE, nsid.get()));
        target.demand(admin, identify(Cns::NAMESPACE_DESCRIPTORS, nsid.get()));
        target.demand(admin, identify_in(Csi::NVM, Cns::COMMAND_SET_NAMESPACE, nsid.get()));
    }
    let pages =
        SupportedPages::read_from_bytes(&target.data(admin, log(Lid::SUPPORTED_PAGES, 1024))).unwrap();
    for lid in [Lid::ERROR, Lid::SMART, Lid::COMMANDS_AND_EFFECTS, Lid::ANA] {
        assert!(pages.page(lid).supported(), "{lid}");
    }
    assert!(!pages.page(Lid::DISCOVERY).supported());
    target.demand(admin, log(Lid::COMMANDS_AND_EFFECTS, 4096));
    target.demand(admin, log(Lid::ANA, 4096));
    // It aborts what takes too long.
    let aborted = target.send(admin, Sqe::abort(Qid::new(9), 77), &[]);
    let result = AbortResult::default().with_not_aborted(true);
    assert_eq!(target.answer(aborted).result, u64::from(result.bits()), "there is no such queue");
}

/// wire §25, §20
#[test]
fn a_discovery_reads_the_log_in_parts() {
    let mut target = Target::new();
    let mut spec = ConnectSpec::admin(host(HOST), wire::nqn::DISCOVERY_NQN);
    spec.command.kato_ms = 0;
    target.listen(true, true);
    target.local = Some("127.0.0.1:4420".parse().unwrap());
    let (admin, _) = target.connect(&spec);
    target.enable(admin);
    let controller =
        IdentifyController::read_from_bytes(&target.data(admin, identify(Cns::CONTROLLER, 0))).unwrap();
    assert_eq!((controller.cntrltype, controller.nn.get()), (ControllerType::DISCOVERY, 0));
    assert!(controller.subsystem().unwrap().is_discovery(), "the name connected to");
    assert_eq!(controller.oaes(), AsyncEvents::DISCOVERY);
    assert!(controller.maxcmd.get() > 0 && controller.keep_alive_granularity_ms() > 0);
    let part = |offset, length_bytes| {
        let part = GetLogPage { lid: Lid::DISCOVERY, offset, length_bytes, ..GetLogPage::default() };
        part.to_sqe(Nsid::NONE).with_data(Sgl::transport(u32::try_from(length_bytes).unwrap()))
    };
    let mut page = target.data(admin, part(0, 1024));
    page.extend(target.data(admin, part(1024, 1024)));
    // A subsystem comes between two reads: the second still belongs to the first.
    target.apply(vec![nvlane_subsystem::message::Step::AddSubsystem(crate::harness::subsystem(
        "nqn.2026-01.io.nvlane:new",
        nvlane_subsystem::subsystem::Access::Any,
    ))]);
    page.extend(target.data(admin, part(2048, 1024)));
    let read = DiscoveryLog::new(&page).unwrap();
    assert!(read.is_complete());
    let listed: Vec<_> =
        read.entries.iter().map(|entry| (entry.subtype, entry.subsystem().unwrap())).collect();
    assert_eq!(listed, [(SubsystemType::DISCOVERY, nqn(SERVICE)), (SubsystemType::NVM, nqn(DISKS))]);
    // The host sees from the generation that it has to begin anew.
    let header = target.data(admin, part(0, 16));
    assert_eq!(header[..8], (read.header.genctr.get() + 1).to_le_bytes());
    assert_eq!(header[8..16], 3u64.to_le_bytes());
    target.pass(119 * SECOND_NS);
    assert!(target.ending().is_empty() && !target.state().discovery_controllers.is_empty());
    target.pass(2 * SECOND_NS);
    assert!(target.state().discovery_controllers.is_empty(), "idle without keep-alive");
}

#[test]
fn command_set_structures_follow_from_version_2() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 0);
    let list = target.data(association.admin, identify_in(Csi::NVM, Cns::COMMAND_SET_ACTIVE_NAMESPACES, 1));
    assert_eq!(read_nsid_list(&list).map(Nsid::get).collect::<Vec<_>>(), [3], "those after 1");
    for cntid in [0xFFFF, association.cntlid.get()] {
        let command =
            IdentifyCommand { cns: Cns::COMMAND_SETS, cntid: cntid.into(), ..IdentifyCommand::default() };
        let vectors =
            target.data(association.admin, command.to_sqe(Nsid::NONE).with_data(Sgl::transport(4096)));
        let vectors = CommandSetVectors::read_from_bytes(&vectors).unwrap();
        assert_eq!(vectors.combinations().collect::<Vec<_>>(), [CommandSets::NVM]);
    }
    for cns in [Cns::COMMAND_SET_NAMESPACE, Cns::COMMAND_SET_CONTROLLER, Cns::COMMAND_SET_ACTIVE_NAMESPACES] {
        let nsid = u32::from(cns == Cns::COMMAND_SET_NAMESPACE);
        for csi in [Csi::KV, Csi::ZNS] {
            let answer = target.ask(association.admin, identify_in(csi, cns, nsid));
            assert_eq!(answer.status, Status::INVALID_FIELD.with_dnr(), "{cns} {csi}");
        }
    }
}

#[test]
fn features_can_be_selected_but_not_saved() {
    let mut target = Target::new();
    let admin = target.ready(host(HOST), DISKS, 0).admin;
    let save = SetFeatures { fid: Fid::ARBITRATION, save: true, value: 3 };
    assert_eq!(target.ask(admin, save.to_sqe(Nsid::NONE)).status, Status::FEATURE_NOT_SAVEABLE.with_dnr());
    target.demand(admin, Sqe::set_feature(Fid::ARBITRATION, Nsid::NONE, 3));
    let mut select = |select| {
        let get = wire::feature::GetFeatures { fid: Fid::ARBITRATION, select, value: 0 };
        target.demand(admin, get.to_sqe(Nsid::ALL)).result
    };
    use wire::feature::FeatureSelect;
    assert_eq!(select(FeatureSelect::CURRENT), 3);
    assert_eq!((select(FeatureSelect::DEFAULT), select(FeatureSelect::SAVED)), (0, 0));
    assert_eq!(select(FeatureSelect::CAPABILITIES), 0b100, "changeable");
}
