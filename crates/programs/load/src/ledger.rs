//! The possible content of each block, eight bytes per block: the other half of verification.
//!
//! The ledger never has two changes of a block in flight, nor a change that starts under a read in flight, so the
//! possible results of a read are always known:
//!
//! ```text
//!            begin change                end, done (no read in flight)
//! settled ───────────────▶ in flight ──────────────────────────────────▶ settled: the new content
//!    ▲                     old or new ─┐ end, done (reads in flight)
//!    │ last read ends                  └───▶ landed: old or new
//!    ├────────────────────────────────────────┘
//!    └── in flight, end uncertain: settled as old or new
//! ```
//! A change that ended uncertain may have happened or not, and the next one starts from there; so the settled
//! content is a range of generations, and perhaps zeroes or ones too. Once a read has seen a generation, older ones
//! are wrong again.

use crate::stream::{Region, Step};
use crate::verify::{Content, Expectation};
use crate::workload::{Deallocated, Kind};

/// The possible content of one block. All zero means that nothing is known.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// The newest generation given to this block.
    newest: u32,
    /// Reads in flight.
    readers: u16,
    /// How many generations older than the newest are possible.
    span: u8,
    /// Possible content (none: anything) and the change in flight.
    flags: Flags,
}

bitflags::bitflags! {
    /// Possible content, and the change in flight.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Flags: u8 {
        /// Generations from `newest - span` to `newest`.
        const STAMPED = 1;
        /// Zeroes.
        const ZEROES = 1 << 1;
        /// Ones.
        const ONES = 1 << 2;
        /// Any of the above is known.
        const KNOWN = Self::STAMPED.bits() | Self::ZEROES.bits() | Self::ONES.bits();
        /// A write is in flight.
        const WRITE = 1 << 4;
        /// A write zeroes is in flight.
        const WRITE_ZEROES = 1 << 5;
        /// A trim is in flight.
        const TRIM = 1 << 6;
        /// Any change is in flight.
        const CHANGE = Self::WRITE.bits() | Self::WRITE_ZEROES.bits() | Self::TRIM.bits();
        /// The change is done, but reads that began before are in flight.
        const LANDED = 1 << 7;
    }
}

const _: () = assert!(size_of::<Entry>() == 8);

impl Entry {
    /// The possible results of a read that ends now.
    #[inline]
    fn expectation(self, deallocated: Flags) -> Expectation {
        if !self.flags.intersects(Flags::KNOWN) {
            return Expectation::ANYTHING;
        }
        let mut possible = self.flags;
        let mut newest = self.newest;
        let mut span = u32::from(self.span);
        if self.flags.contains(Flags::WRITE) {
            newest = newest.wrapping_add(1);
            span = if self.flags.contains(Flags::STAMPED) { span + 1 } else { 0 };
            possible |= Flags::STAMPED;
        } else if self.flags.contains(Flags::WRITE_ZEROES) {
            possible |= Flags::ZEROES;
        } else if self.flags.contains(Flags::TRIM) {
            possible |= deallocated;
        }
        let stamped = possible.contains(Flags::STAMPED);
        Expectation {
            generations: stamped.then_some((newest.wrapping_sub(span), newest)),
            zeroes: possible.contains(Flags::ZEROES),
            ones: possible.contains(Flags::ONES),
            anything: false,
        }
    }

    /// The change in flight is done and nothing older can be read any more.
    #[inline]
    fn settle_done(&mut self, deallocated: Flags) {
        let known = self.flags & Flags::KNOWN;
        if self.flags.contains(Flags::WRITE) {
            self.newest = self.newest.wrapping_add(1);
            self.span = 0;
            self.flags = Flags::STAMPED;
        } else if self.flags.contains(Flags::WRITE_ZEROES) {
            self.flags = Flags::ZEROES;
        } else {
            // A deallocation is a hint: the old content may stay.
            self.flags = if known.is_empty() { known } else { known | deallocated };
        }
    }

    /// The change in flight may have happened or not.
    fn settle_uncertain(&mut self, deallocated: Flags) {
        let known = self.flags & Flags::KNOWN;
        let change = self.flags & Flags::CHANGE;
        self.flags = known;
        if change == Flags::WRITE {
            self.newest = self.newest.wrapping_add(1);
            if known.contains(Flags::STAMPED) {
                match self.span.checked_add(1) {
                    Some(span) => self.span = span,
                    None => self.flags = Flags::empty(),
                }
            } else if !known.is_empty() {
                self.span = 0;
                self.flags |= Flags::STAMPED;
            }
        } else if !known.is_empty() {
            self.flags |= if change == Flags::TRIM { deallocated } else { Flags::ZEROES };
        }
    }
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It was done.
    Done,
    /// It failed, or its completion was lost: it may have been done, in part or whole.
    Uncertain,
}

