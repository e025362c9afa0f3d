//! The other end of a control socket or port.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::time::Duration;

use command_line::control_place::{ControlConnection, ControlOptions, ControlPlace};
use command_line::exit::{Failure, Kind};
use control::CallError;
use linux::socket_option::peer;
use serde_json::{Map, Value, json};

/// Limit of an answer, bytes: the state of some hundred thousand lanes.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// A connection to a target.
#[derive(Debug)]
pub(crate) struct Client {
    place: ControlPlace,
    connection: BufReader<ControlConnection>,
    timeout: Duration,
}

impl Client {
    /// Connects to a target.
    ///
    /// # Errors
    /// There is none, or this user may not use it.
    pub(crate) fn open(target: &ControlOptions, timeout: Duration) -> io::Result<Self> {
        let connection = BufReader::new(target.connect(timeout)?);
        Ok(Self { place: target.control.clone(), connection, timeout })
    }

    pub(crate) fn connect(target: &ControlOptions, timeout: Duration) -> Result<Self, Failure> {
        Self::open(target, timeout).map_err(|error| {
            let place = &target.control;
            let kind = match error.kind() {
                ErrorKind::InvalidInput => Kind::Usage,
                _ => Kind::Unreachable,
            };
            Failure::new(kind, format!("cannot connect to {place}: {error}{}", place.hint(&error)))
        })
    }

    /// The process of the target, if it is on this machine.
    pub(crate) fn pid(&self) -> Option<u32> {
        let ControlConnection::Socket(socket) = self.connection.get_ref() else { return None };
        peer(socket).ok()?.pid
    }

    /// Calls a method.
    pub(crate) fn call(&mut self, method: &str, params: &Map<String, Value>) -> Result<Value, Failure> {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let sent = self.connection.get_mut().write_all(format!("{request}\n").as_bytes());
        let mut line = Vec::new();
        let received =
            sent.and_then(|()| (&mut self.connection).take(ANSWER_BYTES_MAX).read_until(b'\n', &mut line));
        let (shown, seconds) = (&self.place, self.timeout.as_secs());
        received.map_err(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Failure::new(
                Kind::Failed,
                format!("{shown}: no answer within {seconds} s: it may still come into effect, see nvlane ctl diff"),
            ),
            _ => Failure::new(Kind::Unreachable, format!("{shown}: {error}")),
        })?;
        let mut answer: Value = serde_json::from_slice(&line).map_err(|_| {
            Failure::new(Kind::Unreachable, format!("{shown}: the answer is not that of a target"))
        })?;
        match answer.get("error") {
            None => Ok(answer["result"].take()),
            Some(error) => {
                let code = error["code"].as_i64().unwrap_or(0);
                let kind = if CallError::is_usage(code) { Kind::Usage } else { Kind::Failed };
                Err(Failure::new(kind, error["message"].as_str().unwrap_or("refused")))
            }
        }
    }
}
