//! `nvlane target` under test: its configuration, and its process as it is killed and started.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use peer::port::free_address;
use rustix::process::{Pid, Signal, kill_process};

use super::process::ends_with_us;

/// Where guests reach this machine's loopback listeners.
pub(crate) const GUEST_SEES: &str = "10.0.2.2";
pub(crate) const NQN: &str = "nqn.2024-01.example:interop";
/// Of namespace N, followed by N in twelve digits.
pub(crate) const UUID_PREFIX: &str = "6e766c61-6e65-4000-8000-";

const START_LIMIT: Duration = Duration::from_secs(10);

/// A target with its configuration, running or not.
pub(crate) struct Target {
    program: PathBuf,
    extra: Vec<String>,
    dir: PathBuf,
    pub(crate) port: u16,
    pub(crate) discovery_port: u16,
    namespaces: Vec<String>,
    /// The lines of the configuration with secrets.
    secrets: String,
    /// The lines of each listener about TLS.
    tls: String,
    process: Option<Child>,
}

/// What a file has at first whose size the configuration does not say.
const UNSIZED_BYTES: u64 = 64 << 20;

impl Target {
    /// A target whose files are in `dir`, not yet started.
    pub(crate) fn new(program: &Path, extra: &[String], dir: &Path, namespaces: &[String]) -> Result<Self> {
        let target = Self {
            program: program.to_owned(),
            extra: extra.to_vec(),
            dir: dir.to_owned(),
            port: free_address()?.port(),
            discovery_port: free_address()?.port(),
            namespaces: namespaces.to_vec(),
            secrets: String::new(),
            tls: String::new(),
            process: None,
        };
        target.configure()?;
        Ok(target)
    }

