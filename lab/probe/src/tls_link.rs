//! A connection with TLS whose records the caller may change before they are sent.

use std::io::{ErrorKind, Read};
use std::time::{Duration, Instant};

use peer::finding::{About, Check, Finding, differs, holds};
use peer::link::Link;
use peer::raw_host::RawHost;
use security::tls::{HostKeys, IdentityOffer, Read as Plain, Session};
use wire::nqn::Nqn;
use wire::pdu::{DataAlignment, Digests, IC_BYTES, IcReq, PduType};
use zerocopy::IntoBytes;

/// A connection with TLS by the target's key.
#[derive(Debug)]
pub(crate) struct TlsLink {
    link: Link,
    session: Session,
    patience: Duration,
    /// Plaintext that was not asked for yet.
    plain: Vec<u8>,
}

/// What the session brings next.
#[derive(Debug)]
pub(crate) enum Next {
    /// Plaintext.
    Data(Vec<u8>),
    /// The end: by close_notify, an alert, or the connection's.
    Ended,
}

impl TlsLink {
    /// Opens a connection, and makes a ClientHello for this subsystem.
    pub(crate) fn dial(host: &RawHost, keys: &HostKeys, subsystem: &Nqn) -> Check<Self> {
        let offer = keys.offer(IdentityOffer::Both, &host.nqn.clone().into(), subsystem);
        let session = Session::host(&offer).map_err(|failure| Finding::Differs(failure.to_string()))?;
        Ok(Self { link: host.tcp()?, session, patience: host.patience, plain: Vec::new() })
    }

    /// A session for the host's subsystem, before ICReq.
    pub(crate) fn secured(host: &RawHost, keys: &HostKeys) -> Check<Self> {
        let mut link = Self::dial(host, keys, &host.subsystem)?;
        link.handshake().about("TLS with the key")?;
        Ok(link)
    }

    /// A session after ICReq and ICResp.
    pub(crate) fn initialised(host: &RawHost, keys: &HostKeys) -> Check<Self> {
        let mut link = Self::secured(host, keys)?;
        link.send(IcReq::new(DataAlignment::NONE, Digests::empty(), 1).as_bytes())?;
        let response = link.receive(IC_BYTES).about("ICReq")?;
        holds(response[0] == PduType::IcResp as u8, "no ICResp in answer to ICReq")?;
        Ok(link)
    }

    /// The bytes that the session wants to send.
    pub(crate) fn take_output(&mut self) -> Vec<u8> {
        let bytes = self.session.output().to_vec();
        self.session.on_sent(bytes.len());
        bytes
    }

    /// Sends bytes as they are.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) -> Check {
        self.link.send(bytes)
    }

    /// Completes the handshake.
    pub(crate) fn handshake(&mut self) -> Check {
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
    pub(crate) fn seal(&mut self, plaintext: &[u8]) -> Check<Vec<u8>> {
        self.session.write(plaintext).map_err(|failure| Finding::Differs(failure.to_string()))?;
        Ok(self.take_output())
    }

    /// Sends plaintext.
    pub(crate) fn send(&mut self, plaintext: &[u8]) -> Check {
        let records = self.seal(plaintext)?;
        self.send_raw(&records)
    }

    /// Changes the key before the next record.
    pub(crate) fn update_key(&mut self) -> Check {
        self.session.update_key().map_err(|failure| Finding::Differs(failure.to_string()))
    }

    /// Checks that the target sends nothing for this time.
    pub(crate) fn expect_silence(&mut self, time: Duration) -> Check {
        let until = Instant::now() + time;
        let mut byte = [0; 1];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let _ = self.link.stream().set_read_timeout(Some(left.max(Duration::from_millis(1))));
            match { self.link.stream() }.read(&mut byte) {
                Ok(0) => return differs("the connection ends"),
                Ok(_) => return differs("it sends a record that nothing asked for"),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    _ => return differs(format!("the connection ends: {error}")),
                },
            }
        }
    }

    /// Closes the sending direction.
    pub(crate) fn finish(&self) {
        self.link.finish();
    }

    /// Receives this number of bytes of plaintext.
    pub(crate) fn receive(&mut self, count: usize) -> Check<Vec<u8>> {
        while self.plain.len() < count {
            match self.next()? {
                Next::Data(data) => self.plain.extend_from_slice(&data),
                Next::Ended => return differs(format!("the session ends instead of {count} bytes")),
            }
        }
        Ok(self.plain.drain(..count).collect())
    }

    /// The next plaintext, or the end.
    pub(crate) fn next(&mut self) -> Check<Next> {
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
