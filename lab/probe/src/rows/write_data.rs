//! Section 4: R2T and H2CData.

use peer::link::Window;
use wire::admin::AbortResult;

use super::prelude::*;
use crate::rows::common_header::expect_term_req;

pub(super) const ROWS: &[TargetRow] = &[
    row("D1", tag_beyond),
    row("D2", other_tags),
    row("D3", not_wanted),
    row("D4", before_any),
    row("D5", other_cid),
    row("D6", other_offset),
    row("D7", beyond_window),
    row("D8", no_data),
    row("D9", other_length),
    row("D10", too_much),
    row("D11", last_flag),
    row("D12", walk_past),
    row("D13", error_within),
    row("D14", interleaved),
    row("D15", no_answer),
    row("D16", aborted),
    row("H23", small_asked),
];

/// A write whose data was requested by an R2T.
struct Asked {
    io: Queue,
    window: Window,
    data: Vec<u8>,
    cid: u16,
}

impl Asked {
    fn new(peer: &Target, disk: Disk, digests: Digests) -> Check<Self> {
        let mut io = peer.io(digests)?;
        let blocks = disk.asked_blocks();
        let data = disk.fill(blocks, 0x77);
        let cid = io.submit(disk.write(0, blocks), Move::Asked(&data))?;
        match io.step(cid)? {
            Step::Wants(window) => {
                holds(window.offset == 0 && window.length > 0, "the first window is not the front")?;
                Ok(Self { io, window, data, cid })
            }
            Step::Over(answer) => differs(format!("a write without data ends: {}", answer.status())),
        }
    }

    /// The valid PDU.
    fn right(&self) -> Draft {
        let Window { ttag, length, .. } = self.window;
        Draft::h2c_data(self.io.form(), self.cid, ttag, 0, &self.data[..length as usize], true)
    }
}

/// Sends a modified copy of the valid PDU and expects a TermReq.
fn wrong_data(peer: &Target, change: impl Fn(&Asked) -> Vec<u8>, rights: &[Term]) -> Check {
    let disk = peer.scratch()?;
    for digests in [Digests::empty(), Digests::all()] {
        let asked = Asked::new(peer, disk, digests)?;
        let bytes = change(&asked);
        expect_term_req(asked.io.link, &bytes, rights)?;
    }
    Ok(())
}

fn u16_bytes(value: u16) -> [u8; 2] {
    value.to_le_bytes()
}

fn tag_beyond(peer: &Target) -> Check {
    wrong_data(peer, |asked| asked.right().with(10, &u16_bytes(0xFFFF)).seal(), &[term_at(1, 10)])
}

fn other_tags(peer: &Target) -> Check {
    let disk = peer.scratch()?;
    // Each value takes one connection: those near the right one, those with one bit set, and a few more.
    let one_bit = (0..16).map(|bit| 1_u16 << bit);
    let right = Asked::new(peer, disk, Digests::empty())?.window.ttag;
    let near = (0..64).chain((right.saturating_sub(16))..right.saturating_add(16));
    for tag in near.chain(one_bit).chain((0..32).map(|step| step * 2047)).chain([0x8000, 0xFFFE]) {
        let asked = Asked::new(peer, disk, Digests::empty())?;
        if tag == asked.window.ttag {
            continue;
        }
        let bytes = asked.right().with(10, &u16_bytes(tag)).seal();
        expect_term_req(asked.io.link, &bytes, &[term_at(1, 10)]).about(format!("tag {tag:#06x}"))?;
    }
    Ok(())
}

fn not_wanted(peer: &Target) -> Check {
    let disk = peer.scratch()?;
    let rights = [term(2), term_at(1, 10)];
    // Data for the same R2T again, after the command has completed.
    let mut asked = Asked::new(peer, disk, Digests::empty())?;
    let (window, data, bytes) = (asked.window, asked.data.clone(), asked.right().seal());
    asked.io.serve(&window, &data)?;
    expect_status(&asked.io.finish(asked.cid, &data)?, &[Status::SUCCESS])?;
    expect_term_req(asked.io.link, &bytes, &rights).about("after the end of the command")?;
    // Data for the same R2T twice at once.
    let mut asked = Asked::new(peer, disk, Digests::empty())?;
    asked.io.link.send(&bytes_twice(&asked))?;
    match skip_completions(&mut asked.io)? {
        Got::TermReq { fes, fei, .. } => {
            holds(fes.raw() == 2 || fes.raw() == 1 && fei == 10, format!("twice: a TermReq ({fes}, {fei})"))?;
        }
        got => return differs(format!("twice: {got}")),
    }
    // Commands that need no R2T: a read, and a write with in-capsule data.
    for sqe in [disk.read(0, 1), disk.write(0, 1)] {
        let mut io = peer.io(Digests::empty())?;
        let data = disk.fill(1, 1);
        let is_read = sqe.opcode == 2;
        if !is_read && peer.in_capsule_bytes() < disk.block_bytes {
            continue;
        }
        let moves = if is_read { Move::Back(disk.block_bytes) } else { Move::InCapsule(&data) };
        let cid = io.submit(sqe, moves)?;
        let bytes = Draft::h2c_data(io.form(), cid, 1, 0, &data, true).seal();
        expect_term_req(io.link, &bytes, &rights).about("for a command that moves no such data")?;
    }
    Ok(())
}

