//! Values to move, what became of them, and the commands that move them.

use std::ops::Range;

use host_core::buffer::Vectored;
use host_core::failure::Failure;
use host_core::key_value::{Batch, KeyValueNamespace};
use host_core::namespace::InvalidCommand;
use host_core::submit::Command;
use memory::crc32c;
use proto::DataDigest;
use proto::host_queue::DataBuffer;
use wire::kv::StoreOptions;
use wire::kv::batch::{Operation, StoreAttributes};
use wire::opcode::KvOpcode;
use wire::status::Status;

use crate::value_pairs::{Pair, PairBuffer, PairCommands, Sum, kept_checksum};

/// Bytes of a stripe, at least: a shorter value, or one in one piece, is one job.
const STRIPE_BYTES_MIN: u64 = 1 << 20;

/// Bytes of a value whose checksum is computed while it is sent, at least: it takes a third command.
const SUMMED_BYTES_MIN: u32 = 128 << 10;
const _: () = assert!(SUMMED_BYTES_MIN > CAPSULE_BYTES_MAX);

/// The longest value that may go in a capsule, bytes.
const CAPSULE_BYTES_MAX: u32 = 64 << 10;

/// A value to move: its key, and the buffers that have its bytes or receive them, one after the other.
#[derive(Debug)]
pub struct ValueTransfer<'k, B> {
    /// 1 to 250 bytes.
    pub key: &'k [u8],
    /// The buffers, which are always given back. Together they are as long as the value; none, or empty ones, for an empty
    /// value.
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

/// Where values go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Retrieve { has_checksums: bool },
    Store { ttl_s: u32, has_checksums: bool },
}

impl Direction {
    pub(crate) fn is_retrieval(self) -> bool {
        matches!(self, Self::Retrieve { .. })
    }
}

/// One pair of commands of a transfer.
pub(crate) struct Job {
    /// The transfer that it belongs to.
    pub(crate) at: usize,
    pub(crate) target: usize,
    /// Buffers of the transfer.
    pub(crate) pieces: Range<usize>,
    /// The bytes of the value; `None`: all.
    pub(crate) range: Option<Range<u32>>,
    pub(crate) length: u32,
    /// Bytes of the whole value.
    pub(crate) value_bytes: u32,
    /// An empty value: no command has data of no bytes, and a batch of one operation has.
    pub(crate) batch: Option<Batch>,
    /// The checksum of the bytes that were received, if it was computed.
    sum: Option<u32>,
    /// The one that was stored with the whole value; 0 for none.
    kept_sum: u32,
}

