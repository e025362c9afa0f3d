//! A hostile target: every row of docs/hostile-inputs.md for hosts. Each requires: no panic, no buffer written that
//! must not be, the right TermReq, and a library that works again once the target behaves.

use std::time::Duration;

use crate::target::{Config, Reaction, Target, connect, finish, options};
use nvlane_host::{Association, Completion, Error, Failure, LinkError};
use proto::Violation;
use proto::host_controller::ControllerError;
use proto::host_namespaces::Unusable;
use wire::U16;
use wire::cqe::Cqe;
use wire::id::{Cntlid, Nsid};
use wire::pdu::{CapsuleResp, DataPdu, Digests, IcResp, PduFlags, PduLayout, PduType, R2t};
use wire::sgl::DataPointer;
use wire::status::Status;
use zerocopy::IntoBytes;

fn c2h(cid: U16, offset: u32, length: u32, flags: PduFlags) -> Vec<u8> {
    let layout = PduLayout::new(PduType::C2hData, Digests::empty(), Default::default(), length).unwrap();
    let mut bytes = DataPdu::c2h(&layout, cid, offset, flags).as_bytes().to_vec();
    bytes.resize(bytes.len() + length as usize, 0xEE);
    bytes
}

fn response(cid: U16, status: Status) -> Vec<u8> {
    CapsuleResp::new(Digests::empty(), Cqe::new(cid, 0, status)).as_bytes().to_vec()
}

fn r2t(cid: U16, offset: u32, length: u32) -> Vec<u8> {
    R2t::new(Digests::empty(), cid, U16::new(1), offset, length).as_bytes().to_vec()
}

/// The effect of one hostile answer to the first command on the lane.
struct Outcome {
    term_reqs: Vec<(u16, u32)>,
    read: Completion<Vec<u8>>,
    losses: u64,
}

/// The target answers the first read (or write, or flush) on the lane with these bytes, and everything else correctly.
fn answer_with(opcode: u8, bytes: impl Fn(U16) -> Vec<u8> + Send + 'static) -> Outcome {
    let target = Target::with(Config { script_before_data: true, ..Config::default() });
    target.state().memory[0].fill(0x11);
    let (_association, mut lane, namespace) = connect(&target, options());
    let connections = target.connections();
    let mut bytes = Some(bytes);
    target.script(move |seen| match &bytes {
        Some(nasty) if seen.qid == 1 && seen.sqe.opcode == opcode => {
            let nasty = nasty(seen.sqe.cid);
            bytes = None;
            Reaction::Raw(nasty)
        }
        _ => Reaction::Execute,
    });
    let command = match opcode {
        READ => (namespace.read(0, 8).unwrap(), Some(vec![0; 4096])),
        WRITE => (namespace.write(0, 40).unwrap(), Some(vec![0x22; 40 * 512])),
        _ => (namespace.flush(), None),
    };
    lane.submit(command.0, command.1, 1).unwrap();
    let read = finish(&mut lane).remove(0);
    // In every case the lane still works.
    lane.submit(namespace.read(50, 1).unwrap(), Some(vec![0; 512]), 2).unwrap();
    assert_eq!(finish(&mut lane).remove(0).buffer.unwrap(), vec![0x11; 512]);
    if lane.counters().losses > 0 {
        target.await_ends(&connections);
    }
    let term_reqs = target.state().term_reqs.clone();
    Outcome { term_reqs, read, losses: lane.counters().losses }
}

const READ: u8 = 0x02;
const WRITE: u8 = 0x01;
const FLUSH: u8 = 0x00;

/// The answer violates the protocol: the host sends this TermReq and repeats the read, which returns the right data.
fn violates(bytes: impl Fn(U16) -> Vec<u8> + Send + 'static, fes: u16, fei: u32) {
    let outcome = answer_with(READ, bytes);
    assert_eq!(outcome.term_reqs, [(fes, fei)]);
    assert_eq!(outcome.losses, 1);
    assert_eq!((outcome.read.result, outcome.read.buffer.unwrap()), (Ok(0), vec![0x11; 4096]));
}

