//! The scan of a controller's namespaces by its host: the list, then each namespace. wire §10, §24
//!
//! ```text
//! List ──a full page──▶ List            (each namespace:  Descriptors ─▶ Identify ─▶ found ─(partition map)─▶ complete)
//!   └───the last page──▶ Each ──none left──▶ Done
//! ```

use std::collections::VecDeque;

use wire::id::{Csi, Nsid};
use wire::identify::command_set::{KvNamespace, KvVendorCommands};
use wire::identify::descriptors::{NamespaceDescriptor, NamespaceDescriptors};
use wire::identify::lists::{NSID_LIST_ENTRIES, read_nsid_list};
use wire::identify::namespace::{
    DeallocatedValue, IdentifyNamespace, Nmic, Nsattr, Nsfeat, NvmVendorCommands,
};
use wire::identify::{Cns, IDENTIFY_BYTES};
use wire::kv::LONG_KEY_LENGTH_MAX;
use wire::log::partition_map::PartitionMapLog;
use wire::log::{GetLogPage, Lid};
use wire::sqe::Sqe;
use wire::status::Status;
use wire::uuid::Uuid;
use zerocopy::FromBytes;

use crate::host_limits::TRANSFER_BYTES_MAX;

/// Most namespaces scanned, whatever a controller lists.
pub const NAMESPACE_COUNT_MAX: usize = 4096;

/// Namespaces that are tried one by one where a controller has no list.
const TRIED_COUNT_MAX: u32 = 1024;

/// Commands of a scan that are sent again because their answers were damaged on the way.
const REPEAT_COUNT_MAX: u32 = 32;

/// Commands of a scan outstanding at once.
pub const SCAN_COMMANDS_MAX: u8 = 8;

/// A namespace of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Its id.
    pub nsid: Nsid,
    /// Its command set.
    pub csi: Csi,
    /// Its block format; `Err` if its blocks cannot be read or written by us.
    pub geometry: Result<Geometry, Unusable>,
    /// Bytes of a block and blocks in use, as far as reported.
    pub used_blocks: u64,
    /// Blocks that can be in use.
    pub capacity_blocks: u64,
    /// Write protected now.
    pub is_write_protected: bool,
    /// Other controllers may have it too.
    pub is_shared: bool,
    /// Deallocated blocks are counted as free.
    pub is_thin: bool,
    /// Content of deallocated blocks.
    pub deallocated_value: DeallocatedValue,
    /// Write Zeroes may deallocate.
    pub write_zeroes_deallocates: bool,
    /// Limits of one Copy.
    pub copy: CopyLimits,
    /// Boundary that I/O should not cross, blocks; 0 for none.
    pub optimal_boundary_blocks: u16,
    /// Preferred size of a write, blocks; 0 if not reported.
    pub optimal_write_blocks: u32,
    /// Preferred granularity of a write, blocks; 0 if not reported.
    pub write_granularity_blocks: u32,
    /// Preferred granularity of deallocation, blocks; 0 if not reported.
    pub deallocate_granularity_blocks: u32,
    /// Blocks compared and written as one; 0 if not reported.
    pub compare_write_blocks: u32,
    /// Commands beyond the standard's; none at a controller that is not ours. wire §14.1
    pub vendor_commands: NvmVendorCommands,
    /// ANA group, 0 for none.
    pub ana_group: u32,
    /// Limits of keys and values, if it is a key-value namespace.
    pub keys: Option<KeySpace>,
    /// Its UUID, if it has one.
    pub uuid: Option<Uuid>,
    /// Its NGUID, if it has one.
    pub nguid: Option<[u8; 16]>,
    /// Its EUI-64, if it has one.
    pub eui64: Option<[u8; 8]>,
}

/// Blocks of a namespace. Their product fits 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a block, a power of two from 512.
    pub lba_bytes: u32,
    /// Number of blocks.
    pub block_count: u64,
}

/// The limits of a key-value namespace. wire §23
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySpace {
    /// Bytes of all keys and values, at most.
    pub bytes: u64,
    /// Bytes of the present keys and values.
    pub used_bytes: u64,
    /// Bytes of a key, at most 16.
    pub key_bytes_max: u16,
    /// Bytes of a value.
    pub value_bytes_max: u32,
    /// Commands beyond the standard's; none at a controller that is not ours.
    pub vendor: KeySpaceVendor,
}

/// Commands beyond the standard's, and their limits; all 0 if there are none. docs/kv-commands.md §1
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeySpaceVendor {
    /// The commands.
    pub commands: KvVendorCommands,
    /// Bytes of a key in the data of a command, at most 250; 0 means 16.
    pub long_key_bytes_max: u16,
    /// Operations of one batch.
    pub batch_operations_max: u32,
    /// Bytes of the operations of a batch and their outcomes together.
    pub batch_bytes_max: u32,
    /// Bytes of a vector that an operation works on.
    pub vector_bytes_max: u32,
    /// Bytes of a value that is named by a second command, if MDTS does not limit it.
    pub value_bytes_max: u32,
    /// How a key's partition is found, if the target tells that.
    pub partitions: Option<KeyPartitions>,
}

/// How a key's partition is found: `memory::partition_of` of the bits of a `memory::Partitioner`.
/// docs/kv-commands.md §6
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPartitions {
    /// Seed of the partitioner.
    pub seed: u64,
    /// Number of partitions, not 0.
    pub count: u16,
}

