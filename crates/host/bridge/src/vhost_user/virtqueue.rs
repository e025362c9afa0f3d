//! One virtqueue that is served: its rings, its event descriptors, and what is in work.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::atomic::Ordering;

use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{GuestAddress, GuestMemoryMmap};

use super::chain::{Chain, ChainViolation};
use super::inflight::InflightQueue;

/// Longest queue that is served.
pub(crate) const QUEUE_SIZE_MAX: u16 = 1024;

/// The rings of a queue are not as they must be.
#[derive(Debug, thiserror::Error)]
pub enum QueueViolation {
    /// The rings, as `virtio-queue` sees it.
    #[error("{0}")]
    Ring(#[from] virtio_queue::Error),
    /// The rings, or a status byte.
    #[error("its rings lie outside of the guest's memory")]
    Outside,
    /// A request.
    #[error("{0}")]
    Chain(#[from] ChainViolation),
}

/// The rings as a front end gives them, in guest addresses.
#[derive(Clone, Copy, Debug)]
pub struct Rings {
    /// Entries of each.
    pub size: u16,
    /// The table of descriptors.
    pub descriptors: GuestAddress,
    /// What the guest offers.
    pub available: GuestAddress,
    /// What it gets back.
    pub used: GuestAddress,
    /// The index at which the available ring is read on.
    pub next_available: u16,
    /// Each side says at which index it wants to be told (VIRTIO_F_EVENT_IDX).
    pub has_event_index: bool,
}

/// A queue that a worker serves.
#[derive(Debug)]
pub struct Virtqueue {
    pub(crate) index: u16,
    queue: Queue,
    /// Signalled by the guest.
    pub(crate) kick: File,
    /// Interrupts the guest; none if it polls.
    pub(crate) call: Option<File>,
    /// Tells the front end that the queue is closed.
    pub(crate) error: Option<File>,
    pub(crate) is_enabled: bool,
    /// The guest broke the rules: nothing is taken any more.
    pub(crate) is_closed: bool,
    /// Requests that an earlier bridge has begun.
    again: VecDeque<u16>,
    inflight: Option<InflightQueue>,
    /// Requests have ended since the guest was interrupted.
    has_news: bool,
}

impl Virtqueue {
    /// A queue with these rings.
    ///
    /// # Errors
    /// [`QueueViolation`]: they do not lie in the guest's memory.
    pub fn new(
        index: u16,
        rings: Rings,
        memory: &GuestMemoryMmap,
        mut inflight: Option<InflightQueue>,
        kick: File,
    ) -> Result<Self, QueueViolation> {
        let mut queue = Queue::new(QUEUE_SIZE_MAX)?;
        queue.try_set_size(rings.size)?;
        queue.try_set_desc_table_address(rings.descriptors)?;
        queue.try_set_avail_ring_address(rings.available)?;
        queue.try_set_used_ring_address(rings.used)?;
        queue.set_event_idx(rings.has_event_index);
        queue.set_ready(true);
        if !queue.is_valid(memory) {
            return Err(QueueViolation::Outside);
        }
        let used = queue.used_idx(memory, Ordering::Acquire)?.0;
        let again: VecDeque<u16> =
            inflight.as_mut().map(|inflight| inflight.recover(used)).into_iter().flatten().collect();
        let in_work = u16::try_from(again.len()).unwrap_or(u16::MAX);
        queue.set_next_used(used);
        // After a front end has lost its bridge it knows less than the memory of requests in work.
        queue.set_next_avail(if inflight.is_some() {
            used.wrapping_add(in_work)
        } else {
            rings.next_available
        });
        Ok(Self {
            index,
            queue,
            kick,
            call: None,
            error: None,
            is_enabled: true,
            is_closed: false,
            again,
            inflight,
            has_news: false,
        })
    }

    /// Requests that an earlier bridge has begun, and that are to be taken again.
    pub(crate) fn again_count(&self) -> usize {
        self.again.len()
    }

    /// Whether requests may be taken.
    pub(crate) fn is_open(&self) -> bool {
        self.is_enabled && !self.is_closed
    }

    /// Takes the next request, if there is one: its head, and its chain in `chain`.
    ///
    /// # Errors
    /// [`QueueViolation`].
    pub fn take(
        &mut self,
        memory: &GuestMemoryMmap,
        chain: &mut Chain,
    ) -> Result<Option<u16>, QueueViolation> {
        let head = match self.again.pop_front() {
            Some(head) => head,
            None => {
                let Some(found) = self.queue.iter(memory)?.next() else { return Ok(None) };
                let head = found.head_index();
                if let Some(inflight) = &mut self.inflight {
                    inflight.on_taken(head);
                }
                head
            }
        };
        chain.read(memory, GuestAddress(self.queue.desc_table()), self.queue.size(), head)?;
        Ok(Some(head))
    }

    /// Gives a request back to the guest, which has `length` bytes written to its memory.
    ///
    /// # Errors
    /// [`QueueViolation`].
    pub fn put(&mut self, memory: &GuestMemoryMmap, head: u16, length: u32) -> Result<(), QueueViolation> {
        if let Some(inflight) = &self.inflight {
            inflight.before_used(head);
        }
        self.queue.add_used(memory, head, length)?;
        if let Some(inflight) = &self.inflight {
            inflight.after_used(head, self.queue.next_used());
        }
        self.has_news = true;
        Ok(())
    }

    /// Interrupts the guest, if requests have ended and it wants to know.
    pub fn notify(&mut self, memory: &GuestMemoryMmap) {
        if std::mem::take(&mut self.has_news)
            && self.queue.needs_notification(memory).unwrap_or(true)
            && let Some(call) = &self.call
        {
            signal(call);
        }
    }

    /// Asks the guest for a kick with its next request. Returns whether there are requests already.
    ///
    /// # Errors
    /// [`QueueViolation`].
    pub fn want_kicks(&mut self, memory: &GuestMemoryMmap) -> Result<bool, QueueViolation> {
        Ok(self.queue.enable_notification(memory)?)
    }

    /// Takes nothing any more, and tells the front end.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        if let Some(error) = &self.error {
            signal(error);
        }
    }

