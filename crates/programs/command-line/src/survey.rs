//! The discovery services that an address leads to, and the addresses that they list.

use host::discovery::{Discovered, Survey, address_of, survey};
use host::reconnect::ReconnectSettings;
use host::{Address, Association, Error, HostName, LinkError, Options};
use wire::discovery::{DISCOVERY_PORT, IO_PORT, SubsystemType};
use wire::nqn::Nqn;

use crate::exit::Failure;

/// The discovery service of a machine, even if the address names a subsystem.
pub fn service_address(address: Address) -> Address {
    Address { subsystem: None, nsid: None, ..address }
}

/// Reads the log of the service and of those it refers to. Without a port in the address: port 8009, then 4420.
///
/// # Errors
/// No service answers there.
pub fn survey_service(address: &Address, options: &Options) -> Result<Survey, Failure> {
    match survey(address, options) {
        Err(first) if address.port.is_none() && may_be_elsewhere(&first, address_count(address)) => {
            survey(&address.clone().with_port(IO_PORT), options).map_err(|second| {
                let failure = Failure::from(second);
                failure.context(format!("nothing answers on port {DISCOVERY_PORT}, and "))
            })
        }
        surveyed => Ok(surveyed?),
    }
}

fn address_count(address: &Address) -> usize {
    address.resolve().map_or(0, |found| found.len())
}

/// Whether the service may answer on another port: this one is closed. Of several addresses behind a name only the error
/// of the last one tried is known, so there any failure to connect will do.
fn may_be_elsewhere(error: &Error, address_count: usize) -> bool {
    let Error::Link { cause, .. } = error else { return false };
    let is_closed = match cause {
        LinkError::Socket(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
        _ => false,
    };
    let does_not_connect = matches!(cause, LinkError::Socket(_) | LinkError::TimedOut { .. });
    is_closed || does_not_connect && address_count > 1
}

/// Most addresses of a subsystem that are tried.
const ADDRESS_COUNT_MAX: usize = 16;

/// The subsystems that a log lists over TCP, in its order, each with its addresses: first the one that was asked, then
/// others of that machine.
pub fn listed(service: &Address, found: &Discovered, asked: &Address) -> Vec<(Nqn, Vec<Address>)> {
    let machine = asked.resolve().unwrap_or_default();
    let is_of_machine = |host: &HostName| {
        *host == asked.host || machine.iter().any(|peer| *host == Address::from(*peer).host)
    };
    let mut listed: Vec<(Nqn, Vec<Address>)> = Vec::new();
    let entries = found.entries.iter().filter(|entry| entry.subtype == SubsystemType::NVM);
    for address in entries.filter_map(|entry| address_of(entry, service).ok()) {
        let Some(nqn) = address.subsystem.clone() else { continue };
        match listed.iter_mut().find(|(known, _)| *known == nqn) {
            Some((_, addresses)) if addresses.contains(&address) => {}
            Some((_, addresses)) => addresses.push(address),
            None => listed.push((nqn, vec![address])),
        }
    }
    for (_, addresses) in &mut listed {
        addresses.sort_by_key(|address| match is_of_machine(&address.host) {
            true if Some(address.port()) == asked.port => 0,
            true => 1,
            false => 2,
        });
        addresses.truncate(ADDRESS_COUNT_MAX);
    }
    listed
}

/// The first of several addresses of a subsystem that this host can connect to, and the options for it. A single one is
/// not tried.
///
/// # Errors
/// The host can connect to none of them.
pub fn reachable(
    addresses: &[Address],
    options_for: impl Fn(&Address) -> Result<Options, Failure>,
) -> Result<(Address, Options), Failure> {
    let mut first_failure = None;
    for address in addresses {
        let options = options_for(address)?;
        if addresses.len() == 1 {
            return Ok((address.clone(), options));
        }
        let attempt = options.clone().with_reconnect(ReconnectSettings::never()).without_lanes();
        match Association::connect(address, attempt) {
            Ok(association) => {
                association.close();
                return Ok((address.clone(), options));
            }
            Err(error) => {
                tracing::info!(%address, %error, "address of the subsystem does not answer: trying the next");
                first_failure.get_or_insert(error);
            }
        }
    }
    let Some(error) = first_failure else {
        return Err(Failure::usage("the subsystem has no address over TCP"));
    };
    let before =
        format!("none of the {} addresses of the subsystem can be used; the first: ", addresses.len());
    Err(Failure::from(error).context(before))
}

#[cfg(test)]
mod tests {

    use host::LinkContext;
    use host::discovery::Discovered;
    use wire::discovery::DiscoveryEntry;
    use wire::id::Qid;

    use super::*;

    #[test]
    fn the_error_of_the_last_address_does_not_hide_that_another_refused() {
        use std::io::ErrorKind;
        let error = |cause| {
            let name = || "nqn.2016-06.io.nvlane:x".parse().expect("a name");
            let context =
                LinkContext { peer: "two".into(), qid: Qid::ADMIN, subsystem: name(), host: name() };
            Error::Link { context: Box::new(context), cause }
        };
        let socket = |kind: ErrorKind| error(LinkError::Socket(std::io::Error::from(kind).into()));
        let timed_out = error(LinkError::TimedOut { to: "TCP", waited: std::time::Duration::from_secs(10) });
        for (error, with_one, with_two) in [
            (socket(ErrorKind::ConnectionRefused), true, true),
            (socket(ErrorKind::NetworkUnreachable), false, true),
            (timed_out, false, true),
            (error(LinkError::Closed { during: "ICReq" }), false, false),
            (Error::Ended, false, false),
        ] {
            assert_eq!(
                (may_be_elsewhere(&error, 1), may_be_elsewhere(&error, 2)),
                (with_one, with_two),
                "{error}"
            );
        }
    }

    #[test]
    fn the_address_that_was_asked_comes_first_then_its_machine() {
        let nqns = ["nqn.2016-06.io.nvlane:one", "nqn.2016-06.io.nvlane:two"]
            .map(|nqn| nqn.parse().expect("a name"));
        let entry = |ip: &str, port, nqn| DiscoveryEntry::tcp(ip.parse().expect("an address"), port, nqn);
        let entries = vec![
            entry("192.0.2.77", 4420, &nqns[0]),
            entry("127.0.0.1", 4421, &nqns[0]),
            entry("127.0.0.1", 4421, &nqns[0]),
            entry("192.0.2.77", 4420, &nqns[1]),
            entry("127.0.0.1", 4420, &nqns[0]),
        ];
        let found = Discovered { generation: 1, entries };
        for asked in ["127.0.0.1:4420", "localhost:4420"] {
            let asked: Address = asked.parse().expect("an address");
            let [(one, places), (two, others)] = &listed(&asked, &found, &asked)[..] else { panic!("two") };
            assert_eq!([one, two], [&nqns[0], &nqns[1]]);
            let texts: Vec<String> =
                places.iter().map(|address| format!("{}:{}", address.host, address.port())).collect();
            assert_eq!(texts, ["127.0.0.1:4420", "127.0.0.1:4421", "192.0.2.77:4420"]);
            assert_eq!(others.len(), 1);
        }
    }
}