impl KeySpace {
    fn new(identify: &KvNamespace) -> Option<Self> {
        let format = identify.format()?;
        let vendor = identify.vendor().map(|vendor| KeySpaceVendor {
            commands: vendor.commands(),
            long_key_bytes_max: vendor.long_key_bytes_max.get().min(LONG_KEY_LENGTH_MAX.into()),
            batch_operations_max: vendor.batch_operations_max.get(),
            batch_bytes_max: vendor.batch_bytes_max.get(),
            vector_bytes_max: vendor.vector_bytes_max.get(),
            value_bytes_max: vendor.value_bytes_max.get(),
            partitions: None,
        });
        Some(Self {
            bytes: identify.nsze.get(),
            used_bytes: identify.nuse.get(),
            key_bytes_max: format.key_bytes_max.get().min(16),
            value_bytes_max: format.value_bytes_max.get(),
            vendor: vendor.unwrap_or_default(),
        })
    }
}

/// The limits of one Copy; all 0 if it is not supported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyLimits {
    /// Blocks in one source range.
    pub range_blocks: u16,
    /// Blocks in all.
    pub blocks: u32,
    /// Source ranges.
    pub ranges: u16,
}

/// The reason for which an existing namespace cannot be read or written by us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unusable {
    /// Its format in use is none of those it lists.
    #[error("its format in use, {index}, is not one of the {count} that it lists")]
    Format {
        /// Index of the format in use.
        index: u8,
        /// Formats it has.
        count: u16,
    },
    /// Blocks of less than 512 bytes or more than 2 GiB: a format that is not there.
    #[error("its block size is invalid")]
    NoBlockSize,
    /// Blocks larger than one command can move.
    #[error("its blocks of {bytes} bytes are larger than one command can move")]
    BlockTooLarge {
        /// Bytes of a block.
        bytes: u32,
    },
    /// Metadata beside or between the blocks.
    #[error("its blocks carry {bytes} bytes of metadata each")]
    Metadata {
        /// Bytes per block.
        bytes: u16,
    },
    /// More bytes than 64 bits can count.
    #[error("it claims {block_count} blocks, more than can be addressed in bytes")]
    TooLarge {
        /// Blocks it claims.
        block_count: u64,
    },
    /// Another command set than the one for blocks.
    #[error("it is not a block namespace ({csi})")]
    CommandSet {
        /// Its command set.
        csi: Csi,
    },
    /// Another command set than the one for keys and values, or none of its formats.
    #[error("it is not a key-value namespace ({csi})")]
    NoKeys {
        /// Its command set.
        csi: Csi,
    },
}

impl NamespaceInfo {
    fn new(nsid: Nsid, ids: &Ids) -> Self {
        Self {
            nsid,
            csi: ids.csi,
            geometry: Err(Unusable::CommandSet { csi: ids.csi }),
            used_blocks: 0,
            capacity_blocks: 0,
            is_write_protected: false,
            is_shared: false,
            is_thin: false,
            deallocated_value: DeallocatedValue::UNKNOWN,
            write_zeroes_deallocates: false,
            copy: CopyLimits::default(),
            optimal_boundary_blocks: 0,
            optimal_write_blocks: 0,
            write_granularity_blocks: 0,
            deallocate_granularity_blocks: 0,
            compare_write_blocks: 0,
            vendor_commands: NvmVendorCommands::empty(),
            ana_group: 0,
            keys: None,
            uuid: ids.uuid,
            nguid: ids.nguid,
            eui64: ids.eui64,
        }
    }

    /// Reads an Identify Namespace; `None` if the namespace is not there. wire §10.2
    #[must_use]
    pub fn of_blocks(nsid: Nsid, ids: &Ids, identify: &IdentifyNamespace) -> Option<Self> {
        if !identify.is_present() {
            return None;
        }
        let features = identify.nsfeat;
        let sized = |blocks: u32| if features.contains(Nsfeat::OPTIMAL_SIZES) { blocks } else { 0 };
        let atomic = features.contains(Nsfeat::ATOMIC_SIZES);
        let identifier = |bytes: [u8; 16]| Some(bytes).filter(|bytes| *bytes != [0; 16]);
        Some(Self {
            geometry: geometry(identify),
            used_blocks: identify.nuse.get(),
            capacity_blocks: identify.ncap.get(),
            is_write_protected: identify.nsattr.contains(Nsattr::WRITE_PROTECTED),
            is_shared: identify.nmic.contains(Nmic::SHARED),
            is_thin: features.contains(Nsfeat::THIN),
            deallocated_value: identify.dlfeat.value(),
            write_zeroes_deallocates: identify.dlfeat.write_zeroes_deallocates(),
            copy: CopyLimits {
                range_blocks: identify.mssrl.get(),
                blocks: identify.mcl.get(),
                ranges: if identify.mssrl.get() == 0 { 0 } else { identify.copy_ranges() },
            },
            optimal_boundary_blocks: identify.noiob.get(),
            optimal_write_blocks: sized(identify.optimal_write_blocks()),
            write_granularity_blocks: sized(identify.write_granularity_blocks()),
            deallocate_granularity_blocks: sized(identify.deallocate_granularity_blocks()),
            compare_write_blocks: if atomic { identify.atomic_compare_write_blocks() } else { 0 },
            vendor_commands: identify.vendor_commands(),
            ana_group: identify.anagrpid.get(),
            nguid: ids.nguid.or(identifier(identify.nguid)),
            eui64: ids.eui64.or(Some(identify.eui64).filter(|bytes| *bytes != [0; 8])),
            ..Self::new(nsid, ids)
        })
    }

