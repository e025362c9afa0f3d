//! Messages to a reactor, from other reactors and from any thread.
//!
//! Sending is a lock-free push; only a reactor that sleeps costs its sender a system call. Messages of one sender
//! arrive in order.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};

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

/// Wakes a sleeping reactor.
#[derive(Debug)]
pub(crate) struct Bell {
    event: OwnedFd,
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
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event, sleeps: AtomicBool::new(false) })
    }

    /// Wakes the owner if it sleeps or is about to.
    pub(crate) fn ring(&self) {
        // The message before the flag: with the fence in `announce_sleep`, either the owner sees the message
        // in its last check, or we see that it sleeps.
        fence(Ordering::SeqCst);
        if self.sleeps.load(Ordering::Relaxed) && self.sleeps.swap(false, Ordering::Relaxed) {
            // A full counter (which would be an error) rings just as well.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
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

    /// Empties the counter after it was rung.
    pub(crate) fn reset(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event, &mut count);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_sender_arrive_in_order() {
        let mailbox = Mailbox::new().unwrap();
        let address = mailbox.address();
        std::thread::spawn(move || (0..1000).for_each(|n| assert!(address.post(n)))).join().unwrap();
        assert!((0..1000).all(|n| mailbox.next_message() == Some(n)));
        assert_eq!(mailbox.next_message(), None);
    }

    #[test]
    fn only_a_sleeper_is_rung() {
        let mailbox = Mailbox::new().unwrap();
        let count = |bell: &Bell| {
            let mut bytes = [0; 8];
            rustix::io::read(bell, &mut bytes).map(|_| u64::from_ne_bytes(bytes)).unwrap_or(0)
        };
        mailbox.address().post(1);
        assert_eq!(count(mailbox.bell()), 0);
        mailbox.bell().announce_sleep();
        mailbox.address().post(2);
        mailbox.address().post(3);
        assert_eq!(count(mailbox.bell()), 1, "rung once for any number of messages");
    }

    #[test]
    fn posting_to_a_reactor_that_is_gone_is_noticed() {
        let mailbox = Mailbox::new().unwrap();
        let address = mailbox.address();
        drop(mailbox);
        assert!(!address.post(1));
    }
}
