//! The node against a machine in memory; a guest with a real kernel tries it against real mounts (interop/disk/csi.sh).

mod fake_machine;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tonic::{Code, Status};

use self::fake_machine::FakeMachine;
use super::Node;
use crate::csi_v1::volume_capability::access_mode::Mode;
use crate::csi_v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use crate::csi_v1::*;
use crate::topology::Segments;

const ID: &str = "fast/pvc-1";
const NQN: &str = "nqn.2026-01.io.nvlane:csi:fast:pvc-1";

/// A node, its machine, and a directory with kubelet's paths.
struct Fixture {
    directory: tempfile::TempDir,
    machine: Arc<FakeMachine>,
    node: Node,
}

impl Fixture {
    fn new() -> Self {
        let machine = Arc::new(FakeMachine::default());
        let node = Node {
            machine: Box::new(Arc::clone(&machine)),
            node_id: "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555".into(),
            nqn_prefix: "nqn.2026-01.io.nvlane:csi".into(),
            volume_count_max: 0,
            secrets: Default::default(),
            topology: Segments::new(),
            pending: Default::default(),
        };
        Self { directory: tempfile::tempdir().expect("a directory"), machine, node }
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_string_lossy().into_owned()
    }

    fn stage(&self, capability: VolumeCapability) -> Result<(), Status> {
        self.node.stage(self.to_stage(capability)).map(drop)
    }

    fn to_stage(&self, capability: VolumeCapability) -> NodeStageVolumeRequest {
        NodeStageVolumeRequest {
            volume_id: ID.into(),
            staging_target_path: self.path("staging"),
            publish_context: context(),
            volume_capability: Some(capability),
            ..Default::default()
        }
    }

    fn unstage(&self) -> Result<(), Status> {
        let request =
            NodeUnstageVolumeRequest { volume_id: ID.into(), staging_target_path: self.path("staging") };
        self.node.unstage(request).map(drop)
    }

    fn publish(&self, name: &str, capability: VolumeCapability, readonly: bool) -> Result<(), Status> {
        let request = NodePublishVolumeRequest {
            volume_id: ID.into(),
            staging_target_path: self.path("staging"),
            target_path: self.path(name),
            publish_context: context(),
            volume_capability: Some(capability),
            readonly,
            ..Default::default()
        };
        self.node.publish(request).map(drop)
    }

    fn unpublish(&self, name: &str) -> Result<(), Status> {
        let request = NodeUnpublishVolumeRequest { volume_id: ID.into(), target_path: self.path(name) };
        self.node.unpublish(request).map(drop)
    }

    fn is_there(&self, name: &str) -> bool {
        Path::new(&self.path(name)).exists()
    }
}

fn context() -> BTreeMap<String, String> {
    let addresses = "192.0.2.1:4420,[2001:db8::1]:4420";
    let uuid = "00000000-0000-4000-8000-000000000001";
    [("nqn", NQN), ("addresses", addresses), ("uuid", uuid)]
        .map(|(key, value)| (key.into(), value.into()))
        .into()
}

fn mount(mode: Mode, fs_type: &str) -> VolumeCapability {
    let volume =
        MountVolume { fs_type: fs_type.into(), mount_flags: vec!["noatime".into()], ..Default::default() };
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Mount(volume)),
    }
}

fn usual() -> VolumeCapability {
    mount(Mode::SingleNodeWriter, "")
}

fn block() -> VolumeCapability {
    VolumeCapability { access_type: Some(AccessType::Block(BlockVolume {})), ..usual() }
}

#[track_caller]
fn refused<T>(answer: Result<T, Status>, code: Code, part: &str) {
    let status = answer.err().expect("it is refused");
    assert_eq!(status.code(), code, "{}", status.message());
    assert!(status.message().contains(part), "{}", status.message());
}

#[test]
fn a_volume_that_wants_a_secret_is_connected_with_it_or_not_at_all() {
    const SECRET: &str = "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
    let fixture = Fixture::new();
    let mut request = fixture.to_stage(block());
    request.publish_context.insert("secrets".into(), "dhchapSecret".into());
    let refused = fixture.node.stage(request.clone()).expect_err("there is no secret");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("node-stage-secret-name"), "{}", refused.message());
    assert!(!fixture.machine.is_connected(NQN));
    request.secrets.insert("dhchapSecret".into(), SECRET.into());
    fixture.node.stage(request).expect("staged");
    let used = fixture.machine.secrets();
    assert_eq!((used.host.as_deref(), used.controller), (Some(SECRET), None));
}

