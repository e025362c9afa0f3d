//! `nvlane-csi`: volumes of an nvlane target for Kubernetes. `nvlane csi` starts it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

/// The allocator of nvlane.
#[global_allocator]
static ALLOCATOR: allocators::ProgramAllocator = allocators::ProgramAllocator;

fn main() -> ExitCode {
    nvlane_csi::run()
}
