//! Discovery log (LID 70): where subsystems are. wire §20

use core::fmt::{self, Write};
use core::net::IpAddr;

use zerocopy::{FromBytes, FromZeros};

use crate::id::Cntlid;
use crate::nqn::{NQN_FIELD_BYTES, Nqn};
use crate::text::Text;
use crate::{U16, U64};

/// TCP port of the discovery service. wire §1
pub const DISCOVERY_PORT: u16 = 8009;
/// TCP port of subsystems, by convention. wire §1
pub const IO_PORT: u16 = 4420;

/// Bytes of the header, and of each entry.
pub const DISCOVERY_RECORD_BYTES: usize = 1024;

tables! {
    /// Transport of an entry. wire §20
    pub codes TransportType: u8 {
        1 RDMA, "RDMA";
        2 FC, "Fibre Channel";
        3 TCP, "TCP";
        254 LOOP, "loop";
    }

    /// Kind of address of an entry. wire §20
    pub codes AddressFamily: u8 {
        1 IPV4, "IPv4";
        2 IPV6, "IPv6";
    }

    /// The kind of subsystem that an entry leads to. wire §20
    pub codes SubsystemType: u8 {
        1 REFERRAL, "referral to another discovery service";
        2 NVM, "NVM subsystem";
        3 DISCOVERY, "this discovery subsystem";
    }

    /// Whether a secure channel is needed. wire §20
    pub codes SecureChannel: u8 {
        0 UNSPECIFIED, "not specified";
        1 REQUIRED, "required";
        2 NOT_REQUIRED, "not required";
    }

    /// Transport requirements of an entry. wire §20
    pub bits Treq: u8 {
        [1:0] secure_channel, with_secure_channel: SecureChannel, "Whether a secure channel is needed.";
        [2] sq_flow_disable, with_sq_flow_disable: bool, "Hosts may turn SQ flow control off; tools then do.";
    }

    /// Attributes of an entry. wire §20
    pub flags Eflags: u16 {
        [0] DUPLICATE, "The same can be learned from another entry.";
        [1] PERSISTENT, "Explicit persistent connections supported.";
        [2] NO_CDC, "No connection to a central discovery controller.";
    }

    /// Security of a TCP entry: the first byte of its tsas. wire §20
    pub codes TcpSecurity: u8 {
        0 NONE, "none";
        1 TLS_1_2, "TLS 1.2";
        2 TLS_1_3, "TLS 1.3";
    }

    /// Header of the log. wire §20
    pub structure DiscoveryHeader: DISCOVERY_RECORD_BYTES {
        0 pub genctr: U64, "Generation: changes whenever the log does; read again if it changed while reading.";
        8 pub numrec: U64, "Entries in the log.";
        16 pub recfmt: U16, "Format of the entries, 0.";
        18 reserved_18: [u8; 1006];
    }
}

impl DiscoveryHeader {
    /// A header of this generation with this many entries after it.
    #[must_use]
    pub const fn new(generation: u64, entry_count: u64) -> Self {
        Self {
            genctr: U64::new(generation),
            numrec: U64::new(entry_count),
            recfmt: U16::ZERO,
            reserved_18: [0; 1006],
        }
    }
}

tables! {
    /// An entry of the log. wire §20
    pub structure DiscoveryEntry: DISCOVERY_RECORD_BYTES {
        0 pub trtype: TransportType, "Transport.";
        1 pub adrfam: AddressFamily, "Kind of address.";
        2 pub subtype: SubsystemType, "The kind of subsystem it leads to.";
        3 pub treq: Treq, "Transport requirements.";
        4 pub portid: U16, "Port of the target, the same for all entries of one.";
        6 cntlid: U16 as cntlid, set_cntlid: Cntlid, "Controller to connect to, [`Cntlid::DYNAMIC`] as a rule.";
        8 pub asqsz: U16, "Entries of the admin queue at most, at least 32.";
        10 eflags: U16 as eflags, set_eflags: Eflags, "Attributes.";
        12 reserved_12: [u8; 20];
        32 trsvcid: [u8; 32] as service_id, set_service_id: nul_padded, "Service id without padding, a port in TCP.";
        64 reserved_64: [u8; 192];
        256 subnqn: [u8; NQN_FIELD_BYTES] as subsystem, set_subsystem: nqn,
            "Name of the subsystem: of the discovery service in a referral.";
        512 traddr: [u8; 256] as address, set_address: nul_padded, "Address without padding, an IP address in TCP.";
        768 tsas: [u8; 256];
    }
}

/// Entries of the admin queue that a discovery entry of ours allows (ASQSZ): the least valid number.
pub const DISCOVERED_ADMIN_QUEUE_ENTRIES: u16 = 32;

