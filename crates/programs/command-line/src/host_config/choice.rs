//! The part of a configuration that is for an address.
//!
//! | Address | Entry, best first | What is taken |
//! |---|---|---|
//! | a subsystem | its NQN, with a port of this address | everything |
//! | | its NQN | what belongs to host and subsystem |
//! | a discovery service | a port of this address for discovery | everything |
//! | | a port of this address | everything |
//! | | a port of this machine | what belongs to the host |
//! | any | the host by its name, else the first | what belongs to the host |

use std::collections::BTreeSet;

use host::Address;
use wire::nqn::Nqn;
use wire::text::quoted;

use super::file::{Host, Port, Subsystem};

/// The parts of a configuration that are for an address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice<'a> {
    pub(super) host: &'a Host,
    pub(super) subsystem: Option<&'a Subsystem>,
    /// Only if its address is the one that is connected to.
    pub(super) port: Option<&'a Port>,
}

/// How well an entry fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// The host only.
    Host,
    /// A port of the same machine, for discovery.
    Machine,
    /// The subsystem, without a port of this address.
    Subsystem,
    /// The address.
    Port,
    /// The address, for discovery.
    DiscoveryPort,
}

/// The best entry: of the host of this name if there is one, else of `own()` or the only host, and where only hosts fit
/// the first.
///
/// # Errors
/// The best entries are those of several hosts.
pub(super) fn choose<'a>(
    hosts: &'a [Host],
    address: &Address,
    hostnqn: Option<&Nqn>,
    own: impl FnOnce() -> Nqn,
) -> Result<Option<Choice<'a>>, String> {
    let is_meant = |host: &&Host| hostnqn.is_none_or(|nqn| host.hostnqn == nqn.as_str());
    let mut found: Vec<(Fit, Choice<'a>)> = Vec::new();
    for host in hosts.iter().filter(|host| !host.hostnqn.is_empty()).filter(is_meant) {
        found.push((Fit::Host, Choice { host, subsystem: None, port: None }));
        found.extend(host.subsystems.iter().flat_map(|subsystem| fits(host, subsystem, address)));
    }
    let Some(fit) = found.iter().map(|(fit, _)| *fit).max() else { return Ok(None) };
    let best: Vec<Choice<'a>> =
        found.into_iter().filter(|(of, _)| *of == fit).map(|(_, choice)| choice).collect();
    let names: BTreeSet<&str> = best.iter().map(|choice| choice.host.hostnqn.as_str()).collect();
    let first_of = |name: &str| best.iter().find(|choice| choice.host.hostnqn == name).copied();
    match hostnqn {
        Some(_) => Ok(best.first().copied()),
        // As libnvme does: the first host of the file is the default.
        None if fit == Fit::Host => Ok(best.first().copied()),
        None if names.len() == 1 => Ok(best.first().copied()),
        None => match first_of(own().as_str()) {
            Some(choice) => Ok(Some(choice)),
            None => {
                let names: Vec<String> = names.iter().map(|name| quoted(*name).to_string()).collect();
                Err(format!("has this address for the hosts {}: choose one with --hostnqn", names.join(", ")))
            }
        },
    }
}

/// How the entries of a subsystem fit.
fn fits<'a>(host: &'a Host, subsystem: &'a Subsystem, address: &Address) -> Vec<(Fit, Choice<'a>)> {
    let choice = |port| Choice { host, subsystem: Some(subsystem), port };
    let ports = subsystem.ports.iter().filter(|port| is_machine(port, address));
    if address.is_discovery() {
        let is_for_discovery = subsystem.nqn == Nqn::discovery().as_str();
        return ports
            .map(|port| match is_port(port, address) {
                false => (Fit::Machine, Choice { host, subsystem: None, port: None }),
                true if is_for_discovery || port.discovery == Some(true) => {
                    (Fit::DiscoveryPort, choice(Some(port)))
                }
                true => (Fit::Port, choice(Some(port))),
            })
            .collect();
    }
    if address.subsystem.as_ref().is_none_or(|nqn| nqn.as_str() != subsystem.nqn) {
        return Vec::new();
    }
    let port = ports.into_iter().find(|port| is_port(port, address));
    vec![if port.is_some() { (Fit::Port, choice(port)) } else { (Fit::Subsystem, choice(None)) }]
}

/// Whether the port is one of the machine in the address: names and addresses are compared as they are written.
fn is_machine(port: &Port, address: &Address) -> bool {
    let Some(traddr) = port.traddr.as_deref().filter(|_| port.transport == "tcp") else { return false };
    let host = address.host.to_string();
    let written = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&host);
    match (traddr.parse::<std::net::IpAddr>(), written.parse::<std::net::IpAddr>()) {
        (Ok(one), Ok(other)) => one == other,
        _ => traddr.eq_ignore_ascii_case(written),
    }
}

