//! A ClientHello of a host without keys, and how a target may refuse it.

use std::io::{ErrorKind, Read};
use std::time::{Duration, Instant};

use peer::finding::{About, Check, Finding, differs, holds};
use peer::link::{Link, note_left_open, time_to_close};
use peer::raw_host::RawHost;
use wire::pdu::{PduType, TERM_REQ_BYTES};

/// TLS record types.
pub(crate) const CHANGE_CIPHER_SPEC: u8 = 20;
pub(crate) const ALERT: u8 = 21;
pub(crate) const HANDSHAKE: u8 = 22;
pub(crate) const APPLICATION_DATA: u8 = 23;

/// Maximum length of a record.
const RECORD_BYTES_MAX: usize = 16_384;

/// How a port refused a ClientHello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// TLS: with an alert.
    Alert,
    /// NVMe/TCP: with a TermReq.
    TermReq,
    /// Only by closing.
    Closed,
}

/// A record of these bytes, not encrypted.
pub(crate) fn record(kind: u8, body: &[u8]) -> Vec<u8> {
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
pub(crate) struct Hello {
    pub(crate) versions: Vec<u16>,
    /// PSK key exchange mode, 0: without, 1: with (EC)DHE. `None`: certificates only.
    pub(crate) key_modes: Option<Vec<u8>>,
    pub(crate) identities: Vec<Vec<u8>>,
    pub(crate) binder_bytes: usize,
    pub(crate) has_early_data: bool,
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
    pub(crate) fn message(&self) -> Vec<u8> {
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

    pub(crate) fn bytes(&self) -> Vec<u8> {
        records(&self.message())
    }
}

/// Everything received until the end of the connection, which a target may leave to us after a TermReq. Closes our side
/// once bytes have come.
pub(crate) fn answer(link: &mut Link, patience: Duration) -> Check<Vec<u8>> {
    let start = Instant::now();
    let mut bytes = Vec::new();
    let mut answered = None;
    loop {
        let mut part = [0; 4096];
        let _ = link.stream().set_read_timeout(Some(Duration::from_millis(100)));
        match { link.stream() }.read(&mut part) {
            Ok(0) => return Ok(bytes),
            Ok(count) => {
                bytes.extend_from_slice(&part[..count]);
                holds(bytes.len() < 64 << 10, "an answer of 64 KiB to a hello")?;
                link.finish();
                answered = Some(Instant::now());
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            // A reset counts as an end.
            Err(_) => return Ok(bytes),
        }
        if is_term_req(&bytes) && answered.is_some_and(|at| at.elapsed() > time_to_close()) {
            note_left_open();
            return Ok(bytes);
        }
        if start.elapsed() > patience {
            return Err(Finding::Hangs("the connection stays open".into()));
        }
    }
}

/// Whether these bytes are a TermReq, and nothing more.
fn is_term_req(bytes: &[u8]) -> bool {
    let length = bytes.get(4..8).map(|plen| u32::from_le_bytes(plen.try_into().expect("four bytes")));
    bytes.first() == Some(&(PduType::C2hTermReq as u8)) && length == u32::try_from(bytes.len()).ok()
}

/// Checks that the answer is a complete refusal that contains no other data.
pub(crate) fn refusal(bytes: &[u8], sent: &[u8]) -> Check<Refusal> {
    let Some(first) = bytes.first() else { return Ok(Refusal::Closed) };
    if *first == (PduType::C2hTermReq as u8) {
        let Some((header, copy)) = bytes.split_first_chunk::<TERM_REQ_BYTES>() else {
            return differs("a TermReq without all of its header");
        };
        let fes = u16::from_le_bytes([header[8], header[9]]);
        let fei = u32::from_le_bytes([header[10], header[11], header[12], header[13]]);
        let what = format!("a TermReq ({fes:#04x}, {fei:#x})");
        holds(is_term_req(bytes), format!("{what} of another length than is sent"))?;
        holds([1, 2].contains(&fes), &what)?;
        holds(sent.starts_with(copy), format!("{what} with other bytes than were sent"))?;
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
pub(crate) fn refused(host: &RawHost, what: &str, bytes: &[u8]) -> Check<Refusal> {
    let mut link = host.tcp()?;
    link.send(bytes).about(what)?;
    let answer = answer(&mut link, host.patience).about(what)?;
    refusal(&answer, bytes).about(what)
}

/// [`refused`] with the end of the stream after the bytes, where lengths announce more.
pub(crate) fn refused_at_end(host: &RawHost, what: &str, bytes: &[u8]) -> Check<Refusal> {
    let mut link = host.tcp()?;
    link.send(bytes)?;
    link.finish();
    let answer = answer(&mut link, host.patience).about(what)?;
    refusal(&answer, bytes).about(what)
}

/// Whether the port speaks TLS: it refuses a ClientHello without a key with an alert.
pub(crate) fn is_refused_by_tls(host: &RawHost) -> Check<bool> {
    Ok(refused(host, "a hello", &Hello::default().bytes())? == Refusal::Alert)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use peer::trial;
    use wire::pdu::{FatalErrorStatus, TermReq};
    use zerocopy::IntoBytes;

    use super::*;

    /// As a port of SPDK without TLS does.
    #[test]
    fn a_port_in_cleartext_may_refuse_a_hello_and_leave_it_to_us_to_close() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let target = std::thread::spawn(move || {
            let mut streams = Vec::new();
            for _ in 0..3 {
                let (mut stream, _) = listener.accept().expect("a connection");
                let mut header = [0; 8];
                stream.read_exact(&mut header).expect("a header");
                let answer = TermReq::from_controller(FatalErrorStatus::INVALID_HEADER_FIELD, 0, 8);
                stream.write_all(&[answer.as_bytes(), &header].concat()).expect("room");
                streams.push(stream);
            }
            streams
        });
        trial::begin(Duration::from_secs(30));
        for _ in 0..3 {
            let hello = Hello::default().bytes();
            let mut link = Link::connect(address, Duration::from_secs(10)).expect("it listens");
            link.send(&hello).expect("it receives");
            let said = answer(&mut link, Duration::from_secs(10)).expect("an answer, if no end");
            assert_eq!(refusal(&said, &hello), Ok(Refusal::TermReq));
        }
        assert_eq!(trial::end().len(), 1, "it is noted");
        drop(target.join());
    }
}
