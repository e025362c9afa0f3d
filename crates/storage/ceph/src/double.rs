//! A double of the libraries in memory, for tests: a cluster with images, whose requests a thread carries out in order.
//!
//! It has the functions of the libraries with the same prototypes, so that everything above them is what runs on a cluster.
//! Faults: a cluster that does not answer, errors, clients that are blocklisted, locks that others take.
#![allow(missing_docs, reason = "each function is that of the libraries with its name")]

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use rustix::io::Errno;

use crate::cluster::ClusterName;
use crate::functions::{
    Callback, ConfigOption, FEATURE_EXCLUSIVE_LOCK, Functions, ImageInfo, ImageOptions, IoContext, Progress,
    Rados, RawCompletion, RawImage, Watcher,
};
use crate::library::Library;

/// A cluster in memory.
pub struct Double {
    world: Arc<World>,
    name: String,
}

#[derive(Default)]
struct World {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    images: HashMap<String, Arc<Mutex<Content>>>,
    is_hanging: bool,
    blocklisted: HashSet<u64>,
    /// Errors for the next requests, in place of them.
    failures: VecDeque<Errno>,
    has_cache: bool,
    call_count: u64,
}

struct Content {
    bytes: Vec<u8>,
    /// What a loss of power leaves.
    durable: Vec<u8>,
    snapshots: HashMap<String, Vec<u8>>,
    /// Snapshots that cannot be opened any more.
    removed: HashSet<String>,
    number: u64,
    lock_owner: Option<u64>,
    /// The owner gives the lock up when another client asks for it.
    is_lent: bool,
    watchers: Vec<u64>,
    metadata: BTreeMap<String, String>,
}

/// `rados_t`.
struct Client {
    world: Option<Arc<World>>,
    id: u64,
}

/// `rados_ioctx_t`.
struct Context {
    world: Arc<World>,
    client: u64,
    pool: String,
    namespace: Mutex<String>,
}

/// `rbd_image_t`.
struct Handle {
    shared: Arc<HandleShared>,
    worker: Option<JoinHandle<()>>,
}

struct HandleShared {
    world: Arc<World>,
    client: u64,
    content: Arc<Mutex<Content>>,
    snapshot: Option<String>,
    is_read_only: bool,
    /// It has asked for the lock, and so neither gives it up nor takes it by itself.
    keeps_lock: AtomicBool,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    ended: VecDeque<usize>,
    bell: c_int,
    is_over: bool,
}

/// `rbd_completion_t`.
struct Completion {
    argument: usize,
    result: isize,
}

struct Job {
    completion: usize,
    work: Work,
}

enum Work {
    Read { offset: u64, start: usize, length: usize },
    Write { offset: u64, start: usize, length: usize },
    Zero { offset: u64, length: usize },
    Flush,
}

static WORLDS: Mutex<Option<HashMap<String, Arc<World>>>> = Mutex::new(None);
static NEXT: AtomicU64 = AtomicU64::new(1);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Double {
    fn default() -> Self {
        Self::new()
    }
}

