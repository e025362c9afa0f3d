//! One emulated machine with a stock kernel, and the jobs it does one after another.
//!
//! The other end is `interop/lab/agent.sh`; its head lists the files of the shared directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use peer::port::free_address;

use super::bridge::GUEST_MIB;
use super::outside::Outside;
use super::process::ends_with_us;
use crate::command::root;

const POLL: Duration = Duration::from_millis(20);
const BOOT_LIMIT: Duration = Duration::from_secs(300);
/// The port of the guest that its forwarded port leads to.
const NVMET_PORT: u16 = 4420;

/// How a job ended.
#[derive(Debug)]
pub(crate) struct JobEnd {
    /// Exit status of its script; 77 means skipped.
    pub(crate) status: i32,
    /// Whether the guest can run another job.
    pub(crate) is_clean: bool,
}

/// A running guest. Dropping it ends it.
pub(crate) struct Guest {
    lab: Child,
    share: PathBuf,
    dir: PathBuf,
    /// Port of this machine's loopback that leads to the guest's nvmet.
    pub(crate) forwarded_port: u16,
}

impl Guest {
    /// Boots kernel series `kernel` and waits until the guest takes jobs. `dir` is made anew, for
    /// the console and the shared files; `id` differs between guests that run at once. `qemu` are more arguments of QEMU.
    ///
    /// # Errors
    /// If the guest does not come up; the message has the end of its console.
    pub(crate) fn boot(kernel: &str, id: usize, dir: PathBuf, qemu: &str) -> Result<Self> {
        let interop = root().join("interop");
        let _ = fs::remove_dir_all(&dir);
        let share = dir.join("share");
        fs::create_dir_all(share.join("files"))?;
        let forwarded_port = free_address()?.port();
        let console = fs::File::create(dir.join("console.log"))?;
        let mut command = ends_with_us("TERM", &interop.join("lab/kernel-lab"));
        command.args(["run", "--kernel", kernel, "--smp", "2", "--timeout", "7200"]);
        command.arg("--mem").arg(GUEST_MIB.to_string()).arg("--qemu").arg(qemu);
        command.arg("--id").arg(id.to_string()).arg("--share").arg(&share);
        command.arg("--forward").arg(format!("{forwarded_port}:{NVMET_PORT}"));
        let scripts = ["linux-host", "linux-target", "network", "disk", "vhost-user"];
        let lab =
            ["lab/agent.sh", "lab/lib.sh", "lab/adq.sh", "lab/nvmet.sh", "lab/holds", "lab/power_cuts.py"];
        for file in lab.iter().chain(&scripts) {
            command.arg(interop.join(file));
        }
        command.stdin(Stdio::null()).stdout(console.try_clone()?).stderr(console);
        let lab = command.spawn().context("cannot run kernel-lab")?;
        let mut guest = Self { lab, share, dir, forwarded_port };
        let deadline = Instant::now() + BOOT_LIMIT;
        while !guest.share.join("ready").exists() {
            guest.check_alive()?;
            ensure!(Instant::now() < deadline, "the guest does not boot:\n{}", guest.console_end());
            sleep(POLL);
        }
        Ok(guest)
    }

    /// Copies nvlane to where the guest sees it as `/share/nvlane`, and the programs that come with it if they are beside it.
    pub(crate) fn bring_nvlane(&self, program: &Path) -> Result<()> {
        fs::copy(program, self.share.join("nvlane")).context("cannot copy nvlane to the guest")?;
        for name in ["nvlane-lab", "nvlane-csi"] {
            let companion = program.with_file_name(name);
            if companion.is_file() {
                self.bring(&companion)?;
            }
        }
        Ok(())
    }

    /// Copies a program to where the guest sees it in `/share`.
    pub(crate) fn bring(&self, program: &Path) -> Result<()> {
        let name = program.file_name().context("a program has a name")?;
        let copied = fs::copy(program, self.share.join(name));
        copied.map(drop).with_context(|| format!("cannot copy {} to the guest", program.display()))
    }

    /// Files that the guest sees as `/share/files`.
    pub(crate) fn files(&self) -> PathBuf {
        self.share.join("files")
    }

