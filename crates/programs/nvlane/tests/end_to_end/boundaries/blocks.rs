//! I/O commands on blocks. wire §14

use peer::queue::Move;
use wire::id::Nsid;
use wire::nvm::{CopyCommand, CopyFormat, CopySource, DatasetManagement, DsmAttributes, DsmRange};
use wire::sgl::Sgl;
use wire::sqe::{Fuse, Sqe};
use wire::status::Status;
use zerocopy::IntoBytes;

use super::{Table, answer, io_queue, success_or};
use crate::setup::{Rig, engines};

const ONE: Nsid = Nsid::new(1);
const SUCCESS: Status = Status::SUCCESS;

fn deallocate(ranges: u16) -> Sqe {
    DatasetManagement { range_count: ranges, attributes: DsmAttributes::DEALLOCATE }.to_sqe(ONE)
}

fn copy(destination: u64, ranges: u16) -> Sqe {
    CopyCommand::new(destination, CopyFormat::FORMAT_0, ranges).to_sqe(ONE)
}

/// The number of blocks is odd, so that no multiple of a page or of a chunk hides the end.
#[test]
fn every_command_ends_with_the_last_block() {
    const COUNT: u64 = 1027;
    const BEYOND: Status = Status::LBA_OUT_OF_RANGE;
    let bytes = COUNT * 512;
    for engine in engines() {
        for storage in [format!("ram:{bytes}?lba=512"), format!("file:{bytes}?lba=512")] {
            let rig = Rig::new(engine, &[&storage]);
            let mut io = io_queue(&rig);
            let mut table = Table::default();
            for blocks in [1u32, 2, 8, 16] {
                let length = blocks * 512;
                let data = vec![0; length as usize];
                let last = COUNT - u64::from(blocks);
                let wraps = u64::MAX - u64::from(blocks);
                for lba in
                    [0, last - 1, last, last + 1, COUNT - 1, COUNT, COUNT + 1, wraps - 1, wraps, wraps + 1]
                {
                    let fits = lba <= last;
                    let right = success_or(fits, BEYOND);
                    let what = |verb: &str| format!("{verb} {blocks} blocks at {lba} of {COUNT} ({storage})");
                    let mut row = |verb: &str, sqe, data, right| {
                        drop(table.row(&mut io, &what(verb), (sqe, data), right));
                    };
                    row("Write", Sqe::write(ONE, lba, blocks), Move::InCapsule(&data), right);
                    row("Write in R2T", Sqe::write(ONE, lba, blocks), Move::Asked(&data), right);
                    row("Read", Sqe::read(ONE, lba, blocks), Move::Back(length), right);
                    row("Compare", Sqe::compare(ONE, lba, blocks), Move::InCapsule(&data), right);
                    row("Verify", Sqe::verify(ONE, lba, blocks), Move::None, right);
                    row("Write Zeroes", Sqe::write_zeroes(ONE, lba, blocks, false), Move::None, right);
                    row("Write Zeroes, DEAC", Sqe::write_zeroes(ONE, lba, blocks, true), Move::None, right);
                    let range = DsmRange::new(lba, blocks);
                    row("Deallocate", deallocate(1), Move::InCapsule(range.as_bytes()), right);
                    let ranges = [DsmRange::new(0, 1), range];
                    row("Deallocate second", deallocate(2), Move::InCapsule(ranges.as_bytes()), right);
                    // A range without blocks is not beyond the end where it ends with it.
                    let none = DsmRange::new(lba, 0);
                    row(
                        "Deallocate none",
                        deallocate(1),
                        Move::InCapsule(none.as_bytes()),
                        success_or(lba <= COUNT, BEYOND),
                    );
                    let source = CopySource::new(Nsid::NONE, lba, blocks);
                    row("Copy from", copy(0, 1), Move::InCapsule(source.as_bytes()), right);
                    let sources = [CopySource::new(Nsid::NONE, 0, 1), source];
                    row("Copy from second", copy(0, 2), Move::InCapsule(sources.as_bytes()), right);
                    let source = CopySource::new(Nsid::NONE, 100, blocks);
                    row("Copy to", copy(lba, 1), Move::InCapsule(source.as_bytes()), right);
                    if blocks == 1 {
                        for (what, first, second, halves) in [
                            ("a pair", lba, lba, [right, right]),
                            (
                                "a pair whose second differs",
                                0,
                                lba,
                                [success_or(lba == 0, Status::INVALID_FIELD); 2],
                            ),
                        ] {
                            let first = Sqe::compare(ONE, first, 1).with_fuse(Fuse::FIRST);
                            let second = Sqe::write(ONE, second, 1).with_fuse(Fuse::SECOND);
                            let cids = [first, second].map(|sqe| {
                                (io.submit(sqe, Move::InCapsule(&data)).expect("sent"), &data[..])
                            });
                            let found: Vec<_> = io
                                .finish_all(&cids)
                                .expect("answered")
                                .iter()
                                .map(super::Answer::status)
                                .collect();
                            let is_refused = found.iter().all(|status| !status.is_success());
                            assert_eq!(is_refused, !halves[1].is_success(), "{what} at {lba}: {found:?}");
                        }
                    }
                }
            }
            table.check();
        }
    }
}