/// [`violates`] for an answer to a write or a flush, which is not repeated.
fn violates_on(opcode: u8, bytes: impl Fn(U16) -> Vec<u8> + Send + 'static, fes: u16, fei: u32) {
    let outcome = answer_with(opcode, bytes);
    assert_eq!(outcome.term_reqs, [(fes, fei)]);
    let expected = if opcode == FLUSH { Failure::Unflushed } else { Failure::Interrupted };
    assert_eq!(outcome.read.result, Err(expected));
}

/// hostile H1
#[test]
fn a_wrong_handshake_fails_the_connect() {
    type Change = fn(&mut Vec<u8>);
    let cases: [(&str, Change); 12] = [
        ("type", |bytes| bytes[0] = 5),
        ("hlen", |bytes| bytes[2] = 24),
        ("plen", |bytes| bytes[4] = 129),
        ("pfv", |bytes| bytes[8] = 1),
        ("cpda", |bytes| bytes[10] = 32),
        ("header digest", |bytes| bytes[11] = 1),
        ("both digests", |bytes| bytes[11] = 3),
        ("maxh2cdata 0", |bytes| bytes[12..16].fill(0)),
        ("maxh2cdata 4095", |bytes| bytes[12..16].copy_from_slice(&4095u32.to_le_bytes())),
        ("maxh2cdata 4098", |bytes| bytes[12..16].copy_from_slice(&4098u32.to_le_bytes())),
        ("closed", Vec::clear),
        ("partial", |bytes| bytes.truncate(100)),
    ];
    for (name, change) in cases {
        let hook = move |response: IcResp| {
            let mut bytes = response.as_bytes().to_vec();
            change(&mut bytes);
            bytes
        };
        let target = Target::with(Config { ic_resp: Some(Box::new(hook)), ..Config::default() });
        // The host only waits for bytes that never complete a PDU.
        let connect_timeout =
            if name == "partial" { Duration::from_millis(40) } else { Duration::from_secs(10) };
        let options = options().with_connect_timeout(connect_timeout);
        let error = Association::connect(&target.address(), options).unwrap_err();
        let Error::Link { cause, .. } = &error else { panic!("{name}: {error}") };
        match name {
            "partial" => {
                assert!(matches!(cause, LinkError::TimedOut { to: "handshake", .. }), "{name}: {cause}");
            }
            "closed" => assert!(matches!(cause, LinkError::Closed { .. }), "{name}: {cause}"),
            _ => assert!(matches!(cause, LinkError::Violation(_)), "{name}: {cause}"),
        }
    }
}

#[test]
fn digests_must_be_agreed_exactly() {
    let hook = |response: IcResp| {
        let mut bytes = response.as_bytes().to_vec();
        bytes[11] = 0;
        bytes
    };
    let target = Target::with(Config { ic_resp: Some(Box::new(hook)), ..Config::default() });
    let error = Association::connect(&target.address(), options().with_digests()).unwrap_err();
    assert!(error.to_string().contains("does not accept the requested digests"), "{error}");
    assert!(error.is_permanent());
}

/// hostile H2, H3
#[test]
fn data_that_belongs_to_no_read_is_refused() {
    violates(
        |cid| {
            let mut bytes = c2h(cid, 0, 4096, PduFlags::LAST);
            bytes[2] = 255;
            bytes
        },
        1,
        2,
    );
    violates(|cid| c2h(U16::new(cid.get() ^ 0x400), 0, 4096, PduFlags::LAST), 1, 8);
    violates(|cid| c2h(U16::new(cid.get() ^ 0x3f), 0, 4096, PduFlags::LAST), 1, 8);
    violates_on(WRITE, |cid| c2h(cid, 0, 4096, PduFlags::LAST), 1, 8);
    violates_on(FLUSH, |cid| c2h(cid, 0, 4096, PduFlags::LAST), 1, 8);
}

