//! A namespace to read and write at byte offsets, or of keys and values, call by call, on a lane of the calling thread.
//!
//! ```no_run
//! use nvlane_host::{Options, blocking::Namespace};
//!
//! let address = "192.0.2.1:4420/nqn.2016-06.io.nvlane:disk".parse()?;
//! let mut disk = Namespace::connect(&address, Options::default())?;
//! let mut block = vec![0; 4096];
//! disk.read_at(0, &mut block)?;
//! block[0] ^= 1;
//! disk.write_at(0, &block)?;
//! disk.flush()?;
//! # Ok::<(), nvlane_host::Error>(())
//! ```
//!
//! A call goes out on the connection from the calling thread and waits there: nothing is handed over to another thread. Transfers of any
//! length are cut into commands that are in flight together. With [`Options::read_lanes`] reads have a lane of their own, with
//! [`Options::poll_lanes`] calls made [polled](Namespace::set_polled) too. A call that was cut may have been carried out in part when it fails.

mod key_value;

use std::time::Duration;

use wire::status::Status;

pub use key_value::KeyValue;

use crate::address::Address;
use crate::association::Association;
use crate::error::Error;
use crate::failure::Failure;
use crate::flush_epoch::FlushEpoch;
use crate::lane::Lane;
use crate::namespace::{BlockRange, InvalidCommand, Namespace as Geometry};
use crate::options::Options;
use crate::queue_map::LaneClass;
use crate::submit::{Command, Completion};

/// Bytes of one command of a longer transfer: several are in flight, and each is copied while the next ones travel.
const PART_BYTES: u32 = 256 << 10;

/// A wait without a limit of its own: commands have theirs.
const WAIT: Duration = Duration::from_secs(3600);

/// A namespace and a lane of its own.
#[derive(Debug)]
pub struct Namespace {
    lanes: Lanes,
    /// Whether calls are polled ones.
    is_polled: bool,
    namespace: Geometry,
    association: Association,
    /// Buffers that are not in use.
    spare: Vec<Vec<u8>>,
    completions: Vec<Completion<Vec<u8>>>,
}

/// A lane for each class that there is.
#[derive(Debug)]
struct Lanes {
    default: Lane<Vec<u8>>,
    read: Option<Lane<Vec<u8>>>,
    poll: Option<Lane<Vec<u8>>>,
}

impl Lanes {
    fn of(&mut self, class: LaneClass, is_polled: bool) -> &mut Lane<Vec<u8>> {
        match (class, &mut self.read, &mut self.poll) {
            (_, _, Some(lane)) if is_polled => lane,
            (LaneClass::Read, Some(lane), _) => lane,
            _ => &mut self.default,
        }
    }
}

/// One command of a longer transfer.
struct Part {
    range: BlockRange,
    /// Where its bytes are in the transfer.
    start: usize,
    length: usize,
}

impl Namespace {
    /// Connects to the namespace at `address`: the one it names, or the only one there is.
    ///
    /// # Errors
    /// As [`Association::connect`], [`Association::addressed_namespace`] and [`Association::lane`].
    pub fn connect(address: &Address, options: Options) -> Result<Self, Error> {
        let (read_lanes, poll_lanes) = (options.read_lanes.min(1), options.poll_lanes.min(1));
        let options = Options { lanes: 1, read_lanes, poll_lanes, ..options };
        let association = Association::connect(address, options)?;
        let namespace = association.addressed_namespace()?;
        Self::new(&association, namespace)
    }

    /// A namespace of an association, with a lane for the calling thread: one of each class, if there are several.
    ///
    /// # Errors
    /// As [`Association::lane`].
    pub fn new(association: &Association, namespace: Geometry) -> Result<Self, Error> {
        let queues = association.queues();
        let lane_of = |class| (queues.of(class) > 0).then(|| association.lane_of(class)).transpose();
        let (default, read, poll) =
            (association.lane()?, lane_of(LaneClass::Read)?, lane_of(LaneClass::Poll)?);
        let mut lanes = Lanes { default, read, poll };
        // A flush vouches for what was written on any of them.
        if lanes.read.is_some() || lanes.poll.is_some() {
            let flush_epoch = FlushEpoch::default();
            let Lanes { default, read, poll } = &mut lanes;
            for lane in [Some(default), read.as_mut(), poll.as_mut()].into_iter().flatten() {
                lane.share_flush_epoch(flush_epoch.clone());
            }
        }
        Ok(Self {
            lanes,
            is_polled: false,
            namespace,
            association: association.clone(),
            spare: Vec::new(),
            completions: Vec::new(),
        })
    }

