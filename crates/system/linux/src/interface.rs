//! Network interfaces by name, in the network namespace of this process.

use std::borrow::Cow;
use std::io;

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

/// The number of the interface with this name.
///
/// # Errors
/// There is none, or no descriptor is free.
pub fn interface_index(name: &str) -> io::Result<u32> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    Ok(netdevice::name_to_index(socket, name)?)
}

/// The address with the number of an interface in place of its name: `[fe80::1%eth0]:4420` becomes
/// `[fe80::1%2]:4420`, which the standard library parses.
///
/// # Errors
/// As [`interface_index`].
pub fn with_numbered_zone(address: &str) -> io::Result<Cow<'_, str>> {
    let Some((ip, rest)) = address.split_once('%') else { return Ok(address.into()) };
    let (zone, port) = rest.split_at(rest.find(']').unwrap_or(rest.len()));
    if zone.parse::<u32>().is_ok() {
        return Ok(address.into());
    }
    Ok(format!("{ip}%{}{port}", interface_index(zone)?).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_s_name_becomes_its_number() {
        let index = interface_index("lo").expect("every machine has one");
        for (text, numbered) in [
            ("[fe80::1%lo]:4420", format!("[fe80::1%{index}]:4420")),
            ("fe80::1%lo", format!("fe80::1%{index}")),
            ("[fe80::1%77]:4420", "[fe80::1%77]:4420".into()),
            ("192.0.2.1:4420", "192.0.2.1:4420".into()),
        ] {
            assert_eq!(with_numbered_zone(text).expect("an interface"), numbered);
        }
        for none in ["[fe80::1%no-such]:1", "fe80::1%", "fe80::1%a name of more than fifteen bytes"] {
            assert!(with_numbered_zone(none).is_err(), "{none}");
        }
    }
}