#[test]
fn a_blank_volume_gets_a_file_system_once_and_goes_back_step_by_step() {
    let fixture = Fixture::new();
    for _ in 0..2 {
        fixture.stage(usual()).expect("staged");
    }
    let staging = fixture.path("staging");
    assert_eq!(
        fixture.machine.take_runs(),
        [
            "mkfs.ext4 -q -m 0 /dev/nvme0n1".to_owned(),
            format!("mount -t ext4 -o noatime /dev/nvme0n1 {staging}"),
            "resize2fs /dev/nvme0n1".to_owned(),
        ]
    );
    for _ in 0..2 {
        fixture.publish("pods/1", usual(), false).expect("published");
        fixture.publish("pods/2", usual(), true).expect("published, to be read");
    }
    refused(fixture.publish("pods/2", usual(), false), Code::AlreadyExists, "read-only");
    assert_eq!(
        fixture.machine.mounted(),
        [(staging, false), (fixture.path("pods/1"), false), (fixture.path("pods/2"), true)]
    );
    // Pods use the volume: the connection and the mounts stay.
    fixture.machine.take_runs();
    fixture.unstage().expect("unstaged");
    assert!(fixture.machine.is_connected(NQN));
    for _ in 0..2 {
        fixture.unpublish("pods/1").expect("unpublished");
        fixture.unpublish("pods/2").expect("unpublished");
        fixture.unstage().expect("unstaged");
    }
    assert!(!fixture.is_there("pods/1") && !fixture.is_there("pods/2"));
    assert!(fixture.machine.mounted().is_empty() && !fixture.machine.is_connected(NQN));
    // The second time its files are there.
    fixture.machine.take_runs();
    fixture.stage(usual()).expect("staged");
    assert!(!fixture.machine.take_runs().iter().any(|run| run.starts_with("mkfs")));
}

#[test]
fn what_is_on_a_volume_is_never_replaced() {
    let fixture = Fixture::new();
    for content in ["xfs", "LVM2_member", "a partition table (gpt)"] {
        fixture.machine.set_content(Some(content));
        refused(fixture.stage(mount(Mode::SingleNodeWriter, "ext4")), Code::FailedPrecondition, content);
    }
    refused(fixture.stage(usual()), Code::FailedPrecondition, "partition table");
    assert_eq!(fixture.machine.take_runs(), Vec::<String>::new());
    fixture.machine.set_content(Some("xfs"));
    fixture.stage(usual()).expect("a file system that is known");
    let staging = fixture.path("staging");
    let mounted = format!("mount -t xfs -o noatime,nouuid /dev/nvme0n1 {staging}");
    assert_eq!(fixture.machine.take_runs(), [mounted, format!("xfs_growfs {staging}")]);
}

#[test]
fn a_volume_that_may_not_be_written_is_mounted_as_it_is() {
    let fixture = Fixture::new();
    fixture.machine.set_read_only();
    refused(fixture.stage(usual()), Code::FailedPrecondition, "blank, and read-only");
    fixture.machine.set_content(Some("ext4"));
    fixture.stage(mount(Mode::MultiNodeReaderOnly, "ext4")).expect("staged");
    let staging = fixture.path("staging");
    assert_eq!(
        fixture.machine.take_runs(),
        [format!("mount -t ext4 -o noatime,ro,noload /dev/nvme0n1 {staging}")]
    );
}

#[test]
fn a_block_volume_is_the_file_of_its_device() {
    let fixture = Fixture::new();
    refused(fixture.publish("pods/1", block(), false), Code::FailedPrecondition, "not staged");
    fixture.stage(block()).expect("staged");
    assert_eq!(fixture.machine.take_runs(), Vec::<String>::new());
    for _ in 0..2 {
        fixture.publish("pods/1", block(), false).expect("published");
    }
    assert_eq!(
        fixture.machine.take_runs(),
        [format!("mount --bind /dev/nvme0n1 {}", fixture.path("pods/1"))]
    );
    assert!(Path::new(&fixture.path("pods/1")).is_file());
    refused(fixture.publish("pods/2", block(), true), Code::FailedPrecondition, "readonly");
    let stats = |volume_path: String| {
        fixture.node.stats(NodeGetVolumeStatsRequest {
            volume_id: ID.into(),
            volume_path,
            ..Default::default()
        })
    };
    assert_eq!(stats(fixture.path("pods/1")).expect("its size").usage[0].total, 1 << 30);
    refused(stats(fixture.path("pods/2")), Code::NotFound, "volume_path");
    fixture.unstage().expect("a pod has it");
    assert!(fixture.machine.is_connected(NQN));
    fixture.unpublish("pods/1").expect("unpublished");
    assert!(!fixture.is_there("pods/1"));
    fixture.unstage().expect("unstaged");
    assert!(!fixture.machine.is_connected(NQN));
}

#[test]
fn a_volume_for_one_pod_is_at_one_path() {
    let fixture = Fixture::new();
    let one = || mount(Mode::SingleNodeSingleWriter, "");
    fixture.stage(one()).expect("staged");
    fixture.publish("pods/1", one(), false).expect("published");
    fixture.publish("pods/1", one(), false).expect("the same");
    refused(fixture.publish("pods/2", one(), false), Code::FailedPrecondition, "pods/1");
    fixture.unpublish("pods/1").expect("unpublished");
    fixture.publish("pods/2", one(), false).expect("published");
}

#[test]
fn a_mount_that_fails_leaves_nothing_for_a_pod_to_find() {
    let fixture = Fixture::new();
    fixture.machine.fail_at("mount -t");
    refused(fixture.stage(usual()), Code::Internal, "mount -t");
    fixture.machine.fail_at("mount -o remount");
    fixture.stage(usual()).expect("staged");
    refused(fixture.publish("pods/1", usual(), true), Code::Internal, "remount");
    assert!(!fixture.is_there("pods/1"), "it would be written to");
    assert_eq!(fixture.machine.mounted().len(), 1);
}

