//! Section 14: rows for hosts. A fake target injects faults while a host is driven against it.

pub mod drive;
pub mod rows;
pub mod run;
