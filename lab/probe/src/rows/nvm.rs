//! Section 9: block commands.

use wire::identify::capabilities::Fuses;
use wire::identify::lists::read_nsid_list;
use wire::nvm::{CopyCommand, CopyFormat, CopySource, DatasetManagement, DsmAttributes, DsmRange};
use wire::sqe::Fuse;

use super::prelude::*;
use crate::rows::reservation;

pub(super) const ROWS: &[TargetRow] = &[
    row("N1", ends),
    row("N2", wraps),
    row("N3", transfer_limit),
    row("N4", ranges),
    row("N5", short_ranges),
    row("N6", namespaces),
    row("N7", reserved),
    row("N8", compares),
    row("N9", overlaps),
    row("N10", flushes),
    row("N11", reservation::conflicts),
];

const BEYOND: [Status; 1] = [Status::LBA_OUT_OF_RANGE];

/// Reads and, if writing is allowed, writes: both must end with one of these statuses.
fn both(peer: &Target, io: &mut Queue, disk: Disk, lba: u64, blocks: u32, rights: &[Status]) -> Check {
    let what = format!("{blocks} blocks at {lba:#x}");
    let length = blocks * disk.block_bytes;
    io.must_end(disk.read(lba, blocks), Move::Back(length), rights).about(format!("Read of {what}"))?;
    if peer.settings.may_overwrite {
        let data = disk.fill(blocks, 0xEE);
        io.must_end(disk.write(lba, blocks), disk.bring(&data), rights).about(format!("Write of {what}"))?;
    }
    Ok(())
}

fn ends(peer: &Target) -> Check {
    let disk = peer.disk()?;
    let mut io = peer.io(Digests::empty())?;
    let end = disk.block_count;
    // The neighbour uses the last block too, so it is only read.
    let last = Move::Back(disk.block_bytes);
    io.must(disk.read(end - 1, 1), last).about("the last block")?;
    for (lba, blocks) in [(end - 1, 2), (end, 1), (end, 8), (end + 1, 1), (end - 7, 8), (end * 2, 1)] {
        both(peer, &mut io, disk, lba, blocks, &BEYOND)?;
    }
    Ok(())
}

fn wraps(peer: &Target) -> Check {
    let disk = peer.disk()?;
    let mut io = peer.io(Digests::empty())?;
    if peer.settings.may_overwrite {
        disk.put(&mut io, 0, 8, 0x31)?;
    }
    let wrap = 1_u64 << (64 - disk.block_bytes.trailing_zeros());
    for lba in [wrap, wrap + 1, wrap - 1, 1 << 63, u64::MAX, u64::MAX - 7, 1 << 32, 1 << 52, 1 << 55] {
        if lba < disk.block_count {
            continue;
        }
        for blocks in [1, 8] {
            both(peer, &mut io, disk, lba, blocks, &BEYOND)?;
        }
    }
    if peer.settings.may_overwrite { disk.holds(&mut io, 0, 8, 0x31) } else { Ok(()) }
}

fn transfer_limit(peer: &Target) -> Check {
    let disk = peer.disk()?;
    let mut io = peer.io(Digests::empty())?;
    let Some(limit) = peer.transfer_bytes_max().and_then(|limit| u32::try_from(limit).ok()) else {
        return skipped("the target says that there is no limit");
    };
    let blocks = limit / disk.block_bytes;
    if blocks < 65_536 {
        let mut rights = vec![Status::INVALID_FIELD];
        if disk.block_count < 65_536 {
            // The target may report either of the two errors.
            rights.push(Status::LBA_OUT_OF_RANGE);
        }
        // A buffer of the requested length, as far as the length field can express it.
        let length = u32::try_from(65_536 * u64::from(disk.block_bytes)).unwrap_or(u32::MAX);
        io.must_end(disk.read(0, 65_536), Move::Back(length), &rights).about("65,536 blocks")?;
        io.must_end(disk.read(0, blocks + 1), Move::Back(limit + disk.block_bytes), &rights)
            .about("one too many")?;
    }
    let fits = u64::from(blocks) + crate::neighbour::BLOCKS < disk.block_count;
    holds(fits, "the namespace is too small for a transfer")?;
    let answer = io.must(disk.read(0, blocks), Move::Back(limit)).about("the limit")?;
    holds(answer.data.len() == limit as usize, "a short read")?;
    if peer.settings.may_overwrite {
        disk.put(&mut io, 0, blocks, 0x32).about("the limit")?;
        disk.holds(&mut io, 0, blocks, 0x32)?;
    }
    Ok(())
}

