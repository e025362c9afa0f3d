//! Opening a client: its arguments as options of the host library.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use host::security::psk::Derivation;
use host::wire::pdu::Digests;
use host::{
    Address, Credentials, HostId, HostIdentity, HostKeys, InvalidSpread, Nqn, Options, ReconnectSettings,
    SpreadOptions, SpreadTarget,
};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::error::invalid;

/// Longest time of an argument, seconds: a day.
const SECONDS_MAX: f64 = 86_400.0;

/// Most lanes of a client, each with a thread.
const LANES_MAX: u16 = 64;

/// Keyword arguments of every client.
#[derive(Default)]
struct Arguments {
    lanes: Option<u16>,
    depth: Option<u16>,
    hostnqn: Option<String>,
    hostid: Option<String>,
    dhchap_secret: Option<String>,
    dhchap_ctrl_secret: Option<String>,
    tls_key: Option<String>,
    tls_key_compat: bool,
    concat: bool,
    header_digest: bool,
    data_digest: bool,
    connect_timeout: Option<f64>,
    timeout: Option<f64>,
    reconnect_timeout: Option<f64>,
    fast_io_fail: Option<f64>,
}

/// Names of [`Arguments`].
const NAMES: [&str; 15] = [
    "lanes",
    "depth",
    "hostnqn",
    "hostid",
    "dhchap_secret",
    "dhchap_ctrl_secret",
    "tls_key",
    "tls_key_compat",
    "concat",
    "header_digest",
    "data_digest",
    "connect_timeout",
    "timeout",
    "reconnect_timeout",
    "fast_io_fail",
];

fn parsed<T: FromStr<Err: std::fmt::Display>>(text: Option<&String>, argument: &str) -> PyResult<Option<T>> {
    text.map(|text| text.parse().map_err(|error| invalid(format!("{argument}: {error}")))).transpose()
}

fn seconds(value: f64, argument: &str) -> PyResult<Duration> {
    if value > 0.0 && value <= SECONDS_MAX {
        return Ok(Duration::from_secs_f64(value));
    }
    Err(invalid(format!("{argument}={value}: write seconds above 0, at most {SECONDS_MAX}")))
}

impl Arguments {
    fn read(keywords: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut read = Self::default();
        for (name, value) in keywords.into_iter().flatten() {
            let name: String = name.extract()?;
            let wrong = |error: PyErr| {
                let py = value.py();
                let made = match error.is_instance_of::<PyOverflowError>(py) {
                    true => invalid(format!("{name}={value} is out of range")),
                    false => PyTypeError::new_err(format!("{name}: {}", error.value(py))),
                };
                made.set_cause(py, Some(error));
                made
            };
            match name.as_str() {
                "lanes" => read.lanes = value.extract().map_err(wrong)?,
                "depth" => read.depth = value.extract().map_err(wrong)?,
                "hostnqn" => read.hostnqn = value.extract().map_err(wrong)?,
                "hostid" => read.hostid = value.extract().map_err(wrong)?,
                "dhchap_secret" => read.dhchap_secret = value.extract().map_err(wrong)?,
                "dhchap_ctrl_secret" => read.dhchap_ctrl_secret = value.extract().map_err(wrong)?,
                "tls_key" => read.tls_key = value.extract().map_err(wrong)?,
                "tls_key_compat" => read.tls_key_compat = value.extract().map_err(wrong)?,
                "concat" => read.concat = value.extract().map_err(wrong)?,
                "header_digest" => read.header_digest = value.extract().map_err(wrong)?,
                "data_digest" => read.data_digest = value.extract().map_err(wrong)?,
                "connect_timeout" => read.connect_timeout = value.extract().map_err(wrong)?,
                "timeout" => read.timeout = value.extract().map_err(wrong)?,
                "reconnect_timeout" => read.reconnect_timeout = value.extract().map_err(wrong)?,
                "fast_io_fail" => read.fast_io_fail = value.extract().map_err(wrong)?,
                _ => {
                    let message = format!("there is no argument {name}: there are {}", NAMES.join(", "));
                    return Err(PyTypeError::new_err(message));
                }
            }
        }
        Ok(read)
    }

