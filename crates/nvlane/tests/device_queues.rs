//! Lanes over a pair of virtual Ethernet devices with two queues each, which can be polled: each queue has its reactor, and that polls it.
//! Takes root, `ip` and `ethtool`.
#![allow(clippy::cast_possible_truncation)]

#[allow(dead_code)] // Each test program uses a part of it.
#[path = "end_to_end/exercise.rs"]
mod exercise;
#[allow(dead_code)]
#[path = "end_to_end/setup.rs"]
mod setup;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use host::{Association, BusyPoll, LaneSet, Options};
use serde_json::Value;
use wire::id::Nsid;

use exercise::{Load, Model};
use setup::{PATIENCE, Random, engines, options};

const LANE_COUNT: u16 = 8;

fn run(program: &str, arguments: &str) -> Result<(), String> {
    let output = Command::new(program).args(arguments.split_ascii_whitespace()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{program} {arguments}: {said}")) }
}

/// A network namespace with a device whose other end is here; gone when it is dropped.
struct Network {
    namespace: String,
    near: String,
    address: String,
}

impl Network {
    /// `None` where there can be none, which is said.
    fn new(number: u32) -> Option<Self> {
        let id = std::process::id();
        let [_, _, high, low] = (id << 2).to_be_bytes();
        let high = high ^ 0x80;
        let network = Self {
            namespace: format!("nvlane-test-{id}-{number}"),
            near: format!("nvt{id}n{number}"),
            address: format!("198.19.{high}.{}", low | 2),
        };
        let (namespace, near) = (&network.namespace, &network.near);
        if let Err(error) = run("ip", &format!("netns add {namespace}")) {
            eprintln!("skipped: {error}");
            return None;
        }
        let far = format!("nvt{id}f{number}");
        let offloads = "gro on tso off";
        let steps = [
            (
                "ip",
                format!(
                    "link add {near} numtxqueues 2 numrxqueues 2 type veth peer name {far} numtxqueues 2 numrxqueues 2 netns {namespace}"
                ),
            ),
            ("ip", format!("address add 198.19.{high}.{}/30 dev {near}", low | 1)),
            ("ip", format!("-n {namespace} address add {}/30 dev {far}", network.address)),
            ("ethtool", format!("-K {near} {offloads}")),
            ("ip", format!("netns exec {namespace} ethtool -K {far} {offloads}")),
            ("ip", format!("link set {near} up")),
            ("ip", format!("-n {namespace} link set {far} up")),
            ("ip", format!("-n {namespace} link set lo up")),
        ];
        for (program, arguments) in steps {
            if let Err(error) = run(program, &arguments) {
                eprintln!("skipped: {error}");
                return None;
            }
        }
        Some(network)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = run("ip", &format!("link delete {}", self.near));
        let _ = run("ip", &format!("netns delete {}", self.namespace));
    }
}

/// A target in that namespace, which tells how it is.
struct Target {
    child: Child,
    address: host::Address,
    state: PathBuf,
}

impl Target {
    fn start(network: &Network, directory: &Path, arguments: &str) -> Self {
        let state = directory.join("state.json");
        let mut child = Command::new("ip")
            .args(["netns", "exec", &network.namespace, env!("CARGO_BIN_EXE_nvlane"), "target"])
            .args(["--listen", &format!("{}:0", network.address), "--namespace", "ram:1M"])
            .arg("--state")
            .arg(&state)
            .args(arguments.split_ascii_whitespace())
            .args(["--run", "echo $NVLANE_ADDR; cat >/dev/null"])
            .env("NVLANE_LOG", "warn")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a program that starts");
        let mut address = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut address).expect("a line");
        Self { child, address: address.trim().parse().expect("an address"), state }
    }

    fn state(&self) -> Value {
        let _ = std::fs::remove_file(&self.state);
        run("kill", &format!("-USR1 {}", self.child.id())).expect("a target that runs");
        let until = Instant::now() + PATIENCE;
        loop {
            if let Ok(text) = std::fs::read_to_string(&self.state) {
                return serde_json::from_str(&text).expect("JSON");
            }
            assert!(Instant::now() < until, "the target does not tell how it is");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
fn each_device_queue_has_its_reactor_which_polls_it() {
    for (number, engine) in (0..).zip(engines()) {
        let Some(network) = Network::new(number) else { return };
        let directory = tempfile::tempdir().expect("a directory");
        let engine = match engine {
            reactor::EngineKind::Uring => "uring",
            reactor::EngineKind::Epoll => "epoll",
        };
        let cores = format!("{}", reactor::CoreList::allowed().expect("cores"));
        let arguments = format!("--engine {engine} --cores {cores} --placement napi --busy-poll 50");
        let target = Target::start(&network, directory.path(), &arguments);
        let busy_poll = BusyPoll::us(50);
        let wanted = Options { lanes: LANE_COUNT, depth: 8, busy_poll, spin: PATIENCE, ..options() };
        let association = Association::connect(&target.address, wanted).expect("a host connects");
        let lanes = (0..LANE_COUNT).map(|_| association.lane().expect("a lane")).collect();
        let mut lanes: LaneSet<Vec<u8>> = LaneSet::new(lanes).expect("a set");
        let namespace = association.namespace(Nsid::new(1)).expect("a namespace");
        let mut model = Model::new(&namespace, 1);
        let mut load = || {
            let load = Load { commands: 2000, bytes: 8 << 20, blocks_max: 4 };
            model.run(&mut lanes, &namespace, load, &mut Random::new(1));
        };
        load();
        let before = target.state();
        load();
        let after = target.state();
        for lane in lanes.lanes() {
            assert!(
                lane.arrival().napi_id.is_some(),
                "GRO without TSO gives the host's device a context to poll"
            );
            assert_eq!(lane.counters().busy_poll_refusals, 0);
        }
        let queues = after["subsystems"][0]["controllers"][0]["queues"].as_array().expect("queues");
        let mut reactors: BTreeMap<u64, u64> = BTreeMap::new();
        for queue in queues {
            let [napi, reactor] = ["napi_id", "reactor"].map(|key| queue[key].as_u64().expect("a number"));
            assert_ne!(napi, 0, "{queue}");
            assert_eq!(
                *reactors.entry(napi).or_insert(reactor),
                reactor,
                "one reactor for each queue: {queues:?}"
            );
        }
        assert_eq!(after["placement"]["by_napi"], LANE_COUNT, "{}", after["placement"]);
        assert_eq!(after["placement"]["fell_back"], 0);
        let two = reactors.len() == 2 && after["reactors"].as_array().map_or(0, Vec::len) > 1;
        let places: std::collections::BTreeSet<u64> = reactors.values().copied().collect();
        assert_eq!(
            places.len() > 1,
            two,
            "queues have reactors of their own while there are any: {reactors:?}"
        );
        for reactor in after["reactors"].as_array().expect("reactors") {
            let polling = &reactor["busy_poll"];
            // Linux 6.9; sockets poll everywhere.
            assert!(
                polling["engine"] == "on" || polling["engine"].as_str().unwrap_or("").contains("refused")
            );
            assert!(polling["refused_count"] == 0, "{polling}");
        }
        let polled = |state: &Value| state["busy_polled_packets"].as_u64().expect("a counter of the kernel");
        assert!(polled(&after) > polled(&before), "the kernel counts packets that were taken in by polling");
    }
}
