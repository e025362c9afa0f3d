//! The place of the targets of `adq`: a network namespace of this machine, or the machine of a study server; and how
//! their device steers to them.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::super::prelude::*;
use super::{ARFS, MEMCACHED, MEMCACHED_PORT, NVME, ON, POLL_US};
use crate::bench::Devices;
use crate::counters::Counters;
use crate::network::{Link, Network, Offloads};
use crate::remote::MachineDescription;
use crate::steering::{Setting, SteeredDevice, Steering, device_of};

/// Ports on this machine: every port is free in a new network namespace.
const NVME_PORT: u16 = 4420;
const NEIGHBOUR_PORT: u16 = 4421;

/// The neighbour's load: writes per second, bytes, and most of them in flight.
const NEIGHBOUR: [(&str, &str); 4] = [("-w", "randwrite"), ("-o", "65536"), ("-q", "16"), ("--rate", "1000")];

/// The settings of a device for the application of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Whether the application's reactor polls its queue.
    polls: bool,
    steering: Option<Steering>,
}

impl Wanted {
    /// The settings that a cell names.
    fn of(switch: &str) -> Self {
        let steering = match switch {
            ON => Some(Steering::OwnQueues),
            ARFS => Some(Steering::Arfs),
            _ => None,
        };
        Self { polls: switch == ON, steering }
    }

    fn poll_us(self) -> u32 {
        if self.polls { POLL_US } else { 0 }
    }
}

/// A place for targets.
pub(super) struct Place {
    wanted: Wanted,
    application: String,
    /// Of this machine; `None`: the targets are on that of the study server.
    here: Option<Here>,
}

/// A network of this machine, and on it a layout of queues.
struct Here {
    /// Dropped before the network.
    _setting: Option<Setting>,
    network: Network,
    /// Address of the application.
    address: Ipv4Addr,
    /// The device in sysfs, if it has interrupts.
    device: Option<PathBuf>,
    /// Directory of the record of the layout.
    record: PathBuf,
    separation: String,
}

/// The target under load.
pub(super) struct Application {
    pub(super) served: Served,
    device: Option<PathBuf>,
    /// How queues are separated, in a sentence.
    pub(super) separation: String,
}

impl Application {
    /// Counters of its process and device.
    pub(super) fn counters(&self) -> Result<Counters, Error> {
        self.served.counters(self.device.as_deref())
    }
}

impl Place {
    pub(super) fn new(bench: &Bench, switch: &str, application: &str) -> Result<Self, Error> {
        let (wanted, application) = (Wanted::of(switch), application.to_owned());
        let is_local = !bench.is_remote();
        let here = is_local.then(|| Here::new(bench, wanted, &application)).transpose()?;
        Ok(Self { wanted, application, here })
    }

    /// Starts the application.
    pub(super) fn serve(&self, bench: &Bench) -> Result<Application, Error> {
        match &self.here {
            Some(here) => here.serve(bench, self.wanted, &self.application),
            None => serve_there(bench, self.wanted, &self.application),
        }
    }

    /// Starts another target on the application's core.
    fn serve_neighbour(&self, bench: &Bench) -> Result<Served, Error> {
        let options = ServedOptions::of(["null:1T"]);
        match &self.here {
            Some(Here { network, .. }) => {
                network.serve_at(bench, SocketAddr::from((network.target, NEIGHBOUR_PORT)), options)
            }
            None => bench.serve_with(options.on_cores(1)),
        }
    }
}

impl Here {
    fn new(bench: &Bench, wanted: Wanted, application: &str) -> Result<Self, Error> {
        let record = bench.scratch.join("layout");
        let Some(devices) = &bench.devices else {
            let link = Link { mtu: 1500, offloads: Offloads::Receive };
            let mut network = Network::new(link)?;
            // On, the neighbour keeps the first pair for itself.
            let address = if wanted.polls { network.add(link)? } else { network.target };
            let separation = "Pairs of virtual Ethernet devices: queues are separated in software, one pair each, and nothing here is a figure of a card."
                .into();
            let (_setting, device) = (None, None);
            return Ok(Self { _setting, network, address, device, record, separation });
        };
        let device = device_of(&devices.interface);
        let network = Network::of(devices)?;
        let address = network.target;
        let Devices { interface, peer } = devices;
        let launcher = network.enter();
        let steered =
            SteeredDevice { interface, program: &bench.program, launcher: &launcher, record: Some(&record) };
        let mut separation = format!("{interface}, loaded through {peer}.");
        let setting = match wanted.steering {
            Some(Steering::OwnQueues) => {
                let port = if application == NVME { NVME_PORT } else { MEMCACHED_PORT };
                let core = bench.cores.map(|cores| cores.target);
                let (setting, means) = steered.apply_layout(SocketAddr::from((address, port)), core)?;
                separation = format!("{separation} {}", of_means(&means));
                Some(setting)
            }
            Some(Steering::Arfs) => Some(steered.turn_on_arfs()?),
            None => None,
        };
        Ok(Self { _setting: setting, network, address, device, record, separation })
    }

