//! Many values at once, with keys spread over several targets. docs/design/spread.md

mod member;
mod settings;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use host_core::failure::Failure;
use host_core::key_value::{AtomicOutcome, Batch, KeyValueNamespace, Pin};
use host_core::rendezvous::{Rendezvous, hash};
use proto::host_queue::DataBuffer;
use wire::kv::Key;
use wire::kv::batch::Operation;
use wire::kv::operation::AtomicOperation;
use wire::kv::presence::Presence;
use wire::opcode::KvOpcode;

use crate::error::Error;
use crate::options::Options;
use crate::value_pairs::Patience;
use crate::value_targets::{BatchJob, Effort, RefusedTransfer, ValueTargets};
use crate::value_transfer::{Moved, ValueTransfer};
use member::{Attempt, Member, News};
pub use settings::{SpreadOptions, SpreadTarget, TargetHealth};

/// Values under keys that are spread over several targets, moved by lanes of the calling thread.
///
/// Each key has a rank of the targets, by [rendezvous hashing](crate::rendezvous) with weights: the first one has the
/// key, and every program that names the same targets finds it there. A target that is added takes its share of the keys
/// from the others, and no key moves between these.
///
/// ```no_run
/// use nvlane_host::{Options, SpreadOptions, SpreadTarget, ValueSpread, ValueTransfer};
///
/// let targets = ["192.0.2.1/nqn.2016-06.io.nvlane:cache", "192.0.2.2/nqn.2016-06.io.nvlane:cache"];
/// let targets = targets.into_iter().map(|address| Ok(SpreadTarget::new(address.parse()?)));
/// let targets = targets.collect::<Result<Vec<_>, nvlane_host::Error>>()?;
/// let mut values = ValueSpread::connect(targets, Options::default().with_lanes(2), SpreadOptions::default())?;
/// let mut transfers = vec![ValueTransfer::new(b"model@0@layers", vec![vec![1u8; 8 << 20]; 4])];
/// values.store(&mut transfers, 0)?;
/// values.retrieve(&mut transfers)?;
/// # Ok::<(), nvlane_host::Error>(())
/// ```
///
/// # Lost targets
///
/// A target is lost when a connection to it ends, or when it is *silent*: no byte arrives or leaves for the
/// [deadline](SpreadOptions::deadline), although commands are outstanding. A thread then connects to it again, with delays
/// that double from 20 ms to 2 s, with jitter, and for ever; the first call after that uses it.
///
/// Every call ends: at the latest when there was no progress at any target for the deadline. A connection that ends is
/// noticed at once, and the same call goes on with the next target in the rank of each key. A call that had to wait for
/// a silent target until the deadline ends without; the next call leaves the target out.
///
/// | | [immutable](SpreadOptions::is_immutable) (default) | otherwise |
/// |---|---|---|
/// | a key is at | the first target of its rank that is up, or the first ones with [copies](SpreadOptions::copies) | the first target of its rank, up or not |
/// | retrieve, exist | from these; what cannot be reached is a miss | fails without that target |
/// | store | succeeds with the first of them, and stores the others if they can be reached | fails without that target |
/// | delete | at all targets that are up | fails without that target |
///
/// A target that was lost and comes back with its memory has the values from before. With immutable values (one value
/// for a key, for ever, as with keys that are hashes of their contents) this is harmless, and with other values it is
/// not: they may be served after they were replaced or deleted at the target that took the place of the lost one. For
/// these turn [`is_immutable`](SpreadOptions::is_immutable) off: no other target ever takes a key, and what could not be
/// replaced or deleted is an error for its caller.
#[derive(Debug)]
pub struct ValueSpread<B = Vec<u8>> {
    targets: ValueTargets<B>,
    members: Vec<Member>,
    ranks: Rendezvous,
    options: Options,
    spread: SpreadOptions,
    /// For the threads that connect.
    sender: Sender<News<B>>,
    news: Receiver<News<B>>,
    degraded_count: u64,
}

/// What a call has learned of a key.
#[derive(Clone, Copy, Debug)]
struct Asked {
    hash: u64,
    /// Targets that were asked, one bit each.
    tried: u64,
    /// Targets that have answered.
    answer_count: u8,
    /// Targets that have moved all of the value.
    whole_count: u8,
    is_settled: bool,
}