impl Double {
    #[must_use]
    pub fn new() -> Self {
        let name = format!("double-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let world = Arc::new(World::default());
        lock(&WORLDS).get_or_insert_default().insert(name.clone(), Arc::clone(&world));
        Self { world, name }
    }

    /// The name by which [`Cluster::connect`](crate::Cluster::connect) finds it.
    #[must_use]
    pub fn name(&self) -> ClusterName {
        ClusterName { cluster: Some(self.name.clone()), ..ClusterName::default() }
    }

    fn content(&self, image: &str) -> Arc<Mutex<Content>> {
        Arc::clone(lock(&self.world.state).images.get(image).expect("the image is there"))
    }

    /// The bytes of an image, `POOL/NAMESPACE/IMAGE`.
    #[must_use]
    pub fn bytes(&self, image: &str) -> Vec<u8> {
        lock(&self.content(image)).bytes.clone()
    }

    /// The power of all machines of the cluster goes, and comes back.
    pub fn cut_power(&self, image: &str) {
        let content = self.content(image);
        let mut content = lock(&content);
        content.bytes = content.durable.clone();
    }

    /// Another client resizes an image.
    pub fn resize(&self, image: &str, bytes: usize) {
        resize(&mut lock(&self.content(image)), bytes);
    }

    /// An administrator makes a snapshot.
    pub fn snapshot(&self, image: &str, snapshot: &str) {
        let content = self.content(image);
        let mut content = lock(&content);
        let bytes = content.bytes.clone();
        content.snapshots.insert(snapshot.into(), bytes);
    }

    /// An administrator removes an image that nobody watches. Who has it open reads zeroes.
    pub fn remove(&self, image: &str) {
        lock(&self.content(image)).bytes.fill(0);
        lock(&self.world.state).images.remove(image);
    }

    /// An administrator removes a snapshot.
    pub fn remove_snapshot(&self, image: &str, snapshot: &str) {
        lock(&self.content(image)).snapshots.get_mut(snapshot).expect("it is there").fill(0);
        lock(&self.content(image)).removed.insert(snapshot.into());
    }

    /// Whether the cluster does not answer.
    pub fn set_hanging(&self, is_hanging: bool) {
        lock(&self.world.state).is_hanging = is_hanging;
        self.world.changed.notify_all();
    }

    /// Whether clients have a cache, as an image's own configuration may say.
    pub fn set_cache(&self, has_cache: bool) {
        lock(&self.world.state).has_cache = has_cache;
    }

    /// The next request fails.
    pub fn fail_next(&self, errno: Errno) {
        lock(&self.world.state).failures.push_back(errno);
    }

    /// Another client takes the lock of an image, and has its holder blocklisted, if it is to be.
    pub fn take_lock(&self, image: &str, blocklists: bool) {
        let content = self.content(image);
        let mut content = lock(&content);
        content.is_lent = false;
        let before = content.lock_owner.replace(0);
        if blocklists {
            lock(&self.world.state).blocklisted.extend(before);
        }
    }

    /// A client that is alive, or dead, has the lock of an image.
    pub fn set_lock_owner(&self, image: &str, owner: Option<u64>, is_alive: bool) {
        let content = self.content(image);
        let mut content = lock(&content);
        (content.lock_owner, content.is_lent) = (owner, false);
        content.watchers.retain(|watcher| Some(*watcher) != owner);
        content.watchers.extend(owner.filter(|_| is_alive));
    }

    /// The client that has the lock of an image.
    #[must_use]
    pub fn lock_owner(&self, image: &str) -> Option<u64> {
        lock(&self.content(image)).lock_owner
    }

    /// The metadata of an image.
    #[must_use]
    pub fn metadata(&self, image: &str) -> BTreeMap<String, String> {
        lock(&self.content(image)).metadata.clone()
    }

    /// A client dies: nobody watches the image for it any more.
    pub fn end_client(&self, image: &str, client: u64) {
        lock(&self.content(image)).watchers.retain(|watcher| *watcher != client);
    }

    /// Clients that have an image open.
    #[must_use]
    pub fn clients(&self, image: &str) -> Vec<u64> {
        lock(&self.content(image)).watchers.clone()
    }

    /// Requests that were carried out.
    #[must_use]
    pub fn call_count(&self) -> u64 {
        lock(&self.world.state).call_count
    }

    /// The functions.
    #[must_use]
    pub fn library() -> &'static Library {
        static LIBRARY: OnceLock<Library> = OnceLock::new();
        LIBRARY.get_or_init(|| Library {
            functions: Functions {
                rados_create2,
                rados_conf_read_file,
                rados_conf_parse_env,
                rados_conf_set,
                rados_connect,
                rados_shutdown,
                rados_cluster_fsid,
                rados_get_instance_id,
                rados_ioctx_create,
                rados_ioctx_destroy,
                rados_ioctx_set_namespace,
                rados_ioctx_get_id,
                rados_set_pool_full_try,
                rbd_version,
                rbd_image_options_create,
                rbd_image_options_destroy,
                rbd_create4,
                rbd_open,
                rbd_open_read_only,
                rbd_close,
                rbd_stat,
                rbd_get_id,
                rbd_get_features,
                rbd_resize2,
                rbd_config_image_list,
                rbd_config_image_list_cleanup,
                rbd_metadata_set,
                rbd_metadata_remove,
                rbd_metadata_list,
                rbd_lock_acquire,
                rbd_lock_release,
                rbd_lock_break,
                rbd_lock_get_owners,
                rbd_lock_get_owners_cleanup,
                rbd_is_exclusive_lock_owner,
                rbd_watchers_list,
                rbd_watchers_list_cleanup,
                rbd_set_image_notification,
                rbd_poll_io_events,
                rbd_aio_create_completion,
                rbd_aio_get_return_value,
                rbd_aio_get_arg,
                rbd_aio_release,
                rbd_aio_read,
                rbd_aio_write,
                rbd_aio_flush,
                rbd_aio_write_zeroes,
            },
        })
    }
}

