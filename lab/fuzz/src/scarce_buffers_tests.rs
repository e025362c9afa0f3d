//! A target in memory whose peers hold its buffers: other hosts must make progress, and held buffers must be released.
//! Its pool has 3 MiB for commands.

use proto::handshake::HostOffer;
use proto::host_queue::Transfer;
use wire::pdu::Digests;
use wire::sqe::Sqe;

use crate::raw_host::{self, BLOCKS, NAMESPACE_BYTES, Queue};
use crate::reactor::MemoryReactor;

const SECOND: u64 = 1_000_000_000;

/// Blocks and bytes of the largest read: the whole namespace.
const READ_BLOCKS: u32 = 256;
const READ_BYTES: usize = READ_BLOCKS as usize * 512;

/// Bytes that an idle pool has for commands: all but the reserve.
const POOL_BYTES: usize = 3 << 20;

/// An association with one I/O queue. Data digests make reads use buffers.
struct RawHost {
    admin: Queue,
    io: Queue,
}

impl RawHost {
    /// An association whose side receives `room` bytes before it must be read.
    fn new(target: &mut MemoryReactor, room: usize) -> Self {
        let offer = HostOffer { digests: Digests::DATA, ..HostOffer::default() };
        let (admin, cntlid) = Queue::admin(target, offer, usize::MAX);
        let io = Queue::io(target, offer, room, cntlid);
        Self { admin, io }
    }

    /// A host that requests as much as it can, and reads nothing.
    fn deaf(target: &mut MemoryReactor) -> Self {
        let mut host = Self::new(target, 4096);
        (0..31).for_each(|_| host.submit_read(READ_BLOCKS));
        host.io.push(target);
        host
    }

    /// A host that starts writes and does not send their data.
    fn owing(target: &mut MemoryReactor) -> Self {
        let mut host = Self::new(target, usize::MAX);
        for _ in 0..31 {
            host.io.submit(Sqe::write(BLOCKS, 0, READ_BLOCKS), Transfer::ToController(vec![1; READ_BYTES]));
        }
        host.io.push(target);
        host
    }

    fn submit_read(&mut self, blocks: u32) {
        let buffer = vec![0; blocks as usize * 512];
        self.io.submit(Sqe::read(BLOCKS, 0, blocks), Transfer::FromController { buffer, is_exact: true });
    }

    /// Submits `count` reads and returns how many reads succeed now, earlier ones included.
    fn read(&mut self, target: &mut MemoryReactor, count: usize, blocks: u32) -> usize {
        (0..count).for_each(|_| self.submit_read(blocks));
        let ended = self.io.exchange(target);
        ended.iter().filter(|ended| ended.status.is_success()).count()
    }

    /// Whether its two connections are both closed; otherwise both must be open.
    fn is_gone(&self, target: &MemoryReactor) -> bool {
        assert_eq!(target.is_closed(self.io.link), target.is_closed(self.admin.link));
        target.is_closed(self.io.link)
    }
}

#[test]
fn a_host_that_reads_nothing_keeps_no_more_than_its_part() {
    assert_eq!(NAMESPACE_BYTES, READ_BYTES as u64);
    let mut target = raw_host::target();
    let mut deaf = RawHost::deaf(&mut target);
    // One caravan in flight and one that fills.
    let kept = POOL_BYTES - target.free_bytes();
    assert!((1 << 20..=(2 << 20) + READ_BYTES).contains(&kept), "{kept}");
    // When it reads after all, it receives everything.
    assert_eq!(deaf.read(&mut target, 0, 1), 31);
    assert_eq!(target.free_bytes(), POOL_BYTES);
    target.end();
}

