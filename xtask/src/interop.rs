//! Behaviours between nvlane and stock Linux kernels, run in emulated guests.
//!
//! Each behaviour is a script of `interop/` that runs in a guest, and a row of
//! [`behaviours::BEHAVIOURS`] that says what it needs outside. A worker keeps one guest and gives
//! it one behaviour after another; every behaviour has a target and files of its own. A guest
//! that a behaviour left unclean, or that a failed behaviour ran in, is thrown away.

mod behaviours;
mod bridge;
mod guest;
mod outside;
mod process;
mod target;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use behaviours::{BEHAVIOURS, Behaviour, Side};
use bridge::Bridge;
use guest::Guest;
use outside::Outside;
use target::Target;

use crate::command::{
    build_optimized, last_lines, optimized_program, program, root, run as run_command, target_dir,
};
use crate::{csi, deps};

/// The kernels that are tried unless others are named.
const KERNELS: &[&str] = &["6.1", NEWEST];
const NEWEST: &str = "6.12";

/// One that does TLS, with the tools of its release.
const TLS_KERNEL: &str = "debian13-6.12";

/// Options of `cargo xtask interop`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Behaviours to run, or a part of their names (all)
    names: Vec<String>,
    /// Kernel series; may be given more than once (6.1 and 6.12). debian13-6.12 does TLS
    #[arg(long, value_name = "X.Y", value_parser = ["6.1", "6.12", TLS_KERNEL])]
    kernel: Vec<String>,
    /// List the behaviours and end
    #[arg(long)]
    list: bool,
    /// Guests that run at once
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    jobs: u8,
    /// An nvlane binary to test instead of building one
    #[arg(long, value_name = "PATH")]
    target_bin: Option<PathBuf>,
    /// Engine of the target under test: uring or epoll
    #[arg(long, value_name = "ENGINE")]
    engine: Option<String>,
    /// Also run the behaviours that `make test` leaves to `make soak`, which --list marks, and every part of the others,
    /// as of behaviours that are named
    #[arg(long)]
    soak: bool,
    /// Test the laboratory itself, with nvmet in place of nvlane
    #[arg(long)]
    self_check: bool,
}

impl Options {
    /// All behaviours, with this engine of the target.
    pub(crate) fn soak(engine: &str) -> Self {
        Self { engine: Some(engine.to_owned()), soak: true, ..Self::default() }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            names: Vec::new(),
            kernel: Vec::new(),
            list: false,
            jobs: 2,
            target_bin: None,
            engine: None,
            soak: false,
            self_check: false,
        }
    }
}

/// Runs the behaviours chosen.
pub(crate) fn run(options: &Options) -> Result<()> {
    let is_chosen = |behaviour: &&Behaviour| match &options.names[..] {
        [] => options.soak || options.list || !behaviour.soak_only,
        names => names.iter().any(|name| behaviour.path().contains(name.as_str())),
    };
    let chosen: Vec<_> = BEHAVIOURS.iter().filter(is_chosen).collect();
    ensure!(!chosen.is_empty(), "no behaviour is called {}; see --list", options.names.join(" or "));
    if options.list {
        for behaviour in chosen {
            let mark = if behaviour.soak_only { " (make soak)" } else { "" };
            println!("{:<32}{}{mark}", behaviour.path(), summary(behaviour)?);
        }
        return Ok(());
    }
    let kernels: Vec<&str> = match &options.kernel[..] {
        [] => KERNELS.to_vec(),
        some => some.iter().map(String::as_str).collect(),
    };
    let nvlane = if options.self_check { None } else { Some(binary(options, &chosen)?) };
    deps::lab(&kernels)?;

    let mut queue = Vec::new();
    for kernel in &kernels {
        let is_left_out =
            |behaviour: &Behaviour| behaviour.newest_only && options.kernel.is_empty() && *kernel != NEWEST;
        let run = chosen.iter().filter(|behaviour| !is_left_out(behaviour));
        queue.extend(run.map(|behaviour| Item { kernel, behaviour }));
    }
    let count = queue.len();
    let session = Session {
        queue: Mutex::new(queue),
        nvlane,
        is_whole: options.soak || !options.names.is_empty(),
        extra: options.engine.iter().flat_map(|engine| ["--engine".to_owned(), engine.clone()]).collect(),
        dir: target_dir().join("interop"),
        reports: Mutex::default(),
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        for worker in 0..usize::from(options.jobs).min(count) {
            let (session, kernel) = (&session, kernels[worker % kernels.len()]);
            scope.spawn(move || session.work(worker, kernel));
        }
    });
    session.conclude(start.elapsed())
}

