//! `nvlane adq`: gives queues of a network device to named classes of traffic.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use adq::apply::{ApplyError, Removal, apply, remove};
use adq::config::{Class, Config, Side};
use adq::journal::{DIRECTORY, Journal, JournalFile};
use adq::kernel::Kernel as _;
use adq::layout::Refusal;
use adq::linux::LinuxDevice;
use adq::plan::Plan;
use adq::state::{Device, DeviceState};
use adq::verify::{Deviation, unknown, verify};
use clap::{Args, Subcommand};
use command_line::exit::{Ended, Failure, Kind};
use command_line::output::{self, Output};
use command_line::signals::EndOnSignal;
use serde::Serialize;

use crate::serve::state_file::{self, Served, start_ticks};

/// Exit code of `verify`: the device is out of line.
const OUT_OF_LINE: u8 = 5;

#[derive(Debug, Args)]
#[command(after_help = "\
Give the interface and its classes on the command line:
  nvlane adq plan --interface eth0 --class nvme:4=192.0.2.10:4420 --class memcached:2=*:11211
or in a file, with --config FILE:
  interface = \"eth0\"
  other_queues = 8                     # all other traffic; the rest if missing
  [[class]]
  name = \"nvme\"
  queues = 4                           # as many reactors can serve the class
  min_rate = \"1Gbit\"                   # if the device has rates
  max_rate = \"10Gbit\"
  traffic = [\"192.0.2.10:4420\"]        # \"*:PORT\" for all addresses
  priority = \"filter\"                  # or \"program\", if the program sets SO_PRIORITY itself; or \"sock_ops\"
  cores = [2, 3, 4, 5]                 # where its interrupts go, one per queue
  interrupt_delay = { receive_us = 500, transmit_us = 0 }   # how long they wait for more packets

Exit codes: 0 done, or in line; 1 failed and undone; 2 cannot work (the message names the rule); 5 out of line (verify).")]
pub(crate) struct AdqArguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show the steps for a layout, with their reasons and as commands; change nothing.
    Plan(LayoutArguments),
    /// Draw a layout: classes, queues, cores.
    Explain(ExplainArguments),
    /// Apply a layout; undo every step at the first failure.
    Apply(LayoutArguments),
    /// Compare the device with its applied layout.
    Verify(VerifyArguments),
    /// Show the applied layout and the settings of the device.
    Status(RecordArguments),
    /// Remove an applied layout, also after a crash.
    Remove(RecordArguments),
}

#[derive(Debug, Args)]
struct LayoutArguments {
    /// A file with the interface and its classes.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["interface", "class"], required_unless_present = "interface")]
    config: Option<PathBuf>,
    /// The network interface.
    #[arg(long, value_name = "IF")]
    interface: Option<String>,
    /// A class: name, queue pairs, rates, addresses and ports; can be repeated.
    #[arg(long, value_name = "NAME:QUEUES[:MIN[:MAX]]=ADDR:PORT", requires = "interface")]
    class: Vec<Class>,
    /// Queue pairs for all other traffic. [default: as many as remain]
    #[arg(long, value_name = "COUNT", requires = "interface")]
    other_queues: Option<u16>,
    /// This machine connects to the addresses instead of listening at them.
    #[arg(long, requires = "interface")]
    initiator: bool,
    #[command(flatten)]
    record: RecordDirectory,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct ExplainArguments {
    #[command(flatten)]
    layout: LayoutArguments,
    /// Write the drawing to an SVG file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct RecordArguments {
    /// The file with the interface.
    #[arg(long, value_name = "FILE", conflicts_with = "interface", required_unless_present = "interface")]
    config: Option<PathBuf>,
    /// The network interface.
    #[arg(long, value_name = "IF")]
    interface: Option<String>,
    #[command(flatten)]
    record: RecordDirectory,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct VerifyArguments {
    #[command(flatten)]
    record: RecordArguments,
    /// The state file of a target, to report also what it finds out of line in its reactors and connections.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Verify repeatedly at this interval in seconds, and print each change.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "5")]
    watch: Option<u64>,
}

#[derive(Debug, Args)]
struct RecordDirectory {
    /// Directory with the record of each applied layout.
    #[arg(long = "record", value_name = "DIR", default_value = DIRECTORY, env = "NVLANE_ADQ_RECORD")]
    directory: PathBuf,
}

pub(crate) fn adq(arguments: &AdqArguments) -> Ended {
    match &arguments.verb {
        Verb::Plan(arguments) => plan(arguments),
        Verb::Explain(arguments) => explain(arguments),
        Verb::Apply(arguments) => apply_layout(arguments),
        Verb::Verify(arguments) => verify_layout(arguments),
        Verb::Status(arguments) => status(arguments),
        Verb::Remove(arguments) => remove_layout(arguments),
    }
}

fn read_config(path: &Path) -> Result<Config, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format_args!("{}: {error}", path.display())))?;
    Config::parse(&text).map_err(|error| Failure::usage(format_args!("{}: {error}", path.display())))
}

