//! The allocator of the programs, and how an idle thread makes it give memory back to the system.

pub use mimalloc::MiMalloc as ProgramAllocator;

/// Returns memory that was freed a second ago or earlier to the system. The allocator does so by itself when it is
/// used, which an idle thread does not.
pub fn give_back_freed_memory() {
    // SAFETY: the function has no conditions, and may be called where another allocator is in use.
    unsafe { libmimalloc_sys::mi_collect(false) }
}