/// One behaviour with one kernel.
#[derive(Clone, Copy)]
struct Item<'a> {
    kernel: &'a str,
    behaviour: &'a Behaviour,
}

/// How one item ended.
enum Verdict {
    Passed,
    Skipped(String),
    Failed(String),
}

struct Report {
    name: String,
    verdict: Verdict,
    dir: PathBuf,
}

/// State shared by the workers.
struct Session<'a> {
    queue: Mutex<Vec<Item<'a>>>,
    /// The binary under test; none in a self-check.
    nvlane: Option<PathBuf>,
    /// Whether every part of a behaviour is tried.
    is_whole: bool,
    extra: Vec<String>,
    dir: PathBuf,
    reports: Mutex<Vec<Report>>,
}

impl<'a> Session<'a> {
    /// Takes items, those for the kernel that its guest runs first, until none is left.
    fn work(&self, worker: usize, first_kernel: &'a str) {
        let mut kernel = first_kernel;
        let mut guest: Option<Guest> = None;
        while let Some(item) = self.take(kernel) {
            if item.kernel != kernel {
                kernel = item.kernel;
                guest = None;
            }
            let dir = self.dir.join(item.kernel).join(item.behaviour.path());
            let mut start = Instant::now();
            if item.behaviour.side == Side::VhostUser {
                // Two guests of one worker would be one too many.
                guest = None;
                let end = self.run_with_disk(item, worker, &dir);
                let verdict = end.unwrap_or_else(|error| Verdict::Failed(format!("{error:#}")));
                self.report(item, verdict, dir, start.elapsed());
                continue;
            }
            let ready = self.boot(item, &mut guest, worker);
            if ready.is_ok() {
                // Booting belongs to no behaviour.
                start = Instant::now();
            }
            let (verdict, is_clean) = match ready.and_then(|guest| self.run(item, guest, &dir)) {
                Ok(end) => end,
                Err(error) => {
                    let console = guest.as_ref().map(Guest::console_end).unwrap_or_default();
                    let _ = fs::write(dir.join("console"), console);
                    (Verdict::Failed(format!("{error:#}")), false)
                }
            };
            if !is_clean {
                guest = None;
            }
            self.report(item, verdict, dir, start.elapsed());
        }
    }

