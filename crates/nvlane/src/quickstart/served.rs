//! A target in a process of its own, that ends with us whatever happens.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, anyhow};
use host::Address;

/// What the target runs: it tells where it is, then waits for the end of its input, which is our end too.
const RUN: &str = "echo \"$NVLANE_ADDR\"; exec cat >/dev/null";

/// A running target with a namespace in memory (1) and one in a file (2).
#[derive(Debug)]
pub(super) struct Served {
    pub(super) address: Address,
    child: Child,
    file: PathBuf,
}

impl Served {
    /// Starts it on a free port, on `core` if one is given, each namespace of `size`.
    pub(super) fn start(directory: &Path, size: &str, core: Option<usize>) -> anyhow::Result<Self> {
        let file = directory.join(format!("nvlane-quickstart-{}.img", std::process::id()));
        let program = std::env::current_exe().context("which program this is")?;
        let mut command = Command::new(program);
        command.args(["--log", "warn", "target", "--listen", "127.0.0.1:0"]);
        command.args(["--namespace", &format!("ram:{size}")]);
        command.args(["--namespace", &format!("file:{}?size={size}", file.display())]);
        if let Some(core) = core {
            command.args(["--cores", &core.to_string()]);
        }
        command.args(["--run", RUN]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start the target")?;
        let output = child.stdout.take().context("the target's output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).context("the target's output")?;
        let Ok(address) = line.trim().parse::<Address>() else {
            let status = child.wait().context("the target")?;
            return Err(anyhow!("the target did not start ({status})"));
        };
        Ok(Self { address, child, file })
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it, and says if it did not end well.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        let status = self.end().context("the target")?;
        if status.success() { Ok(()) } else { Err(anyhow!("the target ended badly: {status}")) }
    }

    fn end(&mut self) -> std::io::Result<std::process::ExitStatus> {
        drop(self.child.stdin.take());
        self.child.wait()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.end();
        let _ = std::fs::remove_file(&self.file);
    }
}
