//! A planted bug: its name, its places in the code, and the test or simulation that must find it.

use anyhow::{Result, ensure};

/// The environment variable that switches a bug on, by its name.
pub(super) const SWITCH: &str = "NVLANE_BUG";

/// A mistake.
pub(super) struct Bug {
    pub(super) name: &'static str,
    pub(super) judge: Judge,
    pub(super) sites: &'static [Site],
}

/// The program that must find a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Judge {
    /// The simulation without key-value namespaces, within ten thousand seeds.
    Simulation,
    /// The simulation with key-value namespaces, likewise. Seeds that fail without the bug do not count.
    KeySimulation,
    /// This test of a package, within a minute: a unit test if `program` is empty, else one of that test program.
    Test { package: &'static str, program: &'static str, name: &'static str },
    /// `cargo xtask syscalls`, which compares a target's durable calls with those that its commands must make.
    DurableCalls,
}

impl Judge {
    /// Whether it is the simulation.
    pub(super) fn takes_seeds(self) -> bool {
        matches!(self, Self::Simulation | Self::KeySimulation)
    }
}

/// A place in the code to change: its file, the original text, which must occur once, and the replacement, in which
/// `BUG` is whether the bug is switched on.
pub(super) struct Site(pub(super) &'static str, pub(super) &'static str, pub(super) &'static str);

/// A unit test of a package.
pub(super) const fn unit_test(package: &'static str, name: &'static str) -> Judge {
    Judge::Test { package, program: "", name }
}

/// A test of a test program of a package.
pub(super) const fn test(package: &'static str, program: &'static str, name: &'static str) -> Judge {
    Judge::Test { package, program, name }
}

impl Bug {
    /// Whether it changes this file.
    pub(super) fn is_in(&self, file: &str) -> bool {
        self.sites.iter().any(|site| site.0 == file)
    }

    /// The text of a file with this bug in it, which asks [`switch`] whether it is on.
    pub(super) fn put_into(&self, file: &str, mut text: String) -> Result<String> {
        for Site(_, good, bad) in self.sites.iter().filter(|site| site.0 == file) {
            let count = text.matches(good).count();
            ensure!(count == 1, "{}: {file} has this {count} times, and should once: {good}", self.name);
            ensure!(bad.contains("BUG"), "{} is not switched", self.name);
            text = text.replace(good, &bad.replace("BUG", &format!("is_planted({:?})", self.name)));
        }
        Ok(text)
    }
}

/// A function for the end of each changed file: whether a bug is on.
pub(super) fn switch() -> String {
    format!(
        "
fn is_planted(bug: &str) -> bool {{
    static NAME: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    NAME.get_or_init(|| std::env::var({SWITCH:?}).ok()).as_deref() == Some(bug)
}}
"
    )
}