    fn take(&self, kernel: &str) -> Option<Item<'a>> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let index = queue.iter().position(|item| item.kernel == kernel).unwrap_or(0);
        if queue.is_empty() { None } else { Some(queue.remove(index)) }
    }

    /// The worker's guest, booted if it has none.
    fn boot<'g>(&self, item: Item<'_>, guest: &'g mut Option<Guest>, worker: usize) -> Result<&'g mut Guest> {
        match guest {
            Some(guest) => Ok(guest),
            None => {
                let dir = self.dir.join(format!("guest-{worker}"));
                Ok(guest.insert(Guest::boot(item.kernel, worker + 1, dir, "")?))
            }
        }
    }

    /// Runs one item in a guest of its own, which has namespace 1 as a disk.
    fn run_with_disk(&self, item: Item<'_>, worker: usize, dir: &Path) -> Result<Verdict> {
        let Some(nvlane) = &self.nvlane else {
            return Ok(Verdict::Skipped("nvmet has no bridge".to_owned()));
        };
        let _ = fs::remove_dir_all(dir);
        fs::create_dir_all(dir)?;
        let behaviour = item.behaviour;
        let namespaces: Vec<_> = behaviour.namespaces.iter().map(|&text| text.to_owned()).collect();
        let mut target = Target::new(nvlane, &self.extra, dir, &namespaces)?;
        target.start().with_context(|| last_lines(&target.log_path(), 5))?;
        let mut bridge = Bridge::new(nvlane, target.port, dir);
        bridge.start()?;
        let guest_dir = self.dir.join(format!("guest-{worker}"));
        let mut guest = Guest::boot(item.kernel, worker + 1, guest_dir, &bridge.qemu())?;
        let mut outside =
            Outside::new(Some(target), Some(nvlane.clone()), guest.files(), guest.forwarded_port);
        outside.bridge = Some(Mutex::new(bridge));
        let output = dir.join("output");
        let limit = Duration::from_secs(behaviour.limit_s);
        let end = guest.run(&behaviour.path(), &[], limit, &outside, &output)?;
        // Before its disk ends.
        drop(guest);
        if let Some(bridge) = outside.bridge.take() {
            bridge.into_inner().unwrap_or_else(PoisonError::into_inner).stop()?;
        }
        Ok(verdict(end.status, outside, &output))
    }

    /// Runs one item; says also whether the guest can be used again.
    fn run(&self, item: Item<'_>, guest: &mut Guest, dir: &Path) -> Result<(Verdict, bool)> {
        let _ = fs::remove_dir_all(dir);
        fs::create_dir_all(dir)?;
        let behaviour = item.behaviour;
        let namespaces: Vec<_> = behaviour.namespaces.iter().map(|&text| text.to_owned()).collect();
        let mut variables = vec![
            ("TARGET_NQN", target::NQN.to_owned()),
            ("UUID_PREFIX", target::UUID_PREFIX.to_owned()),
            ("NAMESPACES", namespaces.join(" ")),
        ];
        if self.is_whole {
            variables.push(("WHOLE", "yes".to_owned()));
        }
        let mut target = None;
        match (behaviour.side, &self.nvlane) {
            (Side::LinuxHost, Some(nvlane)) => {
                let mut started = Target::new(nvlane, &self.extra, dir, &namespaces)?;
                started.start().with_context(|| last_lines(&started.log_path(), 5))?;
                variables.push(("TARGET_ADDR", target::GUEST_SEES.to_owned()));
                variables.push(("TARGET_PORT", started.port.to_string()));
                variables.push(("DISCOVERY_PORT", started.discovery_port.to_string()));
                target = Some(started);
            }
            (Side::LinuxHost, None) => {
                variables.push(("STAND_IN", "nvmet".to_owned()));
                variables.push(("TARGET_ADDR", "127.0.0.1".to_owned()));
                variables.push(("TARGET_PORT", "4420".to_owned()));
                variables.push(("DISCOVERY_PORT", "4420".to_owned()));
            }
            (Side::LinuxTarget, nvlane) => {
                if nvlane.is_none() {
                    variables.push(("STAND_IN", "probe".to_owned()));
                }
                variables.push(("OUTSIDE_ADDR", format!("127.0.0.1:{}", guest.forwarded_port)));
            }
            (Side::Network | Side::Disk, Some(nvlane)) => {
                guest.bring_nvlane(nvlane)?;
                if behaviour.name == csi::BEHAVIOUR {
                    let tools = csi::Tools::install()?;
                    csi::TOOLS.iter().try_for_each(|name| guest.bring(&tools.bin.join(name)))?;
                }
            }
            (Side::Network | Side::Disk | Side::VhostUser, None) => {
                variables.push(("STAND_IN", "none".to_owned()));
            }
            (Side::VhostUser, Some(_)) => anyhow::bail!("it has a guest of its own"),
        }
        let outside = Outside::new(target, self.nvlane.clone(), guest.files(), guest.forwarded_port);
        let output = dir.join("output");
        let limit = Duration::from_secs(behaviour.limit_s);
        let end = guest.run(&behaviour.path(), &variables, limit, &outside, &output)?;
        let verdict = verdict(end.status, outside, &output);
        let is_clean = end.is_clean && !matches!(verdict, Verdict::Failed(_));
        Ok((verdict, is_clean))
    }

    fn report(&self, item: Item<'_>, verdict: Verdict, dir: PathBuf, took: Duration) {
        let name = format!("{:<5} {}", item.kernel, item.behaviour.path());
        let (word, note) = match &verdict {
            Verdict::Passed => ("ok", ""),
            Verdict::Skipped(reason) => ("skip", reason.as_str()),
            Verdict::Failed(why) => ("FAIL", why.as_str()),
        };
        println!("{word:<4}  {name:<36} {:>6.1} s  {note}", took.as_secs_f64());
        self.reports.lock().unwrap_or_else(PoisonError::into_inner).push(Report { name, verdict, dir });
    }

    /// Prints the failures, with the end of their logs, and the totals.
    fn conclude(self, took: Duration) -> Result<()> {
        let reports = self.reports.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut failed = Vec::new();
        for report in &reports {
            let Verdict::Failed(why) = &report.verdict else { continue };
            failed.push(report.name.as_str());
            println!("\n--- {}: {why}\n--- logs: {}", report.name, report.dir.display());
            for log in ["output", "console", "target.log", "bridge.log"] {
                let text = last_lines(&report.dir.join(log), 40);
                if !text.is_empty() {
                    println!("--- {log}\n{text}");
                }
            }
        }
        let skipped = reports.iter().filter(|report| matches!(report.verdict, Verdict::Skipped(_))).count();
        println!(
            "\n{} passed, {skipped} skipped, {} failed in {} s; logs are in {}",
            reports.len() - skipped - failed.len(),
            failed.len(),
            took.as_secs(),
            self.dir.display()
        );
        ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
        Ok(())
    }
}

