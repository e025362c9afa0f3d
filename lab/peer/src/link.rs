//! One connection to a target. It sends any bytes, and checks every received PDU down to its reserved bits.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use wire::cqe::Cqe;
use wire::digest::{DIGEST_BYTES, data_digest, header_digest};
use wire::pdu::{
    CapsuleResp, CommonHeader, DataAlignment, DataPdu, Digests, FatalErrorStatus, IC_BYTES, IcReq, IcResp,
    PduFlags, PduLayout, PduType, R2t, TERM_REQ_BYTES, TermReq,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::finding::{About, Check, Finding, differs, holds};
use crate::pdu::Form;
use crate::trial;

/// Longest PDU that is accepted, bytes.
const PLEN_MAX: u32 = 16 << 20;

/// The note of a target that leaves it to the host to close the connection after a TermReq, as it may for 30 s.
const LEFT_OPEN: &str = "the target leaves the connection open after its TermReq";

/// How long a target has to close the connection after its TermReq. The rest of a trial that has met one that does not
/// close waits for no other.
pub fn time_to_close() -> Duration {
    if trial::has_note(LEFT_OPEN) { Duration::from_millis(10) } else { Duration::from_secs(2) }
}

/// Notes that the connection stays open after a TermReq.
pub fn note_left_open() {
    trial::note(LEFT_OPEN.into());
}

/// A TCP connection to a target.
#[derive(Debug)]
pub struct Link {
    stream: TcpStream,
    /// Layout of PDUs to the target.
    pub form: Form,
    /// Layout of PDUs from the target.
    inbound: Form,
    /// MAXH2CDATA of the target, bytes.
    pub h2c_data_bytes_max: u32,
    /// Time limit of each answer.
    patience: Duration,
}

/// The part of a command's data that an R2T asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Command identifier.
    pub cid: u16,
    /// Transfer tag.
    pub ttag: u16,
    /// Offset within the command's data, bytes.
    pub offset: u32,
    /// Length, bytes.
    pub length: u32,
}

/// A PDU from the target, or the end of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Got {
    /// An ICResp.
    IcResp(Box<IcResp>),
    /// A completion.
    Completion(Cqe),
    /// A C2HData PDU.
    Data {
        /// Command identifier.
        cid: u16,
        /// Offset within the command's data, bytes.
        offset: u32,
        /// LAST and SUCCESS.
        flags: PduFlags,
        /// PDU data offset.
        pdo: u8,
        /// The data.
        data: Vec<u8>,
    },
    /// An R2T.
    R2t(Window),
    /// A C2HTermReq.
    TermReq {
        /// Fatal error status.
        fes: FatalErrorStatus,
        /// Fatal error information.
        fei: u32,
        /// Copy of the offending PDU header.
        copy: Vec<u8>,
    },
    /// The target closed the connection.
    Closed,
}

impl std::fmt::Display for Got {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::IcResp(_) => f.write_str("an ICResp"),
            Self::Completion(cqe) => {
                write!(f, "a completion ({:#05x}, {})", cqe.status().code(), cqe.status())
            }
            Self::Data { data, .. } => write!(f, "{} bytes of data", data.len()),
            Self::R2t(window) => write!(f, "an R2T for {} bytes", window.length),
            Self::TermReq { fes, fei, .. } => write!(f, "a TermReq ({fes}, {fei:#x})"),
            Self::Closed => f.write_str("a closed connection"),
        }
    }
}

impl Link {
    /// Connects by TCP.
    ///
    /// # Errors
    /// [`Finding::Dies`] if nothing listens any more.
    pub fn connect(address: SocketAddr, patience: Duration) -> Check<Self> {
        // Zero is no time to wait for the system.
        let time = trial::shorter(patience).max(Duration::from_millis(1));
        let stream = TcpStream::connect_timeout(&address, time).map_err(|error| match error.kind() {
            ErrorKind::TimedOut => Finding::Hangs("TCP does not connect".into()),
            _ => Finding::Dies(format!("TCP does not connect: {error}")),
        })?;
        Self::over(stream, patience)
    }

    /// Connects, and completes a handshake without digests.
    ///
    /// # Errors
    /// As [`connect`](Self::connect) and [`handshake`](Self::handshake).
    pub fn open(address: SocketAddr, patience: Duration) -> Check<Self> {
        let mut link = Self::connect(address, patience)?;
        link.handshake(&plain_request())?;
        Ok(link)
    }

    /// Takes over a connection that nothing was sent on.
    ///
    /// # Errors
    /// The socket refuses an option.
    pub fn over(stream: TcpStream, patience: Duration) -> Check<Self> {
        // Bytes leave as they are written, or splits would be none.
        let ready = stream.set_nodelay(true).and_then(|()| stream.set_write_timeout(Some(patience)));
        ready.map_err(|error| Finding::Dies(error.to_string()))?;
        Ok(Self { stream, form: Form::PLAIN, inbound: Form::PLAIN, h2c_data_bytes_max: 4096, patience })
    }

