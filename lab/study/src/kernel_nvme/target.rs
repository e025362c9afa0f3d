//! The kernel's target: a file served as the only namespace of a subsystem, by way of configfs.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::{Transport, may_set_up, module, refused, together, write};
use crate::error::Error;

const NVMET: &str = "/sys/kernel/config/nvmet";

/// Numbers of ports to try.
const PORTS: std::ops::Range<u32> = 40_000..40_100;

/// A subsystem of the kernel's target. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct KernelTarget {
    /// The created objects, in order: directories, and the link that opens the subsystem at the port.
    created: Vec<Created>,
}

#[derive(Debug)]
enum Created {
    Directory(PathBuf),
    Namespace(PathBuf),
    Link(PathBuf),
}

impl KernelTarget {
    /// Checks that the kernel's target can be used, at the address that is wanted or at any.
    pub(crate) fn check(transport: Transport, wanted: Option<IpAddr>) -> Result<(), String> {
        let modules = module::need(&["nvmet", &format!("nvmet_{}", transport.name())]);
        let has_configfs = modules.is_err() || Path::new(NVMET).exists();
        let configfs =
            if has_configfs { Ok(()) } else { Err("mount -t configfs none /sys/kernel/config".into()) };
        together([modules, configfs, transport.address(wanted).map(drop), may_set_up()])
    }

    /// Serves a file with direct I/O.
    pub(crate) fn serve(
        transport: Transport,
        address: SocketAddr,
        nqn: &str,
        file: &Path,
    ) -> Result<Self, Error> {
        let mut target = Self { created: Vec::new() };
        let subsystem = Path::new(NVMET).join("subsystems").join(nqn);
        target.make(&subsystem)?;
        write(&subsystem.join("attr_allow_any_host"), "1")?;
        let namespace = subsystem.join("namespaces/1");
        target.make(&namespace)?;
        write(&namespace.join("device_path"), &file.display().to_string())?;
        write(&namespace.join("enable"), "1")?;
        target.created.push(Created::Namespace(namespace));
        let port = target.make_port()?;
        let family = match address.ip() {
            IpAddr::V4(_) => "ipv4",
            IpAddr::V6(_) => "ipv6",
        };
        write(&port.join("addr_adrfam"), family)?;
        write(&port.join("addr_trtype"), transport.name())?;
        write(&port.join("addr_traddr"), &address.ip().to_string())?;
        write(&port.join("addr_trsvcid"), &address.port().to_string())?;
        let link = port.join("subsystems").join(nqn);
        symlink(&subsystem, &link).map_err(|error| refused(&link, &error))?;
        target.created.push(Created::Link(link));
        Ok(target)
    }

    fn make(&mut self, path: &Path) -> Result<(), Error> {
        std::fs::create_dir(path).map_err(|error| refused(path, &error))?;
        self.created.push(Created::Directory(path.to_owned()));
        Ok(())
    }

    /// A port with a number that is free.
    fn make_port(&mut self) -> Result<PathBuf, Error> {
        let ports = Path::new(NVMET).join("ports");
        let free = PORTS.map(|number| ports.join(number.to_string())).find(|port| !port.exists());
        let port = free.ok_or_else(|| Error::Lacking(format!("{} has no free number", ports.display())))?;
        self.make(&port)?;
        Ok(port)
    }
}

impl Drop for KernelTarget {
    fn drop(&mut self) {
        for created in self.created.drain(..).rev() {
            let (path, result) = match created {
                Created::Directory(path) => (path.clone(), std::fs::remove_dir(path)),
                Created::Namespace(path) => (path.clone(), std::fs::write(path.join("enable"), "0")),
                Created::Link(path) => (path.clone(), std::fs::remove_file(path)),
            };
            if let Err(error) = result {
                eprintln!("cannot remove {}: {error}", path.display());
            }
        }
    }
}
