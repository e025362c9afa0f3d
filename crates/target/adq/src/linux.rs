//! A device of this machine: sysfs, procfs and netlink.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use linux::SockOps;
use rustix::io::Errno;

use crate::change::{Change, MQPRIO_HANDLE};
use crate::control_group::{Group, PRIVILEGE, topmost_group};
use crate::ioctl::Ioctl;
use crate::kernel::{Failure, Kernel};
use crate::netlink::ethtool::Ethtool;
use crate::netlink::filter;
use crate::netlink::link::{self, Link};
use crate::netlink::qdisc;
use crate::netlink::socket::{NetlinkError, NetlinkSocket};
use crate::netlink::{dcb, netdev};
use crate::opponent;
use crate::rate::Rate;
use crate::scaling::{Rule, Scaling, Table};
use crate::sock_ops::SocketProgram;
use crate::state::{Device, DeviceState, Identity, Interrupt, TransmitQueue, normal_mask};
use crate::sysfs::{self, Sysfs};

/// Features that a layout may change.
const FEATURES: [&str; 2] = ["hw-tc-offload", "rx-ntuple-filter"];
/// Longest wait for a device whose driver builds its queues again.
const READY_TIME_MAX: Duration = Duration::from_secs(30);
/// Longest wait for a device to take a filter: ice refuses filters for seconds after its classes have changed.
const FILTER_TIME_MAX: Duration = Duration::from_secs(15);
/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// A network device of this machine.
#[derive(Debug)]
pub struct LinuxDevice {
    interface: String,
    ifindex: u32,
    /// Its directory in `sysfs`.
    directory: PathBuf,
    _sysfs: Sysfs,
    route: NetlinkSocket,
    ethtool: Ethtool,
    ioctl: Ioctl,
    /// Control groups whose programs are part of the settings.
    groups: BTreeSet<String>,
}

impl LinuxDevice {
    /// Opens `interface`.
    ///
    /// # Errors
    /// [`Failure`] if there is no such interface; names those that are there.
    pub fn open(interface: &str) -> Result<Self, Failure> {
        let mut route = NetlinkSocket::route().map_err(|error| failure(&error))?;
        let links = link::list(&mut route).map_err(|error| failure(&error))?;
        let ifindex = find(&links, interface)?.ifindex;
        let sysfs = Sysfs::of(&links)?;
        let directory = sysfs.directory(interface);
        let ethtool = Ethtool::open().map_err(|error| failure(&error))?;
        let ioctl = Ioctl::open(interface).map_err(of_driver)?;
        let groups = BTreeSet::new();
        let interface = interface.into();
        Ok(Self { interface, ifindex, directory, _sysfs: sysfs, route, ethtool, ioctl, groups })
    }

    /// Reads the programs of these control groups with the settings of the device. It takes bpf(2), which filters of
    /// system calls may forbid, so none are read unless they are asked for.
    pub fn look_into(&mut self, groups: impl IntoIterator<Item = String>) {
        self.groups.extend(groups);
    }

    fn queue_directory(&self, queue: u16) -> PathBuf {
        self.directory.join(format!("queues/tx-{queue}"))
    }

