//! The second namespace of a run: RAM that outlives the target, behind filters.

use super::{Fault, MS, SECOND, Scenario, US};
use crate::random::Random;

/// The second namespace, if there is one.
#[derive(Clone, Debug, Default)]
pub(crate) struct SecondScenario {
    /// It in the words of a configuration; `None` without it.
    pub(crate) spec: Option<String>,
    /// Its blocks; 0 without it. In the model they follow those of the first.
    pub(crate) block_count: u64,
    pub(crate) block_bytes: u32,
    /// The longest time by which a filter delays an operation, ns.
    pub(crate) delay_ns_max: u64,
}

impl Scenario {
    /// Copies and a second namespace. They have draws of their own, so that the others stay what they were.
    pub(super) fn draw_more(&mut self) {
        let mut random = Random::new(self.seed, 5);
        let r = &mut random;
        if r.one_in(2) {
            self.load.mix.copy = 1 + r.below(15) as u32;
        }
        if !r.one_in(2) {
            return;
        }
        self.second.block_count = r.between(4, 32);
        let mut filters = String::new();
        if r.one_in(2) {
            let longest_us = r.scaled(1, if self.is_prompt { 500 } else { 50_000 });
            filters += &format!("&delay=0us-{longest_us}us");
            self.second.delay_ns_max = longest_us * US;
        }
        if r.one_in(3) {
            filters += &format!("&error=write:1/{},seed={}", r.between(5, 100), r.below(1000));
        }
        if r.one_in(4) {
            filters += &format!("&error=read:1/{}", r.between(5, 100));
        }
        if r.one_in(4) {
            filters += &format!("&limit={}iops", r.scaled(2000, 100_000));
        }
        if r.one_in(8) {
            filters += "&trace";
        }
        let other = if self.first.block_bytes == 512 { 4096 } else { 512 };
        self.second.block_bytes = r.pick(&[self.first.block_bytes, other, other]);
        let bytes = self.second.block_count * u64::from(self.second.block_bytes);
        // Deallocate gives back pages, of which a small namespace has some.
        self.second.spec = Some(format!("ram:{bytes}?small&lba={}{filters}", self.second.block_bytes));
        if r.one_in(3) {
            let count = r.between(1, 3);
            self.add_faults(r, count, |r| Fault::Remove {
                away_ns: r.scaled(US, 2 * SECOND),
                returns: !r.one_in(4),
            });
        }
    }

    /// A second namespace that cannot be reached at times, and hosts that wait for it that long. Again, the others stay
    /// what they were.
    pub(super) fn draw_paths(&mut self) {
        let mut random = Random::new(self.seed, 10);
        let r = &mut random;
        let Some(second) = self.second.spec.as_mut().filter(|_| r.one_in(3)) else { return };
        let kind = r.pick(&["", "", "read:", "write:", "flush:"]);
        *second += &format!("&error={kind}{}%,as=unreachable,seed={}", r.between(1, 90), r.below(1000));
        self.hosts.path_timeout_ns = r.pick(&[0, 50 * MS, 2 * SECOND, 30 * SECOND]);
    }

    /// Hosts that may only read the second namespace for a while, or do not see it.
    pub(super) fn draw_rights(&mut self) {
        let mut random = Random::new(self.seed, 65);
        let r = &mut random;
        if self.second.spec.is_some() && r.one_in(4) {
            let count = r.between(1, 4);
            self.add_faults(r, count, |r| Fault::Rights {
                which: r.below(1 << 32),
                away_ns: r.scaled(US, 2 * SECOND),
            });
        }
    }
}
