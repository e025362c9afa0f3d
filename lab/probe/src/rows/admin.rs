//! Section 8: admin commands.

use wire::feature::{GetFeatures, SetFeatures};
use wire::id::Csi;

use super::prelude::*;

pub(super) const ROWS: &[TargetRow] = &[
    row("M1", identifies),
    row("M2", logs),
    row("M3", features),
    row("M4", event_requests),
    row("M5", aborts),
    slow_row("M6", keep_alive),
    row("M7", vendor_opcodes),
    row("M8", short_buffers),
];

/// Statuses with which a target may refuse an admin command with impossible values.
const REFUSALS: [Status; 12] = [
    Status::INVALID_FIELD,
    Status::INVALID_NAMESPACE,
    Status::INVALID_LOG_PAGE,
    Status::INVALID_OPCODE,
    Status::DATA_SGL_LENGTH_INVALID,
    Status::FEATURE_NOT_CHANGEABLE,
    Status::FEATURE_NOT_SAVEABLE,
    Status::FEATURE_NOT_NAMESPACE_SPECIFIC,
    Status::COMMAND_SEQUENCE_ERROR,
    Status::INVALID_COMMAND_SET,
    Status::INVALID_COMMAND_SET_GENERIC,
    Status::KEEP_ALIVE_INVALID,
];

fn identifies(peer: &Target) -> Check {
    let (mut admin, _) = peer.admin(Digests::empty())?;
    for cns in 0..=u8::MAX {
        for (csi, nsid) in
            [(0, 0), (0, 1), (0, 0xFFFF_FFFE), (0, 0xFFFF_FFFF), (0, 0x1234), (2, 1), (0x31, 1), (0xFF, 0)]
        {
            let command = IdentifyCommand {
                cns: Cns::from_raw(cns),
                csi: Csi::from_raw(csi),
                ..IdentifyCommand::default()
            };
            let what = format!("CNS {cns:#04x}, CSI {csi}, namespace {nsid:#x}");
            let answer =
                admin.run(command.to_sqe(Nsid::new(nsid)), Move::Back(IDENTIFY_BYTES)).about(&what)?;
            if answer.status().is_success() {
                holds(
                    answer.data.len() == IDENTIFY_BYTES as usize,
                    format!("{what}: {} bytes", answer.data.len()),
                )?;
                let is_inactive = cns == 0 && nsid == 0x1234;
                holds(
                    !is_inactive || answer.data.iter().all(|byte| *byte == 0),
                    format!("{what}: no zeros"),
                )?;
            } else {
                expect_status(&answer, &REFUSALS).about(what)?;
            }
        }
    }
    let reserved = Cns::from_raw(0xFE);
    let command = IdentifyCommand { cns: reserved, ..IdentifyCommand::default() };
    admin
        .must_end(command.to_sqe(Nsid::NONE), Move::Back(IDENTIFY_BYTES), &[Status::INVALID_FIELD])
        .about("a reserved CNS")
        .map(drop)
}

fn page(lid: u8, length_bytes: u64, offset: u64) -> GetLogPage {
    GetLogPage { lid: Lid::from_raw(lid), length_bytes, offset, rae: true, ..GetLogPage::default() }
}

fn logs(peer: &Target) -> Check {
    let (mut admin, _) = peer.admin(Digests::empty())?;
    for lid in 0..=u8::MAX {
        for nsid in [0, 0xFFFF_FFFF, 1, 0x1234] {
            for (length, offset) in
                [(512, 0), (4, 0), (4096, 0), (512, 4096), (512, 1), (512, u64::MAX - 511)]
            {
                let what = format!("log {lid:#04x}, namespace {nsid:#x}, {length} bytes at {offset:#x}");
                let back = u32::try_from(length).expect("short");
                let sqe = page(lid, length, offset).to_sqe(Nsid::new(nsid));
                let answer = admin.run(sqe, Move::Back(back)).about(&what)?;
                if answer.status().is_success() {
                    holds(
                        answer.data.len() == back as usize,
                        format!("{what}: {} bytes", answer.data.len()),
                    )?;
                    // No log is that long.
                    holds(offset != u64::MAX - 511, format!("{what} succeeds"))?;
                } else {
                    expect_status(&answer, &REFUSALS).about(what)?;
                }
            }
        }
    }
    // Lengths of up to 4 GiB, with data pointers of nearly 4 GiB and of 4096 bytes.
    for length in [1_u64 << 32, 1 << 31, 64 << 20] {
        for pointer in [u32::MAX - 3, 4096] {
            let cid = admin.cid();
            let sqe = page(Lid::SMART.raw(), length, 0).to_sqe(Nsid::ALL);
            admin.send(sqe.with_cid(cid).with_data(Sgl::transport(pointer)), &[])?;
            let answer = admin.finish(cid, &[]).about(format!("{length} bytes"))?;
            if answer.status().is_success() {
                holds(answer.data.len() <= 8 << 20, format!("{} bytes of a log", answer.data.len()))?;
            } else {
                expect_status(&answer, &REFUSALS).about(format!("{length} bytes"))?;
            }
        }
    }
    Ok(())
}