    fn queue_count(&self, prefix: &str) -> u16 {
        let entries = fs::read_dir(self.directory.join("queues")).into_iter().flatten().flatten();
        let count = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)).count();
        u16::try_from(count).unwrap_or(u16::MAX)
    }

    fn transmit_queues(&self) -> Vec<TransmitQueue> {
        (0..self.queue_count("tx-"))
            .map(|queue| {
                let directory = self.queue_directory(queue);
                let mask = |name| normal_mask(&read(&directory.join(name)).unwrap_or_default());
                TransmitQueue { receive_queues: mask("xps_rxqs"), cpus: mask("xps_cpus") }
            })
            .collect()
    }

    fn interrupts(&self) -> Vec<Interrupt> {
        let entries = fs::read_dir(self.directory.join("device/msi_irqs")).into_iter().flatten().flatten();
        let mut numbers: Vec<u32> =
            entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        // A virtio device has its interrupts one level above, at its PCI device.
        let entries = fs::read_dir(self.directory.join("device/../msi_irqs")).into_iter().flatten().flatten();
        numbers.extend(entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()));
        numbers.sort_unstable();
        numbers.dedup();
        let table = fs::read_to_string("/proc/interrupts").unwrap_or_default();
        let names = interrupt_names(&table);
        numbers
            .into_iter()
            .filter_map(|irq| {
                let queue = queue_of(names.get(&irq)?)?;
                let cpus = read(Path::new(&format!("/proc/irq/{irq}/smp_affinity_list")))?;
                Some(Interrupt { irq, queue: Some(queue), cpus })
            })
            .collect()
    }

    /// Waits until the device has its queues and, if it had one, its link again.
    fn wait_until_ready(&mut self, had_carrier: bool, queues: Option<u16>) -> Result<(), Failure> {
        let deadline = Instant::now() + READY_TIME_MAX;
        loop {
            let has_carrier = !had_carrier || self.has_carrier();
            let has_queues = queues.is_none_or(|queues| self.queue_count("tx-") >= queues);
            if has_carrier && has_queues {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let missing = if has_queues { "its link is down" } else { "its queues are missing" };
                return Err(Failure(format!(
                    "{} is not ready {READY_TIME_MAX:?} later: {missing}",
                    self.interface
                )));
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    fn has_carrier(&self) -> bool {
        read(&self.directory.join("carrier")).is_some_and(|carrier| carrier == "1")
    }

    /// Adds a filter; a device that is not yet ready for it is asked again.
    fn add_filter(&mut self, filter: &filter::Filter) -> Result<(), NetlinkError> {
        let deadline = Instant::now() + FILTER_TIME_MAX;
        loop {
            match self.route.request(filter.add(self.ifindex), |_| {}) {
                Err(NetlinkError::Refused { errno: Errno::AGAIN | Errno::BUSY, .. })
                    if Instant::now() < deadline =>
                {
                    std::thread::sleep(LOOK_INTERVAL);
                }
                result => return result,
            }
        }
    }

    /// The opponents of a layout of this device.
    fn opponents(&mut self) -> Result<Vec<String>, NetlinkError> {
        let mut opponents = running(&opponent::PROGRAMS);
        let record = format!("/run/NetworkManager/devices/{}", self.ifindex);
        if read(Path::new(&record)).is_some_and(|record| record.lines().any(|line| line == "managed=true"))
            && !running(&[opponent::NETWORK_MANAGER]).is_empty()
        {
            opponents.push(opponent::NETWORK_MANAGER.into());
        }
        if dcb::is_managed_by_device(&mut self.route, &self.interface)? {
            opponents.push(opponent::DCB_IN_FIRMWARE.into());
        }
        Ok(opponents)
    }

    /// How arriving packets are spread and steered.
    fn scaling(&self) -> Result<Scaling, Errno> {
        let table = self.ioctl.default_table()?;
        let contexts = if table.is_empty() { None } else { self.ioctl.contexts() };
        Ok(Scaling { table, contexts, rules: self.ioctl.rules()? })
    }

    fn set_table(&self, table: &Table) -> Result<(), Errno> {
        if *table == Table::Default {
            return self.ioctl.set_default_table(&[]);
        }
        let length = self.ioctl.default_table()?.len();
        self.ioctl.set_default_table(&table.entries(length, self.queue_count("rx-")))
    }

    fn add_context(&self, queues: qdisc::QueueRange) -> Result<(), Errno> {
        let length = self.ioctl.default_table()?.len();
        self.ioctl.add_context(&Table::Queues(queues).entries(length, 0))
    }

    fn add_rule(&self, rule: &Rule) -> Result<(), Errno> {
        let context = self.scaling()?.context_of(rule.queues).ok_or(Errno::NOENT)?;
        self.ioctl.add_rule(&rule.flow, context)
    }

    fn write(path: &Path, value: &str) -> Result<(), Failure> {
        fs::write(path, value)
            .map_err(|error| Failure(format!("{}: {error}", sysfs::known_path(path).display())))
    }

    fn set_transmit_queue(&self, queue: u16, users: &TransmitQueue) -> Result<(), Failure> {
        let directory = self.queue_directory(queue);
        let now = |name: &str| normal_mask(&read(&directory.join(name)).unwrap_or_default());
        for (name, value) in [("xps_cpus", &users.cpus), ("xps_rxqs", &users.receive_queues)] {
            if now(name) != *value {
                Self::write(&directory.join(name), value)?;
            }
        }
        Ok(())
    }
}

/// Receive queues of an interface by their NAPI ids; empty if the kernel (before 6.8) or the driver does not report
/// them.
///
/// # Errors
/// [`Failure`] if there is no such interface, or the kernel does not answer.
pub fn receive_queues_of_napi(interface: &str) -> Result<BTreeMap<u32, u16>, Failure> {
    let mut route = NetlinkSocket::route().map_err(|error| failure(&error))?;
    let links = link::list(&mut route).map_err(|error| failure(&error))?;
    netdev::receive_queues(find(&links, interface)?.ifindex).map_err(|error| failure(&error))
}

/// The interface of this name.
///
/// # Errors
/// [`Failure`] with the names of those that are there.
fn find<'a>(links: &'a [Link], interface: &str) -> Result<&'a Link, Failure> {
    links.iter().find(|link| link.name == interface).ok_or_else(|| {
        let mut names: Vec<_> = links.iter().map(|link| link.name.as_str()).collect();
        names.sort_unstable();
        Failure(format!("no interface {interface}; there are {}", names.join(", ")))
    })
}

