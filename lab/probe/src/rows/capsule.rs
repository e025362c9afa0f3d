//! Section 3: command capsules and their data pointers.

use linux::random::SplitMix64;
use wire::U64;
use wire::sqe::SqeFlags;

use super::prelude::*;
use crate::rows::common_header::expect_term_req;

pub(super) const ROWS: &[TargetRow] = &[
    row("C1", no_length),
    row("C2", huge_length),
    row("C3", other_length),
    row("C4", too_much_in_capsule),
    row("C5", other_than_present),
    row("C6", offset),
    row("C7", read_in_capsule),
    row("C8", other_types),
    row("C9", other_flags),
    row("C10", same_cid),
    row("C11", too_many),
    row("C12", opcodes),
    row("C13", before_connect),
    row("C14", before_enable),
    row("C15", |_| skipped("memory cannot be taken away from here")),
    row("C16", results_of_failures),
];

/// A Write of one block with this data pointer.
fn write_with(disk: Disk, pointer: Sgl) -> Sqe {
    disk.write(0, 1).with_data(pointer)
}

/// Sends a command with its data pointer unchanged, and waits for its completion.
fn run_raw(queue: &mut Queue, sqe: Sqe, data: &[u8]) -> Check<Answer> {
    let cid = queue.cid();
    queue.send(sqe.with_cid(cid), data)?;
    match queue.step(cid)? {
        Step::Over(answer) => Ok(answer),
        Step::Wants(_) => differs("an R2T, not a completion"),
    }
}

fn must_fail(queue: &mut Queue, sqe: Sqe, data: &[u8], rights: &[Status]) -> Check {
    expect_status(&run_raw(queue, sqe, data)?, rights)
}

fn no_length(peer: &Target) -> Check {
    let disk = peer.disk()?;
    let mut io = peer.io(Digests::empty())?;
    let rights = [Status::DATA_SGL_LENGTH_INVALID];
    for blocks in [1, 8] {
        must_fail(&mut io, disk.read(0, blocks).with_data(Sgl::none()), &[], &rights).about("Read")?;
        must_fail(&mut io, disk.write(0, blocks).with_data(Sgl::none()), &[], &rights).about("Write")?;
    }
    Ok(())
}

fn huge_length(peer: &Target) -> Check {
    let disk = peer.disk()?;
    let mut io = peer.io(Digests::empty())?;
    for length in [u32::MAX, u32::MAX - 3, 1 << 31] {
        let sqe = write_with(disk, Sgl::transport(length));
        let rights = [Status::DATA_SGL_LENGTH_INVALID, Status::INVALID_FIELD];
        // A pointer longer than MDTS cannot be meant for this block.
        must_fail(&mut io, sqe, &[], &rights).about(format!("{length} bytes"))?;
    }
    Ok(())
}

fn other_length(peer: &Target) -> Check {
    let disk = peer.disk()?;
    let Association { mut admin, mut io } = Association::new(peer)?;
    let rights = [Status::DATA_SGL_LENGTH_INVALID];
    let block = disk.block_bytes;
    for length in [block - 4, 4, block / 2] {
        must_fail(&mut io, disk.read(0, 1).with_data(Sgl::transport(length)), &[], &rights)
            .about(format!("a Read of {length} bytes"))?;
        must_fail(&mut io, write_with(disk, Sgl::transport(length)), &[], &rights)
            .about(format!("a Write of {length} bytes"))?;
    }
    for length in [block + 4, 2 * block, 16 * block] {
        let answer = io.must(disk.read(0, 1), Move::Back(length)).about("a longer Read")?;
        holds(answer.data.len() == block as usize, format!("{} bytes for a block", answer.data.len()))?;
    }
    let command = IdentifyCommand { cns: Cns::CONTROLLER, ..IdentifyCommand::default() };
    let answer =
        admin.must(command.to_sqe(Nsid::NONE), Move::Back(2 * IDENTIFY_BYTES)).about("a longer Identify")?;
    holds(answer.data.len() == IDENTIFY_BYTES as usize, format!("{} bytes of Identify", answer.data.len()))?;
    // Where only one length is valid, the target may also accept a part.
    let answer = admin.run(command.to_sqe(Nsid::NONE), Move::Back(512)).about("a shorter Identify")?;
    if answer.status().is_success() {
        holds(answer.data.len() == 512, "a shorter Identify is neither refused nor clipped")?;
    } else {
        expect_status(&answer, &rights).about("a shorter Identify")?;
    }
    if !peer.settings.may_overwrite {
        return Ok(());
    }
    // The peer requests this block and no more.
    let blocks = disk.asked_blocks();
    let data = disk.fill(blocks + 1, 0x44);
    let cid = io.submit(disk.write(0, blocks), Move::Asked(&data))?;
    let mut asked = 0;
    loop {
        match io.step(cid)? {
            Step::Wants(window) => {
                asked += window.length;
                io.serve(&window, &data)?;
            }
            Step::Over(answer) => {
                expect_status(&answer, &[Status::SUCCESS]).about("a longer Write")?;
                break;
            }
        }
    }
    holds(asked == blocks * block, format!("R2Ts for {asked} bytes of {blocks} blocks"))?;
    disk.holds(&mut io, 0, blocks, 0x44)
}

