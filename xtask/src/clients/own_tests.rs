//! memcached's own tests (`t/*.t` of a Debian source package of it) against `nvlane target`, through a wrapper with
//! memcached's options. `interop/memcached/own-tests/outcomes.txt` has the outcome of each test, with the reason of each
//! that does not pass.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::command::root;

/// Time limit of one test, s, and of one that is known to end early, as it may hang.
const LIMIT_S: &str = "200";
const EARLY_LIMIT_S: &str = "20";
/// Tests run at the same time: most of them sleep.
const PARALLEL_COUNT: usize = 8;

/// The outcome of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Outcome {
    /// Subtests that failed.
    failed: Vec<u32>,
    ending: Ending,
}

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// All of it was run.
    Whole,
    /// It skipped itself.
    Skipped,
    /// It died or reached its time limit before this subtest.
    Before(u32),
}

impl std::fmt::Display for Outcome {
    /// `pass`, `skip`, or what failed: `fail 3,5-8,20-end`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts: Vec<String> = self
            .failed
            .chunk_by(|a, b| a + 1 == *b)
            .map(|run| match run {
                [one] => one.to_string(),
                run => format!("{}-{}", run[0], run[run.len() - 1]),
            })
            .collect();
        match self.ending {
            Ending::Skipped => return f.write_str("skip"),
            Ending::Whole if parts.is_empty() => return f.write_str("pass"),
            Ending::Whole => {}
            Ending::Before(next) => parts.push(format!("{next}-end")),
        }
        write!(f, "fail {}", parts.join(","))
    }
}

impl Outcome {
    /// The outcome as far as a listed one judges it. `fail 3,7-end` says nothing about single subtests from 7 on, but that
    /// not all of them pass.
    fn judged_by(mut self, listed: &str) -> Self {
        let from = listed.strip_suffix("-end").and_then(|rest| rest.rsplit([' ', ',']).next()?.parse().ok());
        let Some(from) = from else { return self };
        let is_early = matches!(self.ending, Ending::Before(next) if next < from);
        let has_more = self.ending != Ending::Whole || self.failed.iter().any(|number| *number >= from);
        if has_more && !is_early && self.ending != Ending::Skipped {
            self.failed.retain(|number| *number < from);
            self.ending = Ending::Before(from);
        }
        self
    }

    /// Reads what a test printed, in TAP; `is_good` is whether it exited with 0.
    fn read(text: &str, is_good: bool) -> Self {
        let (mut failed, mut last, mut plan) = (Vec::new(), 0, None);
        for line in text.lines() {
            let (is_ok, rest) = match (line.strip_prefix("ok "), line.strip_prefix("not ok ")) {
                (Some(rest), _) => (true, rest),
                (None, Some(rest)) => (line.contains("# TODO"), rest),
                (None, None) => {
                    let count = line.strip_prefix("1..").and_then(|rest| rest.split(' ').next());
                    plan = count.and_then(|count| count.parse().ok()).or(plan);
                    continue;
                }
            };
            let Some(number) = rest.split(' ').next().and_then(|number| number.parse().ok()) else {
                continue;
            };
            last = number;
            if !is_ok {
                failed.push(number);
            }
        }
        let ending = match plan {
            Some(0) => Ending::Skipped,
            Some(count) if count == last && (is_good || !failed.is_empty()) => Ending::Whole,
            _ => Ending::Before(last + 1),
        };
        Self { failed, ending }
    }
}

/// The committed outcomes: the version they are of, and by test its outcome.
fn expected() -> Result<(String, BTreeMap<String, String>)> {
    let path = root().join("interop/memcached/own-tests/outcomes.txt");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    parse(&text)
}

fn parse(text: &str) -> Result<(String, BTreeMap<String, String>)> {
    let mut lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let version = lines.next().and_then(|line| line.strip_prefix("memcached ")).context("no version")?;
    let mut outcomes = BTreeMap::new();
    for line in lines {
        let (name, rest) = line.split_once(' ').with_context(|| line.to_owned())?;
        let (outcome, reason) = rest.trim().split_once("  ").unwrap_or((rest.trim(), ""));
        ensure!(outcome == "pass" || !reason.is_empty(), "{name}: without a reason");
        ensure!(outcomes.insert(name.to_owned(), outcome.to_owned()).is_none(), "{name}: twice");
    }
    Ok((version.to_owned(), outcomes))
}

/// The version of memcached whose tests have the committed outcomes.
pub(super) fn version() -> Result<String> {
    Ok(expected()?.0)
}

