//! `nvlane perf` on local storage.

use crate::support::run;

/// A file of 4 MiB, and its address for `perf`.
fn file() -> (tempfile::TempPath, String) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(4 << 20).expect("a size");
    // Nobody else has it open for writing.
    let path = file.into_temp_path();
    let address = format!("file:{}", path.display());
    (path, address)
}

#[test]
fn a_file_is_loaded_and_reported_as_a_namespace_would_be() {
    let (_file, address) = file();
    let words = ["perf", &address, "-w", "randrw", "--verify", "--fill", "-P", "2", "-a", "0", "-d", "300"];
    let report = run(words.into_iter().chain(["--json", "-"])).json();
    let job = &report["jobs"][0];
    let count = |kind: &str| job[kind]["total_ios"].as_u64().expect("a count");
    assert_eq!(count("read") + count("write"), 300, "{job}");
    let ours = &report["nvlane"];
    assert_eq!(ours["target"], address);
    assert_eq!(ours["counters"]["mismatch_count"], 0);
    assert_eq!(ours["storage"]["bytes"], 4 << 20);
    assert_eq!(ours["storage"]["has_registered_file"], true);
    let table = run(words).text();
    assert!(table.contains("2 queues at depth 32") && table.contains("\nio_uring "), "{table}");
}

#[test]
fn the_course_of_a_run_is_written_as_fio_s_logs() {
    let (_file, address) = file();
    let directory = tempfile::tempdir().expect("a directory");
    let logs = directory.path().join("logs");
    let words = ["perf", &address, "-w", "randrw", "-q", "2", "-a", "0", "-t", "1.2", "--logs"];
    run(words.into_iter().chain([logs.to_str().expect("text")]));
    for (name, least) in [("iops", 1), ("bw", 4), ("lat", 100)] {
        let path = logs.join(format!("randrw-iodepth-2-numjobs-1_{name}.1.log"));
        let log = std::fs::read_to_string(&path).expect("a log");
        let rows: Vec<Vec<u64>> = log
            .lines()
            .map(|row| row.split(", ").map(|field| field.parse().expect("a number")).collect())
            .collect();
        let directions: Vec<u64> = rows.iter().map(|row| row[2]).collect();
        assert!(directions.starts_with(&[0, 1]), "{log}");
        assert!(rows.iter().all(|row| row[1] >= least && row[3..] == [4096, 0]), "{log}");
    }
}

#[test]
fn options_for_targets_are_refused_and_nothing_is_written() {
    let (file, address) = file();
    for (words, named) in [
        (&["-H"][..], "--header-digest"),
        (&["--doorbell", "turn"], "--doorbell"),
        (&["--hostnqn", "nqn.2024-01.org.nvlane:a"], "--hostnqn"),
        (&["--ceiling"], "--ceiling"),
        (&["--receive", "pdu"], "--receive"),
    ] {
        let load = ["perf", &address, "-w", "randwrite", "-t", "0.1"];
        let complaint = run([&load, words].concat()).complaint(2);
        assert!(complaint.contains(named) && complaint.contains("local storage"), "{complaint}");
    }
    let content = std::fs::read(&file).expect("the file");
    assert!(content.iter().all(|byte| *byte == 0));
}

#[test]
fn what_is_no_storage_is_said_so() {
    let complaint = run(["perf", "file:/no/such/file", "-t", "0.1"]).complaint(2);
    assert!(complaint.contains("/no/such/file does not exist"), "{complaint}");
    let complaint = run(["perf", "file:/tmp/a?size=1G"]).complaint(2);
    assert!(complaint.contains("?lba=BYTES"), "{complaint}");
}
