//! Numbers and structures of `linux/ublk_cmd.h`.

use rustix::ioctl::opcode;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The letter of ublk's commands.
const GROUP: u8 = b'u';

/// A control command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlCommand {
    AddDevice,
    DeleteDevice,
    StartDevice,
    StopDevice,
    SetParameters,
    GetParameters,
    StartRecovery,
    EndRecovery,
    GetInfo,
    GetFeatures,
    DeleteDeviceLater,
    UpdateSize,
}

impl ControlCommand {
    /// Its number, as the kernel encodes it.
    pub(crate) fn opcode(self) -> u32 {
        let read = opcode::read::<ControlHead>;
        let both = opcode::read_write::<ControlHead>;
        match self {
            Self::AddDevice => both(GROUP, 0x04),
            Self::DeleteDevice => both(GROUP, 0x05),
            Self::StartDevice => both(GROUP, 0x06),
            Self::StopDevice => both(GROUP, 0x07),
            Self::SetParameters => both(GROUP, 0x08),
            Self::GetParameters => read(GROUP, 0x09),
            Self::StartRecovery => both(GROUP, 0x10),
            Self::EndRecovery => both(GROUP, 0x11),
            // The second version, which also takes the path of an unprivileged device.
            Self::GetInfo => read(GROUP, 0x12),
            Self::GetFeatures => read(GROUP, 0x13),
            Self::DeleteDeviceLater => read(GROUP, 0x14),
            Self::UpdateSize => both(GROUP, 0x15),
        }
    }
}

/// Takes the next request of a tag.
pub(crate) const FETCH: u32 = opcode::read_write::<QueueCommand>(GROUP, 0x20);

/// Gives back a request, and takes the next one of its tag.
pub(crate) const COMMIT_AND_FETCH: u32 = opcode::read_write::<QueueCommand>(GROUP, 0x21);

/// Requests of a queue at most.
pub const DEPTH_MAX: u16 = 4096;

/// Unit of addresses and lengths.
pub const SECTOR_BYTES: u32 = 512;

/// Features of the driver, and of a device.
pub mod feature {
    /// A device outlives the process that serves it, and its requests wait.
    pub const USER_RECOVERY: u64 = 1 << 3;
    /// Requests that were under way when that process ended are given to the next one.
    pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// The device belongs to a user without CAP_SYS_ADMIN.
    pub const UNPRIVILEGED: u64 = 1 << 5;
    /// The size of a device can change.
    pub const UPDATE_SIZE: u64 = 1 << 10;
}

/// Where a device stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not started, or stopped.
    Dead,
    /// Served.
    Live,
    /// The process that served it has ended, and requests wait.
    Quiesced,
    /// The process that served it has ended, and requests fail.
    Failing,
    /// Another one.
    Other(u16),
}

/// A control command: `struct ublksrv_ctrl_cmd`.
#[derive(Clone, Copy, Debug, FromZeros, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct ControlHead {
    pub(crate) number: u32,
    pub(crate) queue: u16,
    /// Bytes at `address`: the path, then the payload.
    pub(crate) length: u16,
    pub(crate) address: u64,
    pub(crate) data: u64,
    pub(crate) path_bytes: u16,
    pub(crate) pad: u16,
    pub(crate) reserved: u32,
}
const _: () = assert!(size_of::<ControlHead>() == 32);

/// A device as it is made: `struct ublksrv_ctrl_dev_info`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceInfo {
    /// Its queues: the kernel makes no more than there are cores.
    pub queue_count: u16,
    /// Requests of a queue at once.
    pub depth: u16,
    state: u16,
    pad0: u16,
    /// Data of a request at most, bytes.
    pub request_bytes_max: u32,
    /// Its number; `u32::MAX` to add one with the first free number.
    pub number: u32,
    /// The process that serves it, or has served it.
    pub process: i32,
    pad1: u32,
    /// [`feature`].
    pub flags: u64,
    /// What the process that serves it has to say; nothing to the kernel.
    pub mark: u64,
    /// The user that has made it.
    pub owner: u32,
    /// The group that has made it.
    pub owner_group: u32,
    reserved: [u64; 2],
}
const _: () = assert!(size_of::<DeviceInfo>() == 64);

impl DeviceInfo {
    /// A device that is to be added.
    #[must_use]
    pub fn wanted(number: Option<u32>, queue_count: u16, depth: u16, request_bytes_max: u32) -> Self {
        let number = number.unwrap_or(u32::MAX);
        Self { number, queue_count, depth, request_bytes_max, ..Self::new_zeroed() }
    }

    /// Where it stands.
    #[must_use]
    pub fn state(&self) -> State {
        match self.state {
            0 => State::Dead,
            1 => State::Live,
            2 => State::Quiesced,
            3 => State::Failing,
            other => State::Other(other),
        }
    }

    /// Whether it has all of these features.
    #[must_use]
    pub fn has(&self, flags: u64) -> bool {
        self.flags & flags == flags
    }
}

/// Attributes of a device.
pub mod attribute {
    /// It cannot be written.
    pub const READ_ONLY: u32 = 1 << 0;
    /// It has a volatile write cache: it gets Flushes.
    pub const VOLATILE_CACHE: u32 = 1 << 2;
    /// It gets writes that are durable when they end.
    pub const FUA: u32 = 1 << 3;
}

