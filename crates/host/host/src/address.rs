//! Addresses of subsystems: `HOST[:PORT][/NQN][?ns=1]`, and the forms that other tools write.
//!
//! ```
//! use nvlane_host::Address;
//!
//! let address: Address = "192.0.2.1:4420/nqn.2016-06.io.nvlane:disk?ns=1".parse()?;
//! let same: Address = "trtype:TCP adrfam:IPv4 traddr:192.0.2.1 trsvcid:4420 \
//!     subnqn:nqn.2016-06.io.nvlane:disk ns:1".parse()?;
//! assert_eq!(address, same);
//! # Ok::<(), nvlane_host::AddressError>(())
//! ```
// Data from a controller must not cause a panic: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};
use std::str::FromStr;

use wire::discovery::{DISCOVERY_PORT, IO_PORT};
use wire::id::Nsid;
use wire::nqn::{Nqn, NqnError};

const SCHEME: &str = "nvme+tcp://";

/// The address of a target, a subsystem or a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The target's machine.
    pub host: HostName,
    /// The TCP port, if the address has one; see [`port`](Self::port).
    pub port: Option<u16>,
    /// The subsystem; `None` for a discovery service.
    pub subsystem: Option<Nqn>,
    /// The namespace, if the address selects one.
    pub nsid: Option<Nsid>,
}

/// The machine in an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostName {
    /// An IP address.
    Ip(IpAddr),
    /// A link-local address with its interface, by name or number.
    Zoned(Ipv6Addr, String),
    /// A name, resolved for each connection.
    Name(String),
}

/// Why a text is not an address, and how to write one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// No host.
    #[error(
        "no host in \"{0}\": write HOST[:PORT][/NQN][?ns=1], for example 192.0.2.1:4420/nqn.2016-06.io.nvlane:disk"
    )]
    NoHost(String),
    /// Colons without brackets.
    #[error("\"{0}\" looks like an IPv6 address: write it in brackets, [{0}]")]
    NoBrackets(String),
    /// Several colons that are no IPv6 address.
    #[error("\"{0}\" has too many colons: write HOST:PORT/NQN, and brackets around an IPv6 address")]
    Colons(String),
    /// A subsystem without its target.
    #[error("\"{0}\" is the name of a subsystem: write the address of its target before it, HOST[:PORT]/{0}")]
    OnlyNqn(String),
    /// An opening bracket without a closing one.
    #[error("the bracket in \"{0}\" is not closed: write [ADDRESS] or [ADDRESS]:PORT")]
    OpenBracket(String),
    /// Brackets around something that is not an IPv6 address.
    #[error("\"{0}\" is not an IPv6 address: use brackets only for those")]
    NotIpv6(String),
    /// An invalid interface name after the percent sign.
    #[error("\"{0}\" is not an interface: write its name in letters, digits and -._~, or its number")]
    Zone(String),
    /// Neither a name nor an IP address.
    #[error("\"{0}\" is neither a host name nor an IP address")]
    BadName(String),
    /// An invalid port number.
    #[error("\"{0}\" is not a port: write a number from 1 to 65535")]
    Port(String),
    /// An invalid subsystem name.
    #[error("\"{nqn}\" is not a subsystem name: {source}")]
    Nqn {
        /// The text.
        nqn: String,
        /// Why it is invalid.
        source: NqnError,
    },
    /// A parameter other than `ns=` after the question mark.
    #[error("\"{0}\" after the question mark: only ns=NUMBER is allowed")]
    Query(String),
    /// An invalid namespace id.
    #[error("\"{0}\" is not a namespace id: write a number from 1 to 4294967294")]
    Nsid(String),
    /// An unsupported scheme.
    #[error("scheme \"{0}\" is not supported: write nvme+tcp://HOST:PORT/NQN, or omit the scheme")]
    Scheme(String),
    /// An unsupported transport.
    #[error("transport \"{0}\" is not supported: only TCP is")]
    Transport(String),
    /// An address family that contradicts the address.
    #[error("address family \"{0}\" does not match the address: write IPv4 or IPv6")]
    Family(String),
    /// A part that is not a pair.
    #[error("\"{0}\" is not a KEY:VALUE pair")]
    NotAPair(String),
    /// An unknown key.
    #[error("unknown key \"{0}\": known are trtype, adrfam, traddr, trsvcid, subnqn and ns")]
    UnknownKey(String),
    /// A key given twice.
    #[error("\"{0}\" is given twice")]
    Twice(&'static str),
    /// A `%` without two hexadecimal digits.
    #[error("\"{0}\": a percent sign must be followed by two hexadecimal digits")]
    Percent(String),
}

