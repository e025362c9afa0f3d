//! Look-ups and stores compared with the limits of memory. One run measures all cases interleaved; results are medians.
//!
//! `cargo bench -p nvlane-memcached --bench processor [-- PAIRS [ROUNDS]]`, ten million pairs of 16 and 32 bytes by
//! default.
//!
//! - *array*: the same keys, hashed the same way, read 32 bytes each from a plain array of lines, with the best
//!   prefetching we know: the limit of memory.
//! - *two arrays*: the same with an array of lines in front that says where to read: the limit of memory when an index
//!   is read first.
//! - *ceiling*: the same table as the server's, looked up in batches with a rolling prefetch; each value is read in
//!   place. The reference for the following.
//! - *server*: the work of a memcached connection between the parsed batch and its answer: 64 commands, their buckets
//!   prefetched, then their items, then each executed and its answer written.
//! - *session*: the same with parsing, from a multiget's bytes to the bytes of its answer.
//! - *single*: one look-up after the other, as fast as the processor overlaps them by itself.
//! - *dependent*: each look-up depends on the previous one, as between two commands of a server.

#![allow(missing_docs, clippy::cast_possible_truncation)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use kv::{Attributes, Condition, Eviction, Kept, KeyHash, Partition, Processor, Settings, Stored};
use linux::Moment;
use linux::random::SplitMix64;
use memory::{Lines, prefetch};
use nvlane_memcached::{
    AnswerId, CollectiveRequest, Command, Executor, LargeStore, ListenerAddress, ListenerSettings,
    ListenerStats, Progress, Router, Service, Session, Verb,
};

const BATCH: usize = 256;

/// Keys between two stages. The CPU keeps about 16 misses under way; measured flat from 8 to 24.
const WINDOW: usize = 12;

/// Commands that a connection looks up together, as in src/gets.rs.
const SERVER_BATCH: usize = 64;

/// Every key is text: no spaces, no control characters.
const KEY_BYTES: usize = 16;

/// The only partition.
struct Alone(Partition, Service);

impl Router for Alone {
    fn executor(&mut self) -> Executor<'_> {
        self.1.on(&mut self.0)
    }

    fn position(&self) -> (usize, usize) {
        (0, 1)
    }

    fn session(&self) -> u64 {
        0
    }

    fn send(&mut self, _: usize, _: AnswerId, _: KeyHash, _: &Command<'_>) {
        unreachable!("there is no other partition")
    }

    fn send_all(&mut self, _: AnswerId, _: CollectiveRequest, _: bool) {
        unreachable!("nothing is flushed")
    }

    fn reserve(&mut self, _: usize, _: usize) {
        unreachable!("no value is that long")
    }

    fn store_large(&mut self, _: usize, _: AnswerId, _: LargeStore) {
        unreachable!("no value is that long")
    }

    fn fetch(&mut self, _: usize, _: Arc<Kept>, _: usize) {
        unreachable!("no value is that long")
    }

    fn authenticate(&mut self, _: &[u8], _: &[u8]) -> bool {
        unreachable!("nobody authenticates")
    }

    fn request_connections(&mut self, _: AnswerId) {
        unreachable!("one connection");
    }
    fn listeners(&self) -> Vec<ListenerAddress> {
        Vec::new()
    }
    fn listener_stats(&self) -> ListenerStats {
        ListenerStats::default()
    }

    fn reset_listener_stats(&mut self) {
        unreachable!("nothing is reset")
    }
}

fn key(number: u64) -> [u8; KEY_BYTES] {
    let mixed = number.wrapping_mul(0xff51_afd7_ed55_8ccd);
    std::array::from_fn(|at| b"0123456789abcdef"[(mixed >> (4 * at) & 15) as usize])
}

/// Keys of one round, made before the clock starts.
fn keys(random: &mut SplitMix64, pair_count: u64, count: usize) -> Vec<[u8; 16]> {
    (0..count).map(|_| key(random.draw() % pair_count)).collect()
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks_exact(8).fold(0, |sum, word| sum ^ u64::from_le_bytes(word.try_into().expect("eight bytes")))
}

fn array(lines: &Lines, processor: &Processor, keys: &[[u8; 16]]) -> u64 {
    let spot = |hash: KeyHash| (hash.partition(1 << 24) * lines.len()) >> 24;
    let mut sums = 0;
    let mut spots = [0; BATCH];
    for batch in keys.chunks(BATCH) {
        for (at, key) in batch.iter().enumerate() {
            spots[at] = spot(processor.hash(key));
            prefetch(&lines[spots[at]]);
            if at >= 16 {
                sums ^= sum(&lines[spots[at - 16]].0[32..]);
            }
        }
        for &spot in &spots[batch.len().saturating_sub(16)..batch.len()] {
            sums ^= sum(&lines[spot].0[32..]);
        }
    }
    sums
}

