//! The host's configuration in libnvme's format: names, secrets and TLS keys without options. docs/host-config.md

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::{Ended, Target, nvlane, run};

const HOST: &str = "nqn.2026-01.io.nvlane:configured";
const SECRET: &str = "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";

/// Writes a file that only this user can read.
fn write(path: &Path, text: &str) {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("its mode");
}

/// A configuration with one host, one subsystem, and one port with these members.
fn config(target: &Target, members: &str) -> String {
    let (host, port) = target.place().rsplit_once(':').expect("a port");
    format!(
        r#"[{{"hostnqn": "{HOST}", "subsystems": [{{"nqn": "{}",
            "ports": [{{"transport": "tcp", "traddr": "{host}", "trsvcid": "{port}", {members}}}]}}]}}]"#,
        target.nqn()
    )
}

fn identify(target: &Target, config: &Path, more: &[&str]) -> Ended {
    run(["identify", "--config", config.to_str().expect("text")]
        .into_iter()
        .chain(more.iter().copied())
        .chain([target.address.as_str()]))
}

#[test]
fn secrets_and_keys_are_those_of_the_entry_unless_options_give_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let [secret, key, file] = ["secret", "key", "config.json"].map(|name| directory.path().join(name));
    write(&secret, SECRET);
    assert_eq!(run(["keys", "generate", "--tls", "--out", key.to_str().expect("text")]).code, 0);
    let tls_key = fs::read_to_string(&key).expect("a key");
    let [secret, key] = [&secret, &key].map(|path| path.to_str().expect("text"));
    let audit = directory.path().join("audit");
    let target =
        Target::start(nvlane().args(["target", "--listen", "127.0.0.1:0", "--namespace", "ram:4M"]).args([
            "--dhchap-secret",
            secret,
            "--tls",
            "required",
            "--tls-key",
            key,
            "--audit",
            audit.to_str().expect("text"),
        ]));
    let members = format!(r#""dhchap_key": "{SECRET}", "tls": true, "tls_key": "{}""#, tls_key.trim());
    write(&file, &config(&target, &members));
    let ended = identify(&target, &file, &[]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    let told = fs::read_to_string(&audit).expect("a log");
    assert!(told.contains(&format!(r#""host":"{HOST}""#)) && told.contains("authenticated"), "{told}");

    // An option is stronger, and another host has no entry.
    let other = directory.path().join("other");
    assert_eq!(run(["keys", "generate", "--out", other.to_str().expect("text")]).code, 0);
    let other = other.to_str().expect("text");
    assert_eq!(identify(&target, &file, &["--dhchap-secret", other]).code, 4);
    assert_eq!(identify(&target, &file, &["--hostnqn", "nqn.2026-01.io.nvlane:another"]).code, 4);
    assert_eq!(identify(&target, Path::new("none"), &[]).code, 4);

    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("its mode");
    let ended = identify(&target, &file, &[]);
    assert_eq!(ended.code, 0);
    assert!(ended.stderr.contains("other users can read the keys in"), "{}", ended.stderr);

    write(&file, &config(&target, r#""tls": true"#));
    let complaint = identify(&target, &file, &[]).complaint(2);
    assert!(complaint.contains("has no tls_key for it"), "{complaint}");
}

#[test]
fn a_file_that_is_named_must_be_right() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("config.json");
    let target = Target::serving(&["ram:4M"]);
    let complaint = identify(&target, &file, &[]).complaint(2);
    assert!(complaint.contains("config.json: cannot be read: No such file"), "{complaint}");
    write(&file, "[{\n\"hostnqn\": }]");
    let complaint = identify(&target, &file, &[]).complaint(2);
    assert!(complaint.contains("this is not JSON") && complaint.contains("line 2"), "{complaint}");
    write(&file, &config(&target, r#""dhchap_key": "DHHC-1:01:c2VjcmV0:""#));
    let complaint = identify(&target, &file, &[]).complaint(2);
    assert!(complaint.contains("dhchap_key of host") && !complaint.contains("c2VjcmV0"), "{complaint}");
    write(&file, "[]");
    assert_eq!(identify(&target, &file, &[]).code, 0);
}

/// As libnvme has it.
#[test]
fn the_first_host_of_a_file_is_the_one_to_connect_as() {
    let directory = tempfile::tempdir().expect("a directory");
    let [config, toml] = ["config.json", "nvlane.toml"].map(|name| directory.path().join(name));
    let id = "99999999-2222-3333-4444-555555555555";
    write(&config, &format!(r#"[{{"hostnqn": "{HOST}", "hostid": "{id}"}}, {{"hostnqn": "{HOST}-2"}}]"#));
    let subsystem = format!("[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:s\"\nhosts = [\"{HOST}\"]\n");
    fs::write(&toml, subsystem).expect("written");
    let target = Target::configured(&toml);
    let text = identify(&target, &config, &[]).text();
    assert!(text.contains("nqn.2026-01.io.nvlane:s"), "{text}");
    identify(&target, Path::new("none"), &[]).complaint(4);
}
