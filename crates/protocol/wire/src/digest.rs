//! CRC32C over headers and data. wire §3

/// Bytes of a digest on the wire, little-endian.
pub const DIGEST_BYTES: usize = 4;

/// Digest of a PDU header: over its first `hlen` bytes, which already hold their final flags, pdo and plen.
#[inline]
#[must_use]
pub fn header_digest(header: &[u8]) -> u32 {
    memory::crc32c::checksum(header)
}

/// Digest of the data of one PDU, which lies in one piece.
///
/// Just the bytes given, as Linux has it. SPDK extends data that is no dword multiple with zero bytes, so the
/// two agree on dword multiples only: with data digest on, keep KV values, authentication messages and log
/// reads at those. wire §3
#[inline]
#[must_use]
pub fn data_digest(data: &[u8]) -> u32 {
    memory::crc32c::checksum(data)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// wire §3
    #[test]
    fn the_two_known_vectors_hold() {
        assert_eq!(header_digest(&[0; 32]), 0x8A91_36AA);
        assert_eq!(header_digest(&[0; 32]).to_le_bytes(), [0xAA, 0x36, 0x91, 0x8A]);
        assert_eq!(data_digest(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn no_bytes_digest_to_zero() {
        assert_eq!(data_digest(&[]), 0);
    }

    /// One bit at a time, from the definition in wire §3.
    fn by_definition(data: &[u8]) -> u32 {
        let mut register = 0xFFFF_FFFF_u32;
        for byte in data {
            register ^= u32::from(*byte);
            for _ in 0..8 {
                register = (register >> 1) ^ (0x82F6_3B78 & (register & 1).wrapping_neg());
            }
        }
        !register
    }

    proptest! {
        #[test]
        fn any_length_digests_as_the_definition_says(data in prop::collection::vec(any::<u8>(), 0..1200)) {
            prop_assert_eq!(data_digest(&data), by_definition(&data));
        }
    }
}