fn resize(content: &mut Content, bytes: usize) {
    content.bytes.resize(bytes, 0);
    content.durable.resize(bytes, 0);
}

/// The address of a client.
fn address(client: u64) -> String {
    format!("127.0.0.1:0/{client}")
}

fn failed(errno: Errno) -> c_int {
    -errno.raw_os_error()
}

fn text(text: *const c_char) -> String {
    // SAFETY: callers give C strings.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// An object that one of the functions has made, and that was not given back.
fn object<T>(object: *mut c_void) -> &'static T {
    // SAFETY: as said; all changes are behind locks.
    unsafe { &*object.cast::<T>() }
}

fn made<T>(object: T) -> *mut c_void {
    Box::into_raw(Box::new(object)).cast()
}

/// An object that is given back.
fn unmade<T>(object: *mut c_void) -> Box<T> {
    // SAFETY: made by `made`, and not used again.
    unsafe { Box::from_raw(object.cast::<T>()) }
}

fn put<T>(place: *mut T, value: T) {
    // SAFETY: callers give a place for the value.
    unsafe { place.write(value) };
}

fn put_text(place: *mut c_char, room: usize, text: &str) -> c_int {
    if text.len() + 1 > room {
        return failed(Errno::RANGE);
    }
    let text = CString::new(text).expect("no zero bytes");
    // SAFETY: callers give that much room.
    unsafe { place.copy_from_nonoverlapping(text.as_ptr(), text.as_bytes_with_nul().len()) };
    0
}

unsafe extern "C" fn rados_create2(
    place: *mut Rados,
    cluster: *const c_char,
    _: *const c_char,
    _: u64,
) -> c_int {
    let world = lock(&WORLDS).get_or_insert_default().get(&text(cluster)).cloned();
    put(place, made(Client { world, id: NEXT.fetch_add(1, Ordering::Relaxed) }));
    0
}

unsafe extern "C" fn rados_conf_read_file(client: Rados, _: *const c_char) -> c_int {
    if object::<Client>(client).world.is_some() { 0 } else { failed(Errno::NOENT) }
}

unsafe extern "C" fn rados_conf_parse_env(_: Rados, _: *const c_char) -> c_int {
    0
}

unsafe extern "C" fn rados_conf_set(_: Rados, _: *const c_char, _: *const c_char) -> c_int {
    0
}

unsafe extern "C" fn rados_connect(client: Rados) -> c_int {
    let world = object::<Client>(client).world.as_ref().expect("its configuration was read");
    if lock(&world.state).is_hanging { failed(Errno::TIMEDOUT) } else { 0 }
}

unsafe extern "C" fn rados_shutdown(client: Rados) {
    drop(unmade::<Client>(client));
}

unsafe extern "C" fn rados_cluster_fsid(_: Rados, place: *mut c_char, room: usize) -> c_int {
    put_text(place, room, "00000000-0000-0000-0000-00000000d0b1")
}

unsafe extern "C" fn rados_get_instance_id(client: Rados) -> u64 {
    object::<Client>(client).id
}

unsafe extern "C" fn rados_ioctx_create(client: Rados, pool: *const c_char, place: *mut IoContext) -> c_int {
    let client = object::<Client>(client);
    let pool = text(pool);
    if pool == "missing" {
        return failed(Errno::NOENT);
    }
    let world = client.world.clone().expect("it is connected");
    put(place, made(Context { world, client: client.id, pool, namespace: Mutex::default() }));
    0
}

unsafe extern "C" fn rados_ioctx_destroy(context: IoContext) {
    drop(unmade::<Context>(context));
}

unsafe extern "C" fn rados_ioctx_set_namespace(context: IoContext, name: *const c_char) {
    *lock(&object::<Context>(context).namespace) = text(name);
}

unsafe extern "C" fn rados_ioctx_get_id(_: IoContext) -> i64 {
    1
}

unsafe extern "C" fn rados_set_pool_full_try(_: IoContext) {}

