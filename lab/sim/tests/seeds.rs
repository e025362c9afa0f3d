//! Some seeds. More of them: `cargo xtask sim`; planted bugs: `cargo xtask product-bugs`.

use nvlane_sim::{Point, RunOutcome, run_seed};

/// What is freed while the simulated kernel may still read it shows.
#[global_allocator]
static ALLOCATOR: allocators::PoisoningAllocator = allocators::PoisoningAllocator;

fn must_pass(seed: u64, outcome: &RunOutcome) {
    if let Some(finding) = &outcome.finding {
        panic!("seed {seed}: {finding}\nsee it happen: cargo xtask sim --seed {seed}");
    }
}

/// Seeds that are run twice.
const TWICE_COUNT: u64 = 30;

/// All seeds that must pass: 50, or as many as the environment asks for.
fn seed_count() -> u64 {
    std::env::var("NVLANE_SEEDS")
        .map_or(50, |count| count.parse().expect("NVLANE_SEEDS is a number of seeds"))
}

#[test]
fn a_seed_runs_the_same_each_time_and_with_its_trace() {
    let mut with_tls_count = 0;
    for seed in 0..TWICE_COUNT {
        let (once, again) = (run_seed(seed, false), run_seed(seed, true));
        must_pass(seed, &once);
        assert_eq!((once.digest, once.command_count), (again.digest, again.command_count), "seed {seed}");
        assert!(once.timeline.is_empty() && again.timeline.lines(None).count() > 10);
        let is_of_tls = |point| matches!(point, Point::Event(event) if event.starts_with("TLS: established"));
        with_tls_count += usize::from(once.coverage.iter().any(|(point, _)| is_of_tls(point)));
    }
    // The keys of its sessions are others each time.
    assert!(with_tls_count > 1, "{with_tls_count} seeds with TLS are too few to mean anything");
}

#[test]
fn nothing_is_wrong_in_the_seeds_after_those() {
    let (mut command_count, mut departure_count) = (0, 0);
    std::thread::scope(|scope| {
        let halves = [0, 1].map(|half| {
            scope.spawn(move || {
                let (mut command_count, mut departure_count) = (0, 0);
                for seed in (TWICE_COUNT + half..seed_count()).step_by(2) {
                    let outcome = run_seed(seed, false);
                    must_pass(seed, &outcome);
                    command_count += outcome.command_count;
                    departure_count += outcome.departure_count;
                }
                (command_count, departure_count)
            })
        });
        for half in halves {
            let counts = half.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            command_count += counts.0;
            departure_count += counts.1;
        }
    });
    assert!(command_count > 1_400, "{command_count} commands are too few to mean anything");
    assert!(departure_count > 2, "{departure_count} departures are too few to mean anything");
}
