//! Requests of commands to the partition of another reactor.

use reactor::Io;
use store::Ticket;

use crate::io_path::attached::AttachedIndex;
use crate::io_path::commands::Commands;
use crate::messages::key_value::action::KvAction;
use crate::messages::key_value::key_name::KeyName;
use crate::messages::key_value::message::{PartitionRequest, Work};
use crate::messages::message::Message;

/// Posts the request of a command to a partition.
pub(super) fn post(
    commands: &mut Commands,
    io: &mut impl Io<Message>,
    at: AttachedIndex,
    to: usize,
    (ticket, key, action): (Ticket, KeyName, KvAction),
) {
    let namespace = commands.namespaces.get_mut(at).id;
    let work = Work::Act { ticket, key, action };
    io.post(to, PartitionRequest { from: io.reactor(), namespace, work }.into());
}
