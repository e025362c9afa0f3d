//! What a node's machine does for the service: the kernel's host, its mounts, and programs of file systems.

use std::path::{Path, PathBuf};

use tonic::Status;

use super::mounts::Mount;
use crate::authentication::Secrets;

/// A volume that a target serves, as its controller tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Export {
    pub(crate) nqn: String,
    /// `ADDR:PORT` of each of the target's addresses.
    pub(crate) addresses: Vec<std::net::SocketAddr>,
    pub(crate) uuid: String,
    pub(crate) secrets: Secrets,
}

/// A machine with a host of NVMe over TCP.
pub(crate) trait Machine: Send + Sync {
    /// Why it cannot connect to anything.
    fn problem(&self) -> Option<String>;

    /// Connects to all addresses that are not connected, and returns the volume's block device.
    ///
    /// # Errors
    /// No address can be connected to, or there is no device.
    fn connect(&self, export: &Export) -> Result<PathBuf, Status>;

    /// Disconnects from a subsystem, if it is connected.
    ///
    /// # Errors
    /// Data could not be written back, or the kernel refuses.
    fn disconnect(&self, nqn: &str) -> Result<(), Status>;

    /// The block device of a connected subsystem.
    fn device(&self, nqn: &str) -> Option<PathBuf>;

    /// Size of a block device, bytes.
    fn size_bytes(&self, device: &Path) -> Option<u64>;

    /// Whether the kernel refuses writes to a block device.
    fn is_read_only(&self, device: &Path) -> bool;

    /// Has the kernel read a namespace's size again.
    fn rescan(&self, nqn: &str);

    /// The type of what is on a device; `None` if it is blank.
    ///
    /// # Errors
    /// The device cannot be read, or has a partition table.
    fn content(&self, device: &Path) -> Result<Option<String>, Status>;

    /// All mounts.
    ///
    /// # Errors
    /// They cannot be read.
    fn mounts(&self) -> Result<Vec<Mount>, Status>;

    /// Runs a program of the system to its end.
    ///
    /// # Errors
    /// It is missing, or fails; the message has what it printed.
    fn run(&self, program: &str, arguments: &[&str]) -> Result<(), Status>;
}
