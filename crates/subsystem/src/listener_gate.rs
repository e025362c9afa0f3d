//! Which listeners speak TLS, and with which keys: shared by the reactors of one target, and changed by its operator.
//!
//! The operator makes it stricter before a change is applied, and lets more in only once the change is: whatever fails or
//! ends in between, no connection gets in that neither the configuration before nor the one after lets in.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use reactor::ListenerTag;
use security::tls::{GeneratedKeys, Keyring, Policy, Session, Stream};

/// Policies of listeners, and keys. Looked at once for each connection when it is accepted, and when it connects a queue in
/// clear.
#[derive(Debug, Default)]
pub struct ListenerGate {
    state: Mutex<Gate>,
    generated: Arc<GeneratedKeys>,
}

#[derive(Debug, Default)]
struct Gate {
    /// Of all listeners: of one that is not here, no connection is served.
    policies: BTreeMap<ListenerTag, Policy>,
    keyring: Arc<Keyring>,
}

/// How a new connection is served.
#[derive(Debug)]
pub(crate) enum Passage {
    /// In clear.
    Clear,
    /// Through this stream.
    Tls(Box<Stream>),
}

/// How much a policy demands.
const fn rank(policy: Policy) -> u8 {
    match policy {
        Policy::Off => 0,
        Policy::Allowed => 1,
        Policy::Required => 2,
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

    /// Replaces the keys, for handshakes that begin from now on.
    pub(crate) fn set_keyring(&self, keyring: Arc<Keyring>) {
        self.lock().keyring = keyring;
    }

    /// Keeps only the keys that this keyring has, too.
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

    /// How a new connection of this listener is served; `None` if it is not, because nothing is known of its listener.
    pub(crate) fn passage(&self, listener: ListenerTag, now_ns: u64) -> Option<Passage> {
        let gate = self.lock();
        let session = || {
            self.generated.expire(now_ns);
            Session::target_with(Arc::clone(&gate.keyring), Arc::clone(&self.generated))
        };
        Some(match gate.policies.get(&listener)? {
            Policy::Off => Passage::Clear,
            Policy::Allowed => Passage::Tls(Box::new(Stream::allowing_clear(session()))),
            Policy::Required => Passage::Tls(Box::new(Stream::new(session()))),
        })
    }

    /// Whether a queue may connect in clear: the policy may have changed since its connection was accepted.
    pub(crate) fn permits_clear(&self, listener: ListenerTag) -> bool {
        matches!(self.lock().policies.get(&listener), Some(Policy::Off | Policy::Allowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_connection_of_an_unknown_listener_is_served() {
        let gate = ListenerGate::default();
        assert!(gate.passage(1, 0).is_none() && !gate.permits_clear(1));
        gate.set_policy(1, Policy::Off);
        assert!(matches!(gate.passage(1, 0), Some(Passage::Clear)) && gate.permits_clear(1));
        assert!(gate.passage(2, 0).is_none() && !gate.permits_clear(2));
    }

    #[test]
    fn only_a_required_policy_refuses_a_queue_in_clear() {
        let gate = ListenerGate::default();
        for (policy, permits) in [(Policy::Off, true), (Policy::Allowed, true), (Policy::Required, false)] {
            gate.set_policy(1, policy);
            assert_eq!(gate.permits_clear(1), permits, "{policy}");
            let is_clear = matches!(gate.passage(1, 0), Some(Passage::Clear));
            assert_eq!(is_clear, policy == Policy::Off, "{policy}");
        }
    }

    #[test]
    fn a_restriction_never_permits_more() {
        let all = [Policy::Off, Policy::Allowed, Policy::Required];
        for (at, before) in all.into_iter().enumerate() {
            for (wanted_at, wanted) in all.into_iter().enumerate() {
                let gate = ListenerGate::default();
                gate.set_policy(1, before);
                gate.restrict(1, wanted);
                assert_eq!(gate.lock().policies[&1], all[at.max(wanted_at)], "{before}, then {wanted}");
            }
        }
        let gate = ListenerGate::default();
        gate.restrict(1, Policy::Required);
        assert!(!gate.permits_clear(1));
    }
}
