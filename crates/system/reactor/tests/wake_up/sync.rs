//! Models of what a mailbox is made of, in place of `src/sync.rs`.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Mutex as Cell;

use loom::sync::atomic::AtomicUsize;
use loom::sync::{Condvar, Mutex};

pub(crate) use loom::sync::Arc;
pub(crate) use loom::sync::atomic::{AtomicBool, Ordering, fence};

/// Messages that a model may send.
const MESSAGE_COUNT: usize = 3;

/// A queue that orders nothing but what its atomics order, as that of the standard library.
#[derive(Debug)]
struct Queue<M> {
    sent_count: AtomicUsize,
    slots: [(AtomicBool, Cell<Option<M>>); MESSAGE_COUNT],
}

#[derive(Debug)]
pub(crate) struct Sender<M>(Arc<Queue<M>>);

#[derive(Debug)]
pub(crate) struct Receiver<M> {
    queue: Arc<Queue<M>>,
    taken_count: std::cell::Cell<usize>,
}

pub(crate) fn channel<M>() -> (Sender<M>, Receiver<M>) {
    let slot = |_| (AtomicBool::new(false), Cell::new(None));
    let slots = std::array::from_fn(slot);
    let queue = Arc::new(Queue { sent_count: AtomicUsize::new(0), slots });
    (Sender(Arc::clone(&queue)), Receiver { queue, taken_count: std::cell::Cell::new(0) })
}

impl<M> Sender<M> {
    pub(crate) fn send(&self, message: M) -> Result<(), M> {
        let at = self.0.sent_count.fetch_add(1, Ordering::Relaxed);
        let (is_there, cell) = &self.0.slots[at];
        let before = cell.lock().expect("no panic").replace(message);
        assert!(before.is_none(), "a slot is used once");
        is_there.store(true, Ordering::Release);
        Ok(())
    }
}

impl<M> Clone for Sender<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M> Receiver<M> {
    pub(crate) fn try_recv(&self) -> Result<M, ()> {
        let at = self.taken_count.get();
        let (is_there, cell) = self.queue.slots.get(at).ok_or(())?;
        if !is_there.load(Ordering::Acquire) {
            return Err(());
        }
        self.taken_count.set(at + 1);
        cell.lock().expect("no panic").take().ok_or(())
    }
}

thread_local! {
    /// What the last sleep of a model on this thread watched, and found when it began; loom's threads are all on it.
    static LAST_SLEEP: std::cell::Cell<(bool, Ready)> = const { std::cell::Cell::new((false, Ready::NOTHING)) };
}

/// What a reactor that sleeps for ever last waited for.
pub(crate) fn last_sleep() -> String {
    let (watches_socket, Ready { is_rung, is_readable }) = LAST_SLEEP.get();
    let watched = if watches_socket { "the bell and the socket" } else { "the bell" };
    format!("the last sleep, which watched {watched}, began with bell {is_rung}, input {is_readable}")
}

/// A descriptor, with the one other descriptor of the model that a sleep may wait for: a socket.
#[derive(Debug, Default)]
pub(crate) struct WakeFd {
    ready: Mutex<Ready>,
    changed: Condvar,
}

/// What the kernel has to report.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ready {
    pub(crate) is_rung: bool,
    /// The socket has input.
    pub(crate) is_readable: bool,
}

impl Ready {
    const NOTHING: Self = Self { is_rung: false, is_readable: false };
}

impl WakeFd {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { ready: Mutex::new(Ready::default()), changed: Condvar::new() })
    }

    pub(crate) fn ring(&self) {
        self.ready.lock().expect("no panic").is_rung = true;
        self.changed.notify_one();
    }

    pub(crate) fn reset(&self) {
        self.ready.lock().expect("no panic").is_rung = false;
    }

    /// The socket's peer sends something.
    pub(crate) fn send_input(&self) {
        self.ready.lock().expect("no panic").is_readable = true;
        self.changed.notify_one();
    }

    /// Receives from the socket; `false` if there is nothing.
    pub(crate) fn receive(&self) -> bool {
        std::mem::take(&mut self.ready.lock().expect("no panic").is_readable)
    }

    /// What there is to report now.
    pub(crate) fn ready(&self) -> Ready {
        *self.ready.lock().expect("no panic")
    }

    /// Sleeps until the bell rings, or until the socket is readable if the sleep watches that; loom finds a sleep that
    /// nothing ends.
    pub(crate) fn wait(&self, watches_socket: bool) {
        let mut ready = self.ready.lock().expect("no panic");
        while !(ready.is_rung || watches_socket && ready.is_readable) {
            LAST_SLEEP.set((watches_socket, *ready));
            ready = self.changed.wait(ready).expect("no panic");
        }
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        unreachable!("the model has no descriptor")
    }
}
