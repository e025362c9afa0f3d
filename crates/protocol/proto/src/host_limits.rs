//! The limits of a controller, checked and clamped before the host computes anything from them.
//! wire §10.1, §24

use wire::identify::capabilities::{Fuses, Oncs};
use wire::identify::command_set::{Aocs, NvmController};
use wire::identify::controller::IdentifyController;
use wire::property::Cap;

use crate::host_queue::HOST_SLOT_COUNT_MAX;

/// Most bytes one command moves, whatever a controller reports: nvmet says "no limit" and takes 4 MiB. wire §26
pub const TRANSFER_BYTES_MAX: u32 = 4 << 20;

/// Most in-capsule data used, whatever a controller reports.
const IN_CAPSULE_BYTES_MAX: u64 = 1 << 20;

/// Aborts and event requests outstanding at once that we make use of.
const OUTSTANDING_MAX: u16 = 4;

/// The limits and abilities of one controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes one command transfers.
    pub transfer_bytes_max: u32,
    /// Most bytes that one command transfers by MDTS alone; `u32::MAX` without a limit. For values, which move as a
    /// whole. wire §23
    pub value_transfer_bytes_max: u32,
    /// Data up to this length goes in the capsule on I/O queues.
    pub in_capsule_bytes: u32,
    /// Entries of an I/O queue at most, 2 to 65536.
    pub queue_entries_max: u32,
    /// Commands outstanding on one I/O queue at most.
    pub queue_commands_max: u16,
    /// Aborts outstanding at most, at least 1.
    pub abort_limit: u16,
    /// Asynchronous Event Requests we keep outstanding, at least 1.
    pub event_request_count: u16,
    /// There is a volatile write cache: only a flush or FUA makes a write durable.
    pub has_volatile_cache: bool,
    /// Optional commands it supports.
    pub commands: Oncs,
    /// Optional admin commands of the NVM command set that it supports.
    pub admin_commands: Aocs,
    /// Fused pairs it supports.
    pub fused: Fuses,
    /// Blocks it compares and writes as one.
    pub compare_write_blocks: u32,
    /// Most bytes one Write Zeroes covers; `None` for no limit.
    pub write_zeroes_bytes_max: Option<u64>,
    /// Most bytes one Verify covers; `None` for no limit.
    pub verify_bytes_max: Option<u64>,
    /// Ranges in one Dataset Management, 1 to 256.
    pub deallocate_ranges_max: u16,
    /// Blocks in one range of Dataset Management; `None` for no limit.
    pub deallocate_range_blocks_max: Option<u32>,
    /// Delays it asks for before a retry, milliseconds, by CRD 1 to 3.
    pub retry_delays_ms: [u32; 3],
}

/// A field of Identify Controller with which the controller cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}: {why}")]
pub struct UnusableField {
    /// Name of the field.
    pub field: &'static str,
    /// Its value.
    pub value: u64,
    /// The problem with it.
    pub why: &'static str,
}

