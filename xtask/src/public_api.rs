//! The public API of the crates that strangers use, compared with `public-api.txt` beside their sources.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::command::root;

/// The crates and their directories.
const CRATES: [(&str, &str); 2] =
    [("nvlane-host", "crates/host/host"), ("nvlane-host-core", "crates/host/host-core")];

/// Options of `cargo xtask public-api`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Write the listings instead of comparing them
    #[arg(long)]
    accept: bool,
}

/// Lists the public API of each crate, without what every type has.
pub(crate) fn run(options: &Options) -> Result<()> {
    for (name, dir) in CRATES {
        // Of rustup, because a compiler's own cargo knows no other compiler.
        let mut command = std::process::Command::new("rustup");
        command
            .args(["run", "nightly", "cargo", "public-api", "--package", name, "-sss"])
            .current_dir(root());
        let output = command.stderr(std::process::Stdio::inherit()).output().context("cannot run rustup")?;
        ensure!(output.status.success(), "{name}: no listing; cargo install --locked cargo-public-api?");
        let (listed, path) = (String::from_utf8(output.stdout)?, root().join(dir).join("public-api.txt"));
        if options.accept {
            fs::write(&path, listed)?;
            continue;
        }
        let accepted = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let new =
            listed.lines().filter(|line| !accepted.lines().any(|old| old == *line)).map(|line| ("+", line));
        let gone =
            accepted.lines().filter(|line| !listed.lines().any(|new| new == *line)).map(|line| ("-", line));
        let changes: Vec<String> = gone.chain(new).map(|(sign, line)| format!("{sign}{line}")).collect();
        ensure!(
            changes.is_empty(),
            "the public API of {name} has changed; with --accept it is the new one:\n{}",
            changes.join("\n")
        );
        println!("{name}: {} public items, as in {dir}/public-api.txt", listed.lines().count());
    }
    Ok(())
}
