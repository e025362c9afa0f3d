//! Blocks signals before `main`: a SIGHUP or SIGUSR1 that arrives before the program handles it then waits, and does
//! not end the program.
//!
//! `main` is too late, because the allocator is used before it, and the kernel may clear a huge page for that first.
//! The initializer of this crate runs as soon as the dynamic loader has finished. A signal that arrives earlier, while
//! the kernel executes the program or the loader relocates it, ends any program.
//!
//! The initializer runs in every program that links this crate. No library may depend on it: each program that uses the
//! library would start with its signals blocked.

use std::sync::OnceLock;

use linux::SignalMask;

static FORMER: OnceLock<SignalMask> = OnceLock::new();

#[used]
// SAFETY: the section is an array of pointers to functions, which the C runtime calls once, in one thread. The function
// neither allocates nor unwinds. The number puts it before initializers that have none.
#[unsafe(link_section = ".init_array.00000")]
static BLOCK: extern "C" fn() = block;

extern "C" fn block() {
    FORMER.get_or_init(linux::block_signals);
}

/// The mask that the main thread had before.
pub fn former_mask() -> SignalMask {
    *FORMER.get_or_init(linux::block_signals)
}

#[cfg(test)]
mod tests {
    #[test]
    fn signals_are_blocked_before_main() {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        assert_eq!(u64::from_str_radix(blocked.trim(), 16).unwrap() & 1, 1, "SIGHUP: {blocked}");
    }
}
