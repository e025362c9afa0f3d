//! Load through losses of the connection: completed writes are readable, and so is nothing that was never written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use host::{Failure, Lane, Namespace};

use crate::setup::PATIENCE;

/// Number of blocks used.
const BLOCKS: u64 = 64;

/// The contents allowed for a block.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The newest completed write.
    done: u64,
    /// Later writes with an unknown outcome: any of them may have been executed.
    maybe: Option<(u64, u64)>,
}

impl Known {
    fn check(&self, lba: u64, bytes: &[u8]) {
        let word = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
        assert!(bytes.chunks(8).all(|part| part == word.to_le_bytes()), "block {lba} is torn");
        let may = self.maybe.is_some_and(|(first, last)| (first..=last).contains(&word));
        assert!(word == self.done || may, "block {lba} holds {word}, not {self:?}");
    }
}

/// A lane and the expected contents behind it. Each write of a block carries the number of the write.
pub(crate) struct Churn {
    lane: Lane,
    namespace: Namespace,
    known: [Known; BLOCKS as usize],
    number: u64,
    /// Number of commands that succeeded.
    done: Arc<AtomicU64>,
}

impl Churn {
    /// A load on a zeroed namespace.
    pub(crate) fn new(lane: Lane, namespace: Namespace) -> Self {
        Self { lane, namespace, known: [Known::default(); BLOCKS as usize], number: 0, done: Arc::default() }
    }

    /// Counter of successful commands, to watch from another thread.
    pub(crate) fn done(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.done)
    }

    /// Writes and reads until stopped. `may_fail` says which failures of a write or a read are expected.
    pub(crate) fn run(&mut self, is_over: &AtomicBool, may_fail: impl Fn(Failure, bool) -> bool) {
        let mut in_flight = BTreeMap::new();
        let mut ended = Vec::new();
        let mut last = Instant::now();
        while !is_over.load(Ordering::Relaxed) || self.lane.outstanding() > 0 {
            while !is_over.load(Ordering::Relaxed) && self.lane.has_room(1) && in_flight.len() < 24 {
                let number = self.number + 1;
                let lba = (number * 7) % BLOCKS;
                if in_flight.values().any(|&(at, _)| at == lba) {
                    break;
                }
                self.number = number;
                let is_write = !number.is_multiple_of(3);
                let (command, word) = match is_write {
                    true => (self.namespace.write(lba, 1), number),
                    false => (self.namespace.read(lba, 1), 0),
                };
                let buffer = word.to_le_bytes().repeat(512);
                self.lane.submit(command.expect("within it"), Some(buffer), number).expect("room");
                in_flight.insert(number, (lba, is_write));
            }
            if self.lane.wait(&mut ended, Duration::from_millis(100)) > 0 {
                last = Instant::now();
            }
            assert!(last.elapsed() < PATIENCE, "nothing ends");
            for completion in ended.drain(..) {
                let (lba, is_write) = in_flight.remove(&completion.user).expect("one end");
                let block = &mut self.known[lba as usize];
                self.done.fetch_add(u64::from(completion.result.is_ok()), Ordering::Relaxed);
                match completion.result {
                    Ok(_) if is_write => *block = Known { done: completion.user, maybe: None },
                    Ok(_) => block.check(lba, &completion.buffer.expect("a read has one")),
                    Err(failure) if may_fail(failure, is_write) => {
                        if is_write {
                            let first = block.maybe.map_or(completion.user, |(first, _)| first);
                            block.maybe = Some((first, completion.user));
                        }
                    }
                    Err(failure) => panic!("{failure}"),
                }
            }
        }
    }

    /// Reads and checks every block.
    pub(crate) fn check_all(&mut self) {
        let mut ended = Vec::new();
        for (lba, block) in (0..).zip(&self.known) {
            let read = self.namespace.read(lba, 1).expect("within it");
            self.lane.submit(read, Some(vec![0; 4096]), 0).expect("room");
            while self.lane.outstanding() > 0 {
                self.lane.wait(&mut ended, PATIENCE);
            }
            let end = ended.pop().expect("one end");
            assert!(end.is_ok(), "{:?}", end.result);
            block.check(lba, &end.buffer.expect("a read has one"));
        }
    }

    /// Continues on another lane.
    pub(crate) fn with_lane(self, lane: Lane) -> Self {
        Self { lane, ..self }
    }
}
