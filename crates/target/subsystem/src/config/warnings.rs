//! Warnings about valid configurations that protect less than they may seem to.

use std::collections::BTreeSet;

use wire::nqn::HostName;

use super::{
    ConfigPlace, ListenerConfig, MemcachedListenerConfig, Problem, SubsystemConfig, TargetConfig, TlsPolicy,
};
use crate::names::allow_list::AllowList;
use crate::objects::subsystem::Access;

impl TargetConfig {
    /// Lists of hosts whose names need no proof, and listeners that admit anyone from elsewhere; empty without any.
    #[must_use]
    pub fn warnings(&self) -> Vec<Problem> {
        let serving = || self.listeners.iter().filter(|listener| listener.subsystems);
        // Where keys are generated, a host without TLS has a secret.
        let protects =
            |listener: &ListenerConfig| matches!(listener.tls, TlsPolicy::Concatenated | TlsPolicy::Required);
        let (requires_tls, is_protected) =
            (serving().all(|listener| listener.tls == TlsPolicy::Required), serving().all(protects));
        let mut warnings = Vec::new();
        for (at, subsystem) in self.subsystems.iter().enumerate() {
            let keys_prove = requires_tls || is_protected && subsystem.authentication.others.is_none();
            subsystem.warn_of_names(at, keys_prove, &mut warnings);
        }
        for (at, listener) in self.listeners.iter().enumerate().filter(|(_, listener)| listener.subsystems) {
            self.warn_of_openness(at, listener, &mut warnings);
        }
        for (at, listener) in self.memcached.iter().enumerate() {
            listener.warn(at, &mut warnings);
        }
        self.warn_of_lost_discovery(&mut warnings);
        warnings
    }

    /// Discovery that no host can use: unencrypted connections are refused, and no host has a key for it.
    fn warn_of_lost_discovery(&self, warnings: &mut Vec<Problem>) {
        let mut with_discovery =
            self.listeners.iter().enumerate().filter(|(_, listener)| listener.discovery).peekable();
        let Some(&(at, _)) = with_discovery.peek() else { return };
        let has_key = self.subsystems.iter().any(|subsystem| !subsystem.tls_keys.is_empty());
        if has_key || with_discovery.any(|(_, listener)| listener.tls != TlsPolicy::Concatenated) {
            return;
        }
        let message = "no host can ask for discovery: it does not authenticate, and is refused in cleartext where tls = \
                       \"concatenated\"; give it a listener of its own (subsystems = false), or have hosts name the subsystem"
            .into();
        warnings.push(Problem { place: ConfigPlace::Listener(at), message });
    }

    /// A listener that machines other than this one reach, and the subsystems that anyone uses there.
    fn warn_of_openness(&self, at: usize, listener: &ListenerConfig, warnings: &mut Vec<Problem>) {
        let is_protected = matches!(listener.tls, TlsPolicy::Concatenated | TlsPolicy::Required);
        if listener.address.ip().is_loopback() || is_protected {
            return;
        }
        let is_open = |subsystem: &&SubsystemConfig| {
            subsystem.access == Access::Any && subsystem.authentication.others.is_none()
        };
        let open: Vec<&str> =
            self.subsystems.iter().filter(is_open).map(|subsystem| subsystem.nqn.as_str()).collect();
        if !open.is_empty() {
            let message = format!(
                "anyone who reaches the listener on {} may use {}: give hosts a secret (dhchap_secret), or require TLS \
                 (tls = \"required\", tls_key)",
                listener.address,
                open.join(", ")
            );
            warnings.push(Problem { place: ConfigPlace::Listener(at), message });
        }
    }
}

impl MemcachedListenerConfig {
    /// A listener that machines other than this one reach: keys that anyone uses, and passwords that others can read.
    fn warn(&self, at: usize, warnings: &mut Vec<Problem>) {
        let Some(address) = self.address.ip().filter(|address| !address.ip().is_loopback()) else { return };
        let message = if !self.authenticates() {
            let from = match &self.allow {
                AllowList::Any => "anyone who reaches",
                AllowList::Only(_) => "anyone who reaches, from an address that it allows,",
            };
            format!(
                "{from} the memcached listener on {address} may read and change its keys: give clients a user and a password \
                 (users), or require certificates of them (tls_client_ca)"
            )
        } else if self.tls.is_none() {
            format!(
                "passwords and values of the memcached listener on {address} travel in cleartext: give it a certificate \
                 (tls_certificate, tls_key)"
            )
        } else {
            return;
        };
        warnings.push(Problem { place: ConfigPlace::Memcached(at), message });
    }
}

impl SubsystemConfig {
    /// Lists that name hosts by which any other host may call itself.
    fn warn_of_names(&self, at: usize, keys_prove: bool, warnings: &mut Vec<Problem>) {
        let (secrets, keys) = (&self.authentication, &self.tls_keys);
        let has_own =
            |host: &HostName| secrets.hosts.contains_key(host) || keys_prove && keys.hosts.contains_key(host);
        let has_any = |host: &HostName| {
            has_own(host) || secrets.others.is_some() || keys_prove && keys.others.is_some()
        };
        let mut warn = |place, host: &HostName, why: &str| {
            let message = format!(
                "{host} is listed, but {why}: give it a secret of its own (dhchap_secret in [[subsystem.host]]), or a tls_key of \
                 its own where listeners require TLS"
            );
            warnings.push(Problem { place, message });
        };
        let no_proof = "any host may call itself so without a secret or a key";
        for host in self.access.listed().filter(|host| !has_any(host)) {
            warn(ConfigPlace::Subsystem(at, "hosts"), host, no_proof);
        }
        for (namespace_at, namespace) in self.namespaces.iter().enumerate() {
            let rights = &namespace.rights;
            let lists: [(_, Vec<_>); 3] = [
                ("hosts", rights.visible_to.listed().collect()),
                ("write_hosts", rights.writable_by.listed().collect()),
                ("key_prefixes", rights.keys.listed().collect()),
            ];
            let mut told = BTreeSet::new();
            for (key, host) in
                lists.into_iter().flat_map(|(key, list)| list.into_iter().map(move |host| (key, host)))
            {
                // The list of the subsystem says it already.
                let is_told = !has_any(host) && self.access.listed().any(|listed| listed == host);
                if has_own(host) || is_told || !told.insert(host) {
                    continue;
                }
                let why = if has_any(host) {
                    "every host with the same secret or key may call itself so"
                } else {
                    no_proof
                };
                warn(ConfigPlace::Namespace(at, namespace_at, key), host, why);
            }
        }
    }
}
