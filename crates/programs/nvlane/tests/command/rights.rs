//! Rights of hosts to namespaces as an operator meets them: `nvlane check`, and what each host is shown. docs/security.md

use crate::support::{Target, run};

const CONFIG: &str = r#"
[[listener]]
address = "127.0.0.1:0"
[[subsystem]]
nqn = "nqn.2026-01.io.nvlane:shared"
hosts = ["nqn.2026-01.io.nvlane:a", "nqn.2026-01.io.nvlane:b"]
[[subsystem.host]]
nqn = "nqn.2026-01.io.nvlane:a"
dhchap_secret = "env:NOWHERE"
[[subsystem.namespace]]
storage = "ram:4M"
[[subsystem.namespace]]
storage = "ram:8M"
hosts = ["nqn.2026-01.io.nvlane:a", "nqn.2026-01.io.nvlane:b"]
write_hosts = ["nqn.2026-01.io.nvlane:a"]
[[subsystem.namespace]]
storage = "ram:16M"
hosts = []
"#;

#[test]
fn check_prints_rights_and_warns_of_names_without_proof() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("nvlane.toml");
    std::fs::write(&config, CONFIG).unwrap();
    let ended = run(["check", "--text-only", "--config", config.to_str().unwrap()]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    for line in [
        "    visible to nqn.2026-01.io.nvlane:a, nqn.2026-01.io.nvlane:b only\n    written by nqn.2026-01.io.nvlane:a only\n",
        "    visible to no host\n",
    ] {
        assert!(ended.stdout.contains(line), "{}", ended.stdout);
    }
    assert_eq!(
        ended.stderr,
        format!(
            "warning: {}:6:9: nqn.2026-01.io.nvlane:b is listed, but any host may call itself so without a secret or a key: give it a \
             secret of its own (dhchap_secret in [[subsystem.host]]), or a tls_key of its own where listeners require TLS\n",
            config.display()
        )
    );
}

#[test]
fn each_host_is_shown_its_own_namespaces() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("nvlane.toml");
    let without_secret = CONFIG
        .replace("dhchap_secret = \"env:NOWHERE\"\n", "")
        .replace("[[subsystem.host]]\nnqn = \"nqn.2026-01.io.nvlane:a\"\n", "");
    std::fs::write(&config, without_secret.replace(", \"nqn.2026-01.io.nvlane:b\"]\nwrite", "]\nwrite"))
        .unwrap();
    let target = Target::configured(&config);
    let shown = |host: &str| {
        let report = run(["identify", "-o", "json", "--hostnqn", host, target.place()]).json();
        report["namespaces"].as_array().unwrap().len()
    };
    assert_eq!(["nqn.2026-01.io.nvlane:a", "nqn.2026-01.io.nvlane:b"].map(shown), [2, 1]);
}

#[test]
fn check_prints_key_prefixes_and_a_host_is_told_which_key_it_may_not_use() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("nvlane.toml");
    let text = "[[listener]]\naddress = \"127.0.0.1:0\"\n[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:shared\"\nhosts = \"any\"\n\
                [[subsystem.namespace]]\nstorage = \"kv:ram:16M\"\n[subsystem.namespace.key_prefixes]\n\
                \"nqn.2026-01.io.nvlane:a\" = [\"a/\", \"shared/\"]\n\"nqn.2026-01.io.nvlane:all\" = [\"\"]\n";
    std::fs::write(&config, text).unwrap();
    let ended = run(["check", "--text-only", "--config", config.to_str().unwrap()]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let lines = "    nqn.2026-01.io.nvlane:a uses keys that begin with \"a/\" or \"shared/\"\n    nqn.2026-01.io.nvlane:all uses all keys\n    \
                 other hosts use no key\n";
    assert!(ended.stdout.contains(lines), "{}", ended.stdout);
    let target = Target::configured(&config);
    let store = |host: &str, key: &str| run(["kv", "set", "--hostnqn", host, target.place(), key, "value"]);
    for (host, key, code) in [
        ("nqn.2026-01.io.nvlane:a", "a/1", 0),
        ("nqn.2026-01.io.nvlane:a", "b/1", 1),
        ("nqn.2026-01.io.nvlane:all", "b/1", 0),
        ("nqn.2026-01.io.nvlane:other", "a/1", 1),
    ] {
        let ended = store(host, key);
        assert_eq!(ended.code, code, "{host} {key}: {}", ended.stderr);
        assert_eq!(ended.stderr.contains("access denied"), code != 0, "{}", ended.stderr);
    }
    let listed = run(["kv", "list", "--hostnqn", "nqn.2026-01.io.nvlane:a", target.place()]);
    assert_eq!(listed.stdout, "a/1\n");
}
