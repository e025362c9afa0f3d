//! Self-describing blocks: which run wrote them, for which LBA, and in which generation.
//!
//! ```text
//! byte 0        8       16     24          28         32
//! ┌────────────┬────────┬──────┬────────────┬──────────┬────────────────────────────────┐
//! │ "nvlane-1" │ run id │ LBA  │ generation │ CRC-32C  │ words that follow from the     │
//! │            │        │      │            │ of 0..28 │ header, to the end of the block│
//! └────────────┴────────┴──────┴────────────┴──────────┴────────────────────────────────┘
//! ```
//! All little-endian. Every byte behind the header is known from it, so a check compares the whole block and needs
//! no checksum over it: no flipped bit can hide. Each word alone also gives away its generation, by which the
//! remains of a torn write are named.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use memory::crc32c;

use crate::random::{mix, unmix};

/// First eight bytes of each block.
const MAGIC: [u8; 8] = *b"nvlane-1";
/// Bytes before the filling.
const HEADER_BYTES: usize = 32;
/// Bytes of the header that its checksum covers.
const COVERED_BYTES: usize = 28;
/// Difference of two neighbouring words of the filling.
const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;
/// Bytes shown of a wrong block.
const EXCERPT_BYTES: usize = 16;

/// A run id that no other run has: from the time of day and the process.
pub fn new_run_id() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    mix(since_epoch.as_secs()) ^ mix(!u64::from(since_epoch.subsec_nanos())) ^ mix(std::process::id().into())
}

/// Stamps and checks the blocks of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    run_id: u64,
}

/// The possible content of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// Oldest and newest of the possible generations; they wrap around.
    pub generations: Option<(u32, u32)>,
    /// Whether it may read as zeroes.
    pub zeroes: bool,
    /// Whether it may read as ones in every bit.
    pub ones: bool,
    /// Whether nothing is known of it. Content that this run cannot have written there is still wrong.
    pub anything: bool,
}

impl Expectation {
    /// Nothing is known.
    pub const ANYTHING: Self = Self { generations: None, zeroes: false, ones: false, anything: true };
    /// Zeroes.
    pub const ZEROES: Self = Self { generations: None, zeroes: true, ones: false, anything: false };

    /// One generation.
    pub const fn exactly(generation: u32) -> Self {
        Self::between(generation, generation)
    }

    /// Any generation from `oldest` to `newest`.
    pub const fn between(oldest: u32, newest: u32) -> Self {
        Self { generations: Some((oldest, newest)), zeroes: false, ones: false, anything: false }
    }

    /// Whether a block of this generation is right.
    #[inline]
    const fn allows(&self, generation: u32) -> bool {
        match self.generations {
            Some((oldest, newest)) => newest.wrapping_sub(generation) <= newest.wrapping_sub(oldest),
            None => false,
        }
    }
}

impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.anything {
            return f.write_str("any content");
        }
        let mut next = "";
        if let Some((oldest, newest)) = self.generations {
            match newest.wrapping_sub(oldest) {
                0 => write!(f, "generation {newest}")?,
                1 => write!(f, "generation {oldest} or {newest}")?,
                _ => write!(f, "generation {oldest} to {newest}")?,
            }
            next = " or ";
        }
        if self.zeroes {
            write!(f, "{next}zeroes")?;
            next = " or ";
        }
        if self.ones {
            write!(f, "{next}ones")?;
        }
        Ok(())
    }
}

/// The content found in a block, or in a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The stamp of this run for this LBA.
    Generation(u32),
    /// Zeroes.
    Zeroes,
    /// Ones in every bit.
    Ones,
    /// Something that this run did not write for this LBA.
    Foreign,
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Generation(generation) => write!(f, "generation {generation}"),
            Self::Zeroes => f.write_str("zeroes"),
            Self::Ones => f.write_str("ones"),
            Self::Foreign => f.write_str("foreign data"),
        }
    }
}

