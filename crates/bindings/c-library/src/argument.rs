//! Arguments of the caller: texts, arrays, and places for results.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

use host::Nsid;
use host::wire::kv::LONG_KEY_BYTES_MAX;
use libc::iovec;

use crate::error::{Error, NVLANE_ERROR_ARGUMENT, Result};

/// A text that must be there.
///
/// # Safety
/// The pointer is null, or of a text that ends with a null byte and stays for the call.
pub(crate) unsafe fn text<'a>(name: &str, pointer: *const c_char) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(Error::argument(format_args!("{name} is NULL")));
    }
    // SAFETY: as this function's.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Error::argument(format_args!("{name} is not UTF-8")))
}

/// Bytes that a command sends, or a key.
///
/// # Safety
/// The pointer is null, or points to `length` bytes that stay valid and unchanged during the call.
pub(crate) unsafe fn bytes<'a>(name: &'static CStr, pointer: *const u8, length: usize) -> Result<&'a [u8]> {
    match (pointer.is_null(), length) {
        (_, 0) => Ok(&[]),
        (false, 1..=MEMORY_BYTES_MAX) => {
            // SAFETY: as this function's; the length is within an allocation's.
            Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
        }
        _ => Err(Error::of_text(NVLANE_ERROR_ARGUMENT, name)),
    }
}

/// Longest object in memory, bytes.
pub(crate) const MEMORY_BYTES_MAX: usize = isize::MAX as usize;

/// A key, which may be longer than those that commands have room for.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn long_key<'a>(pointer: *const u8, length: usize) -> Result<&'a [u8]> {
    if !(1..=LONG_KEY_BYTES_MAX).contains(&length) {
        return Err(Error::argument(format_args!("a key has 1 to {LONG_KEY_BYTES_MAX} bytes, not {length}")));
    }
    // SAFETY: as this function's.
    unsafe { bytes(c"the key is NULL", pointer, length) }
}

/// An array of the caller that is filled.
///
/// # Safety
/// The pointer is null, or of `count` elements that are the library's for the call.
#[inline]
pub(crate) unsafe fn room<'a, T>(pointer: *mut T, count: usize) -> &'a mut [MaybeUninit<T>] {
    if pointer.is_null() || count == 0 || count > MEMORY_BYTES_MAX / size_of::<T>().max(1) {
        return &mut [];
    }
    // SAFETY: as this function's; elements need not be initialized.
    unsafe { std::slice::from_raw_parts_mut(pointer.cast(), count) }
}

/// Writes a result, unless the caller does not want it.
///
/// # Safety
/// The pointer is null, or of a place for a `T`.
#[inline]
pub(crate) unsafe fn put<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: as this function's.
        unsafe { place.write(value) };
    }
}

/// The place of a result that the caller must take.
pub(crate) fn wanted<T>(name: &'static CStr, place: *mut T) -> Result<*mut T> {
    if place.is_null() { Err(Error::of_text(NVLANE_ERROR_ARGUMENT, name)) } else { Ok(place) }
}

/// A namespace by its id; 0 for the one that the address names, or the only one.
pub(crate) fn nsid(nsid: u32) -> Result<Option<Nsid>> {
    match (nsid, Nsid::new(nsid)) {
        (0, _) => Ok(None),
        (_, nsid) if nsid.is_one_namespace() => Ok(Some(nsid)),
        _ => Err(Error::argument(format_args!("{nsid} is no namespace id"))),
    }
}

/// A list of pieces of memory.
///
/// # Safety
/// The pointer is null, or of `count` entries that stay for the call.
pub(crate) unsafe fn list<'a>(pointer: *const iovec, count: usize) -> Result<&'a [iovec]> {
    match (pointer.is_null(), count) {
        (_, 0) => Ok(&[]),
        (false, 1..=LIST_COUNT_MAX) => {
            // SAFETY: as this function's; the count is within an allocation's.
            Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
        }
        (true, _) => Err(Error::argument("the list is NULL")),
        _ => Err(Error::argument(format_args!("a list of {count} entries: the limit is {LIST_COUNT_MAX}"))),
    }
}

/// Longest list of pieces of memory: a piece of each block of the longest transfers.
const LIST_COUNT_MAX: usize = 1 << 20;