impl Kernel for LinuxDevice {
    fn device(&mut self) -> Result<Device, Failure> {
        let name_of_link = |name: &str| {
            let target = fs::read_link(self.directory.join(name)).ok()?;
            Some(target.file_name()?.to_string_lossy().into_owned())
        };
        let lower = fs::read_dir(&self.directory)
            .into_iter()
            .flatten()
            .flatten()
            .find_map(|entry| entry.file_name().to_str()?.strip_prefix("lower_").map(str::to_owned));
        let links = link::list(&mut self.route).map_err(|error| failure(&error))?;
        // By its number: a name may be given to another interface.
        let link = links.into_iter().find(|link| link.ifindex == self.ifindex && link.name == self.interface);
        let link = link.ok_or_else(|| Failure(format!("interface {} is gone", self.interface)))?;
        // A virtual device has no driver; its kind serves instead.
        let driver = name_of_link("device/driver").or(link.kind);
        let speed = read(&self.directory.join("speed"))
            .and_then(|text| text.parse::<u64>().ok()) // -1 stands for no link.
            .filter(|mbit| *mbit > 0)
            .map(|mbit| Rate::from_bits(mbit * 1_000_000));
        Ok(Device {
            identity: Identity {
                interface: self.interface.clone(),
                ifindex: self.ifindex,
                address: link.address,
                boot: read(Path::new("/proc/sys/kernel/random/boot_id")).unwrap_or_default(),
            },
            driver: driver.unwrap_or_else(|| "a device without a driver".into()),
            speed,
            master: name_of_link("master"),
            lower,
            online_cpus: read(Path::new("/sys/devices/system/cpu/online"))
                .map(|list| numbers(&list))
                .unwrap_or_default(),
            is_up: link.is_up,
            cpu_count: std::thread::available_parallelism()
                .map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX)),
            opponents: self.opponents().map_err(|error| failure(&error))?,
            network: self.ioctl.network_cookie().unwrap_or(0),
            cgroup: topmost_group(),
        })
    }

    fn state(&mut self) -> Result<DeviceState, Failure> {
        let of_netlink = |error: NetlinkError| failure(&error);
        let mut features = self.ethtool.features(self.ifindex).map_err(of_netlink)?;
        features.retain(|name, _| FEATURES.contains(&name.as_str()));
        let mut state = DeviceState {
            channels: self.ethtool.channels(self.ifindex).map_err(of_netlink)?,
            receive_queue_count: self.queue_count("rx-"),
            features,
            scaling: self.scaling().map_err(of_driver)?,
            private_flags: self.ethtool.private_flags(self.ifindex).map_err(of_netlink)?,
            transmit_queues: self.transmit_queues(),
            interrupts: self.interrupts(),
            groups: self.groups.iter().map(|group| (group.clone(), programs_of(group))).collect(),
            ..DeviceState::default()
        };
        state.moderations = self.ioctl.moderations(state.queue_pairs()).map_err(of_driver)?;
        state.set_disciplines(qdisc::list(&mut self.route, self.ifindex).map_err(of_netlink)?);
        if state.filter_holder.is_some() {
            state.filters = filter::list(&mut self.route, self.ifindex).map_err(of_netlink)?;
        }
        Ok(state)
    }

    fn carry_out(&mut self, change: &Change) -> Result<(), Failure> {
        let had_carrier = self.has_carrier();
        let ifindex = self.ifindex;
        let result = match change {
            Change::Feature { name, is_on } => self.ethtool.set_feature(ifindex, name, *is_on),
            Change::PrivateFlag { name, is_on } => self.ethtool.set_private_flag(ifindex, name, *is_on),
            Change::Channels(wanted) => self
                .ethtool
                .channels(ifindex)
                .and_then(|channels| self.ethtool.set_channels(ifindex, channels.current, *wanted)),
            Change::AddMqprio(mqprio) => {
                self.route.request(qdisc::add_mqprio(ifindex, MQPRIO_HANDLE, mqprio), |_| {})
            }
            Change::DeleteRoot => self.route.request(qdisc::delete_root(ifindex), |_| {}),
            Change::AddClsact => self.route.request(qdisc::add_clsact(ifindex), |_| {}),
            Change::DeleteClsact => self.route.request(qdisc::delete_clsact(ifindex), |_| {}),
            Change::AddFilter(filter) => self.add_filter(filter),
            Change::DeleteFilter(filter) => self.route.request(filter.delete(ifindex), |_| {}),
            Change::SetTable(table) => return self.set_table(table).map_err(|errno| refused(change, errno)),
            Change::AddContext(queues) => {
                return self.add_context(*queues).map_err(|errno| refused(change, errno));
            }
            Change::DeleteContext(id) => {
                return self.ioctl.delete_context(*id).map_err(|errno| refused(change, errno));
            }
            Change::AddRule(rule) => return self.add_rule(rule).map_err(|errno| refused(change, errno)),
            Change::DeleteRule(location) => {
                return self.ioctl.delete_rule(*location).map_err(|errno| refused(change, errno));
            }
            Change::Moderation { queue, wanted } => {
                return self.ioctl.set_moderation(*queue, *wanted).map_err(|errno| refused(change, errno));
            }
            Change::Interrupt { irq, cpus } => {
                return Self::write(Path::new(&format!("/proc/irq/{irq}/smp_affinity_list")), cpus);
            }
            Change::TransmitQueue { queue, users } => return self.set_transmit_queue(*queue, users),
            Change::AttachProgram(program) => return attach(program),
            Change::DetachProgram(program) => return detach(program),
        };
        result.map_err(|error| explained(change, &error))?;
        match change {
            Change::Channels(channels) => {
                let pairs = u16::try_from(channels.pairs()).unwrap_or(u16::MAX);
                self.wait_until_ready(had_carrier, Some(pairs))
            }
            Change::AddMqprio(_) | Change::DeleteRoot => self.wait_until_ready(had_carrier, None),
            _ => Ok(()),
        }
    }
}