impl LayoutArguments {
    fn config(&self) -> Result<Config, Failure> {
        if let Some(path) = &self.config {
            return read_config(path);
        }
        let config = Config {
            interface: self.interface.clone().unwrap_or_default(),
            side: if self.initiator { Side::Initiator } else { Side::Target },
            other_queues: self.other_queues,
            cgroup: None,
            classes: self.class.clone(),
        };
        config.check().map_err(Failure::usage)?;
        Ok(config)
    }

    /// The device, how it is set, and the plan for it.
    fn plan(&self) -> Result<(LinuxDevice, DeviceState, Plan), Failure> {
        let config = self.config()?;
        let (device, facts, state) = open(&config.interface, config.groups())?;
        let plan = Plan::new(&config, &facts, &state).map_err(|refusals| cannot_work(&refusals))?;
        Ok((device, state, plan))
    }
}

/// Opens a device, with the control groups of its layout, and reads it.
fn open(
    interface: &str,
    groups: impl IntoIterator<Item = String>,
) -> Result<(LinuxDevice, Device, DeviceState), Failure> {
    let mut device = LinuxDevice::open(interface).map_err(Failure::usage)?;
    device.look_into(groups);
    let facts = device.device().map_err(Failure::usage)?;
    let state = device.state().map_err(Failure::usage)?;
    Ok((device, facts, state))
}

fn cannot_work(refusals: &[Refusal]) -> Failure {
    let lines: Vec<_> = refusals.iter().map(ToString::to_string).collect();
    Failure::usage(lines.join("\n"))
}

/// The printed form of a plan.
#[derive(Debug, Serialize)]
struct Shown {
    #[serde(flatten)]
    plan: Plan,
    commands: Vec<String>,
}

impl Shown {
    fn new(plan: Plan) -> Self {
        let commands =
            plan.steps.iter().map(|step| step.change.command(&plan.device.identity.interface)).collect();
        Self { plan, commands }
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", adq::explain::text(&self.plan))?;
        writeln!(f, "Steps, in this order:")?;
        let mut reason = "";
        for (number, (step, command)) in (1..).zip(self.plan.steps.iter().zip(&self.commands)) {
            if step.reason != reason {
                reason = &step.reason;
                writeln!(f, "\n  # {reason}")?;
            }
            writeln!(f, "  {number:>3}  {command}")?;
        }
        Ok(())
    }
}

fn plan(arguments: &LayoutArguments) -> Ended {
    let (_, _, plan) = arguments.plan()?;
    arguments.output.print(&Shown::new(plan))?;
    Ok(ExitCode::SUCCESS)
}

fn explain(arguments: &ExplainArguments) -> Ended {
    let (_, _, plan) = arguments.layout.plan()?;
    if let Some(path) = &arguments.svg {
        std::fs::write(path, adq::explain::svg(&plan))
            .map_err(|error| Failure::new(Kind::Failed, format_args!("{}: {error}", path.display())))?;
    }
    output::write(adq::explain::text(&plan))?;
    Ok(ExitCode::SUCCESS)
}