    fn options(&self) -> PyResult<Options> {
        let mut options = Options::default();
        if let Some(lanes) = self.lanes {
            if !(1..=LANES_MAX).contains(&lanes) {
                return Err(invalid(format!("lanes={lanes}: write 1 to {LANES_MAX}")));
            }
            options = options.with_lanes(lanes);
        }
        if let Some(depth) = self.depth {
            if !(2..=Options::DEPTH_MAX).contains(&depth) {
                return Err(invalid(format!("depth={depth}: write 2 to {}", Options::DEPTH_MAX)));
            }
            options = options.with_depth(depth);
        }
        let mut digests = Digests::empty();
        digests.set(Digests::HEADER, self.header_digest);
        digests.set(Digests::DATA, self.data_digest);
        options = options.with_only_digests(digests).with_identity(self.identity()?).with_concat(self.concat);
        let secret = parsed(self.dhchap_secret.as_ref(), "dhchap_secret")?;
        let controller = parsed(self.dhchap_ctrl_secret.as_ref(), "dhchap_ctrl_secret")?;
        match (secret, controller) {
            (Some(secret), controller) => {
                options = options.with_credentials(Arc::new(Credentials::new(secret, controller)));
            }
            (None, Some(_)) => return Err(invalid("dhchap_ctrl_secret needs dhchap_secret")),
            (None, None) if self.concat => {
                return Err(invalid("concat needs dhchap_secret, which generates the key"));
            }
            (None, None) => {}
        }
        if let Some(key) = parsed(self.tls_key.as_ref(), "tls_key")? {
            if self.concat {
                return Err(invalid("concat and tls_key exclude each other"));
            }
            let derivation = if self.tls_key_compat { Derivation::Libnvme } else { Derivation::Standard };
            options = options.with_tls(Arc::new(HostKeys { key, derivation }));
        } else if self.tls_key_compat {
            return Err(invalid("tls_key_compat needs tls_key"));
        }
        if let Some(value) = self.connect_timeout {
            options = options.with_connect_timeout(seconds(value, "connect_timeout")?);
        }
        if let Some(value) = self.timeout {
            let timeout = seconds(value, "timeout")?;
            options = options.with_command_timeout(timeout).tuned(|tuning| tuning.admin_timeout = timeout);
        }
        if let Some(value) = self.fast_io_fail {
            let limit = seconds(value, "fast_io_fail")?;
            options = options.tuned(|tuning| tuning.fast_io_fail = Some(limit));
        }
        match self.reconnect_timeout {
            Some(0.0) => options = options.with_reconnect(ReconnectSettings::never()),
            Some(value) => {
                let limit = seconds(value, "reconnect_timeout")?;
                options = options.with_reconnect(ReconnectSettings::default().with_give_up_after(limit));
            }
            None => {}
        }
        Ok(options)
    }

    fn identity(&self) -> PyResult<Option<HostIdentity>> {
        let name: Option<Nqn> = parsed(self.hostnqn.as_ref(), "hostnqn")?;
        let id: Option<HostId> = parsed(self.hostid.as_ref(), "hostid")?;
        let mut identity = match (name, &id) {
            (Some(name), _) => HostIdentity::of_name(name),
            (None, Some(_)) => HostIdentity::of_this_machine(),
            (None, None) => return Ok(None),
        };
        if let Some(id) = id {
            identity.id = id;
        }
        Ok(Some(identity))
    }
}

/// The address and the options of a client.
///
/// # Errors
/// An argument is unknown or invalid.
pub(crate) fn connection(
    address: &str,
    keywords: Option<&Bound<'_, PyDict>>,
) -> PyResult<(Address, Options)> {
    let options = Arguments::read(keywords)?.options()?;
    Ok((parse(address)?, options))
}

fn parse(address: &str) -> PyResult<Address> {
    address.parse().map_err(|error| invalid(format!("address {address:?}: {error}")))
}

/// Keyword arguments of a client of several targets.
const SPREAD_NAMES: [&str; 5] = ["deadline", "immutable", "copies", "weights", "names"];

