//! Paths from a program to storage, and the processes and mounts that they consist of.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use host::{Address, Association};
use load::account::ProcessAccount;
use load::cpu;
use load::runner::{self, RunSettings};
use load::target_process::ToldProcess;
use load::workload::{Sizes, Stop, Workload};

use super::program::is_there;
use crate::bench::{FarSide, on_core};
use crate::doorbell::WAYS;
use crate::experiments::prelude::*;
use crate::kernel_nvme::Transport;
use crate::kernel_nvme::host::KernelHost;
use crate::process::run_ns;
use crate::scratch::ScratchFile;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathKind {
    /// A loop device on a file in memory: no network.
    Local,
    /// The host library of nvlane, which programs would be changed for.
    Library,
    Fuse,
    Nbd,
    VhostUser,
    /// A vhost-user device of qemu-storage-daemon without storage.
    NullExport,
    Ublk,
    /// The kernel's NVMe/TCP host.
    Kernel,
}

/// A file system in memory.
const TMPFS: &str = "/dev/shm";

/// Bytes of storage for loads on a device, and for a file system.
const DEVICE_BYTES: u64 = 256 << 20;
const FILES_BYTES: u64 = 1 << 30;

/// Makes a loop device and a file system.
const ATTACH: &str = include_str!("attach.sh");
const NULL_EXPORT: &str = include_str!("null_export.sh");

/// Prints what a bridge serves.
const TELL: &str = "echo \"$NVLANE_DEVICE\"; exec cat >/dev/null";

/// A path that stands. It is taken down from the program's end on: the fields are dropped in their order.
#[derive(Debug)]
pub(super) struct Attached {
    /// A device, a URI, or the directory of a file system.
    pub(super) place: String,
    /// A target whose storage is a vhost-user device: the program of such a path.
    client: Option<Served>,
    /// A bridge, with the file system on it, or a shell that has made one, or started another server.
    process: Option<ToldProcess>,
    kernel: Option<KernelHost>,
    served: Option<Served>,
    /// The process that the program talks to.
    server: Option<u32>,
}

impl PathKind {
    /// What this machine lacks for it.
    pub(super) fn needs(self, has_files: bool) -> Option<String> {
        let can_open = |path| File::options().read(true).write(true).open(path).is_ok();
        let mut needs: Vec<&str> = Vec::new();
        if (has_files || self == Self::Local) && !rustix::process::geteuid().is_root() {
            needs.push("root");
        }
        if (self == Self::Local || has_files && self == Self::Fuse) && !can_open("/dev/loop-control") {
            needs.push("/dev/loop-control: modprobe loop");
        }
        if has_files && !is_there("mkfs.ext4") {
            needs.push("mkfs.ext4: apt install e2fsprogs");
        }
        let kernel = if self == Self::Kernel { KernelHost::check(Transport::Tcp).err() } else { None };
        needs.extend(kernel.as_deref());
        needs.extend(match self {
            Self::Local if !Path::new(TMPFS).is_dir() => Some("a tmpfs on /dev/shm"),
            Self::Fuse if !can_open("/dev/fuse") => Some("/dev/fuse: modprobe fuse"),
            Self::Ublk if !can_open("/dev/ublk-control") => Some("/dev/ublk-control: modprobe ublk_drv"),
            Self::NullExport if !is_there("qemu-storage-daemon") => {
                Some("qemu-storage-daemon: apt install qemu-system-common")
            }
            _ => None,
        });
        needs.dedup();
        (!needs.is_empty()).then(|| needs.join("; "))
    }

    /// Its word behind `nvlane attach`.
    const fn bridge(self) -> Option<&'static str> {
        match self {
            Self::Fuse => Some("fuse"),
            Self::Nbd => Some("nbd"),
            Self::VhostUser => Some("vhost-user"),
            Self::Ublk => Some("ublk"),
            Self::Local | Self::Library | Self::NullExport | Self::Kernel => None,
        }
    }
}

