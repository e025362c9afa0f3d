//! Images of a double, whose requests a thread carries out in order: functions of librbd.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ffi::{CString, c_char, c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::io::Errno;

use super::world::{
    Content, Context, NEXT, World, address, failed, lock, made, object, put, put_text, resize, text, unmade,
};
use crate::functions::{
    Callback, ConfigOption, FEATURE_EXCLUSIVE_LOCK, FEATURE_FAST_DIFF, FLAG_FAST_DIFF_INVALID, ImageInfo,
    ImageOptions, IoContext, OnExtent, Progress, RawCompletion, RawImage, Watcher,
};

/// Bytes of an object.
const OBJECT_BYTES: usize = 4096;

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

pub(super) unsafe extern "C" fn rbd_version(major: *mut c_int, minor: *mut c_int, extra: *mut c_int) {
    for place in [major, minor, extra] {
        put(place, 0);
    }
}

pub(super) unsafe extern "C" fn rbd_image_options_create(place: *mut ImageOptions) {
    put(place, std::ptr::null_mut());
}

pub(super) unsafe extern "C" fn rbd_image_options_destroy(_: ImageOptions) {}

fn path(context: &Context, name: *const c_char) -> String {
    format!("{}/{}/{}", context.pool, lock(&context.namespace), text(name))
}

