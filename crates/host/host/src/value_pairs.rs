//! Pairs of commands on lanes of one or several targets: a Collect or Data command holds the buffer, and its Submit names the keys.
//! A third one, behind the data, brings the checksum that was computed while the data left. Data that arrives has its checksum computed
//! part by part as well. docs/kv-commands.md §4, §7

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use host_core::buffer::Vectored;
use host_core::failure::Failure;
use host_core::namespace::InvalidCommand;
use host_core::submit::{Command, Completion};
use proto::DataDigest;
use proto::host_queue::DataBuffer;

use crate::error::Error;
use crate::lane::Lane;
use crate::lane_set::LaneSet;

/// Bytes of values in capsules that a target keeps for a lane, at most: half of what nvlane's does.
const KEPT_BYTES_MAX: u64 = 512 << 10;

/// Timeout of a wait: effectively none, since commands have their own.
const WAIT: Duration = Duration::from_secs(3600);

/// Checks for silent targets within the time that a target may be silent.
const CHECKS: u32 = 16;

/// The commands of a pair; one without a second is a command on its own.
pub(crate) type PairCommands = (Command, Option<Command>);

/// Makes the commands of the pair with this number, with this tag.
pub(crate) type Make<'a, B> = dyn FnMut(usize, &Pair<B>, u32) -> Result<PairCommands, InvalidCommand> + 'a;

/// Makes the command that brings the checksum of the pair with this number and this tag.
pub(crate) type MakeLast<'a> = dyn FnMut(usize, u32, u32) -> Command + 'a;

/// Commands of a pair, at most.
const COMMAND_COUNT_MAX: u64 = 3;

/// The data of a command: buffers of the caller, or bytes of the library.
#[derive(Debug)]
pub(crate) enum PairBuffer<B> {
    Pieces(Vectored<B>),
    /// With a checksum that is computed while they leave, and sent behind them.
    Summed(Vectored<B>, Sum),
    /// With a checksum that is computed while they are filled.
    Checked(Vectored<B>, Sum),
    Bytes(Vec<u8>),
}

/// The checksum of data, computed part by part when the socket has taken or given it: its memory is in the processor's caches then,
/// and the target receives or sends meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Sum {
    digest: DataDigest,
    /// Bytes in it.
    done: usize,
    /// The checksum, once all bytes are in it.
    result: Arc<OnceLock<u32>>,
}

impl Sum {
    /// The checksum, once all bytes are in it.
    pub(crate) fn result(&self) -> Option<u32> {
        self.result.get().copied()
    }

    /// Adds the bytes of the pieces up to `end`. Those that are sent again are in it already.
    fn advance<B: DataBuffer>(&mut self, pieces: &Vectored<B>, end: usize) {
        while self.done < end {
            let part = pieces.part(self.done);
            let part = &part[..part.len().min(end - self.done)];
            self.digest.update(part);
            self.done += part.len();
        }
        if self.done == pieces.length() {
            self.result.get_or_init(|| self.digest.finish());
        }
    }
}

impl<B> PairBuffer<B> {
    /// Begins the checksum for a new attempt. Where it will be, if it is to be sent.
    fn begin_sum(&mut self) -> Option<Arc<OnceLock<u32>>> {
        let is_sent = matches!(self, Self::Summed(..));
        let (Self::Summed(_, sum) | Self::Checked(_, sum)) = self else { return None };
        *sum = Sum::default();
        is_sent.then(|| Arc::clone(&sum.result))
    }
}

impl<B: DataBuffer> DataBuffer for PairBuffer<B> {
    const FOLLOWS_DATA: bool = true;

    fn on_sent(&mut self, range: Range<usize>) {
        if let Self::Summed(pieces, sum) = self {
            sum.advance(pieces, range.end);
        }
    }

    fn on_received(&mut self, range: Range<usize>) {
        let Self::Checked(pieces, sum) = self else { return };
        if range.start == 0 {
            // The command was sent again.
            *sum = Sum::default();
        }
        sum.advance(pieces, range.end);
    }

    fn length(&self) -> usize {
        match self {
            Self::Pieces(pieces) | Self::Summed(pieces, _) | Self::Checked(pieces, _) => pieces.length(),
            Self::Bytes(bytes) => bytes.length(),
        }
    }

    fn part(&self, offset: usize) -> &[u8] {
        match self {
            Self::Pieces(pieces) | Self::Summed(pieces, _) | Self::Checked(pieces, _) => pieces.part(offset),
            Self::Bytes(bytes) => bytes.part(offset),
        }
    }