/// Both queues, for rows that use both.
struct Association {
    admin: Queue,
    io: Queue,
}

impl Association {
    fn new(peer: &Target) -> Check<Self> {
        let peer::raw_host::Association { admin, io, .. } = peer.associate(Digests::empty())?;
        Ok(Self { admin, io })
    }
}

fn too_much_in_capsule(peer: &Target) -> Check {
    let disk = peer.disk()?;
    let limit = peer.in_capsule_bytes();
    for beyond in [disk.block_bytes, 16 * disk.block_bytes] {
        let mut io = peer.io(Digests::empty())?;
        let length = limit.next_multiple_of(disk.block_bytes) + beyond;
        let cid = io.cid();
        let sqe = disk.write(0, length / disk.block_bytes).with_cid(cid);
        let bytes = in_capsule(io.form(), sqe, &vec![0; length as usize]).seal();
        io.link.send(&bytes)?;
        match io.link.receive().about(format!("{length} bytes"))? {
            Got::Completion(cqe) => holds(cqe.status().is(Status::SGL_OFFSET_INVALID), cqe.status())?,
            Got::TermReq { fes, fei, .. } => {
                holds(fes.raw() == 5 || fes.raw() == 1 && fei == 4, format!("a TermReq ({fes}, {fei})"))?;
            }
            // A TCP reset may overtake the TermReq, as not all bytes were received.
            Got::Closed => {}
            got => return differs(got),
        }
    }
    Ok(())
}

fn other_than_present(peer: &Target) -> Check {
    let disk = peer.disk()?;
    if peer.in_capsule_bytes() < 4096 {
        return skipped("there is no room for data in capsules");
    }
    for (length, present) in [(512, 1024), (1024, 512), (0, 512), (u32::MAX, 512), (512, 0)] {
        let io = peer.io(Digests::empty())?;
        let sqe = write_with(disk, Sgl::in_capsule(length)).with_cid(1);
        let bytes = Draft::command(io.form(), sqe, &vec![0; present]).seal();
        expect_term_req(io.link, &bytes, &[term_at(1, 4)]).about(format!("{length} for {present} bytes"))?;
    }
    Ok(())
}

fn offset(peer: &Target) -> Check {
    let disk = peer.disk()?;
    if peer.in_capsule_bytes() < disk.block_bytes {
        return skipped("there is no room for a block in a capsule");
    }
    for address in [1, 4, 4096, u64::MAX, u64::MAX - 511, 1 << 63] {
        let mut io = peer.io(Digests::empty())?;
        let mut pointer = Sgl::in_capsule(disk.block_bytes);
        pointer.address = U64::new(address);
        let cid = io.cid();
        let data = disk.fill(1, 0x55);
        let bytes = Draft::command(io.form(), write_with(disk, pointer).with_cid(cid), &data).seal();
        io.link.send(&bytes)?;
        match io.link.receive().about(format!("offset {address:#x}"))? {
            Got::Completion(cqe) => holds(cqe.status().is(Status::SGL_OFFSET_INVALID), cqe.status())?,
            Got::TermReq { fes, fei, .. } => holds(fes.raw() == 6, format!("a TermReq ({fes}, {fei:#x})"))?,
            got => return differs(got),
        }
    }
    Ok(())
}