unsafe extern "C" fn rbd_version(major: *mut c_int, minor: *mut c_int, extra: *mut c_int) {
    for place in [major, minor, extra] {
        put(place, 0);
    }
}

unsafe extern "C" fn rbd_image_options_create(place: *mut ImageOptions) {
    put(place, std::ptr::null_mut());
}

unsafe extern "C" fn rbd_image_options_destroy(_: ImageOptions) {}

fn path(context: &Context, name: *const c_char) -> String {
    format!("{}/{}/{}", context.pool, lock(&context.namespace), text(name))
}

unsafe extern "C" fn rbd_create4(
    context: IoContext,
    name: *const c_char,
    bytes: u64,
    _: ImageOptions,
) -> c_int {
    let context = object::<Context>(context);
    let mut state = lock(&context.world.state);
    let path = path(context, name);
    if state.images.contains_key(&path) {
        return failed(Errno::EXIST);
    }
    let bytes = vec![0; usize::try_from(bytes).expect("a small image")];
    let content = Content {
        durable: bytes.clone(),
        bytes,
        snapshots: HashMap::new(),
        removed: HashSet::new(),
        number: NEXT.fetch_add(1, Ordering::Relaxed),
        lock_owner: None,
        is_lent: false,
        watchers: Vec::new(),
        metadata: BTreeMap::new(),
    };
    state.images.insert(path, Arc::new(Mutex::new(content)));
    0
}

fn open(
    context: IoContext,
    name: *const c_char,
    place: *mut RawImage,
    snapshot: *const c_char,
    is_read_only: bool,
) -> c_int {
    let context = object::<Context>(context);
    let found = lock(&context.world.state).images.get(&path(context, name)).cloned();
    let Some(content) = found else { return failed(Errno::NOENT) };
    let snapshot = (!snapshot.is_null()).then(|| text(snapshot));
    let is_there = |name: &String| {
        let content = lock(&content);
        content.snapshots.contains_key(name) && !content.removed.contains(name)
    };
    if snapshot.as_ref().is_some_and(|name| !is_there(name)) {
        return failed(Errno::NOENT);
    }
    if !is_read_only {
        lock(&content).watchers.push(context.client);
    }
    let shared = Arc::new(HandleShared {
        world: Arc::clone(&context.world),
        client: context.client,
        content,
        is_read_only: is_read_only || snapshot.is_some(),
        snapshot,
        keeps_lock: AtomicBool::new(false),
        queue: Mutex::new(Queue { bell: -1, ..Queue::default() }),
        changed: Condvar::new(),
    });
    let worker = Arc::clone(&shared);
    let worker = std::thread::spawn(move || worker.run());
    put(place, made(Handle { shared, worker: Some(worker) }));
    0
}

unsafe extern "C" fn rbd_open(
    context: IoContext,
    name: *const c_char,
    place: *mut RawImage,
    snapshot: *const c_char,
) -> c_int {
    open(context, name, place, snapshot, false)
}

unsafe extern "C" fn rbd_open_read_only(
    context: IoContext,
    name: *const c_char,
    place: *mut RawImage,
    snapshot: *const c_char,
) -> c_int {
    open(context, name, place, snapshot, true)
}

unsafe extern "C" fn rbd_close(image: RawImage) -> c_int {
    let mut handle = unmade::<Handle>(image);
    lock(&handle.shared.queue).is_over = true;
    handle.shared.changed.notify_all();
    if let Some(worker) = handle.worker.take() {
        worker.join().expect("the thread carries requests out");
    }
    let mut content = lock(&handle.shared.content);
    let client = handle.shared.client;
    if let Some(at) = content.watchers.iter().position(|watcher| *watcher == client) {
        content.watchers.remove(at);
    }
    if content.lock_owner == Some(client) && !handle.shared.is_read_only {
        content.lock_owner = None;
    }
    0
}

fn shared(image: RawImage) -> &'static HandleShared {
    &object::<Handle>(image).shared
}

unsafe extern "C" fn rbd_stat(image: RawImage, info: *mut ImageInfo, _: usize) -> c_int {
    let shared = shared(image);
    let content = lock(&shared.content);
    let bytes = match &shared.snapshot {
        Some(name) => content.snapshots[name].len(),
        None => content.bytes.len(),
    };
    // SAFETY: the caller gives a place for it, which is filled.
    let info = unsafe { &mut *info };
    (info.size, info.obj_size) = (bytes as u64, 4 << 20);
    0
}

