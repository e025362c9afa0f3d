//! The description of a load, its text forms, and the check against a namespace.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

pub use crate::invalid::Invalid;
use crate::keys::{Distribution, THETA_LIMIT};
pub use crate::pattern::{Kind, Mix, Order, Pattern, Shares};
use crate::random::Prng;
use crate::stream::{Region, Stream};

/// Sizes of operations in bytes, each with its percentage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(Vec<(u32, u8)>);

impl Sizes {
    /// Every operation is of `bytes`.
    pub fn one(bytes: u32) -> Self {
        Self(vec![(bytes, 100)])
    }

    /// Sizes in bytes and their percentages, which add up to 100.
    ///
    /// # Errors
    /// A size of zero, or percentages that do not add up.
    pub fn mixed(sizes: Vec<(u32, u8)>) -> Result<Self, Invalid> {
        let sum: u32 = sizes.iter().map(|&(_, percent)| u32::from(percent)).sum();
        if sum != 100 {
            return Err(Invalid::SizeShares { sum });
        }
        if sizes.iter().any(|&(bytes, _)| bytes == 0) {
            return Err(Invalid::Zero("the size of an operation"));
        }
        Ok(Self(sizes))
    }

    /// Sizes in bytes and their percentages.
    pub fn entries(&self) -> &[(u32, u8)] {
        &self.0
    }

    /// The largest size in bytes.
    pub fn largest_bytes(&self) -> u32 {
        self.0.iter().map(|&(bytes, _)| bytes).max().unwrap_or(0)
    }
}

impl FromStr for Sizes {
    type Err = Invalid;

    /// One size (`4k`), or a mix with percentages (`4k/70:64k/30`).
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let bytes = |text: &str| {
            let bytes = parse_bytes(text)?;
            u32::try_from(bytes).map_err(|_| Invalid::Above {
                what: "the size of an operation",
                value: bytes,
                limit: u32::MAX.into(),
            })
        };
        if !text.contains('/') {
            return Self::mixed(vec![(bytes(text)?, 100)]);
        }
        let entry = |part: &str| {
            let (size, percent) = part.split_once('/').ok_or_else(|| Invalid::SizeMix(text.to_owned()))?;
            Ok((bytes(size)?, percent.parse().map_err(|_| Invalid::SizeMix(text.to_owned()))?))
        };
        Self::mixed(text.split(':').map(entry).collect::<Result<_, _>>()?)
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, &(bytes, percent)) in self.0.iter().enumerate() {
            f.write_str(if i > 0 { ":" } else { "" })?;
            f.write_str(&format_bytes(bytes.into()))?;
            if self.0.len() > 1 {
                write!(f, "/{percent}")?;
            }
        }
        Ok(())
    }
}

/// Reads a number of bytes: digits, and perhaps `k`, `m`, `g` or `t` for powers of 1024 (`4k`, `4K`, `4KiB`).
///
/// # Errors
/// Anything else, or more than 64 bits.
pub fn parse_bytes(text: &str) -> Result<u64, Invalid> {
    let invalid = || Invalid::Size(text.to_owned());
    let lower = text.trim().to_ascii_lowercase();
    let unit_at = lower.find(|c: char| !c.is_ascii_digit()).unwrap_or(lower.len());
    let (digits, unit) = lower.split_at(unit_at);
    let shift = match unit {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(invalid()),
    };
    let number: u64 = digits.parse().map_err(|_| invalid())?;
    number.checked_mul(1 << shift).ok_or_else(invalid)
}

/// The shortest text that [`parse_bytes`] reads back as `bytes`.
pub fn format_bytes(bytes: u64) -> String {
    let (mut number, mut unit) = (bytes, "");
    for next in ["k", "m", "g", "t"] {
        if number == 0 || number % 1024 != 0 {
            break;
        }
        (number, unit) = (number / 1024, next);
    }
    format!("{number}{unit}")
}

impl FromStr for Distribution {
    type Err = Invalid;

    /// `uniform`, or `zipf:THETA`; `zipf` alone means 0.99.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let theta = match text.split_once(':') {
            None if text == "uniform" || text == "random" => return Ok(Self::Uniform),
            None if text == "zipf" => Some(0.99),
            Some(("zipf", theta)) => theta.parse().ok(),
            _ => None,
        };
        match theta {
            Some(theta) if theta > 0.0 && theta <= THETA_LIMIT => Ok(Self::Zipf { theta }),
            _ => Err(Invalid::Distribution(text.to_owned())),
        }
    }
}

/// Spacing of the moments of an open loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// All gaps alike.
    Constant,
    /// Exponential gaps, as of many independent callers.
    Poisson,
}

