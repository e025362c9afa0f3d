//! The configured PSKs of a target, and those that a host offers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wire::nqn::{DISCOVERY_NQN, HostName, Nqn};

use super::PskIdentity;
use crate::psk::{Derivation, IdentityVersion, PskKind, TlsPsk};
use crate::tls_key::TlsKey;

/// A configured PSK, and who may use it with which subsystem.
#[derive(Clone, Debug)]
pub struct KnownKey {
    /// The subsystem; `None` for all of the target.
    pub subsystem: Option<Nqn>,
    /// The host; `None` for all hosts.
    pub host: Option<HostName>,
    /// The configured PSK.
    pub key: TlsKey,
}

/// Keys that are derived for one ClientHello. A host in good faith needs a few, unless it asks a target with many keys for
/// discovery. Each takes 2.3 us (docs/design/tls.md), and anybody may send a ClientHello: together they take no longer than
/// a key exchange.
const DERIVATION_COUNT_MAX: usize = 64;

/// The configured PSKs of a target.
#[derive(Clone, Debug, Default)]
pub struct Keyring {
    /// Keys of single hosts come before those of all hosts: for an identity of version 0, which does not name the key,
    /// the first is taken.
    keys: Vec<KnownKey>,
    /// For each of them a number: that of the first one with the same value.
    values: Vec<usize>,
    /// The unique name of the target's discovery service.
    discovery: Option<Nqn>,
    /// A key must be in this one as well.
    also: Option<Arc<Keyring>>,
}

/// A key that was found for an identity: the identity taken apart, identity and key of TLS, and how that was derived.
pub type Found = (PskIdentity, TlsPsk, Derivation);

/// Counts the derivations for one ClientHello.
#[derive(Debug)]
struct Budget {
    left: usize,
}

impl Budget {
    const fn new() -> Self {
        Self { left: DERIVATION_COUNT_MAX }
    }

    /// Takes a derivation, if one is left.
    fn take(&mut self) -> Option<()> {
        self.left = self.left.checked_sub(1)?;
        Some(())
    }
}

impl Keyring {
    /// A keyring of these keys.
    #[must_use]
    pub fn new(mut keys: Vec<KnownKey>) -> Self {
        keys.sort_by_key(|key| key.host.is_none());
        let mut first = BTreeMap::new();
        let places = keys.iter().enumerate();
        let values = places.map(|(at, known)| *first.entry(known.key.value()).or_insert(at)).collect();
        Self { keys, values, discovery: None, also: None }
    }

    /// The same for a target whose discovery service also has this unique name. An identity names the discovery
    /// subsystem by the name that the host connects to. wire §22.5
    #[must_use]
    pub fn with_discovery(mut self, name: Nqn) -> Self {
        self.discovery = Some(name);
        self
    }

    /// A keyring that knows only the keys which both of these know.
    #[must_use]
    pub fn common(one: &Self, other: Arc<Self>) -> Self {
        Self { also: Some(other), ..one.clone() }
    }

    /// Whether the same hosts may use the same keys with the same subsystems.
    #[must_use]
    pub fn has_same_keys(&self, other: &Self) -> bool {
        fn parts(known: &KnownKey) -> impl Eq {
            (&known.subsystem, &known.host, known.key.value())
        }
        self.keys.iter().map(parts).eq(other.keys.iter().map(parts))
    }

    /// Whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The key of an identity; `None` if there is none.
    #[must_use]
    pub fn find(&self, identity: &str) -> Option<Found> {
        self.find_first([identity])
    }

    /// The key of the first of these identities that has one. After 64 derivations, none has.
    pub fn find_first<'a>(&self, identities: impl IntoIterator<Item = &'a str>) -> Option<Found> {
        let mut budget = Budget::new();
        identities.into_iter().find_map(|identity| self.search(identity, &mut budget))
    }

    fn search(&self, identity: &str, budget: &mut Budget) -> Option<Found> {
        let found = self.search_own(identity, budget)?;
        if let Some(also) = &self.also {
            // An identity of version 0 does not name the key. Both keys are ours: the time of this comparison reveals
            // nothing.
            let other = also.search(identity, budget)?;
            (other.1.key.expose() == found.1.key.expose()).then_some(())?;
        }
        Some(found)
    }

    fn search_own(&self, identity: &str, budget: &mut Budget) -> Option<Found> {
        let parts = identity.parse::<PskIdentity>().ok().filter(|parts| parts.kind == PskKind::Retained)?;
        let candidates = self.candidates(&parts);
        for derivation in [Derivation::Standard, Derivation::Libnvme] {
            for known in &candidates {
                budget.take()?;
                let found = derive(&known.key, derivation, parts.version, &parts.host, &parts.subsystem);
                // Identities are public: the time of this comparison reveals nothing.
                if let Some(psk) = found.filter(|psk| psk.identity == identity) {
                    return Some((parts, psk, derivation));
                }
            }
        }
        None
    }

    /// The keys that a host may use with a subsystem, each value once, as many as can be tried at most.
    fn candidates(&self, parts: &PskIdentity) -> Vec<&KnownKey> {
        // A host that asks for discovery has the key of some subsystem.
        let is_discovery =
            parts.subsystem.as_str() == DISCOVERY_NQN || self.discovery.as_ref() == Some(&parts.subsystem);
        let is_in_scope = |known: &KnownKey| {
            is_discovery || known.subsystem.as_ref().is_none_or(|name| *name == parts.subsystem)
        };
        // Subsystems for which the host has a key of its own: it is not known there by the key of all others.
        let own = self.keys.iter().filter(|known| known.host.as_ref() == Some(&parts.host));
        let own: BTreeSet<_> =
            own.filter(|known| is_in_scope(known)).map(|known| known.subsystem.as_ref()).collect();
        let has_own = |known: &KnownKey| match &known.subsystem {
            None => !own.is_empty(),
            Some(name) => own.contains(&None) || own.contains(&Some(name)),
        };
        let fits = |known: &KnownKey| {
            is_in_scope(known)
                && match &known.host {
                    Some(host) => *host == parts.host,
                    None => !has_own(known),
                }
        };
        let mut seen = BTreeSet::new();
        let keys = self.keys.iter().zip(&self.values).filter(|(known, _)| fits(known));
        let distinct = keys.filter(|(_, value)| seen.insert(**value)).map(|(known, _)| known);
        distinct.take(DERIVATION_COUNT_MAX).collect()
    }
}