/// Where a client of keys connects to.
#[derive(Clone)]
pub(crate) enum Connection {
    /// One target.
    One(Box<Address>, Options),
    /// Several targets, over which keys are spread.
    Many(Vec<SpreadTarget>, Options, SpreadOptions),
}

impl Connection {
    /// The addresses, as one text.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::One(address, _) => address.to_url(),
            Self::Many(targets, ..) => {
                let urls: Vec<_> = targets.iter().map(|target| target.address.to_url()).collect();
                urls.join(" ")
            }
        }
    }
}

/// The address or the addresses of a client of keys, and its options.
///
/// # Errors
/// An argument is unknown or invalid.
pub(crate) fn key_value_connection(
    address: &Bound<'_, PyAny>,
    keywords: Option<&Bound<'_, PyDict>>,
) -> PyResult<Connection> {
    let keywords = keywords.map(PyDictMethods::copy).transpose()?;
    let mut spread = Vec::new();
    if let Some(keywords) = &keywords {
        for name in SPREAD_NAMES {
            if let Some(value) = keywords.get_item(name)? {
                keywords.del_item(name)?;
                spread.push((name, value));
            }
        }
    }
    if let Ok(text) = address.cast::<PyString>() {
        if let Some((name, _)) = spread.first() {
            return Err(invalid(format!("{name} is for several targets: pass a list of addresses")));
        }
        let (address, options) = connection(text.to_str()?, keywords.as_ref())?;
        return Ok(Connection::One(Box::new(address), options));
    }
    let arguments = Arguments::read(keywords.as_ref())?;
    for (name, is_given) in [
        ("fast_io_fail", arguments.fast_io_fail.is_some()),
        ("reconnect_timeout", arguments.reconnect_timeout.is_some()),
    ] {
        if is_given {
            let message = format!(
                "{name} is for one target: calls of several wait no longer than deadline, and lost ones are \
                 connected again for ever"
            );
            return Err(invalid(message));
        }
    }
    let options = arguments.options()?;
    let wrong = |_| {
        let kind = address.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
        PyTypeError::new_err(format!("address has to be str or a list of str, not {kind}"))
    };
    let mut targets = Vec::new();
    for one in address.try_iter().map_err(wrong)? {
        let one = one?;
        let text: &Bound<'_, PyString> = one.cast().map_err(|error| wrong(error.into()))?;
        targets.push(SpreadTarget::new(parse(text.to_str()?)?));
    }
    let options_of_spread = spread_options(&spread, &mut targets)?;
    Ok(Connection::Many(targets, options, options_of_spread))
}

fn spread_options(
    arguments: &[(&str, Bound<'_, PyAny>)],
    targets: &mut [SpreadTarget],
) -> PyResult<SpreadOptions> {
    let mut options = SpreadOptions::default();
    for (name, value) in arguments {
        let wrong = |error: PyErr| {
            let py = value.py();
            PyTypeError::new_err(format!("{name}: {}", error.value(py)))
        };
        let count_of = |count: usize| {
            let targets = targets.len();
            if count == targets {
                return Ok(());
            }
            Err(invalid(format!("{count} {name} for {targets} addresses: each address has one")))
        };
        match *name {
            "deadline" => options.deadline = seconds(value.extract().map_err(wrong)?, name)?,
            "immutable" => options.is_immutable = value.extract().map_err(wrong)?,
            "copies" => {
                let copies: i64 = value.extract().map_err(wrong)?;
                let targets = targets.len();
                let copies = u8::try_from(copies).map_err(|_| {
                    invalid(format!("copies={copies}: write 1 to the number of addresses, {targets}"))
                })?;
                options.copies = copies;
            }
            "weights" => {
                let weights: Vec<i64> = value.extract().map_err(wrong)?;
                count_of(weights.len())?;
                for (target, weight) in targets.iter_mut().zip(weights) {
                    let name = target.name.clone();
                    target.weight =
                        u16::try_from(weight).map_err(|_| invalid(InvalidSpread::Weight { name }))?;
                }
            }
            _ => {
                let names: Vec<String> = value.extract().map_err(wrong)?;
                count_of(names.len())?;
                for (target, name) in targets.iter_mut().zip(names) {
                    target.name = name;
                }
            }
        }
    }
    Ok(options)
}
