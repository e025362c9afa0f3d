//! Section 1: the eight-byte common header of every PDU.

use peer::trial;

use super::prelude::*;

pub(super) const ROWS: &[TargetRow] = &[
    row("P1", first_bytes),
    row("P2", types),
    row("P3", header_lengths),
    row("P4", short_lengths),
    row("P5", long_lengths),
    row("P6", unfit_lengths),
    row("P7", early_data),
    row("P8", late_data),
    row("P9", data_offset_without_data),
    row("P10", flags),
    row("P11", splits),
    row("P12", segments),
    row("P13", term_reqs),
    row("P14", ends),
    row("P15", resets),
    row("P16", urgent),
];

const DIGESTS: [Digests; 2] = [Digests::empty(), Digests::all()];

/// A command without data or namespace, valid on any queue before Connect.
fn some_command() -> Sqe {
    Sqe::property_get(Property::CAP).with_cid(1)
}

/// Sends this PDU and expects a TermReq.
pub(super) fn expect_term_req(mut link: Link, bytes: &[u8], rights: &[Term]) -> Check {
    link.send(bytes)?;
    link.expect_term_req(rights, bytes)
}

/// Sends this PDU, in which one byte has no meaning, and expects an answer. That it is refused for that byte is as sound.
fn expect_ignored(mut link: Link, bytes: &[u8], at: u32) -> Check {
    link.send(bytes)?;
    match link.receive()? {
        Got::Completion(_) | Got::IcResp(_) => Ok(()),
        Got::TermReq { fes, fei, .. } if fes.raw() == 1 && fei == at => {
            trial::note(format!("byte {at} is judged, though it has no meaning there"));
            Ok(())
        }
        got => differs(format!("{got}, not an answer")),
    }
}

fn first_bytes(peer: &Target) -> Check {
    let plain = Form::PLAIN;
    for (what, bytes) in [
        ("CapsuleCmd", Draft::command(plain, some_command(), &[]).seal()),
        ("H2CData", Draft::h2c_data(plain, 1, 1, 0, &[0; 4], true).seal()),
    ] {
        expect_term_req(peer.host().tcp()?, &bytes, &[term(2)]).about(what)?;
    }
    // Other protocols: their first byte is no PDU type either.
    for text in ["GET / HTTP/1.1\r\nHost: probe\r\n\r\n", "SSH-2.0-probe\r\n\r\n\r\n\r\n"] {
        expect_term_req(peer.host().tcp()?, text.as_bytes(), &[term(2), term_at(1, 0)]).about(text.trim())?;
    }
    Ok(())
}

fn types(peer: &Target) -> Check {
    for kind in (0..=u8::MAX).filter(|kind| ![0, 2, 4, 6].contains(kind)) {
        let bytes = Draft::command(Form::PLAIN, some_command(), &[]).with(0, &[kind]).seal();
        expect_term_req(peer.host().link(Digests::empty())?, &bytes, &[term_at(1, 0)])
            .about(format!("type {kind:#04x}"))?;
    }
    Ok(())
}

fn header_lengths(peer: &Target) -> Check {
    let request = IcReq::new(DataAlignment::NONE, Digests::empty(), 1);
    for hlen in [0, 7, 24, 72, 127, 255] {
        let mut bytes = request.as_bytes().to_vec();
        bytes[2] = hlen;
        expect_term_req(peer.host().tcp()?, &bytes, &[term_at(1, 2)]).about(format!("ICReq of {hlen}"))?;
    }
    for digests in DIGESTS {
        for hlen in [0, 7, 24, 71, 73, 76, 128, 255] {
            let link = peer.host().link(digests)?;
            let bytes = Draft::command(link.form, some_command(), &[]).with(2, &[hlen]).seal();
            expect_term_req(link, &bytes, &[term_at(1, 2)]).about(format!("CapsuleCmd of {hlen}"))?;
        }
        for hlen in [0, 7, 23, 25, 72, 255] {
            let link = peer.host().link(digests)?;
            let bytes = Draft::h2c_data(link.form, 1, 1, 0, &[0; 512], true).with(2, &[hlen]).seal();
            expect_term_req(link, &bytes, &[term_at(1, 2)]).about(format!("H2CData of {hlen}"))?;
        }
    }
    Ok(())
}