/// Runs the tests of a source tree of memcached against targets with this engine; logs go into `dir`. Returns whether
/// each had its outcome.
pub(super) fn run(nvlane: &Path, source: &Path, engine: &str, dir: &Path) -> Result<bool> {
    let (version, expected) = expected()?;
    let found = source.file_name().unwrap_or_default().to_string_lossy().into_owned();
    ensure!(found == format!("memcached-{version}"), "the outcomes are those of {version}, not of {found}");
    for program in ["memcached-debug", "timedrun"] {
        fs::copy(root().join("interop/memcached/own-tests").join(program), source.join(program))?;
    }
    let mut names: Vec<String> = fs::read_dir(source.join("t"))?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .filter(|name: &Result<String>| name.as_ref().is_ok_and(|name| name.ends_with(".t")))
        .collect::<Result<_>>()?;
    names.sort();
    if let Some(gone) = expected.keys().find(|name| !names.contains(name)) {
        bail!("{gone} is listed, but not in the source package");
    }
    let next = AtomicUsize::new(0);
    let wrong = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..PARALLEL_COUNT)
            .map(|_| {
                scope.spawn(|| -> Result<Vec<String>> {
                    let mut wrong = Vec::new();
                    while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let wanted = expected.get(name).map_or("unlisted", String::as_str);
                        let limit_s = if wanted.ends_with("-end") { EARLY_LIMIT_S } else { LIMIT_S };
                        let outcome = run_test(nvlane, source, (engine, limit_s), dir, name)?;
                        let outcome = outcome.judged_by(wanted).to_string();
                        if outcome != wanted {
                            wrong.push(format!("{name}: {outcome}; listed: {wanted}"));
                        }
                    }
                    Ok(wrong)
                })
            })
            .collect();
        let mut wrong = Vec::new();
        for thread in threads {
            wrong.extend(thread.join().expect("a thread of the tests panicked")?);
        }
        wrong.sort();
        anyhow::Ok(wrong)
    })?;
    fs::write(dir.join("log"), wrong.join("\n"))?;
    Ok(wrong.is_empty())
}

/// Runs one test, with an engine and a time limit.
fn run_test(
    nvlane: &Path,
    source: &Path,
    (engine, limit_s): (&str, &str),
    dir: &Path,
    name: &str,
) -> Result<Outcome> {
    let log = dir.join(name).with_extension("log");
    let output = File::create(&log)?;
    let mut command = Command::new("timeout");
    command.args(["--kill-after", "5", limit_s, "perl", "-MRealTime"]).arg(Path::new("t").join(name));
    command.env("PERL5LIB", root().join("interop/memcached/own-tests"));
    command.current_dir(source).env("NVLANE", nvlane).env("NVLANE_ENGINE", engine).env("OWN_TEST", name);
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let mut child = command.spawn().context("cannot run timeout")?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let status = child.wait()?;
    if let Some(group) = group {
        // Targets that the test has not ended; usually there are none.
        let _ = kill_process_group(group, Signal::KILL);
    }
    Ok(Outcome::read(&String::from_utf8_lossy(&fs::read(log)?), status.success()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_name_what_failed_and_where_a_test_ended() {
        for (text, is_good, outcome) in [
            ("1..2\nok 1 - a\nok 2\n", true, "pass"),
            ("ok 1\n1..1\n", true, "pass"),
            ("1..0 # SKIP no SASL\n", true, "skip"),
            ("1..6\nok 1\nnot ok 2 - b\nnot ok 3\nnot ok 4\nok 5\nnot ok 6\n", false, "fail 2-4,6"),
            ("1..4\nok 1\nnot ok 2\n", false, "fail 2,3-end"),
            ("", false, "fail 1-end"),
            ("1..2\nok 1\nok 2\n", false, "fail 3-end"),
            ("1..1\nnot ok 1 # TODO later\n", true, "pass"),
        ] {
            assert_eq!(Outcome::read(text, is_good).to_string(), outcome, "{text}");
        }
        let outcome = Outcome::read("1..9\nok 1\nnot ok 2\nok 3\nnot ok 4\nok 5\n", false);
        for (listed, judged) in [
            ("fail 2,3-end", "fail 2,3-end"),
            ("fail 2-end", "fail 2-end"),
            ("fail 2,6-end", "fail 2,4,6-end"),
            ("fail 2,7-end", "fail 2,4,6-end"),
            ("fail 2", "fail 2,4,6-end"),
        ] {
            assert_eq!(outcome.clone().judged_by(listed).to_string(), judged, "{listed}");
        }
        let passed = Outcome::read("1..1\nok 1\n", true);
        assert_eq!(passed.judged_by("fail 1-end").to_string(), "pass");
    }

    #[test]
    fn every_test_that_does_not_pass_has_a_reason() {
        let (_, outcomes) = expected().expect("the committed list is well-formed");
        assert!(outcomes.values().filter(|outcome| *outcome == "pass").count() >= 25);
        assert!(parse("memcached 1\na.t fail 1\n").is_err());
        assert!(parse("memcached 1\na.t pass\na.t pass\n").is_err());
    }
}
