//! The study's end of its connection to a study server.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use host::Address;
use security::access_token::AccessToken;
use serde::de::DeserializeOwned;
use serde_json::Value;
use wire::text::to_hex;

use super::lines::{LineError, Lines};
use super::protocol::{
    MachineDescription, REPLY_BYTES_MAX, Reply, Request, TOKEN_PURPOSE, challenge_of, data_address,
    own_version,
};
use crate::error::{Doing, Error};

/// Time for a server to accept a connection, s.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// Time for a server to answer.
const ANSWER_TIME: Duration = Duration::from_secs(15);

/// Time for a server to start or stop a target: it may have to write a file first.
const START_TIME: Duration = Duration::from_secs(180);

/// Time between two signs of life.
const PING_INTERVAL: Duration = Duration::from_secs(1);

/// A server that has accepted this study.
#[derive(Debug)]
pub struct ServerConnection {
    pub(crate) address: SocketAddr,
    /// The server's machine.
    pub machine: MachineDescription,
    /// `None` once the server is lost.
    lines: Mutex<Option<Lines>>,
    /// Why the server is lost.
    lost: Mutex<Option<String>>,
    /// Set when the server is lost: the study ends.
    stops: Arc<AtomicBool>,
    /// Wakes the thread of the signs of life at the end.
    ended: Arc<(Mutex<bool>, Condvar)>,
}

impl ServerConnection {
    /// Connects to a server, proves the token, and keeps the connection alive. The loss of the server sets `stops`.
    pub fn connect(
        address: SocketAddr,
        token: &AccessToken,
        stops: &Arc<AtomicBool>,
    ) -> Result<Arc<Self>, Error> {
        let failed = |reason: String| Error::Server { address, reason };
        let stream = TcpStream::connect_timeout(&address, CONNECT_TIME)
            .map_err(|error| failed(format!("cannot connect: {error}")))?;
        let mut lines = Lines::new(stream).map_err(|error| failed(error.to_string()))?;
        let is_stopped = || stops.load(Ordering::Relaxed);
        let next = |lines: &mut Lines| match lines.receive(REPLY_BYTES_MAX, ANSWER_TIME, &is_stopped) {
            Ok(Reply::Refused(reason)) => Err(failed(reason)),
            Ok(reply) => Ok(reply),
            Err(LineError::Stopped) => Err(Error::Stopped),
            Err(error) => Err(failed(error.to_string())),
        };
        let Reply::Challenge { version, challenge } = next(&mut lines)? else {
            return Err(failed("it is no study server".to_owned()));
        };
        let ours = own_version();
        if version != ours {
            return Err(failed(format!(
                "it is of nvlane {version}, this study of nvlane {ours}: use one version"
            )));
        }
        let challenge = challenge_of(&challenge).ok_or_else(|| failed("it is no study server".to_owned()))?;
        let proof = to_hex(token.prove(TOKEN_PURPOSE, &challenge).expose());
        lines.send(&Request::Hello { version: ours, proof }).map_err(|error| failed(error.to_string()))?;
        let Reply::Done(machine) = next(&mut lines)? else {
            return Err(failed("it is no study server".to_owned()));
        };
        let machine = serde_json::from_value(machine).map_err(|error| failed(error.to_string()))?;
        let connection = Arc::new(Self {
            address,
            machine,
            lines: Mutex::new(Some(lines)),
            lost: Mutex::new(None),
            stops: Arc::clone(stops),
            ended: Arc::default(),
        });
        connection.keep_alive()?;
        Ok(connection)
    }

    /// Why the server is lost, if it is.
    pub fn loss(&self) -> Option<Error> {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone();
        lost.map(|reason| Error::Server { address: self.address, reason })
    }

    /// Asks the server for a sign of life now; returns why it is lost, if it is.
    pub(crate) fn loss_now(&self) -> Option<Error> {
        let _ = self.request::<()>(&Request::Ping);
        self.loss()
    }