fn short_lengths(peer: &Target) -> Check {
    let request = IcReq::new(DataAlignment::NONE, Digests::empty(), 1);
    for plen in [0_u32, 7, 8, 127] {
        let mut bytes = request.as_bytes().to_vec();
        bytes[4..8].copy_from_slice(&plen.to_le_bytes());
        expect_term_req(peer.host().tcp()?, &bytes, &[term_at(1, 4)]).about(format!("ICReq of {plen}"))?;
    }
    for digests in DIGESTS {
        for plen in [0, 7, 8, 24, 71] {
            let link = peer.host().link(digests)?;
            let bytes = Draft::command(link.form, some_command(), &[]).with_plen(plen).seal();
            expect_term_req(link, &bytes, &[term_at(1, 4)]).about(format!("CapsuleCmd of {plen}"))?;
        }
        for plen in [0, 7, 8, 23] {
            let link = peer.host().link(digests)?;
            let bytes = Draft::h2c_data(link.form, 1, 1, 0, &[0; 512], true).with_plen(plen).seal();
            expect_term_req(link, &bytes, &[term_at(1, 4)]).about(format!("H2CData of {plen}"))?;
        }
    }
    Ok(())
}

fn long_lengths(peer: &Target) -> Check {
    let room = peer.in_capsule_bytes().max(8192);
    for digests in DIGESTS {
        for plen in [u32::MAX, u32::MAX - 3, 1 << 31, 72 + room + 4 + 4 + 4, 72 + room + 4096] {
            let io = peer.io(digests)?;
            let pointer = Sgl::in_capsule(plen - 72);
            let sqe = Sqe::new(NvmOpcode::WRITE.raw(), Nsid::new(1)).with_cid(1).with_data(pointer);
            let bytes = Draft::command(io.form(), sqe, &[0; 512]).with_plen(plen).seal();
            expect_term_req(io.link, &bytes, &[term_at(1, 4)]).about(format!("PLEN {plen}"))?;
        }
    }
    Ok(())
}

fn unfit_lengths(peer: &Target) -> Check {
    let disk = peer.disk()?;
    let room = peer.in_capsule_bytes();
    for digests in DIGESTS {
        // Announces no data, but sends some.
        let io = peer.io(digests)?;
        let sqe = disk.read(0, 1).with_cid(1).with_data(Sgl::transport(disk.block_bytes));
        let bytes = Draft::command(io.form(), sqe, &[0; 16]).seal();
        expect_term_req(io.link, &bytes, &[term_at(1, 4)]).about("data with a Read")?;
        if room < 8192 {
            continue;
        }
        // Announced and sent lengths differ.
        for (announced, comes) in [(512, 508), (512, 516), (4096, 512), (512, 4096)] {
            let io = peer.io(digests)?;
            let sqe = disk.write(0, 1).with_cid(1).with_data(Sgl::in_capsule(announced));
            let bytes = Draft::command(io.form(), sqe, &vec![0; comes]).seal();
            expect_term_req(io.link, &bytes, &[term_at(1, 4)])
                .about(format!("{comes} bytes for {announced}"))?;
        }
    }
    Ok(())
}

fn early_data(peer: &Target) -> Check {
    wrong_data_offsets(peer, &[0, 4, 7, 8, 71], 64, &[0, 8, 23])
}

fn late_data(peer: &Target) -> Check {
    wrong_data_offsets(peer, &[77, 80, 84, 128, 255], 16, &[200])
}

/// Wrong PDOs: of a CapsuleCmd with data of this length, and of an H2CData.
fn wrong_data_offsets(peer: &Target, command_pdos: &[u8], length: usize, data_pdos: &[u8]) -> Check {
    for digests in DIGESTS {
        for &pdo in command_pdos {
            let link = peer.host().link(digests)?;
            let bytes = in_capsule(link.form, some_command(), &vec![0; length]).with(3, &[pdo]).seal();
            expect_term_req(link, &bytes, &[term_at(1, 3)]).about(format!("CapsuleCmd with PDO {pdo}"))?;
        }
        for &pdo in data_pdos {
            let link = peer.host().link(digests)?;
            let bytes = Draft::h2c_data(link.form, 1, 1, 0, &[0; 64], true).with(3, &[pdo]).seal();
            expect_term_req(link, &bytes, &[term_at(1, 3)]).about(format!("H2CData with PDO {pdo}"))?;
        }
    }
    Ok(())
}

fn data_offset_without_data(peer: &Target) -> Check {
    for digests in DIGESTS {
        for pdo in [1, 72, 76, 255] {
            let link = peer.host().link(digests)?;
            let bytes = Draft::command(link.form, some_command(), &[]).with(3, &[pdo]).seal();
            expect_ignored(link, &bytes, 3).about(format!("PDO {pdo}"))?;
        }
    }
    Ok(())
}

