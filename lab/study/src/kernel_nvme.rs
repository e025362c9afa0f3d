//! The kernel's NVMe over Fabrics, to compare with: its host and its target, of this machine and for the time of a study only.
//!
//! Nothing is loaded here: an experiment uses the modules that are there, and reports those that would add more.

pub(crate) mod host;
mod module;
pub(crate) mod target;

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;

/// The name of subsystems that are served for a study.
pub(crate) fn nqn() -> String {
    format!("nqn.2026-01.io.nvlane:study-{}", std::process::id())
}

/// The transport between the kernel's host and target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Rdma,
}

impl Transport {
    /// The kernel's name for it.
    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        }
    }

    /// An address of this machine at which it is reached: the one that is wanted, or any.
    pub(crate) fn address(self, wanted: Option<IpAddr>) -> Result<IpAddr, String> {
        match self {
            Self::Tcp => Ok(wanted.unwrap_or(Ipv4Addr::LOCALHOST.into())),
            Self::Rdma => rdma_device(wanted).map(|device| device.address).ok_or_else(|| match wanted {
                Some(wanted) => format!("an RDMA device with the address {wanted}"),
                None => "an RDMA device with an IPv4 address".into(),
            }),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RdmaDevice {
    name: String,
    address: IpAddr,
    /// The kernel does the work of a card by software.
    is_software: bool,
}

impl RdmaDevice {
    /// Its name, and that it is software if it is not a card.
    pub(crate) fn described(&self) -> String {
        let software = if self.is_software { ", in software: no figures of a card" } else { "" };
        format!("{}{software}", self.name)
    }
}

/// The first RDMA device whose network device has this address, or any IPv4 address.
pub(crate) fn rdma_device(wanted: Option<IpAddr>) -> Option<RdmaDevice> {
    let mut names: Vec<_> = std::fs::read_dir("/sys/class/infiniband").ok()?.flatten().collect();
    names.sort_by_key(std::fs::DirEntry::file_name);
    names.into_iter().find_map(|entry| {
        let path = entry.path();
        let interface = std::fs::read_to_string(path.join("ports/1/gid_attrs/ndevs/0")).ok()?;
        let mut addresses = addresses(interface.trim()).into_iter();
        let address =
            addresses.find(|address| wanted.map_or(address.is_ipv4(), |wanted| *address == wanted))?;
        // Devices of cards are below their bus.
        let is_software = !path.join("device").exists();
        Some(RdmaDevice { name: entry.file_name().to_string_lossy().into_owned(), address, is_software })
    })
}

fn addresses(interface: &str) -> Vec<IpAddr> {
    let shown = Command::new("ip").args(["-o", "address", "show", "dev", interface]).output();
    let text = shown.map(|shown| String::from_utf8_lossy(&shown.stdout).into_owned()).unwrap_or_default();
    text.lines().filter_map(parse_address).collect()
}

/// The address in a line of `ip -o address`.
fn parse_address(line: &str) -> Option<IpAddr> {
    let words: Vec<_> = line.split_ascii_whitespace().collect();
    let at = words.iter().position(|word| ["inet", "inet6"].contains(word))?;
    words.get(at + 1)?.split('/').next()?.parse().ok()
}

/// The missing requirements of several checks.
fn together(checks: impl IntoIterator<Item = Result<(), String>>) -> Result<(), String> {
    let needs: Vec<String> = checks.into_iter().filter_map(Result::err).collect();
    if needs.is_empty() { Ok(()) } else { Err(needs.join("; ")) }
}

/// Whether this process may set up the kernel's host and target.
fn may_set_up() -> Result<(), String> {
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err("root".into()) }
}

/// Writes a file of the kernel's.
fn write(path: &Path, text: &str) -> Result<(), crate::error::Error> {
    std::fs::write(path, text).map_err(|error| refused(path, &error))
}

fn refused(path: &Path, error: &std::io::Error) -> crate::error::Error {
    crate::error::Error::Lacking(format!("the kernel's NVMe refuses {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_an_interface_is_read() {
        let line = "2: eth0    inet 192.0.2.10/24 brd 192.0.2.255 scope global eth0\\       valid_lft forever preferred_lft forever\n";
        assert_eq!(parse_address(line), Some(Ipv4Addr::new(192, 0, 2, 10).into()));
        let line =
            "3: eth1    inet6 2001:db8::7/64 scope global \\       valid_lft forever preferred_lft forever\n";
        assert_eq!(parse_address(line), Some("2001:db8::7".parse().unwrap()));
        assert_eq!(parse_address(""), None);
        assert_eq!(parse_address("2: eth0    inet"), None);
    }
}
