//! Replays the corpora: inputs that fuzzers found interesting, and every input that once triggered a bug.

use std::path::{Path, PathBuf};

use nvlane_fuzz::TARGETS;

fn corpus(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name)
}

fn names_in(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    paths.sort();
    paths
}

#[test]
fn every_corpus_is_replayed() {
    for target in TARGETS {
        let paths = names_in(&corpus(target.name));
        assert!(!paths.is_empty(), "{} has no corpus", target.name);
        for path in paths {
            // Shown if the test fails: the last name printed is the failing input.
            println!("{}", path.display());
            (target.run)(&std::fs::read(&path).expect("readable"));
        }
        (target.run)(&[]);
    }
}

#[test]
fn every_corpus_and_every_fuzzer_has_its_function() {
    let names = |dir: &str| {
        let paths = names_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join(dir));
        let stem = |path: PathBuf| path.file_stem().expect("a name").to_str().expect("text").to_owned();
        paths.into_iter().map(stem).collect::<Vec<_>>()
    };
    let expected: Vec<_> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(names("corpus"), expected);
    assert_eq!(names("fuzz_targets"), expected);
}
