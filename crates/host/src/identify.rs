//! What a controller tells when it is asked: Identify and log pages, typed. Text in them is escaped when it is displayed.
//! wire §10, §11
// What a controller has sent must not be able to end us: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]

use wire::id::{Csi, Nsid};
use wire::identify::controller::IdentifyController;
use wire::identify::lists::{read_controller_list, read_nsid_list};
use wire::identify::namespace::IdentifyNamespace;
use wire::identify::{Cns, IDENTIFY_BYTES, IdentifyCommand};
use wire::log::error::{ERROR_ENTRY_BYTES, ErrorEntry};
use wire::log::health::{FirmwareSlots, HEALTH_LOG_BYTES, HealthLog};
use wire::log::support::{CommandsAndEffects, SupportedPages};
use wire::log::{GetLogPage, Lid};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::admin::AdminCommand;
use crate::association::Association;
use crate::error::Error;

/// Bytes of a log page asked for at once.
const LOG_PART_BYTES: u64 = 4096;

/// Entries of the error log that are read at most.
const ERROR_ENTRIES_MAX: u16 = 256;

impl Association {
    /// Any page of Identify: 4096 bytes, less only if the controller sent less.
    ///
    /// # Errors
    /// [`Error::Failed`]: the controller does not have it.
    pub fn identify(&self, command: IdentifyCommand, nsid: Nsid) -> Result<Vec<u8>, Error> {
        let command = AdminCommand::new(command.to_sqe(nsid)).receiving(IDENTIFY_BYTES).read_only();
        Ok(self.admin("Identify", command)?.data)
    }

    fn identify_page(&self, cns: Cns, nsid: Nsid) -> Result<Vec<u8>, Error> {
        self.identify(IdentifyCommand { cns, ..IdentifyCommand::default() }, nsid)
    }

    /// What the controller says of itself now.
    ///
    /// # Errors
    /// [`Error::Failed`], or [`Error::Answer`] if it sent too little.
    pub fn identify_controller(&self) -> Result<Box<IdentifyController>, Error> {
        read("Identify Controller", &self.identify_page(Cns::CONTROLLER, Nsid::NONE)?)
    }

    /// What it says of a namespace of blocks. All zero if there is none.
    ///
    /// # Errors
    /// [`Error::Failed`], or [`Error::Answer`] if it sent too little.
    pub fn identify_namespace(&self, nsid: Nsid) -> Result<Box<IdentifyNamespace>, Error> {
        read("Identify Namespace", &self.identify_page(Cns::NAMESPACE, nsid)?)
    }

    /// The identifiers of a namespace, for [`NamespaceDescriptors`](wire::identify::descriptors::NamespaceDescriptors).
    ///
    /// # Errors
    /// [`Error::Failed`]: the controller has none.
    pub fn namespace_descriptors(&self, nsid: Nsid) -> Result<Vec<u8>, Error> {
        self.identify_page(Cns::NAMESPACE_DESCRIPTORS, nsid)
    }

    /// The active namespaces after `nsid`, 1024 at most.
    ///
    /// # Errors
    /// [`Error::Failed`]: the controller has no list.
    pub fn active_namespaces(&self, nsid: Nsid) -> Result<Vec<Nsid>, Error> {
        Ok(read_nsid_list(&self.identify_page(Cns::ACTIVE_NAMESPACES, nsid)?).collect())
    }

    /// The controllers of the subsystem, 2047 at most.
    ///
    /// # Errors
    /// [`Error::Failed`]: the controller has no list.
    pub fn controllers(&self) -> Result<Vec<wire::id::Cntlid>, Error> {
        Ok(read_controller_list(&self.identify_page(Cns::SUBSYSTEM_CONTROLLERS, Nsid::NONE)?).collect())
    }

