//! Blocking calls on a namespace: reads and writes at byte offsets, on lanes of the calling thread.

mod key_value;

use std::ops::Range;
use std::time::Duration;

use host_core::failure::Failure;
use host_core::flush_epoch::FlushEpoch;
use host_core::namespace::{BlockRange, InvalidCommand, Namespace};
use host_core::queue_map::LaneClass;
use host_core::submit::{Command, Completion};
use wire::status::Status;

pub use key_value::BlockingKeyValue;

use crate::address::Address;
use crate::association::Association;
use crate::error::Error;
use crate::lane::Lane;
use crate::options::Options;

/// Maximum size of one command of a longer transfer, bytes: several are outstanding, and each is copied while the next
/// ones are on the wire.
const PART_BYTES: u32 = 256 << 10;

/// Bytes of a list of allocated blocks.
const STATUS_BYTES: u32 = 64 << 10;

/// Timeout of a wait: effectively none, since commands have their own.
const WAIT: Duration = Duration::from_secs(3600);

/// A blocking handle of a [`Namespace`]: reads and writes of whole blocks at byte offsets.
///
/// ```no_run
/// use nvlane_host::{Address, BlockingNamespace, Options};
///
/// let address: Address = "192.0.2.1:4420/nqn.2016-06.io.nvlane:disk".parse()?;
/// let mut disk = BlockingNamespace::connect(&address, Options::default())?;
/// let mut block = vec![0; disk.namespace().lba_bytes() as usize];
/// disk.read_at(&mut block, 0)?;
/// block[0] ^= 1;
/// disk.write_at(&block, 0)?;
/// disk.flush()?;
/// # Ok::<(), nvlane_host::Error>(())
/// ```
///
/// A call sends its commands from the calling thread and waits there; no other thread takes part. A transfer of any
/// length is split into commands that are outstanding together. If such a call fails, some of its commands may have
/// been executed.
///
/// With [`Options::read_lanes`] reads have a lane of their own, with [`Options::poll_lanes`] so have
/// [polled](Self::set_polled) calls.
#[derive(Debug)]
pub struct BlockingNamespace {
    lanes: Lanes,
    /// See [`set_polled`](Self::set_polled).
    is_polled: bool,
    namespace: Namespace,
    association: Association,
    /// Unused buffers.
    spare: Vec<Vec<u8>>,
    completions: Vec<Completion<Vec<u8>>>,
}

/// One lane of each class that the association has.
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
    /// Offset of its bytes in the transfer.
    start: usize,
    length: usize,
}

impl BlockingNamespace {
    /// Connects to the namespace that `address` names, or to the only one of the subsystem.
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

