//! Checks of new connections by listener: allowed addresses, TLS and its keys, and the requirements on memcached
//! clients. Shared by the reactors of one target, and changed by its operator.
//!
//! The operator makes them stricter before a change is applied, and relaxes them only afterwards: whatever fails or
//! ends in between, no connection is admitted that neither the old nor the new configuration admits.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use reactor::ListenerTag;
use security::tls::{GeneratedKeys, Keyring, Policy, Session, Stream};

use crate::names::allow_list::AllowList;
use crate::names::memcached_trust::{MemcachedGate, MemcachedTrust};

/// Addresses, policies of TLS, and keys. Checked once for each connection when it is accepted, and when it connects an
/// unencrypted queue.
#[derive(Debug, Default)]
pub struct ListenerGate {
    state: Mutex<Gate>,
    generated: Arc<GeneratedKeys>,
    pub(crate) memcached: MemcachedGate,
}

#[derive(Debug, Default)]
struct Gate {
    /// By listener; connections of a listener without an entry are not served.
    policies: BTreeMap<ListenerTag, Policy>,
    /// Addresses must be in each list of a listener. While a reload is applied there are two.
    allowed: BTreeMap<ListenerTag, Vec<AllowList>>,
    keyring: Arc<Keyring>,
}

/// How a new connection is served.
#[derive(Debug)]
pub(crate) enum Passage {
    /// Unencrypted.
    Clear,
    /// Through this stream.
    Tls(Box<Stream>),
}

/// The strictness of a policy.
const fn rank(policy: Policy) -> u8 {
    match policy {
        Policy::Off => 0,
        Policy::Allowed => 1,
        Policy::Concatenated => 2,
        Policy::Required => 3,
    }
}

impl ListenerGate {
    /// Sets the policy of a listener, for connections from now on.
    pub fn set_policy(&self, listener: ListenerTag, policy: Policy) {
        self.lock().policies.insert(listener, policy);
    }

    /// Sets the policy of a listener unless the one that it has demands more.
    pub(crate) fn restrict(&self, listener: ListenerTag, policy: Policy) {
        let mut gate = self.lock();
        let known = gate.policies.entry(listener).or_insert(policy);
        if rank(policy) > rank(*known) {
            *known = policy;
        }
    }

    /// Sets what a memcached listener asks of its clients.
    pub fn set_memcached(&self, listener: ListenerTag, trust: MemcachedTrust) {
        self.memcached.set(listener, trust);
    }

    /// Sets the addresses that connections of a listener may come from.
    pub(crate) fn set_allowed(&self, listener: ListenerTag, allowed: AllowList) {
        self.lock().allowed.insert(listener, vec![allowed]);
    }

    /// Admits only addresses that are in this list, too.
    pub(crate) fn restrict_allowed(&self, listener: ListenerTag, allowed: AllowList) {
        self.lock().allowed.entry(listener).or_default().push(allowed);
    }

    /// Whether a connection from this address is served.
    pub(crate) fn admits(&self, listener: ListenerTag, address: Option<IpAddr>) -> bool {
        let gate = self.lock();
        gate.allowed.get(&listener).is_none_or(|lists| lists.iter().all(|list| list.admits(address)))
    }

    /// Replaces the keys, for handshakes that begin from now on.
    pub(crate) fn set_keyring(&self, keyring: Arc<Keyring>) {
        self.lock().keyring = keyring;
    }

    /// Drops the keys that this keyring does not have.
    pub(crate) fn restrict_keyring(&self, keyring: &Arc<Keyring>) {
        let mut gate = self.lock();
        gate.keyring = Arc::new(Keyring::common(&gate.keyring, Arc::clone(keyring)));
    }

    /// The keys that authentications have generated.
    #[must_use]
    pub fn generated(&self) -> &Arc<GeneratedKeys> {
        &self.generated
    }

    /// The configured keys.
    pub(crate) fn keyring(&self) -> Arc<Keyring> {
        Arc::clone(&self.lock().keyring)
    }

