//! A connection with TLS whose records the caller may change before they are sent.

use std::io::{ErrorKind, Read};
use std::time::{Duration, Instant};

use peer::finding::{Check, Finding, differs};
use peer::link::Link;
use security::tls::{HostKeys, Read as Plain, Session};
use wire::nqn::Nqn;

use crate::target::Target;

/// A connection with TLS by the target's key.
#[derive(Debug)]
pub(super) struct TlsLink {
    link: Link,
    session: Session,
    patience: Duration,
    /// Plaintext that was not asked for yet.
    plain: Vec<u8>,
}

/// What the session brings next.
#[derive(Debug)]
pub(super) enum Next {
    /// Plaintext.
    Data(Vec<u8>),
    /// The end: by close_notify, an alert, or the connection's.
    Ended,
}

impl TlsLink {
    /// Opens a connection, and makes a ClientHello for this subsystem.
    pub(super) fn dial(peer: &Target, keys: &HostKeys, subsystem: &Nqn) -> Check<Self> {
        let host = peer.host();
        let offer = keys.offer(&host.nqn.clone().into(), subsystem);
        let session = Session::host(&offer).map_err(|failure| Finding::Differs(failure.to_string()))?;
        Ok(Self { link: host.tcp()?, session, patience: host.patience, plain: Vec::new() })
    }

    /// The bytes that the session wants to send.
    pub(super) fn take_output(&mut self) -> Vec<u8> {
        let bytes = self.session.output().to_vec();
        self.session.on_sent(bytes.len());
        bytes
    }

    /// Sends bytes as they are.
    pub(super) fn send_raw(&mut self, bytes: &[u8]) -> Check {
        self.link.send(bytes)
    }

    /// Completes the handshake.
    pub(super) fn handshake(&mut self) -> Check {
        while self.session.established().is_none() {
            let output = self.take_output();
            self.send_raw(&output)?;
            match self.step(&mut [])? {
                Some(Next::Ended) => {
                    let failure = self.session.failure().map_or_else(String::new, ToString::to_string);
                    return differs(format!("the handshake fails: {failure}"));
                }
                Some(Next::Data(_)) | None => {}
            }
        }
        // Finished.
        let output = self.take_output();
        self.send_raw(&output)
    }

    /// The records of this plaintext.
    pub(super) fn seal(&mut self, plaintext: &[u8]) -> Check<Vec<u8>> {
        self.session.write(plaintext).map_err(|failure| Finding::Differs(failure.to_string()))?;
        Ok(self.take_output())
    }

    /// Sends plaintext.
    pub(super) fn send(&mut self, plaintext: &[u8]) -> Check {
        let records = self.seal(plaintext)?;
        self.send_raw(&records)
    }

    /// Changes the key before the next record.
    pub(super) fn update_key(&mut self) -> Check {
        self.session.update_key().map_err(|failure| Finding::Differs(failure.to_string()))
    }

    /// Closes the sending direction.
    pub(super) fn finish(&self) {
        self.link.finish();
    }

    /// Receives this number of bytes of plaintext.
    pub(super) fn receive(&mut self, count: usize) -> Check<Vec<u8>> {
        while self.plain.len() < count {
            match self.next()? {
                Next::Data(data) => self.plain.extend_from_slice(&data),
                Next::Ended => return differs(format!("the session ends instead of {count} bytes")),
            }
        }
        Ok(self.plain.drain(..count).collect())
    }

    /// The next plaintext, or the end.
    pub(super) fn next(&mut self) -> Check<Next> {
        let mut plain = [0; 4096];
        loop {
            if let Some(next) = self.step(&mut plain)? {
                return Ok(next);
            }
        }
    }

    /// Decrypts what is there; receives if that is not enough.
    fn step(&mut self, plain: &mut [u8]) -> Check<Option<Next>> {
        match self.session.read(plain) {
            Ok(Plain::Bytes(count)) => return Ok(Some(Next::Data(plain[..count].to_vec()))),
            Ok(Plain::Ended) | Err(_) => return Ok(Some(Next::Ended)),
            Ok(Plain::Dry) if self.session.established().is_some() && plain.is_empty() => return Ok(None),
            Ok(Plain::Dry) => {}
        }
        let output = self.take_output();
        self.send_raw(&output)?;
        let until = Instant::now() + self.patience;
        let mut bytes = [0; 4096];
        let count = loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Finding::Hangs("the connection stays open, without an answer".into()));
            }
            let _ = self.link.stream().set_read_timeout(Some(left.max(Duration::from_millis(1))));
            match { self.link.stream() }.read(&mut bytes) {
                Ok(count) => break count,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    // A reset counts as an end.
                    _ => break 0,
                },
            }
        };
        if count == 0 {
            self.session.on_input_end();
            return Ok(Some(Next::Ended));
        }
        let mut rest = &bytes[..count];
        while !rest.is_empty() {
            let taken = self.session.receive(rest.len(), |room| {
                let count = room.len().min(rest.len());
                room[..count].copy_from_slice(&rest[..count]);
                (count, count)
            });
            match taken {
                Some(count) if count > 0 => rest = &rest[count..],
                _ => return differs("more data than a session takes at a time"),
            }
        }
        Ok(None)
    }
}
