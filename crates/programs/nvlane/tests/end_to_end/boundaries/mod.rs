//! The numbers of NVMe's specifications, each one below, at and one above, by commands of a raw host.

mod admin;
mod blocks;
mod connect;
mod keys;

use peer::queue::{Answer, Move, Queue};
use peer::raw_host::Association;
use wire::pdu::Digests;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::raw::RawHost;
use crate::setup::Rig;

/// An I/O queue of a controller of its own.
fn io_queue(rig: &Rig) -> Queue {
    let associated = RawHost::dialler(rig).associate(Digests::empty(), 32);
    let Association { admin, io, .. } = associated.unwrap_or_else(|finding| panic!("{finding}"));
    io.keeping(admin)
}

fn answer(queue: &mut Queue, sqe: Sqe, data: Move<'_>) -> Answer {
    queue.run(sqe, data).unwrap_or_else(|finding| panic!("{sqe:?}: {finding}"))
}

/// The rows of a table whose status is another one than expected.
#[derive(Default)]
struct Table(Vec<String>);

impl Table {
    /// Runs a command that must end with this status.
    #[track_caller]
    fn row(
        &mut self,
        queue: &mut Queue,
        what: &str,
        (sqe, data): (Sqe, Move<'_>),
        expected: Status,
    ) -> Answer {
        let answer = answer(queue, sqe, data);
        let found = answer.status();
        if !found.is(expected) {
            let line = std::panic::Location::caller().line();
            self.0.push(format!("line {line}, {what}: {found}, not {expected}"));
        }
        answer
    }

    #[track_caller]
    fn check(self) {
        assert!(self.0.is_empty(), "{} rows:\n{}", self.0.len(), self.0.join("\n"));
    }
}

/// Success, or this refusal.
fn success_or(is_right: bool, refusal: Status) -> Status {
    if is_right { Status::SUCCESS } else { refusal }
}