    /// Sends a request and waits for its answer, of the type that [`Request`] names.
    pub(crate) fn request<Answer: DeserializeOwned>(&self, request: &Request) -> Result<Answer, Error> {
        let is_slow = matches!(
            request,
            Request::Start(_)
                | Request::Stop { .. }
                | Request::Steer { .. }
                | Request::AwaitCeiling
                | Request::StartPeer { .. }
                | Request::StartFileTarget { .. }
                | Request::StartFileLoad(_)
                | Request::EndFileLoad
                | Request::StartMemoryReader(_)
                | Request::EndMemoryReader
                | Request::EndSampling
        );
        let answer = self.ask(request, if is_slow { START_TIME } else { ANSWER_TIME })?;
        serde_json::from_value(answer).map_err(|_| self.failed("it gave an answer to another request"))
    }

    /// The address of a target that the server has started, which must be the one that it announced.
    pub(crate) fn target_address(&self, text: &str) -> Result<Address, Error> {
        data_address(text, self.machine.data_address)
            .ok_or_else(|| self.failed("it started a target at another address than it announced"))
    }

    /// The address of something that the server has started, which must be the one that it announced.
    pub(crate) fn socket_address(&self, text: &str) -> Result<SocketAddr, Error> {
        let address =
            text.parse().ok().filter(|address: &SocketAddr| address.ip() == self.machine.data_address);
        address.ok_or_else(|| self.failed("it listens at another address than it announced"))
    }

    fn ask(&self, request: &Request, time: Duration) -> Result<Value, Error> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = lines.as_mut() else {
            return Err(self.loss().unwrap_or(Error::Stopped));
        };
        let answer = open.send(request).and_then(|()| open.receive(REPLY_BYTES_MAX, time, &|| false));
        match answer {
            // A server refuses a sign of life only as it ends.
            Ok(Reply::Refused(reason)) if *request == Request::Ping => Err(self.lose(&mut lines, reason)),
            Ok(Reply::Refused(reason)) => Err(self.failed(&reason)),
            Ok(Reply::Done(answer)) => Ok(answer),
            Ok(Reply::Challenge { .. }) => Err(self.failed("it gave an answer to another request")),
            Err(error) => Err(self.lose(&mut lines, error.to_string())),
        }
    }

    /// Closes the connection and ends the study.
    fn lose(&self, lines: &mut Option<Lines>, reason: String) -> Error {
        *lines = None;
        let error = self.failed(&reason);
        *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
        self.stops.store(true, Ordering::Relaxed);
        error
    }

    /// A refusal of a request as a requirement that the server's machine lacks; another error as it is.
    pub(crate) fn as_lacking(&self, error: Error) -> Error {
        match error {
            Error::Server { reason, .. } if self.loss().is_none() => {
                Error::Lacking(format!("on the targets' machine, {}: {reason}", self.address.ip()))
            }
            error => error,
        }
    }

    /// An error of this server.
    pub(crate) fn failed(&self, reason: &str) -> Error {
        Error::Server { address: self.address, reason: reason.to_owned() }
    }

    /// Sends a sign of life every second from a thread of its own, which ends with the connection.
    fn keep_alive(self: &Arc<Self>) -> Result<(), Error> {
        let (connection, ended) = (Arc::downgrade(self), Arc::clone(&self.ended));
        let work = move || {
            let mut is_over = ended.0.lock().unwrap_or_else(PoisonError::into_inner);
            while !*is_over {
                (is_over, _) =
                    ended.1.wait_timeout(is_over, PING_INTERVAL).unwrap_or_else(PoisonError::into_inner);
                if *is_over
                    || Weak::upgrade(&connection)
                        .is_none_or(|open| open.request::<()>(&Request::Ping).is_err())
                {
                    return;
                }
            }
        };
        let builder = std::thread::Builder::new().name("nvlane-study".into());
        builder.spawn(work).map(drop).doing("start a thread")
    }
}

impl Drop for ServerConnection {
    fn drop(&mut self) {
        // Without a wait for the thread, which may be the one that drops this.
        if let Ok(mut is_over) = self.ended.0.try_lock() {
            *is_over = true;
        }
        self.ended.1.notify_all();
    }
}
