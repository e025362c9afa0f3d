//! Mutation tests: changes to the code that the tests do not notice.
//!
//! `cargo mutants` lists the changes. All of a crate are woven into a copy of the sources and built once; an environment
//! variable selects one of them.

mod judge;
mod weave;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::command::{cargo, packages, root};
use crate::{deps, sources};
use judge::{Judge, Verdicts};
use weave::{Mutant, Woven, weave};

/// A crate whose code is changed.
struct Subject {
    /// The name of its folder.
    name: &'static str,
    /// Only these of its files; all, if none are named.
    files: &'static [&'static str],
    /// Each tries the mutants that survive those before it.
    judges: &'static [Judge],
}

impl Subject {
    /// Its folder, from the top of the repository.
    fn directory(&self) -> Result<PathBuf> {
        let found = packages()?.into_iter().find(|folder| folder.ends_with(self.name));
        found.with_context(|| format!("there is no package {}", self.name))
    }
}

/// The slowest sweeps of `proto` (`sweep`, `sequences`, `models`) and `allocation` are omitted.
const SUBJECTS: [Subject; 5] = [
    Subject { name: "wire", files: &[], judges: &[Judge::new("nvlane-wire", &["--lib"])] },
    Subject {
        name: "proto",
        files: &[],
        judges: &[
            Judge::new("nvlane-proto", &["--lib"]),
            Judge::new(
                "nvlane-proto",
                &[
                    "--test=transitions",
                    "--test=golden",
                    "--test=host_controller",
                    "--test=host_commands",
                    "--test=hostile",
                    "--test=streams",
                    "--test=pair",
                    "--test=scattered",
                ],
            ),
        ],
    },
    Subject { name: "store", files: &[], judges: &[Judge::new("nvlane-store", &["--lib"])] },
    Subject {
        name: "kv",
        files: &["crates/storage/kv/src/log/*.rs"],
        judges: &[Judge { arguments: &["log::"], cpu_s: 90, ..Judge::new("nvlane-kv", &["--lib"]) }],
    },
    Subject {
        name: "subsystem",
        files: COMMAND_PATH,
        judges: &[
            Judge::new(
                "nvlane-subsystem",
                &["--lib", "--test=control", "--test=key_value", "--test=fused", "--test=deadlines"],
            ),
            Judge {
                arguments: &["--seeds", "300", "--jobs", "1"],
                cpu_s: 300,
                ..Judge::new("nvlane-sim", &[])
            },
        ],
    },
];

/// The files of `subsystem` that parse, check and execute commands.
const COMMAND_PATH: &[&str] = &[
    "crates/target/subsystem/src/control_plane/admin.rs",
    "crates/target/subsystem/src/control_plane/admin/**/*.rs",
    "crates/target/subsystem/src/io_path/attached.rs",
    "crates/target/subsystem/src/io_path/buffer_quota.rs",
    "crates/target/subsystem/src/io_path/commands.rs",
    "crates/target/subsystem/src/io_path/digest_queue.rs",
    "crates/target/subsystem/src/io_path/exclusion.rs",
    "crates/target/subsystem/src/io_path/executor.rs",
    "crates/target/subsystem/src/objects/flush_epochs.rs",
    "crates/target/subsystem/src/io_path/fused.rs",
    "crates/target/subsystem/src/io_path/fused_pairs.rs",
    "crates/target/subsystem/src/messages/key_value/*.rs",
    "crates/target/subsystem/src/io_path/key_value_io/*.rs",
    "crates/target/subsystem/src/io_path/log_waiters.rs",
    "crates/target/subsystem/src/io_path/log_waiters/*.rs",
    "crates/target/subsystem/src/io_path/nvm_io.rs",
    "crates/target/subsystem/src/io_path/nvm_status.rs",
    "crates/target/subsystem/src/io_path/reserve.rs",
    "crates/target/subsystem/src/io_path/running.rs",
    "crates/target/subsystem/src/serving/dispatch.rs",
];

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
    (r"replace \| with \^ in open_with$", "what is joined has no bit in common"),
    (r"replace \+ with \* in Log::advance_cleaning$", "two and two"),
    ("replace < with <= in Log::on_superblocks$", "superblocks of one number are equal"),
    ("replace < with <= in Log::next_due$", "what is settled is settled again"),
    (
        r"replace <impl Backend for MemoryBackend>::on_completion with \(\)",
        "it only asserts that nothing completes",
    ),
    ("replace BlockStore::generation -> Generation with Default::default", "that is what it does"),
    (
        "delete field entries from struct Self expression in RemoteAnswers::with_capacity$",
        "the list takes room as it grows",
    ),
    (
        r"replace \| with \^ in (HostQueue<B, U>::submit_where_room|ControllerQueue<B, P, C>::complete_with_data)$",
        "what is joined has no bit in common",
    ),
];

/// Options of `cargo xtask mutants`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only mutants of this crate
    #[arg(value_name = "CRATE", value_parser = SUBJECTS.map(|subject| subject.name))]
    only: Option<String>,
    /// One part of all mutants, such as 1/20, spread over each crate
    #[arg(long, value_name = "K/N", value_parser = parse_shard, default_value = "0/1")]
    shard: (usize, usize),
    /// Only mutants of this file, such as crates/protocol/wire/src/pdu.rs; may be given several times
    #[arg(long, value_name = "PATH")]
    file: Vec<String>,
    /// Mutants tested at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
}

fn parse_shard(text: &str) -> Result<(usize, usize)> {
    let (part, count) = text.split_once('/').context("such as 1/20")?;
    let (part, count): (usize, usize) = (part.parse()?, count.parse()?);
    ensure!(part < count, "the parts are 0 to {}", count.saturating_sub(1));
    Ok((part, count))
}

