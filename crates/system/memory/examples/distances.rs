//! Times copies by the distance of the destination above the source within a page: whole by `memcpy`, and by this
//! crate.
//!
//! `cargo run --release -p nvlane-memory --example distances`

#![forbid(unsafe_code)]
#![allow(clippy::cast_precision_loss)] // Times of copies.

use std::hint::black_box;
use std::time::Instant;

const PAGE_BYTES: usize = 4096;

const SIZES: [usize; 4] = [2 << 10, 4 << 10, 8 << 10, 64 << 10];

/// The best of 200 batches of 500 calls, ns for one.
fn best_ns(mut call: impl FnMut()) -> f64 {
    let batch = |_| {
        let start = Instant::now();
        (0..500).for_each(|_| call());
        start.elapsed().as_nanos() as f64 / 500.0
    };
    (0..200).map(batch).fold(f64::INFINITY, f64::min)
}

fn main() {
    let mut memory = vec![1u8; 1 << 20];
    let start = (PAGE_BYTES - memory.as_ptr().addr() % PAGE_BYTES) % PAGE_BYTES;
    let (source, destination) = memory[start..].split_at_mut(256 << 10);
    println!("{:>8} {:>8} {:>12} {:>12}", "distance", "bytes", "memcpy ns", "copy ns");
    for distance in [0, 1, 24, 63, 64, 2048, 4095] {
        for size in SIZES {
            let from = &source[PAGE_BYTES..PAGE_BYTES + size];
            let into = &mut destination[distance..distance + size];
            let whole_ns = best_ns(|| {
                into.copy_from_slice(black_box(from));
                black_box(&into);
            });
            let copy_ns = best_ns(|| {
                nvlane_memory::copy_bytes(into, black_box(from));
                black_box(&into);
            });
            println!("{distance:>8} {size:>8} {whole_ns:>12.0} {copy_ns:>12.0}");
        }
    }
}
