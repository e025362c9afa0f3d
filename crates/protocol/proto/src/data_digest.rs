//! Digests of data (CRC32C). wire §3
//!
//! As `wire::digest`, but faster: data is long, and in the path of every operation.

use memory::crc32c;

/// Digest of the data of one PDU, which lies in one piece.
#[inline]
#[must_use]
pub(crate) fn data_digest(data: &[u8]) -> u32 {
    crc32c::checksum(data)
}

/// Digest of data in several pieces; equal to that of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataDigest {
    register: u32,
}

impl DataDigest {
    /// Of no bytes yet.
    #[inline]
    #[must_use]
    pub const fn new() -> Self {
        Self { register: crc32c::START }
    }

    /// Appends one piece, of any length.
    #[inline]
    pub fn update(&mut self, piece: &[u8]) {
        self.register = crc32c::append(self.register, piece);
    }

    /// The digest of all pieces.
    #[inline]
    #[must_use]
    pub const fn finish(self) -> u32 {
        !self.register
    }
}

impl Default for DataDigest {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn no_bytes_digest_to_zero() {
        assert_eq!(data_digest(&[]), 0);
        assert_eq!(DataDigest::default().finish(), 0);
    }

    proptest! {
        #[test]
        fn any_split_gives_the_digest_of_the_whole(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6000), 0..4),
        ) {
            let mut digest = DataDigest::new();
            for piece in &pieces {
                digest.update(piece);
            }
            let whole = pieces.concat();
            prop_assert_eq!(digest.finish(), data_digest(&whole));
            prop_assert_eq!(digest.finish(), wire::digest::data_digest(&whole));
        }
    }
}