fn features(peer: &Target) -> Check {
    let (mut admin, _) = peer.admin(Digests::empty())?;
    for fid in 0..=u8::MAX {
        for (nsid, select) in [(0, 0), (1, 0), (0xFFFF_FFFF, 0), (0x1234, 0), (0, 1), (0, 2), (0, 3), (0, 7)]
        {
            let mut sqe =
                GetFeatures { fid: Fid::from_raw(fid), ..GetFeatures::default() }.to_sqe(Nsid::new(nsid));
            sqe.cdw10.set(u32::from(fid) | select << 8);
            let what = format!("Get of feature {fid:#04x}, namespace {nsid:#x}, select {select}");
            let answer = admin.run(sqe, Move::Back(4096)).about(&what)?;
            if !answer.status().is_success() {
                expect_status(&answer, &REFUSALS).about(what)?;
            }
        }
        // Sets each feature to its current value, with and without the save bit.
        let current = {
            let sqe = GetFeatures { fid: Fid::from_raw(fid), ..GetFeatures::default() }.to_sqe(Nsid::NONE);
            admin.run(sqe, Move::Back(4096))?
        };
        let value = if current.status().is_success() { current.cqe.dw0() } else { 0 };
        for save in [false, true] {
            let set = SetFeatures { fid: Fid::from_raw(fid), ..set_of(value) };
            let mut sqe = set.to_sqe(Nsid::NONE);
            if save {
                sqe.cdw10.set(sqe.cdw10.get() | 1 << 31);
            }
            let what = format!("Set of feature {fid:#04x} to {value:#x}, save {save}");
            let answer = admin.run(sqe, Move::InCapsule(&[0; 4096])).about(&what)?;
            if !answer.status().is_success() {
                expect_status(&answer, &REFUSALS).about(what)?;
            }
        }
    }
    identify(&mut admin, Cns::CONTROLLER, Nsid::NONE).map(drop)
}

fn set_of(value: u32) -> SetFeatures {
    SetFeatures::from_sqe(&Sqe::set_feature(Fid::from_raw(0), Nsid::NONE, value))
}

fn event_requests(peer: &Target) -> Check {
    let (mut admin, _) = peer.admin(Digests::empty())?;
    let limit = peer.identify.aer_limit();
    let sqe = Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.raw(), Nsid::NONE);
    let held: Vec<_> = (0..limit).map(|_| admin.submit(sqe, Move::None)).collect::<Check<_>>()?;
    // Requests beyond the limit end at once.
    for round in 0..1000 {
        let cid = admin.submit(sqe, Move::None)?;
        let answer = admin.finish(cid, &[]).about(format!("request {}", round + limit))?;
        expect_status(&answer, &[Status::AER_LIMIT_EXCEEDED]).about(format!("request {}", round + limit))?;
    }
    // A host may give up an event request by itself and reuse its id.
    if let Some(cid) = held.first().copied() {
        for round in 0..3 {
            admin.send(Sqe::keep_alive().with_cid(cid), &[])?;
            let answer = admin.finish(cid, &[]).about("a command with the id of an event request")?;
            expect_status(&answer, &[Status::SUCCESS])
                .about(format!("time {round} of an id of an event request"))?;
        }
    }
    // All requests but the first can be aborted.
    for cid in held.into_iter().skip(1) {
        let abort = admin.must(Sqe::abort(Qid::ADMIN, cid), Move::None).about("Abort of an event request")?;
        if abort.cqe.dw0() & 1 == 0 {
            expect_status(&admin.finish(cid, &[])?, &[Status::ABORT_REQUESTED])?;
        }
    }
    Ok(())
}

