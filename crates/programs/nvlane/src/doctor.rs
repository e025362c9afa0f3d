//! `nvlane doctor`: looks at this machine, a configuration and a running target, and says what to change, with the command.

mod configuration;
mod finding;
mod kernel;
mod limits;
mod network;
mod running;
mod storage;

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::Duration;

use clap::Args;
use command_line::control_place::{CONTROL_SOCKET, ControlOptions};
use command_line::exit::Ended;
use command_line::output::Output;
use serde::Serialize;
use serde_json::{Map, Value};
use subsystem::config::{ConfigErrors, ConfigFile, TargetConfig};

use self::finding::{Finding, Level};
use crate::ctl::client::Client;
use crate::serve::start_thread;

/// The configuration of the packages.
const CONFIG: &str = "/etc/nvlane/nvlane.toml";

/// Time for each answer of a target.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Time for all storage of a configuration to answer.
const STORAGE_TIME: Duration = Duration::from_secs(20);

/// Where a configuration and a target are.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// The target's configuration. [default: /etc/nvlane/nvlane.toml, if it is there]
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The control socket of a running target. [default: that of the configuration, or /run/nvlane/control.sock]
    #[arg(long, value_name = "SOCKET", env = "NVLANE_CONTROL")]
    control: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Looks at the kernel and io_uring, limits of the process and its control group, network buffers, clock, cores and memory nodes, the file systems \
of the configured storage, secrets and certificates, ports, and the state of a running target. Nothing is changed, opened for writing or bound. It \
needs no root, and works in a container: what cannot be seen from there is left out. Run it as the target's user, whose rights count; the limits \
are those of a running target, else those of this process.

Levels: ok, note (may matter), warning (costs speed or availability), error (the target will not start, or serves wrongly).
Exit code 1 if there is an error, 0 otherwise; -o json has a list of findings with level, check, what, why, change and command.")]
pub(crate) struct DoctorArguments {
    #[command(flatten)]
    place: Place,
    /// Show warnings and errors only.
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    output: Output,
}

/// What is looked at.
pub(crate) struct Subject {
    machine: Machine,
    /// The configuration, if there is one.
    pub(crate) file: Option<Result<ConfigFile, ConfigErrors>>,
    /// Its path.
    pub(crate) path: Option<PathBuf>,
    /// The socket, and the target at it; `None` if there is no socket.
    target: Option<(PathBuf, Result<Client, String>)>,
}

/// Files of the kernel, below another directory in tests.
pub(crate) struct Machine {
    root: PathBuf,
}

impl Machine {
    /// The content of a file, without spaces around it; `None` if it cannot be read.
    fn read(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.root.join(path.trim_start_matches('/'))).ok()?;
        Some(text.trim().to_owned())
    }

    /// A file with a number.
    fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.parse().ok()
    }
}

impl Subject {
    /// Reads the configuration, and connects to the target.
    pub(crate) fn of(place: &Place) -> Self {
        let usual = || Some(PathBuf::from(CONFIG)).filter(|path| path.is_file());
        let path = place.config.clone().or_else(usual);
        let file = path.as_deref().map(ConfigFile::read);
        let of_file = || file.as_ref()?.as_ref().ok()?.config.control.socket.clone();
        let usual = || Some(PathBuf::from(CONTROL_SOCKET)).filter(|path| path.exists());
        let socket = place.control.clone().or_else(of_file).or_else(usual);
        let target = socket.map(|socket| {
            let client = Client::connect(&ControlOptions::of_socket(&socket), ANSWER_TIME)
                .map_err(|failure| failure.to_string());
            (socket, client)
        });
        Self { machine: Machine { root: "/".into() }, file, path, target }
    }

    /// The configuration, if it can be read.
    pub(crate) fn config(&self) -> Option<&TargetConfig> {
        Some(&self.file.as_ref()?.as_ref().ok()?.config)
    }

    /// Calls a method of the running target.
    pub(crate) fn call(&mut self, method: &str) -> Result<Value, String> {
        match &mut self.target {
            None => Err("no control socket, name it with --control".into()),
            Some((_, Err(why))) => Err(why.clone()),
            Some((_, Ok(client))) => client.call(method, &Map::new()).map_err(|failure| failure.to_string()),
        }
    }

