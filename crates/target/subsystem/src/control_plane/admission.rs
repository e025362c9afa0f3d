//! Limits on connections, and counters of the reasons for which connections were refused or closed: for the whole
//! target, beside its control plane.
//!
//! Every reactor reports when a connection ends, and when it had to close one. Each reason has a counter, which the
//! operator can read, and a line in the log, at most one every few seconds regardless of the number of such
//! connections.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use memcached::{ListenerAddress, ListenerStats, Watchers};
use proto::Violation;
use reactor::Source;
use reactor::{Counter, ListenerTag};
use wire::text::quoted;

use crate::audit::{Event, OfMemcached, Recorder};
use crate::messages::message::Visitor;
use crate::messages::state::{ConnectionsState, MemcachedState};
use crate::names::limits::Limits;

/// Interval between log lines for one reason, ns.
const LOG_NS: u64 = 10_000_000_000;

/// Reasons for which a connection was refused or closed, by which it is counted. Deadlines have reasons of their own
/// (`lane::Wait::reason`).
pub(crate) mod reason {
    pub(crate) const TOO_MANY: &str = "too many connections";
    pub(crate) const TOO_MANY_OF_ADDRESS: &str = "too many connections from one address";
    pub(crate) const MADE_ROOM: &str = "made room: too many connections without a queue";
    pub(crate) const TOO_MANY_MEMCACHED: &str = "too many memcached connections";
    pub(crate) const TOO_MANY_MEMCACHED_OF_ADDRESS: &str = "too many memcached connections from one address";
    pub(crate) const MEMCACHED_READS_NOTHING: &str = "memcached client reads nothing";
    pub(crate) const MEMCACHED_STALLS: &str = "memcached command not complete in time";
    pub(crate) const MEMCACHED_NOT_AUTHENTICATED: &str = "memcached client not authenticated";
    pub(crate) const MEMCACHED_TOO_LATE: &str = "memcached client without TLS or authentication in time";
    pub(crate) const MEMCACHED_MADE_ROOM: &str =
        "made room: too many memcached clients without TLS or authentication";
    pub(crate) const ADDRESS: &str = "address not in the allow list of the listener";
    pub(crate) const DOES_NOT_CONNECT: &str = "commands in place of Connect";
    pub(crate) const NOT_AUTHENTICATED: &str = "host not authenticated";
    pub(crate) const NOT_AUTHENTICATED_AGAIN: &str = "host refused when it authenticated again";
    pub(crate) const NO_POLICY: &str = "nothing is known of its listener";
    pub(crate) const TLS: &str = "TLS failed";
    pub(crate) const IN_CLEAR: &str = "in cleartext, where TLS is required";
    pub(crate) const UNKNOWN_IDENTITY: &str = "TLS identity without a key";
    pub(crate) const OTHER_IDENTITY: &str = "Connect under other names than those of the TLS identity";
    pub(crate) const DATA_DIGEST: &str = "data digest does not match";
    pub(crate) const READS_NOTHING_CONTENDED: &str = "reads nothing while others wait for buffers";
    pub(crate) const SENDS_NOTHING_CONTENDED: &str = "data not sent while others wait for buffers";
}

/// The reason by which a violation is counted.
pub(crate) fn reason_of(violation: Violation) -> &'static str {
    match violation {
        Violation::HeaderField { .. } => "invalid PDU header field",
        Violation::Sequence => "PDU out of sequence",
        Violation::HeaderDigest { .. } => "header digest does not match",
        Violation::OutOfRange => "data out of range",
        Violation::LimitExceeded => "data transfer limit exceeded",
        Violation::UnsupportedParameter { .. } => "unsupported parameter",
        Violation::EndedByPeer { .. } => "TermReq of the host",
        Violation::MalformedTermReq => "malformed TermReq",
    }
}

/// The open connections of each kind, and the reasons for which others were refused or closed.
#[derive(Debug)]
pub(crate) struct Admission {
    hosts: PerAddress,
    memcached: PerAddress,
    /// Reported by memcached's `stats`.
    memcached_counters: Arc<MemcachedCounters>,
    tallies: BTreeMap<&'static str, Tally>,
    audit: Recorder,
}