/// hostile H4
#[test]
fn data_outside_the_read_is_refused() {
    violates(|cid| c2h(cid, 4, 4092, PduFlags::LAST), 4, 0);
    violates(|cid| c2h(cid, 0, 4100, PduFlags::LAST), 4, 0);
    violates(|cid| c2h(cid, u32::MAX - 3, 4096, PduFlags::LAST), 4, 0);
    violates(|cid| [c2h(cid, 0, 2048, PduFlags::empty()), c2h(cid, 0, 2048, PduFlags::LAST)].concat(), 4, 0);
    violates(|cid| [c2h(cid, 0, 4096, PduFlags::empty()), c2h(cid, 4096, 4, PduFlags::LAST)].concat(), 4, 0);
    violates(
        |cid| {
            let mut bytes = c2h(cid, 0, 4096, PduFlags::LAST);
            bytes[16..20].copy_from_slice(&8192u32.to_le_bytes());
            bytes
        },
        1,
        16,
    );
    violates(
        |cid| {
            let mut bytes = c2h(cid, 0, 4, PduFlags::LAST);
            bytes.truncate(24);
            bytes[3] = 0;
            bytes[4] = 24;
            bytes[16..20].fill(0);
            bytes
        },
        1,
        16,
    );
}

/// hostile H5
#[test]
fn a_short_read_never_succeeds() {
    violates(|cid| c2h(cid, 0, 4096, PduFlags::SUCCESS), 1, 1);
    let short = Err(Failure::Status(Status::DATA_TRANSFER_ERROR));
    for bytes in [
        (|cid| c2h(cid, 0, 2048, PduFlags::LAST | PduFlags::SUCCESS)) as fn(U16) -> Vec<u8>,
        |cid| [c2h(cid, 0, 2048, PduFlags::LAST), response(cid, Status::SUCCESS)].concat(),
        |cid| response(cid, Status::SUCCESS),
    ] {
        let outcome = answer_with(READ, bytes);
        assert_eq!((outcome.read.result, outcome.losses), (short, 0));
    }
}

/// hostile H6
#[test]
fn completions_of_nothing_are_refused() {
    violates(|cid| response(U16::new(cid.get() ^ 0x400), Status::SUCCESS), 2, 0);
    violates(|_| response(U16::new(0xffff), Status::SUCCESS), 2, 0);
    violates_on(WRITE, |cid| response(cid, Status::SUCCESS), 2, 0);
    // Twice: the first completion ends the read, the second one the connection.
    let outcome = answer_with(READ, |cid| {
        let data = c2h(cid, 0, 4096, PduFlags::LAST);
        [data, response(cid, Status::SUCCESS), response(cid, Status::SUCCESS)].concat()
    });
    assert_eq!((outcome.read.result, outcome.losses), (Ok(0), 1));
    assert_eq!(outcome.term_reqs, [(2, 0)]);
}

/// hostile H7, H8, H9, H10
#[test]
fn windows_that_cannot_be_are_refused() {
    violates_on(WRITE, |cid| r2t(cid, 0, 0), 1, 16);
    violates(|cid| r2t(cid, 0, 512), 2, 0);
    violates_on(FLUSH, |cid| r2t(cid, 0, 512), 2, 0);
    violates_on(WRITE, |cid| r2t(U16::new(cid.get() ^ 0x400), 0, 512), 1, 8);
    violates_on(WRITE, |cid| r2t(cid, 0, 40 * 512 + 4), 4, 0);
    violates_on(WRITE, |cid| r2t(cid, 4, 512), 4, 0);
    violates_on(WRITE, |cid| r2t(cid, u32::MAX - 3, 512), 4, 0);
    violates_on(WRITE, |cid| [r2t(cid, 0, 512), r2t(cid, 512, 512)].concat(), 5, 0);
    violates_on(WRITE, |cid| [r2t(cid, 0, 1024), r2t(cid, 0, 512)].concat(), 5, 0);
}