fn flags(peer: &Target) -> Check {
    for (digests, flags) in [(Digests::empty(), [0x01, 0x02, 0x03]), (Digests::all(), [0x00, 0x01, 0x02])] {
        for flags in flags {
            let link = peer.host().link(digests)?;
            let bytes = in_capsule(link.form, some_command(), &[0; 64]).with(1, &[flags]).seal();
            expect_term_req(link, &bytes, &[term_at(1, 1)])
                .about(format!("flags {flags:#04x}, {digests:?}"))?;
        }
        for reserved in [0x04, 0x08, 0x10, 0x80] {
            let link = peer.host().link(digests)?;
            let draft = Draft::command(link.form, some_command(), &[]);
            let negotiated = digests.bits() & Digests::HEADER.bits();
            let bytes = draft.with(1, &[negotiated | reserved]).seal();
            expect_ignored(link, &bytes, 1).about(format!("flags {reserved:#04x}, {digests:?}"))?;
        }
    }
    let mut bytes = IcReq::new(DataAlignment::NONE, Digests::empty(), 1).as_bytes().to_vec();
    bytes[1] = 4;
    expect_ignored(peer.host().tcp()?, &bytes, 1).about("ICReq with LAST")
}

fn splits(peer: &Target) -> Check {
    let get = |link: &mut Link, cut: &mut dyn FnMut(&mut Link, &[u8]) -> Check| {
        let bytes = Draft::command(link.form, some_command(), &[]).seal();
        cut(link, &bytes)?;
        match link.receive()? {
            Got::Completion(_) => Ok(()),
            got => differs(format!("{got}, not a completion")),
        }
    };
    for digests in DIGESTS {
        let mut link = peer.admin(digests)?.0.link;
        get(&mut link, &mut |link, bytes| {
            for byte in bytes {
                link.send(std::slice::from_ref(byte))?;
                std::thread::sleep(Duration::from_millis(2));
            }
            Ok(())
        })
        .about("byte by byte")?;
        let length = Draft::command(link.form, some_command(), &[]).seal().len();
        for cut in 1..length {
            get(&mut link, &mut |link, bytes| {
                link.send(&bytes[..cut])?;
                std::thread::sleep(Duration::from_micros(300));
                link.send(&bytes[cut..])
            })
            .about(format!("cut at {cut}"))?;
        }
    }
    Ok(())
}

fn segments(peer: &Target) -> Check {
    let disk = peer.disk()?;
    for digests in DIGESTS {
        let entries = peer.cap.queue_entries_max().min(1024);
        let mut io = peer.io_with(digests, entries)?;
        let mut left = 1000_u32;
        while left > 0 {
            let count = left.min(entries - 1);
            let sqe = disk.read(0, 1).with_data(Sgl::transport(disk.block_bytes));
            let cids: Vec<_> = (0..count).map(|_| io.cid()).collect();
            let form = io.form();
            let pdus: Vec<u8> =
                cids.iter().flat_map(|cid| Draft::command(form, sqe.with_cid(*cid), &[]).seal()).collect();
            io.link.send(&pdus)?;
            for cid in cids {
                let answer = io.finish(cid, &[])?;
                peer::queue::expect_status(&answer, &[wire::status::Status::SUCCESS])?;
            }
            left -= count;
        }
        if !peer.settings.may_overwrite || peer.in_capsule_bytes() < disk.block_bytes {
            continue;
        }
        let data = disk.fill(1, 0xA1);
        let cid = io.cid();
        let bytes = in_capsule(io.form(), disk.write(0, 1).with_cid(cid), &data).seal();
        for part in bytes.chunks(bytes.len().div_ceil(1000)) {
            io.link.send(part)?;
        }
        let answer = io.finish(cid, &[])?;
        peer::queue::expect_status(&answer, &[wire::status::Status::SUCCESS])?;
        disk.holds(&mut io, 0, 1, 0xA1)?;
    }
    Ok(())
}

fn term_reqs(peer: &Target) -> Check {
    let term_req = |fes: u16, copy: &[u8]| {
        let length = u8::try_from(copy.len()).expect("short");
        let header = TermReq::from_host(FatalErrorStatus::from_raw(fes), 0, length);
        [header.as_bytes(), copy].concat()
    };
    let with_plen = |plen: u32| {
        let mut bytes = term_req(1, &[0; 128]);
        bytes[4..8].copy_from_slice(&plen.to_le_bytes());
        bytes
    };
    let mut cases = vec![
        ("right".to_owned(), term_req(1, &[4, 0, 72, 0, 72, 0, 0, 0])),
        ("without a copy".to_owned(), term_req(1, &[])),
        ("two in a row".to_owned(), [term_req(1, &[0; 8]), term_req(2, &[0; 8])].concat()),
    ];
    for fes in [0, 6, 7, 8, 0x80, 0xFF, 0x100, 0x7FFF, 0xFFFF] {
        cases.push((format!("FES {fes:#x}"), term_req(fes, &[0; 8])));
    }
    for plen in [0, 8, 23, 153, 4096, u32::MAX] {
        cases.push((format!("PLEN {plen}"), with_plen(plen)));
    }
    for hlen in [0, 8, 72, 255] {
        let mut bytes = term_req(1, &[0; 8]);
        bytes[2] = hlen;
        cases.push((format!("HLEN {hlen}"), bytes));
    }
    for (what, bytes) in cases {
        let mut link = peer.host().link(Digests::empty())?;
        link.send(&bytes)?;
        link.expect_closed().about(what)?;
    }
    Ok(())
}