impl Limits {
    /// Reads the limits of a controller with I/O queues.
    ///
    /// # Errors
    /// The field with which no I/O is possible.
    pub fn new(cap: Cap, identify: &IdentifyController) -> Result<Self, UnusableField> {
        check_entry_sizes(identify)?;
        if identify.command_capsule_bytes() < 64 {
            let value = u64::from(u32::try_from(identify.command_capsule_bytes() / 16).unwrap_or(0));
            return Err(UnusableField { field: "IOCCSZ", value, why: "a command does not fit" });
        }
        if identify.in_capsule_offset_bytes() != 0 {
            let value = u64::from(identify.in_capsule_offset_bytes() / 16);
            return Err(UnusableField {
                field: "ICDOFF",
                value,
                why: "in-capsule data must follow the command",
            });
        }
        if identify.sgls().support() == 0 {
            return Err(UnusableField { field: "SGLS", value: 0, why: "commands over TCP need SGLs" });
        }
        let queue_entries_max = cap.queue_entries_max();
        if queue_entries_max < 2 {
            return Err(UnusableField { field: "CAP.MQES", value: 0, why: "a queue needs two entries" });
        }
        let value_transfer_bytes_max = identify
            .transfer_limit_bytes(cap.page_bytes_min())
            .map_or(u32::MAX, |limit| u32::try_from(limit).unwrap_or(u32::MAX));
        let transfer_bytes_max = value_transfer_bytes_max.min(TRANSFER_BYTES_MAX);
        // Without the offset subtype there is no way to name data in a capsule. wire §10.1
        let in_capsule_bytes = match identify.sgls().in_capsule_offset() {
            true => u32::try_from(identify.in_capsule_bytes().min(IN_CAPSULE_BYTES_MAX)).unwrap_or(0),
            false => 0,
        };
        // 0 means that the controller reports no limit of its own. wire §10.1
        let maxcmd = match identify.maxcmd.get() {
            0 => HOST_SLOT_COUNT_MAX,
            count => count.min(HOST_SLOT_COUNT_MAX),
        };
        Ok(Self {
            transfer_bytes_max,
            value_transfer_bytes_max,
            in_capsule_bytes,
            queue_entries_max,
            queue_commands_max: maxcmd,
            abort_limit: identify.abort_limit().clamp(1, OUTSTANDING_MAX),
            event_request_count: identify.aer_limit().clamp(1, OUTSTANDING_MAX),
            has_volatile_cache: identify.vwc.present(),
            commands: identify.oncs(),
            admin_commands: Aocs::empty(),
            fused: identify.fuses(),
            compare_write_blocks: identify.atomic_compare_write_blocks(),
            write_zeroes_bytes_max: None,
            verify_bytes_max: None,
            deallocate_ranges_max: wire::nvm::RANGES_MAX,
            deallocate_range_blocks_max: None,
            retry_delays_ms: [1, 2, 3].map(|crd| identify.retry_delay_ms(crd).unwrap_or(0)),
        })
    }

    /// The limits of a discovery controller, which has an admin queue only.
    #[must_use]
    pub fn discovery(identify: &IdentifyController) -> Self {
        Self {
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            value_transfer_bytes_max: TRANSFER_BYTES_MAX,
            in_capsule_bytes: 0,
            queue_entries_max: 2,
            queue_commands_max: 1,
            abort_limit: identify.abort_limit().clamp(1, OUTSTANDING_MAX),
            event_request_count: identify.aer_limit().clamp(1, OUTSTANDING_MAX),
            has_volatile_cache: false,
            commands: Oncs::empty(),
            admin_commands: Aocs::empty(),
            fused: Fuses::empty(),
            compare_write_blocks: 0,
            write_zeroes_bytes_max: None,
            verify_bytes_max: None,
            deallocate_ranges_max: 1,
            deallocate_range_blocks_max: None,
            retry_delays_ms: [0; 3],
        }
    }

    /// Adds the limits of the NVM command set (CNS 06).
    pub fn refine(&mut self, cap: Cap, nvm: &NvmController) {
        self.write_zeroes_bytes_max = nvm.write_zeroes_limit_bytes(cap.page_bytes_min());
        self.verify_bytes_max = nvm.verify_limit_bytes(cap.page_bytes_min());
        if nvm.dmrl > 0 {
            self.deallocate_ranges_max = nvm.dmrl.into();
        }
        self.deallocate_range_blocks_max = Some(nvm.dmrsl.get()).filter(|&blocks| blocks > 0);
        self.admin_commands = nvm.aocs();
    }

    /// Entries of an I/O queue for `depth` commands at once, and how many may really be outstanding. One entry stays
    /// free, or a full queue would look empty; SPDK drops hosts that fill it. wire §27
    #[must_use]
    pub fn queue_size(&self, depth: u16) -> (u32, u16) {
        let depth = depth.clamp(1, self.queue_commands_max);
        let entries = u32::from(depth).saturating_add(1).min(self.queue_entries_max);
        (entries, u16::try_from(entries.saturating_sub(1)).unwrap_or(depth))
    }
}