    fn serve(&self, bench: &Bench, wanted: Wanted, application: &str) -> Result<Application, Error> {
        let mut arguments = vec!["--busy-poll".to_owned(), wanted.poll_us().to_string()];
        if wanted.polls {
            arguments.extend(["--placement", "napi"].map(str::to_owned));
        }
        arguments.extend(["--adq-record".to_owned(), self.record.display().to_string()]);
        let options = ServedOptions {
            arguments,
            memcached: (application == MEMCACHED).then(|| SocketAddr::from((self.address, MEMCACHED_PORT))),
            ..ServedOptions::of([namespace_of(application)])
        };
        let served = self.network.serve_at(bench, SocketAddr::from((self.address, NVME_PORT)), options)?;
        Ok(Application { served, device: self.device.clone(), separation: self.separation.clone() })
    }
}

/// Starts the application on the study server's machine, which then sets its interface for it, if its operator allows that.
fn serve_there(bench: &Bench, wanted: Wanted, application: &str) -> Result<Application, Error> {
    let tuning = TargetTuning { busy_poll_us: Some(wanted.poll_us()), ..TargetTuning::default() };
    let options = ServedOptions {
        // The server asks the target whether it has seen the layout.
        tells: true,
        // The server chooses another address.
        memcached: (application == MEMCACHED).then(|| SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        ..ServedOptions::of([namespace_of(application)]).on_cores(1).tuned(tuning)
    };
    let served = bench.serve_with(options)?;
    let machine = bench.server.as_ref().map(|server| &server.machine);
    let mut separation = separation_there(machine);
    let has_interface = machine.is_some_and(|machine| machine.steering.is_some());
    match wanted.steering {
        Some(Steering::OwnQueues) if has_interface => {
            separation = format!("{separation} {}", of_means(&served.steer(Steering::OwnQueues)?));
        }
        Some(Steering::Arfs) => drop(served.steer(Steering::Arfs)?),
        _ => {}
    }
    Ok(Application { served, device: None, separation })
}

/// How a study server's machine separates queues, in a sentence.
fn separation_there(machine: Option<&MachineDescription>) -> String {
    match machine.and_then(|machine| machine.steering.as_ref()) {
        Some(steering) => format!("{} of the targets' machine.", steering.interface),
        None => "On is polling alone: queues are those that all traffic of the targets' machine shares, since its study server \
                 was started without --interface."
            .to_owned(),
    }
}

/// How a layout separates queues, in a sentence.
fn of_means(means: &str) -> String {
    match means {
        "software" => "Its driver has no offload: queues are separated in software, for what leaves only, and nothing here is a figure of a card with it.".to_owned(),
        means => format!("On is a layout of nvlane adq (means: {means})."),
    }
}

fn namespace_of(application: &str) -> &'static str {
    if application == MEMCACHED { "kv:ram:64M" } else { "null:1T" }
}

/// Another target beside the application, and its load from this machine.
pub(super) struct Neighbour {
    load: Child,
    _served: Served,
}

impl Neighbour {
    pub(super) fn start(place: &Place, bench: &Bench) -> Result<Self, Error> {
        let served = place.serve_neighbour(bench)?;
        let mut command = Command::new(&bench.program);
        command.arg("perf").arg(served.address().to_string()).args(["-t", "86400", "-a", "0"]);
        for (option, value) in NEIGHBOUR {
            command.args([option, value]);
        }
        if let Some(cores) = bench.cores {
            command.args(["-c", &cores.host.to_string()]);
        }
        let load = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let load = load.doing("cannot start the neighbour's load")?;
        Ok(Self { load, _served: served })
    }

    pub(super) fn end(mut self) -> Result<(), Error> {
        match self.load.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(Error::Load(format!("the neighbour's ended before its time ({status})"))),
            Err(error) => Err(Error::system("the neighbour's load", error)),
        }
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.load.kill();
        let _ = self.load.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::SteeringInterface;

    #[test]
    fn without_an_interface_of_the_server_on_is_polling_alone() {
        let machine = crate::two_machines::example::machine().machine;
        assert!(separation_there(Some(&machine)).starts_with("On is polling alone: "));
        let steering = Some(SteeringInterface { interface: "eth1".to_owned(), has_arfs: false });
        let machine = MachineDescription { steering, ..machine };
        assert_eq!(separation_there(Some(&machine)), "eth1 of the targets' machine.");
        assert_eq!(of_means("channels"), "On is a layout of nvlane adq (means: channels).");
    }

    #[test]
    fn only_queues_of_its_own_are_polled() {
        let polls = ["off", ON, ARFS].map(|switch| Wanted::of(switch).poll_us());
        assert_eq!(polls, [0, POLL_US, 0]);
        assert_eq!(Wanted::of(ARFS).steering, Some(Steering::Arfs));
    }
}
