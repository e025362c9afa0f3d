//! Options that all host commands share: address, identity, digests, timeouts.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use host::reconnect::ReconnectSettings;
use host::security::psk::Derivation;
use host::security::tls::HostKeys;
use host::{Address, Association, Credentials, HostIdentity, Options};
use subsystem::config::{SecretSource, read_secret_file};
use wire::nqn::{HostId, Nqn};
use wire::pdu::Digests;

use crate::exit::Failure;
use crate::host_config::{HostConfig, Wanted};
use crate::secret_argument::source_of;
use crate::survey::{listed, reachable, service_address, survey_service};

/// Longest timeout that can be set: a day.
const TIMEOUT_S_MAX: f64 = 86_400.0;

/// The address to connect to, and how.
#[derive(Debug, Args)]
pub struct Connection {
    /// Address: `HOST[:PORT][/NQN][?ns=NSID]`, `nvme+tcp://...`, or "traddr:... trsvcid:... subnqn:..."; without an
    /// NQN, the only subsystem there.
    #[arg(value_name = "ADDR", env = "NVLANE_ADDR")]
    address: Option<String>,
    #[command(flatten)]
    host: HostOptions,
}

/// Identity, digests (with the letters of `spdk_nvme_perf`) and timeouts of all host commands.
#[derive(Debug, Args)]
pub struct HostOptions {
    /// Host NQN to connect as. [default: that of --config, else this machine's]
    #[arg(long, value_name = "NQN", help_heading = "Connection")]
    hostnqn: Option<String>,
    /// Host identifier to connect with. [default: the one that belongs to the host NQN]
    #[arg(long, value_name = "UUID", help_heading = "Connection")]
    hostid: Option<String>,
    /// File with this host's secret (DHHC-1:…), for targets that ask for authentication; or keyring:NAME, a key in the
    /// kernel's keyrings.
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    dhchap_secret: Option<PathBuf>,
    /// File with the target's secret, or keyring:NAME: the target must authenticate with it.
    #[arg(long, value_name = "FILE", requires = "dhchap_secret", help_heading = "Connection")]
    dhchap_ctrl_secret: Option<PathBuf>,
    /// Interval in seconds at which each queue authenticates again. If the target refuses, the host logs a warning, and
    /// the queue stays in use until the target closes it. The host closes the connection to a target that does not have
    /// the secret of --dhchap-ctrl-secret.
    #[arg(long, value_name = "SECONDS", value_parser = wait, conflicts_with = "concat", help_heading = "Connection")]
    reauthenticate: Option<Duration>,
    /// Use TLS 1.3 with a key that authentication generates (secure channel concatenation, as `nvme connect --concat`):
    /// the first connection authenticates unencrypted, and all others use TLS. Without --dhchap-ctrl-secret the host
    /// does not verify the target, and any machine at the address can be the other end of TLS.
    #[arg(long, conflicts_with = "tls", help_heading = "Connection")]
    concat: bool,
    /// Use TLS 1.3 with the pre-shared key of --tls-key; nothing is sent unencrypted.
    #[arg(long, requires = "tls_key", help_heading = "Connection")]
    tls: bool,
    /// File with the pre-shared key of TLS (NVMeTLSkey-1:…), or keyring:NAME.
    #[arg(long, value_name = "FILE", requires = "tls", help_heading = "Connection")]
    tls_key: Option<PathBuf>,
    /// Derive TLS keys as libnvme before 1.16 does, such as that of Debian 13's nvme-cli.
    #[arg(long, help_heading = "Connection")]
    tls_key_compat: bool,
    /// File in libnvme's format: host NQN and identifier, secrets, TLS keys and digests of its entry for the address, where
    /// no option gives them; `none` for no file. [default: /etc/nvme/config.json, if there is one]
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    config: Option<PathBuf>,
    /// The configuration, once it is read.
    #[arg(skip)]
    host_config: OnceCell<Option<HostConfig>>,
    /// Use header digests.
    #[arg(short = 'H', long, alias = "hdr-digest", help_heading = "Connection")]
    header_digest: bool,
    /// Use data digests.
    #[arg(short = 'I', long, help_heading = "Connection")]
    data_digest: bool,
    /// Seconds to establish a connection: TCP, handshake and Connect.
    #[arg(long, value_name = "SECONDS", value_parser = wait, default_value = "10", help_heading = "Connection")]
    connect_timeout: Duration,
    /// Seconds to wait for the completion of each command, such as 0.5. [default: 10; for kv and attach 30]
    #[arg(long, value_name = "SECONDS", value_parser = wait, help_heading = "Connection")]
    timeout: Option<Duration>,
}