fn bytes_twice(asked: &Asked) -> Vec<u8> {
    let bytes = asked.right().seal();
    [&bytes[..], &bytes[..]].concat()
}

/// Receives a PDU that is neither a completion nor an R2T.
fn skip_completions(io: &mut Queue) -> Check<Got> {
    loop {
        match io.link.receive()? {
            Got::Completion(_) | Got::R2t(_) => {}
            got => return Ok(got),
        }
    }
}

fn before_any(peer: &Target) -> Check {
    for tag in [0, 1, 0xFFFF] {
        let bytes = |form| Draft::h2c_data(form, 0, tag, 0, &[0; 512], true).seal();
        let link = peer.host().link(Digests::empty())?;
        expect_term_req(link, &bytes(Form::PLAIN), &[term(2)]).about("before Connect")?;
        if peer.disk().is_ok() {
            let io = peer.io(Digests::empty())?;
            expect_term_req(io.link, &bytes(Form::PLAIN), &[term(2)]).about("before any command")?;
        }
    }
    Ok(())
}

fn other_cid(peer: &Target) -> Check {
    for other in [1_u16, 0x100, 0x8000] {
        wrong_data(
            peer,
            |asked| asked.right().with(8, &u16_bytes(asked.cid ^ other)).seal(),
            &[term_at(1, 8)],
        )?;
    }
    Ok(())
}

fn other_offset(peer: &Target) -> Check {
    for offset in [4_u32, 512, 4096, 0x8000_0000, u32::MAX - 3] {
        wrong_data(peer, |asked| asked.right().with(12, &offset.to_le_bytes()).seal(), &[term(4)])
            .about(format!("DATAO {offset}"))?;
    }
    let disk = peer.scratch()?;
    // In the middle of the requested range: repeated, backwards, and with a gap.
    for (what, second) in [("repeated", 0), ("back", 512 - 4), ("a gap", 1024)] {
        let mut asked = Asked::new(peer, disk, Digests::empty())?;
        let (form, cid, ttag) = (asked.io.form(), asked.cid, asked.window.ttag);
        asked.io.link.send(&Draft::h2c_data(form, cid, ttag, 0, &asked.data[..512], false).seal())?;
        let bytes = Draft::h2c_data(form, cid, ttag, second, &asked.data[..512], false).seal();
        expect_term_req(asked.io.link, &bytes, &[term(4)]).about(what)?;
    }
    Ok(())
}

fn beyond_window(peer: &Target) -> Check {
    let disk = peer.scratch()?;
    for extra in [4_u32, 512] {
        let mut asked = Asked::new(peer, disk, Digests::empty())?;
        let length = asked.window.length + extra;
        if length > asked.io.link.h2c_data_bytes_max {
            continue;
        }
        asked.data.resize(length as usize, 0);
        let (form, cid, ttag) = (asked.io.form(), asked.cid, asked.window.ttag);
        let bytes = Draft::h2c_data(form, cid, ttag, 0, &asked.data, true).seal();
        expect_term_req(asked.io.link, &bytes, &[term(4)]).about(format!("{extra} bytes too many"))?;
    }
    // An offset that overflows with the length, after a valid start.
    for offset in [0xFFFF_F000_u32, 0xFFFF_FFFC, 0u32.wrapping_sub(512)] {
        let asked = Asked::new(peer, disk, Digests::empty())?;
        let (form, cid, ttag) = (asked.io.form(), asked.cid, asked.window.ttag);
        let bytes = Draft::h2c_data(form, cid, ttag, offset, &asked.data[..0x1000], true).seal();
        expect_term_req(asked.io.link, &bytes, &[term(4)]).about(format!("DATAO {offset:#x}"))?;
    }
    Ok(())
}

fn no_data(peer: &Target) -> Check {
    wrong_data(peer, |asked| asked.right().with(16, &[0; 4]).seal(), &[term_at(1, 16)])
        .about("PLEN with data")?;
    wrong_data(
        peer,
        |asked| {
            let pdo = asked.right().seal()[3];
            let draft = asked.right().with(16, &[0; 4]).with_plen(pdo.into());
            draft.seal()[..pdo.into()].to_vec()
        },
        &[term_at(1, 16)],
    )
    .about("PLEN without data")
}