fn aborts(peer: &Target) -> Check {
    let not_aborted = |admin: &mut Queue, qid: u16, cid: u16, what: &str| {
        let answer = admin.run(Sqe::abort(Qid::new(qid), cid), Move::None).about(what)?;
        if answer.status().is_success() {
            holds(answer.cqe.dw0() & 1 == 1, format!("{what} says that it was aborted"))?;
            return holds(answer.cqe.result.get() <= 1, format!("{what}: {:#x}", answer.cqe.result));
        }
        expect_status(&answer, &REFUSALS).about(what)
    };
    let mut association = peer.associate(Digests::empty())?;
    let admin = &mut association.admin;
    for (qid, cid) in [(0, 0xFFFF), (0, 0), (1, 0x4001), (1, 0xFFFF), (7, 1), (0xFFFF, 0xFFFF)] {
        not_aborted(admin, qid, cid, &format!("Abort of {cid:#x} on queue {qid}"))?;
    }
    // An Abort of itself.
    let cid = admin.cid();
    admin.send(Sqe::abort(Qid::ADMIN, cid).with_cid(cid), &[])?;
    let answer = admin.finish(cid, &[]).about("Abort of itself")?;
    holds(answer.cqe.dw0() & 1 == 1 || !answer.status().is_success(), "it has aborted itself")?;
    let disk = peer.disk()?;
    // Eight reads in flight and an Abort of each: each must end exactly once, aborted or not.
    for _ in 0..20 {
        let cids: Vec<_> = (0..8)
            .map(|_| association.io.submit(disk.read(0, 8), Move::Back(8 * disk.block_bytes)))
            .collect::<Check<_>>()?;
        for cid in &cids {
            let abort = Sqe::abort(Qid::new(1), *cid);
            let answer = association.admin.run(abort, Move::None)?;
            expect_status(&answer, &[Status::SUCCESS, Status::ABORT_LIMIT_EXCEEDED])?;
        }
        for cid in cids {
            let answer = association.io.finish(cid, &[])?;
            holds(
                answer.status().is_success() || answer.status().is(Status::ABORT_REQUESTED),
                answer.status(),
            )?;
        }
    }
    // A write that waits for data that never arrives.
    if peer.settings.may_overwrite {
        let blocks = disk.asked_blocks();
        let data = disk.fill(blocks, 0xAB);
        let cid = association.io.submit(disk.write(0, blocks), Move::Asked(&data))?;
        let Step::Wants(_) = association.io.step(cid)? else { return Ok(()) };
        let abort = association.admin.must(Sqe::abort(Qid::new(1), cid), Move::None)?;
        if abort.cqe.dw0() & 1 == 0 {
            expect_status(&association.io.finish(cid, &[])?, &[Status::ABORT_REQUESTED])?;
        }
    }
    Ok(())
}

fn keep_alive(peer: &Target) -> Check {
    const KATO_MS: u32 = 2000;
    const KATO: Duration = Duration::from_millis(KATO_MS as u64);
    peer.admitted()?;
    let connect = || peer.host().admin_with(Digests::empty(), KATO_MS);
    // Without any command the association must end, neither before KATO nor much later.
    let (admin, _) = connect()?;
    let start = Instant::now();
    let mut link = admin.link.patient(4 * KATO);
    link.expect_closed().about("without keep-alive")?;
    let lasted = start.elapsed();
    holds(lasted + Duration::from_millis(50) >= KATO, format!("it ends after {} ms", lasted.as_millis()))?;
    // With Keep Alive commands.
    let (mut admin, _) = connect()?;
    for _ in 0..8 {
        std::thread::sleep(KATO / 4);
        admin.must(Sqe::keep_alive(), Move::None).about("Keep Alive")?;
    }
    // With I/O alone, if the target counts I/O as keep-alive traffic (TBKAS).
    let counts = peer.identify.ctratt().contains(wire::identify::capabilities::Ctratt::TBKAS);
    let Ok(disk) = peer.disk() else { return Ok(()) };
    let (mut admin, cntlid) = connect()?;
    peer::raw_host::set_queues(&mut admin, 1)?;
    let mut io = peer.host().connect_io(cntlid, 1, ENTRIES, Digests::empty())?;
    let start = Instant::now();
    while start.elapsed() < 2 * KATO {
        match io.must(disk.read(0, 1), Move::Back(disk.block_bytes)) {
            Ok(_) => {}
            Err(Finding::Differs(_)) if !counts => return Ok(()),
            Err(finding) => return Err(finding.about("I/O without Keep Alive")),
        }
        std::thread::sleep(KATO / 8);
    }
    holds(counts, "traffic counts as keep-alive, although TBKAS is not set")
}