/// A fault of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Reads as zeroes, as if never written.
    NeverWritten,
    /// Reads as ones.
    Ones,
    /// Carries no stamp.
    NotStamped,
    /// Carries a stamp with a wrong checksum, over a filling that fits no generation.
    Checksum {
        /// In the block.
        stored: u32,
        /// Of the block.
        computed: u32,
    },
    /// Was written by another run.
    OtherRun {
        /// That run.
        run_id: u64,
    },
    /// Was meant for another LBA.
    OtherLba {
        /// That LBA.
        lba: u64,
        /// Its generation there.
        generation: u32,
    },
    /// Two parts of different origin.
    Torn {
        /// First byte of the second part.
        at: usize,
        /// The first part.
        before: Content,
        /// The second part.
        after: Content,
    },
    /// A few bytes are wrong amid one generation.
    Damaged {
        /// First wrong byte.
        from: usize,
        /// Last wrong byte.
        to: usize,
        /// Generation of the rest.
        generation: u32,
    },
    /// Whole and for this LBA, but an older generation than it may be.
    Older {
        /// The one found.
        generation: u32,
    },
    /// Whole and for this LBA, but a generation that was not written yet.
    Newer {
        /// The one found.
        generation: u32,
    },
}

/// A block with wrong content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The LBA that was read.
    pub lba: u64,
    /// The fault.
    pub problem: Problem,
    /// The expected content.
    pub expected: Expectation,
    /// Where the excerpt begins, in bytes.
    pub excerpt_at: usize,
    /// Bytes of the block from where it is wrong.
    pub excerpt: [u8; EXCERPT_BYTES],
}

impl std::error::Error for Mismatch {}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LBA {}: ", self.lba)?;
        match self.problem {
            Problem::NeverWritten => f.write_str("reads as zeroes")?,
            Problem::Ones => f.write_str("reads as ones")?,
            Problem::NotStamped => f.write_str("foreign data")?,
            Problem::Checksum { stored, computed } => {
                write!(f, "checksum of the header is {computed:08x}, not {stored:08x} as it says")?;
            }
            Problem::OtherRun { run_id } => write!(f, "written by another run ({run_id:016x})")?,
            Problem::OtherLba { lba, generation } => write!(f, "holds LBA {lba}, generation {generation}")?,
            Problem::Torn { at, before, after } => {
                write!(f, "torn at byte {at}: {before} before, {after} after")?;
            }
            Problem::Damaged { from, to, generation } if from == to => {
                write!(f, "byte {from} damaged in generation {generation}")?;
            }
            Problem::Damaged { from, to, generation } => {
                write!(f, "bytes {from} to {to} damaged in generation {generation}")?;
            }
            Problem::Older { generation } => write!(f, "holds older generation {generation}")?,
            Problem::Newer { generation } => {
                write!(f, "holds generation {generation}, which was never written")?;
            }
        }
        write!(f, "; expected {}; bytes from {}:", self.expected, self.excerpt_at)?;
        self.excerpt.iter().try_for_each(|byte| write!(f, " {byte:02x}"))
    }
}

impl Marker {
    /// Marks with `run_id`; see [`new_run_id`].
    pub const fn new(run_id: u64) -> Self {
        Self { run_id }
    }

    /// Base of every word of one LBA's filling.
    #[inline]
    const fn base(self, lba: u64) -> u64 {
        mix(lba ^ mix(self.run_id))
    }

    /// The (imagined) word 0 of the filling of one generation; each later word is [`STRIDE`] more.
    #[inline]
    const fn seed(self, lba: u64, generation: u32) -> u64 {
        mix(self.base(lba) ^ generation as u64)
    }

