//! The messages, from bytes of a peer and to bytes. wire §22.3
//!
//! Reserved bytes are written as 0 and ignored when read. Lengths are checked before anything is read.

use core::fmt;

use crate::group::Group;
use crate::hash::HashFunction;
use crate::secure_channel::SecureChannel;

/// Bytes of the longest message: a reply with SHA-512 and ffdhe8192.
pub const MESSAGE_BYTES_MAX: usize = 16 + 2 * 64 + 1024;

/// Bytes of a Negotiate with one protocol.
const NEGOTIATE_BYTES: usize = 72;
/// Entries of a list of identifiers.
const LIST_MAX: usize = 30;
/// Bytes before the lists, challenges and responses.
const FIXED_BYTES: usize = 16;

/// Why a transaction failed: the reason code explanation of a failure message. wire §22.3
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// A response is wrong, or a key is missing.
    #[error("authentication failed")]
    Failed = 1,
    /// No protocol in common.
    #[error("authentication protocol not usable")]
    Protocol = 2,
    /// A secure channel concatenation that is not possible.
    #[error("secure channel concatenation mismatch")]
    SecureChannel = 3,
    /// No hash function in common.
    #[error("hash function not usable")]
    Hash = 4,
    /// No Diffie-Hellman group in common.
    #[error("Diffie-Hellman group not usable")]
    Group = 5,
    /// A message is malformed.
    #[error("incorrect payload")]
    Payload = 6,
    /// A message of another kind than the expected one.
    #[error("incorrect protocol message")]
    Message = 7,
}

impl Reason {
    fn from_code(code: u8) -> Self {
        [Self::Protocol, Self::SecureChannel, Self::Hash, Self::Group, Self::Payload, Self::Message]
            .into_iter()
            .find(|reason| *reason as u8 == code)
            .unwrap_or(Self::Failed)
    }
}

/// Kind of a message, by its type and id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Negotiate,
    Challenge,
    Reply,
    Success1,
    Success2,
    Failure1,
    Failure2,
}

impl Kind {
    const ALL: [(Self, [u8; 2]); 7] = [
        (Self::Negotiate, [0, 0]),
        (Self::Challenge, [1, 1]),
        (Self::Reply, [1, 2]),
        (Self::Success1, [1, 3]),
        (Self::Success2, [1, 4]),
        (Self::Failure1, [0, 0xF1]),
        (Self::Failure2, [0, 0xF0]),
    ];

    /// Type, id and transaction of a message.
    ///
    /// # Errors
    /// [`Reason::Payload`] if it is too short for those, [`Reason::Message`] if there is no such kind.
    pub fn of(message: &[u8]) -> Result<(Self, u16), Reason> {
        let [kind, id, _, _, low, high] = array(message, 0)?;
        let known = Self::ALL.iter().find(|(_, bytes)| *bytes == [kind, id]);
        known.map(|(kind, _)| (*kind, u16::from_le_bytes([low, high]))).ok_or(Reason::Message)
    }

    /// A message with its first six bytes, and zeros up to `length` bytes.
    fn begin(self, transaction: u16, length: usize) -> Vec<u8> {
        let bytes = Self::ALL.iter().find(|(kind, _)| *kind == self).map_or([0, 0], |(_, bytes)| *bytes);
        let mut message = Vec::with_capacity(MESSAGE_BYTES_MAX);
        message.extend_from_slice(&bytes);
        message.extend_from_slice(&[0, 0]);
        message.extend_from_slice(&transaction.to_le_bytes());
        message.resize(length, 0);
        message
    }