unsafe extern "C" fn rbd_get_id(image: RawImage, place: *mut c_char, room: usize) -> c_int {
    put_text(place, room, &format!("{:x}", lock(&shared(image).content).number))
}

unsafe extern "C" fn rbd_get_features(_: RawImage, place: *mut u64) -> c_int {
    put(place, FEATURE_EXCLUSIVE_LOCK);
    0
}

unsafe extern "C" fn rbd_resize2(image: RawImage, bytes: u64, _: bool, _: Progress, _: *mut c_void) -> c_int {
    resize(&mut lock(&shared(image).content), usize::try_from(bytes).expect("a small image"));
    0
}

unsafe extern "C" fn rbd_config_image_list(
    image: RawImage,
    place: *mut ConfigOption,
    count: *mut c_int,
) -> c_int {
    let value = if lock(&shared(image).world.state).has_cache { c"true" } else { c"false" };
    let texts = [c"rbd_cache", value].map(|text| CString::from(text).into_raw());
    put(place, ConfigOption { name: texts[0], value: texts[1], source: 0 });
    put(count, 1);
    0
}

unsafe extern "C" fn rbd_config_image_list_cleanup(place: *mut ConfigOption, count: c_int) {
    assert_eq!(count, 1, "as listed");
    // SAFETY: filled by the function above, which made the texts.
    unsafe {
        drop(CString::from_raw((*place).name));
        drop(CString::from_raw((*place).value));
    }
}

unsafe extern "C" fn rbd_lock_acquire(image: RawImage, _: c_int) -> c_int {
    let shared = shared(image);
    shared.keeps_lock.store(true, Ordering::Relaxed);
    if shared.take_lock(&mut lock(&shared.content)) { 0 } else { failed(Errno::ROFS) }
}

/// As a call that changes an image does, for the client that has its lock.
fn changed(image: RawImage, change: impl FnOnce(&mut Content) -> c_int) -> c_int {
    let shared = shared(image);
    let mut content = lock(&shared.content);
    if shared.has_lock(&mut content) { change(&mut content) } else { failed(Errno::ROFS) }
}

unsafe extern "C" fn rbd_metadata_set(image: RawImage, key: *const c_char, value: *const c_char) -> c_int {
    changed(image, |content| {
        content.metadata.insert(text(key), text(value));
        0
    })
}

unsafe extern "C" fn rbd_metadata_remove(image: RawImage, key: *const c_char) -> c_int {
    changed(image, |content| match content.metadata.remove(&text(key)) {
        Some(_) => 0,
        None => failed(Errno::NOENT),
    })
}

unsafe extern "C" fn rbd_metadata_list(
    image: RawImage,
    _: *const c_char,
    _: u64,
    keys: *mut c_char,
    keys_length: *mut usize,
    values: *mut c_char,
    values_length: *mut usize,
) -> c_int {
    let metadata = lock(&shared(image).content).metadata.clone();
    let listed = |texts: Vec<String>, place: *mut c_char, length: *mut usize| {
        let bytes: Vec<u8> =
            texts.into_iter().flat_map(|text| [text.into_bytes(), vec![0]].concat()).collect();
        // SAFETY: the caller gives that much room, and says so.
        unsafe {
            let has_room = bytes.len() <= length.read();
            length.write(bytes.len());
            if has_room {
                place.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            }
            has_room
        }
    };
    let keys = listed(metadata.keys().cloned().collect(), keys, keys_length);
    let values = listed(metadata.values().cloned().collect(), values, values_length);
    if keys && values { 0 } else { failed(Errno::RANGE) }
}

unsafe extern "C" fn rbd_lock_release(image: RawImage) -> c_int {
    let shared = shared(image);
    let mut content = lock(&shared.content);
    if content.lock_owner == Some(shared.client) {
        content.lock_owner = None;
    }
    0
}

unsafe extern "C" fn rbd_lock_break(image: RawImage, _: c_int, owner: *const c_char) -> c_int {
    let shared = shared(image);
    let owner = text(owner);
    let mut content = lock(&shared.content);
    if content.lock_owner.map(address).as_ref() == Some(&owner) {
        lock(&shared.world.state).blocklisted.extend(content.lock_owner.take());
    }
    0
}

