//! A key-value file of more than 4 GiB, of which only what is written takes space: its second partition is beyond 10 GiB.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::SeekFrom;

use crate::support::{Ended, Target, nvlane, run};

const GIB: u64 = 1 << 30;
const FILE_BYTES: u64 = 20 * GIB;
const KEY_COUNT: usize = 24;
/// The last round in which all keys are stored, each after a start.
const LAST: usize = 1;

fn serve(path: &Path) -> Target {
    let config = path.with_extension("toml");
    let text = format!(
        "[reactors]\ncount = 2\n[[listener]]\naddress = \"127.0.0.1:0\"\n[[subsystem]]\n\
         nqn = \"nqn.2026-01.io.nvlane:far\"\nhosts = \"any\"\n[[subsystem.namespace]]\n\
         storage = \"kv:file:{}?size={FILE_BYTES}&memory=128M&sparse\"\n",
        path.display()
    );
    fs::write(&config, text).unwrap();
    Target::start(nvlane().args(["target", "--config"]).arg(&config))
}

fn kv(verb: &str, words: &[&str]) -> Ended {
    run(["kv", verb].iter().chain(words))
}

fn value(number: usize, round: usize) -> String {
    format!("{round}-value-{number}-").repeat(40)
}

/// Where data begins at or behind an offset; `None` if there is none.
fn next_data(file: &File, from: u64) -> Option<u64> {
    match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(at) => Some(at),
        Err(rustix::io::Errno::NXIO) => None,
        Err(errno) => panic!("{errno}"),
    }
}

/// Where these bytes are in the file.
fn find(file: &File, bytes: &[u8]) -> io::Result<Option<u64>> {
    let (mut from, mut piece) = (0, vec![0; 1 << 20]);
    while let Some(at) = next_data(file, from) {
        let count = file.read_at(&mut piece, at)?;
        if let Some(found) = piece[..count].windows(bytes.len()).position(|window| window == bytes) {
            return Ok(Some(at + found as u64));
        }
        // What is longer than a value and lies across the end is found next.
        from = at + (count.max(8192) - 4096) as u64;
    }
    Ok(None)
}

/// Checks that all keys but one have the values of a round.
fn check_values(target: &Target, round: usize, without: Option<usize>) {
    let dumped = kv("dump", &[&target.address]).dumped();
    for number in 0..KEY_COUNT {
        let has_value = dumped.contains(&value(number, round));
        assert_eq!(has_value, without != Some(number), "key-{number} in {dumped:.2000}");
    }
}

#[test]
fn a_file_of_20_gib_keeps_its_partitions_apart() {
    let directory = tempfile::tempdir().unwrap();
    let [path, new, lost] = ["pairs", "new", "lost"].map(|name| directory.path().join(name));
    let [path_text, new_text, lost_text] = [&path, &new, &lost].map(|path| path.to_str().unwrap());
    for round in 0..=LAST {
        let target = serve(&path);
        if round > 0 {
            check_values(&target, round - 1, None);
        }
        for number in 0..KEY_COUNT {
            kv("set", &[&target.address, &format!("key-{number}"), &value(number, round)]).text();
        }
    }
    assert_eq!(kv("check", &[path_text]).code, 0);
    // The records of each partition are at its beginning, and nothing is elsewhere.
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let second = FILE_BYTES / 2;
    assert!(next_data(&file, GIB) >= Some(second - GIB / 4), "{:?}", next_data(&file, GIB));
    assert!(next_data(&file, second - GIB / 4) < Some(second + GIB), "nothing of the second partition");
    assert_eq!(next_data(&file, second + 2 * GIB), None);
    // A wrong bit is found where it is.
    let places =
        (0..KEY_COUNT).map(|number| find(&file, value(number, LAST).as_bytes()).unwrap().expect("a value"));
    let (at, number) = places.zip(0..).max().expect("there are keys");
    assert!(at >= second - GIB / 4, "the furthest of all: {at:#x}");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    drop(file);
    let report: serde_json::Value =
        serde_json::from_str(&kv("check", &[path_text, "-o", "json"]).stdout).expect("JSON");
    let partitions = report["partitions"].as_array().expect("partitions").iter();
    let damages: Vec<_> = partitions.flat_map(|it| it["damages"].as_array().expect("damages")).collect();
    assert_eq!(damages.len(), 1, "{report}");
    let offset = damages[0]["offset"].as_u64().expect("a number");
    assert!((offset..offset + 200).contains(&at), "{offset:#x} for {at:#x}");
    // What is repaired takes no more space than the file did.
    let repaired = kv("repair", &[path_text, "--out", new_text, "--lost", lost_text]);
    assert_eq!(fs::read_to_string(&lost).unwrap(), format!("key-{number}\tdamaged\n"), "{repaired:?}");
    assert_eq!(kv("check", &[new_text]).code, 0);
    check_values(&serve(&new), LAST, Some(number));
}
