//! Running other programs, and paths of the repository.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// The top of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository")
}

/// The directories of all packages, from the top of the repository.
pub(crate) fn packages() -> Result<Vec<PathBuf>> {
    let mut packages = vec![PathBuf::from("xtask")];
    let mut floors = vec![PathBuf::from("lab")];
    floors.extend(folders(Path::new("crates"))?);
    for floor in floors {
        packages.extend(folders(&floor)?);
    }
    packages.sort();
    Ok(packages)
}

/// The directories in a directory of the repository.
fn folders(of: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root().join(of)).with_context(|| of.display().to_string())? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(of.join(entry.file_name()));
        }
    }
    Ok(found)
}

/// Cargo's target directory.
pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// A cargo command, to be run at the top of the repository.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    command
}

/// The profile of programs that compute for minutes, or that emulated machines of `make soak` run.
pub(crate) const OPTIMIZED: &str = "tested";

/// Builds programs that tests run as processes, as their tests build them.
pub(crate) fn build_programs(names: &[&str]) -> Result<()> {
    let mut command = build_of(names, "dev");
    // With a test among what is built, dependencies have the features that tests ask for: without, most of them would be
    // compiled once more after the tests.
    run(command.args(["--test", "probe_host"]))
}

/// Where such a program is.
pub(crate) fn program_path(name: &str) -> PathBuf {
    target_dir().join("debug").join(name)
}

/// Builds a program as [`build_programs`], and returns its path.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    build_programs(&[name])?;
    Ok(program_path(name))
}

/// Builds programs that compute for minutes, or that emulated machines of `make soak` run.
pub(crate) fn build_optimized(names: &[&str]) -> Result<()> {
    run(&mut build_of(names, OPTIMIZED))
}

/// Builds a program as [`build_optimized`], and returns its path.
pub(crate) fn optimized_program(name: &str) -> Result<PathBuf> {
    build_optimized(&[name])?;
    Ok(target_dir().join(OPTIMIZED).join(name))
}

/// With the features of dependencies that the whole workspace asks for: a package on its own may ask for fewer, and nearly
/// everything would be compiled again.
fn build_of(names: &[&str], profile: &str) -> Command {
    let mut command = cargo(&["build", "--profile", profile, "--locked", "--workspace"]);
    for name in names {
        command.args(["--bin", name]);
    }
    command
}

/// Shows the command, runs it, and fails unless it succeeds.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    println!("$ {}", shown(command));
    let status = command.status().with_context(|| format!("cannot run {}", shown(command)))?;
    ensure!(status.success(), "{}: {status}", shown(command));
    Ok(())
}

/// As [`run`], of a command that runs tests: what each failed test printed is in the error too, so that the end of a long
/// log says why it failed.
pub(crate) fn run_tests(command: &mut Command) -> Result<()> {
    println!("$ {}", shown(command));
    let mut child =
        command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot run {}", shown(command)))?;
    let mut failures = Failures::default();
    for line in BufReader::new(child.stdout.take().expect("it is piped")).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        println!("{line}");
        failures.read(line);
    }
    let status = child.wait()?;
    ensure!(status.success(), "{}: {status}\n{}", shown(command), failures.lines.join("\n"));
    Ok(())
}

/// What a test program prints of its failed tests, from `failures:` to `test result:`.
#[derive(Default)]
struct Failures {
    lines: Vec<String>,
    is_inside: bool,
}

impl Failures {
    /// Lines kept: some failed tests print thousands.
    const MAX: usize = 200;

    fn read(&mut self, line: String) {
        self.is_inside |= line == "failures:";
        let is_last = line.starts_with("test result:");
        if self.is_inside && self.lines.len() < Self::MAX {
            self.lines.push(line);
        }
        self.is_inside &= !is_last;
    }
}

/// The command's output, as one line.
pub(crate) fn output_of(command: &mut Command) -> Result<String> {
    Ok(text_of(command)?.lines().next().unwrap_or_default().trim().to_owned())
}

/// Runs a command, and returns what it prints.
pub(crate) fn text_of(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {}", shown(command)))?;
    ensure!(output.status.success(), "{}: {}", shown(command), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The end of a log, if it exists.
pub(crate) fn last_lines(log: &Path, count: usize) -> String {
    let text = String::from_utf8_lossy(&std::fs::read(log).unwrap_or_default()).into_owned();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Whether this program is on the path.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::Failures;

    #[test]
    fn failures_are_what_stands_between_their_heading_and_the_result() {
        let mut failures = Failures::default();
        let output = "running 2 tests\ntest a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\nwhy\n\n\
                      failures:\n    b\n\ntest result: FAILED. 1 passed\n\nrunning 1 test\ntest c ... ok";
        output.lines().for_each(|line| failures.read(line.to_owned()));
        let kept = failures.lines.join("\n");
        assert!(kept.starts_with("failures:\n\n---- b stdout ----\nwhy"), "{kept}");
        assert!(kept.ends_with("test result: FAILED. 1 passed"), "{kept}");
    }
}
