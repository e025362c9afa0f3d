//! `nvlane attach`: namespaces of a target for programs that do not know NVMe.

mod nbd;
mod process;
mod vhost_user;

use clap::{Args, Subcommand};
use command_line::exit::Ended;

#[derive(Debug, Args)]
#[command(after_help = "\
  nvlane attach nbd ADDR --run 'qemu-img convert -p \"$NVLANE_DEVICE\" disk.qcow2'
  nvlane attach vhost-user ADDR --socket /run/disk.sock          a disk for QEMU: see its --help

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
    /// Serve namespaces to virtual machines as virtio disks: QEMU, cloud-hypervisor, libblkio.
    VhostUser(Box<vhost_user::VhostUserArguments>),
}

pub(crate) fn attach(arguments: &AttachArguments) -> Ended {
    match &arguments.bridge {
        Bridge::Nbd(arguments) => nbd::nbd(arguments),
        Bridge::VhostUser(arguments) => vhost_user::vhost_user(arguments),
    }
}
