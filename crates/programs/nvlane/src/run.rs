//! `--run`: a command that a target runs, and whose end is the target's.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};

use anyhow::{Context, Result, bail};

use crate::service_manager;

/// Starts `command` with `variables` set; a single word is a line for the shell, so that one-line tests need no script.
pub(crate) fn start(command: &[String], variables: &[(&str, String)]) -> Result<Child> {
    let mut process = match command {
        [] => bail!("--run needs a command"),
        [line] => {
            let mut process = Command::new("sh");
            process.args(["-c", line]);
            process
        }
        [program, arguments @ ..] => {
            let mut process = Command::new(program);
            process.args(arguments);
            process
        }
    };
    process.envs(variables.iter().map(|(name, value)| (*name, value)));
    // The service manager waits for the target.
    for name in [service_manager::SOCKET, service_manager::WATCHDOG[0], service_manager::WATCHDOG[1]] {
        process.env_remove(name);
    }
    process.spawn().with_context(|| format!("cannot run {}", command[0]))
}

/// Exit code for the command's status, as shells form it.
pub(crate) fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(1),
        (None, Some(signal)) => u8::try_from(128 + signal).unwrap_or(1),
        (None, None) => 1,
    }
}
