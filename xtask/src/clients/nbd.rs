//! NBD clients on `nvlane attach nbd`: the programs of libnbd, qemu and fio, and libnbd from Python; a target that is killed under
//! them. Scripts of `interop/nbd/`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::LIMIT_S;
use crate::command::root;
use crate::deps;

/// A suite: its name, and how it runs.
pub(super) struct Suite {
    pub(super) name: &'static str,
    /// Storage of the target and its block size; `None` for a script that starts its own.
    storage: Option<(&'static str, &'static str)>,
}

pub(super) const SUITES: [Suite; 4] = [
    Suite { name: "nbd-ram-512", storage: Some(("ram:64M?lba=512", "512")) },
    Suite { name: "nbd-ram-4096", storage: Some(("ram:64M", "4096")) },
    Suite { name: "nbd-file", storage: Some(("file:image.nbd?size=64M", "4096")) },
    Suite { name: "nbd-restart", storage: None },
];

/// Debian's interpreter, whose package of libnbd it is.
const PYTHON: &str = "/usr/bin/python3";

/// Installs the clients.
///
/// # Errors
/// As [`deps::install`]; the interpreter has no libnbd.
pub(super) fn install() -> Result<()> {
    deps::install_programs(deps::NBD_PROGRAMS)?;
    let status = Command::new(PYTHON).args(["-c", "import nbd"]).stderr(Stdio::null()).status();
    let has_libnbd = status.is_ok_and(|status| status.success());
    ensure!(has_libnbd, "{PYTHON} has no module nbd: sudo apt-get install python3-libnbd");
    Ok(())
}

/// Runs a suite in an empty directory. Returns whether it passed.
pub(super) fn run(nvlane: &Path, suite: &Suite, dir: &Path) -> Result<bool> {
    let log = File::create(dir.join("log"))?;
    let script = |name: &str| -> PathBuf { root().join("interop/nbd").join(name) };
    let mut command = Command::new("timeout");
    command.args(["--kill-after", "10", LIMIT_S]);
    match suite.storage {
        Some((storage, block_bytes)) => {
            let attach = "\"$NVLANE\" --log warn attach nbd \"$NVLANE_ADDR\" --run \"$SCRIPT\"";
            command.arg(nvlane).args(["--log", "warn", "target", "--listen", "127.0.0.1:0"]);
            command.args(["--namespace", storage, "--run", attach]);
            command.env("BLOCK", block_bytes).env("SCRIPT", script("tools.sh"));
        }
        None => {
            command.arg(PYTHON).arg(script("restart.py"));
        }
    }
    command.env("NVLANE", nvlane).env("PYTHON", PYTHON).current_dir(dir);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Ok(command.status().context("cannot run timeout")?.success())
}