impl Address {
    /// The address of a machine, without port, subsystem and namespace.
    #[must_use]
    pub fn new(host: HostName) -> Self {
        Self { host, port: None, subsystem: None, nsid: None }
    }

    /// With this port.
    #[must_use]
    pub fn with_port(self, port: u16) -> Self {
        Self { port: Some(port), ..self }
    }

    /// With this subsystem.
    #[must_use]
    pub fn with_subsystem(self, subsystem: Nqn) -> Self {
        Self { subsystem: Some(subsystem), ..self }
    }

    /// With this namespace.
    #[must_use]
    pub fn with_nsid(self, nsid: Nsid) -> Self {
        Self { nsid: Some(nsid), ..self }
    }

    /// Whether this is the address of a discovery service: no subsystem, or the discovery NQN.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        self.subsystem.as_ref().is_none_or(Nqn::is_discovery)
    }

    /// The port to connect to: by default 4420, or 8009 for a discovery service. wire §1
    #[must_use]
    pub fn port(&self) -> u16 {
        let usual = if self.is_discovery() { DISCOVERY_PORT } else { IO_PORT };
        self.port.unwrap_or(usual)
    }

    /// Whether [`resolve`](Self::resolve) needs a resolver, which may block.
    pub(crate) fn is_name(&self) -> bool {
        matches!(self.host, HostName::Name(_))
    }

    /// Resolves the name to socket addresses, at least one, in the resolver's order. Blocks as long as the resolver
    /// does.
    ///
    /// # Errors
    /// The resolver's error, or an unknown interface.
    pub fn resolve(&self) -> std::io::Result<Vec<SocketAddr>> {
        let port = self.port();
        let found: Vec<SocketAddr> = match &self.host {
            HostName::Ip(ip) => vec![SocketAddr::new(*ip, port)],
            HostName::Zoned(ip, zone) => {
                vec![SocketAddr::V6(SocketAddrV6::new(*ip, port, 0, interface_index(zone)?))]
            }
            HostName::Name(name) => (name.as_str(), port).to_socket_addrs()?.collect(),
        };
        match found.is_empty() {
            true => Err(std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address")),
            false => Ok(found),
        }
    }
}

fn interface_index(zone: &str) -> std::io::Result<u32> {
    if let Ok(index) = zone.parse() {
        return Ok(index);
    }
    linux::interface_index(zone)
        .map_err(|error| std::io::Error::new(error.kind(), format!("interface {zone}: {error}")))
}

