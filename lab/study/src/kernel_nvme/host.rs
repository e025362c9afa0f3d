//! The kernel's host: a connection to a target that makes a block device.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use host::Address;
use load::runner::LocalStorage;
use store::FileKind;

use super::{Transport, may_set_up, module, refused, together};
use crate::error::Error;

/// Connects are written to it.
const FABRICS: &str = "/dev/nvme-fabrics";

/// Time limit until the namespace of a connected controller is a block device.
const DEVICE_TIME: Duration = Duration::from_secs(20);

/// A controller of a target as the kernel's host has it. Dropping it disconnects.
#[derive(Debug)]
pub(crate) struct KernelHost {
    /// In sysfs.
    controller: PathBuf,
    device: PathBuf,
}

impl KernelHost {
    /// Checks that the kernel's host can be used.
    pub(crate) fn check(transport: Transport) -> Result<(), String> {
        together([module::need(&["nvme_fabrics", &format!("nvme_{}", transport.name())]), may_set_up()])
    }

    /// Connects to a subsystem with one namespace, with this number of I/O queues, or one for each core if there are fewer.
    pub(crate) fn connect(transport: Transport, address: &Address, queue_count: u32) -> Result<Self, Error> {
        let (Address { host: ip, .. }, Some(port), Some(nqn)) = (address, address.port, &address.subsystem)
        else {
            return Err(Error::Target(format!("has the address {address}")));
        };
        let options = format!(
            "transport={},traddr={ip},trsvcid={port},nqn={nqn},nr_io_queues={queue_count}",
            transport.name(),
        );
        let fabrics = Path::new(FABRICS);
        let failed = |error| refused(fabrics, &error);
        let mut file = OpenOptions::new().read(true).write(true).open(fabrics).map_err(failed)?;
        file.write_all(options.as_bytes()).map_err(failed)?;
        let mut told = [0; 256];
        let length = file.read(&mut told).map_err(failed)?;
        let told = String::from_utf8_lossy(&told[..length]).into_owned();
        let instance = instance(&told).ok_or_else(|| Error::Lacking(format!("{FABRICS} says {told:?}")))?;
        let controller = Path::new("/sys/class/nvme").join(format!("nvme{instance}"));
        let mut host = Self { controller, device: PathBuf::new() };
        let until = Instant::now() + DEVICE_TIME;
        while Instant::now() < until {
            if let Some(name) = host.namespace()
                && is_usable(&name)
            {
                host.device = Path::new("/dev").join(name);
                return Ok(host);
            }
            sleep(Duration::from_millis(5));
        }
        Err(Error::Lacking("the kernel's host shows no namespace".into()))
    }

    /// Its block device.
    pub(crate) fn storage(&self) -> LocalStorage {
        LocalStorage::new(&self.device, FileKind::Device)
    }

    /// The name of the block device of its namespace.
    fn namespace(&self) -> Option<String> {
        let entries = std::fs::read_dir(&self.controller).ok()?.flatten();
        entries.filter_map(|entry| device_of(&entry.file_name().to_string_lossy())).next()
    }
}

impl Drop for KernelHost {
    fn drop(&mut self) {
        let path = self.controller.join("delete_controller");
        if let Err(error) = std::fs::write(&path, "1") {
            eprintln!("cannot disconnect with {}: {error}", path.display());
        }
    }
}

/// Whether a block device can be opened and has a size.
fn is_usable(name: &str) -> bool {
    let size = std::fs::read_to_string(format!("/sys/block/{name}/size"));
    size.is_ok_and(|size| size.trim() != "0") && Path::new("/dev").join(name).exists()
}

/// The number of the controller in the answer to a connect: `instance=0,cntlid=1`.
fn instance(told: &str) -> Option<u32> {
    told.trim().split(',').find_map(|field| field.strip_prefix("instance=")?.parse().ok())
}

/// The block device of a namespace in a controller's directory, which is `nvme0n1`, or with native multipath `nvme0c1n1`, a path to
/// `nvme0n1`.
fn device_of(entry: &str) -> Option<String> {
    let (of, nsid) = entry.strip_prefix("nvme")?.rsplit_once('n')?;
    let subsystem = of.split('c').next()?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(subsystem) && is_number(nsid)).then(|| format!("nvme{subsystem}n{nsid}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_a_connect_names_the_controller() {
        assert_eq!(instance("instance=3,cntlid=1\n"), Some(3));
        assert_eq!(instance("cntlid=1"), None);
        assert_eq!(instance(""), None);
    }

    #[test]
    fn the_block_device_is_found_with_and_without_multipath() {
        assert_eq!(device_of("nvme3n1").as_deref(), Some("nvme3n1"));
        assert_eq!(device_of("nvme0c3n1").as_deref(), Some("nvme0n1"));
        for other in ["power", "nvme3", "hwmon1", "ng3n1", "nvmen1", "transport"] {
            assert_eq!(device_of(other), None, "{other}");
        }
    }
}