    /// Starts it and waits until it listens.
    pub(crate) fn start(&mut self) -> Result<()> {
        ensure!(self.process.is_none(), "the target runs already");
        let log = File::options().create(true).append(true).open(self.log_path())?;
        let mut command = ends_with_us("KILL", &self.program);
        command.arg("target").arg("--config").arg(self.config_path()).args(&self.extra);
        if !self.extra.iter().any(|option| option == "--state") {
            command.arg("--state").arg(self.state_path());
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let process = self.process.insert(command.spawn().context("cannot run the target")?);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let deadline = Instant::now() + START_LIMIT;
        while TcpStream::connect(address).is_err() {
            if let Some(status) = process.try_wait()? {
                self.process = None;
                bail!("the target ended: {status}");
            }
            ensure!(Instant::now() < deadline, "the target does not listen on {address}");
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<()> {
        let mut process = self.process.take().context("the target does not run")?;
        ensure!(process.try_wait()?.is_none(), "the target had ended by itself");
        process.kill()?;
        process.wait()?;
        Ok(())
    }

    /// Changes its namespaces while it runs.
    pub(crate) fn reload(&mut self, namespaces: &[String]) -> Result<()> {
        namespaces.clone_into(&mut self.namespaces);
        self.configure()?;
        // Namespaces are removed under connected hosts. Some changes are to be refused.
        let mut command = Command::new(&self.program);
        command.args(["reload", "--force", "--state"]).arg(self.state_path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().context("cannot run nvlane reload")?;
        Ok(())
    }

    /// Has it require the secret in the first of these files, and show that in the second, with this hash function and
    /// group. Returns when it does.
    pub(crate) fn require(&mut self, files: &[PathBuf; 2], hash: &str, group: &str) -> Result<()> {
        let [host, controller] = files.each_ref().map(|file| file.display());
        self.secrets = format!(
            "dhchap_secret = \"file:{host}\"\ndhchap_ctrl_secret = \"file:{controller}\"\n\
             dhchap_hash = [\"{hash}\"]\ndhchap_dhgroup = [\"{group}\"]\n"
        );
        self.reload_until_logged("change the secrets of")
    }

    /// Has its listeners treat TLS by this policy, with the key in this file for all hosts. Returns when it does.
    pub(crate) fn encrypt(&mut self, policy: &str, key: &Path) -> Result<()> {
        self.tls = format!("tls = \"{policy}\"\n");
        self.secrets = format!("tls_key = \"file:{}\"\n", key.display());
        self.reload_until_logged("change the keys of TLS")
    }

    /// Reloads the configuration, and waits for another such line in its log.
    fn reload_until_logged(&self, text: &str) -> Result<()> {
        let done_count = || -> Result<usize> {
            let log = fs::read_to_string(self.log_path())?;
            Ok(log.lines().filter(|line| line.contains(text)).count())
        };
        let before = done_count()?;
        self.configure()?;
        self.signal(Signal::HUP)?;
        let deadline = Instant::now() + START_LIMIT;
        while done_count()? == before {
            ensure!(Instant::now() < deadline, "the target does not say: {text}");
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Has it read the same configuration again, and reopen what is closed.
    pub(crate) fn reload_as_it_is(&self) -> Result<()> {
        self.signal(Signal::HUP)
    }

    /// Ends it with SIGTERM, if it runs.
    pub(crate) fn stop(&mut self) -> Result<()> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        if let Some(status) = process.try_wait()? {
            bail!("the target had ended by itself: {status}");
        }
        self.process = Some(process);
        self.signal(Signal::TERM)?;
        let mut process = self.process.take().context("the target runs")?;
        let deadline = Instant::now() + START_LIMIT;
        let status = loop {
            if let Some(status) = process.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                process.kill()?;
                process.wait()?;
                bail!("the target does not end on SIGTERM");
            }
            sleep(Duration::from_millis(10));
        };
        ensure!(status.success(), "the target ended with {status} on SIGTERM");
        Ok(())
    }

    /// Connections that it holds on its I/O port: established, or closed only by the peer.
    pub(crate) fn connection_count(&self) -> Result<usize> {
        let local = format!("0100007F:{:04X}", self.port);
        let table = fs::read_to_string("/proc/net/tcp")?;
        let is_ours = |line: &&str| {
            let fields: Vec<_> = line.split_whitespace().take(4).collect();
            fields.get(1) == Some(&local.as_str()) && matches!(fields.get(3), Some(&("01" | "08")))
        };
        Ok(table.lines().filter(is_ours).count())
    }

    /// The file behind a `file:NAME:SIZE` or `file:NAME` namespace.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.img"))
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.dir.join("target.log")
    }

    fn config_path(&self) -> PathBuf {
        self.dir.join("target.toml")
    }

    fn state_path(&self) -> PathBuf {
        self.dir.join("state.json")
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let process = self.process.as_ref().context("the target does not run")?;
        let pid = Pid::from_raw(process.id().cast_signed()).context("a process has an id")?;
        Ok(kill_process(pid, signal)?)
    }

    fn configure(&self) -> Result<()> {
        let mut text = String::new();
        for port in [self.port, self.discovery_port] {
            writeln!(text, "[[listener]]")?;
            writeln!(text, "address = \"127.0.0.1:{port}\"")?;
            writeln!(text, "advertise = \"{GUEST_SEES}:{port}\"")?;
            text.push_str(&self.tls);
            // Subsystems at one port: the log lists each where it is reached.
            writeln!(text, "subsystems = {}\n", port == self.port)?;
        }
        writeln!(text, "[[subsystem]]\nnqn = \"{NQN}\"\nhosts = \"any\"\n{}", self.secrets)?;
        for namespace in &self.namespaces {
            let (nsid, backing) = namespace.split_once('=').context("NSID=BACKING")?;
            let nsid: u32 = nsid.parse()?;
            let (backing, block_bytes) = backing.split_once('@').unwrap_or((backing, "512"));
            let storage = match backing.split(':').collect::<Vec<_>>()[..] {
                ["ram", size] => format!("ram:{size}?lba={block_bytes}&"),
                ["file", name, size] => {
                    format!("file:{}?size={size}&lba={block_bytes}&", self.file(name).display())
                }
                ["file", name] => {
                    let path = self.file(name);
                    if !path.exists() {
                        fs::File::create(&path)?.set_len(UNSIZED_BYTES)?;
                    }
                    format!("file:{}?lba={block_bytes}&", path.display())
                }
                ["kv", "ram", size] => format!("kv:ram:{size}?"),
                _ => bail!("not ram:SIZE, file:NAME:SIZE, file:NAME or kv:ram:SIZE: {backing}"),
            };
            writeln!(text, "[[subsystem.namespace]]\nnsid = {nsid}")?;
            writeln!(text, "storage = \"{storage}uuid={UUID_PREFIX}{nsid:012}\"\n")?;
        }
        Ok(fs::write(self.config_path(), text)?)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
