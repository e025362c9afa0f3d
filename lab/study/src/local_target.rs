//! A target in a child process of this machine. It ends when this process ends, even if by SIGKILL.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use host::Address;
use load::target_process::TargetProcess;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::error::{Doing, Error};
use crate::served_options::ServedOptions;

/// A running target.
#[derive(Debug)]
pub(crate) struct LocalTarget {
    process: TargetProcess,
    /// State file.
    state: Option<PathBuf>,
    /// That of the state file, removed with the target.
    _directory: Option<TempDir>,
    pub(crate) memcached: Option<SocketAddr>,
}

fn command_line(options: &ServedOptions, program: &Path, state: Option<&Path>) -> Command {
    let mut words = options.launcher.iter();
    let mut command = match words.next() {
        Some(launcher) => {
            let mut command = Command::new(launcher);
            command.args(words).arg(program);
            command
        }
        None => Command::new(program),
    };
    command.args(["--log", "warn", "target", "--listen", &options.listen]);
    for namespace in &options.namespaces {
        command.args(["--namespace", namespace]);
    }
    if let Some(core) = options.core {
        command.args(["--cores", &core.to_string()]);
    }
    if let Some(path) = state {
        command.arg("--state").arg(path);
    }
    if let Some(place) = options.memcached {
        command.args(["--memcached", &place.to_string()]);
    }
    if let Some(keys) = &options.keys {
        command.args(keys.arguments());
    }
    command.args(options.tuning.arguments()).args(&options.arguments);
    command
}

/// Time limit for writing the state file.
const TELL_TIME: Duration = Duration::from_secs(10);

impl LocalTarget {
    /// Starts a target and waits until it listens.
    ///
    /// # Errors
    /// The target cannot be started; it has written the reason to the standard error of this process.
    pub(crate) fn start(program: &Path, options: &ServedOptions) -> Result<Self, Error> {
        let directory = options.tells.then(|| tempfile::Builder::new().prefix("nvlane-study-").tempdir());
        let directory = directory.transpose().doing("a directory for the target's state")?;
        let state = directory.as_ref().map(|directory| directory.path().join("state.json"));
        let process = TargetProcess::start(command_line(options, program, state.as_deref()))?;
        Ok(Self { process, state, _directory: directory, memcached: options.memcached })
    }

    /// Address on which the target listens.
    pub(crate) fn address(&self) -> &Address {
        self.process.address()
    }

    /// Process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// State of the target, as written by `nvlane target --state`.
    pub(crate) fn state(&self) -> Result<Value, Error> {
        let silent = || Error::Target("does not tell how it is".into());
        let path = self.state.as_ref().ok_or_else(silent)?;
        let _ = std::fs::remove_file(path);
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).ok_or_else(silent)?;
        kill_process(pid, Signal::USR1).doing("ask the target")?;
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
    pub(crate) fn stop(self) -> Result<(), Error> {
        Ok(self.process.stop()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(options: &ServedOptions) -> String {
        let state = options.tells.then(|| Path::new("state.json"));
        let command = command_line(options, Path::new("nvlane"), state);
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
                 --cores 3 --engine epoll"
            )
        );
        let tells = ServedOptions { tells: true, ..ServedOptions::of(["null:1T"]) };
        assert!(words(&tells).ends_with(" --state state.json"));
        let launcher = ["ip", "netns", "exec", "there"].map(str::to_owned).to_vec();
        let there = ServedOptions { launcher, ..ServedOptions::of(["null:1T"]) };
        assert!(words(&there).starts_with("ip netns exec there nvlane --log warn target"));
    }
}
