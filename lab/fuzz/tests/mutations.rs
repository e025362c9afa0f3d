//! Replays the corpora with random changes: without a fuzzer's coverage feedback, but on any compiler and at once.
//!
//! `NVLANE_FUZZ_ROUNDS` sets the number of inputs for each function. The same number gives the same inputs.

use std::panic::catch_unwind;
use std::path::Path;

use linux::random::SplitMix64;
use nvlane_fuzz::TARGETS;

/// Default number of inputs for each function.
const ROUNDS: u64 = 1000;

/// Longer inputs are truncated.
const INPUT_BYTES_MAX: usize = 20_000;

/// Numbers near which behaviour may change.
const EDGES: [u8; 9] = [0, 1, 2, 0x0f, 0x40, 0x7f, 0x80, 0xfe, 0xff];

/// Changes an input at one place.
fn change(input: &mut Vec<u8>, other: &[u8], random: &mut SplitMix64) {
    let at = random.index(input.len());
    let count = random.index(16).min(input.len() - at);
    match random.index(8) {
        0 => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << random.index(8);
            }
        }
        1 | 2 => {
            if let Some(byte) = input.get_mut(at) {
                *byte = EDGES[random.index(EDGES.len())];
            }
        }
        3 => {
            for byte in &mut input[at..at + count] {
                *byte = random.draw().to_le_bytes()[0];
            }
        }
        4 => drop(input.drain(at..at + count)),
        5 => {
            let piece = input[at..at + count].to_vec();
            let to = random.index(input.len());
            input.splice(to..to, piece);
        }
        6 => {
            let from = random.index(other.len());
            let piece = &other[from..];
            let piece = &piece[..piece.len().min(1 + random.index(200))];
            input.splice(at..at, piece.iter().copied());
        }
        _ => {
            let from = random.index(other.len());
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
    }
    input.truncate(INPUT_BYTES_MAX);
}

#[test]
fn changed_inputs_break_nothing() {
    let rounds =
        std::env::var("NVLANE_FUZZ_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().expect("a number"));
    let mut broken = Vec::new();
    for target in TARGETS {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
        let mut paths: Vec<_> =
            std::fs::read_dir(dir).expect("a corpus").map(|entry| entry.expect("a file").path()).collect();
        paths.sort();
        let corpus: Vec<_> = paths.iter().map(|path| std::fs::read(path).expect("readable")).collect();
        for round in 0..rounds {
            let mut random = SplitMix64::new(round);
            let mut input = corpus[random.index(corpus.len())].clone();
            for _ in 0..=random.index(6) {
                let other = random.index(corpus.len());
                change(&mut input, &corpus[other], &mut random);
            }
            if catch_unwind(|| (target.run)(&input)).is_err() {
                let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{round}", target.name));
                std::fs::write(&path, &input).expect("a place for it");
                broken.push(path);
                if broken.len() % 4 == 0 {
                    break;
                }
            }
        }
    }
    assert!(broken.is_empty(), "inputs that break something: {broken:#?}");
}
