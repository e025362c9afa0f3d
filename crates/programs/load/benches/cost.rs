//! Cost of the generator per operation, in nanoseconds: the best of several rounds of a plain loop.
//!
//! `cargo bench -p nvlane-load`; takes a few seconds.

use std::hint::black_box;
use std::time::{Duration, Instant};

use nvlane_load::arrival::Schedule;
use nvlane_load::generator::{Generator, Operation};
use nvlane_load::histogram::Histogram;
use nvlane_load::keys::{Distribution, Keys};
use nvlane_load::random::Prng;
use nvlane_load::recorder::Recorder;
use nvlane_load::verify::{Expectation, Marker};
use nvlane_load::workload::{Arrival, Deallocated, Geometry, Kind, Pace, Pattern, Stop, Workload};

/// Rounds of each measurement; the best one counts, as the others were disturbed.
const ROUNDS: usize = 7;

/// Prints the cost of one call of `step`.
fn measure(name: &str, calls: u64, mut step: impl FnMut()) {
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        (0..calls).for_each(|_| step());
        best = best.min(start.elapsed().as_nanos() as f64 / calls as f64);
    }
    println!("{name:<44} {best:>8.1} ns");
}

/// Prints the cost of a whole operation, from its choice to its record, at a depth of 128 in a ring.
fn measure_generator(name: &str, workload: &Workload, geometry: &Geometry) {
    let plan = workload.plan(geometry, 1).expect("a valid load");
    let mut generator = Generator::new(&plan, 0);
    let mut recorder = Recorder::new(workload.pace != Pace::Closed);
    let mut ring: Vec<(Operation, Vec<u8>)> = Vec::new();
    let mut now = 0;
    generator.start(now);
    while ring.len() < 128 {
        now += 500;
        ring.extend(generator.next_operation(now).map(|operation| (operation, vec![0; plan.buffer_bytes()])));
    }
    let mut at = 0;
    measure(&format!("generator: {name}"), 1_000_000, || {
        now += 500;
        let (operation, data) = &mut ring[at];
        generator.on_done(operation, now, &mut recorder);
        let next = generator.next_operation(now).expect("there is always something to do");
        if next.step.kind == Kind::Write {
            generator.stamp(&next, 0, data);
        }
        *operation = next;
        at = (at + 1) % 128;
    });
}

fn main() {
    const MILLION: u64 = 1_000_000;
    let mut prng = Prng::new(1);
    measure("random number", MILLION, || {
        black_box(prng.draw());
    });

    let places = 1 << 26;
    let uniform = Keys::new(Distribution::Uniform, places, 1);
    measure("uniform place", MILLION, || {
        black_box(uniform.draw(&mut prng));
    });
    let zipf = Keys::new(Distribution::Zipf { theta: 0.99 }, places, 1);
    measure("Zipf place, theta 0.99 of 2^26", MILLION, || {
        black_box(zipf.draw(&mut prng));
    });

    let geometry = Geometry {
        lba_bytes: 4096,
        block_count: places,
        transfer_limit_bytes: None,
        deallocated: Deallocated::Zeroes,
    };
    for name in ["read", "randrw", "randverify"] {
        let pattern = Pattern::named(name, Some(70)).expect("a known name");
        let plan = Workload { pattern, ..Workload::default() }.plan(&geometry, 1).expect("a valid load");
        let mut stream = plan.stream(0);
        measure(&format!("operation of {name}"), MILLION, || {
            black_box(stream.step());
        });
    }

    for (name, arrival) in [("constant", Arrival::Constant), ("Poisson", Arrival::Poisson)] {
        let mut schedule = Schedule::open(1e6, arrival, 0, 0.0, 1);
        measure(&format!("{name} arrival"), MILLION, || {
            black_box(schedule.take(u64::MAX));
        });
    }

    // Latencies as they come: around 100 us, so that the buckets in use fit the cache, as in a real run.
    let latencies: Vec<u64> = (0..4096).map(|_| 60_000 + prng.below(80_000)).collect();
    let mut histogram = Histogram::new();
    let mut at = 0;
    measure("histogram record", MILLION, || {
        at = (at + 1) & 4095;
        histogram.record(black_box(latencies[at]));
    });
    black_box(&histogram);

    let marker = Marker::new(1);
    for length_bytes in [512, 4096, 65_536] {
        let mut block = vec![0; length_bytes];
        let mut lba = 0;
        measure(&format!("stamp {length_bytes} bytes"), MILLION / (length_bytes as u64 / 256), || {
            lba += 1;
            marker.stamp(black_box(&mut block), lba, 7);
        });
        measure(&format!("check {length_bytes} bytes"), MILLION / (length_bytes as u64 / 256), || {
            black_box(marker.check(black_box(&block), lba, &Expectation::exactly(7)).is_ok());
        });
        block.fill(0);
        measure(&format!("check {length_bytes} zero bytes"), MILLION / (length_bytes as u64 / 256), || {
            black_box(marker.check(black_box(&block), lba, &Expectation::ZEROES).is_ok());
        });
    }

    let named = |name| Pattern::named(name, Some(70)).expect("a known name");
    let day = Stop { runtime: Some(Duration::from_secs(86_400)), ..Stop::default() };
    let workload = |name| Workload { pattern: named(name), depth: 256, stop: day, ..Workload::default() };
    measure_generator("randread", &workload("randread"), &geometry);
    measure_generator("randrw", &workload("randrw"), &geometry);
    let pace = Pace::Open { rate_per_s: 4e6, arrival: Arrival::Poisson };
    measure_generator("randrw, open loop, Poisson", &Workload { pace, ..workload("randrw") }, &geometry);
    // In order, so that no write ever waits for another on the same block.
    let verified = Workload { verify: true, range: Some((0, 1 << 16)), ..workload("write") };
    measure_generator("write, verified, with the stamp", &verified, &geometry);
}
