//! Settings of a listener, and what of values is copied.

/// Up to so many bytes a value, or what of it follows its whole mebibytes, is copied into the answer; and one that comes waits in
/// the backlog until it is whole.
pub(crate) const COPIED_BYTES_MAX: usize = 128 << 10;
/// The same where a session has many bytes of answers on their way to it from another partition already.
pub(crate) const SPARED_BYTES_MAX: usize = 4 << 10;
/// A longer one is copied in pieces of so many bytes, each when the one before is sent.
pub const PIECE_BYTES: usize = 256 << 10;

/// Settings of a listener.
#[derive(Clone, Copy, Debug)]
pub struct ListenerSettings {
    /// The longest value.
    pub value_bytes_max: usize,
    /// Whether clients may remove everything.
    pub allows_flush: bool,
}

/// The longest value unless told otherwise, as memcached has it: a mebibyte with its header.
const ITEM_BYTES_DEFAULT: u32 = 1_048_500;

impl Default for ListenerSettings {
    fn default() -> Self {
        Self { value_bytes_max: ITEM_BYTES_DEFAULT as usize, allows_flush: true }
    }
}
