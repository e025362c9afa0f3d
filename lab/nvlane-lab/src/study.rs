//! `nvlane study`: runs named experiments and writes their reports.

mod all;
mod compare;
mod far_targets;
mod only;
mod serve;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use command_line::exit::{Ended, Failure, Kind};
use command_line::output;
use command_line::signals::EndOnSignal;
use command_line::values::{cores, run_time, seconds};
use linux::CoreList;
use study::bench::{Bench, Cores, Devices, Times};
use study::catalogue::Entry;
use study::experiment::{Cell, Error, Experiment};
use study::headline::Verdict;
use study::machine::{self, Rounds};
use study::progress::{Lines, Progress, Terminal};
use study::results::{Settings, Study};
use study::two_machines::{self, TargetMachine};
use study::{catalogue, csv, page, summary, svg};

use crate::product::product;

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Each experiment starts the targets it needs on free ports of 127.0.0.1, with one core for each side, measures all its variants in \
alternation, round by round, until the medians are stable, and writes report.html (for people), results.json and results.csv (for programs) and \
each figure as SVG.

    nvlane study list                     list the experiments
    nvlane study ceiling --quick          a first result in half a minute
    nvlane study all --quick              all experiments, and one page for all of them
    nvlane study compare BEFORE AFTER     two results of one experiment, or of all, beside each other
  nvlane study idle --out /tmp/idle     write to another directory than ./study/idle
  nvlane study ceiling --only qd128     some of the cells
  nvlane study ceiling --storage ram,file         on 1 GiB of memory, and on a file of 1 GiB in the report's directory
  nvlane study core-latency --storage null,delay  also on storage that takes 100 µs for each operation
  nvlane study adq --interface eth1 --peer eth2   on a card, two ports of which have a cable between them

Between two machines, with the same nvlane on both: the first starts targets on its cores, the second runs the experiment.

    nvlane study serve --listen 192.0.2.2:4421 --cores 2            on the targets' machine: prints the token
    nvlane study core-latency --target 192.0.2.2 --token TOKEN      on the other one, which gets the report
    nvlane study all --target 192.0.2.2 --token TOKEN               all experiments

A measurement during which other programs and the hypervisor had more than 5 % of the time of a side's cores is discarded: in grey, and \
in results.json with the reason. A number gets no verdict if it depends on a cell without any other measurement, or if its goal lies within \
its 99 % confidence interval.

layers samples threads with perf_event_open: without root it needs kernel.perf_event_paranoid of 1 or less; otherwise it prints what \
is missing.

kv-peers and kv-hit-ratio start memcached (1.6.40 or newer), kv-peers redis-server from the path; $NVLANE_MEMCACHED_BIN and $NVLANE_REDIS_BIN name others."
)]
pub(crate) struct StudyArguments {
    #[command(subcommand)]
    command: Option<StudyCommand>,
    /// Name of the experiment, or list, all or compare. [default: list, which lists them all]
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// With compare: two directories of reports, or files results.json.
    #[arg(value_name = "RESULTS", num_args = 0..=2)]
    results: Vec<PathBuf>,
    /// Short measurements and few rounds.
    #[arg(long)]
    quick: bool,
    /// Directory for the report. With all, one for each experiment is made in it. [default: study/NAME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Exit with code 1 if a bar is missed or gets no verdict, or a cell could not be measured.
    #[arg(long)]
    check: bool,
    /// Measure only some cells: comma-separated names, or texts that their names contain. With all: some experiments.
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    only: Vec<String>,
    /// Storage to measure on, one or several, of the experiments with a choice: null, ram or file of ceiling; null, delay
    /// (100 µs for each operation) or file of core-latency. [default: null]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = ["null", "ram", "delay", "file"])]
    storage: Vec<String>,
    /// Number of rounds. [default: 3 to 9, until the medians are stable; up to 18 until each goal has a verdict; with --quick 3 to 6]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Seconds for additional rounds of cells that other load disturbed. [default: as long as the rounds took]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    extra: Option<Duration>,
    /// Duration of each cell in each round. [default: 1, with --quick 0.35]
    #[arg(short = 't', long, value_name = "SECONDS", value_parser = run_time)]
    time: Option<Duration>,
    /// Pairs of cores: the first of each for the host's side, the second for the target's. Most experiments use the first pair; stacks
    /// and core-scaling use all. With --target: one or more, all for the host's side. [default: all available; with --target
    /// the first]
    #[arg(short = 'c', long, value_name = "LIST", value_parser = cores)]
    cores: Option<CoreList>,
    #[command(flatten)]
    far: far_targets::FarTargets,
    /// For adq, the network device to measure on: a port of this machine that nothing else uses. Needs root.
    #[arg(long, value_name = "IF", requires = "peer")]
    interface: Option<String>,
    /// For adq, the port of this machine at the other end of the cable.
    #[arg(long, value_name = "IF", requires = "interface")]
    peer: Option<String>,
    /// Hold idle lanes for the study that started this process.
    #[arg(long, hide = true, num_args = 3..=4, value_names = ["ADDR", "COUNT", "DEPTH", "TLS_KEY"])]
    hold: Vec<String>,
}

