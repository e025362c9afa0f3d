//! Secrets and TLS keys in the kernel's keyrings, of target and host. docs/security.md

use std::fs;

use linux_keyutils::{Key, KeyRing, KeyRingIdentifier};

use crate::support::{Target, nvlane, run};

/// A key of the session keyring, which the commands inherit; removed on drop.
struct Added(Key, String);

impl Added {
    /// Adds a key, unless keyrings are forbidden here, as in many containers.
    fn new(name: &str, text: &str) -> Option<Self> {
        let description = format!("nvlane-test-{}:{name}", std::process::id());
        let session = KeyRing::from_special_id(KeyRingIdentifier::Session, true).ok()?;
        Some(Self(session.add_key(&description, text).ok()?, format!("keyring:{description}")))
    }
}

impl Drop for Added {
    fn drop(&mut self) {
        let _ = self.0.invalidate();
    }
}

#[test]
fn target_and_host_take_secrets_and_keys_from_the_keyring() {
    let directory = tempfile::tempdir().expect("a directory");
    let made = |arguments: &[&str], name: &str| {
        let path = directory.path().join(name);
        let path = path.to_str().expect("text");
        assert_eq!(run(["keys", "generate", "--out", path].iter().chain(arguments)).code, 0);
        fs::read_to_string(path).expect("a key")
    };
    let (secret, key) = (made(&[], "secret"), made(&["--tls"], "key"));
    let (Some(secret), Some(key)) = (Added::new("secret", &secret), Added::new("key", &key)) else {
        return eprintln!("skipped: no keyrings here");
    };
    let options = ["--dhchap-secret", &secret.1, "--tls-key", &key.1];
    let target = Target::start(
        nvlane()
            .args(["target", "--listen", "127.0.0.1:0", "--namespace", "ram:4M", "--tls", "required"])
            .args(options),
    );
    let ask = |options: &[&str]| {
        run(["identify", "--tls"].iter().chain(options).copied().chain([target.address.as_str()]))
    };
    assert_eq!(ask(&options).code, 0);
    let complaint = ask(&["--dhchap-secret", "keyring:nvlane-not-added", "--tls-key", &key.1]).complaint(2);
    assert!(complaint.starts_with("keyring:nvlane-not-added: no key of type user"), "{complaint}");
    // The texts of the two are of different kinds.
    let complaint = ask(&["--dhchap-secret", &key.1, "--tls-key", &key.1]).complaint(2);
    assert!(complaint.starts_with(&key.1) && !complaint.contains("NVMeTLSkey"), "{complaint}");
}