/// MDTS for what moves data, 65,536 blocks for what does not, and the lengths of data pointers.
#[test]
fn transfers_and_data_pointers_have_their_lengths() {
    const LIMIT: u32 = 64 << 10;
    const IN_CAPSULE: u32 = 4096;
    const SHORT: Status = Status::DATA_SGL_LENGTH_INVALID;
    for engine in engines() {
        let rig = Rig::with(engine, &["ram:64M?lba=512"], |config| {
            config.limits.transfer_bytes_max = LIMIT;
            config.limits.in_capsule_bytes = IN_CAPSULE;
        });
        let mut io = io_queue(&rig);
        let mut table = Table::default();
        for blocks in [LIMIT / 512 - 1, LIMIT / 512, LIMIT / 512 + 1] {
            let data = vec![0; blocks as usize * 512];
            let right = success_or(blocks <= LIMIT / 512, Status::INVALID_FIELD);
            let what = format!("{blocks} blocks");
            table.row(&mut io, &what, (Sqe::read(ONE, 0, blocks), Move::Back(blocks * 512)), right);
            table.row(&mut io, &what, (Sqe::write(ONE, 0, blocks), Move::Asked(&data)), right);
            table.row(&mut io, &what, (Sqe::compare(ONE, 0, blocks), Move::Asked(&data)), right);
        }
        for blocks in [65_535, 65_536] {
            for sqe in [
                Sqe::verify(ONE, 0, blocks),
                Sqe::write_zeroes(ONE, 0, blocks, false),
                Sqe::write_zeroes(ONE, 0, blocks, true),
            ] {
                table.row(&mut io, &format!("{blocks} blocks"), (sqe, Move::None), SUCCESS);
            }
        }
        // A buffer of one byte less than the blocks, of as many, of one more.
        for (length, right) in [(1023, SHORT), (1024, SUCCESS), (1025, SUCCESS)] {
            let back = answer_to(&mut io, Sqe::read(ONE, 0, 2).with_data(Sgl::transport(length)), &[]);
            assert!(back.is(right), "Read of 1024 bytes into {length}: {back}");
            let data = vec![0; 1024];
            let (write, compare) = (Sqe::write(ONE, 0, 2), Sqe::compare(ONE, 0, 2));
            for sqe in [write, compare] {
                let asked = answer_to(&mut io, sqe.with_data(Sgl::transport(length)), &data);
                assert!(asked.is(right), "1024 bytes out of {length}: {asked}");
            }
            let data = vec![0; length as usize];
            table.row(&mut io, "in the capsule", (write, Move::InCapsule(&data)), right);
            table.row(&mut io, "in the capsule", (compare, Move::InCapsule(&data)), right);
        }
        // More than any command may have is a slip of the host.
        for (length, right) in [(LIMIT - 1, SUCCESS), (LIMIT, SUCCESS), (LIMIT + 1, SHORT)] {
            let data = vec![0; 512];
            let found = answer_to(&mut io, Sqe::write(ONE, 0, 1).with_data(Sgl::transport(length)), &data);
            assert!(found.is(right), "512 bytes out of {length}: {found}");
        }
        for length in [IN_CAPSULE - 1, IN_CAPSULE] {
            let data = vec![0; length as usize];
            let right = success_or(length == IN_CAPSULE, SHORT);
            table.row(
                &mut io,
                "a whole capsule",
                (Sqe::write(ONE, 0, IN_CAPSULE / 512), Move::InCapsule(&data)),
                right,
            );
        }
        table.check();
    }
}

