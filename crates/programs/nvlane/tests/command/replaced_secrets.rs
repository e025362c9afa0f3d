//! Secrets that are replaced while a target runs: a reload takes them, or says what it cannot know.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::support::{Ended, Target, nvlane, run};

/// A directory with keys.
struct Keys(TempDir);

impl Keys {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Makes a new key, in a new file.
    fn make(&self, name: &str, kind: &[&str]) -> PathBuf {
        let path = self.path(name);
        let _ = fs::remove_file(&path);
        run(["keys", "generate"].iter().chain(kind).map(Path::new).chain(["--out".as_ref(), path.as_path()]))
            .text();
        path
    }

    /// Serves these options on a free port, with a state file.
    fn serve(&self, options: &[&str], change: impl FnOnce(&mut Command)) -> Target {
        let mut command = nvlane();
        command.args(["target", "--engine", "epoll", "--listen", "127.0.0.1:0", "--log", "off", "--state"]);
        command.arg(self.path("state.json"));
        command.args(options.iter().map(|word| word.replace("DIR", self.0.path().to_str().expect("text"))));
        change(&mut command);
        Target::start(&mut command)
    }

    fn reload(&self) -> Ended {
        run([Path::new("reload"), "--state".as_ref(), &self.path("state.json")])
    }
}

/// The exit code of a host that lists the namespaces, with these options.
fn list(target: &Target, options: &[&Path]) -> i32 {
    let words = [Path::new("list"), target.address.as_ref()];
    run(words.iter().chain(options)).code
}

#[test]
fn secrets_of_options_are_read_again() {
    let keys = Keys::new();
    let (host, tls) = (keys.make("host", &[]), keys.make("tls", &["--tls"]));
    let options =
        ["--namespace", "ram:1M", "--dhchap-secret", "DIR/host", "--tls", "allowed", "--tls-key", "DIR/tls"];
    let target = keys.serve(&options, |_| {});
    assert_eq!(keys.reload().text(), "nothing to change\n");
    let (old_host, old_tls) = (keys.path("old-host"), keys.path("old-tls"));
    fs::rename(&host, &old_host).expect("renamed");
    fs::rename(&tls, &old_tls).expect("renamed");
    keys.make("host", &[]);
    keys.make("tls", &["--tls"]);
    let by_tls = |tls: &Path, secret: &Path| {
        list(&target, &["--tls".as_ref(), "--tls-key".as_ref(), tls, "--dhchap-secret".as_ref(), secret])
    };
    assert_eq!(
        (
            by_tls(&old_tls, &old_host),
            by_tls(&tls, &old_host),
            list(&target, &["--dhchap-secret".as_ref(), &host])
        ),
        (0, 4, 4)
    );
    let told = keys.reload().text();
    let nqn = target.nqn();
    assert_eq!(told, format!("change the secrets of {nqn}: done\nchange the keys of TLS: done\n"));
    // Former secrets are accepted for ten minutes more, former keys of TLS are not.
    assert_eq!(
        (by_tls(&old_tls, &host), by_tls(&tls, &host), list(&target, &["--dhchap-secret".as_ref(), &host])),
        (4, 0, 0)
    );
    // What is no secret changes nothing, and is no success.
    fs::write(&host, "DHHC-1:00:none").expect("written");
    let ended = keys.reload();
    assert_eq!(ended.code, 1);
    assert!(ended.stdout.starts_with("nothing changed: file:"), "{ended:?}");
    assert_eq!(by_tls(&tls, &old_host), 0, "the secrets of before");
}

/// Neither a process nor systemd before version 260 passes these again.
#[test]
fn a_reload_is_no_success_where_secrets_were_passed_at_the_start() {
    let keys = Keys::new();
    let secret = fs::read_to_string(keys.make("secret", &[])).expect("a key");
    let serve = |source: &str| {
        keys.serve(&["--namespace", "ram:1M", "--dhchap-secret", source], |command| {
            command.env("CREDENTIALS_DIRECTORY", keys.0.path()).env("SECRET", secret.trim());
        })
    };
    let target = serve("env:SECRET");
    let ended = keys.reload();
    assert_eq!(ended.code, 1, "{ended:?}");
    let told = "env:SECRET is as before: a process gets its environment at its start only. If it was replaced, restart the target\n";
    assert_eq!(ended.stdout, told);
    drop(target);

    fs::remove_file(keys.path("state.json")).expect("removed");
    let target = serve("credential:secret");
    let ended = keys.reload();
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(
        ended.stdout.starts_with("credential:secret is as before: systemd passes it at the start"),
        "{ended:?}"
    );
    // As RefreshOnReload=credentials does.
    keys.make("new", &[]);
    fs::rename(keys.path("new"), keys.path("secret")).expect("renamed");
    assert_eq!(keys.reload().text(), format!("change the secrets of {}: done\n", target.nqn()));
    assert_eq!(keys.reload().code, 1);
}