    /// The socket.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Replaces the time limit of each answer.
    #[must_use]
    pub fn patient(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sends bytes. That the target has closed shows with the next receive.
    ///
    /// # Errors
    /// [`Finding::Hangs`] if the peer takes nothing.
    pub fn send(&mut self, bytes: &[u8]) -> Check {
        if trial::is_over() {
            return Err(Finding::Hangs("the time for this trial is over".into()));
        }
        match self.stream.write_all(bytes) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Err(Finding::Hangs("it stops receiving".into()))
            }
            _ => Ok(()),
        }
    }

    /// Closes the sending direction.
    pub fn finish(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Closes the connection with a TCP reset.
    pub fn reset(self) {
        // If the option is refused, the connection closes with a FIN.
        let _ = rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO));
    }

    /// Reads until `bytes` is full. `None` if the target closes first.
    fn fill(&mut self, bytes: &mut [u8], until: Instant) -> Check<Option<()>> {
        let until = trial::earlier(until);
        let mut have = 0;
        while have < bytes.len() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let what = match trial::is_over() {
                    true => "the time for this trial is over".to_owned(),
                    false => format!("no answer in {} ms", self.patience.as_millis()),
                };
                return Err(Finding::Hangs(what));
            }
            // Zero would mean for ever.
            let _ = self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1))));
            match self.stream.read(&mut bytes[have..]) {
                Ok(0) => return Ok(None),
                Ok(count) => have += count,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    _ => return Ok(None),
                },
            }
        }
        Ok(Some(()))
    }

    /// Receives `count` bytes as they are, across PDU boundaries.
    ///
    /// # Errors
    /// [`Finding::Hangs`] if they do not arrive in time, [`Finding::Differs`] if the peer closes first.
    pub fn receive_bytes(&mut self, count: usize) -> Check<Vec<u8>> {
        let mut bytes = vec![0; count];
        match self.fill(&mut bytes, Instant::now() + self.patience)? {
            Some(()) => Ok(bytes),
            None => differs(format!("it closes instead of sending {count} bytes")),
        }
    }

    /// The next PDU.
    ///
    /// # Errors
    /// [`Finding::Hangs`] if nothing does, [`Finding::Differs`] if it is no PDU that a target may send now.
    pub fn receive(&mut self) -> Check<Got> {
        let until = Instant::now() + self.patience;
        let mut common = [0; 8];
        if self.fill(&mut common, until)?.is_none() {
            return Ok(Got::Closed);
        }
        let (kind, header) = begin(&common)?;
        let plen = header.plen.get();
        let mut bytes = vec![0; plen as usize];
        bytes[..8].copy_from_slice(&common);
        if self.fill(&mut bytes[8..], until)?.is_none() {
            return differs(format!("it closes within its {kind:?}"));
        }
        read(self.inbound, kind, header, &bytes).about(format!("its {kind:?}"))
    }

    /// Sends `request` and checks the ICResp.
    ///
    /// # Errors
    /// No ICResp arrives, or one that does not fit `request`.
    pub fn handshake(&mut self, request: &IcReq) -> Check<IcResp> {
        self.send(request.as_bytes())?;
        let got = self.receive().about("ICReq")?;
        let response = match got {
            Got::IcResp(response) => response,
            Got::Closed => {
                return differs(
                    "a closed connection in answer to an ICReq (so does a listener that requires TLS: rows in cleartext need \
                     one that allows it)",
                );
            }
            got => return differs(format!("{got} in answer to an ICReq")),
        };
        holds(response.pfv.get() == 0, format!("PFV is {}", response.pfv.get()))?;
        holds(response.dgst == request.dgst & Digests::all(), "other digests than asked for")?;
        let alignment = response.data_alignment();
        let limit = response.maxh2cdata.get();
        holds(limit >= 4096 && limit.is_multiple_of(4), format!("MAXH2CDATA is {limit}"))?;
        let Some(alignment) = alignment else { return differs(format!("CPDA is {}", response.cpda)) };
        self.form = Form { digests: response.dgst, alignment };
        let to_us = request.data_alignment().unwrap_or(DataAlignment::NONE);
        self.inbound = Form { digests: response.dgst, alignment: to_us };
        self.h2c_data_bytes_max = limit;
        Ok(*response)
    }

    /// Expects one of these TermReqs, with a copy of the `offending` PDU, and nothing after it but the end of the
    /// connection, which the target may leave to the host.
    ///
    /// # Errors
    /// Something else arrives, or nothing.
    pub fn expect_term_req(&mut self, rights: &[Term], offending: &[u8]) -> Check {
        let mut before = None;
        let got = loop {
            match self.receive() {
                // What was under way before may still be answered.
                Ok(got @ (Got::Completion(_) | Got::Data { .. } | Got::R2t(_))) => before = Some(got),
                Ok(got) => break got,
                Err(Finding::Hangs(_)) if before.is_some() => {
                    let before = before.map_or_else(String::new, |got| got.to_string());
                    return differs(format!("{before} and nothing more, not {}", wanted(rights)));
                }
                Err(finding) => return Err(finding),
            }
        };
        let Got::TermReq { fes, fei, copy } = &got else {
            return differs(format!("{got}, not {}", wanted(rights)));
        };
        let more = format!("{got} with more than was sent");
        let other = format!("{got} with other bytes than were sent");
        let is_right = |right: &Term| right.fes == *fes && right.fei.is_none_or(|wanted| wanted == *fei);
        holds(rights.iter().any(is_right), format!("{got}, not {}", wanted(rights)))?;
        holds(copy.len() <= offending.len(), more)?;
        holds(offending.starts_with(copy), other)?;
        self.finish();
        let patience = std::mem::replace(&mut self.patience, time_to_close());
        let after = self.receive();
        self.patience = patience;
        match after {
            Err(Finding::Hangs(_)) if !trial::is_over() => {
                note_left_open();
                Ok(())
            }
            after => {
                let after = after.about(format!("after {got}"))?;
                holds(after == Got::Closed, format!("{after} after {got}"))
            }
        }
    }

    /// Expects the target to close without a TermReq.
    ///
    /// # Errors
    /// A PDU arrives, or the connection stays open.
    pub fn expect_closed(&mut self) -> Check {
        match self.receive() {
            Ok(Got::Closed) => Ok(()),
            Ok(got) => differs(format!("{got}, not a closed connection")),
            Err(Finding::Hangs(_)) => Err(Finding::Hangs("the connection stays open".into())),
            Err(finding) => Err(finding),
        }
    }
}

