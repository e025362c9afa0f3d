//! The controller against a target in memory that keeps to the calls' contract; csi-sanity tries it against a real one.

mod fake_target;

use std::collections::BTreeMap;

use serde_json::json;
use tonic::{Code, Status};

use self::fake_target::{FakeTarget, Shared};
use super::Controller;
use crate::context::{ADDRESSES, NQN, UUID};
use crate::csi_v1::controller_service_capability::Type as CapabilityType;
use crate::csi_v1::controller_service_capability::rpc::Type as Rpc;
use crate::csi_v1::volume_capability::access_mode::Mode;
use crate::csi_v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use crate::csi_v1::volume_content_source::{SnapshotSource, Type as ContentType, VolumeSource};
use crate::csi_v1::*;
use crate::target::Target;
use crate::topology::Segments;

const NODE: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
const OTHER: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-666666666666";
const MIB: i64 = 1 << 20;

fn controller(target: &Shared) -> Controller {
    Controller {
        target: Target::new(Shared::clone(target)),
        pools: vec!["fast".into(), "slow".into()],
        nqn_prefix: "nqn.2026-01.io.nvlane:csi".into(),
        portals: Vec::new(),
        topology: Segments::new(),
        pending: Default::default(),
    }
}

fn start() -> (Shared, Controller) {
    let target = FakeTarget::shared();
    let controller = controller(&target);
    (target, controller)
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn capability(mode: Mode, access: AccessType) -> VolumeCapability {
    VolumeCapability { access_mode: Some(AccessMode { mode: mode.into() }), access_type: Some(access) }
}

fn mount(mode: Mode) -> VolumeCapability {
    capability(mode, AccessType::Mount(MountVolume::default()))
}

fn block(mode: Mode) -> VolumeCapability {
    capability(mode, AccessType::Block(BlockVolume {}))
}

fn wanted(name: &str, required_bytes: i64) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.into(),
        capacity_range: Some(CapacityRange { required_bytes, limit_bytes: 0 }),
        volume_capabilities: vec![mount(Mode::SingleNodeWriter)],
        ..Default::default()
    }
}

fn from_snapshot(id: &str) -> Option<VolumeContentSource> {
    Some(VolumeContentSource {
        r#type: Some(ContentType::Snapshot(SnapshotSource { snapshot_id: id.into() })),
    })
}

