//! Which listeners speak TLS, and with which keys: shared by the reactors of one target, and changed by its operator.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use reactor::ListenerTag;
use security::tls::{Keyring, Policy, Session, Stream};

/// Policies of listeners, and keys. Looked at once for each connection, when it is accepted.
#[derive(Debug, Default)]
pub struct TlsGate {
    state: Mutex<Gate>,
}

#[derive(Debug, Default)]
struct Gate {
    /// Of the listeners that speak TLS.
    policies: BTreeMap<ListenerTag, Policy>,
    keyring: Arc<Keyring>,
}

impl TlsGate {
    /// Sets the policy of a listener, for connections from now on.
    pub(crate) fn set_policy(&self, listener: ListenerTag, policy: Policy) {
        self.change(|gate| {
            gate.policies.insert(listener, policy);
        });
    }

    /// Replaces the keys, for handshakes that begin from now on.
    pub(crate) fn set_keyring(&self, keyring: Keyring) {
        self.change(|gate| gate.keyring = Arc::new(keyring));
    }

    fn change(&self, change: impl FnOnce(&mut Gate)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// What a new connection of this listener goes through; `None` if it is in clear.
    pub(crate) fn stream(&self, listener: ListenerTag) -> Option<Box<Stream>> {
        let gate = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let policy = gate.policies.get(&listener).copied().unwrap_or_default();
        let session = || Session::target(Arc::clone(&gate.keyring));
        match policy {
            Policy::Off => None,
            Policy::Allowed => Some(Box::new(Stream::allowing_clear(session()))),
            Policy::Required => Some(Box::new(Stream::new(session()))),
        }
    }
}