impl DiscoveryEntry {
    /// An NVM subsystem at a TCP address: dynamic controllers, admin queues of 32 entries, no security.
    #[must_use]
    pub fn tcp(address: IpAddr, port: u16, subsystem: &Nqn) -> Self {
        let mut entry = Self {
            trtype: TransportType::TCP,
            adrfam: if address.is_ipv4() { AddressFamily::IPV4 } else { AddressFamily::IPV6 },
            subtype: SubsystemType::NVM,
            cntlid: U16::new(Cntlid::DYNAMIC.get()),
            asqsz: U16::new(DISCOVERED_ADMIN_QUEUE_ENTRIES),
            subnqn: subsystem.to_wire(),
            ..Self::new_zeroed()
        };
        // Both texts are shorter than their fields: nothing is cut.
        let _ = write!(Field(&mut entry.traddr), "{address}");
        let _ = write!(Field(&mut entry.trsvcid), "{port}");
        entry
    }

    /// Name of the subsystem as the service has it, which [`subsystem`](Self::subsystem) checks.
    #[must_use]
    pub fn subsystem_text(&self) -> Text<'_> {
        Text::of(&self.subnqn)
    }

    /// The address as an IP address; `None` if it is none.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        self.address().as_str()?.parse().ok()
    }

    /// The service id as a TCP port; `None` if it is none.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.service_id().as_str()?.parse().ok()
    }

    /// Security of a TCP entry.
    #[must_use]
    pub const fn tcp_security(&self) -> TcpSecurity {
        TcpSecurity::from_raw(self.tsas[0])
    }

    /// Sets [`Self::tcp_security`].
    pub fn set_tcp_security(&mut self, security: TcpSecurity) {
        self.tsas[0] = security.raw();
    }
}

/// Bytes of a log with this many entries.
#[must_use]
pub const fn discovery_log_bytes(entry_count: u32) -> u64 {
    (entry_count as u64).saturating_add(1).saturating_mul(DISCOVERY_RECORD_BYTES as u64)
}

/// A log as read: the complete entries, whatever the header claims.
#[derive(Clone, Copy, Debug)]
pub struct DiscoveryLog<'a> {
    /// The header.
    pub header: &'a DiscoveryHeader,
    /// As many entries as the header counts and the bytes hold.
    pub entries: &'a [DiscoveryEntry],
}

impl<'a> DiscoveryLog<'a> {
    /// Reads a log; `None` if the header is incomplete.
    #[must_use]
    pub fn new(log: &'a [u8]) -> Option<Self> {
        let (header, rest) = DiscoveryHeader::ref_from_prefix(log).ok()?;
        let counted = usize::try_from(header.numrec.get()).unwrap_or(usize::MAX);
        let count = counted.min(rest.len() / DISCOVERY_RECORD_BYTES);
        let (entries, _) = <[DiscoveryEntry]>::ref_from_prefix_with_elems(rest, count).ok()?;
        Some(Self { header, entries })
    }

    /// Whether every entry the header counts was there.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.header.numrec.get() == self.entries.len() as u64
    }
}

/// Text written to the beginning of the rest of a field.
struct Field<'a>(&'a mut [u8]);

