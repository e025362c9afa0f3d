//! The socket below a TLS stream.

use std::io::IoSliceMut;

use reactor::{Io, Received, Segment, Sent, SocketId};
use security::tls::ByteSocket;

use crate::messages::message::Message;

/// A socket of a reactor, as a stream uses it.
pub(crate) struct TlsSocket<'a, I> {
    pub(crate) io: &'a mut I,
    pub(crate) socket: SocketId,
}

impl<I: Io<Message>> ByteSocket for TlsSocket<'_, I> {
    fn receive(&mut self, into: &mut [u8]) -> Received {
        self.io.receive(self.socket, &mut [IoSliceMut::new(into)])
    }

    fn send(&mut self, bytes: &[u8]) -> Sent {
        self.io.send(self.socket, &[Segment::new(bytes)])
    }

    fn note_encrypted(&mut self, plaintext: &[u8]) {
        self.io.note_encrypted(self.socket, plaintext);
    }

    fn note_decrypted(&mut self, plaintext: &[u8]) {
        self.io.note_decrypted(self.socket, plaintext);
    }
}
