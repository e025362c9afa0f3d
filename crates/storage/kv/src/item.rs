//! An item: a pair outside the index, in a block of lines.
//!
//! ```text
//! 0      6  7      8                                       16
//! │ cas  │kl│ bits │ length : stamp : flags : expiry       │ wide flags? │ pieces? │ key │ value, or its tail │
//!                  │ 13 bits   6       16      29 bits     │
//! ```
//!
//! A pair of 16 and 32 bytes fills a line exactly. A value of more than 4 KiB has its first parts in *pieces* of that
//! length, listed in the item, and its tail after the key. One of a mebibyte or more has its whole mebibytes in chunks
//! outside of the regions, before its pieces: the first number of the list identifies them.
//!
//! In a partition with a log, items that may be reduced to a stub hold the offset of their record in the log as their
//! last eight bytes, 0 while they are not in the log. A *stub* has no value, but that offset where pieces would be
//! listed.

use memory::CHUNK_BYTES;

use crate::access::STAMP_BITS;
use crate::key::KEY_BYTES_MAX;
use crate::regions::{PIECE_BYTES, units};

/// Bytes of every header.
pub const HEADER_BYTES: usize = 16;

/// Set if the value has pieces or chunks, or is only in the log.
pub(crate) const LARGE: u8 = 1 << 2;
/// Set if the flags do not fit in 16 bits.
pub(crate) const WIDE: u8 = 1 << 3;
/// Set if the block must stay where it is, because it is being filled or sent.
pub(crate) const HELD: u8 = 1 << 4;
/// Set once the value was read.
pub(crate) const FETCHED: u8 = 1 << 5;
/// memcached's mark of a value that should be recomputed.
pub(crate) const STALE: u8 = 1 << 6;
/// memcached's mark that a client is recomputing the value.
pub(crate) const WON: u8 = 1 << 7;
/// Bits of an item that are kept in the log.
pub(crate) const MARKS: u8 = STALE | WON | FETCHED;
/// Uses since the item came to its queue, 0 to 2, or [`USED_ONCE`].
pub(crate) const USES: u8 = 0b11;
/// The item came to the queue of kept items after one use, and has not been used there.
pub(crate) const USED_ONCE: u8 = 3;
/// The largest use count of an item.
pub const USES_MAX: u8 = 2;

/// Offset of the key length in the header.
pub(crate) const KEY_BYTES_AT: usize = 6;
/// Offset of the bits in the header, directly after the key length.
pub(crate) const BITS_AT: usize = 7;
/// Offset of the four bytes that hold the expiry.
pub(crate) const EXPIRY_AT: usize = 12;

/// Set in the length of a stub's list: the offset of its record follows, in two numbers.
pub(crate) const AWAY: u32 = 1 << 31;
/// Bytes of flags that do not fit in 16 bits.
const WIDE_BYTES: usize = 4;
/// Bytes of the offset of a record in the log.
pub(crate) const LOG_OFFSET_BYTES: usize = 8;

const CAS_BITS: u32 = 48;
/// The largest CAS number that a pair can have.
pub const CAS_MAX: u64 = (1 << CAS_BITS) - 1;
/// How far CAS numbers may be ahead of those that are known to be given: further ones were chosen by clients.
const CAS_AHEAD_MAX: u64 = 1 << 40;
/// Bits of the length of a value without parts: at most that of a piece.
const LENGTH_BITS: u32 = 13;
const FLAG_BITS: u32 = 16;
/// Bits of the expiry, in seconds of the partition's clock: 17 years.
const EXPIRY_BITS: u32 = 29;
/// The latest expiry that a pair can have: later ones mean never.
pub(crate) const EXPIRY_MAX: u32 = (1 << EXPIRY_BITS) - 1;
const FLAGS_FROM: u32 = LENGTH_BITS + STAMP_BITS;
const EXPIRY_FROM: u32 = FLAGS_FROM + FLAG_BITS;
const _: () = assert!(PIECE_BYTES < 1 << LENGTH_BITS && EXPIRY_FROM + EXPIRY_BITS == u64::BITS);

/// The last CAS number given, after `last` and the `cas` of a pair. Numbers go on beyond [`CAS_MAX`], and pairs have
/// their lower bits.
#[inline]
pub(crate) fn later_cas(last: u64, cas: u64) -> u64 {
    let ahead = cas.wrapping_sub(last) & CAS_MAX;
    if ahead < CAS_AHEAD_MAX { last + ahead } else { last }
}

