//! Copies of payloads that stay fast at unfavourable offsets of source and destination.
//!
//! `memcpy` of the C library may copy 4 KiB and more with one instruction (`rep movsb`). On AMD processors of the Zen 3
//! family that instruction is slow if the destination's offset in its 4 KiB page is a little above the source's, by
//! less than a cache line: at a distance of 24 bytes 4 KiB take 1.4 µs instead of .05 to .08, and 64 KiB 23 µs instead
//! of 1.3 (glibc 2.36; `cargo run --release -p nvlane-memory --example distances`). Payloads behind headers of 24 or 72
//! bytes lie at any offset of a page, so one copy in 64 is slow. This module makes such copies in pieces, for which the
//! C library uses vector instructions. It leaves other copies whole, because pieces are slower into memory that no
//! cache holds.

/// Size of a page, bytes: the instruction compares addresses modulo this.
const PAGE_BYTES: usize = 4096;

/// Distances of the destination above the source within a page that the instruction is slow at, bytes.
const SLOW_DISTANCES: std::ops::Range<usize> = 1..64;

/// Size of a piece, bytes. The C library uses vector instructions up to it.
const PIECE_BYTES: usize = 2048;

/// Copies `from` into `into`.
///
/// # Panics
/// If their lengths differ.
#[inline]
pub fn copy_bytes(into: &mut [u8], from: &[u8]) {
    let distance = into.as_ptr().addr().wrapping_sub(from.as_ptr().addr()) % PAGE_BYTES;
    if SLOW_DISTANCES.contains(&distance) && from.len() > PIECE_BYTES {
        in_pieces(into, from);
    } else {
        into.copy_from_slice(from);
    }
}

#[cold]
#[inline(never)]
fn in_pieces(into: &mut [u8], from: &[u8]) {
    assert_eq!(into.len(), from.len(), "a copy has the length of its source");
    for (into, from) in into.chunks_mut(PIECE_BYTES).zip(from.chunks(PIECE_BYTES)) {
        into.copy_from_slice(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_distance_and_length_is_copied_whole() {
        let source: Vec<u8> = (0..20_000u32).map(|at| (at % 251) as u8).collect();
        let mut room = vec![0; 20_000];
        for distance in [0, 1, 24, 63, 64, 2048, 4095] {
            for length in [0, 1, 2047, 2048, 2049, 4096, 4097, 10_000] {
                let from = &source[PAGE_BYTES..PAGE_BYTES + length];
                let aligned = room.as_ptr().addr().wrapping_sub(source.as_ptr().addr()) % PAGE_BYTES;
                let start = (distance + PAGE_BYTES - aligned) % PAGE_BYTES;
                room.fill(0xff);
                let into = &mut room[start..start + length];
                assert_eq!(into.as_ptr().addr().wrapping_sub(from.as_ptr().addr()) % PAGE_BYTES, distance);
                copy_bytes(into, from);
                assert_eq!(into, from, "distance {distance}");
                assert!(room[..start].iter().chain(&room[start + length..]).all(|&byte| byte == 0xff));
            }
        }
    }

    #[test]
    #[should_panic(expected = "length")]
    fn a_copy_of_another_length_is_refused() {
        copy_bytes(&mut [0; 3000], &[0; 2999]);
    }
}
