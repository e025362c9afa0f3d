//! Section 13: TLS, as far as a host without keys can test it. A port without TLS must close each of these connections
//! as soon as it sees that they are not NVMe; one with TLS must refuse the handshake.

use std::io::{ErrorKind, Read};
use std::time::{Duration, Instant};

use peer::finding::{About, Check, Finding, differs, holds, skipped};
use peer::link::Link;
use wire::pdu::{DataAlignment, Digests, IcReq, PduType, TERM_REQ_BYTES};
use zerocopy::IntoBytes;

use crate::row::{row, slow_row};
use crate::rows::TargetRow;
use crate::target::Target;

pub(super) const ROWS: &[TargetRow] = &[
    row("T1", other_protocol),
    row("T2", unfit_hellos),
    row("T3", many_identities),
    slow_row("T4", dribble),
    row("T5", odd_records),
    row("T6", flipped_bits),
    row("T7", cut_hellos),
    row("T8", needs_session),
    row("T9", needs_session),
];

/// TLS record types.
const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
pub(super) const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;

/// Maximum length of a record.
const RECORD_BYTES_MAX: usize = 16_384;

/// How a port refused a ClientHello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// TLS: with an alert.
    Alert,
    /// NVMe/TCP: with a TermReq.
    TermReq,
    /// Only by closing.
    Closed,
}

fn record(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).expect("short");
    [&[kind, 3, 1][..], &length.to_be_bytes(), body].concat()
}

/// A ClientHello in as many records as it needs.
fn records(message: &[u8]) -> Vec<u8> {
    message.chunks(RECORD_BYTES_MAX).flat_map(|part| record(HANDSHAKE, part)).collect()
}

fn with_length_16(bytes: &[u8]) -> Vec<u8> {
    [&u16::try_from(bytes.len()).expect("short").to_be_bytes()[..], bytes].concat()
}

/// A ClientHello of TLS 1.3, as hosts with a key send it.
#[derive(Clone, Debug)]
struct Hello {
    versions: Vec<u16>,
    /// PSK key exchange mode, 0: without, 1: with (EC)DHE. `None`: certificates only.
    key_modes: Option<Vec<u8>>,
    identities: Vec<Vec<u8>>,
    binder_bytes: usize,
    has_early_data: bool,
}

impl Default for Hello {
    fn default() -> Self {
        let identity =
            b"NVMe1R01 nqn.2014-08.org.nvmexpress:uuid:probe nqn.2014-08.org.nvmexpress:uuid:none".to_vec();
        Self {
            versions: vec![0x0304],
            key_modes: Some(vec![1]),
            identities: vec![identity],
            binder_bytes: 32,
            has_early_data: false,
        }
    }
}

impl Hello {
    fn message(&self) -> Vec<u8> {
        let mut extensions = Vec::new();
        let mut extension = |kind: u16, body: &[u8]| {
            extensions.extend_from_slice(&kind.to_be_bytes());
            extensions.extend_from_slice(&with_length_16(body));
        };
        let versions: Vec<u8> = self.versions.iter().flat_map(|version| version.to_be_bytes()).collect();
        if !versions.is_empty() {
            extension(43, &[&[u8::try_from(versions.len()).expect("few")][..], &versions].concat());
        }
        extension(10, &with_length_16(&[0, 29, 0, 23]));
        extension(13, &with_length_16(&[4, 3, 8, 4, 4, 1]));
        // An x25519 key share: its base point serves as any other.
        let share = [&[0, 29][..], &with_length_16(&[&[9][..], &[0; 31]].concat())].concat();
        extension(51, &with_length_16(&share));
        if self.has_early_data {
            extension(42, &[]);
        }
        if let Some(modes) = &self.key_modes {
            extension(45, &[&[u8::try_from(modes.len()).expect("few")][..], modes].concat());
            let identities: Vec<u8> = self
                .identities
                .iter()
                .flat_map(|identity| [&with_length_16(identity)[..], &[0; 4]].concat())
                .collect();
            let binder =
                [&[u8::try_from(self.binder_bytes).expect("a hash")][..], &vec![0xB1; self.binder_bytes]]
                    .concat();
            let binders = binder.repeat(self.identities.len());
            let both = [with_length_16(&identities), with_length_16(&binders)].concat();
            // The last extension, as it must be.
            if let Ok(length) = u16::try_from(both.len()) {
                extensions.extend_from_slice(&41_u16.to_be_bytes());
                extensions.extend_from_slice(&length.to_be_bytes());
            } else {
                extensions.extend_from_slice(&[0, 41, 0xFF, 0xFF]);
            }
            extensions.extend_from_slice(&both);
        }
        let mut body = vec![3, 3];
        body.extend_from_slice(&[0x52; 32]);
        body.extend_from_slice(&[0, 0, 4, 0x13, 1, 0x13, 2, 1, 0]);
        body.extend_from_slice(&u16::try_from(extensions.len()).unwrap_or(u16::MAX).to_be_bytes());
        body.extend_from_slice(&extensions);
        let length = u32::try_from(body.len()).expect("short");
        [&[1][..], &length.to_be_bytes()[1..], &body].concat()
    }

