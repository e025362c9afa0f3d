//! Asynchronous calls on a namespace, for any executor.
//!
//! Each lane has a thread that drives it: commands reach the lane through a mailbox, and their completions wake the
//! tasks that await them.

mod key_routes;
mod key_value;
mod on_thread;

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use host_core::buffer::Window;
use host_core::failure::Failure;
use host_core::flush_epoch::FlushEpoch;
use host_core::namespace::{BlockRange, InvalidCommand, Namespace};
use host_core::queue_map::LaneClass;
use host_core::submit::{Command, Completion};
use proto::host_queue::DataBuffer;
use reactor::{Address as Post, Mailbox};
use wire::status::Status;

use key_routes::KeyRoute;
pub use key_value::{AsyncKeyValue, BatchOutcomes};
use on_thread::on_thread;

use crate::address::Address;
use crate::association::Association;
use crate::error::Error;
use crate::handed_over::Rest;
use crate::key_value_outcome::FIRST_BATCH_TAG;
use crate::lane::Lane;
use crate::options::Options;

/// An asynchronous handle of a [`Namespace`], for any thread, task and executor. Clones share its lanes.
///
/// ```no_run
/// # async fn example() -> Result<(), nvlane_host::Error> {
/// use nvlane_host::{Address, AsyncNamespace, Options};
///
/// let address: Address = "192.0.2.1:4420/nqn.2016-06.io.nvlane:disk".parse()?;
/// let disk = AsyncNamespace::connect(&address, Options::default().with_lanes(2)).await?;
/// let block = disk.read_at(vec![0; 4096], 0).await?;
/// disk.write_at(block, 4096).await?;
/// disk.flush().await?;
/// # Ok(()) }
/// ```
///
/// Reads use read lanes and [polled](Command::polled) commands use poll lanes, if the options ask for any; the thread
/// of a poll lane spins while its commands are outstanding. Dropping a future cancels its command: the lane keeps the
/// buffer until the controller has released it.
///
/// No call blocks the thread that polls its future. Connecting resolves names, reads the host's identity and waits for
/// the target on a thread of its own; dropping that future ends the attempt. Dropping the last handle does not wait for
/// the controller's shutdown: a program that is about to exit awaits [`close`](Self::close).
#[derive(Debug)]
pub struct AsyncNamespace<B = Vec<u8>> {
    namespace: Namespace,
    lanes: Arc<Lanes<B>>,
}

/// Lanes with a thread each, and the mailboxes of these threads.
#[derive(Debug)]
struct Lanes<B> {
    association: Association,
    /// By [class](LaneClass). Commands of a class without lanes use another class.
    drivers: [Drivers<B>; LaneClass::ALL.len()],
    next_id: AtomicU64,
    next_tag: AtomicU32,
    /// The flush epoch of all lanes.
    flush_epoch: FlushEpoch,
    /// Whether the lanes of the default class have the numbers from 1.
    is_numbered_from_1: bool,
}

/// The lanes of one class, used in turn.
#[derive(Debug)]
struct Drivers<B> {
    posts: Vec<Post<Message<B>>>,
    next: AtomicUsize,
}

impl<B> Drivers<B> {
    fn next(&self) -> Option<Post<Message<B>>> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        self.posts.get(turn.checked_rem(self.posts.len())?).cloned()
    }
}

/// A failed operation, with its buffer.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Failed<B> {
    /// The error.
    #[source]
    pub error: Error,
    /// The buffer, unless it is lost with the lane.
    pub buffer: Option<B>,
}

impl<B> From<Failed<B>> for Error {
    fn from(failed: Failed<B>) -> Self {
        failed.error
    }
}

enum Message<B> {
    Submit(Request<B>),
    SubmitPair(Box<[Request<B>; 2]>),
    /// Two commands, one directly after the other, on one lane.
    SubmitBoth(Box<[Request<B>; 2]>),
    Cancel(u64),
    Close,
}

struct Request<B> {
    id: u64,
    command: Command,
    buffer: Option<Window<B>>,
    slot: Arc<Slot<B>>,
    /// The route that has chosen its lane, until it ends.
    route: Option<Arc<KeyRoute>>,
}

/// Where a command goes.
struct Destination<B> {
    driver: Post<Message<B>>,
    /// The route that has chosen it, if the command is on a key of a lane.
    route: Option<Arc<KeyRoute>>,
}

/// The completion of a command, or the waker of the task that awaits it.
#[derive(Debug)]
struct Slot<B>(Mutex<SlotState<B>>);