impl Attached {
    /// Sets a path up, whose bridge and target send and receive in this one of [`WAYS`], with a file system on it or without.
    ///
    /// # Errors
    /// A part of it does not start; it has written the reason to the standard error of this process.
    pub(super) fn start(kind: PathKind, way: &str, has_files: bool, bench: &Bench) -> Result<Self, Error> {
        let bytes = if has_files { FILES_BYTES } else { DEVICE_BYTES };
        let (_, doorbell, receive) = WAYS.into_iter().find(|(name, ..)| *name == way).unwrap_or(WAYS[1]);
        let storage = match kind {
            PathKind::Local | PathKind::NullExport => None,
            PathKind::VhostUser => Some("null:1T".to_owned()),
            _ => Some(format!("ram:{bytes}")),
        };
        let tuning = TargetTuning {
            doorbell: doorbell.parse().ok(),
            receive: Some(receive),
            ..TargetTuning::default()
        };
        let serve = |storage| bench.serve_with(ServedOptions::of([storage]).tuned(tuning));
        let served = storage.map(serve).transpose()?;
        if let Some(served) = served.as_ref().filter(|_| !has_files && kind != PathKind::VhostUser) {
            fill(served.address(), bench)?;
        }
        let mut attached =
            Self { place: String::new(), client: None, process: None, kernel: None, served, server: None };
        let files = if has_files { "1" } else { "" };
        match (kind.bridge(), &attached.served) {
            (Some(bridge), Some(served)) => {
                let mut command = Command::new(&bench.program);
                command.args(["--log", "warn", "attach", bridge, &served.address().to_string()]);
                command.args(["--doorbell", doorbell, "--receive", &receive.to_string()]);
                // If the study is killed, so is the target: the file system is to be unmounted then, not to wait for it.
                command.args(["--fast-io-fail", "3", "--ctrl-loss-timeout", "10"]);
                command.args(["--run", if has_files { ATTACH } else { TELL }]).env("FILES", files);
                attached.process = Some(start(command, bench)?);
                attached.server = attached.process.as_ref().map(ToldProcess::pid);
            }
            (None, Some(served)) if kind == PathKind::Kernel => {
                let kernel =
                    attached.kernel.insert(KernelHost::connect(Transport::Tcp, served.address(), 1)?);
                attached.process = Some(shell(ATTACH, &kernel.storage().path, files, bench)?);
            }
            (None, None) if kind == PathKind::Local => {
                // The loop device keeps it.
                let file = ScratchFile::new(Path::new(TMPFS), bytes)?;
                attached.process = Some(shell(ATTACH, file.path(), files, bench)?);
            }
            (None, None) => attached.process = Some(shell(NULL_EXPORT, Path::new(""), files, bench)?),
            _ => {}
        }
        let line = attached.process.as_ref().map_or("", ToldProcess::line);
        let (place, process) = line.split_once(' ').unwrap_or((line, ""));
        attached.place = place.to_owned();
        attached.server = process.parse().ok().or(attached.server);
        if matches!(kind, PathKind::VhostUser | PathKind::NullExport) {
            let core = bench.cores.map(|cores| cores.host);
            let device = ServedOptions { core, ..ServedOptions::of([format!("vhost-user:{place}")]) };
            attached.client = Some(bench.serve_with(device)?);
        }
        Ok(attached)
    }

    /// The namespace as nvlane's own generator reaches it, with the account of the process that serves it.
    pub(super) fn far_side(&self) -> Option<FarSide<'_>> {
        match (&self.client, self.server) {
            (Some(client), Some(server)) => {
                Some(FarSide::process(client.address(), Arc::new(ProcessAccount(server))))
            }
            _ => self.served.as_ref().map(|served| FarSide::process(served.address(), served.account())),
        }
    }

    /// Processor time of the threads that the process has which the program talks to, ns.
    pub(super) fn live_ns(&self) -> Result<Option<u64>, Error> {
        self.server.map(run_ns).transpose()
    }

    /// Processor time of that process, ns. Threads that have ended, such as those of NBD connections, are in the account of ticks alone.
    pub(super) fn server_ns(&self) -> Result<Option<u64>, Error> {
        let counted = self.server.and_then(|pid| cpu::of_pid(pid).ok()).map(|time| time.total_ns());
        Ok(self.live_ns()?.max(counted))
    }

    /// Processor time of the target, ns.
    pub(super) fn target_ns(&self) -> Result<Option<u64>, Error> {
        self.served.as_ref().map(|served| run_ns(served.pid()?)).transpose()
    }
}

/// Writes every block of a namespace: memory that was never written is one page of zeroes.
fn fill(address: &Address, bench: &Bench) -> Result<(), Error> {
    let load = bench.load("read", None, 1 << 20, 4);
    let workload = Workload {
        sizes: Sizes::one(1 << 20),
        warm_up: Duration::ZERO,
        stop: Stop { operations: Some(1), ..Stop::default() },
        fill: true,
        ..load.workload
    };
    let association = Association::connect(address, load.options.with_lanes(1))?;
    let namespace = association.addressed_namespace()?;
    let filled = runner::run(&association, &namespace, &workload, &RunSettings::default(), &mut ());
    association.close();
    filled?;
    Ok(())
}

/// Starts a script that prints what it has made.
fn shell(script: &str, device: &Path, files: &str, bench: &Bench) -> Result<ToldProcess, Error> {
    let mut command = Command::new("sh");
    command.args(["-c", script]).env("NVLANE_DEVICE", device).env("FILES", files);
    start(command, bench)
}

/// Starts a server on the program's core.
fn start(command: Command, bench: &Bench) -> Result<ToldProcess, Error> {
    on_core(bench.cores.map(|cores| cores.host), || Ok(ToldProcess::start(command)?))
}
