//! The objects of a target: subsystems, namespaces, controllers and associations, the discovery log.

pub mod access;
pub mod association;
pub mod authentication;
pub(crate) mod catalog;
pub mod controller;
pub mod discovery;
pub mod flush_epochs;
pub mod key_rights;
pub mod namespace_table;
pub mod namespace_traffic;
pub mod rate_limit;
pub mod step_error;
pub mod subsystem;
