//! Options of a connection, by name.

use std::ffi::{CStr, c_char, c_int};
use std::fmt::Display;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use host::reconnect::ReconnectSettings;
use host::security::psk::Derivation;
use host::security::secret::Secret;
use host::security::tls_key::TlsKey;
use host::{Credentials, Digests, HostId, HostIdentity, HostKeys, Nqn, ReplayPolicy};
use linux::small_file::SmallFile;
use zeroize::Zeroizing;

use crate::argument;
use crate::entry::{Guard, Handle, close, enter, give};
use crate::error::{Error, Result};

/// Lanes that a target is asked for, unless an option says otherwise: they cost nothing until they are opened.
const LANE_COUNT: u16 = 8;

/// Longest secret or key, as text.
const SECRET_BYTES_MAX: usize = 4096;

/// Longest time that can be set: a day.
const TIME_S_MAX: f64 = 86_400.0;

/// Options of connections: made by nvlane_options_new.
#[derive(Debug)]
pub struct Options {
    guard: Guard,
    options: host::Options,
    hostnqn: Option<Nqn>,
    hostid: Option<HostId>,
    secret: Option<Secret>,
    controller_secret: Option<Secret>,
    tls_key: Option<TlsKey>,
    derives_as_libnvme: bool,
}

impl Handle for Options {
    const MISSING: &'static CStr = c"options is NULL";

    fn guard(&self) -> &Guard {
        &self.guard
    }
}

/// Sets one option.
type Set = fn(&mut Options, &str) -> std::result::Result<(), String>;

/// The options, as in the header.
const NAMES: [(&str, Set); 19] = [
    ("hostnqn", |to, text| set_some(&mut to.hostnqn, text.parse())),
    ("hostid", |to, text| set_some(&mut to.hostid, text.parse())),
    ("dhchap-secret", |to, text| set_some(&mut to.secret, secret(text))),
    ("dhchap-ctrl-secret", |to, text| set_some(&mut to.controller_secret, secret(text))),
    ("reauthenticate", |to, text| set_some(&mut to.options.reauthenticate, time(text))),
    ("concat", |to, text| set(&mut to.options.concat, flag(text))),
    ("tls-key", |to, text| set_some(&mut to.tls_key, secret(text))),
    ("tls-key-compat", |to, text| set(&mut to.derives_as_libnvme, flag(text))),
    ("header-digest", |to, text| digest(to, Digests::HEADER, text)),
    ("data-digest", |to, text| digest(to, Digests::DATA, text)),
    ("connect-timeout", |to, text| set(&mut to.options.connect_timeout, time(text))),
    ("timeout", |to, text| set(&mut to.options.command_timeout, time(text))),
    ("keep-alive", |to, text| set(&mut to.options.keep_alive, time(text))),
    ("give-up", |to, text| {
        set(
            &mut to.options.reconnect,
            time(text).map(|time| ReconnectSettings::default().with_give_up_after(time)),
        )
    }),
    ("fast-fail", |to, text| set_some(&mut to.options.tuning.fast_io_fail, time(text))),
    ("replay-writes", |to, text| {
        let policy = |on| if on { ReplayPolicy::Idempotent } else { ReplayPolicy::default() };
        set(&mut to.options.replay, flag(text).map(policy))
    }),
    ("lanes", |to, text| set(&mut to.options.lanes, number(text, u16::MAX))),
    ("depth", |to, text| set(&mut to.options.depth, number(text, host::Options::DEPTH_MAX))),
    ("zero-copy", |to, text| set(&mut to.options.tuning.zero_copy, text.parse())),
];

impl Options {
    pub(crate) fn new() -> Self {
        Self {
            guard: Guard::new(),
            options: host::Options::default().with_lanes(LANE_COUNT),
            hostnqn: None,
            hostid: None,
            secret: None,
            controller_secret: None,
            tls_key: None,
            derives_as_libnvme: false,
        }
    }