/// An ICReq without digests and padding.
pub fn plain_request() -> IcReq {
    IcReq::new(DataAlignment::NONE, Digests::empty(), 1)
}

/// Reads a whole PDU from a target, whose layout is `inbound`.
///
/// # Errors
/// It is no PDU that a target may send now.
pub fn decode(inbound: Form, bytes: &[u8]) -> Check<Got> {
    let Some(common) = bytes.first_chunk() else { return differs("a PDU of less than 8 bytes") };
    let (kind, header) = begin(common)?;
    holds(header.plen.get() as usize == bytes.len(), "PLEN is another than the PDU's")?;
    read(inbound, kind, header, bytes).about(format!("its {kind:?}"))
}

/// Checks type and PLEN of a PDU from a target.
fn begin(common: &[u8; 8]) -> Check<(PduType, CommonHeader)> {
    let header: CommonHeader = zerocopy::transmute!(*common);
    let kind = header
        .pdu_type()
        .ok()
        .filter(|kind| !kind.is_from_host())
        .ok_or_else(|| Finding::Differs(format!("it sends a PDU of type {:#04x}", common[0])))?;
    let plen = header.plen.get();
    holds(
        (u32::from(kind.header_length())..=PLEN_MAX).contains(&plen),
        format!("its {kind:?} has PLEN {plen}"),
    )?;
    Ok((kind, header))
}

