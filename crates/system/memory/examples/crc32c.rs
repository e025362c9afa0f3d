//! Times of a CRC32C: ours, and that of the `crc-fast` crate alone.
//!
//! `cargo run --release -p nvlane-memory --example crc32c`

use std::hint::black_box;
use std::time::Instant;

const RUNS: usize = 200;
/// Bytes of the calls of a run, unless those are one call.
const RUN_BYTES: usize = 32 << 20;
const REPETITION_COUNT_MAX: usize = 2000;

/// The shortest time of one call in all runs, ns.
fn best_ns(length: usize, mut call: impl FnMut() -> u32) -> f64 {
    let repetitions = (RUN_BYTES / length).clamp(1, REPETITION_COUNT_MAX);
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        for _ in 0..repetitions {
            black_box(call());
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / repetitions as f64);
    }
    best
}

fn main() {
    println!("{:>8} {:>10} {:>10}", "bytes", "ours, ns", "crate, ns");
    for length in [24, 72, 512, 4096, 8192, 65_536, 1 << 20, 80 << 20] {
        let bytes = vec![0x5a; 24 + length];
        let bytes = &bytes[24..];
        let ours = best_ns(length, || nvlane_memory::crc32c::checksum(black_box(bytes)));
        let alone = best_ns(length, || crc_fast::crc32_iscsi(black_box(bytes)));
        println!("{length:>8} {ours:>10.1} {alone:>10.1}");
    }
}
