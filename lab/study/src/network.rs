//! Two network stacks on one machine, connected by a pair of virtual Ethernet devices, or by two of its own with a
//! cable between them: that of this process, and that of a network namespace in which a target runs. Unlike loopback it
//! has an MTU, and a NAPI context that can be polled.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::bench::{Bench, Devices};
use crate::experiment::Error;
use crate::served::Served;
use crate::served_options::ServedOptions;
use crate::steering;

/// Options of the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// MTU, bytes.
    pub(crate) mtu: u32,
    pub(crate) offloads: Offloads,
}

/// Offloads of the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offloads {
    /// Segmentation (TSO): the device takes up to 64 KiB at once and passes it on whole.
    All,
    /// GRO in a NAPI context that can be polled. A veth device with segmentation has no such context.
    Receive,
    /// None: the stack handles each packet.
    None,
}

impl Offloads {
    /// As arguments of `ethtool -K`.
    const fn words(self) -> [&'static str; 6] {
        let (tso, gso, gro) = match self {
            Self::All => ("on", "on", "on"),
            Self::Receive => ("off", "on", "on"),
            Self::None => ("off", "off", "off"),
        };
        ["tso", tso, "gso", gso, "gro", gro]
    }
}

/// The network namespace and its devices; on drop all is as before.
#[derive(Debug)]
pub(crate) struct Network {
    namespace: String,
    /// Our ends of the virtual pairs.
    pairs: Vec<String>,
    /// Devices of the machine that are in use, and the address of ours.
    devices: Option<(Devices, String)>,
    /// Address of the other end of the first link.
    pub(crate) target: Ipv4Addr,
}

/// Longest wait for the link between two devices, which is trained anew.
const CARRIER_TIME_MAX: Duration = Duration::from_secs(15);

