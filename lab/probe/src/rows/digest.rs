//! Section 5: wrong digests, and digests in the wrong place.

use wire::digest::header_digest;

use super::prelude::*;
use crate::rows::common_header::expect_term_req;

pub(super) const ROWS: &[TargetRow] = &[
    row("G1", wrong_header),
    row("G2", in_a_capsule),
    row("G3", not_last),
    row("G4", last),
    row("G5", no_room),
    row("G6", where_none_belong),
    row("G7", flood),
];

/// The PDU with its last byte, part of the data digest, changed.
fn spoilt(draft: Draft) -> Vec<u8> {
    let mut bytes = draft.seal();
    *bytes.last_mut().expect("not empty") ^= 1;
    bytes
}

fn wrong_header(peer: &Target) -> Check {
    for digests in [Digests::HEADER, Digests::all()] {
        for flip in [72, 73, 75] {
            let link = peer.host().link(digests)?;
            let mut bytes =
                Draft::command(link.form, Sqe::property_get(Property::CAP).with_cid(1), &[]).seal();
            bytes[flip] ^= 0x10;
            let received = u32::from_le_bytes(bytes[72..76].try_into().expect("four bytes"));
            let rights = [peer::link::Term { fes: FatalErrorStatus::from_raw(3), fei: Some(received) }];
            expect_term_req(link, &bytes, &rights).about(format!("byte {flip}"))?;
        }
        // A header that does not match its digest must not be acted on.
        let link = peer.host().link(digests)?;
        let mut bytes = Draft::command(link.form, Sqe::property_get(Property::CAP).with_cid(1), &[]).seal();
        bytes[20] ^= 1;
        holds(header_digest(&bytes[..72]).to_le_bytes() != bytes[72..76], "the digest must differ")?;
        expect_term_req(link, &bytes, &[term(3)]).about("another header")?;
    }
    Ok(())
}

fn disk_with(peer: &Target, digests: Digests) -> Check<(Disk, Queue)> {
    let disk = peer.scratch()?;
    let mut io = peer.io(digests)?;
    disk.put(&mut io, 0, disk.asked_blocks(), 0x5A)?;
    Ok((disk, io))
}

const CORRUPT: [Status; 1] = [Status::TRANSIENT_TRANSPORT_ERROR];

fn in_a_capsule(peer: &Target) -> Check {
    for digests in [Digests::DATA, Digests::all()] {
        let (disk, mut io) = disk_with(peer, digests)?;
        if peer.in_capsule_bytes() < disk.block_bytes {
            return skipped("there is no room for a block in a capsule");
        }
        let data = disk.fill(1, 0x5B);
        let cid = io.cid();
        let bytes = spoilt(in_capsule(io.form(), disk.write(0, 1).with_cid(cid), &data));
        io.link.send(&bytes)?;
        expect_status(&io.finish(cid, &[])?, &CORRUPT)?;
        disk.holds(&mut io, 0, 1, 0x5A)?;
        // A command that is refused anyway, for its namespace.
        let cid = io.cid();
        let sqe = Sqe::write(wire::id::Nsid::new(0xFFFF_FFF0), 0, 1).with_cid(cid);
        let bytes = spoilt(in_capsule(io.form(), sqe, &data));
        io.link.send(&bytes)?;
        let rights = [Status::TRANSIENT_TRANSPORT_ERROR, Status::INVALID_NAMESPACE];
        expect_status(&io.finish(cid, &[])?, &rights)?;
        disk.holds(&mut io, 0, 1, 0x5A)?;
    }
    Ok(())
}