/// Open connections of one kind in total and per address, and their limits.
#[derive(Debug)]
struct PerAddress {
    count_max: u32,
    count_per_address_max: u32,
    count: u32,
    by_address: BTreeMap<Source, u32>,
}

/// Counters of memcached connections, of all reactors.
#[derive(Debug, Default)]
pub(crate) struct MemcachedCounters {
    /// Open connections.
    pub(crate) count: Counter,
    /// Connections that were admitted, ever.
    pub(crate) admitted_count: Counter,
    /// Connections that were refused.
    pub(crate) rejected_count: Counter,
    /// Connections that may be open at the same time.
    count_max: u64,
    /// Connections that watch events.
    pub(crate) watchers: Arc<Watchers>,
    /// The listeners, with their addresses as memcached writes them.
    listeners: Mutex<BTreeMap<ListenerTag, String>>,
    /// By reactor.
    traffic: Mutex<Vec<Arc<MemcachedTraffic>>>,
    /// The counters at the last `stats reset`.
    reset_at: Mutex<ListenerStats>,
}

/// Counters of the memcached connections of a reactor.
#[derive(Debug, Default)]
pub(crate) struct MemcachedTraffic {
    pub(crate) received_bytes: Counter,
    pub(crate) sent_bytes: Counter,
    /// Connections closed because they were idle.
    pub(crate) idle_closed_count: Counter,
    /// Attempts to authenticate.
    pub(crate) authentication_count: Counter,
    /// Of these, those that failed.
    pub(crate) authentication_failed_count: Counter,
    /// Connections on which TLS failed.
    pub(crate) tls_failed_count: Counter,
}

impl MemcachedCounters {
    /// A listener was added.
    pub(crate) fn add_listener(&self, tag: ListenerTag, address: String) {
        self.listeners.lock().expect("no holder panics").insert(tag, address);
    }

    /// A listener was removed.
    pub(crate) fn remove_listener(&self, tag: ListenerTag) {
        self.listeners.lock().expect("no holder panics").remove(&tag);
    }

    /// The listeners.
    pub(crate) fn listeners(&self) -> Vec<ListenerAddress> {
        self.listeners.lock().expect("no holder panics").clone().into_iter().collect()
    }

    /// The traffic of one more reactor.
    pub(crate) fn new_traffic(&self) -> Arc<MemcachedTraffic> {
        let traffic = Arc::<MemcachedTraffic>::default();
        self.traffic.lock().expect("no holder panics").push(Arc::clone(&traffic));
        traffic
    }

    fn sums(&self) -> ListenerStats {
        let traffic = self.traffic.lock().expect("no holder panics");
        ListenerStats {
            connection_count: self.count.get(),
            connection_count_max: self.count_max,
            connection_total_count: self.admitted_count.get(),
            rejected_count: self.rejected_count.get(),
            received_bytes: traffic.iter().map(|traffic| traffic.received_bytes.get()).sum(),
            sent_bytes: traffic.iter().map(|traffic| traffic.sent_bytes.get()).sum(),
            idle_closed_count: traffic.iter().map(|traffic| traffic.idle_closed_count.get()).sum(),
            authentication_count: traffic.iter().map(|traffic| traffic.authentication_count.get()).sum(),
            authentication_failed_count: traffic
                .iter()
                .map(|traffic| traffic.authentication_failed_count.get())
                .sum(),
            tls_failed_count: traffic.iter().map(|traffic| traffic.tls_failed_count.get()).sum(),
            thread_count: traffic.len() as u64,
            ..ListenerStats::default()
        }
    }

    /// The statistics since the last [`reset`](Self::reset).
    pub(crate) fn stats(&self) -> ListenerStats {
        let (now, before) = (self.sums(), self.reset_at.lock().expect("no holder panics"));
        ListenerStats {
            connection_total_count: now.connection_total_count - before.connection_total_count,
            rejected_count: now.rejected_count - before.rejected_count,
            received_bytes: now.received_bytes - before.received_bytes,
            sent_bytes: now.sent_bytes - before.sent_bytes,
            idle_closed_count: now.idle_closed_count - before.idle_closed_count,
            authentication_count: now.authentication_count - before.authentication_count,
            authentication_failed_count: now.authentication_failed_count - before.authentication_failed_count,
            tls_failed_count: now.tls_failed_count - before.tls_failed_count,
            ..now
        }
    }

