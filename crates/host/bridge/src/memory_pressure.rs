//! A bridge under memory pressure: the kernel may need it to write back dirty pages before memory is free.

use std::hint::black_box;
use std::sync::Mutex;
use std::sync::mpsc::channel;

use rustix::mm::MlockAllFlags;
use rustix::process::configure_io_flusher_behavior;
use rustix::thread::{CapabilitySet, capabilities};

/// Threads for whose first allocations there is memory.
const THREAD_COUNT: usize = 8;

/// Memory for those of each, bytes.
const THREAD_BYTES: usize = 4 << 20;

/// Tells the kernel that this thread, and threads that it starts, work for its write-back (PR_SET_IO_FLUSHER): their
/// allocations wait for no I/O, which could be their own. Also locks memory in place, once it is used. Returns whether both
/// were permitted: they take CAP_SYS_RESOURCE and CAP_IPC_LOCK.
pub fn keep_memory() -> bool {
    let is_flusher = configure_io_flusher_behavior(true).is_ok();
    // Without the capability a limit applies to all that is mapped, which later allocations would meet.
    let can_lock = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    let is_locked = can_lock && {
        let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
        rustix::mm::mlockall(flags).is_ok()
    };
    if is_locked {
        touch_memory();
    }
    is_flusher && is_locked
}

/// Allocates and frees memory in several threads at once. Freed memory stays resident, since it is locked: the first
/// allocations of a later thread take it, and need no memory of the kernel, which may wait for that thread's writes.
fn touch_memory() {
    let all_have_theirs = Mutex::new(());
    let hold = all_have_theirs.lock();
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        let touch = || {
            let (tell, all_have_theirs) = (tell.clone(), &all_have_theirs);
            move || {
                let bytes = black_box(vec![u8::MAX; THREAD_BYTES]);
                // The thread that called waits for this message, so it can be sent.
                let _ = tell.send(());
                drop(all_have_theirs.lock());
                drop(bytes);
            }
        };
        // Without a thread there would be none later, either, which is reported then.
        let started =
            (0..THREAD_COUNT).filter(|_| std::thread::Builder::new().spawn_scoped(scope, touch()).is_ok());
        let started_count = started.count();
        told.iter().take(started_count).for_each(drop);
        drop(hold);
    });
}

/// Ends that state of this thread, which commands that it starts would inherit.
pub fn leave_io_flusher() {
    // Not permitted: then it was not before.
    let _ = configure_io_flusher_behavior(false);
}
