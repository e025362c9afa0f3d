//! TLS of both roles with pre-shared keys, and of a target with a certificate: sessions without sockets. wire §22.6
//!
//! ```text
//! bytes of the peer ─▶ Session ─▶ plaintext        Stream: a Session that reads and writes a socket by itself,
//! bytes to send     ◀─    │    ◀─ plaintext                and looks like a socket from the other side
//!                         └─▶ identity, cipher suite, failure
//! ```
//!
//! The handshake is s2n-tls's (`tls/library.rs`), and the records are ours (`tls/records.rs`); which keys there are, and which of them a ClientHello
//! may use, is decided here. docs/design/tls.md

mod alert;
mod blocking;
mod caller;
mod certificate_texts;
mod client_hello;
mod generated;
mod handed_over;
mod identity;
mod keyring;
mod library;
mod post_handshake;
mod read;
mod record_error;
mod record_key;
mod records;
mod server_certificate;
mod session;
mod stream;
mod x509;

pub use alert::Alert;
pub use blocking::BlockingStream;
pub use caller::{CallerName, NotACallerName};
pub use certificate_texts::{CertificateText, CertificateTexts, ClientCertificates, UnknownDemand};
pub use generated::{GeneratedKeys, KeyLease, LIFETIME_NS as GENERATED_KEY_LIFETIME_NS};
pub use identity::PskIdentity;
pub use keyring::{Found, HostKeys, IdentityOffer, Keyring, KnownKey};
pub use read::Read;
pub use server_certificate::{CertificateError, CertificateProblem, ServerCertificate};
pub use session::{Established, Failure, Session, WithCertificate, prepare};
pub use stream::{ByteSocket, Policy, Stream, UnknownPolicy};
pub use x509::{CertificateFields, UtcTime};
