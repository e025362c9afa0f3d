//! Options of a study whose targets run on another machine.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use command_line::exit::{Failure, Kind};
use load::environment::Environment;
use security::access_token::AccessToken;
use study::bench::{Bench, Cores};
use study::remote::{PORT, ServerConnection};

/// Duration of the check for disturbances.
const JITTER: Duration = Duration::from_millis(20);

#[derive(Debug, Args)]
pub(crate) struct FarTargets {
    /// Run the targets on another machine, where `nvlane study serve` listens. [default port: 4421]
    #[arg(long, value_name = "ADDR[:PORT]")]
    target: Option<String>,
    /// The token that `nvlane study serve` printed. Every user of this machine can read it while the study runs.
    #[arg(long, value_name = "TOKEN", requires = "target", conflicts_with = "token_file")]
    token: Option<String>,
    /// File with that token.
    #[arg(long, value_name = "FILE", requires = "target")]
    token_file: Option<PathBuf>,
}

impl FarTargets {
    /// Whether the targets run on another machine.
    pub(super) fn is_given(&self) -> bool {
        self.target.is_some()
    }

    /// Connects to the study server, if one is named, and prepares the bench.
    pub(super) fn connect(&self, bench: &mut Bench) -> Result<(), Failure> {
        let Some(target) = &self.target else { return Ok(()) };
        let token = match (&self.token, &self.token_file) {
            (Some(token), _) => token.parse().map_err(|error| Failure::usage(format!("--token: {error}")))?,
            (None, Some(path)) => token_of_file(path)?,
            (None, None) => {
                return Err(Failure::usage(
                    "--target needs --token TOKEN or --token-file FILE: the token that nvlane study serve printed",
                ));
            }
        };
        let address = address(target)?;
        let server = ServerConnection::connect(address, &token, &bench.stops)
            .map_err(|error| Failure::new(Kind::Unreachable, error))?;
        let host = bench.host_cores.first().copied();
        let target = server.machine.cores.first().copied();
        bench.cores = host.zip(target).map(|(host, target)| Cores { host, target });
        let both = bench.host_cores.iter().zip(&server.machine.cores);
        bench.pairs = both.map(|(&host, &target)| Cores { host, target }).collect();
        bench.server = Some(server);
        Ok(())
    }

    /// This machine, without the token in the command line.
    pub(super) fn environment(&self, bench: &Bench) -> Environment {
        let far = bench.server.as_ref().map(|server| server.machine.data_address);
        let mut environment = Environment::collect(far, JITTER);
        if let Some(token) = &self.token {
            environment.command_line = environment.command_line.replace(token.as_str(), "TOKEN");
        }
        environment
    }
}

/// The first address of a server.
fn address(text: &str) -> Result<SocketAddr, Failure> {
    let wrong = |reason: String| Failure::usage(format!("--target {text}: {reason}"));
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if let Ok(ip) = bare.parse() {
        return Ok(SocketAddr::new(ip, PORT));
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => {
            let port = port.parse().ok().filter(|port| *port > 0);
            (host, port.ok_or_else(|| wrong("expected ADDR or ADDR:PORT".to_owned()))?)
        }
        None => (text, PORT),
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let mut found = (bare, port).to_socket_addrs().map_err(|error| wrong(error.to_string()))?;
    found.next().ok_or_else(|| wrong("no address".to_owned()))
}

pub(super) fn token_of_file(path: &Path) -> Result<AccessToken, Failure> {
    let failed = |reason: String| Failure::usage(format!("--token-file {}: {reason}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    text.trim().parse().map_err(|error: security::access_token::AccessTokenError| failed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_named_with_a_port_or_without() {
        for (text, expected) in [
            ("192.0.2.2", "192.0.2.2:4421"),
            ("192.0.2.2:4500", "192.0.2.2:4500"),
            ("2001:db8::2", "[2001:db8::2]:4421"),
            ("[2001:db8::2]", "[2001:db8::2]:4421"),
            ("[2001:db8::2]:4500", "[2001:db8::2]:4500"),
        ] {
            assert_eq!(address(text).expect("an address").to_string(), expected);
        }
        for text in ["192.0.2.2:", "192.0.2.2:0", "192.0.2.2:70000", "192.0.2.2:x"] {
            assert!(address(text).is_err(), "{text}");
        }
    }
}
