//! Actions that a behaviour can request outside its guest. `interop/README.md` lists the verbs.

use std::fs::OpenOptions;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use peer::link::Link;
use rustix::process::{Pid, Signal, kill_process};

use super::bridge::Bridge;
use super::process::ends_with_us;
use super::target::Target;

/// The outside of one behaviour while it runs.
pub(crate) struct Outside {
    /// For linux-host behaviours, unless the target is a stand-in.
    pub(crate) target: Option<Mutex<Target>>,
    /// For vhost-user behaviours.
    pub(crate) bridge: Option<Mutex<Bridge>>,
    /// The binary; none if nvmet in the guest stands in.
    pub(crate) nvlane: Option<PathBuf>,
    /// Where commands run; the guest sees it as `/share/files`.
    pub(crate) files: PathBuf,
    /// Port that leads to nvmet in the guest.
    pub(crate) nvmet_port: u16,
    /// Commands that still run.
    running: Mutex<Vec<Pid>>,
}

impl Outside {
    pub(crate) fn new(
        target: Option<Target>,
        nvlane: Option<PathBuf>,
        files: PathBuf,
        nvmet_port: u16,
    ) -> Self {
        let target = target.map(Mutex::new);
        Self { target, bridge: None, nvlane, files, nvmet_port, running: Mutex::default() }
    }

    /// Whether this request runs a command, which may take as long as the behaviour.
    pub(crate) fn is_command(words: &[String]) -> bool {
        words.first().is_some_and(|verb| verb == "nvlane")
    }

    /// Executes one request: words in, status and output back.
    pub(crate) fn answer(&self, words: &[String]) -> (i32, String) {
        self.carry_out(words).unwrap_or_else(|error| (1, format!("{error:#}\n")))
    }

    /// The behaviour is over: ends its remaining processes.
    pub(crate) fn end(&self) {
        for pid in self.running().iter() {
            let _ = kill_process(*pid, Signal::KILL);
        }
    }

    fn carry_out(&self, words: &[String]) -> Result<(i32, String)> {
        let (verb, arguments) = words.split_first().context("no verb")?;
        if Self::is_command(words) {
            return match &self.nvlane {
                Some(_) => self.nvlane(arguments),
                None => probe(self.nvmet_port).map(|()| (0, "nvmet answers\n".to_owned())),
            };
        }
        if let Some(bridge) = &self.bridge {
            let mut bridge = bridge.lock().unwrap_or_else(PoisonError::into_inner);
            match verb.as_str() {
                "kill-bridge" => return bridge.kill().map(|()| (0, String::new())),
                "stop-bridge" => return bridge.stop().map(|()| (0, String::new())),
                "start-bridge" => return bridge.start().map(|()| (0, String::new())),
                _ => {}
            }
        }
        let target = self.target.as_ref().context("no target runs outside")?;
        let mut target = target.lock().unwrap_or_else(PoisonError::into_inner);
        let text = match (verb.as_str(), arguments) {
            ("kill", []) => target.kill().map(|()| String::new()),
            ("start", []) => target.start().map(|()| String::new()),
            ("namespaces", namespaces) => target.reload(namespaces).map(|()| String::new()),
            ("secrets", [host, controller, hash, group]) => {
                let key = |name: &String| self.files.join(name);
                target.require(&[key(host), key(controller)], hash, group).map(|()| String::new())
            }
            ("tls", [policy, key]) => target.encrypt(policy, &self.files.join(key)).map(|()| String::new()),
            ("reload", []) => target.reload_as_it_is().map(|()| String::new()),
            ("size", [name, mib]) => {
                let file = OpenOptions::new().write(true).open(target.file(name))?;
                file.set_len(mib.parse::<u64>()? << 20)?;
                Ok(String::new())
            }
            ("connections", []) => target.connection_count().map(|count| format!("{count}\n")),
            ("allocated-kib", [name]) => {
                let blocks = target.file(name).metadata()?.blocks();
                Ok(format!("{}\n", blocks / 2))
            }
            _ => bail!("no such request: {}", words.join(" ")),
        }?;
        Ok((0, text))
    }

    fn nvlane(&self, arguments: &[String]) -> Result<(i32, String)> {
        let program = self.nvlane.as_ref().context("no binary")?;
        let mut command = ends_with_us("KILL", program);
        command.args(arguments).current_dir(&self.files).stdin(Stdio::null());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let pid = Pid::from_raw(child.id().cast_signed()).context("a process has an id")?;
        self.running().push(pid);
        let output = child.wait_with_output()?;
        self.running().retain(|running| *running != pid);
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        Ok((output.status.code().unwrap_or(128), text.into_owned()))
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Vec<Pid>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shows that an NVMe/TCP target answers the handshake on this port: a guest's export and the forwarding work.
fn probe(port: u16) -> Result<()> {
    let address = (Ipv4Addr::LOCALHOST, port).into();
    Link::open(address, Duration::from_secs(10)).map(drop).context("no handshake")
}