    /// `-` and `_` are the same.
    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let wanted = name.replace('_', "-");
        let Some((name, set)) = NAMES.iter().find(|(known, _)| *known == wanted) else {
            let known = NAMES.map(|(known, _)| known).join(", ");
            return Err(Error::argument(format_args!("there is no option {name}; there are {known}")));
        };
        set(self, value).map_err(|why| Error::argument(format_args!("option {name}: {why}")))
    }

    /// The options for the host library.
    pub(crate) fn finish(&self) -> Result<host::Options> {
        let wrong = |text: &str| Err(Error::argument(text));
        let mut options = self.options.clone();
        if self.controller_secret.is_some() && self.secret.is_none() {
            return wrong("option dhchap-ctrl-secret needs dhchap-secret");
        }
        if (options.concat || options.reauthenticate.is_some()) && self.secret.is_none() {
            return wrong("options concat and reauthenticate need dhchap-secret");
        }
        if options.concat && (options.reauthenticate.is_some() || self.tls_key.is_some()) {
            return wrong("option concat excludes reauthenticate and tls-key");
        }
        if self.derives_as_libnvme && self.tls_key.is_none() {
            return wrong("option tls-key-compat needs tls-key");
        }
        let mut identity = match &self.hostnqn {
            Some(hostnqn) => HostIdentity::of_name(hostnqn.clone()),
            None => HostIdentity::of_this_machine(),
        };
        identity.id = self.hostid.unwrap_or(identity.id);
        options.identity = Some(identity);
        let credentials =
            |host: &Secret| Arc::new(Credentials::new(host.clone(), self.controller_secret.clone()));
        options.credentials = self.secret.as_ref().map(credentials);
        let derivation = if self.derives_as_libnvme { Derivation::Libnvme } else { Derivation::Standard };
        options.tls = self.tls_key.as_ref().map(|key| Arc::new(HostKeys { key: key.clone(), derivation }));
        Ok(options)
    }
}

fn set<T, E: Display>(place: &mut T, value: std::result::Result<T, E>) -> std::result::Result<(), String> {
    *place = value.map_err(|error| error.to_string())?;
    Ok(())
}

fn set_some<T, E: Display>(
    place: &mut Option<T>,
    value: std::result::Result<T, E>,
) -> std::result::Result<(), String> {
    set(place, value.map(Some))
}

fn digest(to: &mut Options, digest: Digests, text: &str) -> std::result::Result<(), String> {
    to.options.digests.set(digest, flag(text)?);
    Ok(())
}

fn flag(text: &str) -> std::result::Result<bool, &'static str> {
    match text {
        "1" | "yes" | "true" | "on" => Ok(true),
        "0" | "no" | "false" | "off" => Ok(false),
        _ => Err("write yes or no"),
    }
}

fn number(text: &str, limit: u16) -> std::result::Result<u16, String> {
    let number = text.parse().ok().filter(|number| (1..=limit).contains(number));
    number.ok_or_else(|| format!("write a number from 1 to {limit}"))
}

/// A time in seconds; 0 for none.
fn time(text: &str) -> std::result::Result<Duration, &'static str> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..=TIME_S_MAX).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or("write seconds, such as 10 or 0.5")
}

/// A secret or key: its text, or a file that has it.
fn secret<K: FromStr<Err: Display>>(text: &str) -> std::result::Result<K, String> {
    if ["DHHC-1:", "NVMeTLSkey-1:"].iter().any(|form| text.starts_with(form)) {
        return text.trim().parse().map_err(|error: K::Err| error.to_string());
    }
    // Of the full size at once: a buffer that grows would leave copies behind.
    let mut content = Zeroizing::new(String::with_capacity(SECRET_BYTES_MAX));
    let read = SmallFile::open(Path::new(text));
    let read = read.and_then(|file| file.take(SECRET_BYTES_MAX as u64).read_to_string(&mut content));
    read.map_err(|error| format!("cannot read {text}: {error}"))?;
    content.trim().parse().map_err(|error| format!("{text}: {error}"))
}

/// Makes a set of options, all as by default. Free it with nvlane_options_free.
#[unsafe(no_mangle)]
pub extern "C" fn nvlane_options_new() -> *mut Options {
    give(Options::new())
}

