//! CRC32C (Castagnoli) with the instructions of the running processor.
//!
//! | x86-64 processor with | bytes | way |
//! |---|---|---|
//! | AVX-512 and VPCLMULQDQ | 256 or more | folded, 256 bytes a step |
//! | VPCLMULQDQ (AMD Zen 3, Intel Alder Lake) | blocks of 4 KiB | folded, 128 bytes a step, beside CRC32 instructions |
//! | VPCLMULQDQ | 128 or more | folded, 128 bytes a step |
//! | PCLMULQDQ | blocks of 4 KiB | folded, 64 bytes a step, beside CRC32 instructions |
//! | PCLMULQDQ | 256 or more | folded, 64 bytes a step |
//! | SSE 4.2 | the rest | CRC32 instructions, 8 bytes each |
//!
//! In a block the two kinds of instructions use different parts of the core:
//!
//! ```text
//! 0                  2176 (2368)   2816 (2944)   3456 (3520)   4096 bytes
//! │ folded, 128 (64) │ CRC32 of 8  │ CRC32 of 8  │ CRC32 of 8  │
//! │ bytes a step     │ bytes each  │ bytes each  │ bytes each  │
//! ```
//!
//! The four parts are combined by carry-less multiplications with powers of x. Other architectures use the `crc-fast`
//! crate, whose code and tables for all polynomials take 0.8 MB. Times beside those of the crate: `cargo run --release
//! -p nvlane-memory --example crc32c`.

/// Value of the register before the first byte. The checksum is the last value's complement.
pub const START: u32 = 0xFFFF_FFFF;
/// The polynomial, bits reflected.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// The register after these bytes.
#[inline]
#[must_use]
pub fn append(register: u32, bytes: &[u8]) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    return x86_64::append(register, bytes);
    #[cfg(not(target_arch = "x86_64"))]
    return by_crate(register, bytes);
    #[cfg(all(target_arch = "x86_64", miri))]
    by_definition(register, bytes)
}

/// The checksum of these bytes.
#[inline]
#[must_use]
pub fn checksum(bytes: &[u8]) -> u32 {
    !append(START, bytes)
}

/// The checksum of two pieces, one after the other, from those of each; the second has `length` bytes.
#[must_use]
pub fn combine(first: u32, second: u32, length: usize) -> u32 {
    // x^8, and its powers of two.
    let (mut shifted, mut power, mut left) = (first, 1 << 23, length);
    while left > 0 {
        if left & 1 == 1 {
            shifted = multiplied(shifted, power);
        }
        power = multiplied(power, power);
        left >>= 1;
    }
    shifted ^ second
}

/// The product of two polynomials modulo that of the checksum. The highest bit is x^0.
fn multiplied(one: u32, mut other: u32) -> u32 {
    let mut product = 0;
    for bit in (0..32).rev() {
        product ^= other & (one >> bit & 1).wrapping_neg();
        other = (other >> 1) ^ (POLYNOMIAL & (other & 1).wrapping_neg());
    }
    product
}

#[cfg(not(target_arch = "x86_64"))]
#[allow(clippy::cast_possible_truncation)] // The register has 32 bits.
fn by_crate(register: u32, bytes: &[u8]) -> u32 {
    use crc_fast::{CrcAlgorithm, Digest};
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(register));
    digest.update(bytes);
    digest.get_state() as u32
}

