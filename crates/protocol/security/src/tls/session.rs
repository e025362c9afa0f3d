//! One TLS session of either role, without a socket.

use core::fmt;
use std::sync::Arc;

use wire::text::quoted;

use super::client_hello::{self, HELLO_BYTES_MAX, Hello};
use super::library::{self, CallOutcome, ErrorClass, Library};
use super::record_error::RecordError;
use super::records::Records;
use super::{
    Alert, CertificateFields, GeneratedKeys, KeyLease, Keyring, PskIdentity, Read, ServerCertificate,
};
use crate::psk::{Cipher, Derivation, TlsPsk};

/// Bytes that a peer may send in a row without any plaintext: KeyUpdates, empty records, changes of cipher suite. A record
/// has less than 17 KiB, a handshake less than 10.
const QUIET_BYTES_MAX: usize = 32 << 10;

/// A session: bytes of the peer in, bytes to send out, and plaintext on the other side.
///
/// ```text
/// target:  Hello ──ClientHello, key found──▶ Handshake ──Finished──▶ Open ──close_notify──▶ Ended
/// host:                                      Handshake ──Finished──▶ Open
/// target with a certificate: First ──a record of a handshake──▶ Handshake ──Finished──▶ Open
///                     any ──alert, error──▶ Failed
/// ```
///
/// A connection that has not sent a ClientHello with a known identity costs only the bytes that it has sent, at most 8
/// KiB.
pub struct Session {
    state: State,
    is_host: bool,
    /// The host has received nothing yet.
    is_untried: bool,
    /// Bytes received since there was plaintext.
    quiet_bytes: usize,
    /// How the key was found; for the log.
    derivation: Derivation,
    /// The identity that a host has offered, and that has a key, until the handshake is complete.
    claimed: Option<String>,
    /// Of a generated key.
    lease: Option<KeyLease>,
    agreed: Option<Agreed>,
    failure: Option<Failure>,
}

enum State {
    /// The target waits for the ClientHello.
    Hello { keyring: Arc<Keyring>, generated: Arc<GeneratedKeys>, stream: Vec<u8>, output: Vec<u8> },
    /// The target, with a certificate, waits for the first bytes.
    First { certificate: Arc<ServerCertificate>, stream: Vec<u8> },
    /// The library makes the handshake; with TLS 1.2 it keeps the connection.
    Library(Box<Library>),
    /// The handshake is complete.
    Open(Box<Records>),
}

/// The parameters that a handshake has agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Established {
    /// The identity that the peer has proved.
    pub identity: PskIdentity,
    /// The identity as text: that of a generated key names the key.
    pub text: String,
    /// The cipher suite.
    pub cipher: Cipher,
    /// How the key was derived.
    pub derivation: Derivation,
}

/// The parameters that a handshake with a certificate of the target has agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithCertificate {
    /// The version of TLS.
    pub version: &'static str,
    /// The cipher suite.
    pub cipher_suite: String,
    /// The subject of the certificate that the client has shown; `None` without one.
    pub client: Option<String>,
}

/// The parameters that a handshake has agreed on.
enum Agreed {
    Psk(Box<Established>),
    Certificate(WithCertificate),
}

/// Why a session has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The peer speaks something else.
    #[error("the peer does not speak TLS")]
    NotTls,
    /// Its ClientHello cannot be read.
    #[error("malformed ClientHello")]
    MalformedHello,
    /// Its ClientHello has no PSK.
    #[error("the host offers no pre-shared key")]
    NoPsk,
    /// No key has such an identity.
    #[error("no pre-shared key with the identity {}", quoted(.0))]
    UnknownIdentity(String),
    /// The peer has refused.
    #[error("the peer sent the TLS alert {0}")]
    Alert(Alert),
    /// The peer closed the connection within the handshake.
    #[error("the peer closed the connection during the TLS handshake")]
    Closed,
    /// The peer broke TLS, or has another key: in the words of the library.
    #[error("TLS failed: {0}")]
    Protocol(&'static str),
    /// The peer has not proved that it has the key, or uses another cipher suite.
    #[error("the TLS handshake ended without the pre-shared key and its cipher suite")]
    NoProof,
}

