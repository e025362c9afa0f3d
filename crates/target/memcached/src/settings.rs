//! Settings of a listener, and size limits for copying values.

/// Longest value, or rest after the whole mebibytes, that is copied into the answer, bytes. An arriving value of up to
/// this length waits in the backlog until it is complete.
pub(crate) const COPIED_BYTES_MAX: usize = 128 << 10;
/// As [`COPIED_BYTES_MAX`], where a session already has many bytes of answers under way from another partition.
pub(crate) const SPARED_BYTES_MAX: usize = 4 << 10;
/// Size of the pieces in which a longer rest is copied, bytes; each is copied when the previous one is sent.
pub const PIECE_BYTES: usize = 256 << 10;

/// Settings of a listener.
#[derive(Clone, Copy, Debug)]
pub struct ListenerSettings {
    /// The longest value.
    pub value_bytes_max: usize,
    /// Whether clients may remove all pairs.
    pub allows_flush: bool,
}

/// Default limit of a value, bytes, as in memcached: a mebibyte including its header.
const ITEM_BYTES_DEFAULT: u32 = 1_048_500;

impl Default for ListenerSettings {
    fn default() -> Self {
        Self { value_bytes_max: ITEM_BYTES_DEFAULT as usize, allows_flush: true }
    }
}
