//! A target, or another server, in a child process of this one. It ends when this process ends, even if by SIGKILL.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use host::Address;

/// The command of `--run`: prints the target's address, then waits for the end of its input, which ends with this
/// process.
const RUN: &str = "echo \"$NVLANE_ADDR\"; exec cat >/dev/null";

/// Time limit for a process to end by itself; it is killed then.
const END_TIME: Duration = Duration::from_secs(20);

/// A running process that has told a line, and ends when its input ends: with this value, and with this process.
#[derive(Debug)]
pub struct ToldProcess {
    line: String,
    child: Child,
}

/// A running target.
#[derive(Debug)]
pub struct TargetProcess {
    address: Address,
    process: ToldProcess,
}

/// Why there is no target, or why it did not end well.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is documented by its message")]
pub enum TargetError {
    #[error("cannot start the target: {0}")]
    Start(io::Error),
    #[error("the target's output: {0}")]
    Output(io::Error),
    #[error("the target: {0}")]
    Wait(io::Error),
    #[error("the target did not start ({0})")]
    NotStarted(ExitStatus),
    #[error("target failed: {0}")]
    Ended(ExitStatus),
}

impl ToldProcess {
    /// Starts a command, and waits for its first line.
    ///
    /// # Errors
    /// The command cannot be started, or ends without a line; it has written the reason to the standard error of this process.
    pub fn start(mut command: Command) -> Result<Self, TargetError> {
        // What the terminal tells this process must not end others before it is done with them.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(TargetError::Start)?;
        let output = child.stdout.take().expect("piped");
        let mut told = Self { line: String::new(), child };
        BufReader::new(output).read_line(&mut told.line).map_err(TargetError::Output)?;
        told.line.truncate(told.line.trim_end().len());
        if told.line.is_empty() {
            return Err(TargetError::NotStarted(told.end().map_err(TargetError::Wait)?));
        }
        Ok(told)
    }

    /// The line.
    #[must_use]
    pub fn line(&self) -> &str {
        &self.line
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn end(&mut self) -> io::Result<ExitStatus> {
        drop(self.child.stdin.take());
        let until = Instant::now() + END_TIME;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.child.kill()?;
        self.child.wait()
    }
}

impl Drop for ToldProcess {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl TargetProcess {
    /// Starts `nvlane target`, whose command line lacks only `--run`, and waits until it listens.
    ///
    /// # Errors
    /// The target cannot be started; it has written the reason to the standard error of this process.
    pub fn start(mut command: Command) -> Result<Self, TargetError> {
        command.args(["--run", RUN]);
        let mut process = ToldProcess::start(command)?;
        match process.line.parse() {
            Ok(address) => Ok(Self { address, process }),
            Err(_) => Err(TargetError::NotStarted(process.end().map_err(TargetError::Wait)?)),
        }
    }

    /// Address on which the target listens.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Stops the target.
    ///
    /// # Errors
    /// The target exited with an error.
    pub fn stop(mut self) -> Result<(), TargetError> {
        let status = self.process.end().map_err(TargetError::Wait)?;
        if status.success() { Ok(()) } else { Err(TargetError::Ended(status)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_no_target_is_reported() {
        let error = TargetProcess::start(Command::new("false")).unwrap_err();
        assert_eq!(error.to_string(), "the target did not start (exit status: 1)");
    }
}
