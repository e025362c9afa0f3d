//! Targets with one subsystem of one namespace, and a raw host that has connected to one of them.
#![allow(dead_code)] // Each test program uses its part.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use nvlane_subsystem::config::{
    ListenerConfig, NamespaceConfig, SubsystemConfig, TargetConfig, Threads, TimeoutConfig,
};
use nvlane_subsystem::server::Target;
use peer::raw_host::{Association, RawHost};
use wire::pdu::Digests;

const SUBSYSTEM: &str = "nqn.2026-01.io.nvlane:tested";

/// A port that the kernel chooses.
const ANY_PORT: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));

/// How long the host waits for an answer: less than the target's deadlines before Connect.
pub(crate) const PATIENCE: Duration = Duration::from_secs(8);

/// A target with this namespace.
pub(crate) fn config(threads: u16, storage: &str) -> TargetConfig {
    let mut subsystem = SubsystemConfig::new(SUBSYSTEM.parse().expect("a name"));
    subsystem.namespaces = vec![NamespaceConfig::new(storage.parse().expect("a namespace"))];
    let mut config = TargetConfig {
        listeners: vec![ListenerConfig::new(ANY_PORT)],
        subsystems: vec![subsystem],
        ..TargetConfig::default()
    };
    config.reactors.threads = Threads::Count(threads);
    config
}

/// A target with this namespace and a memcached listener.
pub(crate) fn memcached_config(threads: u16, storage: &str) -> TargetConfig {
    TargetConfig { memcached: vec![ANY_PORT.into()], ..config(threads, storage) }
}

/// Starts a target with a namespace of 16 MiB in blocks of 512 bytes and one reactor, and connects the host.
pub(crate) fn associate(timeouts: TimeoutConfig) -> (Target, Association) {
    let target = Target::start(&block_config(1, timeouts)).expect("a target");
    let association = host(&target).associate(Digests::empty(), 64).expect("an association");
    (target, association)
}

/// A target with a namespace of 16 MiB in blocks of 512 bytes.
pub(crate) fn block_config(threads: u16, timeouts: TimeoutConfig) -> TargetConfig {
    TargetConfig { timeouts, ..config(threads, "ram:16M?lba=512") }
}

/// A host that connects to a target.
pub(crate) fn host(target: &Target) -> RawHost {
    RawHost {
        address: target.listeners()[0].address,
        subsystem: SUBSYSTEM.parse().expect("a name"),
        nqn: "nqn.2026-01.io.nvlane:raw".parse().expect("a name"),
        hostid: wire::nqn::HostId::from_bytes([7; 16]),
        patience: PATIENCE,
    }
}
