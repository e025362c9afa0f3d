//! libnvlane: the host library for programs in C and C++. `nvlane.h` is made from this crate by `cargo xtask c-header`.
//!
//! Each exported function checks its arguments, enters its handle (`entry`) and calls the host library; this crate adds no
//! protocol and no thread.
//!
//! # Unsafe code
//!
//! This crate is a boundary, and every function of it takes pointers. What a caller owes is said once, in the header
//! (`cbindgen.toml`): pointers are null or valid, handles are used by one thread at a time, and a buffer stays in place until
//! its command has completed. Blocks of unsafe code rely on nothing else. They are in `entry` (handles), `argument` (texts,
//! arrays and results) and `buffer` (data of commands).
//!
//! # Panics
//!
//! No panic crosses the boundary: `entry::enter` catches it, returns `NVLANE_ERROR_INTERNAL`, and the handle refuses every
//! further call. The installed library is therefore built with unwinding panics (profile `bindings`), unlike the programs. In
//! a build whose panics abort, the process ends with a message instead.
// What is exported to C is public, and no crate imports it; what its callers owe is in the header, once for all functions.
#![allow(unreachable_pub, clippy::missing_safety_doc)]

mod argument;
mod batch;
mod blocks;
mod buffer;
mod completion;
mod entry;
mod error;
mod key_value;
mod lane;
mod options;
mod pairs;
mod target;
