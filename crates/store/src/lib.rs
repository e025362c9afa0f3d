//! What is behind a namespace: RAM, files, devices, and filters that stack over any of them.
#![forbid(unsafe_code)]

mod namespace;

pub use namespace::{Backend, Geometry, Reply, Request, Store, StoreError, StoreIo, Ticket};
