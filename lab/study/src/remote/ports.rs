//! The ports of a study server's targets: any free one, or those of a range that a firewall lets through.

use std::fmt;
use std::io::ErrorKind;
use std::net::{IpAddr, TcpListener};
use std::str::FromStr;

/// Ports from the first to the last, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    first: u16,
    last: u16,
}

/// Text that is no range of ports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortRangeError {
    /// Not two numbers of 1 to 65535.
    #[error("expected FIRST-LAST, two ports of 1 to 65535, such as 5000-5031")]
    Form,
    /// The last port is below the first.
    #[error("the last port, {last}, is below the first, {first}")]
    Reversed {
        /// First port.
        first: u16,
        /// Last port.
        last: u16,
    },
}

impl FromStr for PortRange {
    type Err = PortRangeError;

    fn from_str(text: &str) -> Result<Self, PortRangeError> {
        let port = |text: &str| text.parse().ok().filter(|port| *port > 0).ok_or(PortRangeError::Form);
        let (first, last) = text.split_once('-').ok_or(PortRangeError::Form)?;
        let (first, last) = (port(first)?, port(last)?);
        if first <= last { Ok(Self { first, last }) } else { Err(PortRangeError::Reversed { first, last }) }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl PortRange {
    /// A free port of the range: the next one after `last_given`, so that a port rests before it is given again.
    ///
    /// # Errors
    /// None is free, or the address cannot be listened on: the reason, for the study.
    pub(super) fn free_port(self, address: IpAddr, last_given: Option<u16>) -> Result<u16, String> {
        let after = last_given.filter(|port| (self.first..self.last).contains(port));
        let start = after.map_or(self.first, |port| port + 1);
        for port in (start..=self.last).chain(self.first..start) {
            match TcpListener::bind((address, port)) {
                Ok(_) => return Ok(port),
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                Err(error) => {
                    return Err(format!("a target cannot listen on {address}, port {port}: {error}"));
                }
            }
        }
        let count = u32::from(self.last - self.first) + 1;
        Err(format!(
            "no port is free for another target: all {count} of --data-ports {self} are in use on {address}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn ranges_are_two_ports() {
        assert_eq!("5000-5031".parse(), Ok(PortRange { first: 5000, last: 5031 }));
        assert_eq!("5000-5000".parse::<PortRange>().unwrap().to_string(), "5000-5000");
        for text in ["", "5000", "5000-", "-5031", "0-5", "5000-65536", "a-b", "5000-5001-5002", "5000..5031"]
        {
            assert_eq!(text.parse::<PortRange>(), Err(PortRangeError::Form), "{text:?}");
        }
        let reversed = "5031-5000".parse::<PortRange>().unwrap_err();
        assert_eq!(reversed.to_string(), "the last port, 5000, is below the first, 5031");
    }

    /// Two adjacent ports: the first is in use, the second is free.
    fn used_and_free() -> (TcpListener, PortRange) {
        loop {
            let used = TcpListener::bind((LOCALHOST, 0)).unwrap();
            let first = used.local_addr().unwrap().port();
            let Some(last) = first.checked_add(1) else { continue };
            if TcpListener::bind((LOCALHOST, last)).is_ok() {
                return (used, PortRange { first, last });
            }
        }
    }

    #[test]
    fn a_port_in_use_is_skipped_and_a_range_in_use_is_an_error() {
        let (used, range) = used_and_free();
        assert_eq!(range.free_port(LOCALHOST, None), Ok(range.last));
        assert_eq!(range.free_port(LOCALHOST, Some(range.last)), Ok(range.last), "from the beginning again");
        let taken = TcpListener::bind((LOCALHOST, range.last)).unwrap();
        let refused = range.free_port(LOCALHOST, None).unwrap_err();
        assert!(
            refused.contains(&format!("all 2 of --data-ports {range} are in use on 127.0.0.1")),
            "{refused}"
        );
        drop(used);
        assert_eq!(range.free_port(LOCALHOST, Some(range.last)), Ok(range.first));
        drop(taken);
        assert_eq!(range.free_port(LOCALHOST, Some(range.first)), Ok(range.last), "a port rests");
    }

    #[test]
    fn an_address_of_another_machine_is_told() {
        let range = PortRange { first: 5000, last: 5000 };
        let refused = range.free_port([192, 0, 2, 1].into(), None).unwrap_err();
        assert!(refused.starts_with("a target cannot listen on 192.0.2.1, port 5000: "), "{refused}");
    }
}
