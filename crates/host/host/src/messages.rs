//! Messages between an association's thread, its lanes and its handles.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use host_core::association_machine::{AdminAnswer, AdminRequest};
use host_core::attachment::{Attachment, Inaccessible};
use host_core::failure::Failure;
use host_core::link_error::LinkError;
use reactor::Address as Post;
use wire::id::Qid;

use crate::error::Error;

/// A message to an association's thread.
#[derive(Debug)]
pub(crate) enum AssociationMessage {
    /// A caller's admin command.
    Admin { request: AdminRequest, reply: Sender<Result<AdminAnswer, Failure>> },
    /// A new lane registers for [`LaneMessage`]s. `generation` is the association it was made for.
    Lane { address: Post<LaneMessage>, generation: u64 },
    /// A lane of association `generation` lost its connection.
    LaneLost { generation: u64, cause: LinkError },
    /// Abort a command of a lane of association `generation`.
    Abort { generation: u64, qid: Qid, cid: u16 },
    /// The outcome of the name resolution that was started last.
    Resolved(std::io::Result<Vec<SocketAddr>>),
    /// A command of association `generation` ended with a status that the ANA log explains: read the log.
    ReadAna { generation: u64 },
    /// Identify all namespaces again.
    Rescan,
    /// Shut the controller down and end.
    Close,
}

/// A message from an association's thread to a lane.
#[derive(Debug)]
pub(crate) enum LaneMessage {
    /// An association is up: connect to it.
    Up(Arc<Attachment>),
    /// The association of this generation is lost.
    Down(u64),
    /// The ANA log of the current association was read.
    Inaccessible(Inaccessible),
    /// The association ended for good.
    Over(Arc<Error>),
}
