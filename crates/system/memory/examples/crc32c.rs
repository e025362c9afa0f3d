//! Times of a CRC32C: ours, and that of the `crc-fast` crate alone.
//!
//! `cargo run --release -p nvlane-memory --example crc32c`

use std::hint::black_box;
use std::time::Instant;

const RUNS: usize = 200;
const REPETITIONS: usize = 2000;

/// The shortest time of one call in all runs, ns.
fn best_ns(mut call: impl FnMut() -> u32) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        for _ in 0..REPETITIONS {
            black_box(call());
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / REPETITIONS as f64);
    }
    best
}

fn main() {
    println!("{:>8} {:>10} {:>10}", "bytes", "ours, ns", "crate, ns");
    for length in [24, 72, 512, 4096, 8192, 65_536] {
        let bytes = vec![0x5a; 24 + length];
        let bytes = &bytes[24..];
        let ours = best_ns(|| nvlane_memory::crc32c::checksum(black_box(bytes)));
        let alone = best_ns(|| crc_fast::crc32_iscsi(black_box(bytes)));
        println!("{length:>8} {ours:>10.1} {alone:>10.1}");
    }
}