impl FromStr for Arrival {
    type Err = Invalid;

    /// `constant` (fio: `linear`) or `poisson`.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        match text {
            "constant" | "linear" => Ok(Self::Constant),
            "poisson" => Ok(Self::Poisson),
            _ => Err(Invalid::Arrival(text.to_owned())),
        }
    }
}

/// When the next operation starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// As soon as fewer than the depth are in flight.
    Closed,
    /// At scheduled moments, whether or not the target keeps up.
    Open {
        /// Operations per second of all lanes together.
        rate_per_s: f64,
        /// Spacing of the moments.
        arrival: Arrival,
    },
}

/// Which blocks each lane works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regions {
    /// All lanes work on the whole range; sequential ones all begin at its start.
    Shared,
    /// Each lane has an equal part of the range for itself.
    Own,
}

/// The end of the load, by whichever limit comes first. Counted after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stop {
    /// Time.
    pub runtime: Option<Duration>,
    /// Operations started, of all lanes together.
    pub operations: Option<u64>,
    /// Bytes of the operations started, of all lanes together.
    pub bytes: Option<u64>,
}

/// A load on one namespace.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Order and mix of the operations.
    pub pattern: Pattern,
    /// Their sizes.
    pub sizes: Sizes,
    /// Operations in flight per lane, at most. In an open loop those due beyond it wait.
    pub depth: u32,
    /// Number of lanes.
    pub lanes: u32,
    /// First LBA and number of blocks to work on; the whole namespace if not given.
    pub range: Option<(u64, u64)>,
    /// Shared or own regions. If not given: own for sequential order and for verification, else shared.
    pub regions: Option<Regions>,
    /// How random places are drawn.
    pub distribution: Distribution,
    /// Closed or open loop.
    pub pace: Pace,
    /// The limits that end it.
    pub stop: Stop,
    /// Time before anything is recorded.
    pub warm_up: Duration,
    /// Whether writes carry self-describing blocks and reads are checked; implied by [`Mix::WriteThenRead`].
    pub verify: bool,
    /// Whether every block of the range is written once before the warm-up, unmeasured.
    pub fill: bool,
    /// Start of all random choices.
    pub seed: u64,
}

impl Default for Workload {
    /// Random reads of 4 KiB on one lane at depth 32 for ten seconds after one of warm-up.
    fn default() -> Self {
        Self {
            pattern: Pattern { order: Order::Random, mix: Mix::Only(Kind::Read) },
            sizes: Sizes::one(4096),
            depth: 32,
            lanes: 1,
            range: None,
            regions: None,
            distribution: Distribution::Uniform,
            pace: Pace::Closed,
            stop: Stop { runtime: Some(Duration::from_secs(10)), ..Stop::default() },
            warm_up: Duration::from_secs(1),
            verify: false,
            fill: false,
            seed: 1,
        }
    }
}

/// Content of a block after a deallocation that took place (DLFEAT, bits 2:0).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deallocated {
    /// Unspecified: zeroes, ones or the previous content.
    #[default]
    NotReported,
    /// Zeroes.
    Zeroes,
    /// Ones in every bit.
    Ones,
}

/// Properties of the namespace and its controller that the plan needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of one block.
    pub lba_bytes: u32,
    /// Blocks of the namespace.
    pub block_count: u64,
    /// Most bytes that one read or write may move (MDTS); `None` if the controller sets no limit.
    pub transfer_limit_bytes: Option<u32>,
    /// Content of deallocated blocks.
    pub deallocated: Deallocated,
}

/// Largest depth per lane and largest number of lanes, as queue sizes and queue identifiers go.
const QUEUE_LIMIT: u32 = 65_535;
/// Most blocks of one command: its length field has 16 bits.
const COMMAND_BLOCKS_LIMIT: u64 = 65_536;

