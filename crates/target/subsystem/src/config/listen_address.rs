//! Addresses to listen at.

use std::net::{IpAddr, SocketAddr};

use linux::with_numbered_zone;

/// Parses `IP:PORT`, or an IP alone, which gets `port`. The zone of a link-local address is the name or number of an
/// interface, as in `[fe80::1%eth0]:4420`.
///
/// # Errors
/// The error, with an example.
pub fn listen_address(text: &str, port: u16) -> Result<SocketAddr, String> {
    let numbered =
        with_numbered_zone(text).map_err(|error| format!("\"{text}\" names no interface here: {error}"))?;
    let bare = numbered.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&numbered);
    let with_port = || numbered.parse::<SocketAddr>().ok();
    let without = || bare.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, port));
    let zoned = || format!("[{bare}]:{port}").parse::<SocketAddr>().ok();
    let address = with_port().or_else(without).or_else(zoned).ok_or_else(|| {
        format!("\"{text}\" is no address: write IP or IP:PORT, as in 192.0.2.1:4420 or [::]:4420")
    })?;
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0 => Err(format!(
            "\"{text}\" is link-local: name its interface, as in [{}%eth0]:{}",
            v6.ip(),
            v6.port()
        )),
        _ => Ok(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_have_a_port_brackets_and_a_zone() {
        let index = linux::interface_index("lo").expect("every machine has one");
        for (text, right) in [
            ("192.0.2.1", "192.0.2.1:4420".to_owned()),
            ("192.0.2.1:1", "192.0.2.1:1".into()),
            ("::1", "[::1]:4420".into()),
            ("[::1]", "[::1]:4420".into()),
            ("[::1]:1", "[::1]:1".into()),
            ("[fe80::1%lo]:1", format!("[fe80::1%{index}]:1")),
            ("[fe80::1%7]:1", "[fe80::1%7]:1".into()),
            ("[fe80::1%lo]", format!("[fe80::1%{index}]:4420")),
            ("fe80::1%lo", format!("[fe80::1%{index}]:4420")),
        ] {
            assert_eq!(listen_address(text, 4420).map(|address| address.to_string()), Ok(right), "{text}");
        }
    }

    #[test]
    fn a_wrong_one_says_what_is_wrong() {
        for (text, part) in [
            ("192.0.2", "is no address"),
            ("[fe80::1%no-such]:1", "names no interface here"),
            ("[fe80::1]:1", "link-local: name its interface, as in [fe80::1%eth0]:1"),
        ] {
            let error = listen_address(text, 4420).expect_err("wrong");
            assert!(error.contains(part), "{error}");
        }
    }
}
