//! Authentication and TLS of a run.

use std::time::Duration;

use security::group::Group;
use subsystem::config::TlsPolicy;

use super::{Fault, Scenario};
use crate::random::Random;

/// Commands of a run with TLS, at most.
const TLS_COMMAND_COUNT_MAX: u64 = 2000;

impl Scenario {
    /// Whether hosts authenticate. An exponentiation takes milliseconds, so most do so without.
    pub(super) fn draw_authentication(&mut self) {
        let mut random = Random::new(self.seed, 20);
        if random.one_in(5) {
            let group = if random.one_in(50) { Group::Ffdhe2048 } else { Group::Null };
            self.authentication = Some(group);
        }
        let mut random = Random::new(self.seed, 71);
        if self.authentication == Some(Group::Null) && random.one_in(2) {
            self.reauthenticate_ms = random.scaled(2, 2000) as u32;
        }
    }

    /// Interval at which hosts authenticate again.
    pub(crate) fn reauthenticate(&self) -> Option<Duration> {
        let interval_ms = Some(self.reauthenticate_ms).filter(|ms| *ms > 0)?;
        Some(Duration::from_millis(interval_ms.into()))
    }

    /// Whether hosts and target speak TLS, and its events. It takes much of the processor's time.
    pub(super) fn draw_tls(&mut self) {
        let mut random = Random::new(self.seed, 70);
        let r = &mut random;
        if !r.one_in(6) || self.command_count > TLS_COMMAND_COUNT_MAX {
            return;
        }
        self.tls = r.pick(&[
            TlsPolicy::Allowed,
            TlsPolicy::Required,
            TlsPolicy::Required,
            TlsPolicy::Required,
            TlsPolicy::Concatenated,
        ]);
        self.has_leaver &= self.tls == TlsPolicy::Allowed;
        if self.tls == TlsPolicy::Concatenated {
            // An exponentiation takes milliseconds.
            self.authentication = Some(Group::Ffdhe2048);
            (self.host_count, self.scout_count) = (1, 0);
            self.faults.retain(|(_, fault)| !matches!(fault, Fault::Bar { .. }));
        } else {
            self.other_key_count = if r.one_in(4) { r.between(1, 2) as u8 } else { 0 };
            self.clear_count = if self.tls == TlsPolicy::Required && r.one_in(4) { 1 } else { 0 };
            self.draw_key_changes(r);
        }
        self.key_updates = if r.one_in(2) { r.scaled(1000, 200_000) as u32 } else { 0 };
        if self.network.corrupt == 0 && r.one_in(3) {
            // A host that comes and goes has neither TLS nor digests.
            self.has_leaver = false;
            self.network.corrupt = (r.scaled(100, 5000) as u32).min(self.network.piece_max as u32 * 20);
        }
    }

    /// Reloads that change the target's key. A host that is refused begins anew, and may find another machine then.
    fn draw_key_changes(&mut self, r: &mut Random) {
        if self.disk_count() > 1 || !r.one_in(2) {
            return;
        }
        for _ in 0..r.between(1, 3) {
            self.faults.push((r.below(self.command_count), Fault::TlsKey));
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }
}
