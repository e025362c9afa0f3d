//! Log pages and features beyond what hosts ask in their first minutes. wire §11, §12, hostile inputs M2, M3, Q14

use std::sync::Arc;

use nvlane_subsystem::controller::error_log::Failure;
use nvlane_subsystem::message::{Request, RequestKind};
use proptest::prelude::*;
use store::{KeyValueSettings, KeyValueStore, Partitioning, Store};
use wire::feature::{Fid, GetFeatures, HostBehavior, NumberOfQueues, TemperatureThreshold, Timestamp};
use wire::id::{Csi, Nsid, Qid};
use wire::identify::Cns;
use wire::identify::command_set::{KvNamespace, KvVendorCommands};
use wire::log::ana::ANA_GROUPS_ONLY;
use wire::log::error::ErrorEntry;
use wire::log::health::{FirmwareSlots, HealthLog};
use wire::log::partition_map::PartitionMapLog;
use wire::log::support::FeaturesAndEffects;
use wire::log::{GetLogPage, Lid};
use wire::sgl::Sgl;
use wire::sqe::Sqe;
use wire::status::Status;
use wire::zerocopy::{FromBytes, IntoBytes};

use crate::harness::{Association, DISKS, HOST, OTHER_HOST, SECOND_NS, SERVICE, Target, add_namespace, host};

const INVALID_FIELD: Status = Status::INVALID_FIELD.with_dnr();

fn get(lid: Lid, offset: u64, length_bytes: u32) -> Sqe {
    let command =
        GetLogPage { lid, offset, length_bytes: length_bytes.into(), rae: true, ..GetLogPage::default() };
    command.to_sqe(Nsid::ALL).with_data(Sgl::transport(length_bytes))
}

/// Every page with its size, on the controller that has it.
fn pages(target: &mut Target) -> Vec<(Association, Lid, usize)> {
    target.listen(true, true);
    target.local = Some("127.0.0.1:4420".parse().unwrap());
    let io = target.ready(host(HOST), DISKS, 0);
    let discovery = target.ready(host(HOST), SERVICE, 0);
    [
        (&io, Lid::SUPPORTED_PAGES, 1024),
        (&io, Lid::ERROR, 64 * 64),
        (&io, Lid::SMART, 512),
        (&io, Lid::FIRMWARE_SLOTS, 512),
        (&io, Lid::CHANGED_NAMESPACES, 4096),
        (&io, Lid::COMMANDS_AND_EFFECTS, 4096),
        (&io, Lid::ANA, 16 + 32 + 8),
        (&io, Lid::FEATURES_AND_EFFECTS, 1024),
        (&discovery, Lid::SUPPORTED_PAGES, 1024),
        (&discovery, Lid::ERROR, 64 * 64),
        (&discovery, Lid::DISCOVERY, 3 * 1024),
    ]
    .map(|(association, lid, length)| (association.clone(), lid, length))
    .to_vec()
}

/// hostile inputs Q14, M2
#[test]
fn offsets_are_dwords_within_the_page() {
    let mut target = Target::new();
    for (association, lid, length) in pages(&mut target) {
        let length = length as u64;
        for offset in [1, 2, 3, length + 4, 1 << 32, u64::MAX - 3, u64::MAX] {
            let answer = target.ask(association.admin, get(lid, offset, 4096));
            assert_eq!((answer.status, answer.data), (INVALID_FIELD, None), "{lid} at {offset}");
        }
        assert_eq!(target.data(association.admin, get(lid, length, 64)), [0; 64], "{lid} at its very end");
    }
}

/// hostile inputs M2
#[test]
fn nobody_gets_more_than_a_transfer_and_nothing_is_made_by_a_peer_s_number() {
    let mut target = Target::new();
    for (association, lid, _) in pages(&mut target) {
        let command = GetLogPage { lid, length_bytes: 1 << 34, ..GetLogPage::default() };
        let small = command.to_sqe(Nsid::NONE).with_data(Sgl::transport(4096));
        assert_eq!(target.data(association.admin, small).len(), 4096, "cut to the room there is");
        let huge = command.to_sqe(Nsid::NONE).with_data(Sgl::transport(u32::MAX));
        assert_eq!(target.ask(association.admin, huge).status, INVALID_FIELD);
        assert_eq!(target.data(association.admin, get(lid, 0, 1 << 20)).len(), 1 << 20);
        assert_eq!(target.ask(association.admin, get(lid, 0, (1 << 20) + 4)).status, INVALID_FIELD);
    }
}

