//! TLS of a lane: a stream between the lane and its socket.

use std::io::IoSliceMut;
use std::net::SocketAddr;

use reactor::{Io, Received, Segment, Sent, SocketId};
use security::psk::PskKind;
use security::tls::{Failure, PskIdentity, Stream};
use wire::fabrics::ConnectData;
use wire::nqn::{HostName, Nqn};
use wire::text::quoted;
use zerocopy::FromBytes;

use crate::audit::TlsInUse;
use crate::io_path::tls_socket::TlsSocket;
use crate::messages::message::{Channel, Message};

/// The TLS of one lane.
#[derive(Debug)]
pub(crate) struct Secure {
    stream: Box<Stream>,
    is_established: bool,
    has_failed: bool,
}

impl Secure {
    pub(crate) fn new(stream: Box<Stream>) -> Self {
        Self { stream, is_established: false, has_failed: false }
    }

    /// That of a lane which another reactor has handed over.
    pub(crate) fn taken_over(stream: Box<Stream>) -> Self {
        Self { stream, is_established: true, has_failed: false }
    }

    /// For handing the lane over.
    pub(crate) fn into_stream(self) -> Box<Stream> {
        self.stream
    }

    /// Receives plaintext.
    pub(crate) fn receive<I: Io<Message>>(
        &mut self,
        io: &mut I,
        socket: SocketId,
        into: &mut [IoSliceMut<'_>],
    ) -> Received {
        let received = self.stream.receive(into, &mut TlsSocket { io: &mut *io, socket });
        if self.stream.has_output() {
            // Output of a handshake; any other goes with the next send.
            io.await_writable(socket);
        }
        received
    }

    /// Sends plaintext.
    pub(super) fn send<I: Io<Message>>(
        &mut self,
        io: &mut I,
        socket: SocketId,
        segments: &[Segment<'_>],
    ) -> Sent {
        self.stream.send(segments, &mut TlsSocket { io, socket })
    }

    /// Sends the rest of the handshake. [`Sent::Blocked`] if the socket is full.
    pub(super) fn flush<I: Io<Message>>(&mut self, io: &mut I, socket: SocketId) -> Sent {
        self.stream.flush(&mut TlsSocket { io, socket })
    }

    /// Sends close_notify.
    pub(super) fn close<I: Io<Message>>(&mut self, io: &mut I, socket: SocketId) {
        self.stream.close(&mut TlsSocket { io, socket });
    }

    /// Whether the connection turned out to be unencrypted, which its listener allows.
    pub(crate) fn is_clear(&self) -> bool {
        self.stream.is_clear()
    }

    /// Whether plaintext waits here while the socket is silent.
    pub(crate) fn has_input(&self) -> bool {
        self.stream.has_input()
    }

    /// Whether a record has begun that is not complete, after the handshake.
    pub(crate) fn is_within_record(&self) -> bool {
        self.stream.is_within_record()
    }

    /// Logs the parameters that the handshake has agreed on, on the first call after it.
    pub(crate) fn log_established(&mut self, peer: Option<SocketAddr>) {
        let Some(established) = self.stream.established() else { return };
        if std::mem::replace(&mut self.is_established, true) {
            return;
        }
        let PskIdentity { host, subsystem, version, kind, .. } = &established.identity;
        tracing::info!(
            peer = peer.map(tracing::field::display),
            cipher = %established.cipher,
            host = %quoted(host.as_str()),
            subsystem = %quoted(subsystem.as_str()),
            ?version,
            key = ?kind,
            derivation = %established.derivation,
            "TLS established"
        );
    }

    /// The parameters that the handshake has agreed on, for the audit log.
    pub(crate) fn in_use(&self) -> Option<TlsInUse> {
        let established = self.stream.established()?;
        let (cipher, derivation) = (established.cipher, established.derivation);
        let (version, key) = (established.identity.version, established.identity.kind);
        Some(TlsInUse { cipher, version, derivation, key })
    }

    /// Why it has failed, on the first call after that.
    pub(crate) fn newly_failed(&mut self) -> Option<&Failure> {
        let failure = self.stream.failure()?;
        (!std::mem::replace(&mut self.has_failed, true)).then_some(failure)
    }

    /// The identity that the host has offered and not proved, for the log.
    pub(crate) fn claimed(&self) -> Option<String> {
        self.stream.claimed().map(|identity| quoted(identity).to_string())
    }

    /// The protection of the connection; `Clear` until the handshake is complete.
    pub(crate) fn channel(&self) -> Channel {
        match self.stream.established() {
            None => Channel::Clear,
            Some(established) => match established.identity.kind {
                PskKind::Retained => Channel::ConfiguredKey,
                PskKind::Generated => Channel::GeneratedKey(established.text.as_str().into()),
            },
        }
    }

    /// Why a Connect with this data is refused: the key is for other names.
    pub(crate) fn refusal(&self, data: &[u8]) -> Option<String> {
        let Some(established) = self.stream.established() else { return Some("before TLS".into()) };
        // The control plane refuses data that is not of a Connect.
        let connect = ConnectData::read_from_bytes(data).ok()?;
        let PskIdentity { host, subsystem, .. } = &established.identity;
        let (host_asked, subsystem_asked) = (connect.host(), connect.subsystem());
        if host_asked.as_ref() == Ok(host) && subsystem_asked.as_ref() == Ok(subsystem) {
            return None;
        }
        let name = |name: Option<&str>| name.map_or("no name".to_owned(), |name| quoted(name).to_string());
        Some(format!(
            "host {} for subsystem {}, with the key of host {} for subsystem {}",
            name(host_asked.ok().as_ref().map(HostName::as_str)),
            name(subsystem_asked.ok().as_ref().map(Nqn::as_str)),
            quoted(host.as_str()),
            quoted(subsystem.as_str()),
        ))
    }

    /// Frees the buffers of an idle lane.
    pub(super) fn shrink(&mut self) {
        self.stream.shrink();
    }
}
