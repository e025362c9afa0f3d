//! Caravans sent without a copy, which the kernel may still read, and the notices that release them.

use std::collections::VecDeque;

use crate::caravan::load::Load;

/// The caravans that the kernel may still read.
#[derive(Debug)]
pub(super) struct Kept<P> {
    /// Number of the next send without a copy, as the kernel counts them.
    pub(super) next_send: u32,
    /// Sends of the caravan that is leaving.
    pub(super) leaving: Sends,
    /// Caravans that are sent completely, oldest first.
    pub(super) loads: VecDeque<(Sends, Load<P>)>,
    /// Empty loads for reuse.
    pub(super) spare: Vec<Load<P>>,
}

/// The headers and payloads of one caravan that the kernel may still read.
pub type KeptLoad<P> = (Vec<u8>, Vec<P>);

/// Sends of one caravan without a copy, numbered without a gap.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sends {
    pub(super) first: u32,
    pub(super) count: u32,
    /// Sends without a notice so far.
    pub(super) awaited: u32,
}

/// Message of the assertions that guard kept bytes: the peer would receive what replaces them.
pub(super) const KEPT: &str = "bytes that the kernel may still read are not changed or freed";

/// Most empty loads held for reuse.
pub(super) const SPARE_COUNT_MAX: usize = 4;

impl<P> Default for Kept<P> {
    fn default() -> Self {
        Self { next_send: 0, leaving: Sends::default(), loads: VecDeque::new(), spare: Vec::new() }
    }
}

impl<P> Kept<P> {
    pub(super) fn invariants(&self, leaving: &Load<P>) {
        assert!(self.leaving.count == 0 || !leaving.is_empty(), "sends of a caravan that is on its way");
        // Numbers wrap: seen from the next one, older sends are further away.
        let mut distance_max = u32::MAX;
        for sends in self.loads.iter().map(|(sends, _)| sends).chain([&self.leaving]) {
            assert!(sends.awaited <= sends.count, "{sends:?}: a notice for each send at most");
            if sends.count > 0 {
                let distance = self.next_send.wrapping_sub(sends.first);
                assert!(sends.count <= distance && distance <= distance_max, "{sends:?}: sends in order");
                distance_max = distance.saturating_sub(sends.count);
            }
        }
        for (sends, load) in &self.loads {
            load.invariants();
            assert!(sends.count > 0 && !load.is_empty(), "only what was sent without a copy is kept");
            // Payloads sent by copy before the first send without one are gone.
            let mut kept = load.payloads.iter().skip_while(|payload| payload.is_none());
            assert!(kept.all(Option::is_some), "a caravan is kept from its first send without a copy on");
        }
        assert!(self.spare.len() <= SPARE_COUNT_MAX && self.spare.iter().all(Load::is_empty));
    }
}

impl Sends {
    /// Counts off the sends among `first..=last`. Numbers wrap; far fewer than half of them are ever awaited.
    pub(super) fn on_notice(&mut self, first: u32, last: u32) {
        let Some(end) = self.count.checked_sub(1) else { return };
        // Relative to our first send.
        let from = first.wrapping_sub(self.first).cast_signed();
        let to = last.wrapping_sub(self.first).cast_signed();
        let end = i32::try_from(end).unwrap_or(i32::MAX);
        if to >= 0 && from <= end && from <= to {
            let beyond_first = to.min(end).abs_diff(from.max(0));
            self.awaited = self.awaited.saturating_sub(beyond_first.saturating_add(1));
        }
    }
}