fn two_arrays(index: &Lines, lines: &Lines, processor: &Processor, keys: &[[u8; 16]]) -> u64 {
    let mut sums = 0;
    let mut spots = [0; 2 * BATCH];
    for batch in keys.chunks(BATCH) {
        for at in 0..batch.len() + 2 * WINDOW {
            if at < batch.len() {
                spots[at] = (processor.hash(&batch[at]).partition(1 << 24) * index.len()) >> 24;
                prefetch(&index[spots[at]]);
            }
            if at >= WINDOW && at - WINDOW < batch.len() {
                let at = at - WINDOW;
                let word = index[spots[at]].0[..4].try_into().expect("four bytes");
                spots[at + BATCH] = u32::from_le_bytes(word) as usize;
                prefetch(&lines[spots[at + BATCH]]);
            }
            if at >= 2 * WINDOW {
                sums ^= sum(&lines[spots[at - 2 * WINDOW + BATCH]].0[32..]);
            }
        }
    }
    sums
}

/// While a key is looked up, the cache lines of the following ones are being fetched.
///
/// ```text
/// key i + 2w: hash, prefetch its bucket │ key i + w: read its bucket, prefetch its item │ key i: look it up
/// ```
fn batch(processor: &mut Processor, keys: &[[u8; 16]]) -> u64 {
    let mut sums = 0;
    let mut hashes = [processor.hash(&[]); BATCH];
    for keys in keys.chunks(BATCH) {
        for at in 0..keys.len() + 2 * WINDOW {
            if let Some(key) = keys.get(at) {
                hashes[at] = processor.hash(key);
                processor.prefetch(hashes[at]);
            }
            if (WINDOW..keys.len() + WINDOW).contains(&at) {
                processor.prefetch_item(hashes[at - WINDOW]);
            }
            if let Some(at) = at.checked_sub(2 * WINDOW) {
                let place = processor.find(hashes[at], &keys[at]).expect("stored");
                sums ^= sum(processor.value(place).head());
            }
        }
    }
    sums
}

fn server(executor: &mut Executor<'_>, keys: &[[u8; 16]], out: &mut Vec<u8>) -> u64 {
    let mut answered = 0;
    let mut hashes = [executor.partition.processor.hash(&[]); SERVER_BATCH];
    for keys in keys.chunks(SERVER_BATCH) {
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = executor.partition.processor.hash(key);
            executor.partition.processor.prefetch(*hash);
        }
        for &hash in &hashes[..keys.len()] {
            executor.partition.processor.prefetch_item(hash);
        }
        for (&hash, key) in hashes.iter().zip(keys) {
            let verb = Verb::Get { with_cas: false, touch: None };
            let command = Command { verb, key, value: &[], extra: &[], is_base64: false };
            executor.execute(hash, &command, out);
        }
        answered += out.len() as u64;
        out.clear();
    }
    answered
}

/// Multigets of one batch each, as bytes.
fn multigets(keys: &[[u8; 16]]) -> Vec<Vec<u8>> {
    let line = |keys: &[[u8; 16]]| {
        let mut line = b"get".to_vec();
        for key in keys {
            line.push(b' ');
            line.extend_from_slice(key);
        }
        line.extend_from_slice(b"\r\n");
        line
    };
    keys.chunks(BATCH).map(line).collect()
}

fn session(alone: &mut Alone, lines: &[Vec<u8>]) -> u64 {
    let mut session = Session::new(ListenerSettings::default());
    let mut answered = 0;
    for line in lines {
        assert_eq!(session.on_bytes(alone, line), Progress::Open);
        let count = session.output().len();
        answered += count as u64;
        session.on_sent(count);
    }
    answered
}

fn single(processor: &mut Processor, keys: &[[u8; 16]]) -> u64 {
    let mut sums = 0;
    for key in keys {
        let hash = processor.hash(key);
        let place = processor.find(hash, key).expect("stored");
        sums ^= sum(processor.value(place).head());
    }
    sums
}

fn dependent(processor: &mut Processor, keys: &[[u8; 16]]) -> u64 {
    let mut last = 0;
    for key in keys {
        let mut key = *key;
        // All values are equal: this changes nothing, but creates a data dependency.
        key[0] ^= (last & 1) as u8;
        let hash = processor.hash(&key);
        let place = processor.find(hash, &key).expect("stored");
        last = sum(processor.value(place).head());
    }
    last
}