fn read_in_capsule(peer: &Target) -> Check {
    let disk = peer.disk()?;
    if peer.in_capsule_bytes() < disk.block_bytes {
        return skipped("there is no room for a block in a capsule");
    }
    let mut io = peer.io(Digests::empty())?;
    let data = disk.fill(1, 0);
    io.must_end(disk.read(0, 1), Move::InCapsule(&data), &[Status::INVALID_FIELD])?;
    io.must(disk.read(0, 1), Move::Back(disk.block_bytes)).map(drop)
}

fn other_types(peer: &Target) -> Check {
    let disk = peer.disk()?;
    let mut io = peer.io(Digests::empty())?;
    let pointer = |identifier| {
        let mut pointer = Sgl::transport(disk.block_bytes);
        pointer.identifier = identifier;
        pointer
    };
    // Bit bucket, segment, last segment, keyed, vendor's; known types with unknown subtypes.
    let others = [0x10, 0x20, 0x30, 0x40, 0x4F, 0xF0, 0x0A, 0x0F, 0x51, 0x5B, 0x02];
    for identifier in others {
        for sqe in [disk.read(0, 1), disk.write(0, 1)] {
            must_fail(&mut io, sqe.with_data(pointer(identifier)), &[], &[Status::SGL_TYPE_INVALID])
                .about(format!("{identifier:#04x}"))?;
        }
    }
    if peer.in_capsule_bytes() < 512 {
        return Ok(());
    }
    for identifier in others {
        let io = peer.io(Digests::empty())?;
        let sqe = write_with(disk, pointer(identifier)).with_cid(1);
        let bytes = Draft::command(io.form(), sqe, &[0; 512]).seal();
        expect_term_req(io.link, &bytes, &[term(6)]).about(format!("{identifier:#04x} with data"))?;
    }
    Ok(())
}

fn other_flags(peer: &Target) -> Check {
    let disk = peer.disk()?;
    let mut io = peer.io(Digests::empty())?;
    let read = disk.read(0, 1).with_data(Sgl::transport(disk.block_bytes));
    for (what, bits) in [("PRP", 0x00), ("PSDT 10", 0x80), ("PSDT 11", 0xC0), ("FUSE 11", 0x43)] {
        let sqe = Sqe { flags: SqeFlags::from_bits(bits), ..read };
        let rights = [Status::INVALID_FIELD, Status::SGL_TYPE_INVALID];
        // An SGL data pointer with host memory may be refused for that.
        must_fail(&mut io, sqe, &[], &rights).about(what)?;
    }
    for bits in [0x44, 0x48, 0x50, 0x60, 0x7C] {
        let sqe = Sqe { flags: SqeFlags::from_bits(bits), ..read };
        let cid = io.cid();
        io.send(sqe.with_cid(cid), &[])?;
        let answer = io.finish(cid, &[]).about(format!("flags {bits:#04x}"))?;
        // Reserved bits may be ignored.
        let rights = [Status::INVALID_FIELD, Status::SUCCESS];
        expect_status(&answer, &rights).about(format!("flags {bits:#04x}"))?;
    }
    Ok(())
}

fn same_cid(peer: &Target) -> Check {
    let disk = peer.scratch()?;
    let blocks = disk.asked_blocks();
    let mut io = peer.io(Digests::empty())?;
    let data = disk.fill(blocks, 0x66);
    let cid = io.submit(disk.write(0, blocks), Move::Asked(&data))?;
    let Step::Wants(window) = io.step(cid)? else { return skipped("no R2T for a write") };
    for sqe in [disk.write(1024, blocks), disk.read(0, blocks)] {
        io.send(sqe.with_cid(cid).with_data(Sgl::transport(blocks * disk.block_bytes)), &[])?;
        match io.link.receive()? {
            Got::Completion(cqe) => holds(cqe.status().is(Status::COMMAND_ID_CONFLICT), cqe.status())?,
            got => return differs(format!("{got} to the second command of an id")),
        }
    }
    io.serve(&window, &data)?;
    let answer = io.finish(cid, &data)?;
    expect_status(&answer, &[Status::SUCCESS]).about("the first command of an id")?;
    disk.holds(&mut io, 0, blocks, 0x66)
}

