//! The command as users run it: verbs, options, output and exit codes. A single test program, so that it is linked
//! once.

mod attach;
mod attach_vhost_user;
mod bad_addresses;
mod bad_targets;
mod ctl;
mod diagnosis;
mod discover;
mod far_keys;
mod hanging;
mod host_config;
mod identify;
mod keyring;
mod keys;
mod kv;
mod kv_file;
mod list;
mod log_lines;
mod memory;
mod metrics;
mod mistakes;
mod only_subsystem;
mod operating;
mod perf_local;
mod replaced_secrets;
mod rights;
mod slow;
mod smart_log;
mod spread;
mod starting;
#[path = "../support/mod.rs"]
mod support;
mod survives;
mod top;
mod volumes;
