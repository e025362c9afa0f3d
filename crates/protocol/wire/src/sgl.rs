//! The data pointer of a command: one 16-byte SGL descriptor. wire §5.3

use crate::{U32, U64};

/// Bytes of a descriptor.
pub const SGL_BYTES: usize = 16;

const IN_CAPSULE: u8 = 0x01;
const TRANSPORT: u8 = 0x5A;

tables! {
    /// One SGL descriptor, as it lies at byte 24 of a command. wire §5.3
    pub structure Sgl: SGL_BYTES {
        0 pub address: U64, "Offset of in-capsule data in bytes, 0 for data that moves by PDUs of its own.";
        8 pub length: U32, "Bytes to transfer.";
        12 reserved: [u8; 3];
        15 pub identifier: u8, "Descriptor type in bits 7:4, subtype in 3:0.";
    }
}

/// The location of the data that a descriptor names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPointer {
    /// In the command capsule itself, `offset` bytes from the start of its data.
    InCapsule {
        /// Bytes; every known host sends 0. Not checked here, `offset + length` may not even fit 64 bits.
        offset: u64,
        /// Bytes to transfer.
        length: u32,
    },
    /// In C2HData, or in H2CData asked for by R2T.
    Transport {
        /// Bytes to transfer; commands without data have 0 here.
        length: u32,
    },
    /// A descriptor that has no meaning over TCP.
    Other {
        /// Descriptor type, 0..=15.
        kind: u8,
        /// Descriptor subtype, 0..=15.
        subtype: u8,
    },
}

impl Sgl {
    /// Data in the capsule, from its first data byte on.
    #[inline]
    #[must_use]
    pub const fn in_capsule(length: u32) -> Self {
        Self { address: U64::ZERO, length: U32::new(length), reserved: [0; 3], identifier: IN_CAPSULE }
    }

    /// Data in PDUs of its own.
    #[inline]
    #[must_use]
    pub const fn transport(length: u32) -> Self {
        Self { address: U64::ZERO, length: U32::new(length), reserved: [0; 3], identifier: TRANSPORT }
    }

    /// The descriptor of a command without data: Linux sends the transport kind with length 0.
    #[inline]
    #[must_use]
    pub const fn none() -> Self {
        Self::transport(0)
    }

    /// The location of the data.
    #[inline]
    #[must_use]
    pub const fn classify(&self) -> DataPointer {
        match self.identifier {
            TRANSPORT => DataPointer::Transport { length: self.length.get() },
            IN_CAPSULE => DataPointer::InCapsule { offset: self.address.get(), length: self.length.get() },
            other => DataPointer::Other { kind: other >> 4, subtype: other & 0xF },
        }
    }
}

impl Default for Sgl {
    fn default() -> Self {
        Self::none()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::{FromBytes, FromZeros, IntoBytes};

    use super::*;

    /// wire §5.3
    #[test]
    fn without_anything_said_there_is_no_data() {
        assert_eq!(Sgl::default().as_bytes(), Sgl::none().as_bytes());
        assert_eq!(Sgl::default().classify(), DataPointer::Transport { length: 0 });
    }

    #[test]
    fn in_capsule_data_has_the_data_block_descriptor_with_offset() {
        assert_eq!(
            Sgl::in_capsule(0x1000).as_bytes(),
            [0, 0, 0, 0, 0, 0, 0, 0, 0x00, 0x10, 0, 0, 0, 0, 0, 0x01]
        );
    }

    #[test]
    fn other_data_has_the_transport_data_block_descriptor() {
        assert_eq!(
            Sgl::transport(0x0102_0304).as_bytes(),
            [0, 0, 0, 0, 0, 0, 0, 0, 0x04, 0x03, 0x02, 0x01, 0, 0, 0, 0x5A]
        );
        assert_eq!(Sgl::none().classify(), DataPointer::Transport { length: 0 });
    }

    #[test]
    fn a_zeroed_descriptor_is_a_data_block_by_address() {
        // SPDK's host leaves the descriptor of a command without data zero.
        assert_eq!(Sgl::new_zeroed().classify(), DataPointer::Other { kind: 0, subtype: 0 });
        let keyed = Sgl { identifier: 0x40, ..Sgl::none() };
        assert_eq!(keyed.classify(), DataPointer::Other { kind: 4, subtype: 0 });
    }

    proptest! {
        #[test]
        fn every_descriptor_keeps_what_it_says(bytes: [u8; 16]) {
            let sgl = Sgl::read_from_bytes(&bytes).expect("16 bytes");
            prop_assert_eq!(sgl.as_bytes(), &bytes);
            match sgl.classify() {
                DataPointer::InCapsule { offset, length } => {
                    prop_assert_eq!((offset, length, bytes[15]), (sgl.address.get(), sgl.length.get(), 0x01));
                }
                DataPointer::Transport { length } => {
                    prop_assert_eq!((length, bytes[15]), (sgl.length.get(), 0x5A));
                }
                DataPointer::Other { kind, subtype } => prop_assert_eq!(kind << 4 | subtype, bytes[15]),
            }
        }

        #[test]
        fn both_kinds_give_back_their_length(length: u32) {
            let in_capsule = DataPointer::InCapsule { offset: 0, length };
            prop_assert_eq!(Sgl::in_capsule(length).classify(), in_capsule);
            prop_assert_eq!(Sgl::transport(length).classify(), DataPointer::Transport { length });
        }
    }
}
