//! A bridge under memory pressure: the kernel may need it to write back dirty pages before memory is free.

use rustix::mm::MlockAllFlags;
use rustix::process::configure_io_flusher_behavior;
use rustix::thread::{CapabilitySet, capabilities};

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
    is_flusher && is_locked
}

/// Ends that state of this thread, which commands that it starts would inherit.
pub fn leave_io_flusher() {
    // Not permitted: then it was not before.
    let _ = configure_io_flusher_behavior(false);
}
