//! The memcached listeners and their requirements on clients: read again with each reload.

use reactor::{Listener, ListenerTag};

use super::waiting::ADDRESS_WAIT;
use super::{ChangeOutcome, Operator, Report};
use crate::config::{MemcachedAddress, MemcachedListenerConfig};
use crate::messages::message::Step;
use crate::messages::state::MemcachedListenerState;
use crate::names::memcached_trust::MemcachedTrust;
use crate::serving::MEMCACHED;

/// An open memcached listener.
#[derive(Clone, Debug)]
pub struct MemcachedListener {
    /// As configured.
    pub config: MemcachedListenerConfig,
    /// The address it is bound to: port 0 replaced by the port that the system chose.
    pub address: MemcachedAddress,
    /// Its requirements on clients.
    pub(super) trust: MemcachedTrust,
    pub(super) tag: ListenerTag,
}

/// A wanted listener, and the requirements read for it.
pub(super) type NewTrust = (MemcachedListenerConfig, MemcachedTrust);

/// The requirements read for a listener.
pub(super) fn trust_of(
    config: &MemcachedListenerConfig,
    read: &[NewTrust],
) -> Result<MemcachedTrust, String> {
    let found = read.iter().find(|(wanted, _)| wanted == config);
    found.map(|(_, trust)| trust.clone()).ok_or_else(|| "its certificate and users were not read".into())
}

pub(super) fn bind(address: &MemcachedAddress) -> Result<Listener, String> {
    match address {
        MemcachedAddress::Ip(address)
        | MemcachedAddress::Partitions(address)
        | MemcachedAddress::Partition { address, .. } => super::bind(*address),
        MemcachedAddress::Unix { path, mode } => Listener::bind_path_in_time(path, *mode, ADDRESS_WAIT)
            .map_err(|error| format!("cannot listen on {address}: {error}")),
    }
}

impl MemcachedListener {
    /// Its state.
    #[must_use]
    pub fn state(&self) -> MemcachedListenerState {
        let certificate = self.trust.tls.as_ref();
        MemcachedListenerState {
            address: self.address.to_string(),
            partition: self.address.partition(),
            tls: certificate.is_some(),
            client_certificates: certificate.map(|certificate| certificate.clients().to_string()),
            certificate_subject: certificate.map(|certificate| certificate.fields().subject.clone()),
            certificate_expires_unix_s: certificate.map(|certificate| certificate.fields().not_after_unix_s),
            user_count: self.trust.users.first().map(|users| users.count()),
            allow: self.config.allow.prefixes(),
        }
    }
}

impl Operator {
    pub(super) fn new_memcached_listener(
        &mut self,
        config: &MemcachedListenerConfig,
        trust: MemcachedTrust,
        socket: Listener,
    ) -> (MemcachedListener, Step) {
        let (config, address, tag) =
            (config.clone(), config.address.bound(&socket), MEMCACHED | self.next_tag);
        self.next_tag += 1;
        self.gate.set_allowed(tag, config.allow.clone());
        self.gate.set_memcached(tag, trust.clone());
        if let Some(number) = address.partition() {
            self.gate.memcached.set_partition(tag, number);
        }
        (MemcachedListener { config, address, trust, tag }, Step::AddMemcachedListener { tag, socket })
    }

    /// A listener with another configuration. Stricter requirements hold at once, and even if the change fails; weaker
    /// ones once the change is applied.
    pub(super) fn changed_memcached_listener(
        &self,
        config: &MemcachedListenerConfig,
        read: &[NewTrust],
    ) -> Result<MemcachedListener, String> {
        let known = self.memcached.iter().find(|known| known.config.address == config.address);
        let (known, trust) = (known.ok_or("it is not open")?, trust_of(config, read)?);
        self.gate.memcached.restrict(known.tag, &trust);
        self.gate.restrict_allowed(known.tag, config.allow.clone());
        Ok(MemcachedListener { config: config.clone(), trust, ..known.clone() })
    }

    /// A changed listener is in place.
    pub(super) fn note_memcached_listener(&mut self, running: MemcachedListener) {
        self.gate.set_memcached(running.tag, running.trust.clone());
        self.gate.set_allowed(running.tag, running.config.allow.clone());
        if let Some(known) = self.memcached.iter_mut().find(|known| known.tag == running.tag) {
            *known = running;
        }
    }

    /// Until a reload is applied, listeners whose files have changed have the requirements of both.
    pub(super) fn restrict_memcached_trust(&self, read: &[NewTrust]) {
        for known in &self.memcached {
            if let Ok(trust) = trust_of(&known.config, read) {
                self.gate.memcached.restrict(known.tag, &trust);
            }
        }
    }

    /// Replaces certificates and users of listeners whose configuration is the same, for connections and authentications from
    /// now on, and records the outcome if the files have changed.
    pub(super) fn set_memcached_trust(&mut self, read: &[NewTrust], report: &mut Report) {
        for known in &mut self.memcached {
            let Ok(trust) = trust_of(&known.config, read) else { continue };
            let is_same_certificate = match (&known.trust.tls, &trust.tls) {
                (Some(known), Some(new)) => known.is_same(new),
                _ => true,
            };
            let are_same_users = match (known.trust.users.first(), trust.users.first()) {
                (Some(known), Some(new)) => known.is_same(new),
                _ => true,
            };
            for (what, is_same) in [("certificates", is_same_certificate), ("users", are_same_users)] {
                if !is_same {
                    let line = format!("change the {what} of memcached listener {}: done", known.address);
                    report.add(ChangeOutcome::Done, line);
                }
            }
            known.trust = trust.clone();
            self.gate.set_memcached(known.tag, trust);
        }
    }

    /// Reads certificates and users again, for a target without a configuration file. May block.
    pub(crate) fn reread_memcached_trust(&mut self) -> Report {
        let mut report = Report::default();
        let running = &self.running.config;
        match running.read_memcached_trust() {
            Ok(trust) => {
                let read: Vec<NewTrust> = running.memcached.iter().cloned().zip(trust).collect();
                self.set_memcached_trust(&read, &mut report);
            }
            Err(problems) => {
                for problem in problems {
                    report.add(
                        ChangeOutcome::Failed,
                        format!("memcached listeners keep what they ask for: {problem}"),
                    );
                }
            }
        }
        report
    }
}
