//! Checks of dependencies, as `deny.toml` configures them.

use anyhow::Result;

use crate::command::{cargo, run as run_command};
use crate::deps;

/// Checks licences, bans and sources; and known vulnerabilities, if their database is available.
pub(crate) fn run() -> Result<()> {
    // Without optimization: it is built once and rarely runs.
    deps::cargo_tool("cargo-deny", "0.20.2", &["--debug"])?;
    let check = ["deny", "--locked", "check", "--hide-inclusion-graph"];
    run_command(cargo(&check).args(["bans", "licenses", "sources"]))?;
    if run_command(&mut cargo(&["deny", "fetch", "db"])).is_err() {
        println!("the database of advisories cannot be fetched: known holes are not looked for");
        return Ok(());
    }
    run_command(cargo(&check).args(["--disable-fetch", "advisories"]))
}
