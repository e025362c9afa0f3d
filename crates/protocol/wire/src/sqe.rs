//! The submission queue entry: 64 bytes, one command. wire §5.1
//!
//! Fields that belong to one command are decoded by that command's file (`nvm`, `fabrics`, …), which
//! also holds the constructors: `Sqe::read`, `Sqe::connect` and so on.

use crate::bits::{high32, low32, quadword};
use crate::id::Nsid;
use crate::opcode::{AdminOpcode, DataDirection, FabricsType};
use crate::sgl::Sgl;
use crate::{U16, U32, U64};

/// Bytes of an entry.
pub const SQE_BYTES: usize = 64;

tables! {
    /// A command. wire §5.1
    pub structure Sqe: SQE_BYTES {
        0 pub opcode: u8, "Opcode; which table names it depends on queue and namespace (see [`crate::opcode`]).";
        1 pub flags: SqeFlags, "Fused operation and how the data pointer is meant.";
        2 pub cid: U16, "Command id: any 16-bit value, never an index. wire §5.1";
        4 pub nsid: U32, "Namespace id; its first byte is the command type of a Fabrics command.";
        8 pub cdw2: U32, "Command dword 2.";
        12 pub cdw3: U32, "Command dword 3.";
        16 pub mptr: U64, "Metadata pointer, unused over TCP.";
        24 pub dptr: Sgl, "Data pointer.";
        40 pub cdw10: U32, "Command dword 10.";
        44 pub cdw11: U32, "Command dword 11.";
        48 pub cdw12: U32, "Command dword 12.";
        52 pub cdw13: U32, "Command dword 13.";
        56 pub cdw14: U32, "Command dword 14.";
        60 pub cdw15: U32, "Command dword 15.";
    }

    /// Place in a fused pair. wire §16
    pub codes Fuse: u8 {
        0 NONE, "not fused";
        1 FIRST, "first of a fused pair";
        2 SECOND, "second of a fused pair";
    }

    /// Use of the data pointer: PRP or SGL. wire §5.1
    pub codes Psdt: u8 {
        0 PRP, "PRP";
        /// The only kind over TCP.
        1 SGL, "SGL";
    }

    /// Byte 1 of a command. wire §5.1
    pub bits SqeFlags: u8 {
        [1:0] fuse, with_fuse: Fuse, "Place in a fused pair.";
        [5:2] reserved, with_reserved: u8, "Reserved, 0.";
        [7:6] psdt, with_psdt: Psdt, "Use of the data pointer.";
    }
}

impl SqeFlags {
    /// SGL, not fused: the flags of every command over TCP.
    pub const SGL: Self = Self::from_bits(0x40);
}

impl Sqe {
    /// A command with nothing but opcode and namespace: cid 0, no data, SGL flag set.
    #[inline]
    #[must_use]
    pub const fn new(opcode: u8, nsid: Nsid) -> Self {
        Self {
            opcode,
            flags: SqeFlags::SGL,
            cid: U16::ZERO,
            nsid: U32::new(nsid.get()),
            cdw2: U32::ZERO,
            cdw3: U32::ZERO,
            mptr: U64::ZERO,
            dptr: Sgl::none(),
            cdw10: U32::ZERO,
            cdw11: U32::ZERO,
            cdw12: U32::ZERO,
            cdw13: U32::ZERO,
            cdw14: U32::ZERO,
            cdw15: U32::ZERO,
        }
    }

    /// With this command id.
    #[inline]
    #[must_use]
    pub const fn with_cid(mut self, cid: u16) -> Self {
        self.cid = U16::new(cid);
        self
    }

    /// With this data pointer.
    #[inline]
    #[must_use]
    pub const fn with_data(mut self, dptr: Sgl) -> Self {
        self.dptr = dptr;
        self
    }

    /// With this place in a fused pair.
    #[inline]
    #[must_use]
    pub const fn with_fuse(mut self, fuse: Fuse) -> Self {
        self.flags = self.flags.with_fuse(fuse);
        self
    }