/// hostile H11
#[test]
fn a_targets_term_req_ends_the_connection_quietly() {
    for (plen, fes, length) in [
        (24u32, 1u16, 24),
        (152, 2, 152),
        (24, 0, 24),
        (24, 0xffff, 24),
        (8, 1, 24),
        (23, 1, 24),
        (153, 1, 160),
    ] {
        let outcome = answer_with(READ, move |_| {
            let mut bytes = vec![0; length];
            bytes[0] = 3;
            bytes[2] = 24;
            bytes[4..8].copy_from_slice(&plen.to_le_bytes());
            bytes[8..10].copy_from_slice(&fes.to_le_bytes());
            bytes
        });
        assert!(outcome.term_reqs.is_empty(), "a TermReq is not answered");
        assert_eq!((outcome.read.result, outcome.losses), (Ok(0), 1));
    }
}

#[test]
fn unknown_pdus_and_flags_are_refused() {
    violates(|_| vec![0x08, 0, 24, 0, 24, 0, 0, 0], 1, 0);
    violates(|_| vec![0x04, 0, 72, 0, 72, 0, 0, 0], 1, 0);
    violates(|_| vec![0x01, 0, 128, 0, 128, 0, 0, 0], 2, 0);
    violates(|_| vec![0xff; 64], 1, 0);
    violates(
        |cid| {
            let mut bytes = response(cid, Status::SUCCESS);
            bytes[1] = 1;
            bytes
        },
        1,
        1,
    );
    violates(
        |cid| {
            let mut bytes = response(cid, Status::SUCCESS);
            bytes[4] = 28;
            bytes
        },
        1,
        4,
    );
}

/// hostile H12
#[test]
fn a_read_with_a_wrong_data_digest_is_read_again_on_the_same_connection() {
    let target = Target::new();
    target.state().memory[0].fill(0x33);
    let (_association, mut lane, namespace) = connect(&target, options().with_digests());
    let mut count = 0;
    target.script(move |seen| {
        if seen.qid == 0 || seen.sqe.opcode != READ {
            return Reaction::Execute;
        }
        count += 1;
        if count > 3 {
            return Reaction::Execute;
        }
        let layout = PduLayout::new(PduType::C2hData, Digests::all(), Default::default(), 512).unwrap();
        let pdu = DataPdu::c2h(&layout, seen.sqe.cid, 0, PduFlags::LAST | PduFlags::SUCCESS);
        let mut bytes = pdu.as_bytes().to_vec();
        bytes.extend_from_slice(&wire::digest::header_digest(&bytes).to_le_bytes());
        bytes.resize(bytes.len() + 512, 0x33);
        bytes.extend_from_slice(&[1, 2, 3, 4]);
        Reaction::Raw(bytes)
    });
    lane.submit(namespace.read(0, 1).unwrap(), Some(vec![0; 512]), 1).unwrap();
    let done = finish(&mut lane).remove(0);
    assert_eq!((done.result, done.buffer.unwrap(), lane.counters().losses), (Ok(0), vec![0x33; 512], 0));
}