impl Job {
    /// The jobs of a transfer: one, or stripes of a value for several lanes of the target.
    ///
    /// # Errors
    /// What no command has, before anything is sent.
    pub(crate) fn of<B: DataBuffer>(
        (at, transfer): (usize, &ValueTransfer<'_, B>),
        (target, namespace, lane_count): (usize, &KeyValueNamespace, usize),
        direction: Direction,
    ) -> Result<Vec<Self>, InvalidCommand> {
        let lengths: Vec<u64> = transfer.pieces.iter().map(|piece| piece.length() as u64).collect();
        let value_bytes = u32::try_from(lengths.iter().sum::<u64>()).unwrap_or(u32::MAX);
        let job = |pieces: Range<usize>, range: Option<Range<u32>>, length| Self {
            at,
            target,
            pieces,
            range,
            length,
            value_bytes,
            batch: None,
            sum: None,
            kept_sum: 0,
        };
        let whole = job(0..lengths.len(), None, value_bytes);
        if value_bytes == 0 && transfer.ranges.is_empty() {
            let mut batch = namespace.batch()?;
            match direction {
                Direction::Retrieve { .. } => batch.push(&Operation::on(KvOpcode::EXIST, transfer.key))?,
                Direction::Store { ttl_s, .. } => {
                    let attributes = StoreAttributes { ttl_s, flags: 0 };
                    batch.store_with(transfer.key, &[], transfer.options, attributes)?;
                }
            }
            return Ok(vec![Self { batch: Some(batch), ..whole }]);
        }
        whole.commands(namespace, 0, transfer, None, direction)?;
        if !direction.is_retrieval() || !transfer.ranges.is_empty() {
            return Ok(vec![whole]);
        }
        Ok(match stripes(&lengths, lane_count as u64) {
            None => vec![whole],
            Some(stripes) => {
                let stripe = |(pieces, range): (Range<usize>, Range<u32>)| {
                    let length = range.end - range.start;
                    job(pieces, Some(range), length)
                };
                stripes.into_iter().map(stripe).collect()
            }
        })
    }

    /// All of the same transfer in one job.
    pub(crate) fn whole(&self, piece_count: usize) -> Self {
        let Self { at, target, value_bytes, .. } = *self;
        Self {
            at,
            target,
            pieces: 0..piece_count,
            range: None,
            length: value_bytes,
            value_bytes,
            batch: None,
            sum: None,
            kept_sum: 0,
        }
    }

    /// Its pair, with the buffers of the transfer.
    pub(crate) fn pair<B: DataBuffer + Default>(
        &mut self,
        namespace: &KeyValueNamespace,
        transfer: &mut ValueTransfer<'_, B>,
        direction: Direction,
    ) -> Pair<B> {
        let is_summed = matches!(direction, Direction::Store { has_checksums: true, .. })
            && self.length >= SUMMED_BYTES_MIN
            && namespace.takes_flags_later();
        let is_checked =
            direction == Direction::Retrieve { has_checksums: true } && transfer.ranges.is_empty();
        let buffers = match &mut self.batch {
            Some(batch) => batch_buffers(batch),
            None => {
                let pieces = &mut transfer.pieces[self.pieces.clone()];
                let pieces = pieces.iter_mut().map(std::mem::take).collect();
                let pieces = Vectored::new(pieces);
                let buffer = match (is_summed, is_checked) {
                    (true, _) => PairBuffer::Summed(pieces, Sum::default()),
                    (_, true) => PairBuffer::Checked(pieces, Sum::default()),
                    _ => PairBuffer::Pieces(pieces),
                };
                [Some(buffer), None]
            }
        };
        let mut pair = Pair::new(self.target, buffers);
        if self.length <= CAPSULE_BYTES_MAX && !direction.is_retrieval() {
            pair.kept_bytes = self.length.into();
        }
        pair
    }

    /// The commands of its pair.
    pub(crate) fn commands<B: DataBuffer>(
        &self,
        namespace: &KeyValueNamespace,
        tag: u32,
        transfer: &ValueTransfer<'_, B>,
        pair: Option<&Pair<B>>,
        direction: Direction,
    ) -> Result<PairCommands, InvalidCommand> {
        if let (Some(batch), Some(pair)) = (&self.batch, pair) {
            return Ok(batch_commands(batch, tag, pair));
        }
        match direction {
            Direction::Retrieve { .. } => {
                let (ranges, expected_bytes) = match &transfer.ranges[..] {
                    [] => (self.range.as_slice(), self.value_bytes),
                    // They say nothing of the value's length.
                    ranges => (ranges, 0),
                };
                let lengths = (expected_bytes, self.length);
                namespace.retrieve_ranges(tag, transfer.key, ranges, lengths).map(both)
            }
            Direction::Store { ttl_s, has_checksums } => {
                let flags = match pair.map(|pair| &pair.buffers[0]) {
                    Some(Some(PairBuffer::Summed(..))) => {
                        let options = (transfer.options, ttl_s);
                        return namespace
                            .store_flags_later(tag, transfer.key, self.length, options)
                            .map(both);
                    }
                    Some(Some(PairBuffer::Pieces(pieces))) if has_checksums => checksum(pieces.pieces()),
                    _ => 0,
                };
                let attributes = StoreAttributes { ttl_s, flags };
                let options = (transfer.options, attributes);
                namespace.store_long(tag, transfer.key, self.length, options).map(both)
            }
        }
    }

    /// Gives the buffers back to the transfer, and tells it the end of the pair.
    pub(crate) fn finish<B: DataBuffer>(
        &mut self,
        pair: &mut Pair<B>,
        transfer: &mut ValueTransfer<'_, B>,
        direction: Direction,
    ) {
        let moved = match &self.batch {
            Some(_) => moved_empty(pair, direction),
            None => pair.failure.map_or(Moved::Whole, |failure| Moved::of(failure, direction)),
        };
        if let Some(PairBuffer::Checked(_, sum)) = &pair.buffers[0] {
            self.sum = sum.result();
            self.kept_sum = u32::try_from(pair.results[1] >> 32).expect("a half");
        }
        if let Some(
            PairBuffer::Pieces(pieces) | PairBuffer::Summed(pieces, _) | PairBuffer::Checked(pieces, _),
        ) = pair.buffers[0].take()
        {
            let places = &mut transfer.pieces[self.pieces.clone()];
            for (place, piece) in places.iter_mut().zip(pieces.into_pieces()) {
                *place = piece;
            }
        }
        if matches!(transfer.moved, Moved::Pending | Moved::Whole) {
            transfer.moved = moved;
        }
    }
}

fn both([first, second]: [Command; 2]) -> PairCommands {
    (first, Some(second))
}

/// What became of an empty value, from the outcome of its batch.
fn moved_empty<B>(pair: &Pair<B>, direction: Direction) -> Moved {
    let outcome = match (pair.failure, &pair.buffers[0]) {
        (Some(failure), _) => return Moved::of(failure, direction),
        (None, Some(PairBuffer::Bytes(bytes))) => Batch::outcomes(bytes, pair.results[0]).next(),
        _ => None,
    };
    match outcome {
        Some(outcome) if !outcome.status.is_success() => {
            Moved::of(Failure::Status(outcome.status), direction)
        }
        Some(outcome) if direction.is_retrieval() && outcome.result != 0 => Moved::OtherLength,
        Some(_) => Moved::Whole,
        None => Moved::Failed(Failure::Unreachable),
    }
}

impl Moved {
    /// What a failure means for a cache.
    fn of(failure: Failure, direction: Direction) -> Self {
        let status = failure.status();
        let is = |expected: Status| status.is_some_and(|status| status.is(expected));
        match direction {
            _ if is(Status::KEY_DOES_NOT_EXIST) => Self::Missing,
            Direction::Store { .. } if is(Status::KEY_EXISTS) => Self::Missing,
            _ if is(Status::INVALID_VALUE_SIZE) => Self::OtherLength,
            _ => Self::Failed(failure),
        }
    }
}

/// Whether the bytes that the jobs of a value have received are not those that were stored with a checksum.
pub(crate) fn is_damaged(stripes: &[Job]) -> bool {
    // Stripes of one version have the same.
    let kept = stripes[0].kept_sum;
    let whole = stripes
        .iter()
        .try_fold(0, |before, job| Some(crc32c::combine(before, job.sum?, job.length as usize)));
    kept != 0 && whole.is_none_or(|sum| kept_checksum(sum) != kept)
}

/// The buffers of a batch: for its outcomes, and with its operations.
pub(crate) fn batch_buffers<B>(batch: &mut Batch) -> [Option<PairBuffer<B>>; 2] {
    let outcomes = vec![0; batch.outcome_bytes() as usize];
    [outcomes, batch.take_data()].map(|bytes| Some(PairBuffer::Bytes(bytes)))
}

/// The commands of a batch.
pub(crate) fn batch_commands<B: DataBuffer>(batch: &Batch, tag: u32, pair: &Pair<B>) -> PairCommands {
    let length = pair.buffers[1].as_ref().map_or(0, DataBuffer::length);
    (batch.collect(tag), Some(batch.submit(tag, length)))
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
    kept_checksum(digest.finish())
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
        let retrieved = |failure| Moved::of(failure, Direction::Retrieve { has_checksums: false });
        assert_eq!(retrieved(status(Status::KEY_DOES_NOT_EXIST)), Moved::Missing);
        assert_eq!(retrieved(status(Status::INVALID_VALUE_SIZE)), Moved::OtherLength);
        assert_eq!(retrieved(Failure::TimedOut), Moved::Failed(Failure::TimedOut));
        let stored =
            Moved::of(status(Status::KEY_EXISTS), Direction::Store { ttl_s: 0, has_checksums: false });
        assert_eq!(stored, Moved::Missing);
    }
}
