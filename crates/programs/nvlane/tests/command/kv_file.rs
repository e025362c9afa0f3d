//! Damaged key-value files: what is served, `nvlane kv check` and `nvlane kv repair`.

use std::fs;
use std::path::Path;

use crate::support::{Ended, Target, run};

const DAMAGED: i32 = 1;
const REFUSED: i32 = 2;

fn spec(path: &Path) -> String {
    format!("kv:file:{}?size=64M&memory=8M", path.display())
}

fn check(path: &Path) -> Ended {
    run(["kv".as_ref(), "check".as_ref(), path.as_os_str(), "-o".as_ref(), "json".as_ref()])
}

fn repair(path: &Path, out: &Path, lost: &Path) -> Ended {
    let words = ["kv".as_ref(), "repair".as_ref(), path.as_os_str(), "--out".as_ref(), out.as_os_str()];
    run(words.into_iter().chain(["--lost".as_ref(), lost.as_os_str()]))
}

fn repair_in_place(path: &Path, lost: &Path) -> Ended {
    let words = ["kv".as_ref(), "repair".as_ref(), path.as_os_str(), "--in-place".as_ref()];
    run(words.into_iter().chain(["--lost".as_ref(), lost.as_os_str()]))
}

fn get(target: &Target, key: &str) -> Ended {
    run(["kv", "get", &target.address, key])
}

/// Stores a few keys, one of them twice, and stops the target. Returns the file's bytes.
fn stored(path: &Path) -> Vec<u8> {
    let target = Target::serving(&[&spec(path)]);
    for (key, value) in [("first", "one"), ("second", "old-two"), ("second", "new-two"), ("third", "three")] {
        run(["kv", "set", &target.address, key, value]).text();
    }
    let in_use = check(path);
    assert_eq!((in_use.code, in_use.stderr.contains("in use")), (REFUSED, true), "{in_use:?}");
    drop(target);
    fs::read(path).unwrap()
}

#[test]
fn a_wrong_bit_costs_the_key_it_is_in() {
    let directory = tempfile::tempdir().unwrap();
    let [path, new, lost] = ["pairs", "new", "lost"].map(|name| directory.path().join(name));
    let mut bytes = stored(&path);
    let whole = check(&path);
    assert_eq!(whole.code, 0, "{whole:?}");
    let at = bytes.windows(7).position(|window| window == b"new-two").expect("it is in the file");
    bytes[at] ^= 1;
    fs::write(&path, &bytes).unwrap();
    {
        let target = Target::serving(&[&spec(&path)]);
        let refused = get(&target, "second");
        assert_eq!(
            (refused.code, refused.stderr.contains("unrecovered error")),
            (DAMAGED, true),
            "{refused:?}"
        );
        assert_eq!(get(&target, "first").text(), "one");
        assert_eq!(get(&target, "third").text(), "three");
        let dumped = run(["kv", "dump", &target.address]);
        assert_eq!((dumped.code, dumped.stdout.lines().count()), (DAMAGED, 2), "{dumped:?}");
        assert!(dumped.stderr.contains("the value of second is lost by damage"), "{dumped:?}");
    }
    let damaged = check(&path);
    assert_eq!(damaged.code, DAMAGED, "{damaged:?}");
    let report: serde_json::Value = serde_json::from_str(&damaged.stdout).expect("JSON");
    let partitions = report["partitions"].as_array().expect("partitions").iter();
    let damages: Vec<_> = partitions.flat_map(|it| it["damages"].as_array().expect("damages")).collect();
    assert_eq!((damages.len(), &damages[0]["keys"]), (1, &1.into()), "{report}");
    let offset = damages[0]["offset"].as_u64().expect("a number");
    assert!((offset..offset + 100).contains(&(at as u64)), "{report}");
    assert_eq!(repair(&path, &new, &lost).code, DAMAGED, "a key is left out");
    assert_eq!(fs::read_to_string(&lost).unwrap(), "second\tdamaged\n");
    assert_eq!(check(&new).code, 0);
    let other = directory.path().join("other");
    assert_eq!(repair(&path, &new, &other).code, REFUSED, "the new file exists");
    let damaged = fs::read(&path).unwrap();
    for list in [&path, &new, &other] {
        assert_eq!(repair(&path, &other, list).code, REFUSED, "the list would replace a file");
    }
    assert!(fs::read(&path).unwrap() == damaged && !other.exists());
    assert_eq!(repair(&path, &other, &lost).code, DAMAGED, "the list is the same");
    let in_place = repair_in_place(&path, &lost);
    assert_eq!((in_place.code, check(&path).code), (DAMAGED, 0), "{in_place:?}");
    assert!(fs::read(&path).unwrap() != damaged);
    let repaired = fs::read(&path).unwrap();
    let again = repair_in_place(&path, &lost);
    assert_eq!((again.code, fs::read(&path).unwrap() == repaired), (0, true), "it is whole: {again:?}");
    let target = Target::serving(&[&spec(&new)]);
    assert_eq!(get(&target, "first").text(), "one");
    assert_eq!(get(&target, "third").text(), "three");
    assert_ne!(get(&target, "second").code, 0);
}

#[test]
fn a_file_that_was_cut_is_refused_and_checked() {
    let directory = tempfile::tempdir().unwrap();
    let [path, new, lost] = ["pairs", "new", "lost"].map(|name| directory.path().join(name));
    let bytes = stored(&path);
    let start = || run(["target", "--listen", "127.0.0.1:0", "--namespace", &spec(&path), "--run", "true"]);
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let refused = start();
    assert_eq!((refused.code, refused.stderr.contains("it was cut")), (REFUSED, true), "{refused:?}");
    assert_eq!(check(&path).code, DAMAGED);
    let repaired = repair(&path, &new, &lost);
    assert!([0, DAMAGED].contains(&repaired.code), "{repaired:?}");
    assert_eq!(check(&new).code, 0);
    for length in [40, 100, 511, 512, 600, 4096, 8192] {
        fs::write(&path, &bytes[..length]).unwrap();
        let refused = start();
        assert_eq!(
            (refused.code, refused.stderr.contains("was cut")),
            (REFUSED, true),
            "{length}: {refused:?}"
        );
        assert_eq!(fs::metadata(&path).unwrap().len(), length as u64, "it is not made long again");
        let checked = check(&path);
        assert!(checked.code == DAMAGED || checked.stderr.contains("was cut"), "{length}: {checked:?}");
    }
    fs::write(&path, "").unwrap();
    let refused = start();
    assert_eq!((refused.code, refused.stderr.contains("remove it")), (REFUSED, true), "{refused:?}");
    assert_eq!(check(&path).code, REFUSED);
}