/// The programs of sockets of a control group.
fn programs_of(group: &str) -> Group {
    let read = || -> io::Result<Vec<String>> {
        // A program that one attaches must be found again, which takes a privilege. No program has the number 0.
        if let Err(error) = SockOps::by_id(0)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let directory = fs::File::open(group)?;
        let mut names = Vec::new();
        for id in SockOps::attached_to(&directory)? {
            match SockOps::by_id(id) {
                // It ended meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                program => names.push(program?.name()?),
            }
        }
        Ok(names)
    };
    match read() {
        Ok(names) => Group::Programs(names),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Group::Hidden,
        Err(error) => Group::Unusable(reason_of(&error)),
    }
}

/// The kernel's reason to refuse an operation on a program of sockets.
fn reason_of(error: &io::Error) -> String {
    let hint = match Errno::from_io_error(error) {
        Some(Errno::PERM | Errno::ACCESS) => {
            return format!("{error}; it takes {PRIVILEGE}, outside of containers that forbid bpf(2)");
        }
        Some(Errno::NOSYS) => "this kernel has no bpf(2)",
        Some(Errno::INVAL) => "this kernel has no programs of control groups (CONFIG_CGROUP_BPF)",
        Some(Errno::BADF) => "it is no control group of version 2",
        _ => return error.to_string(),
    };
    format!("{error}; {hint}")
}

