//! The discovery services that an address leads to.

use host::discovery::{Survey, survey};
use host::{Address, Error, LinkError, Options};
use wire::discovery::{DISCOVERY_PORT, IO_PORT};

use crate::exit::Failure;

/// The discovery service of a machine, even if the address names a subsystem.
pub(crate) fn service_address(address: Address) -> Address {
    Address { subsystem: None, nsid: None, ..address }
}

/// Reads the log of the service and of those it refers to. Without a port in the address: port 8009, then 4420.
pub(crate) fn survey_service(address: &Address, options: &Options) -> Result<Survey, Failure> {
    match survey(address, options) {
        Err(error) if address.port.is_none() && is_closed(&error) => {
            survey(&address.clone().with_port(IO_PORT), options).map_err(|second| {
                let is_closed = is_closed(&second);
                let failure = Failure::from(second);
                if is_closed {
                    failure.context(format!("port {DISCOVERY_PORT} is closed, and "))
                } else {
                    failure
                }
            })
        }
        surveyed => Ok(surveyed?),
    }
}

/// Whether nothing answers on that port.
fn is_closed(error: &Error) -> bool {
    match error {
        Error::Link { cause: LinkError::Socket(error), .. } => {
            error.kind() == std::io::ErrorKind::ConnectionRefused
        }
        _ => false,
    }
}
