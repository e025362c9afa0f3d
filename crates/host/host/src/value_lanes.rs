//! Many values at once, between a target and buffers of the caller.
//!
//! ```text
//! transfers ─▶ jobs: a value, or stripes of a long one ─▶ lanes, several jobs on each ─▶ buffers, filled in place
//!                                  ▲─ stripes of two versions: again, as one job ──┘
//! ```

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use host_core::buffer::Vectored;
use host_core::failure::Failure;
use host_core::key_value::KeyValueNamespace;
use host_core::submit::{Command, Completion};
use proto::DataDigest;
use proto::host_queue::DataBuffer;
use wire::kv::StoreOptions;
use wire::kv::batch::StoreAttributes;
use wire::status::Status;

use crate::address::Address;
use crate::association::Association;
use crate::error::Error;
use crate::lane_set::LaneSet;
use crate::options::Options;

/// Bytes of a stripe, at least: a shorter value, or one in one piece, is one job.
const STRIPE_BYTES_MIN: u64 = 1 << 20;

/// Attempts of a job whose connection is lost. Neither a retrieval nor a store without a condition does harm twice.
const ATTEMPT_COUNT_MAX: u8 = 3;

/// Bytes of values in capsules that a target keeps for a lane, at most: half of what nvlane's does.
const KEPT_BYTES_MAX: u64 = 512 << 10;

/// The longest value that may go in a capsule, bytes.
const CAPSULE_BYTES_MAX: u32 = 64 << 10;

/// Timeout of a wait: effectively none, since commands have their own.
const WAIT: Duration = Duration::from_secs(3600);

/// Lanes of the calling thread that move many values at once, directly from and into the caller's buffers.
///
/// ```no_run
/// use nvlane_host::{Moved, Options, ValueLanes, ValueTransfer};
///
/// let address = "192.0.2.1:4420/nqn.2016-06.io.nvlane:cache".parse()?;
/// let mut values = ValueLanes::connect(&address, Options::default().with_lanes(4))?;
/// let mut transfers = vec![ValueTransfer::new(b"model@0@layers", vec![vec![1u8; 8 << 20]; 4])];
/// values.store(&mut transfers, 0)?;
/// values.retrieve(&mut transfers)?;
/// assert_eq!(transfers[0].moved, Moved::Whole);
/// # Ok::<(), nvlane_host::Error>(())
/// ```
#[derive(Debug)]
pub struct ValueLanes<B = Vec<u8>> {
    lanes: LaneSet<Vectored<B>>,
    namespace: KeyValueNamespace,
    association: Association,
    next_tag: u32,
    has_checksums: bool,
    damaged_count: u64,
}

/// A value to move: its key, and the buffers that have its bytes or receive them, one after the other.
#[derive(Debug)]
pub struct ValueTransfer<'k, B> {
    /// 1 to 250 bytes.
    pub key: &'k [u8],
    /// The buffers, which are always given back. Together they are as long as the value.
    pub pieces: Vec<B>,
    /// Retrieve: ranges of the value that the buffers receive, one after the other; none: all of it.
    pub ranges: Vec<Range<u32>>,
    /// Options of a store. With one, a store whose connection is lost is not repeated.
    pub options: StoreOptions,
    /// What became of it.
    pub moved: Moved,
}

/// What became of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moved {
    /// Nothing yet.
    #[default]
    Pending,
    /// All of it was moved.
    Whole,
    /// Retrieve: the key does not exist. Store: its condition does not hold.
    Missing,
    /// Retrieve: the value has another length than the buffers, or does not have a range. Store: it is longer than the target takes.
    OtherLength,
    /// Retrieve: the value does not have its checksum.
    Damaged,
    /// The command failed. What a retrieval has left in the buffers is unknown.
    Failed(Failure),
}

impl<'k, B> ValueTransfer<'k, B> {
    /// A transfer between a key and these buffers.
    #[must_use]
    pub fn new(key: &'k [u8], pieces: Vec<B>) -> Self {
        Self { key, pieces, ranges: Vec::new(), options: StoreOptions::empty(), moved: Moved::Pending }
    }

    /// Ranges of a value, whatever its length, into these buffers, which are together as long.
    #[must_use]
    pub fn of_ranges(key: &'k [u8], ranges: Vec<Range<u32>>, pieces: Vec<B>) -> Self {
        Self { ranges, ..Self::new(key, pieces) }
    }

    /// Whether the whole value was moved: for a cache, everything else is a miss.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.moved == Moved::Whole
    }
}

