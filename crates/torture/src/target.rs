//! `nvlane target` as a process that can be killed at any moment and started again at the same address.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use host::Address;
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// How long a target may take until it is ready. After a kill it may have to wait for what the kernel still holds of the last one.
const START_LIMIT: Duration = Duration::from_secs(20);

const NQN: &str = "nqn.2026-01.io.nvlane:torture";

/// How a target is to be.
#[derive(Clone, Debug)]
pub(crate) struct TargetOptions {
    /// The `nvlane` program.
    pub(crate) program: PathBuf,
    /// What it serves, in the words of `--namespace`.
    pub(crate) namespaces: Vec<String>,
    /// More options of `nvlane target`.
    pub(crate) arguments: Vec<String>,
    /// Where its log goes.
    pub(crate) log: PathBuf,
}

impl TargetOptions {
    /// Where it says how things are.
    fn state_file(&self) -> PathBuf {
        self.log.with_extension("state")
    }
}

/// A running target. It ends with us.
pub(crate) struct Target {
    options: TargetOptions,
    place: SocketAddr,
    child: Child,
}

impl Target {
    /// Starts a target on a free port, and waits until it is ready.
    pub(crate) fn start(options: TargetOptions) -> Result<Self> {
        let place = free_places(1)?[0];
        Self::start_at(options, place)
    }

    /// Starts a target there, and waits until it is ready.
    pub(crate) fn start_at(options: TargetOptions, place: SocketAddr) -> Result<Self> {
        let said = length(&options.log);
        let child = spawn(&options, place)?;
        let mut target = Self { options, place, child };
        target.await_ready(said)?;
        Ok(target)
    }

    /// Kills it without a warning: not an instruction of it is executed any more.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill().context("cannot kill the target")?;
        self.child.wait().context("the target's end")?;
        Ok(())
    }

    /// Starts it again where it was, on the same storage.
    pub(crate) fn restart(&mut self) -> Result<()> {
        let said = length(&self.options.log);
        self.child = spawn(&self.options, self.place)?;
        self.await_ready(said)
    }

    /// How it says that things are; `None` if it does not.
    pub(crate) fn state(&self) -> Option<Value> {
        let file = self.options.state_file();
        // What is there already is older.
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

    /// Starts it again and kills it after a while, whether it is ready by then or not.
    pub(crate) fn restart_and_kill(&mut self, after: Duration) -> Result<()> {
        self.child = spawn(&self.options, self.place)?;
        std::thread::sleep(after);
        self.kill()
    }

    /// Waits until it says that it is ready, behind so many bytes of its log. (A connection would prove nothing: the kernel may
    /// keep the listener of a killed process for a moment.)
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

    /// Where hosts find its subsystem.
    pub(crate) fn address(&self) -> Address {
        format!("{}/{NQN}", self.place).parse().expect("an address")
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Free ports below those that the kernel gives to whoever connects: a connect to one of those, while nobody listens there, may
/// meet itself.
pub(crate) fn free_places(count: usize) -> Result<Vec<SocketAddr>> {
    // Apart from those of a neighbour that is started at the same time.
    let first = 20_000 + 2 * u16::try_from(std::process::id() % 4000).expect("below 4000");
    let places = (first..30_000).map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let free: Vec<_> = places.filter(|place| TcpListener::bind(place).is_ok()).take(count).collect();
    ensure!(free.len() == count, "no port is free");
    Ok(free)
}

fn length(log: &Path) -> usize {
    std::fs::read_to_string(log).map_or(0, |text| text.len())
}

fn spawn(options: &TargetOptions, place: SocketAddr) -> Result<Child> {
    let log = File::options().create(true).append(true).open(&options.log)?;
    let mut command = Command::new(&options.program);
    command.args(["--log", "info", "target", "--nqn", NQN, "--listen", &place.to_string()]);
    for namespace in &options.namespaces {
        command.args(["--namespace", namespace]);
    }
    command.arg("--state").arg(options.state_file());
    command.args(&options.arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.env_remove("NVLANE_LOG");
    command.spawn().with_context(|| format!("cannot start {}", options.program.display()))
}
