//! A target in a child process that ends when this process ends, even if by SIGKILL.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use host::Address;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::error::Error;

/// The command of `--run`: prints the target's address, then waits for the end of its input, which ends with this
/// process.
const RUN: &str = "echo \"$NVLANE_ADDR\"; exec cat >/dev/null";

/// Options of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedOptions {
    /// Namespaces, as arguments of `--namespace`; the first is NSID 1.
    pub namespaces: Vec<String>,
    /// Listen address; port 0 takes a free one.
    pub listen: String,
    /// The core of its reactor; `arguments` may name several.
    pub core: Option<usize>,
    /// More options of `nvlane target`.
    pub arguments: Vec<String>,
    /// Command prefix, such as `ip netns exec NAME`.
    pub launcher: Vec<String>,
    /// Whether the target writes a state file.
    pub tells: bool,
}

impl ServedOptions {
    /// A target with these namespaces on a free port of 127.0.0.1.
    pub fn of<Text: Into<String>>(namespaces: impl IntoIterator<Item = Text>) -> Self {
        Self {
            namespaces: namespaces.into_iter().map(Into::into).collect(),
            listen: "127.0.0.1:0".into(),
            core: None,
            arguments: Vec::new(),
            launcher: Vec::new(),
            tells: false,
        }
    }

    /// The command line.
    fn command(&self, program: &Path, state: Option<&Path>) -> Command {
        let mut words = self.launcher.iter();
        let mut command = match words.next() {
            Some(launcher) => {
                let mut command = Command::new(launcher);
                command.args(words).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.args(["--log", "warn", "target", "--listen", &self.listen]);
        for namespace in &self.namespaces {
            command.args(["--namespace", namespace]);
        }
        if let Some(core) = self.core {
            command.args(["--cores", &core.to_string()]);
        }
        if let Some(path) = state {
            command.arg("--state").arg(path);
        }
        command.args(&self.arguments).args(["--run", RUN]);
        command
    }
}

/// A running target.
#[derive(Debug)]
pub struct Served {
    address: Address,
    child: Child,
    /// State file.
    state: Option<PathBuf>,
}

/// Time limit for writing the state file.
const TELL_TIME: Duration = Duration::from_secs(10);

impl Served {
    /// Starts a target and waits until it listens.
    ///
    /// # Errors
    /// The target cannot be started; it has written the reason to the standard error of this process.
    pub fn start(program: &Path, options: &ServedOptions) -> Result<Self, Error> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let state = options.tells.then(|| {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            std::env::temp_dir().join(format!("nvlane-study-{}-{count}.json", std::process::id()))
        });
        let mut command = options.command(program, state.as_deref());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| Error::system("cannot start the target", error))?;
        let output = child.stdout.take().expect("piped");
        let mut line = String::new();
        let read = BufReader::new(output).read_line(&mut line);
        read.map_err(|error| Error::system("the target's output", error))?;
        let Ok(address) = line.trim().parse::<Address>() else {
            let status = child.wait().map_err(|error| Error::system("the target", error))?;
            return Err(Error::Target(format!("did not start ({status})")));
        };
        Ok(Self { address, child, state })
    }

    /// Address on which the target listens.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// State of the target, as written by `nvlane target --state`.
    ///
    /// # Errors
    /// The target does not write its state in time, or was started without a state file.
    pub fn state(&self) -> Result<Value, Error> {
        let silent = || Error::Target("does not tell how it is".into());
        let path = self.state.as_ref().ok_or_else(silent)?;
        let _ = std::fs::remove_file(path);
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).ok_or_else(silent)?;
        kill_process(pid, Signal::USR1).map_err(|error| Error::system("ask the target", error.into()))?;
        let until = Instant::now() + TELL_TIME;
        while Instant::now() < until {
            // The file is replaced by rename, so it is complete.
            if let Ok(text) = std::fs::read_to_string(path) {
                return serde_json::from_str(&text).map_err(|_| silent());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Err(silent())
    }

    /// Stops the target.
    ///
    /// # Errors
    /// The target exited with an error.
    pub fn stop(mut self) -> Result<(), Error> {
        let status = self.end().map_err(|error| Error::system("the target", error))?;
        if status.success() { Ok(()) } else { Err(Error::Target(format!("ended badly: {status}"))) }
    }

    fn end(&mut self) -> std::io::Result<ExitStatus> {
        drop(self.child.stdin.take());
        self.child.wait()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.end();
        if let Some(path) = &self.state {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(options: &ServedOptions) -> String {
        let state = options.tells.then(|| Path::new("state.json"));
        let command = options.command(Path::new("nvlane"), state);
        let words = command.get_args().map(|word| word.to_str().unwrap());
        let program = command.get_program().to_str().unwrap();
        std::iter::once(program).chain(words).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_target_is_started_as_asked() {
        let options = ServedOptions {
            core: Some(3),
            arguments: vec!["--engine".into(), "epoll".into()],
            ..ServedOptions::of(["null:1T", "ram:1M"])
        };
        assert_eq!(
            words(&options),
            format!(
                "nvlane --log warn target --listen 127.0.0.1:0 --namespace null:1T --namespace ram:1M \
                 --cores 3 --engine epoll --run {RUN}"
            )
        );
        let tells = ServedOptions { tells: true, ..ServedOptions::of(["null:1T"]) };
        assert!(words(&tells).contains(" --state state.json "));
        let launcher = ["ip", "netns", "exec", "there"].map(str::to_owned).to_vec();
        let there = ServedOptions { launcher, ..ServedOptions::of(["null:1T"]) };
        assert!(words(&there).starts_with("ip netns exec there nvlane --log warn target"));
    }

    #[test]
    fn what_is_no_target_is_told_so() {
        let error = Served::start(Path::new("false"), &ServedOptions::of(["null:1T"])).unwrap_err();
        assert_eq!(error.to_string(), "the target did not start (exit status: 1)");
    }
}
