//! Groups of the Diffie-Hellman exchange: none, or the finite field groups of RFC 7919, all with generator 2.

mod primes;

use core::fmt;

/// A group. wire §22.3
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Group {
    /// No Diffie-Hellman exchange.
    Null,
    Ffdhe2048,
    Ffdhe3072,
    Ffdhe4096,
    Ffdhe6144,
    Ffdhe8192,
}

static FFDHE2048: [u8; 256] = decoded(primes::FFDHE2048);
static FFDHE3072: [u8; 384] = decoded(primes::FFDHE3072);
static FFDHE4096: [u8; 512] = decoded(primes::FFDHE4096);
static FFDHE6144: [u8; 768] = decoded(primes::FFDHE6144);
static FFDHE8192: [u8; 1024] = decoded(primes::FFDHE8192);

impl Group {
    /// All of them, the smallest first.
    pub const ALL: [Self; 6] =
        [Self::Null, Self::Ffdhe2048, Self::Ffdhe3072, Self::Ffdhe4096, Self::Ffdhe6144, Self::Ffdhe8192];

    /// The group with this identifier.
    #[must_use]
    pub const fn from_id(id: u8) -> Option<Self> {
        match id {
            0 => Some(Self::Null),
            1 => Some(Self::Ffdhe2048),
            2 => Some(Self::Ffdhe3072),
            3 => Some(Self::Ffdhe4096),
            4 => Some(Self::Ffdhe6144),
            5 => Some(Self::Ffdhe8192),
            _ => None,
        }
    }

    /// Its identifier.
    #[must_use]
    pub const fn id(self) -> u8 {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 1,
            Self::Ffdhe3072 => 2,
            Self::Ffdhe4096 => 3,
            Self::Ffdhe6144 => 4,
            Self::Ffdhe8192 => 5,
        }
    }

    /// Bytes of a public value, 0 for [`Group::Null`].
    #[must_use]
    pub const fn public_bytes(self) -> usize {
        self.prime().len()
    }

    /// Its prime, big-endian; empty for [`Group::Null`].
    pub(crate) const fn prime(self) -> &'static [u8] {
        match self {
            Self::Null => &[],
            Self::Ffdhe2048 => &FFDHE2048,
            Self::Ffdhe3072 => &FFDHE3072,
            Self::Ffdhe4096 => &FFDHE4096,
            Self::Ffdhe6144 => &FFDHE6144,
            Self::Ffdhe8192 => &FFDHE8192,
        }
    }

    /// Bytes of a secret exponent, at most 64.
    ///
    /// RFC 7919 section 5.2 allows 225, 275, 325, 375 and 400 bits. An exponent as long as the prime adds no security,
    /// and would take 8 to 16 times as long to use.
    pub(crate) const fn exponent_bytes(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 32,
            Self::Ffdhe3072 => 40,
            Self::Ffdhe4096 => 48,
            Self::Ffdhe6144 => 56,
            Self::Ffdhe8192 => 64,
        }
    }

    /// Time of an exponentiation, in the unit of one with ffdhe2048: about 1, 3, 6, 16 and 32.
    #[must_use]
    pub fn time(self) -> u64 {
        let of = |group: Self| {
            let [public, exponent] = [group.public_bytes(), group.exponent_bytes()]
                .map(|bytes| u64::try_from(bytes).unwrap_or(u64::MAX));
            public.saturating_mul(public).saturating_mul(exponent)
        };
        of(self).div_ceil(of(Self::Ffdhe2048))
    }

    /// Whether a peer's public value has the group's length and is between 2 and p - 2. All other values have a
    /// shared secret that anybody can guess.
    #[must_use]
    pub fn has_public_value(self, value: &[u8]) -> bool {
        let (Some((last, before)), Some((_, prime_before))) = (value.split_last(), self.prime().split_last())
        else {
            return false;
        };
        let is_above_1 = *last > 1 || before.iter().any(|byte| *byte != 0);
        // The last byte of every prime is FFh, so that of p - 1 is FEh, and below it p - 1 and the prime are equal.
        let is_below = before < prime_before || before == prime_before && *last < 0xFE;
        before.len() == prime_before.len() && is_above_1 && is_below
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Null => "null",
            Self::Ffdhe2048 => "ffdhe2048",
            Self::Ffdhe3072 => "ffdhe3072",
            Self::Ffdhe4096 => "ffdhe4096",
            Self::Ffdhe6144 => "ffdhe6144",
            Self::Ffdhe8192 => "ffdhe8192",
        })
    }
}

/// The bytes of hexadecimal digits, at compile time.
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)] // The compiler evaluates it.
const fn decoded<const BYTES: usize>(digits: &str) -> [u8; BYTES] {
    let digits = digits.as_bytes();
    assert!(digits.len() == 2 * BYTES);
    let mut bytes = [0; BYTES];
    let mut at = 0;
    while at < digits.len() {
        let digit = match digits[at] {
            digit @ b'0'..=b'9' => digit - b'0',
            digit => digit - b'A' + 10,
        };
        bytes[at / 2] = bytes[at / 2] << 4 | digit;
        at += 1;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn primes_begin_and_end_alike_and_have_their_length() {
        for (group, bytes) in Group::ALL.into_iter().zip([0, 256, 384, 512, 768, 1024]) {
            assert_eq!(group.public_bytes(), bytes);
            assert_eq!(Group::from_id(group.id()), Some(group));
            if group != Group::Null {
                assert_eq!(group.prime()[..10], [255, 255, 255, 255, 255, 255, 255, 255, 0xAD, 0xF8]);
                assert_eq!(group.prime()[bytes - 8..], [0xFF; 8]);
            }
        }
        assert_eq!(Group::from_id(6), None);
    }

    /// hostile A8
    #[test]
    fn a_public_value_is_between_2_and_p_minus_2() {
        for group in &Group::ALL[1..] {
            let prime = group.prime().to_vec();
            let length = prime.len();
            let small = |value: u8| [vec![0; length - 1], vec![value]].concat();
            let below = |difference: u8| [&prime[..length - 1], &[0xFF - difference]].concat();
            for (value, is_valid) in [
                (small(0), false),
                (small(1), false),
                (small(2), true),
                (below(2), true),
                (below(1), false),
                (below(0), false),
                (vec![0xFF; length], false),
                ([vec![1], vec![0; length - 1]].concat(), true),
                (vec![0x7F; length - 1], false),
                (vec![0x7F; length + 1], false),
                (vec![], false),
            ] {
                assert_eq!(
                    group.has_public_value(&value),
                    is_valid,
                    "{group}: {:?}",
                    &value[..value.len().min(4)]
                );
            }
        }
        assert!(!Group::Null.has_public_value(&[]) && !Group::Null.has_public_value(&[2]));
    }
}
