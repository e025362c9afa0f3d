//! The machine that the driver runs on: `/dev/nvme-fabrics`, `/sys`, and programs of util-linux, e2fsprogs and xfsprogs.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tonic::Status;

use super::machine::{Export, Machine};
use super::mounts::{self, Mount};

/// Where the kernel takes orders to connect.
const FABRICS: &str = "/dev/nvme-fabrics";

/// Time for a device to appear once its controller is connected.
const DEVICE_TIME: Duration = Duration::from_secs(30);

const LOOK_TIME: Duration = Duration::from_millis(20);

/// Bytes at the beginning of a device that must be readable before it counts as blank.
const HEAD_BYTES: usize = 1 << 20;

/// Lines of a failed program that are passed on.
const LINE_COUNT_MAX: usize = 8;

/// A Linux machine, and who it is as a host.
pub(crate) struct LinuxMachine {
    pub(crate) host_nqn: String,
    /// UUID of the host, if it has one.
    pub(crate) host_id: Option<String>,
}

/// A controller of the kernel's host, such as nvme0.
struct HostController {
    path: PathBuf,
    /// As `/sys` has it: `traddr=192.0.2.1,trsvcid=4420`.
    address: String,
}

impl HostController {
    fn all_of(nqn: &str) -> Vec<Self> {
        let entries = fs::read_dir("/sys/class/nvme").into_iter().flatten().flatten();
        let of_subsystem =
            entries.map(|entry| entry.path()).filter(|path| line_of(&path.join("subsysnqn")) == nqn);
        of_subsystem.map(|path| Self { address: line_of(&path.join("address")), path }).collect()
    }

    fn is_at(&self, address: &SocketAddr) -> bool {
        let value = |key: &str| self.address.split(',').find_map(|part| part.strip_prefix(key));
        let has_address = value("traddr=").is_some_and(|ip| ip.parse() == Ok(address.ip()));
        has_address && value("trsvcid=").is_some_and(|port| port.parse() == Ok(address.port()))
    }
}

/// The only line of a file of `/sys`; empty if it cannot be read.
fn line_of(path: &Path) -> String {
    fs::read_to_string(path).map(|text| text.trim_end().to_owned()).unwrap_or_default()
}

/// Whether this is the name of a namespace's disk: `nvme0n1`, but not `nvme0c1n1`, a single path to one.
fn is_disk(name: &str) -> bool {
    let numbers = name.strip_prefix("nvme").and_then(|rest| rest.split_once('n'));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers.is_some_and(|(subsystem, namespace)| is_number(subsystem) && is_number(namespace))
}

/// The disk of a subsystem, with this UUID if one is given.
fn disk_of(nqn: &str, uuid: Option<&str>) -> Option<PathBuf> {
    let mut disks: Vec<PathBuf> =
        fs::read_dir("/sys/block").ok()?.flatten().map(|entry| entry.path()).collect();
    disks.sort();
    let found = disks.into_iter().find(|path| {
        let is_meant = uuid.is_none_or(|uuid| line_of(&path.join("uuid")).eq_ignore_ascii_case(uuid));
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        is_disk(name) && is_meant && line_of(&path.join("device/subsysnqn")) == nqn
    })?;
    Some(Path::new("/dev").join(found.file_name()?))
}

/// A file of a block device in `/sys`.
fn sys_of(device: &Path, file: &str) -> PathBuf {
    Path::new("/sys/block").join(device.file_name().unwrap_or_default()).join(file)
}

/// Whether the kernel's host knows secrets, as far as it says what it knows: that is since Linux 5.17, and without secrets it
/// refuses the option.
fn can_authenticate() -> bool {
    let mut known = String::new();
    let read = open_fabrics().and_then(|mut fabrics| fabrics.read_to_string(&mut known));
    read.is_err() || !known.contains("transport=") || known.contains("dhchap_secret=")
}

fn open_fabrics() -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).open(FABRICS)
}

