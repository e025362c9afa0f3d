//! Section 13: TLS, as far as a host without keys can try it.

use wire::pdu::Digests;

use crate::finding::{About, Check, Finding, differs, holds, skipped};
use crate::link::Got;
use crate::peer::Peer;
use crate::row::Row;

pub(super) const ROWS: &[Row] = &[
    Row::new("T1", "a TLS hello to a plain port", "closed, or told off", hello),
    Row::new("T2", "hellos that do not fit", "an alert", needs_tls),
    Row::new("T3", "64 KiB of identities", "an alert", needs_tls),
    Row::new("T4", "a handshake a byte a second", "closed in time", needs_tls),
    Row::new("T5", "early data, floods of updates and empty records", "refused, or bounded", needs_tls),
    Row::new("T6", "a bit wrong in any record", "a fatal alert", needs_tls),
    Row::new("T7", "the end without close_notify", "as the end of the stream", needs_tls),
    Row::new("T8", "as many records as a key may have", "a new key", needs_tls),
    Row::new("T9", "messages that some hosts do not know", "never sent", needs_tls),
];

fn needs_tls(_: &Peer) -> Check {
    skipped("not written yet: it needs a port with TLS")
}

fn hello(peer: &Peer) -> Check {
    // A record of the handshake with a hello of 200 bytes, as far as anyone looks.
    let mut bytes = vec![0x16, 3, 1, 0, 204, 1, 0, 0, 200, 3, 3];
    bytes.resize(5 + 204, 0x5A);
    let mut link = peer.tcp()?;
    link.send(&bytes)?;
    match link.receive() {
        Ok(Got::Closed) => {}
        Ok(Got::TermReq { fes, .. }) => holds([1, 2].contains(&fes.raw()), format!("a TermReq ({fes})"))?,
        Ok(got) => return differs(got),
        Err(Finding::Hangs(_)) => return Err(Finding::Hangs("it waits for more of a TLS hello".into())),
        Err(finding) => return Err(finding),
    }
    peer.link(Digests::empty()).about("a plain host").map(drop)
}