impl Workload {
    /// Checks the description against a namespace and divides it among the lanes. `run_id` marks the blocks of this run
    /// when it verifies; two runs never use the same (see [`crate::verify::new_run_id`]).
    ///
    /// # Errors
    /// Why the load is not possible, in words for the user.
    pub fn plan(&self, geometry: &Geometry, run_id: u64) -> Result<Plan, Invalid> {
        self.check()?;
        let (first, count) = self.range.unwrap_or((0, geometry.block_count));
        let end = first.saturating_add(count);
        if end > geometry.block_count {
            return Err(Invalid::PastEnd { first, end, block_count: geometry.block_count });
        }
        if self.verifies()
            && (!(512..=65_536).contains(&geometry.lba_bytes) || !geometry.lba_bytes.is_multiple_of(8))
        {
            return Err(Invalid::VerifyBlock { lba_bytes: geometry.lba_bytes });
        }
        let sizes = self
            .sizes
            .entries()
            .iter()
            .map(|&(bytes, percent)| Ok((geometry.command_blocks(bytes)?, percent)))
            .collect::<Result<Vec<_>, _>>()?;
        let alignment_blocks = sizes.iter().map(|&(blocks, _)| blocks).reduce(divisor).unwrap_or(1);
        let plan = Plan {
            workload: self.clone(),
            geometry: *geometry,
            run_id,
            range: Region { first, blocks: count },
            sizes,
            alignment_blocks,
        };
        let needed_blocks = u64::from(plan.command_blocks_max());
        let lanes = if plan.regions() == Regions::Own { u64::from(self.lanes) } else { 1 };
        if plan.region(0).blocks < needed_blocks {
            return Err(Invalid::RegionTooSmall { blocks: count, lanes, needed_blocks });
        }
        Ok(plan)
    }

    /// Whether blocks are stamped and checked.
    pub fn verifies(&self) -> bool {
        self.verify || self.pattern.mix == Mix::WriteThenRead
    }

    /// The checks that need no namespace.
    fn check(&self) -> Result<(), Invalid> {
        for (what, value) in [("the depth", self.depth), ("the number of lanes", self.lanes)] {
            if value == 0 {
                return Err(Invalid::Zero(what));
            }
            if value > QUEUE_LIMIT {
                return Err(Invalid::Above { what, value: value.into(), limit: QUEUE_LIMIT.into() });
            }
        }
        let Shares { read, write, trim, write_zeroes } = self.pattern.shares();
        let sum = [read, write, trim, write_zeroes].map(u32::from).iter().sum();
        if sum != 100 {
            return Err(Invalid::Shares { sum });
        }
        if let Distribution::Zipf { theta } = self.distribution
            && !(theta > 0.0 && theta <= THETA_LIMIT)
        {
            return Err(Invalid::Distribution(self.distribution.to_string()));
        }
        if let Pace::Open { rate_per_s, .. } = self.pace
            && !(0.001..=1e9).contains(&(rate_per_s / f64::from(self.lanes)))
        {
            return Err(Invalid::Rate { rate_per_s, lanes: self.lanes });
        }
        if self.stop == Stop::default() {
            return Err(Invalid::Endless);
        }
        if self.verifies() && self.regions == Some(Regions::Shared) && self.lanes > 1 {
            return Err(Invalid::SharedVerify);
        }
        Ok(())
    }
}

impl Geometry {
    /// `bytes` in blocks, if one command can transfer them.
    fn command_blocks(&self, bytes: u32) -> Result<u32, Invalid> {
        let Self { lba_bytes, transfer_limit_bytes, .. } = *self;
        if lba_bytes == 0 || !bytes.is_multiple_of(lba_bytes) || bytes == 0 {
            return Err(Invalid::PartialBlock { bytes, lba_bytes });
        }
        let by_length = COMMAND_BLOCKS_LIMIT * u64::from(lba_bytes);
        let limit = transfer_limit_bytes.map_or(by_length, |limit| by_length.min(limit.into()));
        if u64::from(bytes) > limit {
            return Err(Invalid::Above { what: "the size of an operation", value: bytes.into(), limit });
        }
        Ok(bytes / lba_bytes)
    }
}