    /// Namespace id. Meaningless in a Fabrics command.
    #[inline]
    #[must_use]
    pub const fn nsid(&self) -> Nsid {
        Nsid::new(self.nsid.get())
    }

    /// Type of a Fabrics command. Meaningless in any other. wire §6
    #[inline]
    #[must_use]
    pub const fn fctype(&self) -> FabricsType {
        FabricsType::from_raw(self.nsid.to_bytes()[0])
    }

    /// Which way the data of the command goes, if it has any, by its opcode or by the type of a Fabrics command.
    #[inline]
    #[must_use]
    pub const fn data_direction(&self) -> DataDirection {
        if self.opcode == AdminOpcode::FABRICS.raw() {
            self.fctype().data_direction()
        } else {
            DataDirection::of(self.opcode)
        }
    }

    /// The 8 bytes at offset 40.
    #[inline]
    #[must_use]
    pub const fn cdw10_11(&self) -> u64 {
        quadword(self.cdw10.get(), self.cdw11.get())
    }

    /// The 8 bytes at offset 48.
    #[inline]
    #[must_use]
    pub const fn cdw12_13(&self) -> u64 {
        quadword(self.cdw12.get(), self.cdw13.get())
    }

    /// Sets the 8 bytes at offset 40.
    #[inline]
    pub fn set_cdw10_11(&mut self, value: u64) {
        self.cdw10.set(low32(value));
        self.cdw11.set(high32(value));
    }

    /// Sets the 8 bytes at offset 48.
    #[inline]
    pub fn set_cdw12_13(&mut self, value: u64) {
        self.cdw12.set(low32(value));
        self.cdw13.set(high32(value));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    /// wire §5.1
    #[test]
    fn a_new_command_is_an_sgl_command_without_data() {
        let sqe = Sqe::new(0x02, Nsid::new(0x0403_0201)).with_cid(0xBEEF);
        let mut expected = [0; 64];
        expected[..8].copy_from_slice(&[0x02, 0x40, 0xEF, 0xBE, 0x01, 0x02, 0x03, 0x04]);
        expected[39] = 0x5A;
        assert_eq!(sqe.as_bytes(), expected);
    }

    #[test]
    fn quadwords_are_two_dwords_low_half_first() {
        let mut sqe = Sqe::new(0, Nsid::NONE);
        sqe.set_cdw10_11(0x8877_6655_4433_2211);
        sqe.set_cdw12_13(0x0102_0304_0506_0708);
        assert_eq!(sqe.as_bytes()[40..48], [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
        assert_eq!(sqe.as_bytes()[48..56], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(sqe.cdw10_11(), 0x8877_6655_4433_2211);
        assert_eq!(sqe.cdw12_13(), 0x0102_0304_0506_0708);
    }

    #[test]
    fn the_fabrics_type_is_the_first_byte_of_the_nsid() {
        let sqe = Sqe::new(0x7F, Nsid::new(0xAABB_CC05));
        assert_eq!(sqe.fctype(), FabricsType::AUTHENTICATION_SEND);
    }

    #[test]
    fn a_fused_pair_is_marked_in_the_flags() {
        let sqe = Sqe::new(0x05, Nsid::new(1)).with_fuse(Fuse::FIRST);
        assert_eq!(sqe.as_bytes()[1], 0x41);
        assert_eq!(sqe.with_fuse(Fuse::SECOND).as_bytes()[1], 0x42);
        assert_eq!(sqe.flags.psdt(), Psdt::SGL);
        assert_eq!(sqe.flags.fuse(), Fuse::FIRST);
    }

    proptest! {
        #[test]
        fn any_64_bytes_are_a_command_and_come_back(bytes: [[u8; 32]; 2]) {
            let sqe = Sqe::read_from_bytes(bytes.as_flattened()).expect("64 bytes");
            prop_assert_eq!(sqe.as_bytes(), bytes.as_flattened());
            let mut copy = sqe;
            copy.set_cdw10_11(sqe.cdw10_11());
            copy.set_cdw12_13(sqe.cdw12_13());
            prop_assert_eq!(copy.as_bytes(), sqe.as_bytes());
        }
    }
}
