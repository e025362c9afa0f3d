//! Values and batches on the lanes of one or several targets: each job goes to the target that its caller names.
//!
//! ```text
//! transfers ─▶ jobs: a value, or stripes of a long one ─▶ lanes, several jobs on each ─▶ buffers, filled in place
//!                                  ▲─ stripes of two versions: again, as one job ──┘
//! ```

use host_core::failure::Failure;
use host_core::key_value::{Batch, KeyValueNamespace};
use host_core::namespace::InvalidCommand;
use host_core::submit::Command;
use proto::host_queue::DataBuffer;
use wire::kv::batch::{Operation, Outcome, Outcomes};
use wire::kv::presence::Presence;
use wire::status::Status;

use crate::association::Association;
use crate::error::Error;
use crate::key_value_outcome::present;
use crate::lane::Lane;
use crate::value_pairs::{Pair, PairBuffer, PairLanes, Patience};
use crate::value_transfer::{
    Direction, Job, Moved, ValueTransfer, batch_buffers, batch_commands, is_damaged,
};

/// A key-value namespace of a target that is up.
#[derive(Clone, Debug)]
pub(crate) struct ValueTarget {
    pub(crate) namespace: KeyValueNamespace,
    pub(crate) association: Association,
}

/// Lanes of targets, and their namespaces.
#[derive(Debug)]
pub(crate) struct ValueTargets<B> {
    lanes: PairLanes<B>,
    /// `None` for one that is lost.
    targets: Vec<Option<ValueTarget>>,
    has_checksums: bool,
    damaged_count: u64,
}

/// A transfer that no command can make.
#[derive(Debug)]
pub(crate) struct RefusedTransfer {
    /// Its place.
    pub(crate) at: usize,
    pub(crate) why: InvalidCommand,
}

/// How the pairs of one call are run.
pub(crate) struct Effort<'a> {
    /// Attempts of a pair whose connection is lost.
    pub(crate) attempt_count_max: u8,
    pub(crate) patience: Option<&'a mut Patience>,
}

impl Effort<'_> {
    fn again(&mut self) -> Effort<'_> {
        Effort { attempt_count_max: self.attempt_count_max, patience: self.patience.as_deref_mut() }
    }
}

/// A batch for one target, and its end.
pub(crate) struct BatchJob {
    pub(crate) target: usize,
    pub(crate) batch: Batch,
    /// Places of its keys.
    pub(crate) keys: Vec<usize>,
    /// The bytes of the outcomes and the result of Collect.
    pub(crate) ended: Result<(Vec<u8>, u64), Failure>,
}

impl<B> ValueTargets<B> {
    /// Begins the shutdown of all targets.
    pub(crate) fn close_soon(&self) {
        self.targets.iter().flatten().for_each(|target| target.association.close_soon());
    }
}

impl<B: DataBuffer + Default> ValueTargets<B> {
    /// Targets that are all lost.
    ///
    /// # Errors
    /// As [`PairLanes::new`].
    pub(crate) fn new(count: usize) -> Result<Self, Error> {
        let lanes = PairLanes::new((0..count).map(|_| Vec::new()).collect())?;
        Ok(Self { lanes, targets: vec![None; count], has_checksums: false, damaged_count: 0 })
    }

    /// Replaces targets and their lanes; between calls. Returns the lanes that were there.
    ///
    /// # Errors
    /// As [`PairLanes::new`]. All targets are lost then.
    #[expect(clippy::type_complexity, reason = "lanes of a target")]
    pub(crate) fn replace(
        &mut self,
        new: Vec<(usize, Option<(ValueTarget, Vec<Lane<PairBuffer<B>>>)>)>,
    ) -> Result<Vec<Vec<Lane<PairBuffer<B>>>>, Error> {
        let count = self.targets.len();
        let none = PairLanes::new((0..count).map(|_| Vec::new()).collect())?;
        let mut lanes = std::mem::replace(&mut self.lanes, none).into_targets();
        let mut old = Vec::new();
        for (target, new) in new {
            let (new, new_lanes) = new.map_or((None, Vec::new()), |(new, lanes)| (Some(new), lanes));
            self.targets[target] = new;
            old.push(std::mem::replace(&mut lanes[target], new_lanes));
        }
        match PairLanes::new(lanes) {
            Ok(lanes) => self.lanes = lanes,
            Err(error) => {
                self.targets.fill(None);
                return Err(error);
            }
        }
        Ok(old)
    }

