//! One end of a connection of the ceiling: a socket, alone or below the TLS stream that lanes use.

use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memory::Segment;
use reactor::{Received, Sent, Socket};
use security::psk::{Cipher, Derivation};
use security::tls::{HostKeys, IdentityOffer, Keyring, KnownKey, Session, Stream};
use security::tls_key::TlsKey;
use wire::nqn::{HostName, Nqn};

/// Names of the identity, which only the handshake shows.
const HOST: &str = "nqn.2016-06.io.nvlane:ceiling-host";
const SUBSYSTEM: &str = "nqn.2016-06.io.nvlane:ceiling";

/// An end of a connection.
pub(super) struct Channel {
    socket: Socket,
    tls: Option<Box<Stream>>,
}

impl Channel {
    /// Both ends of a connection, the near one first: unencrypted, or with a completed handshake for this cipher suite.
    ///
    /// # Errors
    /// A system call or the handshake fails.
    pub(super) fn pair(near: Socket, far: Socket, cipher: Option<Cipher>) -> io::Result<(Self, Self)> {
        near.connected()?;
        let Some(cipher) = cipher else {
            return Ok((Self { socket: near, tls: None }, Self { socket: far, tls: None }));
        };
        let (mut host, mut target) = sessions(cipher)?;
        while !(host.handshake(&mut &near)? && target.established().is_some()) {
            step(&mut target, &far)?;
        }
        let with = |socket, stream| Self { socket, tls: Some(Box::new(stream)) };
        Ok((with(near, host), with(far, target)))
    }

    /// The near end of a connection whose far end is elsewhere.
    ///
    /// # Errors
    /// The handshake fails, or is not over in time.
    pub(super) fn near(socket: Socket, cipher: Option<Cipher>, until: Instant) -> io::Result<Self> {
        let Some(cipher) = cipher else { return Ok(Self { socket, tls: None }) };
        let (mut stream, _) = sessions(cipher)?;
        while !stream.handshake(&mut &socket)? {
            wait(until)?;
        }
        Ok(Self { socket, tls: Some(Box::new(stream)) })
    }

    /// The far end of a connection whose near end is elsewhere.
    ///
    /// # Errors
    /// As [`near`](Self::near).
    pub(super) fn far(socket: Socket, cipher: Option<Cipher>, until: Instant) -> io::Result<Self> {
        let Some(cipher) = cipher else { return Ok(Self { socket, tls: None }) };
        let (_, mut stream) = sessions(cipher)?;
        while stream.established().is_none() {
            step(&mut stream, &socket)?;
            wait(until)?;
        }
        Ok(Self { socket, tls: Some(Box::new(stream)) })
    }

    /// The socket, to wait for.
    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Receives the bytes that have arrived. Returns also whether there may be more.
    pub(super) fn receive(&mut self, into: &mut [u8]) -> (Received, bool) {
        let room = into.len();
        let is_full = |received: &Received| matches!(received, Received::Bytes(count) if *count == room);
        match &mut self.tls {
            None => {
                let received = self.socket.receive(into);
                let is_full = is_full(&received);
                (received, is_full)
            }
            Some(tls) => {
                let received = tls.receive(&mut [IoSliceMut::new(into)], &mut &self.socket);
                let may_have_more = is_full(&received) || tls.may_have_more() || tls.has_input();
                (received, may_have_more)
            }
        }
    }

    /// Sends as much as the socket takes.
    pub(super) fn send(&mut self, segments: &[Segment<'_>]) -> Sent {
        match &mut self.tls {
            None => self.socket.send(segments, false),
            Some(tls) => tls.send(segments, &mut &self.socket),
        }
    }
}

/// Continues the far end's handshake, in which the near end sends no data.
fn step(target: &mut Stream, socket: &Socket) -> io::Result<()> {
    let mut room = [0];
    match target.receive(&mut [IoSliceMut::new(&mut room)], &mut &*socket) {
        Received::Dry => Ok(()),
        Received::Failed(error) => Err(error),
        Received::Bytes(_) | Received::Ended => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Lets the other side work.
fn wait(until: Instant) -> io::Result<()> {
    if Instant::now() >= until {
        return Err(io::ErrorKind::TimedOut.into());
    }
    std::thread::sleep(Duration::from_micros(50));
    Ok(())
}

/// Sessions of host and target with a key of their own.
fn sessions(cipher: Cipher) -> io::Result<(Stream, Stream)> {
    let hash = cipher.hash();
    let key = TlsKey::new(Some(hash), vec![0x5a; hash.digest_bytes()].into()).map_err(io::Error::other)?;
    let host: HostName = HOST.parse().map_err(io::Error::other)?;
    let subsystem: Nqn = SUBSYSTEM.parse().map_err(io::Error::other)?;
    let keyring = Keyring::new(vec![KnownKey { subsystem: None, host: None, key: key.clone() }]);
    let keys = HostKeys { key, derivation: Derivation::Standard };
    let near =
        Session::host(&keys.offer(IdentityOffer::Both, &host, &subsystem)).map_err(io::Error::other)?;
    Ok((Stream::new(near), Stream::new(Session::target(Arc::new(keyring)))))
}