/// Starts the TLS library: else the first session does, which takes some milliseconds more then.
///
/// # Errors
/// It cannot start.
pub fn prepare() -> Result<(), Failure> {
    library::prepare().map_err(|error| Failure::Protocol(error.message()))
}

impl Session {
    /// A session of a host that offers these keys, the preferred one first.
    ///
    /// # Errors
    /// If the library cannot use them.
    pub fn host(keys: &[TlsPsk]) -> Result<Self, Failure> {
        let library = Library::new(true, keys, &[]).map_err(|error| Failure::Protocol(error.message()))?;
        let mut session = Self::new(State::Library(Box::new(library)), true);
        // The ClientHello.
        session.advance()?;
        Ok(session)
    }

    /// A session of a target with these keys.
    #[must_use]
    pub fn target(keyring: Arc<Keyring>) -> Self {
        Self::target_with(keyring, Arc::default())
    }

    /// A session of a target with these keys, and those that authentications have generated when the ClientHello comes.
    #[must_use]
    pub fn target_with(keyring: Arc<Keyring>, generated: Arc<GeneratedKeys>) -> Self {
        Self::new(State::Hello { keyring, generated, stream: Vec::new(), output: Vec::new() }, false)
    }

    /// A session of a target that answers with a certificate.
    #[must_use]
    pub fn target_with_certificate(certificate: Arc<ServerCertificate>) -> Self {
        Self::new(State::First { certificate, stream: Vec::new() }, false)
    }

    fn new(state: State, is_host: bool) -> Self {
        Self {
            state,
            is_host,
            is_untried: is_host,
            quiet_bytes: 0,
            derivation: Derivation::Standard,
            claimed: None,
            lease: None,
            agreed: None,
            failure: None,
        }
    }

    /// The parameters that the handshake with a pre-shared key has agreed on, once it is complete.
    #[must_use]
    pub fn established(&self) -> Option<&Established> {
        match &self.agreed {
            Some(Agreed::Psk(established)) => Some(established),
            _ => None,
        }
    }

    /// The parameters that the handshake with a certificate has agreed on, once it is complete.
    #[must_use]
    pub fn with_certificate(&self) -> Option<&WithCertificate> {
        match &self.agreed {
            Some(Agreed::Certificate(with)) => Some(with),
            _ => None,
        }
    }

    /// The identity that a host has offered and not proved: a handshake that failed may be due to another key.
    #[must_use]
    pub fn claimed(&self) -> Option<&str> {
        self.claimed.as_deref()
    }

    /// Why the session has failed.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Receives bytes of the peer with `receive`, which is given room for them and returns their number and anything
    /// else. Without room (all input must be [read](Self::read) first) it is not called.
    pub fn receive<R>(&mut self, most: usize, receive: impl FnOnce(&mut [u8]) -> (usize, R)) -> Option<R> {
        match &mut self.state {
            State::Hello { stream, .. } | State::First { stream, .. } => {
                let have = stream.len();
                let room = HELLO_BYTES_MAX.saturating_sub(have).min(most);
                // A record at a time is enough: more input waits in the socket.
                let mut chunk = [0; 2048];
                let room = chunk.get_mut(..room.min(2048)).filter(|room| !room.is_empty())?;
                let (count, result) = receive(room);
                self.quiet_bytes = self.quiet_bytes.saturating_add(count);
                stream.extend_from_slice(room.get(..count).unwrap_or_default());
                Some(result)
            }
            State::Library(library) => {
                let room = library.input_room();
                let room_bytes = room.len();
                let room = room.get_mut(..most.min(room_bytes)).filter(|room| !room.is_empty())?;
                let (count, result) = receive(room);
                self.quiet_bytes = self.quiet_bytes.saturating_add(count);
                // A target without TLS answers a ClientHello with a PDU.
                let is_tls =
                    room.get(..count).and_then(<[u8]>::first).is_none_or(|first| matches!(first, 20..=23));
                if self.is_untried && count > 0 {
                    self.is_untried = false;
                    if !is_tls {
                        self.failure.get_or_insert(Failure::NotTls);
                    }
                }
                library.on_input(count);
                Some(result)
            }
            State::Open(records) => {
                let room = records.input_room();
                let room_bytes = room.len();
                let room = room.get_mut(..most.min(room_bytes)).filter(|room| !room.is_empty())?;
                let (count, result) = receive(room);
                self.quiet_bytes = self.quiet_bytes.saturating_add(count);
                records.on_input(count);
                Some(result)
            }
        }
    }