fn put(processor: &mut Processor, keys: &[[u8; 16]]) -> u64 {
    for batch in keys.chunks(BATCH) {
        let mut hashes = [processor.hash(&[]); BATCH];
        for (hash, key) in hashes.iter_mut().zip(batch) {
            *hash = processor.hash(key);
        }
        for (hashes, keys) in hashes[..batch.len()].chunks(16).zip(batch.chunks(16)) {
            processor.prefetch_all(hashes);
            for (hash, key) in hashes.iter().zip(keys) {
                let stored = processor.store(*hash, key, &[2; 32], Attributes::default(), Condition::Always);
                assert_eq!(stored, Stored::Done);
            }
        }
    }
    0
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Stores all pairs one after the other, with the index growing, and reports how long single stores took.
fn fill(processor: &mut Processor, pair_count: u64, round: &str) {
    let start = Instant::now();
    let mut store_ns = Vec::with_capacity(usize::try_from(pair_count).expect("memory"));
    for number in 0..pair_count {
        let key = key(number);
        let hash = processor.hash(&key);
        let begin = Instant::now();
        let stored = processor.store(hash, &key, &[2; 32], Attributes::default(), Condition::Always);
        store_ns.push(begin.elapsed().as_nanos() as u32);
        assert_eq!(stored, Stored::Done, "pair {number} of {pair_count} does not fit into 72 bytes each");
    }
    println!(
        "{pair_count} pairs of 16 + 32 bytes in {:.3} bytes each ({:.3} taken), stored at {:.2} M/s",
        processor.used_bytes() as f64 / pair_count as f64,
        processor.taken_bytes() as f64 / pair_count as f64,
        pair_count as f64 / start.elapsed().as_secs_f64() / 1e6
    );
    store_ns.sort_unstable();
    let at = |share: f64| store_ns[((store_ns.len() - 1) as f64 * share) as usize];
    println!(
        "{round}: a store took {} ns in the median, 99 % at most {}, 99.9 % {}, 99.99 % {}, all {}",
        at(0.5),
        at(0.99),
        at(0.999),
        at(0.9999),
        at(1.0)
    );
}

fn main() {
    let numbers: Vec<u64> = std::env::args().filter_map(|word| word.parse().ok()).collect();
    let pair_count = numbers.first().copied().unwrap_or(10_000_000);
    let rounds = numbers.get(1).copied().unwrap_or(15);
    let memory_bytes =
        usize::try_from(pair_count * 72 + if pair_count < 1_000_000 { 1 << 20 } else { 0 }).expect("memory");
    let settings = Settings { memory_bytes, eviction: Eviction::None, ..Settings::default() };
    let processor = Processor::new(settings).expect("memory");
    let service = Service::new(ListenerSettings::default());
    let mut alone = Alone(Partition::new(processor, Moment::default()), service);
    // In the second round memory is already touched: the remaining cost is the index's own.
    for round in ["memory new", "memory touched before"] {
        alone.0.processor.clear();
        fill(&mut alone.0.processor, pair_count, round);
    }
    let line_count = usize::try_from(pair_count).expect("memory");
    let mut lines = Lines::new(line_count, line_count).expect("memory");
    lines.bytes_mut().fill(2);
    let mut random = SplitMix64::new(1);
    let mut index = Lines::new(lines.len() / 10, 0).expect("memory");
    for line in index.iter_mut() {
        let to = (random.draw() % pair_count) as u32;
        line.0[..4].copy_from_slice(&to.to_le_bytes());
    }
    let names = ["array", "two arrays", "ceiling", "server", "session", "single", "dependent", "put"];
    let ceiling = 2;
    let mut rates = vec![Vec::new(); names.len()];
    let mut out = Vec::with_capacity(1 << 16);
    for _ in 0..rounds {
        let keys = keys(&mut random, pair_count, 400_000);
        let multigets = multigets(&keys);
        for (which, rates) in rates.iter_mut().enumerate() {
            let start = Instant::now();
            let processor = &mut alone.0.processor;
            black_box(match which {
                0 => array(&lines, processor, &keys),
                1 => two_arrays(&index, &lines, processor, &keys),
                2 => batch(processor, &keys),
                3 => server(&mut alone.executor(), &keys, &mut out),
                4 => session(&mut alone, &multigets),
                5 => single(processor, &keys),
                6 => dependent(processor, &keys),
                _ => put(processor, &keys),
            });
            rates.push(keys.len() as f64 / start.elapsed().as_secs_f64() / 1e6);
        }
    }
    let medians: Vec<f64> = rates.into_iter().map(median).collect();
    for (name, rate) in names.iter().zip(&medians) {
        let times = medians[ceiling] / rate;
        println!("{name:10} {rate:7.2} M/s   {:5.1} ns   {times:.2} times the ceiling's", 1e3 / rate);
    }
}
