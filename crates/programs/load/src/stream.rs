//! The operations of one lane, one after the other, without end: a few nanoseconds each, nothing allocated.

use crate::keys::{Distribution, Keys};
use crate::pattern::{Kind, Mix, Order, Pattern};
use crate::random::{Prng, scale};

/// Consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First LBA.
    pub first: u64,
    /// Number of blocks.
    pub blocks: u64,
}

impl Region {
    /// The LBA behind the last.
    pub const fn end(&self) -> u64 {
        self.first + self.blocks
    }
}

/// One operation to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Kind of the operation.
    pub kind: Kind,
    /// First LBA.
    pub slba: u64,
    /// Number of blocks, at least 1.
    pub blocks: u32,
}

/// Percent of choices.
const HUNDRED: usize = 100;

/// The endless operations of one lane; a function of description and seed alone.
#[derive(Clone, Debug)]
pub struct Stream {
    cursor: Cursor,
    kinds: Kinds,
    /// Blocks by hundredth.
    sizes: Box<[u32; HUNDRED]>,
    keys: Keys,
    order: Order,
    first: u64,
    end: u64,
    alignment_blocks: u64,
}

/// Everything that changes from one operation to the next.
#[derive(Clone, Debug)]
struct Cursor {
    prng: Prng,
    /// Next LBA of a sequential order.
    next: u64,
}

/// Source of the kind.
#[derive(Clone, Debug)]
enum Kinds {
    /// Kind by hundredth.
    Drawn(Box<[Kind; HUNDRED]>),
    /// Kind by window.
    Windows(Windows),
}

/// A window of writes, then the same as reads.
#[derive(Clone, Debug)]
struct Windows {
    /// Of the present window.
    kind: Kind,
    /// Operations that the present window still takes.
    left: u32,
    /// Operations of a window.
    length: u32,
    /// Start of the writes, and of the reads.
    start: Cursor,
}

impl Windows {
    /// Counts one operation, turning to the next window when this one is full.
    #[inline]
    fn advance(&mut self, cursor: &mut Cursor) {
        if self.left == 0 {
            self.left = self.length;
            if self.kind == Kind::Write {
                self.kind = Kind::Read;
                cursor.clone_from(&self.start);
            } else {
                self.kind = Kind::Write;
                self.start.clone_from(cursor);
            }
        }
        self.left -= 1;
    }
}

impl Stream {
    /// `sizes` are blocks with percentages that add up to 100; the region holds the largest; `window` is the
    /// number of writes before their reads in [`Mix::WriteThenRead`].
    #[expect(clippy::too_many_arguments, reason = "one caller, the plan, which has checked them")]
    pub(crate) fn new(
        pattern: Pattern,
        sizes: &[(u32, u8)],
        alignment_blocks: u32,
        region: Region,
        distribution: Distribution,
        window: u32,
        seed: u64,
        prng: Prng,
    ) -> Self {
        let largest = sizes.iter().map(|&(blocks, _)| blocks).max().unwrap_or(1);
        let alignment = u64::from(alignment_blocks);
        let places = (region.blocks - u64::from(largest)) / alignment + 1;
        let cursor = Cursor { prng, next: region.first };
        let shares = pattern.shares();
        let kinds = match pattern.mix {
            Mix::WriteThenRead => Kinds::Windows(Windows {
                kind: Kind::Write,
                left: window,
                length: window,
                start: cursor.clone(),
            }),
            Mix::Only(_) | Mix::Shares(_) => Kinds::Drawn(hundredths(&[
                (Kind::Read, shares.read),
                (Kind::Write, shares.write),
                (Kind::Trim, shares.trim),
                (Kind::WriteZeroes, shares.write_zeroes),
            ])),
        };
        Self {
            cursor,
            kinds,
            sizes: hundredths(sizes),
            keys: Keys::new(distribution, places, seed),
            order: pattern.order,
            first: region.first,
            end: region.end(),
            alignment_blocks: alignment,
        }
    }

    /// The next operation.
    #[inline]
    pub fn step(&mut self) -> Step {
        if let Kinds::Windows(windows) = &mut self.kinds {
            windows.advance(&mut self.cursor);
        }
        let random = self.cursor.prng.draw();
        let kind = match &self.kinds {
            Kinds::Drawn(kinds) => kinds[hundredth(random << 32)],
            Kinds::Windows(windows) => windows.kind,
        };
        let blocks = self.sizes[hundredth(random)];
        let slba = match self.order {
            Order::Sequential => {
                let fits = self.end - self.cursor.next >= u64::from(blocks);
                let slba = if fits { self.cursor.next } else { self.first };
                self.cursor.next = slba + u64::from(blocks);
                slba
            }
            Order::Random => self.first + self.keys.draw(&mut self.cursor.prng) * self.alignment_blocks,
        };
        Step { kind, slba, blocks }
    }
}

impl Iterator for Stream {
    type Item = Step;

    /// Never ends.
    #[inline]
    fn next(&mut self) -> Option<Step> {
        Some(self.step())
    }
}

/// A table in which each value stands as often as its percentage; the last one fills the rest to 100.
fn hundredths<T: Copy>(values: &[(T, u8)]) -> Box<[T; HUNDRED]> {
    let mut table = Box::new([values[values.len() - 1].0; HUNDRED]);
    let all = values.iter().flat_map(|&(value, percent)| std::iter::repeat_n(value, percent.into()));
    for (place, value) in table.iter_mut().zip(all) {
        *place = value;
    }
    table
}

