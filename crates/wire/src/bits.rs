//! Halves of quadwords.

/// Bits 31:0 of a quadword.
#[inline]
pub(crate) const fn low32(quadword: u64) -> u32 {
    (quadword & 0xFFFF_FFFF) as u32
}

/// Bits 63:32 of a quadword.
#[inline]
pub(crate) const fn high32(quadword: u64) -> u32 {
    (quadword >> 32) as u32
}

/// A quadword of two dwords.
#[inline]
pub(crate) const fn quadword(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_follow_wire_order() {
        let wide = 0x8877_6655_4433_2211;
        assert_eq!((low32(wide), high32(wide)), (0x4433_2211, 0x8877_6655));
        assert_eq!(quadword(0x4433_2211, 0x8877_6655), wide);
    }
}
