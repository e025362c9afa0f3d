//! A connection of a host on the simulated network, with or without TLS, as the host's transport has it on a socket.

use std::io::{self, IoSliceMut};

use host_core::LinkError;
use host_core::connection_tls::{ConnectionTls, TlsKeys};
use memory::Segment;
use reactor::{Received, Sent};
use security::psk::TlsPsk;
use security::tls::{ByteSocket, IdentityOffer};
use wire::nqn::Nqn;

use crate::keys;
use crate::shared::network::{Got, NVME, Phase, Took};
use crate::shared::{Actor, Shared, Side};
use crate::tls_right::Channel;

/// Pieces of one send, as the real drivers gather them.
const PIECE_COUNT: usize = 256;

/// Progress of the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    #[default]
    None,
    Dialling(usize),
    /// TLS negotiates.
    Securing(usize),
    Connected(usize),
}

/// A connection, or none.
#[derive(Debug, Default)]
pub(crate) struct HostLink {
    pub(crate) stage: Stage,
    tls: ConnectionTls,
}

/// The outcome of a dial.
#[derive(Debug)]
pub(crate) enum Dialled {
    /// Nothing yet, or nothing is dialled.
    Waiting,
    /// It stands, and TLS is established if there is to be any.
    Connected,
    Failed(LinkError),
}

/// The host's end of a connection.
struct HostSocket<'a> {
    shared: &'a mut Shared,
    id: usize,
}

