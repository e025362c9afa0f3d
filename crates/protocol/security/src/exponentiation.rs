//! Modular exponentiations, apart from the state machines that need them: each takes milliseconds.

use core::fmt;

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};
use zeroize::Zeroize;

use crate::fresh::Fresh;
use crate::group::Group;
use crate::secret_bytes::SecretBytes;

/// Work for another thread: our public value, the secret shared with the peer, or both.
///
/// Its time depends on the group only. The library does not wipe intermediate values of an exponentiation; the
/// exponent and the shared secret are wiped.
#[derive(Debug)]
pub struct Exponentiation {
    pub(crate) number: u64,
    pub(crate) group: Group,
    pub(crate) exponent: SecretBytes,
    pub(crate) wants_public: bool,
    /// The peer's public value, checked.
    pub(crate) peer: Option<Vec<u8>>,
}

/// The result of an [`Exponentiation`].
#[derive(Debug)]
pub struct Exponentiated {
    /// The number of its exponentiation: the result of an abandoned one is ignored.
    pub(crate) number: u64,
    group: Group,
    pub(crate) exponent: SecretBytes,
    /// Our public value, or empty.
    pub(crate) public: Vec<u8>,
    pub(crate) shared: Option<SecretBytes>,
}

/// A secret exponent and its public value, made in advance. One transaction has it, and no other.
pub struct KeyPair {
    group: Group,
    exponent: SecretBytes,
    public: Vec<u8>,
}

impl KeyPair {
    /// The group.
    #[must_use]
    pub const fn group(&self) -> Group {
        self.group
    }

    /// As the result of the exponentiation with this number.
    pub(crate) fn into_result(self, number: u64) -> Exponentiated {
        let Self { group, exponent, public } = self;
        Exponentiated { number, group, exponent, public, shared: None }
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, public, .. } = self;
        f.debug_struct("KeyPair").field("group", group).field("public", public).finish_non_exhaustive()
    }
}

impl Exponentiated {
    /// The key pair, of an exponentiation [for one](Exponentiation::of_key_pair).
    #[must_use]
    pub fn into_key_pair(self) -> KeyPair {
        let Self { group, exponent, public, .. } = self;
        KeyPair { group, exponent, public }
    }
}

impl Exponentiation {
    /// Makes a key pair in advance.
    #[must_use]
    pub fn of_key_pair(group: Group, fresh: &Fresh) -> Self {
        let exponent = SecretBytes::from(fresh.exponent(group));
        Self { number: 0, group, exponent, wants_public: true, peer: None }
    }

    /// Whether it makes a key pair, and needs nothing of the peer.
    #[must_use]
    pub const fn is_key_pair(&self) -> bool {
        self.wants_public && self.peer.is_none()
    }

    /// The group. Time grows with about the cube of its bytes.
    #[must_use]
    pub const fn group(&self) -> Group {
        self.group
    }

    /// Computes. Two exponentiations on the host's side, one on the controller's.
    #[must_use]
    pub fn run(self) -> Exponentiated {
        let prime = Odd::new(number(self.group.prime(), self.group)).into_option();
        let params = prime.map(BoxedMontyParams::new_vartime);
        let power = |base: &[u8]| {
            let Some(params) = &params else { return SecretBytes::from(Vec::new()) };
            let base = BoxedMontyForm::new(number(base, self.group), params);
            let mut exponent = number(self.exponent.expose(), self.group);
            let bits = u32::try_from(self.group.exponent_bytes().saturating_mul(8)).unwrap_or_default();
            let mut power = base.pow_bounded_exp(&exponent, bits);
            let mut value = power.retrieve();
            let bytes = SecretBytes::from(value.to_be_bytes().into_vec());
            exponent.zeroize();
            power.zeroize();
            value.zeroize();
            bytes
        };
        let public = if self.wants_public { power(&[2]).expose().to_vec() } else { Vec::new() };
        let shared = self.peer.as_deref().map(power);
        Exponentiated { number: self.number, group: self.group, exponent: self.exponent, public, shared }
    }
}

impl fmt::Display for Exponentiation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exponentiation in {}", self.group)
    }
}

/// A number as wide as the group's prime.
fn number(bytes: &[u8], group: Group) -> BoxedUint {
    let bits = u32::try_from(group.public_bytes().saturating_mul(8)).unwrap_or_default();
    BoxedUint::from_be_slice_truncated(bytes, bits)
}
