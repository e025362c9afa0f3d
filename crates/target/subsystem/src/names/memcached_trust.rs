//! Requirements of memcached listeners on their clients: TLS with a certificate, and a user with a password. Shared by
//! the reactors of one target, and changed by its operator.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memcached::ListenerTrust;
use reactor::ListenerTag;
use security::tls::{ClientCertificates, ServerCertificate, Session, Stream};
use security::users::Users;

/// The requirements of a memcached listener on its clients.
#[derive(Clone, Debug, Default)]
pub struct MemcachedTrust {
    /// The certificate of TLS; `None` for unencrypted connections.
    pub tls: Option<Arc<ServerCertificate>>,
    /// A client must be in each of these lists. While a reload is applied there are two.
    pub users: Vec<Arc<Users>>,
}

impl MemcachedTrust {
    /// The strictness of its TLS.
    fn tls_rank(&self) -> Option<ClientCertificates> {
        self.tls.as_ref().map(|certificate| certificate.clients())
    }

    /// The requirements of both, with the certificate of `other` if that demands no less.
    fn restricted_by(&self, other: &Self) -> Self {
        let tls = if other.tls_rank() >= self.tls_rank() { &other.tls } else { &self.tls };
        let mut users = self.users.clone();
        let is_new = |list: &&Arc<Users>| !self.users.iter().any(|known| Arc::ptr_eq(known, list));
        users.extend(other.users.iter().filter(is_new).map(Arc::clone));
        Self { tls: tls.clone(), users }
    }

    /// For `stats` of memcached.
    fn described(&self) -> ListenerTrust {
        let verify_mode = |certificates| match certificates {
            ClientCertificates::Off => 0,
            ClientCertificates::Optional => 1,
            ClientCertificates::Required => 2,
        };
        ListenerTrust { tls: self.tls_rank().map(verify_mode), authenticates: !self.users.is_empty() }
    }
}

/// How a new connection is served.
#[derive(Debug)]
pub(crate) struct MemcachedPassage {
    /// The stream of TLS; `None` without TLS.
    pub(crate) tls: Option<Box<Stream>>,
    /// Whether the client has to authenticate with a user and a password.
    pub(crate) authenticates: bool,
    pub(crate) trust: ListenerTrust,
    /// Whether it uses the keys of its reactor's partition only.
    pub(crate) is_of_partition: bool,
}

/// The requirements of each memcached listener: checked once for each connection, and when a client authenticates.
#[derive(Debug, Default)]
pub(crate) struct MemcachedGate {
    trust: Mutex<BTreeMap<ListenerTag, MemcachedTrust>>,
    /// The partitions of listeners whose clients use one only.
    partitions: Mutex<BTreeMap<ListenerTag, u16>>,
}

impl MemcachedGate {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ListenerTag, MemcachedTrust>> {
        self.trust.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leads the clients of a listener to one partition.
    pub(crate) fn set_partition(&self, listener: ListenerTag, number: u16) {
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner).insert(listener, number);
    }

    /// The only partition that the clients of a listener use.
    pub(crate) fn partition(&self, listener: ListenerTag) -> Option<u16> {
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner).get(&listener).copied()
    }

    /// Sets the requirements for connections and authentications from now on.
    pub(crate) fn set(&self, listener: ListenerTag, trust: MemcachedTrust) {
        self.lock().insert(listener, trust);
    }

    /// Adds these requirements to those of a listener.
    pub(crate) fn restrict(&self, listener: ListenerTag, trust: &MemcachedTrust) {
        let mut known = self.lock();
        let restricted =
            known.get(&listener).map_or_else(|| trust.clone(), |known| known.restricted_by(trust));
        known.insert(listener, restricted);
    }

    /// The requirements of a listener.
    pub(crate) fn get(&self, listener: ListenerTag) -> Option<MemcachedTrust> {
        self.lock().get(&listener).cloned()
    }

    /// How a new connection of this listener is served; `None` for an unknown listener.
    pub(crate) fn passage(&self, listener: ListenerTag) -> Option<MemcachedPassage> {
        let trust = self.get(listener)?;
        let tls = trust.tls.as_ref().map(|certificate| {
            Box::new(Stream::new(Session::target_with_certificate(Arc::clone(certificate))))
        });
        let is_of_partition = self.partition(listener).is_some();
        let authenticates = !trust.users.is_empty();
        Some(MemcachedPassage { tls, authenticates, trust: trust.described(), is_of_partition })
    }

    /// The user with this name and password; `Err` with the name if there is one with another password.
    pub(crate) fn authenticate(
        &self,
        listener: ListenerTag,
        name: &[u8],
        password: &[u8],
    ) -> Result<String, Option<String>> {
        let lists = self.get(listener).map(|trust| trust.users).unwrap_or_default();
        // The listener has no list any more, but had one when this connection began: no user is accepted.
        let found: Vec<Option<&str>> = lists.iter().map(|users| users.find(name, password)).collect();
        match found.first() {
            Some(Some(user)) if found.iter().all(Option::is_some) => Ok((*user).to_owned()),
            _ => {
                let is_known = lists.iter().any(|users| users.knows(name));
                Err(is_known.then(|| String::from_utf8_lossy(name).into_owned()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(text: &str) -> MemcachedTrust {
        let users = Users::parse(text, [3; 32]).expect("a list");
        MemcachedTrust { tls: None, users: vec![Arc::new(users)] }
    }

    #[test]
    fn no_connection_of_an_unknown_listener_is_served() {
        let gate = MemcachedGate::default();
        assert!(gate.passage(1).is_none());
        gate.set(1, MemcachedTrust::default());
        let passage = gate.passage(1).expect("known");
        assert!(passage.tls.is_none() && !passage.authenticates && gate.passage(2).is_none());
    }

    #[test]
    fn a_client_authenticates_with_the_users_of_its_listener() {
        let gate = MemcachedGate::default();
        gate.set(1, users("a:1\nb:2\n"));
        gate.set(2, users("a:3\n"));
        assert_eq!(gate.authenticate(1, b"a", b"1"), Ok("a".into()));
        assert_eq!(gate.authenticate(1, b"a", b"3"), Err(Some("a".into())));
        assert_eq!(gate.authenticate(1, b"c", b"1"), Err(None));
        assert_eq!(gate.authenticate(2, b"b", b"2"), Err(None));
        assert_eq!(gate.authenticate(3, b"a", b"1"), Err(None), "no such listener");
        assert!(gate.passage(1).expect("known").authenticates);
    }

    #[test]
    fn while_a_reload_is_applied_only_users_of_both_lists_authenticate() {
        let gate = MemcachedGate::default();
        gate.set(1, users("a:1\nb:2\n"));
        gate.restrict(1, &users("b:2\nc:3\n"));
        assert_eq!(gate.authenticate(1, b"b", b"2"), Ok("b".into()));
        assert!(gate.authenticate(1, b"a", b"1").is_err() && gate.authenticate(1, b"c", b"3").is_err());
        // A reload that removes the list admits no further user before it is applied.
        gate.restrict(1, &MemcachedTrust::default());
        assert!(gate.passage(1).expect("known").authenticates);
        gate.set(1, MemcachedTrust::default());
        assert!(!gate.passage(1).expect("known").authenticates);
        gate.restrict(1, &users("a:1\n"));
        assert!(gate.passage(1).expect("known").authenticates);
    }
}
