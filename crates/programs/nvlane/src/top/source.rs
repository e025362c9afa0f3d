//! Where documents come from: the control socket of a target, or its metrics port.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use command_line::control_place::{ControlOptions, ControlPlace};
use command_line::exit::{Failure, Kind};
use metrics::live::Live;
use serde_json::Map;
use subsystem::config::{METRICS_PORT, listen_address};

use crate::ctl::client::Client;

/// How long a target has to answer.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// Limit of an answer, bytes.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// A place to ask.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Control(ControlOptions),
    Port(SocketAddr),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Control(target) => target.control.fmt(f),
            Self::Port(address) => address.fmt(f),
        }
    }
}

impl Place {
    /// The place that a word of the command line names: what has a slash, or is a file, is for control calls. `key` is for
    /// those to another machine.
    ///
    /// # Errors
    /// It is neither a file nor an address.
    pub(super) fn named(word: &str, control_key: Option<PathBuf>) -> Result<Self, Failure> {
        if word.contains('/') || Path::new(word).exists() {
            let control = ControlPlace::named(word.into()).map_err(Failure::usage)?;
            return Ok(Self::Control(ControlOptions { control, control_key }));
        }
        if let Ok(address) = listen_address(word, METRICS_PORT) {
            return Ok(Self::Port(address));
        }
        let with_port = if word.contains(':') { word.to_owned() } else { format!("{word}:{METRICS_PORT}") };
        let resolved = with_port.to_socket_addrs().ok().and_then(|mut found| found.next());
        resolved.map(Self::Port).ok_or_else(|| {
            Failure::usage(format!(
                "{word} is neither a control socket nor the address of a metrics port: write /PATH/TO/SOCKET, or ADDR:PORT"
            ))
        })
    }
}

/// A target, asked again and again.
#[derive(Debug)]
pub(super) struct Source {
    place: Place,
    client: Option<Client>,
}

impl Source {
    pub(super) fn new(place: Place) -> Self {
        Self { place, client: None }
    }

    /// Asks for a document. The connection is made again after a failure.
    ///
    /// # Errors
    /// The target does not answer, or something else does.
    pub(super) fn ask(&mut self) -> Result<Live, Failure> {
        match &self.place {
            Place::Port(address) => ask_port(*address),
            Place::Control(target) => {
                let mut client = match self.client.take() {
                    Some(client) => client,
                    None => connect(target)?,
                };
                let answer =
                    client.call("live", &Map::new()).map_err(|failure| told(&target.control, &failure))?;
                self.client = Some(client);
                serde_json::from_value(answer).map_err(|_| other_version(&self.place))
            }
        }
    }
}

/// A failure of a call: something else may listen there.
fn told(place: &ControlPlace, failure: &Failure) -> Failure {
    let (text, shown) = (failure.to_string(), place.to_string());
    let text = text.strip_prefix(&format!("{shown}: ")).unwrap_or(&text);
    Failure::new(Kind::Unreachable, format!("{shown}: {text}: is this the control socket of a target?"))
}

fn other_version(place: &Place) -> Failure {
    Failure::new(
        Kind::Failed,
        format!("{place}: the answer is that of another version of nvlane: use the nvlane of the target"),
    )
}

fn connect(target: &ControlOptions) -> Result<Client, Failure> {
    Client::open(target, ANSWER_TIME).map_err(|error| {
        let hint = match (&target.control, error.kind()) {
            (ControlPlace::Socket(_), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                ": no target serves it. Name the socket of one (nvlane target --control SOCKET), or its metrics port \
                 (--metrics ADDR:PORT)"
            }
            (place, _) => place.hint(&error),
        };
        let kind = if error.kind() == ErrorKind::InvalidInput { Kind::Usage } else { Kind::Unreachable };
        Failure::new(kind, format!("cannot connect to {}: {error}{hint}", target.control))
    })
}

fn ask_port(address: SocketAddr) -> Result<Live, Failure> {
    let unreachable = |why: String| Failure::new(Kind::Unreachable, why);
    let answer = exchange(address).map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::ConnectionRefused => {
                ": no target has its metrics there (nvlane target --metrics ADDR:PORT)"
            }
            ErrorKind::TimedOut | ErrorKind::WouldBlock => ": no answer in time",
            _ => "",
        };
        unreachable(format!("cannot ask {address}: {error}{hint}"))
    })?;
    let no_target = || unreachable(format!("{address}: the answer is not that of a target's metrics port"));
    let text = std::str::from_utf8(&answer).map_err(|_| no_target())?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(no_target)?;
    let status = head.split(' ').nth(1).filter(|_| head.starts_with("HTTP/1.")).ok_or_else(no_target)?;
    match status {
        "200" => serde_json::from_str(body).map_err(|_| match body.trim_start().starts_with('{') {
            true => other_version(&Place::Port(address)),
            false => no_target(),
        }),
        // Why, in one line.
        "403" | "503" if body.lines().count() == 1 => {
            Err(unreachable(format!("{address}: {}", body.trim_end())))
        }
        _ => Err(no_target()),
    }
}

/// One request and its answer.
fn exchange(address: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_TIME)?;
    stream.set_read_timeout(Some(ANSWER_TIME))?;
    stream.set_write_timeout(Some(ANSWER_TIME))?;
    stream.write_all(
        format!("GET /live.json HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes(),
    )?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_told_from_addresses() {
        let of = |word: &str| {
            let place = Place::named(word, None).map_err(|failure| failure.to_string())?;
            Ok::<_, String>((matches!(place, Place::Port(_)), place.to_string()))
        };
        let port = |text: &str| Ok((true, text.to_owned()));
        let control = |text: &str| Ok((false, text.to_owned()));
        assert_eq!(of("/run/x.sock"), control("/run/x.sock"));
        assert_eq!(of("./x"), control("./x"));
        assert_eq!(of("tls://ops@127.0.0.1"), control("tls://ops@127.0.0.1:9421"));
        assert_eq!(of("127.0.0.1:9421"), port("127.0.0.1:9421"));
        assert_eq!(of("127.0.0.1"), port("127.0.0.1:9420"));
        assert_eq!(of("[::1]:1"), port("[::1]:1"));
        for wrong in ["", "nothing-of-this-name.invalid", "127.0.0.1:99999"] {
            let why = of(wrong).expect_err(wrong);
            assert!(why.contains("ADDR:PORT"), "{why}");
        }
    }
}