/// The expiry in the four bytes at [`EXPIRY_AT`].
#[inline(always)]
pub(crate) fn expiry_in(word: u32) -> u32 {
    word >> (u32::BITS - EXPIRY_BITS)
}

/// The first bytes of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) cas: u64,
    pub(crate) key_bytes: u8,
    pub(crate) bits: u8,
    /// Bytes of a value without parts.
    pub(crate) value_bytes: u16,
    /// When it was last accessed.
    pub(crate) stamp: u8,
    pub(crate) flags: u16,
    /// Later ones than the clock may reach are kept as 0: never.
    pub(crate) expiry: u32,
}

/// Offsets of the parts of an item, bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) bits: u8,
    /// Whole chunks before the pieces.
    pub(crate) chunk_count: usize,
    pub(crate) piece_count: usize,
    /// Offset of the list of pieces, after the number of the chunks if there is one.
    pub(crate) pieces_at: usize,
    pub(crate) key_at: usize,
    pub(crate) value_at: usize,
    /// Bytes of value in the block.
    pub(crate) tail_bytes: usize,
    /// Where the item holds its offset in the log, or 0 if it holds none.
    pub(crate) log_offset_at: usize,
    pub(crate) total_bytes: usize,
}

impl Header {
    #[inline]
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let first = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        let second = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
        Self {
            cas: first & ((1 << CAS_BITS) - 1),
            key_bytes: (first >> 48) as u8,
            bits: (first >> 56) as u8,
            value_bytes: second as u16 & ((1 << LENGTH_BITS) - 1),
            stamp: (second >> LENGTH_BITS) as u8 & ((1 << STAMP_BITS) - 1),
            flags: (second >> FLAGS_FROM) as u16,
            expiry: (second >> EXPIRY_FROM) as u32,
        }
    }

    #[inline]
    pub(crate) fn encode(self) -> [u8; HEADER_BYTES] {
        let first =
            self.cas & ((1 << CAS_BITS) - 1) | u64::from(self.key_bytes) << 48 | u64::from(self.bits) << 56;
        let expiry = if self.expiry <= EXPIRY_MAX { self.expiry } else { 0 };
        let second = u64::from(self.value_bytes)
            | u64::from(self.stamp) << LENGTH_BITS
            | u64::from(self.flags) << FLAGS_FROM
            | u64::from(expiry) << EXPIRY_FROM;
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&first.to_le_bytes());
        bytes[8..].copy_from_slice(&second.to_le_bytes());
        bytes
    }

    /// Offset of the list of an item that has one. Before it are the length of the value and that of the list.
    #[inline]
    pub(crate) fn list_at(self) -> usize {
        HEADER_BYTES + if self.bits & WIDE == 0 { 8 } else { 12 }
    }

    /// Offset of the key in the block, given the length of its list.
    #[inline]
    pub(crate) fn key_at(self, list_count: usize) -> usize {
        let mut at = HEADER_BYTES;
        if self.bits & WIDE != 0 {
            at += 4;
        }
        if self.bits & LARGE != 0 {
            at += 8 + 4 * list_count;
        }
        at
    }
}

impl Layout {
    /// Bytes of the longest stub.
    pub(crate) const STUB_BYTES_MAX: usize = HEADER_BYTES + WIDE_BYTES + 8 + LOG_OFFSET_BYTES + KEY_BYTES_MAX;

    /// The layout of an item. With `has_log`, it includes an offset in the log if a stub would take at most half as
    /// many lines.
    #[inline]
    pub(crate) fn new(key_bytes: usize, value_bytes: usize, flags: u32, has_log: bool) -> Self {
        let bits = if flags > u32::from(u16::MAX) { WIDE } else { 0 };
        let fixed = HEADER_BYTES + if bits == 0 { 0 } else { 4 };
        let log_offset_bytes = if has_log { log_offset_bytes(fixed, key_bytes, value_bytes) } else { 0 };
        let log_offset_at = |total: usize| if log_offset_bytes == 0 { 0 } else { total - LOG_OFFSET_BYTES };
        if value_bytes <= PIECE_BYTES {
            let total_bytes = fixed + key_bytes + value_bytes + log_offset_bytes;
            return Self {
                bits,
                chunk_count: 0,
                piece_count: 0,
                pieces_at: fixed,
                key_at: fixed,
                value_at: fixed + key_bytes,
                tail_bytes: value_bytes,
                log_offset_at: log_offset_at(total_bytes),
                total_bytes,
            };
        }
        let chunk_count = chunk_count(value_bytes);
        let rest_bytes = value_bytes - chunk_count * CHUNK_BYTES;
        let pieces_at = fixed + if chunk_count == 0 { 8 } else { 12 };
        let (piece_count, tail_bytes) = (rest_bytes / PIECE_BYTES, rest_bytes % PIECE_BYTES);
        let key_at = pieces_at + 4 * piece_count;
        let total_bytes = key_at + key_bytes + tail_bytes + log_offset_bytes;
        Self {
            bits: bits | LARGE,
            chunk_count,
            piece_count,
            pieces_at,
            key_at,
            value_at: key_at + key_bytes,
            tail_bytes,
            log_offset_at: log_offset_at(total_bytes),
            total_bytes,
        }
    }