fn deallocate(io: &mut Queue, disk: Disk, ranges: &[DsmRange]) -> Check<peer::queue::Answer> {
    let count = u16::try_from(ranges.len()).expect("few");
    let command = DatasetManagement { range_count: count, attributes: DsmAttributes::DEALLOCATE };
    io.run(command.to_sqe(disk.nsid), disk.bring(ranges.as_bytes()))
}

fn ranges(peer: &Target) -> Check {
    let disk = peer.scratch()?;
    let commands = peer.identify.oncs();
    let mut io = peer.io(Digests::empty())?;
    let end = disk.block_count;
    let beyond = [(end - 1, 2), (end, 1), (u64::MAX, 1), (u64::MAX - 7, 8), (end - 8, 65_536)];
    disk.put(&mut io, 0, 64, 0x41)?;
    for (lba, blocks) in beyond {
        let what = format!("{blocks} blocks at {lba:#x}");
        let too_much = [Status::LBA_OUT_OF_RANGE, Status::INVALID_FIELD];
        if commands.contains(Oncs::WRITE_ZEROES) {
            let sqe = Sqe::write_zeroes(disk.nsid, lba, blocks, true);
            io.must_end(sqe, Move::None, &too_much).about(format!("Write Zeroes of {what}"))?;
        }
        if commands.contains(Oncs::VERIFY) {
            let sqe = Sqe::verify(disk.nsid, lba, blocks);
            io.must_end(sqe, Move::None, &too_much).about(format!("Verify of {what}"))?;
        }
        if commands.contains(Oncs::COMPARE) && blocks <= 8 {
            let data = disk.fill(blocks, 0x41);
            let sqe = Sqe::compare(disk.nsid, lba, blocks);
            io.must_end(sqe, disk.bring(&data), &BEYOND).about(format!("Compare of {what}"))?;
        }
        if commands.contains(Oncs::DATASET_MANAGEMENT) {
            // A valid range before it must make no difference.
            let ranges = [DsmRange::new(200, 0), DsmRange::new(lba, blocks)];
            let answer = deallocate(&mut io, disk, &ranges)?;
            expect_status(&answer, &BEYOND).about(format!("Deallocate of {what}"))?;
        }
        if commands.contains(Oncs::COPY) && blocks <= 8 {
            let from = CopySource::new(disk.nsid, lba, blocks);
            let to = CopyCommand::new(lba, CopyFormat::from_raw(0), 1);
            let inside = CopySource::new(disk.nsid, 0, blocks);
            for (what, command, source) in
                [("from", CopyCommand::new(128, CopyFormat::from_raw(0), 1), from), ("to", to, inside)]
            {
                let answer = io.run(command.to_sqe(disk.nsid), disk.bring(source.as_bytes()))?;
                let status = answer.status();
                let is_right = BEYOND.iter().any(|right| right.is(status));
                holds(is_right, format!("Copy {what} {blocks} blocks at {lba:#x}: {status}"))?;
            }
        }
    }
    if commands.contains(Oncs::DATASET_MANAGEMENT) {
        let empty = vec![DsmRange::new(0, 0); 256];
        expect_status(&deallocate(&mut io, disk, &empty)?, &[Status::SUCCESS]).about("256 empty ranges")?;
        let overlapping = vec![DsmRange::new(16, 8); 256];
        expect_status(&deallocate(&mut io, disk, &overlapping)?, &[Status::SUCCESS])
            .about("one range 256 times")?;
        let empty_beyond = [DsmRange::new(u64::MAX, 0)];
        let answer = deallocate(&mut io, disk, &empty_beyond)?;
        expect_status(&answer, &[Status::SUCCESS, Status::LBA_OUT_OF_RANGE])
            .about("an empty range beyond the end")?;
    }
    disk.holds(&mut io, 0, 16, 0x41)?;
    disk.holds(&mut io, 24, 40, 0x41)
}