/// One pair of commands.
struct Job<B> {
    /// The transfer that it belongs to.
    at: usize,
    /// Buffers of the transfer.
    pieces: Range<usize>,
    /// The bytes of the value; `None`: all.
    range: Option<Range<u32>>,
    length: u32,
    attempt_count: u8,
    /// Commands outstanding.
    left: u8,
    lane: usize,
    failure: Option<Failure>,
    /// Version and flags, which the second command has returned.
    version: u32,
    flags: u32,
    /// While it is outstanding, the buffers are with its command.
    buffer: Option<Vectored<B>>,
}

impl<B> Job<B> {
    fn new(at: usize, pieces: Range<usize>, range: Option<Range<u32>>, length: u32) -> Self {
        Self {
            at,
            pieces,
            range,
            length,
            attempt_count: 0,
            left: 0,
            lane: 0,
            failure: None,
            version: 0,
            flags: 0,
            buffer: None,
        }
    }
}

/// Where values go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Retrieve,
    Store { ttl_s: u32, has_checksums: bool },
}

impl<B: DataBuffer + Default> ValueLanes<B> {
    /// Connects to the namespace that `address` names, or to the only key-value namespace of the subsystem, with as many
    /// lanes as the options say.
    ///
    /// # Errors
    /// As [`Association::connect`], [`Association::addressed_key_value`] and [`Association::lane`].
    pub fn connect(address: &Address, options: Options) -> Result<Self, Error> {
        let association = Association::connect(address, options)?;
        let namespace = association.addressed_key_value()?;
        Self::new(&association, namespace)
    }

    /// All lanes of an existing association.
    ///
    /// # Errors
    /// As [`Association::lane`].
    pub fn new(association: &Association, namespace: KeyValueNamespace) -> Result<Self, Error> {
        let lanes = association.lanes()?;
        Ok(Self {
            lanes,
            namespace,
            association: association.clone(),
            next_tag: 0,
            has_checksums: false,
            damaged_count: 0,
        })
    }

    /// Stores values with a CRC32C of their bytes, kept beside them in memory and in a log, where memcached has its flags; and
    /// compares it with what is retrieved, but for ranges. Values without one are not compared.
    #[must_use]
    pub fn with_checksums(self) -> Self {
        Self { has_checksums: true, ..self }
    }

    /// Values that did not have their checksum.
    #[must_use]
    pub fn damaged_count(&self) -> u64 {
        self.damaged_count
    }

    /// The namespace: its limits, and the constructor of its commands.
    #[must_use]
    pub fn namespace(&self) -> &KeyValueNamespace {
        &self.namespace
    }

    /// The association.
    #[must_use]
    pub fn association(&self) -> &Association {
        &self.association
    }

