//! Programs on `nvlane attach nbd` (those of libnbd, qemu and fio, and libnbd from Python; a target that is killed under them) and on
//! files of `nvlane attach fuse`; bridges without their network; NBD servers, nbdkit and qemu-nbd, and vhost-user devices as storage
//! of a target. Scripts of `interop/nbd/`, `interop/fuse/` and `interop/bridges/`.

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
    run: Run,
}

enum Run {
    /// The clients, on a target with this storage and block size.
    Clients(&'static str, &'static str),
    /// Programs on a file, on a target with this storage and block size.
    Files(&'static str, &'static str),
    /// A script that starts its own target.
    Script(&'static str),
    /// The same, for longer.
    Long(&'static str),
}

pub(super) const SUITES: [Suite; 10] = [
    Suite { name: "nbd-ram-512", run: Run::Clients("ram:64M?lba=512", "512") },
    Suite { name: "nbd-ram-4096", run: Run::Clients("ram:64M", "4096") },
    Suite { name: "nbd-file", run: Run::Clients("file:image.nbd?size=64M", "4096") },
    Suite { name: "fuse-512", run: Run::Files("ram:64M?lba=512", "512") },
    Suite { name: "fuse-4096", run: Run::Files("ram:64M", "4096") },
    Suite { name: "fuse-unprivileged", run: Run::Script("fuse/unprivileged.py") },
    Suite { name: "nbd-tls", run: Run::Script("nbd/tls.py") },
    Suite { name: "nbd-restart", run: Run::Script("nbd/restart.py") },
    Suite { name: "nbd-storage", run: Run::Script("nbd/storage.py") },
    Suite { name: "vhost-user-storage", run: Run::Script("nbd/vhost_user.py") },
];

/// Of `make soak` only.
pub(super) const LONG_SUITES: [Suite; 2] = [
    Suite { name: "nbd-storage-long", run: Run::Long("nbd/storage.py") },
    Suite { name: "bridge-faults", run: Run::Script("bridges/faults.py") },
];

/// What mounting takes.
const FUSE: &str = "/dev/fuse";

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
    let script = |name: &str| -> PathBuf { root().join("interop").join(name) };
    if matches!(suite.run, Run::Files(..)) && File::options().read(true).write(true).open(FUSE).is_err() {
        println!("{}: skipped, since {FUSE} cannot be opened", suite.name);
        return Ok(true);
    }
    let mut command = Command::new("timeout");
    command.args(["--kill-after", "10", LIMIT_S]);
    match suite.run {
        Run::Clients(storage, block_bytes) => {
            let attach = "\"$NVLANE\" --log warn attach nbd \"$NVLANE_ADDR\" --run \"$SCRIPT\"";
            command.arg(nvlane).args(["--log", "warn", "target", "--listen", "127.0.0.1:0"]);
            command.args(["--namespace", storage, "--run", attach]);
            command.env("BLOCK", block_bytes).env("SCRIPT", script("nbd/tools.sh"));
        }
        Run::Files(storage, block_bytes) => {
            let attach = "\"$NVLANE\" --log warn attach fuse \"$NVLANE_ADDR\" --mode 0644 --allow-other --run \"$SCRIPT\"";
            command.arg(nvlane).args(["--log", "warn", "target", "--listen", "127.0.0.1:0"]);
            command.args(["--namespace", storage, "--run", attach]);
            command.env("BLOCK", block_bytes).env("SCRIPT", script("fuse/tools.sh"));
        }
        Run::Script(name) => {
            command.arg(PYTHON).arg(script(name));
        }
        Run::Long(name) => {
            command.arg(PYTHON).arg(script(name)).env("LONG", "1");
        }
    }
    command.env("NVLANE", nvlane).env("PYTHON", PYTHON).current_dir(dir);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Ok(command.status().context("cannot run timeout")?.success())
}