    /// The 32 bytes before the filling.
    #[inline]
    fn header(self, lba: u64, generation: u32) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&MAGIC);
        header[8..16].copy_from_slice(&self.run_id.to_le_bytes());
        header[16..24].copy_from_slice(&lba.to_le_bytes());
        header[24..28].copy_from_slice(&generation.to_le_bytes());
        let crc = crc32c::checksum(&header[..COVERED_BYTES]);
        header[COVERED_BYTES..].copy_from_slice(&crc.to_le_bytes());
        header
    }

    /// Makes `block` the `generation`th content of `lba`. A block is 64 bytes or more, in whole words.
    #[inline]
    pub fn stamp(self, block: &mut [u8], lba: u64, generation: u32) {
        let (header, filling) = block.split_at_mut(HEADER_BYTES);
        header.copy_from_slice(&self.header(lba, generation));
        let seed = self.seed(lba, generation).wrapping_add(FIRST_WORD.wrapping_mul(STRIDE));
        let (words, _) = filling.as_chunks_mut();
        let mut expected = seed;
        for word in words {
            *word = expected.to_le_bytes();
            expected = expected.wrapping_add(STRIDE);
        }
    }

    /// Identifies the content of `block`, read from `lba`, if `expectation` allows it.
    ///
    /// # Errors
    /// The exact fault.
    #[inline]
    pub fn check(self, block: &[u8], lba: u64, expectation: &Expectation) -> Result<Content, Box<Mismatch>> {
        if let Some((header, filling)) = block.split_first_chunk::<HEADER_BYTES>() {
            let generation = field_u32(header, 24);
            if expectation.allows(generation)
                && *header == self.header(lba, generation)
                && is_filled(filling, self.seed(lba, generation))
            {
                return Ok(Content::Generation(generation));
            }
            if expectation.zeroes && is_all(block, 0) {
                return Ok(Content::Zeroes);
            }
        }
        self.examine(block, lba, expectation)
    }

    /// The slow path, for rare and wrong content.
    #[cold]
    fn examine(self, block: &[u8], lba: u64, expectation: &Expectation) -> Result<Content, Box<Mismatch>> {
        let wrong = |problem, at: usize| {
            let excerpt_at = (at & !7).min(block.len().saturating_sub(EXCERPT_BYTES));
            let mut excerpt = [0; EXCERPT_BYTES];
            let shown = &block[excerpt_at..block.len().min(excerpt_at + EXCERPT_BYTES)];
            excerpt[..shown.len()].copy_from_slice(shown);
            Err(Box::new(Mismatch { lba, problem, expected: *expectation, excerpt_at, excerpt }))
        };
        for (byte, content, problem, allowed) in [
            (0, Content::Zeroes, Problem::NeverWritten, expectation.zeroes),
            (0xff, Content::Ones, Problem::Ones, expectation.ones),
        ] {
            if is_all(block, byte) {
                return if allowed || expectation.anything { Ok(content) } else { wrong(problem, 0) };
            }
        }
        let foreign = |problem| if expectation.anything { Ok(Content::Foreign) } else { wrong(problem, 0) };
        let Some(header) = block.first_chunk::<HEADER_BYTES>() else { return foreign(Problem::NotStamped) };
        let (run_id, found_lba, found) = (field_u64(header, 8), field_u64(header, 16), field_u32(header, 24));
        let (stored, computed) =
            (field_u32(header, COVERED_BYTES), crc32c::checksum(&header[..COVERED_BYTES]));
        let stamped = header[..8] == MAGIC;
        let whole_header = stamped && stored == computed;
        if whole_header && run_id != self.run_id {
            return foreign(Problem::OtherRun { run_id });
        }
        if whole_header && found_lba != lba {
            return wrong(Problem::OtherLba { lba: found_lba, generation: found }, 16);
        }
        // The generation against which the rest is held: the header's, or with a bad header the tail's.
        let generation = if whole_header {
            found
        } else if let Some(generation) = self.tail_generation(block, lba) {
            generation
        } else if stamped {
            return foreign(Problem::Checksum { stored, computed });
        } else {
            return foreign(Problem::NotStamped);
        };
        if let Some((problem, at)) = self.compare(block, lba, generation) {
            return wrong(problem, at);
        }
        if expectation.allows(generation) || expectation.anything {
            return Ok(Content::Generation(generation));
        }
        let is_newer = |newest| generation.wrapping_sub(newest) <= u32::MAX / 2;
        let newer = expectation.generations.is_some_and(|(_, newest)| is_newer(newest));
        wrong(if newer { Problem::Newer { generation } } else { Problem::Older { generation } }, 24)
    }

    /// Holds a block against the whole of one generation.
    fn compare(self, block: &[u8], lba: u64, generation: u32) -> Option<(Problem, usize)> {
        let mut right = vec![0; block.len()];
        self.stamp(&mut right, lba, generation);
        let differs = |at: &usize| block[*at] != right[*at];
        let from = (0..block.len()).find(differs)?;
        let to = (from..block.len()).rev().find(differs)?;
        let last_word = block.len() - 8;
        let problem = if to >= last_word && from < last_word {
            // Behind the word in which the parts meet there is only the second part.
            let after = self.content_at(block, lba, (from & !7) + 8);
            Problem::Torn { at: from, before: Content::Generation(generation), after }
        } else if from < HEADER_BYTES && to >= HEADER_BYTES {
            let before = self.content_at(block, lba, HEADER_BYTES.min(to & !7));
            Problem::Torn { at: to + 1, before, after: Content::Generation(generation) }
        } else {
            Problem::Damaged { from, to, generation }
        };
        Some((problem, from))
    }

    /// The origin of the word at byte `at`.
    fn content_at(self, block: &[u8], lba: u64, at: usize) -> Content {
        let word = field_u64(block, at);
        match self.generation_of(word, at, lba) {
            _ if word == 0 => Content::Zeroes,
            _ if word == u64::MAX => Content::Ones,
            Some(generation) if at >= HEADER_BYTES => Content::Generation(generation),
            _ => Content::Foreign,
        }
    }

    /// The generation that the last two words agree on.
    fn tail_generation(self, block: &[u8], lba: u64) -> Option<u32> {
        let of_word_at = |at| self.generation_of(field_u64(block, at), at, lba);
        let (last, before) = (block.len().checked_sub(8)?, block.len().checked_sub(16)?);
        let generation = of_word_at(last)?;
        (before >= HEADER_BYTES && of_word_at(before) == Some(generation)).then_some(generation)
    }

    /// The generation of `lba` whose filling has `word` at byte `at`. A foreign word has one by an accident of
    /// one in 2^32.
    fn generation_of(self, word: u64, at: usize, lba: u64) -> Option<u32> {
        let index = (at / 8) as u64;
        let seed = word.wrapping_sub(index.wrapping_mul(STRIDE));
        u32::try_from(unmix(seed) ^ self.base(lba)).ok()
    }
}