/// Greatest common divisor of two numbers above zero.
fn divisor(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// A checked workload on a known namespace, from which each lane takes its part.
#[derive(Clone, Debug)]
pub struct Plan {
    workload: Workload,
    geometry: Geometry,
    run_id: u64,
    range: Region,
    /// Blocks and percentages.
    sizes: Vec<(u32, u8)>,
    alignment_blocks: u32,
}

impl Plan {
    /// The value given.
    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    /// The namespace.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Mark of this run in verified blocks.
    pub fn run_id(&self) -> u64 {
        self.run_id
    }

    /// The blocks to work on, of all lanes together.
    pub fn range(&self) -> Region {
        self.range
    }

    /// Blocks of the largest operation.
    pub fn command_blocks_max(&self) -> u32 {
        self.sizes.iter().map(|&(blocks, _)| blocks).max().unwrap_or(1)
    }

    /// Bytes of the largest operation: the size of a buffer.
    pub fn buffer_bytes(&self) -> usize {
        self.command_blocks_max() as usize * self.geometry.lba_bytes as usize
    }

    /// Bytes of memory that verification takes, for all lanes together: eight for each block of the range.
    pub fn ledger_bytes(&self) -> u64 {
        if self.workload.verifies() { self.range.blocks.saturating_mul(8) } else { 0 }
    }

    /// Whether lanes share the range or own parts of it.
    pub fn regions(&self) -> Regions {
        let own = self.workload.verifies() || self.workload.pattern.order == Order::Sequential;
        self.workload.regions.unwrap_or(if own { Regions::Own } else { Regions::Shared })
    }

    /// The blocks that lane `lane`, counted from 0, works on.
    pub fn region(&self, lane: u32) -> Region {
        match self.regions() {
            Regions::Shared => self.range,
            Regions::Own => self.part(lane),
        }
    }

    /// An equal part of the range, in whole units of alignment; the last lane's has the rest too.
    fn part(&self, lane: u32) -> Region {
        let lanes = u64::from(self.workload.lanes);
        let unit = u64::from(self.alignment_blocks);
        let blocks = self.range.blocks / unit / lanes * unit;
        let first = u64::from(lane) * blocks;
        let last = u64::from(lane) + 1 == lanes;
        Region {
            first: self.range.first + first,
            blocks: if last { self.range.blocks - first } else { blocks },
        }
    }

    /// The operations of lane `lane`.
    pub fn stream(&self, lane: u32) -> Stream {
        let Workload { pattern, distribution, depth, seed, .. } = self.workload;
        let prng = Prng::stream(seed, lane.into());
        let region = self.region(lane);
        let window = (depth * 2).max(32);
        Stream::new(pattern, &self.sizes, self.alignment_blocks, region, distribution, window, seed, prng)
    }

    /// The blocks that lane `lane` writes when the range is filled first: its part, even of a shared range.
    pub fn fill_region(&self, lane: u32) -> Region {
        self.part(lane)
    }

    /// Operations and bytes that lane `lane` may start; `u64::MAX` without a limit.
    pub fn budget(&self, lane: u32) -> Budget {
        let (lane, lanes) = (u64::from(lane), u64::from(self.workload.lanes));
        let part = |whole: Option<u64>| {
            whole.map_or(u64::MAX, |whole| whole / lanes + u64::from(lane < whole % lanes))
        };
        Budget { operations: part(self.workload.stop.operations), bytes: part(self.workload.stop.bytes) }
    }
}

/// The budget of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Operations; `u64::MAX` without a limit.
    pub operations: u64,
    /// Bytes; the operation that crosses it is the last. `u64::MAX` without a limit.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn geometry() -> Geometry {
        Geometry {
            lba_bytes: 512,
            block_count: 1_000_000,
            transfer_limit_bytes: Some(1 << 20),
            deallocated: Deallocated::Zeroes,
        }
    }

    fn refusal(change: impl FnOnce(&mut Workload)) -> String {
        let mut workload = Workload::default();
        change(&mut workload);
        workload.plan(&geometry(), 1).unwrap_err().to_string()
    }

    #[test]
    fn the_default_is_valid() {
        assert!(Workload::default().plan(&geometry(), 1).is_ok());
    }

    #[test]
    fn each_mistake_is_told_in_one_line_with_its_values() {
        assert_eq!(refusal(|w| w.depth = 0), "the depth must be at least 1");
        assert_eq!(
            refusal(|w| w.lanes = 70_000),
            "the number of lanes is 70000, but at most 65535 is possible"
        );
        assert_eq!(
            refusal(|w| w.sizes = Sizes::one(1000)),
            "a size of 1000 bytes is not a multiple of the namespace's block of 512 bytes"
        );
        assert_eq!(
            refusal(|w| w.sizes = Sizes::one(2 << 20)),
            "the size of an operation is 2097152, but at most 1048576 is possible"
        );
        assert_eq!(
            refusal(|w| w.range = Some((999_999, 8))),
            "LBAs 999999..1000007 reach past the namespace, which ends before LBA 1000000"
        );
        assert_eq!(
            refusal(|w| (w.range, w.lanes, w.verify) = (Some((0, 100)), 16, true)),
            "100 blocks do not give 16 lanes a region of 8 blocks each: use fewer lanes, smaller operations or \
             a wider range"
        );
        assert_eq!(
            refusal(|w| w.stop = Stop::default()),
            "nothing ends this load: give a time, a number of operations or a number of bytes"
        );
        assert_eq!(
            refusal(|w| w.pace = Pace::Open { rate_per_s: 0.0, arrival: Arrival::Poisson }),
            "a rate of 0 operations per second over 1 lanes is out of range: use 0.001 to 1e9 each"
        );
        assert_eq!(
            refusal(|w| (w.verify, w.lanes, w.regions) = (true, 2, Some(Regions::Shared))),
            "lanes that verify cannot share one region: leave the regions to each lane"
        );
        let shares = Shares { read: 50, write: 20, trim: 20, write_zeroes: 20 };
        assert_eq!(
            refusal(|w| w.pattern.mix = Mix::Shares(shares)),
            "percentages of read, write, trim and write zeroes add up to 110, not 100"
        );
    }

    #[test]
    fn every_pattern_is_known_by_its_own_name() {
        for name in [
            "read",
            "write",
            "rw",
            "randread",
            "randwrite",
            "randrw",
            "trim",
            "randtrim",
            "writezeroes",
            "randwritezeroes",
            "verify",
            "randverify",
        ] {
            assert_eq!(Pattern::named(name, Some(70)).unwrap().name(), name);
        }
        assert_eq!(Pattern::named("randrw", Some(70)).unwrap().shares().write, 30);
        assert_eq!(Pattern::named("rw", None).unwrap().shares().read, 50);
        assert!(Pattern::named("randrw", Some(101)).is_err());
        assert!(
            Pattern::named("random", None).unwrap_err().to_string().starts_with("unknown pattern \"random\"")
        );
    }

    #[test]
    fn sizes_are_read_in_every_usual_form() {
        for (text, bytes) in [("512", 512), ("4k", 4096), ("4K", 4096), ("64KiB", 65_536), ("1m", 1 << 20)] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "k", "4x", "-1", "1.5k", "99999999999t"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        assert_eq!("4k/70:64k/30".parse::<Sizes>().unwrap().entries(), [(4096, 70), (65_536, 30)]);
        assert_eq!("4k/70:64k/30".parse::<Sizes>().unwrap().to_string(), "4k/70:64k/30");
        assert_eq!("1536".parse::<Sizes>().unwrap().to_string(), "1536");
        for text in ["4k/70:64k/20", "4k/x", "4k/50:8k", "0", "8g"] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
    }

    #[test]
    fn distributions_and_arrivals_are_read() {
        assert_eq!("uniform".parse(), Ok(Distribution::Uniform));
        assert_eq!("zipf:1.2".parse(), Ok(Distribution::Zipf { theta: 1.2 }));
        assert_eq!("zipf".parse(), Ok(Distribution::Zipf { theta: 0.99 }));
        for text in ["zipf:0", "zipf:-1", "zipf:nan", "pareto:1", "zipf:11"] {
            assert!(text.parse::<Distribution>().is_err(), "{text}");
        }
        assert_eq!("poisson".parse(), Ok(Arrival::Poisson));
        assert!("bursts".parse::<Arrival>().is_err());
    }

    #[test]
    fn the_verify_pattern_verifies_by_itself() {
        let pattern = Pattern::named("verify", None).unwrap();
        let workload = Workload { pattern, lanes: 2, ..Workload::default() };
        let plan = workload.plan(&geometry(), 1).unwrap();
        assert!(workload.verifies());
        assert_eq!((plan.regions(), plan.ledger_bytes()), (Regions::Own, 8_000_000));
        assert_eq!(Workload::default().plan(&geometry(), 1).unwrap().ledger_bytes(), 0);
    }

    #[test]
    fn a_budget_is_divided_without_loss() {
        let mut workload = Workload { lanes: 7, ..Workload::default() };
        workload.stop = Stop { operations: Some(100), ..Stop::default() };
        let plan = workload.plan(&geometry(), 1).unwrap();
        assert_eq!((0..7).map(|lane| plan.budget(lane).operations).sum::<u64>(), 100);
        assert_eq!(plan.budget(0).bytes, u64::MAX);
    }

    proptest! {
        #[test]
        fn formatted_bytes_are_read_back(bytes: u64) {
            prop_assert_eq!(parse_bytes(&format_bytes(bytes)), Ok(bytes));
        }

        /// Own regions follow each other without gap or overlap and make up the range.
        #[test]
        fn own_regions_tile_the_range(
            first in 0u64..1000, blocks in 1u64..100_000, lanes in 1u32..40, size in 1u32..64,
        ) {
            let workload = Workload {
                lanes, range: Some((first, blocks)), sizes: Sizes::one(size * 512), verify: true,
                ..Workload::default()
            };
            let Ok(plan) = workload.plan(&geometry(), 1) else {
                prop_assert!(blocks / u64::from(size) < u64::from(lanes));
                return Ok(());
            };
            let mut next = first;
            for lane in 0..lanes {
                let region = plan.region(lane);
                prop_assert_eq!(region.first, next);
                prop_assert!(region.blocks >= u64::from(size));
                next += region.blocks;
            }
            prop_assert_eq!(next, first + blocks);
        }
    }
}
