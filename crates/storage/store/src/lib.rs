//! Storage of namespaces: RAM, files, devices, filters that stack over any of them; and key-value partitions.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation))]

mod block;
mod filter;
mod health;
pub mod holders;
pub mod identity;
mod key_value;
mod namespace;
mod near;
mod open_error;
pub mod pool;
mod rate;
mod size;
mod space;
mod spec;
mod store;
mod tickets;

#[cfg(test)]
mod testing;

pub use block::{
    Contents, FileKind, FileSettings, FileStore, LockPolicy, MemorySettings, MemoryStore, NbdPlace,
    NbdServer, NullStore, RawFile, RbdPlace, Sharing, VhostUserPlace,
};
pub use filter::{Delay, Fault, FaultKind, FaultRate, Filter, Kind, Limit};
pub use health::{Health, SPARE_PERCENT_MIN};
pub use key_value::{
    DamagePassedOver, DurablePartition, ExaminedFile, ITEM_BYTES_DEFAULT, KeyList, KeyValueBackend,
    KeyValueFileSettings, KeyValueSettings, KeyValueShape, KeyValueStore, Need, PartitionReport,
    Partitioning, Pause, RadosPlace, RecoveryProgress, Unfinished,
};
pub use kv::Usage;
pub use kv::log::{Certainty, Damage, DamageKind, Sync};
pub use namespace::{
    Backend, BlockStore, Generation, Geometry, Grown, OWN_TICKET, Reply, Request, StoreError, StoreIo, Ticket,
};
pub use near::nearest;
pub use open_error::OpenError;
pub use rate::Rate;
pub use size::Size;
pub use spec::{Source, Spec, SpecError};
pub use store::Store;
