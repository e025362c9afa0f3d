//! The requests of one reactor that are in flight, and what each is for.

use std::io;
use std::sync::Arc;

use ceph::{FinishedObject, ObjectRequest, ObjectRequests, UnstartedObject, Waker};
use reactor::{File, Operation};

use super::format::{head_name, part_name};
use super::session::Session;
use crate::namespace::{StoreIo, Ticket};

/// Requests in flight at most.
const COUNT_MAX: usize = 512;

/// What a request is for.
pub(super) enum Task {
    Head(Box<[u8]>),
    /// The rest of a value that follows its head.
    Rest(Box<[u8]>),
    Part(Box<[u8]>, u64),
    Removal,
}

/// The end of a request: bytes read, or the system's number of the error, and its buffer.
pub(super) struct End {
    pub(super) task: Task,
    pub(super) result: Result<usize, i32>,
    pub(super) bytes: Vec<u8>,
}

/// The requests of one reactor.
pub(super) struct Flight {
    requests: ObjectRequests,
    /// By slot.
    tasks: Vec<Option<Task>>,
    ended: Vec<FinishedObject>,
    bell: File,
    #[cfg(test)]
    pub(super) bell_of_test: std::os::fd::OwnedFd,
    waker: Arc<Waker>,
    is_awaiting: bool,
}

impl Flight {
    pub(super) fn new() -> io::Result<Self> {
        let requests = ObjectRequests::new()?;
        #[cfg(test)]
        let bell_of_test = requests.bell()?;
        let (bell, waker) = (File::new(requests.bell()?), Arc::new(requests.waker()?));
        Ok(Self {
            requests,
            tasks: Vec::new(),
            ended: Vec::new(),
            bell,
            #[cfg(test)]
            bell_of_test,
            waker,
            is_awaiting: false,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.running_count() == 0
    }

    pub(super) fn has_room(&self) -> bool {
        self.requests.running_count() < COUNT_MAX
    }

    /// What wakes the reactor.
    pub(super) fn waker(&self) -> &Arc<Waker> {
        &self.waker
    }

    /// Starts a request to the head of a key, or to a part of its value.
    pub(super) fn start(
        &mut self,
        session: &Session,
        task: Task,
        key: &[u8],
        part: Option<(u64, u64)>,
        request: ObjectRequest,
    ) -> Result<(), End> {
        let (objects, name) = match part {
            None => (&session.heads, head_name(key)),
            Some((version, number)) => (&session.parts, part_name(key, version, number)),
        };
        match self.requests.start(objects, name, request) {
            Ok(slot) => {
                let slot = slot as usize;
                if slot >= self.tasks.len() {
                    self.tasks.resize_with(slot + 1, || None);
                }
                self.tasks[slot] = Some(task);
                Ok(())
            }
            Err(UnstartedObject { errno, bytes }) => Err(End { task, result: Err(errno), bytes }),
        }
    }

    /// Takes in the requests that have ended.
    pub(super) fn collect(&mut self) -> Vec<End> {
        self.requests.collect(&mut self.ended);
        let of = |FinishedObject { slot, result, bytes }| {
            let task = self.tasks[slot as usize].take().expect("it was started for something");
            End { task, result, bytes }
        };
        self.ended.drain(..).map(of).collect()
    }

    /// Waits for ends of requests, and for whoever [wakes](Self::waker) the reactor.
    pub(super) fn arm(&mut self, io: &mut dyn StoreIo, ticket: Ticket) {
        if !std::mem::replace(&mut self.is_awaiting, true) {
            io.start(ticket, Operation::Await { file: self.bell.clone() });
        }
    }

    /// It has been woken.
    pub(super) fn disarm(&mut self) {
        self.is_awaiting = false;
    }
}

impl Drop for Flight {
    /// The engine forgets a descriptor that it awaits once that is readable.
    fn drop(&mut self) {
        if self.is_awaiting {
            self.waker.wake();
        }
    }
}
