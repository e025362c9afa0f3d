//! Decoding of requests: text lines and binary packets.

pub(super) mod binary;
pub(super) mod decode;
pub(super) mod decoded;