#[derive(Debug)]
enum SlotState<B> {
    Waiting(Option<Waker>),
    /// The completion, and the association in which its lane received it.
    Done(Completion<Window<B>>, u64),
    Taken,
}

impl<B> Slot<B> {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(SlotState::Waiting(None))))
    }

    fn lock(&self) -> MutexGuard<'_, SlotState<B>> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The command ended in association `generation`.
    fn finish(&self, completion: Completion<Window<B>>, generation: u64) {
        let before = std::mem::replace(&mut *self.lock(), SlotState::Done(completion, generation));
        if let SlotState::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }
}

/// An outstanding command. Dropping it cancels the command.
#[must_use = "a future that is not awaited cancels its command"]
struct Operation<B> {
    id: u64,
    slot: Arc<Slot<B>>,
    /// It may change data.
    is_write: bool,
    driver: Post<Message<B>>,
    /// Keeps the lanes while commands are outstanding.
    lanes: Arc<Lanes<B>>,
}

impl<B> Future for Operation<B> {
    type Output = Completion<Window<B>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.slot.lock();
        match std::mem::replace(&mut *state, SlotState::Taken) {
            SlotState::Done(mut completion, generation) => {
                let written_in = self.is_write.then_some(generation);
                completion.result = self.lanes.flush_epoch.receive(completion.result, written_in);
                Poll::Ready(completion)
            }
            SlotState::Waiting(_) => {
                *state = SlotState::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
            SlotState::Taken => panic!("a future is not polled after it is ready"),
        }
    }
}

impl<B> Drop for Operation<B> {
    fn drop(&mut self) {
        if let SlotState::Waiting(_) = &*self.slot.lock() {
            self.driver.post(Message::Cancel(self.id));
        }
    }
}

impl<B> Clone for AsyncNamespace<B> {
    fn clone(&self) -> Self {
        Self { namespace: self.namespace.clone(), lanes: Arc::clone(&self.lanes) }
    }
}

impl<B> Drop for Lanes<B> {
    fn drop(&mut self) {
        // A task may drop the last handle, and must not block.
        self.association.detach();
        for driver in self.drivers.iter().flat_map(|drivers| &drivers.posts) {
            driver.post(Message::Close);
        }
    }
}

