//! Which opening of each namespace's storage the flushes of a host cover.
//!
//! A namespace that was closed and reopened may have lost writes that were answered before and not flushed. Each
//! association that existed then must learn of it, whatever it did meanwhile: its first Flush after the reopening
//! fails, and the next one covers what was written since.
//!
//! ```text
//! closed(n) ──Flush──▶ fails: the host knows ─┐
//!     │ reopened                              │ reopened
//!     ▼                                       ▼
//! open(n + 1) ──first Flush──▶ fails ──▶ open(n + 1) ──Flush──▶ covers what was written since
//! ```
//!
//! The lane on which the Flush failed may end while the association lives on, for a host that connects each queue by
//! itself. It may not have received the answer then, and sends the Flush again: the next one fails as well, unless other
//! lanes have reported the loss too, each by a Flush of the closed namespace. A lane that ends a minute later takes
//! nothing back: a host without an answer for that long has given the queue up before.
// Input from a host must never cause a panic: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use store::Generation;

use crate::objects::subsystem::NamespaceId;

/// After the answer to a Flush, the time in which its host may not have received it, nor have given it up, ns.
const UNSURE_NS: u64 = 60_000_000_000;

/// Flush state that the lanes of one association share. Touched by Flush only, and only for namespaces that were closed
/// at least once.
#[derive(Debug, Default)]
pub struct FlushEpochs {
    /// The host's knowledge of each namespace; a missing entry stands for the first generation.
    known: Mutex<BTreeMap<NamespaceId, Known>>,
}

/// A lane of the association: its reactor, and its place there.
pub(crate) type LanePlace = (u16, u32);

#[derive(Debug, Default)]
struct Known {
    /// The generation from which on flushes cover all that this host has written.
    covered: Generation,
    /// The generation that was covered before the loss was reported.
    before: Generation,
    /// The lanes whose Flush failed and so reported the loss, each with the time of its first one, ns. Empty once the host
    /// certainly has one of the answers.
    told: BTreeMap<LanePlace, u64>,
}

impl FlushEpochs {
    /// The association begins now: it has written nothing in earlier generations.
    pub(crate) fn begin(&self, namespace: NamespaceId, generation: Generation) {
        if !generation.is_first() {
            self.lock().insert(namespace, Known { covered: generation.open(), ..Known::default() });
        }
    }

    /// Whether a Flush that arrives now on this lane may succeed. If not, its failure reports the loss to the host.
    pub(crate) fn may_flush(
        &self,
        namespace: NamespaceId,
        generation: Generation,
        lane: LanePlace,
        now_ns: u64,
    ) -> bool {
        if generation.is_first() {
            return true;
        }
        let mut all = self.lock();
        let known = all.entry(namespace).or_default();
        let had = known.covered;
        if had < generation.open() {
            let told = BTreeMap::from([(lane, now_ns)]);
            *known = Known { covered: generation.open(), before: had, told };
        } else if generation.is_closed() && !known.told.is_empty() {
            // A closed namespace refuses every Flush, and each of these failures reports the loss.
            known.told.entry(lane).or_insert(now_ns);
        }
        // A closed namespace refuses the Flush itself.
        generation.is_closed() || had >= generation
    }

