//! Requests to the storage of the second namespace that commands on a connection come to at most, and their answers.

use store::Kind;
use wire::id::Nsid;
use wire::opcode::NvmOpcode;
use wire::status::Status;

/// Statuses of requests that an error filter has failed: of reads, of writes, of any.
const FAILED: [Status; 3] =
    [Status::UNRECOVERED_READ_ERROR, Status::WRITE_FAULT, Status::INTERNAL_PATH_ERROR];

/// No request.
const NONE: (Kind, u64) = (Kind::Read, 0);

/// Counts of requests and of answers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Requests {
    /// By kind.
    asked: [u64; Kind::ALL.len()],
    /// Commands that were answered with each of [`FAILED`].
    failed: [u64; FAILED.len()],
}

impl Requests {
    /// The requests of a command: with this number of ranges, each of which takes this number of requests at most.
    pub(super) fn of(raw: u8, nsid: Nsid, range_count: u64, parts_max: u64) -> Self {
        let mut requests = Self::default();
        let is_flush = raw == NvmOpcode::FLUSH.raw();
        if nsid != Nsid::new(2) && !(is_flush && nsid == Nsid::ALL) {
            return requests;
        }
        let kinds: [(Kind, u64); 2] = match NvmOpcode::from_raw(raw) {
            NvmOpcode::READ | NvmOpcode::COMPARE => [(Kind::Read, 1), NONE],
            NvmOpcode::WRITE => [(Kind::Write, 1), NONE],
            NvmOpcode::FLUSH => [(Kind::Flush, 1), NONE],
            NvmOpcode::WRITE_ZEROES => [(Kind::WriteZeroes, parts_max), NONE],
            NvmOpcode::VERIFY => [(Kind::Read, parts_max), NONE],
            NvmOpcode::DATASET_MANAGEMENT => [(Kind::Deallocate, range_count), NONE],
            NvmOpcode::COPY => {
                [(Kind::Read, range_count * parts_max), (Kind::Write, range_count * parts_max)]
            }
            _ => [NONE, NONE],
        };
        kinds.into_iter().for_each(|(kind, count)| requests.asked[kind as usize] += count);
        requests
    }

    /// A command that causes requests was answered with this status.
    pub(super) fn on_answer(&mut self, of_command: &Self, status: Status) {
        let has = |kind: Kind| of_command.asked[kind as usize] > 0;
        let is_concerned = [has(Kind::Read), has(Kind::Write), Kind::ALL.into_iter().any(has)];
        let mut counts = FAILED.iter().zip(is_concerned).zip(&mut self.failed);
        if let Some((_, count)) = counts.find(|((failed, is_it), _)| *is_it && status.is(**failed)) {
            *count += 1;
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.asked.iter_mut().zip(other.asked).for_each(|(sum, count)| *sum += count);
        self.failed.iter_mut().zip(other.failed).for_each(|(sum, count)| *sum += count);
    }

    pub(crate) fn remove(&mut self, other: &Self) {
        self.asked.iter_mut().zip(other.asked).for_each(|(rest, count)| *rest -= count);
    }

    /// Requests of this kind, or of all, that are not in `other`.
    pub(crate) fn asked_beyond(&self, other: &Self, kind: Option<Kind>) -> u64 {
        let count = |kind: Kind| self.asked[kind as usize].saturating_sub(other.asked[kind as usize]);
        Kind::ALL.into_iter().filter(|of| kind.is_none_or(|kind| kind == *of)).map(count).sum()
    }

    /// Commands that were answered with this status.
    pub(crate) fn failed(&self, status: Status) -> u64 {
        FAILED.iter().zip(self.failed).find(|(failed, _)| status.is(**failed)).map_or(0, |(_, count)| count)
    }
}