fn attach(program: &SocketProgram) -> Result<(), Failure> {
    let attach = || -> io::Result<()> {
        let directory = fs::File::open(&program.group)?;
        let loaded = SockOps::load(&program.name, &program.instructions())?;
        loaded.attach(&directory)
    };
    attach().map_err(|error| Failure(format!("{}; or priority = \"filter\"", reason_of(&error))))
}

fn detach(program: &SocketProgram) -> Result<(), Failure> {
    let detach = || -> io::Result<()> {
        let directory = fs::File::open(&program.group)?;
        for id in SockOps::attached_to(&directory)? {
            let attached = SockOps::by_id(id)?;
            if attached.name()? == program.name {
                attached.detach(&directory)?;
            }
        }
        Ok(())
    };
    detach().map_err(|error| Failure(reason_of(&error)))
}

fn failure(error: &NetlinkError) -> Failure {
    Failure(error.to_string())
}

/// The failure of a driver to report its settings.
fn of_driver(errno: Errno) -> Failure {
    Failure(errno.to_string())
}

/// The driver's refusal; the system call has no words for it.
fn refused(change: &Change, errno: Errno) -> Failure {
    let hint = match (change, errno) {
        (_, Errno::PERM | Errno::ACCESS) => "changing a device needs root or CAP_NET_ADMIN",
        (Change::AddRule(_), Errno::NOSPC) => "the driver's table of rules is full",
        (Change::AddRule(_), Errno::NOENT) => "the context of its class is gone",
        (Change::AddContext(_) | Change::AddRule(_), Errno::AGAIN) => "the interface is down",
        (Change::AddContext(_), Errno::OPNOTSUPP) => "this card or its firmware has no RSS contexts",
        _ => "the driver may have written its reason to the kernel log (dmesg)",
    };
    Failure(format!("{errno}; {hint}"))
}