impl Network {
    /// Checks that this machine can have such a network.
    ///
    /// # Errors
    /// [`Error::Lacking`]: what is missing, in one line.
    pub(crate) fn check() -> Result<(), Error> {
        for (program, package) in [("ip", "iproute2"), ("ethtool", "ethtool")] {
            let found =
                Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
            if found.is_err() {
                return Err(Error::Lacking(format!("{program} is missing: apt install {package}")));
            }
        }
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Lacking(
                "a network namespace and devices of its own can only be made by root: run it with sudo"
                    .into(),
            ));
        }
        Ok(())
    }

    /// As [`check`](Self::check), for a study on one machine; between two there is a network already.
    pub(crate) fn check_for(bench: &Bench) -> Result<(), Error> {
        if bench.is_remote() { Ok(()) } else { Self::check() }
    }

    /// A pair of devices that can be polled, for a study on one machine; `None` between two.
    pub(crate) fn polled(bench: &Bench) -> Result<Option<Self>, Error> {
        let link = Link { mtu: 1500, offloads: Offloads::Receive };
        if bench.is_remote() { Ok(None) } else { Self::new(link).map(Some) }
    }

    /// Creates the namespace and a pair of devices.
    pub(crate) fn new(link: Link) -> Result<Self, Error> {
        let mut network = Self::empty()?;
        network.target = network.add(link)?;
        Ok(network)
    }

    /// Creates the namespace, and takes two devices of the machine for the link: the target's goes into the namespace.
    pub(crate) fn of(devices: &Devices) -> Result<Self, Error> {
        let Devices { interface, peer } = devices;
        for name in [interface, peer] {
            let addresses = run("ip", &["-o", "address", "show", "dev", name, "scope", "global"])?;
            if !addresses.trim().is_empty() {
                return Err(Error::Lacking(format!(
                    "{name} has an address, so others use it: this study takes a device for itself"
                )));
            }
        }
        let mut network = Self::empty()?;
        let (ours, target) = addresses(0);
        run("ip", &["link", "set", interface, "netns", &network.namespace])?;
        network.devices = Some((devices.clone(), format!("{ours}/30")));
        network.target = target;
        let namespace = network.namespace.clone();
        run("ip", &["address", "add", &format!("{ours}/30"), "dev", peer])?;
        run("ip", &["-n", &namespace, "address", "add", &format!("{target}/30"), "dev", interface])?;
        run("ip", &["link", "set", peer, "up"])?;
        run("ip", &["-n", &namespace, "link", "set", interface, "up"])?;
        let until = Instant::now() + CARRIER_TIME_MAX;
        while !run("ip", &["-o", "link", "show", "dev", peer])?.contains("LOWER_UP") {
            if Instant::now() >= until {
                return Err(Error::Lacking(format!("there is no link between {interface} and {peer}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(network)
    }

    fn empty() -> Result<Self, Error> {
        let namespace = format!("nvlane-{}", std::process::id());
        run("ip", &["netns", "add", &namespace])?;
        // From here on dropping it removes the namespace, and with it the devices.
        let network = Self { namespace, pairs: Vec::new(), devices: None, target: Ipv4Addr::UNSPECIFIED };
        run("ip", &["-n", &network.namespace, "link", "set", "lo", "up"])?;
        Ok(network)
    }

    /// Adds a pair of devices, and returns the address of its other end.
    pub(crate) fn add(&mut self, link: Link) -> Result<Ipv4Addr, Error> {
        let number = self.pairs.len();
        let (ours, target) = addresses(number);
        let id = std::process::id();
        let (near, far) = (format!("nvl{id}n{number}"), format!("nvl{id}f{number}"));
        let mtu = link.mtu.to_string();
        let namespace = self.namespace.as_str();
        run(
            "ip",
            &[
                "link", "add", &near, "mtu", &mtu, "type", "veth", "peer", "name", &far, "mtu", &mtu,
                "netns", namespace,
            ],
        )?;
        self.pairs.push(near.clone());
        run("ip", &["address", "add", &format!("{ours}/30"), "dev", &near])?;
        run("ip", &["-n", namespace, "address", "add", &format!("{target}/30"), "dev", &far])?;
        let offloads = link.offloads.words();
        let near_offloads = [&["-K", near.as_str()][..], &offloads].concat();
        let far_offloads =
            [&["netns", "exec", namespace, "ethtool", "-K", far.as_str()][..], &offloads].concat();
        run("ethtool", &near_offloads)?;
        run("ip", &far_offloads)?;
        run("ip", &["link", "set", &near, "up"])?;
        run("ip", &["-n", namespace, "link", "set", &far, "up"])?;
        Ok(target)
    }

    /// The prefix of a command that runs at the other end.
    pub(crate) fn enter(&self) -> Vec<String> {
        ["ip", "netns", "exec", &self.namespace].map(str::to_owned).to_vec()
    }

    /// Starts a target at the other end.
    pub(crate) fn serve(&self, bench: &Bench) -> Result<Served, Error> {
        self.serve_with(bench, ServedOptions::of(["null:1T"]))
    }

    /// Starts a target with these options at the other end.
    pub(crate) fn serve_with(&self, bench: &Bench, options: ServedOptions) -> Result<Served, Error> {
        self.serve_at(bench, SocketAddr::from((self.target, 0)), options)
    }

    /// Starts a target with these options at an address of the other end; every port is free there.
    pub(crate) fn serve_at(
        &self,
        bench: &Bench,
        address: SocketAddr,
        options: ServedOptions,
    ) -> Result<Served, Error> {
        bench.serve_with(ServedOptions { launcher: self.enter(), listen: address.to_string(), ..options })
    }
}

/// Addresses of the ends of a link, ours first. 198.18.0.0/15 is reserved for benchmarks (RFC 2544); a /30 has two
/// addresses.
fn addresses(number: usize) -> (Ipv4Addr, Ipv4Addr) {
    let [_, _, high, low] = (std::process::id() << 2).to_be_bytes();
    let network = if number == 0 { 18 } else { 19 };
    (Ipv4Addr::new(198, network, high, low | 1), Ipv4Addr::new(198, network, high, low | 2))
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Some((Devices { interface, peer }, ours)) = &self.devices {
            // A virtual device would end with the namespace.
            let own = std::process::id().to_string();
            let _ = run("ip", &["-n", &self.namespace, "link", "set", interface, "netns", &own]);
            let _ = run("ip", &["address", "delete", ours, "dev", peer]);
        }
        for near in &self.pairs {
            // Removing the namespace would remove the device too, but later.
            let _ = run("ip", &["link", "delete", near]);
        }
        let _ = run("ip", &["netns", "delete", &self.namespace]);
    }
}

/// Runs a tool, and returns its output.
fn run(program: &str, arguments: &[&str]) -> Result<String, Error> {
    let words: Vec<String> = std::iter::once(&program).chain(arguments).map(ToString::to_string).collect();
    steering::run(&words, None)
}