#[test]
fn what_is_not_ours_at_a_path_stays() {
    let fixture = Fixture::new();
    fixture.stage(usual()).expect("staged");
    std::fs::create_dir_all(fixture.path("pods/1")).expect("a directory");
    std::fs::write(fixture.path("pods/1/file"), "mine").expect("a file");
    refused(fixture.unpublish("pods/1"), Code::Internal, "pods/1");
    std::fs::write(fixture.path("pods/2"), "mine").expect("a file");
    refused(fixture.unpublish("pods/2"), Code::Internal, "it stays");
    assert!(fixture.is_there("pods/1/file") && fixture.is_there("pods/2"));
    fixture.machine.mount_other(&fixture.path("pods/3"));
    refused(fixture.publish("pods/3", usual(), false), Code::AlreadyExists, "/dev/sda1");
    fixture.unpublish("pods/3").expect("it is not there");
    assert_eq!(fixture.machine.mounted().len(), 2);
}

#[test]
fn the_mounts_of_a_lost_device_are_taken_away() {
    let fixture = Fixture::new();
    fixture.stage(usual()).expect("staged");
    fixture.publish("pods/1", usual(), false).expect("published");
    fixture.machine.lose(NQN);
    fixture.unpublish("pods/1").expect("unpublished");
    fixture.unstage().expect("unstaged");
    assert!(fixture.machine.mounted().is_empty() && !fixture.is_there("pods/1"));
}

#[test]
fn a_volume_that_has_grown_gets_its_file_system_grown() {
    let fixture = Fixture::new();
    let expand = |required_bytes, path: &str| {
        fixture.node.expand(NodeExpandVolumeRequest {
            volume_id: ID.into(),
            volume_path: fixture.path(path),
            capacity_range: Some(CapacityRange { required_bytes, limit_bytes: 0 }),
            ..Default::default()
        })
    };
    refused(expand(1, "pods/1"), Code::NotFound, "volume_path");
    fixture.stage(mount(Mode::SingleNodeWriter, "xfs")).expect("staged");
    fixture.publish("pods/1", usual(), false).expect("published");
    fixture.machine.take_runs();
    fixture.machine.grow_after_rescans(3);
    assert_eq!(expand(2 << 30, "pods/1").expect("grown").capacity_bytes, 2 << 30);
    assert_eq!(fixture.machine.take_runs(), [format!("xfs_growfs {}", fixture.path("pods/1"))]);
}

#[test]
fn a_request_that_cannot_be_right_names_its_field() {
    let fixture = Fixture::new();
    let usual_request = || fixture.to_stage(usual());
    let told = |key: &str, value: &str| {
        let mut request = usual_request();
        request.publish_context.insert(key.into(), value.into());
        request
    };
    let untold = NodeStageVolumeRequest { publish_context: BTreeMap::new(), ..usual_request() };
    for (request, part) in [
        (NodeStageVolumeRequest { volume_id: String::new(), ..usual_request() }, "volume_id: missing"),
        (
            NodeStageVolumeRequest { staging_target_path: String::new(), ..usual_request() },
            "staging_target_path: missing",
        ),
        (NodeStageVolumeRequest { staging_target_path: "a/b".into(), ..usual_request() }, "an absolute path"),
        (NodeStageVolumeRequest { volume_capability: None, ..usual_request() }, "volume_capability: missing"),
        (untold, "publish_context.nqn: missing"),
        (told("nqn", "nqn.2026-01.io.nvlane:csi:fast:pvc-2"), "--nqn-prefix"),
        (told("addresses", "192.0.2.1:4420,host"), "publish_context.addresses"),
        (told("addresses", "192.0.2.1:4420,ctrl_loss_tmo=1"), "publish_context.addresses"),
        (told("uuid", "1,hostnqn=x"), "publish_context.uuid"),
    ] {
        refused(fixture.node.stage(request), Code::InvalidArgument, part);
    }
    refused(
        fixture.node.stage(NodeStageVolumeRequest { volume_id: "none".into(), ..usual_request() }),
        Code::NotFound,
        "none",
    );
    refused(
        fixture.node.unpublish(NodeUnpublishVolumeRequest::default()),
        Code::InvalidArgument,
        "volume_id",
    );
    refused(fixture.node.unstage(NodeUnstageVolumeRequest::default()), Code::InvalidArgument, "volume_id");
    let request = |volume_id: &str, volume_path: &str| NodeGetVolumeStatsRequest {
        volume_id: volume_id.into(),
        volume_path: volume_path.into(),
        ..Default::default()
    };
    refused(fixture.node.stats(request("", "some/path")), Code::InvalidArgument, "volume_id");
    refused(fixture.node.stats(request(ID, "")), Code::InvalidArgument, "volume_path");
    refused(fixture.node.stats(request("none", "some/path")), Code::NotFound, "none");
    assert!(fixture.machine.take_runs().is_empty() && !fixture.machine.is_connected(NQN));
}
