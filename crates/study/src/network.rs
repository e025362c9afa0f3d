//! Two network stacks on one machine, connected by a pair of virtual Ethernet devices: that of this process, and that
//! of a network namespace in which a target runs. Unlike loopback it has an MTU, and a NAPI context that can be
//! polled.

use std::fs;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use crate::bench::Bench;
use crate::experiment::Error;
use crate::served::{Served, ServedOptions};

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

/// The network namespace and its devices; removed on drop.
#[derive(Debug)]
pub(crate) struct Network {
    namespace: String,
    /// This end of the pair.
    near: String,
    target: Ipv4Addr,
}

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

    /// Creates the namespace and the devices.
    ///
    /// # Errors
    /// `ip` or `ethtool` fails.
    pub(crate) fn new(link: Link) -> Result<Self, Error> {
        let id = std::process::id();
        // 198.18.0.0/15 is reserved for benchmarks (RFC 2544); a /30 has two addresses.
        let [_, _, high, low] = (id << 2).to_be_bytes();
        let ours = Ipv4Addr::new(198, 18, high, low | 1);
        let target = Ipv4Addr::new(198, 18, high, low | 2);
        let namespace = format!("nvlane-{id}");
        let (near, far) = (format!("nvl{id}n"), format!("nvl{id}f"));
        let mtu = link.mtu.to_string();
        run("ip", &["netns", "add", &namespace])?;
        // From here on dropping it removes the namespace, and with it the devices.
        let network = Self { namespace, near, target };
        let (namespace, near) = (network.namespace.as_str(), network.near.as_str());
        run(
            "ip",
            &[
                "link", "add", near, "mtu", &mtu, "type", "veth", "peer", "name", &far, "mtu", &mtu, "netns",
                namespace,
            ],
        )?;
        run("ip", &["address", "add", &format!("{ours}/30"), "dev", near])?;
        run("ip", &["-n", namespace, "address", "add", &format!("{target}/30"), "dev", &far])?;
        let offloads = link.offloads.words();
        let near_offloads = [&["-K", near][..], &offloads].concat();
        let far_offloads =
            [&["netns", "exec", namespace, "ethtool", "-K", far.as_str()][..], &offloads].concat();
        run("ethtool", &near_offloads)?;
        run("ip", &far_offloads)?;
        run("ip", &["link", "set", near, "up"])?;
        run("ip", &["-n", namespace, "link", "set", &far, "up"])?;
        run("ip", &["-n", namespace, "link", "set", "lo", "up"])?;
        Ok(network)
    }

    /// Address of the other end.
    pub(crate) fn target(&self) -> Ipv4Addr {
        self.target
    }

    /// Starts a target at the other end.
    ///
    /// # Errors
    /// The target does not start.
    pub(crate) fn serve(&self, bench: &Bench) -> Result<Served, Error> {
        self.serve_with(bench, ServedOptions::of(["null:1T"]))
    }

    /// Starts a target with these options at the other end.
    ///
    /// # Errors
    /// The target does not start.
    pub(crate) fn serve_with(&self, bench: &Bench, options: ServedOptions) -> Result<Served, Error> {
        let launcher = ["ip", "netns", "exec", &self.namespace].map(str::to_owned).to_vec();
        let listen = format!("{}:0", self.target);
        bench.serve_with(ServedOptions { launcher, listen, ..options })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Removing the namespace would remove the device too, but later.
        let _ = run("ip", &["link", "delete", &self.near]);
        let _ = run("ip", &["netns", "delete", &self.namespace]);
    }
}

fn run(program: &str, arguments: &[&str]) -> Result<(), Error> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| Error::system("cannot run a tool for networks", error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().next().unwrap_or_default();
    Err(Error::Lacking(format!("`{program} {}` failed: {said}", arguments.join(" "))))
}

/// Packets received by busy polling so far, in the network namespace of a process.
pub(crate) fn busy_polled_packets(pid: u32) -> Option<u64> {
    parse_counter(&fs::read_to_string(format!("/proc/{pid}/net/netstat")).ok()?, "BusyPollRxPackets")
}

/// One counter of `/proc/net/netstat`: a line of names, then a line of numbers.
fn parse_counter(text: &str, name: &str) -> Option<u64> {
    let lines: Vec<&str> = text.lines().collect();
    lines.chunks_exact(2).find_map(|pair| {
        let index = pair[0].split_ascii_whitespace().position(|word| word == name)?;
        pair[1].split_ascii_whitespace().nth(index)?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_below_its_name() {
        let text = "TcpExt: SyncookiesSent BusyPollRxPackets\nTcpExt: 3 71\nIpExt: InNoRoutes\nIpExt: 9\n";
        assert_eq!(parse_counter(text, "BusyPollRxPackets"), Some(71));
        assert_eq!(parse_counter(text, "InNoRoutes"), Some(9));
        assert_eq!(parse_counter(text, "None"), None);
    }
}
