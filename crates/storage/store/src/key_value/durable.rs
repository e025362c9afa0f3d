//! What a target asks of a partition whose pairs are kept outside memory as well: in a log, or in a cluster.

use std::sync::Arc;

use kv::log::{Failure, Loaded};
use kv::{KeyHash, Partition};
use reactor::Completion;

use crate::namespace::{StoreIo, Ticket};

/// What a command needs to know of its key before it is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// Nothing: it replaces whatever there is.
    Nothing,
    /// Whether there is a pair.
    Presence,
    /// The value.
    Value,
}

/// Why commands are refused for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// The log is read at the start, and that takes long.
    Reading,
    /// The cluster does not answer.
    Unreachable,
    /// Another target owns the keys, or the cluster refuses this one.
    Taken,
}

/// All keys, in order.
pub type KeyList = Arc<Vec<Box<[u8]>>>;

/// One reactor's partition whose pairs are kept outside memory as well: operations may wait for values, and answers until
/// the changes that they report are kept.
pub trait DurablePartition {
    /// Whether commands can be executed.
    fn is_ready(&self) -> bool;

    /// Why commands are refused for now, if they are.
    fn pause(&self) -> Option<Pause>;

    /// After a [pause](Self::pause) because the keys were [taken](Pause::Taken), and once all that waited has been answered:
    /// serves them as they are now, if this target has them again.
    fn begin_anew(&mut self) {}

    /// Why the partition serves nothing any more, if so.
    fn failure(&self) -> Option<Failure>;

    /// Whether requests are in flight below.
    fn is_busy(&self) -> bool;

    /// The partition, if it is [ready](Self::is_ready).
    fn ready_partition(&mut self) -> Option<&mut Partition>;

    /// The partition, whether it is ready or not.
    fn partition(&mut self) -> &mut Partition;

    /// Whether a key must be [fetched](Self::fetch) before a command with this need is executed.
    fn must_fetch(&mut self, key: &[u8], need: Need) -> bool;

    /// Counts a command with this need, once, before it is executed or waits.
    fn count_need(&mut self, key: &[u8], need: Need) {
        _ = (key, need);
    }

    /// Schedules the fetch of a key for the next [`poll`](Self::poll).
    fn fetch(&mut self, key: &[u8]);

    /// The next key whose fetch has completed or failed.
    fn next_loaded(&mut self) -> Option<Loaded>;

    /// The change that an answer about a key must wait for, if any. Asked after each operation; the number means something
    /// to this partition only.
    fn awaited(&mut self, hash: KeyHash) -> Option<u64>;

    /// The last change so far, if an answer about any key must wait for it.
    fn awaited_last(&mut self) -> Option<u64>;

    /// The last change that is durable with all before it.
    fn settled(&mut self) -> u64;

    /// Whether what an answer waits for is durable.
    fn is_settled(&mut self, awaited: u64) -> bool {
        awaited <= self.settled()
    }

    /// What an answer waits for that must wait for both.
    fn both(&self, one: Option<u64>, other: Option<u64>) -> Option<u64> {
        one.max(other)
    }

    /// Whether memory for values of this many bytes is available while the value of `needed` stays in memory. If not,
    /// and the log is [behind](Self::progress), it will be.
    fn has_room(&mut self, bytes: usize, needed: Option<&[u8]>) -> bool;

    /// Whether a change of this many bytes of key and value may be made now. If not, it may be made soon.
    fn admits(&mut self, bytes: usize) -> bool;

    /// Whether there is no space for the write that is due. It is repeated until there is some: until then changes must
    /// not be made, and it is unknown whether those before survive.
    fn is_full(&self) -> bool;

    /// Number of completed writes while there are unwritten changes: when it changes, there may be room.
    fn progress(&mut self) -> Option<u64>;

    /// Makes all changes so far durable soon. Returns the change to wait for.
    fn request_flush(&mut self) -> u64;

    /// Whether a list of keys is [made below](Self::begin_list) rather than of those in memory.
    fn lists_below(&self) -> bool {
        false
    }

    /// Has all keys listed: as they are from now on, if the list is the first of a sequence.
    fn begin_list(&mut self, _is_first: bool) {}

    /// The result of [`begin_list`](Self::begin_list), once it is there; the inner `None` if it failed.
    fn next_listed(&mut self) -> Option<Option<KeyList>> {
        None
    }

    /// Has changes written and flushed, for at most 10 s; then it ends.
    fn stop(&mut self, io: &mut dyn StoreIo);

    /// Whether it was [stopped](Self::stop) and nothing is left to wait for.
    fn has_stopped(&mut self) -> bool;

    /// Continues reading and writing.
    fn poll(&mut self, io: &mut dyn StoreIo);

    /// An operation started for `ticket` has completed.
    fn on_completion(&mut self, io: &mut dyn StoreIo, ticket: Ticket, completion: Completion);

    /// A timer set for `ticket` has fired.
    fn on_timer(&mut self, io: &mut dyn StoreIo, ticket: Ticket);
}