/// The kernel's refusal, with a hint where the kernel gives no message (6.1 never does).
fn explained(change: &Change, error: &NetlinkError) -> Failure {
    let hint = match (change, error.errno()) {
        (_, Some(Errno::PERM | Errno::ACCESS)) => "; changing a device needs root or CAP_NET_ADMIN",
        (Change::AddMqprio(_), Some(Errno::NOENT)) => "; this kernel has no mqprio (module sch_mqprio)",
        (Change::AddClsact, Some(Errno::NOENT)) => "; this kernel has no clsact (module sch_ingress)",
        (Change::AddFilter(_), Some(Errno::NOENT)) => "; this kernel has no flower (module cls_flower)",
        (Change::AddMqprio(_), Some(Errno::INVAL | Errno::OPNOTSUPP)) => {
            "; the driver may have written its reason to the kernel log (dmesg)"
        }
        (Change::AddFilter(_), Some(Errno::OPNOTSUPP | Errno::INVAL)) => {
            "; the device does not take this filter; its driver may have written why to the kernel log (dmesg)"
        }
        (Change::Channels(_), Some(Errno::BUSY)) => "; another driver holds the queues (irdma does)",
        _ => "",
    };
    Failure(format!("{error}{hint}"))
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// The numbers of a list such as `0-3,8`.
fn numbers(list: &str) -> Vec<u16> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<u16>().ok()?..=last.parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// Those of `names` that run.
fn running(names: &[&str]) -> Vec<String> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut found: Vec<String> = processes
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(|first: char| first.is_ascii_digit()))
        .filter_map(|entry| read(&entry.path().join("comm")))
        .filter(|name| names.contains(&name.as_str()))
        .collect();
    found.sort();
    found.dedup();
    found
}

/// Names in the last column of `/proc/interrupts`, by number.
fn interrupt_names(table: &str) -> BTreeMap<u32, String> {
    table
        .lines()
        .filter_map(|line| {
            let (number, rest) = line.trim_start().split_once(':')?;
            Some((number.parse().ok()?, rest.split_whitespace().last()?.to_owned()))
        })
        .collect()
}

/// The receive queue of an interrupt, by the name that its driver gives it.
fn queue_of(name: &str) -> Option<u16> {
    let digits_after = |prefix: &str| {
        let (_, rest) = name.rsplit_once(prefix)?;
        let end = rest.find(|sign: char| !sign.is_ascii_digit()).unwrap_or(rest.len());
        rest[..end].parse().ok()
    };
    if name.contains("output") {
        return None;
    }
    // ice-eth0-TxRx-3, i40e-eth0-TxRx-3, eth0-TxRx-3, virtio1-input.3, mlx5_comp3@pci:…, hns3-…-TxRx-3, eth0-rx-3
    ["TxRx-", "-input.", "mlx5_comp", "-rx-", "-Rx-"].iter().find_map(|prefix| digits_after(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_interrupts_tell_their_queues() {
        for (name, queue) in [
            ("ice-eth0-TxRx-3", Some(3)),
            ("i40e-ens801f0-TxRx-12", Some(12)),
            ("virtio1-input.2", Some(2)),
            ("virtio1-output.2", None),
            ("virtio1-config", None),
            ("mlx5_comp7@pci:0000:01:00.0", Some(7)),
            ("eth0-rx-1", Some(1)),
            ("ahci[0000:00:1f.2]", None),
        ] {
            assert_eq!(queue_of(name), queue, "{name}");
        }
        let table = "           CPU0       CPU1\n  0:   9 0  IO-APIC 2-edge timer\n 30:  1 2  PCI-MSIX-0000:00:04.0 1-edge virtio1-input.0\nNMI: 0 0 Non-maskable interrupts\n";
        let names = interrupt_names(table);
        assert_eq!(names.get(&30).map(String::as_str), Some("virtio1-input.0"));
        assert_eq!(names.len(), 2);
    }

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(numbers("0-2,5,8-9"), [0, 1, 2, 5, 8, 9]);
        assert_eq!(numbers(""), [0; 0]);
    }

    #[test]
    fn the_loopback_device_is_read() {
        let mut device = LinuxDevice::open("lo").unwrap();
        assert_eq!(device.device().unwrap().identity.ifindex, 1);
        let state = device.state().unwrap();
        assert_eq!((state.queue_pairs(), state.root), (1, None));
        assert!(LinuxDevice::open("none0").unwrap_err().to_string().contains("there are "));
    }
}
