//! The network: buffers of sockets, the queue of new connections, memory nodes of network cards.

use std::fs;
use std::net::{IpAddr, SocketAddr};

use linux::CoreList;
use rustix::param::page_size;
use subsystem::config::{TargetConfig, Threads};

use super::Machine;
use super::finding::Finding;
use crate::human_size::HumanSize;

/// Connections that wait to be accepted, as the target asks for.
const BACKLOG: u64 = 4096;

/// Bytes of a connection that may be under way: 40 Gbit/s over a millisecond.
const WINDOW_BYTES: u64 = 4 << 20;

/// Receive buffer over loopback.
const LOOPBACK_BYTES: u64 = 1 << 20;

pub(super) fn examine(machine: &Machine, config: Option<&TargetConfig>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = [
        window(machine, "tcp_rmem", "received"),
        window(machine, "tcp_wmem", "sent"),
        core_buffers(machine),
        backlog(machine),
        tcp_memory(machine),
    ]
    .into_iter()
    .flatten()
    .collect();
    if let Some(config) = config {
        findings.extend(nodes(machine, config));
    }
    findings
}

/// The largest buffer that the kernel gives a connection by itself.
fn window(machine: &Machine, name: &'static str, direction: &str) -> Option<Finding> {
    let text = machine.read(&format!("/proc/sys/net/ipv4/{name}"))?;
    let numbers: Vec<u64> = text.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    let [least, usual, most] = numbers[..] else { return None };
    let shown = HumanSize(most.into());
    if most >= WINDOW_BYTES {
        return Some(Finding::ok(name, format!("up to {shown} per connection")));
    }
    Some(
        Finding::warning(name, format!("up to {shown} per connection"))
            .because(format!(
                "no more can be {direction} in a round trip: it bounds the throughput of a lane"
            ))
            .change(format!("allow {} or more", HumanSize((4 * WINDOW_BYTES).into())))
            .by(format!("sysctl -w net.ipv4.{name}=\"{least} {usual} {}\"", 4 * WINDOW_BYTES)),
    )
}

/// Limits of buffers that a program asks for: the target asks for one over loopback only.
fn core_buffers(machine: &Machine) -> Option<Finding> {
    const CHECK: &str = "rmem_max, wmem_max";
    let received = machine.number("/proc/sys/net/core/rmem_max");
    let sent = machine.number("/proc/sys/net/core/wmem_max");
    let shown = |bytes: Option<u64>| {
        bytes.map_or_else(|| "?".to_owned(), |bytes| HumanSize(bytes.into()).to_string())
    };
    let what = format!("{} and {}", shown(received), shown(sent));
    // The sizes of other connections are the kernel's own choice.
    Some(if received? >= LOOPBACK_BYTES {
        Finding::ok(CHECK, what)
    } else {
        Finding::note(CHECK, what)
            .because("connections over loopback begin with a small window; others have sizes by tcp_rmem and tcp_wmem")
            .change("allow 4 MiB, if hosts are on this machine")
            .by("sysctl -w net.core.rmem_max=4194304")
    })
}

fn backlog(machine: &Machine) -> Option<Finding> {
    const CHECK: &str = "somaxconn";
    let allowed = machine.number("/proc/sys/net/core/somaxconn")?;
    if allowed >= BACKLOG {
        return Some(Finding::ok(CHECK, format!("{allowed} connections may wait to be accepted")));
    }
    Some(
        Finding::note(CHECK, format!("{allowed} connections may wait to be accepted"))
            .because("when many hosts come back at once, those beyond try again after a second or more")
            .change(format!("allow {BACKLOG}"))
            .by(format!("sysctl -w net.core.somaxconn={BACKLOG}")),
    )
}

/// Memory of all TCP connections of the machine.
fn tcp_memory(machine: &Machine) -> Option<Finding> {
    const CHECK: &str = "tcp_mem";
    let text = machine.read("/proc/sys/net/ipv4/tcp_mem")?;
    let numbers: Vec<u64> = text.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    let [_, pressure, most] = numbers[..] else { return None };
    let sockets = machine.read("/proc/net/sockstat").unwrap_or_default();
    let line = sockets.lines().find_map(|line| line.strip_prefix("TCP: "))?;
    let words: Vec<&str> = line.split(' ').collect();
    let used: u64 = words.chunks_exact(2).find(|pair| pair[0] == "mem")?[1].parse().ok()?;
    let size = |pages: u64| HumanSize(u128::from(pages) * page_size() as u128);
    let what = format!("{} of {} in use", size(used), size(most));
    Some(if used < pressure {
        Finding::ok(CHECK, what)
    } else {
        Finding::warning(CHECK, what)
            .because("the kernel shrinks the windows of all connections, and drops packets at the limit")
            .change("allow twice as much")
            .by(format!("sysctl -w net.ipv4.tcp_mem=\"{} {} {}\"", pressure, most, most.saturating_mul(2)))
    })
}