/// How a behaviour went whose script ended with this status. Ends its target.
fn verdict(status: i32, outside: Outside, output: &Path) -> Verdict {
    match status {
        0 => match outside.target.map(|target| stop(target.into_inner())) {
            Some(Err(error)) => Verdict::Failed(format!("{error:#}")),
            _ => Verdict::Passed,
        },
        77 => Verdict::Skipped(marked_line(output, "SKIP: ")),
        status => Verdict::Failed(format!("status {status}: {}", marked_line(output, "FAIL: "))),
    }
}

/// Ends the target of a behaviour that passed: it must shut down cleanly.
fn stop(target: std::result::Result<Target, PoisonError<Target>>) -> Result<()> {
    let mut target = target.unwrap_or_else(PoisonError::into_inner);
    target.stop()?;
    let log = fs::read_to_string(target.log_path())?;
    ensure!(!log.contains("panicked at"), "the target panicked");
    Ok(())
}

/// The binary to test, built if need be.
fn binary(options: &Options, chosen: &[&Behaviour]) -> Result<PathBuf> {
    if let Some(path) = &options.target_bin {
        return path.canonicalize().with_context(|| format!("no binary {}", path.display()));
    }
    // Emulated guests run it, too; those of `make soak` also the laboratory and the driver for Kubernetes beside it.
    if chosen.iter().any(|behaviour| behaviour.soak_only) {
        build_optimized(&["nvlane-lab", "nvlane-csi"])?;
        return optimized_program("nvlane");
    }
    // Without symbols: a guest reads it from a shared directory.
    let stripped = target_dir().join("interop/nvlane");
    fs::create_dir_all(target_dir().join("interop"))?;
    run_command(Command::new("strip").arg("-o").arg(&stripped).arg(program("nvlane")?))?;
    Ok(stripped)
}

/// The first sentence of a script's head.
fn summary(behaviour: &Behaviour) -> Result<String> {
    let path = root().join("interop").join(behaviour.path() + ".sh");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let head = text.lines().skip(1).map_while(|line| line.strip_prefix("# ")).collect::<Vec<_>>().join(" ");
    ensure!(!head.is_empty(), "{}: no head", path.display());
    let sentence = head.split_once(". ").map_or(head.as_str(), |(sentence, _)| sentence);
    Ok(sentence.trim_end_matches('.').to_owned())
}

/// The text after the last such mark in a log.
fn marked_line(log: &Path, mark: &str) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines().rev().find_map(|line| line.strip_prefix(mark)).unwrap_or_default().to_owned()
}