/// hostile inputs M2
#[test]
fn pages_that_are_not_supported_are_refused() {
    let mut target = Target::new();
    let all = pages(&mut target);
    for association in [&all[0].0, &all[10].0] {
        let has = |lid: Lid| all.iter().any(|(of, known, _)| of.admin == association.admin && *known == lid);
        for lid in (0..=0xFF).map(Lid::from_raw).filter(|lid| !has(*lid)) {
            let answer = target.ask(association.admin, get(lid, 0, 512));
            assert_eq!(answer.status, Status::INVALID_LOG_PAGE.with_dnr(), "{lid}");
        }
    }
    let io = &all[0].0;
    let of_namespace = Sqe::get_log_page(Lid::ERROR, Nsid::new(1), 512).with_data(Sgl::transport(512));
    assert_eq!(target.ask(io.admin, of_namespace).status, INVALID_FIELD);
    let of_kv = GetLogPage {
        lid: Lid::COMMANDS_AND_EFFECTS,
        csi: Csi::KV,
        length_bytes: 4096,
        ..GetLogPage::default()
    };
    assert_eq!(
        target.ask(io.admin, of_kv.to_sqe(Nsid::NONE).with_data(Sgl::transport(4096))).status,
        INVALID_FIELD
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// A page read in parts is the page.
    #[test]
    fn any_part_of_a_page_is_a_slice_of_it(which in 0usize..11, parts in prop::collection::vec((0u32..1200, 1u32..1200), 1..20)) {
        let mut target = Target::new();
        let (association, lid, length) = pages(&mut target)[which].clone();
        let whole = target.data(association.admin, get(lid, 0, u32::try_from(length).unwrap()));
        prop_assert!(lid == Lid::CHANGED_NAMESPACES || lid == Lid::ERROR || whole.iter().any(|byte| *byte != 0));
        for (at, count) in parts {
            let offset = (at as usize * 4).min(length);
            let mut expected = whole[offset..].to_vec();
            expected.resize(count as usize * 4, 0);
            prop_assert_eq!(&target.data(association.admin, get(lid, offset as u64, count * 4)), &expected);
        }
    }
}

#[test]
fn the_error_log_has_what_went_wrong_on_every_queue() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 2);
    target.ask(association.admin, Sqe::new(0xC0, Nsid::new(9)).with_cid(0x1234));
    let failure = Failure {
        qid: Qid::new(2),
        cid: 0xBEEF,
        status: Status::LBA_OUT_OF_RANGE.with_dnr(),
        nsid: 3,
        lba: 1 << 52,
    };
    let lane = association.io[1];
    target.control.on_request(target.now_ns, Request { lane, kind: RequestKind::Failures(vec![failure]) });
    let page = target.data(association.admin, get(Lid::ERROR, 0, 192));
    let entry = |at: usize| ErrorEntry::read_from_bytes(&page[at * 64..][..64]).unwrap();
    let (newest, before) = (entry(0), entry(1));
    assert_eq!((newest.count.get(), newest.sqid.get(), newest.cid.get()), (2, 2, 0xBEEF));
    assert_eq!((newest.status(), newest.nsid.get(), newest.lba.get()), (failure.status, 3, 1 << 52));
    assert_eq!((before.count.get(), before.sqid.get(), before.cid.get()), (1, 0, 0x1234));
    assert_eq!(before.status(), Status::INVALID_OPCODE.with_dnr());
    assert_eq!(page[128..], [0; 64]);
    let health = target.data(association.admin, get(Lid::SMART, 0, 512));
    assert_eq!(HealthLog::read_from_bytes(&health).unwrap().error_entries.get(), 2);
}