    /// Runs the behaviour `path` with these variables, and executes its requests.
    /// Its output goes to `output`.
    ///
    /// # Errors
    /// If it takes longer than `limit` or the guest dies; the guest is of no more use then.
    pub(crate) fn run(
        &mut self,
        path: &str,
        variables: &[(&str, String)],
        limit: Duration,
        outside: &Outside,
        output: &Path,
    ) -> Result<JobEnd> {
        let mut job = format!("BEHAVIOUR='{path}'\n");
        for (name, value) in variables {
            assert!(!value.contains('\''), "no quotes in {name}");
            job += &format!("export {name}='{value}'\n");
        }
        for leftover in ["ask", "answer", "files"] {
            let dir = self.share.join(leftover);
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(dir)?;
        }
        write_whole(&self.share.join("job"), &job)?;
        let result = std::thread::scope(|scope| {
            let deadline = Instant::now() + limit;
            let end = loop {
                match self.poll(deadline, limit) {
                    Ok(None) => {}
                    Ok(Some(end)) => break Ok(end),
                    Err(error) => break Err(error),
                }
                for Request { id, words } in self.requests() {
                    let path = self.share.join("answer").join(id);
                    let is_command = Outside::is_command(&words);
                    let answer = move || {
                        let (status, text) = outside.answer(&words);
                        // If this fails the guest is gone, which `poll` notices.
                        let _ = write_whole(&path, &format!("{status}\n{text}"));
                    };
                    // A target must be started by this thread, which outlives it (`ends_with_us`).
                    if is_command {
                        scope.spawn(answer);
                    } else {
                        answer();
                    }
                }
                sleep(POLL);
            };
            outside.end();
            end
        });
        let _ = fs::copy(self.share.join("output"), output);
        result
    }

    /// Whether the job has ended, or cannot end any more.
    fn poll(&mut self, deadline: Instant, limit: Duration) -> Result<Option<JobEnd>> {
        let done = self.share.join("done");
        if let Ok(text) = fs::read_to_string(&done) {
            fs::remove_file(done)?;
            let (status, state) = text.trim().split_once(' ').context("the guest gave no status")?;
            return Ok(Some(JobEnd { status: status.parse()?, is_clean: state == "clean" }));
        }
        self.check_alive()?;
        ensure!(Instant::now() < deadline, "no end after {} s", limit.as_secs());
        Ok(None)
    }

    /// The job's requests that have not been executed.
    fn requests(&self) -> Vec<Request> {
        let mut requests = Vec::new();
        for entry in fs::read_dir(self.share.join("ask")).into_iter().flatten().flatten() {
            let id = entry.file_name().to_string_lossy().into_owned();
            if id.starts_with('.') {
                continue;
            }
            if let Ok(text) = fs::read_to_string(entry.path()) {
                let _ = fs::remove_file(entry.path());
                requests.push(Request { id, words: text.lines().map(str::to_owned).collect() });
            }
        }
        requests
    }

    fn check_alive(&mut self) -> Result<()> {
        match self.lab.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the guest ended ({status}):\n{}", self.console_end()),
        }
    }

    /// The last lines of the console.
    pub(crate) fn console_end(&self) -> String {
        super::last_lines(&self.dir.join("console.log"), 30)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = fs::write(self.share.join("stop"), "");
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline {
            if !matches!(self.lab.try_wait(), Ok(None)) {
                return;
            }
            sleep(POLL);
        }
        // kernel-lab ends its guest on SIGTERM; SIGKILL would leave the guest running.
        if let Some(pid) = rustix::process::Pid::from_raw(self.lab.id().cast_signed()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.lab.wait();
    }
}

struct Request {
    id: String,
    words: Vec<String>,
}

/// Writes a file atomically.
fn write_whole(path: &Path, text: &str) -> Result<()> {
    let name = path.file_name().context("a file has a name")?.to_string_lossy();
    let unfinished = path.with_file_name(format!(".{name}"));
    fs::write(&unfinished, text)?;
    fs::rename(&unfinished, path)?;
    Ok(())
}
