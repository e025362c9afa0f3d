//! The host library in a stranger's project: the examples of `crates/host/host/examples`, in a directory outside the
//! workspace, without TLS and so without a C compiler, against a target.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::command::{cargo, program, root, run as run_command, target_dir};

/// The examples, each with the namespace that it uses.
const EXAMPLES: [(&str, u32); 5] =
    [("block", 1), ("async_block", 1), ("lane", 1), ("key_value", 2), ("reconnect", 1)];

/// The example during which the target restarts, and the line at which it has begun.
const RESTARTED: (&str, &str) = ("reconnect", "writing");

/// The subsystem of the target.
const NQN: &str = "nqn.2016-06.io.nvlane:stranger";

/// The project's description: `debug` as in the workspace.
const MANIFEST: &str = r#"
[package]
name = "stranger"
version = "0.1.0"
edition = "2024"

[dependencies]
nvlane-host = { path = "HOST", default-features = false }

[profile.dev]
debug = "line-tables-only"
"#;

/// A program that demands TLS, which the project is built without: connecting fails before anything is sent.
const DEMANDS_TLS: &str = r#"
use nvlane_host::{Association, Error, Options};

fn main() {
    let address = "192.0.2.1:4420/nqn.2016-06.io.nvlane:stranger".parse().unwrap();
    let error = Association::connect(&address, Options::default().with_concat(true)).map(drop).unwrap_err();
    assert!(matches!(error, Error::NotBuilt { feature: "tls", .. }), "{error}");
}
"#;

/// Builds the project and runs each example.
///
/// # Errors
/// An example does not build, or does not end well; or a dependency compiles C.
pub(crate) fn run() -> Result<()> {
    let nvlane = program("nvlane")?;
    let dir = target_dir().join("stranger");
    fs::create_dir_all(dir.join("src/bin"))?;
    let host = root().join("crates/host/host");
    fs::write(
        dir.join("Cargo.toml"),
        MANIFEST.replace("HOST", &host.display().to_string()) + "[workspace]\n",
    )?;
    // The versions that the workspace has, which are downloaded.
    fs::copy(root().join("Cargo.lock"), dir.join("Cargo.lock"))?;
    for (name, _) in EXAMPLES {
        let file = format!("{name}.rs");
        fs::copy(host.join("examples").join(&file), dir.join("src/bin").join(&file)).with_context(|| file)?;
    }
    fs::write(dir.join("src/bin/demands_tls.rs"), DEMANDS_TLS)?;
    run_command(&mut cargo_in(&dir, &["build", "--offline"]))?;
    no_c(&dir)?;
    let (disk, built) = (dir.join("disk"), dir.join("target/debug"));
    run_command(&mut Command::new(built.join("demands_tls")))?;
    let mut target = Target::start(&nvlane, &disk, 0)?;
    for (name, nsid) in EXAMPLES {
        let mut example = Command::new(built.join(name));
        example.arg(format!("127.0.0.1:{}/{NQN}?ns={nsid}", target.port)).stdout(Stdio::piped());
        let mut child = example.spawn().with_context(|| name)?;
        let mut has_restarted = false;
        for line in BufReader::new(child.stdout.take().expect("it is piped")).lines() {
            let line = line?;
            println!("{name}: {line}");
            if (name, line.as_str()) == RESTARTED {
                let port = target.port;
                drop(target);
                target = Target::start(&nvlane, &disk, port)?;
            }
            has_restarted |= line == "up again";
        }
        let status = child.wait()?;
        ensure!(status.success(), "{name}: {status}");
        ensure!(has_restarted == (name == RESTARTED.0), "{name}: the target has not been seen to restart");
    }
    Ok(())
}

/// A cargo command in the project, with a target directory of its own.
fn cargo_in(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = cargo(arguments);
    command.current_dir(dir).env("CARGO_TARGET_DIR", dir.join("target"));
    command
}

/// No dependency compiles C.
fn no_c(dir: &Path) -> Result<()> {
    let arguments = ["tree", "--offline", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"];
    let tree = cargo_in(dir, &arguments).output()?;
    ensure!(tree.status.success(), "cargo tree: {}", String::from_utf8_lossy(&tree.stderr));
    let names = String::from_utf8(tree.stdout)?;
    let compilers: Vec<&str> = names
        .lines()
        .filter(|name| ["cc ", "cmake ", "bindgen "].iter().any(|c| name.starts_with(c)))
        .collect();
    ensure!(names.contains("nvlane-host "), "no dependencies: {names}");
    ensure!(compilers.is_empty(), "plain TCP compiles C, by {compilers:?}");
    Ok(())
}

/// A target with a namespace of blocks in a file, which survives its restart, and one of keys.
struct Target {
    child: Child,
    port: u16,
}

impl Target {
    /// Listens on this port of the loopback interface; on any free one if it is 0.
    fn start(nvlane: &Path, disk: &Path, port: u16) -> Result<Self> {
        let mut command = Command::new(nvlane);
        command
            .args(["target", "--log", "warn", "--nqn", NQN, "--listen", &format!("127.0.0.1:{port}")])
            .args(["--namespace", &format!("file:{}?size=64M", disk.display())])
            .args(["--namespace", "kv:ram:64M"])
            .args(["--run", "echo \"$NVLANE_ADDR\"; exec cat >/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| nvlane.display().to_string())?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line)?;
        let port = line.split(['/', '\n']).next().and_then(|place| place.rsplit_once(':')?.1.parse().ok());
        let port = port.with_context(|| format!("the target's address: {line:?}"));
        Ok(Self { child, port: port? })
    }
}

impl Drop for Target {
    /// Kills it.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
