//! Identify namespace (CNS 00, 11), and the structure independent of the command set (CNS 08). wire §10.2

use store::{Geometry, KeyValueShape, Usage};
use wire::identify::command_set::{
    IndependentNamespace, KvFormat, KvNamespace, KvVendorArea, KvVendorCommands, Nstat,
};
use wire::identify::namespace::{
    DeallocatedValue, Dlfeat, IdentifyNamespace, LbaFormat, Nmic, Nsattr, Nsfeat, NvmVendorCommands,
};
use wire::kv::LONG_KEY_LENGTH_MAX;

use super::ANA_GROUP;
use crate::io_path::key_value_io::batch::OPERATION_COUNT_MAX;
use crate::messages::key_value::operation::{BATCH_VECTOR_BYTES_MAX, VECTOR_BYTES_MAX};
use crate::names::limits::Limits;
use crate::objects::subsystem::Namespace;

#[expect(clippy::expect_used, reason = "geometry of a store of ours")]
pub(super) fn identify(
    namespace: &Namespace,
    geometry: &Geometry,
    allocated_bytes: Option<u64>,
    is_read_only: bool,
    limits: &Limits,
) -> IdentifyNamespace {
    let mut structure = IdentifyNamespace::default();
    structure.nsze.set(geometry.block_count);
    structure.ncap.set(geometry.block_count);
    structure.nuse.set(geometry.block_count);
    structure.nvmcap.set(geometry.bytes().into());
    structure.nsfeat = Nsfeat::OPTIMAL_SIZES;
    if let Some(bytes) = allocated_bytes {
        structure.nsfeat |= Nsfeat::THIN;
        structure.nuse.set(bytes.div_ceil(geometry.block_bytes.into()).min(geometry.block_count));
    }
    structure.set_format_count(1);
    structure.lbaf[0] = LbaFormat::new(geometry.block_bytes).expect("a store has blocks of a power of two");
    structure.nmic = Nmic::SHARED;
    structure.nsattr = attributes(is_read_only);
    let can_deallocate = geometry.can_deallocate;
    // The holes of storage that is only read are zeroes. Where Deallocate leaves blocks as they are, hosts must not expect zeroes.
    let is_zero = can_deallocate || geometry.is_read_only;
    let value = if is_zero { DeallocatedValue::ZEROES } else { DeallocatedValue::UNKNOWN };
    structure.dlfeat = Dlfeat::default().with_value(value).with_write_zeroes_deallocates(can_deallocate);
    structure.set_write_granularity_blocks(geometry.preferred_write_blocks);
    structure.set_write_alignment_blocks(geometry.preferred_write_blocks);
    structure.set_deallocate_granularity_blocks(geometry.preferred_deallocate_blocks);
    structure.set_deallocate_alignment_blocks(geometry.preferred_deallocate_blocks);
    structure.set_optimal_write_blocks(geometry.preferred_write_blocks);
    structure.mssrl.set(limits.copy_range_blocks_max);
    structure.mcl.set(limits.copy_blocks_max);
    structure.set_copy_ranges(limits.copy_range_count_max);
    structure.anagrpid.set(ANA_GROUP);
    structure.nguid = namespace.nguid;
    structure.set_vendor_commands(NvmVendorCommands::LBA_STATUS);
    structure
}

/// A namespace of the key-value command set. wire §23
pub(super) fn key_value(
    namespace: &Namespace,
    (shape, usage): (KeyValueShape, Usage),
    limits: &Limits,
    is_limited: bool,
) -> KvNamespace {
    let mut structure = KvNamespace::default();
    structure.nsze.set(shape.bytes);
    structure.nuse.set(usage.pair_bytes.min(shape.bytes));
    structure.nmic = Nmic::SHARED;
    structure.set_format_count(1);
    // A value moves as a whole: the command set's commands have it fit into one transfer if transfers are limited, ours do not.
    let transfer_bytes_max = if is_limited { limits.transfer_bytes_max } else { u32::MAX };
    let value_bytes_max = shape.value_bytes_max.min(transfer_bytes_max);
    structure.kvf[0] = KvFormat::new(16, value_bytes_max, 0);
    let mut vendor = KvVendorArea::default();
    vendor.version.set(1);
    let mut commands = KvVendorCommands::all();
    let has_map = namespace.store.keys().is_some_and(|keys| keys.partitioning().is_some());
    commands.set(KvVendorCommands::PARTITION_MAP, has_map);
    vendor.set_commands(commands);
    vendor.long_key_bytes_max.set(LONG_KEY_LENGTH_MAX.into());
    vendor.batch_operations_max.set(OPERATION_COUNT_MAX.into());
    vendor.batch_bytes_max.set(limits.transfer_bytes_max);
    vendor.vector_bytes_max.set(VECTOR_BYTES_MAX);
    vendor.value_bytes_max.set(shape.value_bytes_max);
    vendor.batch_vector_bytes_max.set(BATCH_VECTOR_BYTES_MAX);
    structure.set_vendor(vendor);
    structure.anagrpid.set(ANA_GROUP);
    structure.nguid = namespace.nguid;
    structure
}

pub(super) fn independent(namespace: &Namespace, is_read_only: bool) -> IndependentNamespace {
    let mut structure = IndependentNamespace::default();
    structure.nmic = Nmic::SHARED;
    structure.nsattr = attributes(is_read_only);
    structure.nstat = if namespace.store.generation().is_closed() { Nstat::empty() } else { Nstat::READY };
    structure.anagrpid.set(ANA_GROUP);
    structure
}

fn attributes(is_read_only: bool) -> Nsattr {
    if is_read_only { Nsattr::WRITE_PROTECTED } else { Nsattr::empty() }
}
