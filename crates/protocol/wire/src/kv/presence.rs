//! Outcomes of a batch that only asks whether keys exist: one bit for each. docs/kv-commands.md §4.6
//!
//! ```text
//! keys that exist before the first that does not u32 │ keys that exist u32 │ bits, the first key in bit 0, zeros to a quadword
//! ```

use crate::kv::batch::Outcomes;

const HEADER_BYTES: usize = 8;

/// Bytes of the outcomes of a batch of this many operations.
#[must_use]
pub const fn presence_bytes(count: u16) -> usize {
    (count as usize).div_ceil(64).saturating_mul(8).saturating_add(HEADER_BYTES)
}

/// Which keys of a batch exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    words: Vec<u64>,
    count: usize,
}

impl Presence {
    /// Reads the data of a Batch Collect; `None` if it is too short for that number of keys.
    #[must_use]
    pub fn read(data: &[u8], count: u16) -> Option<Self> {
        let bits = data.get(HEADER_BYTES..presence_bytes(count))?;
        let words = bits.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        Some(Self { words, count: count.into() })
    }

    /// Appends what is known of further keys.
    pub fn extend(&mut self, other: &Self) {
        for is_present in other.iter() {
            self.push(is_present);
        }
    }

    /// Appends what is known of a further key.
    pub fn push(&mut self, is_present: bool) {
        let bit = self.count % 64;
        if bit == 0 {
            self.words.push(0);
        }
        if let Some(last) = self.words.last_mut() {
            *last |= u64::from(is_present) << bit;
        }
        self.count = self.count.saturating_add(1);
    }

    /// Number of keys.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether it is of no keys.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether the key with this number, from 0 on, exists.
    #[must_use]
    pub fn contains(&self, number: usize) -> bool {
        let word = self.words.get(number / 64).copied().unwrap_or_default();
        number < self.count && word >> (number % 64) & 1 == 1
    }

    /// One after the other.
    pub fn iter(&self) -> impl Iterator<Item = bool> + '_ {
        (0..self.count).map(|number| self.contains(number))
    }

    /// Keys that exist before the first that does not: the prefix that a cache has.
    #[must_use]
    pub fn leading_run(&self) -> usize {
        self.iter().take_while(|is_present| *is_present).count()
    }

    /// Keys that exist.
    #[must_use]
    pub fn present_count(&self) -> usize {
        self.iter().filter(|is_present| *is_present).count()
    }

    /// Writes the data of a Batch Collect from the outcomes of all operations. A key whose outcome is no success counts as
    /// absent. Returns whether there was room.
    #[must_use = "whether there was room"]
    pub fn write(outcomes: Outcomes<'_>, count: u16, into: &mut [u8]) -> bool {
        let Some(into) = into.get_mut(..presence_bytes(count)) else { return false };
        let Some((header, bits)) = into.split_first_chunk_mut::<HEADER_BYTES>() else { return false };
        bits.fill(0);
        let (mut run, mut present, mut is_in_run) = (0u32, 0u32, true);
        for (number, outcome) in outcomes.take(count.into()).enumerate() {
            if !outcome.status.is_success() {
                is_in_run = false;
                continue;
            }
            if let Some(byte) = bits.get_mut(number / 8) {
                *byte |= 1 << (number % 8);
            }
            present = present.saturating_add(1);
            run = run.saturating_add(u32::from(is_in_run));
        }
        *header = (u64::from(run) | u64::from(present) << 32).to_le_bytes();
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kv::batch::OutcomeWriter;
    use crate::status::Status;

    fn outcomes(are_present: &[bool]) -> Vec<u8> {
        let mut buffer = vec![0; 16 * are_present.len()];
        let mut writer = OutcomeWriter::new(&mut buffer);
        for is_present in are_present {
            let status = if *is_present { Status::SUCCESS } else { Status::KEY_DOES_NOT_EXIST };
            assert!(writer.push(status, 5, 0));
        }
        buffer
    }

    #[test]
    fn three_keys_have_the_bytes_of_the_document() {
        let mut data = [0xEE; 24];
        assert!(Presence::write(Outcomes::new(&outcomes(&[true, false, true])), 3, &mut data));
        assert_eq!(data[..16], [1, 0, 0, 0, 2, 0, 0, 0, 0b101, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(data[16..], [0xEE; 8]);
        assert!(!Presence::write(Outcomes::new(&[]), 3, &mut data[..15]));
        assert_eq!(Presence::read(&data[..15], 3), None);
        assert_eq!((presence_bytes(1), presence_bytes(64), presence_bytes(65)), (16, 16, 24));
        assert_eq!(presence_bytes(1024), 136);
    }

    proptest! {
        #[test]
        fn bits_read_back(are_present in prop::collection::vec(any::<bool>(), 0..300), more in prop::collection::vec(any::<bool>(), 0..99)) {
            let read = |are_present: &[bool]| {
                let count = u16::try_from(are_present.len()).expect("few");
                let mut data = vec![0xEE; presence_bytes(count)];
                assert!(Presence::write(Outcomes::new(&outcomes(are_present)), count, &mut data));
                let presence = Presence::read(&data, count).expect("whole");
                let header = |at: usize| u32::from_le_bytes(data[at..at + 4].try_into().expect("four"));
                assert_eq!((header(0) as usize, header(4) as usize), (presence.leading_run(), presence.present_count()));
                presence
            };
            let mut presence = read(&are_present);
            prop_assert_eq!(presence.iter().collect::<Vec<_>>(), &are_present[..]);
            prop_assert_eq!(presence.leading_run(), are_present.iter().position(|is_present| !is_present).unwrap_or(are_present.len()));
            prop_assert!(!presence.contains(are_present.len()));
            presence.extend(&read(&more));
            prop_assert_eq!(presence.iter().collect::<Vec<_>>(), [&are_present[..], &more[..]].concat());
        }

        #[test]
        fn any_bytes_are_read_within_bounds(data in prop::collection::vec(any::<u8>(), 0..300), count: u16) {
            if let Some(presence) = Presence::read(&data, count) {
                prop_assert!(presence.present_count() <= usize::from(count) && presence.len() == usize::from(count));
            }
            let mut into = data.clone();
            let _ = Presence::write(Outcomes::new(&data), count, &mut into);
        }
    }
}
