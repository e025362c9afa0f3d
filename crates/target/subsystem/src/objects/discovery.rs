//! The discovery log: the subsystems that a host may use, and their addresses. wire §20
//!
//! Every host has its own log: it lists only subsystems that the host may connect to, at addresses reachable by the
//! route that the host used.
// Input from a host must never cause a panic: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use proto::doorbell::Policy;
use reactor::ListenerTag;
use security::tls::Policy as Tls;
use wire::discovery::{
    DISCOVERY_RECORD_BYTES, DiscoveryEntry, DiscoveryHeader, Eflags, SecureChannel, SubsystemType,
    TcpSecurity, Treq,
};
use wire::nqn::{HostName, Nqn};
use zerocopy::IntoBytes;

use crate::objects::subsystem::Subsystem;

/// A listener as discovery sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerEntry {
    /// The bound address, with the actual port.
    pub address: SocketAddr,
    /// Address advertised to hosts that reach the listener by another one: NAT, virtual machines.
    pub advertise: Option<Advertised>,
    /// Hosts may connect to subsystems here.
    pub serves_subsystems: bool,
    /// Hosts may connect to the discovery service here.
    pub serves_discovery: bool,
    /// Doorbell policy of lanes that come in here; `None` for the target's.
    pub doorbell: Option<Policy>,
    /// Whether it speaks TLS.
    pub tls: Tls,
}

/// An advertised address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advertised {
    /// The address.
    pub ip: IpAddr,
    /// The port; `None` for the listener's.
    pub port: Option<u16>,
}

/// The route by which a host reached its discovery controller: the log lists addresses reachable by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The listener.
    pub listener: ListenerTag,
    /// The address that the host connected to.
    pub local: Option<SocketAddr>,
}

/// A referral: another discovery service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Referral {
    /// Its address.
    pub address: SocketAddr,
    /// Its NQN: the well-known one, or a unique one.
    pub nqn: Nqn,
}

/// State of the discovery service beside the subsystems.
#[derive(Debug)]
pub struct Discovery {
    /// The unique name of this service. It also answers to the well-known name.
    pub nqn: Nqn,
    /// Generation counter: grows with every change that some host can see.
    pub generation: u64,
    /// By tag.
    pub listeners: BTreeMap<ListenerTag, ListenerEntry>,
    /// Referrals to other services.
    pub referrals: Vec<Referral>,
}

impl Discovery {
    /// Creates a service without listeners. Generations start at `generation`; a start value that grows with time keeps
    /// them distinct across restarts.
    #[must_use]
    pub fn new(nqn: Nqn, generation: u64) -> Self {
        Self { nqn, generation, listeners: BTreeMap::new(), referrals: Vec::new() }
    }

    /// Whether `nqn` names this service.
    #[must_use]
    pub fn is_named(&self, nqn: &Nqn) -> bool {
        nqn.is_discovery() || *nqn == self.nqn
    }

    /// The log for `host`, which came by `route`.
    pub(crate) fn log<'a>(
        &self,
        host: &HostName,
        route: &Route,
        subsystems: impl Iterator<Item = &'a Subsystem>,
    ) -> Vec<u8> {
        let mut log = vec![0; DISCOVERY_RECORD_BYTES];
        let entries = self.entries(host, route, subsystems);
        let header = DiscoveryHeader::new(self.generation, entries.len() as u64);
        log.copy_from_slice(header.as_bytes());
        log.extend_from_slice(entries.as_bytes());
        log
    }

    /// The entries of the log: this service first, then subsystems, then other services.
    pub(crate) fn entries<'a>(
        &self,
        host: &HostName,
        route: &Route,
        subsystems: impl Iterator<Item = &'a Subsystem>,
    ) -> Vec<DiscoveryEntry> {
        let mut entries = Vec::new();
        let reachable = self.reachable(route);
        for (tag, listener, address) in reachable.iter().filter(|(_, listener, _)| listener.serves_discovery)
        {
            // A host generates no key with this service, which does not authenticate.
            let tls = if listener.tls == Tls::Concatenated { Tls::Required } else { listener.tls };
            let mut entry = entry(*tag, *address, tls, &self.nqn);
            entry.subtype = SubsystemType::DISCOVERY;
            // Tools connect to each entry of this type unless another one leads to the same log. wire §28.27
            let is_same_again = *tag != route.listener;
            debug_assert!(listener.serves_discovery);
            entry.set_eflags(if is_same_again {
                Eflags::PERSISTENT | Eflags::DUPLICATE
            } else {
                Eflags::PERSISTENT
            });
            entries.push(entry);
        }
        for subsystem in subsystems.filter(|subsystem| subsystem.access.allows(host)) {
            let io = reachable.iter().filter(|(_, listener, _)| listener.serves_subsystems);
            entries.extend(
                io.map(|(tag, listener, address)| entry(*tag, *address, listener.tls, &subsystem.nqn)),
            );
        }
        for referral in &self.referrals {
            let mut entry = entry(0, referral.address, Tls::Off, &referral.nqn);
            entry.subtype = SubsystemType::REFERRAL;
            entries.push(entry);
        }
        entries
    }

    /// The listeners that a host with this `route` can reach, with the address to advertise.
    fn reachable(&self, route: &Route) -> Vec<(ListenerTag, ListenerEntry, SocketAddr)> {
        let came_to = route.local.map(|local| local.ip().to_canonical());
        let address = |listener: &ListenerEntry| {
            let bound = listener.address;
            if let Some(advertised) = listener.advertise {
                return Some(SocketAddr::new(advertised.ip, advertised.port.unwrap_or(bound.port())));
            }
            let ip = bound.ip().to_canonical();
            match came_to {
                // A wildcard listener is reachable at the address that the host has just used, if it is of the same
                // family.
                Some(used) if ip.is_unspecified() && used.is_ipv4() == ip.is_ipv4() => {
                    Some(SocketAddr::new(used, bound.port()))
                }
                _ if ip.is_unspecified() => None,
                // A loopback address is not reachable from another machine.
                Some(used) if ip.is_loopback() && !used.is_loopback() => None,
                _ => Some(SocketAddr::new(ip, bound.port())),
            }
        };
        let listeners = self.listeners.iter();
        listeners.filter_map(|(tag, listener)| Some((*tag, *listener, address(listener)?))).collect()
    }
}

