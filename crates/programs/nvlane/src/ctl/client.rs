//! The other end of a control socket.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use command_line::exit::{Failure, Kind};
use control::CallError;
use serde_json::{Map, Value, json};

/// Limit of an answer, bytes: the state of some hundred thousand lanes.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// A connection to a target.
#[derive(Debug)]
pub(crate) struct Client {
    path: PathBuf,
    connection: BufReader<UnixStream>,
    timeout: Duration,
}

impl Client {
    /// Connects to a socket.
    ///
    /// # Errors
    /// There is none, or this user may not use it.
    pub(crate) fn open(path: &Path, timeout: Duration) -> io::Result<Self> {
        let connection = UnixStream::connect(path)?;
        connection.set_read_timeout(Some(timeout))?;
        connection.set_write_timeout(Some(timeout))?;
        Ok(Self { path: path.to_owned(), connection: BufReader::new(connection), timeout })
    }

    pub(crate) fn connect(path: &Path, timeout: Duration) -> Result<Self, Failure> {
        Self::open(path, timeout).map_err(|error| {
            let shown = path.display();
            let hint = match error.kind() {
                ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                    ": no target serves it. Start one with nvlane target --control SOCKET, or name its socket with --control"
                }
                ErrorKind::PermissionDenied => ": use this command as the target's user, or as root",
                _ => "",
            };
            Failure::new(Kind::Unreachable, format!("cannot connect to {shown}: {error}{hint}"))
        })
    }

    /// The process of the target.
    pub(crate) fn pid(&self) -> Option<u32> {
        let peer = rustix::net::sockopt::socket_peercred(self.connection.get_ref()).ok()?;
        u32::try_from(peer.pid.as_raw_nonzero().get()).ok()
    }

    /// Calls a method.
    pub(crate) fn call(&mut self, method: &str, params: &Map<String, Value>) -> Result<Value, Failure> {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let sent = self.connection.get_mut().write_all(format!("{request}\n").as_bytes());
        let mut line = Vec::new();
        let received =
            sent.and_then(|()| (&mut self.connection).take(ANSWER_BYTES_MAX).read_until(b'\n', &mut line));
        let (shown, seconds) = (self.path.display(), self.timeout.as_secs());
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
