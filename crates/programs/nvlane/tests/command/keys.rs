//! `nvlane keys`, compared with nvme-cli where it is installed.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Ended, nvlane, run};

const SECRET: &str = "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
const TLS_KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
const NQN: &str = "nqn.2016-06.io.nvlane:sub1";
const HEX: &str = "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20";

/// Runs it with this on its standard input.
fn fed(words: &[&str], input: &str) -> Ended {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("input");
    fs::write(&path, input).expect("written");
    Ended::of(nvlane().args(words).stdin(fs::File::open(path).expect("there")))
}

/// The first line that `nvme` prints and whether it succeeds; `None` if it is not installed.
fn nvme(words: &[&str]) -> Option<(String, bool)> {
    let output = Command::new("nvme").args(words).output();
    let Ok(output) = output else {
        eprintln!("skipped: nvme-cli is not installed");
        return None;
    };
    let text = [output.stdout, output.stderr].concat();
    let line = String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned();
    Some((line, output.status.success()))
}

#[test]
fn every_generated_key_is_new_and_valid_for_us_and_for_nvme_cli() {
    let mut keys = BTreeSet::new();
    for (words, length, hmac, checker) in [
        (&[][..], 32, 0, "check-dhchap-key"),
        (&["--length", "48"], 48, 0, "check-dhchap-key"),
        (&["--length", "64", "--hmac", "0"], 64, 0, "check-dhchap-key"),
        (&["--hmac", "1"], 32, 1, "check-dhchap-key"),
        (&["--hmac", "2"], 48, 2, "check-dhchap-key"),
        (&["--hmac", "3"], 64, 3, "check-dhchap-key"),
        (&["--hmac", "3", "--nqn", NQN], 64, 3, "check-dhchap-key"),
        (&["--tls"], 32, 1, "check-tls-key"),
        (&["--tls", "--hmac", "2"], 48, 2, "check-tls-key"),
    ] {
        let words = [&["keys", "generate"], words].concat();
        let text = run(&words).text();
        let key = text.trim_end();
        assert_eq!(text, format!("{key}\n"));
        assert!(keys.insert(key.to_owned()));
        let checked = fed(&["keys", "check", "-"], &text).text();
        let begin = format!("Key is valid (HMAC {hmac}, length {length}, CRC ");
        assert!(checked.starts_with(&begin), "{words:?}: {checked}");
        if let Some((line, is_valid)) = nvme(&[checker, "--key", key]) {
            assert!(is_valid, "{words:?}: {line}");
            assert_eq!(Some(line.as_str()), checked.lines().next(), "{words:?}");
        }
    }
}

#[test]
fn keys_of_nvme_cli_are_valid_and_given_bytes_give_its_text() {
    for (hmac, length) in [("0", 32), ("1", 32), ("2", 48), ("3", 64)] {
        let Some((key, true)) = nvme(&["gen-dhchap-key", "--hmac", hmac, "--nqn", NQN]) else { return };
        let checked = run(["keys", "check", &key]).text();
        assert!(checked.starts_with(&format!("Key is valid (HMAC {hmac}, length {length}, ")), "{checked}");
        // The same text from the same bytes: nvme-cli 2 transforms them before it writes them.
        let hex: String = (0..length).map(|byte| format!("{byte:02x}")).collect();
        let words = ["--hmac", hmac, "--nqn", NQN];
        let Some((theirs, true)) = nvme(&[&["gen-dhchap-key", "--secret", &hex][..], &words].concat()) else {
            panic!("nvme-cli makes no key of {hex}")
        };
        let ours = fed(&[&["keys", "generate", "--from", "-"][..], &words].concat(), &hex).text();
        assert_eq!(ours.trim_end(), theirs, "{hmac}");
    }
}

#[test]
fn given_bytes_are_written_as_they_are() {
    assert_eq!(fed(&["keys", "generate", "--from", "-", "--hmac", "1"], HEX).text(), format!("{SECRET}\n"));
}

#[test]
fn a_key_goes_into_a_new_file_that_others_cannot_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("host.key");
    let path = path.to_str().expect("text");
    assert_eq!(run(["keys", "generate", "--out", path]).text(), "");
    let text = fs::read_to_string(path).expect("there");
    assert_eq!(run(["keys", "check", "--file", path]).text(), run(["keys", "check", text.trim_end()]).text());
    let line = run(["keys", "generate", "--out", path]).complaint(2);
    assert!(line.starts_with(&format!("cannot write {path}: ")), "{line}");
    assert_eq!(fs::read_to_string(path).expect("there"), text, "the old key is kept");
    // Others can read it: that is said, and it is read.
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).expect("set");
    let warned = run(["keys", "check", "--file", path]);
    assert!(warned.code == 0 && warned.stderr.contains("other users can read the key in"), "{warned:?}");
}

