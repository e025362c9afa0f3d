//! The layers of an operation, to which samples of processor time are assigned.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Layer {
    /// The generator of the load.
    Application,
    /// Our code of the protocol on either side.
    Nvme,
    /// Our storage, and the kernel's file systems and block layer.
    Storage,
    /// Entry and exit of system calls, io_uring, polling for events, and reading the clock.
    SystemCalls,
    /// The kernel's way from the socket to the device.
    Transmit,
    /// The kernel's way from the device to the socket.
    Receive,
    /// Copies of data, by us and by the kernel.
    Copies,
    /// Thread switches, wake-ups, timers, interrupts.
    Scheduling,
    /// Memory taken and given back, socket buffers among it.
    Memory,
    /// Functions that the table does not name.
    Other,
    /// Addresses without a function name: where symbols are hidden or missing.
    Unnamed,
}

impl Layer {
    /// All, from the user to the kernel.
    pub(crate) const ALL: [Self; 11] = [
        Self::Application,
        Self::Nvme,
        Self::Storage,
        Self::SystemCalls,
        Self::Transmit,
        Self::Receive,
        Self::Copies,
        Self::Scheduling,
        Self::Memory,
        Self::Other,
        Self::Unnamed,
    ];

    /// Name in a figure.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Application => "application",
            Self::Nvme => "NVMe/TCP",
            Self::Storage => "storage",
            Self::SystemCalls => "system calls",
            Self::Transmit => "TCP transmit",
            Self::Receive => "TCP receive",
            Self::Copies => "copies",
            Self::Scheduling => "scheduling",
            Self::Memory => "memory",
            Self::Other => "other",
            Self::Unnamed => "not named",
        }
    }
}
