//! The randomness that one transaction takes.

use core::fmt;
use core::num::NonZeroU32;

use zeroize::Zeroize;

use crate::group::Group;
use crate::hash::{DIGEST_BYTES_MAX, HashFunction};

/// Random bytes of one transaction: 64 for the challenge, 64 for the secret exponent.
pub const RANDOM_BYTES: usize = 2 * DIGEST_BYTES_MAX;

/// Randomness and sequence number of one transaction, used once and wiped.
pub struct Fresh {
    challenge: [u8; DIGEST_BYTES_MAX],
    exponent: [u8; DIGEST_BYTES_MAX],
    sequence: NonZeroU32,
}

impl Fresh {
    /// Takes bytes from the system's random number generator, never used before, and the next sequence number.
    #[must_use]
    pub fn new(random: &[u8; RANDOM_BYTES], sequence: NonZeroU32) -> Self {
        let mut fresh = Self { challenge: [0; DIGEST_BYTES_MAX], exponent: [0; DIGEST_BYTES_MAX], sequence };
        let (challenge, exponent) = random.split_at(DIGEST_BYTES_MAX);
        fresh.challenge.copy_from_slice(challenge);
        fresh.exponent.copy_from_slice(exponent);
        fresh
    }

    pub(crate) fn challenge(&self, hash: HashFunction) -> Vec<u8> {
        self.challenge.get(..hash.digest_bytes()).unwrap_or_default().to_vec()
    }

    /// A secret exponent, big-endian. Its highest bit is 1, so that it is neither small nor short.
    pub(crate) fn exponent(&self, group: Group) -> Vec<u8> {
        let mut exponent = self.exponent.get(..group.exponent_bytes()).unwrap_or_default().to_vec();
        if let Some(first) = exponent.first_mut() {
            *first |= 0x80;
        }
        exponent
    }

    pub(crate) const fn sequence(&self) -> NonZeroU32 {
        self.sequence
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        self.challenge.zeroize();
        self.exponent.zeroize();
    }
}

impl fmt::Debug for Fresh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fresh({})", self.sequence)
    }
}

/// Sequence numbers of challenges: from a random start, each one more than the last, never 0. wire §22.3
#[derive(Clone, Debug)]
pub struct SequenceNumbers {
    next: NonZeroU32,
}

impl SequenceNumbers {
    /// Begins at a random number.
    #[must_use]
    pub fn new(random: u32) -> Self {
        Self { next: NonZeroU32::new(random).unwrap_or(NonZeroU32::MIN) }
    }

    /// The next number.
    pub fn take(&mut self) -> NonZeroU32 {
        let taken = self.next;
        self.next = taken.checked_add(1).unwrap_or(NonZeroU32::MIN);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// wire §22.3
    #[test]
    fn sequence_numbers_skip_0() {
        for (random, expected) in
            [(0, [1, 2, 3]), (7, [7, 8, 9]), (u32::MAX - 1, [u32::MAX - 1, u32::MAX, 1])]
        {
            let mut numbers = SequenceNumbers::new(random);
            assert_eq!([0; 3].map(|_: u32| numbers.take().get()), expected);
        }
    }

    #[test]
    fn an_exponent_is_long_whatever_the_random_bytes_are() {
        let fresh = Fresh::new(&[0; RANDOM_BYTES], NonZeroU32::MIN);
        for group in Group::ALL {
            let exponent = fresh.exponent(group);
            assert_eq!(
                (exponent.len(), exponent.first().copied()),
                match group {
                    Group::Null => (0, None),
                    _ => (group.exponent_bytes(), Some(0x80)),
                }
            );
        }
        assert_eq!(format!("{fresh:?}"), "Fresh(1)");
    }
}
