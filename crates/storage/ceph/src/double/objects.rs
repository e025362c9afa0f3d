//! Objects of a double, whose requests end in any order: functions of librados.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;

use super::world::{Context, World, failed, lock, made, object, put, unmade};
use crate::functions::{IoContext, ListContext, ObjectCallback, ObjectCompletion, Time, WriteOperation};

/// `rados_write_op_t`.
#[derive(Default)]
struct ObjectChange {
    is_exclusive: bool,
    expected: Option<Vec<u8>>,
    bytes: Vec<u8>,
}

/// `rados_list_ctx_t`.
struct ObjectList {
    names: Vec<CString>,
    next: usize,
}

/// `rados_completion_t`.
struct ObjectEnd {
    callback: ObjectCallback,
    argument: usize,
    result: c_int,
}

enum ObjectWork {
    Read { offset: usize, start: usize, length: usize },
    Write { start: usize, length: usize },
    Change(ObjectChange),
    Remove,
}

/// Bytes that a caller keeps until the work has ended.
fn bytes_at(start: usize, length: usize) -> &'static [u8] {
    // SAFETY: as said.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(start), length) }
}

/// Carries out work on an object; `None` if its client is dead.
fn work_on(world: &World, client: u64, key: &(String, String, CString), work: &ObjectWork) -> Option<c_int> {
    let mut state = lock(&world.state);
    while state.is_hanging {
        state = world.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
    if state.object_changes_left == Some(0) {
        return None;
    }
    state.call_count += 1;
    if state.blocklisted.contains(&client) {
        return Some(failed(Errno::SHUTDOWN));
    }
    if let Some(errno) = state.failures.pop_front() {
        return Some(failed(errno));
    }
    let present = state.objects.get(key);
    Some(match work {
        ObjectWork::Read { offset, start, length } => {
            let Some(bytes) = present else { return Some(failed(Errno::NOENT)) };
            let from = &bytes[bytes.len().min(*offset)..];
            let count = from.len().min(*length);
            let place = std::ptr::with_exposed_provenance_mut::<u8>(*start);
            // SAFETY: the caller keeps the buffer until the completion is taken in.
            unsafe { place.copy_from_nonoverlapping(from.as_ptr(), count) };
            return Some(c_int::try_from(count).expect("a short object"));
        }
        ObjectWork::Change(change) if change.is_exclusive && present.is_some() => failed(Errno::EXIST),
        ObjectWork::Change(ObjectChange { expected: Some(expected), .. })
            if present.is_none_or(|bytes| !bytes.starts_with(expected)) =>
        {
            if present.is_none() {
                failed(Errno::NOENT)
            } else {
                -4095
            }
        }
        ObjectWork::Remove if present.is_none() => failed(Errno::NOENT),
        _ => {
            state.object_changes_left = state.object_changes_left.map(|left| left - 1);
            match work {
                ObjectWork::Remove => drop(state.objects.remove(key)),
                ObjectWork::Change(change) => drop(state.objects.insert(key.clone(), change.bytes.clone())),
                ObjectWork::Write { start, length } => {
                    state.objects.insert(key.clone(), bytes_at(*start, *length).to_vec());
                }
                ObjectWork::Read { .. } => {}
            }
            0
        }
    })
}

fn key_of(context: &Context, name: *const c_char) -> (String, String, CString) {
    // SAFETY: callers give C strings.
    let name = unsafe { CStr::from_ptr(name) }.to_owned();
    (context.pool.clone(), lock(&context.namespace).clone(), name)
}

/// As a call that waits.
fn work_now(context: IoContext, name: *const c_char, work: &ObjectWork) -> c_int {
    let context = object::<Context>(context);
    let result = work_on(&context.world, context.client, &key_of(context, name), work);
    result.unwrap_or_else(|| failed(Errno::IO))
}

/// As an asynchronous call: in a thread of its own, so that requests end in any order.
fn work_later(
    context: IoContext,
    name: *const c_char,
    completion: ObjectCompletion,
    work: ObjectWork,
) -> c_int {
    let context = object::<Context>(context);
    let (world, client, key) = (Arc::clone(&context.world), context.client, key_of(context, name));
    let completion = completion.expose_provenance();
    std::thread::spawn(move || {
        let Some(result) = work_on(&world, client, &key, &work) else { return };
        let raw = std::ptr::with_exposed_provenance_mut::<c_void>(completion);
        let mut end = lock(object::<Mutex<ObjectEnd>>(raw));
        end.result = result;
        let (callback, argument) = (end.callback, std::ptr::without_provenance_mut(end.argument));
        // Whoever is called may give the completion back.
        drop(end);
        if let Some(callback) = callback {
            // SAFETY: the callback of this completion with its argument.
            unsafe { callback(raw, argument) };
        }
    });
    0
}

pub(super) unsafe extern "C" fn rados_read(
    context: IoContext,
    name: *const c_char,
    place: *mut c_char,
    length: usize,
    offset: u64,
) -> c_int {
    let offset = usize::try_from(offset).expect("a short object");
    work_now(context, name, &ObjectWork::Read { offset, start: place.expose_provenance(), length })
}

pub(super) unsafe extern "C" fn rados_remove(context: IoContext, name: *const c_char) -> c_int {
    work_now(context, name, &ObjectWork::Remove)
}

pub(super) unsafe extern "C" fn rados_create_write_op() -> WriteOperation {
    made(Mutex::new(ObjectChange::default()))
}

pub(super) unsafe extern "C" fn rados_release_write_op(operation: WriteOperation) {
    drop(unmade::<Mutex<ObjectChange>>(operation));
}

pub(super) unsafe extern "C" fn rados_write_op_create(
    operation: WriteOperation,
    exclusive: c_int,
    _: *const c_char,
) {
    lock(object::<Mutex<ObjectChange>>(operation)).is_exclusive = exclusive == 1;
}

pub(super) unsafe extern "C" fn rados_write_op_cmpext(
    operation: WriteOperation,
    start: *const c_char,
    length: usize,
    _: u64,
    _: *mut c_int,
) {
    let expected = bytes_at(start.expose_provenance(), length).to_vec();
    lock(object::<Mutex<ObjectChange>>(operation)).expected = Some(expected);
}

pub(super) unsafe extern "C" fn rados_write_op_write_full(
    operation: WriteOperation,
    start: *const c_char,
    length: usize,
) {
    let bytes = bytes_at(start.expose_provenance(), length).to_vec();
    lock(object::<Mutex<ObjectChange>>(operation)).bytes = bytes;
}

pub(super) unsafe extern "C" fn rados_write_op_operate(
    operation: WriteOperation,
    context: IoContext,
    name: *const c_char,
    _: *mut Time,
    _: c_int,
) -> c_int {
    let change = std::mem::take(&mut *lock(object::<Mutex<ObjectChange>>(operation)));
    work_now(context, name, &ObjectWork::Change(change))
}

pub(super) unsafe extern "C" fn rados_nobjects_list_open(
    context: IoContext,
    place: *mut ListContext,
) -> c_int {
    let context = object::<Context>(context);
    let namespace = lock(&context.namespace).clone();
    let state = lock(&context.world.state);
    if state.blocklisted.contains(&context.client) {
        return failed(Errno::SHUTDOWN);
    }
    let all = state.objects.keys().filter(|(pool, of, _)| *pool == context.pool && *of == namespace);
    let names = all.map(|(.., name)| name.clone()).collect();
    put(place, made(Mutex::new(ObjectList { names, next: 0 })));
    0
}

pub(super) unsafe extern "C" fn rados_nobjects_list_next(
    list: ListContext,
    place: *mut *const c_char,
    _: *mut *const c_char,
    _: *mut *const c_char,
) -> c_int {
    let mut list = lock(object::<Mutex<ObjectList>>(list));
    let Some(name) = list.names.get(list.next) else { return failed(Errno::NOENT) };
    put(place, name.as_ptr());
    list.next += 1;
    0
}

pub(super) unsafe extern "C" fn rados_nobjects_list_close(list: ListContext) {
    drop(unmade::<Mutex<ObjectList>>(list));
}

pub(super) unsafe extern "C" fn rados_aio_create_completion2(
    argument: *mut c_void,
    callback: ObjectCallback,
    place: *mut ObjectCompletion,
) -> c_int {
    put(place, made(Mutex::new(ObjectEnd { callback, argument: argument.addr(), result: 0 })));
    0
}

pub(super) unsafe extern "C" fn rados_aio_get_return_value(completion: ObjectCompletion) -> c_int {
    lock(object::<Mutex<ObjectEnd>>(completion)).result
}

pub(super) unsafe extern "C" fn rados_aio_release(completion: ObjectCompletion) {
    drop(unmade::<Mutex<ObjectEnd>>(completion));
}

pub(super) unsafe extern "C" fn rados_aio_read(
    context: IoContext,
    name: *const c_char,
    completion: ObjectCompletion,
    place: *mut c_char,
    length: usize,
    offset: u64,
) -> c_int {
    let offset = usize::try_from(offset).expect("a short object");
    work_later(
        context,
        name,
        completion,
        ObjectWork::Read { offset, start: place.expose_provenance(), length },
    )
}

pub(super) unsafe extern "C" fn rados_aio_write_full(
    context: IoContext,
    name: *const c_char,
    completion: ObjectCompletion,
    start: *const c_char,
    length: usize,
) -> c_int {
    work_later(context, name, completion, ObjectWork::Write { start: start.expose_provenance(), length })
}

pub(super) unsafe extern "C" fn rados_aio_remove(
    context: IoContext,
    name: *const c_char,
    completion: ObjectCompletion,
) -> c_int {
    work_later(context, name, completion, ObjectWork::Remove)
}