impl Asked {
    fn new(key: &[u8]) -> Self {
        Self { hash: hash(key), tried: 0, answer_count: 0, whole_count: 0, is_settled: false }
    }

    fn has_tried(&self, target: usize) -> bool {
        self.tried >> target & 1 == 1
    }
}

impl<B: DataBuffer + Default + Send + 'static> ValueSpread<B> {
    /// Connects to the targets, with as many lanes to each as the options say. A target that cannot be reached now is
    /// lost, as one that is lost later.
    ///
    /// # Errors
    /// [`Error::Spread`] if keys cannot be spread over these targets. Why no target could be reached, or why one never
    /// will: an error that is [permanent](Error::is_permanent), such as a subsystem that does not exist.
    pub fn connect(
        targets: Vec<SpreadTarget>,
        options: Options,
        spread: SpreadOptions,
    ) -> Result<Self, Error> {
        settings::check(&targets, &spread)?;
        let (sender, news) = channel();
        let ranks = Rendezvous::new(targets.iter().map(|target| (target.name.as_str(), target.weight)));
        let members: Vec<_> = targets.into_iter().map(|target| Member::new(target, &options)).collect();
        let mut this = Self {
            targets: ValueTargets::new(members.len())?,
            members,
            ranks,
            options,
            spread,
            sender,
            news,
            degraded_count: 0,
        };
        for (number, member) in this.members.iter_mut().enumerate() {
            member.connect(number, &this.options, Duration::ZERO, &this.sender, None);
            if !member.is_connecting() {
                let error = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
                return Err(Error::system("start a thread", error));
            }
        }
        this.wait_for_first_attempts()?;
        Ok(this)
    }

    /// Waits for the first attempt of each target; if one is up, no longer than the deadline.
    fn wait_for_first_attempts(&mut self) -> Result<(), Error> {
        let until = Instant::now() + self.spread.deadline;
        let mut waiting = self.members.len();
        let mut failure = None;
        while waiting > 0 {
            let has_one = self.members.iter().any(|member| member.is_up);
            let left = until.saturating_duration_since(Instant::now());
            let timeout = if has_one { left } else { Duration::from_millis(100).max(left) };
            match self.news.recv_timeout(timeout) {
                Ok((_, Attempt::Failed(error))) if error.is_permanent() => return Err(error),
                Ok(news) => {
                    let (number, is_first) = (news.0, self.members[news.0].cause.is_none());
                    waiting -= usize::from(is_first);
                    self.take(vec![news])?;
                    failure = failure.or(self.members[number].cause.clone());
                }
                Err(RecvTimeoutError::Timeout) if !has_one => {}
                Err(_) => break,
            }
        }
        match failure {
            Some(error) if self.members.iter().all(|member| !member.is_up) => Err(Error::clone(&error)),
            _ => Ok(()),
        }
    }

    /// Stores values with a checksum, and compares it: see [`ValueLanes`](crate::ValueLanes::with_checksums).
    #[must_use]
    pub fn with_checksums(mut self) -> Self {
        self.targets.set_checksums();
        self
    }

    /// Values that did not have their checksum.
    #[must_use]
    pub fn damaged_count(&self) -> u64 {
        self.targets.damaged_count()
    }

    /// Values that were stored at fewer targets than they should have copies.
    #[must_use]
    pub fn degraded_count(&self) -> u64 {
        self.degraded_count
    }

    /// How the targets are, in the order in which they were named.
    pub fn health(&mut self) -> Vec<TargetHealth> {
        // An error means that a set of lanes got no file descriptors: all targets are lost then, and `is_up` says so.
        let _ = self.take_news();
        let health = |member: &Member| TargetHealth {
            name: member.target.name.clone(),
            is_up: member.is_up,
            loss_count: member.loss_count,
            cause: member.cause.clone(),
        };
        self.members.iter().map(health).collect()
    }

    /// The numbers of the targets in the rank of a key: the first one has it.
    #[must_use]
    pub fn rank(&self, key: &[u8]) -> Vec<usize> {
        let (hash, mut tried) = (hash(key), 0u64);
        let next = || {
            let next = self.ranks.first(hash, |target| tried >> target & 1 == 0)?;
            tried |= 1 << next;
            Some(next)
        };
        std::iter::from_fn(next).collect()
    }

    /// The longest value that all targets take, of those that are up, bytes; `None` if none is.
    #[must_use]
    pub fn value_bytes_max(&self) -> Option<u32> {
        let up = (0..self.members.len()).filter_map(|target| self.targets.target(target));
        up.map(|target| target.namespace.paired_value_bytes_max()).min()
    }

    /// Retrieves values into buffers of their lengths, as [`ValueLanes::retrieve`](crate::ValueLanes::retrieve). With
    /// copies, a value that the first target does not have is asked of the next one: a miss takes two round trips then.
    ///
    /// # Errors
    /// [`Error::Command`] if a key, or the length of a value, is one that no command has: nothing was sent then. A value
    /// that cannot be reached is [`Moved::Failed`].
    pub fn retrieve(&mut self, transfers: &mut [ValueTransfer<'_, B>]) -> Result<(), Error> {
        self.transfer(transfers, ValueTargets::retrieve, true)
    }

    /// Stores values, each as a whole or not at all, for this number of seconds; 0: for ever. With copies, each target
    /// stores its copy after the one before has. [`Moved::Whole`] says that the first one that could be reached has
    /// stored it.
    ///
    /// # Errors
    /// As [`retrieve`](Self::retrieve).
    pub fn store(&mut self, transfers: &mut [ValueTransfer<'_, B>], ttl_s: u32) -> Result<(), Error> {
        self.transfer(
            transfers,
            |targets, transfers, at, effort| targets.store(transfers, at, ttl_s, effort),
            false,
        )
    }

    fn transfer(
        &mut self,
        transfers: &mut [ValueTransfer<'_, B>],
        run: impl Fn(
            &mut ValueTargets<B>,
            &mut [ValueTransfer<'_, B>],
            &[Option<usize>],
            Effort<'_>,
        ) -> Result<(), RefusedTransfer>,
        ends_with_whole: bool,
    ) -> Result<(), Error> {
        let mut asked: Vec<_> = transfers.iter().map(|transfer| Asked::new(transfer.key)).collect();
        // The first answer counts, unless a value is found, or stored after a failure.
        let mut answers: Vec<Option<Moved>> = vec![None; transfers.len()];
        for transfer in transfers.iter_mut() {
            transfer.moved = Moved::Failed(Failure::Unreachable);
        }
        let mut patience = Patience::new(self.spread.deadline);
        let mut is_first = true;
        while let Some(at_targets) = self.next_targets(&asked)? {
            let effort = Effort { attempt_count_max: 1, patience: Some(&mut patience) };
            match run(&mut self.targets, transfers, &at_targets, effort) {
                Ok(()) => {}
                Err(RefusedTransfer { why, .. }) if is_first => return Err(why.into()),
                Err(RefusedTransfer { at, .. }) => {
                    // The next target takes less than the first one.
                    asked[at].is_settled = true;
                    continue;
                }
            }
            is_first = false;
            for (at, target) in at_targets.iter().enumerate() {
                let (Some(target), moved) = (*target, transfers[at].moved) else { continue };
                let asked = &mut asked[at];
                asked.tried |= 1 << target;
                if matches!(moved, Moved::Failed(failure) if is_loss(failure)) {
                    continue;
                }
                let is_whole = moved == Moved::Whole;
                let is_better =
                    is_whole && (ends_with_whole || matches!(answers[at], Some(Moved::Failed(_))));
                if is_better || answers[at].is_none() {
                    answers[at] = Some(moved);
                }
                asked.answer_count += 1;
                asked.whole_count += u8::from(is_whole);
                asked.is_settled = is_whole && ends_with_whole || asked.answer_count >= self.spread.copies;
            }
            if !patience.is_left() {
                break;
            }
        }
        for ((transfer, answer), asked) in transfers.iter_mut().zip(answers).zip(&asked) {
            transfer.moved = answer.unwrap_or(transfer.moved);
            let is_degraded = !ends_with_whole && asked.whole_count < self.spread.copies;
            self.degraded_count += u64::from(is_degraded && transfer.is_whole());
        }
        Ok(())
    }

    /// Tests which of many keys exist: some 1,000 of a target in one round trip. No key is marked as used.
    ///
    /// # Errors
    /// [`Error::Command`] if a target does not support that, or a key has no bytes or too many; [`Error::Failed`]. With
    /// immutable values a key that cannot be asked for is none that exists.
    pub fn exist(&mut self, keys: &[&[u8]]) -> Result<Presence, Error> {
        let mut found = vec![false; keys.len()];
        let operation = |key| Operation::on(KvOpcode::EXIST, key);
        self.ask(keys, KeyValueNamespace::presence_batch, operation, |job| {
            let presence = job.presence()?;
            for (&key, is_present) in job.keys.iter().zip(presence.iter()) {
                found[key] |= is_present;
            }
            Ok(presence.iter().collect())
        })?;
        let mut presence = Presence::default();
        found.into_iter().for_each(|is_present| presence.push(is_present));
        Ok(presence)
    }

    /// Pins pairs, each at the first target of its rank that has it and can be reached, as
    /// [`ValueLanes::pin`](crate::ValueLanes::pin). [`Pin::End`] goes to all targets that may have the pairs, and its results
    /// are of those alone that can be reached.
    ///
    /// # Errors
    /// As [`exist`](Self::exist), and [`delete`](Self::delete) for [`Pin::End`]. Some pairs may be pinned then: their pins end
    /// with their time.
    pub fn pin(&mut self, keys: &[&[u8]], pin: Pin) -> Result<Presence, Error> {
        let mut done = vec![false; keys.len()];
        let seconds = pin.parts().1.to_le_bytes();
        let operation = |key| pin.operation(key, &seconds);
        let empty = |namespace: &KeyValueNamespace| namespace.pin_batch(pin);
        let mut read = |job: &BatchJob| {
            let presence = job.presence()?;
            for (&key, is_done) in job.keys.iter().zip(presence.iter()) {
                done[key] |= is_done;
            }
            Ok(presence.iter().collect())
        };
        match pin {
            Pin::End => self.at_all(keys, empty, operation, |job| read(job).map(drop), "Pin")?,
            _ => self.ask(keys, empty, operation, read)?,
        }
        let mut presence = Presence::default();
        done.into_iter().for_each(|is_done| presence.push(is_done));
        Ok(presence)
    }

    /// Length of the value of a key; `None` if the key does not exist, or with immutable values cannot be asked for.
    ///
    /// # Errors
    /// As [`exist`](Self::exist).
    pub fn value_bytes(&mut self, key: &[u8]) -> Result<Option<u64>, Error> {
        let mut length = None;
        let operation = |key| Operation::on(KvOpcode::EXIST, key);
        self.ask(&[key], KeyValueNamespace::batch, operation, |job| {
            length = job.value_bytes()?;
            Ok(vec![length.is_some()])
        })?;
        Ok(length)
    }

    /// Asks for keys, each at the targets of its rank until one has it. `read` reads which keys of a batch exist.
    fn ask<'k>(
        &mut self,
        keys: &[&'k [u8]],
        empty: impl Fn(&KeyValueNamespace) -> Result<Batch, crate::InvalidCommand>,
        operation: impl Fn(&'k [u8]) -> Operation<'k>,
        mut read: impl FnMut(&BatchJob) -> Result<Vec<bool>, Error>,
    ) -> Result<(), Error> {
        let mut asked: Vec<_> = keys.iter().map(|key| Asked::new(key)).collect();
        let mut patience = Patience::new(self.spread.deadline);
        let mut failure = None;
        while let Some(at_targets) = self.next_targets(&asked)? {
            let mut jobs = self.targets.batches(keys, &at_targets, &empty, &operation)?;
            let effort = Effort { attempt_count_max: 1, patience: Some(&mut patience) };
            self.targets.run_batches(&mut jobs, effort);
            for job in &jobs {
                let ended = read(job);
                let is_lost = ended
                    .as_ref()
                    .is_err_and(|error| matches!(error, Error::Failed { failure, .. } if is_loss(*failure)));
                if is_lost {
                    failure = ended.err();
                    job.keys.iter().for_each(|&key| asked[key].tried |= 1 << job.target);
                    continue;
                }
                for (&key, is_present) in job.keys.iter().zip(ended?) {
                    let asked = &mut asked[key];
                    asked.tried |= 1 << job.target;
                    asked.answer_count += 1;
                    asked.is_settled = is_present || asked.answer_count >= self.spread.copies;
                }
            }
            if !patience.is_left() {
                break;
            }
        }
        let is_answered = |asked: &Asked| asked.answer_count > 0;
        if self.spread.is_immutable || asked.iter().all(is_answered) {
            return Ok(());
        }
        Err(failure.unwrap_or(unreachable("Exist")))
    }

    /// Deletes keys. A key that does not exist is no error.
    ///
    /// # Errors
    /// As [`exist`](Self::exist). Some keys may be deleted then. With immutable values a target that cannot be reached is no
    /// error: it may have the keys still when it is back.
    pub fn delete(&mut self, keys: &[&[u8]]) -> Result<(), Error> {
        let operation = |key| Operation::on(KvOpcode::DELETE, key);
        self.at_all(keys, KeyValueNamespace::batch, operation, BatchJob::deleted, "Delete")
    }

    /// Has an operation on each key carried out at all targets that may have it. `ended` is how a batch of them ended.
    fn at_all<'k>(
        &mut self,
        keys: &[&'k [u8]],
        empty: impl Fn(&KeyValueNamespace) -> Result<Batch, crate::InvalidCommand>,
        operation: impl Fn(&'k [u8]) -> Operation<'k>,
        mut ended: impl FnMut(&BatchJob) -> Result<(), Error>,
        name: &'static str,
    ) -> Result<(), Error> {
        self.take_news()?;
        let is_immutable = self.spread.is_immutable;
        let mut jobs = Vec::new();
        let mut is_all_up = true;
        for target in 0..self.members.len() {
            let place = |key: &&[u8]| (is_immutable || self.owner(key) == Some(target)).then_some(target);
            let at_targets: Vec<_> = keys.iter().map(place).collect();
            is_all_up &= self.members[target].is_up || at_targets.iter().all(Option::is_none);
            jobs.extend(self.targets.batches(keys, &at_targets, &empty, &operation)?);
        }
        let mut patience = Patience::new(self.spread.deadline);
        let effort = Effort { attempt_count_max: 1, patience: Some(&mut patience) };
        self.targets.run_batches(&mut jobs, effort);
        for job in &jobs {
            match ended(job) {
                Err(Error::Failed { failure, .. }) if is_immutable && is_loss(failure) => {}
                ended => ended?,
            }
        }
        if is_immutable || is_all_up { Ok(()) } else { Err(unreachable(name)) }
    }

    /// Atomically changes the number that is a key's value, at the first target of the key's rank alone: never at
    /// another one, also with immutable values.
    ///
    /// # Errors
    /// [`Error::Failed`], also if that target is lost. [`Failure::may_have_happened`] says whether the number may have been
    /// changed.
    pub fn atomic(&mut self, key: &Key, atomic: &AtomicOperation) -> Result<AtomicOutcome, Error> {
        self.take_news()?;
        let owner = self.owner(key.as_bytes()).filter(|&target| self.members[target].is_up);
        let up = owner.and_then(|target| Some((target, self.targets.target(target)?)));
        let (target, up) = up.ok_or(unreachable("Atomic"))?;
        let mut batch = up.namespace.batch()?;
        batch.atomic(key, atomic)?;
        let mut jobs = [BatchJob { target, batch, keys: vec![0], ended: Err(Failure::Unreachable) }];
        let mut patience = Patience::new(self.spread.deadline);
        let effort = Effort { attempt_count_max: 1, patience: Some(&mut patience) };
        self.targets.run_batches(&mut jobs, effort);
        let outcome = jobs[0].outcomes("Atomic")?.next().ok_or(Error::Malformed { what: "outcomes" })?;
        if !outcome.status.is_success() {
            return Err(Error::Failed { command: "Atomic", failure: Failure::Status(outcome.status) });
        }
        let before = outcome.result;
        Ok(AtomicOutcome { before, took_effect: atomic.took_effect(before) })
    }

    /// Makes all earlier changes durable, where targets answer before that.
    ///
    /// # Errors
    /// [`Failure::Unflushed`], once, if a target was lost since the last flush: earlier changes may be lost.
    /// [`Error::Failed`] if a target cannot be reached.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.take_news()?;
        let failed = |failure| Err(Error::Failed { command: "Flush", failure });
        let lost = self.members.iter_mut().map(|member| std::mem::take(&mut member.is_unflushed));
        if lost.fold(false, |any, lost| any | lost) {
            return failed(Failure::Unflushed);
        }
        let all: Vec<usize> = (0..self.members.len()).collect();
        if !self.members.iter().all(|member| member.is_up) {
            return failed(Failure::Unreachable);
        }
        let mut patience = Patience::new(self.spread.deadline);
        let effort = Effort { attempt_count_max: 1, patience: Some(&mut patience) };
        self.targets.flush(&all, effort).into_iter().flatten().try_for_each(failed)
    }

    /// The first target of a key's rank, up or not.
    fn owner(&self, key: &[u8]) -> Option<usize> {
        self.ranks.first(hash(key), |_| true)
    }

    /// The next target to ask for each key that is not settled; `None` if there is none for any.
    fn next_targets(&mut self, asked: &[Asked]) -> Result<Option<Vec<Option<usize>>>, Error> {
        self.take_news()?;
        let is_up = |target: usize| self.members[target].is_up;
        let next = |asked: &Asked| match (asked.is_settled, self.spread.is_immutable) {
            (true, _) => None,
            (false, true) => self.ranks.first(asked.hash, |target| is_up(target) && !asked.has_tried(target)),
            (false, false) => self
                .ranks
                .first(asked.hash, |_| true)
                .filter(|&owner| is_up(owner) && !asked.has_tried(owner)),
        };
        let next: Vec<_> = asked.iter().map(next).collect();
        Ok(next.iter().any(Option::is_some).then_some(next))
    }

    /// Learns which targets are lost and which are back; between rounds of a call, when nothing is outstanding.
    fn take_news(&mut self) -> Result<(), Error> {
        let news = self.news.try_iter().collect();
        self.take(news)
    }

    fn take(&mut self, news: Vec<News<B>>) -> Result<(), Error> {
        let mut changes = Vec::new();
        let mut lost = Vec::new();
        for (number, member) in self.members.iter().enumerate() {
            if member.is_up && self.targets.is_lost(number) {
                lost.push((number, self.targets.target(number).cloned()));
                changes.push((number, None));
            }
        }
        for (number, attempt) in news {
            let member = &mut self.members[number];
            match attempt {
                Attempt::Connected(target, lanes) => {
                    member.on_up();
                    changes.push((number, Some((*target, lanes))));
                }
                Attempt::Failed(error) => member.cause = Some(Arc::new(error)),
            }
        }
        let replaced = if changes.is_empty() { Ok(Vec::new()) } else { self.targets.replace(changes) };
        let (mut left, error) = match replaced {
            Ok(left) => (left, None),
            Err(error) => {
                // Their lanes are gone.
                lost = (0..self.members.len())
                    .filter(|&at| self.members[at].is_up)
                    .map(|at| (at, None))
                    .collect();
                (Vec::new(), Some(error))
            }
        };
        left.resize_with(lost.len().max(left.len()), Vec::new);
        for ((number, target), lanes) in lost.into_iter().zip(left) {
            let member = &mut self.members[number];
            let cause = target.as_ref().and_then(|target| target.association.over());
            tracing::warn!(target = member.target.name, "target of a spread is lost");
            let delay = member.on_lost(cause);
            let left = target.map(|target| (target, lanes));
            member.connect(number, &self.options, delay, &self.sender, left);
        }
        for (number, member) in self.members.iter_mut().enumerate() {
            if !member.is_up && !member.is_connecting() {
                member.connect(number, &self.options, Duration::ZERO, &self.sender, None);
            }
        }
        error.map_or(Ok(()), Err)
    }
}

impl<B> Drop for ValueSpread<B> {
    /// Begins the shutdown of all targets, which the drop of each then waits for.
    fn drop(&mut self) {
        self.targets.close_soon();
    }
}

/// Whether a target did not answer: another one may.
fn is_loss(failure: Failure) -> bool {
    !matches!(failure, Failure::Status(_) | Failure::GaveUp { .. })
}

fn unreachable(command: &'static str) -> Error {
    Error::Failed { command, failure: Failure::Unreachable }
}
