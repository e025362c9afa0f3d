//! Actions for the driver of a lane.

use std::net::SocketAddr;

use crate::link_error::LinkError;

/// An action that a [`LaneCore`](super::LaneCore) asks its driver for.
#[derive(Clone, Debug)]
pub enum LaneAction {
    /// Connect a socket to this address, then call [`on_connected`](super::LaneCore::on_connected) or
    /// [`on_lost`](super::LaneCore::on_lost).
    Open(SocketAddr),
    /// Close the socket and drop unsent data.
    Close,
    /// Abort this command of the lane, through the admin queue.
    Abort {
        /// Its id on the wire.
        cid: u16,
    },
    /// Read the ANA log again, then call [`on_inaccessible`](super::LaneCore::on_inaccessible).
    ReadAna,
    /// Report to the association that the lane lost its connection.
    Report {
        /// The association that the connection belonged to.
        generation: u64,
        /// Why.
        cause: LinkError,
    },
}
