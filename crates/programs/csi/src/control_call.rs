//! Calls of the target by its control socket or port: JSON-RPC, one connection, one call at a time.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use command_line::control_place::{ControlConnection, ControlOptions};
use serde_json::{Value, json};

/// Time for an answer. Calls of the interface take no longer: creating a volume writes nothing, cloning shares blocks.
const ANSWER_TIME: Duration = Duration::from_secs(60);

/// Limit of an answer, bytes.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// Calls of a target.
pub(crate) trait Control: Send + Sync {
    /// Calls a method.
    ///
    /// # Errors
    /// The target refuses, or cannot be asked.
    fn call(&self, method: &str, params: Value) -> Result<Value, CallError>;
}

/// Why a call brought nothing.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The target's answer.
    Refused { code: i64, message: String, data: Value },
    /// There is no target, or no answer of one.
    Unreachable(String),
}

/// The control socket or port of a target.
pub(crate) struct ControlCaller {
    target: ControlOptions,
    connection: Mutex<Option<BufReader<ControlConnection>>>,
}

impl ControlCaller {
    pub(crate) fn new(target: ControlOptions) -> Self {
        Self { target, connection: Mutex::default() }
    }

    fn connect(&self) -> Result<BufReader<ControlConnection>, CallError> {
        self.target.connect(ANSWER_TIME).map(BufReader::new).map_err(|error| {
            let hint = self.target.control.hint(&error);
            self.unreachable(format_args!("{error}{hint}"))
        })
    }

    fn unreachable(&self, why: impl std::fmt::Display) -> CallError {
        let place = &self.target.control;
        let what = if place.socket().is_some() { "socket" } else { "port" };
        CallError::Unreachable(format!("the target's control {what} {place}: {why}"))
    }
}

impl Control for ControlCaller {
    fn call(&self, method: &str, params: Value) -> Result<Value, CallError> {
        let request =
            format!("{}\n", json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }));
        let mut kept = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        // The target may have been restarted since. A call may be repeated: one that was carried out finds its own outcome.
        let used = kept.take();
        let (mut connection, is_used) = match used {
            Some(connection) => (connection, true),
            None => (self.connect()?, false),
        };
        let mut answer = exchange(&mut connection, &request);
        if is_used && answer.as_ref().is_err_and(is_gone) {
            connection = self.connect()?;
            answer = exchange(&mut connection, &request);
        }
        let line = answer.map_err(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                self.unreachable(format_args!("no answer within {} s", ANSWER_TIME.as_secs()))
            }
            _ => self.unreachable(error),
        })?;
        let answer: Value = serde_json::from_slice(&line)
            .map_err(|_| self.unreachable("the answer is not that of a target"))?;
        *kept = Some(connection);
        parse(answer)
    }
}

/// The result in an answer.
fn parse(mut answer: Value) -> Result<Value, CallError> {
    match answer.get_mut("error").map(Value::take) {
        None => Ok(answer["result"].take()),
        Some(mut error) => Err(CallError::Refused {
            code: error["code"].as_i64().unwrap_or(0),
            message: error["message"].as_str().unwrap_or("refused").to_owned(),
            data: error["data"].take(),
        }),
    }
}

/// Whether the other end has closed the connection.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof)
}

/// Sends a request and receives the line of its answer.
fn exchange(connection: &mut BufReader<ControlConnection>, request: &str) -> io::Result<Vec<u8>> {
    connection.get_mut().write_all(request.as_bytes())?;
    let mut line = Vec::new();
    connection.take(ANSWER_BYTES_MAX).read_until(b'\n', &mut line)?;
    match line.last() {
        Some(b'\n') => Ok(line),
        _ => Err(ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn serve_one(listener: &UnixListener, answers: &[&str]) {
        let (connection, _) = listener.accept().expect("a connection");
        let mut connection = BufReader::new(connection);
        for answer in answers {
            connection.read_line(&mut String::new()).expect("a request");
            connection.get_mut().write_all(answer.as_bytes()).expect("sent");
        }
    }

    #[test]
    fn a_restarted_target_is_found_again_and_refusals_keep_their_code() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("control.sock");
        let control = ControlCaller::new(ControlOptions::of_socket(&path));
        let missing = control.call("pool_list", json!({})).expect_err("there is no target");
        assert!(
            matches!(missing, CallError::Unreachable(why) if why.contains("nvlane target --control SOCKET"))
        );
        let listener = UnixListener::bind(&path).expect("bound");
        let target = std::thread::spawn(move || {
            serve_one(&listener, &["{\"id\":1,\"result\":{\"objects\":[]}}\n"]);
            serve_one(
                &listener,
                &[
                    "{\"id\":1,\"error\":{\"code\":-32005,\"message\":\"busy\",\"data\":{\"served_by\":[]}}}\n",
                    "{\"id\"",
                ],
            );
        });
        assert_eq!(control.call("pool_list", json!({})).expect("answered"), json!({ "objects": [] }));
        match control.call("volume_delete", json!({ "name": "a/b" })) {
            Err(CallError::Refused { code: -32005, message, data }) => {
                assert_eq!((message.as_str(), data), ("busy", json!({ "served_by": [] })));
            }
            other => panic!("{other:?}"),
        }
        // Half of an answer is none.
        assert!(matches!(control.call("pool_list", json!({})), Err(CallError::Unreachable(_))));
        target.join().expect("it has ended");
    }
}
