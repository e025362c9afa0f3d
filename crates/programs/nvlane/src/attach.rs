//! `nvlane attach`: namespaces of a target for programs that do not know NVMe.

mod auto;
mod fuse;
mod nbd;
mod process;
mod running;
mod ublk;
mod vhost_user;

use clap::{Args, Subcommand};
use command_line::exit::Ended;

#[derive(Debug, Args)]
#[command(after_help = "\
  nvlane attach nbd ADDR --run 'qemu-img convert -p \"$NVLANE_DEVICE\" disk.qcow2'
  nvlane attach fuse ADDR /mnt                                   files for any program: see its --help
  nvlane attach vhost-user ADDR --socket /run/disk.sock          a disk for QEMU: see its --help
  nvlane attach ublk ADDR                                        a block device, /dev/ublkb0, as root
  nvlane attach auto ADDR --explain                              which of them this machine has

A bridge is a process of this machine that connects to the target, as any host does, and serves its namespaces in another protocol. \
The program that uses it needs no change, and the bridge needs no kernel module and no root, \
except for ublk.")]
pub(crate) struct AttachArguments {
    #[command(subcommand)]
    bridge: Bridge,
}

#[derive(Debug, Subcommand)]
enum Bridge {
    /// Mount namespaces as files in a directory: any program, loop devices.
    Fuse(Box<fuse::FuseArguments>),
    /// Serve namespaces to NBD clients: qemu, fio, nbdcopy, libnbd, the kernel's nbd module.
    Nbd(Box<nbd::NbdArguments>),
    /// Serve namespaces to virtual machines as virtio disks: QEMU, cloud-hypervisor, libblkio.
    VhostUser(Box<vhost_user::VhostUserArguments>),
    /// Make namespaces block devices of this machine: /dev/ublkb0. With the kernel's module ublk_drv.
    Ublk(Box<ublk::UblkArguments>),
    /// Take the bridge, or the kernel's host, that this machine has.
    Auto(auto::AutoArguments),
    /// List the bridges that run on this machine.
    List(running::ListArguments),
}

pub(crate) fn attach(arguments: &AttachArguments) -> Ended {
    match &arguments.bridge {
        Bridge::Fuse(arguments) => fuse::fuse(arguments),
        Bridge::Nbd(arguments) => nbd::nbd(arguments),
        Bridge::VhostUser(arguments) => vhost_user::vhost_user(arguments),
        Bridge::Ublk(arguments) => ublk::ublk(arguments),
        Bridge::Auto(arguments) => auto::auto(arguments),
        Bridge::List(arguments) => running::list(arguments),
    }
}
