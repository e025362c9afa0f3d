//! What the block device of a namespace is like: sizes, limits, attributes.

use host::Namespace;
use host::wire::identify::capabilities::Oncs;
use ublk::commands::{Parameters, SECTOR_BYTES, attribute};

/// Data of a request at most, unless the controller takes less, bytes.
const REQUEST_BYTES_MAX: u32 = 128 << 10;

/// Longest discard and Write Zeroes, bytes: the block layer has 32 bits for the bytes of a request.
const RANGE_BYTES_MAX: u64 = 2 << 30;

/// The largest block that a block device has, bytes.
pub(crate) const BLOCK_BYTES_MAX: u32 = 4096;

/// Data of a request at most, bytes: that of one command.
pub(crate) fn request_bytes_max(namespace: &Namespace) -> u32 {
    let lba_bytes = namespace.lba_bytes();
    let bytes =
        (REQUEST_BYTES_MAX / lba_bytes).min(namespace.transfer_blocks_max()).saturating_mul(lba_bytes);
    // The kernel has buffers of whole pages.
    let page_bytes = u32::try_from(memory::page_bytes()).unwrap_or(u32::MAX);
    bytes / page_bytes * page_bytes
}

/// The size of a device, sectors.
pub(crate) fn sectors(namespace: &Namespace) -> u64 {
    namespace.size_bytes() / u64::from(SECTOR_BYTES)
}

/// The parameters of a device.
pub(crate) fn parameters(namespace: &Namespace, is_read_only: bool) -> Parameters {
    let lba_bytes = namespace.lba_bytes();
    let limits = namespace.limits();
    let range = |blocks: u32| {
        let blocks = u64::from(blocks).min(RANGE_BYTES_MAX / u64::from(lba_bytes));
        u32::try_from(blocks).unwrap_or(u32::MAX) * (lba_bytes / SECTOR_BYTES)
    };
    let can = |command| !is_read_only && limits.commands.contains(command);
    let mut parameters = Parameters::new(lba_bytes, sectors(namespace), request_bytes_max(namespace));
    parameters.attributes = attribute::VOLATILE_CACHE | attribute::FUA;
    if is_read_only {
        parameters.attributes |= attribute::READ_ONLY;
    }
    if can(Oncs::DATASET_MANAGEMENT) {
        parameters.discard_sectors_max = range(limits.deallocate_range_blocks_max.unwrap_or(u32::MAX));
    }
    if can(Oncs::WRITE_ZEROES) {
        parameters.write_zeroes_sectors_max = range(namespace.write_zeroes_blocks_max());
    }
    parameters
}