#[test]
fn statuses_that_pass_are_tried_again_and_others_are_not() {
    let target = Target::new();
    let (_association, mut lane, namespace) = connect(&target, options());
    let mut retries = 0;
    for (status, tries) in [
        (Status::COMMAND_INTERRUPTED, 6),
        (Status::NAMESPACE_NOT_READY.with_dnr(), 1),
        (Status::INTERNAL_ERROR, 6),
        (Status::INTERNAL_ERROR.with_dnr(), 1),
        (Status::UNRECOVERED_READ_ERROR, 1),
    ] {
        let (sender, receiver) = std::sync::mpsc::channel();
        target.script(move |seen| {
            if seen.qid == 0 {
                return Reaction::Execute;
            }
            sender.send(()).unwrap();
            Reaction::Status(status)
        });
        lane.submit(namespace.read(0, 1).unwrap(), Some(vec![0; 512]), 1).unwrap();
        let failure = finish(&mut lane).remove(0).result.unwrap_err();
        assert_eq!(failure.status(), Some(status));
        assert_eq!(matches!(failure, Failure::GaveUp { retry_count: 5, .. }), tries > 1, "{failure}");
        target.obey();
        assert_eq!(receiver.iter().count(), tries, "{status}");
        retries += tries as u64 - 1;
        assert_eq!(lane.counters().retries, retries, "{status}");
    }
}

#[test]
fn a_command_that_is_tried_again_is_sent_at_once() {
    let target = Target::new();
    let (_association, mut lane, namespace) = connect(&target, options());
    let mut count = 0;
    target.script(move |seen| {
        count += u32::from(seen.qid > 0);
        if count == 1 { Reaction::Status(Status::COMMAND_INTERRUPTED) } else { Reaction::Execute }
    });
    lane.submit(namespace.read(0, 1).unwrap(), Some(vec![0; 512]), 1).unwrap();
    let mut done = Vec::new();
    // A wait that ends without the completion would be one for something else.
    assert_eq!(lane.wait(&mut done, Duration::from_secs(120)), 1);
    assert!(done[0].is_ok(), "{done:?}");
}

/// hostile H14
#[test]
fn controllers_and_namespaces_that_make_no_sense_are_refused_by_name() {
    let target = Target::of(|setup| setup.identify.icdoff_for_tests(1));
    let error = Association::connect(&target.address(), options()).unwrap_err();
    assert!(error.to_string().contains("ICDOFF"), "{error}");
    // Blocks of 1 byte.
    let target = Target::of(|setup| {
        (setup.lba_bytes, setup.namespaces) = (1, vec![4096]);
    });
    let association = target.connect(options());
    let error = association.addressed_namespace().unwrap_err();
    assert!(matches!(error, Error::UnusableNamespace { cause: Unusable::NoBlockSize, .. }), "{error}");
    let target = Target::of(|setup| setup.namespaces = vec![]);
    let error = target.connect(options()).addressed_namespace().unwrap_err();
    assert!(error.to_string().contains("there is none"), "{error}");
}

trait ForTests {
    fn icdoff_for_tests(&mut self, icdoff: u16);
}

impl ForTests for wire::identify::controller::IdentifyController {
    fn icdoff_for_tests(&mut self, icdoff: u16) {
        self.as_mut_bytes()[1800..1802].copy_from_slice(&icdoff.to_le_bytes());
    }
}

/// hostile H17
#[test]
fn what_a_controller_calls_itself_cannot_command_a_terminal() {
    let target = Target::of(|setup| setup.identify.as_mut_bytes()[24..32].copy_from_slice(b"\x1b[2Jevil"));
    let identify = target.connect(options()).identify_controller().unwrap();
    assert_eq!(identify.model().to_string(), "\\x1b[2Jevilest");
}

/// hostile H20
#[test]
fn queues_of_another_controller_are_refused() {
    let target = Target::of(|setup| setup.identify.set_cntlid(Cntlid::new(77)));
    let error = Association::connect(&target.address(), options()).unwrap_err();
    let Error::Link { cause: LinkError::Controller(ControllerError::OtherController { .. }), .. } = error
    else {
        panic!("{error}")
    };
}

