//! Planted bugs in a copy of the product's own code: the simulation must find each.
//!
//! All are built into one program, each enabled by an environment variable.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::command::{cargo, run as run_command, target_dir};
use crate::sources;

/// Options of `cargo xtask product-bugs`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Bugs to plant, one after the other [default: all]
    names: Vec<String>,
    /// Seeds within which each must be found
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    seeds: u64,
}

/// The switch of a bug.
const VARIABLE: &str = "NVLANE_BUG";

/// A place in the code to change.
struct Site {
    file: &'static str,
    /// The original text, which must occur once.
    good: &'static str,
    /// The replacement: `BUG(name)` is whether that bug is enabled.
    bad: &'static str,
}

const SITES: &[Site] = &[
    // A flush completes with the result of one that began before its writes ended.
    Site {
        file: "crates/store/src/block/file_backend.rs",
        good: "        self.flushes.waiting.push(ticket);\n        if self.flushes.running.is_empty() {",
        bad: "        if BUG(flush-joins-running) && !self.flushes.running.is_empty() {
            return self.flushes.running.push(ticket);
        }
        self.flushes.waiting.push(ticket);\n        if self.flushes.running.is_empty() {",
    },
    Site {
        file: "crates/store/src/block/file_backend.rs",
        good: "        if let (Err(error), Some(what)) = (result, task.work.durable_name())\n",
        bad: "        let is_hidden = matches!(task.work, Work::Flush) && BUG(failed-flush-closes-nothing);
        if let (Err(error), Some(what), false) = (result, task.work.durable_name(), is_hidden)\n",
    },
    Site {
        file: "crates/store/src/block/file_backend.rs",
        good: "Request::Flush => Some(Work::Flush),",
        bad: "Request::Flush => (!BUG(flush-does-nothing)).then_some(Work::Flush),",
    },
    Site {
        file: "crates/store/src/block/file_backend.rs",
        good: "        if is_complete {\n            return self.complete(io, ticket, buffer);",
        bad: "        let is_dropped = has_progress && matches!(task.work, Work::Write { .. });
        if is_complete || (is_dropped && BUG(rest-of-write-dropped)) {
            return self.complete(io, ticket, buffer);",
    },
    // A Flush of all namespaces that has waited never leaves its lane.
    Site {
        file: "crates/subsystem/src/executor.rs",
        good: "self.commands.keep(ticket, Running::new(caller.owner, *sqe, None, step));",
        bad: "self.commands.keep(ticket.filter(|_| !BUG(flush-of-all-moves)), Running::new(caller.owner, *sqe, None, step));",
    },
    Site {
        file: "crates/subsystem/src/reserve.rs",
        good: "buffer.capacity() == self.length",
        bad: "buffer.capacity() == self.length || (BUG(longer-buffer-in-reserve) && buffer.capacity() > self.length)",
    },
    // A send that stops in a header between two PDUs lets the rest of their block change.
    Site {
        file: "crates/proto/src/caravan.rs",
        good: "        let unsent = load.parts.get(load.sent.part..)?;\n",
        bad: "        let unsent = load.parts.get(load.sent.part..)?;
        if BUG(block-torn-between-pdus) && !matches!(unsent.first(), Some(Part::Payload { .. })) {
            return None;
        }\n",
    },
    // After a reopening, the flush of a host that wrote before does not fail.
    Site {
        file: "crates/subsystem/src/flush_epochs.rs",
        good: "        generation.is_closed() || had >= generation",
        bad: "        generation.is_closed() || had >= generation || BUG(reopening-hidden-from-hosts)",
    },
    Site {
        file: "crates/store/src/block/file_backend.rs",
        good: "let (offset, skip, durable) = (*offset + *done as u64, *done, *is_durable);",
        bad: "let rest = if BUG(rest-of-write-misplaced) { *offset } else { *offset + *done as u64 };
                let (offset, skip, durable) = (rest, *done, *is_durable && !BUG(fua-dropped));",
    },
    Site {
        file: "crates/store/src/block/file_backend.rs",
        good: "Operation::Read { file, offset: *offset + *done as u64, buffer, skip: *done }",
        bad: "let rest = if BUG(rest-of-read-misplaced) { *offset } else { *offset + *done as u64 };
                Operation::Read { file, offset: rest, buffer, skip: *done }",
    },
    Site {
        file: "crates/store/src/block/file_backend.rs",
        good: "if let Work::Range { is_durable: true, .. } = task.work {",
        bad: "if let (Work::Range { is_durable: true, .. }, false) = (task.work, BUG(durable-zeroes-unflushed)) {",
    },
    // A host that completes its event requests by itself cannot disconnect.
    Site {
        file: "crates/subsystem/src/serving/dispatch.rs",
        good: "            && sqe.opcode == AdminOpcode::ASYNC_EVENT_REQUEST.raw()\n",
        bad: "            && sqe.opcode == AdminOpcode::ASYNC_EVENT_REQUEST.raw()
            && !BUG(event-request-keeps-its-id)\n",
    },
    Site {
        file: "crates/proto/src/command_table.rs",
        good: "!self.complete_waiting(slot, is_arriving()) {\n            return None;",
        bad: "!self.complete_waiting(slot, is_arriving()) {
            return BUG(superseded-request-answered).then_some(cid);",
    },
    Site {
        file: "crates/host/src/reconnect.rs",
        good: "Class::Idempotent if policy == ReplayPolicy::Idempotent =>",
        bad: "Class::Idempotent if policy == ReplayPolicy::Idempotent || BUG(writes-replayed) =>",
    },
    // After a lost connection the target may have lost its cache, but the flush reports success.
    Site {
        file: "crates/host/src/reconnect.rs",
        good: "Class::Flush if has_volatile_cache =>",
        bad: "Class::Flush if has_volatile_cache && !BUG(flush-covers-lost) =>",
    },
    Site {
        file: "crates/host/src/flush_epoch.rs",
        good: "self.epoch.covers(generation);",
        bad: "self.epoch.covers(generation) || BUG(flush-covers-lost);",
    },
    Site {
        file: "crates/subsystem/src/control/connect.rs",
        good: "kind != ControllerKind::Discovery && of_host().any(is_ending)",
        bad: "kind != ControllerKind::Discovery && !BUG(connect-let-in-too-soon) && of_host().any(is_ending)",
    },
    Site {
        file: "crates/subsystem/src/nvm_io.rs",
        good: "        self.commands.namespaces.blocks_mut(extent.at).exclusions.holds_back(&blocks)",
        bad: "        !BUG(locked-range-written) && self.commands.namespaces.blocks_mut(extent.at).exclusions.holds_back(&blocks)",
    },
    Site {
        file: "crates/subsystem/src/exclusion.rs",
        good: "        !self.active.iter().any(|active| active.lock.meets(lock))\n            && ",
        bad: "        (BUG(locks-overlap) || !self.active.iter().any(|active| active.lock.meets(lock)))\n            && ",
    },
    Site {
        file: "crates/subsystem/src/serving.rs",
        good: "next_quiet(|blocks| running.changes(at, blocks))",
        bad: "next_quiet(|blocks| !BUG(lock-beside-writes) && running.changes(at, blocks))",
    },
    // The rest of an interrupted read of memory is taken for a copy.
    Site {
        file: "crates/reactor/src/payload.rs",
        good: "Self::Torn(torn) => torn.behind.is_none(),",
        bad: "Self::Torn(torn) => torn.behind.is_none() || BUG(namespace-memory-sent-without-copy),",
    },
    // Storage whose namespace gets another identity is attached a second time.
    Site {
        file: "crates/subsystem/src/catalog.rs",
        good: ".find(|(_, known)| known.is_same(store))",
        bad: ".find(|(_, known)| !BUG(storage-attached-twice) && known.is_same(store))",
    },
];

impl Site {
    fn put_into(&self, text: &str) -> Result<String> {
        let count = text.matches(self.good).count();
        ensure!(count == 1, "{} has this {count} times, and should once: {}", self.file, self.good);
        let switch = format!("std::env::var_os({VARIABLE:?}).is_some_and(|bug| bug == \"");
        let before = format!(
            "({{ static IS_ON: std::sync::OnceLock<bool> = std::sync::OnceLock::new(); *IS_ON.get_or_init(|| {switch}"
        );
        let mut bad = self.bad.to_owned();
        for name in self.names() {
            bad = bad.replace(&format!("BUG({name})"), &format!("{before}{name}\")) }})"));
        }
        Ok(text.replace(self.good, &bad))
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.bad.split("BUG(").skip(1).filter_map(|rest| rest.split(')').next())
    }
}

fn names() -> BTreeSet<String> {
    SITES.iter().flat_map(Site::names).map(str::to_owned).collect()
}

/// Enables each bug and checks that the simulation finds it.
///
/// # Errors
/// A bug is not found, or the simulation finds a violation without any.
pub(crate) fn run(options: &Options) -> Result<()> {
    let copy = target_dir().join("product-bugs");
    sources::copy(&copy.join("sources"), with_bugs)?;
    let bugs = names();
    let mut build =
        cargo(&["build", "--release", "--locked", "--package", "nvlane-sim", "--bin", "nvlane-sim"]);
    // Faster to build than the release profile, and fast enough.
    build.args(["--config", "profile.release.lto=false", "--config", "profile.release.debug=false"]);
    build.current_dir(copy.join("sources")).env("CARGO_TARGET_DIR", copy.join("build"));
    run_command(&mut build)?;
    let program = copy.join("build/release/nvlane-sim");
    run_command(Command::new(&program).args(["--seeds", "200"]).env_remove(VARIABLE))?;
    let unknown = options.names.iter().find(|name| !bugs.contains(*name));
    ensure!(unknown.is_none(), "there is no bug {unknown:?} in {bugs:?}");
    let mut unseen = Vec::new();
    for bug in bugs.iter().filter(|bug| options.names.is_empty() || options.names.contains(bug)) {
        let start = Instant::now();
        let mut command = Command::new(&program);
        command.args(["--seeds", &options.seeds.to_string()]).env(VARIABLE, bug);
        let output = command.output().with_context(|| format!("cannot run {}", program.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let finding =
            text.lines().find(|line| line.starts_with("seed ")).filter(|_| !output.status.success());
        let finding: String = finding.unwrap_or("NOT FOUND").chars().take(110).collect();
        println!("{bug:<30} {:>6.1} s  {finding}", start.elapsed().as_secs_f64());
        if finding == "NOT FOUND" {
            unseen.push(bug.as_str());
        }
    }
    ensure!(unseen.is_empty(), "not found in {} seeds: {}", options.seeds, unseen.join(", "));
    Ok(())
}

/// A file's content with the bugs that lie in it.
fn with_bugs(path: &Path, mut content: Vec<u8>) -> Result<Vec<u8>> {
    for site in SITES.iter().filter(|site| Path::new(site.file) == path) {
        content = site.put_into(std::str::from_utf8(&content)?)?.into_bytes();
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::root;

    #[test]
    fn every_bug_has_its_place() {
        for site in SITES {
            let text = std::fs::read_to_string(root().join(site.file)).unwrap();
            let bad = site.put_into(&text).unwrap();
            assert!(!bad.contains("BUG("), "{}", site.file);
        }
        assert!(names().len() > 10);
    }
}
