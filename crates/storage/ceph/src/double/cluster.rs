//! Connections and pools of a double: functions of librados.

use std::ffi::{CString, c_char, c_int};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::world::{
    Client, Context, NEXT, WORLDS, address, failed, lock, made, object, put, put_text, text, unmade,
};
use crate::functions::{IoContext, Rados};

pub(super) unsafe extern "C" fn rados_create2(
    place: *mut Rados,
    cluster: *const c_char,
    _: *const c_char,
    _: u64,
) -> c_int {
    let world = lock(&WORLDS).get_or_insert_default().get(&text(cluster)).cloned();
    put(place, made(Client { world, id: NEXT.fetch_add(1, Ordering::Relaxed) }));
    0
}

pub(super) unsafe extern "C" fn rados_conf_read_file(client: Rados, _: *const c_char) -> c_int {
    if object::<Client>(client).world.is_some() { 0 } else { failed(Errno::NOENT) }
}

pub(super) unsafe extern "C" fn rados_conf_parse_env(_: Rados, _: *const c_char) -> c_int {
    0
}

pub(super) unsafe extern "C" fn rados_conf_set(_: Rados, _: *const c_char, _: *const c_char) -> c_int {
    0
}

pub(super) unsafe extern "C" fn rados_connect(client: Rados) -> c_int {
    let world = object::<Client>(client).world.as_ref().expect("its configuration was read");
    if lock(&world.state).is_hanging { failed(Errno::TIMEDOUT) } else { 0 }
}

pub(super) unsafe extern "C" fn rados_shutdown(client: Rados) {
    drop(unmade::<Client>(client));
}

pub(super) unsafe extern "C" fn rados_cluster_fsid(_: Rados, place: *mut c_char, room: usize) -> c_int {
    put_text(place, room, "00000000-0000-0000-0000-00000000d0b1")
}

pub(super) unsafe extern "C" fn rados_get_instance_id(client: Rados) -> u64 {
    object::<Client>(client).id
}

pub(super) unsafe extern "C" fn rados_ioctx_create(
    client: Rados,
    pool: *const c_char,
    place: *mut IoContext,
) -> c_int {
    let client = object::<Client>(client);
    let pool = text(pool);
    if pool == "missing" {
        return failed(Errno::NOENT);
    }
    let world = client.world.clone().expect("it is connected");
    put(place, made(Context { world, client: client.id, pool, namespace: Mutex::default() }));
    0
}

pub(super) unsafe extern "C" fn rados_ioctx_destroy(context: IoContext) {
    drop(unmade::<Context>(context));
}

pub(super) unsafe extern "C" fn rados_ioctx_set_namespace(context: IoContext, name: *const c_char) {
    *lock(&object::<Context>(context).namespace) = text(name);
}

pub(super) unsafe extern "C" fn rados_ioctx_get_id(_: IoContext) -> i64 {
    1
}

pub(super) unsafe extern "C" fn rados_set_pool_full_try(_: IoContext) {}

pub(super) unsafe extern "C" fn rados_getaddrs(client: Rados, place: *mut *mut c_char) -> c_int {
    let address = CString::new(address(object::<Client>(client).id)).expect("no zero bytes");
    put(place, address.into_raw());
    0
}

pub(super) unsafe extern "C" fn rados_buffer_free(text: *mut c_char) {
    // SAFETY: made by the function above.
    unsafe { drop(CString::from_raw(text)) };
}

pub(super) unsafe extern "C" fn rados_blocklist_add(client: Rados, address: *mut c_char, _: u32) -> c_int {
    let world = object::<Client>(client).world.as_ref().expect("it is connected");
    let address = text(address);
    let number = address.rsplit('/').next().and_then(|number| number.parse().ok());
    let Some(number) = number else { return failed(Errno::INVAL) };
    lock(&world.state).blocklisted.insert(number);
    0
}

pub(super) unsafe extern "C" fn rados_wait_for_latest_osdmap(_: Rados) -> c_int {
    0
}