#[derive(Debug, Subcommand)]
enum StudyCommand {
    /// Start targets for a study that runs on another machine.
    Serve(serve::ServeArguments),
}

pub(crate) fn study(arguments: &StudyArguments) -> Ended {
    if let Some(StudyCommand::Serve(serving)) = &arguments.command {
        return serve::serve(serving);
    }
    if let [address, count, depth, tls_key @ ..] = arguments.hold.as_slice() {
        return hold(address, count, depth, tls_key.first().map(Path::new));
    }
    let name = arguments.name.as_deref().unwrap_or("list");
    if name == "compare" {
        return compare::compare(&arguments.results);
    }
    if !arguments.results.is_empty() {
        return Err(Failure::usage("one name at a time: only compare takes two results after it"));
    }
    match name {
        "serve" => Err(Failure::usage("serve takes its own options after it: nvlane study serve --help")),
        "list" => {
            output::write(summary::list())?;
            Ok(ExitCode::SUCCESS)
        }
        "all" => all::run(arguments),
        name => one(arguments, name),
    }
}

/// Runs one experiment and writes its report.
fn one(arguments: &StudyArguments, name: &str) -> Ended {
    let entry = find(name)?;
    let mut experiment = entry.make();
    if arguments.interface.is_some() && name != "adq" {
        return Err(Failure::usage("--interface: only adq measures on a device of the machine"));
    }
    if arguments.interface.is_some() && arguments.far.is_given() {
        return Err(Failure::usage(
            "--interface and --peer are for one machine; between two, `nvlane study serve --interface IF` names that of the targets",
        ));
    }
    let out = arguments.out(name);
    let mut bench = arguments.bench(&out)?;
    let _handlers = EndOnSignal::new(&bench.stops)?;
    arguments.far.connect(&mut bench)?;
    let cells = arguments.cells(&*experiment, &bench)?;
    // Before the measurements, so that a wrong directory costs nothing.
    make(&out)?;
    output::check_file(Some(&out.join("results.json")))?;
    let study = measure(arguments, entry, &mut *experiment, cells, &bench).map_err(failure)?;
    let report = write(&study, &out)?;
    output::write(format!("{}\nreport: {}\n", summary::of(&study), report.display()))?;
    if !arguments.check || study.is_reached() {
        return Ok(ExitCode::SUCCESS);
    }
    let count = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let is_missed = study.headline.iter().any(|headline| headline.verdict() == Some(Verdict::Missed));
    let reason = match (study.measured.unmeasured().count(), study.unmeasured.len()) {
        (0, 0) if is_missed => "a bar was missed".to_owned(),
        (0, 0) => {
            format!(
                "no verdict on {}: too uncertain after so many rounds (--rounds)",
                count(study.open_count(), "number")
            )
        }
        (0, numbers) => format!("no verdict on {}: the machine was disturbed", count(numbers, "number")),
        (cells, _) => format!("{} could not be measured: the machine was disturbed", count(cells, "cell")),
    };
    Err(Failure::new(Kind::Failed, reason))
}