    /// Such a message with the fixed fields of a challenge or reply from byte 6 on.
    fn begin_fixed(self, transaction: u16, bytes: [u8; 4], public: &[u8], sequence: u32) -> Vec<u8> {
        let mut message = self.begin(transaction, 6);
        message.extend_from_slice(&bytes);
        // At most 1,024 bytes.
        message.extend_from_slice(&u16::try_from(public.len()).unwrap_or_default().to_le_bytes());
        message.extend_from_slice(&sequence.to_le_bytes());
        message
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The offer of a host. Reading keeps the known identifiers, each once, in the host's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiate {
    /// Chosen by the host; all messages of the transaction have it.
    pub transaction: u16,
    /// The secure channel concatenation asked for.
    pub secure_channel: SecureChannel,
    /// Hash functions.
    pub hashes: Vec<HashFunction>,
    /// Groups.
    pub groups: Vec<Group>,
}

impl Negotiate {
    /// Reads it: several protocols may be offered, of which the first DH-HMAC-CHAP counts.
    ///
    /// # Errors
    /// [`Reason::Payload`], [`Reason::SecureChannel`] for a value of SC_C without a meaning, [`Reason::Protocol`].
    pub fn read(message: &[u8], transaction: u16) -> Result<Self, Reason> {
        if message.len() < NEGOTIATE_BYTES {
            return Err(Reason::Payload);
        }
        let [secure_channel, protocols] = array(message, 6)?;
        let secure_channel = SecureChannel::from_code(secure_channel).ok_or(Reason::SecureChannel)?;
        let descriptors = message.get(8..).unwrap_or_default().chunks_exact(64);
        if descriptors.len() < usize::from(protocols) {
            return Err(Reason::Payload);
        }
        let mut descriptors = descriptors.take(usize::from(protocols));
        let descriptor =
            descriptors.find(|descriptor| descriptor.first() == Some(&1)).ok_or(Reason::Protocol)?;
        let [hash_count, group_count] = array(descriptor, 2)?.map(usize::from);
        if hash_count > LIST_MAX || group_count > LIST_MAX {
            return Err(Reason::Payload);
        }
        let hashes = list(descriptor, 4, hash_count, HashFunction::from_id)?;
        let groups = list(descriptor, 34, group_count, Group::from_id)?;
        Ok(Self { transaction, secure_channel, hashes, groups })
    }

    /// Its bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut message = Kind::Negotiate.begin(self.transaction, 6);
        let count = |length: usize| u8::try_from(length.min(LIST_MAX)).unwrap_or_default();
        message.extend_from_slice(&[self.secure_channel.code(), 1, 1, 0]);
        message.extend_from_slice(&[count(self.hashes.len()), count(self.groups.len())]);
        message.extend(self.hashes.iter().take(LIST_MAX).map(|hash| hash.id()));
        message.resize(42, 0);
        message.extend(self.groups.iter().take(LIST_MAX).map(|group| group.id()));
        message.resize(NEGOTIATE_BYTES, 0);
        message
    }
}

/// The controller's challenge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The host's transaction.
    pub transaction: u16,
    /// Chosen hash function.
    pub hash: HashFunction,
    /// Chosen group.
    pub group: Group,
    /// Sequence number S1.
    pub sequence: u32,
    /// C1, as long as the digest.
    pub challenge: Vec<u8>,
    /// The controller's public value, as long as the group's prime.
    pub public: Vec<u8>,
}

impl Challenge {
    /// Reads it; bytes behind it are ignored.
    ///
    /// # Errors
    /// [`Reason::Payload`], [`Reason::Hash`] or [`Reason::Group`].
    pub fn read(message: &[u8], transaction: u16) -> Result<Self, Reason> {
        let [digest_bytes, _, hash, group, low, high, s0, s1, s2, s3] = array(message, 6)?;
        let hash = HashFunction::from_id(hash).ok_or(Reason::Hash)?;
        let group = Group::from_id(group).ok_or(Reason::Group)?;
        check_lengths(digest_bytes, [low, high], hash, group)?;
        let rest = message.get(FIXED_BYTES..).ok_or(Reason::Payload)?;
        let (challenge, rest) = split(rest, hash.digest_bytes())?;
        let (public, _) = split(rest, group.public_bytes())?;
        let sequence = u32::from_le_bytes([s0, s1, s2, s3]);
        Ok(Self {
            transaction,
            hash,
            group,
            sequence,
            challenge: challenge.to_vec(),
            public: public.to_vec(),
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let bytes = [digest_byte(self.hash), 0, self.hash.id(), self.group.id()];
        let mut message = Kind::Challenge.begin_fixed(self.transaction, bytes, &self.public, self.sequence);
        message.extend_from_slice(&self.challenge);
        message.extend_from_slice(&self.public);
        message
    }
}

/// The host's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The transaction.
    pub transaction: u16,
    /// R1, as long as the digest.
    pub response: Vec<u8>,
    /// The host's own challenge C2 and its sequence number S2. If S2 is 0, the controller need not show its key, and C2
    /// serves to generate a key only; nor need it without C2, and then no key is generated.
    pub challenge: Option<(Vec<u8>, u32)>,
    /// The host's public value, as long as the group's prime.
    pub public: Vec<u8>,
}

impl Reply {
    /// Reads it.
    ///
    /// # Errors
    /// [`Reason::Payload`].
    pub fn read(message: &[u8], transaction: u16, hash: HashFunction, group: Group) -> Result<Self, Reason> {
        let [digest_bytes, _, validity, _, low, high, s0, s1, s2, s3] = array(message, 6)?;
        check_lengths(digest_bytes, [low, high], hash, group)?;
        let rest = message.get(FIXED_BYTES..).ok_or(Reason::Payload)?;
        let (response, rest) = split(rest, hash.digest_bytes())?;
        let (challenge, rest) = split(rest, hash.digest_bytes())?;
        let (public, rest) = split(rest, group.public_bytes())?;
        if !rest.is_empty() {
            return Err(Reason::Payload);
        }
        let challenge = match (validity, u32::from_le_bytes([s0, s1, s2, s3])) {
            (0, _) => None,
            (1, sequence) => Some((challenge.to_vec(), sequence)),
            _ => return Err(Reason::Payload),
        };
        Ok(Self { transaction, response: response.to_vec(), challenge, public: public.to_vec() })
    }

