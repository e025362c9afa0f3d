//! Discovery of subsystems and their addresses. wire §20
//!
//! ```no_run
//! use nvlane_host::{Options, discovery};
//!
//! let found = discovery::discover(&"192.0.2.1".parse()?, Options::default())?;
//! for entry in &found.entries {
//!     println!("{}", entry.subsystem()?);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
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

use std::collections::HashSet;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use host_core::discovery_log::LogReader;
pub use host_core::discovery_log::{Discovered, ENTRY_COUNT_MAX, LogError};
use host_core::failure::Failure;
use wire::discovery::{DiscoveryEntry, SubsystemType, TransportType};
use wire::id::Nsid;
use wire::identify::capabilities::Lpa;
use wire::nqn::Nqn;

use crate::address::{Address, AddressError};
use crate::association::Association;
use crate::error::Error;
use crate::event::{Event, Events};
use crate::options::Options;

/// Maximum depth of referrals, as in Linux tools.
pub const REFERRAL_DEPTH_MAX: usize = 8;

/// Maximum services queried in total.
pub const SERVICE_COUNT_MAX: usize = 64;

/// Keep-alive timeout of a persistent connection whose options have none.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// A persistent connection to a discovery service, which reports changes of the log.
#[derive(Debug)]
pub struct Discovery {
    association: Association,
    events: Events,
}

impl Discovery {
    /// Connects to the discovery service at `address`, by the well-known NQN unless the address has another.
    ///
    /// # Errors
    /// As [`Association::connect`].
    pub fn connect(address: &Address, options: Options) -> Result<Self, Error> {
        let keep_alive = if options.keep_alive.is_zero() { KEEP_ALIVE } else { options.keep_alive };
        let association = connect(address, Options { keep_alive, ..options })?;
        let events = association.events();
        Ok(Self { association, events })
    }

    /// Reads the log.
    ///
    /// # Errors
    /// [`Error::Failed`], or [`Error::Answer`] if the log is malformed.
    pub fn log(&self) -> Result<Discovered, Error> {
        read_log(&self.association)
    }

    /// Waits until the log may have changed: an event arrived, or the connection was lost and restored. Returns false
    /// after `timeout`.
    ///
    /// # Errors
    /// Why the association ended for good.
    pub fn wait(&self, timeout: Duration) -> Result<bool, Error> {
        let start = Instant::now();
        loop {
            match self.events.recv_timeout(timeout.saturating_sub(start.elapsed())) {
                Ok(Event::DiscoveryChanged | Event::Up) => return Ok(true),
                Ok(Event::Over(error)) => return Err(Error::clone(&error)),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => return Ok(false),
                Err(RecvTimeoutError::Disconnected) => return Err(Error::Ended),
            }
        }
    }

    /// The association.
    #[must_use]
    pub fn association(&self) -> &Association {
        &self.association
    }
}

fn connect(address: &Address, options: Options) -> Result<Association, Error> {
    let subsystem = address.subsystem.clone().unwrap_or_else(Nqn::discovery);
    // A discovery service may have a name of its own.
    Association::connect_to(address, subsystem, true, options.without_lanes())
}

fn read_log(association: &Association) -> Result<Discovered, Error> {
    const COMMAND: &str = "the discovery log";
    let can_offset = association.controller().identify.lpa.contains(Lpa::EXTENDED_DATA);
    let mut reader = LogReader::new(can_offset);
    while let Some(part) = reader.next_part() {
        let outcome = match association.log_part(part, Nsid::NONE) {
            Ok(part) => reader.on_part(&part),
            Err(error) => {
                let Error::Failed { failure: Failure::Status(status), .. } = &error else {
                    return Err(error);
                };
                let Some(outcome) = reader.on_refused(*status) else { return Err(error) };
                outcome
            }
        };
        outcome.map_err(|error| Error::Answer { command: COMMAND, why: error.text() })?;
    }
    Ok(reader.into_discovered())
}

/// Connects, reads the log, disconnects.
///
/// # Errors
/// As [`Association::connect`] and [`Discovery::log`].
pub fn discover(address: &Address, options: Options) -> Result<Discovered, Error> {
    let association = connect(address, Options { keep_alive: Duration::ZERO, ..options })?;
    let found = read_log(&association);
    association.close();
    found
}

/// The logs of a service and of the services it refers to.
#[derive(Debug, Default)]
pub struct Survey {
    /// Services and their logs.
    pub services: Vec<(Address, Discovered)>,
    /// Services that could not be queried, and why.
    pub failures: Vec<(Address, Error)>,
    /// Referrals were skipped: too deep, or too many.
    pub is_cut: bool,
}

