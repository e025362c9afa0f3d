//! State shared by the handles and lanes of an association. The association ends when the last of them is dropped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use host_core::link_error::LinkContext;
use host_core::queue_map::LaneClass;
use reactor::Address as Post;
use wire::id::Qid;

use crate::address::Address;
use crate::association_state::AssociationState;
use crate::connect::Clock;
use crate::messages::AssociationMessage;
use crate::options::Options;

/// The shared part of an association's handles and lanes.
#[derive(Debug)]
pub(crate) struct SharedAssociation {
    pub(crate) state: Arc<AssociationState>,
    /// Where the association's thread receives messages.
    pub(crate) mailbox: Post<AssociationMessage>,
    pub(crate) thread: Mutex<Option<JoinHandle<()>>>,
    pub(crate) options: Options,
    pub(crate) address: Address,
    pub(crate) context: LinkContext,
    pub(crate) clock: Clock,
    /// Dropping the last handle does not wait for the association's end.
    pub(crate) is_detached: AtomicBool,
}

impl SharedAssociation {
    /// Ends the association and waits for its thread.
    pub(crate) fn close(&self) {
        self.mailbox.post(AssociationMessage::Close);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // The thread limits the time of its own shutdown. A panic of it was reported where it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for SharedAssociation {
    fn drop(&mut self) {
        if self.is_detached.load(Ordering::Relaxed) {
            self.mailbox.post(AssociationMessage::Close);
        } else {
            self.close();
        }
    }
}

/// A queue id reserved for one lane. Dropping it frees the id; while it exists, the association lives.
#[derive(Debug)]
pub(crate) struct QueueReservation {
    pub(crate) qid: u16,
    pub(crate) class: LaneClass,
    pub(crate) association: Arc<SharedAssociation>,
}

impl QueueReservation {
    pub(crate) fn qid(&self) -> Qid {
        Qid::new(self.qid)
    }

    pub(crate) fn class(&self) -> LaneClass {
        self.class
    }
}

impl Drop for QueueReservation {
    fn drop(&mut self) {
        self.association.state.lock().qids.remove(&self.qid);
    }
}