fn short_ranges(peer: &Target) -> Check {
    let disk = peer.scratch()?;
    if !peer.identify.oncs().contains(Oncs::DATASET_MANAGEMENT) {
        return skipped("the target has no Dataset Management");
    }
    let mut io = peer.io(Digests::empty())?;
    for (count, length) in [(2, 16), (256, 4080), (1, 4), (1, 12), (256, 16)] {
        let command = DatasetManagement { range_count: count, attributes: DsmAttributes::DEALLOCATE };
        let data = vec![0; length];
        let rights = [Status::DATA_SGL_LENGTH_INVALID];
        let sqe = command.to_sqe(disk.nsid);
        let what = format!("{count} ranges in {length} bytes");
        io.must_end(sqe, disk.bring(&data), &rights).about(&what)?;
    }
    // No data.
    let command = DatasetManagement { range_count: 1, attributes: DsmAttributes::DEALLOCATE };
    io.must_end(command.to_sqe(disk.nsid), Move::None, &[Status::DATA_SGL_LENGTH_INVALID])
        .about("no data")
        .map(drop)
}

fn namespaces(peer: &Target) -> Check {
    let disk = peer.disk()?;
    let Association { mut admin, mut io, .. } = peer.associate(Digests::empty())?;
    let list = identify(&mut admin, Cns::ACTIVE_NAMESPACES, Nsid::NONE)?;
    let active: Vec<_> = read_nsid_list(&list).collect();
    let none = [0, 0xFFFF_FFFF, 0xFFFF_FFFE, 0x8000_0000, 0x1234].map(Nsid::new);
    let after_last = active.last().map(|nsid| Nsid::new(nsid.get() + 1));
    for nsid in none.into_iter().chain(after_last).filter(|nsid| !active.contains(nsid)) {
        let rights = [Status::INVALID_NAMESPACE, Status::INVALID_FIELD];
        let what = format!("namespace {:#x}", nsid.get());
        io.must_end(Sqe::read(nsid, 0, 1), Move::Back(disk.block_bytes), &rights).about(&what)?;
        let data = disk.fill(1, 0);
        io.must_end(Sqe::write(nsid, 0, 1), disk.bring(&data), &rights).about(&what)?;
        if nsid != Nsid::ALL {
            io.must_end(Sqe::flush(nsid), Move::None, &rights).about(format!("Flush of {what}"))?;
        }
    }
    let rights = [Status::SUCCESS, Status::INVALID_NAMESPACE];
    io.must_end(Sqe::flush(Nsid::ALL), Move::None, &rights).about("Flush of all")?;
    Ok(())
}