impl LinuxMachine {
    /// Opens the kernel's host, after loading its module if that is needed and allowed.
    fn host(&self) -> Result<File, String> {
        let opened = open_fabrics().or_else(|error| match error.kind() {
            ErrorKind::NotFound => {
                let _ = self.run("modprobe", &["nvme-tcp"]);
                open_fabrics()
            }
            _ => Err(error),
        });
        opened.map_err(|error| match error.kind() {
            ErrorKind::NotFound => format!(
                "{FABRICS} is missing: this machine's kernel has no NVMe over TCP host, or its module is not loaded: modprobe nvme-tcp"
            ),
            _ => format!("{FABRICS}: {error}: the driver must run as root, in a privileged container"),
        })
    }

    fn options(&self, export: &Export, address: &SocketAddr) -> String {
        let option = |name: &str, value: Option<&String>| {
            value.map_or_else(String::new, |value| format!(",{name}={value}"))
        };
        format!(
            "nqn={},transport=tcp,traddr={},trsvcid={},hostnqn={}{}{}{}",
            export.nqn,
            address.ip(),
            address.port(),
            self.host_nqn,
            option("hostid", self.host_id.as_ref()),
            option("dhchap_secret", export.secrets.host.as_ref()),
            option("dhchap_ctrl_secret", export.secrets.controller.as_ref()),
        )
    }
}

impl Machine for LinuxMachine {
    fn problem(&self) -> Option<String> {
        self.host().err()
    }

    fn connect(&self, export: &Export) -> Result<PathBuf, Status> {
        let there = HostController::all_of(&export.nqn);
        let mut connected_count = there.len();
        let mut failed = Vec::new();
        for address in &export.addresses {
            if there.iter().any(|controller| controller.is_at(address)) {
                continue;
            }
            if export.secrets.host.is_some() && !can_authenticate() {
                return Err(Status::failed_precondition(
                    "this node's kernel cannot authenticate to a target: it was built without CONFIG_NVME_HOST_AUTH (Linux 6.0 or \
                     later). Take dhchapSecret out of the StorageClass, or another kernel",
                ));
            }
            let mut host = self.host().map_err(Status::failed_precondition)?;
            match host.write_all(self.options(export, address).as_bytes()) {
                Ok(()) => connected_count += 1,
                Err(error) => {
                    tracing::warn!(%address, nqn = %export.nqn, %error, "volume could not be connected at an address");
                    failed.push(format!("{address}: {error}"));
                }
            }
        }
        if connected_count == 0 {
            let hint = match export.secrets.host.is_some() {
                true => {
                    " (with a secret, which may be another one than the target has: see the kernel's log of the node)"
                }
                false => "",
            };
            let failed = failed.join("; ");
            return Err(Status::unavailable(format!("cannot connect to {}: {failed}{hint}", export.nqn)));
        }
        let deadline = Instant::now() + DEVICE_TIME;
        loop {
            // Its size is 0 until a path to it is live.
            let device = disk_of(&export.nqn, Some(&export.uuid));
            if let Some(device) = device.filter(|device| device.exists() && self.size_bytes(device).is_some())
            {
                return Ok(device);
            }
            if Instant::now() > deadline {
                return Err(Status::unavailable(format!(
                    "{} is connected, and the kernel shows no namespace with the UUID {}",
                    export.nqn, export.uuid
                )));
            }
            sleep(LOOK_TIME);
        }
    }

