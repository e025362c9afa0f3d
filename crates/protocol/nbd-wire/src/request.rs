//! Requests: their heads, compact and extended.
// Data from a client must not cause a panic: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::reply_form::ReplyForm;

const COMPACT_MAGIC: u32 = 0x2560_9513;
const EXTENDED_MAGIC: u32 = 0x21e4_1c71;

/// Flags of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandFlags(pub u16);

impl CommandFlags {
    /// Durable before the reply.
    pub const FUA: Self = Self(1);
    /// Zeroes that leave no hole.
    pub const NO_HOLE: Self = Self(1 << 1);
    /// Read data in one chunk.
    pub const DF: Self = Self(1 << 2);
    /// Block status of one extent.
    pub const REQ_ONE: Self = Self(1 << 3);
    /// Zeroes only if that is fast.
    pub const FAST_ZERO: Self = Self(1 << 4);
    /// Of extended requests: the length is that of the payload.
    pub const PAYLOAD_LEN: Self = Self(1 << 5);

    /// Whether it has all flags of `other`.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether it has none but those of `allowed`.
    #[must_use]
    pub const fn is_within(self, allowed: &[Self]) -> bool {
        let mut rest = self.0;
        let mut left = allowed;
        while let [first, others @ ..] = left {
            rest &= !first.0;
            left = others;
        }
        rest == 0
    }
}

/// The head of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its flags.
    pub flags: CommandFlags,
    /// The command's number.
    pub command: u16,
    /// The client's own; the reply has it.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Number of bytes, of the range or of the payload.
    pub length: u64,
}

/// The client broke the protocol: the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestViolation {
    /// Not the beginning of a request.
    #[error("a request begins with {found:#010x}")]
    Magic {
        /// What it begins with.
        found: u32,
    },
    /// A payload that is too long to be received and dropped.
    #[error("a payload of {length} bytes: the limit is {limit}")]
    Payload {
        /// Its length, bytes.
        length: u64,
        /// The limit, bytes.
        limit: u64,
    },
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Compact {
    magic: U32,
    flags: U16,
    command: U16,
    cookie: U64,
    offset: U64,
    length: U32,
}
const _: () = assert!(size_of::<Compact>() == 28);

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Extended {
    magic: U32,
    flags: U16,
    command: U16,
    cookie: U64,
    offset: U64,
    length: U64,
}
const _: () = assert!(size_of::<Extended>() == 32);

impl Request {
    /// Bytes of a head.
    #[must_use]
    pub const fn head_bytes(form: ReplyForm) -> usize {
        match form {
            ReplyForm::Extended => size_of::<Extended>(),
            ReplyForm::Simple | ReplyForm::Structured => size_of::<Compact>(),
        }
    }

    /// The request that `bytes` begin with; `None` if they are fewer than a head.
    ///
    /// # Errors
    /// [`RequestViolation::Magic`].
    #[inline]
    pub fn from_bytes(form: ReplyForm, bytes: &[u8]) -> Result<Option<Self>, RequestViolation> {
        let (magic, wanted, request) = match form {
            ReplyForm::Extended => {
                let Ok((head, _)) = Extended::ref_from_prefix(bytes) else { return Ok(None) };
                let Extended { magic, flags, command, cookie, offset, length } = *head;
                let length = length.get();
                (magic, EXTENDED_MAGIC, Self::new(flags, command, cookie, offset, length))
            }
            ReplyForm::Simple | ReplyForm::Structured => {
                let Ok((head, _)) = Compact::ref_from_prefix(bytes) else { return Ok(None) };
                let Compact { magic, flags, command, cookie, offset, length } = *head;
                let length = length.get().into();
                (magic, COMPACT_MAGIC, Self::new(flags, command, cookie, offset, length))
            }
        };
        match magic.get() {
            found if found != wanted => Err(RequestViolation::Magic { found }),
            _ => Ok(Some(request)),
        }
    }

    #[inline]
    fn new(flags: U16, command: U16, cookie: U64, offset: U64, length: u64) -> Self {
        Self {
            flags: CommandFlags(flags.get()),
            command: command.get(),
            cookie: cookie.get(),
            offset: offset.get(),
            length,
        }
    }

    /// The head of a client without extended headers, whose lengths have 32 bits.
    #[must_use]
    pub fn to_compact(self) -> [u8; size_of::<Compact>()] {
        let Self { flags, command, cookie, offset, length } = self;
        let length = U32::new(u32::try_from(length).unwrap_or(u32::MAX));
        let (magic, flags, command) = (COMPACT_MAGIC.into(), flags.0.into(), command.into());
        let head = Compact { magic, flags, command, cookie: cookie.into(), offset: offset.into(), length };
        zerocopy::transmute!(head)
    }

    /// The head, as a client sends it.
    #[must_use]
    pub fn to_bytes(self, form: ReplyForm) -> Vec<u8> {
        match form {
            ReplyForm::Extended => {
                let (flags, command) = (self.flags.0.into(), self.command.into());
                let (cookie, offset) = (self.cookie.into(), self.offset.into());
                let (magic, length) = (EXTENDED_MAGIC.into(), self.length.into());
                Extended { magic, flags, command, cookie, offset, length }.as_bytes().to_vec()
            }
            ReplyForm::Simple | ReplyForm::Structured => self.to_compact().to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A head is read as it was written, and a part of one is none.
        #[test]
        fn a_head_survives_the_wire(
            (flags, command, cookie, offset) in any::<(u16, u16, u64, u64)>(),
            length in any::<u32>(),
            cut in 0usize..32,
        ) {
            for form in [ReplyForm::Simple, ReplyForm::Structured, ReplyForm::Extended] {
                let flags = CommandFlags(flags);
                let request = Request { flags, command, cookie, offset, length: length.into() };
                let bytes = request.to_bytes(form);
                prop_assert_eq!(bytes.len(), Request::head_bytes(form));
                prop_assert_eq!(Request::from_bytes(form, &bytes), Ok(Some(request)));
                let cut = cut.min(bytes.len() - 1);
                prop_assert_eq!(Request::from_bytes(form, &bytes[..cut]), Ok(None));
            }
        }
    }

    #[test]
    fn the_heads_of_the_other_form_are_no_requests() {
        let request = Request { flags: CommandFlags::FUA, command: 1, cookie: 7, offset: 512, length: 4096 };
        let extended = request.to_bytes(ReplyForm::Extended);
        let found = EXTENDED_MAGIC;
        assert_eq!(Request::from_bytes(ReplyForm::Simple, &extended), Err(RequestViolation::Magic { found }));
        let golden = b"\x25\x60\x95\x13\0\x01\0\x01\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\x02\0\0\0\x10\0";
        assert_eq!(request.to_bytes(ReplyForm::Structured), golden);
    }
}