    /// Retrieves values into buffers of their lengths. Each transfer tells in [`moved`](ValueTransfer::moved) what became
    /// of it: all bytes of one version of the value are there, or none count.
    ///
    /// A value in several buffers of together 2 MiB and more is retrieved by several lanes at once.
    ///
    /// # Errors
    /// [`Error::Command`] if a key, or the length of a value, is one that no command has: nothing was sent then.
    pub fn retrieve(&mut self, transfers: &mut [ValueTransfer<'_, B>]) -> Result<(), Error> {
        let mut jobs = self.jobs(transfers, Direction::Retrieve)?;
        let scan_count = self.association.scan_count();
        self.run(transfers, &mut jobs, Direction::Retrieve);
        // Stripes of two versions are no value; nor are some from before a reconnect, and some from after it.
        let is_same_target = scan_count == self.association.scan_count();
        let mut again = Vec::new();
        for (at, transfer) in transfers.iter().enumerate() {
            let versions = || jobs.iter().filter(|job| job.at == at).map(|job| job.version);
            let is_one = versions().count() == 1
                || is_same_target
                    && versions().all(|version| version != 0 && Some(version) == versions().next());
            if transfer.moved == Moved::Whole && !is_one {
                let pieces = 0..transfer.pieces.len();
                let length = jobs.iter().filter(|job| job.at == at).map(|job| job.length).sum();
                again.push(Job::new(at, pieces, None, length));
            }
        }
        self.run(transfers, &mut again, Direction::Retrieve);
        if self.has_checksums {
            // Stripes of one version have the same flags; what was retrieved again comes last.
            for job in jobs.iter().chain(&again).filter(|job| job.flags != 0) {
                let is_last = !again.iter().any(|later| later.at == job.at) || job.range.is_none();
                let transfer = &mut transfers[job.at];
                if is_last
                    && transfer.is_whole()
                    && transfer.ranges.is_empty()
                    && checksum(&transfer.pieces) != job.flags
                {
                    transfer.moved = Moved::Damaged;
                    self.damaged_count += 1;
                }
            }
        }
        Ok(())
    }

    /// Stores values, each as a whole or not at all, for this number of seconds; 0: for ever. Each transfer tells in
    /// [`moved`](ValueTransfer::moved) what became of it. A value takes one lane, different values take all.
    ///
    /// # Errors
    /// As [`retrieve`](Self::retrieve).
    pub fn store(&mut self, transfers: &mut [ValueTransfer<'_, B>], ttl_s: u32) -> Result<(), Error> {
        let direction = Direction::Store { ttl_s, has_checksums: self.has_checksums };
        let mut jobs = self.jobs(transfers, direction)?;
        self.run(transfers, &mut jobs, direction);
        Ok(())
    }

    /// Checks all transfers, and divides them into jobs.
    fn jobs(
        &mut self,
        transfers: &mut [ValueTransfer<'_, B>],
        direction: Direction,
    ) -> Result<Vec<Job<B>>, Error> {
        let mut jobs = Vec::with_capacity(transfers.len());
        for (at, transfer) in transfers.iter_mut().enumerate() {
            let lengths: Vec<u64> = transfer.pieces.iter().map(|piece| piece.length() as u64).collect();
            let length = u32::try_from(lengths.iter().sum::<u64>()).unwrap_or(u32::MAX);
            let whole = Job::new(at, 0..lengths.len(), None, length);
            // What is refused here is refused before anything is sent.
            commands(&self.namespace, 0, transfer, &whole, length, direction)?;
            transfer.moved = Moved::Pending;
            let lane_count = self.lanes.lanes().len() as u64;
            match direction {
                Direction::Retrieve if !transfer.ranges.is_empty() => jobs.push(whole),
                Direction::Retrieve => jobs.extend(stripes(&lengths, lane_count).map_or_else(
                    || vec![whole],
                    |stripes| {
                        let job = |(pieces, range): (Range<usize>, Range<u32>)| {
                            let length = range.end - range.start;
                            Job::new(at, pieces, Some(range), length)
                        };
                        stripes.into_iter().map(job).collect()
                    },
                )),
                Direction::Store { .. } => jobs.push(whole),
            }
        }
        Ok(jobs)
    }

    /// Runs jobs until all have ended, and gives the buffers back.
    fn run(&mut self, transfers: &mut [ValueTransfer<'_, B>], jobs: &mut [Job<B>], direction: Direction) {
        let lengths: Vec<u32> = {
            let sum = |transfer: &ValueTransfer<'_, B>| {
                transfer.pieces.iter().map(|piece| piece.length() as u64).sum::<u64>()
            };
            transfers.iter().map(|transfer| u32::try_from(sum(transfer)).unwrap_or(u32::MAX)).collect()
        };
        for job in jobs.iter_mut() {
            let pieces = &mut transfers[job.at].pieces[job.pieces.clone()];
            job.buffer = Some(Vectored::new(pieces.iter_mut().map(std::mem::take).collect()));
        }
        let mut waiting: VecDeque<usize> = (0..jobs.len()).collect();
        let mut outstanding = 0usize;
        let mut kept = vec![0; self.lanes.lanes().len()];
        let mut completions: Vec<Completion<Vectored<B>>> = Vec::new();
        while outstanding > 0 || !waiting.is_empty() {
            while let Some(&number) = waiting.front()
                && let Some(lane) = self.lane_with_room(number, kept_bytes(&jobs[number], direction), &kept)
            {
                waiting.pop_front();
                let job = &mut jobs[number];
                kept[lane] += kept_bytes(job, direction);
                let length = lengths[job.at];
                if self.submit(&transfers[job.at], (job, number), lane, length, direction) {
                    outstanding += 1;
                } else if job.left > 0 {
                    // The association has ended since the first command was taken, which ends with it.
                    outstanding += 1;
                }
            }
            if outstanding == 0 {
                if waiting.is_empty() {
                    break;
                }
                // No lane takes a command: the association has ended.
                for number in waiting.drain(..) {
                    jobs[number].failure = Some(Failure::Unreachable);
                }
                break;
            }
            for lane in 0..self.lanes.lanes().len() {
                if self.lanes.lanes()[lane].outstanding() > 0 {
                    self.lanes.lane_mut(lane).ring();
                }
            }
            self.lanes.wait_with(&mut |_, completion| completions.push(completion), WAIT);
            for completion in completions.drain(..) {
                let number = usize::try_from(completion.user / 2).unwrap_or(usize::MAX);
                let job = &mut jobs[number];
                let is_first = completion.user % 2 == 0;
                job.left -= 1;
                if is_first {
                    job.buffer = completion.buffer.or(job.buffer.take());
                }
                match completion.result {
                    Ok(result) if !is_first => {
                        job.version = u32::try_from(result & 0xffff_ffff).unwrap_or(0);
                        job.flags = u32::try_from(result >> 32).unwrap_or(0);
                    }
                    Ok(_) => {}
                    Err(failure) => {
                        // The status of both is that of the first; a cancelled one says nothing.
                        job.failure =
                            job.failure.filter(|known| *known != Failure::Cancelled).or(Some(failure));
                        if !is_first && job.left > 0 {
                            self.lanes.lane_mut(job.lane).cancel(completion.user - 1);
                        }
                    }
                }
                if job.left > 0 {
                    continue;
                }
                outstanding -= 1;
                kept[job.lane] -= kept_bytes(job, direction);
                let may_repeat = direction == Direction::Retrieve || transfers[job.at].options.is_empty();
                let is_lost = job.failure.is_some_and(Failure::may_have_happened);
                if is_lost && may_repeat && job.attempt_count < ATTEMPT_COUNT_MAX && job.buffer.is_some() {
                    job.failure = None;
                    waiting.push_back(number);
                }
            }
        }
        for job in jobs {
            let transfer = &mut transfers[job.at];
            let pieces = job.buffer.take().map(Vectored::into_pieces).unwrap_or_default();
            for (place, piece) in transfer.pieces[job.pieces.clone()].iter_mut().zip(pieces) {
                *place = piece;
            }
            let moved = job.failure.map_or(Moved::Whole, |failure| moved(failure, direction));
            if matches!(transfer.moved, Moved::Pending | Moved::Whole) {
                transfer.moved = moved;
            }
        }
    }

    /// A lane with room for two commands, in turn, and for bytes that the target keeps.
    fn lane_with_room(&self, number: usize, bytes: u64, kept: &[u64]) -> Option<usize> {
        let lanes = self.lanes.lanes();
        let count = lanes.len();
        let mut in_turn = (0..count).map(|step| (number + step) % count);
        in_turn.find(|&lane| lanes[lane].has_room(2) && kept[lane] + bytes <= KEPT_BYTES_MAX)
    }

    /// Submits both commands of a job. Returns whether both were taken.
    fn submit(
        &mut self,
        transfer: &ValueTransfer<'_, B>,
        (job, number): (&mut Job<B>, usize),
        lane: usize,
        value_bytes: u32,
        direction: Direction,
    ) -> bool {
        self.next_tag = self.next_tag.wrapping_add(1);
        let made = commands(&self.namespace, self.next_tag, transfer, job, value_bytes, direction);
        let Ok([first, second]) = made else {
            job.failure = Some(Failure::Unreachable);
            return false;
        };
        job.attempt_count += 1;
        job.lane = lane;
        let user = number as u64 * 2;
        if let Err(refused) = self.lanes.submit(lane, first, job.buffer.take(), user) {
            job.buffer = refused.buffer;
            job.failure = Some(Failure::Unreachable);
            return false;
        }
        job.left = 1;
        if self.lanes.submit(lane, second, None, user + 1).is_err() {
            return false;
        }
        job.left = 2;
        true
    }
}

/// Bytes of a value that the target keeps until it knows the key.
fn kept_bytes<B>(job: &Job<B>, direction: Direction) -> u64 {
    let is_kept = job.length <= CAPSULE_BYTES_MAX && matches!(direction, Direction::Store { .. });
    if is_kept { job.length.into() } else { 0 }
}

/// The checksum of a value, never 0.
fn checksum<B: DataBuffer>(pieces: &[B]) -> u32 {
    let mut digest = DataDigest::new();
    for piece in pieces {
        let mut at = 0;
        while at < piece.length() {
            let part = piece.part(at);
            digest.update(part);
            at += part.len();
        }
    }
    digest.finish().max(1)
}

/// The commands of a job.
fn commands<B: DataBuffer>(
    namespace: &KeyValueNamespace,
    tag: u32,
    transfer: &ValueTransfer<'_, B>,
    job: &Job<B>,
    value_bytes: u32,
    direction: Direction,
) -> Result<[Command; 2], host_core::namespace::InvalidCommand> {
    match direction {
        Direction::Retrieve => {
            let (ranges, expected_bytes) = match &transfer.ranges[..] {
                [] => (job.range.as_slice(), value_bytes),
                // They say nothing of the value's length.
                ranges => (ranges, 0),
            };
            namespace.retrieve_ranges(tag, transfer.key, ranges, (expected_bytes, job.length))
        }
        Direction::Store { ttl_s, has_checksums } => {
            let flags = match &job.buffer {
                Some(buffer) if has_checksums => checksum(buffer.pieces()),
                _ => 0,
            };
            let attributes = StoreAttributes { ttl_s, flags };
            namespace.store_long(tag, transfer.key, job.length, (transfer.options, attributes))
        }
    }
}

/// Consecutive pieces for each lane, of about the same number of bytes, with their range of the value; `None` if one lane
/// does as well.
fn stripes(lengths: &[u64], lane_count: u64) -> Option<Vec<(Range<usize>, Range<u32>)>> {
    let total: u64 = lengths.iter().sum();
    let count = lane_count.min(total / STRIPE_BYTES_MIN).min(lengths.len() as u64);
    if count < 2 {
        return None;
    }
    let mut stripes = Vec::new();
    let (mut start, mut first) = (0u64, 0);
    let mut end = 0u64;
    for (number, length) in lengths.iter().enumerate() {
        end += length;
        let is_due = end * count >= total * (stripes.len() as u64 + 1);
        if end > start && (is_due || number + 1 == lengths.len()) {
            let range = u32::try_from(start).ok()?..u32::try_from(end).ok()?;
            stripes.push((first..number + 1, range));
            (start, first) = (end, number + 1);
        }
    }
    // Empty pieces at the end belong to the last stripe.
    if let Some((pieces, _)) = stripes.last_mut() {
        pieces.end = lengths.len();
    }
    (stripes.len() > 1).then_some(stripes)
}

/// What a failure means for a cache.
fn moved(failure: Failure, direction: Direction) -> Moved {
    let status = failure.status();
    let is = |expected: Status| status.is_some_and(|status| status.is(expected));
    match direction {
        _ if is(Status::KEY_DOES_NOT_EXIST) => Moved::Missing,
        Direction::Store { .. } if is(Status::KEY_EXISTS) => Moved::Missing,
        _ if is(Status::INVALID_VALUE_SIZE) => Moved::OtherLength,
        _ => Moved::Failed(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_value_is_divided_where_that_pays() {
        assert_eq!(stripes(&[MIB; 8], 1), None);
        assert_eq!(stripes(&[8 * MIB], 4), None, "one buffer");
        assert_eq!(stripes(&[1000; 8], 4), None, "short");
        let two = [(0..2, 0..2 * MIB as u32), (2..4, 2 * MIB as u32..4 * MIB as u32)];
        assert_eq!(stripes(&[MIB; 4], 2), Some(two.to_vec()));
        let uneven = stripes(&[3 * MIB, 0, 1, MIB, 0], 4).expect("stripes");
        assert_eq!(uneven.first().map(|(pieces, _)| pieces.start), Some(0));
        assert_eq!(uneven.last().map(|(pieces, _)| pieces.end), Some(5));
        for (one, next) in uneven.iter().zip(&uneven[1..]) {
            assert_eq!((one.0.end, one.1.end), (next.0.start, next.1.start));
        }
        assert_eq!(uneven.last().map(|(_, range)| u64::from(range.end)), Some(4 * MIB + 1));
    }

    #[test]
    fn for_a_cache_all_that_is_not_whole_is_a_miss() {
        let status = |status: Status| Failure::Status(status.with_dnr());
        let retrieved = |failure| moved(failure, Direction::Retrieve);
        assert_eq!(retrieved(status(Status::KEY_DOES_NOT_EXIST)), Moved::Missing);
        assert_eq!(retrieved(status(Status::INVALID_VALUE_SIZE)), Moved::OtherLength);
        assert_eq!(retrieved(Failure::TimedOut), Moved::Failed(Failure::TimedOut));
        let stored = moved(status(Status::KEY_EXISTS), Direction::Store { ttl_s: 0, has_checksums: false });
        assert_eq!(stored, Moved::Missing);
    }
}
