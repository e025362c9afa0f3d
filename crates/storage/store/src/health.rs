//! The condition of storage that stays open: whether it has space for writes, and whether it accepts them.

/// Available Spare below which hosts are warned, percent.
pub const SPARE_PERCENT_MIN: u8 = 10;

/// The condition of a namespace's storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// Whether the device or file system refuses all writes. It was writable when the namespace was opened.
    pub is_write_protected: bool,
    /// Whether a write has ended for lack of space, and none has come back since.
    pub is_full: bool,
    /// Space that is left, percent: of the file system, where the file needs more of it; 100 where all blocks have
    /// space.
    pub spare_percent: u8,
    /// Free space of the file system, bytes; `None` where it is unknown or means nothing, as for devices.
    pub free_bytes: Option<u64>,
    /// Space that the file takes, bytes, up to the size of the namespace; `None` where it is unknown, as for devices.
    pub allocated_bytes: Option<u64>,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            is_write_protected: false,
            is_full: false,
            spare_percent: 100,
            free_bytes: None,
            allocated_bytes: None,
        }
    }
}

impl Health {
    /// Of storage whose free space is not known before a write ends for lack of it.
    pub(crate) fn when_full(is_full: bool) -> Self {
        Self { is_full, spare_percent: if is_full { 0 } else { 100 }, ..Self::default() }
    }

    /// Whether hosts are warned that space runs out.
    #[must_use]
    pub fn lacks_space(&self) -> bool {
        self.spare_percent < SPARE_PERCENT_MIN
    }
}
