//! `nvlane`: a target and host tools for remote NVMe over plain TCP.
#![forbid(unsafe_code)]

mod adq;
mod attach;
mod check;
mod columns;
mod companion;
mod completions;
mod ctl;
mod discover;
mod disk_path;
mod doctor;
mod human_size;
mod identify;
mod import;
mod keys;
mod kv;
mod list;
mod local_address;
mod memory_limit;
mod perf;
mod quickstart;
mod reload;
mod run;
mod serve;
mod service_manager;
mod smart_log;
mod support;
mod top;
mod trace;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use command_line::logging::LogOptions;
use command_line::{exit, logging, manual, signals};

/// The control path allocates; the data path does not.
#[global_allocator]
static ALLOCATOR: allocators::ProgramAllocator = allocators::ProgramAllocator;

/// Remote NVMe over plain TCP: a target and host tools, and a laboratory beside them.
#[derive(Debug, Parser)]
#[command(name = "nvlane", version, max_term_width = 110, after_help = exit::HELP)]
struct Cli {
    #[command(flatten)]
    log: LogOptions,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant)] // One value exists per process.
enum Command {
    /// Try it: start a target, run verified load, measure; takes a minute, needs no configuration.
    Quickstart(quickstart::QuickstartArguments),
    /// Serve namespaces to NVMe/TCP hosts.
    Target(serve::TargetArguments),
    /// Make a running target reread its configuration and reopen closed namespaces, and print the outcome.
    Reload(reload::ReloadArguments),
    /// See and change what a running target serves: namespaces, hosts, listeners, limits.
    Ctl(ctl::CtlArguments),
    /// Watch a running target: namespaces, hosts, lanes and reactors with rates, latency and batch sizes.
    Top(top::TopArguments),
    /// Check a target's configuration and storage without changing anything.
    Check(check::CheckArguments),
    /// Check this machine, a configuration and a running target, and print what to change.
    Doctor(doctor::DoctorArguments),
    /// Show the recent events of a running target: commands with their phases, doorbells, connects, errors.
    Trace(trace::TraceArguments),
    /// Collect what is needed to find a problem, without secrets, in an archive.
    Support(support::SupportArguments),
    /// Print the configuration of another target, nvmetcli's or SPDK's, as one of nvlane.
    Import(import::ImportArguments),
    /// List the subsystems in a discovery log.
    Discover(discover::DiscoverArguments),
    /// Show the Identify data of a controller and its namespaces.
    Identify(identify::IdentifyArguments),
    /// List the namespaces of one subsystem, or of every subsystem in a discovery log.
    List(list::ListArguments),
    /// Show a controller's health and the traffic of its subsystem.
    SmartLog(smart_log::SmartLogArguments),
    /// Use key-value namespaces: get, set, count, compute, load, dump, benchmark.
    Kv(kv::KvArguments),
    /// Make and check secrets of authentication and keys of TLS.
    Keys(keys::KeysArguments),
    /// Serve namespaces of a target to programs that do not know NVMe: as files, NBD exports, virtio disks or block devices.
    Attach(attach::AttachArguments),
    /// Put load on a namespace and measure it; `perf ceiling` measures plain sockets for comparison.
    Perf(perf::PerfArguments),
    /// Send hostile input to a target (or host) and check its reaction (program nvlane-lab).
    #[command(disable_help_flag = true)]
    Probe(companion::CompanionArguments),
    /// Run a named experiment on this machine: variants side by side, with a report and figures (program nvlane-lab).
    #[command(disable_help_flag = true)]
    Study(companion::CompanionArguments),
    /// Give Kubernetes volumes of a target, by the Container Storage Interface (program nvlane-csi).
    #[command(disable_help_flag = true)]
    Csi(companion::CompanionArguments),
    /// Assign queues of a network device to classes of traffic: plan, apply, verify, remove.
    Adq(adq::AdqArguments),
    /// Write a completion script for a shell.
    Completions(manual::CompletionsArguments),
    /// Write the manual pages.
    Man(manual::ManArguments),
}

fn main() -> ExitCode {
    // A signal that arrives before a target handles it must wait, and not end the process.
    let mask = early_signals::former_mask();
    let words = std::env::args_os().collect();
    let words = match kv::address::complete(words, &Cli::command(), std::env::var_os("NVLANE_ADDR")) {
        Ok(words) => words,
        Err(failure) => return exit::report(&failure),
    };
    let given = Cli::command().try_get_matches_from(words);
    let (cli, given) = match given.and_then(|given| Ok((Cli::from_arg_matches(&given)?, given))) {
        Ok(parsed) => parsed,
        Err(error) => return exit::wrong_options(&error),
    };
    // Which options were given, and which have their defaults.
    let given = given.subcommand().map_or_else(Default::default, |(_, given)| given.clone());
    // A target and a bridge report through their logs; tools report on standard output.
    let is_target = matches!(cli.command, Command::Target(_));
    let is_service = is_target || matches!(cli.command, Command::Attach(_));
    if !is_target {
        mask.restore();
    }
    logging::start(&cli.log, if is_service { "info" } else { "warn" });
    signals::outlive_file_size_limit();
    linux::allow_descriptors();
    let result = match cli.command {
        Command::Quickstart(arguments) => quickstart::quickstart(&arguments),
        Command::Target(arguments) => serve::target(&arguments, mask),
        Command::Reload(arguments) => reload::reload(&arguments),
        Command::Ctl(arguments) => ctl::ctl(&arguments),
        Command::Top(arguments) => top::top(&arguments),
        Command::Check(arguments) => check::check(&arguments),
        Command::Doctor(arguments) => doctor::doctor(&arguments),
        Command::Trace(arguments) => trace::trace(&arguments),
        Command::Support(arguments) => support::support(&arguments),
        Command::Import(arguments) => import::import(&arguments),
        Command::Discover(arguments) => discover::discover(&arguments),
        Command::Identify(arguments) => identify::identify(&arguments),
        Command::List(arguments) => list::list(&arguments),
        Command::SmartLog(arguments) => smart_log::smart_log(&arguments),
        Command::Kv(arguments) => kv::kv(&arguments),
        Command::Keys(arguments) => keys::keys(&arguments),
        Command::Attach(arguments) => attach::attach(&arguments),
        Command::Perf(arguments) => perf::perf(&arguments, &given),
        Command::Probe(_) | Command::Study(_) => companion::LAB.become_it(),
        Command::Csi(_) => companion::CSI.become_it(),
        Command::Adq(arguments) => adq::adq(&arguments),
        Command::Completions(arguments) => completions::completions(&arguments, &mut Cli::command()),
        Command::Man(arguments) => manual::man(&arguments, Cli::command()),
    };
    match result {
        Ok(code) => code,
        Err(failure) => exit::report(&failure),
    }
}