    fn part_mut(&mut self, offset: usize) -> &mut [u8] {
        match self {
            Self::Pieces(pieces) | Self::Summed(pieces, _) | Self::Checked(pieces, _) => {
                pieces.part_mut(offset)
            }
            Self::Bytes(bytes) => bytes.part_mut(offset),
        }
    }
}

/// A checksum as it is kept: never 0, which says that there is none.
pub(crate) fn kept_checksum(checksum: u32) -> u32 {
    checksum.max(1)
}

/// One pair of commands, and its end.
#[derive(Debug)]
pub(crate) struct Pair<B> {
    pub(crate) target: usize,
    /// The buffer of each command, here unless it is outstanding.
    pub(crate) buffers: [Option<PairBuffer<B>>; 2],
    /// Bytes that the target keeps between the commands.
    pub(crate) kept_bytes: u64,
    /// Attempts, if its connection is lost.
    pub(crate) attempt_count_max: u8,
    /// Results of the first two commands.
    pub(crate) results: [u64; 2],
    pub(crate) failure: Option<Failure>,
    attempt_count: u8,
    /// Commands outstanding.
    left: u8,
    lane: usize,
    tag: u32,
    /// The checksum of an outstanding pair whose third command brings it.
    sum: Option<Arc<OnceLock<u32>>>,
}

impl<B> Pair<B> {
    pub(crate) fn new(target: usize, buffers: [Option<PairBuffer<B>>; 2]) -> Self {
        Self {
            target,
            buffers,
            kept_bytes: 0,
            attempt_count_max: 1,
            results: [0; 2],
            failure: None,
            attempt_count: 0,
            left: 0,
            lane: 0,
            tag: 0,
            sum: None,
        }
    }

    /// Whether its checksum is to be sent, and not known yet.
    fn is_summing(&self) -> bool {
        self.sum.as_ref().is_none_or(|sum| sum.get().is_none())
    }
}

/// How long targets may be silent: no byte to or from a target that has commands outstanding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// The limit.
    pub(crate) limit: Duration,
    /// The last progress of any target: at first the begin of the call.
    pub(crate) progress: Instant,
}

impl Patience {
    /// From now on.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, progress: Instant::now() }
    }

    /// Whether time is left for targets that have not been asked.
    pub(crate) fn is_left(&self) -> bool {
        self.progress.elapsed() < self.limit
    }
}

/// Lanes of targets, driven by the calling thread.
#[derive(Debug)]
pub(crate) struct PairLanes<B> {
    lanes: LaneSet<PairBuffer<B>>,
    /// The lanes of each target.
    targets: Vec<Range<usize>>,
    next_tag: u32,
}

impl<B: DataBuffer> PairLanes<B> {
    /// The lanes of each target; none for one that is lost.
    ///
    /// # Errors
    /// As [`LaneSet::new`].
    pub(crate) fn new(targets: Vec<Vec<Lane<PairBuffer<B>>>>) -> Result<Self, Error> {
        let mut start = 0;
        let range = |lanes: &Vec<_>| {
            start += lanes.len();
            start - lanes.len()..start
        };
        let ranges = targets.iter().map(range).collect();
        let lanes = LaneSet::new(targets.into_iter().flatten().collect())?;
        Ok(Self { lanes, targets: ranges, next_tag: 0 })
    }

    /// The lanes of each target.
    pub(crate) fn into_targets(self) -> Vec<Vec<Lane<PairBuffer<B>>>> {
        let mut lanes = self.lanes.into_lanes().into_iter();
        self.targets.into_iter().map(|range| lanes.by_ref().take(range.len()).collect()).collect()
    }

    /// Whether a lane of this target has ended for good.
    pub(crate) fn is_over(&self, target: usize) -> bool {
        self.lanes.lanes()[self.targets[target].clone()].iter().any(|lane| lane.over().is_some())
    }

    /// Number of a target's lanes.
    pub(crate) fn lane_count(&self, target: usize) -> usize {
        self.targets[target].len()
    }

