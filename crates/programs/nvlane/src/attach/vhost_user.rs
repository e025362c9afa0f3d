//! `nvlane attach vhost-user`: namespaces as block devices of virtual machines.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use anyhow::Context;
use bridge::{VhostUserDevice, VhostUserSettings, block_namespaces};
use clap::Args;
use command_line::connection::{HostOptions, with_subsystem};
use command_line::exit::{Ended, Failure};
use command_line::output::write;
use host::{Address, Association, Event, Events, Nsid};
use linux::private_socket::PrivateSocket;

use super::process::{
    END_TIME, LaneArguments, Wake, handle_signals, open_socket, parse_addresses, start_command, wait,
};
use super::running::Entry;
use crate::human_size::HumanSize;
use crate::serve::start_thread;
use crate::service_manager::ServiceManager;

/// Lanes of one association.
const LANES_MAX: usize = 1024;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nvlane attach vhost-user 192.0.2.1 --socket /run/disk.sock
  qemu-system-x86_64 -accel kvm -smp 4 -m 4G -machine q35,memory-backend=mem \\
    -object memory-backend-memfd,id=mem,size=4G,share=on \\
    -chardev socket,id=disk,path=/run/disk.sock,reconnect=1 \\
    -device vhost-user-blk-pci,chardev=disk,num-queues=4
  cloud-hypervisor ... --memory size=4G,shared=on --disk vhost_user=true,socket=/run/disk.sock,num_queues=4
  nvlane attach vhost-user ADDR/NQN?ns=1 ADDR/NQN?ns=2 --socket /run/1.sock --socket /run/2.sock

The guest's memory must be shared (share=on, shared=on), and memory-backend must name it with the size of -m. The guest sees a virtio \
disk, /dev/vda. reconnect=1 (reconnect-ms=1000 in newer versions of QEMU) makes QEMU wait for a bridge that is started again: requests \
that were under way are taken up by it, and the guest only waits. num-queues must not be above --queues; one for each virtual CPU is best. \
Firmware boots from disks with blocks of 512 bytes only (bootindex=0; storage of a target: ?lba=512).

Each address gives one disk for each of its block namespaces, in their order, and --socket is given once for each disk. A disk serves one \
virtual machine at a time. The sockets are for this user and root alone: run QEMU as the same user, or chown them.

While the target is lost, requests wait: up to --fast-io-fail, then they fail with an I/O error in the guest, and after \
--ctrl-loss-timeout the bridge ends. After a reconnect, the next flush of the guest fails once if the target has a volatile write cache: \
writes that were not flushed before may be lost. A namespace that grows or shrinks does so in the guest.