/// Index of the word behind the header.
const FIRST_WORD: u64 = (HEADER_BYTES / 8) as u64;

/// Whether the bytes behind the header are those that follow from `seed`.
#[inline]
fn is_filled(filling: &[u8], seed: u64) -> bool {
    let (words, rest) = filling.as_chunks();
    let mut expected = seed.wrapping_add(FIRST_WORD.wrapping_mul(STRIDE));
    let mut difference = 0;
    for word in words {
        difference |= u64::from_le_bytes(*word) ^ expected;
        expected = expected.wrapping_add(STRIDE);
    }
    difference == 0 && rest.is_empty()
}

/// Whether every byte is `byte`.
#[inline]
fn is_all(block: &[u8], byte: u8) -> bool {
    let (words, rest) = block.as_chunks();
    let expected = u64::from_ne_bytes([byte; 8]);
    let difference =
        words.iter().fold(0, |difference, word| difference | (u64::from_ne_bytes(*word) ^ expected));
    difference == 0 && rest.iter().all(|&found| found == byte)
}

/// The little-endian word at byte `at`; zero past the end.
#[inline]
fn field_u64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_le_bytes(*word))
}

/// The little-endian half word at byte `at`; zero past the end.
#[inline]
fn field_u32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MARKER: Marker = Marker::new(0x1234_5678_9abc_def0);
    const LBA: u64 = 4711;
    const GENERATION: u32 = 7;

    fn stamped(lba: u64, generation: u32, length_bytes: usize) -> Vec<u8> {
        let mut block = vec![0xaa; length_bytes];
        MARKER.stamp(&mut block, lba, generation);
        block
    }

    fn block() -> Vec<u8> {
        stamped(LBA, GENERATION, 512)
    }

    fn check(block: &[u8], expectation: &Expectation) -> Result<Content, Problem> {
        MARKER.check(block, LBA, expectation).map_err(|mismatch| mismatch.problem)
    }

    fn complaint(block: &[u8], expectation: &Expectation) -> String {
        MARKER.check(block, LBA, expectation).unwrap_err().to_string()
    }

    #[test]
    fn the_layout_of_a_block_does_not_change() {
        let block = block();
        let lines = block[..48].as_chunks::<16>().0.iter();
        let hex = |line: &[u8; 16]| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        insta::assert_snapshot!(lines.map(hex).collect::<Vec<_>>().join("\n"), @"
            6e766c616e652d31f0debc9a78563412
            671200000000000007000000860b5a31
            7d9ccdc66bbfeba49218184625392343
        ");
    }

    #[test]
    fn every_flipped_bit_is_found_and_named() {
        let mut block = block();
        for bit in 0..block.len() * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            let expected = Problem::Damaged { from: bit / 8, to: bit / 8, generation: GENERATION };
            assert_eq!(check(&block, &Expectation::exactly(GENERATION)), Err(expected), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(check(&block, &Expectation::exactly(GENERATION)), Ok(Content::Generation(GENERATION)));
    }

    #[test]
    fn each_way_of_being_wrong_is_told_in_one_line() {
        let expected = Expectation::exactly(GENERATION);
        let mut other_run = block();
        Marker::new(99).stamp(&mut other_run, LBA, GENERATION);
        let mut torn = stamped(LBA, GENERATION, 4096);
        torn[1536..].copy_from_slice(&stamped(LBA, GENERATION - 1, 4096)[1536..]);
        let mut beheaded = stamped(LBA, GENERATION, 4096);
        beheaded[..512].fill(0);
        let mut cut_short = stamped(LBA, GENERATION, 4096);
        cut_short[2048..].fill(0);
        let mut damaged = block();
        damaged[100] ^= 4;
        let mut bad_checksum = block();
        bad_checksum[28] ^= 1;
        bad_checksum[32..].fill(0x55);
        insta::assert_snapshot!(
            [
                complaint(&[0; 512], &expected),
                complaint(&[0xff; 512], &expected),
                complaint(&[0x41; 512], &expected),
                complaint(&bad_checksum, &expected),
                complaint(&other_run, &expected),
                complaint(&stamped(4712, 3, 512), &expected),
                complaint(&torn, &expected),
                complaint(&beheaded, &expected),
                complaint(&cut_short, &expected),
                complaint(&damaged, &expected),
                complaint(&stamped(LBA, 5, 512), &Expectation::between(6, 9)),
                complaint(&stamped(LBA, 8, 512), &expected),
                complaint(&block(), &Expectation::ZEROES),
                complaint(&stamped(LBA, 5, 512), &Expectation { zeroes: true, ones: true, ..expected }),
            ]
            .join("\n"),
            @"
            LBA 4711: reads as zeroes; expected generation 7; bytes from 0: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
            LBA 4711: reads as ones; expected generation 7; bytes from 0: ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff
            LBA 4711: foreign data; expected generation 7; bytes from 0: 41 41 41 41 41 41 41 41 41 41 41 41 41 41 41 41
            LBA 4711: checksum of the header is 315a0b86, not 315a0b87 as it says; expected generation 7; bytes from 0: 6e 76 6c 61 6e 65 2d 31 f0 de bc 9a 78 56 34 12
            LBA 4711: written by another run (0000000000000063); expected generation 7; bytes from 0: 6e 76 6c 61 6e 65 2d 31 63 00 00 00 00 00 00 00
            LBA 4711: holds LBA 4712, generation 3; expected generation 7; bytes from 16: 68 12 00 00 00 00 00 00 03 00 00 00 94 c1 4f 52
            LBA 4711: torn at byte 1536: generation 7 before, generation 6 after; expected generation 7; bytes from 1536: d5 a8 33 92 68 f4 6d 8e ea 24 7e 11 22 6e a5 2c
            LBA 4711: torn at byte 512: zeroes before, generation 7 after; expected generation 7; bytes from 0: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
            LBA 4711: torn at byte 2048: generation 7 before, zeroes after; expected generation 7; bytes from 2048: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
            LBA 4711: byte 100 damaged in generation 7; expected generation 7; bytes from 96: 25 7d 21 c1 33 8d a7 96 3a f9 6b 40 f1 06 df 34
            LBA 4711: holds older generation 5; expected generation 6 to 9; bytes from 24: 05 00 00 00 07 28 3d 8e 7e 0e 2d 5a 85 77 73 81
            LBA 4711: holds generation 8, which was never written; expected generation 7; bytes from 24: 08 00 00 00 aa d0 1e de b5 e2 ac 4a 52 05 cf 79
            LBA 4711: holds older generation 7; expected zeroes; bytes from 24: 07 00 00 00 86 0b 5a 31 7d 9c cd c6 6b bf eb a4
            LBA 4711: holds older generation 5; expected generation 7 or zeroes or ones; bytes from 24: 05 00 00 00 07 28 3d 8e 7e 0e 2d 5a 85 77 73 81
            "
        );
    }

    #[test]
    fn whatever_is_expected_is_accepted() {
        let either = Expectation { zeroes: true, ..Expectation::between(6, GENERATION) };
        assert_eq!(check(&block(), &either), Ok(Content::Generation(GENERATION)));
        assert_eq!(check(&stamped(LBA, 6, 512), &either), Ok(Content::Generation(6)));
        assert_eq!(check(&[0; 512], &either), Ok(Content::Zeroes));
        let ones = Expectation { ones: true, ..Expectation::exactly(1) };
        assert_eq!(check(&[0xff; 512], &ones), Ok(Content::Ones));
    }

    #[test]
    fn of_an_unknown_block_anything_is_accepted_but_what_this_run_put_elsewhere() {
        let mut other_run = block();
        Marker::new(99).stamp(&mut other_run, 1, GENERATION);
        for (block, content) in [
            (&[0; 512][..], Content::Zeroes),
            (&[0xff; 512], Content::Ones),
            (&[0x41; 512], Content::Foreign),
            (&other_run, Content::Foreign),
            (&block(), Content::Generation(GENERATION)),
        ] {
            assert_eq!(check(block, &Expectation::ANYTHING), Ok(content));
        }
        let misdirected = stamped(1, GENERATION, 512);
        let expected = Problem::OtherLba { lba: 1, generation: GENERATION };
        assert_eq!(check(&misdirected, &Expectation::ANYTHING), Err(expected));
        let mut torn = block();
        torn[64..].fill(0);
        assert!(matches!(check(&torn, &Expectation::ANYTHING), Err(Problem::Torn { at: 64, .. })));
    }

    #[test]
    fn generations_wrap_around() {
        let around = Expectation::between(u32::MAX, 1);
        assert_eq!(check(&stamped(LBA, 0, 512), &around), Ok(Content::Generation(0)));
        let generation = u32::MAX - 1;
        assert_eq!(check(&stamped(LBA, generation, 512), &around), Err(Problem::Older { generation }));
        assert_eq!(check(&stamped(LBA, 2, 512), &around), Err(Problem::Newer { generation: 2 }));
    }

    #[test]
    fn two_runs_have_different_ids() {
        assert_ne!(new_run_id(), new_run_id());
    }

    proptest! {
        #[test]
        fn a_stamped_block_is_right_for_its_lba_and_generation_only(
            lba: u64, generation: u32, words in 8usize..1024, other_lba: u64, other_generation: u32,
        ) {
            let mut block = vec![0; words * 8];
            MARKER.stamp(&mut block, lba, generation);
            let right = Expectation::exactly(generation);
            prop_assert_eq!(MARKER.check(&block, lba, &right), Ok(Content::Generation(generation)));
            if other_lba != lba {
                let problem = MARKER.check(&block, other_lba, &right).unwrap_err().problem;
                prop_assert_eq!(problem, Problem::OtherLba { lba, generation });
            }
            if other_generation != generation {
                prop_assert!(MARKER.check(&block, lba, &Expectation::exactly(other_generation)).is_err());
            }
        }

        /// Wherever two generations meet, the place and both are named.
        #[test]
        fn a_torn_block_tells_where_and_of_what(cut in 5usize..510, older in 0u32..7) {
            let cut = cut * 8;
            let mut block = stamped(LBA, GENERATION, 4096);
            block[cut..].copy_from_slice(&stamped(LBA, older, 4096)[cut..]);
            let (before, after) = (Content::Generation(GENERATION), Content::Generation(older));
            match check(&block, &Expectation::exactly(GENERATION)) {
                // The first bytes of the two words may be the same by chance.
                Err(Problem::Torn { at, before: found_before, after: found_after }) => {
                    prop_assert!((cut..cut + 8).contains(&at));
                    prop_assert_eq!((found_before, found_after), (before, after));
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }

        #[test]
        fn bytes_overwritten_anywhere_are_found(from in 0usize..512, length in 1usize..512, byte: u8) {
            let mut block = block();
            let to = (from + length).min(512);
            let before = block.clone();
            block[from..to].fill(byte);
            prop_assume!(block != before);
            prop_assert!(check(&block, &Expectation::exactly(GENERATION)).is_err());
        }

        #[test]
        fn checking_never_panics_whatever_was_read(block: Vec<u8>, anything: bool) {
            let expectation = if anything { Expectation::ANYTHING } else { Expectation::exactly(GENERATION) };
            let _ = MARKER.check(&block, LBA, &expectation);
        }
    }
}