    /// Whether its rings lie in this memory.
    pub(crate) fn is_inside(&self, memory: &GuestMemoryMmap) -> bool {
        self.queue.is_valid(memory)
    }

    /// The index at which the available ring would be read on.
    pub fn next_available(&self) -> u16 {
        self.queue.next_avail()
    }
}

/// Adds one to an event descriptor. If it is full, its reader has yet to come.
pub(crate) fn signal(event: &File) {
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::super::chain::tests::{NEXT, TABLE, WRITE, memory, put};
    use super::super::chain::{copy_from_guest, copy_to_guest};
    use super::super::inflight::Inflight;
    use super::super::request::Request;
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicBool;
    use vm_memory::Bytes;

    const AVAILABLE: GuestAddress = GuestAddress(0x2000);
    const USED: GuestAddress = GuestAddress(0x3000);

    fn rings() -> Rings {
        Rings {
            size: 8,
            descriptors: TABLE,
            available: AVAILABLE,
            used: USED,
            next_available: 0,
            has_event_index: false,
        }
    }

    fn event() -> File {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        File::from(rustix::event::eventfd(0, flags).expect("an event descriptor"))
    }

    fn offer(memory: &GuestMemoryMmap, index: u16, heads: &[u16]) {
        for (at, head) in (index..).zip(heads) {
            let place = GuestAddress(AVAILABLE.0 + 4 + u64::from(at % 8) * 2);
            memory.write_obj(*head, place).expect("in memory");
        }
        let index = index.wrapping_add(u16::try_from(heads.len()).expect("few"));
        memory.write_obj(index, GuestAddress(AVAILABLE.0 + 2)).expect("in memory");
    }

    #[test]
    fn rings_outside_of_memory_and_impossible_indices_are_refused() {
        let memory = memory();
        let outside = |change: fn(&mut Rings)| {
            let mut rings = rings();
            change(&mut rings);
            Virtqueue::new(0, rings, &memory, None, event()).is_err()
        };
        assert!(!outside(|_| ()));
        assert!(outside(|rings| rings.used = GuestAddress(0xffc0)));
        assert!(outside(|rings| rings.available = GuestAddress(0x1_0000)));
        assert!(outside(|rings| rings.descriptors = GuestAddress(u64::MAX - 15)));
        assert!(outside(|rings| rings.descriptors = GuestAddress(0x1001)));
        assert!(outside(|rings| rings.size = 7));
        assert!(outside(|rings| rings.size = QUEUE_SIZE_MAX * 2));
        let mut queue = Virtqueue::new(0, rings(), &memory, None, event()).expect("good rings");
        let mut chain = Chain::default();
        assert!(matches!(queue.take(&memory, &mut chain), Ok(None)));
        offer(&memory, 9, &[]);
        assert!(queue.take(&memory, &mut chain).is_err(), "more than the ring has");
        offer(&memory, 0, &[8]);
        let index = ChainViolation::Index { index: 8, count: 8 };
        assert!(
            matches!(queue.take(&memory, &mut chain), Err(QueueViolation::Chain(found)) if found == index)
        );
    }

    #[test]
    fn requests_in_work_are_taken_again_by_a_successor() {
        let memory = memory();
        let descriptors = [(0x100, 1, WRITE, 0); 8];
        put(&memory, TABLE, &descriptors);
        let (inflight, ..) = Inflight::new(1, 8).expect("memory");
        let part = || inflight.queue(0, 8).expect("of this size");
        let mut queue = Virtqueue::new(0, rings(), &memory, part(), event()).expect("good rings");
        offer(&memory, 0, &[3, 1, 4]);
        let mut chain = Chain::default();
        let mut take = |queue: &mut Virtqueue| queue.take(&memory, &mut chain).expect("a good ring");
        assert_eq!([take(&mut queue), take(&mut queue)], [Some(3), Some(1)]);
        queue.put(&memory, 1, 1).expect("a good ring");
        drop(queue);
        // The available ring has new entries in the place of what is in work.
        let mut successor = Virtqueue::new(0, rings(), &memory, part(), event()).expect("good rings");
        assert_eq!(successor.again_count(), 1);
        assert_eq!([take(&mut successor), take(&mut successor)], [Some(3), Some(4)]);
        assert_eq!(take(&mut successor), None);
        successor.put(&memory, 4, 1).expect("a good ring");
        successor.put(&memory, 3, 1).expect("a good ring");
        assert_eq!(successor.next_available(), 3);
        let used: u16 = memory.read_obj(GuestAddress(USED.0 + 2)).expect("in memory");
        assert_eq!(used, 3);
    }

    /// Takes and gives back what rings have, as long as they are good. Returns the requests.
    fn serve(memory: &GuestMemoryMmap) -> usize {
        let (mut chain, mut data, mut count) = (Chain::default(), Vec::new(), 0);
        let Ok(mut queue) = Virtqueue::new(0, rings(), memory, None, event()) else { return count };
        while count < 64
            && let Ok(Some(head)) = queue.take(memory, &mut chain)
        {
            let Ok(request) = Request::take(memory, &mut chain, &mut data) else { break };
            if request.is_inside {
                let mut bytes = vec![0; usize::try_from(request.data_bytes.min(1 << 16)).expect("short")];
                // What a guest changes meanwhile is its own.
                let _ = copy_from_guest(memory, &data, 0, &mut bytes);
                let _ = copy_to_guest(memory, &data, 0, &bytes);
            }
            if queue.put(memory, head, 1).is_err() {
                break;
            }
            queue.notify(memory);
            count += 1;
        }
        count
    }

    proptest! {
        /// Whatever a guest writes to its tables and rings: an end, and no panic.
        #[test]
        fn any_rings_are_served_or_refused(
            table in prop::collection::vec((0u64..0x4_0000, 0u32..0x2000, 0u16..8, 0u16..9), 8),
            heads in prop::collection::vec(0u16..9, 8),
            index in 0u16..10,
            kind in 0u32..14,
        ) {
            let memory = memory();
            put(&memory, TABLE, &table);
            offer(&memory, 0, &heads);
            memory.write_obj(index, GuestAddress(AVAILABLE.0 + 2)).unwrap();
            for address in [0x100, 0x8000, 0x2_0000] {
                memory.write_obj(kind, GuestAddress(address)).unwrap();
            }
            prop_assert!(serve(&memory) <= 8);
        }
    }

    #[test]
    fn a_guest_may_change_everything_at_any_time() {
        let memory = memory();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut seed = 1u64;
                while !is_over.load(Ordering::Relaxed) {
                    // A generator without state of others: Knuth's.
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let [place, flags, next, index, head, length, ..] = seed.to_be_bytes();
                    let address = u64::from(place) << 10;
                    let entry = (address, u32::from(length) << 4, u16::from(flags & 7), u16::from(next % 9));
                    put(&memory, GuestAddress(TABLE.0 + u64::from(head % 8) * 16), &[entry]);
                    offer(&memory, u16::from(index), &[u16::from(head % 9)]);
                }
            });
            let served: usize = (0..5000)
                .map(|_| {
                    put(&memory, TABLE, &[(0x100, 16, NEXT, 1), (0x8000, 64, WRITE, 0)]);
                    offer(&memory, 0, &[0]);
                    serve(&memory)
                })
                .sum();
            is_over.store(true, Ordering::Relaxed);
            assert!(served > 0, "nothing was served");
        });
    }

    #[test]
    fn the_guest_is_interrupted_for_news_only() {
        let memory = memory();
        let mut queue = Virtqueue::new(0, rings(), &memory, None, event()).expect("good rings");
        let call = event();
        queue.call = Some(call.try_clone().expect("a descriptor"));
        let count = || {
            let mut bytes = [0; 8];
            rustix::io::read(&call, &mut bytes).map_or(0, |_| u64::from_ne_bytes(bytes))
        };
        queue.notify(&memory);
        assert_eq!(count(), 0);
        queue.put(&memory, 0, 1).expect("a good ring");
        queue.notify(&memory);
        queue.notify(&memory);
        assert_eq!(count(), 1);
    }
}
