//! Admin commands of callers, run by the association's thread.
// Data from a controller must not cause a panic: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]

use host_core::association_machine::{AdminAnswer, AdminRequest};
use host_core::namespace::Namespace;
use host_core::reconnect::Class;
use proto::host_controller::RequestData;
use wire::feature::{Fid, GetFeatures, SetFeatures};
use wire::id::Nsid;
use wire::lba_status::AllocatedBlocks;
use wire::property::Property;
use wire::sqe::Sqe;

use crate::association::Association;
use crate::error::Error;

/// A raw admin command, for commands without a method of [`Association`].
#[derive(Clone, Debug)]
pub struct AdminCommand {
    sqe: Sqe,
    data: RequestData,
    class: Class,
}

impl AdminCommand {
    /// A command without data; cid and data pointer are set on submission.
    #[must_use]
    pub fn new(sqe: Sqe) -> Self {
        Self { sqe, data: RequestData::None, class: Class::Other }
    }

    /// Sends this data to the controller.
    #[must_use]
    pub fn sending(self, data: Vec<u8>) -> Self {
        Self { data: RequestData::ToController(data), ..self }
    }

    /// Receives at most `length` bytes from the controller.
    #[must_use]
    pub fn receiving(self, length: u32) -> Self {
        Self { data: RequestData::FromController(length), ..self }
    }

    /// Marks a command that changes nothing: it is submitted again after a reconnect.
    #[must_use]
    pub fn read_only(self) -> Self {
        Self { class: Class::ReadOnly, ..self }
    }
}

impl Association {
    /// Runs an admin command and waits for its answer. A read-only command is repeated after a reconnect.
    ///
    /// # Errors
    /// [`Error::Failed`], with the controller's status or another [`Failure`](crate::Failure).
    pub fn admin(&self, name: &'static str, command: AdminCommand) -> Result<AdminAnswer, Error> {
        let AdminCommand { sqe, data, class } = command;
        self.run_admin(AdminRequest { id: 0, sqe, data, class })
            .map_err(|failure| Error::Failed { command: name, failure })
    }

    /// Asks on the admin queue which blocks of a range are allocated, and waits for the answer, a list of at most
    /// `room_bytes`: a range that begins with the one asked for and is not empty, and its allocated blocks. For
    /// namespaces that have no such command on I/O queues ([`Namespace::has_lba_status`]).
    ///
    /// # Errors
    /// [`Error::Command`] if the range is invalid or the controller does not tell
    /// ([`Namespace::has_admin_lba_status`]), [`Error::Failed`] if the command fails, [`Error::LbaStatus`] if the list
    /// makes no sense.
    pub fn allocated_blocks(
        &self,
        namespace: &Namespace,
        lba: u64,
        blocks: u64,
        room_bytes: u32,
    ) -> Result<AllocatedBlocks, Error> {
        let sqe = namespace.admin_lba_status(lba, blocks, room_bytes)?;
        let command = AdminCommand::new(sqe).receiving(room_bytes).read_only();
        let answer = self.admin("Get LBA Status", command)?;
        Ok(namespace.admin_allocated_blocks(lba, blocks, &answer.data)?)
    }

    /// Reads a controller property (Property Get).
    ///
    /// # Errors
    /// [`Error::Failed`], for example if the controller does not support it.
    pub fn property(&self, property: Property) -> Result<u64, Error> {
        let command = AdminCommand::new(Sqe::property_get(property)).read_only();
        Ok(self.admin("Property Get", command)?.result)
    }

    /// The value of a feature, and at most `length` bytes of its data.
    ///
    /// # Errors
    /// [`Error::Failed`], for example if the controller does not support it.
    pub fn get_features(&self, get: GetFeatures, nsid: Nsid, length: u32) -> Result<(u32, Vec<u8>), Error> {
        let command = AdminCommand::new(get.to_sqe(nsid)).read_only();
        let command = if length > 0 { command.receiving(length) } else { command };
        let answer = self.admin("Get Features", command)?;
        Ok((low_dword(answer.result), answer.data))
    }

    /// The current value of a feature without data.
    ///
    /// # Errors
    /// [`Error::Failed`], for example if the controller does not support it.
    pub fn feature(&self, fid: Fid, nsid: Nsid) -> Result<u32, Error> {
        Ok(self.get_features(GetFeatures { fid, ..GetFeatures::default() }, nsid, 0)?.0)
    }

    /// Sets a feature, with its data if `data` is not empty. Returns the result dword.
    ///
    /// # Errors
    /// [`Error::Failed`], for example if the controller does not support the feature or the value.
    pub fn set_features(&self, set: SetFeatures, nsid: Nsid, data: Vec<u8>) -> Result<u32, Error> {
        let command = AdminCommand::new(set.to_sqe(nsid));
        let command = if data.is_empty() { command } else { command.sending(data) };
        Ok(low_dword(self.admin("Set Features", command)?.result))
    }
}

#[expect(clippy::expect_used, reason = "it is masked")]
fn low_dword(result: u64) -> u32 {
    u32::try_from(result & 0xffff_ffff).expect("masked")
}