fn reserved(peer: &Target) -> Check {
    let disk = peer.disk()?;
    let mut io = peer.io(Digests::empty())?;
    let rights = [Status::SUCCESS, Status::INVALID_FIELD, Status::INVALID_PROTECTION_INFORMATION];
    let read = disk.read(0, 1);
    let control = |bits: u32| {
        let mut sqe = read;
        sqe.cdw12.set(sqe.cdw12.get() | bits << 16);
        sqe
    };
    let mut cases = vec![
        ("PRACT", control(1 << 13)),
        ("PRCHK", control(7 << 10)),
        ("limited retry", control(1 << 15)),
        ("directive type 1", control(1 << 4)),
        ("directive type 15", control(15 << 4)),
        ("reserved control bits", control(0x000F)),
    ];
    for (what, change) in [
        ("dword 2", (|sqe| sqe.cdw2.set(u32::MAX)) as fn(&mut Sqe)),
        ("dword 3", |sqe| sqe.cdw3.set(u32::MAX)),
        ("the metadata pointer", |sqe| sqe.mptr.set(u64::MAX)),
        ("dword 13", |sqe| sqe.cdw13.set(u32::MAX)),
        ("dword 14", |sqe| sqe.cdw14.set(u32::MAX)),
        ("dword 15", |sqe| sqe.cdw15.set(u32::MAX)),
    ] {
        let mut sqe = read;
        change(&mut sqe);
        cases.push((what, sqe));
    }
    for (what, sqe) in cases {
        let answer = io.must_end(sqe, Move::Back(disk.block_bytes), &rights).about(what)?;
        let is_whole = !answer.status().is_success() || answer.data.len() == disk.block_bytes as usize;
        holds(is_whole, format!("{what}: a short read"))?;
    }
    Ok(())
}

/// Sends two consecutive commands and returns both completions.
fn pair(io: &mut Queue, what: &str, commands: [(Sqe, &[u8]); 2]) -> Check<[Status; 2]> {
    let mut cids = [0; 2];
    for (cid, (sqe, data)) in cids.iter_mut().zip(commands) {
        *cid = io.submit(sqe, Move::Asked(data))?;
    }
    let answers = io.finish_all(&[(cids[0], commands[0].1), (cids[1], commands[1].1)]).about(what)?;
    Ok([answers[0].status(), answers[1].status()])
}

fn compares(peer: &Target) -> Check {
    let disk = peer.scratch()?;
    let mut io = peer.io(Digests::empty())?;
    if !peer.identify.oncs().contains(Oncs::COMPARE) {
        return skipped("the target has no Compare");
    }
    disk.put(&mut io, 0, 4, 0x51)?;
    let (same, other) = (disk.fill(1, 0x51), disk.fill(1, 0x52));
    let compare = Sqe::compare(disk.nsid, 0, 1);
    io.must(compare, disk.bring(&same)).about("Compare of the same")?;
    io.must_end(compare, disk.bring(&other), &[Status::COMPARE_FAILURE]).about("Compare of another")?;
    if !peer.identify.fuses().contains(Fuses::COMPARE_AND_WRITE) {
        let sqe = compare.with_fuse(Fuse::FIRST);
        return io.must_end(sqe, disk.bring(&same), &[Status::INVALID_FIELD]).about("FUSE 01").map(drop);
    }
    let first = compare.with_fuse(Fuse::FIRST);
    let second = disk.write(0, 1).with_fuse(Fuse::SECOND);
    let expect = |what: &str, got: [Status; 2], rights: [&[Status]; 2]| {
        let is_right = |got: Status, rights: &[Status]| rights.iter().any(|right| right.is(got));
        let good = is_right(got[0], rights[0]) && is_right(got[1], rights[1]);
        holds(good, format!("{what}: {} and {}", got[0], got[1]))
    };
    let missing = [Status::ABORTED_MISSING_FUSED];
    let either = [Status::ABORTED_MISSING_FUSED, Status::ABORTED_FAILED_FUSED, Status::INVALID_FIELD];
    let got = pair(&mut io, "a pair that differs", [(first, &other), (second, &other)])?;
    expect("a pair that differs", got, [&[Status::COMPARE_FAILURE], &[Status::ABORTED_FAILED_FUSED]])?;
    disk.holds(&mut io, 0, 1, 0x51)?;
    let got = pair(&mut io, "a first alone", [(first, &same), (disk.write(1, 1), &same)])?;
    expect("a first alone", got, [&missing, &[Status::SUCCESS]])?;
    let got = pair(&mut io, "a second alone", [(second, &other), (disk.write(1, 1), &same)])?;
    expect("a second alone", got, [&missing, &[Status::SUCCESS]])?;
    for (what, wrong) in [
        ("other blocks", disk.write(2, 1).with_fuse(Fuse::SECOND)),
        ("another opcode", Sqe::compare(disk.nsid, 0, 1).with_fuse(Fuse::SECOND)),
        ("another namespace", Sqe::write(Nsid::new(0x1234), 0, 1).with_fuse(Fuse::SECOND)),
    ] {
        let got = pair(&mut io, what, [(first, &same), (wrong, &other)])?;
        let rights = [&either[..], &[Status::INVALID_NAMESPACE]].concat();
        expect(what, got, [&rights, &rights])?;
    }
    // A fused first command after another one aborts the earlier one, and itself waits for a second command.
    let mut cids = Vec::new();
    for sqe in [first, first, disk.write(1, 1)] {
        cids.push((io.submit(sqe, Move::Asked(&same))?, &same[..]));
    }
    let answers = io.finish_all(&cids).about("two firsts")?;
    for (answer, right) in answers.iter().zip([missing, missing, [Status::SUCCESS]]) {
        expect_status(answer, &right).about("two firsts")?;
    }
    disk.holds(&mut io, 0, 4, 0x51)
}