    /// From now on calls are polled ones, or no more: they go to the poll lane, if there is one, and the thread spins until they end.
    pub fn set_polled(&mut self, is_polled: bool) {
        self.is_polled = is_polled;
    }

    /// What is known of the namespace, and what makes its commands.
    #[must_use]
    pub fn info(&self) -> &Geometry {
        &self.namespace
    }

    /// Its association.
    #[must_use]
    pub fn association(&self) -> &Association {
        &self.association
    }

    /// Its lane of the default class, to use as such between calls.
    pub fn lane_mut(&mut self) -> &mut Lane<Vec<u8>> {
        &mut self.lanes.default
    }

    /// Asks again what the namespace is: after it was resized, say.
    ///
    /// # Errors
    /// As [`Association::namespace`].
    pub fn refresh(&mut self) -> Result<(), Error> {
        self.namespace = self.association.namespace(self.namespace.nsid())?;
        Ok(())
    }

    /// Reads `into.len()` bytes from `offset` on: whole blocks.
    ///
    /// # Errors
    /// [`Error::Command`] if that cannot be, [`Error::Failed`] if it fails.
    pub fn read_at(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let parts = self.parts(offset, into.len())?;
        self.run_parts(
            "Read",
            LaneClass::Read,
            parts,
            |namespace, part, _| Ok(namespace.read(part.range.lba, part.range.blocks)?),
            |part, data| into[part.start..][..part.length].copy_from_slice(data),
        )
    }

