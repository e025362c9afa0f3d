//! Programs in C and C++ over the installed libnvlane, and fio with its engine: scripts of `interop/c/`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::LIMIT_S;
use crate::c_library::{EngineOptions, fio_engine};
use crate::command::{root, target_dir};
use crate::deps;

/// The suites, each with its script.
pub(super) const SUITES: [(&str, &str); 2] = [("c-programs", "programs.sh"), ("c-fio", "fio.sh")];

/// Installs library and engine. Returns where they are.
pub(super) fn install() -> Result<PathBuf> {
    deps::install_programs(deps::C_PROGRAMS)?;
    let out = target_dir().join("clients/c-library");
    fio_engine(&EngineOptions::to(&out, "dev"))?;
    Ok(out)
}

/// Runs a suite in an empty directory. Returns whether it passed.
pub(super) fn run(nvlane: &Path, prefix: &Path, script: &str, dir: &Path) -> Result<bool> {
    let log = File::create(dir.join("log"))?;
    let mut command = Command::new("timeout");
    command.args(["--kill-after", "10", LIMIT_S]).arg(nvlane);
    command.args(["--log", "warn", "target", "--listen", "127.0.0.1:0", "--nqn", "nqn.2016-06.io.nvlane:c"]);
    command.args(["--namespace", "ram:64M", "--namespace", "kv:ram:64M", "--run"]);
    command.arg(root().join("interop/c").join(script));
    command
        .env("NVLANE", nvlane)
        .env("PREFIX", prefix)
        .env("SOURCES", root().join("crates/bindings/c-library"));
    command.current_dir(dir).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Ok(command.status().context("cannot run timeout")?.success())
}
