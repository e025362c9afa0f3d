//! The reservation station: queues of operations on keys whose values are being fetched.
//!
//! In memory an operation completes before the next begins, so an operation finds the results of the previous one in
//! the cache and never waits. Fetching a value from a disk or another core takes as long as many operations. Operations
//! on its key wait here meanwhile, and all run in order once the value is there, with one fetch before and one
//! write-back after them; operations on other keys overtake.
//!
//! ```text
//!                  ┌─ key not reserved ─▶ Fetch: the caller fetches, the operation waits
//! on_operation ────┼─ reserved ─────────▶ Waits
//!                  └─ no room ──────────▶ Full: ask again after the next on_value
//! on_value ─▶ all that wait, in order; the key is free
//! ```

use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The result of submitting an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival<O> {
    /// The first on its key: fetch the value; the operation waits for it.
    Fetch,
    /// It waits for a value that is being fetched.
    Waits,
    /// There is no room: the operation is returned.
    Full(O),
}

/// Waiting operations, by key.
#[derive(Debug)]
pub struct Station<O> {
    waiting: HashMap<Box<[u8]>, Vec<O>>,
    operation_count: usize,
    operation_count_max: usize,
    /// Emptied lists, for reuse.
    spare: Vec<Vec<O>>,
}

impl<O> Station<O> {
    /// An empty station with room for `operation_count_max` operations.
    #[must_use]
    pub fn new(operation_count_max: usize) -> Self {
        Self { waiting: HashMap::new(), operation_count: 0, operation_count_max, spare: Vec::new() }
    }

    /// Number of waiting operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.operation_count
    }

    /// Whether no operation waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.operation_count == 0
    }

    /// Whether a key's value is being fetched. If so, every operation on it must come here.
    #[must_use]
    pub fn is_reserved(&self, key: &[u8]) -> bool {
        self.waiting.contains_key(key)
    }

    /// Adds an operation on a key whose value is absent or reserved.
    pub fn on_operation(&mut self, key: &[u8], operation: O) -> Arrival<O> {
        if self.operation_count == self.operation_count_max {
            return Arrival::Full(operation);
        }
        self.operation_count += 1;
        match self.waiting.entry(key.into()) {
            Entry::Occupied(mut entry) => {
                entry.get_mut().push(operation);
                Arrival::Waits
            }
            Entry::Vacant(entry) => {
                let mut list = self.spare.pop().unwrap_or_default();
                list.push(operation);
                entry.insert(list);
                Arrival::Fetch
            }
        }
    }

    /// Runs all operations waiting for a value, in order, once it is present or its fetch has failed. Returns their
    /// number.
    pub fn on_value(&mut self, key: &[u8], mut run: impl FnMut(O)) -> usize {
        let Some(mut list) = self.waiting.remove(key) else { return 0 };
        let count = list.len();
        self.operation_count -= count;
        list.drain(..).for_each(&mut run);
        self.spare.push(list);
        count
    }

    /// Removes all waiting operations, because no value will come: per key in order.
    pub fn drain(&mut self) -> impl Iterator<Item = O> {
        self.operation_count = 0;
        std::mem::take(&mut self.waiting).into_values().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, VecDeque};

    /// A tier that returns a value some steps after the request, and counts requests.
    #[derive(Default)]
    struct Tier {
        values: BTreeMap<u8, u64>,
        fetching: VecDeque<(u32, u8)>,
        read_count: usize,
        written_count: usize,
    }

    proptest! {
        /// Operations on a key run in order of arrival, each exactly once; a burst costs one read and one write.
        #[test]
        fn operations_on_a_key_keep_their_order_and_share_its_fetch(
            arrivals in prop::collection::vec((0u8..6, 1u64..100, 0u32..5), 1..300),
            room in 1usize..64,
            latency in 1u32..20,
        ) {
            let mut tier = Tier::default();
            let mut station = Station::new(room);
            let mut expected: BTreeMap<u8, u64> = BTreeMap::new();
            let (mut now, mut done, mut fetches) = (0, Vec::new(), 0);
            // (7v + operand) depends on the order of operations.
            let apply = |value: u64, operand: u64| value.wrapping_mul(7).wrapping_add(operand);
            let finish = |tier: &mut Tier, station: &mut Station<(usize, u64)>, done: &mut Vec<usize>, until: u32| {
                while let Some(&(at, key)) = tier.fetching.front() {
                    if at > until {
                        break;
                    }
                    tier.fetching.pop_front();
                    tier.read_count += 1;
                    let mut value = tier.values.get(&key).copied().unwrap_or(0);
                    station.on_value(&[key], |(number, operand)| {
                        value = apply(value, operand);
                        done.push(number);
                    });
                    tier.values.insert(key, value);
                    tier.written_count += 1;
                }
            };
            for (number, &(key, operand, wait)) in arrivals.iter().enumerate() {
                now += wait;
                finish(&mut tier, &mut station, &mut done, now);
                let mut operation = (number, operand);
                loop {
                    match station.on_operation(&[key], operation) {
                        Arrival::Fetch => {
                            fetches += 1;
                            tier.fetching.push_back((now + latency, key));
                            break;
                        }
                        Arrival::Waits => break,
                        Arrival::Full(back) => {
                            operation = back;
                            now = tier.fetching.front().expect("something is on its way").0;
                            finish(&mut tier, &mut station, &mut done, now);
                        }
                    }
                }
                let value = expected.entry(key).or_default();
                *value = apply(*value, operand);
            }
            finish(&mut tier, &mut station, &mut done, u32::MAX);
            prop_assert!(station.is_empty());
            prop_assert_eq!(&tier.values, &expected);
            prop_assert_eq!((tier.read_count, tier.written_count), (fetches, fetches));
            done.sort_unstable();
            prop_assert_eq!(done, (0..arrivals.len()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_thousand_operations_on_a_hot_key_cost_one_fetch_and_others_overtake() {
        let mut station = Station::new(2000);
        assert_eq!(station.on_operation(b"hot", 0), Arrival::Fetch);
        for number in 1..1000 {
            assert_eq!(station.on_operation(b"hot", number), Arrival::Waits);
        }
        assert_eq!(station.on_operation(b"cold", 1000), Arrival::Fetch);
        let mut ran = Vec::new();
        assert_eq!(station.on_value(b"cold", |number| ran.push(number)), 1);
        assert_eq!(station.on_value(b"hot", |number| ran.push(number)), 1000);
        assert_eq!(ran[0], 1000);
        assert!(ran[1..].is_sorted() && station.is_empty() && !station.is_reserved(b"hot"));
    }
}
