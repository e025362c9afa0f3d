//! Studies between two machines: a server starts the targets on one, a study runs on the other.
//!
//! ```text
//! nvlane study NAME --target           nvlane study serve
//! connection ◀──challenge, version────  session          one study at a time
//!            ───proof, version───────▶
//!            ◀──machine, cores───────
//!            ───start, read, stop ...▶  ──▶ nvlane target (child processes)
//!                                        memcached, redis, SPDK's target (child processes), the kernel's target
//!                                        the far end of plain sockets, a load on a file, a program beside the target,
//!                                        samples of a target (threads)
//! ```
//!
//! Messages are lines of JSON (`remote/protocol.rs`). The connection carries no data of a measurement.

pub(crate) mod ceiling;
pub(crate) mod connection;
mod device;
pub(crate) mod energy;
mod far_ceiling;
mod far_energy;
mod far_file_load;
mod far_sampling;
mod limits;
mod lines;
mod measuring;
mod memory_reader;
mod occupancy;
pub(crate) mod others;
mod ports;
mod protocol;
mod sampled;
pub(crate) mod sampling;
pub mod server;
mod session;
mod settings;
pub(crate) mod target;
mod unproven;

pub use connection::ServerConnection;
pub use ports::{PortRange, PortRangeError};
pub(crate) use protocol::{FileLoadOutcome, Request, StartFileLoad, StartMemoryReader};
pub use protocol::{MachineDescription, PORT, SteeringInterface, own_version};