unsafe extern "C" fn rbd_lock_get_owners(
    image: RawImage,
    mode: *mut c_int,
    place: *mut *mut c_char,
    count: *mut usize,
) -> c_int {
    let Some(owner) = lock(&shared(image).content).lock_owner else { return failed(Errno::NOENT) };
    let owner = CString::new(address(owner)).expect("no zero bytes");
    put(mode, 0);
    put(place, owner.into_raw());
    put(count, 1);
    0
}

unsafe extern "C" fn rbd_lock_get_owners_cleanup(place: *mut *mut c_char, count: usize) {
    assert_eq!(count, 1, "as listed");
    // SAFETY: filled by the function above, which made the text.
    unsafe { drop(CString::from_raw(*place)) };
}

unsafe extern "C" fn rbd_is_exclusive_lock_owner(image: RawImage, place: *mut c_int) -> c_int {
    let shared = shared(image);
    put(place, c_int::from(lock(&shared.content).lock_owner == Some(shared.client)));
    0
}

unsafe extern "C" fn rbd_watchers_list(image: RawImage, place: *mut Watcher, count: *mut usize) -> c_int {
    let watchers = lock(&shared(image).content).watchers.clone();
    // SAFETY: the caller gives the number of places.
    let room = unsafe { count.read() };
    put(count, watchers.len());
    if watchers.len() > room {
        return failed(Errno::RANGE);
    }
    for (at, id) in watchers.into_iter().enumerate() {
        let addr = CString::new(address(id)).expect("no zero bytes").into_raw();
        let id = i64::try_from(id).expect("a small number");
        // SAFETY: checked above.
        unsafe { place.add(at).write(Watcher { addr, id, cookie: 1 }) };
    }
    0
}

unsafe extern "C" fn rbd_watchers_list_cleanup(place: *mut Watcher, count: usize) {
    for at in 0..count {
        // SAFETY: filled by the function above, which made the texts.
        unsafe { drop(CString::from_raw((*place.add(at)).addr)) };
    }
}

unsafe extern "C" fn rbd_set_image_notification(image: RawImage, bell: c_int, _: c_int) -> c_int {
    lock(&shared(image).queue).bell = bell;
    0
}

unsafe extern "C" fn rbd_poll_io_events(image: RawImage, place: *mut RawCompletion, room: c_int) -> c_int {
    let mut queue = lock(&shared(image).queue);
    let count = queue.ended.len().min(usize::try_from(room).expect("a count"));
    for (at, completion) in queue.ended.drain(..count).enumerate() {
        // SAFETY: the caller gives that many places.
        unsafe { place.add(at).write(std::ptr::with_exposed_provenance_mut(completion)) };
    }
    c_int::try_from(count).expect("a count")
}

unsafe extern "C" fn rbd_aio_create_completion(
    argument: *mut c_void,
    _: Callback,
    place: *mut RawCompletion,
) -> c_int {
    put(place, made(Mutex::new(Completion { argument: argument as usize, result: 0 })));
    0
}

fn completion(completion: RawCompletion) -> MutexGuard<'static, Completion> {
    lock(object::<Mutex<Completion>>(completion))
}

unsafe extern "C" fn rbd_aio_get_return_value(raw: RawCompletion) -> isize {
    completion(raw).result
}

unsafe extern "C" fn rbd_aio_get_arg(raw: RawCompletion) -> *mut c_void {
    std::ptr::without_provenance_mut(completion(raw).argument)
}

unsafe extern "C" fn rbd_aio_release(raw: RawCompletion) {
    drop(unmade::<Mutex<Completion>>(raw));
}

fn start(image: RawImage, completion: RawCompletion, work: Work) -> c_int {
    let shared = shared(image);
    lock(&shared.queue).jobs.push_back(Job { completion: completion.expose_provenance(), work });
    shared.changed.notify_all();
    0
}

unsafe extern "C" fn rbd_aio_read(
    image: RawImage,
    offset: u64,
    length: usize,
    place: *mut c_char,
    completion: RawCompletion,
) -> c_int {
    start(image, completion, Work::Read { offset, start: place.expose_provenance(), length })
}

unsafe extern "C" fn rbd_aio_write(
    image: RawImage,
    offset: u64,
    length: usize,
    place: *const c_char,
    completion: RawCompletion,
) -> c_int {
    start(image, completion, Work::Write { offset, start: place.expose_provenance(), length })
}