/// The key of a host.
#[derive(Clone, Debug)]
pub struct HostKeys {
    /// The configured PSK.
    pub key: TlsKey,
    /// How it is derived.
    pub derivation: Derivation,
}

/// The versions of identities that a host offers in one handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdentityOffer {
    /// Version 1, then version 0: for targets that know either, and pass over an identity that they do not know.
    #[default]
    Both,
    /// Version 0 only: for targets that know only that one, and end the handshake at an identity that they do not know, as
    /// SPDK's does with an alert.
    VersionZero,
}

impl IdentityOffer {
    /// The offer to make after this one was refused.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Both => Self::VersionZero,
            Self::VersionZero => Self::Both,
        }
    }
}

impl HostKeys {
    /// The offer of the host to a subsystem: the key under each identity of the offer, in order.
    #[must_use]
    pub fn offer(&self, identities: IdentityOffer, host: &HostName, subsystem: &Nqn) -> Vec<TlsPsk> {
        let versions = match identities {
            IdentityOffer::Both => &[IdentityVersion::One, IdentityVersion::Zero][..],
            IdentityOffer::VersionZero => &[IdentityVersion::Zero],
        };
        let derived =
            |version: &IdentityVersion| derive(&self.key, self.derivation, *version, host, subsystem);
        versions.iter().filter_map(derived).collect()
    }
}

