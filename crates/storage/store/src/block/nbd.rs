//! A namespace on an export of an NBD server.

mod command;
mod connect;
mod place;
#[cfg(test)]
mod tests;
mod wire;

use std::time::Duration;

use self::wire::NbdWire;
use super::remote::{Connected, Remote, RemoteStore};

pub(super) use self::connect::connect_by_unix;
pub(crate) use self::place::{CONNECTION_LIMIT_DEFAULT, NBD_DEADLINE_S_DEFAULT};
pub use self::place::{NbdPlace, NbdServer};

/// A namespace on an export.
pub(crate) type NbdStore = RemoteStore<NbdPlace>;

impl Remote for NbdPlace {
    type Wire = NbdWire;

    const THREAD: &'static str = "nbd-connect";

    fn connect(&self, limit: Duration) -> Result<Connected<NbdWire>, String> {
        connect::connect(self, limit)
    }

    fn deadline_s(&self) -> u32 {
        self.deadline_s
    }
}