/// A uniform index into a table of hundredths; the upper bits of `random` decide.
#[inline]
fn hundredth(random: u64) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "below 100")]
    let index = scale(random, HUNDRED as u64).0 as usize;
    index
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::workload::{Deallocated, Geometry, Plan, Shares, Sizes, Workload};

    fn plan(blocks: u64, workload: &Workload) -> Plan {
        let geometry = Geometry {
            lba_bytes: 512,
            block_count: blocks,
            transfer_limit_bytes: None,
            deallocated: Deallocated::Zeroes,
        };
        workload.plan(&geometry, 1).unwrap()
    }

    fn pattern(name: &str) -> Pattern {
        Pattern::named(name, Some(70)).unwrap()
    }

    #[test]
    fn a_sequential_lane_covers_its_region_and_begins_again() {
        let workload = Workload { pattern: pattern("write"), lanes: 2, ..Workload::default() };
        let mut stream = plan(160, &workload).stream(1);
        let places: Vec<u64> = stream.by_ref().take(11).map(|step| step.slba).collect();
        assert_eq!(places, [80, 88, 96, 104, 112, 120, 128, 136, 144, 152, 80]);
        assert_eq!(stream.step(), Step { kind: Kind::Write, slba: 88, blocks: 8 });
    }

    #[test]
    fn a_random_lane_reaches_every_place() {
        let mut hits = [0; 20];
        for step in plan(160, &Workload::default()).stream(0).take(2_000) {
            hits[usize::try_from(step.slba / 8).unwrap()] += 1;
        }
        assert!(hits.iter().all(|hits| (60..150).contains(hits)), "{hits:?}");
    }

    #[test]
    fn kinds_and_sizes_come_in_their_shares() {
        let shares = Shares { read: 50, write: 30, trim: 15, write_zeroes: 5 };
        let pattern = Pattern { order: Order::Random, mix: Mix::Shares(shares) };
        let sizes = Sizes::mixed(vec![(4096, 80), (65_536, 20)]).unwrap();
        let workload = Workload { pattern, sizes, ..Workload::default() };
        let (mut kinds, mut large) = ([0u32; 4], 0u32);
        for step in plan(1 << 20, &workload).stream(0).take(100_000) {
            kinds[step.kind.index()] += 1;
            large += u32::from(step.blocks == 128);
        }
        for (count, percent) in kinds.into_iter().zip([50, 30, 15, 5]).chain([(large, 20)]) {
            assert!(count.abs_diff(percent * 1000) < 600, "{kinds:?} {large}");
        }
    }

    #[test]
    fn each_window_of_writes_is_read_back_in_order() {
        for name in ["verify", "randverify"] {
            let sizes = "512/50:8k/50".parse().unwrap();
            let workload = Workload { pattern: pattern(name), depth: 20, sizes, ..Workload::default() };
            let steps: Vec<Step> = plan(10_000, &workload).stream(0).take(40 * 6).collect();
            for windows in steps.chunks(80) {
                let (writes, reads) = windows.split_at(40);
                assert!(writes.iter().all(|step| step.kind == Kind::Write));
                assert!(reads.iter().all(|step| step.kind == Kind::Read));
                let places = |steps: &[Step]| steps.iter().map(|s| (s.slba, s.blocks)).collect::<Vec<_>>();
                assert_eq!(places(writes), places(reads));
            }
            assert_ne!(steps[0].slba, steps[80].slba);
        }
    }

    #[test]
    fn lanes_of_one_seed_go_different_ways_and_repeat() {
        let plan = plan(1 << 20, &Workload { lanes: 2, ..Workload::default() });
        let steps = |lane| plan.stream(lane).take(100).collect::<Vec<_>>();
        assert_eq!(steps(0), steps(0));
        assert_ne!(steps(0), steps(1));
    }

    fn any_workload() -> impl Strategy<Value = Workload> {
        let names =
            prop::sample::select(vec!["read", "randrw", "rw", "randwrite", "verify", "randverify", "trim"]);
        let distribution = prop_oneof![
            Just(Distribution::Uniform),
            (0.1f64..3.0).prop_map(|theta| Distribution::Zipf { theta })
        ];
        let sizes = (1u32..40, 1u32..40, 0u8..=100);
        (names, distribution, sizes, 1u32..6, any::<u64>(), 0u64..500).prop_map(
            |(name, distribution, (a, b, percent), lanes, seed, first)| Workload {
                pattern: pattern(name),
                sizes: Sizes::mixed(vec![(a * 512, percent), (b * 512, 100 - percent)]).unwrap(),
                distribution,
                lanes,
                seed,
                range: Some((first, 1_000)),
                verify: true,
                ..Workload::default()
            },
        )
    }

    proptest! {
        /// Verifying lanes never leave their own region, and regions are disjoint (see `workload`).
        #[test]
        fn every_operation_stays_in_the_region_of_its_lane(workload in any_workload()) {
            let plan = plan(2_000, &workload);
            for lane in 0..workload.lanes {
                let region = plan.region(lane);
                for step in plan.stream(lane).take(300) {
                    prop_assert!(step.blocks > 0);
                    prop_assert!(step.slba >= region.first, "{:?} {:?}", step, region);
                    prop_assert!(step.slba + u64::from(step.blocks) <= region.end(), "{:?} {:?}", step, region);
                }
            }
        }
    }
}
