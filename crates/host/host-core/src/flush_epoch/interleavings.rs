//! All short interleavings of two lanes that share a flush epoch: no Flush succeeds that a caller takes to cover a lost
//! write, unless a caller has received `Unflushed` since the write was reported done.
//!
//! A lane hears of a loss late, and a caller receives a completion later than its lane hands it out. If completions
//! advance the epoch when they are handed out, both lanes have one owner, who polls a lane only with its messages read.
//! If the handle acknowledges them, each lane has a thread, which may stop within a poll. A lane that is alone shares
//! its epoch with no other.

use std::collections::HashSet;

use super::*;

const LANE_COUNT: usize = 2;
const WRITE_COUNT: usize = 2;
const GENERATION_MAX: u64 = 3;

/// Completions that wait for their callers at once.
const HANDED_COUNT: usize = 3;

/// Steps of an interleaving.
const STEP_COUNT: usize = 11;

/// Who advances the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Mode {
    Alone,
    HandingOut,
    Handle,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Write {
    generation: u64,
    is_durable: bool,
    is_lost: bool,
    is_reported: bool,
    /// A caller has received `Unflushed` after it was lost and reported.
    is_told: bool,
}

/// A completion, with the writes that a successful Flush must cover: bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum End {
    Write(usize),
    Flushed(u8),
    Unflushed,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Lane {
    /// The association whose loss it has not heard of.
    attached: Option<u64>,
    /// The association that it belongs to, or belonged to last.
    generation: u64,
    /// The association of its last poll, to which the completions of the next one belong.
    polled: u64,
    /// Completions that have arrived and are not handed out.
    arrived: Vec<End>,
    /// Completions that it hands out next, and that did not arrive.
    done: Vec<End>,
    /// The writes that its outstanding Flush must cover.
    flush: Option<u8>,
    has_answer: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    mode: Mode,
    covered: u64,
    answered: u64,
    /// The association that the target has.
    live: Option<u64>,
    newest: u64,
    /// The lanes have been notified that the newest association is lost.
    is_known_lost: bool,
    writes: Vec<Write>,
    lanes: [Lane; LANE_COUNT],
    /// Completions that were handed out and not received, with the association that their lane was in.
    handed: Vec<(End, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A write is executed, and its answer arrives.
    Write(usize),
    Flush(usize),
    /// The target answers the Flush.
    Answer(usize),
    TakeIn(usize),
    Drain(usize),
    /// The target loses the association, and writes that are not durable.
    Lose,
    /// The lanes are notified of the loss.
    Tell,
    /// A lane hears of the loss before it has received the completions that have arrived.
    Hear(usize),
    /// As `Hear`, but they were received, and held back by bytes that the kernel had not released.
    HearLate(usize),
    /// Another association is up.
    ComeUp,
    Attach(usize),
    /// A caller receives a completion.
    Receive(usize),
}

/// Runs `act` on the product's gates of both lanes.
fn with_gates<T>(world: &mut World, act: impl FnOnce(&mut [FlushGate; LANE_COUNT]) -> T) -> T {
    let epoch = FlushEpoch {
        shared: Arc::new(Generations {
            covered: AtomicU64::new(world.covered),
            answered: AtomicU64::new(world.answered),
        }),
        is_acknowledged_by_handle: world.mode == Mode::Handle,
    };
    let is_shared = world.mode != Mode::Alone;
    let gate = |lane: &Lane| FlushGate { epoch: epoch.clone(), is_shared, has_answer: lane.has_answer };
    let mut gates = world.lanes.each_ref().map(gate);
    let result = act(&mut gates);
    world.lanes.iter_mut().zip(&gates).for_each(|(lane, gate)| lane.has_answer = gate.has_answer);
    world.covered = epoch.shared.covered.load(Ordering::Relaxed);
    world.answered = epoch.shared.answered.load(Ordering::Relaxed);
    result
}

impl World {
    fn new(mode: Mode) -> Self {
        let lane = Lane { attached: Some(1), generation: 1, polled: 1, ..Lane::default() };
        let mut world = Self {
            mode,
            covered: 0,
            answered: 0,
            live: Some(1),
            newest: 1,
            is_known_lost: false,
            writes: Vec::new(),
            lanes: [lane.clone(), lane],
            handed: Vec::new(),
        };
        with_gates(&mut world, |gates| gates.iter().for_each(|gate| gate.begin(1)));
        world
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = vec![Step::Lose, Step::Tell, Step::ComeUp];
        for lane in 0..if self.mode == Mode::Alone { 1 } else { LANE_COUNT } {
            steps.extend([
                Step::Write(lane),
                Step::Flush(lane),
                Step::Answer(lane),
                Step::TakeIn(lane),
                Step::Drain(lane),
                Step::Hear(lane),
                Step::HearLate(lane),
                Step::Attach(lane),
            ]);
        }
        steps.extend((0..self.handed.len()).map(Step::Receive));
        steps.retain(|step| self.is_possible(*step));
        steps
    }

    /// A lane's thread works on an association that is not known to be lost, or has not looked yet.
    fn is_in_time(&self, lane: usize) -> bool {
        let is_lost = |of: u64| of < self.newest || self.is_known_lost;
        self.mode == Mode::Handle || !self.lanes[lane].attached.is_some_and(is_lost)
    }

    fn is_possible(&self, step: Step) -> bool {
        let has_room = self.handed.len() < HANDED_COUNT;
        match step {
            Step::Write(at) => {
                let lane = &self.lanes[at];
                self.writes.len() < WRITE_COUNT
                    && lane.attached.is_some()
                    && lane.attached == self.live
                    && lane.arrived.len() < 2
                    // It connects after it has polled.
                    && lane.done.is_empty()
            }
            Step::Flush(at) => {
                let lane = &self.lanes[at];
                lane.attached.is_some() && self.is_in_time(at) && lane.flush.is_none() && lane.done.is_empty()
            }
            Step::Answer(at) => self.lanes[at].flush.is_some() && self.lanes[at].attached == self.live,
            Step::TakeIn(at) => {
                let lane = &self.lanes[at];
                lane.attached.is_some() && self.is_in_time(at) && !lane.arrived.is_empty() && has_room
            }
            Step::Drain(at) => !self.lanes[at].done.is_empty() && has_room,
            Step::Lose => self.live.is_some() && self.newest < GENERATION_MAX,
            Step::Tell => self.live.is_none() && !self.is_known_lost,
            Step::Hear(at) | Step::HearLate(at) => {
                let lane = &self.lanes[at];
                let is_late = matches!(step, Step::HearLate(_));
                // Its own connection is lost, or it was notified of another.
                lane.attached.is_some_and(|of| of < self.newest || self.live.is_none())
                    && (!is_late || !lane.arrived.is_empty())
            }
            Step::ComeUp => self.is_known_lost,
            Step::Attach(at) => self.lanes[at].attached.is_none() && self.live.is_some(),
            Step::Receive(_) => true,
        }
    }

    /// # Errors
    /// The Flush that has succeeded, and must not have.
    fn take(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Write(at) => {
                let generation = self.newest;
                let write = Write {
                    generation,
                    is_durable: false,
                    is_lost: false,
                    is_reported: false,
                    is_told: false,
                };
                let lane = &mut self.lanes[at];
                lane.polled = lane.generation;
                lane.arrived.push(End::Write(self.writes.len()));
                self.writes.push(write);
            }
            Step::Flush(at) => {
                let lane = &mut self.lanes[at];
                lane.polled = lane.generation;
                let generation = lane.generation;
                let is_admitted = with_gates(self, |gates| gates[at].admits(generation));
                let reported = self.writes.iter().enumerate().filter(|(_, write)| write.is_reported);
                let covered = reported.fold(0, |bits, (number, _)| bits | 1 << number);
                match is_admitted {
                    true => self.lanes[at].flush = Some(covered),
                    false => self.lanes[at].done.push(End::Unflushed),
                }
            }
            Step::Answer(at) => {
                let live = self.live;
                let of_live = self.writes.iter_mut().filter(|write| Some(write.generation) == live);
                of_live.for_each(|write| write.is_durable = true);
                let lane = &mut self.lanes[at];
                lane.arrived.extend(lane.flush.take().map(End::Flushed));
            }
            Step::TakeIn(at) => {
                let end = self.lanes[at].arrived.remove(0);
                self.hand_out(end, self.lanes[at].polled)?;
            }
            Step::Drain(at) => {
                for end in std::mem::take(&mut self.lanes[at].done) {
                    self.hand_out(end, self.lanes[at].polled)?;
                }
                let lane = &mut self.lanes[at];
                lane.polled = lane.generation;
                with_gates(self, |gates| gates[at].on_drained());
            }
            Step::Lose => {
                let live = self.live.take();
                let of_live = self.writes.iter_mut().filter(|write| Some(write.generation) == live);
                of_live.for_each(|write| write.is_lost = !write.is_durable);
            }
            Step::Tell => self.is_known_lost = true,
            Step::Hear(at) | Step::HearLate(at) => {
                let lane = &mut self.lanes[at];
                let (generation, arrived) = (lane.generation, std::mem::take(&mut lane.arrived));
                lane.attached = None;
                let is_flushing = lane.flush.take().is_some();
                let is_late = matches!(step, Step::HearLate(_));
                let has_flushed = arrived.iter().any(|end| matches!(end, End::Flushed(_))) && !is_late;
                let held: Vec<End> = with_gates(self, |gates| {
                    if is_flushing || has_flushed {
                        gates[at].on_interrupted(generation);
                    }
                    let is_kept = |end: &End| match end {
                        End::Write(_) => gates[at].may_report(generation),
                        End::Flushed(_) | End::Unflushed => true,
                    };
                    arrived.into_iter().filter(|_| is_late).filter(is_kept).collect()
                });
                let done = &mut self.lanes[at].done;
                done.splice(0..0, held);
                done.extend((is_flushing || has_flushed).then_some(End::Unflushed));
                // In the same poll, unless a thread of the lane stops within it.
                if self.mode != Mode::Handle {
                    self.take(Step::Drain(at))?;
                }
            }
            Step::ComeUp => {
                self.is_known_lost = false;
                self.newest += 1;
                self.live = Some(self.newest);
            }
            Step::Attach(at) => {
                (self.lanes[at].attached, self.lanes[at].generation) = (self.live, self.newest);
            }
            Step::Receive(at) => {
                let (end, generation) = self.handed.remove(at);
                let (result, written_in) = match end {
                    End::Write(_) => (Ok(0), Some(generation)),
                    End::Flushed(_) => (Ok(0), None),
                    End::Unflushed => (Err(Failure::Unflushed), None),
                };
                let received = with_gates(self, |gates| gates[0].epoch.receive(result, written_in));
                if received == result {
                    self.on_received(end)?;
                }
            }
        }
        Ok(())
    }

    /// A lane that was in this association hands out a completion.
    fn hand_out(&mut self, end: End, generation: u64) -> Result<(), String> {
        match self.mode {
            Mode::Alone | Mode::HandingOut => self.on_received(end),
            Mode::Handle => {
                self.handed.push((end, generation));
                Ok(())
            }
        }
    }

    fn on_received(&mut self, end: End) -> Result<(), String> {
        match end {
            End::Write(number) => self.writes[number].is_reported = true,
            End::Unflushed => {
                let lost = self.writes.iter_mut().filter(|write| write.is_lost && write.is_reported);
                lost.for_each(|write| write.is_told = true);
            }
            End::Flushed(covered) => {
                let is_wrong = |(number, write): &(usize, &Write)| {
                    covered & 1 << number != 0 && write.is_lost && !write.is_told
                };
                if let Some((number, write)) = self.writes.iter().enumerate().find(is_wrong) {
                    return Err(format!("a Flush succeeds, and write {number} is lost: {write:?}"));
                }
            }
        }
        Ok(())
    }

    /// Everything that is on its way ends, in an association that stays: then a Flush on each lane must succeed once a
    /// caller has received `Unflushed`.
    fn settle(mut self) -> Result<(), String> {
        let is_idle = |step: &Step| !matches!(step, Step::Write(_) | Step::Flush(_) | Step::Lose);
        while let Some(step) = self.steps().into_iter().find(is_idle) {
            self.take(step)?;
        }
        let last = if self.mode == Mode::Alone { 0 } else { 1 };
        for (lane, is_last) in [(0, false), (0, false), (last, true)] {
            self.take(Step::Flush(lane))?;
            let is_refused = !self.lanes[lane].done.is_empty();
            while let Some(step) = self.steps().into_iter().find(is_idle) {
                self.take(step)?;
            }
            if is_refused && is_last {
                return Err("Flushes still fail on a lane, though a caller was told of the loss".into());
            }
        }
        Ok(())
    }
}

#[test]
fn no_flush_covers_a_lost_write_that_nobody_was_told_of() {
    for (mode, least) in [(Mode::Alone, 1000), (Mode::HandingOut, 10_000), (Mode::Handle, 20_000)] {
        let mut known = HashSet::new();
        let mut front = vec![(World::new(mode), Vec::new())];
        for _ in 0..STEP_COUNT {
            let mut next = Vec::new();
            for (world, path) in front {
                for step in world.steps() {
                    let mut after = world.clone();
                    let mut path = path.clone();
                    path.push(step);
                    let fail = |finding: String| panic!("{mode:?}: {finding}\n{path:?}");
                    after.take(step).unwrap_or_else(fail);
                    if known.insert(after.clone()) {
                        after.clone().settle().unwrap_or_else(fail);
                        next.push((after, path));
                    }
                }
            }
            front = next;
        }
        let count = known.len();
        assert!(count > least, "{mode:?}: {count} states are too few to mean anything");
    }
}