fn from_volume(id: &str) -> Option<VolumeContentSource> {
    Some(VolumeContentSource { r#type: Some(ContentType::Volume(VolumeSource { volume_id: id.into() })) })
}

fn publish(id: &str, node: &str, mode: Mode, readonly: bool) -> ControllerPublishVolumeRequest {
    ControllerPublishVolumeRequest {
        volume_id: id.into(),
        node_id: node.into(),
        volume_capability: Some(block(mode)),
        readonly,
        ..Default::default()
    }
}

fn unpublish(id: &str, node: &str) -> ControllerUnpublishVolumeRequest {
    ControllerUnpublishVolumeRequest { volume_id: id.into(), node_id: node.into(), ..Default::default() }
}

#[track_caller]
fn created(controller: &Controller, request: CreateVolumeRequest) -> Volume {
    controller.create_volume(request).expect("created").volume.expect("a volume")
}

#[track_caller]
fn refused<T>(answer: Result<T, Status>, code: Code, part: &str) {
    let status = answer.err().expect("it is refused");
    assert_eq!(status.code(), code, "{}", status.message());
    assert!(status.message().contains(part), "{}", status.message());
}

#[test]
fn a_volume_that_is_created_twice_is_the_same_one_if_the_request_still_fits() {
    let (target, controller) = start();
    let volume = created(&controller, wanted("pvc-1", 10 * MIB + 1));
    assert_eq!((volume.volume_id.as_str(), volume.capacity_bytes), ("fast/pvc-1", 10 * MIB + 4096));
    assert_eq!(created(&controller, wanted("pvc-1", 10 * MIB + 1)), volume);
    assert_eq!(created(&controller, wanted("pvc-1", 5 * MIB)), volume, "it is large enough");
    refused(controller.create_volume(wanted("pvc-1", 20 * MIB)), Code::AlreadyExists, "fast/pvc-1");
    let mut other_blocks = wanted("pvc-1", 10 * MIB);
    other_blocks.parameters = map(&[("blockBytes", "512")]);
    refused(controller.create_volume(other_blocks), Code::AlreadyExists, "name");
    assert_eq!(target.lock().volume_count(), 1);
    assert_eq!(
        created(&controller, CreateVolumeRequest { capacity_range: None, ..wanted("pvc-2", 0) })
            .capacity_bytes,
        1 << 30
    );
    for _ in 0..2 {
        controller
            .delete_volume(DeleteVolumeRequest { volume_id: volume.volume_id.clone(), ..Default::default() })
            .expect("deleted");
    }
    assert_eq!(target.lock().volume_count(), 1);
}

#[test]
fn a_size_that_no_volume_can_have_is_out_of_range() {
    let (_, controller) = start();
    let sized = |required_bytes, limit_bytes| CreateVolumeRequest {
        capacity_range: Some(CapacityRange { required_bytes, limit_bytes }),
        ..wanted("pvc-1", 0)
    };
    refused(controller.create_volume(sized(4097, 8191)), Code::OutOfRange, "limit_bytes");
    refused(controller.create_volume(sized(i64::MAX, 0)), Code::OutOfRange, "too large");
    refused(controller.create_volume(sized(2, 1)), Code::InvalidArgument, "capacity_range");
    refused(controller.create_volume(sized(-1, 0)), Code::InvalidArgument, "required_bytes");
    refused(controller.create_volume(sized(1 << 50, 0)), Code::ResourceExhausted, "");
    assert_eq!(created(&controller, sized(0, 5 * MIB + 1)).capacity_bytes, 5 * MIB);
}

#[test]
fn a_snapshot_is_of_one_volume_and_its_copies_are_as_large() {
    let (_, controller) = start();
    let volume = created(&controller, wanted("pvc-1", 10 * MIB)).volume_id;
    let other = created(&controller, wanted("pvc-2", 10 * MIB)).volume_id;
    let request = |name: &str, source: &str| CreateSnapshotRequest {
        name: name.into(),
        source_volume_id: source.into(),
        ..Default::default()
    };
    // A volume of the same name does not hinder it.
    let snapshot =
        controller.create_snapshot(request("pvc-1", &volume)).expect("created").snapshot.expect("it is");
    assert_eq!(
        (snapshot.snapshot_id.as_str(), snapshot.source_volume_id.as_str()),
        ("fast/snapshot-pvc-1", "fast/pvc-1")
    );
    assert!(snapshot.ready_to_use && snapshot.creation_time.is_some_and(|time| time.seconds > 0));
    assert_eq!(
        controller.create_snapshot(request("pvc-1", &volume)).expect("the same").snapshot,
        Some(snapshot.clone())
    );
    refused(controller.create_snapshot(request("pvc-1", &other)), Code::AlreadyExists, "another volume");
    refused(controller.create_snapshot(request("x", "fast/none")), Code::NotFound, "fast/none");
    refused(controller.create_snapshot(request("", &volume)), Code::InvalidArgument, "name");
    refused(controller.create_snapshot(request("x", "")), Code::InvalidArgument, "source_volume_id");

    let copy_of = |name: &str, source, required_bytes| CreateVolumeRequest {
        volume_content_source: source,
        ..wanted(name, required_bytes)
    };
    let copy = created(&controller, copy_of("copy", from_snapshot(&snapshot.snapshot_id), 0));
    assert_eq!((copy.capacity_bytes, copy.content_source), (10 * MIB, from_snapshot(&snapshot.snapshot_id)));
    assert_eq!(
        created(&controller, copy_of("copy", from_snapshot(&snapshot.snapshot_id), 0)).volume_id,
        "fast/copy"
    );
    refused(
        controller.create_volume(copy_of("copy", from_volume(&volume), 0)),
        Code::AlreadyExists,
        "source",
    );
    refused(controller.create_volume(wanted("copy", MIB)), Code::AlreadyExists, "source");
    assert_eq!(
        created(&controller, copy_of("larger", from_volume(&volume), 20 * MIB)).capacity_bytes,
        20 * MIB
    );
    let small = CreateVolumeRequest {
        capacity_range: Some(CapacityRange { required_bytes: 0, limit_bytes: 5 * MIB }),
        ..copy_of("small", from_volume(&volume), 0)
    };
    refused(controller.create_volume(small), Code::OutOfRange, "limit_bytes");
    refused(
        controller.create_volume(copy_of("y", from_snapshot("fast/none"), 0)),
        Code::NotFound,
        "snapshot_id",
    );
    refused(controller.create_volume(copy_of("y", from_volume("none"), 0)), Code::NotFound, "volume_id");
    refused(controller.create_volume(copy_of("y", from_snapshot(&volume), 0)), Code::NotFound, "snapshot_id");
    let elsewhere = CreateVolumeRequest {
        parameters: map(&[("pool", "slow")]),
        ..copy_of("y", from_snapshot(&snapshot.snapshot_id), 0)
    };
    refused(controller.create_volume(elsewhere), Code::InvalidArgument, "parameters.pool");

    let found = controller
        .get_snapshot(GetSnapshotRequest { snapshot_id: snapshot.snapshot_id.clone(), ..Default::default() });
    assert_eq!(found.expect("found").snapshot, Some(snapshot.clone()));
    for _ in 0..2 {
        let request =
            DeleteSnapshotRequest { snapshot_id: snapshot.snapshot_id.clone(), ..Default::default() };
        controller.delete_snapshot(request).expect("deleted");
    }
    let request = GetSnapshotRequest { snapshot_id: snapshot.snapshot_id, ..Default::default() };
    refused(controller.get_snapshot(request), Code::NotFound, "snapshot_id");
}

#[test]
fn a_volume_is_served_to_the_nodes_that_have_it_and_to_no_other() {
    let (target, controller) = start();
    let id = created(&controller, wanted("pvc-1", MIB)).volume_id;
    let nqn = "nqn.2026-01.io.nvlane:csi:fast:pvc-1";
    let one = Mode::SingleNodeWriter;
    assert_eq!(target.lock().hosts(nqn), None);
    let told = controller.publish(publish(&id, NODE, one, false)).expect("published").publish_context;
    assert_eq!(told.get(NQN).map(String::as_str), Some(nqn));
    assert_eq!(told.get(ADDRESSES).map(String::as_str), Some("192.0.2.1:4420,192.0.2.2:4420"));
    assert_eq!(told.get(UUID).map(String::len), Some(36));
    let changes = target.lock().revision();
    assert_eq!(controller.publish(publish(&id, NODE, one, false)).expect("again").publish_context, told);
    assert_eq!(target.lock().revision(), changes, "nothing has changed");
    refused(controller.publish(publish(&id, NODE, one, true)), Code::AlreadyExists, "readonly");
    refused(controller.publish(publish(&id, OTHER, one, false)), Code::FailedPrecondition, NODE);
    refused(controller.publish(publish(&id, "node-1", one, false)), Code::NotFound, "host NQN");
    refused(controller.publish(publish("fast/none", NODE, one, false)), Code::NotFound, "fast/none");
    let request = DeleteVolumeRequest { volume_id: id.clone(), ..Default::default() };
    refused(controller.delete_volume(request), Code::FailedPrecondition, "served");

    controller.publish(publish(&id, OTHER, Mode::MultiNodeMultiWriter, true)).expect("a reader more");
    assert_eq!(target.lock().hosts(nqn), Some((vec![NODE.into(), OTHER.into()], vec![NODE.into()])));
    let listed = controller.list_volumes(ListVolumesRequest::default()).expect("listed").entries;
    assert_eq!(listed[0].status.clone().expect("it has one").published_node_ids, [NODE, OTHER]);
    let shown = controller.get_volume(ControllerGetVolumeRequest { volume_id: id.clone() }).expect("shown");
    assert_eq!(shown.status.expect("it has one").published_node_ids, [NODE, OTHER]);

    controller.unpublish(unpublish(&id, NODE)).expect("taken");
    assert_eq!(target.lock().hosts(nqn), Some((vec![OTHER.into()], vec![])));
    controller.unpublish(unpublish(&id, NODE)).expect("taken already");
    refused(
        controller.publish(publish(&id, NODE, Mode::SingleNodeWriter, false)),
        Code::FailedPrecondition,
        "one node at a time",
    );
    controller.unpublish(unpublish(&id, "")).expect("taken from all");
    assert_eq!(target.lock().hosts(nqn), None);
    controller.unpublish(unpublish(&id, OTHER)).expect("nobody has it");
    controller.unpublish(unpublish("no-id", OTHER)).expect("nobody can have it");
}

#[test]
fn nodes_authenticate_with_the_secrets_that_their_class_names() {
    let (target, controller) = start();
    let secrets =
        map(&[("dhchapSecret", "file:/etc/nvlane/{node}.key"), ("dhchapCtrlSecret", "credential:csi")]);
    let request = CreateVolumeRequest { parameters: secrets.clone(), ..wanted("pvc-1", MIB) };
    let volume = created(&controller, request);
    assert_eq!(volume.volume_context, secrets);
    let (id, nqn) = (volume.volume_id, "nqn.2026-01.io.nvlane:csi:fast:pvc-1");
    let publish = |node: &str| ControllerPublishVolumeRequest {
        volume_context: secrets.clone(),
        ..publish(&id, node, Mode::MultiNodeMultiWriter, false)
    };
    let entry = |node: &str| json!({ "nqn": node, "dhchap_secret": format!("file:/etc/nvlane/{node}.key"), "dhchap_ctrl_secret": "credential:csi" });
    let told = controller.publish(publish(NODE)).expect("published").publish_context;
    assert_eq!(told.get("secrets").map(String::as_str), Some("dhchapCtrlSecret,dhchapSecret"));
    assert_eq!(target.lock().host_entries(nqn), json!([entry(NODE)]));
    controller.publish(publish(OTHER)).expect("published");
    assert_eq!(target.lock().host_entries(nqn), json!([entry(NODE), entry(OTHER)]));
    target.lock().disturb(1);
    controller.unpublish(unpublish(&id, NODE)).expect("taken");
    assert_eq!(target.lock().host_entries(nqn), json!([entry(OTHER)]));
    let wrong = map(&[("dhchapSecret", "DHHC-1:00:c2VjcmV0:")]);
    let request = CreateVolumeRequest { parameters: wrong.clone(), ..wanted("pvc-2", MIB) };
    refused(controller.create_volume(request), Code::InvalidArgument, "parameters.dhchapSecret");
    let request = ControllerPublishVolumeRequest { volume_context: wrong, ..publish(NODE) };
    refused(controller.publish(request), Code::InvalidArgument, "volume_context.dhchapSecret");
}

#[test]
fn changes_of_others_in_between_are_seen_before_a_node_gets_a_volume() {
    let (target, controller) = start();
    let id = created(&controller, wanted("pvc-1", MIB)).volume_id;
    target.lock().disturb(2);
    controller.publish(publish(&id, NODE, Mode::MultiNodeMultiWriter, false)).expect("published");
    target.lock().disturb(3);
    controller.publish(publish(&id, OTHER, Mode::MultiNodeMultiWriter, false)).expect("published");
    target.lock().disturb(2);
    controller.unpublish(unpublish(&id, NODE)).expect("taken");
    let hosts = vec![OTHER.to_owned()];
    assert_eq!(target.lock().hosts("nqn.2026-01.io.nvlane:csi:fast:pvc-1"), Some((hosts.clone(), hosts)));
    target.lock().disturb(1000);
    refused(controller.unpublish(unpublish(&id, OTHER)), Code::Aborted, "repeat");
}

#[test]
fn pages_lose_and_repeat_nothing_that_stays() {
    let (_, controller) = start();
    for name in ["e", "a", "c", "b", "d"] {
        created(&controller, wanted(name, MIB));
    }
    let page = |max_entries: i32, starting_token: &str| {
        let request = ListVolumesRequest { max_entries, starting_token: starting_token.into() };
        let answer = controller.list_volumes(request).expect("a page");
        let ids: Vec<String> =
            answer.entries.into_iter().filter_map(|entry| Some(entry.volume?.volume_id)).collect();
        (ids, answer.next_token)
    };
    let (first, token) = page(2, "");
    assert_eq!(first, ["fast/a", "fast/b"]);
    for id in ["fast/b", "fast/c"] {
        controller
            .delete_volume(DeleteVolumeRequest { volume_id: id.into(), ..Default::default() })
            .expect("deleted");
    }
    assert_eq!(page(2, &token), (vec!["fast/d".into(), "fast/e".into()], String::new()));
    assert_eq!(page(0, "").0.len(), 3);
    let wrong = |max_entries, token: &str| {
        controller.list_volumes(ListVolumesRequest { max_entries, starting_token: token.into() })
    };
    refused(wrong(0, "invalid-token"), Code::Aborted, "starting_token");
    refused(wrong(-1, ""), Code::InvalidArgument, "max_entries");
}

#[test]
fn snapshots_are_found_by_id_and_by_volume() {
    let (_, controller) = start();
    let ids = |request: ListSnapshotsRequest| -> Vec<String> {
        let entries = controller.list_snapshots(request).expect("listed").entries;
        entries.into_iter().filter_map(|entry| Some(entry.snapshot?.snapshot_id)).collect()
    };
    for (volume, snapshot) in [("a", "s1"), ("b", "s2")] {
        let source_volume_id = created(&controller, wanted(volume, MIB)).volume_id;
        let request = CreateSnapshotRequest { name: snapshot.into(), source_volume_id, ..Default::default() };
        controller.create_snapshot(request).expect("created");
    }
    let by_id = |id: &str| ListSnapshotsRequest { snapshot_id: id.into(), ..Default::default() };
    let by_volume = |id: &str| ListSnapshotsRequest { source_volume_id: id.into(), ..Default::default() };
    assert_eq!(ids(ListSnapshotsRequest::default()), ["fast/snapshot-s1", "fast/snapshot-s2"]);
    assert_eq!(ids(by_id("fast/snapshot-s2")), ["fast/snapshot-s2"]);
    assert_eq!(ids(by_volume("fast/a")), ["fast/snapshot-s1"]);
    for nothing in
        [by_id("none"), by_id("fast/none"), by_id("fast/a"), by_volume("fast/none"), by_volume("none")]
    {
        assert!(ids(nothing).is_empty());
    }
}

#[test]
fn a_request_that_cannot_be_right_names_its_field_and_changes_nothing() {
    let (target, controller) = start();
    let usual = || wanted("pvc-1", MIB);
    let with = |parameters: &[(&str, &str)]| CreateVolumeRequest { parameters: map(parameters), ..usual() };
    let using = |capability| CreateVolumeRequest { volume_capabilities: vec![capability], ..usual() };
    let of = |fs_type: &str| {
        let volume = MountVolume { fs_type: fs_type.into(), ..Default::default() };
        using(capability(Mode::SingleNodeWriter, AccessType::Mount(volume)))
    };
    let no_mode = VolumeCapability { access_mode: None, ..mount(Mode::SingleNodeWriter) };
    let no_type = VolumeCapability { access_type: None, ..mount(Mode::SingleNodeWriter) };
    for (request, part) in [
        (CreateVolumeRequest { name: String::new(), ..usual() }, "name: missing"),
        (CreateVolumeRequest { name: "x".repeat(129), ..usual() }, "at most 128"),
        (CreateVolumeRequest { volume_capabilities: Vec::new(), ..usual() }, "volume_capabilities: missing"),
        (
            CreateVolumeRequest { mutable_parameters: map(&[("iops", "1")]), ..usual() },
            "mutable_parameters.iops",
        ),
        (with(&[("pol", "fast")]), "did you mean pool?"),
        (with(&[("pool", "fats")]), "did you mean fast?"),
        (with(&[("blockBytes", "1000")]), "parameters.blockBytes: write a power of two"),
        (using(no_mode), "access_mode: missing"),
        (using(no_type), "access_type: missing"),
        (using(mount(Mode::MultiNodeMultiWriter)), "volumeMode: Block"),
        (of("btrfs"), "fs_type: write ext4"),
    ] {
        refused(controller.create_volume(request), Code::InvalidArgument, part);
    }
    assert!(
        controller.create_volume(with(&[("csi.storage.k8s.io/pvc/name", "x"), ("pool", "slow")])).is_ok()
    );
    let other = "fast/pvc-9".to_owned();
    let grown = ControllerExpandVolumeRequest { volume_id: other.clone(), ..Default::default() };
    refused(controller.expand_volume(grown), Code::InvalidArgument, "capacity_range: missing");
    refused(
        controller.expand_volume(ControllerExpandVolumeRequest::default()),
        Code::InvalidArgument,
        "volume_id",
    );
    refused(
        controller.delete_volume(DeleteVolumeRequest::default()),
        Code::InvalidArgument,
        "volume_id: missing",
    );
    refused(
        controller.publish(publish("", NODE, Mode::SingleNodeWriter, false)),
        Code::InvalidArgument,
        "volume_id",
    );
    refused(
        controller.publish(publish(&other, "", Mode::SingleNodeWriter, false)),
        Code::InvalidArgument,
        "node_id",
    );
    let request = ControllerPublishVolumeRequest {
        volume_capability: None,
        ..publish(&other, NODE, Mode::Unknown, false)
    };
    refused(controller.publish(request), Code::InvalidArgument, "volume_capability: missing");
    assert_eq!(target.lock().volume_count(), 1);
    assert_eq!(target.lock().revision(), 0);
}

#[test]
fn a_volume_grows_and_never_shrinks() {
    let (_, controller) = start();
    let id = created(&controller, wanted("pvc-1", 10 * MIB)).volume_id;
    let grown = |required_bytes, limit_bytes| {
        controller.expand_volume(ControllerExpandVolumeRequest {
            volume_id: id.clone(),
            capacity_range: Some(CapacityRange { required_bytes, limit_bytes }),
            volume_capability: Some(mount(Mode::SingleNodeWriter)),
            ..Default::default()
        })
    };
    let answer = grown(20 * MIB, 0).expect("larger");
    assert_eq!((answer.capacity_bytes, answer.node_expansion_required), (20 * MIB, true));
    assert_eq!(grown(15 * MIB, 0).expect("it is large enough").capacity_bytes, 20 * MIB);
    refused(grown(5 * MIB, 10 * MIB), Code::OutOfRange, "limit_bytes");
}

#[test]
fn pools_without_shared_blocks_offer_no_snapshots() {
    let (target, controller) = start();
    let has = |controller: &Controller, kind: Rpc| {
        let answer = controller.capabilities(ControllerGetCapabilitiesRequest {}).expect("capabilities");
        let mut kinds = answer.capabilities.into_iter().filter_map(|capability| capability.r#type);
        kinds.any(|CapabilityType::Rpc(rpc)| rpc.r#type() == kind)
    };
    assert!(has(&controller, Rpc::CreateDeleteSnapshot) && has(&controller, Rpc::CloneVolume));
    let wide = Controller { pools: Vec::new(), ..self::controller(&target) };
    refused(wide.create_volume(wanted("pvc-1", MIB)), Code::InvalidArgument, "which one: fast, slow");
    let narrow = Controller { pools: vec!["slow".into()], ..self::controller(&target) };
    assert!(!has(&narrow, Rpc::CreateDeleteSnapshot) && !has(&narrow, Rpc::CloneVolume));
    assert!(has(&narrow, Rpc::CreateDeleteVolume));
    // The others' pools are not its own.
    let id = created(&controller, wanted("pvc-1", MIB)).volume_id;
    narrow
        .delete_volume(DeleteVolumeRequest { volume_id: id.clone(), ..Default::default() })
        .expect("it has none");
    refused(narrow.get_volume(ControllerGetVolumeRequest { volume_id: id }), Code::NotFound, "volume_id");
    assert_eq!(created(&narrow, wanted("pvc-1", MIB)).volume_id, "slow/pvc-1");
    assert_eq!(narrow.list_volumes(ListVolumesRequest::default()).expect("listed").entries.len(), 1);
    let room = narrow.capacity(GetCapacityRequest::default()).expect("a size").available_capacity;
    assert!(room > 0 && room < 1 << 40, "{room}");
}

#[test]
fn a_topology_that_does_not_reach_the_target_gets_no_volume() {
    let (target, _) = start();
    let controller = Controller { topology: map(&[("zone", "a")]), ..controller(&target) };
    let at = |zone: &str| TopologyRequirement {
        requisite: vec![Topology { segments: map(&[("zone", zone)]) }],
        preferred: Vec::new(),
    };
    let request =
        |zone| CreateVolumeRequest { accessibility_requirements: Some(at(zone)), ..wanted("pvc-1", MIB) };
    refused(controller.create_volume(request("b")), Code::ResourceExhausted, "accessibility_requirements");
    let volume = created(&controller, request("a"));
    assert_eq!(volume.accessible_topology, [Topology { segments: map(&[("zone", "a")]) }]);
    let room = |zone| {
        let accessible_topology = Some(Topology { segments: map(&[("zone", zone)]) });
        controller
            .capacity(GetCapacityRequest { accessible_topology, ..Default::default() })
            .expect("a size")
            .available_capacity
    };
    assert!(room("a") > 0);
    assert_eq!(room("b"), 0);
}

#[test]
fn two_calls_for_one_volume_do_not_run_at_once() {
    let (_, controller) = start();
    let working = controller.pending.begin("fast/pvc-1").expect("free");
    refused(controller.create_volume(wanted("pvc-1", MIB)), Code::Aborted, "another call");
    drop(working);
    created(&controller, wanted("pvc-1", MIB));
}

#[test]
fn a_target_that_is_gone_is_unavailable_and_a_probe_says_so() {
    let (target, controller) = start();
    target.lock().is_gone = true;
    refused(controller.create_volume(wanted("pvc-1", MIB)), Code::Unavailable, "gone");
    assert!(controller.problem().is_some_and(|problem| problem.contains("gone")));
    target.lock().is_gone = false;
    assert_eq!(controller.problem(), None);
}
