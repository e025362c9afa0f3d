//! Invalid commands: each completes with the right status, and the lane continues.

use peer::link::Got;
use peer::queue::{Answer, Move};
use wire::id::{Cntlid, Nsid};
use wire::nvm::BlockCommand;
use wire::opcode::NvmOpcode;
use wire::pdu::Digests;
use wire::sgl::Sgl;
use wire::sqe::{Psdt, Sqe, SqeFlags};
use wire::status::Status;
use zerocopy::IntoBytes;

use crate::raw::{RawHost, RawLane};
use crate::setup::{Rig, engines, options};

const ONE: Nsid = Nsid::new(1);

fn on_each(check: impl Fn(&mut RawLane)) {
    for engine in engines() {
        for storage in ["ram:16M", "file:16M", "null:16M"] {
            let rig = Rig::new(engine, &[storage]);
            let mut host = RawHost::new(&rig);
            check(&mut host.io);
            // The lane continues.
            assert_eq!(host.io.read(Sqe::read(ONE, 0, 1), 4096).len(), 4096);
        }
    }
}

#[test]
fn an_opcode_that_is_none_is_refused() {
    let known = [0x00, 0x01, 0x02, 0x05, 0x08, 0x09, 0x0C, 0x19, 0x7F];
    on_each(|lane| {
        for opcode in (0..=0xff).filter(|opcode| !known.contains(opcode)) {
            let sqe = Sqe::new(opcode, ONE);
            assert_eq!(lane.run(sqe, &[]), Status::INVALID_OPCODE.with_dnr(), "opcode {opcode:#x}");
        }
    });
}

#[test]
fn a_namespace_that_is_none_is_refused() {
    on_each(|lane| {
        for nsid in [0, 2, 1024, 1025, u32::MAX - 1, u32::MAX].map(Nsid::new) {
            let refused = Status::INVALID_NAMESPACE.with_dnr();
            for sqe in [
                Sqe::read(nsid, 0, 1).with_data(Sgl::transport(4096)),
                Sqe::write(nsid, 0, 1).with_data(Sgl::transport(4096)),
                Sqe::write_zeroes(nsid, 0, 1, false),
                Sqe::verify(nsid, 0, 1),
            ] {
                assert_eq!(lane.run(sqe, &[]), refused, "{nsid}");
            }
        }
    });
}

#[test]
fn flags_that_mean_nothing_are_refused() {
    let flags = [
        SqeFlags::SGL.with_psdt(Psdt::PRP),
        SqeFlags::SGL.with_psdt(Psdt::from_raw(2)),
        SqeFlags::SGL.with_psdt(Psdt::from_raw(3)),
        SqeFlags::SGL.with_reserved(1),
        SqeFlags::SGL.with_reserved(15),
        SqeFlags::from_bits(0x43),
    ];
    on_each(|lane| {
        for flags in flags {
            for sqe in [
                Sqe::read(ONE, 0, 1).with_data(Sgl::transport(4096)),
                Sqe::write(ONE, 0, 1).with_data(Sgl::transport(4096)),
                Sqe::write_zeroes(ONE, 0, 1, false),
                Sqe::flush(ONE),
            ] {
                let status = lane.run(Sqe { flags, ..sqe }, &[]);
                assert_eq!(status, Status::INVALID_FIELD.with_dnr(), "{flags:?} of {:#x}", sqe.opcode);
            }
        }
    });
}

/// No directive is announced. wire §14
#[test]
fn a_write_with_a_directive_is_refused() {
    on_each(|lane| {
        let refused = Status::INVALID_FIELD.with_dnr();
        for directive in [1, 15] {
            let mut sqe = Sqe::write(ONE, 0, 1);
            sqe.cdw12.set(sqe.cdw12.get() | directive << 20);
            assert_eq!(lane.run(sqe.with_data(Sgl::transport(4096)), &[]), refused, "type {directive}");
            assert_eq!(
                lane.run(sqe.with_data(Sgl::in_capsule(4096)), &[7; 4096]),
                refused,
                "type {directive}"
            );
        }
        assert!(lane.read(Sqe::read(ONE, 0, 1), 4096).iter().all(|&byte| byte == 0), "nothing was written");
    });
}