/// The possible content of the blocks of one region.
#[derive(Clone, Debug)]
pub struct Ledger {
    first: u64,
    entries: Box<[Entry]>,
    /// Content that a deallocation may leave besides the old content.
    deallocated: Flags,
}

impl Ledger {
    /// Of a region of which nothing is known. Takes eight bytes per block.
    ///
    /// # Panics
    /// If the region does not fit the address space.
    pub fn new(region: Region, deallocated: Deallocated) -> Self {
        let blocks = usize::try_from(region.blocks).expect("a region fits the address space");
        let deallocated = match deallocated {
            Deallocated::NotReported => Flags::ZEROES | Flags::ONES,
            Deallocated::Zeroes => Flags::ZEROES,
            Deallocated::Ones => Flags::ONES,
        };
        Self { first: region.first, entries: vec![Entry::default(); blocks].into_boxed_slice(), deallocated }
    }

    /// The entries of an operation, which lies in the region.
    #[inline]
    fn entries(&mut self, step: &Step) -> &mut [Entry] {
        let first = self.index(step.slba);
        &mut self.entries[first..first + step.blocks as usize]
    }

    #[inline]
    fn index(&self, lba: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "the region fits the address space")]
        let index = lba.wrapping_sub(self.first) as usize;
        index
    }

    /// Notes that an operation starts. False, and nothing noted, if it must wait for one in flight to end.
    ///
    /// # Panics
    /// If the operation leaves the region.
    #[inline]
    #[must_use]
    pub fn begin(&mut self, step: &Step) -> bool {
        let entries = self.entries(step);
        if step.kind == Kind::Read {
            if entries.iter().any(|entry| entry.readers == u16::MAX) {
                return false;
            }
            entries.iter_mut().for_each(|entry| entry.readers += 1);
            return true;
        }
        if entries.iter().any(|entry| entry.readers > 0 || entry.flags.intersects(Flags::CHANGE)) {
            return false;
        }
        let change = match step.kind {
            Kind::Write | Kind::Read => Flags::WRITE,
            Kind::WriteZeroes => Flags::WRITE_ZEROES,
            Kind::Trim => Flags::TRIM,
        };
        entries.iter_mut().for_each(|entry| entry.flags |= change);
        true
    }

    /// The generation that the write in flight on `lba` gives it, to be stamped.
    ///
    /// # Panics
    /// If `lba` is outside the region.
    #[inline]
    pub fn generation(&self, lba: u64) -> u32 {
        self.entries[self.index(lba)].newest.wrapping_add(1)
    }

    /// The possible results of a read of `lba` that completes now.
    ///
    /// # Panics
    /// If `lba` is outside the region.
    #[inline]
    pub fn expectation(&self, lba: u64) -> Expectation {
        self.entries[self.index(lba)].expectation(self.deallocated)
    }

    /// Learns from the content that a read, not yet ended, found at `lba`: generations older than it are over.
    ///
    /// # Panics
    /// If `lba` is outside the region.
    #[inline]
    pub fn observe(&mut self, lba: u64, content: Content) {
        let index = self.index(lba);
        let entry = &mut self.entries[index];
        // Another read in flight may have been done before the change that this one has seen.
        let alone = entry.readers == 1 && !entry.flags.intersects(Flags::CHANGE);
        if let Content::Generation(generation) = content
            && entry.span > 0
            && alone
        {
            let span = entry.newest.wrapping_sub(generation);
            entry.span = u8::try_from(span).map_or(entry.span, |span| span.min(entry.span));
        }
    }

    /// Notes that an operation that [`Ledger::begin`] admitted has ended; a read after it was checked.
    ///
    /// # Panics
    /// If the operation leaves the region.
    #[inline]
    pub fn end(&mut self, step: &Step, outcome: WriteOutcome) {
        let deallocated = self.deallocated;
        for entry in self.entries(step) {
            if step.kind == Kind::Read {
                debug_assert!(entry.readers > 0, "a read ended that never began");
                entry.readers = entry.readers.saturating_sub(1);
                if entry.readers == 0 && entry.flags.contains(Flags::LANDED) {
                    entry.settle_done(deallocated);
                }
            } else if outcome == WriteOutcome::Uncertain {
                entry.settle_uncertain(deallocated);
            } else if entry.readers > 0 {
                entry.flags |= Flags::LANDED;
            } else {
                entry.settle_done(deallocated);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const REGION: Region = Region { first: 100, blocks: 8 };

    fn step(kind: Kind, slba: u64, blocks: u32) -> Step {
        Step { kind, slba, blocks }
    }

    fn ledger() -> Ledger {
        Ledger::new(REGION, Deallocated::Zeroes)
    }

    fn run(ledger: &mut Ledger, kind: Kind, outcome: WriteOutcome) {
        let step = step(kind, 100, 1);
        assert!(ledger.begin(&step));
        ledger.end(&step, outcome);
    }

    /// The possible content of the first block after each of these.
    fn history(steps: &[(Kind, WriteOutcome)]) -> String {
        let mut ledger = ledger();
        let mut told = vec![ledger.expectation(100).to_string()];
        for &(kind, outcome) in steps {
            run(&mut ledger, kind, outcome);
            told.push(ledger.expectation(100).to_string());
        }
        told.join(" → ")
    }

    #[test]
    fn what_a_block_may_hold_follows_its_history() {
        use {Kind::*, WriteOutcome::*};
        insta::assert_snapshot!(
            [
                history(&[(Write, Done), (Write, Done), (WriteZeroes, Done), (Write, Done)]),
                history(&[(Write, Done), (Write, Uncertain), (Write, Uncertain), (Write, Done)]),
                history(&[(Write, Uncertain), (Write, Done)]),
                history(&[(Write, Done), (WriteZeroes, Uncertain), (Write, Uncertain)]),
                history(&[(WriteZeroes, Done), (Write, Uncertain), (Trim, Done), (WriteZeroes, Done)]),
                history(&[(Trim, Done), (Write, Done), (Trim, Done), (Trim, Uncertain), (Write, Done)]),
            ]
            .join("\n"),
            @"
            any content → generation 1 → generation 2 → zeroes → generation 3
            any content → generation 1 → generation 1 or 2 → generation 1 to 3 → generation 4
            any content → any content → generation 2
            any content → generation 1 → generation 1 or zeroes → generation 1 or 2 or zeroes
            any content → zeroes → generation 1 or zeroes → generation 1 or zeroes → zeroes
            any content → any content → generation 1 → generation 1 or zeroes → generation 1 or zeroes → generation 2
            "
        );
    }

    #[test]
    fn a_read_beside_a_change_may_find_either() {
        for (kind, during) in [
            (Kind::Write, "generation 1 or 2"),
            (Kind::WriteZeroes, "generation 1 or zeroes"),
            (Kind::Trim, "generation 1 or zeroes"),
        ] {
            let mut ledger = ledger();
            run(&mut ledger, Kind::Write, WriteOutcome::Done);
            assert!(ledger.begin(&step(kind, 100, 2)));
            assert_eq!(ledger.expectation(100).to_string(), during);
        }
    }

    #[test]
    fn a_read_that_began_before_the_change_ended_may_still_find_the_old() {
        let mut ledger = ledger();
        run(&mut ledger, Kind::Write, WriteOutcome::Done);
        let (write, read) = (step(Kind::Write, 100, 1), step(Kind::Read, 100, 1));
        assert!(ledger.begin(&write));
        assert!(ledger.begin(&read));
        ledger.end(&write, WriteOutcome::Done);
        assert_eq!(ledger.expectation(100), Expectation::between(1, 2));
        assert!(!ledger.begin(&write));
        ledger.end(&read, WriteOutcome::Done);
        assert_eq!(ledger.expectation(100), Expectation::exactly(2));
        assert!(ledger.begin(&write));
    }

    #[test]
    fn changes_wait_for_each_other_and_for_reads_and_leave_no_trace_meanwhile() {
        let mut ledger = ledger();
        assert!(ledger.begin(&step(Kind::Read, 103, 1)));
        assert!(!ledger.begin(&step(Kind::Write, 100, 8)));
        assert!(ledger.begin(&step(Kind::Write, 100, 3)));
        assert!(!ledger.begin(&step(Kind::Trim, 102, 1)));
        assert!(ledger.begin(&step(Kind::Read, 100, 8)));
    }

    #[test]
    fn a_generation_once_read_makes_older_ones_wrong() {
        let mut ledger = ledger();
        run(&mut ledger, Kind::Write, WriteOutcome::Done);
        run(&mut ledger, Kind::Write, WriteOutcome::Uncertain);
        let read = step(Kind::Read, 100, 1);
        assert!(ledger.begin(&read) && ledger.begin(&read));
        ledger.observe(100, Content::Generation(2));
        assert_eq!(ledger.expectation(100), Expectation::between(1, 2), "the other read may be older");
        ledger.end(&read, WriteOutcome::Done);
        ledger.observe(100, Content::Generation(1));
        assert_eq!(ledger.expectation(100), Expectation::between(1, 2), "the write may still come");
        ledger.observe(100, Content::Generation(2));
        assert_eq!(ledger.expectation(100), Expectation::exactly(2));
    }

    /// One thing that happens to a namespace with up to four operations in flight.
    #[derive(Clone, Debug)]
    enum Event {
        Begin(Step),
        /// The operation in this place takes effect, on all or some of its blocks.
        Execute(usize, bool),
        /// The operation in this place completes: well, or lost.
        End(usize, bool),
    }

    fn any_event() -> impl Strategy<Value = Event> {
        let step =
            (prop::sample::select(Kind::ALL.to_vec()), 0u64..8, 1u32..4).prop_map(|(kind, at, blocks)| {
                Step { kind, slba: 100 + at, blocks: blocks.min(8 - u32::try_from(at).unwrap()) }
            });
        prop_oneof![
            step.prop_map(Event::Begin),
            (0usize..4, any::<bool>()).prop_map(|(place, all)| Event::Execute(place, all)),
            (0usize..4, prop::bool::weighted(0.8)).prop_map(|(place, done)| Event::End(place, done)),
        ]
    }

    /// An operation in flight in the model: its writes, its results, and whether it took effect.
    struct InFlight {
        step: Step,
        generations: Vec<u32>,
        found: Vec<Content>,
        executed: bool,
    }

    struct Model {
        blocks: Vec<Content>,
        in_flight: Vec<InFlight>,
    }

    impl Model {
        fn execute(&mut self, place: usize, all: bool) {
            let operation = &mut self.in_flight[place];
            let first = usize::try_from(operation.step.slba - 100).unwrap();
            let blocks = &mut self.blocks[first..first + operation.step.blocks as usize];
            operation.executed |= all;
            if operation.step.kind == Kind::Read {
                operation.found = blocks.to_vec();
                return;
            }
            for (i, block) in blocks.iter_mut().enumerate().filter(|(i, _)| all || i % 2 == 0) {
                *block = match operation.step.kind {
                    Kind::Write | Kind::Read => Content::Generation(operation.generations[i]),
                    Kind::WriteZeroes => Content::Zeroes,
                    // Every other block ignores the wish.
                    Kind::Trim if i % 2 == 0 => Content::Zeroes,
                    Kind::Trim => *block,
                };
            }
        }
    }

    fn allows(expectation: &Expectation, content: Content) -> bool {
        expectation.anything
            || match content {
                Content::Generation(found) => {
                    expectation.generations.is_some_and(|(from, to)| (from..=to).contains(&found))
                }
                Content::Zeroes => expectation.zeroes,
                Content::Ones => expectation.ones,
                Content::Foreign => false,
            }
    }

    proptest! {
        /// The ledger allows each result of a correct namespace, whose operations take effect at any moment between
        /// begin and end; of a settled block it allows the content only.
        #[test]
        fn a_correct_namespace_is_never_accused(events in vec(any_event(), 1..200)) {
            let mut ledger = ledger();
            let mut model = Model { blocks: vec![Content::Foreign; 8], in_flight: Vec::new() };
            for event in events {
                match event {
                    Event::Begin(step) => {
                        if model.in_flight.len() < 4 && ledger.begin(&step) {
                            let lbas = step.slba..step.slba + u64::from(step.blocks);
                            let generations = lbas.map(|lba| ledger.generation(lba)).collect();
                            model.in_flight.push(InFlight { step, generations, found: Vec::new(), executed: false });
                        }
                    }
                    Event::Execute(place, all) => {
                        if place < model.in_flight.len() && !model.in_flight[place].executed {
                            model.execute(place, all);
                        }
                    }
                    Event::End(place, done) => {
                        if place >= model.in_flight.len() {
                            continue;
                        }
                        if done && !model.in_flight[place].executed {
                            model.execute(place, true);
                        }
                        let operation = model.in_flight.remove(place);
                        if done {
                            for (lba, &content) in (operation.step.slba..).zip(&operation.found) {
                                let expectation = ledger.expectation(lba);
                                prop_assert!(allows(&expectation, content), "{}: {} but {}", lba, content, expectation);
                                ledger.observe(lba, content);
                            }
                        }
                        ledger.end(&operation.step, if done { WriteOutcome::Done } else { WriteOutcome::Uncertain });
                    }
                }
                for (lba, &content) in (100..).zip(&model.blocks) {
                    let expectation = ledger.expectation(lba);
                    prop_assert!(allows(&expectation, content), "{}: {} but {}", lba, content, expectation);
                }
            }
        }
    }
}