    fn lock(&self) -> MutexGuard<'_, Gate> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How a new connection of this listener is served; `None` for an unknown listener.
    pub(crate) fn passage(&self, listener: ListenerTag, now_ns: u64) -> Option<Passage> {
        let gate = self.lock();
        let session = || {
            self.generated.expire(now_ns);
            Session::target_with(Arc::clone(&gate.keyring), Arc::clone(&self.generated))
        };
        Some(match gate.policies.get(&listener)? {
            Policy::Off => Passage::Clear,
            Policy::Allowed | Policy::Concatenated => {
                Passage::Tls(Box::new(Stream::allowing_clear(session())))
            }
            Policy::Required => Passage::Tls(Box::new(Stream::new(session()))),
        })
    }

    /// Whether a queue may connect unencrypted: the policy may have changed since its connection was accepted.
    pub(crate) fn permits_clear(&self, listener: ListenerTag) -> bool {
        self.lock().policies.get(&listener).is_some_and(|policy| *policy != Policy::Required)
    }

    /// Whether a queue that connects unencrypted must generate a key of TLS.
    pub(crate) fn demands_key(&self, listener: ListenerTag) -> bool {
        self.lock().policies.get(&listener) == Some(&Policy::Concatenated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All policies, the least demanding first.
    const ALL: [Policy; 4] = [Policy::Off, Policy::Allowed, Policy::Concatenated, Policy::Required];

    #[test]
    fn no_connection_of_an_unknown_listener_is_served() {
        let gate = ListenerGate::default();
        assert!(gate.passage(1, 0).is_none() && !gate.permits_clear(1));
        gate.set_policy(1, Policy::Off);
        assert!(matches!(gate.passage(1, 0), Some(Passage::Clear)) && gate.permits_clear(1));
        assert!(gate.passage(2, 0).is_none() && !gate.permits_clear(2));
    }

    #[test]
    fn while_a_list_changes_only_addresses_of_both_are_admitted() {
        let gate = ListenerGate::default();
        let list = |text: &str| AllowList::Only(vec![text.parse().expect("a prefix")]);
        let admitted = |address: &str| gate.admits(1, Some(address.parse().expect("an address")));
        gate.set_allowed(1, list("10.0.0.0/8"));
        assert!(admitted("10.1.0.1") && !admitted("192.0.2.1"));
        gate.restrict_allowed(1, list("10.1.0.0/16"));
        assert!(admitted("10.1.0.1") && !admitted("10.2.0.1"));
        gate.restrict_allowed(1, AllowList::Any);
        assert!(!admitted("10.2.0.1"));
        gate.set_allowed(1, AllowList::Any);
        assert!(admitted("192.0.2.1") && gate.admits(1, None));
    }

    #[test]
    fn a_queue_in_clear_is_refused_where_tls_is_required_and_generates_a_key_where_it_is_concatenated() {
        let gate = ListenerGate::default();
        assert!(!gate.demands_key(1), "of an unknown listener no queue connects");
        for policy in ALL {
            gate.set_policy(1, policy);
            assert_eq!(gate.permits_clear(1), policy != Policy::Required, "{policy}");
            assert_eq!(gate.demands_key(1), policy == Policy::Concatenated, "{policy}");
            let is_clear = matches!(gate.passage(1, 0), Some(Passage::Clear));
            assert_eq!(is_clear, policy == Policy::Off, "{policy}");
        }
    }

    #[test]
    fn a_restriction_never_permits_more() {
        for (at, before) in ALL.into_iter().enumerate() {
            for (wanted_at, wanted) in ALL.into_iter().enumerate() {
                let gate = ListenerGate::default();
                gate.set_policy(1, before);
                gate.restrict(1, wanted);
                assert_eq!(gate.lock().policies[&1], ALL[at.max(wanted_at)], "{before}, then {wanted}");
            }
        }
        let gate = ListenerGate::default();
        gate.restrict(1, Policy::Required);
        assert!(!gate.permits_clear(1));
    }
}