/// Whether the port has the number of the address; without a number it has any.
fn is_port(port: &Port, address: &Address) -> bool {
    port.trsvcid.as_deref().is_none_or(|trsvcid| trsvcid.trim().parse() == Ok(address.port()))
}

#[cfg(test)]
mod tests {
    use super::super::file::parse;
    use super::*;

    /// Two hosts; the second has two subsystems and a discovery service.
    const TEXT: &str = r#"[
      {"hostnqn": "nqn.2026-01.io.nvlane:a", "subsystems": [
        {"nqn": "nqn.2026-01.io.nvlane:shared", "ports": [{"transport": "tcp", "traddr": "192.0.2.1", "trsvcid": "4420"}]}]},
      {"hostnqn": "nqn.2026-01.io.nvlane:b", "subsystems": [
        {"nqn": "nqn.2026-01.io.nvlane:shared", "ports": [{"transport": "tcp", "traddr": "192.0.2.1", "trsvcid": "4420"}]},
        {"nqn": "nqn.2026-01.io.nvlane:b-only", "ports": [
          {"transport": "rdma", "traddr": "192.0.2.2"},
          {"transport": "tcp", "traddr": "2001:db8::1", "trsvcid": "4421"},
          {"transport": "tcp", "traddr": "Storage.example"}]},
        {"nqn": "nqn.2014-08.org.nvmexpress.discovery", "ports": [
          {"transport": "tcp", "traddr": "192.0.2.3", "trsvcid": "8009", "discovery": true}]}]}
    ]"#;

    /// Name of the host, whether there is a subsystem, traddr of the port.
    fn chosen(
        address: &str,
        hostnqn: Option<&str>,
        own: &str,
    ) -> Result<Option<(String, bool, Option<String>)>, String> {
        let hosts = parse(TEXT).expect("the format");
        let address = address.parse().expect("an address");
        let hostnqn = hostnqn.map(|name| name.parse::<Nqn>().expect("a name"));
        let own = || format!("nqn.2026-01.io.nvlane:{own}").parse().expect("a name");
        let choice = choose(&hosts, &address, hostnqn.as_ref(), own)?;
        Ok(choice.map(|choice| {
            let host = choice.host.hostnqn.rsplit(':').next().expect("a name").to_owned();
            (host, choice.subsystem.is_some(), choice.port.and_then(|port| port.traddr.clone()))
        }))
    }

    fn some(
        host: &str,
        has_subsystem: bool,
        traddr: Option<&str>,
    ) -> Result<Option<(String, bool, Option<String>)>, String> {
        Ok(Some((host.into(), has_subsystem, traddr.map(str::to_owned))))
    }

    #[test]
    fn a_subsystem_is_found_by_its_name_and_its_port_by_the_address() {
        let nqn = "nqn.2026-01.io.nvlane:b-only";
        for (place, traddr) in [
            ("[2001:db8:0::1]:4421", Some("2001:db8::1")),
            ("storage.example:5000", Some("Storage.example")),
            ("[2001:db8::1]", None),
            ("192.0.2.2", None),
        ] {
            assert_eq!(chosen(&format!("{place}/{nqn}"), None, "x"), some("b", true, traddr), "{place}");
        }
        assert_eq!(chosen("192.0.2.1/nqn.2026-01.io.nvlane:other", None, "x"), some("a", false, None));
    }

    #[test]
    fn of_several_hosts_the_named_one_or_this_machine_is_taken() {
        let shared = "192.0.2.1/nqn.2026-01.io.nvlane:shared";
        let port = Some("192.0.2.1");
        assert_eq!(chosen(shared, Some("nqn.2026-01.io.nvlane:a"), "x"), some("a", true, port));
        assert_eq!(chosen(shared, None, "b"), some("b", true, port));
        assert!(chosen(shared, None, "x").expect_err("which?").contains("--hostnqn"));
        assert_eq!(chosen(shared, Some("nqn.2026-01.io.nvlane:c"), "a"), Ok(None));
        let elsewhere = "192.0.2.9/nqn.2026-01.io.nvlane:other";
        for own in ["a", "b", "x"] {
            assert_eq!(chosen(elsewhere, None, own), some("a", false, None), "the first, as libnvme does");
        }
        assert_eq!(chosen(elsewhere, Some("nqn.2026-01.io.nvlane:b"), "a"), some("b", false, None));
    }

    #[test]
    fn a_discovery_service_is_found_by_its_address() {
        assert_eq!(chosen("192.0.2.3", None, "x"), some("b", true, Some("192.0.2.3")));
        assert_eq!(chosen("192.0.2.3:8010", None, "x"), some("b", false, None));
        assert_eq!(chosen("storage.example", None, "x"), some("b", true, Some("Storage.example")));
        assert_eq!(chosen("192.0.2.9", None, "x"), some("a", false, None));
    }
}
