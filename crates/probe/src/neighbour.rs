//! A healthy host beside the hostile one: its I/O must go on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use peer::finding::{Check, Finding, holds};
use peer::queue::{Move, Queue};
use wire::pdu::Digests;

use crate::target::{Disk, Target};

/// Blocks it works on, the last ones.
pub const BLOCKS: u64 = 16;

/// Time between two of its commands.
const PACE: Duration = Duration::from_millis(1);

/// A host that writes and reads blocks all the time, or only reads where nothing may be written.
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
    /// The longest a command took since it was asked for last.
    pause: Duration,
    /// Since when the command that runs does.
    since: Option<Instant>,
    failure: Option<Finding>,
    count: u64,
}

impl Neighbour {
    /// Starts one.
    ///
    /// # Errors
    /// It cannot connect.
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

    /// How its I/O went since the last question: the longest pause, or what failed.
    ///
    /// # Errors
    /// What failed.
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

    /// Runs a step of its work and keeps how long it took.
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

/// A block that is like no other.
fn pattern(disk: Disk, lba: u64, round: u64) -> Vec<u8> {
    let words = [lba.to_le_bytes(), round.to_le_bytes()].concat();
    words.into_iter().cycle().take(disk.block_bytes as usize).collect()
}