impl<B: DataBuffer + Send + 'static> AsyncNamespace<B> {
    /// Connects to the namespace that `address` names, or to the only one of the subsystem, with all lanes of the
    /// options.
    ///
    /// # Errors
    /// As [`Association::connect`], [`Association::addressed_namespace`] and [`Association::lane`].
    pub async fn connect(address: &Address, options: Options) -> Result<Self, Error> {
        let (namespace, lanes) = Lanes::open(address, options, Association::addressed_namespace).await?;
        Ok(Self { namespace, lanes })
    }

    /// A handle of a namespace of an existing association, with new lanes: all lanes of the association's options.
    ///
    /// # Errors
    /// As [`Association::lane`], and [`Error::System`].
    pub async fn new(association: &Association, namespace: Namespace) -> Result<Self, Error> {
        Ok(Self { namespace, lanes: Lanes::connect(association).await? })
    }

    /// Ends the association with all its handles and lanes, and waits for the controller's shutdown: at most
    /// [`Tuning::close_timeout`](crate::Tuning::close_timeout).
    pub async fn close(self) {
        self.lanes.close().await;
    }

    /// The namespace: its size, its limits, and the constructor of its commands.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The association.
    #[must_use]
    pub fn association(&self) -> &Association {
        &self.lanes.association
    }

    /// Runs a command without a buffer. Returns the result dwords.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub async fn run(&self, name: &'static str, command: Command) -> Result<u64, Error> {
        self.lanes.run(name, command).await
    }

    /// Runs a command with its buffer. Returns the result dwords and the buffer.
    ///
    /// # Errors
    /// [`Failed`], with the buffer.
    pub async fn run_with(
        &self,
        name: &'static str,
        command: Command,
        buffer: B,
    ) -> Result<(u64, B), Failed<B>> {
        self.lanes.run_with(name, command, buffer).await
    }

    /// Runs a transfer of any length, one command at a time.
    async fn transfer(
        &self,
        name: &'static str,
        buffer: B,
        offset: u64,
        make: impl Fn(&Namespace, BlockRange) -> Result<Command, InvalidCommand>,
    ) -> Result<B, Failed<B>> {
        let namespace = &self.namespace;
        let (lba, blocks) = match namespace.blocks_of(offset, buffer.length() as u64) {
            Ok(blocks) => blocks,
            Err(error) => return Err(Failed { error: error.into(), buffer: Some(buffer) }),
        };
        let mut window = Window { buffer, start: 0, length: 0 };
        for range in Namespace::split(lba, blocks, namespace.transfer_blocks_max()) {
            window.start += window.length;
            window.length = range.blocks as usize * namespace.lba_bytes() as usize;
            let command = match make(namespace, range) {
                Ok(command) => command,
                Err(error) => return Err(Failed { error: error.into(), buffer: Some(window.buffer) }),
            };
            let completion = self.lanes.start(command, Some(window)).await;
            match (completion.result, completion.buffer) {
                (Ok(_), Some(back)) => window = back,
                (Ok(_), None) => return Err(Failed { error: Error::Ended, buffer: None }),
                (Err(failure), back) => {
                    let buffer = back.map(|window| window.buffer);
                    return Err(Failed { error: self.lanes.failed(name, failure), buffer });
                }
            }
        }
        Ok(window.buffer)
    }

    /// Fills `buffer` from byte `offset` on. Both must be multiples of the block size.
    ///
    /// # Errors
    /// [`Failed`], with the buffer.
    pub async fn read_at(&self, buffer: B, offset: u64) -> Result<B, Failed<B>> {
        self.transfer("Read", buffer, offset, |namespace, range| namespace.read(range.lba, range.blocks))
            .await
    }

    /// Writes `buffer` at byte `offset`. Both must be multiples of the block size. The data is durable after the next
    /// [`flush`](Self::flush).
    ///
    /// # Errors
    /// [`Failed`], with the buffer.
    pub async fn write_at(&self, buffer: B, offset: u64) -> Result<B, Failed<B>> {
        self.transfer("Write", buffer, offset, |namespace, range| namespace.write(range.lba, range.blocks))
            .await
    }

    /// As [`write_at`](Self::write_at), and durable on completion (FUA).
    ///
    /// # Errors
    /// [`Failed`], with the buffer.
    pub async fn write_durably_at(&self, buffer: B, offset: u64) -> Result<B, Failed<B>> {
        let make = |namespace: &Namespace, range: BlockRange| {
            namespace.write(range.lba, range.blocks).map(Command::fua)
        };
        self.transfer("Write", buffer, offset, make).await
    }

    /// Compares `buffer` with the bytes from `offset` on, on the target. Returns whether they are equal.
    ///
    /// # Errors
    /// [`Failed`], with the buffer.
    pub async fn compare_at(&self, buffer: B, offset: u64) -> Result<(bool, B), Failed<B>> {
        let make = |namespace: &Namespace, range: BlockRange| namespace.compare(range.lba, range.blocks);
        match self.transfer("Compare", buffer, offset, make).await {
            Ok(buffer) => Ok((true, buffer)),
            Err(Failed {
                error: Error::Failed { failure: Failure::Status(status), .. },
                buffer: Some(buffer),
            }) if status.is(Status::COMPARE_FAILURE) => Ok((false, buffer)),
            Err(failed) => Err(failed),
        }
    }

    /// Atomically writes `new` at `offset` if the bytes there equal `expected`. Returns whether they did.
    ///
    /// # Errors
    /// [`Error::Command`] if the range is invalid (controllers take one or a few blocks), [`Error::Failed`] if it
    /// fails.
    pub async fn compare_and_write_at(&self, expected: B, new: B, offset: u64) -> Result<bool, Error> {
        let lengths = [expected.length(), new.length()];
        let (lba, blocks) = self.namespace.blocks_of(offset, lengths[0] as u64)?;
        let limit = self.namespace.transfer_blocks_max();
        let count =
            u32::try_from(blocks).map_err(|_| InvalidCommand::TooLong { blocks, limit: limit.into() })?;
        let pair = self.namespace.compare_and_write(lba, count)?;
        let [first, second] =
            self.lanes.start_two(self.lanes.driver(&pair[1]), pair, [expected, new], Message::SubmitPair);
        // Both are outstanding already.
        let (first, second) = (first.await.result, second.await.result);
        match (first, second) {
            (Ok(_), Ok(_)) => Ok(true),
            (Err(Failure::Status(status)), _) if status.is(Status::COMPARE_FAILURE) => Ok(false),
            (Err(failure), _) | (_, Err(failure)) => Err(self.lanes.failed("Compare and Write", failure)),
        }
    }

    /// Makes all earlier writes durable. After a reconnect it fails with [`Failure::Unflushed`], on all lanes and
    /// clones, until one caller has received that answer: see [`reconnect`](crate::reconnect).
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub async fn flush(&self) -> Result<(), Error> {
        self.run("Flush", self.namespace.flush()).await.map(drop)
    }

    /// Writes zeroes to a range of whole blocks; with `deallocate` the target may deallocate them.
    ///
    /// # Errors
    /// [`Error::Command`] if the range is invalid, [`Error::Failed`] if a command fails.
    pub async fn write_zeroes(&self, offset: u64, length: u64, deallocate: bool) -> Result<(), Error> {
        let namespace = &self.namespace;
        let (lba, blocks) = namespace.blocks_of(offset, length)?;
        for range in Namespace::split(lba, blocks, namespace.write_zeroes_blocks_max()) {
            self.run("Write Zeroes", namespace.write_zeroes(range.lba, range.blocks, deallocate)?).await?;
        }
        Ok(())
    }

    /// Deallocates ranges of blocks (TRIM).
    ///
    /// # Errors
    /// [`Error::Command`] if the range is invalid, [`Error::Failed`] if a command fails.
    pub async fn deallocate(&self, ranges: &[BlockRange]) -> Result<(), Error> {
        let namespace = &self.namespace;
        for ranges in ranges.chunks(usize::from(namespace.limits().deallocate_ranges_max)) {
            self.run("Deallocate", namespace.deallocate(ranges)?).await?;
        }
        Ok(())
    }
}