/// Closes the stream at several places; the write must then have had no effect.
fn ends(peer: &Target) -> Check {
    let disk = peer.scratch()?;
    disk.put(&mut peer.io(Digests::empty())?, 0, disk.asked_blocks(), 0x11)?;
    for digests in DIGESTS {
        let mut association = peer.associate(digests)?;
        let form = association.io.form();
        let data = disk.fill(1, 0x22);
        let whole = in_capsule(form, disk.write(0, 1).with_cid(9), &data).seal();
        let header_ends = [1, 7, 8, 71, 72];
        let data_ends = [whole.len() / 2, whole.len() - 1];
        let has_room = peer.in_capsule_bytes() >= disk.block_bytes;
        for end in header_ends.into_iter().chain(data_ends).filter(|end| has_room || *end < 72) {
            association.io.link.send(&whole[..end])?;
            association.io.link.finish();
            association.io.link.expect_closed().about(format!("the end after {end} bytes"))?;
            association = peer.associate(digests)?;
        }
        // In the middle of requested data.
        let data = disk.fill(disk.asked_blocks(), 0x22);
        let cid = association.io.submit(disk.write(0, disk.asked_blocks()), Move::Asked(&data))?;
        let Step::Wants(window) = association.io.step(cid)? else { return skipped("no R2T for a write") };
        let pdu = Draft::h2c_data(form, cid, window.ttag, 0, &data[..window.length as usize], true).seal();
        association.io.link.send(&pdu[..pdu.len() - 100])?;
        association.io.link.finish();
        association.io.link.expect_closed().about("the end within H2CData")?;
    }
    disk.holds(&mut peer.io(Digests::empty())?, 0, disk.asked_blocks(), 0x11).about("afterwards")
}

fn resets(peer: &Target) -> Check {
    peer.host().tcp()?.reset();
    let request = IcReq::new(DataAlignment::NONE, Digests::empty(), 1);
    for end in [1, 8, 127, 128] {
        let mut link = peer.host().tcp()?;
        link.send(&request.as_bytes()[..end])?;
        link.reset();
    }
    peer.host().link(Digests::empty())?.reset();
    let disk = peer.disk()?;
    for end in [0, 1, 8, 71, 72] {
        let mut io = peer.io(Digests::empty())?;
        let sqe = disk.read(0, 1).with_cid(1).with_data(Sgl::transport(disk.block_bytes));
        let bytes = Draft::command(io.form(), sqe, &[]).seal();
        io.link.send(&bytes[..end])?;
        io.link.reset();
    }
    if !peer.settings.may_overwrite {
        return Ok(());
    }
    for end in [0, 8, 24, 24 + 100, usize::MAX] {
        let mut io = peer.io(Digests::empty())?;
        let blocks = disk.asked_blocks();
        let data = disk.fill(blocks, 0x33);
        let cid = io.submit(disk.write(0, blocks), Move::Asked(&data))?;
        let Step::Wants(window) = io.step(cid)? else { return skipped("no R2T for a write") };
        let pdu =
            Draft::h2c_data(io.form(), cid, window.ttag, 0, &data[..window.length as usize], true).seal();
        io.link.send(&pdu[..end.min(pdu.len())])?;
        io.link.reset();
    }
    Ok(())
}

fn urgent(peer: &Target) -> Check {
    let mut link = peer.host().link(Digests::empty())?.patient(Duration::from_millis(500));
    let bytes = Draft::command(link.form, some_command(), &[]).seal();
    link.send(&bytes[..40])?;
    let sent = rustix::net::send(link.stream(), &bytes[40..], rustix::net::SendFlags::OOB);
    holds(sent.is_ok(), "urgent data cannot be sent from here")?;
    match link.receive() {
        // The last byte was urgent data: a target that does not read it inline waits for one more.
        Err(Finding::Hangs(_)) => {
            link.send(&bytes[bytes.len() - 1..])?;
            link.receive().map(drop)
        }
        got => got.map(drop),
    }
}
