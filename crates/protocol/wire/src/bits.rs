//! Halves and bytes of dwords: commands pack 16- and 8-bit fields into `cdw10`..`cdw15`.

/// Bits 15:0.
#[inline]
pub(crate) const fn low16(dword: u32) -> u16 {
    (dword & 0xFFFF) as u16
}

/// Bits 31:16.
#[inline]
pub(crate) const fn high16(dword: u32) -> u16 {
    (dword >> 16) as u16
}

/// Byte `index` of the dword as it lies on the wire, 0..=3.
#[inline]
pub(crate) const fn byte(dword: u32, index: usize) -> u8 {
    let [byte_0, byte_1, byte_2, byte_3] = dword.to_le_bytes();
    match index {
        0 => byte_0,
        1 => byte_1,
        2 => byte_2,
        _ => byte_3,
    }
}

/// A dword of two halves.
#[inline]
pub(crate) const fn dword(low: u16, high: u16) -> u32 {
    low as u32 | (high as u32) << 16
}

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

/// A count as its 0-based field: 0 is stored as 1, too many as the largest.
#[inline]
pub(crate) const fn zero_based8(count: u16) -> u8 {
    let stored = count.saturating_sub(1);
    if stored > 0xFF { 0xFF } else { (stored & 0xFF) as u8 }
}

/// A count as its 0-based field: 0 is stored as 1, too many as the largest.
#[inline]
pub(crate) const fn zero_based16(count: u32) -> u16 {
    let stored = count.saturating_sub(1);
    if stored > 0xFFFF { 0xFFFF } else { (stored & 0xFFFF) as u16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_and_bytes_follow_wire_order() {
        assert_eq!(low16(0x4433_2211), 0x2211);
        assert_eq!(high16(0x4433_2211), 0x4433);
        assert_eq!([0, 1, 2, 3].map(|index| byte(0x4433_2211, index)), [0x11, 0x22, 0x33, 0x44]);
        assert_eq!(dword(0x2211, 0x4433), 0x4433_2211);
        let wide = 0x8877_6655_4433_2211;
        assert_eq!((low32(wide), high32(wide)), (0x4433_2211, 0x8877_6655));
        assert_eq!(quadword(0x4433_2211, 0x8877_6655), wide);
    }

    #[test]
    fn zero_based_fields_clamp_at_both_ends() {
        assert_eq!([0, 1, 2, 256, 257, u16::MAX].map(zero_based8), [0, 0, 1, 255, 255, 255]);
        assert_eq!([0, 1, 2, 65_536, 65_537].map(zero_based16), [0, 0, 1, 0xFFFF, 0xFFFF]);
    }
}