#[test]
fn health_counts_every_lane_even_those_that_have_ended() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 2);
    for lane in &association.io {
        let counters = &target.counters[lane];
        counters.read_count.add(10);
        counters.write_count.add(3);
        counters.read_bytes.add(512_000);
        counters.written_bytes.add(1);
        counters.media_error_count.add(1);
    }
    target.end(association.io[0]);
    target.pass(3 * SECOND_NS);
    target.now_ns += 7200 * SECOND_NS;
    let health = target.data(association.admin, get(Lid::SMART, 0, 512));
    let health = HealthLog::read_from_bytes(&health).unwrap();
    assert_eq!((health.host_reads.get(), health.host_writes.get()), (20, 6));
    assert_eq!(
        (health.bytes_read(), health.bytes_written()),
        (1_024_000, 512_000),
        "whole units, rounded up"
    );
    assert_eq!((health.media_errors.get(), health.power_on_hours.get(), health.spare), (2, 2, 100));
    assert_eq!(health.critical_warning, 0);

    // Another controller of the subsystem tells the same, also after the first one has ended.
    let other = target.ready(host(OTHER_HOST), DISKS, 1);
    target.counters[&other.io[0]].read_count.add(1);
    let reads = |target: &mut Target| {
        let health = target.data(other.admin, get(Lid::SMART, 0, 512));
        HealthLog::read_from_bytes(&health).unwrap().host_reads.get()
    };
    assert_eq!(reads(&mut target), 21);
    target.end(association.io[1]);
    target.end(association.admin);
    target.pass(3 * SECOND_NS);
    assert_eq!(reads(&mut target), 21);
}

#[test]
fn a_namespace_has_a_health_log_and_no_other_page() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 1);
    target.counters[&association.io[0]].read_count.add(10);
    let of = |lid, nsid| {
        let command = GetLogPage { lid, length_bytes: 512, ..GetLogPage::default() };
        command.to_sqe(Nsid::new(nsid)).with_data(Sgl::transport(512))
    };
    let health = target.data(association.admin, of(Lid::SMART, 1));
    let health = HealthLog::read_from_bytes(&health).unwrap();
    assert_eq!(
        (health.host_reads.get(), health.spare),
        (0, 100),
        "the lane has read nothing of this namespace"
    );
    for (lid, nsid, status) in [
        (Lid::SMART, 77, Status::INVALID_NAMESPACE.with_dnr()),
        (Lid::ERROR, 1, INVALID_FIELD),
        (Lid::FIRMWARE_SLOTS, 1, INVALID_FIELD),
    ] {
        assert_eq!(target.ask(association.admin, of(lid, nsid)).status, status);
    }
}

/// docs/kv-commands.md §6
#[test]
fn a_host_learns_how_the_keys_of_a_namespace_that_it_sees_are_divided() {
    let settings = |bytes| KeyValueSettings {
        bytes,
        evicts: true,
        item_bytes: 1 << 10,
        allows_flush: false,
        prefaults: false,
    };
    let store = |reactor_count| {
        let store = Arc::new(KeyValueStore::in_memory(settings(16 << 20)));
        store.set_reactor_count(reactor_count).unwrap();
        store
    };
    let mut target = Target::new();
    let (divided, whole) = (store(3), store(1));
    target.apply(vec![add_namespace(7, Store::Keys(Arc::clone(&divided)))]);
    target.apply(vec![add_namespace(8, Store::Keys(whole))]);
    let admin = target.ready(host(HOST), DISKS, 0).admin;
    let of = |nsid, length: u32| {
        let page =
            GetLogPage { lid: Lid::PARTITION_MAP, length_bytes: length.into(), ..GetLogPage::default() };
        page.to_sqe(nsid).with_data(Sgl::transport(length))
    };
    let mut map = |nsid| {
        let page = target.data(admin, of(Nsid::new(nsid), 64));
        PartitionMapLog::read_from_bytes(&page).unwrap().map()
    };
    let Partitioning { seed, count } = divided.partitioning().unwrap();
    assert_eq!(map(7), Some((seed, count)));
    assert_eq!((map(8), map(1)), (None, None), "one partition, and blocks");
    let supported = target.data(admin, get(Lid::SUPPORTED_PAGES, 0, 1024));
    assert_eq!(supported[4 * 0xC0], 1);
    for nsid in [Nsid::new(77), Nsid::ALL, Nsid::NONE] {
        assert_eq!(target.ask(admin, of(nsid, 64)).status, Status::INVALID_NAMESPACE.with_dnr());
    }
    for (nsid, has_map) in [(7, true), (8, false)] {
        let identify = Sqe::identify_in(Csi::KV, Cns::COMMAND_SET_NAMESPACE, Nsid::new(nsid));
        let identify = target.data(admin, identify.with_data(Sgl::transport(4096)));
        let identify = KvNamespace::read_from_bytes(&identify).unwrap();
        let vendor = identify.vendor().unwrap();
        assert_eq!(vendor.commands().contains(KvVendorCommands::PARTITION_MAP), has_map);
    }
}