    /// The layout of a stub.
    pub(crate) fn stub(key_bytes: usize, flags: u32) -> Self {
        let bits = if flags > u32::from(u16::MAX) { WIDE } else { 0 };
        let pieces_at = HEADER_BYTES + if bits == 0 { 0 } else { 4 } + 8;
        let key_at = pieces_at + LOG_OFFSET_BYTES;
        Self {
            bits: bits | LARGE,
            chunk_count: 0,
            piece_count: LOG_OFFSET_BYTES / 4,
            pieces_at,
            key_at,
            value_at: key_at + key_bytes,
            tail_bytes: 0,
            log_offset_at: pieces_at,
            total_bytes: key_at + key_bytes,
        }
    }

    /// Length of its list.
    pub(crate) fn list_count(&self) -> usize {
        self.piece_count + usize::from(self.chunk_count > 0)
    }

    /// Units of its block.
    #[inline]
    pub(crate) fn units(&self) -> usize {
        units(self.total_bytes)
    }
}

/// Number of whole chunks of a value.
#[inline]
pub(crate) fn chunk_count(value_bytes: usize) -> usize {
    value_bytes / CHUNK_BYTES
}

/// Bytes for the offset in the log: 0 if a stub would save too little.
#[inline]
fn log_offset_bytes(fixed: usize, key_bytes: usize, value_bytes: usize) -> usize {
    let whole = (fixed + key_bytes + value_bytes).div_ceil(memory::LINE_BYTES);
    // With the longest flags: no change of the flags makes an item in its block one that never leaves memory.
    let stub = (HEADER_BYTES + WIDE_BYTES + 8 + LOG_OFFSET_BYTES + key_bytes).div_ceil(memory::LINE_BYTES);
    if whole >= 2 * stub { LOG_OFFSET_BYTES } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_pair_of_16_and_32_bytes_fills_a_line() {
        assert_eq!(Layout::new(16, 32, 65535, true).total_bytes, 64);
        assert_eq!(Layout::new(16, 32, 65536, false).total_bytes, 68);
    }

    #[test]
    fn every_value_up_to_256_mib_has_a_layout() {
        for value_bytes in
            [0, 1, 4095, 4096, 4097, 8192, 70_000, 131_072, 1 << 20, (1 << 21) - 1, 1_114_112, 256 << 20]
        {
            for key_bytes in [1, 250] {
                for has_log in [false, true] {
                    let layout = Layout::new(key_bytes, value_bytes, u32::MAX, has_log);
                    assert!(layout.total_bytes <= PIECE_BYTES + 2048, "{value_bytes}: {layout:?}");
                    let whole = layout.chunk_count * CHUNK_BYTES + layout.piece_count * PIECE_BYTES;
                    assert_eq!(whole + layout.tail_bytes, value_bytes);
                    let value_end = layout.value_at + layout.tail_bytes;
                    assert!(layout.log_offset_at == 0 || layout.log_offset_at == value_end);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn headers_read_back(
            cas in 0u64..1 << 48, key_bytes: u8, bits: u8, value_bytes in 0u16..=4096, stamp in 0u8..64, flags: u16,
            expiry in 0u32..1 << 29,
        ) {
            let header = Header { cas, key_bytes, bits, value_bytes, stamp, flags, expiry };
            prop_assert_eq!(Header::decode(&header.encode()), header);
            let bytes = header.encode();
            let word = u32::from_le_bytes(bytes[EXPIRY_AT..].try_into().expect("four bytes"));
            prop_assert_eq!(expiry_in(word), expiry);
            let never = Header { expiry: 0, ..header };
            prop_assert_eq!(Header::decode(&Header { expiry: expiry | 1 << 29, ..header }.encode()), never);
        }
    }
}