    /// Reads an Identify Namespace of the key-value command set. wire §23
    #[must_use]
    pub fn of_keys(nsid: Nsid, ids: &Ids, identify: &KvNamespace) -> Self {
        Self {
            is_shared: identify.nmic.contains(Nmic::SHARED),
            is_write_protected: identify.nsattr.contains(Nsattr::WRITE_PROTECTED),
            ana_group: identify.anagrpid.get(),
            keys: KeySpace::new(identify),
            ..Self::new(nsid, ids)
        }
    }
}

/// The blocks of a namespace, if all of it makes sense. Nothing is computed from a number before it is checked.
fn geometry(identify: &IdentifyNamespace) -> Result<Geometry, Unusable> {
    let (index, count) = (identify.flbas.index(), identify.format_count());
    if u16::from(index) >= count {
        return Err(Unusable::Format { index, count });
    }
    let format = identify.format();
    if format.ms.get() != 0 {
        return Err(Unusable::Metadata { bytes: format.ms.get() });
    }
    let block_count = identify.nsze.get();
    let lba_bytes = format.block_bytes().ok_or(Unusable::NoBlockSize)?;
    if lba_bytes > TRANSFER_BYTES_MAX {
        return Err(Unusable::BlockTooLarge { bytes: lba_bytes });
    }
    match block_count.checked_mul(lba_bytes.into()) {
        Some(_) => Ok(Geometry { lba_bytes, block_count }),
        None => Err(Unusable::TooLarge { block_count }),
    }
}

/// The descriptors of a namespace. wire §10.3
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ids {
    /// Command set; NVM if not reported.
    pub csi: Csi,
    /// UUID.
    pub uuid: Option<Uuid>,
    /// NGUID.
    pub nguid: Option<[u8; 16]>,
    /// EUI-64.
    pub eui64: Option<[u8; 8]>,
}

impl Ids {
    /// Reads the descriptors, as far as they can be read.
    #[must_use]
    pub fn new(list: &[u8]) -> Self {
        let mut ids = Self::default();
        for descriptor in NamespaceDescriptors::new(list).map_while(Result::ok) {
            match descriptor {
                NamespaceDescriptor::Eui64(id) if id != [0; 8] => ids.eui64 = Some(id),
                NamespaceDescriptor::Nguid(id) if id != [0; 16] => ids.nguid = Some(id),
                NamespaceDescriptor::Uuid(id) if !id.is_nil() => ids.uuid = Some(id),
                NamespaceDescriptor::Csi(csi) => ids.csi = csi,
                _ => {}
            }
        }
        ids
    }
}

/// One scan of all namespaces.
#[derive(Debug)]
pub struct Scan {
    /// Highest nsid that the controller reports, for controllers without a list.
    nsid_max: u32,
    has_descriptors: bool,
    list: List,
    /// Namespaces of the list so far.
    listed_count: usize,
    waiting: VecDeque<Nsid>,
    /// The steps whose commands are outstanding, by command.
    asked: [Option<Asked>; SCAN_COMMANDS_MAX as usize],
    /// Commands that were sent again.
    repeat_count: u32,
    found: Vec<NamespaceInfo>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum List {
    /// The page after this nsid is the next to read.
    After(Nsid),
    /// It is being read.
    Asked(Nsid),
    /// It is complete.
    Complete,
}

#[derive(Clone, Copy, Debug)]
enum Asked {
    /// A page of the list.
    List,
    /// The descriptors of a namespace.
    Descriptors(Nsid),
    /// The namespace is the next to identify.
    ToIdentify(Nsid, Ids),
    /// It is being identified.
    Identify(Nsid, Ids),
    /// The partition map of a namespace that was found is the next to read.
    ToMap(Nsid),
    /// Its partition map is being read.
    Map(Nsid),
}

impl Scan {
    /// A new scan. `has_descriptors` from version 1.3 on.
    #[must_use]
    pub fn new(nsid_max: u32, has_descriptors: bool) -> Self {
        Self {
            nsid_max,
            has_descriptors,
            list: List::After(Nsid::NONE),
            listed_count: 0,
            waiting: VecDeque::new(),
            asked: [None; SCAN_COMMANDS_MAX as usize],
            repeat_count: 0,
            found: Vec::new(),
        }
    }