/// The status of a command with its own data pointer; R2Ts are answered from `data`.
fn answer_to(io: &mut peer::queue::Queue, sqe: Sqe, data: &[u8]) -> Status {
    let cid = io.cid();
    io.send(sqe.with_cid(cid), &[]).expect("sent");
    io.finish(cid, data).unwrap_or_else(|finding| panic!("{finding}")).status()
}

/// NR of Dataset Management and Copy is 0-based; MSRC, MSSRL and MCL.
#[test]
fn ranges_are_as_many_and_as_long_as_is_said() {
    const SHORT: Status = Status::DATA_SGL_LENGTH_INVALID;
    const TOO_MUCH: Status = Status::COMMAND_SIZE_LIMIT_EXCEEDED;
    for engine in engines() {
        let rig = Rig::with(engine, &["ram:64M?lba=512"], |config| {
            config.limits.copy_range_count_max = 64;
            config.limits.copy_range_blocks_max = 100;
            config.limits.copy_blocks_max = 600;
        });
        let mut io = io_queue(&rig);
        let mut table = Table::default();
        let marked = |io: &mut peer::queue::Queue, blocks: u32| {
            let data = vec![0xA5; blocks as usize * 512];
            assert_eq!(answer(io, Sqe::write(ONE, 0, blocks), Move::Asked(&data)).status(), SUCCESS);
        };
        for count in [1u16, 2, 255, 256] {
            marked(&mut io, 512);
            // The last range alone has a block.
            let mut ranges = vec![DsmRange::new(0, 0); usize::from(count) - 1];
            ranges.push(DsmRange::new(u64::from(count), 1));
            let whole = ranges.as_bytes();
            let what = |bytes: usize| format!("{count} ranges in {bytes} bytes");
            for cut in [16, 1] {
                let short = &whole[..whole.len() - cut];
                table.row(&mut io, &what(short.len()), (deallocate(count), Move::Asked(short)), SHORT);
                table.row(&mut io, &what(short.len()), (deallocate(count), Move::InCapsule(short)), SHORT);
            }
            let untouched = answer(&mut io, Sqe::read(ONE, 0, 512), Move::Back(512 * 512)).data;
            assert!(untouched.iter().all(|byte| *byte == 0xA5), "{count} ranges that were refused");
            table.row(&mut io, &what(whole.len()), (deallocate(count), Move::InCapsule(whole)), SUCCESS);
            let longer = [whole, &[0xFF; 16]].concat();
            table.row(&mut io, &what(longer.len()), (deallocate(count), Move::InCapsule(&longer)), SUCCESS);
            let after = answer(&mut io, Sqe::read(ONE, 0, 512), Move::Back(512 * 512)).data;
            for (lba, block) in after.chunks(512).enumerate() {
                let expected = if lba == usize::from(count) { 0 } else { 0xA5 };
                assert!(block.iter().all(|byte| *byte == expected), "{count} ranges: block {lba}");
            }
        }
        for count in [1u16, 2, 63, 64, 65, 255, 256] {
            let sources = vec![CopySource::new(Nsid::NONE, 0, 1); usize::from(count)];
            let whole = sources.as_bytes();
            let what = |bytes: usize| format!("{count} sources in {bytes} bytes");
            let fits = count <= 64;
            let short = &whole[..whole.len() - 1];
            table.row(
                &mut io,
                &what(short.len()),
                (copy(4096, count), Move::InCapsule(short)),
                if fits { SHORT } else { TOO_MUCH },
            );
            let right = success_or(fits, TOO_MUCH);
            table.row(&mut io, &what(whole.len()), (copy(4096, count), Move::InCapsule(whole)), right);
        }
        for blocks in [1, 2, 99, 100, 101, 65_535, 65_536] {
            let source = CopySource::new(Nsid::NONE, 0, blocks);
            let right = success_or(blocks <= 100, TOO_MUCH);
            table.row(
                &mut io,
                &format!("one source of {blocks}"),
                (copy(4096, 1), Move::InCapsule(source.as_bytes())),
                right,
            );
        }
        for last in [99, 100] {
            for first in [99, 100] {
                let mut sources = vec![CopySource::new(Nsid::NONE, 0, 100); 6];
                sources[0] = CopySource::new(Nsid::NONE, 0, first);
                sources.push(CopySource::new(Nsid::NONE, 0, 1));
                sources[5] = CopySource::new(Nsid::NONE, 0, last);
                let sum = 401 + first + last;
                let right = success_or(sum <= 600, TOO_MUCH);
                table.row(
                    &mut io,
                    &format!("sources of {sum} blocks"),
                    (copy(4096, 7), Move::InCapsule(sources.as_bytes())),
                    right,
                );
            }
        }
        for format in 1..=15 {
            let sqe = CopyCommand::new(4096, CopyFormat::from_raw(format), 1).to_sqe(ONE);
            let source = CopySource::new(ONE, 0, 1);
            table.row(
                &mut io,
                &format!("format {format}"),
                (sqe, Move::InCapsule(source.as_bytes())),
                Status::INVALID_FIELD,
            );
        }
        table.check();
    }
}