/// Whether network cards of the listeners are at the memory node of the reactors' cores.
fn nodes(machine: &Machine, config: &TargetConfig) -> Vec<Finding> {
    const CHECK: &str = "memory nodes";
    let cores = match &config.reactors.threads {
        Threads::Cores(list) => list.cores().to_vec(),
        // The system chooses.
        Threads::Count(_) => return Vec::new(),
        Threads::Auto => CoreList::allowed().map(|list| list.cores().to_vec()).unwrap_or_default(),
    };
    let mut of_cores: Vec<i64> = cores.iter().filter_map(|core| node_of_core(machine, *core)).collect();
    of_cores.sort_unstable();
    of_cores.dedup();
    let Ok(cards) = fs::read_dir(machine.root.join("sys/class/net")) else { return Vec::new() };
    let names = cards.flatten().filter_map(|card| card.file_name().into_string().ok());
    let mut findings = Vec::new();
    for name in names {
        let node = machine.read(&format!("/sys/class/net/{name}/device/numa_node"));
        let Some(node) = node.and_then(|node| node.parse::<i64>().ok()).filter(|node| *node >= 0) else {
            continue;
        };
        if of_cores.is_empty() || of_cores == [node] {
            findings.push(Finding::ok(CHECK, format!("{name} and the reactors are at node {node}")));
        } else if of_cores.contains(&node) {
            findings.push(Finding::note(CHECK, format!("{name} is at node {node}, and reactors at nodes {of_cores:?}"))
                .because("packets of a reactor at another node cross the link between them")
                .change(format!("put the reactors on cores of node {node}, if they suffice"))
                .by(format!("cat /sys/devices/system/node/node{node}/cpulist    # then nvlane ctl reactor set --cores LIST, and restart")));
        } else {
            findings.push(Finding::warning(CHECK, format!("{name} is at node {node}, and no reactor is there"))
                .because("each packet crosses the link between the nodes")
                .change(format!("put reactors on cores of node {node}, if hosts connect through {name}"))
                .by(format!("cat /sys/devices/system/node/node{node}/cpulist    # then nvlane ctl reactor set --cores LIST, and restart")));
        }
    }
    findings
}

fn node_of_core(machine: &Machine, core: usize) -> Option<i64> {
    let entries = fs::read_dir(machine.root.join(format!("sys/devices/system/cpu/cpu{core}"))).ok()?;
    entries.flatten().find_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok())
}

/// Whether a process of this machine listens at an address, as far as the kernel shows it to everyone.
pub(super) fn is_listened_at(machine: &Machine, address: SocketAddr) -> bool {
    let of_family = |path: &str| machine.read(path).unwrap_or_default();
    let tables = [of_family("/proc/net/tcp"), of_family("/proc/net/tcp6")];
    let listening = tables.iter().flat_map(|table| table.lines()).filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let local = words.next()?;
        (words.nth(1)? == "0A").then_some(local)?.split_once(':')
    });
    let found =
        listening.filter_map(|(ip, port)| Some((parse_address(ip)?, u16::from_str_radix(port, 16).ok()?)));
    let overlaps = |ip: IpAddr| ip == address.ip() || ip.is_unspecified() || address.ip().is_unspecified();
    found.into_iter().any(|(ip, port)| port == address.port() && overlaps(ip))
}

/// An address as the kernel prints it: words of 32 bits in the order of the machine.
fn parse_address(text: &str) -> Option<IpAddr> {
    let mut bytes = Vec::new();
    for at in (0..text.len()).step_by(8) {
        bytes.extend(u32::from_str_radix(text.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    }
    match bytes.len() {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::tests::machine;
    use super::*;

    #[test]
    fn small_buffers_come_with_the_command_that_keeps_the_other_numbers() {
        let (_keep, machine) = machine(&[
            ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456"),
            ("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t212992"),
            ("proc/sys/net/core/rmem_max", "212992"),
            ("proc/sys/net/core/wmem_max", "212992"),
            ("proc/sys/net/core/somaxconn", "128"),
            ("proc/sys/net/ipv4/tcp_mem", "100 200 300"),
            ("proc/net/sockstat", "sockets: used 9\nTCP: inuse 5 orphan 0 tw 0 alloc 9 mem 250\n"),
        ]);
        let findings = examine(&machine, None);
        let levels: Vec<Level> = findings.iter().map(|finding| finding.level).collect();
        assert_eq!(levels, [Level::Ok, Level::Warning, Level::Note, Level::Note, Level::Warning]);
        assert_eq!(
            findings[1].command.as_deref(),
            Some("sysctl -w net.ipv4.tcp_wmem=\"4096 16384 16777216\"")
        );
    }

    #[test]
    fn a_port_in_use_is_seen_without_binding_it() {
        let table = "  sl  local_address rem_address   st\n   0: 0100007F:1144 00000000:0000 0A 0\n   1: 0100007F:1145 00000000:0000 01 0\n";
        let table6 = "  sl  local_address\n   0: 00000000000000000000000000000000:1F49 00000000000000000000000000000000:0000 0A 0\n";
        let (_keep, machine) = machine(&[("proc/net/tcp", table), ("proc/net/tcp6", table6)]);
        for (address, is_used) in [
            ("127.0.0.1:4420", cfg!(target_endian = "little")),
            ("127.0.0.2:4420", false),
            ("0.0.0.0:4420", true),
            ("127.0.0.1:4421", false),
            ("192.0.2.1:8009", true),
        ] {
            assert_eq!(is_listened_at(&machine, address.parse().expect("an address")), is_used, "{address}");
        }
    }

    #[test]
    fn a_card_at_another_node_than_the_reactors_is_told() {
        let text =
            "[reactors]\ncores = \"0\"\n[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:x\"\nhosts = \"any\"\n";
        let config = subsystem::config::ConfigFile::parse("x", text).expect("a configuration").config;
        let files = [
            ("sys/class/net/eth0/device/numa_node", "1"),
            ("sys/class/net/lo/mtu", "65536"),
            ("sys/devices/system/cpu/cpu0/node0/cpulist", "0"),
        ];
        let (_keep, machine) = machine(&files);
        let findings = nodes(&machine, &config);
        assert_eq!(findings.len(), 1);
        assert!(
            findings[0].what.contains("eth0 is at node 1, and no reactor is there"),
            "{}",
            findings[0].what
        );
    }
}
