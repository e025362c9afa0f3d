//! Mutation tests of the wire-facing crates: changes that their tests do not notice.

use anyhow::{Result, ensure};

use crate::command::{cargo, target_dir};
use crate::deps;

/// The crates, and the test programs that run on mutants that survive the unit tests. Each takes a build for each
/// mutant, so the slowest sweeps (`sweep`, `sequences`, `models`) and `allocation` are omitted.
const CRATES: [(&str, &[&str]); 2] = [
    ("wire", &[]),
    (
        "proto",
        &[
            "transitions",
            "golden",
            "host_controller",
            "host_commands",
            "hostile",
            "streams",
            "pair",
            "scattered",
        ],
    ),
];

/// Runner of test programs: one that uses this many seconds of CPU time, where all tests need few, counts as endless.
/// Elapsed time is no measure, as the machine may be busy.
const RUNNER: &str = "--config=target.'cfg(unix)'.runner=['prlimit','--cpu=10','--']";

/// Equivalent mutants, as a pattern of their names, with the reasons.
const EQUIVALENT: &[(&str, &str)] = &[
    ("replace < with <= in NumberOfQueues::queue_pairs", "the lesser of two equal numbers is either"),
    (
        "replace > with >= in (zero_based(8|16)|NumberOfQueues::pairs|Cap::with_ready_timeout_ms)$",
        "what is the most stays the most",
    ),
    ("replace > with >= in Caravan<P>::push_(header|header_with|trailer)$", "padding of no bytes is none"),
    (
        "replace > with >= in ControllerQueue<B, P, C>::complete_with_data$",
        "of data that one PDU carries nothing comes before the last PDU",
    ),
    (
        r"replace \| with \^ in (dword|quadword|vector_kind|Flbas::index|GetLogPage::to_sqe|Status::(to_wire|with_crd))$",
        "what is joined has no bit in common",
    ),
    (
        r"replace \| with \^ in (OutcomeWriter<'a>::push|<impl FromStr for Uuid>::from_str|CommandTable<B>::tag)$",
        "what is joined has no bit in common",
    ),
    (
        r"replace \| with \^ in (HostQueue<B, U>::submit_where_room|ControllerQueue<B, P, C>::complete_with_data)$",
        "what is joined has no bit in common",
    ),
];

/// Options of `cargo xtask mutants`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only mutants of this crate, wire or proto; runs for both can be concurrent
    #[arg(value_name = "CRATE", value_parser = ["wire", "proto"])]
    only: Option<String>,
    /// One part of all mutants, such as 1/20, spread over each crate; without it, all: hours
    #[arg(long, value_name = "K/N")]
    shard: Option<String>,
    /// Only mutants of this file, such as crates/wire/src/pdu.rs; may be given several times
    #[arg(long, value_name = "PATH")]
    file: Vec<String>,
    /// Mutants tested at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: u32,
}

/// Mutates `wire` and `proto`, runs the crate's own tests for each mutant, and prints the survivors.
///
/// # Errors
/// The tests fail without a mutation, or a mutant cannot be tested. Survivors are no error: docs/testing.md.
pub(crate) fn run(options: &Options) -> Result<()> {
    deps::install_for_mutants()?;
    let is_wanted = |name: &str| options.only.as_ref().is_none_or(|only| only == name);
    for (name, tests) in CRATES.into_iter().filter(|(name, _)| is_wanted(name)) {
        let directory = format!("crates/{name}/");
        let files: Vec<_> = options.file.iter().filter(|file| file.contains(&directory)).collect();
        if options.file.is_empty() || !files.is_empty() {
            mutate(name, &Judge::Files, &files, options)?;
            if !tests.is_empty() {
                mutate(name, &Judge::Others(tests), &files, options)?;
            }
        }
    }
    Ok(())
}

/// The tests that run on mutants.
enum Judge<'a> {
    /// Unit tests: one program to build.
    Files,
    /// These test programs, for the survivors.
    Others(&'a [&'a str]),
}

fn mutate(name: &str, judge: &Judge<'_>, files: &[&String], options: &Options) -> Result<()> {
    let mut command =
        cargo(&["mutants", "--package", &format!("nvlane-{name}"), "--no-shuffle", "--colors", "never"]);
    let directory = target_dir().join("mutants").join(name);
    command.args(["--output".as_ref(), directory.as_os_str()]);
    command.args(["--jobs".to_owned(), options.jobs.to_string()]).args(["--timeout", "400"]);
    if let Some(shard) = &options.shard {
        command.args(["--shard", shard, "--sharding", "round-robin"]);
    }
    for file in files {
        command.args(["--file", file]);
    }
    for (pattern, _reason) in EQUIVALENT {
        command.args(["--exclude-re", pattern]);
    }
    match judge {
        Judge::Files => {
            command.arg("--cargo-arg=--lib");
        }
        Judge::Others(tests) => {
            command.arg("--iterate").args(tests.iter().map(|test| format!("--cargo-arg=--test={test}")));
        }
    }
    // A mutant is built more often than it runs.
    command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0").env("CARGO_PROFILE_DEV_DEBUG", "none");
    command.args(["--cargo-arg", RUNNER]);
    command.arg("--cargo-arg=--config=profile.dev.package.'*'.opt-level=1");
    command.env("CARGO_INCREMENTAL", "1");
    // One copy of the tree reuses the last run's build; several copies need a directory each.
    if options.jobs == 1 {
        command.env("CARGO_TARGET_DIR", directory.join("build"));
    } else {
        command.env_remove("CARGO_TARGET_DIR");
    }
    // Proptest must find a counterexample, but need not shrink it.
    command.env("PROPTEST_MAX_SHRINK_ITERS", "0").env("PROPTEST_CASES", "64");
    let status = command.status()?;
    // 2: some survive; 3: some ran into the time limit.
    ensure!(matches!(status.code(), Some(0 | 2 | 3)), "cargo mutants: {status}");
    Ok(())
}
