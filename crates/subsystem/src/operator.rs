//! The operator's side: what differs between the configuration that runs and the one wanted, and how the difference is applied.
//!
//! All that may block (opening and resizing storage, binding sockets) happens on the operator's thread, before an
//! [`Order`](crate::message::Order) reaches the control plane.

mod diff;
mod identities;
mod reload;
mod storage;

pub use diff::{Change, Outline, diff};
pub(crate) use reload::BIND_WAIT;
pub use reload::{Operator, Outcome, Post, Report, ReportLine, RunningListener, state, stop};