fn entry(tag: ListenerTag, address: SocketAddr, tls: Tls, nqn: &Nqn) -> DiscoveryEntry {
    let mut entry = DiscoveryEntry::tcp(address.ip(), address.port(), nqn);
    entry.portid.set(u16::try_from(tag).unwrap_or(u16::MAX));
    // With this bit nvme-cli disables SQ flow control, and reads complete with their data. wire §4.2
    entry.treq = Treq::default().with_sq_flow_disable(true);
    if tls != Tls::Off {
        // To generate a key, a host begins without TLS: a secure channel that is required would be one from the start,
        // and have Linux hosts look for a key of TLS.
        let need = if tls == Tls::Required { SecureChannel::REQUIRED } else { SecureChannel::NOT_REQUIRED };
        entry.treq = entry.treq.with_secure_channel(need);
        entry.set_tcp_security(TcpSecurity::TLS_1_3);
    }
    entry
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use wire::discovery::{AddressFamily, DiscoveryLog, TransportType};

    use super::*;
    use crate::objects::subsystem::Access;

    fn nqn(text: &str) -> Nqn {
        text.parse().unwrap()
    }

    fn listener(address: &str) -> ListenerEntry {
        ListenerEntry {
            address: address.parse().unwrap(),
            advertise: None,
            serves_subsystems: true,
            doorbell: None,
            tls: Tls::Off,
            serves_discovery: true,
        }
    }

    fn subsystem(name: &str, access: Access) -> Subsystem {
        Subsystem::new(nqn(name), access)
    }

    /// wire §20
    #[test]
    fn entries_say_whether_a_connection_may_begin_in_clear() {
        let (none, required, not_required) =
            (SecureChannel::UNSPECIFIED, SecureChannel::REQUIRED, SecureChannel::NOT_REQUIRED);
        for (tls, of_service, of_subsystem) in [
            (Tls::Off, none, none),
            (Tls::Allowed, not_required, not_required),
            (Tls::Concatenated, required, not_required),
            (Tls::Required, required, required),
        ] {
            let service = service(&[(1, ListenerEntry { tls, ..listener("192.0.2.5:4420") })]);
            let disks = [subsystem("nqn.2026-01.io.nvlane:disks", Access::Any)];
            let route = Route { listener: 1, local: None };
            let entries = service.entries(&nqn(HOST).into(), &route, disks.iter());
            let needs: Vec<_> = entries.iter().map(|entry| entry.treq.secure_channel()).collect();
            assert_eq!(needs, [of_service, of_subsystem], "{tls}");
            let security = if tls == Tls::Off { 0 } else { TcpSecurity::TLS_1_3.raw() };
            assert!(entries.iter().all(|entry| entry.tcp_security().raw() == security), "{tls}");
        }
    }

    fn service(listeners: &[(ListenerTag, ListenerEntry)]) -> Discovery {
        let mut service = Discovery::new(nqn("nqn.2026-01.io.nvlane:discovery"), 7);
        service.listeners.extend(listeners.iter().copied());
        service
    }

    const HOST: &str = "nqn.2026-01.io.nvlane:host";

    fn listed(
        service: &Discovery,
        listener: ListenerTag,
        local: &str,
        subsystems: &[Subsystem],
    ) -> Vec<String> {
        let route = Route { listener, local: Some(local.parse().unwrap()) };
        let entries = service.entries(&nqn(HOST).into(), &route, subsystems.iter());
        let text = |entry: &DiscoveryEntry| {
            let nqn = entry.subsystem().unwrap();
            let name = nqn.as_str().rsplit(':').next().unwrap_or_default().to_string();
            format!("{} {} {}", entry.address(), entry.service_id(), name)
        };
        entries.iter().map(text).collect()
    }

    #[test]
    fn a_wildcard_is_listed_with_the_address_the_host_came_to() {
        let service = service(&[(1, listener("0.0.0.0:4420")), (2, listener("[::]:4420"))]);
        let disks = [subsystem("nqn.2026-01.io.nvlane:disks", Access::Any)];
        assert_eq!(
            listed(&service, 1, "192.0.2.5:4420", &disks),
            ["192.0.2.5 4420 discovery", "192.0.2.5 4420 disks"]
        );
        assert_eq!(
            listed(&service, 2, "[2001:db8::5]:4420", &disks),
            ["2001:db8::5 4420 discovery", "2001:db8::5 4420 disks"]
        );
        // An IPv4 address as an IPv6 socket shows it.
        assert_eq!(listed(&service, 1, "[::ffff:192.0.2.5]:4420", &[]), ["192.0.2.5 4420 discovery"]);
    }

    #[test]
    fn loopback_is_listed_only_to_who_came_by_it() {
        let service = service(&[(1, listener("127.0.0.1:4420")), (2, listener("192.0.2.5:4420"))]);
        assert_eq!(listed(&service, 2, "192.0.2.5:4420", &[]), ["192.0.2.5 4420 discovery"]);
        assert_eq!(
            listed(&service, 1, "127.0.0.1:4420", &[]),
            ["127.0.0.1 4420 discovery", "192.0.2.5 4420 discovery"]
        );
    }

    #[test]
    fn an_advertised_address_takes_the_place_of_the_real_one() {
        let advertised = |port| Some(Advertised { ip: "203.0.113.9".parse().unwrap(), port });
        let service = service(&[
            (1, ListenerEntry { advertise: advertised(None), ..listener("0.0.0.0:4420") }),
            (2, ListenerEntry { advertise: advertised(Some(14_420)), ..listener("127.0.0.1:4421") }),
        ]);
        assert_eq!(
            listed(&service, 1, "10.0.2.15:4420", &[]),
            ["203.0.113.9 4420 discovery", "203.0.113.9 14420 discovery"]
        );
    }

    #[test]
    fn each_host_sees_only_what_it_may_use() {
        let service = service(&[(1, listener("192.0.2.5:4420"))]);
        let only = |host: &str| Access::Only(BTreeSet::from([nqn(host).into()]));
        let subsystems = [
            subsystem("nqn.2026-01.io.nvlane:open", Access::Any),
            subsystem("nqn.2026-01.io.nvlane:mine", only(HOST)),
            subsystem("nqn.2026-01.io.nvlane:theirs", only("nqn.2026-01.io.nvlane:other")),
        ];
        assert_eq!(
            listed(&service, 1, "192.0.2.5:4420", &subsystems),
            ["192.0.2.5 4420 discovery", "192.0.2.5 4420 open", "192.0.2.5 4420 mine"]
        );
    }

    #[test]
    fn a_listener_is_listed_for_what_it_serves() {
        let service = service(&[
            (1, ListenerEntry { serves_discovery: false, ..listener("192.0.2.5:4420") }),
            (2, ListenerEntry { serves_subsystems: false, ..listener("192.0.2.5:8009") }),
        ]);
        let disks = [subsystem("nqn.2026-01.io.nvlane:disks", Access::Any)];
        assert_eq!(
            listed(&service, 2, "192.0.2.5:8009", &disks),
            ["192.0.2.5 8009 discovery", "192.0.2.5 4420 disks"]
        );
    }

    /// wire §20, §28.27
    #[test]
    fn entries_have_the_fields_that_tools_read() {
        let mut service = service(&[(1, listener("192.0.2.5:4420")), (2, listener("192.0.2.5:8009"))]);
        service
            .referrals
            .push(Referral { address: "[2001:db8::7]:8009".parse().unwrap(), nqn: Nqn::discovery() });
        let disks = [subsystem("nqn.2026-01.io.nvlane:disks", Access::Any)];
        let route = Route { listener: 2, local: Some("192.0.2.5:8009".parse().unwrap()) };
        let log = service.log(&nqn(HOST).into(), &route, disks.iter());
        let log = DiscoveryLog::new(&log).unwrap();
        assert_eq!((log.header.genctr.get(), log.header.numrec.get(), log.is_complete()), (7, 5, true));
        let [other, this, disks, _, referral] = log.entries else { panic!("five entries") };
        assert_eq!((this.subtype, this.eflags()), (SubsystemType::DISCOVERY, Eflags::PERSISTENT));
        assert_eq!(other.eflags(), Eflags::PERSISTENT | Eflags::DUPLICATE);
        assert_eq!(this.subsystem().unwrap(), service.nqn);
        assert_eq!((disks.subtype, disks.trtype), (SubsystemType::NVM, TransportType::TCP));
        assert_eq!((disks.cntlid().get(), disks.asqsz.get(), disks.portid.get()), (0xFFFF, 32, 1));
        assert_eq!((disks.treq.bits(), disks.tcp_security().raw()), (0b100, 0));
        assert_eq!((referral.subtype, referral.adrfam), (SubsystemType::REFERRAL, AddressFamily::IPV6));
        assert!(referral.subsystem().unwrap().is_discovery());
    }
}
