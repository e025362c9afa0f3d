//! Invalid commands: each completes with the right status, and the lane continues.

use peer::link::Got;
use peer::pdu::Draft;
use peer::queue::{Answer, Move};
use peer::raw_host::{identify, property, wait_ready};
use wire::U64;
use wire::fabrics::InvalidParameter;
use wire::feature::{Fid, GetFeatures};
use wire::id::{Cntlid, Nsid};
use wire::identify::{Cns, IdentifyCommand};
use wire::nqn::{HostId, Nqn};
use wire::nvm::BlockCommand;
use wire::opcode::NvmOpcode;
use wire::pdu::Digests;
use wire::property::{Cc, CommandSetSelection, Property};
use wire::sgl::Sgl;
use wire::sqe::{Psdt, Sqe, SqeFlags};
use wire::status::Status;
use zerocopy::{FromZeros, IntoBytes};

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
    let known = [0x00, 0x01, 0x02, 0x05, 0x08, 0x09, 0x0C, 0x19, 0x7F, 0x86];
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
fn data_that_no_sgl_describes_is_refused() {
    let refused = Status::INVALID_FIELD.with_dnr();
    on_each(|lane| {
        for psdt in [Psdt::PRP, Psdt::from_raw(2), Psdt::from_raw(3)] {
            let flags = SqeFlags::SGL.with_psdt(psdt);
            for sqe in [Sqe::read(ONE, 0, 1), Sqe::write(ONE, 0, 1)] {
                let status = lane.run(Sqe { flags, ..sqe }.with_data(Sgl::transport(4096)), &[]);
                assert_eq!(status, refused, "{flags:?} of {:#x}", sqe.opcode);
            }
        }
        for sqe in [Sqe::write_zeroes(ONE, 0, 1, false), Sqe::flush(ONE)] {
            assert_eq!(lane.run(Sqe { flags: SqeFlags::from_bits(0x43), ..sqe }, &[]), refused, "FUSE 3");
        }
    });
}

/// wire §5, wire §14, wire §29
#[test]
fn fields_that_mean_nothing_are_not_judged() {
    on_each(|lane| {
        let mut pointer = Sgl::in_capsule(512);
        pointer.address = U64::MAX_VALUE;
        for sqe in [Sqe::write_zeroes(ONE, 0, 1, false), Sqe::flush(ONE), Sqe::verify(ONE, 0, 1)] {
            for flags in [SqeFlags::from_bits(0), SqeFlags::SGL.with_reserved(15)] {
                for pointer in [pointer, Sgl::new_zeroed()] {
                    let status = lane.run(Sqe { flags, ..sqe }.with_data(pointer), &[]);
                    assert_eq!(status, Status::SUCCESS, "{flags:?}, {pointer:?} of {:#x}", sqe.opcode);
                }
            }
        }
        // No directive is announced, so none can be asked for.
        for directive in [1, 15] {
            let mut sqe = Sqe::write(ONE, 0, 1);
            sqe.cdw12.set(sqe.cdw12.get() | directive << 20);
            let sqe = Sqe { flags: SqeFlags::SGL.with_reserved(15), ..sqe };
            let status = lane.run(sqe.with_data(Sgl::in_capsule(4096)), &[0; 4096]);
            assert_eq!(status, Status::SUCCESS, "type {directive}");
        }
    });
}

/// What small hosts send on admin queues, and nvmet and SPDK take. wire §5.3, §7, §10
#[test]
fn a_host_that_leaves_unused_fields_as_they_are_is_served() {
    let no_sgl = |sqe: Sqe| sqe.with_data(Sgl::new_zeroed());
    for engine in engines() {
        let rig = Rig::new(engine, &["ram:16M"]);
        let discovery = Nqn::discovery();
        for subsystem in [None, Some(discovery)] {
            let host = RawHost::dialler(&rig);
            let is_discovery = subsystem.is_some();
            let host =
                peer::raw_host::RawHost { subsystem: subsystem.unwrap_or(host.subsystem.clone()), ..host };
            let mut admin = host.queue(Digests::empty()).unwrap();
            host.connect_admin(&mut admin).unwrap();
            // All command sets; the offset of data that is not there; the upper half of a property of 4 bytes.
            let cc = Cc::new(CommandSetSelection::ALL).with_en(true);
            let cc = if is_discovery { cc.with_iosqes(0).with_iocqes(0) } else { cc };
            let sqe = Sqe::property_set(Property::CC, u64::from(cc.bits()) | 7 << 32).with_cid(admin.cid());
            let capsule = Draft::command(admin.form(), sqe, &[]).with(3, &[72]).seal();
            admin.link.send(&capsule).unwrap();
            assert_eq!(admin.finish(sqe.cid.get(), &[]).unwrap().status(), Status::SUCCESS);
            wait_ready(&mut admin, true).unwrap();
            let crto = property(&mut admin, Property::CRTO).unwrap();
            assert_eq!(crto, 30, "15 s, as CAP.TO");
            for sqe in [
                no_sgl(Sqe::set_feature(Fid::ASYNC_EVENTS, Nsid::NONE, 0)),
                no_sgl(Sqe::set_feature(Fid::KEEP_ALIVE, Nsid::NONE, 0)),
                no_sgl(GetFeatures { fid: Fid::KEEP_ALIVE, ..GetFeatures::default() }.to_sqe(Nsid::NONE)),
                Sqe { flags: SqeFlags::from_bits(0), ..no_sgl(Sqe::keep_alive()) },
                Sqe { flags: SqeFlags::from_bits(0), ..Sqe::property_get(Property::CSTS) },
            ] {
                let cid = admin.cid();
                admin.send(sqe.with_cid(cid), &[]).unwrap();
                let status = admin.finish(cid, &[]).unwrap().status();
                assert_eq!(status, Status::SUCCESS, "{sqe:?}");
            }
            identify(&mut admin, Cns::CONTROLLER, Nsid::new(1)).expect("the NSID has no meaning");
            // Data that is to move needs a descriptor.
            let sqe = no_sgl(
                IdentifyCommand { cns: Cns::CONTROLLER, ..IdentifyCommand::default() }.to_sqe(Nsid::NONE),
            );
            let cid = admin.cid();
            admin.send(sqe.with_cid(cid), &[]).unwrap();
            assert_eq!(admin.finish(cid, &[]).unwrap().status(), Status::SGL_TYPE_INVALID.with_dnr());
        }
    }
}

/// nvmet compares the name of the host alone, SPDK neither.
#[test]
fn an_io_queue_of_another_host_identifier_is_refused_by_name() {
    for engine in engines() {
        let rig = Rig::new(engine, &["ram:16M"]);
        let host = RawHost::dialler(&rig);
        let (_admin, cntlid) = host.admin(Digests::empty()).unwrap();
        let other = peer::raw_host::RawHost { hostid: HostId::from_bytes([0xBB; 16]), ..host.clone() };
        let mut queue = other.queue(Digests::empty()).unwrap();
        let data = other.connect_data(cntlid);
        let answer =
            queue.run(other.connect_command(1, 32).to_sqe(), Move::InCapsule(data.as_bytes())).unwrap();
        assert_eq!(answer.status(), Status::CONNECT_INVALID_PARAMETERS.with_dnr());
        assert_eq!(answer.cqe.dw0(), InvalidParameter::HOSTID.bits());
        host.connect_io(cntlid, 1, 32, Digests::empty()).expect("its own host connects");
    }
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
