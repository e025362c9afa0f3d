//! Commands of the key-value command set: from the parsed command to the partition, here or on another reactor, and
//! back.

mod answers;
pub(crate) mod batch;
mod execute;
mod large;
mod post;
mod serve;
mod value;

pub(crate) use answers::on_reply;
pub(crate) use execute::{KeyValueStart, flush_logs};
pub(crate) use large::{ArrivingValues, Awaits};
pub(crate) use serve::{have_logs_stopped, serve, stop_logs, tend_logs, try_waiting};