    /// A lane has ended: the host may not have received the answer to its failed Flush.
    pub(crate) fn on_lane_ended(&self, lane: LanePlace, now_ns: u64) {
        for known in self.lock().values_mut() {
            let Some(at_ns) = known.told.remove(&lane) else { continue };
            if now_ns.saturating_sub(at_ns) >= UNSURE_NS {
                known.told.clear();
            } else if known.told.is_empty() {
                known.covered = known.before;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NamespaceId, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::{BlockStore, Contents, FileKind, FileSettings, FileStore};

    const NAMESPACE: NamespaceId = NamespaceId(1);
    const LANE: LanePlace = (0, 1);
    const OTHER_LANE: LanePlace = (1, 1);
    const NOW_NS: u64 = 5_000_000_000;

    /// A namespace whose storage can be reopened.
    fn store() -> FileStore {
        FileStore::simulated(reactor::File::simulated(0), &store::Geometry::new(512, 8))
    }

    #[test]
    fn each_association_has_one_flush_fail_after_each_reopening() {
        let store = store();
        let (one, other) = (FlushEpochs::default(), FlushEpochs::default());
        assert!(one.may_flush(NAMESPACE, store.generation(), LANE, NOW_NS));
        for _ in 0..2 {
            store.reopen().unwrap();
            for epochs in [&one, &other] {
                assert!(!epochs.may_flush(NAMESPACE, store.generation(), LANE, NOW_NS));
                assert!(epochs.may_flush(NAMESPACE, store.generation(), LANE, NOW_NS));
            }
        }
        store.reopen().unwrap();
        store.reopen().unwrap();
        assert!(!one.may_flush(NAMESPACE, store.generation(), LANE, NOW_NS), "two at once are told as one");
        assert!(one.may_flush(NAMESPACE, store.generation(), LANE, NOW_NS));
        assert!(
            one.may_flush(NamespaceId(2), Generation::default(), LANE, NOW_NS),
            "another namespace is not concerned"
        );
    }

    #[test]
    fn an_association_that_begins_after_the_reopening_has_lost_nothing() {
        let store = store();
        store.reopen().unwrap();
        let epochs = FlushEpochs::default();
        epochs.begin(NAMESPACE, store.generation());
        assert!(epochs.may_flush(NAMESPACE, store.generation(), LANE, NOW_NS));
        store.reopen().unwrap();
        assert!(!epochs.may_flush(NAMESPACE, store.generation(), LANE, NOW_NS));
    }

    #[test]
    fn what_a_lane_has_told_does_not_count_once_it_ends() {
        let store = store();
        store.reopen().unwrap();
        let epochs = FlushEpochs::default();
        assert!(!epochs.may_flush(NAMESPACE, store.generation(), LANE, NOW_NS));
        epochs.on_lane_ended(OTHER_LANE, NOW_NS);
        assert!(epochs.may_flush(NAMESPACE, store.generation(), OTHER_LANE, NOW_NS));
        epochs.on_lane_ended(LANE, NOW_NS);
        assert!(
            !epochs.may_flush(NAMESPACE, store.generation(), OTHER_LANE, NOW_NS),
            "the answer may be lost with it"
        );
        epochs.on_lane_ended(LANE, NOW_NS);
        assert!(epochs.may_flush(NAMESPACE, store.generation(), LANE, NOW_NS));
        // Only the end of the lane whose Flush failed makes another Flush fail.
        store.reopen().unwrap();
        assert!(!epochs.may_flush(NAMESPACE, store.generation(), LANE, NOW_NS));
        epochs.on_lane_ended(OTHER_LANE, NOW_NS);
        assert!(epochs.may_flush(NAMESPACE, store.generation(), LANE, NOW_NS));
    }

    #[test]
    fn every_refusal_of_a_closed_namespace_tells() {
        let directory = tempfile::tempdir().unwrap();
        let (path, elsewhere) = (directory.path().join("disk"), directory.path().join("elsewhere"));
        let store = FileStore::open(&FileSettings {
            path: path.clone(),
            kind: FileKind::Regular,
            contents: Contents::Blocks,
            bytes: Some(64 << 10),
            block_bytes: Some(512),
            is_read_only: false,
            is_sparse: true,
        })
        .unwrap();
        let epochs = FlushEpochs::default();
        let may_flush = |lane| epochs.may_flush(NAMESPACE, store.generation(), lane, NOW_NS);
        std::fs::rename(&path, &elsewhere).unwrap();
        store.reopen().unwrap_err();
        assert!(store.generation().is_closed());
        // The storage refuses both.
        assert!(may_flush(LANE) && may_flush(OTHER_LANE));
        epochs.on_lane_ended(LANE, NOW_NS);
        std::fs::rename(&elsewhere, &path).unwrap();
        store.reopen().unwrap();
        assert!(may_flush(LANE), "the failure on the other lane has told");
        epochs.on_lane_ended(OTHER_LANE, NOW_NS);
        assert!(!may_flush(LANE), "its answer may be lost with the lane");
        assert!(may_flush(LANE));
        // The lane that told last ends first.
        std::fs::rename(&path, &elsewhere).unwrap();
        store.reopen().unwrap_err();
        assert!(may_flush(LANE) && may_flush(OTHER_LANE));
        epochs.on_lane_ended(OTHER_LANE, NOW_NS);
        std::fs::rename(&elsewhere, &path).unwrap();
        store.reopen().unwrap();
        assert!(may_flush(LANE), "the failure on this lane has told");
    }

    #[test]
    fn a_lane_that_ends_a_minute_later_takes_nothing_back() {
        for (later_ns, may_flush) in [(UNSURE_NS - 1, false), (UNSURE_NS, true)] {
            let store = store();
            store.reopen().unwrap();
            let epochs = FlushEpochs::default();
            assert!(!epochs.may_flush(NAMESPACE, store.generation(), LANE, NOW_NS));
            epochs.on_lane_ended(LANE, NOW_NS + later_ns);
            assert_eq!(epochs.may_flush(NAMESPACE, store.generation(), OTHER_LANE, NOW_NS), may_flush);
        }
    }

    #[test]
    fn a_lane_that_knows_an_older_opening_takes_no_epoch_back() {
        let (store, epochs) = (store(), FlushEpochs::default());
        store.reopen().unwrap();
        let before = store.generation();
        store.reopen().unwrap();
        assert!(!epochs.may_flush(NAMESPACE, store.generation(), LANE, NOW_NS));
        assert!(
            epochs.may_flush(NAMESPACE, before, LANE, NOW_NS)
                && epochs.may_flush(NAMESPACE, store.generation(), LANE, NOW_NS)
        );
    }
}