impl HostName {
    /// This machine as a discovery service at `service` names it: a link-local address is one of the link that the
    /// service was reached by, whatever zone the service gives it.
    #[must_use]
    pub(crate) fn beside(self, service: &Self) -> Self {
        let ip = match &self {
            Self::Ip(IpAddr::V6(ip)) | Self::Zoned(ip, _) if ip.is_unicast_link_local() => *ip,
            _ => return self,
        };
        match service {
            Self::Zoned(_, zone) => Self::Zoned(ip, zone.clone()),
            _ => self,
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let text = text.trim();
        if is_key_value(text) { from_pairs(text) } else { from_url(text) }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        let host = match address {
            SocketAddr::V6(v6) if v6.scope_id() > 0 => HostName::Zoned(*v6.ip(), v6.scope_id().to_string()),
            _ => HostName::Ip(address.ip()),
        };
        Self::new(host).with_port(address.port())
    }
}

/// `KEY:VALUE KEY:VALUE` or `KEY=VALUE;KEY=VALUE`: starts with a known key.
fn is_key_value(text: &str) -> bool {
    pair(text.split([' ', ';', ',']).next().unwrap_or_default()).is_some_and(|(key, _)| is_key(key))
}

const KEYS: [&str; 9] = ["trtype", "transport", "adrfam", "traddr", "trsvcid", "subnqn", "nqn", "ns", "nsid"];

fn is_key(key: &str) -> bool {
    KEYS.iter().any(|known| known.eq_ignore_ascii_case(key))
}

fn pair(text: &str) -> Option<(&str, &str)> {
    text.split_once([':', '='])
}

fn from_pairs(text: &str) -> Result<Address, AddressError> {
    let (mut host, mut family, mut port, mut subsystem, mut nsid) = (None, None, None, None, None);
    for part in parts(text) {
        let (key, value) = pair(part).ok_or_else(|| AddressError::NotAPair(part.into()))?;
        match key.to_ascii_lowercase().as_str() {
            "trtype" | "transport" if value.eq_ignore_ascii_case("tcp") => {}
            "trtype" | "transport" => return Err(AddressError::Transport(value.into())),
            "adrfam" => set(&mut family, "adrfam", value)?,
            "traddr" => set(&mut host, "traddr", parse_address(value)?)?,
            "trsvcid" => set(&mut port, "trsvcid", parse_port(value)?)?,
            "subnqn" | "nqn" => set(&mut subsystem, "subnqn", parse_nqn(value)?)?,
            "ns" | "nsid" => set(&mut nsid, "ns", parse_nsid(value)?)?,
            _ => return Err(AddressError::UnknownKey(key.into())),
        }
    }
    let host = host.ok_or_else(|| AddressError::NoHost(text.into()))?;
    if let Some(family) = family {
        check_family(family, &host)?;
    }
    Ok(Address { host, port, subsystem, nsid })
}

/// Splits at white space and semicolons, and at commas before a key: a subsystem's name may contain commas.
#[expect(clippy::arithmetic_side_effects, reason = "behind a comma that is there")]
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let pieces = text.split([' ', '\t', '\n', ';']);
    pieces.flat_map(|piece| {
        let mut rest = piece;
        std::iter::from_fn(move || {
            let cut = rest
                .match_indices(',')
                .find(|(at, _)| pair(&rest[at + 1..]).is_some_and(|(key, _)| is_key(key)));
            let (head, tail) = match cut {
                Some((at, _)) => (&rest[..at], &rest[at + 1..]),
                None => (rest, ""),
            };
            rest = tail;
            (!head.is_empty()).then_some(head)
        })
    })
}

fn set<T>(field: &mut Option<T>, key: &'static str, value: T) -> Result<(), AddressError> {
    match field.replace(value) {
        Some(_) => Err(AddressError::Twice(key)),
        None => Ok(()),
    }
}

fn check_family(family: &str, host: &HostName) -> Result<(), AddressError> {
    let is_v6 = matches!(host, HostName::Ip(IpAddr::V6(_)) | HostName::Zoned(..));
    let is_v4 = matches!(host, HostName::Ip(IpAddr::V4(_)));
    let fits = match family.to_ascii_lowercase().as_str() {
        "ipv4" => !is_v6,
        "ipv6" => !is_v4,
        _ => false,
    };
    if fits { Ok(()) } else { Err(AddressError::Family(family.into())) }
}

fn from_url(text: &str) -> Result<Address, AddressError> {
    // Behind a slash there is a name, whatever its characters.
    let rest = match text.split_once("://").filter(|(scheme, _)| !scheme.contains('/')) {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("nvme+tcp") => rest,
        Some((scheme, _)) => return Err(AddressError::Scheme(scheme.into())),
        None => text,
    };
    let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    let (authority, nqn) = rest.split_once('/').map_or((rest, ""), |(authority, nqn)| (authority, nqn));
    let (host, port) = split_port(authority)?;
    if host.is_empty() {
        return Err(AddressError::NoHost(text.into()));
    }
    let host = match host.strip_prefix('[') {
        Some(inner) => parse_v6(inner.strip_suffix(']').unwrap_or(inner))?,
        None => parse_host(host)?,
    };
    let port = port.map(parse_port).transpose()?;
    let nqn = percent_decode(nqn)?;
    let subsystem = if nqn.is_empty() { None } else { Some(parse_nqn(&nqn)?) };
    let mut nsid = None;
    for part in query.into_iter().flat_map(|query| query.split('&')) {
        match part.split_once('=') {
            Some(("ns" | "nsid", value)) => set(&mut nsid, "ns", parse_nsid(value)?)?,
            _ => return Err(AddressError::Query(part.into())),
        }
    }
    Ok(Address { host, port, subsystem, nsid })
}