fn overlaps(peer: &Target) -> Check {
    const QUEUES: u16 = 4;
    let disk = peer.scratch()?;
    let blocks = disk.asked_blocks();
    let (mut admin, cntlid) = peer.admin(Digests::empty())?;
    peer::raw_host::set_queues(&mut admin, QUEUES.into())?;
    let mut queues = (1..=QUEUES)
        .map(|qid| peer.host().connect_io(cntlid, qid, 32, Digests::empty()))
        .collect::<Check<Vec<_>>>()?;
    for round in 0..30_u8 {
        let mut under_way = Vec::new();
        for (queue, number) in queues.iter_mut().zip(0_u8..) {
            let byte = round.wrapping_mul(8).wrapping_add(number);
            let data = disk.fill(blocks, byte);
            // Start blocks differ, so that the commands overlap in part.
            let cid = queue.submit(disk.write(number.into(), blocks), Move::Asked(&data))?;
            let Step::Wants(window) = queue.step(cid)? else { return differs("a write without data ends") };
            under_way.push((cid, window, data));
        }
        for (queue, (_, window, data)) in queues.iter_mut().zip(&under_way) {
            queue.serve(window, data)?;
        }
        for (queue, (cid, _, data)) in queues.iter_mut().zip(&under_way) {
            expect_status(&queue.finish(*cid, data)?, &[Status::SUCCESS])?;
        }
        let answer = queues[0].must(disk.read(0, blocks + 3), Move::Back((blocks + 3) * disk.block_bytes))?;
        for (index, block) in answer.data.chunks(disk.block_bytes as usize).enumerate() {
            let byte = block[0];
            let number = byte.wrapping_sub(round.wrapping_mul(8));
            let covers = (usize::from(number)..usize::from(number) + blocks as usize).contains(&index);
            let is_whole = block.iter().all(|other| *other == byte);
            holds(is_whole && number < 4 && covers, format!("block {index} is of no one write"))?;
        }
    }
    Ok(())
}

fn flushes(peer: &Target) -> Check {
    let disk = peer.scratch()?;
    let mut io = peer.io(Digests::empty())?;
    let data = disk.fill(1, 0x61);
    for _ in 0..200 {
        let cids: Vec<_> = (0..10_u64)
            .map(|index| match index % 2 {
                0 => io.submit(Sqe::flush(disk.nsid), Move::None),
                _ => io.submit(disk.write(index, 1).with_fua(), disk.bring(&data)),
            })
            .collect::<Check<_>>()?;
        for cid in cids {
            expect_status(&io.finish(cid, &data)?, &[Status::SUCCESS])?;
        }
    }
    Ok(())
}
