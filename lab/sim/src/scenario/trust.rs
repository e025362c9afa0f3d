//! Digests, authentication and TLS of a run.

use std::time::Duration;

use security::group::Group;
use subsystem::config::TlsPolicy;
use wire::pdu::Digests;

use super::{Fault, Scenario};
use crate::random::Random;

/// Commands of a run with TLS, at most.
const TLS_COMMAND_COUNT_MAX: u64 = 2000;

/// Digests, authentication and TLS.
#[derive(Clone, Debug)]
pub(crate) struct SecurityScenario {
    pub(crate) digests: Digests,
    /// Hosts authenticate with this group, and see the target's secret.
    pub(crate) authentication: Option<Group>,
    /// Interval at which they do so again, ms; 0 for once only.
    pub(crate) reauthenticate_ms: u32,
    /// Whether hosts and target speak TLS: those with even numbers, where it is allowed.
    pub(crate) tls: TlsPolicy,
    /// Attempts of each host to connect with a key that the target does not have, before those with the right one, and
    /// attempts without TLS before these, where TLS is required.
    pub(crate) other_key_count: u8,
    pub(crate) clear_count: u8,
    /// Sends before which a host changes its key of the connection, per million.
    pub(crate) key_updates: u32,
}

impl SecurityScenario {
    /// Draws digests, and nothing else.
    pub(super) fn draw(r: &mut Random) -> Self {
        let all = Digests::all();
        Self {
            digests: r.pick(&[Digests::empty(), Digests::HEADER, Digests::DATA, all, all]),
            authentication: None,
            reauthenticate_ms: 0,
            tls: TlsPolicy::Off,
            other_key_count: 0,
            clear_count: 0,
            key_updates: 0,
        }
    }
}

impl Scenario {
    /// Whether hosts authenticate. An exponentiation takes milliseconds, so most do so without.
    pub(super) fn draw_authentication(&mut self) {
        let mut random = Random::new(self.seed, 20);
        if random.one_in(5) {
            let group = if random.one_in(50) { Group::Ffdhe2048 } else { Group::Null };
            self.security.authentication = Some(group);
        }
        let mut random = Random::new(self.seed, 71);
        if self.security.authentication == Some(Group::Null) && random.one_in(2) {
            self.security.reauthenticate_ms = random.scaled(2, 2000) as u32;
        }
    }

    /// Interval at which hosts authenticate again.
    pub(crate) fn reauthenticate(&self) -> Option<Duration> {
        let interval_ms = Some(self.security.reauthenticate_ms).filter(|ms| *ms > 0)?;
        Some(Duration::from_millis(interval_ms.into()))
    }

    /// Whether hosts and target speak TLS, and its events. It takes much of the processor's time.
    pub(super) fn draw_tls(&mut self) {
        let mut random = Random::new(self.seed, 70);
        let r = &mut random;
        if !r.one_in(6) || self.load.command_count > TLS_COMMAND_COUNT_MAX {
            return;
        }
        self.security.tls = r.pick(&[
            TlsPolicy::Allowed,
            TlsPolicy::Required,
            TlsPolicy::Required,
            TlsPolicy::Required,
            TlsPolicy::Concatenated,
        ]);
        self.hosts.has_leaver &= self.security.tls == TlsPolicy::Allowed;
        if self.security.tls == TlsPolicy::Concatenated {
            // An exponentiation takes milliseconds.
            self.security.authentication = Some(Group::Ffdhe2048);
            (self.hosts.count, self.hosts.scout_count) = (1, 0);
            self.faults.retain(|(_, fault)| !matches!(fault, Fault::Bar { .. }));
        } else {
            self.security.other_key_count = if r.one_in(4) { r.between(1, 2) as u8 } else { 0 };
            self.security.clear_count =
                if self.security.tls == TlsPolicy::Required && r.one_in(4) { 1 } else { 0 };
            self.draw_key_changes(r);
        }
        self.security.key_updates = if r.one_in(2) { r.scaled(1000, 200_000) as u32 } else { 0 };
        if self.network.corrupt == 0 && r.one_in(3) {
            // A host that comes and goes has neither TLS nor digests.
            self.hosts.has_leaver = false;
            self.network.corrupt = (r.scaled(100, 5000) as u32).min(self.network.piece_max as u32 * 20);
        }
    }

    /// Reloads that change the target's key. A host that is refused begins anew, and may find another machine then.
    fn draw_key_changes(&mut self, r: &mut Random) {
        if self.disk_count() <= 1 && r.one_in(2) {
            let count = r.between(1, 3);
            self.add_faults(r, count, |_| Fault::TlsKey);
        }
    }
}
