//! What every verb of the host is told: where to, as whom, how, and for how long at most.

use std::time::Duration;

use clap::Args;
use host::reconnect::ReconnectSettings;
use host::{Address, Association, HostIdentity, Options};
use wire::nqn::{HostId, Nqn};
use wire::pdu::Digests;

use crate::exit::Failure;

/// The longest time one can wait: a day.
const TIMEOUT_S_MAX: f64 = 86_400.0;

#[derive(Debug, Args)]
pub(crate) struct Connection {
    /// Where: `HOST[:PORT][/NQN][?ns=NUMBER]`, `nvme+tcp://...`, or "traddr:... trsvcid:... subnqn:..."
    #[arg(value_name = "ADDR", env = "NVLANE_ADDR")]
    address: Option<String>,
    #[command(flatten)]
    identity: Identity,
    /// Digests over headers.
    #[arg(short = 'g', long, alias = "hdr-digest", help_heading = "Connection")]
    header_digest: bool,
    /// Digests over data.
    #[arg(short = 'G', long, help_heading = "Connection")]
    data_digest: bool,
    /// Seconds to wait for any one answer, such as 0.5.
    #[arg(long, value_name = "SECONDS", default_value = "10", help_heading = "Connection")]
    timeout: String,
}

/// Who we are.
#[derive(Debug, Args)]
pub(crate) struct Identity {
    /// Our name, as the target is to see it. [default: this machine's]
    #[arg(long, value_name = "NQN", help_heading = "Connection")]
    hostnqn: Option<String>,
    /// Our identifier. [default: the one that belongs to the name]
    #[arg(long, value_name = "UUID", help_heading = "Connection")]
    hostid: Option<String>,
}

impl Connection {
    /// Where to connect.
    pub(crate) fn address(&self) -> Result<Address, Failure> {
        let Some(text) = &self.address else {
            return Err(Failure::usage(
                "no address: write HOST[:PORT][/NQN] behind the command, or set NVLANE_ADDR",
            ));
        };
        text.parse().map_err(|error| Failure::usage(format!("address: {error}")))
    }

    /// How to connect: for questions only, without a second attempt.
    pub(crate) fn options(&self) -> Result<Options, Failure> {
        let timeout = self.timeout()?;
        let mut digests = Digests::empty();
        digests.set(Digests::HEADER, self.header_digest);
        digests.set(Digests::DATA, self.data_digest);
        let options = Options {
            digests,
            identity: Some(self.identity.read()?),
            connect_timeout: timeout,
            admin_timeout: timeout,
            reconnect: ReconnectSettings::never(),
            ..Options::default()
        };
        Ok(options.without_lanes())
    }

    /// Connects to the subsystem that the address names.
    pub(crate) fn associate(&self) -> Result<Association, Failure> {
        Ok(Association::connect(&self.address()?, self.options()?)?)
    }

    fn timeout(&self) -> Result<Duration, Failure> {
        let seconds = self.timeout.parse::<f64>().ok().filter(|s| *s > 0.0 && *s <= TIMEOUT_S_MAX);
        let seconds = seconds.ok_or_else(|| {
            Failure::usage(format!("--timeout {}: write seconds, such as 10 or 0.5", self.timeout))
        })?;
        Ok(Duration::from_secs_f64(seconds))
    }
}

impl Identity {
    /// The identity that is meant.
    pub(crate) fn read(&self) -> Result<HostIdentity, Failure> {
        let mut identity = match &self.hostnqn {
            Some(text) => {
                let nqn = text.parse::<Nqn>();
                HostIdentity::of_name(
                    nqn.map_err(|error| Failure::usage(format!("--hostnqn {text}: {error}")))?,
                )
            }
            None => HostIdentity::of_this_machine(),
        };
        if let Some(text) = &self.hostid {
            let id = text.parse::<HostId>();
            identity.id = id.map_err(|error| Failure::usage(format!("--hostid {text}: {error}")))?;
        }
        Ok(identity)
    }
}
