//! `nvlane attach auto`: the bridge, or the kernel's host, that this machine has.

use std::fmt;
use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context;
use bridge::check_ublk;
use clap::Args;
use command_line::exit::{Ended, Failure};
use command_line::output::Output;
use host::Address;
use serde::Serialize;

use super::running::own_directory;

#[derive(Debug, Args)]
#[command(after_help = "\
  nvlane attach auto 192.0.2.1
  nvlane attach auto 192.0.2.1 --explain
  nvlane attach auto 192.0.2.1 --run 'mkfs.ext4 \"$NVLANE_DEVICE\"'

Takes the first of these that this machine has, and says on standard error why each was taken or left:
  kernel   nvme-tcp of Linux, by nvme connect. It stays connected until nvme disconnect. Not with options of a bridge
  ublk     /dev/ublkbN, with the module ublk_drv
  fuse     files of a directory, /run/nvlane-attach/PROCESS or the one behind the address; with /dev/fuse
  nbd      an NBD server on a Unix socket: no block device, but a URI for programs that know NBD; needs nothing of the kernel

Options behind the address are those of the bridge: see nvlane attach ublk --help.")]
pub(crate) struct AutoArguments {
    /// Only say what would be taken, and why.
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    output: Output,
    /// The target: `HOST[:PORT][/NQN][?ns=NSID]`, `nvme+tcp://...`.
    #[arg(value_name = "ADDR", env = "NVLANE_ADDR")]
    address: String,
    /// Options of the bridge.
    #[arg(value_name = "OPTION", trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<String>,
}

/// A way to reach a namespace.
#[derive(Debug, Serialize)]
struct Way {
    name: &'static str,
    is_taken: bool,
    why: String,
}

/// All of them, in order.
#[derive(Debug, Serialize)]
struct Choice {
    ways: Vec<Way>,
    /// What would be run.
    command: Vec<String>,
    /// A directory that it needs.
    #[serde(skip)]
    directory: Option<PathBuf>,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Way { name, is_taken, why } in &self.ways {
            writeln!(f, "{name}: {}: {why}", if *is_taken { "taken" } else { "left" })?;
        }
        writeln!(f, "{}", self.command.join(" "))
    }
}

/// What is known of a way: why it can be taken, or why not.
type Judged = Result<String, String>;

pub(super) fn auto(arguments: &AutoArguments) -> Ended {
    let mut options = arguments.options.clone();
    // Also behind the address, where other options are.
    options.retain(|option| option != "--explain");
    let explains = arguments.explain || options.len() < arguments.options.len();
    let address: Address = arguments
        .address
        .parse()
        .map_err(|error| Failure::usage(format!("address {}: {error}", arguments.address)))?;
    let judged = [kernel(&address, &options), ublk(), fuse()];
    let choice = choose(&arguments.address, &address, &options, judged, own_directory().as_deref())?;
    if explains {
        arguments.output.print(&choice)?;
        return Ok(ExitCode::SUCCESS);
    }
    eprint!("{choice}");
    if let Some(directory) = &choice.directory {
        // If it cannot be made, the bridge says so.
        let _ = std::fs::create_dir_all(directory);
    }
    let (program, options) = choice.command.split_first().context("a command")?;
    let program =
        if program == "nvlane" { std::env::current_exe().context("own path")? } else { program.into() };
    // Returns only if it fails.
    let error = Command::new(&program).args(options).exec();
    Err(anyhow::Error::new(error).context(format!("cannot run {}", program.display())).into())
}

/// The first way that can be taken; NBD can in any case.
fn choose(
    text: &str,
    address: &Address,
    options: &[String],
    judged: [Judged; 3],
    directory: Option<&Path>,
) -> Result<Choice, Failure> {
    let mut ways = Vec::new();
    let mut taken = None;
    for (name, judged) in ["kernel", "ublk", "fuse"].into_iter().zip(judged) {
        let can = judged.is_ok();
        let is_taken = can && taken.is_none();
        let why = match (judged, taken) {
            (Ok(_), Some(other)) => format!("{other} is taken"),
            (Ok(why) | Err(why), _) => why,
        };
        ways.push(Way { name, is_taken, why });
        taken = taken.or(is_taken.then_some(name));
    }
    let why = match taken {
        Some(other) => format!("{other} is taken"),
        None => "needs nothing of the kernel; programs must know NBD".to_owned(),
    };
    ways.push(Way { name: "nbd", is_taken: taken.is_none(), why });
    let bridge = |kind: &str| ["nvlane", "attach", kind, text].map(str::to_owned).to_vec();
    let mut command = match taken {
        Some("kernel") => connect(address),
        Some(kind) => bridge(kind),
        None => bridge("nbd"),
    };
    let has = |names: &[&str]| {
        options.iter().any(|option| names.iter().any(|name| option.split('=').next() == Some(name)))
    };
    let is_named = options.first().is_some_and(|option| !option.starts_with('-'));
    let own = directory.map(|directory| (directory, std::process::id()));
    let mut needed = None;
    match taken {
        Some("fuse") if !has(&["--run"]) && !is_named => {
            let (directory, process) = own.ok_or_else(|| no_place("fuse", "ADDR MOUNTPOINT"))?;
            let place = directory.join(process.to_string());
            command.push(place.display().to_string());
            needed = Some(place);
        }
        None if !has(&["--socket", "--listen", "--run"]) => {
            let (directory, process) = own.ok_or_else(|| no_place("nbd", "--socket PATH"))?;
            let socket = directory.join(format!("{process}.sock"));
            command.extend(["--socket".to_owned(), socket.display().to_string()]);
            needed = Some(directory.to_owned());
        }
        _ => {}
    }
    command.extend(options.iter().cloned());
    Ok(Choice { ways, command, directory: needed })
}

