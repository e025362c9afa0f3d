//! A pair of virtual Ethernet devices with a target behind it, in its own network namespace. Needs root, `ip` and
//! `ethtool`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Time limit for a target to start.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn run(program: &str, arguments: &str) -> Result<(), String> {
    let output = Command::new(program).args(arguments.split_ascii_whitespace()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{program} {arguments}: {said}")) }
}

/// A network namespace whose device has its peer here; removed on drop.
pub(crate) struct Network {
    pub(crate) namespace: String,
    near: String,
    /// The device in the namespace.
    #[allow(dead_code)] // Each test program uses a part of it.
    pub(crate) far: String,
    pub(crate) address: String,
}

impl Network {
    /// `None` if it cannot be created, which is printed.
    pub(crate) fn new(number: u32) -> Option<Self> {
        let id = std::process::id();
        let [_, _, high, low] = (id << 2).to_be_bytes();
        let high = high ^ 0x80;
        let network = Self {
            namespace: format!("nvlane-test-{id}-{number}"),
            near: format!("nvt{id}n{number}"),
            far: format!("nvt{id}f{number}"),
            address: format!("198.19.{high}.{}", low | 2),
        };
        let Self { namespace, near, far, .. } = &network;
        if let Err(error) = run("ip", &format!("netns add {namespace}")) {
            eprintln!("skipped: {error}");
            return None;
        }
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

/// A target in that namespace, with a state file.
pub(crate) struct Target {
    child: Child,
    pub(crate) address: host::Address,
    state: PathBuf,
}

impl Target {
    /// Serves this storage with the program nvlane.
    pub(crate) fn start(
        program: &str,
        network: &Network,
        directory: &Path,
        storage: &str,
        arguments: &str,
    ) -> Self {
        let state = directory.join("state.json");
        let mut child = Command::new("ip")
            .args(["netns", "exec", &network.namespace, program, "target"])
            .args(["--listen", &format!("{}:0", network.address), "--namespace", storage])
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

    pub(crate) fn state(&self) -> Value {
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