fn other_length(peer: &Target) -> Check {
    for difference in [4_i64, -4, 512, -512, 0x7000_0000] {
        wrong_data(
            peer,
            |asked| {
                let length = u32::try_from(i64::from(asked.window.length) + difference).expect("positive");
                asked.right().with(16, &length.to_le_bytes()).seal()
            },
            &[term_at(1, 16)],
        )
        .about(format!("{difference} bytes"))?;
    }
    Ok(())
}

fn too_much(peer: &Target) -> Check {
    let disk = peer.scratch()?;
    let limit = peer.host().link(Digests::empty())?.h2c_data_bytes_max;
    if limit > 8 << 20 {
        return skipped("MAXH2CDATA is larger than what is sent from here");
    }
    let asked = Asked::new(peer, disk, Digests::empty())?;
    let (form, cid, ttag) = (asked.io.form(), asked.cid, asked.window.ttag);
    let data = vec![0; limit as usize + 4];
    let bytes = Draft::h2c_data(form, cid, ttag, 0, &data, true).seal();
    expect_term_req(asked.io.link, &bytes, &[term(5)])
}

fn last_flag(peer: &Target) -> Check {
    wrong_data(
        peer,
        |asked| {
            let (form, ttag) = (asked.io.form(), asked.window.ttag);
            Draft::h2c_data(form, asked.cid, ttag, 0, &asked.data[..asked.window.length as usize], false)
                .seal()
        },
        &[term_at(1, 1)],
    )
    .about("missing")?;
    wrong_data(
        peer,
        |asked| {
            let (form, ttag) = (asked.io.form(), asked.window.ttag);
            Draft::h2c_data(form, asked.cid, ttag, 0, &asked.data[..512], true).seal()
        },
        &[term_at(1, 1)],
    )
    .about("too early")
}

fn walk_past(peer: &Target) -> Check {
    let disk = peer.scratch()?;
    // Piece by piece up to the end, then one more.
    let mut asked = Asked::new(peer, disk, Digests::empty())?;
    let (form, cid, ttag) = (asked.io.form(), asked.cid, asked.window.ttag);
    let (length, part) = (asked.window.length, 512);
    for offset in (0..length - part).step_by(part as usize) {
        let data = &asked.data[offset as usize..(offset + part) as usize];
        asked.io.link.send(&Draft::h2c_data(form, cid, ttag, offset, data, false).seal())?;
    }
    let bytes = Draft::h2c_data(form, cid, ttag, length - part, &vec![0; 2 * part as usize], true).seal();
    expect_term_req(asked.io.link, &bytes, &[term(4)])
}

fn error_within(peer: &Target) -> Check {
    let disk = peer.scratch()?;
    let asked = Asked::new(peer, disk, Digests::empty())?;
    let wrong = asked.right().with(12, &4_u32.to_le_bytes()).seal();
    // Part of the data arrives with the error; the rest and valid commands follow.
    let mut link = asked.io.link;
    link.send(&wrong[..600])?;
    std::thread::sleep(Duration::from_millis(20));
    link.send(&wrong[600..])?;
    let read = disk.read(0, 1).with_cid(77).with_data(Sgl::transport(disk.block_bytes));
    for _ in 0..8 {
        link.send(&Draft::command(Form::PLAIN, read, &[]).seal())?;
    }
    match link.receive()? {
        Got::TermReq { fes, fei, .. } => holds(fes.raw() == 4, format!("a TermReq ({fes}, {fei:#x})"))?,
        got => return differs(got),
    }
    link.finish();
    match link.receive()? {
        Got::Closed => Ok(()),
        got => differs(format!("{got} after its TermReq")),
    }
}