/// One bit at a time.
#[cfg(target_arch = "x86_64")]
#[cold]
fn by_definition(mut register: u32, bytes: &[u8]) -> u32 {
    for byte in bytes {
        register ^= u32::from(*byte);
        for _ in 0..8 {
            register = (register >> 1) ^ (POLYNOMIAL & (register & 1).wrapping_neg());
        }
    }
    register
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64 {
    use std::arch::is_x86_feature_detected;
    use std::arch::x86_64::{
        __m128i, __m256i, __m512i, _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u64, _mm_cvtsi64_si128,
        _mm_cvtsi128_si64, _mm_extract_epi64, _mm_loadu_si128, _mm_set_epi64x, _mm_xor_si128,
        _mm256_broadcastsi128_si256, _mm256_castsi256_si128, _mm256_clmulepi64_epi128,
        _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_set_epi64x, _mm256_xor_si256,
        _mm512_broadcast_i32x4, _mm512_clmulepi64_epi128, _mm512_extracti32x4_epi32, _mm512_loadu_si512,
        _mm512_set_epi64, _mm512_ternarylogic_epi64, _mm512_xor_si512,
    };
    use std::sync::LazyLock;

    use super::POLYNOMIAL;
    use crate::lines::{LINE_BYTES, prefetch};

    const BLOCK_BYTES: usize = 4096;

    /// Bytes that are probably not all in the first-level cache, at least: the next block is prefetched then. A processor's own
    /// prefetching ends with each page, and loses its way among the four parts of a block.
    const FAR_BYTES_MIN: usize = 128 << 10;

    /// The instructions that a processor has, each with those before it.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub(super) enum Instructions {
        /// Not even CRC32.
        None,
        /// SSE 4.2 and PCLMULQDQ.
        Narrow,
        /// AVX2 and VPCLMULQDQ.
        Wide,
        /// AVX-512.
        Widest,
    }

    static INSTRUCTIONS: LazyLock<Instructions> = LazyLock::new(|| {
        if !(is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq")) {
            Instructions::None
        } else if !(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("vpclmulqdq")) {
            Instructions::Narrow
        } else if !(is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl")) {
            Instructions::Wide
        } else {
            Instructions::Widest
        }
    });

    #[inline]
    pub(super) fn append(register: u32, bytes: &[u8]) -> u32 {
        append_by(*INSTRUCTIONS, register, bytes)
    }

    /// With these instructions, or as many of them as the processor has.
    #[inline]
    pub(super) fn append_by(instructions: Instructions, register: u32, bytes: &[u8]) -> u32 {
        let instructions = instructions.min(*INSTRUCTIONS);
        // SAFETY: the processor has the instructions of each function, as just asked.
        unsafe {
            match instructions {
                Instructions::None => super::by_definition(register, bytes),
                Instructions::Widest if bytes.len() >= 4 * widest::BYTES => widest::folded(register, bytes),
                Instructions::Wide if bytes.len() >= BLOCK_BYTES => wide::blocks(register, bytes),
                Instructions::Narrow if bytes.len() >= BLOCK_BYTES => narrow::blocks(register, bytes),
                Instructions::Wide | Instructions::Widest if bytes.len() >= 4 * wide::BYTES => {
                    wide::folded(register, bytes)
                }
                Instructions::Narrow if bytes.len() >= 16 * narrow::BYTES => narrow::folded(register, bytes),
                _ => by_words(register, bytes),
            }
        }
    }

    /// x to the power of `exponent` modulo the polynomial. The highest bit is the coefficient of 1, as in a CRC
    /// register.
    const fn power(exponent: usize) -> i64 {
        let mut remainder = 1_u32 << 31;
        let mut done = 0;
        while done < exponent {
            let carry = if remainder & 1 == 1 { POLYNOMIAL } else { 0 };
            remainder = (remainder >> 1) ^ carry;
            done += 1;
        }
        remainder as i64
    }

    /// Factors that move 16 bytes forward by so many bytes: of the first 8 bytes and of the last. A product of reflected
    /// polynomials is one power of x too high, and a factor of 32 bits in a word of 64 stands 32 powers too high.
    const fn forward(bytes: usize) -> [i64; 2] {
        [power(8 * bytes + 64 - 33), power(8 * bytes - 33)]
    }

    /// The low half, which holds a register of 32 bits.
    #[allow(clippy::cast_possible_truncation)]
    const fn low32(value: u64) -> u32 {
        value as u32
    }

    #[inline(always)]
    fn word_at(bytes: &[u8], offset: usize) -> u64 {
        u64::from_le_bytes(*bytes[offset..].first_chunk().expect("offsets are within"))
    }

    /// The register after these bytes, by CRC32 instructions alone.
    #[target_feature(enable = "sse4.2")]
    #[inline]
    fn by_words(register: u32, bytes: &[u8]) -> u32 {
        let (words, rest) = bytes.as_chunks();
        let mut register = u64::from(register);
        for word in words {
            register = _mm_crc32_u64(register, u64::from_le_bytes(*word));
        }
        let mut register = low32(register);
        for byte in rest {
            register = _mm_crc32_u8(register, *byte);
        }
        register
    }

    /// The register after 16 bytes.
    #[target_feature(enable = "pclmulqdq,sse4.2")]
    #[inline]
    fn reduced(value: __m128i) -> u32 {
        let first = _mm_crc32_u64(0, _mm_cvtsi128_si64(value).cast_unsigned());
        low32(_mm_crc32_u64(first, _mm_extract_epi64::<1>(value).cast_unsigned()))
    }

    /// The register moved forward, to be reduced by one CRC32 instruction, which moves by 32 bits itself.
    #[target_feature(enable = "pclmulqdq,sse4.2")]
    #[inline]
    fn moved(register: u64, factor: i64) -> __m128i {
        _mm_clmulepi64_si128::<0x00>(_mm_cvtsi64_si128(register.cast_signed()), _mm_cvtsi64_si128(factor))
    }

    /// Bytes folded by vectors of one width, four at a time.
    macro_rules! folded {
        ($features:literal) => {
            /// The register after these bytes: four vectors or more.
            #[target_feature(enable = $features)]
            pub(super) fn folded(register: u32, bytes: &[u8]) -> u32 {
                let (vectors, end) = bytes.as_chunks::<BYTES>();
                let (steps, rest) = vectors.as_chunks::<4>();
                let Some((first, steps)) = steps.split_first() else {
                    return super::by_words(register, bytes);
                };
                let mut four = start(register, first);
                for step in steps {
                    for (value, next) in four.iter_mut().zip(step) {
                        *value = fold(*value, const { forward(4 * BYTES) }, at(next));
                    }
                }
                let mut folded = joined(four);
                for next in rest {
                    folded = fold(folded, const { forward(BYTES) }, at(next));
                }
                super::by_words(super::reduced(narrowed(folded)), end)
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn start(register: u32, [first, second, third, fourth]: &[[u8; BYTES]; 4]) -> [Vector; 4] {
                [with_register(at(first), register), at(second), at(third), at(fourth)]
            }

            /// Four neighbours as one.
            #[target_feature(enable = $features)]
            #[inline]
            fn joined([first, second, third, fourth]: [Vector; 4]) -> Vector {
                let half = fold(second, const { forward(2 * BYTES) }, fourth);
                let other = fold(third, const { forward(BYTES) }, half);
                fold(first, const { forward(3 * BYTES) }, other)
            }
        };
    }

    /// Blocks of 4 KiB, a part of each folded by vectors of one width beside CRC32 instructions.
    macro_rules! blocks {
        ($features:literal, $step_words:literal) => {
            /// Bytes that are folded in a step.
            const STEP_BYTES: usize = 4 * BYTES;
            /// Words of each of the three other parts that a step takes.
            const STEP_WORDS: usize = $step_words;
            const STEP_COUNT: usize = (BLOCK_BYTES - STEP_BYTES) / (STEP_BYTES + 3 * 8 * STEP_WORDS);
            const PART_BYTES: usize = 8 * STEP_WORDS * STEP_COUNT;
            const FOLDED_BYTES: usize = STEP_BYTES * (1 + STEP_COUNT);
            const _: () = assert!(FOLDED_BYTES + 3 * PART_BYTES == BLOCK_BYTES);

            /// The register after these bytes.
            #[target_feature(enable = $features)]
            pub(super) fn blocks(register: u32, bytes: &[u8]) -> u32 {
                let (blocks, rest) = bytes.as_chunks();
                let register = if bytes.len() < FAR_BYTES_MIN {
                    blocks.iter().fold(register, |register, this| block::<false>(register, this, this))
                } else {
                    let next = blocks.iter().skip(1).chain(blocks.last());
                    let both = blocks.iter().zip(next);
                    both.fold(register, |register, (this, next)| block::<true>(register, this, next))
                };
                if rest.len() < 4 * BYTES { super::by_words(register, rest) } else { folded(register, rest) }
            }

            /// The register after one block; prefetches the `next` one if asked to.
            #[target_feature(enable = $features)]
            #[inline]
            fn block<const IS_FAR: bool>(
                register: u32,
                block: &[u8; BLOCK_BYTES],
                next: &[u8; BLOCK_BYTES],
            ) -> u32 {
                const PARTS: [i64; 3] = [
                    power(8 * 3 * PART_BYTES - 33),
                    power(8 * 2 * PART_BYTES - 33),
                    power(8 * PART_BYTES - 33),
                ];
                let (steps, _) = block.as_chunks::<BYTES>().0.as_chunks::<4>();
                let mut four = start(register, &steps[0]);
                let mut parts = [0; 3];
                let mut lines =
                    next.as_chunks::<LINE_BYTES>().0.chunks((BLOCK_BYTES / LINE_BYTES).div_ceil(STEP_COUNT));
                for step in 0..STEP_COUNT {
                    if IS_FAR {
                        lines.next().into_iter().flatten().for_each(prefetch);
                    }
                    for (value, next) in four.iter_mut().zip(&steps[step + 1]) {
                        *value = fold(*value, const { forward(STEP_BYTES) }, at(next));
                    }
                    for word in 0..STEP_WORDS {
                        for (index, part) in parts.iter_mut().enumerate() {
                            let start = FOLDED_BYTES + index * PART_BYTES;
                            let word = word_at(block, start + 8 * (step * STEP_WORDS + word));
                            *part = _mm_crc32_u64(*part, word);
                        }
                    }
                }
                let folded = u64::from(reduced(narrowed(joined(four))));
                let sum = _mm_xor_si128(moved(folded, PARTS[0]), moved(parts[0], PARTS[1]));
                let sum = _mm_xor_si128(sum, moved(parts[1], PARTS[2]));
                low32(_mm_crc32_u64(0, _mm_cvtsi128_si64(sum).cast_unsigned()) ^ parts[2])
            }
        };
    }

    /// Vectors of 16 bytes.
    mod narrow {
        use super::*;

        pub(super) const BYTES: usize = 16;
        type Vector = __m128i;

        #[target_feature(enable = "pclmulqdq,sse4.2")]
        #[inline]
        fn at(bytes: &[u8; BYTES]) -> Vector {
            // SAFETY: so many bytes are there, and may lie at any address.
            unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
        }

        #[target_feature(enable = "pclmulqdq,sse4.2")]
        #[inline]
        fn with_register(value: Vector, register: u32) -> Vector {
            _mm_xor_si128(value, _mm_set_epi64x(0, i64::from(register)))
        }

        /// `value` moved forward by the distance of the factors, and added to `next`.
        #[target_feature(enable = "pclmulqdq,sse4.2")]
        #[inline]
        pub(super) fn fold(value: Vector, [first, last]: [i64; 2], next: Vector) -> Vector {
            let factors = _mm_set_epi64x(last, first);
            let first = _mm_clmulepi64_si128::<0x00>(value, factors);
            let last = _mm_clmulepi64_si128::<0x11>(value, factors);
            _mm_xor_si128(_mm_xor_si128(first, last), next)
        }

        #[target_feature(enable = "pclmulqdq,sse4.2")]
        #[inline]
        fn narrowed(value: Vector) -> __m128i {
            value
        }

        folded!("pclmulqdq,sse4.2");
        blocks!("pclmulqdq,sse4.2", 2);
    }

    /// Vectors of 32 bytes.
    mod wide {
        use super::*;

        pub(super) const BYTES: usize = 32;
        type Vector = __m256i;

        #[target_feature(enable = "avx2,vpclmulqdq,pclmulqdq,sse4.2")]
        #[inline]
        fn at(bytes: &[u8; BYTES]) -> Vector {
            // SAFETY: so many bytes are there, and may lie at any address.
            unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
        }

        #[target_feature(enable = "avx2,vpclmulqdq,pclmulqdq,sse4.2")]
        #[inline]
        fn with_register(value: Vector, register: u32) -> Vector {
            _mm256_xor_si256(value, _mm256_set_epi64x(0, 0, 0, i64::from(register)))
        }

        /// As that of narrow vectors.
        #[target_feature(enable = "avx2,vpclmulqdq,pclmulqdq,sse4.2")]
        #[inline]
        fn fold(value: Vector, [first, last]: [i64; 2], next: Vector) -> Vector {
            let factors = _mm256_broadcastsi128_si256(_mm_set_epi64x(last, first));
            let first = _mm256_clmulepi64_epi128::<0x00>(value, factors);
            let last = _mm256_clmulepi64_epi128::<0x11>(value, factors);
            _mm256_xor_si256(_mm256_xor_si256(first, last), next)
        }

        #[target_feature(enable = "avx2,vpclmulqdq,pclmulqdq,sse4.2")]
        #[inline]
        fn narrowed(value: Vector) -> __m128i {
            let (first, last) = (_mm256_castsi256_si128(value), _mm256_extracti128_si256::<1>(value));
            narrow::fold(first, const { forward(16) }, last)
        }

        folded!("avx2,vpclmulqdq,pclmulqdq,sse4.2");
        blocks!("avx2,vpclmulqdq,pclmulqdq,sse4.2", 5);
    }

    /// Vectors of 64 bytes.
    mod widest {
        use super::*;

        pub(super) const BYTES: usize = 64;
        type Vector = __m512i;

        #[target_feature(enable = "avx512f,avx512vl,avx2,vpclmulqdq,pclmulqdq,sse4.2")]
        #[inline]
        fn at(bytes: &[u8; BYTES]) -> Vector {
            // SAFETY: so many bytes are there, and may lie at any address.
            unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
        }

        #[target_feature(enable = "avx512f,avx512vl,avx2,vpclmulqdq,pclmulqdq,sse4.2")]
        #[inline]
        fn with_register(value: Vector, register: u32) -> Vector {
            _mm512_xor_si512(value, _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, i64::from(register)))
        }

        /// As that of narrow vectors.
        #[target_feature(enable = "avx512f,avx512vl,avx2,vpclmulqdq,pclmulqdq,sse4.2")]
        #[inline]
        fn fold(value: Vector, [first, last]: [i64; 2], next: Vector) -> Vector {
            /// a + b + c, bit by bit.
            const SUM: i32 = 0x96;
            let factors = _mm512_broadcast_i32x4(_mm_set_epi64x(last, first));
            let first = _mm512_clmulepi64_epi128::<0x00>(value, factors);
            let last = _mm512_clmulepi64_epi128::<0x11>(value, factors);
            _mm512_ternarylogic_epi64::<SUM>(first, last, next)
        }

        #[target_feature(enable = "avx512f,avx512vl,avx2,vpclmulqdq,pclmulqdq,sse4.2")]
        #[inline]
        fn narrowed(value: Vector) -> __m128i {
            let first = _mm512_extracti32x4_epi32::<0>(value);
            let second = _mm512_extracti32x4_epi32::<1>(value);
            let third = _mm512_extracti32x4_epi32::<2>(value);
            let half = narrow::fold(second, const { forward(32) }, _mm512_extracti32x4_epi32::<3>(value));
            narrow::fold(first, const { forward(48) }, narrow::fold(third, const { forward(16) }, half))
        }

        folded!("avx512f,avx512vl,avx2,vpclmulqdq,pclmulqdq,sse4.2");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::random::SplitMix64;

    /// One bit at a time.
    fn told(mut register: u32, bytes: &[u8]) -> u32 {
        for byte in bytes {
            register ^= u32::from(*byte);
            for _ in 0..8 {
                register = (register >> 1) ^ (0x82F6_3B78 & (register & 1).wrapping_neg());
            }
        }
        register
    }

    /// By every kind of instructions that the processor has.
    fn all_ways(register: u32, bytes: &[u8]) -> Vec<u32> {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        return {
            use x86_64::{Instructions, append_by};
            [Instructions::Narrow, Instructions::Wide, Instructions::Widest]
                .map(|instructions| append_by(instructions, register, bytes))
                .to_vec()
        };
        #[cfg(any(not(target_arch = "x86_64"), miri))]
        vec![append(register, bytes)]
    }

    #[test]
    fn checksums_of_pieces_give_that_of_the_whole() {
        let mut random = SplitMix64::new(2);
        let bytes: Vec<u8> = (0..5000).map(|_| random.draw().to_le_bytes()[0]).collect();
        for cut in [0, 1, 7, 2048, 4999, 5000] {
            let (one, other) = bytes.split_at(cut);
            let combined = combine(checksum(one), checksum(other), other.len());
            assert_eq!(combined, checksum(&bytes), "{cut}");
        }
    }

    #[test]
    fn any_length_offset_and_register_give_what_the_definition_says() {
        let mut random = SplitMix64::new(1);
        let bytes: Vec<u8> = (0..20_000).map(|_| random.draw().to_le_bytes()[0]).collect();
        let near_sizes = [4095, 4096, 4097, 4223, 4224, 8191, 8192, 12_295];
        for length in (0..600).chain(near_sizes) {
            for offset in [0, 1, 24, 31] {
                for register in [START, 0, 0x1234_5678] {
                    let bytes = &bytes[offset..offset + length];
                    let told = told(register, bytes);
                    assert_eq!(append(register, bytes), told, "{length} bytes at {offset}");
                    for (way, result) in all_ways(register, bytes).into_iter().enumerate() {
                        assert_eq!(result, told, "{length} bytes at {offset}, way {way}");
                    }
                }
            }
        }
        #[cfg(target_arch = "x86_64")]
        assert_eq!(by_definition(START, &bytes[..100]), told(START, &bytes[..100]));
        assert_eq!(checksum(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn far_bytes_give_what_their_parts_give() {
        let mut random = SplitMix64::new(2);
        let bytes: Vec<u8> = (0..20_000).flat_map(|_| random.draw().to_le_bytes()).collect();
        for length in [(128 << 10) - 1, 128 << 10, (128 << 10) + 1, 135_168, 160_000] {
            let (bytes, register) = (&bytes[..length], 0x1234_5678);
            let by_parts = bytes.chunks(1000).fold(register, append);
            assert!(all_ways(register, bytes).iter().all(|way| *way == by_parts), "{length} bytes");
        }
    }

    #[test]
    fn every_bit_of_a_block_counts() {
        let mut block = [0; 4096];
        let sum = checksum(&block);
        let last = told(START, &block);
        // The register of a changed bit differs by what that bit alone gives, whatever is around it.
        let mut alone = told(0, &[0x80]);
        for bit in (0..8 * block.len()).rev() {
            block[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(checksum(&block), sum, "bit {bit}");
            for result in all_ways(START, &block) {
                assert_eq!(result, last ^ alone, "bit {bit}");
            }
            block[bit / 8] ^= 1 << (bit % 8);
            alone = (alone >> 1) ^ (0x82F6_3B78 & (alone & 1).wrapping_neg());
        }
    }
}