    /// The configuration of the running target.
    pub(crate) fn running_config(&mut self) -> Option<TargetConfig> {
        let answer = self.call("export").ok()?;
        Some(ConfigFile::parse("the running configuration", answer["toml"].as_str()?).ok()?.config)
    }

    /// The process of the running target.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.target.as_ref()?.1.as_ref().ok()?.pid()
    }
}

/// Everything that was found.
#[derive(Serialize)]
pub(crate) struct Report {
    version: &'static str,
    worst: Level,
    findings: Vec<Finding>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            finding.fmt(f)?;
        }
        let count = |level| self.findings.iter().filter(|finding| finding.level == level).count();
        let [errors, warnings, notes] = [Level::Error, Level::Warning, Level::Note].map(count);
        writeln!(f, "errors: {errors}, warnings: {warnings}, notes: {notes}")
    }
}

/// Looks at everything.
pub(crate) fn examine(subject: &mut Subject) -> Report {
    let mut findings = kernel::examine(&subject.machine, subject.config());
    findings.extend(limits::examine(&subject.machine, subject.config(), subject.pid()));
    findings.extend(network::examine(&subject.machine, subject.config()));
    let running = subject.running_config();
    findings.extend(within(STORAGE_TIME, of_storage(subject, running)));
    findings.extend(running::examine(subject));
    let worst = findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok);
    Report { version: env!("CARGO_PKG_VERSION"), worst, findings }
}

/// What looks at the configuration, and at the storage of the file and of the running target, which may have more.
fn of_storage(
    subject: &Subject,
    running: Option<TargetConfig>,
) -> impl FnOnce() -> Vec<Finding> + Send + 'static {
    let (path, file) = (subject.path.clone(), subject.file.clone());
    let configs: Vec<TargetConfig> = subject.config().cloned().into_iter().chain(running).collect();
    move || {
        let mut findings = configuration::examine(path.as_deref(), file.as_ref());
        let mut seen = HashSet::new();
        let of_storage = configs.iter().flat_map(storage::examine);
        findings.extend(of_storage.filter(|finding| seen.insert((finding.check, finding.what.clone()))));
        findings
    }
}

/// The findings of a look at storage, which may hang.
fn within(time: Duration, look: impl FnOnce() -> Vec<Finding> + Send + 'static) -> Vec<Finding> {
    let (done, findings) = channel();
    let started = start_thread(move || drop(done.send(look())));
    let failed = |what: String| {
        let finding = Finding::error("storage", what).because("a command on it waits as long");
        vec![
            finding.change("find out which file system or device hangs").by("dmesg | tail; cat /proc/mounts"),
        ]
    };
    match started.map(|()| findings.recv_timeout(time)) {
        Ok(Ok(findings)) => findings,
        Ok(Err(_)) => failed(format!("no answer within {} s", time.as_secs())),
        Err(error) => failed(error.to_string()),
    }
}

pub(crate) fn doctor(arguments: &DoctorArguments) -> Ended {
    let mut report = examine(&mut Subject::of(&arguments.place));
    if arguments.quiet {
        report.findings.retain(|finding| finding.level >= Level::Warning);
    }
    arguments.output.print(&report)?;
    Ok(if report.worst == Level::Error { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A path for a shell.
fn shell(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |part: char| part.is_ascii_alphanumeric() || "/._-+=:@%".contains(part);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// A machine with these files, which is there as long as the directory.
    pub(super) fn machine(files: &[(&str, &str)]) -> (TempDir, Machine) {
        let directory = tempfile::tempdir().expect("a directory");
        for (path, content) in files {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            fs::write(path, content).expect("written");
        }
        let root = directory.path().to_owned();
        (directory, Machine { root })
    }

    #[test]
    fn storage_that_hangs_is_told_and_not_waited_for() {
        let hangs = || {
            std::thread::sleep(Duration::from_secs(3600));
            Vec::new()
        };
        let findings = within(Duration::from_millis(10), hangs);
        assert_eq!((findings.len(), findings[0].level), (1, Level::Error));
        assert!(within(Duration::from_secs(60), Vec::new).is_empty());
    }

    #[test]
    fn a_path_is_quoted_for_a_shell_where_it_must_be() {
        assert_eq!(shell(Path::new("/srv/a-b.img")), "/srv/a-b.img");
        assert_eq!(shell(Path::new("/srv/a b'c")), "'/srv/a b'\\''c'");
    }
}
