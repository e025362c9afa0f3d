//! Processes that end with the thread that started them, and ports for them.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;

use anyhow::Result;

/// A command that gets `signal` when the thread that started it ends, even if by SIGKILL.
pub(crate) fn ends_with_us(signal: &str, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", signal]).arg(program);
    command
}

/// A port of the loopback address that nothing listens on now.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
