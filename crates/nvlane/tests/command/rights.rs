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