fn apply_layout(arguments: &LayoutArguments) -> Ended {
    let (mut device, before, plan) = arguments.plan()?;
    let file = JournalFile::new(&arguments.record.directory, &plan.device.identity.interface);
    let stops = Arc::new(AtomicBool::new(false));
    let _signals = EndOnSignal::new(&stops)?;
    let step_count = plan.steps.len();
    apply(
        &mut device,
        &plan,
        &before,
        &file,
        || stops.load(Ordering::Relaxed),
        |number, step| {
            eprintln!("{number}/{step_count}  {}", step.change.command(&plan.device.identity.interface));
        },
    )
    .map_err(failed)?;
    arguments.output.print(&Applied { plan, record: file.path().to_owned() })?;
    Ok(ExitCode::SUCCESS)
}

/// The report of `apply`.
#[derive(Debug, Serialize)]
struct Applied {
    plan: Plan,
    record: PathBuf,
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let interface = &self.plan.device.identity.interface;
        writeln!(f, "Applied; `nvlane adq remove --interface {interface}` takes it back.")?;
        for warning in &self.plan.warnings {
            writeln!(f, "note: {warning}")?;
        }
        Ok(())
    }
}

fn failed(error: ApplyError) -> Failure {
    let kind = match error {
        ApplyError::Recorded(_)
        | ApplyError::NotRecorded(_)
        | ApplyError::OtherDevice { .. }
        | ApplyError::Hidden { .. } => Kind::Usage,
        _ => Kind::Failed,
    };
    Failure::new(kind, error)
}

impl RecordArguments {
    fn interface(&self) -> Result<String, Failure> {
        match (&self.config, &self.interface) {
            (Some(path), _) => Ok(read_config(path)?.interface),
            (None, Some(interface)) => Ok(interface.clone()),
            (None, None) => Err(Failure::usage("--interface or --config is missing")),
        }
    }

    fn file(&self, interface: &str) -> JournalFile {
        JournalFile::new(&self.record.directory, interface)
    }

    /// The record of the interface's layout.
    fn journal(&self, interface: &str) -> Result<Journal, Failure> {
        let file = self.file(interface);
        let journal = file.read().map_err(|error| Failure::new(Kind::Failed, error))?;
        journal.ok_or_else(|| failed(ApplyError::NotRecorded(file.path().display().to_string())))
    }
}

/// The report of `verify`.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Verdict {
    interface: String,
    in_line: bool,
    deviations: Vec<Deviation>,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.in_line {
            return writeln!(f, "{} is in line with its layout", self.interface);
        }
        for deviation in &self.deviations {
            writeln!(f, "{}: {} ({})", self.interface, deviation.what, deviation.remedy)?;
        }
        Ok(())
    }
}

fn verdict(arguments: &VerifyArguments) -> Result<Verdict, Failure> {
    let interface = arguments.record.interface()?;
    let journal = arguments.record.journal(&interface)?;
    let mut deviations = match open(&interface, journal.plan.groups()) {
        Ok((_, facts, state)) => compared(&journal, &facts, &state),
        Err(failure) => vec![Deviation { what: failure.to_string(), remedy: "nvlane adq remove".into() }],
    };
    if let Some(path) = &arguments.state {
        deviations.extend(of_target(path, &interface, &deviations)?);
    }
    Ok(Verdict { interface, in_line: deviations.is_empty(), deviations })
}

/// The deviations from the recorded layout, and values that cannot be read.
fn compared(journal: &Journal, facts: &Device, state: &DeviceState) -> Vec<Deviation> {
    let mut deviations = verify(journal, facts, state);
    deviations.extend(unknown(journal, state));
    deviations
}