    /// Restarts the counts of [`stats`](Self::stats) at zero.
    pub(crate) fn reset(&self) {
        *self.reset_at.lock().expect("no holder panics") = self.sums();
    }
}

/// The counter of one reason.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    count: u64,
    /// Of these, not logged yet.
    unlogged: u64,
    quiet_until_ns: u64,
}

impl Admission {
    /// Connections that are counted as open.
    pub(crate) fn held_count(&self) -> usize {
        self.hosts.held() + self.memcached.held()
    }

    pub(crate) fn new(limits: &Limits, audit: Recorder) -> Self {
        let (memcached_max, memcached_per_address_max) =
            (limits.memcached_connection_count_max, limits.memcached_connection_count_per_address_max);
        Self {
            hosts: PerAddress::new(limits.connection_count_max, limits.connection_count_per_address_max),
            memcached: PerAddress::new(memcached_max, memcached_per_address_max),
            memcached_counters: Arc::new(MemcachedCounters {
                count_max: memcached_max.into(),
                ..MemcachedCounters::default()
            }),
            tallies: BTreeMap::new(),
            audit,
        }
    }

    /// The counters of memcached connections.
    pub(crate) fn memcached_counters(&self) -> Arc<MemcachedCounters> {
        Arc::clone(&self.memcached_counters)
    }

    /// Whether a connection is admitted. It counts until [`on_gone`](Self::on_gone).
    pub(crate) fn admit(&mut self, now_ns: u64, visitor: Visitor, peer: Option<SocketAddr>) -> bool {
        let admitted = self.of_kind(visitor).admit(peer.map(|peer| peer.ip()));
        if visitor == Visitor::Memcached {
            let counters = &self.memcached_counters;
            let counter = if admitted.is_ok() { &counters.admitted_count } else { &counters.rejected_count };
            counter.add(1);
            counters.count.set(self.memcached.count.into());
        }
        let Err(full) = admitted else { return true };
        let reason = match (visitor, full) {
            (Visitor::Host, Full::All) => reason::TOO_MANY,
            (Visitor::Host, Full::OfAddress) => reason::TOO_MANY_OF_ADDRESS,
            (Visitor::Memcached, Full::All) => reason::TOO_MANY_MEMCACHED,
            (Visitor::Memcached, Full::OfAddress) => reason::TOO_MANY_MEMCACHED_OF_ADDRESS,
        };
        self.on_complaint(now_ns, peer, reason, None);
        false
    }

    /// An admitted connection has ended.
    pub(crate) fn on_gone(&mut self, visitor: Visitor, address: Option<IpAddr>) {
        self.of_kind(visitor).on_gone(address);
        self.memcached_counters.count.set(self.memcached.count.into());
    }

    fn of_kind(&mut self, visitor: Visitor) -> &mut PerAddress {
        match visitor {
            Visitor::Host => &mut self.hosts,
            Visitor::Memcached => &mut self.memcached,
        }
    }

    /// A connection was refused or closed for this reason.
    pub(crate) fn on_complaint(
        &mut self,
        now_ns: u64,
        peer: Option<SocketAddr>,
        reason: &'static str,
        detail: Option<&str>,
    ) {
        // Events of their own say with more detail which host or client has not authenticated.
        let is_of_trust =
            [reason::NOT_AUTHENTICATED, reason::NOT_AUTHENTICATED_AGAIN, reason::MEMCACHED_NOT_AUTHENTICATED]
                .contains(&reason);
        if !is_of_trust {
            self.audit.record(|| Event::ConnectionRefused {
                peer,
                reason,
                detail: detail.map(|detail| shortened(detail).to_owned()),
            });
        }
        let tally = self.tallies.entry(reason).or_default();
        tally.count += 1;
        tally.unlogged += 1;
        if now_ns < tally.quiet_until_ns {
            return;
        }
        let (count, total) = (tally.unlogged, tally.count);
        if is_of_trust {
            tracing::warn!(?peer, reason, detail, count, total, "ended or refused connections");
        } else {
            tracing::info!(?peer, reason, detail, count, total, "ended or refused connections");
        }
        (tally.unlogged, tally.quiet_until_ns) = (0, now_ns + LOG_NS);
    }

