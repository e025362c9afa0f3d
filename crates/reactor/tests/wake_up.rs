//! The wake-up of a sleeping reactor, in every interleaving of a few threads and with every value that an atomic load
//! may return: no message stays in a mailbox whose owner sleeps.
//!
//! This test compiles `src/mailbox.rs` a second time, with loom's atomics and threads in place of the standard ones.

use loom::thread;

use mailbox::Mailbox;

#[path = "../src/mailbox.rs"]
#[allow(dead_code, unreachable_pub)]
mod mailbox;

/// The models.
mod sync {
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

    /// A descriptor, and the sleep until it is readable.
    #[derive(Debug, Default)]
    pub(crate) struct WakeFd {
        is_rung: Mutex<bool>,
        changed: Condvar,
    }

    impl WakeFd {
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Self { is_rung: Mutex::new(false), changed: Condvar::new() })
        }

        pub(crate) fn ring(&self) {
            *self.is_rung.lock().expect("no panic") = true;
            self.changed.notify_one();
        }

        pub(crate) fn reset(&self) {
            *self.is_rung.lock().expect("no panic") = false;
        }

        /// Sleeps; loom finds a sleep that nothing ends.
        pub(crate) fn wait(&self) {
            let mut is_rung = self.is_rung.lock().expect("no panic");
            while !*is_rung {
                is_rung = self.changed.wait(is_rung).expect("no panic");
            }
        }

        pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
            unreachable!("the model has no descriptor")
        }
    }
}

/// The turns of a reactor that has nothing else to do, until it has this many messages.
fn take_messages(mailbox: &Mailbox<u32>, count: usize) -> Vec<u32> {
    let mut taken = Vec::new();
    loop {
        taken.extend(std::iter::from_fn(|| mailbox.next_message()));
        if taken.len() >= count {
            return taken;
        }
        match mailbox.prepare_sleep() {
            Some(message) => taken.push(message),
            None => {
                let bell = mailbox.bell();
                bell.fd.wait();
                bell.reset();
                bell.announce_awake();
            }
        }
    }
}

/// Runs a model in every way in which no thread is interrupted more than three times.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn a_message_wakes_a_reactor_that_is_about_to_sleep() {
    explore(|| {
        let mailbox = Mailbox::new().expect("a model");
        let address = mailbox.address();
        let sender = thread::spawn(move || {
            address.post(1);
            address.post(2);
        });
        assert_eq!(take_messages(&mailbox, 2), [1, 2]);
        sender.join().expect("no panic");
    });
}

#[test]
fn messages_of_two_senders_wake_it() {
    explore(|| {
        let mailbox = Mailbox::new().expect("a model");
        let senders = [1, 2].map(|message| {
            let address = mailbox.address();
            thread::spawn(move || address.post(message))
        });
        let mut taken = take_messages(&mailbox, 2);
        taken.sort_unstable();
        assert_eq!(taken, [1, 2]);
        senders.into_iter().for_each(|sender| assert!(sender.join().expect("no panic")));
    });
}