    /// Runs pairs until all have ended. `make` makes the commands of the pair with this number, with a tag; `make_last` the
    /// one that brings the checksum.
    ///
    /// With `patience` the commands of a target that is silent for too long end, and its lanes with them.
    pub(crate) fn run(
        &mut self,
        pairs: &mut [Pair<B>],
        (make, make_last): (&mut Make<'_, B>, &mut MakeLast<'_>),
        mut patience: Option<&mut Patience>,
    ) {
        let mut run = Run {
            waiting: vec![VecDeque::new(); self.targets.len()],
            outstanding: vec![0; self.targets.len()],
            kept: vec![0; self.lanes.lanes().len()],
            summing: Vec::new(),
        };
        for (number, pair) in pairs.iter().enumerate() {
            run.waiting[pair.target].push_back(number);
        }
        let mut watch = patience.as_deref().map(|patience| self.watch(patience));
        let timeout = patience.as_deref().map_or(WAIT, |patience| patience.limit / CHECKS);
        let mut completions: Vec<Completion<PairBuffer<B>>> = Vec::new();
        loop {
            self.send_sums(pairs, make_last, &mut run);
            for target in 0..self.targets.len() {
                self.fill(target, pairs, make, &mut run);
            }
            if run.outstanding.iter().all(|count| *count == 0) {
                return;
            }
            for lane in 0..self.lanes.lanes().len() {
                if self.lanes.lanes()[lane].outstanding() > 0 {
                    self.lanes.lane_mut(lane).ring();
                }
            }
            let is_summing = |&number: &usize| pairs[number].is_summing();
            let goes_on = || run.summing.iter().all(is_summing);
            self.lanes.wait_while(&mut |_, completion| completions.push(completion), timeout, goes_on);
            for completion in completions.drain(..) {
                self.complete(completion, pairs, &mut run);
            }
            if let (Some(watch), Some(patience)) = (&mut watch, patience.as_deref_mut()) {
                self.end_silent(watch, patience, &run.outstanding);
            }
        }
    }

    /// Submits what waits for a target, as far as its lanes have room.
    fn fill(&mut self, target: usize, pairs: &mut [Pair<B>], make: &mut Make<'_, B>, run: &mut Run) {
        while let Some(&number) = run.waiting[target].front()
            && let Some(lane) = self.lane_with_room(target, number, pairs[number].kept_bytes, &run.kept)
        {
            run.waiting[target].pop_front();
            let pair = &mut pairs[number];
            if self.submit(number, pair, lane, make) {
                run.kept[lane] += pair.kept_bytes;
                run.summing.extend(pair.sum.is_some().then_some(number));
                run.outstanding[target] += 1;
            }
        }
        if run.outstanding[target] == 0 {
            // No lane takes a command: the association has ended.
            for number in run.waiting[target].drain(..) {
                pairs[number].failure = Some(Failure::Unreachable);
            }
        }
    }

    /// Submits the checksums of values that have been sent, before other pairs take the room for them.
    fn send_sums(&mut self, pairs: &mut [Pair<B>], make_last: &mut MakeLast<'_>, run: &mut Run) {
        run.summing.retain(|&number| {
            let pair = &mut pairs[number];
            let Some(&sum) = pair.sum.as_ref().and_then(|sum| sum.get()) else { return pair.sum.is_some() };
            let user = number as u64 * COMMAND_COUNT_MAX + 2;
            match self.lanes.submit(pair.lane, make_last(number, pair.tag, kept_checksum(sum)), None, user) {
                Ok(()) => pair.left += 1,
                // Its Submit will have ended, and leave room.
                Err(_) if self.lanes.lanes()[pair.lane].over().is_none() => return true,
                // It ends with its association.
                Err(_) => {}
            }
            pair.sum = None;
            false
        });
    }

    /// A lane with room for two commands, in turn, and for bytes that the target keeps.
    fn lane_with_room(&self, target: usize, number: usize, bytes: u64, kept: &[u64]) -> Option<usize> {
        let Range { start, end } = self.targets[target];
        let count = end - start;
        let mut in_turn = (0..count).map(|step| start + (number + step) % count);
        in_turn.find(|&lane| {
            self.lanes.lanes()[lane].has_room(2) && kept[lane].saturating_add(bytes) <= KEPT_BYTES_MAX
        })
    }