#[test]
fn hosts_that_read_nothing_block_no_other_host() {
    let mut target = raw_host::target();
    let mut healthy = RawHost::new(&mut target, usize::MAX);
    let deaf: Vec<RawHost> = (0..12).map(|_| RawHost::deaf(&mut target)).collect();
    assert!(target.free_bytes() * 4 < POOL_BYTES, "{}", target.free_bytes());
    assert_eq!(healthy.read(&mut target, 16, 8), 16, "small reads go on at once");
    assert!(deaf.iter().all(|deaf| !deaf.is_gone(&target)));
    // A large read waits until the holders of all buffers are disconnected, which is soon. Once, others take their
    // place.
    assert_eq!(healthy.read(&mut target, 1, READ_BLOCKS), 0);
    let gone = |target: &MemoryReactor| deaf.iter().filter(|deaf| deaf.is_gone(target)).count();
    target.pass(SECOND / 2);
    assert_eq!(gone(&target), 0);
    target.pass(SECOND);
    assert!(gone(&target) > 0, "their associations end with their queues");
    target.pass(2 * SECOND);
    assert_eq!(healthy.read(&mut target, 0, 1), 1);
    target.pass(12 * SECOND);
    assert_eq!((gone(&target), target.free_bytes()), (deaf.len(), POOL_BYTES));
    assert!(!healthy.is_gone(&target));
    target.end();
}

#[test]
fn hosts_that_owe_data_block_no_other_host() {
    let mut target = raw_host::target();
    let mut healthy = RawHost::new(&mut target, usize::MAX);
    let owing: Vec<RawHost> = (0..12).map(|_| RawHost::owing(&mut target)).collect();
    assert_eq!(healthy.read(&mut target, 16, 8), 16, "small reads go on at once");
    // These hosts wait themselves: those that hold most buffers are disconnected.
    target.pass(4 * SECOND);
    assert!(owing.iter().any(|owing| owing.is_gone(&target)));
    assert_eq!(healthy.read(&mut target, 1, READ_BLOCKS), 1);
    assert!(!healthy.is_gone(&target));
    target.end();
}

#[test]
fn data_that_was_asked_for_is_not_waited_for_for_ever() {
    let mut target = raw_host::target();
    let mut owing = RawHost::new(&mut target, usize::MAX);
    owing.io.submit(Sqe::write(BLOCKS, 0, READ_BLOCKS), Transfer::ToController(vec![1; READ_BYTES]));
    owing.io.push(&mut target);
    assert!(target.free_bytes() < POOL_BYTES);
    target.pass(29 * SECOND);
    assert!(!owing.is_gone(&target), "no lane waits for its buffer");
    target.pass(2 * SECOND);
    assert!(owing.is_gone(&target));
    assert_eq!(target.free_bytes(), POOL_BYTES);
    target.end();
}

#[test]
fn a_host_that_reads_nothing_is_disconnected_without_contention() {
    let mut target = raw_host::target();
    let deaf = RawHost::deaf(&mut target);
    target.pass(9 * SECOND);
    assert!(!deaf.is_gone(&target));
    target.pass(2 * SECOND);
    assert!(deaf.is_gone(&target));
    assert_eq!(target.free_bytes(), POOL_BYTES);
    target.end();
}

#[test]
fn more_than_there_is_room_for_is_done_by_and_by() {
    let mut target = raw_host::target();
    let mut hosts: Vec<RawHost> = (0..4).map(|_| RawHost::new(&mut target, usize::MAX)).collect();
    for host in &mut hosts {
        for _ in 0..31 {
            host.io.submit(Sqe::compare(BLOCKS, 0, READ_BLOCKS), Transfer::ToController(vec![0; READ_BYTES]));
        }
        host.io.push(&mut target);
    }
    let mut ended_count = 0;
    for _ in 0..100 {
        for host in &mut hosts {
            let ended = host.io.exchange(&mut target);
            assert!(ended.iter().all(|ended| ended.status.is_success()));
            ended_count += ended.len();
        }
    }
    assert_eq!(ended_count, 4 * 31);
    assert_eq!(target.free_bytes(), POOL_BYTES);
    target.end();
}
