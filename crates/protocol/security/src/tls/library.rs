//! The TLS library: one connection of s2n-tls that reads from and writes to memory. With TLS 1.3 it makes the handshake, and
//! hands its secrets over; it keeps the records of TLS 1.2.
//!
//! All unsafe code of this crate is here: s2n-tls calls back with a pointer to the buffers.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::fmt;
use core::ptr::NonNull;
use core::task::Poll;
use std::sync::OnceLock;

use s2n_tls::callbacks::VerifyHostNameCallback;
use s2n_tls::cert_chain;
use s2n_tls::config::{Builder, Config};
use s2n_tls::connection::Connection;
use s2n_tls::enums::{Blinding, ClientAuthType, Mode, PeerKeyUpdate, PskHmac, SerializationVersion, Version};
use s2n_tls::error::{Error, ErrorType};
use s2n_tls::psk::Psk;
use s2n_tls::security::Policy;
use zeroize::Zeroizing;

use super::Alert;
use super::certificate_texts::{CertificateText, CertificateTexts, ClientCertificates};
use super::handed_over;
use super::records::Records;
use crate::psk::{Cipher, TlsPsk};

/// Input that is taken in at once, bytes: four full records.
const INPUT_BYTES: usize = 64 << 10;

/// The same during the handshake, when anybody may be the peer.
const HANDSHAKE_INPUT_BYTES: usize = 2 << 10;

/// Plaintext of a full record, bytes.
const RECORD_BYTES: usize = 16 << 10;

/// The one policy of s2n-tls with TLS 1.3 only, exactly the two cipher suites of NVMe/TCP, and no certificates' worth
/// of further groups: P-256, P-384, P-521. A peer that offers only X25519 at first is asked for P-256.
const POLICY: &str = "ELBSecurityPolicy-TLS13-1-3-FIPS-2023-04";

/// The same with TLS_AES_256_GCM_SHA384 alone, and P-384: what a host with a key for that one offers. A target that chooses
/// the cipher suite before it looks at the keys could choose the other one, and then has no key (OpenSSL, so SPDK).
const AES_256_POLICY: &str = "ELBSecurityPolicy-TLS13-1-3-RFC9151-FIPS-2023-07";

/// The policy of sessions with a certificate: TLS 1.3, and TLS 1.2 with ephemeral keys and AES-GCM only.
const CERTIFICATE_POLICY: &str = "20251014";

/// Most certificates of a client's chain.
const CHAIN_DEPTH_MAX: u16 = 7;

/// The buffers that the library reads from and writes to.
struct Wires {
    /// Bytes of the peer at `start..end`. Empty while there are none: idle connections have no buffer.
    input: Vec<u8>,
    start: usize,
    end: usize,
    /// The peer sends no more.
    is_ended: bool,
    /// Bytes for the peer.
    output: Vec<u8>,
    /// Encrypted records were among them.
    is_encrypted: bool,
}

/// Whether any of these records is encrypted.
fn has_encrypted_record(mut records: &[u8]) -> bool {
    const ENCRYPTED_RECORD: u8 = 23;
    while let [kind, _, _, high, low, rest @ ..] = records {
        if *kind == ENCRYPTED_RECORD {
            return true;
        }
        records = rest.get(u16::from_be_bytes([*high, *low]).into()..).unwrap_or_default();
    }
    false
}

/// A connection of the library, with its buffers.
pub(super) struct Library {
    connection: Connection,
    /// Plaintext of a record.
    gathered: Vec<u8>,
    /// The target answers with a certificate, not with a pre-shared key.
    has_certificate: bool,
    /// From a box. Used by the library during calls of `connection`, and by us between them.
    wires: NonNull<Wires>,
}

// SAFETY: the connection may be sent to another thread, and the buffers are owned like a box.
unsafe impl Send for Library {}

/// The outcome of a call that can wait for input.
pub(super) enum CallOutcome<T> {
    Ready(T),
    /// The input does not suffice.
    Waits,
}