    /// Submits both commands of a pair. Returns whether any is outstanding.
    fn submit(&mut self, number: usize, pair: &mut Pair<B>, lane: usize, make: &mut Make<'_, B>) -> bool {
        self.next_tag = self.next_tag.wrapping_add(1);
        let made = make(number, pair, self.next_tag);
        pair.sum = pair.buffers[0].as_mut().and_then(PairBuffer::begin_sum);
        pair.tag = self.next_tag;
        pair.attempt_count += 1;
        pair.lane = lane;
        pair.failure = None;
        let Ok((first, second)) = made else {
            pair.failure = Some(Failure::Unreachable);
            return false;
        };
        for (at, command) in [Some(first), second].into_iter().flatten().enumerate() {
            let user = number as u64 * COMMAND_COUNT_MAX + at as u64;
            if let Err(refused) = self.lanes.submit(lane, command, pair.buffers[at].take(), user) {
                // If the first one was taken, the association has ended since, and it ends with it.
                pair.buffers[at] = refused.buffer;
                pair.failure = Some(Failure::Unreachable);
                break;
            }
            pair.left += 1;
        }
        pair.left > 0
    }

    /// Takes a completion, and repeats a pair whose connection was lost if it has attempts left.
    fn complete(&mut self, completion: Completion<PairBuffer<B>>, pairs: &mut [Pair<B>], run: &mut Run) {
        let number = usize::try_from(completion.user / COMMAND_COUNT_MAX).unwrap_or(usize::MAX);
        let at = completion.user % COMMAND_COUNT_MAX;
        let pair = &mut pairs[number];
        pair.left -= 1;
        if at == 0 {
            pair.sum = None;
        }
        let at_first_two = usize::try_from(at).ok().filter(|at| *at < pair.buffers.len());
        if let (Some(at), Some(buffer)) = (at_first_two, completion.buffer) {
            pair.buffers[at] = Some(buffer);
        }
        match completion.result {
            Ok(result) => at_first_two.into_iter().for_each(|at| pair.results[at] = result),
            Err(failure) => {
                // The status of both is that of the first; a cancelled one says nothing.
                pair.failure = pair.failure.filter(|known| *known != Failure::Cancelled).or(Some(failure));
                if at > 0 && pair.left > 0 {
                    self.lanes.lane_mut(pair.lane).cancel(completion.user - at);
                }
            }
        }
        if pair.left > 0 {
            return;
        }
        run.outstanding[pair.target] -= 1;
        run.kept[pair.lane] -= pair.kept_bytes;
        let is_lost = pair.failure.is_some_and(Failure::may_have_happened);
        if is_lost && pair.attempt_count < pair.attempt_count_max {
            run.waiting[pair.target].push_back(number);
        }
    }

    /// Watches the progress of targets.
    fn watch(&self, patience: &Patience) -> Watch {
        let seen = (0..self.targets.len()).map(|target| (self.moved_bytes(target), patience.progress));
        Watch { next: Instant::now() + patience.limit / CHECKS, seen: seen.collect() }
    }

    /// Bytes that a target's lanes have sent and received.
    fn moved_bytes(&self, target: usize) -> u64 {
        let lanes = &self.lanes.lanes()[self.targets[target].clone()];
        lanes.iter().fold(0, |sum, lane| sum.wrapping_add(lane.moved_bytes()))
    }

    /// Ends the lanes of targets that have been silent for too long.
    fn end_silent(&mut self, watch: &mut Watch, patience: &mut Patience, outstanding: &[usize]) {
        let now = Instant::now();
        if now < watch.next {
            return;
        }
        watch.next = now + patience.limit / CHECKS;
        for (target, &count) in outstanding.iter().enumerate().filter(|(_, count)| **count > 0) {
            let moved_bytes = self.moved_bytes(target);
            let (seen_bytes, since) = &mut watch.seen[target];
            if *seen_bytes != moved_bytes {
                (*seen_bytes, *since) = (moved_bytes, now);
                patience.progress = now;
            } else if now.duration_since(*since) >= patience.limit {
                tracing::warn!(target, outstanding = count, limit = ?patience.limit, "target is silent");
                for lane in self.targets[target].clone() {
                    self.lanes.lane_mut(lane).abandon();
                }
            }
        }
    }
}

/// State of [`PairLanes::run`].
struct Run {
    /// Numbers of pairs, by target.
    waiting: Vec<VecDeque<usize>>,
    /// Pairs outstanding, by target.
    outstanding: Vec<usize>,
    /// Bytes that a target keeps, by lane.
    kept: Vec<u64>,
    /// Numbers of pairs whose checksum is not sent yet.
    summing: Vec<usize>,
}

/// Bytes that each target had moved, and when that changed last.
struct Watch {
    next: Instant,
    seen: Vec<(u64, Instant)>,
}
