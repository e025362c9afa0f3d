//! Application device queues: a network device's queue pairs given to named classes of traffic.
//!
//! A [`config::Config`] says what is wanted, [`layout::Layout`] places it on a device by its driver's rules, and
//! [`plan::Plan`] lists the changes in the order that kernel and drivers require. [`apply::apply`] carries them out
//! over netlink, ethtool's system call and sysfs, reads each one back, and takes all of them back at the first failure.
//! A [`journal::Journal`] on disk has the former settings, so that a layout can be removed after a crash.
//! [`verify::verify`] compares the device with the journal.
//!
//! The device itself is a [`kernel::Kernel`]: this machine's ([`linux::LinuxDevice`]), or a model in tests.
#![forbid(unsafe_code)]

pub mod apply;
pub mod change;
pub mod config;
pub mod control_group;
pub mod driver;
pub mod explain;
pub mod ioctl;
pub mod journal;
pub mod kernel;
pub mod layout;
pub mod linux;
pub mod moderation;
pub mod netlink;
pub mod opponent;
pub mod plan;
pub mod rate;
pub mod scaling;
pub mod sock_ops;
pub mod state;
pub mod sysfs;
pub mod verify;