    /// Bytes of a log page, read in parts where that is possible: as many as asked for, less only if the controller sent
    /// less. Its event, if it has one, does not come again for this (RAE).
    ///
    /// # Errors
    /// [`Error::Failed`]: the controller does not have it.
    pub fn log_page(&self, page: GetLogPage, nsid: Nsid) -> Result<Vec<u8>, Error> {
        let can_offset =
            self.controller().identify.lpa.contains(wire::identify::capabilities::Lpa::EXTENDED_DATA);
        let step = if can_offset { LOG_PART_BYTES } else { page.length_bytes };
        let mut log = Vec::new();
        while (log.len() as u64) < page.length_bytes {
            let left = page.length_bytes.saturating_sub(log.len() as u64);
            let length_bytes = left.min(step);
            let offset = page.offset.saturating_add(log.len() as u64);
            let part = self.log_part(GetLogPage { length_bytes, offset, rae: true, ..page }, nsid)?;
            let is_short = (part.len() as u64) < length_bytes;
            log.extend_from_slice(&part);
            if is_short {
                break;
            }
        }
        Ok(log)
    }

    /// Bytes of a log page in one command.
    pub(crate) fn log_part(&self, page: GetLogPage, nsid: Nsid) -> Result<Vec<u8>, Error> {
        let length = u32::try_from(page.length_bytes)
            .unwrap_or(u32::MAX)
            .min(self.controller().limits.transfer_bytes_max);
        let page = GetLogPage { length_bytes: length.into(), ..page };
        let command = AdminCommand::new(page.to_sqe(nsid)).receiving(length).read_only();
        Ok(self.admin("Get Log Page", command)?.data)
    }

    fn whole_log(&self, lid: Lid, nsid: Nsid, length: usize) -> Result<Vec<u8>, Error> {
        self.log_page(GetLogPage { lid, length_bytes: length as u64, ..GetLogPage::default() }, nsid)
    }

    /// SMART and health: of the controller, or of one namespace where that is kept apart.
    ///
    /// # Errors
    /// [`Error::Failed`], or [`Error::Answer`] if it sent too little.
    pub fn smart_log(&self, nsid: Nsid) -> Result<Box<HealthLog>, Error> {
        read("the SMART log", &self.whole_log(Lid::SMART, nsid, HEALTH_LOG_BYTES)?)
    }

    /// The latest errors, newest first, at most `count`.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn error_log(&self, count: u16) -> Result<Vec<ErrorEntry>, Error> {
        let there = self.controller().identify.error_log_entries();
        let count = count.min(there).clamp(1, ERROR_ENTRIES_MAX);
        let log = self.whole_log(Lid::ERROR, Nsid::NONE, usize::from(count) * ERROR_ENTRY_BYTES)?;
        let entries =
            log.chunks_exact(ERROR_ENTRY_BYTES).filter_map(|entry| ErrorEntry::read_from_bytes(entry).ok());
        Ok(entries.filter(|entry| entry.count.get() != 0).collect())
    }

    /// Firmware slots.
    ///
    /// # Errors
    /// [`Error::Failed`], or [`Error::Answer`] if it sent too little.
    pub fn firmware_slots(&self) -> Result<Box<FirmwareSlots>, Error> {
        let log = self.whole_log(Lid::FIRMWARE_SLOTS, Nsid::NONE, size_of::<FirmwareSlots>())?;
        read("the firmware slots log", &log)
    }

    /// Commands supported and their effects, with those of one I/O command set.
    ///
    /// # Errors
    /// [`Error::Failed`], or [`Error::Answer`] if it sent too little.
    pub fn effects_log(&self, csi: Csi) -> Result<Box<CommandsAndEffects>, Error> {
        let length_bytes = size_of::<CommandsAndEffects>() as u64;
        let page = GetLogPage { lid: Lid::COMMANDS_AND_EFFECTS, length_bytes, csi, ..GetLogPage::default() };
        read("the effects log", &self.log_page(page, Nsid::NONE)?)
    }

    /// Log pages supported.
    ///
    /// # Errors
    /// [`Error::Failed`], or [`Error::Answer`] if it sent too little.
    pub fn supported_log_pages(&self) -> Result<Box<SupportedPages>, Error> {
        let log = self.whole_log(Lid::SUPPORTED_PAGES, Nsid::NONE, size_of::<SupportedPages>())?;
        read("the supported log pages log", &log)
    }
}

fn read<T: FromBytes + KnownLayout + Immutable>(
    command: &'static str,
    bytes: &[u8],
) -> Result<Box<T>, Error> {
    let value = T::read_from_prefix(bytes).map_err(|_| Error::Answer { command, why: "it is too short" })?;
    Ok(Box::new(value.0))
}
