//! `--run`: a command for whose sake a target lives.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};

use anyhow::{Context, Result, bail};

/// Starts `command` (with the shell if it is one word, so that one-line tests need no script) with `variables` set.
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
    process.spawn().with_context(|| format!("cannot run {}", command[0]))
}

/// The exit code that passes on how the command ended, as shells do.
pub(crate) fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(1),
        (None, Some(signal)) => u8::try_from(128 + signal).unwrap_or(1),
        (None, None) => 1,
    }
}