fn find(name: &str) -> Result<&'static Entry, Failure> {
    catalogue::find(name).ok_or_else(|| {
        let names: Vec<_> = catalogue::ALL.iter().map(|entry| entry.about.name).collect();
        let known = ["list", "all", "compare", "serve"].into_iter().chain(names.iter().copied());
        Failure::usage(match store::nearest(name, known) {
            Some(meant) => {
                format!("no experiment {name:?}: did you mean {meant}? `nvlane study list` lists all of them")
            }
            None => format!("no experiment {name:?}: there are {}", names.join(", ")),
        })
    })
}

/// Measures the cells of an experiment, with progress on the standard error.
fn measure(
    arguments: &StudyArguments,
    entry: &Entry,
    experiment: &mut dyn Experiment,
    cells: Vec<Cell>,
    bench: &Bench,
) -> Result<Study, Error> {
    let rounds = arguments.rounds();
    let settings = Settings::new(bench, rounds, arguments.quick);
    let environment = arguments.far.environment(bench);
    let mut progress: Box<dyn Progress> = if std::io::stderr().is_terminal() {
        Box::new(Terminal::new())
    } else {
        Box::new(Lines::new(std::io::stderr()))
    };
    let measured = machine::run(&entry.about, experiment, cells, bench, rounds, &mut *progress)?;
    let target_machine = TargetMachine::of(bench, &entry.about);
    let study = Study::new(&entry.about, experiment, measured, environment, target_machine, settings);
    Ok(Study { only_here: two_machines::only_here(bench, &entry.about), ..study })
}

impl StudyArguments {
    /// The directory of the report.
    fn out(&self, name: &str) -> PathBuf {
        self.out.clone().unwrap_or_else(|| Path::new("study").join(name))
    }

    /// The cells that the experiment measures on this machine, if none are chosen.
    fn usual_cells(&self, experiment: &dyn Experiment, bench: &Bench) -> Result<Vec<Cell>, Failure> {
        let mut cells = self.on_storage(experiment.cells())?;
        cells.retain(|cell| experiment.suits(cell, bench));
        Ok(cells)
    }

    fn cells(&self, experiment: &dyn Experiment, bench: &Bench) -> Result<Vec<Cell>, Failure> {
        let cells = self.usual_cells(experiment, bench)?;
        if cells.is_empty() {
            let place = if bench.is_remote() { "between two machines" } else { "on this machine" };
            return Err(Failure::usage(format!("the chosen cells cannot be measured {place}")));
        }
        let names: Vec<String> = cells.iter().map(|cell| cell.name.clone()).collect();
        let cells = only::of(cells, &self.only);
        if cells.is_empty() {
            return Err(Failure::usage(format!("--only leaves no cell: there are {}", names.join(", "))));
        }
        Ok(cells)
    }

    /// The cells on the chosen storage, if the experiment has several.
    fn on_storage(&self, mut cells: Vec<Cell>) -> Result<Vec<Cell>, Failure> {
        if cells.iter().any(|cell| cell.parameters.contains_key("storage")) {
            let usual = ["null".to_owned()];
            let wanted = if self.storage.is_empty() { &usual[..] } else { &self.storage };
            let mut known: Vec<&str> = cells.iter().map(|cell| cell.text("storage")).collect();
            known.dedup();
            if let Some(other) = wanted.iter().find(|storage| !known.contains(&storage.as_str())) {
                return Err(Failure::usage(format!(
                    "--storage {other}: this experiment has {}",
                    known.join(", ")
                )));
            }
            cells.retain(|cell| wanted.iter().any(|storage| storage == cell.text("storage")));
        } else if !self.storage.is_empty() {
            return Err(Failure::usage("--storage: this experiment has no choice of storage"));
        }
        Ok(cells)
    }

