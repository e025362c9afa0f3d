//! Requests of a session to the partitions: to its own, and to those of other cores.

use std::sync::Arc;

use kv::{Kept, KeyHash};

use crate::answer::AnswerId;
use crate::collective::CollectiveRequest;
use crate::command::Command;
use crate::connection_stats::ListenerAddress;
use crate::counters::ListenerStats;
use crate::execute::Executor;
use crate::in_place::InPlace;
use crate::incoming::LargeStore;

/// A session's interface to the partitions.
pub trait Router {
    /// The executor of the local partition.
    fn executor(&mut self) -> Executor<'_>;
    /// All partitions, if the session's thread may use them where they lie. The executor of the local one is not used
    /// meanwhile.
    #[inline]
    fn in_place(&mut self) -> Option<InPlace<'_>> {
        None
    }
    /// Its number, and the number of partitions that the session's keys are in: 1 if its port is for its own one only.
    fn position(&self) -> (usize, usize);
    /// The number of the session, which accompanies the lines of a watcher.
    fn session(&self) -> u64;
    /// Sends a command to another partition, which answers to [`Session::on_reply`](crate::Session::on_reply).
    fn send(&mut self, to: usize, id: AnswerId, hash: KeyHash, command: &Command<'_>);
    /// Sends a request to every other partition, and to this one with `with_own`; each answers to
    /// [`Session::on_stats`](crate::Session::on_stats).
    fn send_all(&mut self, id: AnswerId, request: CollectiveRequest, with_own: bool);
    /// Requests memory for `count` mebibytes of an arriving value;
    /// [`Session::on_room`](crate::Session::on_room) receives it.
    fn reserve(&mut self, to: usize, count: usize);
    /// Has an arrived value stored; the answer comes to [`Session::on_reply`](crate::Session::on_reply).
    fn store_large(&mut self, to: usize, id: AnswerId, store: LargeStore);
    /// Requests the next piece of a value that another partition keeps;
    /// [`Session::on_piece`](crate::Session::on_piece) receives it.
    fn fetch(&mut self, to: usize, kept: Arc<Kept>, offset: usize);
    /// Requests the connections of all of these partitions' reactors; each answers to
    /// [`Session::on_connections`](crate::Session::on_connections).
    fn request_connections(&mut self, id: AnswerId);
    /// The listeners.
    fn listeners(&self) -> Vec<ListenerAddress>;
    /// Statistics of the listener.
    fn listener_stats(&self) -> ListenerStats;
    /// Has the listener count from zero from now on.
    fn reset_listener_stats(&mut self);
    /// Whether a user of the listener has this password: the client of the session authenticates.
    fn authenticate(&mut self, user: &[u8], password: &[u8]) -> bool;
}
