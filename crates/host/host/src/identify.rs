//! Identify and log pages of a controller, typed. Their text is escaped when it is displayed. wire §10, §11
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

/// Bytes of a log page read by one command.
const LOG_PART_BYTES: u64 = 4096;

/// Maximum entries read from the error log.
const ERROR_ENTRIES_MAX: u16 = 256;

impl Association {
    /// Any Identify page: 4096 bytes, or fewer if the controller sent fewer.
    ///
    /// # Errors
    /// [`Error::Failed`], for example if the controller does not support it.
    pub fn identify(&self, command: IdentifyCommand, nsid: Nsid) -> Result<Vec<u8>, Error> {
        let command = AdminCommand::new(command.to_sqe(nsid)).receiving(IDENTIFY_BYTES).read_only();
        Ok(self.admin("Identify", command)?.data)
    }

    fn identify_page(&self, cns: Cns, nsid: Nsid) -> Result<Vec<u8>, Error> {
        self.identify(IdentifyCommand { cns, ..IdentifyCommand::default() }, nsid)
    }

    /// Identify Controller, read now.
    ///
    /// # Errors
    /// [`Error::Failed`], or [`Error::Answer`] if the answer is too short.
    pub fn identify_controller(&self) -> Result<Box<IdentifyController>, Error> {
        read("Identify Controller", &self.identify_page(Cns::CONTROLLER, Nsid::NONE)?)
    }

    /// Identify Namespace of a block namespace; all zero if it does not exist.
    ///
    /// # Errors
    /// [`Error::Failed`], or [`Error::Answer`] if the answer is too short.
    pub fn identify_namespace(&self, nsid: Nsid) -> Result<Box<IdentifyNamespace>, Error> {
        read("Identify Namespace", &self.identify_page(Cns::NAMESPACE, nsid)?)
    }

    /// The identifiers of a namespace, to be read with
    /// [`NamespaceDescriptors`](wire::identify::descriptors::NamespaceDescriptors).
    ///
    /// # Errors
    /// [`Error::Failed`], for example if the controller does not support it.
    pub fn namespace_descriptors(&self, nsid: Nsid) -> Result<Vec<u8>, Error> {
        self.identify_page(Cns::NAMESPACE_DESCRIPTORS, nsid)
    }

    /// The active namespaces after `nsid`, at most 1024.
    ///
    /// # Errors
    /// [`Error::Failed`], for example if the controller does not support it.
    pub fn active_namespaces(&self, nsid: Nsid) -> Result<Vec<Nsid>, Error> {
        Ok(read_nsid_list(&self.identify_page(Cns::ACTIVE_NAMESPACES, nsid)?).collect())
    }

    /// The controllers of the subsystem, at most 2047.
    ///
    /// # Errors
    /// [`Error::Failed`], for example if the controller does not support it.
    pub fn controllers(&self) -> Result<Vec<wire::id::Cntlid>, Error> {
        Ok(read_controller_list(&self.identify_page(Cns::SUBSYSTEM_CONTROLLERS, Nsid::NONE)?).collect())
    }

    /// A log page, read in parts if the controller supports offsets: the requested length, or less if the controller
    /// sent less. The read does not re-enable the page's event (RAE).
    ///
    /// # Errors
    /// [`Error::Failed`], for example if the controller does not support it.
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

    /// A part of a log page, read by one command.
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

    /// The SMART / Health log: of the controller, or of one namespace where the controller keeps it.
    ///
    /// # Errors
    /// [`Error::Failed`], or [`Error::Answer`] if the answer is too short.
    pub fn smart_log(&self, nsid: Nsid) -> Result<Box<HealthLog>, Error> {
        read("the SMART log", &self.whole_log(Lid::SMART, nsid, HEALTH_LOG_BYTES)?)
    }

    /// The error log: the latest errors, newest first, at most `count`.
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

    /// The firmware slot log.
    ///
    /// # Errors
    /// [`Error::Failed`], or [`Error::Answer`] if the answer is too short.
    pub fn firmware_slots(&self) -> Result<Box<FirmwareSlots>, Error> {
        let log = self.whole_log(Lid::FIRMWARE_SLOTS, Nsid::NONE, size_of::<FirmwareSlots>())?;
        read("the firmware slots log", &log)
    }

    /// The Commands Supported and Effects log, with one I/O command set.
    ///
    /// # Errors
    /// [`Error::Failed`], or [`Error::Answer`] if the answer is too short.
    pub fn effects_log(&self, csi: Csi) -> Result<Box<CommandsAndEffects>, Error> {
        let length_bytes = size_of::<CommandsAndEffects>() as u64;
        let page = GetLogPage { lid: Lid::COMMANDS_AND_EFFECTS, length_bytes, csi, ..GetLogPage::default() };
        read("the effects log", &self.log_page(page, Nsid::NONE)?)
    }

    /// The Supported Log Pages log.
    ///
    /// # Errors
    /// [`Error::Failed`], or [`Error::Answer`] if the answer is too short.
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
