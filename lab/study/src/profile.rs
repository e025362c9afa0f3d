//! Processor time of processes by layer, from samples of the functions that their threads execute.
//!
//! ```text
//! samples ──addresses, callers──▶ resolver ──names──▶ table ──▶ layer
//!                                   │ kernel: /proc/kallsyms
//!                                   │ program: symbols, line tables, unwind tables
//!                                   │ maps: what is mapped where in a process
//! ```
//!
//! A sample in the kernel belongs to the innermost function that the [`table`] gives to a layer: helpers, such as locks, are
//! their caller's. A sample in a program belongs to the innermost inlined function that the table knows.

mod kernel;
mod layer;
mod maps;
mod process_sampling;
mod program;
mod resolver;
mod samples;
mod table;

pub(crate) use layer::Layer;
pub(crate) use process_sampling::{ProcessSampling, Sampled};
pub(crate) use resolver::{Placed, Resolver};
pub(crate) use samples::{PERIOD, Scope};
