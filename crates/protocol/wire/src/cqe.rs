//! The completion queue entry: 16 bytes, one completion. wire §5.2

use crate::bits::{high32, low32};
use crate::status::Status;
use crate::{U16, U64};

/// Bytes of an entry.
pub const CQE_BYTES: usize = 16;

tables! {
    /// A completion. wire §5.2
    pub structure Cqe: CQE_BYTES {
        0 pub result: U64, "Command result: dword 0 in the low half, dword 1 in the high half.";
        8 pub sqhd: U16, "Submission queue head, an index into the queue; without meaning if SQ flow control is off.";
        10 pub sqid: U16, "Submission queue id: 0 over fabrics, ignored by hosts.";
        12 pub cid: U16, "Command id, as it came.";
        14 pub status: U16, "Phase bit and status; see [`Cqe::status`].";
    }
}

impl Cqe {
    /// A completion with an empty result.
    #[inline]
    #[must_use]
    pub const fn new(cid: U16, sqhd: u16, status: Status) -> Self {
        Self {
            result: U64::ZERO,
            sqhd: U16::new(sqhd),
            sqid: U16::ZERO,
            cid,
            status: U16::new(status.to_wire(false)),
        }
    }

    /// With dword 0 as the whole result.
    #[inline]
    #[must_use]
    pub const fn with_dw0(self, dw0: u32) -> Self {
        self.with_result(dw0 as u64)
    }

    /// With an 8-byte result.
    #[inline]
    #[must_use]
    pub const fn with_result(mut self, result: u64) -> Self {
        self.result = U64::new(result);
        self
    }

    /// Dword 0 of the result.
    #[inline]
    #[must_use]
    pub const fn dw0(&self) -> u32 {
        low32(self.result.get())
    }

    /// Dword 1 of the result.
    #[inline]
    #[must_use]
    pub const fn dw1(&self) -> u32 {
        high32(self.result.get())
    }

    /// The status without the phase bit.
    #[inline]
    #[must_use]
    pub const fn status(&self) -> Status {
        Status::from_wire(self.status.get())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    /// wire §5.2
    #[test]
    fn a_completion_has_result_head_id_and_status() {
        let cqe =
            Cqe::new(U16::new(0xA001), 0x0007, Status::LBA_OUT_OF_RANGE.with_dnr()).with_dw0(0x0403_0201);
        assert_eq!(cqe.as_bytes(), [1, 2, 3, 4, 0, 0, 0, 0, 7, 0, 0, 0, 0x01, 0xA0, 0x00, 0x81]);
        assert_eq!((cqe.dw0(), cqe.dw1()), (0x0403_0201, 0));
    }

    #[test]
    fn an_8_byte_result_fills_both_dwords() {
        let cqe = Cqe::new(U16::ZERO, 0, Status::SUCCESS).with_result(0x0000_0020_3C01_007F);
        assert_eq!(cqe.as_bytes()[..8], [0x7F, 0x00, 0x01, 0x3C, 0x20, 0, 0, 0]);
        assert_eq!((cqe.dw0(), cqe.dw1()), (0x3C01_007F, 0x20));
    }

    proptest! {
        #[test]
        fn any_16_bytes_are_a_completion_and_come_back(bytes: [u8; 16]) {
            let cqe = Cqe::read_from_bytes(&bytes).expect("16 bytes");
            prop_assert_eq!(cqe.as_bytes(), &bytes);
            let rebuilt = Cqe::new(cqe.cid, cqe.sqhd.get(), cqe.status()).with_result(cqe.result.get());
            prop_assert_eq!(rebuilt.status(), cqe.status());
            prop_assert_eq!(rebuilt.result, cqe.result);
            prop_assert_eq!((rebuilt.sqhd, rebuilt.cid), (cqe.sqhd, cqe.cid));
        }
    }
}