/// Host, possibly in brackets, and port.
#[expect(clippy::arithmetic_side_effects, reason = "behind a bracket that is there")]
fn split_port(authority: &str) -> Result<(&str, Option<&str>), AddressError> {
    if authority.starts_with('[') {
        let end = authority.find(']').ok_or_else(|| AddressError::OpenBracket(authority.into()))?;
        let (host, rest) = authority.split_at(end + 1);
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if rest.is_empty() => Ok((host, None)),
            None => Err(AddressError::Port(rest.into())),
        };
    }
    if authority.starts_with("nqn.") && authority.contains(':') {
        return Err(AddressError::OnlyNqn(authority.into()));
    }
    if authority.matches(':').count() > 1 {
        let ip = authority.split('%').next().unwrap_or_default();
        return Err(match ip.parse::<Ipv6Addr>() {
            Ok(_) => AddressError::NoBrackets(authority.into()),
            Err(_) => AddressError::Colons(authority.into()),
        });
    }
    Ok(authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))))
}

/// A host as the value of `traddr`: IPv6 without brackets.
fn parse_address(text: &str) -> Result<HostName, AddressError> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if bare.contains(':') { parse_v6(bare) } else { parse_host(text) }
}

fn parse_v6(text: &str) -> Result<HostName, AddressError> {
    let not_v6 = || AddressError::NotIpv6(text.into());
    let Some((ip, zone)) = text.split_once('%') else {
        return Ok(HostName::Ip(IpAddr::V6(text.parse().map_err(|_| not_v6())?)));
    };
    let ip = ip.parse().map_err(|_| not_v6())?;
    if is_zone(zone) { Ok(HostName::Zoned(ip, zone.into())) } else { Err(AddressError::Zone(zone.into())) }
}

/// Whether this can be the zone of an address. RFC 4007 (11.2) leaves the form to each system, RFC 6874 allows these
/// characters in a URI. An interface with any other name can be given by its number.
fn is_zone(text: &str) -> bool {
    let is_zone_byte = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    !text.is_empty() && text.bytes().all(is_zone_byte)
}

fn parse_host(text: &str) -> Result<HostName, AddressError> {
    if let Ok(ip) = text.parse() {
        return Ok(HostName::Ip(IpAddr::V4(ip)));
    }
    let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    // Digits and dots alone are a mistyped address, not a name to resolve.
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if text.is_empty() || text.len() > 253 || is_number || !text.bytes().all(is_name_byte) {
        return Err(AddressError::BadName(text.into()));
    }
    Ok(HostName::Name(text.into()))
}

fn parse_port(text: &str) -> Result<u16, AddressError> {
    text.parse().ok().filter(|port| *port != 0).ok_or_else(|| AddressError::Port(text.into()))
}

fn parse_nsid(text: &str) -> Result<Nsid, AddressError> {
    let nsid = text.parse().ok().map(Nsid::new).filter(|nsid| nsid.is_one_namespace());
    nsid.ok_or_else(|| AddressError::Nsid(text.into()))
}

/// Any name that a target may have: the form is not checked, since nvmet accepts any.
fn parse_nqn(text: &str) -> Result<Nqn, AddressError> {
    let field = [text.as_bytes(), &[0]].concat();
    Nqn::from_wire(&field).map_err(|source| AddressError::Nqn { nqn: text.into(), source })
}

fn percent_decode(text: &str) -> Result<String, AddressError> {
    let error = || AddressError::Percent(text.into());
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (digits, tail) = rest.split_at_checked(2).ok_or_else(error)?;
        let digits = std::str::from_utf8(digits).map_err(|_| error())?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| error())?);
        rest = tail;
    }
    String::from_utf8(bytes).map_err(|_| error())
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(IpAddr::V4(ip)) => ip.fmt(f),
            Self::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
            Self::Zoned(ip, zone) => write!(f, "[{ip}%{zone}]"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// The short form, which parses to the same address; the alternate form is the part of a URL after its scheme.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A host name equal to a key would parse as the first of several pairs.
        if !f.alternate() && self.port.is_some() && matches!(&self.host, HostName::Name(name) if is_key(name))
        {
            f.write_str(SCHEME)?;
        }
        self.host.fmt(f)?;
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        if let Some(subsystem) = &self.subsystem {
            f.write_str("/")?;
            for char in subsystem.as_str().chars() {
                match char {
                    // Characters that would end the name, or be taken for something else or for nothing.
                    '%' | '?' | '#' | ';' => write!(f, "%{:02x}", u32::from(char))?,
                    _ if char.is_whitespace() => {
                        char.encode_utf8(&mut [0; 4])
                            .bytes()
                            .try_for_each(|byte| write!(f, "%{byte:02x}"))?;
                    }
                    _ => fmt::Write::write_char(f, char)?,
                }
            }
        }
        if let Some(nsid) = self.nsid {
            write!(f, "?ns={nsid}")?;
        }
        Ok(())
    }
}