/// Gives the library bytes of the peer.
///
/// # Safety
/// `context` is the buffers of a [`Library`], which nobody else uses meanwhile; `into` has room for `length` bytes.
unsafe extern "C" fn receive(context: *mut c_void, into: *mut u8, length: u32) -> c_int {
    // SAFETY: the caller's promise.
    let wires = unsafe { &mut *context.cast::<Wires>() };
    let available = wires.input.get(wires.start..wires.end).unwrap_or_default();
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let taken = available.get(..length.min(available.len())).unwrap_or_default();
    if taken.is_empty() {
        return if wires.is_ended { 0 } else { would_block() };
    }
    // SAFETY: there is room for `length` bytes, and ours are another allocation.
    unsafe { core::ptr::copy_nonoverlapping(taken.as_ptr(), into, taken.len()) };
    let count = taken.len();
    wires.start = wires.start.saturating_add(count);
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

/// Takes the library's bytes for the peer.
///
/// # Safety
/// As [`receive`]; `from` has `length` bytes.
unsafe extern "C" fn send(context: *mut c_void, from: *const u8, length: u32) -> c_int {
    // SAFETY: the caller's promise.
    let wires = unsafe { &mut *context.cast::<Wires>() };
    let length = usize::try_from(length).unwrap_or(0);
    // SAFETY: the caller's promise.
    let bytes = unsafe { core::slice::from_raw_parts(from, length) };
    // The library always passes complete records.
    wires.is_encrypted = wires.is_encrypted || has_encrypted_record(bytes);
    wires.output.extend_from_slice(bytes);
    c_int::try_from(length).unwrap_or(c_int::MAX)
}

fn would_block() -> c_int {
    // SAFETY: the address of the thread's own errno.
    unsafe { *libc::__errno_location() = libc::EAGAIN };
    -1
}

/// Starts the library, which takes some milliseconds the first time.
pub(super) fn prepare() -> Result<(), Error> {
    config(false).map(drop)
}

/// The configuration of connections with pre-shared keys: of all, or of hosts with keys for TLS_AES_256_GCM_SHA384 only.
fn config(is_aes_256_only: bool) -> Result<Config, Error> {
    static BOTH: OnceLock<Config> = OnceLock::new();
    static AES_256: OnceLock<Config> = OnceLock::new();
    let (cell, policy) = if is_aes_256_only { (&AES_256, AES_256_POLICY) } else { (&BOTH, POLICY) };
    if let Some(config) = cell.get() {
        return Ok(config.clone());
    }
    let config = builder(policy)?.build()?;
    Ok(cell.get_or_init(|| config).clone())
}

/// Whether a key is for TLS_AES_256_GCM_SHA384, and not for TLS_AES_128_GCM_SHA256.
fn is_for_aes_256(key: &TlsPsk) -> bool {
    key.key.expose().len() == Cipher::Aes256GcmSha384.hash().digest_bytes()
}

/// A configuration to complete: no certificate is trusted yet.
fn builder(policy: &str) -> Result<Builder, Error> {
    let mut builder = Config::builder();
    builder.set_security_policy(&Policy::from_version(policy)?)?;
    builder.with_system_certs(false)?;
    builder.wipe_trust_store()?;
    // The delay before an alert hides the time of CBC's errors, and neither policy has suites with CBC.
    builder.set_max_blinding_delay(0)?;
    builder.set_serialization_version(SerializationVersion::V1)?;
    Ok(builder)
}

/// The configuration of connections that answer with a certificate.
#[derive(Clone, Debug)]
pub(super) struct CertificateConfig(Config);

impl CertificateConfig {
    /// Reads the texts. Returns the first certificate in DER as well.
    pub(super) fn new(
        texts: CertificateTexts<'_>,
        clients: ClientCertificates,
    ) -> Result<(Self, Vec<u8>), (CertificateText, Error)> {
        let of_chain = |error| (CertificateText::Chain, error);
        let of_authorities = |error| (CertificateText::ClientCa, error);
        let mut chain = cert_chain::Builder::new().map_err(of_chain)?;
        chain.load_pem(texts.chain.as_bytes(), texts.key.as_bytes()).map_err(of_chain)?;
        let chain = chain.build().map_err(of_chain)?;
        let first = chain.iter().next().map(|first| first?.der().map(<[u8]>::to_vec));
        let leaf = first.transpose().map_err(of_chain)?.unwrap_or_default();
        let mut builder = builder(CERTIFICATE_POLICY).map_err(of_chain)?;
        builder.load_chain(chain).map_err(of_chain)?;
        if let Some(authorities) = texts.client_ca {
            builder.trust_pem(authorities.as_bytes()).map_err(of_authorities)?;
            builder.set_max_cert_chain_depth(CHAIN_DEPTH_MAX).map_err(of_authorities)?;
            // Any name is good: authorities decide whom they give a certificate.
            builder.set_verify_host_callback(AnyName).map_err(of_authorities)?;
        }
        let demand = match clients {
            ClientCertificates::Off => ClientAuthType::None,
            ClientCertificates::Optional => ClientAuthType::Optional,
            ClientCertificates::Required => ClientAuthType::Required,
        };
        builder.set_client_auth_type(demand).map_err(of_authorities)?;
        Ok((Self(builder.build().map_err(of_chain)?), leaf))
    }
}

/// Accepts clients' certificates whatever names they have.
struct AnyName;

impl VerifyHostNameCallback for AnyName {
    fn verify_host_name(&self, _: &str) -> bool {
        true
    }
}

impl Library {
    /// A connection of the host (client) or the target (server) with these keys, which has received `input` already.
    pub(super) fn new(is_host: bool, keys: &[TlsPsk], input: &[u8]) -> Result<Self, Error> {
        let mut connection = Connection::new(if is_host { Mode::Client } else { Mode::Server });
        let is_aes_256_only = is_host && !keys.is_empty() && keys.iter().all(is_for_aes_256);
        connection.set_config(config(is_aes_256_only)?)?;
        for psk in keys {
            let mut builder = Psk::builder()?;
            builder.set_identity(psk.identity.as_bytes())?;
            builder.set_secret(psk.key.expose())?;
            builder.set_hmac(if is_for_aes_256(psk) { PskHmac::SHA384 } else { PskHmac::SHA256 })?;
            connection.append_psk(&builder.build()?)?;
        }
        Self::of(connection, false, input)
    }

    /// A connection of the target with a certificate, which has received `input` already.
    pub(super) fn with_certificate(config: &CertificateConfig, input: &[u8]) -> Result<Self, Error> {
        let mut connection = Connection::new(Mode::Server);
        connection.set_config(config.0.clone())?;
        Self::of(connection, true, input)
    }

    /// A configured connection.
    fn of(mut connection: Connection, has_certificate: bool, input: &[u8]) -> Result<Self, Error> {
        connection.set_blinding(Blinding::SelfService)?;
        connection.prefer_throughput()?;
        let wires = Box::new(Wires {
            input: input.to_vec(),
            start: 0,
            end: input.len(),
            is_ended: false,
            output: Vec::new(),
            is_encrypted: false,
        });
        let mut library = Self {
            connection,
            gathered: Vec::new(),
            has_certificate,
            wires: NonNull::from(Box::leak(wires)),
        };
        let context = library.wires.as_ptr().cast::<c_void>();
        library.connection.set_receive_callback(Some(receive))?;
        library.connection.set_send_callback(Some(send))?;
        // SAFETY: the connection calls back only within its methods, and no method is called once `drop` has freed the
        // buffers.
        unsafe {
            library.connection.set_receive_context(context)?;
            library.connection.set_send_context(context)?;
        }
        Ok(library)
    }

    fn wires(&self) -> &Wires {
        // SAFETY: the library uses the buffers only while `connection` is borrowed mutably.
        unsafe { self.wires.as_ref() }
    }

    fn wires_mut(&mut self) -> &mut Wires {
        // SAFETY: as in `wires`, and `self` is borrowed mutably.
        unsafe { self.wires.as_mut() }
    }

    /// Room for bytes of the peer, once all before are taken; else none.
    pub(super) fn input_room(&mut self) -> &mut [u8] {
        let is_complete = self.connection.handshake_complete();
        let wires = self.wires_mut();
        if wires.start < wires.end {
            return &mut [];
        }
        (wires.start, wires.end) = (0, 0);
        wires.input.resize(if is_complete { INPUT_BYTES } else { HANDSHAKE_INPUT_BYTES }, 0);
        &mut wires.input
    }

    /// This number of bytes was received.
    pub(super) fn on_input(&mut self, count: usize) {
        let wires = self.wires_mut();
        wires.end = wires.end.saturating_add(count).min(wires.input.len());
    }

    /// The peer sends no more.
    pub(super) fn on_input_end(&mut self) {
        self.wires_mut().is_ended = true;
    }

    /// Whether there is input or plaintext that was not taken.
    pub(super) fn has_input(&self) -> bool {
        let wires = self.wires();
        wires.start < wires.end || self.connection.peek_len() > 0
    }

    /// The bytes to send.
    pub(super) fn output(&self) -> &[u8] {
        &self.wires().output
    }

    /// The bytes to send, which leave.
    pub(super) fn output_mut(&mut self) -> &mut Vec<u8> {
        &mut self.wires_mut().output
    }

    /// Continues the handshake. Ready once it is complete.
    pub(super) fn negotiate(&mut self) -> Result<CallOutcome<()>, Error> {
        let negotiated = outcome(self.connection.poll_negotiate().map_ok(|_| ()));
        if let Ok(CallOutcome::Waits) = negotiated {
            // The peer may leave it at that, and its ClientHello may be another host's.
            self.shrink();
        }
        negotiated
    }

    /// The records after the handshake; `None` with TLS 1.2, or with a cipher suite of certificates only, which the
    /// library keeps. Otherwise it seals and opens nothing any more: it closes the connection and wipes its keys.
    ///
    /// # Errors
    /// The library has bytes of a record, or hands over a layout that is not known here.
    pub(super) fn take_records(&mut self, is_host: bool) -> Result<Option<Records>, ErrorClass> {
        let Some(cipher) = self.cipher() else { return Ok(None) };
        let serialized = self.serialize().map_err(|error| class(&error))?;
        let traffic = handed_over::read(cipher, &serialized).ok_or(ErrorClass::Failed(
            "the TLS library hands its keys over in an unknown layout",
            Alert::INTERNAL_ERROR,
        ))?;
        let wires = self.wires_mut();
        let output = core::mem::take(&mut wires.output);
        let input = wires.input.get(wires.start..wires.end).unwrap_or_default();
        Ok(Some(Records::new(is_host, cipher, traffic, input, output)))
    }

    /// The state of the records, once the handshake is complete. The library wipes its keys.
    fn serialize(&mut self) -> Result<Zeroizing<Vec<u8>>, Error> {
        let mut serialized = Zeroizing::new(vec![0; self.connection.serialization_length()?]);
        self.connection.serialize(&mut serialized)?;
        Ok(serialized)
    }

    /// Decrypts into `into`. 0 bytes: the peer has closed in good order.
    pub(super) fn read(&mut self, into: &mut [u8]) -> Result<CallOutcome<usize>, Error> {
        outcome(self.connection.poll_recv(into))
    }

    /// Encrypts the bytes that `append` puts into the vector, as [`Records::write`].
    pub(super) fn write_gathered(
        &mut self,
        mut append: impl FnMut(&mut Vec<u8>, usize),
    ) -> Result<usize, Error> {
        let mut count = 0_usize;
        loop {
            let mut gathered = core::mem::take(&mut self.gathered);
            gathered.clear();
            append(&mut gathered, RECORD_BYTES);
            let written = self.write(&gathered);
            let taken = gathered.len();
            self.gathered = gathered;
            written?;
            if taken == 0 {
                return Ok(count);
            }
            count = count.saturating_add(taken);
        }
    }

    /// Encrypts all of it.
    fn write(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            match self.connection.poll_send(bytes) {
                Poll::Ready(count) => bytes = bytes.get(count?..).unwrap_or_default(),
                // The output takes everything, so that this does not happen; without an end it would never return.
                Poll::Pending => return Err(Error::application("the TLS library does not send".into())),
            }
        }
        Ok(())
    }

    /// Sends the alert of an error that ends the session.
    pub(super) fn fail(&mut self, alert: Alert) {
        if self.wires().is_encrypted || self.connection.handshake_complete() {
            // One that the library has, or close_notify: it takes no other.
            self.close();
        } else {
            self.wires_mut().output.extend_from_slice(&alert.record());
        }
    }

    /// Sends close_notify.
    pub(super) fn close(&mut self) {
        // A failure is not reported: the session has ended.
        let _ = self.connection.poll_shutdown_send();
    }

    /// Changes the key before the next record.
    pub(super) fn update_key(&mut self) -> Result<(), Error> {
        self.connection.request_key_update(PeerKeyUpdate::KeyUpdateNotRequested).map(|_| ())
    }

    /// The alert that the peer has sent.
    pub(super) fn alert(&self) -> Option<u8> {
        self.connection.alert()
    }

    /// The identity whose key both ends use, once the handshake is complete.
    pub(super) fn identity(&self) -> Result<Vec<u8>, Error> {
        let mut identity = vec![0; self.connection.negotiated_psk_identity_length()?];
        self.connection.negotiated_psk_identity(&mut identity)?;
        Ok(identity)
    }

    /// The cipher suite.
    pub(super) fn cipher(&self) -> Option<Cipher> {
        match self.connection.cipher_suite() {
            Ok("TLS_AES_128_GCM_SHA256") => Some(Cipher::Aes128GcmSha256),
            Ok("TLS_AES_256_GCM_SHA384") => Some(Cipher::Aes256GcmSha384),
            _ => None,
        }
    }

    /// Whether the target answers with a certificate.
    pub(super) fn has_certificate(&self) -> bool {
        self.has_certificate
    }

    /// The version of TLS and the cipher suite as the standards name them.
    pub(super) fn version_and_suite(&self) -> (&'static str, String) {
        let version = match self.connection.actual_protocol_version() {
            Ok(Version::TLS13) => "TLS 1.3",
            Ok(Version::TLS12) => "TLS 1.2",
            _ => "TLS",
        };
        (version, self.connection.cipher_suite().unwrap_or_default().to_owned())
    }

    /// The verified certificate that the client has shown, in DER.
    pub(super) fn client_certificate(&self) -> Option<Vec<u8>> {
        if !self.connection.client_cert_used() {
            return None;
        }
        let chain = self.connection.peer_cert_chain().ok()?;
        let first = chain.iter().next()?.ok()?;
        first.der().ok().map(<[u8]>::to_vec)
    }

    /// Frees the buffers that are empty.
    pub(super) fn shrink(&mut self) {
        // It refuses while a record is incomplete.
        let _ = self.connection.release_buffers();
        self.gathered = Vec::new();
        let wires = self.wires_mut();
        if wires.start == wires.end {
            (wires.start, wires.end) = (0, 0);
            wires.input = Vec::new();
        }
        if wires.output.is_empty() {
            wires.output = Vec::new();
        }
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: from a box, and not used after this: the connection calls back only within its methods.
        drop(unsafe { Box::from_raw(self.wires.as_ptr()) });
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.connection.fmt(f)
    }
}

