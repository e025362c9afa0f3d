//! `nvlane attach ublk`: namespaces as block devices of this machine.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use bridge::{
    UblkDevice, UblkError, UblkSettings, check_ublk, keep_memory, leave_io_flusher, remove_ublk_device,
    ublk_is_privileged,
};
use clap::Args;
use command_line::connection::{HostOptions, with_subsystem};
use command_line::exit::{Ended, Failure, Kind};
use command_line::output::write;
use host::{Address, Association, Event, Events, Nsid};

use super::process::{END_TIME, LaneArguments, Wake, handle_signals, parse_addresses, start_command, wait};
use super::running::Entry;
use super::vhost_user::{name, served};
use crate::human_size::HumanSize;
use crate::serve::start_thread;
use crate::service_manager::ServiceManager;

/// Lanes of one association.
const LANES_MAX: usize = 1024;

/// Time that requests wait for a lost target where the kernel kills an unprivileged bridge whose request takes 30 s.
const UNPRIVILEGED_WAIT_MAX: Duration = Duration::from_secs(20);

/// Timeout of one command there: as long as it takes to notice that the network is gone.
const UNPRIVILEGED_ANSWER_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nvlane attach ublk 192.0.2.1 & mkfs.ext4 /dev/ublkb0 && mount /dev/ublkb0 /mnt
  nvlane attach ublk ADDR --run 'fio --name=a --filename=\"$NVLANE_DEVICE\" --direct=1 --ioengine=io_uring --rw=randread'
  nvlane attach ublk ADDR --number 7                                             /dev/ublkb7
  nvlane attach ublk --remove /dev/ublkb0

Needs Linux 6.5 with the module ublk_drv (modprobe ublk_drv), io_uring, and root; as another user only where udev makes \
/dev/ublk-control and the new devices accessible (docs/guide/bridges.md). Each address gives one device for each of its block \
namespaces, in their order.

A bridge that is killed leaves its device: requests wait, also those of a mounted file system, and go on when the same command is \
started again, which takes the device over. --remove ends a device that no bridge serves any more, and that of a bridge which does not \
end; its requests fail. With --no-recovery the device goes away with its bridge.

While the target is lost, requests wait: up to --fast-io-fail, then they fail with an I/O error, and after --ctrl-loss-timeout the bridge \
ends and the device goes away. After a reconnect, the next flush fails once if the target has a volatile write cache: writes that were \
not flushed before may be lost. Without root requests wait 20 s at most.

SIGTERM and Ctrl-C remove the device, also one that is mounted, whose requests fail from then on: unmount it before. A second one ends \
the bridge at once, and leaves the device.")]
pub(crate) struct UblkArguments {
    /// Addresses: `HOST[:PORT][/NQN][?ns=NSID]`, `nvme+tcp://...`, or "traddr:... trsvcid:... subnqn:..."; without an
    /// NQN, the only subsystem there, without a namespace, all its block namespaces.
    #[arg(value_name = "ADDR", env = "NVLANE_ADDR", required_unless_present = "remove")]
    addresses: Vec<String>,
    #[command(flatten)]
    host: HostOptions,
    #[command(flatten)]
    device: DeviceArguments,
    #[command(flatten)]
    lanes: LaneArguments,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Device")]
struct DeviceArguments {
    /// The number N of /dev/ublkbN; once for each device. [default: the first free ones]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..1 << 20))]
    number: Vec<u32>,
    /// Queues of each device, at most one for each core. Each takes a thread, a queue pair of the target, and up to 16 MiB of memory.
    /// [default: one for each core, at most 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    queues: Option<u16>,
    /// Refuse what changes data; the device is read-only.
    #[arg(long)]
    read_only: bool,
    /// If this process is killed, the device goes away, and its requests fail. [default: they wait for the next bridge]
    #[arg(long)]
    no_recovery: bool,
    /// Remove this device, whose bridge is gone, or does not end, and do nothing else.
    #[arg(long, value_name = "DEVICE", conflicts_with_all = ["run", "number", "queues", "read_only", "no_recovery"])]
    remove: Option<String>,
    /// Run this command with the path of the (first) device in $NVLANE_DEVICE, and exit with its exit code. A single word is a
    /// line for the shell.
    #[arg(long, value_name = "COMMAND", num_args = 1.., allow_hyphen_values = true)]
    run: Vec<String>,
}

pub(crate) fn ublk(arguments: &UblkArguments) -> Ended {
    let wanted = &arguments.device;
    if let Some(device) = &wanted.remove {
        remove_ublk_device(device, END_TIME)
            .map_err(|error| failure(error).context(format_args!("--remove {device}: ")))?;
        return Ok(ExitCode::SUCCESS);
    }
    // Before a target is looked for: without it there is no need to.
    check_ublk().map_err(failure)?;
    let (wakes, wake) = channel();
    // Before the devices are there: a signal then removes them.
    handle_signals(wakes.clone())?;
    if !keep_memory() {
        tracing::debug!(
            "memory is not locked, or not that of an I/O flusher: that takes CAP_IPC_LOCK and CAP_SYS_RESOURCE"
        );
    }
    let mut associations = Vec::new();
    for address in parse_addresses(&arguments.addresses)? {
        associations.push(arguments.connect(address)?);
    }
    let mut namespaces = Vec::new();
    for association in &associations {
        let nsids = served(association)?;
        let count = nsids.len();
        namespaces.extend(nsids.into_iter().map(|nsid| (association, nsid, count)));
    }
    if !wanted.number.is_empty() && wanted.number.len() != namespaces.len() {
        let names: Vec<String> =
            namespaces.iter().map(|(association, nsid, _)| name(association, *nsid)).collect();
        return Err(Failure::usage(format!(
            "there are {} devices and {} numbers: give --number N once for each of {}, or not at all",
            names.len(),
            wanted.number.len(),
            names.join(", ")
        )));
    }
    let mut devices = Devices::default();
    let mut lines = String::new();
    for (index, (association, nsid, count)) in namespaces.iter().enumerate() {
        let number = wanted.number.get(index).copied();
        let settings = arguments.settings(association, *count, number);
        let removed = wakes.clone();
        let on_removed = move || {
            let why = "another process has removed the device".to_owned();
            drop(removed.send(Wake::Detached(why)));
        };
        let device = match UblkDevice::start(association, *nsid, &settings, on_removed) {
            Ok(device) => device,
            Err(error) => {
                if devices.0.iter().any(|(.., device)| device.is_taken_over()) {
                    // Those who use the others wait for a bridge that comes.
                    std::mem::forget(devices);
                }
                return Err(failure(error));
            }
        };
        let (path, namespace) = (device.path().display().to_string(), device.namespace());
        let size = HumanSize(namespace.size_bytes().into()).to_string();
        let shown = name(association, *nsid);
        tracing::info!(device = path, namespace = shown, %size, block_bytes = namespace.lba_bytes(), "block device");
        lines += &format!("{path}\n");
        devices.0.push((association, *nsid, Arc::new(device)));
    }
    for association in &associations {
        let of_it = devices.0.iter().filter(|(owner, ..)| std::ptr::eq(*owner, association));
        let of_it: Vec<_> = of_it.map(|(_, nsid, device)| (*nsid, device.clone())).collect();
        let (events, over) = (association.events(), wakes.clone());
        start_thread(move || follow_events(&events, &of_it, &over))?;
    }
    if wanted.run.is_empty() {
        write(&lines)?;
    }
    let shown = lines.trim_end().replace('\n', ", ");
    let count = devices.0.len();
    ServiceManager::of_environment().tell(format_args!("READY=1\nSTATUS={count} block devices: {shown}"));
    let paths: Vec<String> = lines.lines().map(str::to_owned).collect();
    let _entry = Entry::make("ublk", &arguments.addresses, &paths);
    leave_io_flusher();
    start_command(&wanted.run, paths.first(), wakes)
        .map_err(Failure::from)
        .and_then(|command| wait(&wake, command))
}

/// The devices, which are removed at the end, whatever it is.
#[derive(Default)]
struct Devices<'a>(Vec<(&'a Association, Nsid, Arc<UblkDevice>)>);

