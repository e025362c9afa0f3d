//! Block namespaces: in RAM, on a file or device, or nowhere.

mod file;
mod file_backend;
#[cfg(test)]
mod file_faults;
mod file_health;
mod file_open;
mod file_shared;
mod memory;
mod nbd;
mod null;
mod raw_file;
mod rbd;
mod rbd_backend;
mod rbd_shared;
mod rbd_sharing;
#[cfg(test)]
mod rbd_tests;
mod remote;
mod vhost_user;

pub use self::memory::{MemorySettings, MemoryStore};
pub use file::FileStore;
pub(crate) use file_health::{lacking_space, warn_of_lacking_space};
pub use file_open::{Contents, FileKind, FileSettings};
pub(crate) use file_open::{check_creatable, check_writable, directory_of};
pub(crate) use nbd::{CONNECTION_LIMIT_DEFAULT, NBD_DEADLINE_S_DEFAULT, NbdStore};
pub use nbd::{NbdPlace, NbdServer};
pub use null::NullStore;
pub use raw_file::RawFile;
pub(crate) use rbd::RbdStore;
pub(crate) use rbd_shared::{DEADLINE_S_DEFAULT, RbdSettings};
pub use rbd_shared::{LockPolicy, RbdPlace};
pub use rbd_sharing::Sharing;
pub(crate) use remote::RemoteSettings;
pub use vhost_user::VhostUserPlace;
pub(crate) use vhost_user::{VHOST_USER_DEADLINE_S_DEFAULT, VhostUserDevice, VhostUserStore};

use ::memory::Buffer;

use crate::namespace::{Reply, StoreError};

/// The end of a request that took a buffer.
fn ended(result: Result<(), StoreError>, buffer: Buffer) -> Reply {
    Reply { result, buffer: Some(buffer) }
}

/// The end of a request without data.
fn done(result: Result<(), StoreError>) -> Reply {
    Reply { result, buffer: None }
}