/// Over fabrics entries are 64 and 16 bytes. 0 says nothing; anything else must allow them.
fn check_entry_sizes(identify: &IdentifyController) -> Result<(), UnusableField> {
    let sizes = [("SQES", identify.sqe_bytes(), 64), ("CQES", identify.cqe_bytes(), 16)];
    for (field, (smallest, largest), ours) in sizes {
        let says_nothing = smallest == 1 && largest == 1;
        if !says_nothing && !(smallest..=largest).contains(&ours) {
            return Err(UnusableField { field, value: smallest.into(), why: "entries of another size" });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::{FromBytes, IntoBytes};

    fn cap() -> Cap {
        Cap::from_bits(0).with_queue_entries_max(128)
    }

    /// A controller as usual, but for these bytes.
    fn controller(changes: &[(usize, &[u8])]) -> IdentifyController {
        let mut identify = IdentifyController::fabrics();
        identify.set_in_capsule_bytes(8192);
        identify.maxcmd.set(128);
        let mut bytes = identify.as_bytes().to_vec();
        for (at, change) in changes {
            bytes[*at..at + change.len()].copy_from_slice(change);
        }
        IdentifyController::read_from_bytes(&bytes).expect("4096 bytes")
    }

    fn refused(changes: &[(usize, &[u8])]) -> &'static str {
        Limits::new(cap(), &controller(changes)).expect_err("unusable").field
    }

    #[test]
    fn an_ordinary_controller_is_taken_at_its_word() {
        let limits = Limits::new(cap(), &controller(&[(77, &[5])])).unwrap();
        assert_eq!((limits.transfer_bytes_max, limits.value_transfer_bytes_max), (128 << 10, 128 << 10));
        assert_eq!(limits.in_capsule_bytes, 8192);
        assert_eq!(limits.queue_size(32), (33, 32));
        assert_eq!(limits.queue_size(500), (128, 127), "one entry stays free");
        assert_eq!(limits.queue_size(0), (2, 1));
    }

    /// hostile H14
    #[test]
    fn impossible_sizes_are_refused_and_wild_ones_clamped() {
        assert_eq!(refused(&[(1792, &[3, 0, 0, 0])]), "IOCCSZ");
        assert_eq!(refused(&[(1792, &[0; 4])]), "IOCCSZ");
        assert_eq!(refused(&[(1800, &[1, 0])]), "ICDOFF");
        assert_eq!(refused(&[(536, &[0; 4])]), "SGLS");
        assert_eq!(refused(&[(512, &[0x77])]), "SQES");
        assert_eq!(refused(&[(512, &[0x10])]), "SQES", "1 or 2 bytes");
        assert_eq!(refused(&[(513, &[0x33])]), "CQES");
        let one_entry = Cap::from_bits(0);
        assert_eq!(Limits::new(one_entry, &controller(&[])).unwrap_err().field, "CAP.MQES");
        for mdts in [0, 11, 31, 63, 255] {
            let limits = Limits::new(cap(), &controller(&[(77, &[mdts])])).unwrap();
            assert_eq!(limits.transfer_bytes_max, TRANSFER_BYTES_MAX, "MDTS {mdts}");
        }
        // No entry sizes, no commands per queue, 64 GiB capsules, more namespaces than there are numbers.
        let wild = controller(&[(512, &[0, 0]), (514, &[0, 0]), (1792, &[0xff; 4]), (516, &[0xff; 4])]);
        let limits = Limits::new(cap(), &wild).unwrap();
        assert_eq!(limits.queue_commands_max, HOST_SLOT_COUNT_MAX);
        assert_eq!(limits.in_capsule_bytes, 1 << 20);
        assert_eq!(limits.event_request_count, 1);
    }

    /// wire §10.4
    #[test]
    fn the_command_set_s_limits_are_taken_in_where_there_are_any() {
        let ordinary = Limits::new(cap(), &controller(&[])).unwrap();
        let mut limits = ordinary;
        limits.refine(cap(), &NvmController::default());
        assert_eq!(limits, ordinary, "zeroes say that there is none");
        let mut nvm = NvmController::default();
        nvm.dmrl = 8;
        nvm.dmrsl.set(1000);
        nvm.set_aocs(Aocs::ALLOCATED_LBA);
        nvm.set_write_zeroes_limit_bytes(Some(1 << 20), 4096);
        nvm.set_verify_limit_bytes(Some(1 << 16), 4096);
        limits.refine(cap(), &nvm);
        assert_eq!((limits.write_zeroes_bytes_max, limits.verify_bytes_max), (Some(1 << 20), Some(1 << 16)));
        assert_eq!((limits.deallocate_ranges_max, limits.deallocate_range_blocks_max), (8, Some(1000)));
        assert_eq!(limits.admin_commands, Aocs::ALLOCATED_LBA);
    }

    #[test]
    fn without_the_offset_subtype_nothing_goes_in_the_capsule() {
        let limits = Limits::new(cap(), &controller(&[(536, &[1, 0, 0, 0])])).unwrap();
        assert_eq!(limits.in_capsule_bytes, 0);
    }
}
