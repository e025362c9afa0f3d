//! Which parts of an image have data, by its object map: whole objects, none of which is looked at.
//!
//! Searches wait for the cluster. A thread of the image carries them out, one after the other, until none is left.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::functions::{FEATURE_FAST_DIFF, FEATURE_STRIPING, FLAG_FAST_DIFF_INVALID, Functions, RawImage};

/// Time after which no other call begins, and objects that one call looks for.
const SEARCH_LIMIT: Duration = Duration::from_secs(1);
const CALL_OBJECTS: u64 = 4096;

/// Maximum number of searches that wait. Others end at once and find nothing.
const WAITING_MAX: usize = 64;

/// Takes in a part of an image that has data. Returns whether there is room for more.
pub type OnData = Box<dyn FnMut(Range<u64>) -> bool + Send>;

/// The searches of an image.
#[derive(Default)]
pub(crate) struct Searches {
    state: Mutex<State>,
    /// Whether there may be ended ones: reads and writes are collected without the lock.
    has_ended: AtomicBool,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Search>,
    ended: Vec<EndedSearch>,
    has_thread: bool,
}

/// A search in a range of bytes, for a slot of an owner of requests.
pub(crate) struct Search {
    pub(crate) owner: u32,
    pub(crate) slot: u32,
    pub(crate) range: Range<u64>,
    pub(crate) on_data: OnData,
}

/// A search that has ended.
pub(crate) struct EndedSearch {
    pub(crate) owner: u32,
    pub(crate) slot: u32,
    /// The first byte that was not looked at, or the system's number of the error.
    pub(crate) result: Result<u64, i32>,
}

/// An open image that is searched.
pub(crate) struct Searched {
    pub(crate) raw: RawImage,
    pub(crate) functions: &'static Functions,
    pub(crate) object_bytes: u64,
    pub(crate) features: u64,
    /// Changes of its flags are noticed: it has a watch, or is a snapshot, which does not change.
    pub(crate) is_described: bool,
}

/// What a call of librbd finds.
struct Finding<'a> {
    range: &'a Range<u64>,
    on_data: &'a mut OnData,
    /// The end of the last part.
    told: Option<u64>,
    is_full: bool,
}

impl Searches {
    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds a search. Returns whether it needs a thread, or gives it back if too many wait.
    pub(crate) fn add(&self, search: Search) -> Result<bool, Search> {
        self.with(|state| {
            if state.waiting.len() >= WAITING_MAX {
                return Err(search);
            }
            state.waiting.push_back(search);
            Ok(!std::mem::replace(&mut state.has_thread, true))
        })
    }

    /// The next search; `None` ends the thread.
    pub(crate) fn next(&self) -> Option<Search> {
        self.with(|state| {
            let next = state.waiting.pop_front();
            state.has_thread = next.is_some();
            next
        })
    }

    pub(crate) fn end(&self, ended: EndedSearch) {
        self.with(|state| state.ended.push(ended));
        self.has_ended.store(true, Ordering::Release);
    }

    /// Ends a search that has found nothing.
    pub(crate) fn refuse(&self, Search { owner, slot, .. }: Search) {
        self.end(EndedSearch { owner, slot, result: Err(Errno::OPNOTSUPP.raw_os_error()) });
    }

    /// The searches that have ended since the last call.
    pub(crate) fn take_ended(&self) -> Vec<EndedSearch> {
        let has_ended =
            self.has_ended.load(Ordering::Relaxed) && self.has_ended.swap(false, Ordering::Acquire);
        if has_ended { self.with(|state| std::mem::take(&mut state.ended)) } else { Vec::new() }
    }
}

/// Takes in an extent during a call of `rbd_diff_iterate2`.
unsafe extern "C" fn on_extent(offset: u64, length: usize, exists: c_int, finding: *mut c_void) -> c_int {
    // SAFETY: the argument of the call below, which nothing else uses until it returns.
    let finding = unsafe { &mut *finding.cast::<Finding<'_>>() };
    let end = offset.saturating_add(length as u64).min(finding.range.end);
    let part = offset.max(finding.range.start)..end;
    if exists == 0 || part.is_empty() {
        return 0;
    }
    if finding.told.is_some_and(|told| part.start < told) {
        return -Errno::INVAL.raw_os_error();
    }
    finding.told = Some(part.end);
    finding.is_full = !(finding.on_data)(part);
    if finding.is_full { -Errno::CANCELED.raw_os_error() } else { 0 }
}

impl Searched {
    /// Gives the parts of a range that have data. Returns the first byte that was not looked at. Waits for the cluster.
    ///
    /// Not searched are images without a valid object map, for which librbd would ask for each object; those whose map may
    /// have become invalid without notice; clones, and images with stripes of their own, for which releases of librbd from
    /// before 2022 give wrong offsets.
    pub(crate) fn find_data(&self, range: &Range<u64>, on_data: &mut OnData) -> Result<u64, i32> {
        let Self { raw, functions, object_bytes, features, is_described } = *self;
        let (mut flags, mut overlap) = (0, 0);
        // SAFETY: an open image, and places for two numbers.
        let got = unsafe {
            let got = (functions.rbd_get_flags)(raw, &raw mut flags);
            if got < 0 { got } else { (functions.rbd_get_overlap)(raw, &raw mut overlap) }
        };
        if got < 0 {
            return Err(-got);
        }
        let has_map = features & (FEATURE_FAST_DIFF | FEATURE_STRIPING) == FEATURE_FAST_DIFF
            && flags & FLAG_FAST_DIFF_INVALID == 0;
        if !has_map || !is_described || overlap > 0 {
            return Err(Errno::OPNOTSUPP.raw_os_error());
        }
        let mut finding = Finding { range, on_data, told: None, is_full: false };
        let until = Instant::now() + SEARCH_LIMIT;
        // Releases of librbd from before 2022 give wrong offsets if the first one is within an object.
        let mut at = range.start - range.start % object_bytes;
        while at < range.end && (at <= range.start || Instant::now() < until) {
            let length = (CALL_OBJECTS * object_bytes).min(range.end - at);
            let argument = (&raw mut finding).cast::<c_void>();
            // SAFETY: an open image, no snapshot, and a function that uses its argument only during the call.
            let found = unsafe {
                (functions.rbd_diff_iterate2)(raw, std::ptr::null(), at, length, 0, 1, on_extent, argument)
            };
            match found {
                0.. => at += length,
                // Extents come in order: what is before the end of the last one is known.
                _ if finding.told.is_some() => break,
                _ => return Err(-found),
            }
        }
        Ok(at.max(range.start))
    }
}
