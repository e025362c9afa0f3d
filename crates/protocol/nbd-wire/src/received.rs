//! Heads of replies and of their chunks, as a client receives them.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::chunk::{CHUNK_MAGIC, DONE, SIMPLE_MAGIC};

/// What a reply or a chunk begins with. Extended heads are not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceivedHead {
    /// A simple reply: all data of a Read follows if the error is 0.
    Simple {
        /// The error number; 0 for none.
        errno: u32,
        /// That of the request.
        cookie: u64,
    },
    /// A chunk, whose payload follows.
    Chunk {
        /// Whether it is the last one of its reply.
        is_last: bool,
        /// Its type.
        kind: u16,
        /// That of the request.
        cookie: u64,
        /// Bytes of payload.
        length: u32,
    },
}

/// The server broke the protocol: the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyViolation {
    /// Not the beginning of a reply.
    #[error("a reply begins with {found:#010x}")]
    Magic {
        /// What it begins with.
        found: u32,
    },
    /// A reply to no request, or a second one.
    #[error("a reply to no request (cookie {cookie:#x})")]
    Cookie {
        /// Its cookie.
        cookie: u64,
    },
    /// A chunk that its request does not have, or of a length that its type does not have.
    #[error("a chunk of type {kind:#06x} with {length} bytes")]
    Chunk {
        /// Its type.
        kind: u16,
        /// Bytes of payload.
        length: u32,
    },
    /// Data outside the range of the request, or not all of it.
    #[error("data that is not that of the request")]
    Data,
}

#[derive(Clone, Copy, Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Simple {
    magic: U32,
    errno: U32,
    cookie: U64,
}
const _: () = assert!(size_of::<Simple>() == 16);

#[derive(Clone, Copy, Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Chunk {
    magic: U32,
    flags: U16,
    kind: U16,
    cookie: U64,
    length: U32,
}
const _: () = assert!(size_of::<Chunk>() == 20);

impl ReceivedHead {
    /// The head that `bytes` begin with, and its length; `None` if they are fewer than a head.
    ///
    /// # Errors
    /// [`ReplyViolation::Magic`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Option<(Self, usize)>, ReplyViolation> {
        let Ok((magic, _)) = U32::ref_from_prefix(bytes) else { return Ok(None) };
        Ok(match magic.get() {
            SIMPLE_MAGIC => Simple::ref_from_prefix(bytes).ok().map(|(head, _)| {
                (Self::Simple { errno: head.errno.get(), cookie: head.cookie.get() }, size_of::<Simple>())
            }),
            CHUNK_MAGIC => Chunk::ref_from_prefix(bytes).ok().map(|(head, _)| {
                let is_last = head.flags.get() & DONE != 0;
                let (kind, cookie, length) = (head.kind.get(), head.cookie.get(), head.length.get());
                (Self::Chunk { is_last, kind, cookie, length }, size_of::<Chunk>())
            }),
            found => return Err(ReplyViolation::Magic { found }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn heads_are_read_as_the_specification_draws_them() {
        let simple = b"\x67\x44\x66\x98\0\0\0\x05\0\0\0\0\0\0\0\x07rest";
        let head = ReceivedHead::Simple { errno: 5, cookie: 7 };
        assert_eq!(ReceivedHead::from_bytes(simple), Ok(Some((head, 16))));
        let chunk = b"\x66\x8e\x33\xef\0\x01\0\x01\0\0\0\0\0\0\0\x07\0\0\x02\x08";
        let head = ReceivedHead::Chunk { is_last: true, kind: 1, cookie: 7, length: 520 };
        assert_eq!(ReceivedHead::from_bytes(chunk), Ok(Some((head, 20))));
        for short in [&chunk[..19], &simple[..15], &chunk[..3], &[]] {
            assert_eq!(ReceivedHead::from_bytes(short), Ok(None));
        }
        let found = 0x2560_9513;
        assert_eq!(ReceivedHead::from_bytes(b"\x25\x60\x95\x13rest"), Err(ReplyViolation::Magic { found }));
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_head_longer_than_they_are(bytes: Vec<u8>) {
            if let Ok(Some((_, length))) = ReceivedHead::from_bytes(&bytes) {
                prop_assert!(length <= bytes.len());
            }
        }
    }
}
