//! TLS 1.3 with pre-shared keys, of both roles: sessions without sockets. wire §22.6
//!
//! ```text
//! bytes of the peer ─▶ Session ─▶ plaintext        Stream: a Session that reads and writes a socket by itself,
//! bytes to send     ◀─    │    ◀─ plaintext                and looks like a socket from the other side
//!                         └─▶ identity, cipher suite, failure
//! ```
//!
//! The handshake and the records are s2n-tls's (`tls/library.rs`); which keys there are, and which of them a ClientHello
//! may use, is decided here. docs/design/tls.md

mod alert;
mod client_hello;
mod generated;
mod identity;
mod keyring;
mod library;
mod session;
mod stream;

pub use alert::Alert;
pub use generated::{GeneratedKeys, KeyLease, LIFETIME_NS as GENERATED_KEY_LIFETIME_NS};
pub use identity::PskIdentity;
pub use keyring::{Found, HostKeys, Keyring, KnownKey};
pub use session::{Established, Failure, Read, Session, prepare};
pub use stream::{ByteSocket, Policy, Stream, UnknownPolicy};