    /// The next command to send, 4096 bytes to the host, and its number for [`on_completion`](Self::on_completion).
    pub fn next_command(&mut self) -> Option<(u8, Sqe)> {
        // Namespaces whose descriptors are read continue with Identify.
        for (index, asked) in (0u8..).zip(&mut self.asked) {
            if let Some(Asked::ToIdentify(nsid, ids)) = *asked {
                *asked = Some(Asked::Identify(nsid, ids));
                let sqe = match ids.csi {
                    Csi::NVM => Sqe::identify(Cns::NAMESPACE, nsid),
                    csi => Sqe::identify_in(csi, Cns::COMMAND_SET_NAMESPACE, nsid),
                };
                return Some((index, sqe));
            }
            if let Some(Asked::ToMap(nsid)) = *asked {
                *asked = Some(Asked::Map(nsid));
                let length_bytes = Self::COMMAND_BYTES.into();
                let page = GetLogPage { lid: Lid::PARTITION_MAP, length_bytes, ..GetLogPage::default() };
                return Some((index, page.to_sqe(nsid)));
            }
        }
        let index = self.asked.iter().position(Option::is_none)?;
        let (asked, sqe) = if let List::After(nsid) = self.list {
            self.list = List::Asked(nsid);
            (Asked::List, Sqe::identify(Cns::ACTIVE_NAMESPACES, nsid))
        } else {
            let nsid = self.waiting.pop_front()?;
            match self.has_descriptors {
                true => (Asked::Descriptors(nsid), Sqe::identify(Cns::NAMESPACE_DESCRIPTORS, nsid)),
                false => (Asked::Identify(nsid, Ids::default()), Sqe::identify(Cns::NAMESPACE, nsid)),
            }
        };
        *self.asked.get_mut(index)? = Some(asked);
        Some((u8::try_from(index).ok()?, sqe))
    }

    /// A command has ended with `data`, which may be short.
    pub fn on_completion(&mut self, index: u8, status: Status, data: &[u8]) {
        let Some(slot) = self.asked.get_mut(usize::from(index)) else { return };
        let Some(asked) = slot.take() else { return };
        let is_passing =
            status.is(Status::TRANSIENT_TRANSPORT_ERROR) || status.is(Status::COMMAND_INTERRUPTED);
        if is_passing && !status.dnr() && self.repeat_count < REPEAT_COUNT_MAX {
            // The failure is not the namespace's: send it again.
            self.repeat_count = self.repeat_count.saturating_add(1);
            match (asked, self.list) {
                (Asked::List, List::Asked(after)) => self.list = List::After(after),
                (Asked::Descriptors(nsid), _) => self.waiting.push_front(nsid),
                (Asked::Identify(nsid, ids), _) => *slot = Some(Asked::ToIdentify(nsid, ids)),
                (Asked::Map(nsid), _) => *slot = Some(Asked::ToMap(nsid)),
                _ => {}
            }
            return;
        }
        match asked {
            Asked::List if status.is_success() => self.on_list(data),
            Asked::List => {
                // No list: Linux tries every id then. wire §24
                self.list = List::Complete;
                self.waiting = (1..=self.nsid_max.min(TRIED_COUNT_MAX)).map(Nsid::new).collect();
            }
            // Removed since the list was read. A new namespace with its id is found by the next scan: an Identify alone
            // would show only a part of its identity, and no command set.
            Asked::Descriptors(_) if status.is(Status::INVALID_NAMESPACE) => {}
            Asked::Descriptors(nsid) => {
                // Without descriptors it may still be a plain block namespace.
                let ids = if status.is_success() { Ids::new(data) } else { Ids::default() };
                *slot = Some(Asked::ToIdentify(nsid, ids));
            }
            // Gone meanwhile, or refused: not there.
            Asked::Identify(nsid, ids) if status.is_success() => {
                if self.on_identify(nsid, &ids, data)
                    && let Some(slot) = self.asked.get_mut(usize::from(index))
                {
                    *slot = Some(Asked::ToMap(nsid));
                }
            }
            // Without a map any queue serves any key.
            Asked::Map(nsid) if status.is_success() => self.on_map(nsid, data),
            Asked::Identify(..) | Asked::ToIdentify(..) | Asked::Map(_) | Asked::ToMap(_) => {}
        }
    }

    fn on_list(&mut self, data: &[u8]) {
        let List::Asked(mut last) = self.list else { return };
        let mut count = 0;
        for nsid in read_nsid_list(data) {
            // Ascending by the specification; a list that does not ascend would never end.
            if nsid <= last || !nsid.is_one_namespace() || self.listed_count >= NAMESPACE_COUNT_MAX {
                self.list = List::Complete;
                return;
            }
            self.waiting.push_back(nsid);
            self.listed_count = self.listed_count.saturating_add(1);
            (last, count) = (nsid, usize::saturating_add(count, 1));
        }
        self.list = if count == NSID_LIST_ENTRIES { List::After(last) } else { List::Complete };
    }

    /// Returns whether the namespace has a partition map.
    fn on_identify(&mut self, nsid: Nsid, ids: &Ids, data: &[u8]) -> bool {
        let info = match ids.csi {
            Csi::NVM => IdentifyNamespace::ref_from_prefix(data)
                .ok()
                .and_then(|(identify, _)| NamespaceInfo::of_blocks(nsid, ids, identify)),
            Csi::KV => {
                KvNamespace::ref_from_prefix(data).ok().map(|(kv, _)| NamespaceInfo::of_keys(nsid, ids, kv))
            }
            _ => Some(NamespaceInfo::new(nsid, ids)),
        };
        self.found.extend(info);
        let vendor = info.and_then(|info| info.keys).map(|keys| keys.vendor);
        vendor.is_some_and(|vendor| vendor.commands.contains(KvVendorCommands::PARTITION_MAP))
    }

