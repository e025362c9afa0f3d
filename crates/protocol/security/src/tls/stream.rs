//! A session on a socket, which looks like a socket itself.

use core::fmt;
use core::str::FromStr;
use std::io::{self, IoSliceMut};

use memory::Segment;
use reactor::{Received, Sent, Socket};

use super::client_hello::HANDSHAKE_RECORD;
use super::{Established, Failure, Read, Session, WithCertificate};

/// Plaintext that is encrypted before it is offered to the socket, bytes: four full records.
const CHUNK_BYTES: usize = 64 << 10;

/// Room that is left for the rest of a record before the socket is read again, bytes.
const RECORD_ROOM_BYTES: usize = 17 << 10;

/// Whether a listener speaks TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Unencrypted connections only.
    #[default]
    Off,
    /// Either: the first byte of a connection decides.
    Allowed,
    /// TLS; unencrypted only an admin queue whose authentication generates a key of TLS, by secure channel
    /// concatenation.
    Concatenated,
    /// TLS only.
    Required,
}

/// The error for an unknown policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown TLS policy {0:?}: write off, allowed, concatenated or required")]
pub struct UnknownPolicy(String);

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        match text {
            "off" => Ok(Self::Off),
            "allowed" => Ok(Self::Allowed),
            "concatenated" => Ok(Self::Concatenated),
            "required" => Ok(Self::Required),
            _ => Err(UnknownPolicy(text.to_owned())),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Off => "off",
            Self::Allowed => "allowed",
            Self::Concatenated => "concatenated",
            Self::Required => "required",
        })
    }
}

/// The socket below a [`Stream`].
pub trait ByteSocket {
    /// Receives the bytes that have arrived.
    fn receive(&mut self, into: &mut [u8]) -> Received;

    /// Sends as much as fits.
    fn send(&mut self, bytes: &[u8]) -> Sent;

    /// This plaintext was encrypted; its records are sent next. For sockets that inspect the content of a connection.
    fn note_encrypted(&mut self, _plaintext: &[u8]) {}

    /// This plaintext was decrypted from received records.
    fn note_decrypted(&mut self, _plaintext: &[u8]) {}
}

impl ByteSocket for &Socket {
    fn receive(&mut self, into: &mut [u8]) -> Received {
        Socket::receive(self, into)
    }

    fn send(&mut self, bytes: &[u8]) -> Sent {
        Socket::send(self, &[Segment::new(bytes)], false)
    }
}

/// A session on a socket: receives and sends plaintext as a socket does.
#[derive(Debug)]
pub struct Stream {
    session: Session,
    /// The first byte decides whether the connection is unencrypted.
    decides: bool,
    is_clear: bool,
    /// Bytes at the end of the plaintext taken last that are encrypted, and reported as sent once the socket has them:
    /// so the caller sees in the usual way that the socket is full.
    owed: usize,
    /// The socket may have more than the last [`receive`](Self::receive) took.
    may_have_more: bool,
    /// The last [`receive`](Self::receive) returned data, and behind it an end or an error that the next one returns.
    has_end: bool,
}

impl Stream {
    /// A stream around a session.
    #[must_use]
    pub const fn new(session: Session) -> Self {
        Self { session, decides: false, is_clear: false, owed: 0, may_have_more: false, has_end: false }
    }

    /// As [`new`](Self::new), unless the first byte of the peer shows that it sends without TLS:
    /// [`is_clear`](Self::is_clear).
    #[must_use]
    pub const fn allowing_clear(session: Session) -> Self {
        let mut stream = Self::new(session);
        stream.decides = true;
        stream
    }

    /// Whether the connection is unencrypted: its socket is used without this stream from now on.
    #[must_use]
    pub const fn is_clear(&self) -> bool {
        self.is_clear
    }

    /// The parameters that the handshake has agreed on, once it is complete.
    #[must_use]
    pub fn established(&self) -> Option<&Established> {
        self.session.established()
    }

    /// The parameters that the handshake with a certificate has agreed on, once it is complete.
    #[must_use]
    pub fn with_certificate(&self) -> Option<&WithCertificate> {
        self.session.with_certificate()
    }

    /// The identity that a host has offered and not proved.
    #[must_use]
    pub fn claimed(&self) -> Option<&str> {
        self.session.claimed()
    }