impl<B: DataBuffer + Send + 'static> Lanes<B> {
    /// As [`new`](Self::new), on another thread.
    async fn connect(association: &Association) -> Result<Arc<Self>, Error> {
        let association = association.clone();
        on_thread("nvlane-connect", move |_| Self::new(&association)).await
    }

    async fn close(&self) {
        let association = self.association.clone();
        let closed = on_thread("nvlane-close", move |_| {
            association.close();
            Ok(())
        });
        // Without a thread the association ends with its last handle.
        let _ = closed.await;
    }

    /// A new association with the namespace that `find` finds in it, and all lanes of the options.
    async fn open<N: Send + 'static>(
        address: &Address,
        options: Options,
        find: fn(&Association) -> Result<N, Error>,
    ) -> Result<(N, Arc<Self>), Error> {
        let address = address.clone();
        let connected = on_thread("nvlane-connect", move |began| {
            let association = Association::begin(&address, options)?;
            began.association(&association);
            association.wait_up()?;
            Ok((find(&association)?, Self::new(&association)?))
        });
        connected.await
    }

    /// All lanes of the association's options.
    fn new(association: &Association) -> Result<Arc<Self>, Error> {
        let flush_epoch = FlushEpoch::acknowledged_by_handle();
        let lanes: Vec<Lane<Window<B>>> = association.every_lane()?;
        let of_default = lanes.iter().filter(|lane| lane.class() == LaneClass::Default);
        let is_numbered_from_1 = (1..).zip(of_default).all(|(number, lane)| number == lane.number());
        let mut drivers = LaneClass::ALL.map(|_| Drivers { posts: Vec::new(), next: AtomicUsize::new(0) });
        for mut lane in lanes {
            lane.share_flush_epoch(flush_epoch.clone());
            let mailbox = Mailbox::new().map_err(|error| Error::system("make a mailbox", error))?;
            drivers[lane.class() as usize].posts.push(mailbox.address());
            std::thread::Builder::new()
                .name(format!("nvlane-lane-{}", lane.number()))
                .spawn(move || {
                    Driver { lane, requests: HashMap::new(), backlog: VecDeque::new() }.run(&mailbox);
                })
                .map_err(|error| Error::system("start a thread", error))?;
        }
        Ok(Arc::new(Self {
            association: association.clone(),
            drivers,
            next_id: AtomicU64::new(0),
            next_tag: AtomicU32::new(FIRST_BATCH_TAG),
            flush_epoch,
            is_numbered_from_1,
        }))
    }

    /// A tag that no other outstanding batch has.
    fn next_tag(&self) -> u32 {
        self.next_tag.fetch_add(1, Ordering::Relaxed)
    }

    fn request(
        &self,
        command: Command,
        buffer: Option<Window<B>>,
        route: Option<Arc<KeyRoute>>,
    ) -> Request<B> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        Request { id, command, buffer, slot: Slot::new(), route }
    }

    /// The driver of the next lane for a command.
    fn driver(&self, command: &Command) -> Destination<B> {
        let classes = [command.lane_class(), command.class_unpolled()].into_iter().chain(LaneClass::ALL);
        let found = classes.map(|class| self.drivers[class as usize].next()).find_map(|driver| driver);
        Destination { driver: found.expect("a namespace has lanes"), route: None }
    }

    /// The driver of the lane with this index, which `route` has chosen, if there is such a lane.
    fn driver_at(&self, lane: u16, route: Arc<KeyRoute>) -> Option<Destination<B>> {
        let posts = &self.drivers[LaneClass::Default as usize].posts;
        let driver = posts.get(usize::from(lane)).filter(|_| self.is_numbered_from_1)?.clone();
        Some(Destination { driver, route: Some(route) })
    }

    fn operation(self: &Arc<Self>, request: &Request<B>, driver: &Post<Message<B>>) -> Operation<B> {
        let (id, slot) = (request.id, Arc::clone(&request.slot));
        let is_write = request.command.changes_data();
        Operation { id, slot, is_write, driver: driver.clone(), lanes: Arc::clone(self) }
    }

    fn start(self: &Arc<Self>, command: Command, buffer: Option<Window<B>>) -> Operation<B> {
        self.start_at(self.driver(&command), command, buffer)
    }

    fn start_at(
        self: &Arc<Self>,
        Destination { driver, route }: Destination<B>,
        command: Command,
        buffer: Option<Window<B>>,
    ) -> Operation<B> {
        let request = self.request(command, buffer, route);
        let operation = self.operation(&request, &driver);
        if !driver.post(Message::Submit(request)) {
            operation.slot.finish(unreachable_end(None), 0);
        }
        operation
    }

    /// Submits two commands to one lane, in a message of this kind.
    fn start_two(
        self: &Arc<Self>,
        Destination { driver, route }: Destination<B>,
        [one, two]: [Command; 2],
        buffers: [B; 2],
        message: impl FnOnce(Box<[Request<B>; 2]>) -> Message<B>,
    ) -> [Operation<B>; 2] {
        let [first, second] = buffers.map(|buffer| {
            let length = buffer.length();
            Some(Window { buffer, start: 0, length })
        });
        let requests = Box::new([self.request(one, first, route.clone()), self.request(two, second, route)]);
        let operations = requests.each_ref().map(|request| self.operation(request, &driver));
        if !driver.post(message(requests)) {
            operations.iter().for_each(|operation| operation.slot.finish(unreachable_end(None), 0));
        }
        operations
    }

    /// Submits two commands one directly after the other.
    fn start_both(
        self: &Arc<Self>,
        to: Destination<B>,
        commands: [Command; 2],
        buffers: [B; 2],
    ) -> [Operation<B>; 2] {
        self.start_two(to, commands, buffers, Message::SubmitBoth)
    }

    async fn run(self: &Arc<Self>, name: &'static str, command: Command) -> Result<u64, Error> {
        self.run_at(self.driver(&command), name, command).await
    }

    async fn run_at(
        self: &Arc<Self>,
        to: Destination<B>,
        name: &'static str,
        command: Command,
    ) -> Result<u64, Error> {
        let completion = self.start_at(to, command, None).await;
        completion.result.map_err(|failure| self.failed(name, failure))
    }

    async fn run_with(
        self: &Arc<Self>,
        name: &'static str,
        command: Command,
        buffer: B,
    ) -> Result<(u64, B), Failed<B>> {
        self.run_with_at(self.driver(&command), name, command, buffer).await
    }

    async fn run_with_at(
        self: &Arc<Self>,
        to: Destination<B>,
        name: &'static str,
        command: Command,
        buffer: B,
    ) -> Result<(u64, B), Failed<B>> {
        let length = buffer.length();
        let completion = self.start_at(to, command, Some(Window { buffer, start: 0, length })).await;
        let buffer = completion.buffer.map(|window| window.buffer);
        match (completion.result, buffer) {
            (Ok(result), Some(buffer)) => Ok((result, buffer)),
            (Ok(_), None) => Err(Failed { error: Error::Ended, buffer: None }),
            (Err(failure), buffer) => Err(Failed { error: self.failed(name, failure), buffer }),
        }
    }

    fn failed(&self, command: &'static str, failure: Failure) -> Error {
        match (failure, self.association.over()) {
            (Failure::Unreachable, Some(over)) => Error::clone(&over),
            _ => Error::Failed { command, failure },
        }
    }
}

