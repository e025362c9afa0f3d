//! `nvlane attach vhost-user` under test, as it is killed and started while a guest uses its disk.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::process::ends_with_us;
use super::target::NQN;

/// Memory of the guest, MiB: `kernel-lab` has to give it as much.
pub(crate) const GUEST_MIB: u32 = 1024;

/// A bridge to namespace 1 of a target, running or not.
pub(crate) struct Bridge {
    program: PathBuf,
    address: String,
    dir: PathBuf,
    process: Option<Child>,
}

impl Bridge {
    /// A bridge to a target of this port, not yet started. `dir` has its socket and its log.
    pub(crate) fn new(program: &Path, port: u16, dir: &Path) -> Self {
        let address = format!("127.0.0.1:{port}/{NQN}?ns=1");
        Self { program: program.to_owned(), address, dir: dir.to_owned(), process: None }
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("disk.sock")
    }

    /// What QEMU needs to have its disk: behind the guest's own in the order of PCI addresses, as /dev/vdb.
    pub(crate) fn qemu(&self) -> String {
        let socket = self.socket();
        format!(
            "-object memory-backend-memfd,id=mem,size={GUEST_MIB}M,share=on -machine memory-backend=mem \
             -chardev socket,id=disk,path={},reconnect=1 \
             -device vhost-user-blk-pci,chardev=disk,num-queues=2,addr=0x10",
            socket.display()
        )
    }

    /// Starts it, and waits until it serves.
    pub(crate) fn start(&mut self) -> Result<()> {
        ensure!(self.process.is_none(), "the bridge runs already");
        let log = File::options().create(true).append(true).open(self.dir.join("bridge.log"))?;
        let mut command = ends_with_us("KILL", &self.program);
        command.args(["--log", "info", "attach", "vhost-user", &self.address, "--queues", "2", "--socket"]);
        command.arg(self.socket()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let process = self.process.insert(command.spawn().context("cannot run the bridge")?);
        let output = process.stdout.take().context("its output is a pipe")?;
        let line = BufReader::new(output).lines().next().transpose()?;
        ensure!(line.is_some(), "the bridge ended: {:?}", process.wait());
        Ok(())
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<()> {
        let mut process = self.process.take().context("the bridge does not run")?;
        ensure!(process.try_wait()?.is_none(), "the bridge had ended by itself");
        process.kill()?;
        process.wait()?;
        Ok(())
    }

    /// Ends it with SIGTERM.
    pub(crate) fn stop(&mut self) -> Result<()> {
        let mut process = self.process.take().context("the bridge does not run")?;
        let pid = Pid::from_raw(process.id().cast_signed()).context("a process has an id")?;
        kill_process(pid, Signal::TERM)?;
        // It ends after 30 s at most.
        let status = process.wait()?;
        ensure!(status.success(), "the bridge ended with {status} on SIGTERM");
        Ok(())
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