fn interleaved(peer: &Target) -> Check {
    use wire::pdu::{DataAlignment, IcReq};
    let disk = peer.scratch()?;
    for r2t_limit in [1, 4] {
        let Association { admin, io, cntlid } = peer.associate(Digests::empty())?;
        drop(io);
        let mut link = peer.host().tcp()?;
        link.handshake(&IcReq::new(DataAlignment::NONE, Digests::empty(), r2t_limit))?;
        let mut io = Queue::new(link, 32);
        let data = peer.host().connect_data(cntlid);
        let sqe = peer.host().connect_command(2, 32).to_sqe();
        io.must(sqe, Move::InCapsule(zerocopy::IntoBytes::as_bytes(&data)))?;
        let mut io = io.keeping(admin);
        let blocks = disk.asked_blocks();
        let fills: Vec<_> = (0..4_u8).map(|index| disk.fill(blocks, 0x80 + index)).collect();
        let cids = fills
            .iter()
            .zip(0_u64..)
            .map(|(data, index)| io.submit(disk.write(index * u64::from(blocks), blocks), Move::Asked(data)))
            .collect::<Check<Vec<_>>>()?;
        let mut windows = Vec::new();
        for cid in &cids {
            match io.step(*cid)? {
                Step::Wants(window) => windows.push(window),
                Step::Over(answer) => {
                    return differs(format!("a write without data ends: {}", answer.status()));
                }
            }
        }
        // Alternates between the two writes until all data is sent.
        let form = io.form();
        let longest = windows.iter().map(|window| window.length).max().unwrap_or(0);
        for at in (0..longest).step_by(512) {
            for (window, data) in windows.iter().zip(&fills) {
                if at < window.length {
                    let end = (at + 512).min(window.length);
                    let part = &data[(window.offset + at) as usize..(window.offset + end) as usize];
                    let is_last = end == window.length;
                    let pdu =
                        Draft::h2c_data(form, window.cid, window.ttag, window.offset + at, part, is_last);
                    io.link.send(&pdu.seal())?;
                }
            }
        }
        for (cid, data) in cids.iter().zip(&fills) {
            expect_status(&io.finish(*cid, data)?, &[Status::SUCCESS])?;
        }
        for index in 0..4_u8 {
            disk.holds(&mut io, u64::from(index) * u64::from(blocks), blocks, 0x80 + index)?;
        }
    }
    Ok(())
}

fn no_answer(peer: &Target) -> Check {
    let disk = peer.scratch()?;
    let mut asked = Asked::new(peer, disk, Digests::empty())?;
    for _ in 0..100 {
        asked.io.must(disk.read(64, 1), Move::Back(disk.block_bytes)).about("a command instead of data")?;
    }
    // As many writes as the queue holds, all without data; other hosts of this target must not be affected.
    let more: Vec<_> = (0..asked.io.entries - 3)
        .map(|_| asked.io.submit(disk.write(0, disk.asked_blocks()), Move::Asked(&asked.data)))
        .collect::<Check<_>>()?;
    peer.check_healthy().about("while writes wait for data")?;
    for cid in more {
        let data = asked.data.clone();
        expect_status(&asked.io.finish(cid, &data)?, &[Status::SUCCESS])?;
    }
    let (window, data) = (asked.window, asked.data.clone());
    asked.io.serve(&window, &data)?;
    expect_status(&asked.io.finish(asked.cid, &data)?, &[Status::SUCCESS])
}

fn aborted(peer: &Target) -> Check {
    let disk = peer.scratch()?;
    let blocks = disk.asked_blocks();
    for digests in [Digests::empty(), Digests::all()] {
        let mut association = peer.associate(digests)?;
        disk.put(&mut association.io, 0, blocks, 0x99)?;
        let data = disk.fill(blocks, 0x9A);
        let cid = association.io.submit(disk.write(0, blocks), Move::Asked(&data))?;
        let Step::Wants(window) = association.io.step(cid)? else { return skipped("no R2T for a write") };
        let abort = association.admin.must(Sqe::abort(Qid::new(1), cid), Move::None).about("Abort")?;
        let was_aborted = AbortResult::from_bits(abort.cqe.dw0()).bits() & 1 == 0;
        // The data may still arrive, in pieces.
        let (form, length) = (association.io.form(), window.length);
        let half = length / 2;
        for (start, end) in [(0, half), (half, length)] {
            let part = &data[start as usize..end as usize];
            let pdu = Draft::h2c_data(form, cid, window.ttag, start, part, end == length);
            association.io.link.send(&pdu.seal())?;
        }
        let answer = association.io.finish(cid, &data)?;
        if was_aborted {
            expect_status(&answer, &[Status::ABORT_REQUESTED])?;
            disk.holds(&mut association.io, 0, blocks, 0x99).about("an aborted write")?;
        } else {
            expect_status(&answer, &[Status::SUCCESS])?;
        }
        association.io.must(disk.read(0, 1), Move::Back(disk.block_bytes)).about("after that")?;
    }
    Ok(())
}

fn small_asked(peer: &Target) -> Check {
    let disk = peer.scratch()?;
    let mut io = peer.io(Digests::empty())?;
    for blocks in [1, 2, 8] {
        let data = disk.fill(blocks, 0x23);
        io.must(disk.write(0, blocks), Move::Asked(&data)).about(format!("{blocks} blocks"))?;
        disk.holds(&mut io, 0, blocks, 0x23)?;
    }
    Ok(())
}