fn outcome<T>(poll: Poll<Result<T, Error>>) -> Result<CallOutcome<T>, Error> {
    match poll {
        Poll::Ready(result) => result.map(CallOutcome::Ready),
        Poll::Pending => Ok(CallOutcome::Waits),
    }
}

/// The alert for an error, which the library identifies only by name.
fn alert_for(error: &Error) -> Alert {
    match (error.kind(), error.name()) {
        (_, "S2N_ERR_BAD_PSK_BINDER" | "S2N_ERR_BAD_FINISHED") => Alert::DECRYPT_ERROR,
        (_, "S2N_ERR_BAD_MESSAGE") => Alert::UNEXPECTED_MESSAGE,
        (_, "S2N_ERR_PROTOCOL_VERSION_UNSUPPORTED") => Alert::PROTOCOL_VERSION,
        (_, "S2N_ERR_MISSING_CLIENT_CERT") => Alert::CERTIFICATE_REQUIRED,
        (_, "S2N_ERR_CERT_UNTRUSTED") => Alert::UNKNOWN_CA,
        (_, "S2N_ERR_CERT_EXPIRED" | "S2N_ERR_CERT_NOT_YET_VALID") => Alert::CERTIFICATE_EXPIRED,
        (ErrorType::ProtocolError, _) => Alert::HANDSHAKE_FAILURE,
        _ => Alert::INTERNAL_ERROR,
    }
}

