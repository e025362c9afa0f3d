//! Dependencies, as `deny.toml` wants them.

use anyhow::Result;

use crate::command::{cargo, run as run_command};
use crate::deps;

/// Licences, bans, sources; and known holes, if their database can be had.
///
/// # Errors
/// If a dependency is not as it has to be.
pub(crate) fn run() -> Result<()> {
    deps::install_deny()?;
    run_command(&mut cargo(&[
        "deny",
        "--locked",
        "check",
        "--hide-inclusion-graph",
        "bans",
        "licenses",
        "sources",
    ]))?;
    if run_command(&mut cargo(&["deny", "fetch", "db"])).is_err() {
        println!("the database of advisories cannot be fetched: known holes are not looked for");
        return Ok(());
    }
    run_command(&mut cargo(&[
        "deny",
        "--locked",
        "check",
        "--hide-inclusion-graph",
        "--disable-fetch",
        "advisories",
    ]))
}
