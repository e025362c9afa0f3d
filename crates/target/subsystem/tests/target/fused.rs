//! Fused pairs of which one command is refused before it is executed. wire §16

use nvlane_subsystem::config::TimeoutConfig;
use peer::queue::{Answer, Move, Queue};
use wire::id::Nsid;
use wire::sgl::Sgl;
use wire::sqe::{Fuse, Sqe};
use wire::status::Status;

const ONE: Nsid = Nsid::new(1);
const BLOCK: [u8; 512] = [9; 512];

/// Sends a Write that the queue itself refuses: its data pointer begins after the start of its data.
fn send_refused(queue: &mut Queue, fuse: Fuse) -> u16 {
    let cid = queue.cid();
    let mut pointer = Sgl::in_capsule(512);
    pointer.address.set(8);
    let sqe = Sqe::write(ONE, 0, 1).with_fuse(fuse).with_cid(cid).with_data(pointer);
    queue.send(sqe, &BLOCK).expect("sent");
    cid
}

/// The Compare would match, so a Write that took the place of the refused one would change the block.
#[test]
fn a_second_command_that_is_refused_is_not_replaced_by_a_later_one() {
    let missing = Status::ABORTED_MISSING_FUSED.with_dnr();
    let (_target, mut association) = crate::support::associate(TimeoutConfig::default());
    let queue = &mut association.io;
    for fuse in [Fuse::SECOND, Fuse::FIRST, Fuse::NONE] {
        let first = Sqe::compare(ONE, 0, 1).with_fuse(Fuse::FIRST);
        let first = queue.submit(first, Move::InCapsule(&[0; 512])).expect("sent");
        let refused = send_refused(queue, fuse);
        let second = Sqe::write(ONE, 0, 1).with_fuse(Fuse::SECOND);
        let second = queue.submit(second, Move::InCapsule(&BLOCK)).expect("sent");
        let commands = [first, refused, second].map(|cid| (cid, &[][..]));
        let statuses: Vec<Status> =
            queue.finish_all(&commands).expect("answers").iter().map(Answer::status).collect();
        assert_eq!(statuses, [missing, Status::SGL_OFFSET_INVALID.with_dnr(), missing], "{fuse:?}");
    }
    let read = queue.must(Sqe::read(ONE, 0, 1), Move::Back(512)).expect("a read");
    assert_eq!(read.data, [0; 512]);
}