fn too_many(peer: &Target) -> Check {
    let disk = peer.disk()?;
    let blocks = disk.asked_blocks();
    for entries in [2, 4, 32] {
        let mut io = peer.io_with(Digests::empty(), entries)?;
        let sqe = disk.write(0, blocks).with_data(Sgl::transport(blocks * disk.block_bytes));
        // No command gets its data, so all stay outstanding.
        for cid in 0..=u16::try_from(entries).expect("few") {
            io.send(sqe.with_cid(cid), &[])?;
        }
        let bytes = Draft::command(io.form(), sqe, &[]).seal();
        let last = [&bytes[..10], &u16::try_from(entries).expect("few").to_le_bytes(), &bytes[12..]].concat();
        // A full queue may or may not have a spare entry: the excess command is one of two.
        let before =
            [&bytes[..10], &(u16::try_from(entries).expect("few") - 1).to_le_bytes(), &bytes[12..]].concat();
        expect_too_many(&mut io, &[&last, &before]).about(format!("{entries} entries"))?;
    }
    Ok(())
}

fn expect_too_many(io: &mut Queue, offending: &[&[u8]]) -> Check {
    loop {
        match io.link.receive()? {
            Got::R2t(_) => {}
            Got::TermReq { fes, fei, copy } => {
                let what = format!("a TermReq ({fes}, {fei:#x})");
                holds(fes.raw() == 2, &what)?;
                let is_of_these = offending.iter().any(|bytes| bytes.starts_with(&copy));
                return holds(is_of_these, format!("{what} for another PDU"));
            }
            got => return differs(format!("{got}, not a TermReq")),
        }
    }
}

/// Admin commands whose effects would disturb the target.
const LEFT_OUT: [u8; 7] = [0x0D, 0x10, 0x11, 0x14, 0x15, 0x80, 0x84];

fn opcodes(peer: &Target) -> Check {
    let mut random = SplitMix64::new(1);
    let mut odd = move |opcode: u8, nsid: u32| {
        let mut sqe = Sqe::new(opcode, Nsid::new(nsid));
        for dword in
            [&mut sqe.cdw10, &mut sqe.cdw11, &mut sqe.cdw12, &mut sqe.cdw13, &mut sqe.cdw14, &mut sqe.cdw15]
        {
            dword.set(u32::try_from(random.draw() >> 32).expect("32 bits"));
        }
        sqe
    };
    let is_kept = |opcode: &u8| *opcode != AdminOpcode::FABRICS.raw();
    // Admin queue: event requests stay outstanding, and commands with side effects are omitted.
    let (mut admin, _) = peer.admin(Digests::empty())?;
    for opcode in (0..=u8::MAX).filter(is_kept) {
        let is_event_request = opcode == AdminOpcode::ASYNC_EVENT_REQUEST.raw();
        if is_event_request || LEFT_OUT.contains(&opcode) {
            continue;
        }
        let answer =
            admin.run(odd(opcode, 0xFFFF_FFF0), Move::None).about(format!("admin opcode {opcode:#04x}"))?;
        if opcode >= 0xC0 {
            expect_status(&answer, &[Status::INVALID_OPCODE]).about(format!("admin opcode {opcode:#04x}"))?;
        }
    }
    // I/O queue: no namespace, so nothing can be written.
    if peer.disk().is_ok() {
        let mut io = peer.io(Digests::empty())?;
        for opcode in (0..=u8::MAX).filter(is_kept) {
            let answer =
                io.run(odd(opcode, 0xFFFF_FFF0), Move::None).about(format!("I/O opcode {opcode:#04x}"))?;
            let unknown = NvmOpcode::from_raw(opcode).name().is_none();
            let rights = [Status::INVALID_OPCODE, Status::INVALID_NAMESPACE];
            if unknown {
                expect_status(&answer, &rights).about(format!("I/O opcode {opcode:#04x}"))?;
            }
        }
    }
    // Fabrics commands of every type, on both queues.
    for fctype in 2..=u8::MAX {
        let sqe = Sqe::new(AdminOpcode::FABRICS.raw(), Nsid::new(fctype.into()));
        let answer = admin.run(sqe, Move::None);
        if fctype == 8 {
            // Disconnect has a row of its own.
            if answer.is_err() {
                admin = peer.admin(Digests::empty())?.0;
            }
            continue;
        }
        answer.about(format!("Fabrics type {fctype:#04x}"))?;
    }
    Ok(())
}