unsafe extern "C" fn rbd_aio_flush(image: RawImage, completion: RawCompletion) -> c_int {
    start(image, completion, Work::Flush)
}

unsafe extern "C" fn rbd_aio_write_zeroes(
    image: RawImage,
    offset: u64,
    length: usize,
    completion: RawCompletion,
    _: c_int,
    _: c_int,
) -> c_int {
    start(image, completion, Work::Zero { offset, length })
}

impl HandleShared {
    /// Whether this client has the lock: without having asked for it, it takes one that it can have.
    fn has_lock(&self, content: &mut Content) -> bool {
        content.lock_owner == Some(self.client)
            || !self.keeps_lock.load(Ordering::Relaxed) && self.take_lock(content)
    }

    /// Takes the lock, if it is free, its owner gives it up, or is dead. The dead are blocklisted.
    fn take_lock(&self, content: &mut Content) -> bool {
        if let Some(owner) = content.lock_owner.filter(|owner| *owner != self.client) {
            let is_alive = owner == 0 || content.watchers.contains(&owner);
            if is_alive && !content.is_lent {
                return false;
            }
            if !is_alive {
                lock(&self.world.state).blocklisted.insert(owner);
            }
        }
        content.lock_owner = Some(self.client);
        content.is_lent = !self.keeps_lock.load(Ordering::Relaxed);
        true
    }

    /// Carries requests out, in order, until the image is closed and none is left.
    fn run(&self) {
        loop {
            let mut queue = lock(&self.queue);
            let job = loop {
                match queue.jobs.pop_front() {
                    Some(job) => break job,
                    None if queue.is_over => return,
                    None => queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(queue);
            let result = self.perform(&job.work).unwrap_or_else(|errno| failed(errno) as isize);
            completion(std::ptr::with_exposed_provenance_mut(job.completion)).result = result;
            let mut queue = lock(&self.queue);
            queue.ended.push_back(job.completion);
            // SAFETY: open until the image is closed.
            let bell = unsafe { BorrowedFd::borrow_raw(queue.bell) };
            rustix::io::write(bell, &1_u64.to_ne_bytes()).expect("an eventfd");
        }
    }

    fn perform(&self, work: &Work) -> Result<isize, Errno> {
        let mut state = lock(&self.world.state);
        while state.is_hanging {
            state = self.world.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.call_count += 1;
        if state.blocklisted.contains(&self.client) {
            return Err(Errno::SHUTDOWN);
        }
        if let Some(errno) = state.failures.pop_front() {
            return Err(errno);
        }
        let has_cache = state.has_cache;
        drop(state);
        let mut content = lock(&self.content);
        if !matches!(work, Work::Read { .. }) && (self.is_read_only || !self.has_lock(&mut content)) {
            return Err(Errno::ROFS);
        }
        let range = |offset: u64, length: usize, bytes: usize| {
            let start = usize::try_from(offset).expect("a small image");
            (start + length <= bytes).then_some(start..start + length).ok_or(Errno::INVAL)
        };
        match *work {
            Work::Read { offset, start, length } => {
                let bytes = match &self.snapshot {
                    Some(name) => &content.snapshots[name],
                    None => &content.bytes,
                };
                let from = &bytes[range(offset, length, bytes.len())?];
                let place = std::ptr::with_exposed_provenance_mut::<u8>(start);
                // SAFETY: the caller keeps the buffer until the completion is taken in.
                unsafe { place.copy_from_nonoverlapping(from.as_ptr(), length) };
                return isize::try_from(length).map_err(|_| Errno::INVAL);
            }
            Work::Write { offset, start, length } => {
                let range = range(offset, length, content.bytes.len())?;
                let place = std::ptr::with_exposed_provenance::<u8>(start);
                // SAFETY: as above.
                let from = unsafe { std::slice::from_raw_parts(place, length) };
                content.bytes[range].copy_from_slice(from);
            }
            Work::Zero { offset, length } => {
                let range = range(offset, length, content.bytes.len())?;
                content.bytes[range].fill(0);
            }
            Work::Flush => content.durable = content.bytes.clone(),
        }
        if !has_cache {
            content.durable = content.bytes.clone();
        }
        Ok(0)
    }
}
