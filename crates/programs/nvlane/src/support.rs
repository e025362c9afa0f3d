//! `nvlane support`: an archive of what somebody needs to find out what is wrong with a target, without any secret.

mod scrub;
mod tar;

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use command_line::exit::{Ended, Failure};
use command_line::output;
use linux::small_file::SmallFile;
use serde_json::Value;
use subsystem::config::{ConfigFile, SecretText, TargetConfig};
use subsystem::machine::hostname;

use self::scrub::{BYTES_MIN, Scrubber};
use self::tar::Archive;
use crate::doctor::{self, Place, Subject};
use crate::serve::control_calls::changes_file;

/// Limit of one file, bytes.
const FILE_BYTES_MAX: usize = 32 << 20;

/// Bytes of the end of a log.
const LOG_BYTES_MAX: u64 = 4 << 20;

/// Time for an answer with metrics.
const METRICS_TIME: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
#[command(after_help = "\
Writes version, findings of `nvlane doctor`, configuration, kept changes, state, metrics, the end of a log and facts of the kernel into an \
archive (tar) of mode 0600. Parts that are not there are left out, and README.txt in the archive says so.

  nvlane support --config /etc/nvlane/nvlane.toml --log-file /var/log/nvlane/nvlane.log
  journalctl -u nvlane -n 20000 > nvlane.log && nvlane support --log-file nvlane.log

No secret is in it: the configuration has references only, and its secrets, keys, users' passwords and private keys are taken out of every \
file, in text form, decoded, in hexadecimal and in base64. Passwords of fewer than four bytes are not looked for. NQNs, addresses, paths and \
names of users are in it. An existing file is not overwritten.")]
pub(crate) struct SupportArguments {
    /// The archive to write. [default: nvlane-support-HOST-TIME.tar in this directory]
    file: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
    /// A log, of which the end is added.
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
}

/// The files of an archive.
struct Bundle {
    files: Vec<(String, Vec<u8>)>,
    /// What is not in it, and why.
    lacking: Vec<String>,
}

impl Bundle {
    fn add(&mut self, name: &str, content: Result<Vec<u8>, String>) {
        match content {
            Ok(content) if content.len() <= FILE_BYTES_MAX => self.files.push((name.to_owned(), content)),
            Ok(content) => self.lacking.push(format!("{name}: too large, {} bytes", content.len())),
            Err(why) => self.lacking.push(format!("{name}: {why}")),
        }
    }

    fn add_file(&mut self, name: &str, path: &Path) {
        self.add(name, read_file(path).map_err(|error| format!("{}: {error}", path.display())));
    }
}

pub(crate) fn support(arguments: &SupportArguments) -> Ended {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let path = arguments.file.clone().unwrap_or_else(|| {
        let host: String =
            hostname().chars().filter(|part| part.is_ascii_alphanumeric() || *part == '-').take(40).collect();
        format!("nvlane-support-{host}-{now_s}.tar").into()
    });
    let mut archive = create(&path)?;
    let written = write_bundle(arguments, now_s).and_then(|bytes| {
        let written = archive.write_all(&bytes).and_then(|()| archive.sync_all());
        written.map_err(|error| Failure::from(anyhow::anyhow!("cannot write {}: {error}", path.display())))
    });
    if let Err(failure) = written {
        // Half an archive helps nobody.
        let _ = fs::remove_file(&path);
        return Err(failure);
    }
    output::write(format!("{}\n", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Creates the archive, which nobody else may read.
fn create(path: &Path) -> Result<File, Failure> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::AlreadyExists => ": name another file, this one is not overwritten",
            _ => "",
        };
        Failure::usage(format!("cannot create {}: {error}{remedy}", path.display()))
    })
}

