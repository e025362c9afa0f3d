//! The PSKs of a target that authentications have generated, by secure channel concatenation. wire §22.5
//!
//! An identity of version 1 names its key, so a host may have several at a time: one for each of its programs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wire::nqn::{HostName, Nqn};

use super::PskIdentity;
use crate::names::Names;
use crate::psk::{IdentityVersion, Psk, TlsPsk};

/// Time from its generation for which new connections may use a key, ns: an hour, as Linux keeps it. While a connection
/// uses it others may as well, so that an association can connect queues as long as it lives.
pub const LIFETIME_NS: u64 = 3_600_000_000_000;

/// Keys of one host for one subsystem. The oldest makes room for another.
const PAIR_COUNT_MAX: usize = 16;

/// Keys in total. The oldest makes room for another.
const COUNT_MAX: usize = 4096;

/// Least time between two searches for expired keys, ns.
const SEARCH_INTERVAL_NS: u64 = 1_000_000_000;

/// Generated keys, shared by the reactors of a target. Time is that of the reactors' clock.
#[derive(Debug, Default)]
pub struct GeneratedKeys {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By identity.
    keys: BTreeMap<String, Entry>,
    /// Number of the next key.
    next: u64,
    /// When to search for expired keys, ns.
    search_ns: u64,
}

#[derive(Debug)]
struct Entry {
    /// Grows with each key.
    number: u64,
    parts: PskIdentity,
    psk: TlsPsk,
    /// End of its lifetime, ns.
    until_ns: u64,
    /// When it ends in any case, ns.
    end_ns: u64,
    lease: KeyLease,
}

/// Held by a connection that uses a generated key.
#[derive(Clone, Debug, Default)]
pub struct KeyLease(Arc<()>);

impl GeneratedKeys {
    /// Adds a key that ends at `end_ns` in any case, and returns its identity. `None` if the host has no name, or one
    /// that no identity can have.
    pub fn insert(&self, now_ns: u64, names: &Names, psk: &Psk, end_ns: u64) -> Option<String> {
        let psk = psk.tls(IdentityVersion::One, names.host.as_str(), names.subsystem.as_str())?;
        let parts = psk.identity.parse::<PskIdentity>().ok()?;
        let identity = psk.identity.clone();
        let mut state = self.lock();
        let is_of_pair =
            |entry: &Entry| entry.parts.host == parts.host && entry.parts.subsystem == parts.subsystem;
        let oldest = |keys: &BTreeMap<String, Entry>, of: &dyn Fn(&Entry) -> bool, most: usize| {
            let those = || keys.iter().filter(|(_, entry)| of(entry));
            let oldest = those().min_by_key(|(_, entry)| entry.number).map(|(identity, _)| identity.clone());
            oldest.filter(|_| those().count() >= most)
        };
        for old in
            [oldest(&state.keys, &is_of_pair, PAIR_COUNT_MAX), oldest(&state.keys, &|_| true, COUNT_MAX)]
        {
            old.into_iter().for_each(|old| drop(state.keys.remove(&old)));
        }
        let number = state.next;
        state.next = number.saturating_add(1);
        let until_ns = now_ns.saturating_add(LIFETIME_NS);
        let entry = Entry { number, parts, psk, until_ns, end_ns, lease: KeyLease::default() };
        state.keys.insert(identity.clone(), entry);
        Some(identity)
    }

    /// Removes the key of an identity: it was replaced.
    pub fn remove(&self, identity: &str) {
        self.lock().keys.remove(identity);
    }

    /// Ends keys at this time at the latest, those in use too: their secret was changed, or their subsystem removed.
    pub fn end_by(&self, end_ns: u64, of: impl Fn(&HostName, &Nqn) -> bool) {
        let mut state = self.lock();
        for entry in state.keys.values_mut().filter(|entry| of(&entry.parts.host, &entry.parts.subsystem)) {
            entry.end_ns = entry.end_ns.min(end_ns);
        }
        state.search_ns = 0;
    }

    /// Removes expired keys.
    pub fn expire(&self, now_ns: u64) {
        let mut state = self.lock();
        if state.keys.is_empty() || now_ns < state.search_ns {
            return;
        }
        state.keys.retain(|_, entry| {
            now_ns < entry.end_ns && (now_ns < entry.until_ns || Arc::strong_count(&entry.lease.0) > 1)
        });
        let ends = state.keys.values().map(|entry| entry.until_ns.min(entry.end_ns)).min();
        let ends_ns = ends.unwrap_or(u64::MAX);
        state.search_ns = ends_ns.max(now_ns.saturating_add(SEARCH_INTERVAL_NS));
    }

    /// The key of an identity, for a connection that holds the lease as long as it lives.
    #[must_use]
    pub fn find(&self, identity: &str) -> Option<(TlsPsk, KeyLease)> {
        let state = self.lock();
        let entry = state.keys.get(identity)?;
        Some((entry.psk.clone(), entry.lease.clone()))
    }

