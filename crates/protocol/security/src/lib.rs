//! Who the peer is: DH-HMAC-CHAP in-band authentication of both roles, the pre-shared keys and
//! certificates of TLS, and users with passwords.
//!
//! No sockets, clocks, threads or random numbers: the caller passes messages and randomness in and carries messages
//! out. A modular exponentiation takes milliseconds, so the state machines never compute one: they give it out as an
//! [`Exponentiation`](exponentiation::Exponentiation), which runs on another thread. docs/security.md
//!
//! Secrets are wiped when dropped and never appear in `Debug`.
//!
//! TLS is the feature `tls`, on by default: without it no C is compiled. Unsafe code is in `tls`'s binding of its library only.
#![deny(unsafe_code)]
// Input of a peer must not cause a panic: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]

mod interchange;

pub mod access_token;
pub mod controller;
pub mod exponentiation;
pub mod fresh;
pub mod group;
pub mod hash;
pub mod host;
pub mod message;
pub mod names;
pub mod psk;
pub mod secret;
pub mod secret_bytes;
pub mod secure_channel;
#[cfg(feature = "tls")]
pub mod tls;
pub mod tls_key;
mod transcript;
pub mod users;
