//! A bound on the number of series: the first hosts and namespaces have series of their own, the others one together.

use std::collections::{BTreeMap, BTreeSet};

/// Values that are added up, of which the counters never decrease while their owner exists.
pub(crate) trait Sums: Copy + Default {
    /// Adds those of others.
    fn merge(&mut self, other: &Self);

    /// Their owner has gone: only what was counted is left.
    fn settle(&mut self);

    /// A number that never decreases as long as no counter does.
    fn progress(&self) -> u64;
}

/// Which owners have series of their own, at most `COUNT_MAX`, and the sum of the others.
///
/// An owner keeps its place until it goes. What an owner of the rest has counted stays in the sum when it goes, so that the
/// sum never decreases.
#[derive(Debug)]
pub(crate) struct Bounded<K, V, const COUNT_MAX: usize> {
    own: BTreeSet<K>,
    rest: BTreeMap<K, V>,
    gone: V,
}

impl<K: Ord + Clone, V: Sums, const COUNT_MAX: usize> Default for Bounded<K, V, COUNT_MAX> {
    fn default() -> Self {
        Self { own: BTreeSet::new(), rest: BTreeMap::new(), gone: V::default() }
    }
}

impl<K: Ord + Clone, V: Sums, const COUNT_MAX: usize> Bounded<K, V, COUNT_MAX> {
    /// Follows the present owners. Returns the sum of those without series of their own, if there ever were any.
    pub(crate) fn follow(&mut self, present: &BTreeMap<K, V>) -> Option<V> {
        self.own.retain(|key| present.contains_key(key));
        let gone = &mut self.gone;
        self.rest.retain(|key, last| {
            let is_present = present.contains_key(key);
            if !is_present {
                last.settle();
                gone.merge(last);
            }
            is_present
        });
        for (key, value) in present {
            if self.own.contains(key) {
                continue;
            }
            match self.rest.get_mut(key) {
                Some(last) => {
                    // Another owner of the same name counts from zero.
                    if value.progress() < last.progress() {
                        last.settle();
                        self.gone.merge(last);
                    }
                    *last = *value;
                }
                None if self.own.len() < COUNT_MAX => drop(self.own.insert(key.clone())),
                None => drop(self.rest.insert(key.clone(), *value)),
            }
        }
        let mut sum = self.gone;
        self.rest.values().for_each(|value| sum.merge(value));
        (!self.rest.is_empty() || sum.progress() > 0).then_some(sum)
    }

    /// Whether an owner has series of its own.
    pub(crate) fn is_own(&self, key: &K) -> bool {
        self.own.contains(key)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl Sums for u64 {
        fn merge(&mut self, other: &Self) {
            *self += other;
        }

        fn settle(&mut self) {}

        fn progress(&self) -> u64 {
            *self
        }
    }

    #[test]
    fn the_first_have_series_of_their_own_until_they_go() {
        let mut bounded = Bounded::<&str, u64, 2>::default();
        assert_eq!(bounded.follow(&BTreeMap::from([("a", 1), ("b", 2)])), None);
        assert_eq!(bounded.follow(&BTreeMap::from([("a", 1), ("b", 2), ("c", 3)])), Some(3));
        assert_eq!(bounded.follow(&BTreeMap::from([("b", 2), ("c", 4)])), Some(4), "c stays where it is");
        assert_eq!(bounded.follow(&BTreeMap::from([("b", 2), ("c", 4), ("d", 5)])), Some(4));
        assert!(bounded.is_own(&"d") && !bounded.is_own(&"c"));
        assert_eq!(bounded.follow(&BTreeMap::new()), Some(4), "what c has counted");
    }

    proptest! {
        /// Whoever comes, goes and comes back: the sum of the rest never decreases, and has all that was counted there.
        #[test]
        fn the_sum_of_the_rest_never_decreases(
            steps in proptest::collection::vec((0u8..6, 0u64..10, any::<bool>()), 1..80),
        ) {
            let mut bounded = Bounded::<u8, u64, 2>::default();
            let (mut present, mut before) = (BTreeMap::<u8, u64>::new(), 0);
            for (key, more, stays) in steps {
                if stays {
                    *present.entry(key).or_default() += more;
                } else {
                    present.remove(&key);
                }
                let sum = bounded.follow(&present).unwrap_or_default();
                prop_assert!(sum >= before);
                prop_assert!(bounded.own.len() <= 2);
                let of_rest: u64 = present.iter().filter(|(key, _)| !bounded.is_own(key)).map(|(_, value)| value).sum();
                prop_assert!(sum >= of_rest);
                before = sum;
            }
        }
    }
}