#[test]
fn an_invalid_key_is_refused_with_its_mistake_and_without_its_text() {
    for (key, says) in [
        (SECRET.replace("AQID", "AQIE"), "the checksum is wrong: a character differs from the original"),
        (SECRET.replace(":01:", ":04:"), "no form from 00 to 03 after \"DHHC-1:\""),
        (SECRET.trim_end_matches(':').to_owned(), "does not end with \":\" (cut off?)"),
        (TLS_KEY.replace(":01:", ":02:"), "the key has 32 bytes, not 48"),
        ("secret".to_owned(), "does not begin with \"DHHC-1:\""),
    ] {
        assert_eq!(run(["keys", "check", &key]).complaint(1), format!("the key is not valid: {says}"));
        if key.starts_with("DHHC-1")
            && let Some((line, is_valid)) = nvme(&["check-dhchap-key", "--key", &key])
        {
            assert!(!is_valid, "{key}: {line}");
        }
    }
    for words in [
        &["--length", "33"][..],
        &["--length", "18446744073709551615"],
        &["--hmac", "4"],
        &["--tls", "--hmac", "3"],
        &["--tls", "--nqn", NQN],
        &["--from", "/nowhere/secret"],
    ] {
        let ended = run([&["keys", "generate"], words].concat());
        assert!(
            ended.code == 2
                && ended.stdout.is_empty()
                && ended.stderr.contains("error:") | ended.stderr.starts_with("nvlane: "),
            "{ended:?}"
        );
    }
}

#[test]
fn derived_keys_are_the_published_ones() {
    let words = ["keys", "derive", "dhchap", "--secret", "-", "--nqn"];
    let host = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
    let key = fed(&[&words[..], &[host]].concat(), SECRET).text();
    assert_eq!(key, "43c26c6d50f09a34d0722b7d2550ff8524fa732d0aadd843c826b65e6b98524e\n");
    let plain = SECRET.replace(":01:", ":00:");
    assert_eq!(fed(&[&words[..], &[host]].concat(), &plain).text(), format!("{HEX}\n"));

    let words = ["keys", "derive", "tls", "--key", "-", "--host", "nqn.psk-test-host", "--subsystem"];
    let keys = fed(&[&words[..], &["nqn.psk-test-subsys", "-o", "json"]].concat(), TLS_KEY).json();
    assert_eq!(keys["cipher"], "TLS_AES_128_GCM_SHA256");
    assert_eq!(keys["psk"], "073311dec37e219ff3acd43f130130c5bdd443c066e1cc3424e49030234ff7d5");
    let one = &keys["keys"][1];
    assert_eq!(
        one["identity"],
        "NVMe1R01 nqn.psk-test-host nqn.psk-test-subsys iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU="
    );
    assert_eq!(one["tls_psk"], "8fc3c0badfd4c0c66fa3ca33aadd0314f85536cc9bc47338b60f3e6e563786ca");

    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("session");
    write(&path, &(0x41..0x61).map(|byte| format!("{byte:02x}")).collect::<String>());
    let path = path.to_str().expect("text");
    let c1: String = (0..32).map(|byte| format!("{byte:02x}")).collect();
    let c2: String = (0..32).map(|byte| format!("{:02x}", 255 - byte)).collect();
    let names = ["--host", "hostnqn", "--subsystem", "subsysnqn"];
    let words = ["keys", "derive", "generated", "--hmac", "1", "--session-key", path, "--c1", &c1, "--c2"];
    let text = run([&words[..], &[&c2], &names].concat()).text();
    assert!(text.contains("  TLS PSK, version 1   3c17da628474a04d2247c4ca"), "{text}");
    let line = run([&words[..], &["00"], &names].concat()).complaint(2);
    assert_eq!(line, "--c2: expected 32 bytes in hexadecimal");
}

fn write(path: &Path, text: &str) {
    fs::File::create(path).and_then(|mut file| file.write_all(text.as_bytes())).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(path, mode).expect("set");
}

#[test]
fn a_file_without_end_is_no_key() {
    let mut child = nvlane();
    child.args(["keys", "check", "-"]).stdin(Stdio::from(fs::File::open("/dev/zero").expect("there")));
    assert_eq!(Ended::of(&mut child).complaint(2), "cannot read -: more than 4096 bytes: not a key");
}