impl Drop for Devices<'_> {
    fn drop(&mut self) {
        let until = Instant::now() + END_TIME;
        for (_, _, device) in &self.0 {
            if !device.remove(until.saturating_duration_since(Instant::now())) {
                tracing::warn!(
                    limit_s = END_TIME.as_secs(),
                    device = %device.path().display(),
                    "requests of a block device are cut: they have not ended in time"
                );
            }
        }
        self.0.iter().for_each(|(association, ..)| association.close());
    }
}

fn failure(error: UblkError) -> Failure {
    match error {
        UblkError::Host(error) => error.into(),
        UblkError::System { .. } => Failure::new(Kind::Failed, error),
        error => Failure::usage(error),
    }
}

impl UblkArguments {
    /// Queues of each device.
    fn queues(&self) -> u16 {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.device.queues.unwrap_or_else(|| u16::try_from(cores.min(4)).unwrap_or(1))
    }

    fn connect(&self, address: Address) -> Result<Association, Failure> {
        // As many devices as numbers were given. The target may grant fewer lanes.
        let devices = self.device.number.len().div_ceil(self.addresses.len()).max(1);
        let lanes = usize::from(self.queues()).saturating_mul(devices).min(LANES_MAX);
        let lanes = u16::try_from(lanes).unwrap_or(u16::MAX);
        let (address, options) = with_subsystem(address, |address| {
            let options = self.lanes.options(&self.host, address, lanes)?;
            if ublk_is_privileged() {
                return Ok(options);
            }
            let answer = options.command_timeout.min(UNPRIVILEGED_ANSWER_MAX);
            Ok(options.with_command_timeout(answer).tuned(|tuning| {
                let wait = tuning.fast_io_fail.unwrap_or(UNPRIVILEGED_WAIT_MAX);
                tuning.fast_io_fail = Some(wait.min(UNPRIVILEGED_WAIT_MAX));
                tuning.path_timeout = tuning.path_timeout.min(UNPRIVILEGED_WAIT_MAX);
            }))
        })?;
        Ok(Association::connect(&address, options)?)
    }

    /// How each of these devices of an association is served.
    fn settings(&self, association: &Association, devices: usize, number: Option<u32>) -> UblkSettings {
        let granted = association.queues().default;
        let share = u16::try_from(usize::from(granted) / devices.max(1)).unwrap_or(u16::MAX);
        let queues = share.clamp(1, self.queues());
        if queues < self.queues() {
            tracing::debug!(granted, devices, wanted = self.queues(), queues, "devices have fewer queues");
        }
        UblkSettings {
            is_read_only: self.device.read_only,
            queues,
            number,
            outlives_bridge: !self.device.no_recovery,
        }
    }
}

/// Tells devices of changes, until the association's end. The host library logs its loss and return.
fn follow_events(events: &Events, devices: &[(Nsid, Arc<UblkDevice>)], wakes: &Sender<Wake>) {
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
