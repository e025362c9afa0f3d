//! Deadlines of hosts that hold what others may need: each ends the association, whatever the host does meanwhile.

use std::thread::sleep;
use std::time::{Duration, Instant};

use nvlane_subsystem::config::{TargetConfig, TimeoutConfig};
use nvlane_subsystem::server::Target;
use peer::link::Got;
use peer::pdu::{Draft, Form};
use peer::queue::{Move, Queue, Step};
use peer::raw_host::{Association, set_queues};
use wire::id::Nsid;
use wire::pdu::Digests;
use wire::sqe::{Fuse, Sqe};

use crate::support;

const ONE: Nsid = Nsid::new(1);
const KIB: usize = 1 << 10;
const BLOCK: [u8; 512] = [0; 512];

/// The deadlines of the target.
const DEADLINE: Duration = Duration::from_millis(500);

/// A target with short deadlines for associations that stand, and a host that has connected to it.
fn start() -> (Target, Association) {
    let deadline_ms = u64::try_from(DEADLINE.as_millis()).expect("short");
    support::associate(TimeoutConfig {
        pdu_ms: deadline_ms,
        send_ms: deadline_ms,
        data_ms: deadline_ms,
        ..TimeoutConfig::default()
    })
}

/// Waits for the end of the association, which the loss of any connection brings.
fn expect_end(association: &mut Association) {
    association.admin.link.expect_closed().expect("the association ends");
}

/// Sends a Compare and Write of block 0, which nothing takes back once it has begun.
fn submit_pair(queue: &mut Queue) {
    for (sqe, fuse) in [(Sqe::compare(ONE, 0, 1), Fuse::FIRST), (Sqe::write(ONE, 0, 1), Fuse::SECOND)] {
        queue.submit(sqe.with_fuse(fuse), Move::InCapsule(&BLOCK)).expect("sent");
    }
}

#[test]
fn a_pdu_that_comes_byte_by_byte_is_not_waited_for() {
    let (_target, mut association) = start();
    let capsule = Draft::command(Form::PLAIN, Sqe::flush(ONE).with_cid(1), &[]).seal();
    let begin = Instant::now();
    for byte in capsule {
        association.io.link.send(&[byte]).expect("sent");
        sleep(DEADLINE / 5);
    }
    assert!(begin.elapsed() > 10 * DEADLINE);
    association.io.link.expect_closed().expect("closed long before its last byte");
    expect_end(&mut association);
}

#[test]
fn data_that_comes_bit_by_bit_is_not_waited_for() {
    let (_target, mut association) = start();
    let data = vec![1; 64 * KIB];
    let cid = association.io.submit(Sqe::write(ONE, 0, 128), Move::Asked(&data)).expect("sent");
    let step = association.io.step(cid);
    let Ok(Step::Wants(window)) = step else { panic!("{step:?}, not an R2T") };
    let mut offset = window.offset;
    for part in data[..window.length as usize].chunks(KIB) {
        let is_last = offset as usize + part.len() == window.length as usize;
        let pdu = Draft::h2c_data(Form::PLAIN, cid, window.ttag, offset, part, is_last);
        association.io.link.send(&pdu.seal()).expect("sent");
        offset += u32::try_from(part.len()).expect("short");
        sleep(DEADLINE / 5);
    }
    association.io.link.expect_closed().expect("closed long before its last byte");
    expect_end(&mut association);
}

#[test]
fn a_host_that_reads_nothing_is_not_waited_for() {
    let (_target, mut association) = start();
    for _ in 0..32 {
        association.io.submit(Sqe::read(ONE, 0, 2048), Move::Back(1 << 20)).expect("sent");
    }
    expect_end(&mut association);
    let mut got = 0;
    while let Ok(Got::Data { data, .. }) = association.io.link.receive() {
        got += data.len();
    }
    assert!(got < 32 << 20, "{got} bytes were sent");
}

/// Its other lanes would withhold buffers until then, and its host could connect again beside writes that may still
/// land.
#[test]
fn what_a_lane_has_begun_does_not_delay_the_end_of_its_association() {
    let timeouts = TimeoutConfig { pdu_ms: 500, ..TimeoutConfig::default() };
    let config = TargetConfig { timeouts, ..support::config(1, "ram:16M?lba=512&delay=6s") };
    let target = Target::start(&config).expect("a target");
    let mut association = support::host(&target).associate(Digests::empty(), 64).expect("an association");
    submit_pair(&mut association.io);
    let capsule = Draft::command(Form::PLAIN, Sqe::flush(ONE).with_cid(1), &[]).seal();
    association.io.link.send(&capsule[..20]).expect("sent");
    let begin = Instant::now();
    association.io.link.expect_closed().expect("closed for the rest of the capsule");
    expect_end(&mut association);
    assert!(begin.elapsed() < Duration::from_secs(4), "after {:?}", begin.elapsed());
}

/// A write waits until a pair has released its block, and holds back what follows it: a part in the target, a part in
/// the socket.
#[test]
fn commands_that_were_held_back_are_no_sign_of_life_when_they_are_taken_in() {
    let config = support::config(1, "ram:16M?lba=512&delay=1300ms");
    let target = Target::start(&config).expect("a target");
    let host = support::host(&target);
    let (mut admin, cntlid) = host.admin_with(Digests::empty(), 1000).expect("an admin queue");
    set_queues(&mut admin, 1).expect("a queue");
    let mut io = host.connect_io(cntlid, 1, 64, Digests::empty()).expect("an I/O queue");
    submit_pair(&mut io);
    for _ in 0..2 {
        sleep(DEADLINE / 5);
        io.submit(Sqe::write(ONE, 0, 1), Move::InCapsule(&BLOCK)).expect("sent");
        io.submit(Sqe::read(ONE, 8, 1), Move::Back(512)).expect("sent");
    }
    // The timeout, its grace of 2 s, and a quarter of a second by which the target rounds; the pair takes 2.6 s.
    let begin = Instant::now();
    admin.link.expect_closed().expect("the association ends");
    assert!(begin.elapsed() < Duration::from_millis(5200), "after {:?}", begin.elapsed());
}