    /// Why the session has failed.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.session.failure()
    }

    /// Whether input was received from the socket and not returned yet, be it the end: then [`receive`](Self::receive) has
    /// something, whatever the socket has.
    #[must_use]
    pub fn has_input(&self) -> bool {
        self.has_end || self.session.has_input()
    }

    /// Whether a record has begun that is not complete, after the handshake.
    #[must_use]
    pub fn is_within_record(&self) -> bool {
        self.session.is_within_record()
    }

    /// Whether the socket may have more than [`receive`](Self::receive) took last, although that was less than it had
    /// room for: a caller that is notified only of new input asks again.
    #[must_use]
    pub const fn may_have_more(&self) -> bool {
        self.may_have_more
    }

    /// Whether bytes of TLS itself must be sent: of the handshake, an alert, or the rest of a record.
    #[must_use]
    pub fn has_output(&self) -> bool {
        !self.session.output().is_empty()
    }

    /// Continues the handshake of a host. Returns whether it is complete.
    ///
    /// # Errors
    /// The session has failed: the error is a [`Failure`] then; or the socket has.
    pub fn handshake(&mut self, socket: &mut impl ByteSocket) -> io::Result<bool> {
        let outcome = loop {
            if let Err(failure) = self.session.read(&mut []) {
                break Err(io::Error::other(failure));
            }
            if let Sent::Failed(error) = self.flush(socket) {
                break Err(error);
            }
            if self.session.established().is_some() {
                break Ok(true);
            }
            let received = self.session.receive(usize::MAX, |room| match socket.receive(room) {
                Received::Bytes(count) => (count, Received::Bytes(count)),
                other => (0, other),
            });
            match received {
                Some(Received::Bytes(_)) | None => {}
                Some(Received::Dry) => break Ok(false),
                Some(Received::Ended) => self.session.on_input_end(),
                Some(Received::Failed(error)) => break Err(error),
            }
        };
        let _ = self.flush(socket);
        outcome
    }

    /// Receives plaintext into `into`, in order, as a socket would. Less than all of it means that the socket was
    /// emptied, unless less than a record would have fitted.
    pub fn receive(&mut self, into: &mut [IoSliceMut<'_>], socket: &mut impl ByteSocket) -> Received {
        if self.decides
            && let Some(received) = self.decide(into, socket)
        {
            return received;
        }
        let received = self.receive_records(into, socket);
        // The answer to a handshake, a KeyUpdate or an error. The rest goes with the next send.
        match self.flush(socket) {
            Sent::Failed(error) if matches!(received, Received::Dry) => Received::Failed(error),
            _ => received,
        }
    }

    /// Looks at the first byte. Returns the received bytes if the connection is unencrypted, or if there are none.
    fn decide(&mut self, into: &mut [IoSliceMut<'_>], socket: &mut impl ByteSocket) -> Option<Received> {
        let first = into.iter_mut().find(|slice| !slice.is_empty())?;
        let received = socket.receive(first);
        let Received::Bytes(count) = received else { return Some(received) };
        self.decides = false;
        let bytes = first.get(..count).unwrap_or_default();
        if bytes.first() != Some(&HANDSHAKE_RECORD) {
            self.is_clear = true;
            return Some(received);
        }
        let mut bytes = bytes.to_vec();
        while !bytes.is_empty() {
            let taken = self.session.receive(bytes.len(), |room| {
                let count = room.len().min(bytes.len());
                if let (Some(room), Some(bytes)) = (room.get_mut(..count), bytes.get(..count)) {
                    room.copy_from_slice(bytes);
                }
                (count, count)
            });
            let Some(taken) = taken else { break };
            bytes.drain(..taken);
            // Reading drives the handshake, and makes room.
            if self.session.read(&mut []).is_err() {
                break;
            }
        }
        None
    }

    fn receive_records(&mut self, into: &mut [IoSliceMut<'_>], socket: &mut impl ByteSocket) -> Received {
        let mut left: usize = into.iter().map(|slice| slice.len()).sum();
        let mut count = 0_usize;
        let is_small = left <= RECORD_ROOM_BYTES.saturating_mul(2);
        self.may_have_more = true;
        self.has_end = false;
        for slice in into {
            let mut rest: &mut [u8] = slice;
            while !rest.is_empty() {
                match self.session.read(rest) {
                    Ok(Read::Bytes(taken)) => {
                        socket.note_decrypted(rest.get(..taken).unwrap_or_default());
                        count = count.saturating_add(taken);
                        left = left.saturating_sub(taken);
                        rest = std::mem::take(&mut rest).get_mut(taken..).unwrap_or_default();
                    }
                    Ok(Read::Dry) => {
                        // The socket is read for no more than this call returns. Where less than a record may fit, it is
                        // read until the buffer is full: the next calls return the rest before they read the socket, and
                        // `has_input` reports it.
                        let most = if is_small { usize::MAX } else { left.saturating_sub(RECORD_ROOM_BYTES) };
                        if most == 0 || (count > 0 && is_small) {
                            return Received::Bytes(count);
                        }
                        let may_have_more = &mut self.may_have_more;
                        let received = self.session.receive(most, |room| {
                            let room_bytes = room.len();
                            let received = socket.receive(room);
                            *may_have_more =
                                matches!(received, Received::Bytes(count) if count == room_bytes);
                            (if let Received::Bytes(count) = received { count } else { 0 }, received)
                        });
                        match received {
                            Some(Received::Bytes(_)) | None => {}
                            Some(Received::Dry) if count == 0 => return Received::Dry,
                            Some(Received::Dry) => return Received::Bytes(count),
                            Some(Received::Ended) => self.session.on_input_end(),
                            Some(Received::Failed(error)) if count == 0 => return Received::Failed(error),
                            Some(Received::Failed(_)) => return self.before_the_end(count),
                        }
                    }
                    Ok(Read::Ended) if count == 0 => return Received::Ended,
                    Err(failure) if count == 0 => return Received::Failed(io::Error::other(failure)),
                    Ok(Read::Ended) | Err(_) => return self.before_the_end(count),
                }
            }
        }
        if count == 0 { Received::Dry } else { Received::Bytes(count) }
    }

    /// Returns the data before an end or an error. The session, or the socket, gives that again at the next receive; no
    /// event of the socket may come before.
    fn before_the_end(&mut self, count: usize) -> Received {
        self.has_end = true;
        Received::Bytes(count)
    }

    /// Sends plaintext as a socket would: in full records, as much as fits.
    pub fn send(&mut self, segments: &[Segment<'_>], socket: &mut impl ByteSocket) -> Sent {
        match self.flush(socket) {
            Sent::Bytes(_) => {}
            other => return other,
        }
        // Encrypted by an earlier call, and sent by now.
        let mut skip = std::mem::take(&mut self.owed);
        let mut sent = skip;
        let mut segments = segments.iter().copied();
        let mut current = Segment::EMPTY;
        loop {
            let mut room = CHUNK_BYTES;
            let encrypted = self.session.write_gathered(|into, most| {
                let begin = into.len();
                let end = begin.saturating_add(most.min(room));
                while into.len() < end {
                    if current.is_empty() {
                        let Some(next) = segments.next() else { break };
                        let skipped = skip.min(next.len());
                        skip = skip.saturating_sub(skipped);
                        current = next.after(skipped);
                        continue;
                    }
                    let count = current.len().min(end.saturating_sub(into.len()));
                    current.up_to(count).append_to(into);
                    current = current.after(count);
                    room = room.saturating_sub(count);
                }
                socket.note_encrypted(into.get(begin..).unwrap_or_default());
            });
            match encrypted {
                Ok(0) => return Sent::Bytes(sent),
                Ok(count) => sent = sent.saturating_add(count),
                Err(failure) => {
                    // The alert.
                    let _ = self.flush(socket);
                    return Sent::Failed(io::Error::other(failure));
                }
            }
            match self.flush(socket) {
                Sent::Bytes(_) => {}
                Sent::Blocked => {
                    self.owed = 1;
                    return match sent.saturating_sub(1) {
                        0 => Sent::Blocked,
                        sent => Sent::Bytes(sent),
                    };
                }
                failed @ Sent::Failed(_) => return failed,
            }
        }
    }

    /// Sends the output. [`Sent::Blocked`] if the socket does not take all of it.
    pub fn flush(&mut self, socket: &mut impl ByteSocket) -> Sent {
        let mut sent = 0_usize;
        while !self.session.output().is_empty() {
            match socket.send(self.session.output()) {
                Sent::Bytes(count) => {
                    self.session.on_sent(count);
                    sent = sent.saturating_add(count);
                }
                other => return other,
            }
        }
        Sent::Bytes(sent)
    }

    /// Sends close_notify, if the socket takes it.
    pub fn close(&mut self, socket: &mut impl ByteSocket) {
        self.session.close();
        let _ = self.flush(socket);
    }

    /// Changes the key of the sending direction: see [`Session::update_key`].
    ///
    /// # Errors
    /// The session has failed.
    pub fn update_key(&mut self) -> Result<(), Failure> {
        self.session.update_key()
    }

    /// Frees the buffers of an idle stream.
    pub fn shrink(&mut self) {
        self.session.shrink();
    }
}
