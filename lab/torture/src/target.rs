//! A `nvlane target` process that can be killed at any moment and restarted at the same address.

use std::fs::File;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use host::Address;
use peer::port::free_address;
use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::spawner;

/// Time limit until a target is ready. After a kill it may have to wait until the kernel releases its predecessor's
/// resources.
const START_LIMIT: Duration = Duration::from_secs(20);

/// The subsystem.
pub(crate) const NQN: &str = "nqn.2026-01.io.nvlane:torture";

/// Configuration of a target process.
#[derive(Clone, Debug)]
pub(crate) struct TargetOptions {
    /// Path of the `nvlane` program.
    pub(crate) program: PathBuf,
    /// Storage, in the syntax of `--namespace`; none if a configuration file among the arguments has the subsystem
    /// [`NQN`].
    pub(crate) namespaces: Vec<String>,
    /// Further options of `nvlane target`.
    pub(crate) arguments: Vec<String>,
    /// Path of its log.
    pub(crate) log: PathBuf,
}

impl TargetOptions {
    /// Path of its state file.
    fn state_file(&self) -> PathBuf {
        self.log.with_extension("state")
    }
}

/// A running target process, killed on drop, and when this process ends.
pub(crate) struct Target {
    options: TargetOptions,
    place: SocketAddr,
    child: Child,
}

impl Target {
    /// Starts a target on a free port, and waits until it is ready.
    pub(crate) fn start(options: TargetOptions) -> Result<Self> {
        let place = free_address()?;
        Self::start_at(options, place)
    }

    /// Starts a target at this address, and waits until it is ready.
    pub(crate) fn start_at(options: TargetOptions, place: SocketAddr) -> Result<Self> {
        let said = length(&options.log);
        let child = spawn(&options, place)?;
        let mut target = Self { options, place, child };
        target.await_ready(said)?;
        Ok(target)
    }

    /// Kills the process with SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill().context("cannot kill the target")?;
        self.child.wait().context("the target's end")?;
        Ok(())
    }

    /// Restarts the target at the same address, on the same storage.
    pub(crate) fn restart(&mut self) -> Result<()> {
        await_free(self.place)?;
        let said = length(&self.options.log);
        self.child = spawn(&self.options, self.place)?;
        self.await_ready(said)
    }

    /// Requests the target's state; `None` if it does not answer.
    pub(crate) fn state(&self) -> Option<Value> {
        let file = self.options.state_file();
        // An existing state file is older.
        let _ = std::fs::remove_file(&file);
        rustix::process::kill_process(Pid::from_child(&self.child), Signal::USR1).ok()?;
        let until = Instant::now() + START_LIMIT;
        while Instant::now() < until {
            if let Ok(text) = std::fs::read_to_string(&file) {
                return serde_json::from_str(&text).ok();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// Has the target read its configuration file again, some time after this call.
    pub(crate) fn reload(pid: u32) -> Result<()> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("a process")?;
        Ok(rustix::process::kill_process(pid, Signal::HUP)?)
    }

    /// Restarts the target and kills it after a while, whether it is ready by then or not.
    pub(crate) fn restart_and_kill(&mut self, after: Duration) -> Result<()> {
        self.child = spawn(&self.options, self.place)?;
        std::thread::sleep(after);
        self.kill()
    }

    /// Waits until the target logs that it is ready, after the first `said` bytes of its log. (A successful connect
    /// would prove nothing: the kernel may keep the listener of a killed process for a moment.)
    fn await_ready(&mut self, said: usize) -> Result<()> {
        let until = Instant::now() + START_LIMIT;
        loop {
            let ended = self.child.try_wait()?;
            let log = std::fs::read_to_string(&self.options.log).unwrap_or_default();
            let log = log.get(said..).unwrap_or_default();
            if let Some(status) = ended {
                bail!("the target did not start ({status}): {}", log.lines().last().unwrap_or_default());
            }
            if log.contains(" ready ") {
                return Ok(());
            }
            ensure!(Instant::now() < until, "the target is not ready in {START_LIMIT:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn place(&self) -> SocketAddr {
        self.place
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Address of the subsystem.
    pub(crate) fn address(&self) -> Address {
        format!("{}/{NQN}", self.place).parse().expect("an address")
    }
}

/// Waits until the kernel has taken down the listener of a killed process, which it does in a thread of its own if a ring has
/// the socket: on a busy machine after the process has ended.
fn await_free(place: SocketAddr) -> Result<()> {
    let until = Instant::now() + START_LIMIT;
    loop {
        match TcpListener::bind(place) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error).with_context(|| format!("{place} is not free for the target")),
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn length(log: &Path) -> usize {
    std::fs::read_to_string(log).map_or(0, |text| text.len())
}

fn spawn(options: &TargetOptions, place: SocketAddr) -> Result<Child> {
    let log = File::options().create(true).append(true).open(&options.log)?;
    let mut command = spawner::command(&options.program);
    command.args(["--log", "info", "target", "--listen", &place.to_string()]);
    if !options.namespaces.is_empty() {
        command.args(["--nqn", NQN]);
    }
    for namespace in &options.namespaces {
        command.args(["--namespace", namespace]);
    }
    command.arg("--state").arg(options.state_file());
    command.args(&options.arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.env_remove("NVLANE_LOG");
    spawner::spawn(command).with_context(|| format!("cannot start {}", options.program.display()))
}