    /// The number of keys.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lock().keys.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::HashFunction;

    const SECOND: u64 = 1_000_000_000;

    fn names(host: &str, subsystem: &str) -> Names {
        let name = |text: &str| format!("nqn.2016-06.io.nvlane:{text}");
        Names {
            host: name(host).parse().expect("a name"),
            subsystem: name(subsystem).parse().expect("a name"),
        }
    }

    fn psk(number: u16) -> Psk {
        let session_key = vec![7; 32].into();
        Psk::generated(HashFunction::Sha256, &session_key, &number.to_le_bytes(), &[2; 32]).expect("a cipher")
    }

    #[test]
    fn a_key_is_found_by_its_whole_identity_only() {
        let keys = GeneratedKeys::default();
        let identity = keys.insert(0, &names("host", "disk"), &psk(1), u64::MAX).expect("a name");
        assert!(identity.starts_with("NVMe1G01 nqn.2016-06.io.nvlane:host nqn.2016-06.io.nvlane:disk "));
        assert!(keys.find(&identity).is_some_and(|(psk, _)| psk.identity == identity));
        for other in [
            identity.replace("NVMe1G01", "NVMe1R01"),
            identity.replace("NVMe1G01", "NVMe0G01"),
            identity.replace(":host", ":other"),
            identity.replace(":disk", ":other"),
            identity.rsplit_once(' ').expect("a digest").0.to_owned(),
        ] {
            assert!(keys.find(&other).is_none(), "{other}");
        }
        keys.remove(&identity);
        assert!(keys.find(&identity).is_none() && keys.count() == 0);
    }

    #[test]
    fn a_key_expires_after_an_hour_unless_a_connection_uses_it() {
        let keys = GeneratedKeys::default();
        let insert = |number| keys.insert(0, &names("host", "disk"), &psk(number), u64::MAX).expect("a name");
        let (used, unused) = (insert(1), insert(2));
        let (_, lease) = keys.find(&used).expect("just made");
        let is_found = |now_ns| {
            keys.expire(now_ns);
            [&used, &unused].map(|identity| keys.find(identity).is_some())
        };
        assert_eq!(is_found(LIFETIME_NS - 1), [true, true]);
        assert_eq!(is_found(LIFETIME_NS + SECOND), [true, false]);
        drop(lease);
        assert_eq!(is_found(LIFETIME_NS + 3 * SECOND), [false, false]);
    }

    #[test]
    fn a_key_whose_secret_was_changed_ends_though_a_connection_uses_it() {
        let keys = GeneratedKeys::default();
        let (changed, kept) = (names("host", "disk"), names("other", "disk"));
        let identities =
            [&changed, &kept].map(|names| keys.insert(0, names, &psk(1), u64::MAX).expect("a name"));
        let leases = identities.each_ref().map(|identity| keys.find(identity));
        keys.end_by(10 * SECOND, |host, subsystem| *host == changed.host && *subsystem == changed.subsystem);
        for (now_s, expected) in [(9, [true, true]), (11, [false, true])] {
            keys.expire(now_s * SECOND);
            let found = identities.each_ref().map(|identity| keys.find(identity).is_some());
            assert_eq!(found, expected, "{now_s}");
        }
        drop(leases);
    }

    #[test]
    fn the_oldest_key_makes_room() {
        let keys = GeneratedKeys::default();
        let pair = names("host", "disk");
        let identities: Vec<_> =
            (0..20).map(|number| keys.insert(0, &pair, &psk(number), u64::MAX).expect("a name")).collect();
        let found: Vec<_> = identities.iter().map(|identity| keys.find(identity).is_some()).collect();
        assert_eq!((found.iter().position(|found| *found), keys.count()), (Some(4), 16));
        assert!(keys.insert(0, &names("other", "disk"), &psk(1), u64::MAX).is_some());
        assert_eq!(keys.count(), 17, "other hosts have keys of their own");
    }

    #[test]
    fn the_oldest_key_of_all_makes_room_for_the_4097th() {
        let keys = GeneratedKeys::default();
        let insert = |number: u16| {
            let pair = names(&format!("host-{}", number / 16), "disk");
            keys.insert(0, &pair, &psk(number), u64::MAX).expect("a name")
        };
        let [first, second] = [0, 1].map(insert);
        (2..4096).for_each(|number| drop(insert(number)));
        assert!(keys.count() == 4096 && keys.find(&first).is_some());
        insert(4096);
        assert!(keys.count() == 4096 && keys.find(&first).is_none() && keys.find(&second).is_some());
    }

    #[test]
    fn a_host_without_a_name_gets_no_key() {
        let mut nameless = names("host", "disk");
        nameless.host = HostName::from_wire(&[0; 256]).expect("no name");
        let keys = GeneratedKeys::default();
        assert!(keys.insert(0, &nameless, &psk(1), u64::MAX).is_none() && keys.count() == 0);
    }
}
