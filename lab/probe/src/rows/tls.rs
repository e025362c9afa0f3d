//! Section 13: TLS, as far as a host without keys can test it. A port without TLS must close each of these connections
//! as soon as it sees that they are not NVMe; one with TLS must refuse the handshake.

use wire::discovery::SecureChannel;

use super::prelude::*;
use crate::client_hello::{
    ALERT, APPLICATION_DATA, CHANGE_CIPHER_SPEC, HANDSHAKE, Hello, Refusal, answer, record, refusal, refused,
    refused_at_end,
};
use crate::rows::queue_setup::own_entries;

pub(super) const ROWS: &[TargetRow] = &[
    row("T1", other_protocol),
    row("T2", unfit_hellos),
    row("T3", many_identities),
    slow_row("T4", dribble),
    row("T5", odd_records),
    row("T6", flipped_bits),
    row("T7", cut_hellos),
];

/// Afterwards hosts can still connect.
pub(super) fn others_get_in(peer: &Target) -> Check {
    if peer.is_tls_only {
        return peer.check_tls().about("a host afterwards");
    }
    peer.host().link(Digests::empty()).about("a host afterwards").map(drop)
}

/// Whether the target may take connections in cleartext at a port with TLS: its discovery log says that TLS is not
/// required, or it refuses every host that does not generate a key of TLS.
fn may_take_both(peer: &Target) -> Check<bool> {
    if peer.connected.secure_channel_required() {
        return Ok(true);
    }
    let required = |entry: &DiscoveryEntry| entry.treq.secure_channel() == SecureChannel::REQUIRED;
    Ok(!own_entries(peer)?.iter().any(required))
}

fn other_protocol(peer: &Target) -> Check {
    if refused(peer.host(), "a hello", &Hello::default().bytes())? == Refusal::Alert {
        let mut link = peer.host().tcp()?;
        link.send(IcReq::new(DataAlignment::NONE, Digests::empty(), 1).as_bytes())?;
        let said = answer(&mut link, peer.settings.host.patience).about("ICReq at a port with TLS")?;
        if said.first() != Some(&(PduType::IcResp as u8)) {
            return Ok(());
        }
        return holds(
            may_take_both(peer)?,
            "a port for which the discovery log requires TLS also does without",
        );
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
        refused(peer.host(), what, &hello.bytes())?;
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
        refused(peer.host(), what, &hello.bytes())?;
    }
    let whole = right().bytes();
    refused_at_end(peer.host(), "a binder cut off", &whole[..whole.len() - 16])?;
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
        match refused(peer.host(), what, &bytes) {
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
        refused_at_end(peer.host(), &format!("byte {at}"), &wrong)?;
    }
    others_get_in(peer)
}

fn cut_hellos(peer: &Target) -> Check {
    let bytes = Hello::default().bytes();
    for end in [1, 4, 5, 6, 9, 11, 43, 100, bytes.len() - 1] {
        refused_at_end(peer.host(), &format!("the end after {end} bytes"), &bytes[..end])?;
        let mut link = peer.host().tcp()?;
        link.send(&bytes[..end])?;
        link.reset();
    }
    others_get_in(peer)
}
