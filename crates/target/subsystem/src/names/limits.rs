//! Limits reported to hosts: one set of numbers for the control plane and the data path. All are enforced except that
//! of Write Zeroes (WZSL): a longer one is executed, for hosts that do not read it.

use wire::discovery::DISCOVERED_ADMIN_QUEUE_ENTRIES;
use wire::pdu::DataAlignment;
use wire::property::{Cap, Vs};

/// The version of every controller. From 2.0 on hosts request the structures of command sets (CNS 06, 08), which limit
/// single commands beyond MDTS. wire §7, §10
pub const VERSION: Vs = Vs::V2_0;

/// Maximum time until CSTS.RDY follows CC.EN (CAP.TO), ms. It follows at once except after a reset, which waits for I/O
/// in flight.
const READY_TIMEOUT_MS: u32 = 15_000;

/// Limits of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries of an I/O queue (MQES); an admin queue may have 32 in any case.
    pub queue_entries_max: u16,
    /// Minimum entries of an admin queue: all Asynchronous Event Requests and a few commands.
    pub admin_queue_entries_min: u16,
    /// I/O queues of a controller.
    pub io_queue_count_max: u16,
    /// Data of one command (MDTS), bytes: a power of two of pages of 4096.
    pub transfer_bytes_max: u32,
    /// In-capsule data of I/O commands (IOCCSZ), bytes.
    pub in_capsule_bytes: u32,
    /// As above for a subsystem with key-value namespaces only, if larger: batches then arrive without an R2T.
    pub key_value_in_capsule_bytes: u32,
    /// Data of one H2CData (MAXH2CDATA), bytes: a multiple of 4, at least 4096.
    pub h2c_data_bytes_max: u32,
    /// Data of one R2T, bytes: a multiple of 4.
    pub window_bytes_max: u32,
    /// R2Ts of one command in flight, up to the host's own limit.
    pub window_count_max: u8,
    /// Data alignment in PDUs to the target (CPDA). Linux hosts accept the default only.
    pub data_alignment: DataAlignment,
    /// Bytes of one Write Zeroes (WZSL). It moves no data, so it may exceed a transfer.
    pub write_zeroes_bytes_max: u64,
    /// Blocks of a fused Compare and Write (ACWU).
    pub compare_and_write_blocks_max: u32,
    /// Blocks of one source range of a Copy (MSSRL).
    pub copy_range_blocks_max: u16,
    /// Blocks of a Copy in all (MCL).
    pub copy_blocks_max: u32,
    /// Source ranges of a Copy (MSRC).
    pub copy_range_count_max: u16,
    /// Aborts that may be outstanding (ACL).
    pub abort_count_max: u16,
    /// Entries of the error log (ELPE).
    pub error_entry_count_max: u16,
    /// The highest namespace id (NN, MNAN). Linux sizes its ANA log buffer by it.
    pub nsid_max: u32,
    /// Controllers of the target, including discovery controllers.
    pub controller_count_max: usize,
    /// Controllers of one host.
    pub controller_count_per_host_max: usize,
    /// NVMe connections, in total.
    pub connection_count_max: u32,
    /// NVMe connections from one IP address.
    pub connection_count_per_address_max: u32,
    /// Memcached connections, in total.
    pub memcached_connection_count_max: u32,
    /// Memcached connections from one IP address.
    pub memcached_connection_count_per_address_max: u32,
    /// Connections that have no queue (yet), or have broken the protocol: beyond this number the oldest is closed.
    pub unconnected_count_max: u32,
    /// Connections accepted per second; more wait in the kernel's queue.
    pub connections_per_s_max: u32,
    /// How long the Connect of a returning host waits for the lanes of its previous associations, ms.
    pub old_lane_wait_ms: u64,
    /// How long a Connect waits for a lane with its queue id to end, ms.
    pub twin_wait_ms: u64,
    /// How long a discovery controller without keep-alive may be idle, ms. wire §20
    pub discovery_idle_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queue_entries_max: proto::SLOT_COUNT_MAX,
            admin_queue_entries_min: 8,
            io_queue_count_max: 128,
            transfer_bytes_max: 1 << 20,
            in_capsule_bytes: 8192,
            key_value_in_capsule_bytes: 64 << 10,
            h2c_data_bytes_max: 1 << 20,
            window_bytes_max: 1 << 20,
            window_count_max: 2,
            data_alignment: DataAlignment::NONE,
            write_zeroes_bytes_max: 32 << 20,
            compare_and_write_blocks_max: 1,
            copy_range_blocks_max: 4096,
            copy_blocks_max: 32_768,
            copy_range_count_max: 64,
            abort_count_max: 4,
            error_entry_count_max: 64,
            nsid_max: 1024,
            controller_count_max: 8192,
            controller_count_per_host_max: 512,
            connection_count_max: 65_536,
            connection_count_per_address_max: 32_768,
            memcached_connection_count_max: 16_384,
            memcached_connection_count_per_address_max: 8192,
            unconnected_count_max: 4096,
            connections_per_s_max: 4000,
            old_lane_wait_ms: 10_000,
            twin_wait_ms: 3000,
            discovery_idle_ms: 120_000,
        }
    }
}

impl Limits {
    /// In-capsule data of I/O commands, bytes, in a subsystem with or without namespaces of blocks.
    #[must_use]
    pub(crate) fn in_capsule_bytes_of(&self, is_key_value_only: bool) -> u32 {
        if is_key_value_only {
            self.in_capsule_bytes.max(self.key_value_in_capsule_bytes)
        } else {
            self.in_capsule_bytes
        }
    }

    /// Maximum entries of a queue. A host does not know MQES when it connects its admin queue, only that it may have as
    /// many entries as the discovery log says. wire §24
    #[must_use]
    pub(crate) fn entries_max(&self, is_admin: bool) -> u32 {
        let queue_entries_max = u32::from(self.queue_entries_max);
        if is_admin {
            queue_entries_max.max(DISCOVERED_ADMIN_QUEUE_ENTRIES.into())
        } else {
            queue_entries_max
        }
    }

    /// The capabilities (CAP) of every controller. wire §7
    #[must_use]
    pub fn cap(&self) -> Cap {
        Cap::default()
            .with_queue_entries_max(self.queue_entries_max.into())
            .with_cqr(true)
            .with_ready_timeout_ms(READY_TIMEOUT_MS)
            .with_css_nvm(true)
            // Hosts select all command sets wherever they are offered, as nvmet offers them everywhere.
            .with_css_csi(true)
            .with_crwms(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// wire §7
    #[test]
    fn capabilities_are_those_of_a_controller_with_command_sets() {
        let cap = Limits::default().cap();
        assert_eq!(cap.bits(), 0x0800_0820_1E01_03FF);
        assert_eq!(cap.page_bytes_min(), 4096, "the unit of MDTS");
    }
}
