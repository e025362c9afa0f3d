//! A namespace as a virtio block device: its feature bits and its configuration space.

use host::Namespace;
use host::wire::identify::capabilities::Oncs;
use vhost::vhost_user::VhostUserProtocolFeatures;
use vhost::vhost_user::message::VhostUserVirtioFeatures;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO,
    VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES, VIRTIO_BLK_ID_BYTES,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, Immutable, IntoBytes, Unaligned};

use super::request::SECTOR_BYTES;

/// Segments of one request: what fits a queue of 128 entries without an indirect table, beside head and status.
const SEGMENTS_MAX: u32 = 126;

/// Ranges of one Discard.
const DISCARD_RANGES_MAX: u16 = 32;

/// Longest Write Zeroes, and longest range of a Discard, bytes.
const ZEROES_BYTES_MAX: u64 = 4 << 30;

/// Features of the transport that a front end may use.
pub(crate) const PROTOCOL_FEATURES: VhostUserProtocolFeatures = VhostUserProtocolFeatures::MQ
    .union(VhostUserProtocolFeatures::CONFIG)
    .union(VhostUserProtocolFeatures::BACKEND_REQ)
    .union(VhostUserProtocolFeatures::INFLIGHT_SHMFD);

/// A block device.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) namespace: Namespace,
    pub(crate) is_read_only: bool,
    pub(crate) queue_count: u16,
}

/// `struct virtio_blk_config` to the limits of Write Zeroes.
#[derive(FromZeros, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct Space {
    capacity: U64,
    size_max: U32,
    seg_max: U32,
    geometry: U32,
    blk_size: U32,
    physical_block_exp: u8,
    alignment_offset: u8,
    min_io_size: U16,
    opt_io_size: U32,
    writeback: u8,
    unused: u8,
    num_queues: U16,
    max_discard_sectors: U32,
    max_discard_seg: U32,
    discard_sector_alignment: U32,
    max_write_zeroes_sectors: U32,
    max_write_zeroes_seg: U32,
    write_zeroes_may_unmap: u8,
    unused1: [u8; 3],
}
const _: () = assert!(size_of::<Space>() == 60);

impl Device {
    fn can(&self, command: Oncs) -> bool {
        !self.is_read_only && self.namespace.limits().commands.contains(command)
    }

    /// Feature bits of virtio, and that of the protocol features.
    pub(crate) fn features(&self) -> u64 {
        let bit = |bit: u32, is_set: bool| u64::from(is_set) << bit;
        VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
            | bit(VIRTIO_F_VERSION_1, true)
            | bit(VIRTIO_RING_F_INDIRECT_DESC, true)
            | bit(VIRTIO_RING_F_EVENT_IDX, true)
            | bit(VIRTIO_BLK_F_SEG_MAX, true)
            | bit(VIRTIO_BLK_F_BLK_SIZE, true)
            | bit(VIRTIO_BLK_F_TOPOLOGY, true)
            | bit(VIRTIO_BLK_F_FLUSH, true)
            | bit(VIRTIO_BLK_F_MQ, self.queue_count > 1)
            | bit(VIRTIO_BLK_F_RO, self.is_read_only)
            | bit(VIRTIO_BLK_F_DISCARD, self.can(Oncs::DATASET_MANAGEMENT))
            | bit(VIRTIO_BLK_F_WRITE_ZEROES, self.can(Oncs::WRITE_ZEROES))
    }

    /// The configuration space.
    pub(crate) fn space(&self) -> Vec<u8> {
        let namespace = &self.namespace;
        let lba_bytes = namespace.lba_bytes();
        let block_sectors = lba_bytes / SECTOR_BYTES;
        let sectors = |blocks: u32| {
            let bytes = (u64::from(blocks) * u64::from(lba_bytes)).min(ZEROES_BYTES_MAX);
            U32::from(
                u32::try_from(bytes / u64::from(SECTOR_BYTES)).unwrap_or(u32::MAX) / block_sectors
                    * block_sectors,
            )
        };
        let limits = namespace.limits();
        let preferred_blocks = namespace.info().optimal_write_blocks;
        let mut space = Space::new_zeroed();
        space.capacity = (namespace.size_bytes() / u64::from(SECTOR_BYTES)).into();
        space.seg_max = SEGMENTS_MAX.into();
        space.blk_size = lba_bytes.into();
        space.min_io_size = 1.into();
        space.opt_io_size = preferred_blocks.into();
        space.num_queues = self.queue_count.into();
        if self.can(Oncs::DATASET_MANAGEMENT) {
            space.max_discard_sectors = sectors(limits.deallocate_range_blocks_max.unwrap_or(u32::MAX));
            space.max_discard_seg = u32::from(self.discard_ranges_max()).into();
            space.discard_sector_alignment = block_sectors.into();
        }
        if self.can(Oncs::WRITE_ZEROES) {
            space.max_write_zeroes_sectors = sectors(u32::MAX);
            space.max_write_zeroes_seg = 1.into();
            space.write_zeroes_may_unmap = 1;
        }
        space.as_bytes().to_vec()
    }

    /// Ranges of one Discard.
    pub(crate) fn discard_ranges_max(&self) -> u16 {
        self.namespace.limits().deallocate_ranges_max.clamp(1, DISCARD_RANGES_MAX)
    }

    /// What a guest sees as the serial number: the last digits of the namespace's UUID or NGUID, or its id.
    pub(crate) fn serial(&self) -> [u8; VIRTIO_BLK_ID_BYTES as usize] {
        let info = self.namespace.info();
        let digits: String = match (&info.uuid, &info.nguid) {
            (Some(uuid), _) => uuid.to_string().chars().filter(char::is_ascii_hexdigit).collect(),
            (None, Some(nguid)) => nguid.iter().map(|byte| format!("{byte:02x}")).collect(),
            (None, None) => format!("nvlane-{}", info.nsid),
        };
        let mut serial = [0; VIRTIO_BLK_ID_BYTES as usize];
        let start = digits.len().saturating_sub(serial.len());
        serial.iter_mut().zip(digits.bytes().skip(start)).for_each(|(place, digit)| *place = digit);
        serial
    }
}