    /// A connection from an address that its listener does not allow was closed.
    pub(crate) fn on_forbidden_address(&mut self, now_ns: u64, visitor: Visitor, peer: Option<SocketAddr>) {
        if visitor == Visitor::Memcached {
            self.memcached_counters.rejected_count.add(1);
        }
        self.on_complaint(now_ns, peer, reason::ADDRESS, None);
    }

    /// A memcached client has authenticated, or has sent a wrong user or password.
    pub(crate) fn on_memcached_client(&mut self, now_ns: u64, client: OfMemcached, is_known: bool) {
        if is_known {
            return self.audit.record(|| Event::MemcachedAuthenticated(client));
        }
        let detail = client.user.as_ref().map(|user| format!("user {}", quoted(user)));
        self.on_complaint(now_ns, client.peer, reason::MEMCACHED_NOT_AUTHENTICATED, detail.as_deref());
        self.audit.record(|| Event::MemcachedAuthenticationFailed(client));
    }

    /// Counters of memcached connections since the start, whatever their clients have reset.
    pub(crate) fn memcached_state(&self) -> MemcachedState {
        let sums = self.memcached_counters.sums();
        MemcachedState {
            received_bytes: sums.received_bytes,
            sent_bytes: sums.sent_bytes,
            accepted_count: sums.connection_total_count,
            rejected_count: sums.rejected_count,
            idle_closed_count: sums.idle_closed_count,
            authentication_count: sums.authentication_count,
            authentication_failed_count: sums.authentication_failed_count,
            tls_failed_count: sums.tls_failed_count,
        }
    }

    pub(crate) fn state(&self) -> ConnectionsState {
        ConnectionsState {
            count: self.hosts.count,
            memcached_count: self.memcached.count,
            complaints: self
                .tallies
                .iter()
                .map(|(reason, tally)| ((*reason).to_owned(), tally.count))
                .collect(),
        }
    }
}

/// The first 512 bytes of a detail, which may have text of the peer: enough for two names.
fn shortened(detail: &str) -> &str {
    const BYTES_MAX: usize = 512;
    detail.get(..detail.floor_char_boundary(BYTES_MAX)).unwrap_or(detail)
}

/// Which limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Full {
    All,
    OfAddress,
}

impl PerAddress {
    /// Open connections, in total or by address, whichever are more.
    fn held(&self) -> usize {
        let by_address: u32 = self.by_address.values().sum();
        self.count.max(by_address) as usize
    }

    fn new(count_max: u32, count_per_address_max: u32) -> Self {
        Self { count_max, count_per_address_max, count: 0, by_address: BTreeMap::new() }
    }

    fn admit(&mut self, address: Option<IpAddr>) -> Result<(), Full> {
        let source = address.map(Source::from);
        let of_address = source.and_then(|source| self.by_address.get(&source)).copied().unwrap_or(0);
        if self.count >= self.count_max {
            return Err(Full::All);
        }
        if of_address >= self.count_per_address_max {
            return Err(Full::OfAddress);
        }
        self.count += 1;
        if let Some(source) = source {
            self.by_address.insert(source, of_address + 1);
        }
        Ok(())
    }