/// A write in two H2CData PDUs, of which these are corrupted.
fn spoil(peer: &Target, spoilt_parts: [bool; 2]) -> Check {
    for digests in [Digests::DATA, Digests::all()] {
        let (disk, mut io) = disk_with(peer, digests)?;
        let blocks = disk.asked_blocks();
        let data = disk.fill(blocks, 0x5C);
        let cid = io.submit(disk.write(0, blocks), Move::Asked(&data))?;
        let Step::Wants(window) = io.step(cid)? else { return skipped("no R2T for a write") };
        holds(window.length as usize == data.len(), "a window of another length")?;
        let half = (window.length / 2) & !3;
        for (index, (start, end)) in [(0, half), (half, window.length)].into_iter().enumerate() {
            let part = &data[start as usize..end as usize];
            let draft = Draft::h2c_data(io.form(), cid, window.ttag, start, part, end == window.length);
            let bytes = if spoilt_parts[index] { spoilt(draft) } else { draft.seal() };
            io.link.send(&bytes)?;
        }
        expect_status(&io.finish(cid, &data)?, &CORRUPT)?;
        disk.holds(&mut io, 0, blocks, 0x5A)?;
        disk.put(&mut io, 0, blocks, 0x5D).about("a right write after it")?;
        disk.holds(&mut io, 0, blocks, 0x5D)?;
    }
    Ok(())
}

fn not_last(peer: &Target) -> Check {
    spoil(peer, [true, false])
}

fn last(peer: &Target) -> Check {
    spoil(peer, [false, true])?;
    spoil(peer, [true, true])
}

fn no_room(peer: &Target) -> Check {
    for plen in [72, 73, 75] {
        let link = peer.host().link(Digests::all())?;
        let command = Sqe::property_get(Property::CAP).with_cid(1);
        let bytes = Draft::command(link.form, command, &[]).with_plen(plen).seal();
        expect_term_req(link, &bytes, &[term_at(1, 4)]).about(format!("CapsuleCmd of {plen}"))?;
    }
    for plen in [77, 79, 80] {
        let link = peer.host().link(Digests::all())?;
        let command = Sqe::property_get(Property::CAP).with_cid(1);
        let bytes = in_capsule(link.form, command, &[0; 64]).with_plen(plen).seal();
        expect_term_req(link, &bytes, &[term_at(1, 4)]).about(format!("CapsuleCmd with data of {plen}"))?;
    }
    for plen in [24, 27, 29, 31, 32] {
        let link = peer.host().link(Digests::all())?;
        let bytes = Draft::h2c_data(link.form, 1, 1, 0, &[0; 64], true).with_plen(plen).seal();
        // Without data the command may be refused for that instead.
        expect_term_req(link, &bytes, &[term_at(1, 4), term_at(1, 16)])
            .about(format!("H2CData of {plen}"))?;
    }
    Ok(())
}

fn where_none_belong(peer: &Target) -> Check {
    let request = IcReq::new(DataAlignment::NONE, Digests::all(), 1);
    let mut bytes = request.as_bytes().to_vec();
    bytes[1] = 1;
    bytes[4] = 132;
    let digest = header_digest(&bytes);
    bytes.extend_from_slice(&digest.to_le_bytes());
    expect_term_req(peer.host().tcp()?, &bytes, &[term_at(1, 1), term_at(1, 4)]).about("ICReq")?;
    let mut link = peer.host().link(Digests::all())?;
    let mut bytes = TermReq::from_host(FatalErrorStatus::SEQUENCE_ERROR, 0, 8).as_bytes().to_vec();
    bytes[1] = 1;
    bytes.extend_from_slice(&[0; 12]);
    link.send(&bytes)?;
    link.expect_closed().about("TermReq")
}

fn flood(peer: &Target) -> Check {
    let (disk, mut io) = disk_with(peer, Digests::all())?;
    if peer.in_capsule_bytes() < disk.block_bytes {
        return skipped("there is no room for a block in a capsule");
    }
    let data = disk.fill(1, 0x5E);
    for _ in 0..200 {
        let cids: Vec<_> = (0..16).map(|_| io.cid()).collect();
        for cid in &cids {
            let bytes = spoilt(in_capsule(io.form(), disk.write(0, 1).with_cid(*cid), &data));
            io.link.send(&bytes)?;
        }
        for cid in cids {
            expect_status(&io.finish(cid, &[])?, &CORRUPT)?;
        }
    }
    disk.holds(&mut io, 0, 1, 0x5A)
}