    fn bytes(&self) -> Vec<u8> {
        records(&self.message())
    }
}

/// Everything received until the end of the connection. Closes our side once bytes have come.
fn answer(link: &mut Link, patience: Duration) -> Check<Vec<u8>> {
    let start = Instant::now();
    let mut bytes = Vec::new();
    loop {
        let mut part = [0; 4096];
        let _ = link.stream().set_read_timeout(Some(Duration::from_millis(100)));
        match { link.stream() }.read(&mut part) {
            Ok(0) => return Ok(bytes),
            Ok(count) => {
                bytes.extend_from_slice(&part[..count]);
                holds(bytes.len() < 64 << 10, "an answer of 64 KiB to a hello")?;
                link.finish();
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            // A reset counts as an end.
            Err(_) => return Ok(bytes),
        }
        if start.elapsed() > patience {
            return Err(Finding::Hangs("the connection stays open".into()));
        }
    }
}

/// Checks that the answer is a complete refusal that contains no other data.
fn refusal(bytes: &[u8], sent: &[u8]) -> Check<Refusal> {
    let Some(first) = bytes.first() else { return Ok(Refusal::Closed) };
    if *first == (PduType::C2hTermReq as u8) {
        let length = bytes.get(4..8).map(|plen| u32::from_le_bytes(plen.try_into().expect("four bytes")));
        holds(length == u32::try_from(bytes.len()).ok(), "a TermReq of another length than is sent")?;
        holds(bytes.len() >= TERM_REQ_BYTES, "a short TermReq")?;
        let fes = u16::from_le_bytes([bytes[8], bytes[9]]);
        holds([1, 2].contains(&fes), format!("a TermReq {fes:#04x}"))?;
        let copy = &bytes[TERM_REQ_BYTES..];
        holds(sent.starts_with(copy), "its TermReq has other bytes than were sent")?;
        return Ok(Refusal::TermReq);
    }
    if bytes.len() == 7 && *first == ALERT && bytes[3..5] == [0, 2] {
        return Ok(Refusal::Alert);
    }
    match *first {
        HANDSHAKE | CHANGE_CIPHER_SPEC | APPLICATION_DATA => differs("it goes on with the handshake"),
        _ => differs(format!("{} bytes that are neither an alert nor a TermReq", bytes.len())),
    }
}

/// Sends this on a new connection and expects a refusal.
fn refused(peer: &Target, what: &str, bytes: &[u8]) -> Check<Refusal> {
    let mut link = peer.host().tcp()?;
    link.send(bytes).about(what)?;
    let answer = answer(&mut link, peer.settings.host.patience).about(what)?;
    refusal(&answer, bytes).about(what)
}

/// [`refused`] with the end of the stream after the bytes, where lengths announce more.
fn refused_at_end(peer: &Target, what: &str, bytes: &[u8]) -> Check<Refusal> {
    let mut link = peer.host().tcp()?;
    link.send(bytes)?;
    link.finish();
    let answer = answer(&mut link, peer.settings.host.patience).about(what)?;
    refusal(&answer, bytes).about(what)
}

/// Afterwards hosts can still connect.
pub(super) fn others_get_in(peer: &Target) -> Check {
    peer.host().link(Digests::empty()).about("a host afterwards").map(drop)
}

fn other_protocol(peer: &Target) -> Check {
    if refused(peer, "a hello", &Hello::default().bytes())? == Refusal::Alert {
        let mut link = peer.host().tcp()?;
        link.send(IcReq::new(DataAlignment::NONE, Digests::empty(), 1).as_bytes())?;
        let said = answer(&mut link, peer.settings.host.patience).about("ICReq at a port with TLS")?;
        let is_ic_resp = said.first() == Some(&(PduType::IcResp as u8));
        // The rows with a session need a listener that takes both.
        let takes_both = peer.settings.tls.is_some();
        return holds(takes_both || !is_ic_resp, "a port with TLS also does without");
    }
    others_get_in(peer)
}

fn unfit_hellos(peer: &Target) -> Check {
    let right = Hello::default;
    for (what, hello) in [
        ("an unknown identity", right()),
        ("TLS 1.2", Hello { versions: vec![0x0303], ..right() }),
        ("no version", Hello { versions: Vec::new(), ..right() }),
        ("versions that are none", Hello { versions: vec![0x0305, 0x7F7F, 0], ..right() }),
        ("certificates only", Hello { key_modes: None, ..right() }),
        ("the key alone", Hello { key_modes: Some(vec![0]), ..right() }),
        ("key modes that are none", Hello { key_modes: Some(vec![7, 255]), ..right() }),
        ("no identity", Hello { identities: Vec::new(), ..right() }),
        ("an empty identity", Hello { identities: vec![Vec::new()], ..right() }),
    ] {
        refused(peer, what, &hello.bytes())?;
    }
    others_get_in(peer)
}

fn many_identities(peer: &Target) -> Check {
    let right = Hello::default;
    let short = |count: usize| vec![b"NVMe1R01 a b".to_vec(); count];
    for (what, hello) in [
        ("an identity of 60,000 bytes", Hello { identities: vec![vec![b'i'; 60_000]], ..right() }),
        ("1000 identities", Hello { identities: short(1000), ..right() }),
        ("a binder of 1 byte", Hello { binder_bytes: 1, ..right() }),
        ("no binder", Hello { binder_bytes: 0, ..right() }),
        ("a binder of 255 bytes", Hello { binder_bytes: 255, ..right() }),
    ] {
        refused(peer, what, &hello.bytes())?;
    }
    let whole = right().bytes();
    refused_at_end(peer, "a binder cut off", &whole[..whole.len() - 16])?;
    others_get_in(peer)
}

fn dribble(peer: &Target) -> Check {
    let bytes = Hello::default().bytes();
    let mut link = peer.host().tcp()?;
    let start = Instant::now();
    for (count, byte) in bytes.iter().enumerate().take(25) {
        link.send(std::slice::from_ref(byte))?;
        match answer(&mut link, Duration::from_millis(900)) {
            Ok(said) => return refusal(&said, &bytes[..=count]).map(drop),
            Err(Finding::Hangs(_)) => {}
            Err(finding) => return Err(finding),
        }
    }
    Err(Finding::Hangs(format!("a handshake is open after {} s", start.elapsed().as_secs())))
}

fn odd_records(peer: &Target) -> Check {
    let hello = Hello::default().message();
    let early = Hello { has_early_data: true, ..Hello::default() }.bytes();
    let empty = record(HANDSHAKE, &[]);
    let too_long = [&[HANDSHAKE, 3, 1, 0x41, 0x01][..], &vec![0; 0x4101]].concat();
    for (what, bytes) in [
        ("early data", [&early[..], &record(APPLICATION_DATA, &[0; 512]).repeat(32)].concat()),
        ("100,000 empty records", empty.repeat(100_000)),
        ("a record of 16,641 bytes", too_long),
        ("a record of a kind that is none", record(99, &hello)),
        ("data before the hello", record(APPLICATION_DATA, &[0; 512])),
        ("a change of cipher before the hello", record(CHANGE_CIPHER_SPEC, &[1]).repeat(1000)),
        // A single one is shorter than a PDU header, which a port without TLS waits for.
        ("alerts before the hello", record(ALERT, &[2, 0]).repeat(2)),
        ("records of a byte", hello.chunks(1).flat_map(|byte| record(HANDSHAKE, byte)).collect()),
    ] {
        // A target may keep waiting after empty records.
        match refused(peer, what, &bytes) {
            Err(Finding::Hangs(_)) if what.ends_with("empty records") => {}
            result => drop(result?),
        }
    }
    others_get_in(peer)
}

fn flipped_bits(peer: &Target) -> Check {
    let bytes = Hello::default().bytes();
    for at in 0..bytes.len() {
        let mut wrong = bytes.clone();
        wrong[at] ^= 1 << (at % 8);
        refused_at_end(peer, &format!("byte {at}"), &wrong)?;
    }
    others_get_in(peer)
}

fn cut_hellos(peer: &Target) -> Check {
    let bytes = Hello::default().bytes();
    for end in [1, 4, 5, 6, 9, 11, 43, 100, bytes.len() - 1] {
        refused_at_end(peer, &format!("the end after {end} bytes"), &bytes[..end])?;
        let mut link = peer.host().tcp()?;
        link.send(&bytes[..end])?;
        link.reset();
    }
    others_get_in(peer)
}

/// Whether the port speaks TLS: it refuses a ClientHello without a key with an alert.
pub(super) fn hello_is_refused_by_tls(peer: &Target) -> Check<bool> {
    Ok(refused(peer, "a hello", &Hello::default().bytes())? == Refusal::Alert)
}

fn needs_session(peer: &Target) -> Check {
    match refused(peer, "a hello", &Hello::default().bytes())? {
        Refusal::Alert => skipped("it takes a session, and that takes the port's key"),
        // Without TLS there is no key to exhaust, and nothing is sent.
        Refusal::TermReq | Refusal::Closed => Ok(()),
    }
}
