//! Masks over sixteen bytes, computed with few vector instructions: bytes equal to one, and bytes that are spaces or
//! control characters.

/// Which of `bytes` equal `byte`: a bit each, the lowest for the first.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[must_use]
pub fn equal_bytes(bytes: &[u8; 16], byte: u8) -> u32 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
    // SAFETY: all processors of this kind have these instructions, and sixteen bytes are read, wherever they begin.
    let equal = unsafe {
        let equal = _mm_cmpeq_epi8(_mm_loadu_si128(bytes.as_ptr().cast()), _mm_set1_epi8(byte.cast_signed()));
        _mm_movemask_epi8(equal)
    };
    equal.cast_unsigned()
}

/// Which of `bytes` equal `byte`: a bit each, the lowest for the first.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
#[must_use]
pub fn equal_bytes(bytes: &[u8; 16], byte: u8) -> u32 {
    plain(bytes, byte)
}

/// Which of `bytes` are spaces or control characters (0 to 0x20, and 0x7f): a bit each, the lowest for the first.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[must_use]
pub fn controls(bytes: &[u8; 16]) -> u32 {
    use std::arch::x86_64::{
        _mm_cmpeq_epi8, _mm_loadu_si128, _mm_min_epu8, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8,
    };
    // SAFETY: as above.
    let controls = unsafe {
        let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
        let low = _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(0x20)), bytes);
        _mm_movemask_epi8(_mm_or_si128(low, _mm_cmpeq_epi8(bytes, _mm_set1_epi8(0x7f))))
    };
    controls.cast_unsigned()
}

/// Which of `bytes` are spaces or control characters (0 to 0x20, and 0x7f): a bit each, the lowest for the first.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
#[must_use]
pub fn controls(bytes: &[u8; 16]) -> u32 {
    plain_controls(bytes)
}

#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline]
fn plain_controls(bytes: &[u8; 16]) -> u32 {
    let is_control = |byte: u8| byte <= 0x20 || byte == 0x7f;
    bytes.iter().enumerate().fold(0, |controls, (at, &byte)| controls | u32::from(is_control(byte)) << at)
}

/// The same without vectors.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[allow(clippy::cast_possible_truncation)] // Halves, and eight bits of each.
#[inline]
fn plain(bytes: &[u8; 16], byte: u8) -> u32 {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const LOW: u64 = 0x7f * ONES;
    let half = |eight: u128| {
        let differing = eight as u64 ^ (ONES * u64::from(byte));
        // The top bit of each byte that is zero, exactly; then the eight of them side by side.
        let equal = !(((differing & LOW) + LOW) | differing | LOW);
        ((equal >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32
    };
    let bytes = u128::from_le_bytes(*bytes);
    half(bytes) | half(bytes >> 64) << 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_find_the_same() {
        let mut bytes: [u8; 16] = std::array::from_fn(|at| (at * 37) as u8);
        for round in 0..2_000u32 {
            bytes[round as usize % 16] = (round.wrapping_mul(0x9e37_79b9) >> 24) as u8;
            bytes[round as usize * 7 % 16] = bytes[round as usize % 5];
            assert_eq!(controls(&bytes), plain_controls(&bytes), "{bytes:?}");
            for byte in [bytes[3], bytes[15], 0, 0x7f, 0x80, 0xff] {
                let expected = (0..16).fold(0, |equal, at| equal | u32::from(bytes[at] == byte) << at);
                assert_eq!(
                    (equal_bytes(&bytes, byte), plain(&bytes, byte)),
                    (expected, expected),
                    "{byte} in {bytes:?}"
                );
            }
        }
    }
}