/// The function by which woven mutants are selected.
const SELECTION: &str = r#"
pub(crate) fn is_mutant(number: usize) -> bool {
    static SELECTED: std::sync::LazyLock<Option<usize>> =
        std::sync::LazyLock::new(|| std::env::var("NVLANE_MUTANT").ok()?.parse().ok());
    *SELECTED == Some(number)
}
"#;

/// Mutates the crates, runs the tests of their judges for each mutant, and prints the survivors.
///
/// # Errors
/// The tests fail without a mutation, or a mutant cannot be tested. Survivors are no error: docs/testing.md.
pub(crate) fn run(options: &Options) -> Result<()> {
    deps::cargo_tool("cargo-mutants", "27.1.0", &[])?;
    let is_wanted = |subject: &&Subject| options.only.as_ref().is_none_or(|only| only == subject.name);
    for subject in SUBJECTS.iter().filter(is_wanted) {
        let directory = subject.directory()?;
        let files: Vec<_> =
            options.file.iter().filter(|file| Path::new(file).starts_with(&directory)).collect();
        if options.file.is_empty() || !files.is_empty() {
            try_all(subject, &list(subject, &files, options)?, options)?;
        }
    }
    Ok(())
}

/// The mutants of a crate.
fn list(subject: &Subject, files: &[&String], options: &Options) -> Result<Vec<Mutant>> {
    let package = format!("nvlane-{}", subject.name);
    let mut command = cargo(&["mutants", "--list", "--json", "--package", &package]);
    let named = files.iter().map(|file| file.as_str());
    let of_subject = subject.files.iter().copied().filter(|_| files.is_empty());
    command.args(named.chain(of_subject).map(|file| format!("--file={file}")));
    command.args(EQUIVALENT.iter().map(|(pattern, _reason)| format!("--exclude-re={pattern}")));
    let output = command.output()?;
    ensure!(output.status.success(), "cargo mutants: {}", String::from_utf8_lossy(&output.stderr));
    let all: Vec<Mutant> = serde_json::from_slice(&output.stdout)?;
    let (part, count) = options.shard;
    Ok(all.into_iter().skip(part).step_by(count).collect())
}

/// The copy of the sources with mutants woven in.
struct Copy {
    files: BTreeMap<PathBuf, Woven>,
}

impl Copy {
    fn write(subject: &Subject, mutants: &[Mutant], unviable: &BTreeSet<usize>) -> Result<Self> {
        let mut of_file: BTreeMap<PathBuf, Vec<(usize, &Mutant)>> = BTreeMap::new();
        for (number, mutant) in mutants.iter().enumerate().filter(|(number, _)| !unviable.contains(number)) {
            of_file.entry(PathBuf::from(&mutant.file)).or_default().push((number, mutant));
        }
        let mut files = BTreeMap::new();
        for (path, mutants) in of_file {
            let text = std::fs::read_to_string(root().join(&path))?;
            let woven = weave(&text, &mutants).with_context(|| path.display().to_string())?;
            files.insert(path, woven);
        }
        let top = subject.directory()?.join("src/lib.rs");
        sources::copy(&judge::sources(), |path, content| {
            let mut content = files.get(path).map_or(content, |woven| woven.text.clone().into_bytes());
            if path == top {
                content.extend(SELECTION.as_bytes());
            }
            Ok(content)
        })?;
        Ok(Self { files })
    }

    /// The mutants that are in it.
    fn numbers(&self) -> BTreeSet<usize> {
        self.files.values().flat_map(Woven::numbers).collect()
    }
}

/// Builds the mutants of a crate and runs its judges, one after the other.
fn try_all(subject: &Subject, mutants: &[Mutant], options: &Options) -> Result<()> {
    let mut unviable = BTreeSet::new();
    let first = subject.judges.first().context("a judge")?;
    let mut copy = Copy::write(subject, mutants, &unviable)?;
    let woven = copy.numbers();
    while let Err(errors) = first.build()? {
        let culprits: BTreeSet<usize> = errors
            .places()
            .filter_map(|(file, at)| Some(copy.files.get(file)?.culprits(at)))
            .flatten()
            .collect();
        ensure!(!culprits.is_empty(), "the copy does not build: {errors}");
        println!("{}: {} more do not build", subject.name, culprits.len());
        unviable.extend(culprits);
        copy = Copy::write(subject, mutants, &unviable)?;
    }
    let mut left: Vec<usize> = woven.difference(&unviable).copied().collect();
    let (built, mut killed) = (left.len(), 0);
    for judge in subject.judges {
        let Verdicts { survivors, endless_count } = judge.try_each(&left, options.jobs)?;
        killed += left.len() - survivors.len();
        println!(
            "{}: {} of {} killed by {}, {endless_count} of them endless",
            subject.name,
            left.len() - survivors.len(),
            left.len(),
            judge.package,
        );
        left = survivors;
    }
    for number in &left {
        println!("  survived: {}", mutants[*number].name);
    }
    println!(
        "{}: {} mutants, {} in constants or chains, {} do not build, {killed} of {built} killed: {:.1} %",
        subject.name,
        mutants.len(),
        mutants.len() - woven.len(),
        unviable.len(),
        killed as f64 * 100.0 / built.max(1) as f64,
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_that_is_named_exists() {
        for file in SUBJECTS.iter().flat_map(|subject| subject.files) {
            let path = file.split('*').next().expect("a part before the first asterisk");
            assert!(root().join(path).exists(), "{file}");
        }
    }
}
