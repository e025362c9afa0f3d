//! Section 2: the handshake, and other PDUs in its place.

use super::prelude::*;
use crate::rows::common_header::expect_term_req;

pub(super) const ROWS: &[TargetRow] = &[
    row("I1", twice),
    row("I2", twice_with_digests),
    row("I3", request_and_end),
    row("I4", versions),
    row("I5", alignments),
    row("I6", reserved_digests),
    row("I7", r2t_limits),
    row("I8", too_early),
    slow_row("I9", silence),
    row("I10", long_request),
    row("I11", instant_ends),
];

fn request() -> IcReq {
    IcReq::new(DataAlignment::NONE, Digests::empty(), 1)
}

/// A request with these bytes at this offset.
fn request_with(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut request = request().as_bytes().to_vec();
    request[at..at + bytes.len()].copy_from_slice(bytes);
    request
}

fn twice(peer: &Target) -> Check {
    expect_term_req(peer.host().link(Digests::empty())?, request().as_bytes(), &[term(2)])?;
    // Decided on the header alone.
    expect_term_req(peer.host().link(Digests::empty())?, &request().as_bytes()[..8], &[term(2)])
        .about("its first 8 bytes")
}

fn twice_with_digests(peer: &Target) -> Check {
    for digests in [Digests::HEADER, Digests::DATA, Digests::all()] {
        let bytes = IcReq::new(DataAlignment::NONE, digests, 1);
        expect_term_req(peer.host().link(digests)?, bytes.as_bytes(), &[term(2)])
            .about(format!("{digests:?}"))?;
    }
    let flagged = request_with(1, &[1]);
    expect_term_req(
        peer.host().link(Digests::all())?,
        &[&flagged[..], &[0; 4]].concat(),
        &[term(2), term_at(1, 1)],
    )
    .about("with a digest of its own")
}

fn request_and_end(peer: &Target) -> Check {
    for round in 0..100 {
        let mut link = peer.host().tcp()?;
        link.send(request().as_bytes())?;
        match round % 3 {
            0 => drop(link),
            1 => link.reset(),
            _ => {
                link.finish();
                let _ = link.receive();
            }
        }
    }
    Ok(())
}

fn versions(peer: &Target) -> Check {
    for version in [1_u16, 2, 0x100, 0xFFFF] {
        expect_term_req(peer.host().tcp()?, &request_with(8, &version.to_le_bytes()), &[term_at(6, 8)])
            .about(format!("PFV {version}"))?;
    }
    Ok(())
}

fn alignments(peer: &Target) -> Check {
    peer.admitted()?;
    for hpda in [32, 33, 128, 255] {
        expect_term_req(peer.host().tcp()?, &request_with(10, &[hpda]), &[term_at(1, 10)])
            .about(format!("HPDA {hpda}"))?;
    }
    for digests in [Digests::empty(), Digests::all()] {
        for hpda in 0..=31 {
            let alignment = DataAlignment::from_raw(hpda).expect("up to 31");
            let mut link = peer.host().tcp()?;
            link.handshake(&IcReq::new(alignment, digests, 1)).about(format!("HPDA {hpda}"))?;
            // The received PDU is checked for its layout.
            let mut admin = Queue::new(link, 32);
            peer.host().connect_admin(&mut admin)?;
            enable(&mut admin)?;
            identify(&mut admin, wire::identify::Cns::CONTROLLER, wire::id::Nsid::NONE)
                .about(format!("HPDA {hpda}"))?;
        }
    }
    Ok(())
}

fn reserved_digests(peer: &Target) -> Check {
    for bits in [4, 0x80, 0xFC] {
        let mut link = peer.host().tcp()?;
        let bytes = request_with(11, &[bits]);
        link.send(&bytes)?;
        match link.receive().about(format!("bits {bits:#04x}"))? {
            Got::IcResp(response) => {
                holds(response.dgst.bits() == 0, "it agrees to digests that do not exist")?;
            }
            Got::TermReq { fes, fei, .. } => {
                holds(fes.raw() == 6 && fei == 11, format!("a TermReq ({fes}, {fei})"))?;
            }
            got => return differs(got),
        }
    }
    Ok(())
}

fn r2t_limits(peer: &Target) -> Check {
    for limit in [0_u32, 1, 3, 0x7FFF_FFFF, u32::MAX] {
        let mut link = peer.host().tcp()?;
        link.send(&request_with(12, &limit.to_le_bytes()))?;
        match link.receive().about(format!("MAXR2T {limit}"))? {
            Got::IcResp(_) => {}
            got => return differs(format!("{got} to MAXR2T {limit}")),
        }
    }
    Ok(())
}

fn too_early(peer: &Target) -> Check {
    let command = Draft::command(Form::PLAIN, Sqe::property_get(Property::CAP), &[]).seal();
    expect_term_req(peer.host().tcp()?, &command, &[term(2)]).about("a command")?;
    let data = Draft::h2c_data(Form::PLAIN, 0, 1, 0, &[0; 512], true).seal();
    expect_term_req(peer.host().link(Digests::empty())?, &data, &[term(2)]).about("H2CData")
}

fn silence(peer: &Target) -> Check {
    let mut link = peer.host().tcp()?.patient(Duration::from_secs(20));
    let start = Instant::now();
    link.expect_closed()?;
    holds(start.elapsed() > Duration::from_secs(1), "it closes before a slow host can answer")
}

fn long_request(peer: &Target) -> Check {
    for plen in [129_u32, 132, 256, u32::MAX] {
        let bytes = [&request_with(4, &plen.to_le_bytes())[..], &[0; 128]].concat();
        expect_term_req(peer.host().tcp()?, &bytes, &[term_at(1, 4)]).about(format!("PLEN {plen}"))?;
    }
    Ok(())
}

fn instant_ends(peer: &Target) -> Check {
    for round in 0..300 {
        let link = peer.host().tcp()?;
        if round % 2 == 0 { drop(link) } else { link.reset() }
    }
    Ok(())
}
