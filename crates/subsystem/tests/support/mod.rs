//! A target with one subsystem and one reactor, and a raw host that has connected to it.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use nvlane_subsystem::config::{
    ListenerConfig, NamespaceConfig, SubsystemConfig, TargetConfig, Threads, TimeoutConfig,
};
use nvlane_subsystem::server::Target;
use peer::raw_host::{Association, RawHost};
use wire::pdu::Digests;

const SUBSYSTEM: &str = "nqn.2026-01.io.nvlane:tested";

/// How long the host waits for an answer: less than the target's deadlines before Connect.
const PATIENCE: Duration = Duration::from_secs(8);

/// Starts the target with a namespace of 16 MiB in blocks of 512 bytes, and connects the host.
pub(crate) fn associate(timeouts: TimeoutConfig) -> (Target, Association) {
    let mut subsystem = SubsystemConfig::new(SUBSYSTEM.parse().expect("a name"));
    subsystem.namespaces = vec![NamespaceConfig::new("ram:16M?lba=512".parse().expect("a namespace"))];
    let mut config = TargetConfig {
        listeners: vec![ListenerConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))],
        subsystems: vec![subsystem],
        timeouts,
        ..TargetConfig::default()
    };
    config.reactors.threads = Threads::Count(1);
    let target = Target::start(&config).expect("a target");
    let host = RawHost {
        address: target.listeners()[0].address,
        subsystem: SUBSYSTEM.parse().expect("a name"),
        nqn: "nqn.2026-01.io.nvlane:raw".parse().expect("a name"),
        hostid: wire::nqn::HostId::from_bytes([7; 16]),
        patience: PATIENCE,
    };
    let association = host.associate(Digests::empty(), 64).expect("an association");
    (target, association)
}
