//! The way into a handle: from a pointer of the caller to a reference, with every panic caught.

use std::ffi::{CStr, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::error::{Error, NVLANE_ERROR_ARGUMENT, NVLANE_ERROR_FORKED, NVLANE_ERROR_INTERNAL, Result};

/// Forks of which this process is the child.
static FORK_COUNT: AtomicU32 = AtomicU32::new(0);

pub(crate) const BROKEN: Error =
    Error::of_text(NVLANE_ERROR_INTERNAL, c"a bug of the library: its message is on standard error");
const FORKED: Error = Error::of_text(
    NVLANE_ERROR_FORKED,
    c"the handle was made before a fork, and belongs to the parent: open another one in the child",
);

/// What each handle has.
#[derive(Debug)]
pub(crate) struct Guard {
    fork_count: u32,
    /// A call has panicked: the handle may be in any state.
    is_broken: AtomicBool,
}

impl Guard {
    pub(crate) fn new() -> Self {
        static WATCH: Once = Once::new();
        extern "C" fn on_fork() {
            FORK_COUNT.fetch_add(1, Ordering::Relaxed);
        }
        WATCH.call_once(|| {
            // SAFETY: the function only adds to a number, which a child may do. Without memory for the entry forks go
            // unnoticed.
            unsafe { libc::pthread_atfork(None, None, Some(on_fork)) };
        });
        Self { fork_count: FORK_COUNT.load(Ordering::Relaxed), is_broken: AtomicBool::new(false) }
    }

    #[inline]
    fn check(&self) -> Result<()> {
        if self.is_broken.load(Ordering::Relaxed) {
            return Err(BROKEN);
        }
        if self.fork_count != FORK_COUNT.load(Ordering::Relaxed) {
            return Err(FORKED);
        }
        Ok(())
    }

    /// Keeps an error. That of a panic breaks the handle.
    #[cold]
    fn fail(&self, error: Error) -> c_int {
        if error.code == NVLANE_ERROR_INTERNAL {
            self.is_broken.store(true, Ordering::Relaxed);
        }
        error.keep()
    }
}

/// A handle of the caller.
pub(crate) trait Handle {
    /// The argument's name and what it must be, for a null pointer.
    const MISSING: &'static CStr;

    fn guard(&self) -> &Guard;
}

/// Calls `act` without a handle. Returns what it returns, or the code of its error.
pub(crate) fn call(act: impl FnOnce() -> Result<c_int>) -> c_int {
    caught(act).unwrap_or_else(Error::keep)
}

/// Calls `act` with a handle of the calling thread. Returns what it returns, or the code of its error.
///
/// # Safety
/// The pointer is null, or of a handle of this type that was opened and not closed, and no other thread uses it.
#[inline]
pub(crate) unsafe fn enter<H: Handle>(handle: *mut H, act: impl FnOnce(&mut H) -> Result<c_int>) -> c_int {
    // SAFETY: the caller of this function says that it is null, or valid and unshared.
    match unsafe { handle.as_mut() } {
        // The guard is outside of what the call changes.
        Some(handle) => {
            let outcome = handle.guard().check().and_then(|()| caught(|| act(handle)));
            outcome.unwrap_or_else(|error| handle.guard().fail(error))
        }
        None => Error::of_text(NVLANE_ERROR_ARGUMENT, H::MISSING).keep(),
    }
}

/// As [`enter`], with a handle that several threads use at once.
///
/// # Safety
/// The pointer is null, or of a handle of this type that was opened and not closed.
pub(crate) unsafe fn share<H: Handle + Sync>(
    handle: *const H,
    act: impl FnOnce(&H) -> Result<c_int>,
) -> c_int {
    // SAFETY: the caller of this function says that it is null or valid.
    match unsafe { handle.as_ref() } {
        Some(handle) => {
            let outcome = handle.guard().check().and_then(|()| caught(|| act(handle)));
            outcome.unwrap_or_else(|error| handle.guard().fail(error))
        }
        None => Error::of_text(NVLANE_ERROR_ARGUMENT, H::MISSING).keep(),
    }
}

#[inline]
fn caught<T>(act: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or(Err(BROKEN))
}

/// As [`enter`], for a question whose answer is `otherwise` where there is no handle.
///
/// # Safety
/// As [`enter`].
#[inline]
pub(crate) unsafe fn ask<H: Handle, T>(handle: *mut H, otherwise: T, act: impl FnOnce(&mut H) -> T) -> T {
    let mut answer = None;
    // SAFETY: as this function's.
    unsafe {
        enter(handle, |handle| {
            answer = Some(act(handle));
            Ok(0)
        });
    }
    answer.unwrap_or(otherwise)
}

/// Gives a handle to the caller.
pub(crate) fn give<H>(handle: H) -> *mut H {
    Box::into_raw(Box::new(handle))
}

/// Takes a handle back and drops it. One that is broken, or that belongs to the parent of this process, is forgotten: closing
/// its connection would end the parent's.
///
/// # Safety
/// As [`enter`]; the pointer is not used again.
pub(crate) unsafe fn close<H: Handle>(handle: *mut H) {
    if handle.is_null() {
        return;
    }
    // SAFETY: it is of `give`, and the caller of this function gives it up.
    let handle = unsafe { Box::from_raw(handle) };
    if handle.guard().check().is_err() {
        std::mem::forget(handle);
        return;
    }
    // What a drop that panics leaves behind is leaked.
    if catch_unwind(AssertUnwindSafe(|| drop(handle))).is_err() {
        BROKEN.keep();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Thing(Guard);

    impl Handle for Thing {
        const MISSING: &'static CStr = c"thing: NULL";

        fn guard(&self) -> &Guard {
            &self.0
        }
    }

    #[test]
    fn a_panic_ends_the_handle_and_not_the_program() {
        let thing = give(Thing(Guard::new()));
        // SAFETY: the pointer is of `give`, and of this thread alone.
        let (before, panicked, after) = unsafe {
            let before = enter(thing, |_| Ok(7));
            let panicked = enter(thing, |_| panic!("a panic of the test"));
            (before, panicked, enter(thing, |_| Ok(7)))
        };
        assert_eq!((before, panicked, after), (7, NVLANE_ERROR_INTERNAL, NVLANE_ERROR_INTERNAL));
        // SAFETY: as above.
        unsafe { close(thing) };
    }

    #[test]
    fn a_null_pointer_is_an_error() {
        // SAFETY: a null pointer is allowed.
        let code = unsafe { enter(std::ptr::null_mut::<Thing>(), |_| Ok(7)) };
        assert_eq!(code, NVLANE_ERROR_ARGUMENT);
    }
}
