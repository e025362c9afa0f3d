//! What a double has in memory, and how its functions reach it.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

#[derive(Default)]
pub(super) struct World {
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) images: HashMap<String, Arc<Mutex<Content>>>,
    /// By pool, namespace and name.
    pub(super) objects: BTreeMap<(String, String, CString), Vec<u8>>,
    /// Changes of objects that are still carried out; `None` for all.
    pub(super) object_changes_left: Option<u64>,
    pub(super) is_hanging: bool,
    pub(super) blocklisted: HashSet<u64>,
    /// Errors for the next requests, in place of them.
    pub(super) failures: VecDeque<Errno>,
    pub(super) has_cache: bool,
    /// The object maps of images are valid.
    pub(super) has_object_maps: bool,
    pub(super) call_count: u64,
}

pub(super) struct Content {
    pub(super) bytes: Vec<u8>,
    /// What a loss of power leaves.
    pub(super) durable: Vec<u8>,
    pub(super) snapshots: HashMap<String, Vec<u8>>,
    /// Snapshots that cannot be opened any more.
    pub(super) removed: HashSet<String>,
    pub(super) number: u64,
    pub(super) lock_owner: Option<u64>,
    /// The owner gives the lock up when another client asks for it.
    pub(super) is_lent: bool,
    pub(super) watchers: Vec<u64>,
    pub(super) metadata: BTreeMap<String, String>,
    /// Length of the part that is read from a parent where the image has no data, bytes: librbd's overlap.
    pub(super) parent_bytes: u64,
}

/// `rados_t`.
pub(super) struct Client {
    pub(super) world: Option<Arc<World>>,
    pub(super) id: u64,
}

/// `rados_ioctx_t`.
pub(super) struct Context {
    pub(super) world: Arc<World>,
    pub(super) client: u64,
    pub(super) pool: String,
    pub(super) namespace: Mutex<String>,
}

pub(super) static WORLDS: Mutex<Option<HashMap<String, Arc<World>>>> = Mutex::new(None);

pub(super) static NEXT: AtomicU64 = AtomicU64::new(1);

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn resize(content: &mut Content, bytes: usize) {
    content.bytes.resize(bytes, 0);
    content.durable.resize(bytes, 0);
}

/// The address of a client.
pub(super) fn address(client: u64) -> String {
    format!("127.0.0.1:0/{client}")
}

pub(super) fn failed(errno: Errno) -> c_int {
    -errno.raw_os_error()
}

pub(super) fn text(text: *const c_char) -> String {
    // SAFETY: callers give C strings.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// An object that one of the functions has made, and that was not given back.
pub(super) fn object<T>(object: *mut c_void) -> &'static T {
    // SAFETY: as said; all changes are behind locks.
    unsafe { &*object.cast::<T>() }
}

pub(super) fn made<T>(object: T) -> *mut c_void {
    Box::into_raw(Box::new(object)).cast()
}

/// An object that is given back.
pub(super) fn unmade<T>(object: *mut c_void) -> Box<T> {
    // SAFETY: made by `made`, and not used again.
    unsafe { Box::from_raw(object.cast::<T>()) }
}

pub(super) fn put<T>(place: *mut T, value: T) {
    // SAFETY: callers give a place for the value.
    unsafe { place.write(value) };
}

pub(super) fn put_text(place: *mut c_char, room: usize, text: &str) -> c_int {
    if text.len() + 1 > room {
        return failed(Errno::RANGE);
    }
    let text = CString::new(text).expect("no zero bytes");
    // SAFETY: callers give that much room.
    unsafe { place.copy_from_nonoverlapping(text.as_ptr(), text.as_bytes_with_nul().len()) };
    0
}
