//! Processes that end with the thread that started them.

use std::path::Path;
use std::process::Command;

/// A command that gets `signal` when the thread that started it ends, even if by SIGKILL.
pub(crate) fn ends_with_us(signal: &str, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", signal]).arg(program);
    command
}