/// hostile H22
#[test]
fn a_bring_up_that_fails_at_any_step_leaves_nothing_behind() {
    let steps = {
        let target = Target::new();
        target.connect(options());
        target.state().admin_seen.len()
    };
    for step in 0..steps {
        for reaction in 0..3 {
            let target = Target::new();
            let mut count = 0;
            target.script(move |_| {
                count += 1;
                match (count == step + 1, reaction) {
                    (false, _) => Reaction::Execute,
                    (true, 0) => Reaction::Close,
                    (true, 1) => Reaction::Status(Status::INTERNAL_ERROR),
                    (true, _) => Reaction::Raw(vec![0xff; 8]),
                }
            });
            match Association::connect(&target.address(), options()) {
                Ok(association) => drop(association),
                Err(Error::Link { .. }) => {}
                Err(error) => panic!("step {step}: {error}"),
            }
            target.await_ends(&target.connections());
        }
    }
}

/// hostile H18, H22
#[test]
fn a_bring_up_cut_at_any_pdu_fails_or_succeeds_but_never_hangs() {
    for pdus in 0..24 {
        for bytes in [0, 1, 23] {
            let target = Target::new();
            target.cut_after(pdus, bytes);
            let connected = Association::connect(&target.address(), options());
            let lane = connected.and_then(|association| association.lane::<Vec<u8>>());
            if let Err(error) = lane {
                assert!(matches!(error, Error::Link { .. } | Error::TooFewQueues { .. }), "{error}");
            }
        }
    }
}

/// hostile H23
#[test]
fn what_fits_the_capsule_goes_in_the_capsule() {
    let target = Target::new();
    let (_association, mut lane, namespace) = connect(&target, options());
    let (sender, receiver) = std::sync::mpsc::channel();
    target.script(move |seen| {
        if seen.qid > 0 {
            sender.send(seen.sqe.dptr.classify()).unwrap();
        }
        Reaction::Execute
    });
    for blocks in [1, 16, 17] {
        let data = vec![0; blocks as usize * 512];
        lane.submit(namespace.write(0, blocks).unwrap(), Some(data), 1).unwrap();
        assert!(finish(&mut lane)[0].is_ok());
    }
    target.obey();
    let pointers: Vec<_> = receiver.iter().collect();
    assert!(matches!(pointers[0], DataPointer::InCapsule { length: 512, .. }));
    assert!(matches!(pointers[1], DataPointer::InCapsule { length: 8192, .. }));
    assert!(matches!(pointers[2], DataPointer::Transport { length: 8704 }));
}

#[test]
fn a_port_that_speaks_something_else_is_recognised() {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nvlane_host::Address::from(listener.local_addr().unwrap())
        .with_subsystem(crate::target::NQN.parse().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2p1\r\n");
        // Until the host closes.
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let error = Association::connect(&address, options()).unwrap_err();
    assert!(error.to_string().contains("is this an NVMe/TCP port"), "{error}");
    let Error::Link { cause: LinkError::Violation(Violation::Sequence), .. } = error else {
        panic!("{error}")
    };
}

#[test]
fn wrong_addresses_and_names_get_one_clear_line() {
    let target = Target::new();
    let wrong_name = target.address().with_subsystem("nqn.2016-06.io.nvlane:other".parse().unwrap());
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        nvlane_host::Address::from(listener.local_addr().unwrap())
            .with_subsystem(crate::target::NQN.parse().unwrap())
    };
    let unresolved: nvlane_host::Address =
        format!("no-such-host.invalid/{}", crate::target::NQN).parse().unwrap();
    for (address, hint) in [
        (wrong_name, "there is no subsystem nqn.2016-06.io.nvlane:other"),
        (closed, "is the target running"),
        (unresolved, "cannot resolve"),
        (nvlane_host::Address::from(target.address), "names no subsystem"),
    ] {
        let message = Association::connect(&address, options()).unwrap_err().to_string();
        assert!(message.contains(hint) && !message.contains('\n'), "{message}");
    }
    let association = target.connect(options());
    let error = association.namespace(Nsid::new(7)).unwrap_err().to_string();
    assert!(error.contains("no namespace 7; there is 1"), "{error}");
}