pub(super) unsafe extern "C" fn rbd_create4(
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
        parent_bytes: 0,
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

pub(super) unsafe extern "C" fn rbd_open(
    context: IoContext,
    name: *const c_char,
    place: *mut RawImage,
    snapshot: *const c_char,
) -> c_int {
    open(context, name, place, snapshot, false)
}

pub(super) unsafe extern "C" fn rbd_open_read_only(
    context: IoContext,
    name: *const c_char,
    place: *mut RawImage,
    snapshot: *const c_char,
) -> c_int {
    open(context, name, place, snapshot, true)
}

pub(super) unsafe extern "C" fn rbd_close(image: RawImage) -> c_int {
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

pub(super) unsafe extern "C" fn rbd_stat(image: RawImage, info: *mut ImageInfo, _: usize) -> c_int {
    let shared = shared(image);
    let bytes = shared.bytes().len();
    // SAFETY: the caller gives a place for it, which is filled.
    let info = unsafe { &mut *info };
    (info.size, info.obj_size) = (bytes as u64, OBJECT_BYTES as u64);
    0
}

pub(super) unsafe extern "C" fn rbd_get_id(image: RawImage, place: *mut c_char, room: usize) -> c_int {
    put_text(place, room, &format!("{:x}", lock(&shared(image).content).number))
}

pub(super) unsafe extern "C" fn rbd_get_features(_: RawImage, place: *mut u64) -> c_int {
    put(place, FEATURE_EXCLUSIVE_LOCK | FEATURE_FAST_DIFF);
    0
}

pub(super) unsafe extern "C" fn rbd_get_flags(image: RawImage, place: *mut u64) -> c_int {
    let has_map = lock(&shared(image).world.state).has_object_maps;
    put(place, if has_map { 0 } else { FLAG_FAST_DIFF_INVALID });
    0
}

pub(super) unsafe extern "C" fn rbd_get_overlap(image: RawImage, place: *mut u64) -> c_int {
    put(place, lock(&shared(image).content).parent_bytes);
    0
}

pub(super) unsafe extern "C" fn rbd_diff_iterate2(
    image: RawImage,
    _: *const c_char,
    offset: u64,
    length: u64,
    _: u8,
    whole_object: u8,
    on_extent: OnExtent,
    argument: *mut c_void,
) -> c_int {
    assert!(
        whole_object == 1 && offset.is_multiple_of(OBJECT_BYTES as u64),
        "an object map has no parts of objects"
    );
    let shared = shared(image);
    if let Err(errno) = shared.answer() {
        return failed(errno);
    }
    let bytes = shared.bytes();
    let objects = bytes.chunks(OBJECT_BYTES).zip((0..).step_by(OBJECT_BYTES));
    for (object, at) in objects.filter(|(_, at)| (offset..offset + length).contains(at)) {
        if object.iter().any(|byte| *byte != 0) {
            // SAFETY: the caller's function and its argument.
            let told = unsafe { on_extent(at, object.len(), 1, argument) };
            if told < 0 {
                return told;
            }
        }
    }
    0
}

pub(super) unsafe extern "C" fn rbd_resize2(
    image: RawImage,
    bytes: u64,
    _: bool,
    _: Progress,
    _: *mut c_void,
) -> c_int {
    resize(&mut lock(&shared(image).content), usize::try_from(bytes).expect("a small image"));
    0
}

pub(super) unsafe extern "C" fn rbd_config_image_list(
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

pub(super) unsafe extern "C" fn rbd_config_image_list_cleanup(place: *mut ConfigOption, count: c_int) {
    assert_eq!(count, 1, "as listed");
    // SAFETY: filled by the function above, which made the texts.
    unsafe {
        drop(CString::from_raw((*place).name));
        drop(CString::from_raw((*place).value));
    }
}

pub(super) unsafe extern "C" fn rbd_lock_acquire(image: RawImage, _: c_int) -> c_int {
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

pub(super) unsafe extern "C" fn rbd_metadata_set(
    image: RawImage,
    key: *const c_char,
    value: *const c_char,
) -> c_int {
    changed(image, |content| {
        content.metadata.insert(text(key), text(value));
        0
    })
}

pub(super) unsafe extern "C" fn rbd_metadata_remove(image: RawImage, key: *const c_char) -> c_int {
    changed(image, |content| match content.metadata.remove(&text(key)) {
        Some(_) => 0,
        None => failed(Errno::NOENT),
    })
}

pub(super) unsafe extern "C" fn rbd_metadata_list(
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

pub(super) unsafe extern "C" fn rbd_lock_release(image: RawImage) -> c_int {
    let shared = shared(image);
    let mut content = lock(&shared.content);
    if content.lock_owner == Some(shared.client) {
        content.lock_owner = None;
    }
    0
}

pub(super) unsafe extern "C" fn rbd_lock_break(image: RawImage, _: c_int, owner: *const c_char) -> c_int {
    let shared = shared(image);
    let owner = text(owner);
    let mut content = lock(&shared.content);
    if content.lock_owner.map(address).as_ref() == Some(&owner) {
        lock(&shared.world.state).blocklisted.extend(content.lock_owner.take());
    }
    0
}

pub(super) unsafe extern "C" fn rbd_lock_get_owners(
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

pub(super) unsafe extern "C" fn rbd_lock_get_owners_cleanup(place: *mut *mut c_char, count: usize) {
    assert_eq!(count, 1, "as listed");
    // SAFETY: filled by the function above, which made the text.
    unsafe { drop(CString::from_raw(*place)) };
}

pub(super) unsafe extern "C" fn rbd_is_exclusive_lock_owner(image: RawImage, place: *mut c_int) -> c_int {
    let shared = shared(image);
    put(place, c_int::from(lock(&shared.content).lock_owner == Some(shared.client)));
    0
}

pub(super) unsafe extern "C" fn rbd_watchers_list(
    image: RawImage,
    place: *mut Watcher,
    count: *mut usize,
) -> c_int {
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

pub(super) unsafe extern "C" fn rbd_watchers_list_cleanup(place: *mut Watcher, count: usize) {
    for at in 0..count {
        // SAFETY: filled by the function above, which made the texts.
        unsafe { drop(CString::from_raw((*place.add(at)).addr)) };
    }
}

pub(super) unsafe extern "C" fn rbd_set_image_notification(image: RawImage, bell: c_int, _: c_int) -> c_int {
    lock(&shared(image).queue).bell = bell;
    0
}

pub(super) unsafe extern "C" fn rbd_poll_io_events(
    image: RawImage,
    place: *mut RawCompletion,
    room: c_int,
) -> c_int {
    let mut queue = lock(&shared(image).queue);
    let count = queue.ended.len().min(usize::try_from(room).expect("a count"));
    for (at, completion) in queue.ended.drain(..count).enumerate() {
        // SAFETY: the caller gives that many places.
        unsafe { place.add(at).write(std::ptr::with_exposed_provenance_mut(completion)) };
    }
    c_int::try_from(count).expect("a count")
}

pub(super) unsafe extern "C" fn rbd_aio_create_completion(
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

pub(super) unsafe extern "C" fn rbd_aio_get_return_value(raw: RawCompletion) -> isize {
    completion(raw).result
}

pub(super) unsafe extern "C" fn rbd_aio_get_arg(raw: RawCompletion) -> *mut c_void {
    std::ptr::without_provenance_mut(completion(raw).argument)
}

pub(super) unsafe extern "C" fn rbd_aio_release(raw: RawCompletion) {
    drop(unmade::<Mutex<Completion>>(raw));
}

fn start(image: RawImage, completion: RawCompletion, work: Work) -> c_int {
    let shared = shared(image);
    lock(&shared.queue).jobs.push_back(Job { completion: completion.expose_provenance(), work });
    shared.changed.notify_all();
    0
}

pub(super) unsafe extern "C" fn rbd_aio_read(
    image: RawImage,
    offset: u64,
    length: usize,
    place: *mut c_char,
    completion: RawCompletion,
) -> c_int {
    start(image, completion, Work::Read { offset, start: place.expose_provenance(), length })
}

pub(super) unsafe extern "C" fn rbd_aio_write(
    image: RawImage,
    offset: u64,
    length: usize,
    place: *const c_char,
    completion: RawCompletion,
) -> c_int {
    start(image, completion, Work::Write { offset, start: place.expose_provenance(), length })
}

pub(super) unsafe extern "C" fn rbd_aio_flush(image: RawImage, completion: RawCompletion) -> c_int {
    start(image, completion, Work::Flush)
}

pub(super) unsafe extern "C" fn rbd_aio_write_zeroes(
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

    fn bytes(&self) -> Vec<u8> {
        let content = lock(&self.content);
        self.snapshot.as_ref().map_or(&content.bytes, |name| &content.snapshots[name]).clone()
    }

    /// Waits until the cluster answers. Returns whether this client has a cache.
    fn answer(&self) -> Result<bool, Errno> {
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
        Ok(state.has_cache)
    }

    fn perform(&self, work: &Work) -> Result<isize, Errno> {
        let has_cache = self.answer()?;
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