    /// A handle of a namespace of an existing association, with new lanes for the calling thread: one of each class.
    ///
    /// # Errors
    /// As [`Association::lane`].
    pub fn new(association: &Association, namespace: Namespace) -> Result<Self, Error> {
        let queues = association.queues();
        let lane_of = |class| (queues.of(class) > 0).then(|| association.lane_of(class)).transpose();
        let (default, read, poll) =
            (association.lane()?, lane_of(LaneClass::Read)?, lane_of(LaneClass::Poll)?);
        let mut lanes = Lanes { default, read, poll };
        // A flush covers writes of all lanes.
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

    /// Makes further calls polled, or not: a polled call uses the poll lane, if there is one, and spins until it ends.
    pub fn set_polled(&mut self, is_polled: bool) {
        self.is_polled = is_polled;
    }

    /// The namespace: its size, its limits, and the constructor of its commands.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The association.
    #[must_use]
    pub fn association(&self) -> &Association {
        &self.association
    }

    /// The lane of the default class, for use between calls.
    pub fn lane_mut(&mut self) -> &mut Lane<Vec<u8>> {
        &mut self.lanes.default
    }

    /// Updates [`namespace`](Self::namespace), for example after a resize.
    ///
    /// # Errors
    /// As [`Association::namespace`].
    pub fn refresh(&mut self) -> Result<(), Error> {
        self.namespace = self.association.namespace(self.namespace.nsid())?;
        Ok(())
    }

    /// Fills `buffer` from byte `offset` on. Both must be multiples of the block size.
    ///
    /// # Errors
    /// [`Error::Command`] if the range is invalid, [`Error::Failed`] if a command fails.
    pub fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<(), Error> {
        let parts = self.parts(offset, buffer.len())?;
        self.run_parts(
            "Read",
            LaneClass::Read,
            parts,
            |namespace, part, _| Ok(namespace.read(part.range.lba, part.range.blocks)?),
            |part, data| buffer[part.start..][..part.length].copy_from_slice(data),
        )
    }

    /// Writes `data` at byte `offset`. Both must be multiples of the block size. The data is durable after the next
    /// [`flush`](Self::flush).
    ///
    /// # Errors
    /// [`Error::Command`] if the range is invalid, [`Error::Failed`] if a command fails.
    pub fn write_at(&mut self, data: &[u8], offset: u64) -> Result<(), Error> {
        self.write(data, offset, false)
    }

    /// As [`write_at`](Self::write_at), and durable on return (FUA).
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub fn write_durably_at(&mut self, data: &[u8], offset: u64) -> Result<(), Error> {
        self.write(data, offset, true)
    }

    fn write(&mut self, data: &[u8], offset: u64, fua: bool) -> Result<(), Error> {
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

    /// Compares `data` with the bytes from `offset` on, on the target. Returns whether they are equal.
    ///
    /// # Errors
    /// [`Error::Command`] if the range is invalid, [`Error::Failed`] if a command fails.
    pub fn compare_at(&mut self, data: &[u8], offset: u64) -> Result<bool, Error> {
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

    /// Atomically writes `new` at `offset` if the bytes there equal `expected`. Returns whether they did.
    ///
    /// # Errors
    /// [`Error::Command`] if the range is invalid (controllers take one or a few blocks), [`Error::Failed`] if it
    /// fails.
    ///
    /// # Panics
    /// If `expected` and `new` differ in length.
    pub fn compare_and_write_at(&mut self, expected: &[u8], new: &[u8], offset: u64) -> Result<bool, Error> {
        assert_eq!(expected.len(), new.len(), "expected and new have the same length");
        let (lba, blocks) = self.namespace.blocks_of(offset, expected.len() as u64)?;
        let blocks_max = self.namespace.transfer_blocks_max();
        let too_long = InvalidCommand::TooLong { blocks, limit: blocks_max.into() };
        let pair = self.namespace.compare_and_write(lba, u32::try_from(blocks).map_err(|_| too_long)?)?;
        let buffers = [expected.to_vec(), new.to_vec()];
        // Nothing else is outstanding: the lane has room.
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

    /// Makes all earlier writes durable. Fails with [`Failure::Unflushed`] once after a reconnect: see
    /// [`reconnect`](crate::reconnect).
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn flush(&mut self) -> Result<(), Error> {
        let command = self.namespace.flush();
        self.run("Flush", command, None).map(drop)
    }

    /// Writes zeroes to a range of whole blocks; with `deallocate` the target may deallocate them.
    ///
    /// # Errors
    /// [`Error::Command`] if the range is invalid, [`Error::Failed`] if a command fails.
    pub fn write_zeroes(&mut self, offset: u64, length: u64, deallocate: bool) -> Result<(), Error> {
        let (lba, blocks) = self.namespace.blocks_of(offset, length)?;
        let step = self.namespace.write_zeroes_blocks_max();
        for range in Namespace::split(lba, blocks, step) {
            let command = self.namespace.write_zeroes(range.lba, range.blocks, deallocate)?;
            self.run("Write Zeroes", command, None)?;
        }
        Ok(())
    }

    /// Deallocates a range of whole blocks (TRIM).
    ///
    /// # Errors
    /// [`Error::Command`] if the range is invalid, [`Error::Failed`] if a command fails.
    pub fn deallocate(&mut self, offset: u64, length: u64) -> Result<(), Error> {
        let (lba, blocks) = self.namespace.blocks_of(offset, length)?;
        let limits = self.namespace.limits();
        let step = limits.deallocate_range_blocks_max.unwrap_or(u32::MAX);
        let ranges: Vec<_> = Namespace::split(lba, blocks, step).collect();
        for ranges in ranges.chunks(usize::from(limits.deallocate_ranges_max)) {
            let command = self.namespace.deallocate(ranges)?;
            self.run_command("Deallocate", command)?;
        }
        Ok(())
    }

    /// Finds the allocated parts of a range of whole blocks, in order: byte offsets. All others read as
    /// [`NamespaceInfo::deallocated_value`](crate::NamespaceInfo::deallocated_value) says.
    ///
    /// # Errors
    /// [`Error::Command`] if the range is invalid or the controller does not tell
    /// ([`Namespace::has_lba_status`]), [`Error::Failed`] if a command fails, [`Error::LbaStatus`] if a list makes no
    /// sense.
    pub fn allocated(&mut self, offset: u64, length: u64) -> Result<Vec<Range<u64>>, Error> {
        let lba_bytes = u64::from(self.namespace.lba_bytes());
        let (mut lba, blocks) = self.namespace.blocks_of(offset, length)?;
        let end = lba + blocks;
        let room_bytes = STATUS_BYTES.min(self.namespace.limits().transfer_bytes_max);
        let mut parts: Vec<Range<u64>> = Vec::new();
        while lba < end {
            let command = self.namespace.lba_status(lba, end - lba, room_bytes)?;
            let (_, list) = self.run("Get LBA Status", command, Some(vec![0; room_bytes as usize]))?;
            let told = self.namespace.allocated_blocks(lba, end - lba, &list.unwrap_or_default())?;
            for blocks in told.allocated {
                let part = blocks.start * lba_bytes..blocks.end * lba_bytes;
                match parts.last_mut() {
                    Some(last) if last.end == part.start => last.end = part.end,
                    _ => parts.push(part),
                }
            }
            lba = told.range.end;
        }
        Ok(parts)
    }

    fn run_command(&mut self, name: &'static str, command: Command) -> Result<(), Error> {
        self.run(name, command, None).map(drop)
    }

    /// Makes the target read and check a range of whole blocks, without transfer.
    ///
    /// # Errors
    /// [`Error::Command`] if the range is invalid, [`Error::Failed`] if a command fails.
    pub fn verify(&mut self, offset: u64, length: u64) -> Result<(), Error> {
        let (lba, blocks) = self.namespace.blocks_of(offset, length)?;
        for range in Namespace::split(lba, blocks, self.namespace.transfer_blocks_max()) {
            let command = self.namespace.verify(range.lba, range.blocks)?;
            self.run_command("Verify", command)?;
        }
        Ok(())
    }

    /// Runs any command with its buffer, without a copy. Returns the result dwords and the buffer.
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

    /// Splits a range of bytes into commands.
    fn parts(&self, offset: u64, length: usize) -> Result<impl Iterator<Item = Part> + use<>, Error> {
        let (lba, blocks) = self.namespace.blocks_of(offset, length as u64)?;
        let lba_bytes = self.namespace.lba_bytes();
        let step = self.namespace.transfer_blocks_max().min((PART_BYTES / lba_bytes).max(1));
        let mut start = 0;
        Ok(Namespace::split(lba, blocks, step).map(move |range| {
            let length = range.blocks as usize * lba_bytes as usize;
            let part = Part { range, start, length };
            start += length;
            part
        }))
    }

    /// Runs the commands of a transfer, as many at once as the lane takes. `make` fills the buffer of each command,
    /// `take` receives its buffer on success.
    fn run_parts(
        &mut self,
        name: &'static str,
        class: LaneClass,
        mut parts: impl Iterator<Item = Part>,
        mut make: impl FnMut(&Namespace, &Part, &mut [u8]) -> Result<Command, Error>,
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
                    // The first failure is reported, after all outstanding commands have ended.
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

    /// Waits until nothing is outstanding.
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