/// Sets an option to a value, both as text, which is not used after the call:
///
/// | name | value |
/// |---|---|
/// | hostnqn, hostid | name and identifier (UUID) of this host; by default those of this machine |
/// | dhchap-secret, dhchap-ctrl-secret | secret of this host, and that which the target must have: DHHC-1:..., or a file with it |
/// | reauthenticate | seconds after which each queue authenticates again |
/// | concat | yes: TLS 1.3 with a key that authentication generates |
/// | tls-key | pre-shared key of TLS 1.3: NVMeTLSkey-1:..., or a file with it; every connection then uses TLS |
/// | tls-key-compat | yes: derive keys as libnvme before 1.16 |
/// | header-digest, data-digest | yes or no (no) |
/// | connect-timeout | seconds for each step of a connection, and for which opening a handle waits for a lost target (10) |
/// | timeout | seconds after which a command without an answer is aborted (30) |
/// | keep-alive | seconds after which the target ends a silent association (10) |
/// | give-up | seconds for which a lost target is tried again (600); 0: it is not tried again |
/// | fast-fail | seconds for which commands wait for a lost target (as long as give-up), and opening a handle, if shorter |
/// | replay-writes | yes: send writes again after a reconnect; see docs/guide/c.md |
/// | lanes | queues to ask the target for: the number of handles that can be open (8) |
/// | depth | commands outstanding on a lane (128) |
/// | zero-copy | off, auto, or a size such as 64K: which writes are sent without a copy in the kernel (auto) |
///
/// Returns NVLANE_OK, or NVLANE_ERROR_ARGUMENT: the text says what would be right.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_options_set(
    options: *mut Options,
    name: *const c_char,
    value: *const c_char,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(options, |options| {
            let (name, value) = (argument::text("name", name)?, argument::text("value", value)?);
            options.set(name, value).map(|()| 0)
        })
    }
}

/// Frees options; NULL is allowed. Targets that were opened with them keep what they need.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_options_free(options: *mut Options) {
    // SAFETY: as this function's.
    unsafe { close(options) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";

    fn set_all(settings: &[(&str, &str)]) -> std::result::Result<host::Options, Error> {
        let mut options = Options::new();
        for (name, value) in settings {
            options.set(name, value)?;
        }
        options.finish()
    }

    fn message(settings: &[(&str, &str)]) -> String {
        format!("{:?}", set_all(settings).expect_err("refused"))
    }

    #[test]
    fn options_reach_the_host_library() {
        let options = set_all(&[
            ("hostnqn", "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555"),
            ("dhchap-secret", SECRET),
            ("dhchap_ctrl_secret", SECRET),
            ("concat", "yes"),
            ("data-digest", "on"),
            ("timeout", "0.5"),
            ("give-up", "0"),
            ("depth", "32"),
        ])
        .expect("all are right");
        assert_eq!(options.identity.unwrap().id.to_string(), "11111111-2222-3333-4444-555555555555");
        assert!(options.credentials.unwrap().controller.is_some() && options.concat);
        assert_eq!((options.digests, options.depth, options.lanes), (Digests::DATA, 32, LANE_COUNT));
        assert_eq!(options.command_timeout, Duration::from_millis(500));
        assert_eq!(options.reconnect, ReconnectSettings::never());
    }

    #[test]
    fn wrong_options_are_refused_with_what_would_be_right() {
        for (settings, part) in [
            (&[("hostqn", "x")][..], "there is no option hostqn; there are hostnqn, hostid"),
            (&[("depth", "0")], "option depth: write a number from 1 to"),
            (&[("timeout", "-1")], "option timeout: write seconds"),
            (&[("concat", "maybe")], "option concat: write yes or no"),
            (&[("tls-key", "/nonexistent/key")], "cannot read /nonexistent/key"),
            (&[("dhchap-secret", "DHHC-1:00:x:")], "option dhchap-secret: "),
            (&[("concat", "yes")], "need dhchap-secret"),
            (&[("dhchap-ctrl-secret", SECRET)], "needs dhchap-secret"),
            (&[("tls-key-compat", "1")], "needs tls-key"),
        ] {
            let message = message(settings);
            assert!(message.contains(part) && !message.contains("AQIDBA"), "{message}");
        }
    }
}