/// With the scheme in front.
impl Address {
    /// The address as a URL: `nvme+tcp://HOST:PORT/NQN`.
    #[must_use]
    pub fn to_url(&self) -> String {
        format!("{SCHEME}{self:#}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Address {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn error(text: &str) -> AddressError {
        text.parse::<Address>().expect_err(text)
    }

    const NQN: &str = "nqn.2016-06.io.nvlane:disk";

    #[test]
    fn every_form_gives_the_same_address() {
        let expected = Address::new(HostName::Ip("192.0.2.1".parse().unwrap()))
            .with_port(4421)
            .with_subsystem(NQN.parse().unwrap())
            .with_nsid(Nsid::new(3));
        for text in [
            format!("192.0.2.1:4421/{NQN}?ns=3"),
            format!("nvme+tcp://192.0.2.1:4421/{NQN}?nsid=3"),
            format!("NVME+TCP://192.0.2.1:4421/{NQN}?ns=3"),
            format!("trtype:TCP adrfam:IPv4 traddr:192.0.2.1 trsvcid:4421 subnqn:{NQN} ns:3"),
            format!("trtype=tcp  traddr=192.0.2.1 trsvcid=4421 subnqn={NQN} ns=3"),
            format!("transport=tcp;traddr=192.0.2.1;trsvcid=4421;nqn={NQN};nsid=3"),
            format!("traddr=192.0.2.1,trsvcid=4421,subnqn={NQN},ns=3"),
        ] {
            assert_eq!(parse(&text), expected, "{text}");
        }
    }

    /// wire §1
    #[test]
    fn ports_default_to_what_is_asked_for() {
        assert_eq!(parse("target").port(), 8009);
        assert_eq!(parse("target/nqn.2014-08.org.nvmexpress.discovery").port(), 8009);
        assert_eq!(parse(&format!("target/{NQN}")).port(), 4420);
        assert_eq!(parse(&format!("target:1/{NQN}")).port(), 1);
    }

    #[test]
    fn a_name_may_look_like_a_scheme() {
        let address = Address::new(HostName::Ip("192.0.2.1".parse().unwrap()))
            .with_subsystem("nqn.2016-06.io.nvlane:a://b".parse().unwrap());
        assert_eq!(parse(&address.to_string()), address);
        assert_eq!(parse(&address.to_url()), address);
    }

    #[test]
    fn ipv6_goes_in_brackets() {
        assert_eq!(parse("[::1]:4420").resolve().unwrap(), ["[::1]:4420".parse().unwrap()]);
        assert_eq!(parse("traddr:fe80::1 trsvcid:4420"), parse("[fe80::1]:4420"));
        assert_eq!(parse("[fe80::1%lo]").to_string(), "[fe80::1%lo]");
        assert!(parse("[fe80::1%no-such-interface]").resolve().is_err());
        assert_eq!(error("fe80::1"), AddressError::NoBrackets("fe80::1".into()));
        assert_eq!(error("[::1"), AddressError::OpenBracket("[::1".into()));
        assert_eq!(error("[192.0.2.1]"), AddressError::NotIpv6("192.0.2.1".into()));
        assert_eq!(error("[::1]4420"), AddressError::Port("4420".into()));
    }

    #[test]
    fn a_zone_is_the_name_or_the_number_of_an_interface() {
        for zone in ["lo", "1", "eth0.100", "br-1_a~b"] {
            let address = parse(&format!("traddr:fe80::1%{zone} trsvcid:4420"));
            assert_eq!(address, parse(&format!("[fe80::1%{zone}]:4420")));
            assert_eq!(parse(&address.to_string()), address);
            assert_eq!(parse(&address.to_url()), address);
        }
        for zone in ["", "?d=8009", "/", "a/b", "%251", "eth0 ", "[", "ö"] {
            // A slash and a question mark end the host before its bracket.
            assert!(format!("[::1%{zone}]").parse::<Address>().is_err(), "{zone}");
            assert!(
                format!("traddr=::1%{zone};trsvcid=1").parse::<Address>().is_err() || zone.ends_with(' '),
                "{zone}"
            );
        }
        assert_eq!(error("traddr=::1%?d=8009"), AddressError::Zone("?d=8009".into()));
    }

    #[test]
    fn a_machine_may_be_called_like_a_key() {
        for text in
            ["nvme+tcp://ns:5", "nvme+tcp://TRADDR:4420/nqn.2016-06.io.nvlane:disk?ns=1", "ns/nqn.x:y"]
        {
            let address = parse(text);
            assert_eq!(address.to_string(), text);
            assert_eq!(parse(&address.to_string()), address);
            assert_eq!(parse(&address.to_url()), address);
        }
    }

    #[test]
    fn errors_say_what_would_be_right() {
        for (text, hint) in [
            ("", "HOST[:PORT][/NQN][?ns=1]"),
            ("/nqn.2016-06.io.nvlane:disk", "HOST[:PORT]"),
            ("host:0", "1 to 65535"),
            ("host:70000", "1 to 65535"),
            ("host:", "1 to 65535"),
            ("ho st", "neither a host name"),
            ("192.0.2", "neither a host name"),
            ("host?ns=0", "1 to 4294967294"),
            ("host?ns=4294967295", "1 to 4294967294"),
            ("host?qid=1", "only ns=NUMBER"),
            ("nvme+rdma://host", "nvme+tcp://"),
            ("trtype:RDMA traddr:192.0.2.1", "only TCP"),
            ("trtype:TCP adrfam:IPv6 traddr:192.0.2.1", "IPv4 or IPv6"),
            ("trtype:TCP trsvcid:4420", "no host"),
            ("traddr:192.0.2.1 colour:red", "known are trtype"),
            ("traddr:192.0.2.1 traddr:192.0.2.2", "given twice"),
            ("traddr:192.0.2.1 tcp", "KEY:VALUE"),
            ("host/a%2", "two hexadecimal digits"),
        ] {
            let message = error(text).to_string();
            assert!(message.contains(hint), "{text}: {message}");
        }
        assert!(matches!(error(&format!("host/{}", "n".repeat(224))), AddressError::Nqn { .. }));
    }

    #[test]
    fn a_name_with_odd_characters_survives() {
        let address = parse("host").with_subsystem(Nqn::from_wire(b"odd name?100%;x,y#\0").unwrap());
        assert_eq!(address.to_string(), "host/odd%20name%3f100%25%3bx,y%23");
        assert_eq!(parse(&address.to_string()), address);
        // A space that does not break, at the end of the text, too.
        let address = parse("host").with_subsystem(Nqn::from_wire("name\u{a0}\0".as_bytes()).unwrap());
        assert_eq!(address.to_string(), "host/name%c2%a0");
        assert_eq!(parse(&address.to_string()), address);
        assert_eq!(parse("traddr=host,subnqn=nqn.x:a,b,trsvcid=1").subsystem.unwrap().as_str(), "nqn.x:a,b");
    }

    proptest! {
        /// The displayed text parses to the same address.
        #[test]
        fn display_round_trips(
            host in prop_oneof![
                any::<[u8; 4]>().prop_map(|bytes| HostName::Ip(IpAddr::from(bytes))),
                any::<[u8; 16]>().prop_map(|bytes| HostName::Ip(IpAddr::from(bytes))),
                "[a-z][a-z0-9.-]{0,30}[a-z]".prop_map(HostName::Name),
            ],
            port in proptest::option::of(1u16..),
            nqn in proptest::option::of("[ -~äß/]{1,60}"),
            nsid in proptest::option::of(1u32..u32::MAX),
        ) {
            let subsystem = nqn.map(|nqn| Nqn::from_wire(&[nqn.as_bytes(), &[0]].concat()).unwrap());
            let address = Address { host, port, subsystem, nsid: nsid.map(Nsid::new) };
            prop_assert_eq!(&parse(&address.to_string()), &address);
            prop_assert_eq!(&parse(&address.to_url()), &address);
        }

        /// No text makes the parser panic.
        #[test]
        fn any_text_is_an_address_or_an_error(text in "\\PC{0,60}") {
            let _ = text.parse::<Address>();
        }
    }
}