#[test]
fn a_data_pointer_that_does_not_fit_is_refused() {
    on_each(|lane| {
        let short = Status::DATA_SGL_LENGTH_INVALID.with_dnr();
        let (read, write) = (Sqe::read(ONE, 0, 2), Sqe::write(ONE, 0, 2));
        assert_eq!(lane.run(read.with_data(Sgl::transport(8191)), &[]), short);
        assert_eq!(lane.run(read.with_data(Sgl::transport(0)), &[]), short);
        assert_eq!(lane.run(write.with_data(Sgl::transport(8191)), &[]), short);
        assert_eq!(lane.run(write.with_data(Sgl::in_capsule(4096)), &[7; 4096]), short);
        let in_capsule = lane.run(read.with_data(Sgl::in_capsule(8192)), &[7; 8192]);
        assert_eq!(in_capsule, Status::INVALID_FIELD.with_dnr());
        for identifier in [0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0xf0] {
            let mut sgl = Sgl::transport(8192);
            sgl.identifier = identifier;
            let kind = Status::SGL_TYPE_INVALID.with_dnr();
            assert_eq!(lane.run(read.with_data(sgl), &[]), kind, "read with {identifier:#x}");
            assert_eq!(lane.run(write.with_data(sgl), &[]), kind, "write with {identifier:#x}");
        }
        // A longer buffer than needed is allowed: Linux uses one. wire §14
        let cid = lane.write_in_capsule(Sqe::write(ONE, 0, 1), &[7; 8192]);
        assert_eq!(lane.completion(cid).status(), Status::SUCCESS);
    });
}

#[test]
fn a_capsule_longer_than_is_taken_ends_the_lane() {
    for engine in engines() {
        let rig = Rig::new(engine, &["ram:16M"]);
        let mut host = RawHost::new(&rig);
        host.io.write_in_capsule(Sqe::write(ONE, 0, 3), &[7; 3 * 4096]);
        assert!(matches!(host.io.next(), Got::TermReq { .. }));
        host.io.await_close();
        let mut other = RawHost::new(&rig);
        assert!(other.io.read(Sqe::read(ONE, 0, 3), 3 * 4096).iter().all(|&byte| byte == 0));
    }
}

#[test]
fn a_transfer_over_the_limit_is_refused() {
    on_each(|lane| {
        let refused = Status::INVALID_FIELD.with_dnr();
        for blocks in [257, 1000, 4096] {
            let length = blocks * 4096;
            for opcode in [NvmOpcode::READ, NvmOpcode::WRITE, NvmOpcode::COMPARE] {
                let sqe = BlockCommand::new(0, blocks).to_sqe(opcode, ONE);
                let cid = lane.transport(sqe, length);
                assert_eq!(lane.completion(cid).status(), refused, "{blocks} blocks");
            }
        }
        assert_eq!(lane.read(Sqe::read(ONE, 0, 256), 1 << 20).len(), 1 << 20);
    });
}

#[test]
fn a_host_is_told_the_limit_of_a_transfer() {
    for engine in engines() {
        let rig = Rig::with(engine, &["ram:1M?lba=512"], |config| {
            config.limits.transfer_bytes_max = 64 << 10;
        });
        let mut namespace = rig.open(options());
        assert_eq!(namespace.namespace().transfer_blocks_max(), 128);
        let data: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 512) as u8).collect();
        namespace.write_at(&data, 0).expect("a write of many commands");
        let mut read = vec![0; 1 << 20];
        namespace.read_at(&mut read, 0).expect("a read of many commands");
        assert!(read == data);
    }
}

/// Both have an R2T before either has its data, which names the host.
#[test]
fn of_two_connects_that_wait_for_their_data_one_is_executed() {
    for engine in engines() {
        let rig = Rig::new(engine, &["ram:16M"]);
        let host = RawHost::dialler(&rig);
        let data = host.connect_data(Cntlid::DYNAMIC);
        let data = data.as_bytes();
        let mut queue = host.queue(Digests::empty()).unwrap();
        let sqe = host.connect_command(0, 32).to_sqe();
        let cids = [(), ()].map(|()| queue.submit(sqe, Move::Asked(data)).unwrap());
        let answers = queue.finish_all(&cids.map(|cid| (cid, data))).unwrap();
        let statuses: Vec<Status> = answers.iter().map(Answer::status).collect();
        assert_eq!(statuses, [Status::SUCCESS, Status::COMMAND_SEQUENCE_ERROR.with_dnr()]);
    }
}