/// The completion of a command that no lane accepted.
fn unreachable_end<B>(buffer: Option<Window<B>>) -> Completion<Window<B>> {
    Completion { user: 0, result: Err(Failure::Unreachable), received: 0, buffer }
}

/// Where the completion of a command goes, and the route that has chosen its lane.
type Submitted<B> = (Arc<Slot<B>>, Option<Arc<KeyRoute>>);

/// A lane, driven by a thread.
struct Driver<B> {
    lane: Lane<Window<B>>,
    /// Commands submitted to the lane.
    requests: HashMap<u64, Submitted<B>>,
    /// Commands that wait for room in the lane, single or in pairs.
    backlog: VecDeque<Message<B>>,
}

impl<B: DataBuffer> Driver<B> {
    /// Runs until the handle and all its operations are dropped.
    fn run(mut self, mailbox: &Mailbox<Message<B>>) {
        let mut rest = Rest::default();
        let mut next = None;
        // That of the last poll: what the lane hands out after it has lost the association belongs to it.
        let mut generation = self.lane.generation();
        loop {
            let mut has_worked = false;
            while let Some(message) = next.take().or_else(|| mailbox.next_message()) {
                has_worked = true;
                if !self.on_message(message) {
                    return;
                }
            }
            self.submit_backlog();
            let requests = &mut self.requests;
            let count = self.lane.poll_with(&mut |completion| {
                if let Some((slot, route)) = requests.remove(&completion.user) {
                    // Before the caller's next command.
                    drop(route);
                    slot.finish(completion, generation);
                }
            });
            generation = self.lane.generation();
            next = rest.after_turn(&mut self.lane, mailbox, has_worked || count > 0);
        }
    }