/// Reads the log of a service and, one after the other, of those it refers to: each once, at most
/// [`REFERRAL_DEPTH_MAX`] deep and [`SERVICE_COUNT_MAX`] in total. [`Options::deadline`] limits the whole survey:
/// services not reached by then are among the failures.
///
/// # Errors
/// As [`discover`], about the first service; failures of others are in the survey.
#[expect(clippy::arithmetic_side_effects, reason = "no deeper than the limit")]
pub fn survey(address: &Address, options: &Options) -> Result<Survey, Error> {
    let mut survey = Survey::default();
    let mut seen = HashSet::from([key(address)]);
    let mut waiting = vec![(address.clone(), 0)];
    let start = Instant::now();
    while let Some((address, depth)) = waiting.pop() {
        // The deadline applies to the whole survey.
        let deadline = options.deadline.map(|limit| limit.saturating_sub(start.elapsed()));
        match discover(&address, Options { deadline, ..options.clone() }) {
            Ok(found) => {
                let referrals = found.entries.iter().filter(|entry| entry.subtype == SubsystemType::REFERRAL);
                for referral in referrals.filter_map(|entry| address_of(entry, &address).ok()) {
                    if depth >= REFERRAL_DEPTH_MAX || seen.len() >= SERVICE_COUNT_MAX {
                        survey.is_cut = true;
                    } else if seen.insert(key(&referral)) {
                        waiting.push((referral, depth + 1));
                    }
                }
                survey.services.push((address, found));
            }
            Err(error) if survey.services.is_empty() && depth == 0 => return Err(error),
            Err(error) => survey.failures.push((address, error)),
        }
    }
    Ok(survey)
}

/// Identity of a service: without the name, which may be the well-known one or its own.
fn key(address: &Address) -> (String, u16) {
    (address.host.to_string(), address.port())
}

/// The address in an entry of the log of `service`, whose zone link-local addresses get.
///
/// # Errors
/// Why the entry has no usable address.
pub fn address_of(entry: &DiscoveryEntry, service: &Address) -> Result<Address, AddressError> {
    if entry.trtype != TransportType::TCP {
        return Err(AddressError::Transport(entry.trtype.to_string()));
    }
    // The peer's texts: the parser accepts only characters of an address.
    let (host, port) = (entry.address().to_string(), entry.service_id().to_string());
    let address: Address = format!("traddr={host};trsvcid={port}").parse()?;
    let subsystem =
        entry.subsystem().map_err(|source| AddressError::Nqn { nqn: "the entry's".into(), source })?;
    let host = address.host.beside(&service.host);
    Ok(Address { host, subsystem: Some(subsystem), ..address })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::{FromBytes, IntoBytes};

    #[test]
    fn entries_become_addresses_or_say_why_not() {
        let nqn: Nqn = "nqn.2016-06.io.nvlane:disk".parse().unwrap();
        let entry = DiscoveryEntry::tcp("fe80::1".parse().unwrap(), 4420, &nqn);
        for (service, host) in
            [("192.0.2.1", "[fe80::1]"), ("[fe80::9%eth0]", "[fe80::1%eth0]"), ("[fe80::9%3]", "[fe80::1%3]")]
        {
            let service = service.parse().unwrap();
            assert_eq!(address_of(&entry, &service).unwrap().to_string(), format!("{host}:4420/{nqn}"));
        }
        let service: Address = "[fe80::9%eth0]".parse().unwrap();
        let routed = DiscoveryEntry::tcp("2001:db8::1".parse().unwrap(), 4420, &nqn);
        assert_eq!(address_of(&routed, &service).unwrap().to_string(), format!("[2001:db8::1]:4420/{nqn}"));
        let address_of = |entry| address_of(entry, &service);
        let mut rdma = entry;
        rdma.trtype = TransportType::RDMA;
        assert!(address_of(&rdma).is_err());
        let mut bytes = entry.as_bytes().to_vec();
        bytes[512..768].fill(b'a');
        bytes[256..512].fill(b'n');
        let odd = DiscoveryEntry::read_from_bytes(&bytes).unwrap();
        assert!(address_of(&odd).is_err(), "no NUL in either text");
        bytes[512..520].copy_from_slice(b"\x1b[2J;x=y");
        let odd = DiscoveryEntry::read_from_bytes(&bytes).unwrap();
        let message = address_of(&odd).unwrap_err().to_string();
        assert!(!message.contains('\x1b'), "{message}");
    }
}
