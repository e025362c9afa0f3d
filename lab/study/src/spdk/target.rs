//! SPDK's target: a file served as the only namespace of a subsystem.

use std::fmt::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use load::account::{Account, ProcessAccount};
use serde_json::json;
use tempfile::TempDir;

use super::{command, core_mask, memory_options};
use crate::error::Error;

const PROGRAM: &str = "nvmf_tgt";

/// The file with its output.
const OUTPUT: &str = "log";

/// Time limit until it listens: DPDK takes a second or more to start.
const START_TIME: Duration = Duration::from_secs(30);

/// Time limit for it to end by itself; it is killed then.
const END_TIME: Duration = Duration::from_secs(10);

/// Lines of its output that an error repeats.
const TOLD_LINES: usize = 5;

/// A running target of SPDK. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct SpdkTarget {
    child: Child,
    /// With its configuration, its output and its socket for requests: removed with the target.
    directory: TempDir,
}

pub(crate) fn program() -> Result<PathBuf, String> {
    super::program(PROGRAM)
}

impl SpdkTarget {
    /// Serves a file with direct I/O, in blocks of 4 KiB, with one thread on each of these cores.
    pub(crate) fn serve(address: SocketAddr, nqn: &str, file: &Path, cores: &[usize]) -> Result<Self, Error> {
        let failed = |error| Error::system("SPDK's target", error);
        let directory = tempfile::Builder::new().prefix("nvlane-spdk-").tempdir().map_err(failed)?;
        let place = |name| directory.path().join(name);
        let configuration = place("configuration.json");
        std::fs::write(&configuration, configuration_of(address, nqn, file)).map_err(failed)?;
        let log = std::fs::File::create(place(OUTPUT)).map_err(failed)?;
        let mut command = command(&program().map_err(Error::Lacking)?);
        // Without PCI: no device of this machine must be taken over.
        command
            .arg("-u")
            .arg("-c")
            .arg(&configuration)
            .arg("-r")
            .arg(place("requests.sock"))
            .args(["-m", &core_mask(cores)]);
        memory_options(&mut command);
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(failed)?).stderr(log);
        let child = command.spawn().map_err(failed)?;
        let mut target = Self { child, directory };
        let until = Instant::now() + START_TIME;
        while TcpStream::connect(address).is_err() {
            let status = target.child.try_wait().map_err(failed)?;
            if status.is_some() || Instant::now() > until {
                return Err(Error::Lacking(format!("SPDK's target does not listen:{}", target.last_lines())));
            }
            sleep(Duration::from_millis(10));
        }
        Ok(target)
    }

    /// The account of its process.
    pub(crate) fn account(&self) -> Arc<dyn Account> {
        Arc::new(ProcessAccount(self.child.id()))
    }

    /// The last lines of its output, for an error.
    fn last_lines(&self) -> String {
        let text = std::fs::read(self.directory.path().join(OUTPUT)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(TOLD_LINES)..].iter().fold(String::new(), |mut told, line| {
            // Writing to a string does not fail.
            let _ = write!(told, "\n  {line}");
            told
        })
    }
}

/// Its configuration: the calls that set it up, as JSON.
fn configuration_of(address: SocketAddr, nqn: &str, file: &Path) -> String {
    let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
    let call = |method: &str, params: serde_json::Value| json!({ "method": method, "params": params });
    let storage = json!({ "name": "file", "filename": file, "block_size": 4096 });
    let listen = json!({
        "trtype": "TCP", "adrfam": family, "traddr": address.ip().to_string(), "trsvcid": address.port().to_string(),
    });
    let configuration = json!({ "subsystems": [
        { "subsystem": "bdev", "config": [call("bdev_aio_create", storage)] },
        { "subsystem": "nvmf", "config": [
            call("nvmf_create_transport", json!({ "trtype": "TCP" })),
            call("nvmf_create_subsystem", json!({ "nqn": nqn, "allow_any_host": true, "serial_number": "STUDY" })),
            call("nvmf_subsystem_add_ns", json!({ "nqn": nqn, "namespace": { "bdev_name": "file" } })),
            call("nvmf_subsystem_add_listener", json!({ "nqn": nqn, "listen_address": listen })),
        ] },
    ] });
    configuration.to_string()
}

impl Drop for SpdkTarget {
    fn drop(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        // The process may have ended already.
        let _ = pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::TERM));
        let until = Instant::now() + END_TIME;
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_has_the_file_the_subsystem_and_the_address() {
        let text =
            configuration_of("[::1]:4420".parse().unwrap(), "nqn.2026-01.test:a", Path::new("/tmp/\"a"));
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let params = |subsystem: usize, call: usize| &json["subsystems"][subsystem]["config"][call]["params"];
        assert_eq!(params(0, 0)["filename"], "/tmp/\"a");
        assert_eq!(params(1, 2)["nqn"], "nqn.2026-01.test:a");
        let listen = &params(1, 3)["listen_address"];
        assert_eq!(
            (&listen["adrfam"], &listen["traddr"], &listen["trsvcid"]),
            (&"IPv6".into(), &"::1".into(), &"4420".into())
        );
    }
}