fn before_connect(peer: &Target) -> Check {
    let identify = IdentifyCommand { cns: Cns::CONTROLLER, ..IdentifyCommand::default() };
    for sqe in [identify.to_sqe(Nsid::NONE), Sqe::property_get(Property::CAP), Sqe::read(Nsid::new(1), 0, 1)]
    {
        let mut queue = peer.host().queue(Digests::empty())?;
        let answer = queue.run(sqe, Move::Back(4096))?;
        expect_status(&answer, &[Status::COMMAND_SEQUENCE_ERROR])?;
        let mut count = 1;
        let end = loop {
            match queue.run(sqe, Move::Back(4096)) {
                Ok(answer) => expect_status(&answer, &[Status::COMMAND_SEQUENCE_ERROR])?,
                Err(Finding::Differs(_)) => break count,
                Err(finding) => return Err(finding),
            }
            count += 1;
            if count > 64 {
                return differs("64 commands before Connect, and no end");
            }
        };
        holds(end >= 1, "closed at the first")?;
    }
    Ok(())
}

fn before_enable(peer: &Target) -> Check {
    peer.admitted()?;
    let refused = [Status::COMMAND_SEQUENCE_ERROR];
    let mut admin = peer.host().queue(Digests::empty())?;
    peer.host().connect_admin(&mut admin)?;
    let command = IdentifyCommand { cns: Cns::CONTROLLER, ..IdentifyCommand::default() }.to_sqe(Nsid::NONE);
    admin.must_end(command, Move::Back(IDENTIFY_BYTES), &refused).about("before CC.EN")?;
    admin.must_end(Sqe::keep_alive(), Move::None, &refused).about("Keep Alive before CC.EN")?;
    enable(&mut admin)?;
    identify(&mut admin, Cns::CONTROLLER, Nsid::NONE)?;
    let cc = enabled(peer.cap).with_en(false);
    admin.must(Sqe::property_set(Property::CC, cc.bits().into()), Move::None)?;
    wait_ready(&mut admin, false)?;
    admin.must_end(command, Move::Back(IDENTIFY_BYTES), &refused).about("after CC.EN is cleared")?;
    enable(&mut admin)?;
    identify(&mut admin, Cns::CONTROLLER, Nsid::NONE).about("enabled again").map(drop)
}

fn results_of_failures(peer: &Target) -> Check {
    let (mut admin, _) = peer.admin(Digests::empty())?;
    // A failure must have no result, as hosts read it too.
    let unknown = IdentifyCommand { cns: Cns::from_raw(0xEE), ..IdentifyCommand::default() };
    admin.must_end(unknown.to_sqe(Nsid::NONE), Move::Back(IDENTIFY_BYTES), &[Status::INVALID_FIELD])?;
    admin.must_end(Sqe::new(0xC7, Nsid::NONE), Move::None, &[Status::INVALID_OPCODE])?;
    let odd = PropertyGet { size: PropertySize::from_raw(0), property: Property::from_raw(0x1234) };
    let answer = admin.run(odd.to_sqe(), Move::None)?;
    let is_refused = !answer.status().is_success();
    holds(is_refused, "Property Get of nothing succeeds")?;
    let answer = admin.run(Disconnect { recfmt: 7 }.to_sqe(), Move::None)?;
    holds(!answer.status().is_success(), "Disconnect of an admin queue succeeds")?;
    let disk = peer.disk()?;
    let mut io = peer.io(Digests::empty())?;
    io.must_end(disk.read(disk.block_count, 1), Move::Back(disk.block_bytes), &[Status::LBA_OUT_OF_RANGE])
        .map(drop)
}
