//! The headers of a log: of each segment, and of the log itself.
//!
//! Both are numbers with a checksum, and fit in one sector, so that a write of one leaves the old or the new one.

use crate::clock::LogTime;

/// Bytes of a header of `count` numbers.
const fn header_bytes(count: usize) -> usize {
    8 + count * 8 + 4
}

/// Encodes numbers with a checksum.
pub fn encode_numbers(magic: [u8; 8], numbers: &[u64], into: &mut [u8]) {
    into[..8].copy_from_slice(&magic);
    for (number, at) in numbers.iter().zip((8..).step_by(8)) {
        into[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
    let end = header_bytes(numbers.len());
    let crc = memory::crc32c::checksum(&into[..end - 4]);
    into[end - 4..end].copy_from_slice(&crc.to_le_bytes());
}

/// Decodes what [`encode_numbers`] has encoded; `None` if it is something else, or damaged.
#[must_use]
pub fn decode_numbers<const COUNT: usize>(magic: [u8; 8], bytes: &[u8]) -> Option<[u64; COUNT]> {
    let (covered, crc) = bytes.get(..header_bytes(COUNT))?.split_at(header_bytes(COUNT) - 4);
    let is_genuine = covered[..8] == magic && crc == memory::crc32c::checksum(covered).to_le_bytes();
    let number = |at: usize| u64::from_le_bytes(covered[at..at + 8].try_into().expect("eight bytes"));
    is_genuine.then(|| std::array::from_fn(|index| number(8 + index * 8)))
}

/// The header of a segment, its first block. It is written once, when the segment begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// Identity of the log.
    pub(crate) log: u64,
    /// Random number of the start that wrote it.
    pub(crate) run: u64,
    /// Generation of the segment, counted from 1.
    pub(crate) generation: u64,
    /// The oldest generation needed when this header was written.
    pub(crate) oldest: u64,
    /// End of the previous segment, and the run that wrote that.
    pub(crate) previous_end: u64,
    pub(crate) previous_run: u64,
    /// A CAS number that no value had at that time.
    pub(crate) next_cas: u64,
    /// Whether each of its writes began after the one before was durable.
    pub(crate) is_ordered: bool,
}

impl SegmentHeader {
    const MAGIC: [u8; 8] = *b"nvlkvseg";
    /// Its size, bytes.
    pub(crate) const BYTES: usize = header_bytes(8);

    pub(crate) fn encode(&self, into: &mut [u8]) {
        let Self { log, run, generation, oldest, previous_end, previous_run, next_cas, is_ordered } = *self;
        let numbers = [log, run, generation, oldest, previous_end, previous_run, next_cas, is_ordered.into()];
        encode_numbers(Self::MAGIC, &numbers, into);
    }

    /// Decodes a header that differs from these bytes by one bit, and corrects that.
    pub(crate) fn correct(bytes: &mut [u8], log: u64) -> Option<Self> {
        if bytes[0] == 0 {
            return None;
        }
        (0..Self::BYTES * 8).find_map(|bit| {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let header = Self::decode(bytes, log);
            if header.is_none() {
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            header
        })
    }

    /// Decodes a header; `None` if this log has written none here.
    pub(crate) fn decode(bytes: &[u8], log: u64) -> Option<Self> {
        let [of, run, generation, oldest, previous_end, previous_run, next_cas, is_ordered] =
            decode_numbers(Self::MAGIC, bytes)?;
        let is_ordered = is_ordered == 1;
        (of == log).then_some(Self {
            log,
            run,
            generation,
            oldest,
            previous_end,
            previous_run,
            next_cas,
            is_ordered,
        })
    }
}

/// The extent of a log, of which the file has two copies, written in turn. Everything it names was durable before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogSuperblock {
    /// Identity of the log.
    pub(crate) log: u64,
    /// Counts its writes; the place follows from it.
    pub(crate) sequence: u64,
    /// The oldest generation needed.
    pub(crate) oldest: u64,
    /// The newest generation begun, and the run that wrote it; 0 if there is none.
    pub(crate) newest: u64,
    pub(crate) run: u64,
    /// Everything before this byte of the newest segment was written.
    pub(crate) known_end: u64,
    /// Whether nothing was written behind it, nor ever will be.
    pub(crate) is_closed: bool,
    /// A CAS number that no value had.
    pub(crate) next_cas: u64,
    /// When it was written; `None` in a new log, and in one of an earlier version of nvlane.
    pub(crate) time: Option<LogTime>,
}

/// Bits of the last number of a superblock.
const HAS_TIME: u64 = 1;
const IS_LAST: u64 = 2;

impl LogSuperblock {
    const MAGIC: [u8; 8] = *b"nvlkvlog";
    /// Its size, bytes. The names of the last write are behind it.
    pub(crate) const BYTES: usize = header_bytes(13);

    /// The superblock of a log without segments.
    pub(crate) fn new(log: u64) -> Self {
        Self {
            log,
            sequence: 0,
            oldest: 1,
            newest: 0,
            run: 0,
            known_end: 0,
            is_closed: true,
            next_cas: 1,
            time: None,
        }
    }

    pub(crate) fn encode(&self, into: &mut [u8]) {
        let Self { log, sequence, oldest, newest, run, known_end, is_closed, next_cas, time } = *self;
        let [boot, since_boot_s, log_s, unix_s, bits] = time.map_or([0; 5], |time| {
            let bits = HAS_TIME | if time.is_last { IS_LAST } else { 0 };
            let [since_boot_s, log_s, unix_s] =
                [time.since_boot_s, time.log_s, time.unix_s].map(i64::cast_unsigned);
            [time.boot, since_boot_s, log_s, unix_s, bits]
        });
        let numbers = [
            log,
            sequence,
            oldest,
            newest,
            run,
            known_end,
            is_closed.into(),
            next_cas,
            boot,
            since_boot_s,
            log_s,
            unix_s,
            bits,
        ];
        encode_numbers(Self::MAGIC, &numbers, into);
    }

    /// Decodes a superblock of this log; `None` if it is none, or damaged.
    pub(crate) fn decode(bytes: &[u8], log: u64) -> Option<Self> {
        // Those of earlier versions end before the time.
        let [
            of,
            sequence,
            oldest,
            newest,
            run,
            known_end,
            is_closed,
            next_cas,
            boot,
            since_boot_s,
            log_s,
            unix_s,
            bits,
        ] = decode_numbers(Self::MAGIC, bytes).or_else(|| {
            let mut numbers = [0; 13];
            *numbers.first_chunk_mut::<8>()? = decode_numbers(Self::MAGIC, bytes)?;
            Some(numbers)
        })?;
        let [since_boot_s, log_s, unix_s] = [since_boot_s, log_s, unix_s].map(u64::cast_signed);
        let time = LogTime { boot, since_boot_s, log_s, unix_s, is_last: bits & IS_LAST != 0 };
        (of == log).then_some(Self {
            log,
            sequence,
            oldest,
            newest,
            run,
            known_end,
            is_closed: is_closed == 1,
            next_cas,
            time: (bits & HAS_TIME != 0).then_some(time),
        })
    }

    /// Index of the copy that this one is written to.
    pub(crate) fn copy(&self) -> u64 {
        self.sequence % 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_read_back_unless_a_bit_has_changed(
            numbers: [u64; 7], flag: bool, time in proptest::option::of(any::<[i64; 3]>()),
            bit in 0..header_bytes(8) * 8,
        ) {
            let [log, run, generation, oldest, previous_end, previous_run, next_cas] = numbers;
            let header = SegmentHeader {
                log, run, generation, oldest, previous_end, previous_run, next_cas, is_ordered: flag,
            };
            let superblock = LogSuperblock {
                log, sequence: generation, oldest, newest: previous_run, run, known_end: previous_end,
                is_closed: flag, next_cas,
                time: time.map(|[since_boot_s, log_s, unix_s]| LogTime {
                    boot: run, since_boot_s, log_s, unix_s, is_last: !flag,
                }),
            };
            let (mut first, mut second) = ([0; 512], [0; 512]);
            header.encode(&mut first);
            superblock.encode(&mut second);
            prop_assert_eq!(SegmentHeader::decode(&first, log), Some(header));
            prop_assert_eq!(SegmentHeader::decode(&first, log ^ 1), None);
            prop_assert_eq!(LogSuperblock::decode(&second, log), Some(superblock));
            prop_assert_eq!(LogSuperblock::decode(&second, log ^ 1), None);
            prop_assert_eq!(LogSuperblock::decode(&first, log), None);
            first[bit / 8] ^= 1 << (bit % 8);
            second[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(SegmentHeader::decode(&first, log), None);
            prop_assert_eq!(LogSuperblock::decode(&second, log), None);
        }

        #[test]
        fn superblocks_of_earlier_versions_have_no_time(numbers: [u64; 5], flag: bool) {
            let [log, sequence, newest, known_end, next_cas] = numbers;
            let mut bytes = [0; 512];
            let written = [log, sequence, 1, newest, 2, known_end, flag.into(), next_cas];
            encode_numbers(LogSuperblock::MAGIC, &written, &mut bytes);
            let expected = LogSuperblock {
                log, sequence, oldest: 1, newest, run: 2, known_end, is_closed: flag, next_cas, time: None,
            };
            prop_assert_eq!(LogSuperblock::decode(&bytes, log), Some(expected));
        }
    }
}
