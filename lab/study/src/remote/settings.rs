//! Settings of a study server, and its messages to its operator.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use linux::CoreList;
use security::access_token::AccessToken;

use super::ports::PortRange;

/// Settings of a server.
#[derive(Debug)]
pub struct ServerSettings {
    /// The nvlane program.
    pub program: PathBuf,
    /// Where studies connect.
    pub listen: SocketAddr,
    /// Address of the targets; `None`: the one by which the study reached the server.
    pub data_address: Option<IpAddr>,
    /// Ports of the targets; `None`: any that is free.
    pub data_ports: Option<PortRange>,
    /// Cores of the targets.
    pub cores: CoreList,
    /// Interface with the address of the targets whose queues a study may give to a target; `None`: it may not.
    pub interface: Option<String>,
    /// Token that a study has to prove.
    pub token: AccessToken,
}

/// A message of a server to its operator.
#[derive(Debug)]
pub enum Event {
    /// A study began.
    Began(SocketAddr),
    /// A study ended, by itself or because of this error.
    Ended(SocketAddr, Option<String>),
    /// A connection was refused.
    Refused(SocketAddr, String),
    /// This number of connections that had not proven the token were closed for newer ones.
    Crowded(u64),
    /// The interface was set for a target of the study: the means.
    Set(String, &'static str),
    /// The setting was taken back, or not, which the standard error explains.
    TakenBack(String, bool),
}