    /// Writes `data` from `offset` on: whole blocks. It is durable after the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// [`Error::Command`] if that cannot be, [`Error::Failed`] if it fails.
    pub fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.write(offset, data, false)
    }

    /// As [`write_at`](Self::write_at), durable when it returns (FUA).
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub fn write_durably_at(&mut self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.write(offset, data, true)
    }

    fn write(&mut self, offset: u64, data: &[u8], fua: bool) -> Result<(), Error> {
        let parts = self.parts(offset, data.len())?;
        self.run_parts(
            "Write",
            LaneClass::Default,
            parts,
            |namespace, part, buffer| {
                buffer.copy_from_slice(&data[part.start..][..part.length]);
                let command = namespace.write(part.range.lba, part.range.blocks)?;
                Ok(if fua { command.fua() } else { command })
            },
            |_, _| {},
        )
    }

    /// Whether the bytes from `offset` on are `data`: compared on the target.
    ///
    /// # Errors
    /// [`Error::Command`] if that cannot be, [`Error::Failed`] if it fails.
    pub fn compare_at(&mut self, offset: u64, data: &[u8]) -> Result<bool, Error> {
        let parts = self.parts(offset, data.len())?;
        let compared = self.run_parts(
            "Compare",
            LaneClass::Default,
            parts,
            |namespace, part, buffer| {
                buffer.copy_from_slice(&data[part.start..][..part.length]);
                Ok(namespace.compare(part.range.lba, part.range.blocks)?)
            },
            |_, _| {},
        );
        is_equal(compared)
    }

    /// Writes `new` from `offset` on if `expected` is there, as one. Says whether it was.
    ///
    /// # Errors
    /// [`Error::Command`] if that cannot be (controllers take a block or a few), [`Error::Failed`] if it fails.
    ///
    /// # Panics
    /// If the two have different lengths.
    pub fn compare_and_write_at(&mut self, offset: u64, expected: &[u8], new: &[u8]) -> Result<bool, Error> {
        assert_eq!(expected.len(), new.len(), "as many bytes are written as are compared");
        let (lba, blocks) = self.namespace.blocks_of(offset, expected.len() as u64)?;
        let blocks_max = self.namespace.transfer_blocks_max();
        let too_long = InvalidCommand::TooLong { blocks, limit: blocks_max.into() };
        let pair = self.namespace.compare_and_write(lba, u32::try_from(blocks).map_err(|_| too_long)?)?;
        let buffers = [expected.to_vec(), new.to_vec()];
        // Nothing else is outstanding: there is room.
        let lane = self.lanes.of(LaneClass::Default, self.is_polled);
        lane.submit_pair(pair, buffers, [0, 1])
            .map_err(|_| Error::Failed { command: "Compare and Write", failure: Failure::Unreachable })?;
        let mut failures = [None; 2];
        self.finish(LaneClass::Default, |user, result, _| failures[usize::from(user == 1)] = result.err());
        match failures {
            [None, None] => Ok(true),
            [Some(Failure::Status(status)), _] if status.is(Status::COMPARE_FAILURE) => Ok(false),
            [first, second] => {
                let failure = first.or(second).expect("one of them failed");
                Err(Error::Failed { command: "Compare and Write", failure })
            }
        }
    }

    /// Makes everything that was written durable. [`Failure::Unflushed`] after a reconnect: see
    /// [`reconnect`](crate::reconnect).
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn flush(&mut self) -> Result<(), Error> {
        let command = self.namespace.flush();
        self.run("Flush", command, None).map(drop)
    }

    /// Zeroes a range of whole blocks, deallocating them if wished and possible.
    ///
    /// # Errors
    /// [`Error::Command`] if that cannot be, [`Error::Failed`] if it fails.
    pub fn write_zeroes(&mut self, offset: u64, length: u64, deallocate: bool) -> Result<(), Error> {
        let (lba, blocks) = self.namespace.blocks_of(offset, length)?;
        let step = self.namespace.write_zeroes_blocks_max();
        for range in Geometry::split(lba, blocks, step) {
            let command = self.namespace.write_zeroes(range.lba, range.blocks, deallocate)?;
            self.run("Write Zeroes", command, None)?;
        }
        Ok(())
    }

    /// Says that a range of whole blocks is not needed any more.
    ///
    /// # Errors
    /// [`Error::Command`] if that cannot be, [`Error::Failed`] if it fails.
    pub fn deallocate(&mut self, offset: u64, length: u64) -> Result<(), Error> {
        let (lba, blocks) = self.namespace.blocks_of(offset, length)?;
        let limits = self.namespace.limits();
        let step = limits.deallocate_range_blocks_max.unwrap_or(u32::MAX);
        let ranges: Vec<_> = Geometry::split(lba, blocks, step).collect();
        for ranges in ranges.chunks(usize::from(limits.deallocate_ranges_max)) {
            let command = self.namespace.deallocate(ranges)?;
            self.run_command("Deallocate", command)?;
        }
        Ok(())
    }

    fn run_command(&mut self, name: &'static str, command: Command) -> Result<(), Error> {
        self.run(name, command, None).map(drop)
    }

    /// Has a range of whole blocks read and checked on the target.
    ///
    /// # Errors
    /// [`Error::Command`] if that cannot be, [`Error::Failed`] if it fails.
    pub fn verify(&mut self, offset: u64, length: u64) -> Result<(), Error> {
        let (lba, blocks) = self.namespace.blocks_of(offset, length)?;
        for range in Geometry::split(lba, blocks, self.namespace.transfer_blocks_max()) {
            let command = self.namespace.verify(range.lba, range.blocks)?;
            self.run_command("Verify", command)?;
        }
        Ok(())
    }

    /// Runs any command with its buffer, which is not copied; gives the result dwords and the buffer back.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn run(
        &mut self,
        name: &'static str,
        command: Command,
        buffer: Option<Vec<u8>>,
    ) -> Result<(u64, Option<Vec<u8>>), Error> {
        let failed = |failure| Error::Failed { command: name, failure };
        let class = command.class_unpolled();
        let lane = self.lanes.of(class, self.is_polled);
        lane.submit(command, buffer, 0).map_err(|refused| match lane.over() {
            Some(over) => over.clone(),
            None => Error::Refused { command: name, reason: refused.reason },
        })?;
        let mut end = None;
        self.finish(class, |_, result, buffer| end = Some((result, buffer)));
        let (result, buffer) = end.expect("every command ends");
        Ok((result.map_err(failed)?, buffer))
    }

    /// Cuts a range of bytes into commands.
    fn parts(&self, offset: u64, length: usize) -> Result<impl Iterator<Item = Part> + use<>, Error> {
        let (lba, blocks) = self.namespace.blocks_of(offset, length as u64)?;
        let lba_bytes = self.namespace.lba_bytes();
        let step = self.namespace.transfer_blocks_max().min((PART_BYTES / lba_bytes).max(1));
        let mut start = 0;
        Ok(Geometry::split(lba, blocks, step).map(move |range| {
            let length = range.blocks as usize * lba_bytes as usize;
            let part = Part { range, start, length };
            start += length;
            part
        }))
    }

    /// Runs the commands of a transfer, as many at once as the lane takes. `make` fills the buffer of each, `take` gets what it brought.
    fn run_parts(
        &mut self,
        name: &'static str,
        class: LaneClass,
        mut parts: impl Iterator<Item = Part>,
        mut make: impl FnMut(&Geometry, &Part, &mut [u8]) -> Result<Command, Error>,
        mut take: impl FnMut(&Part, &[u8]),
    ) -> Result<(), Error> {
        let lane = self.lanes.of(class, self.is_polled);
        let mut in_flight: Vec<Option<Part>> = Vec::new();
        let mut failure = None;
        loop {
            while failure.is_none() && lane.outstanding() < lane.depth() {
                let Some(part) = parts.next() else { break };
                let mut buffer = self.spare.pop().unwrap_or_default();
                buffer.resize(part.length, 0);
                let command = make(&self.namespace, &part, &mut buffer)?;
                let index = in_flight.iter().position(Option::is_none).unwrap_or(in_flight.len());
                if let Err(refused) = lane.submit(command, Some(buffer), index as u64) {
                    self.spare.extend(refused.buffer);
                    failure = Some(Failure::Unreachable);
                    break;
                }
                match in_flight.get_mut(index) {
                    Some(slot) => *slot = Some(part),
                    None => in_flight.push(Some(part)),
                }
            }
            if lane.outstanding() == 0 {
                break;
            }
            lane.wait(&mut self.completions, WAIT);
            for completion in self.completions.drain(..) {
                let index = usize::try_from(completion.user).expect("an index");
                let part = in_flight[index].take().expect("in flight");
                let buffer = completion.buffer.expect("submitted with one");
                match completion.result {
                    Ok(_) => take(&part, &buffer),
                    // The first failure is the one told; what is in flight ends first.
                    Err(cause) => failure = failure.or(Some(cause)),
                }
                self.spare.push(buffer);
            }
        }
        match (failure, lane.over()) {
            (None, _) => Ok(()),
            (Some(Failure::Unreachable), Some(over)) => Err(over.clone()),
            (Some(failure), _) => Err(Error::Failed { command: name, failure }),
        }
    }

    /// Waits for everything that is outstanding.
    fn finish(&mut self, class: LaneClass, mut each: impl FnMut(u64, Result<u64, Failure>, Option<Vec<u8>>)) {
        let lane = self.lanes.of(class, self.is_polled);
        while lane.outstanding() > 0 {
            lane.wait(&mut self.completions, WAIT);
            for completion in self.completions.drain(..) {
                each(completion.user, completion.result, completion.buffer);
            }
        }
    }
}

fn is_equal(compared: Result<(), Error>) -> Result<bool, Error> {
    match compared {
        Ok(()) => Ok(true),
        Err(Error::Failed { failure: Failure::Status(status), .. }) if status.is(Status::COMPARE_FAILURE) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}