#[test]
fn smaller_pages_say_what_there_is() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 0);
    let slots = target.data(association.admin, get(Lid::FIRMWARE_SLOTS, 0, 512));
    let slots = FirmwareSlots::read_from_bytes(&slots).unwrap();
    assert_eq!(slots.revision(1).unwrap().as_str(), Some(env!("CARGO_PKG_VERSION")));
    let features = target.data(association.admin, get(Lid::FEATURES_AND_EFFECTS, 0, 1024));
    let features = FeaturesAndEffects::read_from_bytes(&features).unwrap();
    let supported: Vec<_> =
        (0u8..=0xFF).filter(|fid| features.features[usize::from(*fid)].get() & 1 != 0).collect();
    assert_eq!(
        supported,
        [0x01, 0x02, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0A, 0x0B, 0x0E, 0x0F, 0x16, 0x81]
    );
    let command =
        GetLogPage { lid: Lid::ANA, lsp: ANA_GROUPS_ONLY, length_bytes: 64, ..GetLogPage::default() };
    let groups = target.data(association.admin, command.to_sqe(Nsid::ALL).with_data(Sgl::transport(64)));
    assert_eq!(groups[8..10], [1, 0]);
    assert_eq!(groups[16..24], [1, 0, 0, 0, 0, 0, 0, 0], "no namespaces");
}