    /// The peer sends no more.
    pub fn on_input_end(&mut self) {
        match &mut self.state {
            State::Hello { .. } | State::First { .. } => {
                self.failure.get_or_insert(Failure::Closed);
            }
            State::Library(library) => library.on_input_end(),
            State::Open(records) => records.on_input_end(),
        }
    }

    /// Whether bytes of the peer, or plaintext, wait for a [read](Self::read).
    #[must_use]
    pub fn has_input(&self) -> bool {
        match &self.state {
            State::Hello { .. } | State::First { .. } => false,
            State::Library(library) => self.failure.is_none() && library.has_input(),
            State::Open(records) => self.failure.is_none() && records.has_input(),
        }
    }

    /// Whether a record has begun that is not complete, after the handshake.
    #[must_use]
    pub fn is_within_record(&self) -> bool {
        match &self.state {
            State::Hello { .. } | State::First { .. } | State::Library(_) => false,
            State::Open(records) => self.failure.is_none() && records.is_within_record(),
        }
    }

    /// Takes plaintext, and drives the handshake.
    ///
    /// # Errors
    /// The session has failed; [`output`](Self::output) may have an alert.
    pub fn read(&mut self, into: &mut [u8]) -> Result<Read, Failure> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if self.agreed.is_none() {
            self.advance()?;
            if self.agreed.is_none() {
                return self.dry();
            }
            self.quiet_bytes = 0;
        }
        if into.is_empty() {
            return Ok(Read::Dry);
        }
        let library = match &mut self.state {
            State::Hello { .. } | State::First { .. } => return Ok(Read::Dry),
            State::Library(library) => library,
            State::Open(records) => {
                return match records.read(into) {
                    Ok(Read::Dry) => self.dry(),
                    Ok(read) => {
                        self.quiet_bytes = 0;
                        Ok(read)
                    }
                    Err(error) => {
                        let failure = match error {
                            RecordError::Alert(alert) => Failure::Alert(alert),
                            RecordError::Broken(message, alert) => {
                                records.close(alert);
                                Failure::Protocol(message)
                            }
                        };
                        self.failure = Some(failure.clone());
                        Err(failure)
                    }
                };
            }
        };
        match library.read(into) {
            Ok(CallOutcome::Ready(0)) => Ok(Read::Ended),
            Ok(CallOutcome::Ready(count)) => {
                self.quiet_bytes = 0;
                Ok(Read::Bytes(count))
            }
            Ok(CallOutcome::Waits) => self.dry(),
            Err(error) => match library::class(&error) {
                // Without close_notify. PDUs and commands have their own lengths: one that is cut off is not executed.
                ErrorClass::Closed => Ok(Read::Ended),
                class => Err(self.fail(class)),
            },
        }
    }

    /// More input is needed: an error if the peer has sent so much without plaintext that it only keeps this side busy.
    fn dry(&mut self) -> Result<Read, Failure> {
        if self.quiet_bytes <= QUIET_BYTES_MAX {
            return Ok(Read::Dry);
        }
        let message = "too much input without data";
        Err(self.fail(ErrorClass::Failed(message, Alert::UNEXPECTED_MESSAGE)))
    }

    /// Encrypts plaintext: all of it is in the output afterwards.
    ///
    /// # Errors
    /// The session has failed, or was closed.
    ///
    /// # Panics
    /// In debug builds, before the handshake is complete.
    pub fn write(&mut self, mut plaintext: &[u8]) -> Result<(), Failure> {
        let written = self.write_gathered(|into, most| {
            let (now, later) = plaintext.split_at(most.min(plaintext.len()));
            into.extend_from_slice(now);
            plaintext = later;
        });
        written.map(drop)
    }

    /// Encrypts plaintext, a record at a time: `append` puts at most the given number of bytes behind the others of the
    /// vector, and nothing at the end. Returns their number; their records are in the output.
    ///
    /// # Errors
    /// The session has failed, or was closed.
    ///
    /// # Panics
    /// In debug builds, before the handshake is complete.
    pub fn write_gathered(&mut self, append: impl FnMut(&mut Vec<u8>, usize)) -> Result<usize, Failure> {
        debug_assert!(self.agreed.is_some(), "nothing is sent before the handshake is complete");
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        match &mut self.state {
            State::Hello { .. } | State::First { .. } => Ok(0),
            State::Library(library) => {
                library.write_gathered(append).map_err(|error| self.fail(library::class(&error)))
            }
            State::Open(records) => {
                let count = records.write(append);
                if records.is_closed() { Err(Failure::Protocol("the session is closed")) } else { Ok(count) }
            }
        }
    }

    /// Bytes to send.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        match &self.state {
            State::Hello { output, .. } => output,
            State::First { .. } => &[],
            State::Library(library) => library.output(),
            State::Open(records) => records.output(),
        }
    }

    /// The first `count` bytes of the output were sent.
    pub fn on_sent(&mut self, count: usize) {
        let output = match &mut self.state {
            State::Hello { output, .. } => output,
            State::First { .. } => return,
            State::Library(library) => library.output_mut(),
            State::Open(records) => return records.on_sent(count),
        };
        output.drain(..count.min(output.len()));
    }

    /// Ends the sending direction with close_notify.
    pub fn close(&mut self) {
        match &mut self.state {
            State::Hello { .. } | State::First { .. } => {}
            State::Library(library) => library.close(),
            State::Open(records) => records.close(Alert::CLOSE_NOTIFY),
        }
    }

    /// Changes the key of the sending direction before the next record. Linux's kernel TLS ends the connection then.
    ///
    /// # Errors
    /// The session has failed.
    pub fn update_key(&mut self) -> Result<(), Failure> {
        match &mut self.state {
            State::Hello { .. } | State::First { .. } => Ok(()),
            State::Library(library) => {
                library.update_key().map_err(|error| self.fail(library::class(&error)))
            }
            State::Open(records) => {
                records.update_key();
                Ok(())
            }
        }
    }

    /// Frees the buffers of an idle session.
    pub fn shrink(&mut self) {
        match &mut self.state {
            State::Hello { .. } | State::First { .. } => {}
            State::Library(library) => library.shrink(),
            State::Open(records) => records.shrink(),
        }
    }

    /// Continues the handshake.
    fn advance(&mut self) -> Result<(), Failure> {
        if let State::First { certificate, stream } = &self.state {
            match stream.first() {
                None => return Ok(()),
                Some(&client_hello::HANDSHAKE_RECORD) => {}
                Some(_) => return Err(self.refuse((Failure::NotTls, None))),
            }
            return match Library::with_certificate(&certificate.config, stream) {
                Ok(library) => {
                    self.state = State::Library(Box::new(library));
                    self.negotiate()
                }
                Err(error) => Err(self.refuse((Failure::Protocol(error.message()), None))),
            };
        }
        if let State::Hello { keyring, generated, stream, .. } = &mut self.state {
            let refusal = match client_hello::read(stream) {
                Hello::Incomplete if stream.len() < HELLO_BYTES_MAX => return Ok(()),
                Hello::Incomplete => (Failure::MalformedHello, Some(Alert::DECODE_ERROR)),
                Hello::Malformed if stream.first() != Some(&22) => (Failure::NotTls, None),
                Hello::Malformed => (Failure::MalformedHello, Some(Alert::DECODE_ERROR)),
                Hello::NoPsk => (Failure::NoPsk, Some(Alert::MISSING_EXTENSION)),
                Hello::Offers(identities) => {
                    // Identities of NVMe/TCP are text.
                    let texts = || identities.iter().filter_map(|identity| str::from_utf8(identity).ok());
                    if let Some((psk, lease)) = texts().find_map(|text| generated.find(text)) {
                        self.lease = Some(lease);
                        return self.begin(&psk);
                    }
                    match keyring.find_first(texts()) {
                        Some((_, psk, derivation)) => {
                            self.derivation = derivation;
                            self.claimed = Some(psk.identity.clone());
                            return self.begin(&psk);
                        }
                        None => {
                            let first = identities.first().map(|first| String::from_utf8_lossy(first));
                            let first = first.unwrap_or_default().into_owned();
                            // As for a wrong key: the alert does not reveal which names exist. RFC 8446 section 6.2
                            (Failure::UnknownIdentity(first), Some(Alert::DECRYPT_ERROR))
                        }
                    }
                }
            };
            return Err(self.refuse(refusal));
        }
        self.negotiate()
    }

    /// The ClientHello offers this key.
    fn begin(&mut self, psk: &TlsPsk) -> Result<(), Failure> {
        let State::Hello { stream, .. } = &mut self.state else { return Ok(()) };
        let library = match Library::new(false, std::slice::from_ref(psk), stream) {
            Ok(library) => library,
            Err(error) => {
                let failure = Failure::Protocol(error.message());
                self.failure = Some(failure.clone());
                return Err(failure);
            }
        };
        self.state = State::Library(Box::new(library));
        self.negotiate()
    }

    fn negotiate(&mut self) -> Result<(), Failure> {
        let State::Library(library) = &mut self.state else { return Ok(()) };
        match library.negotiate() {
            Ok(CallOutcome::Waits) => Ok(()),
            Ok(CallOutcome::Ready(())) if library.has_certificate() => {
                let (version, cipher_suite) = library.version_and_suite();
                let client = library.client_certificate().map(|der| {
                    CertificateFields::read(&der).map(|fields| fields.subject).unwrap_or_default()
                });
                self.agreed = Some(Agreed::Certificate(WithCertificate { version, cipher_suite, client }));
                match library.take_records(self.is_host) {
                    Ok(Some(records)) => self.state = State::Open(Box::new(records)),
                    Ok(None) => {}
                    Err(class) => return Err(self.fail(class)),
                }
                Ok(())
            }
            Ok(CallOutcome::Ready(())) => {
                let identity = library.identity().ok().and_then(|text| String::from_utf8(text).ok());
                let identity = identity.and_then(|text| Some((text.parse::<PskIdentity>().ok()?, text)));
                let (Some((identity, text)), Some(cipher)) = (identity, library.cipher()) else {
                    return Err(self.fail_without_proof());
                };
                if identity.cipher != cipher {
                    return Err(self.fail_without_proof());
                }
                match library.take_records(self.is_host) {
                    Ok(Some(records)) => self.state = State::Open(Box::new(records)),
                    Ok(None) => return Err(self.fail_without_proof()),
                    Err(class) => return Err(self.fail(class)),
                }
                self.claimed = None;
                let derivation = self.derivation;
                self.agreed = Some(Agreed::Psk(Box::new(Established { identity, text, cipher, derivation })));
                Ok(())
            }
            Err(error) => Err(self.fail(library::class(&error))),
        }
    }

    fn refuse(&mut self, (failure, alert): (Failure, Option<Alert>)) -> Failure {
        if let (State::Hello { output, stream, .. }, Some(alert)) = (&mut self.state, alert) {
            output.extend_from_slice(&alert.record());
            *stream = Vec::new();
        }
        self.failure = Some(failure.clone());
        failure
    }

    fn fail_without_proof(&mut self) -> Failure {
        self.close();
        self.failure = Some(Failure::NoProof);
        Failure::NoProof
    }

    fn fail(&mut self, class: ErrorClass) -> Failure {
        let failure = match &mut self.state {
            State::Library(library) => match class {
                ErrorClass::Alert => Failure::Alert(Alert(library.alert().unwrap_or_default())),
                ErrorClass::Closed => Failure::Closed,
                ErrorClass::Failed(message, alert) => {
                    library.fail(alert);
                    Failure::Protocol(message)
                }
            },
            State::Open(records) => match class {
                ErrorClass::Failed(message, alert) => {
                    records.close(alert);
                    Failure::Protocol(message)
                }
                ErrorClass::Alert | ErrorClass::Closed => Failure::Closed,
            },
            State::Hello { .. } | State::First { .. } => Failure::MalformedHello,
        };
        self.failure = Some(failure.clone());
        failure
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("is_host", &self.is_host)
            .field("established", &self.established())
            .field("with_certificate", &self.with_certificate())
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}
