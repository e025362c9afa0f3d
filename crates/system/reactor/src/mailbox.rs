//! Messages to a reactor, from other reactors and from any thread.
//!
//! Sending is a lock-free push; only a reactor that sleeps costs its sender a system call. Messages of one sender
//! arrive in order.

use std::os::fd::{AsFd, BorrowedFd};

use crate::sync::{Arc, AtomicBool, Ordering, Receiver, Sender, WakeFd, channel, fence};

/// The receiving end, owned by its reactor.
pub struct Mailbox<M> {
    messages: Receiver<M>,
    bell: Arc<Bell>,
    sender: Sender<M>,
}

/// Where to post messages to one reactor. Clones may go to any thread.
pub struct Address<M> {
    sender: Sender<M>,
    bell: Arc<Bell>,
}

/// Wakes a sleeping reactor. Its owner writes to it at each sleep, so each has a cache line of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Bell {
    pub(crate) fd: WakeFd,
    sleeps: AtomicBool,
}

impl<M> Mailbox<M> {
    /// An empty mailbox.
    ///
    /// # Errors
    /// If the system has no event descriptor left.
    pub fn new() -> std::io::Result<Self> {
        let (sender, messages) = channel();
        Ok(Self { messages, bell: Arc::new(Bell::new()?), sender })
    }

    /// Its address for senders.
    #[must_use]
    pub fn address(&self) -> Address<M> {
        Address { sender: self.sender.clone(), bell: Arc::clone(&self.bell) }
    }

    /// Takes the next message.
    #[inline]
    pub fn next_message(&self) -> Option<M> {
        self.messages.try_recv().ok()
    }

    /// For an owner that sleeps in its own poll: from now on a message makes the mailbox's descriptor readable. Check
    /// for messages once more after this, then sleep.
    pub fn announce_sleep(&self) {
        self.bell.announce_sleep();
    }

    /// The sleep is over: messages cost their sender no system call again.
    pub fn announce_awake(&self) {
        self.bell.announce_awake();
        self.bell.reset();
    }

    /// Announces the owner's sleep, and looks for a message that came before: with one, the owner stays awake.
    pub(crate) fn prepare_sleep(&self) -> Option<M> {
        self.bell.announce_sleep();
        let message = self.next_message();
        if message.is_some() {
            self.bell.announce_awake();
        }
        message
    }

    pub(crate) fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }
}

/// The descriptor that a message makes readable while the owner sleeps.
impl<M> AsFd for Mailbox<M> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl<M> Address<M> {
    /// Posts a message. `false` if the reactor is gone; the message is dropped then.
    pub fn post(&self, message: M) -> bool {
        let is_there = self.sender.send(message).is_ok();
        self.bell.ring();
        is_there
    }
}

impl<M> Clone for Address<M> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), bell: Arc::clone(&self.bell) }
    }
}

impl<M> std::fmt::Debug for Mailbox<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mailbox")
    }
}

impl<M> std::fmt::Debug for Address<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Address")
    }
}

impl Bell {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { fd: WakeFd::new()?, sleeps: AtomicBool::new(false) })
    }

    /// Wakes the owner if it sleeps or is about to.
    pub(crate) fn ring(&self) {
        // The message before the flag: with the fence in `announce_sleep`, either the owner sees the message
        // in its last check, or we see that it sleeps.
        fence(Ordering::SeqCst);
        // One of several senders ends the sleep.
        let ends_sleep =
            || self.sleeps.compare_exchange(true, false, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if self.sleeps.load(Ordering::Relaxed) && ends_sleep() {
            self.fd.ring();
        }
    }

    /// The owner is about to sleep: it must check for messages once more after this.
    pub(crate) fn announce_sleep(&self) {
        self.sleeps.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The owner is awake and asks not to be rung.
    pub(crate) fn announce_awake(&self) {
        self.sleeps.store(false, Ordering::Relaxed);
    }

    /// Makes the descriptor unreadable after it was rung.
    pub(crate) fn reset(&self) {
        self.fd.reset();
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
