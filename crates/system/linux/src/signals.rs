//! Keeps signals away from threads that do I/O: a call that a signal interrupts has to be made again, and with a signal
//! every few hundred microseconds a long one never ends.

use std::mem::MaybeUninit;

/// A signal mask of a thread.
#[derive(Clone, Copy)]
pub struct SignalMask(libc::sigset_t);

/// Signals of a fault in the thread itself: the kernel kills a thread that blocks these.
const FAULTS: [libc::c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT, libc::SIGTRAP, libc::SIGSYS];

/// Blocks signals in this thread and in threads that it starts: other threads of the process take them. Returns the
/// former mask.
pub fn block_signals() -> SignalMask {
    let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` initialises its argument; the other calls get an initialised set and valid signals.
    unsafe {
        libc::sigfillset(blocked.as_mut_ptr());
        for fault in FAULTS {
            libc::sigdelset(blocked.as_mut_ptr(), fault);
        }
        SignalMask(blocked.assume_init()).set()
    }
}

impl SignalMask {
    /// Sets this mask in the calling thread.
    pub fn restore(&self) {
        self.set();
    }

    /// Calls `act` with this mask in place, for the threads and processes that it starts.
    pub fn with<T>(&self, act: impl FnOnce() -> T) -> T {
        let before = self.set();
        let result = act();
        before.set();
        result
    }

    fn set(&self) -> Self {
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: both sets live for the call. It fills `before` in, and fails for none of these arguments.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl std::fmt::Debug for SignalMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SignalMask")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The signals that a thread blocks, as the kernel says: signal 1 is the lowest bit.
    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    }

    #[test]
    fn threads_of_a_thread_without_signals_have_none_either() {
        let bit = |signal: libc::c_int| 1 << (signal - 1);
        let before = block_signals();
        let here = blocked();
        let there = std::thread::spawn(blocked).join().unwrap();
        let outside = before.with(|| std::thread::spawn(blocked).join().unwrap());
        assert_eq!(blocked(), here);
        before.restore();
        assert_eq!(there, here);
        assert_eq!((outside, blocked()), (outside, outside));
        for signal in [libc::SIGHUP, libc::SIGUSR1, libc::SIGTERM, libc::SIGXFSZ, libc::SIGCHLD] {
            assert_ne!(here & bit(signal), 0, "{signal}");
        }
        for signal in FAULTS {
            assert_eq!(here & bit(signal), 0, "{signal}");
        }
    }
}