    /// Returns whether to continue.
    fn on_message(&mut self, message: Message<B>) -> bool {
        match message {
            Message::Close => return false,
            Message::Cancel(id) => self.cancel(id),
            Message::Submit(_) | Message::SubmitPair(_) | Message::SubmitBoth(_) => {
                self.backlog.push_back(message);
            }
        }
        true
    }

    fn submit_backlog(&mut self) {
        while let Some(message) = self.backlog.pop_front() {
            let count = if matches!(message, Message::Submit(_)) { 1 } else { 2 };
            if !self.lane.has_room(count) && self.lane.over().is_none() {
                self.backlog.push_front(message);
                return;
            }
            match message {
                Message::Submit(request) => self.submit(request),
                Message::SubmitPair(pair) => self.submit_pair(*pair),
                Message::SubmitBoth(both) => both.into_iter().for_each(|request| self.submit(request)),
                Message::Cancel(_) | Message::Close => unreachable!("only commands are queued"),
            }
        }
    }

    fn submit(&mut self, request: Request<B>) {
        let Request { id, command, buffer, slot, route } = request;
        match self.lane.submit(command, buffer, id) {
            Ok(()) => {
                self.requests.insert(id, (slot, route));
            }
            // The buffer fits and there is room: the association ended.
            Err(refused) => slot.finish(unreachable_end(refused.buffer), 0),
        }
    }

    fn submit_pair(&mut self, [first, second]: [Request<B>; 2]) {
        let (Some(compare), Some(write)) = (first.buffer, second.buffer) else { return };
        let commands = [first.command, second.command];
        match self.lane.submit_pair(commands, [compare, write], [first.id, second.id]) {
            Ok(()) => {
                self.requests.insert(first.id, (first.slot, first.route));
                self.requests.insert(second.id, (second.slot, second.route));
            }
            Err((_, [compare, write])) => {
                first.slot.finish(unreachable_end(Some(compare)), 0);
                second.slot.finish(unreachable_end(Some(write)), 0);
            }
        }
    }

    /// Cancels a command whose future was dropped.
    fn cancel(&mut self, id: u64) {
        let is_meant = |message: &Message<B>| match message {
            Message::Submit(request) => request.id == id,
            Message::SubmitPair(two) | Message::SubmitBoth(two) => two.iter().any(|request| request.id == id),
            Message::Cancel(_) | Message::Close => false,
        };
        let before = self.backlog.len();
        self.backlog.retain(|message| !is_meant(message));
        if self.backlog.len() == before {
            self.lane.cancel(id);
        }
    }
}