/// What the block device shall be like: `struct ublk_params`, without what other kinds of devices have.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, PartialEq, Eq)]
#[repr(C)]
pub struct Parameters {
    length: u32,
    kinds: u32,
    /// [`attribute`].
    pub attributes: u32,
    /// Size of a block, as a power of two.
    pub block_shift: u8,
    /// Size that is written at once, as a power of two.
    pub physical_block_shift: u8,
    /// Preferred size of a request, as a power of two.
    pub preferred_shift: u8,
    /// Smallest preferred size of a request, as a power of two.
    pub preferred_min_shift: u8,
    /// Data of a request at most, sectors.
    pub request_sectors_max: u32,
    chunk_sectors: u32,
    /// Its size, sectors.
    pub sectors: u64,
    virtual_boundary_mask: u64,
    discard_alignment: u32,
    /// Unit of discards, bytes.
    pub discard_granularity: u32,
    /// Longest discard, sectors; 0 for none.
    pub discard_sectors_max: u32,
    /// Longest Write Zeroes, sectors; 0 for none.
    pub write_zeroes_sectors_max: u32,
    discard_segments_max: u16,
    reserved: u16,
    /// What follows, which is not set and not read.
    behind: u32,
}
const _: () = assert!(size_of::<Parameters>() == 64);

/// Bytes of the parameters that are set: the basic ones, and those of discards.
const PARAMETERS_BYTES: u32 = 60;

/// Kinds of parameters: basic ones, and those of discards.
const BASIC: u32 = 1 << 0;
const DISCARD: u32 = 1 << 1;

impl Parameters {
    /// A device of this size and block size, without attributes and discards.
    #[must_use]
    pub fn new(block_bytes: u32, sectors: u64, request_bytes_max: u32) -> Self {
        let block_shift = u8::try_from(block_bytes.trailing_zeros()).unwrap_or(u8::MAX);
        Self {
            length: PARAMETERS_BYTES,
            kinds: BASIC | DISCARD,
            block_shift,
            physical_block_shift: block_shift,
            preferred_shift: block_shift,
            preferred_min_shift: block_shift,
            request_sectors_max: request_bytes_max / SECTOR_BYTES,
            sectors,
            discard_granularity: block_bytes,
            discard_segments_max: 1,
            ..Self::new_zeroed()
        }
    }

    /// To be filled by the kernel.
    pub(crate) fn empty() -> Self {
        Self { length: PARAMETERS_BYTES, ..Self::new_zeroed() }
    }
}

/// A command of a queue: `struct ublksrv_io_cmd`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct QueueCommand {
    pub(crate) queue: u16,
    pub(crate) tag: u16,
    pub(crate) result: i32,
    /// Where data of the tag's next request is, or goes.
    pub(crate) address: u64,
}
const _: () = assert!(size_of::<QueueCommand>() == 16);

/// A request, as the kernel describes it: `struct ublksrv_io_desc`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Descriptor {
    /// The operation in the low byte, flags above it.
    pub(crate) operation_flags: u32,
    pub(crate) sectors: u32,
    pub(crate) first_sector: u64,
    pub(crate) address: u64,
}
const _: () = assert!(size_of::<Descriptor>() == 24);

/// Flag of a request: it is durable when it ends.
pub(crate) const IS_DURABLE: u32 = 1 << 13;

/// Flag of a Write Zeroes: its blocks stay allocated.
pub(crate) const KEEPS_BLOCKS: u32 = 1 << 15;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Data from the device.
    Read,
    /// Data to the device.
    Write,
    /// All writes that have ended become durable.
    Flush,
    /// The content is not needed any more.
    Discard,
    /// Zeroes to the device.
    WriteZeroes,
    /// Another one.
    Other(u8),
}

impl Operation {
    pub(crate) fn of(descriptor: &Descriptor) -> Self {
        match descriptor.operation_flags.to_le_bytes()[0] {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Flush,
            3 => Self::Discard,
            5 => Self::WriteZeroes,
            other => Self::Other(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_numbers_of_the_header() {
        // As `linux/ublk_cmd.h` of 6.18 gives them on x86-64.
        assert_eq!(ControlCommand::AddDevice.opcode(), 0xc020_7504);
        assert_eq!(ControlCommand::GetInfo.opcode(), 0x8020_7512);
        assert_eq!(ControlCommand::GetFeatures.opcode(), 0x8020_7513);
        assert_eq!(ControlCommand::UpdateSize.opcode(), 0xc020_7515);
        assert_eq!((FETCH, COMMIT_AND_FETCH), (0xc010_7520, 0xc010_7521));
    }

    #[test]
    fn structures_have_the_places_of_the_header() {
        assert_eq!(std::mem::offset_of!(ControlHead, address), 8);
        assert_eq!(std::mem::offset_of!(ControlHead, path_bytes), 24);
        assert_eq!(std::mem::offset_of!(DeviceInfo, request_bytes_max), 8);
        assert_eq!(std::mem::offset_of!(DeviceInfo, process), 16);
        assert_eq!(std::mem::offset_of!(DeviceInfo, flags), 24);
        assert_eq!(std::mem::offset_of!(DeviceInfo, owner), 40);
        assert_eq!(std::mem::offset_of!(Parameters, request_sectors_max), 16);
        assert_eq!(std::mem::offset_of!(Parameters, sectors), 24);
        assert_eq!(std::mem::offset_of!(Parameters, discard_alignment), 40);
        assert_eq!(std::mem::offset_of!(Parameters, discard_segments_max), 56);
        assert_eq!(std::mem::offset_of!(Descriptor, first_sector), 8);
    }

    #[test]
    fn a_device_has_blocks_as_powers_of_two() {
        let parameters = Parameters::new(4096, 2048, 128 << 10);
        assert_eq!((parameters.block_shift, parameters.request_sectors_max), (12, 256));
        assert_eq!(parameters.sectors, 2048);
    }
}