    fn rounds(&self) -> Rounds {
        let rounds = match self.rounds {
            Some(count) => Rounds::exactly(count.into()),
            None if self.quick => Rounds::QUICK,
            None => Rounds::USUAL,
        };
        Rounds { extra: self.extra, ..rounds }
    }

    /// The cores of both sides: the first of each two for the host, the second for the target.
    fn pairs(&self, allowed: &CoreList) -> Result<Vec<Cores>, Failure> {
        let given = self.cores.as_ref().map_or(allowed.cores(), CoreList::cores);
        let (pairs, rest) = given.as_chunks::<2>();
        if self.cores.is_some() && (pairs.is_empty() || !rest.is_empty()) {
            return Err(Failure::usage(
                "-c takes an even number of cores here: of each two, the first is for the host's side, the second for the target's",
            ));
        }
        Ok(pairs.iter().map(|&[host, target]| Cores { host, target }).collect())
    }

    fn bench(&self, out: &Path) -> Result<Bench, Failure> {
        let allowed = CoreList::allowed().context("cores")?;
        // The server's machine has the target's cores.
        let pairs = if self.far.is_given() { Vec::new() } else { self.pairs(&allowed)? };
        let cores = pairs.first().copied();
        let times = match self.time {
            Some(time) => Times::of(time),
            None if self.quick => Times::QUICK,
            None => Times::USUAL,
        };
        let program = product()?;
        // The target's process may run in another directory.
        let scratch = std::path::absolute(out).context("the directory of the report")?;
        let devices = self.interface.clone().zip(self.peer.clone());
        let devices = devices.map(|(interface, peer)| Devices { interface, peer });
        let host_cores = match (cores, &self.cores) {
            (Some(cores), _) => vec![cores.host],
            (None, Some(given)) => given.cores().to_vec(),
            (None, None) => allowed.cores().iter().copied().take(1).collect(),
        };
        Ok(Bench {
            pairs,
            program,
            scratch,
            cores,
            host_cores: if cores.is_some() || self.far.is_given() { host_cores } else { Vec::new() },
            server: None,
            times,
            devices,
            stops: Arc::default(),
            lost: Arc::default(),
            latency: Arc::default(),
            line_times: Arc::default(),
            side_cores: Arc::default(),
        })
    }
}

/// Holds idle lanes, as the study that started this process asks.
fn hold(address: &str, count: &str, depth: &str, tls_key: Option<&Path>) -> Ended {
    let address = address.parse().map_err(host::Error::Address)?;
    let wrong = |_| Failure::usage("--hold takes an address and two numbers");
    let (count, depth) = (count.parse().map_err(wrong)?, depth.parse().map_err(wrong)?);
    study::held_lanes::hold(&address, count, depth, tls_key).map_err(failure)?;
    Ok(ExitCode::SUCCESS)
}

fn make(directory: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(directory)
        .map_err(|error| Failure::usage(format!("cannot make {}: {error}", directory.display())))
}

/// Writes all forms of the report into a directory; returns the path of the HTML page.
fn write(study: &Study, directory: &Path) -> anyhow::Result<PathBuf> {
    let json = serde_json::to_string_pretty(&study.to_json()).context("JSON")? + "\n";
    let report = directory.join("report.html");
    let put = |path: &Path, text: &str| {
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    put(&directory.join("results.json"), &json)?;
    put(&directory.join("results.csv"), &csv::of(study))?;
    put(&report, &page::render(study))?;
    for figure in &study.figures {
        put(&directory.join(figure.file_name()), &svg::file(figure))?;
    }
    Ok(report)
}

/// The exit code of an experiment that failed.
fn failure(error: Error) -> Failure {
    match error {
        Error::Host(error) => error.into(),
        Error::Run(error) => error.into(),
        other => Failure::new(Kind::Failed, other),
    }
}
