//! Section 15: the binary protocol, whose lengths may contradict each other.

use peer::finding::{About, Check, differs, holds};
use peer::memcached::Client;

use crate::rows::memcached::connect;
use crate::target::Target;

const HEADER_BYTES: usize = 24;
const NO_OPERATION: u8 = 0x0A;

/// Maximum length of a right response.
const BODY_BYTES_MAX: u32 = 1 << 20;

/// A request with these lengths, whether or not they match.
#[derive(Clone, Copy, Debug)]
struct Request<'a> {
    opcode: u8,
    key_bytes: u16,
    extra_bytes: u8,
    body_bytes: u32,
    body: &'a [u8],
}

impl<'a> Request<'a> {
    fn new(opcode: u8, body: &'a [u8]) -> Self {
        let body_bytes = u32::try_from(body.len()).expect("a short body");
        Self { opcode, key_bytes: 0, extra_bytes: 0, body_bytes, body }
    }

    fn bytes(&self, opaque: u32) -> Vec<u8> {
        let mut bytes = vec![0x80, self.opcode];
        bytes.extend_from_slice(&self.key_bytes.to_be_bytes());
        bytes.extend_from_slice(&[self.extra_bytes, 0, 0, 0]);
        bytes.extend_from_slice(&self.body_bytes.to_be_bytes());
        bytes.extend_from_slice(&opaque.to_be_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(self.body);
        bytes
    }
}

struct Response {
    opcode: u8,
    status: u16,
    opaque: u32,
}

/// Receives a response within its bounds; `None` if the target closes.
fn response(client: &mut Client) -> Check<Option<Response>> {
    let Some(header) = client.take(HEADER_BYTES)? else { return Ok(None) };
    let short = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let long = |at: usize| u32::from(short(at)) << 16 | u32::from(short(at + 2));
    holds(header[0] == 0x81, format!("a response with magic {:#04x}", header[0]))?;
    let body = long(8);
    holds(body <= BODY_BYTES_MAX, format!("a response of {body} bytes"))?;
    let lengths = u32::from(short(2)) + u32::from(header[4]);
    holds(lengths <= body, "a response whose lengths contradict each other")?;
    if client.take(body as usize)?.is_none() {
        return Ok(None);
    }
    Ok(Some(Response { opcode: header[1], status: short(6), opaque: long(12) }))
}

/// Sends a request and a harmless one after it: either the first is answered as `is_right` requires and then the
/// second, or the target closes.
fn ask(peer: &Target, request: &Request<'_>, is_right: impl Fn(u16) -> bool) -> Check {
    const OPAQUE: u32 = 0x0BAD_CAFE;
    let mut client = connect(peer)?;
    client.send(&request.bytes(1))?;
    let is_whole = request.body_bytes as usize == request.body.len();
    client.send(&Request::new(NO_OPERATION, &[]).bytes(OPAQUE))?;
    for _ in 0..1000 {
        match response(&mut client)? {
            None => return Ok(()),
            Some(Response { opaque: OPAQUE, opcode: NO_OPERATION, status: 0 }) => return Ok(()),
            Some(answer) => {
                holds(is_right(answer.status), format!("status {:#06x}", answer.status))?;
                if !is_whole && answer.status != 0 {
                    // The following bytes belong to its body.
                    return Ok(());
                }
            }
        }
    }
    differs("a thousand responses to one request")
}

pub(super) fn odd(peer: &Target) -> Check {
    let fails = |status: u16| status != 0;
    let body = [b'k'; 64];
    for opcode in [0x00, 0x01, 0x04, 0x05, 0x0C, 0x0E, 0x1C, 0x1D] {
        for (key_bytes, extra_bytes, body_bytes) in [
            (10, 0, 5_u32),
            (0, 20, 5),
            (200, 200, 64),
            (0xFFFF, 0xFF, 64),
            (0xFFFF, 0, 0),
            (0, 0xFF, 0),
            (1, 0, 0),
            (0, 0, 64),
            (0, 8, 64),
            (64, 0, u32::MAX),
            (64, 8, 1 << 31),
        ] {
            let request = Request {
                opcode,
                key_bytes,
                extra_bytes,
                body_bytes,
                body: &body[..body_bytes.min(64) as usize],
            };
            ask(peer, &request, fails).about(format!(
                "opcode {opcode:#04x}, key {key_bytes}, extras {extra_bytes}, body {body_bytes}"
            ))?;
        }
    }
    // Every opcode without a body and with a meaningless one, except opcodes that remove everything.
    for opcode in (0..=u8::MAX).filter(|opcode| ![0x08, 0x18].contains(opcode)) {
        for body in [&[][..], &body] {
            ask(peer, &Request::new(opcode, body), |_| true)
                .about(format!("opcode {opcode:#04x} with {} bytes", body.len()))?;
        }
    }
    // Many quiet requests at once: only the one after them is answered.
    let mut client = connect(peer)?;
    let key = b"probe-e5";
    let quiet = Request { key_bytes: 8, ..Request::new(0x09, key) }.bytes(7);
    let question = Request::new(NO_OPERATION, &[]).bytes(8);
    for _ in 0..20 {
        client.send(&quiet.repeat(5000))?;
    }
    client.send(&question)?;
    match response(&mut client)? {
        Some(answer) => holds(answer.opaque == 8 && answer.status == 0, "a quiet question is answered"),
        None => differs("closed after quiet questions"),
    }
}

pub(super) fn sasl(peer: &Target) -> Check {
    let secret = b"PLAIN\0user\0password";
    for (what, request) in [
        ("a mechanism's step without one", Request { key_bytes: 5, ..Request::new(0x22, secret) }),
        ("a step without anything", Request::new(0x22, &[])),
        ("a start without a mechanism", Request::new(0x21, &[])),
        ("a mechanism that is none", Request { key_bytes: 4, ..Request::new(0x21, b"NONE") }),
        ("a start", Request { key_bytes: 5, ..Request::new(0x21, secret) }),
        ("a start of 4 GiB", Request { key_bytes: 5, body_bytes: u32::MAX, ..Request::new(0x21, secret) }),
    ] {
        ask(peer, &request, |status| status != 0).about(what)?;
    }
    // The target may list SASL mechanisms.
    ask(peer, &Request::new(0x20, &[]), |_| true).about("the mechanisms")
}