SIGTERM and Ctrl-C end the bridge once the requests under way are given back, after 30 s at most; a second one ends it at once.")]
pub(crate) struct VhostUserArguments {
    /// Addresses: `HOST[:PORT][/NQN][?ns=NSID]`, `nvme+tcp://...`, or "traddr:... trsvcid:... subnqn:..."; without an
    /// NQN, the only subsystem there, without a namespace, all its block namespaces.
    #[arg(value_name = "ADDR", env = "NVLANE_ADDR", required = true)]
    addresses: Vec<String>,
    #[command(flatten)]
    host: HostOptions,
    #[command(flatten)]
    disk: DiskArguments,
    #[command(flatten)]
    lanes: LaneArguments,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Disk")]
struct DiskArguments {
    /// Serve a disk on this Unix socket, for this user and root; once for each disk. [default for --run: one in a temporary
    /// directory]
    #[arg(long, value_name = "PATH")]
    socket: Vec<PathBuf>,
    /// Virtqueues that a guest may use. Each that it uses takes a thread, a queue pair of the target, and up to 8 MiB of
    /// memory; they share threads if the target has fewer queue pairs.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    queues: u16,
    /// Refuse what changes data; the guest sees a read-only disk.
    #[arg(long)]
    read_only: bool,
    /// Run this command with the path of the (first) socket in $NVLANE_DEVICE, and exit with its exit code. A single word is a
    /// line for the shell.
    #[arg(long, value_name = "COMMAND", num_args = 1.., allow_hyphen_values = true)]
    run: Vec<String>,
}

pub(crate) fn vhost_user(arguments: &VhostUserArguments) -> Ended {
    let disk = &arguments.disk;
    if disk.socket.is_empty() && disk.run.is_empty() {
        return Err(Failure::usage(
            "say where to serve: --socket PATH, or --run COMMAND for a socket of its own",
        ));
    }
    let (wakes, wake) = channel();
    // Before the sockets are there: a signal then removes them.
    handle_signals(wakes.clone())?;
    let mut associations = Vec::new();
    for address in parse_addresses(&arguments.addresses)? {
        associations.push(arguments.connect(address)?);
    }
    let mut disks = Vec::new();
    for association in &associations {
        let nsids = served(association)?;
        let settings = arguments.settings(association, nsids.len());
        for nsid in nsids {
            disks.push((VhostUserDevice::new(association.clone(), nsid, settings)?, association, nsid));
        }
    }
    // Removed with the socket in it.
    let directory = disk.socket.is_empty().then(|| {
        tempfile::Builder::new().prefix("nvlane-vhost-user-").tempdir().context("no directory for the socket")
    });
    let directory = directory.transpose()?;
    let own = directory.as_ref().map(|directory| directory.path().join("disk.sock"));
    let paths: Vec<&Path> = disk.socket.iter().chain(&own).map(PathBuf::as_path).collect();
    if paths.len() != disks.len() {
        let names: Vec<String> =
            disks.iter().map(|(_, association, nsid)| name(association, *nsid)).collect();
        return Err(Failure::usage(format!(
            "there are {} disks and {} sockets: give --socket PATH once for each of {}, or name the namespace, as in \
             HOST/NQN?ns={}",
            disks.len(),
            disk.socket.len(),
            names.join(", "),
            disks.first().map_or(1, |(_, _, nsid)| nsid.get()),
        )));
    }
    let mut sockets: Vec<Arc<PrivateSocket>> = Vec::new();
    let mut lines = String::new();
    for ((device, association, nsid), path) in disks.iter().zip(paths) {
        let socket = Arc::new(open_socket(path)?);
        device.serve(Arc::clone(&socket)).context("cannot start a thread")?;
        let namespace = device.namespace()?;
        let size = HumanSize(namespace.size_bytes().into()).to_string();
        tracing::info!(
            socket = %socket.path().display(), namespace = name(association, *nsid), %size,
            block_bytes = namespace.lba_bytes(), "vhost-user disk"
        );
        lines += &format!("{}\n", socket.path().display());
        sockets.push(socket);
    }
    let devices: Vec<VhostUserDevice> = disks.iter().map(|(device, ..)| device.clone()).collect();
    for association in &associations {
        let of_it = disks.iter().filter(|(_, owner, _)| std::ptr::eq(*owner, association));
        let of_it: Vec<_> = of_it.map(|(device, _, nsid)| (*nsid, device.clone())).collect();
        let (events, over) = (association.events(), wakes.clone());
        start_thread(move || follow_events(&events, &of_it, &over))?;
    }
    if disk.run.is_empty() {
        write(&lines)?;
    }
    let shown = lines.trim_end().replace('\n', ", ");
    ServiceManager::of_environment().tell(format_args!("READY=1\nSTATUS={} disks at {shown}", devices.len()));
    let paths: Vec<String> = lines.lines().map(str::to_owned).collect();
    let _entry = Entry::make("vhost-user", &arguments.addresses, &paths);
    let first = sockets.first().map(|socket| socket.path().display().to_string());
    let ended = start_command(&disk.run, first.as_ref(), wakes)
        .map_err(Failure::from)
        .and_then(|command| wait(&wake, command));
    // The threads that accept keep the listeners to the end of the process.
    sockets.iter().for_each(|socket| socket.remove());
    let until = Instant::now() + END_TIME;
    for device in &devices {
        if !device.end(until.saturating_duration_since(Instant::now())) {
            tracing::warn!(
                limit_s = END_TIME.as_secs(),
                "requests of a guest are cut: they have not ended in time"
            );
        }
    }
    associations.iter().for_each(Association::close);
    ended
}

/// The namespace that the address names, or all block namespaces.
pub(super) fn served(association: &Association) -> Result<Vec<Nsid>, Failure> {
    let all = block_namespaces(association);
    if association.address().nsid.is_none() && !all.is_empty() {
        return Ok(all);
    }
    Ok(vec![association.addressed_namespace()?.nsid()])
}

/// A namespace in messages.
pub(super) fn name(association: &Association, nsid: Nsid) -> String {
    format!("{}?ns={nsid}", association.subsystem())
}

impl VhostUserArguments {
    fn connect(&self, address: Address) -> Result<Association, Failure> {
        let disks = self.disk.socket.len().div_ceil(self.addresses.len()).max(1);
        let lanes = usize::from(self.disk.queues).saturating_mul(disks).min(LANES_MAX);
        let lanes = u16::try_from(lanes).unwrap_or(u16::MAX);
        let (address, options) =
            with_subsystem(address, |address| self.lanes.options(&self.host, address, lanes))?;
        Ok(Association::connect(&address, options)?)
    }

    /// How each of these disks of an association is served.
    fn settings(&self, association: &Association, disks: usize) -> VhostUserSettings {
        let granted = association.queues().default;
        let share = usize::from(granted) / disks.max(1);
        let threads = u16::try_from(share).unwrap_or(u16::MAX).clamp(1, self.disk.queues);
        if threads < self.disk.queues {
            tracing::debug!(granted, disks, queues = self.disk.queues, threads, "queues share threads");
        }
        VhostUserSettings { is_read_only: self.disk.read_only, queues: self.disk.queues, threads }
    }
}

/// Tells guests of changes, until the association's end. The host library logs its loss and return.
fn follow_events(events: &Events, devices: &[(Nsid, VhostUserDevice)], wakes: &Sender<Wake>) {
    while let Ok(event) = events.recv() {
        match event {
            Event::NamespacesChanged(nsids) => {
                devices
                    .iter()
                    .filter(|(nsid, _)| nsids.contains(nsid))
                    .for_each(|(_, device)| device.on_changed());
            }
            Event::Over(error) => drop(wakes.send(Wake::Over(error.to_string()))),
            _ => {}
        }
    }
}
