//! The host under test: this project's own library, or a command.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use host::BlockingNamespace;
use host::reconnect::ReconnectSettings;
use host::{Address, Error, Options, discovery};
use peer::finding::{Check, Finding, differs};
use wire::nqn::Nqn;
use wire::pdu::Digests;
use wire::text::is_hidden;

/// The host under test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// This project's host library, within this process: it connects, writes, flushes, reads and compares.
    Library,
    /// A command, run with the fake target's address in `$NVLANE_ADDR`. A single word is a shell command line.
    Command(Vec<String>),
}

/// The task of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Write and read.
    Io(Digests),
    /// Read the discovery log.
    Discover,
}

/// How a run of the host ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The host reports success.
    Well,
    /// The host reports this failure.
    Failing(String),
}

/// Time limit of one run.
const LIMIT: Duration = Duration::from_secs(30);

impl Host {
    /// Runs the host once against the fake target.
    pub(crate) fn drive(&self, address: SocketAddr, subsystem: &Nqn, task: Task) -> Check<Ended> {
        match self {
            Self::Library => library(address, subsystem, task),
            Self::Command(words) => run(words, address, subsystem),
        }
    }
}

fn library(address: SocketAddr, subsystem: &Nqn, task: Task) -> Check<Ended> {
    let address = Address::from(address).with_subsystem(subsystem.clone());
    let (done, wait) = channel();
    let thread = std::thread::spawn(move || {
        let result = match task {
            Task::Io(digests) => work(&address, digests),
            Task::Discover => discovered(&address),
        };
        let _ = done.send(result);
    });
    match wait.recv_timeout(LIMIT) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => {
            Err(Finding::Hangs(format!("the host did not end within {} s", LIMIT.as_secs())))
        }
        Err(RecvTimeoutError::Disconnected) => {
            let panic = thread.join().err();
            let said = panic.as_ref().and_then(|panic| {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                text.or_else(|| panic.downcast_ref::<&str>().copied())
            });
            Err(Finding::Dies(format!("the host panics: {}", said.unwrap_or("no message"))))
        }
    }
}

fn options() -> Options {
    Options::default()
        .with_connect_timeout(Duration::from_secs(2))
        .with_command_timeout(Duration::from_secs(2))
        .with_reconnect(ReconnectSettings::default().with_give_up_after(Some(Duration::from_secs(3))))
        .tuned(|tuning| tuning.admin_timeout = Duration::from_secs(2))
}

/// Offsets and lengths to write and read: some fit in a capsule, some need an R2T.
const EXTENTS: [(u64, usize); 3] = [(0, 4096), (16 << 10, 8192), (1 << 20, 64 << 10)];

fn work(address: &Address, digests: Digests) -> Check<Ended> {
    let failing = |error: &Error| Ok(Ended::Failing(error.to_string()));
    let mut disk = match BlockingNamespace::connect(address, options().with_only_digests(digests)) {
        Ok(disk) => disk,
        Err(error) => return failing(&error),
    };
    let data = |length: usize, offset: u64| -> Vec<u8> {
        (0..length as u64).map(|at| ((at / 7) ^ offset >> 9).to_le_bytes()[0] | 1).collect()
    };
    for (offset, length) in EXTENTS {
        // An interrupted write may be repeated.
        let mut result = disk.write_at(&data(length, offset), offset);
        if result.is_err() {
            result = disk.write_at(&data(length, offset), offset);
        }
        if let Err(error) = result {
            return failing(&error);
        }
    }
    if let Err(error) = disk.flush().or_else(|_| disk.flush()) {
        return failing(&error);
    }
    for (offset, length) in EXTENTS {
        let mut read = vec![0; length];
        if let Err(error) = disk.read_at(&mut read, offset).or_else(|_| disk.read_at(&mut read, offset)) {
            return failing(&error);
        }
        if read != data(length, offset) {
            return differs("the host accepts data other than what it wrote");
        }
    }
    Ok(Ended::Well)
}

fn discovered(address: &Address) -> Check<Ended> {
    let service = Address { subsystem: None, ..address.clone() };
    match discovery::survey(&service, &options()) {
        Ok(survey) => {
            for (_, found) in &survey.services {
                for entry in &found.entries {
                    let text = format!("{} {}", entry.address(), entry.service_id());
                    if text.contains(|char: char| char.is_control()) {
                        return differs("the host shows control characters of a discovery log");
                    }
                }
            }
            Ok(Ended::Well)
        }
        Err(error) => Ok(Ended::Failing(error.to_string())),
    }
}

fn run(words: &[String], address: SocketAddr, subsystem: &Nqn) -> Check<Ended> {
    let failed = |error: std::io::Error| Finding::Skipped(format!("cannot run {words:?}: {error}"));
    let mut command = match words {
        [line] => {
            let mut command = Command::new("sh");
            command.args(["-c", line]);
            command
        }
        words => {
            let mut command = Command::new(words.first().map_or("true", String::as_str));
            command.args(words.get(1..).unwrap_or_default());
            command
        }
    };
    command.env("NVLANE_ADDR", format!("{address}/{subsystem}"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let readers = [child.stdout.take().map(read_all), child.stderr.take().map(read_all)];
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        if start.elapsed() > LIMIT {
            let _ = child.kill();
            let _ = child.wait();
            return Err(Finding::Hangs(format!("the command did not end within {} s", LIMIT.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut output = Vec::new();
    for reader in readers.into_iter().flatten() {
        output.append(&mut reader.join().unwrap_or_default());
    }
    if String::from_utf8_lossy(&output).chars().any(|char| char != '\n' && is_hidden(char)) {
        return differs("the command prints characters from the target that a terminal interprets or hides");
    }
    // Exit code of a Rust program that panicked.
    const PANIC: i32 = 101;
    match status.code() {
        Some(0) => Ok(Ended::Well),
        Some(PANIC) => Err(Finding::Dies("the command panics".into())),
        // Shells report a signal as 128 plus its number.
        Some(code) if code >= 128 => Err(Finding::Dies(format!("the command ends with {code}"))),
        Some(3) => differs("the command reports data other than what was written"),
        Some(code) => Ok(Ended::Failing(format!("exit code {code}"))),
        None => Err(Finding::Dies("the command is killed by a signal".into())),
    }
}

fn read_all(mut pipe: impl std::io::Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}
