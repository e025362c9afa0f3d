//! Responses of the binary protocol.

use crate::command::Header;

const RESPONSE: u8 = 0x81;

pub(crate) const SUCCESS: u16 = 0;
pub(crate) const NOT_FOUND: u16 = 1;
pub(crate) const EXISTS: u16 = 2;
pub(crate) const TOO_LARGE: u16 = 3;
pub(crate) const INVALID: u16 = 4;
pub(crate) const NOT_STORED: u16 = 5;
pub(crate) const NOT_NUMERIC: u16 = 6;
pub(crate) const UNKNOWN: u16 = 0x81;
pub(crate) const NO_MEMORY: u16 = 0x82;
pub(crate) const INTERNAL_ERROR: u16 = 0x84;
pub(crate) const TEMPORARY_FAILURE: u16 = 0x86;

/// Appends a response.
#[expect(clippy::arithmetic_side_effects, reason = "lengths of slices in memory")]
pub(crate) fn respond(
    out: &mut Vec<u8>,
    header: Header,
    status: u16,
    extras: &[u8],
    key: &[u8],
    value: &[u8],
    cas: u64,
) {
    let body_bytes = extras.len() + key.len() + value.len();
    out.extend_from_slice(&[RESPONSE, header.opcode]);
    out.extend_from_slice(&(key.len() as u16).to_be_bytes());
    out.extend_from_slice(&[extras.len() as u8, 0]);
    out.extend_from_slice(&status.to_be_bytes());
    out.extend_from_slice(&(body_bytes as u32).to_be_bytes());
    out.extend_from_slice(&header.opaque.to_be_bytes());
    out.extend_from_slice(&cas.to_be_bytes());
    out.extend_from_slice(extras);
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

/// Appends an error response.
pub(crate) fn refuse(out: &mut Vec<u8>, header: Header, status: u16) {
    let text: &[u8] = match status {
        NOT_FOUND => b"Not found",
        EXISTS => b"Data exists for key.",
        TOO_LARGE => b"Too large.",
        INVALID => b"Invalid arguments",
        NOT_STORED => b"Not stored.",
        NOT_NUMERIC => b"Non-numeric server-side value for incr or decr",
        UNKNOWN => b"Unknown command",
        NO_MEMORY => b"Out of memory",
        INTERNAL_ERROR => b"Internal error",
        TEMPORARY_FAILURE => b"Temporary failure",
        _ => b"",
    };
    respond(out, header, status, &[], &[], text, 0);
}