    fn disconnect(&self, nqn: &str) -> Result<(), Status> {
        if let Some(device) = disk_of(nqn, None) {
            // What a pod has written to a block volume may be in the page cache.
            let written = File::open(&device).and_then(|device| device.sync_all());
            written.map_err(|error| Status::internal(format!("{} of {nqn}: {error}", device.display())))?;
        }
        for controller in HostController::all_of(nqn) {
            let order = controller.path.join("delete_controller");
            match fs::write(&order, "1") {
                Err(error) if controller.path.exists() => {
                    return Err(Status::internal(format!("{}: {error}", order.display())));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn device(&self, nqn: &str) -> Option<PathBuf> {
        disk_of(nqn, None)
    }

    fn size_bytes(&self, device: &Path) -> Option<u64> {
        // In units of 512 bytes, whatever the size of blocks.
        line_of(&sys_of(device, "size"))
            .parse::<u64>()
            .ok()
            .filter(|count| *count > 0)
            .map(|count| count * 512)
    }

    fn is_read_only(&self, device: &Path) -> bool {
        line_of(&sys_of(device, "ro")) == "1"
    }

    fn rescan(&self, nqn: &str) {
        for controller in HostController::all_of(nqn) {
            let _ = fs::write(controller.path.join("rescan_controller"), "1");
        }
    }

    fn content(&self, device: &Path) -> Result<Option<String>, Status> {
        let shown = device.display();
        // blkid reports a device that cannot be read as one without content.
        let mut head = vec![0; HEAD_BYTES];
        let mut file = File::open(device).map_err(|error| Status::internal(format!("{shown}: {error}")))?;
        let length =
            usize::try_from(self.size_bytes(device).unwrap_or(0)).unwrap_or(usize::MAX).min(HEAD_BYTES);
        file.read_exact(&mut head[..length])
            .map_err(|error| Status::internal(format!("{shown}: {error}")))?;
        let mut blkid = Command::new("blkid");
        let output = blkid.args(["--probe", "--output", "export"]).arg(device).stdin(Stdio::null()).output();
        let output = output.map_err(|error| Status::internal(format!("cannot run blkid: {error}")))?;
        match output.status.code() {
            Some(0) => {}
            Some(2) => return Ok(None),
            _ => return Err(Status::internal(format!("blkid {shown}: {}", last_lines(&output.stderr)))),
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned);
        match (value("TYPE="), value("PTTYPE=")) {
            (Some(kind), _) => Ok(Some(kind)),
            (None, Some(table)) => Ok(Some(format!("a partition table ({table})"))),
            (None, None) => Ok(Some("something that blkid has no name for".into())),
        }
    }

    fn mounts(&self) -> Result<Vec<Mount>, Status> {
        let text = fs::read("/proc/self/mountinfo");
        Ok(mounts::parse(&text.map_err(|error| Status::internal(format!("/proc/self/mountinfo: {error}")))?))
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<(), Status> {
        let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
        let output = output.map_err(|error| Status::internal(format!("cannot run {program}: {error}")))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(Status::internal(format!(
                "{program} {}: {}",
                arguments.join(" "),
                last_lines(&[output.stdout, output.stderr].concat())
            ))),
        }
    }
}

/// The end of what a program printed, in one line.
fn last_lines(printed: &[u8]) -> String {
    let text = String::from_utf8_lossy(printed);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(LINE_COUNT_MAX)..].join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authentication::Secrets;

    #[test]
    fn names_of_disks_are_told_from_those_of_paths_and_controllers() {
        for (name, is) in
            [("nvme0n1", true), ("nvme12n34", true), ("nvme0c1n1", false), ("nvme0", false), ("sda", false)]
        {
            assert_eq!(is_disk(name), is, "{name}");
        }
    }

    #[test]
    fn a_machine_without_a_host_says_what_it_lacks() {
        if Path::new(FABRICS).exists() {
            return;
        }
        let machine = LinuxMachine { host_nqn: "nqn.2014-08.org.nvmexpress:uuid:1".into(), host_id: None };
        assert!(machine.problem().expect("it cannot connect").contains("modprobe nvme-tcp"));
        let addresses = vec!["127.0.0.1:4420".parse().expect("an address")];
        let export = Export {
            nqn: "nqn.2026-01.io.nvlane:none".into(),
            addresses,
            uuid: "1".into(),
            secrets: Secrets { host: Some("DHHC-1:00:x:".into()), controller: None },
        };
        let (options, address) =
            (machine.options(&export, &export.addresses[0]), "traddr=127.0.0.1,trsvcid=4420");
        assert!(options.contains(address) && options.ends_with(",dhchap_secret=DHHC-1:00:x:"), "{options}");
        let status = machine.connect(&export).expect_err("it cannot");
        assert_eq!(status.code(), tonic::Code::FailedPrecondition);
        assert!(machine.disconnect(&export.nqn).is_ok(), "it is not connected");
    }
}