fn write_bundle(arguments: &SupportArguments, now_s: u64) -> Result<Vec<u8>, Failure> {
    let mut subject = Subject::of(&arguments.place);
    let mut bundle = Bundle { files: Vec::new(), lacking: Vec::new() };
    let mut scrubber = Scrubber::default();
    let running = subject.call("export");
    let running_config = running.as_ref().ok().and_then(|answer| {
        Some(ConfigFile::parse("the running configuration", answer["toml"].as_str()?).ok()?.config)
    });
    for config in subject.config().into_iter().chain(&running_config) {
        learn(&mut scrubber, config, &mut bundle.lacking);
    }
    bundle.add("version.txt", Ok(format!("nvlane {}\n", env!("CARGO_PKG_VERSION")).into_bytes()));
    let report = doctor::examine(&mut subject);
    bundle.add("doctor.txt", Ok(report.to_string().into_bytes()));
    bundle.add("doctor.json", serde_json::to_vec_pretty(&report).map_err(|error| error.to_string()));
    match &subject.file {
        // Comments may have anything: only what the target reads of the file is there.
        Some(Ok(file)) => bundle.add("config.toml", Ok(file.config.to_toml().to_string().into_bytes())),
        Some(Err(errors)) => bundle.add("config-errors.txt", Ok(errors.to_string().into_bytes())),
        None => bundle.lacking.push("config.toml: no configuration file, name it with --config".into()),
    }
    let text =
        |answer: Value| answer["toml"].as_str().map(|text| text.as_bytes().to_vec()).ok_or_else(String::new);
    bundle.add("running.toml", running.and_then(text));
    let pretty = |answer: Value| serde_json::to_vec_pretty(&answer).map_err(|error| error.to_string());
    for (name, method) in [("state.json", "state"), ("diff.json", "diff")] {
        bundle.add(name, subject.call(method).and_then(pretty));
    }
    let config = running_config.as_ref().or(subject.config());
    if let Some(file) = config.and_then(|config| changes_file(config, subject.path.as_deref())) {
        bundle.add_file("changes.json", &file);
    }
    if let Some(address) = config.and_then(|config| config.metrics.address) {
        bundle.add("metrics.txt", metrics(address).map_err(|error| format!("{address}: {error}")));
    }
    if let Some(log) = &arguments.log_file {
        bundle.add("log.txt", tail(log).map_err(|error| format!("{}: {error}", log.display())));
    }
    add_kernel_facts(&mut bundle, subject.pid());
    let directory = "nvlane-support";
    let mut archive = Archive::new(now_s);
    let mut readme = format!("nvlane support, Unix time {now_s}\n\nFiles:\n");
    for (name, content) in bundle.files {
        match scrubber.scrub(&content) {
            Some(clean) => {
                let _ = writeln!(readme, "  {name}");
                archive.add(&format!("{directory}/{name}"), &clean);
            }
            None => bundle.lacking.push(format!("{name}: a secret could not be taken out of it")),
        }
    }
    if scrubber.short_count > 0 {
        bundle.lacking.push(format!(
            "{} passwords of fewer than {BYTES_MIN} bytes were not looked for",
            scrubber.short_count
        ));
    }
    readme.push_str("\nNot there:\n");
    for line in &bundle.lacking {
        let _ = writeln!(readme, "  {}", line.trim_end_matches(": "));
    }
    let readme = scrubber.scrub(readme.as_bytes()).unwrap_or_default();
    archive.add(&format!("{directory}/README.txt"), &readme);
    Ok(archive.finish())
}

/// Learns the secrets that a configuration refers to.
fn learn(scrubber: &mut Scrubber, config: &TargetConfig, lacking: &mut Vec<String>) {
    for SecretText { source, text } in config.secret_texts() {
        match text {
            Ok(text) => scrubber.add_text(&text),
            Err(why) => {
                lacking.push(format!("the secret in {source} is unknown, so it was not looked for: {why}"));
            }
        }
    }
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    SmallFile::open_regular(path)?.read_text(FILE_BYTES_MAX).map(String::into_bytes)
}

/// The end of a log, from the begin of a line on.
fn tail(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let skipped = length.saturating_sub(LOG_BYTES_MAX);
    if skipped > 0 {
        file.seek(SeekFrom::Start(skipped))?;
    }
    let mut bytes = Vec::new();
    file.take(LOG_BYTES_MAX).read_to_end(&mut bytes)?;
    let whole =
        if skipped > 0 { bytes.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1) } else { 0 };
    Ok(bytes.split_off(whole))
}

/// The metrics of a target, by HTTP.
fn metrics(address: SocketAddr) -> io::Result<Vec<u8>> {
    let address = crate::local_address::from_here(address);
    let mut connection = TcpStream::connect_timeout(&address, METRICS_TIME)?;
    connection.set_read_timeout(Some(METRICS_TIME))?;
    connection.set_write_timeout(Some(METRICS_TIME))?;
    connection.write_all(
        format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes(),
    )?;
    let mut answer = Vec::new();
    connection.take(FILE_BYTES_MAX as u64).read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").map_or(0, |at| at + 4);
    Ok(answer.split_off(end))
}

/// Files of the kernel about this machine, and about the target's process.
fn add_kernel_facts(bundle: &mut Bundle, pid: Option<u32>) {
    const MACHINE: [&str; 15] = [
        "/proc/version",
        "/proc/cpuinfo",
        "/proc/meminfo",
        "/proc/loadavg",
        "/proc/uptime",
        "/proc/interrupts",
        "/proc/softirqs",
        "/proc/diskstats",
        "/proc/mounts",
        "/proc/net/dev",
        "/proc/net/snmp",
        "/proc/net/netstat",
        "/proc/net/sockstat",
        "/proc/pressure/cpu",
        "/proc/pressure/io",
    ];
    // Neither its environment nor its command line: either may have secrets.
    const PROCESS: [&str; 7] = ["status", "limits", "cgroup", "io", "sched", "schedstat", "numa_maps"];
    let mut add = |path: &str| {
        let name = path.trim_start_matches('/').replace('/', "-");
        // Files of the kernel have no length.
        let content = fs::read(path).map_err(|error| error.to_string());
        bundle.add(&format!("{name}.txt"), content);
    };
    MACHINE.iter().for_each(|path| add(path));
    for name in pid.iter().flat_map(|pid| PROCESS.map(|name| format!("/proc/{pid}/{name}"))) {
        add(&name);
    }
}
