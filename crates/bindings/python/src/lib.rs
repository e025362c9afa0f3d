//! The native part of the Python module `nvlane`: block and key-value namespaces of NVMe/TCP targets.
//!
//! Each client has one thread per lane, which never takes the interpreter's lock. A call submits its commands, releases
//! the lock and waits, or registers with `Completions`, whose event descriptor an event loop watches.
#![deny(unsafe_code)]

mod blocks;
mod client;
mod completions;
mod error;
mod key_value;
mod memory;
mod open;
mod operation;
mod together;
mod value;
mod values;
mod worker;

use pyo3::prelude::*;

/// The native part of `nvlane`.
#[pymodule]
mod _nvlane {
    #[pymodule_export]
    use crate::blocks::Blocks;
    #[pymodule_export]
    use crate::completions::Completions;
    #[pymodule_export]
    use crate::key_value::KeyValue;

    /// Version of the module.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