fn derive(
    key: &TlsKey,
    derivation: Derivation,
    version: IdentityVersion,
    host: &HostName,
    subsystem: &Nqn,
) -> Option<TlsPsk> {
    let retained = key.retained_by(derivation, host.as_str());
    retained.tls_by(derivation, version, host.as_str(), subsystem.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
    const SUBSYSTEM: &str = "nqn.2016-06.io.nvlane:disk";

    fn key(byte: u8) -> TlsKey {
        TlsKey::new(Some(crate::hash::HashFunction::Sha256), vec![byte; 32].into()).expect("a key")
    }

    fn known(subsystem: Option<&str>, host: Option<&str>, byte: u8) -> KnownKey {
        KnownKey {
            subsystem: subsystem.map(|name| name.parse().expect("a name")),
            host: host.map(|name| name.parse().expect("a name")),
            key: key(byte),
        }
    }

    fn offer(byte: u8, subsystem: &str, derivation: Derivation) -> Vec<TlsPsk> {
        let keys = HostKeys { key: key(byte), derivation };
        keys.offer(IdentityOffer::Both, &HOST.parse().expect("a name"), &subsystem.parse().expect("a name"))
    }

    #[test]
    fn what_a_host_offers_is_found_with_both_derivations() {
        let ring = Keyring::new(vec![known(None, None, 1), known(None, None, 2)]);
        for derivation in [Derivation::Standard, Derivation::Libnvme] {
            for byte in [1, 2] {
                let offered = offer(byte, SUBSYSTEM, derivation);
                assert_eq!(offered.len(), 2);
                let (parts, psk, by) = ring.find(&offered[0].identity).expect("version 1");
                assert_eq!((parts.host.to_string(), by), (HOST.into(), derivation));
                assert_eq!(psk.key.expose(), offered[0].key.expose());
                assert!(offered[0].identity.starts_with("NVMe1R01 "));
            }
        }
        let zero = &offer(1, SUBSYSTEM, Derivation::Standard)[1];
        let (_, psk, by) = ring.find(&zero.identity).expect("version 0");
        assert_eq!((psk.key.expose(), by), (zero.key.expose(), Derivation::Standard));
        assert!(ring.find(&offer(3, SUBSYSTEM, Derivation::Standard)[0].identity).is_none());
    }

    #[test]
    fn a_key_is_for_its_host_and_subsystem_and_for_discovery() {
        let ring = Keyring::new(vec![known(None, None, 3), known(Some(SUBSYSTEM), Some(HOST), 1)]);
        let find =
            |byte, subsystem| ring.find(&offer(byte, subsystem, Derivation::Standard)[0].identity).is_some();
        assert!(find(1, SUBSYSTEM) && find(1, DISCOVERY_NQN) && find(3, "nqn.2016-06.io.nvlane:other"));
        assert!(!find(1, "nqn.2016-06.io.nvlane:other"));
        // Its own key, and not that of all hosts.
        assert!(!find(3, SUBSYSTEM));
        let shared =
            Keyring::new(vec![known(Some(SUBSYSTEM), None, 3), known(Some(SUBSYSTEM), Some(HOST), 1)]);
        assert!(shared.find(&offer(3, SUBSYSTEM, Derivation::Standard)[0].identity).is_none());
        assert!(shared.find(&offer(1, SUBSYSTEM, Derivation::Standard)[0].identity).is_some());
        // Version 0: that of the host.
        let zero = &offer(1, SUBSYSTEM, Derivation::Standard)[1];
        assert_eq!(ring.find(&zero.identity).expect("found").1.key.expose(), zero.key.expose());
        let other = Keyring::new(vec![known(None, Some("nqn.2014-08.org.nvmexpress:other"), 1)]);
        assert!(other.find(&offer(1, SUBSYSTEM, Derivation::Standard)[0].identity).is_none());
    }

    #[test]
    fn the_unique_name_of_the_discovery_service_is_for_every_key_too() {
        const UNIQUE: &str = "nqn.2016-06.io.nvlane:discovery:1234";
        let ring = Keyring::new(vec![known(Some(SUBSYSTEM), Some(HOST), 1)]);
        let find = |ring: &Keyring, byte| {
            offer(byte, UNIQUE, Derivation::Standard)
                .into_iter()
                .filter_map(|offered| {
                    let (parts, psk, _) = ring.find(&offered.identity)?;
                    assert_eq!(parts.subsystem.as_str(), UNIQUE);
                    Some(psk.key.expose() == offered.key.expose())
                })
                .collect::<Vec<_>>()
        };
        assert!(find(&ring, 1).is_empty(), "it is the name of no subsystem");
        let ring = ring.with_discovery(UNIQUE.parse().expect("a name"));
        assert_eq!(find(&ring, 1), [true, true]);
        // Version 0 does not name the key: the handshake finds that it is another.
        assert_eq!(find(&ring, 2), [false]);
    }

    /// Anybody may send a ClientHello, with the most identities that are examined.
    #[test]
    fn a_client_hello_costs_a_bounded_number_of_derivations() {
        let name = |at: usize| format!("nqn.2016-06.io.nvlane:disk{at}");
        let number = |at: usize| u8::try_from(at).expect("a byte");
        let many = |values: usize| {
            let keys = (0..1000).map(|at| known(Some(&name(at)), None, number(at % values)));
            Keyring::new(keys.collect())
        };
        let unknown = offer(251, DISCOVERY_NQN, Derivation::Standard).remove(0).identity;
        let (ring, mut budget) = (many(250), Budget::new());
        assert!((0..8).all(|_| ring.search(&unknown, &mut budget).is_none()));
        assert_eq!(budget.left, 0);
        assert_eq!(ring.candidates(&unknown.parse().expect("an identity")).len(), DERIVATION_COUNT_MAX);
        // The first keys are found, and for its own subsystem every key is.
        assert!(ring.find(&offer(63, DISCOVERY_NQN, Derivation::Standard)[0].identity).is_some());
        assert!(ring.find(&offer(64, DISCOVERY_NQN, Derivation::Standard)[0].identity).is_none());
        assert!(ring.find(&offer(249, &name(999), Derivation::Libnvme)[0].identity).is_some());
        // Keys with the same value are one.
        let (ring, mut budget) = (many(3), Budget::new());
        assert!(ring.search(&unknown, &mut budget).is_none());
        assert_eq!(budget.left, DERIVATION_COUNT_MAX - 2 * 3);
        assert!(ring.find(&offer(2, DISCOVERY_NQN, Derivation::Libnvme)[0].identity).is_some());
    }

    #[test]
    fn the_common_keys_are_those_of_both_with_the_same_value() {
        let ring = |bytes: &[u8]| Keyring::new(bytes.iter().map(|byte| known(None, None, *byte)).collect());
        let common = Keyring::common(&ring(&[1, 2]), Arc::new(ring(&[2, 3])));
        let versions = |byte| {
            let offered = offer(byte, SUBSYSTEM, Derivation::Standard);
            offered.into_iter().map(|offered| common.find(&offered.identity).is_some()).collect::<Vec<_>>()
        };
        assert_eq!(versions(2), [true, false], "version 0 means the first key, which is another in each");
        assert_eq!((versions(1), versions(3)), (vec![false; 2], vec![false; 2]));
        let same = Keyring::common(&ring(&[1]), Arc::new(ring(&[1])));
        assert!(
            offer(1, SUBSYSTEM, Derivation::Standard)
                .iter()
                .all(|offered| same.find(&offered.identity).is_some())
        );
    }
}