/// The deviations that the target of a state file finds, beside those that `verify` has found by itself.
fn of_target(path: &Path, interface: &str, found: &[Deviation]) -> Result<Vec<Deviation>, Failure> {
    let (state, _) = state_file::read::<Served>(path)
        .map_err(|error| Failure::new(Kind::Failed, format_args!("{}: {error}", path.display())))?;
    if start_ticks(state.process.pid) != Some(state.process.start_ticks) {
        let what = format!("the target of {} has ended", path.display());
        return Ok(vec![Deviation { what, remedy: "start it, or leave --state out".into() }]);
    }
    let mut deviations = Vec::new();
    for class in state.adq.iter().filter(|class| class.interface == interface) {
        let is_new = |text: &&String| {
            let ours = |deviation: &Deviation| format!("{} ({})", deviation.what, deviation.remedy);
            !found.iter().any(|deviation| ours(deviation) == **text)
        };
        deviations.extend(class.deviations.iter().filter(is_new).map(|text| Deviation {
            what: format!("the target's class {}: {text}", class.class),
            remedy: "seen by the target; it looks every 30 s".into(),
        }));
    }
    Ok(deviations)
}

fn verify_layout(arguments: &VerifyArguments) -> Ended {
    let record = &arguments.record;
    let mut shown = verdict(arguments)?;
    record.output.print(&shown)?;
    if let Some(seconds) = arguments.watch {
        let stops = Arc::new(AtomicBool::new(false));
        let _signals = EndOnSignal::new(&stops)?;
        let mut waited = Duration::ZERO;
        while !stops.load(Ordering::Relaxed) {
            let look = Duration::from_millis(100);
            std::thread::sleep(look);
            waited += look;
            if waited < Duration::from_secs(seconds.max(1)) {
                continue;
            }
            waited = Duration::ZERO;
            let now = verdict(arguments)?;
            if now != shown {
                record.output.print(&now)?;
                shown = now;
            }
        }
    }
    Ok(if shown.in_line { ExitCode::SUCCESS } else { ExitCode::from(OUT_OF_LINE) })
}

/// The report of `status`.
#[derive(Debug, Serialize)]
struct Status {
    interface: String,
    record: PathBuf,
    plan: Plan,
    state: DeviceState,
    deviations: Vec<Deviation>,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", adq::explain::text(&self.plan))?;
        writeln!(f, "Record: {}", self.record.display())?;
        if self.deviations.is_empty() {
            return writeln!(f, "In line.");
        }
        for deviation in &self.deviations {
            writeln!(f, "Out of line: {} ({})", deviation.what, deviation.remedy)?;
        }
        Ok(())
    }
}

fn status(arguments: &RecordArguments) -> Ended {
    let interface = arguments.interface()?;
    let journal = arguments.journal(&interface)?;
    let (_, facts, state) = open(&interface, journal.plan.groups())?;
    let deviations = compared(&journal, &facts, &state);
    let record = arguments.file(&interface).path().to_owned();
    arguments.output.print(&Status { interface, record, plan: journal.plan, state, deviations })?;
    Ok(ExitCode::SUCCESS)
}

fn remove_layout(arguments: &RecordArguments) -> Ended {
    let interface = arguments.interface()?;
    let file = arguments.file(&interface);
    let journal = arguments.journal(&interface)?;
    let mut device = LinuxDevice::open(&interface).map_err(|failure| {
        Failure::usage(format_args!("{failure}; if the device is gone, delete {}", file.path().display()))
    })?;
    device.look_into(journal.plan.groups());
    let removal = remove(&mut device, &file).map_err(failed)?;
    let text = match removal {
        Removal::Restored => format!("{interface} is set as before its layout"),
        Removal::EndedWithBoot => {
            format!("the layout of {interface} ended with the last restart; its record is deleted")
        }
    };
    arguments.output.print(&Removed { interface, removal: format!("{removal:?}").to_lowercase(), text })?;
    Ok(ExitCode::SUCCESS)
}

/// The report of `remove`.
#[derive(Debug, Serialize)]
struct Removed {
    interface: String,
    removal: String,
    #[serde(skip)]
    text: String,
}

impl fmt::Display for Removed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.text)
    }
}