    fn on_gone(&mut self, address: Option<IpAddr>) {
        debug_assert!(self.count > 0, "a connection is gone that was never there");
        self.count = self.count.saturating_sub(1);
        let Some(source) = address.map(Source::from) else { return };
        if let Some(count) = self.by_address.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::message::Visitor::{Host, Memcached};

    const SECOND: u64 = 1_000_000_000;

    fn peer(host: u8) -> Option<SocketAddr> {
        Some(SocketAddr::from(([192, 0, 2, host], 4000)))
    }

    fn admission(count_max: u32, count_per_address_max: u32) -> Admission {
        Admission::new(
            &Limits {
                connection_count_max: count_max,
                connection_count_per_address_max: count_per_address_max,
                ..Limits::default()
            },
            Recorder::default(),
        )
    }

    #[test]
    fn reasons_of_trust_are_those_that_are_counted() {
        let reasons = [
            reason::ADDRESS,
            reason::NOT_AUTHENTICATED,
            reason::NOT_AUTHENTICATED_AGAIN,
            reason::MEMCACHED_NOT_AUTHENTICATED,
            reason::MEMCACHED_TOO_LATE,
            reason::TLS,
            reason::IN_CLEAR,
            reason::UNKNOWN_IDENTITY,
            reason::OTHER_IDENTITY,
        ];
        assert_eq!(reasons, crate::messages::state::TRUST_REASONS);
    }

    #[test]
    fn one_address_cannot_take_everything() {
        let mut admission = admission(4, 2);
        assert!(admission.admit(0, Host, peer(1)) && admission.admit(0, Host, peer(1)));
        assert!(!admission.admit(0, Host, peer(1)));
        assert!(admission.admit(0, Host, peer(2)) && admission.admit(0, Host, None));
        assert!(!admission.admit(0, Host, peer(3)), "in total");
        admission.on_gone(Host, peer(1).map(|peer| peer.ip()));
        assert!(admission.admit(0, Host, peer(1)));
        let complaints = [(reason::TOO_MANY.to_owned(), 1), (reason::TOO_MANY_OF_ADDRESS.to_owned(), 1)];
        let state = ConnectionsState { count: 4, memcached_count: 0, complaints: complaints.into() };
        assert_eq!(admission.state(), state);
    }

    #[test]
    fn memcached_connections_are_counted_apart() {
        let mut admission = Admission::new(
            &Limits {
                memcached_connection_count_max: 3,
                memcached_connection_count_per_address_max: 2,
                ..Limits::default()
            },
            Recorder::default(),
        );
        assert!((0..8).all(|_| admission.admit(0, Host, peer(1))));
        assert!(admission.admit(0, Memcached, peer(1)) && admission.admit(0, Memcached, peer(1)));
        assert!(!admission.admit(0, Memcached, peer(1)));
        assert!(admission.admit(0, Memcached, peer(2)) && !admission.admit(0, Memcached, peer(3)));
        admission.on_gone(Memcached, peer(2).map(|peer| peer.ip()));
        let state = admission.state();
        assert_eq!((state.count, state.memcached_count), (8, 2));
        let complaints = [reason::TOO_MANY_MEMCACHED, reason::TOO_MANY_MEMCACHED_OF_ADDRESS];
        assert_eq!(state.complaints, complaints.map(|reason| (reason.to_owned(), 1)).into());
        let counters = admission.memcached_counters();
        let counts = [&counters.count, &counters.admitted_count, &counters.rejected_count];
        assert_eq!(counts.map(Counter::get), [2, 3, 2]);
    }

    #[test]
    fn a_connection_that_ended_leaves_no_trace() {
        let mut admission = admission(2, 2);
        for host in 0..=255 {
            assert!(admission.admit(0, Host, peer(host)));
            admission.on_gone(Host, peer(host).map(|peer| peer.ip()));
        }
        assert!(admission.hosts.by_address.is_empty());
        assert_eq!(admission.state(), ConnectionsState::default());
    }

    #[test]
    fn each_complaint_counts_and_few_are_logged() {
        let mut admission = admission(2, 2);
        for at in 0..1000 {
            admission.on_complaint(at * SECOND / 100, peer(1), "reads nothing", None);
        }
        assert_eq!(admission.state().complaints["reads nothing"], 1000);
        let tally = admission.tallies["reads nothing"];
        assert_eq!((tally.unlogged, tally.quiet_until_ns), (999, LOG_NS), "logged once in ten seconds");
        admission.on_complaint(LOG_NS, peer(1), "reads nothing", None);
        assert_eq!(admission.tallies["reads nothing"].unlogged, 0);
    }
}
