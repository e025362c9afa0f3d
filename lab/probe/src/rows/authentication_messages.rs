//! Authentication messages, byte by byte: valid ones, which rows then modify.

/// Type and id of AUTH_Failure1.
pub(super) const AUTH_FAILURE: [u8; 2] = [0, 0xF1];
/// Type and id of a challenge.
pub(super) const CHALLENGE: [u8; 2] = [1, 1];
/// Type and id of Success1.
pub(super) const SUCCESS: [u8; 2] = [1, 3];

/// The first bytes of every message.
pub(super) fn common(kind: u8, id: u8, transaction: u16) -> [u8; 6] {
    let [low, high] = transaction.to_le_bytes();
    [kind, id, 0, 0, low, high]
}

/// A Diffie-Hellman group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    id: u8,
    value_bytes: u16,
}

pub(super) const FFDHE_2048: Group = Group { id: 1, value_bytes: 256 };
pub(super) const FFDHE_8192: Group = Group { id: 5, value_bytes: 1024 };

/// The prime of ffdhe2048. RFC 7919
const PRIME_2048: &str = "\
     ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef9 \
     7d2fe363630c75d8f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935 \
     984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61d108a94bb2c8e3fb \
     b96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ecc03404cd28342f61 \
     9172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef1837d1683b2c6f34a26c1b2effa \
     886b423861285c97ffffffffffffffff";

impl Group {
    /// The prime of the 2048-bit group.
    pub(super) fn prime(self) -> Vec<u8> {
        assert_eq!(self, FFDHE_2048, "the others are not needed");
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let digits: Vec<u8> = PRIME_2048.bytes().filter_map(digit).collect();
        digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }
}

/// A big-endian number minus one.
pub(super) fn decremented(number: &[u8]) -> Vec<u8> {
    let mut number = number.to_vec();
    for byte in number.iter_mut().rev() {
        let (less, borrows) = byte.overflowing_sub(1);
        *byte = less;
        if !borrows {
            break;
        }
    }
    number
}

/// AUTH_Negotiate.
#[derive(Clone, Debug)]
pub(super) struct Negotiate {
    pub(super) transaction: u16,
    pub(super) secure_channel: u8,
    pub(super) hashes: Vec<u8>,
    pub(super) groups: Vec<u8>,
}

impl Default for Negotiate {
    fn default() -> Self {
        Self { transaction: 7, secure_channel: 0, hashes: vec![1, 2, 3], groups: vec![0, 1, 2, 3, 4, 5] }
    }
}

impl Negotiate {
    pub(super) fn with_group(group: Group) -> Self {
        Self { groups: vec![group.id], ..Self::default() }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = common(0, 0, self.transaction).to_vec();
        let length = |list: &[u8]| u8::try_from(list.len()).expect("at most 30");
        bytes.extend([self.secure_channel, 1, 1, 0, length(&self.hashes), length(&self.groups)]);
        for list in [&self.hashes, &self.groups] {
            bytes.extend_from_slice(list);
            bytes.resize(bytes.len() + 30 - list.len(), 0);
        }
        bytes
    }
}

/// A challenge from the target.
#[derive(Clone, Debug)]
pub(super) struct Challenge {
    pub(super) transaction: u16,
    pub(super) hash_bytes: u8,
    pub(super) sequence: u32,
    pub(super) value: Vec<u8>,
    public_value_bytes: u16,
}

impl Challenge {
    /// A made-up challenge, for targets that send none.
    pub(super) fn made_up() -> Self {
        Self { transaction: 7, hash_bytes: 32, sequence: 1, value: vec![0x5A; 32], public_value_bytes: 0 }
    }

    /// Parses a challenge; `None` if it is incomplete or its lengths are invalid.
    pub(super) fn read(message: &[u8]) -> Option<Self> {
        let header: &[u8; 16] = message.first_chunk()?;
        let hash_bytes = Some(header[6]).filter(|length| [32, 48, 64].contains(length))?;
        let short = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let challenge = Self {
            transaction: short(4),
            hash_bytes,
            sequence: u32::from(short(12)) | u32::from(short(14)) << 16,
            value: message.get(16..16 + usize::from(hash_bytes))?.to_vec(),
            public_value_bytes: short(10),
        };
        (message.len() >= challenge.length()).then_some(challenge)
    }

    /// Length of the message, bytes.
    pub(super) fn length(&self) -> usize {
        16 + self.value.len() + usize::from(self.public_value_bytes)
    }
}

/// A Reply with a response that matches no key.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) transaction: u16,
    pub(super) validity: u8,
    pub(super) sequence: u32,
    pub(super) response: Vec<u8>,
    pub(super) own: Vec<u8>,
    pub(super) public_value: Vec<u8>,
}

impl Reply {
    pub(super) fn to(challenge: &Challenge) -> Self {
        let length = usize::from(challenge.hash_bytes);
        let mut public_value = vec![0x2B; challenge.public_value_bytes.into()];
        if let Some(first) = public_value.first_mut() {
            // Less than the prime.
            *first = 0x7B;
        }
        Self {
            transaction: challenge.transaction,
            validity: 0,
            sequence: 0x0101_0101,
            response: vec![0xA5; length],
            own: vec![0; length],
            public_value,
        }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = common(1, 2, self.transaction).to_vec();
        let length = u8::try_from(self.response.len()).expect("a hash");
        bytes.extend([length, 0, self.validity, 0]);
        let public_bytes = u16::try_from(self.public_value.len()).expect("a group");
        bytes.extend_from_slice(&public_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        for part in [&self.response, &self.own, &self.public_value] {
            bytes.extend_from_slice(part);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_their_fields_where_they_belong() {
        let negotiate = Negotiate::default().bytes();
        assert_eq!(negotiate.len(), 72);
        assert_eq!(negotiate[..16], [0, 0, 0, 0, 7, 0, 0, 1, 1, 0, 3, 6, 1, 2, 3, 0]);
        assert_eq!(negotiate[41..49], [0, 0, 1, 2, 3, 4, 5, 0]);
        let reply = Reply { validity: 1, ..Reply::to(&Challenge::made_up()) }.bytes();
        assert_eq!(reply.len(), 16 + 2 * 32);
        assert_eq!(reply[..16], [1, 2, 0, 0, 7, 0, 32, 0, 1, 0, 0, 0, 1, 1, 1, 1]);
    }

    #[test]
    fn a_challenge_is_read_within_its_bounds() {
        let mut message = [&common(1, 1, 9)[..], &[48, 0, 2, 1, 0, 1, 4, 3, 2, 1]].concat();
        message.resize(16 + 48 + 256, 0xCC);
        let challenge = Challenge::read(&message).expect("whole");
        assert_eq!((challenge.transaction, challenge.hash_bytes, challenge.sequence), (9, 48, 0x0102_0304));
        assert_eq!(challenge.length(), message.len());
        assert_eq!(Reply::to(&challenge).bytes().len(), 16 + 96 + 256);
        assert!((0..message.len()).all(|end| Challenge::read(&message[..end]).is_none()));
        message[6] = 33;
        assert!(Challenge::read(&message).is_none());
    }

    #[test]
    fn the_prime_is_odd_and_has_its_ends() {
        let prime = FFDHE_2048.prime();
        assert_eq!(prime.len(), 256);
        assert_eq!((&prime[..8], &prime[248..]), (&[0xFF; 8][..], &[0xFF; 8][..]));
        assert_eq!(prime[8..12], [0xAD, 0xF8, 0x54, 0x58]);
        assert_eq!(decremented(&[1, 0, 0]), [0, 0xFF, 0xFF]);
    }
}