impl HostOptions {
    /// Default timeout of one command.
    pub const ANSWER: Duration = Duration::from_secs(10);

    /// Timeout of one command.
    pub fn answer(&self, default: Duration) -> Duration {
        self.timeout.unwrap_or(default)
    }

    /// Options of a host that connects to this address, and does not reconnect. Without a connection timeout, the command
    /// timeout bounds connections too.
    ///
    /// # Errors
    /// The options contradict each other, or a secret or the configuration cannot be read.
    pub fn options(&self, default: Duration, address: &Address) -> Result<Options, Failure> {
        let answer = self.answer(default);
        let mut wanted = self.wanted(address)?;
        let mut digests = Digests::empty();
        digests.set(Digests::HEADER, self.header_digest || wanted.header_digest);
        digests.set(Digests::DATA, self.data_digest || wanted.data_digest);
        let concat = self.concat || wanted.concat && !self.tls;
        wanted.tls &= !concat;
        let credentials = self.credentials(&mut wanted)?;
        if concat && credentials.is_none() {
            return Err(Failure::usage(
                "--concat needs authentication, which generates the TLS key: add --dhchap-secret FILE",
            ));
        }
        if self.reauthenticate.is_some() && concat {
            return Err(Failure::usage(format!(
                "the configuration sets --concat for {address}, which excludes --reauthenticate"
            )));
        }
        if self.reauthenticate.is_some() && credentials.is_none() && !address.is_discovery() {
            return Err(Failure::usage("--reauthenticate needs a secret: add --dhchap-secret FILE"));
        }
        let options = Options::default()
            .with_only_digests(digests)
            .with_identity(Some(self.identity(wanted.identity.take())?))
            .with_credentials(credentials)
            .with_reauthenticate(self.reauthenticate)
            .with_tls(self.tls_keys(&mut wanted, address)?)
            .with_concat(concat)
            .with_reconnect(ReconnectSettings::never())
            .with_connect_timeout(self.connect_timeout.min(self.timeout.unwrap_or(self.connect_timeout)))
            .with_command_timeout(answer);
        Ok(options.tuned(|tuning| tuning.admin_timeout = answer))
    }

    /// The entry of the configuration for the address. It is not read if the options give everything.
    fn wanted(&self, address: &Address) -> Result<Wanted, Failure> {
        let is_said = self.hostnqn.is_some() && self.dhchap_secret.is_some() && (self.tls || self.concat);
        if is_said && self.config.is_none() {
            return Ok(Wanted::default());
        }
        let config = match self.host_config.get() {
            Some(config) => config,
            None => {
                let config = HostConfig::read(self.config.as_deref())?;
                self.host_config.get_or_init(|| config)
            }
        };
        let Some(config) = config else { return Ok(Wanted::default()) };
        let hostnqn = self.hostnqn.as_deref().map(named_host).transpose()?;
        config.wanted(address, hostnqn.as_ref(), || HostIdentity::of_this_machine().nqn)
    }

    /// The secrets, if there are any.
    fn credentials(&self, wanted: &mut Wanted) -> Result<Option<Arc<Credentials>>, Failure> {
        let Some(host) = &self.dhchap_secret else {
            let controller = wanted.controller_secret.take();
            let host = wanted.host_secret.take();
            return Ok(host.map(|host| Arc::new(Credentials::new(host, controller))));
        };
        let controller = self.dhchap_ctrl_secret.as_deref().map(key_of).transpose()?;
        Ok(Some(Arc::new(Credentials::new(key_of(host)?, controller))))
    }

    /// The key of TLS, if it is to be used.
    fn tls_keys(&self, wanted: &mut Wanted, address: &Address) -> Result<Option<Arc<HostKeys>>, Failure> {
        let key = match self.tls_key.as_deref().filter(|_| self.tls) {
            Some(path) => Some(key_of(path)?),
            None if wanted.tls => Some(wanted.tls_key.take().ok_or_else(|| {
                Failure::usage(format!(
                    "the configuration requires TLS for {address}, but has no tls_key for it: add one, or name a file with \
                     --tls --tls-key FILE"
                ))
            })?),
            None => None,
        };
        let derivation = if self.tls_key_compat { Derivation::Libnvme } else { Derivation::Standard };
        match key {
            Some(key) => Ok(Some(Arc::new(HostKeys { key, derivation }))),
            None if self.tls_key_compat && !address.is_discovery() => Err(Failure::usage(
                "--tls-key-compat needs a TLS key to derive from: add --tls --tls-key FILE",
            )),
            None => Ok(None),
        }
    }