/// The meaning of an error for a session.
#[derive(Clone, Copy)]
pub(super) enum ErrorClass {
    /// The peer has sent an alert.
    Alert,
    /// The peer has closed the connection without one.
    Closed,
    /// The peer, or the library, has failed: in the library's words; and the alert for it.
    Failed(&'static str, Alert),
}

/// Classifies an error.
pub(super) fn class(error: &Error) -> ErrorClass {
    match error.kind() {
        ErrorType::Alert => ErrorClass::Alert,
        ErrorType::ConnectionClosed => ErrorClass::Closed,
        _ => ErrorClass::Failed(error.message(), alert_for(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::HashFunction;
    use crate::secret_bytes::SecretBytes;
    use crate::tls::Read;

    /// Moves the output of one end to the other.
    fn carry(from: &mut Library, to: &mut Library) -> usize {
        let bytes = core::mem::take(from.output_mut());
        let count = bytes.len();
        give(to, &bytes);
        count
    }

    /// The earlier input must have been taken.
    fn give(to: &mut Library, bytes: &[u8]) {
        if !bytes.is_empty() {
            to.input_room()[..bytes.len()].copy_from_slice(bytes);
            to.on_input(bytes.len());
        }
    }

    /// A host and a target whose handshake is complete.
    fn pair(hash: HashFunction) -> [Library; 2] {
        let key = SecretBytes::from(vec![7; hash.digest_bytes()]);
        let keys = [TlsPsk { identity: "name".to_owned(), key }];
        let [mut host, mut target] = [true, false].map(|is_host| Library::new(is_host, &keys, &[]).unwrap());
        loop {
            let is_ready = |library: &mut Library| matches!(library.negotiate(), Ok(CallOutcome::Ready(())));
            let ready = [is_ready(&mut host), is_ready(&mut target)];
            if carry(&mut host, &mut target) + carry(&mut target, &mut host) == 0 {
                assert_eq!(ready, [true, true]);
                return [host, target];
            }
        }
    }

    fn write(library: &mut Library, text: &[u8]) {
        let mut left = Some(text);
        let count = library.write_gathered(|into, _| into.extend_from_slice(left.take().unwrap_or_default()));
        assert_eq!(count.unwrap(), text.len());
    }

    fn read(library: &mut Library) -> Option<Vec<u8>> {
        let mut into = [0; 100];
        match library.read(&mut into) {
            Ok(CallOutcome::Ready(count)) => Some(into[..count].to_vec()),
            Ok(CallOutcome::Waits) => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn exchange(from: &mut Library, to: &mut Library) {
        write(from, b"data");
        carry(from, to);
        assert_eq!(read(to).as_deref(), Some(&b"data"[..]));
    }

    /// An update of the library that changes the layout, or seals records under the keys that it hands over, shows here.
    #[test]
    fn a_connection_is_serialized_in_the_known_layout() {
        for (hash, suite) in [(HashFunction::Sha256, 1), (HashFunction::Sha384, 2)] {
            let [mut host, mut target] = pair(hash);
            // Two records of the host, one of the target.
            exchange(&mut host, &mut target);
            exchange(&mut target, &mut host);
            exchange(&mut host, &mut target);
            let secret_bytes = hash.digest_bytes();
            let [of_host, of_target] = [&mut host, &mut target].map(|end| end.serialize().unwrap());
            assert_eq!(of_host.len(), 30 + 3 * secret_bytes);
            for serialized in [&of_host, &of_target] {
                let counts = [0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1];
                assert_eq!(
                    serialized[..28],
                    [&[0, 0, 0, 0, 0, 0, 0, 1, 3, 4, 0x13, suite][..], &counts].concat()
                );
            }
            let secrets = 30..30 + 2 * secret_bytes;
            assert_eq!(of_host[secrets.clone()], of_target[secrets.clone()]);
            let (host_secret, target_secret) = of_host[secrets].split_at(secret_bytes);
            assert_ne!(host_secret, target_secret);
            // It seals nothing any more.
            let mut left = Some(1);
            assert!(host.write_gathered(|into, _| into.extend(left.take())).is_err());
            assert!(host.serialize().is_err());
        }
    }

    #[test]
    fn nothing_is_handed_over_while_a_part_of_a_record_is_buffered() {
        let [mut host, mut target] = pair(HashFunction::Sha256);
        write(&mut host, b"data");
        let record = core::mem::take(host.output_mut());
        for part in 1..record.len() {
            give(&mut target, &record[part - 1..part]);
            assert_eq!(read(&mut target), None);
            assert!(target.take_records(false).is_err(), "{part} of {} bytes", record.len());
        }
        give(&mut target, &record[record.len() - 1..]);
        assert_eq!(read(&mut target).as_deref(), Some(&b"data"[..]));
        assert!(matches!(target.take_records(false), Ok(Some(_))));
    }

    /// The library is the judge of nonces and keys: it opens what our records seal, whatever it has sealed before, and
    /// across the limit of a key; and ours open what it seals.
    #[test]
    fn records_go_on_where_the_library_ends_and_cross_the_limit_of_a_key() {
        for hash in [HashFunction::Sha256, HashFunction::Sha384] {
            let [mut host, mut target] = pair(hash);
            write(&mut target, b"of the library");
            carry(&mut target, &mut host);
            assert_eq!(read(&mut host).as_deref(), Some(&b"of the library"[..]));
            let mut records = target.take_records(false).ok().flatten().expect("records");
            records.key_records_max = 4;
            for number in 0..20_u8 {
                let mut left = Some(number);
                assert_eq!(records.write(|into, _| into.extend(left.take())), 1);
                give(&mut host, records.output());
                records.on_sent(records.output().len());
                assert_eq!(read(&mut host), Some(vec![number]));
                // A KeyUpdate behind it.
                assert_eq!(read(&mut host), None);
                if number % 6 == 5 {
                    host.update_key().unwrap();
                }
                write(&mut host, &[number]);
                let bytes = core::mem::take(host.output_mut());
                records.input_room()[..bytes.len()].copy_from_slice(&bytes);
                records.on_input(bytes.len());
                let mut into = [0; 100];
                assert_eq!(records.read(&mut into), Ok(Read::Bytes(1)));
                assert_eq!(into[0], number);
            }
        }
    }
}