impl ByteSocket for HostSocket<'_> {
    fn receive(&mut self, into: &mut [u8]) -> Received {
        received(self.shared.receive(self.id, Side::Host, &mut [into]))
    }

    fn send(&mut self, bytes: &[u8]) -> Sent {
        match self.shared.begin_send(self.id, Side::Host, bytes.len()) {
            Took::Bytes(count) => {
                self.shared.send(self.id, Side::Host, &bytes[..count], None);
                Sent::Bytes(count)
            }
            Took::Blocked => Sent::Blocked,
            Took::Reset => Sent::Failed(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn note_encrypted(&mut self, plaintext: &[u8]) {
        self.shared.on_encrypted(self.id, Side::Host, plaintext);
    }

    fn note_decrypted(&mut self, plaintext: &[u8]) {
        self.shared.on_decrypted(self.id, Side::Host, plaintext);
    }
}

fn received(got: Got) -> Received {
    match got {
        Got::Bytes(count) => Received::Bytes(count),
        Got::Dry => Received::Dry,
        Got::Ended => Received::Ended,
        Got::Reset => Received::Failed(io::ErrorKind::ConnectionReset.into()),
    }
}

impl HostLink {
    /// Connects to the target; `channel` is the protection of the connection.
    pub(crate) fn dial(&mut self, shared: &mut Shared, actor: Actor, channel: Channel) {
        let id = shared.dial(actor, NVME);
        shared.connection(id).tls.set_channel(channel);
        *self = Self { stage: Stage::Dialling(id), tls: ConnectionTls::default() };
    }

    /// Whether there is none, not even one that is dialled.
    pub(crate) fn is_none(&self) -> bool {
        self.stage == Stage::None
    }

    /// The connection, if it stands.
    pub(crate) fn connected(&self) -> Option<usize> {
        if let Stage::Connected(id) = self.stage { Some(id) } else { None }
    }

    /// The connection, if it stands, with TLS established or not.
    pub(crate) fn open(&self) -> Option<usize> {
        if let Stage::Connected(id) | Stage::Securing(id) = self.stage { Some(id) } else { None }
    }

    /// The connection, dialled or standing.
    pub(crate) fn id(&self) -> Option<usize> {
        if let Stage::Dialling(id) = self.stage { Some(id) } else { self.open() }
    }

    /// Goes on to connect, with these identities of a configured key of TLS. `generated` is the key that an authentication
    /// has generated, if one has.
    pub(crate) fn connect(
        &mut self,
        shared: &mut Shared,
        host: &Nqn,
        subsystem: &Nqn,
        identities: IdentityOffer,
        generated: Option<&TlsPsk>,
    ) -> Dialled {
        if let Stage::Dialling(id) = self.stage {
            match shared.connection(id).phase {
                Phase::Dialling => return Dialled::Waiting,
                Phase::Refused => {
                    self.stage = Stage::None;
                    return Dialled::Failed(io::Error::from(io::ErrorKind::ConnectionRefused).into());
                }
                Phase::Open => self.stage = Stage::Securing(id),
            }
            let configured = match shared.connection(id).tls.channel {
                Channel::Configured(number) => Some(keys::host_keys(number)),
                Channel::Clear | Channel::Generated => None,
            };
            let keys = TlsKeys::of(configured.as_ref(), identities, generated);
            match ConnectionTls::new(keys, host, subsystem) {
                Ok(tls) => self.tls = tls,
                Err(cause) => return Dialled::Failed(cause),
            }
        }
        let Stage::Securing(id) = self.stage else { return Dialled::Waiting };
        match self.tls.handshake(&mut HostSocket { shared: &mut *shared, id }) {
            Ok(false) => Dialled::Waiting,
            Ok(true) => {
                self.stage = Stage::Connected(id);
                shared.on_secured(id);
                Dialled::Connected
            }
            Err(cause) => {
                // The alert.
                shared.finish(id, Side::Host);
                Dialled::Failed(cause)
            }
        }
    }

    /// Sends the pieces that are on their way, as far as the network has room. Returns the number of bytes sent, and
    /// that of all bytes.
    pub(crate) fn transmit<'a>(
        &mut self,
        shared: &mut Shared,
        for_each_piece: impl FnOnce(&mut dyn FnMut(&'a [u8]) -> bool),
    ) -> Result<(usize, usize), LinkError> {
        let Stage::Connected(id) = self.stage else { return Ok((0, 0)) };
        let mut pieces: Vec<&[u8]> = Vec::new();
        for_each_piece(&mut |piece| {
            if pieces.len() == PIECE_COUNT {
                return false;
            }
            pieces.push(piece);
            true
        });
        let total = pieces.iter().map(|piece| piece.len()).sum();
        let Some(stream) = self.tls.stream() else {
            let count = match shared.begin_send(id, Side::Host, total) {
                Took::Bytes(count) => count,
                Took::Blocked => return Ok((0, total)),
                Took::Reset => return Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
            };
            let mut bytes = Vec::with_capacity(count);
            for piece in pieces {
                bytes.extend_from_slice(&piece[..piece.len().min(count - bytes.len())]);
            }
            shared.send(id, Side::Host, &bytes, None);
            return Ok((count, total));
        };
        if shared.updates_key(id) {
            stream.update_key().map_err(LinkError::Tls)?;
        }
        let segments: Vec<Segment<'_>> = pieces.into_iter().map(Segment::new).collect();
        match stream.send(&segments, &mut HostSocket { shared, id }) {
            Sent::Bytes(count) => Ok((count, total)),
            Sent::Blocked => Ok((0, total)),
            Sent::Failed(error) => Err(error.into()),
        }
    }

    /// Receives into several places, in order.
    pub(crate) fn receive(&mut self, shared: &mut Shared, into: &mut [IoSliceMut<'_>]) -> Received {
        let Stage::Connected(id) = self.stage else { return Received::Dry };
        match self.tls.stream() {
            Some(stream) => stream.receive(into, &mut HostSocket { shared, id }),
            None => {
                let mut parts: Vec<&mut [u8]> = into.iter_mut().map(|part| &mut part[..]).collect();
                received(shared.receive(id, Side::Host, &mut parts))
            }
        }
    }

    /// Whether TLS has input that its connection does not report.
    pub(crate) fn has_input(&self) -> bool {
        self.tls.has_input()
    }

    /// Whether a receive would bring anything.
    pub(crate) fn is_readable(&self, shared: &Shared) -> bool {
        self.connected().is_some_and(|id| shared.is_readable(id, Side::Host) || self.tls.has_input())
    }

    /// Sends a last word, if it fits.
    pub(crate) fn send_last(&mut self, shared: &mut Shared, bytes: &[u8]) {
        let Stage::Connected(id) = self.stage else { return };
        match self.tls.stream() {
            Some(stream) => {
                let socket = &mut HostSocket { shared: &mut *shared, id };
                let _ = stream.send(&[Segment::new(bytes)], socket);
                stream.close(socket);
            }
            None if shared.begin_send(id, Side::Host, bytes.len()) == Took::Bytes(bytes.len()) => {
                shared.send(id, Side::Host, bytes, None);
            }
            None => {}
        }
        shared.finish(id, Side::Host);
    }

    /// Ends the connection: in good order, or at once.
    pub(crate) fn hang_up(&mut self, shared: &mut Shared, at_once: bool) {
        let Self { stage, mut tls } = std::mem::take(self);
        match stage {
            Stage::Connected(id) if !at_once => {
                tls.close(&mut HostSocket { shared: &mut *shared, id });
                shared.close(id, Side::Host);
            }
            Stage::Connected(id) | Stage::Securing(id) | Stage::Dialling(id) => shared.reset(id, Side::Host),
            Stage::None => {}
        }
    }
}
