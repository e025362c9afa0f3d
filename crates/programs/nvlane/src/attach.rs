//! `nvlane attach`: namespaces of a target for programs that do not know NVMe.

mod nbd;

use clap::{Args, Subcommand};
use command_line::exit::Ended;

#[derive(Debug, Args)]
#[command(after_help = "\
  nvlane attach nbd ADDR --run 'qemu-img convert -p \"$NVLANE_DEVICE\" disk.qcow2'

A bridge is a process of this machine that connects to the target, as any host does, and serves its namespaces in another protocol. \
The program that uses it needs no change, and the bridge needs no kernel module and no root.")]
pub(crate) struct AttachArguments {
    #[command(subcommand)]
    bridge: Bridge,
}

#[derive(Debug, Subcommand)]
enum Bridge {
    /// Serve namespaces to NBD clients: qemu, fio, nbdcopy, libnbd, the kernel's nbd module.
    Nbd(Box<nbd::NbdArguments>),
}

pub(crate) fn attach(arguments: &AttachArguments) -> Ended {
    match &arguments.bridge {
        Bridge::Nbd(arguments) => nbd::nbd(arguments),
    }
}
