//! Who is let in, and why connections end that their hosts did not end: counted for the whole target, beside its control plane.
//!
//! Every reactor says when a connection is gone and when it had to end one. Each reason has a counter, which the operator can read,
//! and a line in the log, at most one every few seconds however many such connections there are.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use proto::Violation;

use crate::limits::Limits;
use crate::operator::ConnectionsState;

/// How often a reason is said at most, ns.
const SAY_NS: u64 = 10_000_000_000;

/// Why a connection was not let in, or was ended, in words that are counted by. Deadlines have words of their own
/// (`Lane::deadline`).
pub(crate) mod reason {
    pub(crate) const TOO_MANY: &str = "too many connections";
    pub(crate) const TOO_MANY_OF_ADDRESS: &str = "too many connections from one address";
    pub(crate) const MADE_ROOM: &str = "made room: too many connections without a queue";
    pub(crate) const DOES_NOT_CONNECT: &str = "commands in place of Connect";
    pub(crate) const DATA_DIGEST: &str = "data digest does not match";
}

/// What a violation is counted as.
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

/// Connections that are there, and what was wrong with others.
#[derive(Debug)]
pub(crate) struct Admission {
    count_max: u32,
    count_per_address_max: u32,
    count: u32,
    by_address: BTreeMap<IpAddr, u32>,
    tallies: BTreeMap<&'static str, Tally>,
}

/// What is known of one reason.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    count: u64,
    /// Of these, not said yet.
    unsaid: u64,
    quiet_until_ns: u64,
}

impl Admission {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            count_max: limits.connection_count_max,
            count_per_address_max: limits.connection_count_per_address_max,
            count: 0,
            by_address: BTreeMap::new(),
            tallies: BTreeMap::new(),
        }
    }

    /// Whether a connection is let in. It counts until [`on_gone`](Self::on_gone).
    pub(crate) fn admit(&mut self, now_ns: u64, peer: Option<SocketAddr>) -> bool {
        let address = peer.map(|peer| peer.ip());
        let of_address = address.and_then(|address| self.by_address.get(&address)).copied().unwrap_or(0);
        if self.count >= self.count_max {
            self.on_complaint(now_ns, peer, reason::TOO_MANY);
            return false;
        }
        if of_address >= self.count_per_address_max {
            self.on_complaint(now_ns, peer, reason::TOO_MANY_OF_ADDRESS);
            return false;
        }
        self.count += 1;
        if let Some(address) = address {
            self.by_address.insert(address, of_address + 1);
        }
        true
    }

    /// A connection that was let in is gone.
    pub(crate) fn on_gone(&mut self, address: Option<IpAddr>) {
        debug_assert!(self.count > 0, "a connection is gone that was never there");
        self.count = self.count.saturating_sub(1);
        let Some(address) = address else { return };
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
    }

    /// Something was wrong with a connection.
    pub(crate) fn on_complaint(&mut self, now_ns: u64, peer: Option<SocketAddr>, reason: &'static str) {
        let tally = self.tallies.entry(reason).or_default();
        tally.count += 1;
        tally.unsaid += 1;
        if now_ns < tally.quiet_until_ns {
            return;
        }
        tracing::info!(
            ?peer,
            reason,
            count = tally.unsaid,
            total = tally.count,
            "ended or refused connections"
        );
        (tally.unsaid, tally.quiet_until_ns) = (0, now_ns + SAY_NS);
    }

    pub(crate) fn state(&self) -> ConnectionsState {
        ConnectionsState {
            count: self.count,
            complaints: self
                .tallies
                .iter()
                .map(|(reason, tally)| ((*reason).to_owned(), tally.count))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn peer(host: u8) -> Option<SocketAddr> {
        Some(SocketAddr::from(([192, 0, 2, host], 4000)))
    }

    fn admission(count_max: u32, count_per_address_max: u32) -> Admission {
        Admission::new(&Limits {
            connection_count_max: count_max,
            connection_count_per_address_max: count_per_address_max,
            ..Limits::default()
        })
    }

    #[test]
    fn one_address_cannot_take_everything() {
        let mut admission = admission(4, 2);
        assert!(admission.admit(0, peer(1)) && admission.admit(0, peer(1)));
        assert!(!admission.admit(0, peer(1)));
        assert!(admission.admit(0, peer(2)) && admission.admit(0, None));
        assert!(!admission.admit(0, peer(3)), "all in all");
        admission.on_gone(peer(1).map(|peer| peer.ip()));
        assert!(admission.admit(0, peer(1)));
        let complaints = [(reason::TOO_MANY.to_owned(), 1), (reason::TOO_MANY_OF_ADDRESS.to_owned(), 1)];
        assert_eq!(admission.state(), ConnectionsState { count: 4, complaints: complaints.into() });
    }

    #[test]
    fn what_is_gone_leaves_no_trace() {
        let mut admission = admission(2, 2);
        for host in 0..=255 {
            assert!(admission.admit(0, peer(host)));
            admission.on_gone(peer(host).map(|peer| peer.ip()));
        }
        assert!(admission.by_address.is_empty());
        assert_eq!(admission.state(), ConnectionsState::default());
    }

    #[test]
    fn each_complaint_counts_and_few_are_said() {
        let mut admission = admission(2, 2);
        for at in 0..1000 {
            admission.on_complaint(at * SECOND / 100, peer(1), "reads nothing");
        }
        assert_eq!(admission.state().complaints["reads nothing"], 1000);
        let tally = admission.tallies["reads nothing"];
        assert_eq!((tally.unsaid, tally.quiet_until_ns), (999, SAY_NS), "said once in ten seconds");
        admission.on_complaint(SAY_NS, peer(1), "reads nothing");
        assert_eq!(admission.tallies["reads nothing"].unsaid, 0);
    }
}
