//! Calls of Linux that no library offers, or that several crates make in the same way. No call needs a reactor.
//!
//! | Subject | Modules |
//! |---|---|
//! | Machine, process and threads | `machine_memory`, `placement` (cores, priorities), `descriptors`, `signals` |
//! | Time and chance | `moment`, [`random`], [`randomness`] |
//! | Files | [`small_file`], [`whole_file`], [`mounts`], `file_lock` |
//! | Sockets and network devices | [`unix_listener`], [`private_socket`], [`socket_option`], `passed_sockets` (socket activation), `interface`, `netlink_options`, `ethtool_ioctl`, `sock_ops` (BPF) |
//!
//! The unsafe code makes system calls: in `ethtool_ioctl`, `file_lock`, `netlink_options`, `passed_sockets`, `placement`,
//! `signals`, `sock_ops` and `socket_option`.

#![cfg_attr(test, allow(clippy::cast_possible_truncation))]

mod descriptors;
mod ethtool_ioctl;
mod file_lock;
mod interface;
mod machine_memory;
mod moment;
pub mod mounts;
mod netlink_options;
mod passed_sockets;
mod placement;
pub mod private_socket;
pub mod random;
pub mod randomness;
mod signals;
pub mod small_file;
mod sock_ops;
pub mod socket_option;
pub mod unix_listener;
pub mod whole_file;

pub use descriptors::{allow_descriptors, remedy as descriptor_remedy, reserve_descriptors};
pub use ethtool_ioctl::ethtool_ioctl;
pub use file_lock::{is_open_for_writing, is_range_locked, lock_range_shared, unlock_ranges};
pub use interface::{interface_index, with_numbered_zone};
pub use machine_memory::machine_memory_bytes;
pub use moment::{Moment, MomentClock};
pub use netlink_options::explain_netlink_errors;
pub use passed_sockets::{passed_socket, take_passed_sockets};
pub use placement::{CoreList, CoreListError, lower_priority, pin, spread_over_node, step_back};
pub use signals::{SignalMask, block_signals};
pub use sock_ops::{SockOps, network_cookie};