    /// Whether a target is up, but its connections have ended.
    pub(crate) fn is_lost(&self, target: usize) -> bool {
        let up = self.targets[target].as_ref();
        up.is_some_and(|up| self.lanes.is_over(target) || up.association.over().is_some())
    }

    pub(crate) fn set_checksums(&mut self) {
        self.has_checksums = true;
    }

    /// Values that did not have their checksum.
    pub(crate) fn damaged_count(&self) -> u64 {
        self.damaged_count
    }

    /// A target that is up.
    pub(crate) fn target(&self, target: usize) -> Option<&ValueTarget> {
        self.targets[target].as_ref()
    }

    /// Retrieves values, each from the target in its place of `at_targets`, if there is one.
    ///
    /// # Errors
    /// [`RefusedTransfer`]: nothing was sent then.
    pub(crate) fn retrieve(
        &mut self,
        transfers: &mut [ValueTransfer<'_, B>],
        at_targets: &[Option<usize>],
        mut effort: Effort<'_>,
    ) -> Result<(), RefusedTransfer> {
        let direction = Direction::Retrieve { has_checksums: self.has_checksums };
        let mut jobs = self.jobs(transfers, at_targets, direction)?;
        let scan_counts = self.scan_counts();
        let pairs = self.run(transfers, &mut jobs, direction, effort.again());
        // Stripes of two versions are no value; nor are some from before a reconnect, and some from after it.
        let versions: Vec<u32> = pairs.iter().map(|pair| low(pair.results[1])).collect();
        let same_targets: Vec<bool> =
            self.scan_counts().iter().zip(&scan_counts).map(|(now, then)| now == then).collect();
        let mut again = Vec::new();
        let mut next = 0;
        while let Some(job) = jobs.get(next) {
            // Stripes of a value are neighbours.
            let count = jobs[next..].iter().take_while(|other| other.at == job.at).count();
            let versions = &versions[next..next + count];
            let is_one = count == 1
                || same_targets[job.target]
                    && versions[0] != 0
                    && versions.iter().all(|version| *version == versions[0]);
            let transfer = &transfers[job.at];
            if transfer.is_whole() && !is_one {
                again.push(job.whole(transfer.pieces.len()));
            }
            next += count;
        }
        self.run(transfers, &mut again, direction, effort);
        if self.has_checksums {
            jobs.retain(|job| !again.iter().any(|other| other.at == job.at));
            for stripes in jobs.chunk_by(|one, other| one.at == other.at).chain(again.chunks(1)) {
                let transfer = &mut transfers[stripes[0].at];
                if transfer.is_whole() && is_damaged(stripes) {
                    transfer.moved = Moved::Damaged;
                    self.damaged_count += 1;
                }
            }
        }
        Ok(())
    }

    /// Stores values, each at the target in its place of `at_targets`, if there is one.
    ///
    /// # Errors
    /// [`RefusedTransfer`]: nothing was sent then.
    pub(crate) fn store(
        &mut self,
        transfers: &mut [ValueTransfer<'_, B>],
        at_targets: &[Option<usize>],
        ttl_s: u32,
        effort: Effort<'_>,
    ) -> Result<(), RefusedTransfer> {
        let direction = Direction::Store { ttl_s, has_checksums: self.has_checksums };
        let mut jobs = self.jobs(transfers, at_targets, direction)?;
        self.run(transfers, &mut jobs, direction, effort);
        Ok(())
    }

    /// The scans of each target's namespaces so far.
    fn scan_counts(&self) -> Vec<Option<u64>> {
        let count = |target: &Option<ValueTarget>| Some(target.as_ref()?.association.scan_count());
        self.targets.iter().map(count).collect()
    }

    /// Checks all transfers, and divides them into jobs.
    fn jobs(
        &self,
        transfers: &mut [ValueTransfer<'_, B>],
        at_targets: &[Option<usize>],
        direction: Direction,
    ) -> Result<Vec<Job>, RefusedTransfer> {
        let mut jobs = Vec::with_capacity(transfers.len());
        for (at, (transfer, target)) in transfers.iter_mut().zip(at_targets).enumerate() {
            let Some((target, ValueTarget { namespace, .. })) =
                target.and_then(|target| Some((target, self.targets[target].as_ref()?)))
            else {
                continue;
            };
            let lane_count = self.lanes.lane_count(target);
            let made = Job::of((at, transfer), (target, namespace, lane_count), direction);
            jobs.extend(made.map_err(|why| RefusedTransfer { at, why })?);
        }
        for job in &jobs {
            transfers[job.at].moved = Moved::Pending;
        }
        Ok(jobs)
    }

    /// Runs jobs until all have ended, and gives the buffers back.
    fn run(
        &mut self,
        transfers: &mut [ValueTransfer<'_, B>],
        jobs: &mut [Job],
        direction: Direction,
        effort: Effort<'_>,
    ) -> Vec<Pair<B>> {
        let targets = &self.targets;
        let namespace =
            |target: usize| &targets[target].as_ref().expect("jobs are for targets that are up").namespace;
        let pair = |job: &mut Job| {
            let transfer = &mut transfers[job.at];
            let may_repeat = direction.is_retrieval() || transfer.options.is_empty();
            let mut pair = job.pair(namespace(job.target), transfer, direction);
            pair.attempt_count_max = if may_repeat { effort.attempt_count_max } else { 1 };
            pair
        };
        let mut pairs: Vec<_> = jobs.iter_mut().map(pair).collect();
        if pairs.is_empty() {
            return pairs;
        }
        let mut make = |number: usize, pair: &Pair<B>, tag| {
            let job: &Job = &jobs[number];
            job.commands(namespace(job.target), tag, &transfers[job.at], Some(pair), direction)
        };
        let mut make_last =
            |number: usize, tag, checksum| namespace(jobs[number].target).store_flags(tag, checksum);
        self.lanes.run(&mut pairs, (&mut make, &mut make_last), effort.patience);
        for (job, pair) in jobs.iter_mut().zip(&mut pairs) {
            job.finish(pair, &mut transfers[job.at], direction);
        }
        pairs
    }

    /// Divides operations on keys among batches, each for the target in its place of `at_targets`, if there is one.
    ///
    /// # Errors
    /// A key that no batch takes, or a target without such batches.
    pub(crate) fn batches<'k>(
        &self,
        keys: &[&'k [u8]],
        at_targets: &[Option<usize>],
        empty: impl Fn(&KeyValueNamespace) -> Result<Batch, InvalidCommand>,
        operation: impl Fn(&'k [u8]) -> Operation<'k>,
    ) -> Result<Vec<BatchJob>, InvalidCommand> {
        let mut full = Vec::new();
        let mut open: Vec<Option<BatchJob>> = self.targets.iter().map(|_| None).collect();
        for (at, (key, target)) in keys.iter().zip(at_targets).enumerate() {
            let Some((target, ValueTarget { namespace, .. })) =
                target.and_then(|target| Some((target, self.targets[target].as_ref()?)))
            else {
                continue;
            };
            let new = || {
                let ended = Err(Failure::Unreachable);
                Ok(BatchJob { target, batch: empty(namespace)?, keys: Vec::new(), ended })
            };
            let mut job = open[target].take().map_or_else(new, Ok)?;
            match job.batch.push(&operation(key)) {
                Ok(()) => {}
                Err(InvalidCommand::BatchFull { .. }) if !job.batch.is_empty() => {
                    full.push(job);
                    job = new()?;
                    job.batch.push(&operation(key))?;
                }
                Err(error) => return Err(error),
            }
            job.keys.push(at);
            open[target] = Some(job);
        }
        full.extend(open.into_iter().flatten());
        Ok(full)
    }

    /// Runs batches until all have ended.
    pub(crate) fn run_batches(&mut self, jobs: &mut [BatchJob], effort: Effort<'_>) {
        if jobs.is_empty() {
            return;
        }
        let pair = |job: &mut BatchJob| {
            let mut pair = Pair::new(job.target, batch_buffers(&mut job.batch));
            pair.attempt_count_max = effort.attempt_count_max;
            pair
        };
        let mut pairs: Vec<Pair<B>> = jobs.iter_mut().map(pair).collect();
        let mut make =
            |number: usize, pair: &Pair<B>, tag| Ok(batch_commands(&jobs[number].batch, tag, pair));
        self.lanes.run(&mut pairs, (&mut make, &mut no_checksum), effort.patience);
        for (job, pair) in jobs.iter_mut().zip(pairs) {
            let [outcomes, _] = pair.buffers;
            job.ended = match (pair.failure, outcomes) {
                (None, Some(PairBuffer::Bytes(bytes))) => Ok((bytes, pair.results[0])),
                (failure, _) => Err(failure.unwrap_or(Failure::Unreachable)),
            };
        }
    }

    /// Flushes targets that are up. Returns the failure of each.
    pub(crate) fn flush(&mut self, at_targets: &[usize], effort: Effort<'_>) -> Vec<Option<Failure>> {
        let mut pairs: Vec<Pair<B>> =
            at_targets.iter().map(|&target| Pair::new(target, [None, None])).collect();
        let targets = &self.targets;
        let mut make = |_, pair: &Pair<B>, _| {
            let target = targets[pair.target].as_ref().expect("a target that is up");
            Ok((target.namespace.flush(), None))
        };
        self.lanes.run(&mut pairs, (&mut make, &mut no_checksum), effort.patience);
        pairs.into_iter().map(|pair| pair.failure).collect()
    }
}

impl BatchJob {
    /// The bits of a batch that tests keys.
    pub(crate) fn presence(&self) -> Result<Presence, Error> {
        let (bytes, _) = self.ended.as_ref().map_err(|&failure| failed("Exist", failure))?;
        let count = u16::try_from(self.keys.len()).unwrap_or(u16::MAX);
        Presence::read(bytes, count).ok_or(Error::Malformed { what: "bits of keys" })
    }

    /// The outcomes of its operations.
    pub(crate) fn outcomes(&self, command: &'static str) -> Result<Outcomes<'_>, Error> {
        let (bytes, result) = self.ended.as_ref().map_err(|&failure| failed(command, failure))?;
        Ok(Batch::outcomes(bytes, *result))
    }

    /// Whether every key is deleted, or does not exist.
    pub(crate) fn deleted(&self) -> Result<(), Error> {
        let is_failed = |outcome: &Outcome<'_>| {
            !outcome.status.is_success() && !outcome.status.is(Status::KEY_DOES_NOT_EXIST)
        };
        match self.outcomes("Delete")?.find(is_failed) {
            Some(outcome) => Err(failed("Delete", Failure::Status(outcome.status))),
            None => Ok(()),
        }
    }

    /// The length of the value of its only key.
    pub(crate) fn value_bytes(&self) -> Result<Option<u64>, Error> {
        let outcome = self.outcomes("Exist")?.next().ok_or(Error::Malformed { what: "outcomes" })?;
        let (status, length) = (outcome.status, outcome.result);
        present(if status.is_success() { Ok(length) } else { Err(failed("Exist", Failure::Status(status))) })
    }
}

/// Pairs whose data is no value have no checksum.
fn no_checksum(_: usize, _: u32, _: u32) -> Command {
    unreachable!("only values are summed")
}

fn failed(command: &'static str, failure: Failure) -> Error {
    Error::Failed { command, failure }
}

/// The low dword.
fn low(result: u64) -> u32 {
    u32::try_from(result & 0xffff_ffff).unwrap_or(0)
}