fn no_place(way: &str, option: &str) -> Failure {
    Failure::usage(format!("{way} is taken: say where to serve, by {option} or --run COMMAND"))
}

/// The kernel's own host.
fn kernel(address: &Address, options: &[String]) -> Judged {
    const FABRICS: &str = "/dev/nvme-fabrics";
    if let Some(option) = options.first() {
        return Err(format!("{option} is for bridges"));
    }
    if !Path::new("/sys/module/nvme_tcp").exists() || !Path::new(FABRICS).exists() {
        return Err("the kernel's nvme-tcp is not loaded (modprobe nvme-tcp)".to_owned());
    }
    if let Err(error) = OpenOptions::new().read(true).write(true).open(FABRICS) {
        return Err(format!("{FABRICS}: {error}"));
    }
    if !is_on_path("nvme") {
        return Err("no nvme on the path (Debian's nvme-cli)".to_owned());
    }
    if address.subsystem.is_none() {
        return Err("the address names no subsystem".to_owned());
    }
    Ok("nvme-tcp is loaded, and nvme connects it".to_owned())
}

/// nvme-cli's command.
fn connect(address: &Address) -> Vec<String> {
    let mut words = ["nvme", "connect", "-t", "tcp", "-a"].map(str::to_owned).to_vec();
    words.extend([address.host.to_string(), "-s".to_owned(), address.port().to_string(), "-n".to_owned()]);
    words.extend(address.subsystem.as_ref().map(ToString::to_string));
    words
}

fn ublk() -> Judged {
    let found = check_ublk().map(|()| "the kernel has ublk, and this user may use it".to_owned());
    found.map_err(|error| error.to_string())
}

fn fuse() -> Judged {
    const DEVICE: &str = "/dev/fuse";
    if let Err(error) = OpenOptions::new().read(true).write(true).open(DEVICE) {
        return Err(format!("{DEVICE}: {error} (modprobe fuse)"));
    }
    if !rustix::process::geteuid().is_root() && !is_on_path("fusermount3") {
        return Err("no fusermount3 on the path (Debian's fuse3)".to_owned());
    }
    Ok("the kernel has FUSE, and this user may mount".to_owned())
}

fn is_on_path(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|path| path.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(options: &[&str], there: [bool; 3]) -> (Vec<&'static str>, String) {
        let text = "192.0.2.1/nqn.2014-08.org.example:disk";
        let address = text.parse().expect("an address");
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        let judged = there.map(|can| if can { Ok("there".into()) } else { Err("not there".into()) });
        let choice = choose(text, &address, &options, judged, Some(Path::new("/run/x"))).expect("one");
        let taken = choice.ways.iter().filter(|way| way.is_taken).map(|way| way.name).collect();
        (taken, choice.command.join(" "))
    }

    #[test]
    fn the_first_way_that_is_there_is_taken() {
        let nqn = "nqn.2014-08.org.example:disk";
        let (taken, command) = chosen(&[], [true, true, true]);
        assert_eq!(taken, ["kernel"]);
        assert_eq!(command, format!("nvme connect -t tcp -a 192.0.2.1 -s 4420 -n {nqn}"));
        let (taken, command) = chosen(&["--read-only"], [false, true, true]);
        assert_eq!(taken, ["ublk"]);
        assert_eq!(command, format!("nvlane attach ublk 192.0.2.1/{nqn} --read-only"));
        let process = std::process::id();
        let (taken, command) = chosen(&["--read-only"], [false, false, true]);
        assert_eq!(taken, ["fuse"]);
        assert_eq!(command, format!("nvlane attach fuse 192.0.2.1/{nqn} /run/x/{process} --read-only"));
        let (_, command) = chosen(&["/mnt", "--read-only"], [false, false, true]);
        assert_eq!(command, format!("nvlane attach fuse 192.0.2.1/{nqn} /mnt --read-only"));
        let (taken, command) = chosen(&[], [false; 3]);
        assert_eq!(taken, ["nbd"]);
        assert!(command.contains("--socket /run/x/"), "{command}");
        let (_, command) = chosen(&["--run", "true"], [false; 3]);
        assert_eq!(command, format!("nvlane attach nbd 192.0.2.1/{nqn} --run true"));
    }
}