/// hostile inputs M3
#[test]
fn features_take_what_they_can_hold() {
    let mut target = Target::new();
    let admin = target.ready(host(HOST), DISKS, 0).admin;
    let set = |fid, nsid: u32, value| Sqe::set_feature(fid, Nsid::new(nsid), value);
    let ok = Status::SUCCESS;
    for (sqe, status) in [
        (set(Fid::POWER_MANAGEMENT, 0, 0), ok),
        (set(Fid::POWER_MANAGEMENT, 0, 1), INVALID_FIELD),
        (set(Fid::VOLATILE_WRITE_CACHE, 0, 1), ok),
        (set(Fid::VOLATILE_WRITE_CACHE, 0, 0), Status::FEATURE_NOT_CHANGEABLE.with_dnr()),
        (set(Fid::INTERRUPT_COALESCING, 0, 0x0102), Status::FEATURE_NOT_CHANGEABLE.with_dnr()),
        (set(Fid::INTERRUPT_VECTOR, 0, 1 << 16), Status::FEATURE_NOT_CHANGEABLE.with_dnr()),
        (set(Fid::WRITE_ATOMICITY, 0, 1), ok),
        (set(Fid::ARBITRATION, 1, 0), Status::FEATURE_NOT_NAMESPACE_SPECIFIC.with_dnr()),
        (set(Fid::ARBITRATION, u32::MAX, 0), ok),
        (set(Fid::ERROR_RECOVERY, 0, 1), Status::INVALID_NAMESPACE.with_dnr()),
        (set(Fid::ERROR_RECOVERY, 2, 1), Status::INVALID_NAMESPACE.with_dnr()),
        (set(Fid::ERROR_RECOVERY, 1, 1 << 16), INVALID_FIELD),
        (set(Fid::ERROR_RECOVERY, 1, 7), ok),
        (set(Fid::NUMBER_OF_QUEUES, 0, 0xFFFF), INVALID_FIELD),
        (set(Fid::NUMBER_OF_QUEUES, 0, 0xFFFF_0000), INVALID_FIELD),
        (set(Fid::TEMPERATURE_THRESHOLD, 0, 1 << 16), INVALID_FIELD),
        (set(Fid::HOST_ID, 0, 1), Status::COMMAND_SEQUENCE_ERROR.with_dnr()),
        (set(Fid::COMMAND_SET_PROFILE, 0, 0), INVALID_FIELD),
        (set(Fid::SOFTWARE_PROGRESS, 0, 0), INVALID_FIELD),
        (set(Fid::WRITE_PROTECT, 1, 0), INVALID_FIELD),
        (set(Fid::from_raw(0xC0), 0, 0), INVALID_FIELD),
    ] {
        assert_eq!(target.ask(admin, sqe).status, status, "{sqe:?}");
    }
    let get = |fid, nsid: u32| Sqe::get_feature(fid, Nsid::new(nsid));
    assert_eq!(target.demand(admin, get(Fid::VOLATILE_WRITE_CACHE, 0)).result, 1);
    assert_eq!(target.demand(admin, get(Fid::ERROR_RECOVERY, 1)).result, 7);
    assert_eq!(target.demand(admin, get(Fid::ERROR_RECOVERY, 3)).result, 0);
    assert_eq!(target.demand(admin, set(Fid::ERROR_RECOVERY, u32::MAX, 9)).result, 0);
    assert_eq!(target.demand(admin, get(Fid::ERROR_RECOVERY, 3)).result, 9);
    // Tools also ask without a namespace, and get the default.
    assert_eq!(target.demand(admin, get(Fid::ERROR_RECOVERY, 0)).result, 0);
    assert_eq!(target.demand(admin, get(Fid::ERROR_RECOVERY, u32::MAX)).result, 0);
    assert_eq!(target.ask(admin, get(Fid::ERROR_RECOVERY, 2)).status, Status::INVALID_NAMESPACE.with_dnr());
    assert_eq!(target.demand(admin, get(Fid::INTERRUPT_COALESCING, 0)).result, 0);
    let vector = GetFeatures { fid: Fid::INTERRUPT_VECTOR, value: 3, ..GetFeatures::default() };
    assert_eq!(target.demand(admin, vector.to_sqe(Nsid::NONE)).result, 3);
    // A tool that was given a block device asks with its namespace.
    assert_eq!(target.demand(admin, get(Fid::WRITE_ATOMICITY, 1)).result, 1);
    assert_eq!(target.ask(admin, get(Fid::from_raw(0), 0)).status, INVALID_FIELD);
}

#[test]
fn thresholds_are_kept_for_over_and_under() {
    let mut target = Target::new();
    let admin = target.ready(host(HOST), DISKS, 0).admin;
    let over = TemperatureThreshold::default().with_kelvin(350);
    let under = over.with_kelvin(250).with_kind(1);
    for threshold in [over, under] {
        target.demand(admin, Sqe::set_feature(Fid::TEMPERATURE_THRESHOLD, Nsid::NONE, threshold.bits()));
    }
    let mut kelvin = |value| {
        let get = GetFeatures { fid: Fid::TEMPERATURE_THRESHOLD, value, ..GetFeatures::default() };
        target.ask(admin, get.to_sqe(Nsid::NONE)).result
    };
    assert_eq!((kelvin(over.bits()), kelvin(under.bits())), (350, 250));
}

