//! The rights of hosts to the second namespace, as the operator changes them, and the results that commands may have.
//!
//! ```text
//!            ordered      every reactor serves it
//! before ───────┼──────────────────┼─────────────▶
//!               └── either right ──┘   the new one
//! ```

use subsystem::access::Right;

/// The rights of all hosts, from the first to the present ones.
#[derive(Debug)]
pub(crate) struct Rights {
    changes: Vec<Change>,
    /// When the operator gives all hosts every right again, ns.
    restored_ns: u64,
}

#[derive(Debug)]
struct Change {
    /// When every reactor serves it, ns; `u64::MAX` until that is known.
    settled_ns: u64,
    /// By host.
    rights: Vec<Right>,
}

impl Rights {
    /// Every host has every right.
    pub(crate) fn new(host_count: usize) -> Self {
        let rights = vec![Right::Write; host_count];
        Self { changes: vec![Change { settled_ns: 0, rights }], restored_ns: 0 }
    }

    /// The present rights, by host.
    pub(crate) fn present(&self) -> &[Right] {
        let last = self.changes.last().expect("the first is never removed");
        &last.rights
    }

    /// Whether every host has every right.
    pub(crate) fn are_whole(&self) -> bool {
        self.present().iter().all(|right| *right == Right::Write)
    }

    /// Other rights are ordered: two bits of `which` for each host. All are to be restored at `restored_ns`.
    pub(crate) fn on_ordered(&mut self, which: u64, restored_ns: u64) {
        let right = |host: usize| match which >> (2 * host) & 3 {
            0 => Right::None,
            1 => Right::Read,
            _ => Right::Write,
        };
        let rights = (0..self.present().len()).map(right).collect();
        self.changes.push(Change { settled_ns: u64::MAX, rights });
        self.restored_ns = restored_ns;
    }

    /// It is time to restore all rights, unless others were ordered meanwhile. Returns whether that is ordered.
    pub(crate) fn on_restored(&mut self, now_ns: u64) -> bool {
        if now_ns < self.restored_ns || self.are_whole() {
            return false;
        }
        self.on_ordered(u64::MAX, now_ns);
        true
    }

    /// Every reactor serves the ordered rights by this time.
    pub(crate) fn on_settled(&mut self, settled_ns: u64) {
        for change in self.changes.iter_mut().filter(|change| change.settled_ns == u64::MAX) {
            change.settled_ns = settled_ns;
        }
    }

    /// Whether a command of a host that began at `begin_ns` and ends now may have been served under a right.
    pub(crate) fn may_have_been(&self, host: usize, is_it: impl Fn(Right) -> bool, begin_ns: u64) -> bool {
        let next_settled = self.changes.iter().skip(1).map(|change| change.settled_ns).chain([u64::MAX]);
        self.changes
            .iter()
            .zip(next_settled)
            .any(|(change, until_ns)| is_it(change.rights[host]) && begin_ns <= until_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_order_and_service_either_right_may_hold() {
        let mut rights = Rights::new(2);
        let may = |rights: &Rights, host, wanted, begin_ns| {
            rights.may_have_been(host, |right| right == wanted, begin_ns)
        };
        assert!(may(&rights, 1, Right::Write, 5) && !may(&rights, 1, Right::None, 5));
        // Host 0 may write, host 1 sees nothing.
        rights.on_ordered(0b0011, 100);
        assert!(may(&rights, 1, Right::None, 5) && may(&rights, 1, Right::Write, 50), "not served yet");
        rights.on_settled(60);
        assert!(may(&rights, 1, Right::Write, 60) && !may(&rights, 1, Right::Write, 61));
        assert!(!may(&rights, 0, Right::None, 61) && !rights.are_whole());
        assert!(!rights.on_restored(99) && rights.on_restored(100) && rights.are_whole());
        assert!(may(&rights, 1, Right::None, 70) && may(&rights, 1, Right::Write, 70));
        rights.on_settled(120);
        assert!(!may(&rights, 1, Right::None, 121));
    }
}
