//! Section 14: rows for hosts. Here a false target listens and misbehaves, and a host is driven against it.

pub mod drive;
mod false_target;
pub mod rows;
pub mod run;
mod session;