fn vendor_opcodes(peer: &Target) -> Check {
    let (mut admin, _) = peer.admin(Digests::empty())?;
    for opcode in 0xC0..=0xFF {
        for nsid in [0, 1, 0xFFFF_FFFF] {
            let sqe = Sqe::new(opcode, Nsid::new(nsid));
            admin.must_end(sqe, Move::None, &[Status::INVALID_OPCODE]).about(format!("{opcode:#04x}"))?;
        }
    }
    if peer.disk().is_err() {
        return Ok(());
    }
    // I/O commands of the target's own are in its log of supported commands, from byte 1024: bit 0 of four bytes each.
    let log = Sqe::get_log_page(Lid::COMMANDS_AND_EFFECTS, Nsid::NONE, 4096);
    let log = admin.run(log, Move::Back(4096))?;
    let is_own =
        |opcode: u8| log.data.get(1024 + 4 * usize::from(opcode)).is_some_and(|effects| effects & 1 == 1);
    let mut io = peer.io(Digests::empty())?;
    for opcode in (0x80..=0xFF).filter(|&opcode| !is_own(opcode)) {
        let sqe = Sqe::new(opcode, Nsid::new(1));
        io.must_end(sqe, Move::None, &[Status::INVALID_OPCODE]).about(format!("I/O opcode {opcode:#04x}"))?;
    }
    Ok(())
}

fn short_buffers(peer: &Target) -> Check {
    let (mut admin, _) = peer.admin(Digests::empty())?;
    let nsid = peer.disk.map_or(Nsid::new(1), |disk| disk.nsid);
    for cns in [Cns::NAMESPACE_DESCRIPTORS, Cns::ACTIVE_NAMESPACES, Cns::CONTROLLER, Cns::NAMESPACE] {
        let is_of_namespace = [Cns::NAMESPACE_DESCRIPTORS, Cns::NAMESPACE].contains(&cns);
        let nsid = if is_of_namespace { nsid } else { Nsid::NONE };
        let whole = identify(&mut admin, cns, nsid)?;
        let sqe = IdentifyCommand { cns, ..IdentifyCommand::default() }.to_sqe(nsid);
        let what = &format!("Identify {cns}");
        for length in [4_u32, 8, 20, 24, 64, 100, 512, 1024, 4092] {
            let answer = admin.run(sqe, Move::Back(length)).about(what)?;
            if answer.status().is_success() {
                holds(answer.data.len() <= length as usize, format!("{what}: {} bytes", answer.data.len()))?;
                holds(whole.starts_with(&answer.data), format!("{what}: another page in {length} bytes"))?;
            } else {
                expect_status(&answer, &REFUSALS).about(format!("{what} in {length} bytes"))?;
            }
        }
    }
    // Asks a log for as many bytes as the buffer has.
    for lid in [Lid::ANA, Lid::SUPPORTED_PAGES, Lid::COMMANDS_AND_EFFECTS] {
        let whole = admin.run(page(lid.raw(), 4096, 0).to_sqe(Nsid::NONE), Move::Back(4096))?;
        if !whole.status().is_success() {
            continue;
        }
        for length in [4_u32, 16, 40, 64, 512] {
            let answer =
                admin.run(page(lid.raw(), length.into(), 0).to_sqe(Nsid::NONE), Move::Back(length))?;
            let rights = [Status::SUCCESS, Status::INVALID_FIELD, Status::DATA_SGL_LENGTH_INVALID];
            expect_status(&answer, &rights).about(format!("{lid}"))?;
            if answer.status().is_success() {
                holds(
                    whole.data.starts_with(&answer.data),
                    format!("{lid}: another page in {length} bytes"),
                )?;
            }
        }
        // Asks for more bytes than the buffer has.
        let cid = admin.cid();
        let sqe = page(lid.raw(), 4096, 0).to_sqe(Nsid::NONE);
        admin.send(sqe.with_cid(cid).with_data(Sgl::transport(64)), &[])?;
        let answer = admin.finish(cid, &[])?;
        holds(answer.data.len() <= 64, format!("{lid}: {} bytes into 64", answer.data.len()))?;
    }
    Ok(())
}
