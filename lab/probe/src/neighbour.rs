//! A healthy host that runs beside the hostile one: its I/O must continue.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use peer::finding::{Check, Finding, holds};
use peer::queue::{Move, Queue};
use wire::pdu::Digests;

use crate::target::{Disk, Target};

/// Blocks that it uses, at the end of the namespace.
pub const BLOCKS: u64 = 16;

/// Interval between its commands: much less than any pause that is wrong, and little work in rows that wait for 40 s.
const PACE: Duration = Duration::from_millis(5);

/// A host that continuously writes and reads blocks, or only reads if writing is not allowed.
#[derive(Debug)]
pub struct Neighbour {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    is_over: AtomicBool,
    state: Mutex<State>,
}

#[derive(Clone, Debug, Default)]
struct State {
    /// Longest duration of a command since the last query.
    pause: Duration,
    /// Start of the command in flight.
    since: Option<Instant>,
    failure: Option<Finding>,
    count: u64,
}

impl Neighbour {
    /// Connects and starts one.
    pub fn start(peer: &Target, disk: Disk) -> Check<Self> {
        let association = peer.associate(Digests::empty())?;
        let shared = Arc::new(Shared::default());
        let thread = {
            let (shared, may_write) = (Arc::clone(&shared), peer.settings.may_overwrite);
            std::thread::spawn(move || {
                let mut association = association;
                let result = work(&mut association.io, disk, may_write, &shared);
                shared.lock(|state| state.failure = result.err());
            })
        };
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Returns the longest pause of its I/O since the last query.
    pub fn report(&self) -> Check<Duration> {
        self.shared.lock(|state| {
            if let Some(failure) = &state.failure {
                return Err(failure.clone().about("a neighbour's I/O"));
            }
            let running = state.since.map_or(Duration::ZERO, |since| since.elapsed());
            Ok(std::mem::take(&mut state.pause).max(running))
        })
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs one step and records its duration.
    fn timed<T>(&self, act: impl FnOnce() -> Check<T>) -> Check<T> {
        let start = Instant::now();
        self.lock(|state| state.since = Some(start));
        let result = act();
        self.lock(|state| {
            state.since = None;
            state.count += 1;
            state.pause = state.pause.max(start.elapsed());
        });
        result
    }
}

fn work(io: &mut Queue, disk: Disk, may_write: bool, shared: &Shared) -> Check {
    let first = disk.block_count - BLOCKS;
    let mut expected: Vec<Option<Vec<u8>>> = vec![None; usize::try_from(BLOCKS).expect("few")];
    for round in 0_u64.. {
        if shared.is_over.load(Ordering::Relaxed) {
            break;
        }
        let index = round % BLOCKS;
        let (lba, slot) = (first + index, usize::try_from(index).expect("few"));
        if may_write {
            let data = pattern(disk, lba, round);
            shared.timed(|| io.must(disk.write(lba, 1), disk.bring(&data)))?;
            expected[slot] = Some(data);
        }
        let answer = shared.timed(|| io.must(disk.read(lba, 1), Move::Back(disk.block_bytes)))?;
        let wanted = expected[slot].get_or_insert_with(|| answer.data.clone());
        holds(*wanted == answer.data, format!("block {lba} is not what was written to it"))?;
        std::thread::sleep(PACE);
    }
    Ok(())
}

/// A block with unique content.
fn pattern(disk: Disk, lba: u64, round: u64) -> Vec<u8> {
    let words = [lba.to_le_bytes(), round.to_le_bytes()].concat();
    words.repeat(disk.block_bytes as usize / words.len())
}