/// ACWU is 0-based: one block.
#[test]
fn a_pair_has_one_block() {
    let rig = Rig::new(engines()[0], &["ram:1M?lba=512"]);
    let mut io = io_queue(&rig);
    for (blocks, is_right) in [(1, true), (2, false), (3, false)] {
        let data = vec![0; blocks as usize * 512];
        let first = Sqe::compare(ONE, 0, blocks).with_fuse(Fuse::FIRST);
        let second = Sqe::write(ONE, 0, blocks).with_fuse(Fuse::SECOND);
        let cids =
            [first, second].map(|sqe| (io.submit(sqe, Move::InCapsule(&data)).expect("sent"), &data[..]));
        for answer in io.finish_all(&cids).expect("answered") {
            assert_eq!(answer.status().is_success(), is_right, "{blocks} blocks: {}", answer.status());
        }
    }
}

/// NSIDs around those that there are, NN, and the two that are reserved.
#[test]
fn a_command_names_a_namespace_that_there_is() {
    const NONE: Status = Status::INVALID_NAMESPACE;
    let rig = Rig::with(engines()[0], &["ram:1M", "ram:1M"], |config| config.limits.nsid_max = 16);
    let mut io = io_queue(&rig);
    let mut table = Table::default();
    for nsid in [0, 1, 2, 3, 15, 16, 17, 0xFFFF_FFFD, 0xFFFF_FFFE, 0xFFFF_FFFF].map(Nsid::new) {
        let right = success_or([1, 2].contains(&nsid.get()), NONE);
        let what = format!("NSID {:#x}", nsid.get());
        let block = [0; 4096];
        let range = DsmRange::new(0, 1);
        let source = CopySource::new(Nsid::NONE, 0, 1);
        let mut of_dsm = deallocate(1);
        let mut of_copy = copy(8, 1);
        of_dsm.nsid.set(nsid.get());
        of_copy.nsid.set(nsid.get());
        for (sqe, data, right) in [
            (Sqe::read(nsid, 0, 1), Move::Back(4096), right),
            (Sqe::write(nsid, 0, 1), Move::InCapsule(&block), right),
            (Sqe::compare(nsid, 0, 1), Move::InCapsule(&block), right),
            (Sqe::verify(nsid, 0, 1), Move::None, right),
            (Sqe::write_zeroes(nsid, 0, 1, false), Move::None, right),
            (of_dsm, Move::InCapsule(range.as_bytes()), right),
            (of_copy, Move::InCapsule(source.as_bytes()), right),
            (Sqe::flush(nsid), Move::None, success_or(right.is_success() || nsid == Nsid::ALL, NONE)),
        ] {
            table.row(&mut io, &format!("{what}, opcode {:#x}", sqe.opcode), (sqe, data), right);
        }
    }
    table.check();
}
