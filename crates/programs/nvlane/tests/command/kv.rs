//! `nvlane kv`: output and exit codes.

use std::io::Write;
use std::process::Stdio;

use crate::support::{Ended, Target, nvlane, run};

const MISSING: i32 = 1;

/// Runs `kv VERB ADDR …`.
fn kv(target: &Target, verb: &str, arguments: &[&str]) -> Ended {
    run(["kv", verb, &target.address].iter().chain(arguments))
}

#[test]
fn values_are_set_and_got_as_text_bytes_and_files() {
    let target = Target::serving(&["kv:ram:64M"]);
    assert_eq!(kv(&target, "set", &["greeting", "hello"]).text(), "");
    assert_eq!(kv(&target, "get", &["greeting"]).text(), "hello");
    assert_eq!(kv(&target, "get", &["--hex", "6772656574696e67"]).text(), "68656c6c6f\n");
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (directory.path().join("from"), directory.path().join("to"));
    let value: Vec<u8> = (0..300_000).map(|at| (at % 251) as u8).collect();
    std::fs::write(&from, &value).unwrap();
    kv(&target, "set", &["large", "--file", from.to_str().unwrap()]).text();
    kv(&target, "get", &["large", "--file", to.to_str().unwrap()]).text();
    assert!(std::fs::read(&to).unwrap() == value);
    assert_eq!(kv(&target, "set", &["--new", "greeting", "x"]).complaint(MISSING), "greeting exists");
    assert_eq!(kv(&target, "set", &["--replace", "nobody", "x"]).complaint(MISSING), "nobody does not exist");
    assert_eq!(kv(&target, "get", &["nobody"]).complaint(MISSING), "nobody does not exist");
    assert_eq!(kv(&target, "exist", &["greeting"]).text(), "greeting exists\n");
    assert_eq!(kv(&target, "exist", &["nobody"]).code, MISSING);
    assert_eq!(kv(&target, "list", &[]).text().lines().count(), 2);
    assert_eq!(kv(&target, "pin", &["greeting", "large", "--seconds", "60"]).text(), "");
    let absent = kv(&target, "pin", &["greeting", "nobody", "--seconds", "60"]).complaint(MISSING);
    assert_eq!(absent, "nobody: not pinned, as it does not exist or too much is pinned");
    assert!(kv(&target, "pin", &["greeting", "--seconds", "86401"]).complaint(2).contains("1..=86400"));
    assert_eq!(kv(&target, "unpin", &["greeting"]).text(), "");
    assert_eq!(kv(&target, "unpin", &["nobody"]).complaint(MISSING), "nobody does not exist");
    kv(&target, "delete", &["greeting", "large"]).text();
    assert_eq!(kv(&target, "list", &["-o", "json"]).json()["keys"].as_array().unwrap().len(), 0);
    let long = kv(&target, "incr", &["0123456789abcdefg"]).complaint(2);
    assert_eq!(long, r#""0123456789abcdefg" has 17 bytes: keys of NVMe have 1 to 16"#);
}

#[test]
fn long_keys_ranges_and_times_to_live_are_nvlanes() {
    let target = Target::serving(&["kv:ram:64M"]);
    let (long, other) = ("k".repeat(250), "model@0@1".repeat(12));
    kv(&target, "set", &[&long, "0123456789"]).text();
    assert_eq!(kv(&target, "get", &[&long]).text(), "0123456789");
    assert_eq!(kv(&target, "get", &[&long, "--range", "8:2", "--range", "0:3"]).text(), "89012");
    assert_eq!(
        kv(&target, "get", &[&long, "--range", "8:2", "--hex"]).complaint(2),
        format!("{long:?}: --hex expects pairs of hexadecimal digits")
    );
    let past = kv(&target, "get", &[&long, "--range", "8:3"]).complaint(MISSING);
    assert_eq!(past, "the value has 10 bytes: ranges must be within it, and no longer than it");
    let wrong = kv(&target, "get", &[&long, "--range", "8-3"]).complaint(2);
    assert!(wrong.contains("write OFFSET:LENGTH in bytes"), "{wrong}");
    assert_eq!(kv(&target, "set", &["--new", &long, "x"]).complaint(MISSING), format!("{long} exists"));
    assert_eq!(kv(&target, "get", &[&other]).complaint(MISSING), format!("{other} does not exist"));
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (directory.path().join("from"), directory.path().join("to"));
    let value: Vec<u8> = (0..3_000_000).map(|at| (at % 251) as u8).collect();
    std::fs::write(&from, &value).unwrap();
    kv(&target, "set", &[&other, "--ttl", "100", "--file", from.to_str().unwrap()]).text();
    kv(&target, "get", &[&other, "--file", to.to_str().unwrap()]).text();
    assert!(std::fs::read(&to).unwrap() == value);
    let exist = kv(&target, "exist", &[&long, "nobody", &other]);
    assert_eq!(exist.code, MISSING);
    assert_eq!(exist.stdout, format!("{long} exists\nnobody does not exist\n{other} exists\n"));
    kv(&target, "delete", &[&long, &other]).text();
    let exist = kv(&target, "exist", &["-o", "json", &long, &other]);
    assert!(exist.stdout.contains(r#""is_there": false"#) && exist.code == MISSING, "{}", exist.stdout);
    let long = kv(&target, "get", &[&"k".repeat(251)]).complaint(2);
    assert!(long.ends_with("has 251 bytes: keys have 1 to 250"), "{long}");
}

#[test]
fn numbers_and_vectors_change_at_the_target() {
    let target = Target::serving(&["kv:ram:64M"]);
    assert_eq!(kv(&target, "incr", &["n", "5", "--initial", "10"]).text(), "n: 10 -> 15\n");
    assert_eq!(kv(&target, "incr", &["n", "-6"]).text(), "n: 15 -> 9\n");
    let refused = kv(&target, "incr", &["n", "5", "--limit", "12", "-o", "json"]);
    assert_eq!((refused.code, refused.stdout.contains(r#""changed": false"#)), (MISSING, true));
    assert_eq!(kv(&target, "cas", &["n", "9", "40"]).text(), "n: 9 -> 40\n");
    assert_eq!(kv(&target, "cas", &["n", "9", "41"]).code, MISSING);
    assert_eq!(kv(&target, "incr", &["--narrow", "n", "1"]).code, MISSING, "another width");
    kv(&target, "set", &["--hex", "76", "0100000002000000ffffffff"]).text();
    let vector = |arguments: &[&str]| kv(&target, "vector", arguments);
    assert_eq!(vector(&["v", "update", "-e", "i32", "10"]).text(), "v: 3 elements updated\n");
    assert_eq!(vector(&["v", "reduce", "-e", "i32", "-f", "max", "-100"]).text(), "12\n");
    assert_eq!(vector(&["v", "filter", "-e", "i32", "less", "12"]).text(), "11\n9\n");
    let wrong = vector(&["v", "update", "-e", "f32", "-f", "xor", "1"]).complaint(2);
    assert_eq!(wrong, "xor is not defined for f32: use add, min or max");
    let wrong = vector(&["v", "reduce", "-e", "u64"]).complaint(MISSING);
    assert!(
        wrong.starts_with("v is not a usable vector of u64") && wrong.contains("not a multiple of 8"),
        "{wrong}"
    );
    assert_eq!(vector(&["w", "reduce"]).complaint(MISSING), "w does not exist");
    assert_eq!(kv(&target, "incr", &["w"]).complaint(MISSING), "w does not exist");
    assert_eq!(kv(&target, "cas", &["v", "1", "2"]).complaint(MISSING), "v is not a number of 8 bytes");
}

#[test]
fn verbs_without_words_take_the_address_of_the_environment() {
    let target = Target::serving(&["kv:ram:64M"]);
    kv(&target, "set", &["greeting", "hello"]).text();
    let ended = |verb| Ended::of(nvlane().args(["kv", verb]).env("NVLANE_ADDR", &target.address));
    assert_eq!(ended("list").text(), "greeting\n");
    assert_eq!(ended("dump").dumped(), "{\"key\":\"greeting\",\"value\":\"hello\"}\n");
    for verb in ["list", "dump"] {
        assert!(run(["kv", verb]).complaint(2).starts_with("no address: "), "{verb}");
    }
}

#[test]
fn pairs_move_from_one_namespace_to_another() {
    let (from, to) = (Target::serving(&["kv:ram:64M"]), Target::serving(&["kv:ram:64M"]));
    let mut lines: Vec<String> =
        (0..1000).map(|at| format!(r#"{{"key":"key-{at}","value":"{}"}}"#, "x".repeat(at))).collect();
    lines.push(r#"{"key_hex":"ff00","value_hex":"00fe"}"#.into());
    let mut child = nvlane();
    let mut child = child.args(["kv", "load", &from.address]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.join("\n").as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    let dump = kv(&from, "dump", &[]).dumped();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pairs.jsonl");
    std::fs::write(&file, &dump).unwrap();
    kv(&to, "load", &[file.to_str().unwrap()]).text();
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    lines.sort();
    assert!(sorted(&dump) == lines && sorted(&kv(&to, "dump", &[]).dumped()) == lines);
    std::fs::write(&file, "{\"key\":\"k\"}\n").unwrap();
    assert!(
        kv(&to, "load", &[file.to_str().unwrap()])
            .complaint(2)
            .ends_with(":1: it needs one of value and value_hex")
    );
    std::fs::write(&file, format!("{}\nno line\n", lines[..200].join("\n"))).unwrap();
    let said = kv(&to, "load", &[file.to_str().unwrap()]).complaint(1);
    assert!(said.ends_with(":201: column 2: expected ident; 128 pairs were stored before"), "{said}");
}

#[test]
fn a_bench_checks_what_it_gets_and_reports_it() {
    let target = Target::serving(&["kv:ram:64M"]);
    for extra in [&["--depth", "8"][..], &["--batch", "32", "--depth", "2"]] {
        let arguments =
            ["--mix", "ycsb-a", "--keys", "1000", "-o", "16/50:300/50", "-t", "0.3", "-a", "0.1", "--verify"];
        let report = kv(&target, "bench", &[&arguments, extra, &["--json", "-"]].concat()).json();
        let result = &report["result"];
        assert!(result["operations"].as_u64().unwrap() > 0, "{result}");
        assert_eq!((&result["mismatches"], &result["failed"]), (&0.into(), &0.into()));
        assert_eq!(result["kinds"][0]["found"], result["kinds"][0]["operations"], "every key is there");
        assert!(report["environment"]["kernel"].is_string());
    }
    let text = kv(
        &target,
        "bench",
        &["--mix", "add=50,modify=50", "-k", "10", "-t", "0.2", "-a", "0.1", "-q", "64"],
    )
    .text();
    assert!(text.contains("add ") && text.contains("modify "), "{text}");
    assert!(!text.contains("not there"), "what was begun before the clock is not missing: {text}");
    let refused = kv(&target, "bench", &["--mix", "put"]).complaint(2);
    assert!(refused.contains("is not a mix"), "{refused}");
    let block = Target::serving(&["ram:16M"]);
    let refused = kv(&block, "get", &["k"]).complaint(4);
    assert!(refused.contains("not a key-value namespace"), "{refused}");
}

#[test]
fn a_bench_of_prompts_finds_documents_and_checks_every_chunk() {
    let targets = [Target::serving(&["kv:ram:64M"]), Target::serving(&["kv:ram:64M"])];
    let bench = |more: &[&str]| {
        let arguments = ["--profile", "kv-cache", "-o", "100k", "--documents", "3", "--shared-chunks", "4"];
        let times = ["--own-chunks", "2", "-t", "0.3", "-a", "0.1"];
        kv(&targets[0], "bench", &[&arguments, &times[..], more].concat())
    };
    let report = bench(&["--also", &targets[1].address, "--json", "-"]).json();
    let result = &report["result"];
    assert!(result["prompts"].as_u64().unwrap() > 0, "{result}");
    assert_eq!((&result["mismatches"], &result["failed"]), (&0.into(), &0.into()));
    assert_eq!(result["hit_percent"], 100.0, "every document was stored first: {result}");
    assert!(result["calls"][1]["count"].as_u64() > Some(0), "{result}");
    // Another run finds what this one has stored, and has prompts of its own.
    let text = bench(&["--no-fill", "--also", &targets[1].address]).text();
    assert!(text.contains("100.0 % of the shared chunks were there"), "{text}");
    assert!(text.contains("store ") && text.contains("verified: 0 chunks differ"), "{text}");
    let refused = bench(&["-b", "4"]);
    assert!(refused.code == 2 && refused.stderr.contains("cannot be used with '--batch"), "{refused:?}");
    let refused = kv(&targets[0], "bench", &["--profile", "kv-cache", "-o", "1k/50:2k/50"]).complaint(2);
    assert!(refused.contains("all chunks of --profile kv-cache have one size"), "{refused}");
    let refused = kv(&targets[0], "bench", &["--profile", "kv-cache", "--documents", "0"]).complaint(2);
    assert!(refused.contains("the number of documents must be at least 1"), "{refused}");
}