    /// Its bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let (challenge, sequence) = self.challenge.clone().unwrap_or((vec![0; self.response.len()], 0));
        // At most 64 bytes.
        let digest_bytes = u8::try_from(self.response.len()).unwrap_or_default();
        let bytes = [digest_bytes, 0, u8::from(self.challenge.is_some()), 0];
        let mut message = Kind::Reply.begin_fixed(self.transaction, bytes, &self.public, sequence);
        message.extend_from_slice(&self.response);
        message.extend_from_slice(&challenge);
        message.extend_from_slice(&self.public);
        message
    }
}

/// The controller's success: the host is authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Success1 {
    /// The transaction.
    pub transaction: u16,
    /// R2, if the host has challenged.
    pub response: Option<Vec<u8>>,
}

impl Success1 {
    /// Reads it; bytes behind it are ignored.
    ///
    /// # Errors
    /// [`Reason::Payload`].
    pub fn read(message: &[u8], transaction: u16, hash: HashFunction) -> Result<Self, Reason> {
        let [digest_bytes, _, validity] = array(message, 6)?;
        let rest = message.get(FIXED_BYTES..).ok_or(Reason::Payload)?;
        let response = match validity {
            0 => None,
            1 if digest_bytes == digest_byte(hash) => Some(split(rest, hash.digest_bytes())?.0.to_vec()),
            _ => return Err(Reason::Payload),
        };
        Ok(Self { transaction, response })
    }

    /// Its bytes.
    #[must_use]
    pub fn to_bytes(&self, hash: HashFunction) -> Vec<u8> {
        let mut message = Kind::Success1.begin(self.transaction, 6);
        // Linux hosts want the length even without a response.
        message.extend_from_slice(&[digest_byte(hash), 0, u8::from(self.response.is_some())]);
        message.resize(FIXED_BYTES, 0);
        message.extend_from_slice(self.response.as_deref().unwrap_or_default());
        message
    }
}

/// The host's success: the controller is authenticated as well.
#[must_use]
pub fn success2(transaction: u16) -> Vec<u8> {
    Kind::Success2.begin(transaction, FIXED_BYTES)
}

/// A failure, of the controller (1) or the host (2).
#[must_use]
pub fn failure(kind: Kind, transaction: u16, reason: Reason) -> Vec<u8> {
    let mut message = kind.begin(transaction, 6);
    message.extend_from_slice(&[1, reason as u8]);
    message
}

/// The reason of a failure message, [`Reason::Failed`] if it has none that is known.
#[must_use]
pub fn failure_reason(message: &[u8]) -> Reason {
    array(message, 7).map_or(Reason::Failed, |[code]| Reason::from_code(code))
}

/// Refuses lengths other than those of the hash function and the group.
fn check_lengths(digest: u8, public: [u8; 2], hash: HashFunction, group: Group) -> Result<(), Reason> {
    let is_right = usize::from(digest) == hash.digest_bytes()
        && usize::from(u16::from_le_bytes(public)) == group.public_bytes();
    is_right.then_some(()).ok_or(Reason::Payload)
}

/// The known ones of `count` identifiers, each once.
fn list<T: PartialEq>(
    descriptor: &[u8],
    at: usize,
    count: usize,
    from_id: impl Fn(u8) -> Option<T>,
) -> Result<Vec<T>, Reason> {
    let ids = descriptor.get(at..).and_then(|rest| rest.get(..count)).ok_or(Reason::Payload)?;
    let mut known = Vec::new();
    for value in ids.iter().filter_map(|id| from_id(*id)) {
        if !known.contains(&value) {
            known.push(value);
        }
    }
    Ok(known)
}

fn digest_byte(hash: HashFunction) -> u8 {
    // At most 64.
    u8::try_from(hash.digest_bytes()).unwrap_or_default()
}

/// The bytes at an offset.
fn array<const COUNT: usize>(message: &[u8], at: usize) -> Result<[u8; COUNT], Reason> {
    message.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or(Reason::Payload)
}

fn split(bytes: &[u8], at: usize) -> Result<(&[u8], &[u8]), Reason> {
    bytes.split_at_checked(at).ok_or(Reason::Payload)
}