impl fmt::Write for Field<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let (head, tail) = core::mem::take(&mut self.0).split_at_mut_checked(text.len()).ok_or(fmt::Error)?;
        head.copy_from_slice(text.as_bytes());
        self.0 = tail;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;
    use crate::nqn::NqnError;

    fn subsystem() -> Nqn {
        "nqn.2016-06.io.nvlane:sub1".parse().expect("well formed")
    }

    /// wire §20
    #[test]
    fn a_tcp_entry_has_the_bytes_of_the_reference() {
        let mut entry = DiscoveryEntry::tcp(Ipv4Addr::new(192, 0, 2, 1).into(), 4420, &subsystem());
        entry.treq =
            Treq::default().with_secure_channel(SecureChannel::NOT_REQUIRED).with_sq_flow_disable(true);
        entry.portid.set(0x0102);
        entry.set_eflags(Eflags::PERSISTENT);
        entry.set_tcp_security(TcpSecurity::TLS_1_3);
        let raw = entry.as_bytes();
        assert_eq!(raw[..13], [3, 1, 2, 0b110, 0x02, 0x01, 0xFF, 0xFF, 32, 0, 0b10, 0, 0]);
        assert_eq!(&raw[32..40], b"4420\0\0\0\0");
        assert_eq!(&raw[256..283], b"nqn.2016-06.io.nvlane:sub1\0");
        assert_eq!(&raw[512..523], b"192.0.2.1\0\0");
        assert_eq!(raw[768..770], [2, 0]);
    }

    #[test]
    fn addresses_read_back_as_addresses() {
        for ip in
            [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::new(0x2001, 0xDB8, 1, 2, 3, 4, 5, 6))]
        {
            let entry = DiscoveryEntry::tcp(ip, u16::MAX, &subsystem());
            assert_eq!((entry.ip(), entry.port()), (Some(ip), Some(u16::MAX)));
            assert_eq!(entry.adrfam == AddressFamily::IPV6, ip.is_ipv6());
            assert_eq!((entry.subsystem(), entry.cntlid()), (Ok(subsystem()), Cntlid::DYNAMIC));
        }
    }

    #[test]
    fn padding_of_either_kind_comes_off() {
        let mut entry = DiscoveryEntry::tcp(Ipv4Addr::LOCALHOST.into(), 4420, &subsystem());
        // SPDK pads with spaces, nvmet with NULs.
        entry.traddr[9..].fill(b' ');
        entry.trsvcid[4..].fill(b' ');
        assert_eq!(entry.ip(), Some(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(entry.port(), Some(4420));
    }

    #[test]
    fn other_addresses_stay_text() {
        let mut entry = DiscoveryEntry::new_zeroed();
        entry.set_address("nn-0x1:pn-0x2").expect("printable");
        entry.set_service_id("none").expect("printable");
        assert_eq!((entry.ip(), entry.port()), (None, None));
        assert_eq!(entry.address().as_str(), Some("nn-0x1:pn-0x2"));
        assert_eq!(entry.subsystem(), Err(NqnError::Empty));
        assert!(entry.set_service_id(&"1".repeat(33)).is_err());
    }

    #[test]
    fn a_log_is_read_as_far_as_it_goes() {
        let entry = DiscoveryEntry::tcp(Ipv4Addr::LOCALHOST.into(), 4420, &subsystem());
        let header = DiscoveryHeader::new(7, 2);
        assert_eq!(header.as_bytes()[..19], [7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let log = [header.as_bytes(), entry.as_bytes(), entry.as_bytes(), &[0; 5]].concat();
        assert_eq!(discovery_log_bytes(2) + 5, log.len() as u64);
        let read = DiscoveryLog::new(&log).expect("a header");
        assert_eq!((read.header.genctr.get(), read.entries.len(), read.is_complete()), (7, 2, true));
        let read = DiscoveryLog::new(&log[..3071]).expect("a header");
        assert_eq!((read.entries.len(), read.is_complete()), (1, false));
        assert!(DiscoveryLog::new(&log[..1023]).is_none());
    }

    #[test]
    fn a_count_beyond_the_log_is_not_believed() {
        let mut log = [DiscoveryHeader::new(0, u64::MAX).as_bytes(), &[0; 1024]].concat();
        assert_eq!(DiscoveryLog::new(&log).map(|log| log.entries.len()), Some(1));
        log[8..16].fill(0);
        assert_eq!(DiscoveryLog::new(&log).map(|log| log.entries.len()), Some(0));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_within_their_bounds(seed: [u8; 29], length in 0usize..4000) {
            let log: Vec<u8> = seed.iter().copied().cycle().take(length).collect();
            let Some(log) = DiscoveryLog::new(&log) else { return Ok(()) };
            prop_assert!(log.entries.len() <= length / 1024);
            for entry in log.entries {
                let _ = (entry.ip(), entry.port(), entry.subsystem(), entry.address().to_string());
                let _ = (entry.eflags(), entry.tcp_security(), entry.treq);
            }
        }

        #[test]
        fn an_entry_gives_back_what_it_was_made_of(
            v4: u32, v6: u128, is_v4: bool, port: u16, cntlid: u16, eflags: u16, security: u8,
        ) {
            let ip = if is_v4 { IpAddr::from(Ipv4Addr::from(v4)) } else { IpAddr::from(Ipv6Addr::from(v6)) };
            let mut entry = DiscoveryEntry::tcp(ip, port, &subsystem());
            entry.set_cntlid(Cntlid::new(cntlid));
            entry.set_eflags(Eflags::from_bits_retain(eflags));
            entry.set_tcp_security(TcpSecurity::from_raw(security));
            entry.set_subsystem(&Nqn::discovery());
            let entry = DiscoveryEntry::read_from_bytes(entry.as_bytes()).expect("1024 bytes");
            prop_assert_eq!((entry.ip(), entry.port()), (Some(ip), Some(port)));
            prop_assert_eq!((entry.cntlid().get(), entry.eflags().bits()), (cntlid, eflags));
            prop_assert_eq!(entry.tcp_security().raw(), security);
            prop_assert_eq!(entry.subsystem(), Ok(Nqn::discovery()));
        }
    }
}