fn read(inbound: Form, kind: PduType, common: CommonHeader, bytes: &[u8]) -> Check<Got> {
    let hlen = usize::from(kind.header_length());
    holds(usize::from(common.hlen) == hlen, format!("HLEN is {}", common.hlen))?;
    if kind == PduType::C2hTermReq {
        return read_term_req(bytes);
    }
    let digests = match kind {
        PduType::IcResp => Digests::empty(),
        _ => inbound.digests,
    };
    let bare = PduLayout::without_data(kind, digests);
    let layout = match kind.may_carry_data() {
        true => {
            let length = u32::from_le_bytes(bytes[16..20].try_into().expect("four bytes"));
            PduLayout::new(kind, digests, inbound.alignment, length).unwrap_or(bare)
        }
        false => bare,
    };
    let may = if kind == PduType::C2hData { PduFlags::LAST | PduFlags::SUCCESS } else { PduFlags::empty() };
    let flags = common.flags.difference(may);
    holds(flags == layout.flags(), format!("flags are {:#04x}", common.flags.bits()))?;
    holds(common.pdo == layout.pdo(), format!("PDO is {}, not {}", common.pdo, layout.pdo()))?;
    let plen = common.plen.get();
    holds(plen == layout.plen(), format!("PLEN is {plen}, not {}", layout.plen()))?;
    if let Some(at) = layout.header_digest_at() {
        let digest = header_digest(&bytes[..hlen]).to_le_bytes();
        holds(bytes[at.into()..][..DIGEST_BYTES] == digest, "the header digest is wrong")?;
    }
    let data = &bytes[usize::from(layout.prefix_length())..][..layout.data_length() as usize];
    if let Some(at) = layout.data_digest_at() {
        holds(bytes[at as usize..] == data_digest(data).to_le_bytes(), "the data digest is wrong")?;
    }
    let padding = hlen + if layout.header_digest_at().is_some() { DIGEST_BYTES } else { 0 };
    is_zero(&bytes[padding..usize::from(layout.prefix_length())], "padding")?;
    Ok(match kind {
        PduType::IcResp => {
            note_reserved(kind, &bytes[16..IC_BYTES]);
            Got::IcResp(Box::new(IcResp::read_from_bytes(bytes).expect("128 bytes")))
        }
        PduType::CapsuleResp => {
            let (response, _) = CapsuleResp::read_from_prefix(bytes).expect("24 bytes");
            Got::Completion(response.cqe)
        }
        PduType::C2hData => {
            let (header, _) = DataPdu::read_from_prefix(bytes).expect("24 bytes");
            is_zero(&bytes[10..12], "the tag")?;
            note_reserved(kind, &bytes[20..24]);
            Got::Data {
                cid: header.cid.get(),
                offset: header.offset.get(),
                flags: header.common.flags & may,
                pdo: header.common.pdo,
                data: data.to_vec(),
            }
        }
        PduType::R2t => {
            let (header, _) = R2t::read_from_prefix(bytes).expect("24 bytes");
            note_reserved(kind, &bytes[20..24]);
            Got::R2t(Window {
                cid: header.cid.get(),
                ttag: header.ttag.get(),
                offset: header.offset.get(),
                length: header.length.get(),
            })
        }
        _ => unreachable!("others were sorted out"),
    })
}

fn is_zero(bytes: &[u8], what: &str) -> Check {
    holds(bytes.iter().all(|byte| *byte == 0), format!("{what} are not zero: bytes of its memory?"))
}

/// An expected TermReq; without `fei`, any information is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Fatal error status.
    pub fes: FatalErrorStatus,
    /// Fatal error information.
    pub fei: Option<u32>,
}

/// A TermReq with this status and field offset.
pub const fn term_at(fes: u16, offset: u32) -> Term {
    Term { fes: FatalErrorStatus::from_raw(fes), fei: Some(offset) }
}

/// A TermReq with this status.
pub const fn term(fes: u16) -> Term {
    Term { fes: FatalErrorStatus::from_raw(fes), fei: None }
}

fn wanted(rights: &[Term]) -> String {
    let one = |right: &Term| match right.fei {
        Some(fei) => format!("a TermReq ({}, {fei:#x})", right.fes),
        None => format!("a TermReq ({})", right.fes),
    };
    rights.iter().map(one).collect::<Vec<_>>().join(" or ")
}

/// Notes reserved bytes that are not zero: the receiver must ignore them, so they fail nothing.
fn note_reserved(kind: PduType, bytes: &[u8]) {
    if bytes.iter().any(|byte| *byte != 0) {
        trial::note(format!("its {kind:?} has reserved bytes that are not zero"));
    }
}

fn read_term_req(bytes: &[u8]) -> Check<Got> {
    let (header, copy) = TermReq::read_from_prefix(bytes).expect("24 bytes");
    holds(header.common.flags.is_empty(), "flags are set")?;
    holds(header.common.pdo == 0, "PDO is set")?;
    holds(bytes.len() <= 152, format!("{} bytes", bytes.len()))?;
    note_reserved(PduType::C2hTermReq, &bytes[14..TERM_REQ_BYTES]);
    Ok(Got::TermReq { fes: header.status(), fei: header.fei.get(), copy: copy.to_vec() })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// SPDK's target stays for 30 s.
    #[test]
    fn a_target_may_leave_it_to_the_host_to_close_after_its_term_req() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let sent = [0x04, 0, 0xFF, 0, 72, 0, 0, 0];
        let target = std::thread::spawn(move || {
            let mut streams = Vec::new();
            for _ in 0..20 {
                let (mut stream, _) = listener.accept().expect("a connection");
                let mut header = [0; 8];
                stream.read_exact(&mut header).expect("a header");
                let answer = TermReq::from_controller(FatalErrorStatus::INVALID_HEADER_FIELD, 2, 8);
                stream.write_all(&[answer.as_bytes(), &header].concat()).expect("room");
                streams.push(stream);
            }
            streams
        });
        trial::begin(Duration::from_secs(30));
        for _ in 0..20 {
            let mut link = Link::connect(address, Duration::from_secs(10)).expect("it listens");
            link.send(&sent).expect("it receives");
            assert_eq!(link.expect_term_req(&[term_at(1, 2)], &sent), Ok(()));
        }
        assert_eq!(trial::end(), [LEFT_OPEN]);
        drop(target.join());
    }
}