#[test]
fn features_with_data_want_exactly_theirs() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 0);
    let admin = association.admin;
    let set = |fid| Sqe::set_feature(fid, Nsid::NONE, 0);
    let length_invalid = Status::DATA_SGL_LENGTH_INVALID.with_dnr();
    for length in [0, 7, 9, 4096] {
        assert_eq!(target.ask_with(admin, set(Fid::TIMESTAMP), &vec![0; length]).status, length_invalid);
        assert_eq!(target.ask_with(admin, set(Fid::HOST_BEHAVIOR), &vec![0; length]).status, length_invalid);
    }
    let now = Timestamp::default().with_milliseconds(1000).bits().to_le_bytes();
    assert_eq!(target.ask_with(admin, set(Fid::TIMESTAMP), &now).status, Status::SUCCESS);
    target.now_ns += 2 * SECOND_NS;
    let get = |fid, length| Sqe::get_feature(fid, Nsid::NONE).with_data(Sgl::transport(length));
    let timestamp = target.data(admin, get(Fid::TIMESTAMP, 8));
    // 3000 ms, set by the host.
    assert_eq!(timestamp, [0xB8, 0x0B, 0, 0, 0, 0, 0b010, 0]);
    let mut behavior = HostBehavior::default();
    behavior.acre = 1;
    assert_eq!(target.ask_with(admin, set(Fid::HOST_BEHAVIOR), behavior.as_bytes()).status, Status::SUCCESS);
    assert_eq!(target.data(admin, get(Fid::HOST_BEHAVIOR, 512)), behavior.as_bytes());
    for (acre, etdas, lbafee) in [(1, 0, 1), (1, 1, 0), (2, 0, 0), (0, 1, 0)] {
        (behavior.acre, behavior.etdas, behavior.lbafee) = (acre, etdas, lbafee);
        let answer = target.ask_with(admin, set(Fid::HOST_BEHAVIOR), behavior.as_bytes());
        assert_eq!(answer.status, INVALID_FIELD, "{acre} {etdas} {lbafee}");
    }
    let mut host_id = get(Fid::HOST_ID, 16);
    assert_eq!(target.ask(admin, host_id).status, INVALID_FIELD, "8 bytes are not enough over fabrics");
    host_id.cdw11.set(1);
    assert_eq!(target.data(admin, host_id), association.host.id.to_bytes());
    for (sqe, length) in
        [(get(Fid::TIMESTAMP, 7), 7), (get(Fid::HOST_BEHAVIOR, 511), 511), (get(Fid::TIMESTAMP, 0), 0)]
    {
        assert_eq!(target.ask(admin, sqe).status, length_invalid, "{length} bytes");
    }
}

#[test]
fn the_number_of_queues_is_settled_before_there_are_any() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 0);
    let set =
        |count| Sqe::set_feature(Fid::NUMBER_OF_QUEUES, Nsid::NONE, NumberOfQueues::pairs(count).bits());
    assert_eq!(target.demand(association.admin, set(2)).result, u64::from(NumberOfQueues::pairs(2).bits()));
    let get = Sqe::get_feature(Fid::NUMBER_OF_QUEUES, Nsid::NONE);
    assert_eq!(target.demand(association.admin, get).result, u64::from(NumberOfQueues::pairs(2).bits()));
    target.connect(&association.queue(1));
    assert_eq!(target.ask(association.admin, set(3)).status, Status::COMMAND_SEQUENCE_ERROR.with_dnr());
}

/// hostile inputs M7, C9
#[test]
fn other_opcodes_and_forms_are_refused() {
    let mut target = Target::new();
    let association = target.ready(host(HOST), DISKS, 1);
    let served = [0x02, 0x06, 0x08, 0x09, 0x0A, 0x0C, 0x18, 0x7F];
    for opcode in (0..=0xFFu8).filter(|opcode| !served.contains(opcode)) {
        let answer = target.ask(association.admin, Sqe::new(opcode, Nsid::NONE));
        assert_eq!(answer.status, Status::INVALID_OPCODE.with_dnr(), "{opcode:#x}");
    }
    let fused = Sqe::keep_alive().with_fuse(wire::sqe::Fuse::FIRST);
    assert_eq!(target.ask(association.admin, fused).status, INVALID_FIELD);
}