    /// The chosen host identity, or else that of the configuration or of this machine.
    fn identity(&self, wanted: Option<HostIdentity>) -> Result<HostIdentity, Failure> {
        let mut identity = match (&self.hostnqn, wanted) {
            // An entry is used only if it has this name, so its identifier belongs to it.
            (_, Some(wanted)) => wanted,
            (Some(text), None) => HostIdentity::of_name(named_host(text)?),
            (None, None) => HostIdentity::of_this_machine(),
        };
        if let Some(text) = &self.hostid {
            let id = text.parse::<HostId>();
            identity.id = id.map_err(|error| Failure::usage(format!("--hostid {text}: {error}")))?;
        }
        Ok(identity)
    }
}

/// The host of `--hostnqn`.
fn named_host(text: &str) -> Result<Nqn, Failure> {
    text.parse().map_err(|error| Failure::usage(format!("--hostnqn {text}: {error}")))
}

/// Reads the secret or key that an option names.
fn key_of<K: FromStr<Err: fmt::Display>>(argument: &Path) -> Result<K, Failure> {
    let path = match source_of(argument)? {
        SecretSource::File(path) => path,
        source => return source.read().map_err(Failure::usage),
    };
    let text = read_secret_file(&path)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))?;
    text.parse().map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

/// Parses a timeout in seconds: above 0, at most a day.
fn wait(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| *s > 0.0 && *s <= TIMEOUT_S_MAX);
    let duration = seconds.map(Duration::from_secs_f64).filter(|duration| !duration.is_zero());
    duration.ok_or_else(|| "write seconds, such as 10 or 0.5".into())
}

impl Connection {
    /// The address to connect to.
    ///
    /// # Errors
    /// None is given, or it is malformed.
    pub fn address(&self) -> Result<Address, Failure> {
        let Some(text) = &self.address else {
            return Err(Failure::usage(
                "no address: write HOST[:PORT][/NQN] after the command, or set NVLANE_ADDR",
            ));
        };
        text.parse().map_err(|error| Failure::usage(format!("address: {error}")))
    }

    /// All but the address.
    #[must_use]
    pub const fn host(&self) -> &HostOptions {
        &self.host
    }

    /// Connection options of commands that only query this address: one attempt, no I/O lanes.
    ///
    /// # Errors
    /// As [`HostOptions::options`].
    pub fn options(&self, address: &Address) -> Result<Options, Failure> {
        Ok(self.host.options(HostOptions::ANSWER, address)?.without_lanes())
    }

    /// The address to connect to, with its subsystem, and the options for it.
    ///
    /// # Errors
    /// As [`with_subsystem`].
    pub fn subsystem(&self) -> Result<(Address, Options), Failure> {
        with_subsystem(self.address()?, |address| self.options(address))
    }

    /// Connects to the subsystem that the address names, or to the only one there.
    ///
    /// # Errors
    /// As [`with_subsystem`], or the target does not accept the host.
    pub fn associate(&self) -> Result<Association, Failure> {
        let (address, options) = self.subsystem()?;
        Ok(Association::connect(&address, options)?)
    }
}

/// The address with its subsystem, and the options for it. If the address names no subsystem, it is the only one that
/// the discovery service there lists for this host.
///
/// # Errors
/// There is no such subsystem, or more than one, or the options do not go together.
pub fn with_subsystem(
    address: Address,
    options_for: impl Fn(&Address) -> Result<Options, Failure>,
) -> Result<(Address, Options), Failure> {
    if address.subsystem.is_some() {
        let options = options_for(&address)?;
        return Ok((address, options));
    }
    let service = service_address(address.clone());
    let options = options_for(&service)?.with_reconnect(ReconnectSettings::never()).without_lanes();
    let survey = survey_service(&service, &options)?;
    let found = survey.services.first();
    let found = found.map_or_else(Vec::new, |(service, found)| listed(service, found, &address));
    let place = format!("{}:{}", service.host, service.port());
    match &found[..] {
        [] => {
            Err(Failure::usage(format!("the discovery service at {place} names no subsystem for this host")))
        }
        [(_, addresses)] => {
            let (found, options) = reachable(addresses, options_for)?;
            Ok((Address { nsid: address.nsid, ..found }, options))
        }
        _ => {
            let names: BTreeSet<String> =
                found.iter().map(|(name, _)| format!("{}/{name}", address.host)).collect();
            let names: Vec<String> = names.into_iter().collect();
            Err(Failure::usage(format!(
                "there are {} subsystems at {place}: name one, as in {}",
                names.len(),
                names.join(" or ")
            )))
        }
    }
}