    fn on_map(&mut self, nsid: Nsid, data: &[u8]) {
        let page = PartitionMapLog::ref_from_prefix(data).ok();
        let partitions =
            page.and_then(|(page, _)| page.map()).map(|(seed, count)| KeyPartitions { seed, count });
        let found = self.found.iter_mut().find(|info| info.nsid == nsid);
        if let Some(keys) = found.and_then(|info| info.keys.as_mut()) {
            keys.vendor.partitions = partitions;
        }
    }

    /// Bytes that each command brings.
    pub const COMMAND_BYTES: u32 = IDENTIFY_BYTES;

    /// Whether every namespace was scanned.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.list == List::Complete && self.waiting.is_empty() && self.asked.iter().all(Option::is_none)
    }

    /// The existing namespaces, by id.
    #[must_use]
    pub fn into_found(mut self) -> Vec<NamespaceInfo> {
        self.found.sort_unstable_by_key(|info| info.nsid);
        self.found
    }
}

/// The ids of the namespaces added, removed or changed between two scans, ascending.
#[must_use]
pub fn changes(before: &[NamespaceInfo], after: &[NamespaceInfo]) -> Vec<Nsid> {
    let find = |all: &[NamespaceInfo], nsid| {
        all.binary_search_by_key(&nsid, |info| info.nsid).ok().and_then(|index| all.get(index)).copied()
    };
    // The blocks in use change all the time: no reason for a notice.
    let settled = |info: NamespaceInfo| {
        let keys = info.keys.map(|keys| KeySpace { used_bytes: 0, ..keys });
        NamespaceInfo { used_blocks: 0, keys, ..info }
    };
    let changed = |nsid| find(before, nsid).map(settled) != find(after, nsid).map(settled);
    let mut nsids: Vec<Nsid> =
        before.iter().chain(after).map(|info| info.nsid).filter(|&id| changed(id)).collect();
    nsids.sort_unstable();
    nsids.dedup();
    nsids
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::identify::IdentifyCommand;
    use wire::identify::command_set::{KvFormat, KvVendorArea};
    use wire::identify::lists::write_nsid_list;
    use wire::opcode::AdminOpcode;
    use zerocopy::IntoBytes;

    fn identify(changes: &[(usize, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        let usual: [(usize, &[u8]); 3] = [(0, &1000u64.to_le_bytes()), (8, &[1]), (130, &[12])];
        for (at, change) in usual.iter().chain(changes) {
            bytes[*at..at + change.len()].copy_from_slice(change);
        }
        bytes
    }

    fn info(changes: &[(usize, &[u8])]) -> Option<NamespaceInfo> {
        let bytes = identify(changes);
        let (identify, _) = IdentifyNamespace::ref_from_prefix(&bytes).unwrap();
        NamespaceInfo::of_blocks(Nsid::new(1), &Ids::default(), identify)
    }

    #[test]
    fn an_ordinary_namespace_has_its_blocks() {
        assert_eq!(info(&[]).unwrap().geometry, Ok(Geometry { lba_bytes: 4096, block_count: 1000 }));
    }

    /// hostile H14
    #[test]
    fn senseless_namespaces_are_refused_without_computing_with_them() {
        assert_eq!(info(&[(8, &[0])]), None, "no capacity: not there");
        let refused = |changes: &[(usize, &[u8])]| info(changes).unwrap().geometry.unwrap_err();
        for lbads in [0, 1, 8, 32, 63, 64, 255] {
            assert_eq!(refused(&[(130, &[lbads])]), Unusable::NoBlockSize, "LBADS {lbads}");
        }
        assert_eq!(refused(&[(130, &[31])]), Unusable::BlockTooLarge { bytes: 1 << 31 });
        assert_eq!(refused(&[(26, &[3])]), Unusable::Format { index: 3, count: 1 });
        assert_eq!(refused(&[(26, &[0x6f])]), Unusable::Format { index: 63, count: 1 });
        assert_eq!(refused(&[(128, &[8, 0])]), Unusable::Metadata { bytes: 8 });
        assert!(matches!(refused(&[(0, &[0xff; 8])]), Unusable::TooLarge { .. }));
        assert_eq!(info(&[(0, &[0; 8])]).unwrap().geometry.unwrap().block_count, 0);
        assert_eq!(info(&[(130, &[22])]).unwrap().geometry.unwrap().lba_bytes, TRANSFER_BYTES_MAX);
    }

    /// wire §10.2
    #[test]
    fn what_a_namespace_says_of_itself_is_known() {
        let sizes: [(usize, &[u8]); 6] =
            [(38, &[1]), (46, &[8]), (64, &[1]), (68, &[2]), (72, &[3]), (74, &[9, 0, 7, 0, 0, 0, 5])];
        let more: [(usize, &[u8]); 9] = [
            (8, &[4]),
            (16, &[3]),
            (24, &[0b1_0011]),
            (30, &[1]),
            (33, &[0b1001]),
            (92, &[6]),
            (99, &[1]),
            (104, &[1; 16]),
            (120, &[2; 8]),
        ];
        let usual = info(&[]).unwrap();
        let copy = CopyLimits { range_blocks: 9, blocks: 7, ranges: 6 };
        let expected = NamespaceInfo {
            used_blocks: 3,
            capacity_blocks: 4,
            is_write_protected: true,
            is_shared: true,
            is_thin: true,
            deallocated_value: DeallocatedValue::ZEROES,
            write_zeroes_deallocates: true,
            copy,
            optimal_boundary_blocks: 8,
            optimal_write_blocks: 4,
            write_granularity_blocks: 2,
            deallocate_granularity_blocks: 3,
            compare_write_blocks: 2,
            ana_group: 6,
            nguid: Some([1; 16]),
            eui64: Some([2; 8]),
            ..usual
        };
        assert_eq!(info(&[sizes.as_slice(), &more].concat()), Some(expected));
        // Sizes that are not said to be valid are none.
        let unsaid = NamespaceInfo { copy, optimal_boundary_blocks: 8, ..usual };
        assert_eq!(info(&sizes), Some(unsaid));
        let copy = CopyLimits::default();
        assert_eq!((usual.copy, usual.nguid, usual.eui64), (copy, None, None), "no copies, no ids");
    }

    #[test]
    fn a_namespace_whose_identify_is_refused_is_not_there() {
        let mut scan = Scan::new(1, false);
        while let Some((index, sqe)) = scan.next_command() {
            let is_list = IdentifyCommand::from_sqe(&sqe).cns == Cns::ACTIVE_NAMESPACES;
            let mut list = vec![0; 4096];
            write_nsid_list(&mut list, Nsid::NONE, [Nsid::new(1)]);
            match is_list {
                true => scan.on_completion(index, Status::SUCCESS, &list),
                false => scan.on_completion(index, Status::INVALID_NAMESPACE.with_dnr(), &identify(&[])),
            }
        }
        assert!(scan.is_done() && scan.into_found().is_empty());
    }

    /// The id is given to another namespace before that could be identified.
    #[test]
    fn a_namespace_that_is_removed_after_the_list_was_read_is_not_there() {
        let mut scan = Scan::new(1, true);
        while let Some((index, sqe)) = scan.next_command() {
            let mut list = vec![0; 4096];
            write_nsid_list(&mut list, Nsid::NONE, [Nsid::new(1)]);
            match IdentifyCommand::from_sqe(&sqe).cns {
                Cns::ACTIVE_NAMESPACES => scan.on_completion(index, Status::SUCCESS, &list),
                Cns::NAMESPACE_DESCRIPTORS => {
                    scan.on_completion(index, Status::INVALID_NAMESPACE.with_dnr(), &[]);
                }
                _ => scan.on_completion(index, Status::SUCCESS, &identify(&[(104, &[1; 16])])),
            }
        }
        assert!(scan.is_done() && scan.into_found().is_empty());
    }

    #[test]
    fn an_answer_that_was_damaged_is_asked_for_again() {
        let mut scan = Scan::new(1, true);
        let (mut seen, mut damaged) = (Vec::new(), 0);
        while !scan.is_done() {
            let (index, sqe) = scan.next_command().expect("it is not done");
            let cns = IdentifyCommand::from_sqe(&sqe).cns;
            let is_first = !seen.contains(&cns);
            seen.push(cns);
            if is_first {
                damaged += 1;
                scan.on_completion(index, Status::TRANSIENT_TRANSPORT_ERROR, &[]);
                continue;
            }
            let mut data = vec![0; 4096];
            match cns {
                Cns::ACTIVE_NAMESPACES => {
                    write_nsid_list(&mut data, sqe.nsid(), [Nsid::new(1)]);
                }
                Cns::NAMESPACE_DESCRIPTORS => {}
                _ => data = identify(&[]),
            }
            scan.on_completion(index, Status::SUCCESS, &data);
        }
        assert_eq!(damaged, 3);
        assert_eq!(scan.into_found().len(), 1);
    }

    #[test]
    fn a_controller_whose_answers_are_all_damaged_is_not_asked_for_ever() {
        let mut scan = Scan::new(2, true);
        let mut count = 0;
        while let Some((index, _)) = scan.next_command() {
            scan.on_completion(index, Status::TRANSIENT_TRANSPORT_ERROR, &[]);
            count += 1;
        }
        assert!(scan.is_done() && scan.into_found().is_empty());
        assert_eq!(count, REPEAT_COUNT_MAX + 5, "the list, and two commands for each namespace");
    }

    /// A controller with these namespaces answers a scan.
    fn run(nsids: &[u32], has_list: bool, has_descriptors: bool, order: &[usize]) -> Vec<NamespaceInfo> {
        let mut scan = Scan::new(nsids.iter().max().copied().unwrap_or(0), has_descriptors);
        let (mut out, mut order) = (Vec::new(), order.iter().cycle());
        while !scan.is_done() {
            while let Some(command) = scan.next_command() {
                out.push(command);
            }
            let (index, sqe) = out.swap_remove(order.next().unwrap() % out.len());
            let mut data = vec![0; 4096];
            let status = match IdentifyCommand::from_sqe(&sqe).cns {
                Cns::ACTIVE_NAMESPACES if has_list => {
                    write_nsid_list(&mut data, sqe.nsid(), nsids.iter().copied().map(Nsid::new));
                    Status::SUCCESS
                }
                Cns::NAMESPACE if nsids.contains(&sqe.nsid().get()) => {
                    data = identify(&[]);
                    Status::SUCCESS
                }
                Cns::NAMESPACE => Status::SUCCESS,
                _ => Status::INVALID_FIELD.with_dnr(),
            };
            scan.on_completion(index, status, &data);
        }
        scan.into_found()
    }

    proptest! {
        /// Any set of namespaces is found, whatever the order of answers, with a list or without.
        #[test]
        fn every_namespace_is_found_once(
            nsids in proptest::collection::btree_set(1u32..1000, 0..40),
            has_list: bool,
            has_descriptors: bool,
            order in proptest::collection::vec(0usize..8, 1..20),
        ) {
            let nsids: Vec<u32> = nsids.into_iter().collect();
            let found = run(&nsids, has_list, has_descriptors, &order);
            prop_assert_eq!(found.iter().map(|info| info.nsid.get()).collect::<Vec<_>>(), nsids);
        }
    }

    #[test]
    fn a_long_list_takes_several_pages() {
        let nsids: Vec<u32> = (1..=2500).map(|index| index * 2).collect();
        assert_eq!(run(&nsids, true, false, &[0]).len(), 2500);
    }

    /// Whether the others are identified before the next page of the list comes, or after it.
    #[test]
    fn namespaces_beyond_the_limit_are_left_out_in_whatever_order_answers_come() {
        let nsids: Vec<u32> = (1..=5000).collect();
        for order in [0, 7] {
            let found = run(&nsids, true, false, &[order]);
            assert_eq!((found.len(), found[4095].nsid), (NAMESPACE_COUNT_MAX, Nsid::new(4096)));
        }
        let tried = [1, TRIED_COUNT_MAX, TRIED_COUNT_MAX + 1, 5000];
        let found: Vec<u32> = run(&tried, false, false, &[0]).iter().map(|info| info.nsid.get()).collect();
        assert_eq!(found, tried[..2], "without a list");
    }

    #[test]
    fn a_list_that_does_not_ascend_or_names_no_namespace_ends_there() {
        for senseless in [2, u32::MAX] {
            let mut scan = Scan::new(10, false);
            let (index, _) = scan.next_command().unwrap();
            let nsids = [3, senseless];
            let page: Vec<u8> = nsids.iter().cycle().take(1024).flat_map(|nsid| nsid.to_le_bytes()).collect();
            scan.on_completion(index, Status::SUCCESS, &page);
            assert_eq!(scan.next_command().map(|(_, sqe)| sqe.nsid()), Some(Nsid::new(3)));
            assert_eq!(scan.next_command().map(|(index, _)| index), None);
        }
    }

    #[test]
    fn what_was_added_removed_or_resized_is_a_change() {
        let namespace = |nsid: u32, blocks: u64| {
            let bytes = identify(&[(0, &blocks.to_le_bytes()), (16, &nsid.to_le_bytes())]);
            let (identify, _) = IdentifyNamespace::ref_from_prefix(&bytes).unwrap();
            NamespaceInfo::of_blocks(Nsid::new(nsid), &Ids::default(), identify).unwrap()
        };
        let before = [namespace(1, 10), namespace(2, 10), namespace(3, 10)];
        let mut after = [namespace(1, 10), namespace(3, 20), namespace(4, 10)];
        after[0].used_blocks += 1;
        assert_eq!(changes(&before, &after), [2, 3, 4].map(Nsid::new));
        assert!(changes(&before, &before).is_empty());
    }

    /// wire §23
    #[test]
    fn a_namespace_of_keys_and_values_is_found_with_its_limits() {
        let mut page = KvNamespace::default();
        page.nsze.set(1 << 30);
        page.nuse.set(1 << 20);
        page.nmic = Nmic::SHARED;
        page.nsattr = Nsattr::WRITE_PROTECTED;
        page.anagrpid.set(3);
        page.set_format_count(1);
        page.kvf[0] = KvFormat::new(200, 1 << 20, 0);
        let found = |page: &KvNamespace, csi: u8| {
            let mut scan = Scan::new(1, true);
            while let Some((index, sqe)) = scan.next_command() {
                let mut data = vec![0; 4096];
                let command = IdentifyCommand::from_sqe(&sqe);
                match command.cns {
                    Cns::ACTIVE_NAMESPACES => {
                        write_nsid_list(&mut data, sqe.nsid(), [Nsid::new(1)]);
                    }
                    Cns::NAMESPACE_DESCRIPTORS => data[..5].copy_from_slice(&[4, 1, 0, 0, csi]),
                    cns => {
                        assert_eq!((cns, command.csi.raw()), (Cns::COMMAND_SET_NAMESPACE, csi));
                        data = page.as_bytes().to_vec();
                    }
                }
                scan.on_completion(index, Status::SUCCESS, &data);
            }
            let [info] = scan.into_found()[..] else { panic!("one namespace") };
            info
        };
        let info = found(&page, Csi::KV.raw());
        assert_eq!(info.geometry, Err(Unusable::CommandSet { csi: Csi::KV }));
        assert_eq!((info.is_shared, info.is_write_protected, info.ana_group), (true, true, 3));
        let plain = KeySpace {
            used_bytes: 1 << 20,
            bytes: 1 << 30,
            key_bytes_max: 16,
            value_bytes_max: 1 << 20,
            vendor: KeySpaceVendor::default(),
        };
        assert_eq!(info.keys, Some(plain), "a command has room for 16 bytes of a key");
        let mut vendor = KvVendorArea::default();
        vendor.set_commands(KvVendorCommands::ATOMIC);
        vendor.long_key_bytes_max.set(300);
        vendor.batch_operations_max.set(64);
        vendor.batch_bytes_max.set(4096);
        vendor.vector_bytes_max.set(8192);
        vendor.value_bytes_max.set(1 << 28);
        page.set_vendor(vendor);
        let ours = KeySpaceVendor {
            commands: KvVendorCommands::ATOMIC,
            long_key_bytes_max: 250,
            batch_operations_max: 64,
            batch_bytes_max: 4096,
            vector_bytes_max: 8192,
            value_bytes_max: 1 << 28,
            partitions: None,
        };
        assert_eq!(found(&page, Csi::KV.raw()).keys, Some(KeySpace { vendor: ours, ..plain }));
        page.kvfc = 200;
        assert_eq!(found(&page, Csi::KV.raw()).keys, None, "a format that there is none of");
        // For an unknown command set only the identifier is kept.
        let other = found(&page, 0x3F);
        assert_eq!((other.csi.raw(), other.keys, other.is_shared), (0x3F, None, false));
    }

    /// docs/kv-commands.md §6
    #[test]
    fn the_partition_map_is_read_where_there_is_one() {
        let mut identify = KvNamespace::default();
        identify.set_format_count(1);
        let vendor = |commands| {
            let mut vendor = KvVendorArea::default();
            vendor.set_commands(commands);
            vendor
        };
        // Answers of the log page in turn; the number of requests for it.
        let scan = |identify: &KvNamespace, answers: &[(Status, PartitionMapLog)]| {
            let (mut scan, mut pages) = (Scan::new(1, true), 0);
            while let Some((index, sqe)) = scan.next_command() {
                let mut data = vec![0; 4096];
                let mut status = Status::SUCCESS;
                match IdentifyCommand::from_sqe(&sqe).cns {
                    _ if sqe.opcode == AdminOpcode::GET_LOG_PAGE.raw() => {
                        let page = GetLogPage::from_sqe(&sqe);
                        assert_eq!((page.lid, sqe.nsid()), (Lid::PARTITION_MAP, Nsid::new(1)));
                        assert_eq!(page.length_bytes, Scan::COMMAND_BYTES.into());
                        let map;
                        (status, map) = answers[pages];
                        data[..64].copy_from_slice(map.as_bytes());
                        pages += 1;
                    }
                    Cns::ACTIVE_NAMESPACES => {
                        write_nsid_list(&mut data, sqe.nsid(), [Nsid::new(1)]);
                    }
                    Cns::NAMESPACE_DESCRIPTORS => data[..5].copy_from_slice(&[4, 1, 0, 0, Csi::KV.raw()]),
                    _ => data = identify.as_bytes().to_vec(),
                }
                scan.on_completion(index, status, &data);
            }
            assert!(scan.is_done());
            let [info] = scan.into_found()[..] else { panic!("one namespace") };
            (info.keys.and_then(|keys| keys.vendor.partitions), pages)
        };
        let (good, map) = (Status::SUCCESS, PartitionMapLog::new(9, 3));
        let expected = Some(KeyPartitions { seed: 9, count: 3 });
        assert_eq!(scan(&identify, &[]), (None, 0), "another vendor's");
        identify.set_vendor(vendor(KvVendorCommands::BATCH));
        assert_eq!(scan(&identify, &[]), (None, 0));
        identify.set_vendor(vendor(KvVendorCommands::PARTITION_MAP));
        assert_eq!(scan(&identify, &[(good, map)]), (expected, 1));
        let damaged = Status::TRANSIENT_TRANSPORT_ERROR;
        assert_eq!(scan(&identify, &[(damaged, map), (good, map)]), (expected, 2), "asked for again");
        assert_eq!(scan(&identify, &[(Status::INVALID_LOG_PAGE.with_dnr(), map)]), (None, 1));
        assert_eq!(scan(&identify, &[(good, PartitionMapLog::none())]), (None, 1));
    }

    #[test]
    fn ids_of_nothing_but_zeroes_are_none() {
        let list = |fill: u8| {
            let of = |kind: u8, length: u8| {
                let id = vec![fill; length.into()];
                [vec![kind, length, 0, 0], id].concat()
            };
            Ids::new(&[of(1, 8), of(2, 16), of(3, 16)].concat())
        };
        let ids = list(9);
        assert_eq!((ids.eui64, ids.nguid), (Some([9; 8]), Some([9; 16])));
        assert_eq!(ids.uuid, Some(Uuid::from_bytes([9; 16])));
        assert_eq!(list(0), Ids::default());
    }

    #[test]
    fn descriptors_give_the_ids_as_far_as_they_can_be_read() {
        let mut list = vec![3, 16, 0, 0];
        list.extend([7; 16]);
        list.extend([4, 1, 0, 0, 1]);
        list.extend([2, 200, 0, 0]);
        let ids = Ids::new(&list);
        assert_eq!((ids.uuid, ids.csi, ids.nguid), (Some(Uuid::from_bytes([7; 16])), Csi::KV, None));
        assert_eq!(Ids::new(&[]), Ids::default());
    }
}
