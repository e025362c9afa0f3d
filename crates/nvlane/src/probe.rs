//! `nvlane probe`: hostile inputs against any NVMe/TCP peer, and whether it bears them.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use host::Address;
use probe::finding::Outcome;
use probe::peer::Settings;
use probe::report::{Report, RowResult};
use probe::{rows, target_run};

use crate::Ended;
use crate::connection::Connection;
use crate::exit::Failure;

#[derive(Debug, Args)]
#[command(after_help = "\
A row passes if the target answers as it should, a neighbour's I/O goes on meanwhile, and a new association works afterwards. The
exit code is 1 if a row does not pass. Rows that write are skipped unless --overwrite allows them to: what the namespace holds
is lost then. Do not probe what others depend on.")]
pub(crate) struct ProbeArguments {
    #[command(flatten)]
    connection: Connection,
    /// Only this row, such as P3. May be given several times.
    #[arg(long, value_name = "ID")]
    row: Vec<String>,
    /// List the rows, and try none.
    #[arg(long)]
    list: bool,
    /// Rows may write to the namespace: what it holds is lost.
    #[arg(long)]
    overwrite: bool,
    /// The longest pause of the neighbour's I/O that is right, ms.
    #[arg(long, value_name = "MS", default_value = "100")]
    pause: u64,
    /// Write the result as JSON to this file, or to standard output instead of the table.
    #[arg(long, value_name = "FILE|-")]
    json: Option<String>,
}

pub(crate) fn probe(arguments: &ProbeArguments) -> Ended {
    check_rows(&arguments.row)?;
    if arguments.list {
        list(&arguments.row);
        return Ok(ExitCode::SUCCESS);
    }
    let settings = settings(arguments)?;
    let to_stdout = arguments.json.as_deref() == Some("-");
    let report = target_run::run(settings, &arguments.row, &mut on_result)
        .map_err(|finding| Failure::from(anyhow::anyhow!("{finding}")))?;
    if !to_stdout {
        print!("{report}");
    }
    if let Some(path) = &arguments.json {
        write_json(&report, path)?;
    }
    Ok(ExitCode::from(u8::from(!report.is_good())))
}

/// One line for each row that does not pass, as soon as it is known.
fn on_result(result: &RowResult) {
    if matches!(result.outcome, Outcome::Differs | Outcome::Hangs | Outcome::Dies) {
        let finding = result.finding.as_deref().unwrap_or_default();
        eprintln!("{} {}: {finding}", result.id, result.outcome);
    }
}

fn settings(arguments: &ProbeArguments) -> Result<Settings, Failure> {
    let connection = &arguments.connection;
    let address: Address = connection.address()?;
    let options = connection.options()?;
    let Some(subsystem) = address.subsystem.clone().filter(|_| !address.is_discovery()) else {
        let error = host::Error::NoSubsystem { address: address.to_string() };
        return Err(Failure::from(error));
    };
    let resolved = address.resolve().with_context(|| address.host.to_string())?;
    let identity = options.identity.expect("always given");
    Ok(Settings {
        address: *resolved.first().context("no address")?,
        subsystem,
        nsid: address.nsid,
        host: identity.nqn,
        hostid: identity.id,
        patience: options.connect_timeout,
        may_overwrite: arguments.overwrite,
        pause_limit: Duration::from_millis(arguments.pause),
    })
}

fn check_rows(ids: &[String]) -> Result<(), Failure> {
    let known = |id: &str| rows::all().any(|(_, row)| row.id.eq_ignore_ascii_case(id));
    match ids.iter().find(|id| !known(id)) {
        Some(id) => Err(Failure::usage(format!("--row {id}: no such row; --list has them"))),
        None => Ok(()),
    }
}

fn list(ids: &[String]) {
    let mut title = "";
    for (section, row) in rows::all() {
        if !ids.is_empty() && !ids.iter().any(|id| id.eq_ignore_ascii_case(row.id)) {
            continue;
        }
        if section.title != title {
            title = section.title;
            println!("{} {title}", section.number);
        }
        println!("  {:4} {}: {}", row.id, row.sent, row.right);
        if let Some(why) = row.judgement {
            println!("       our judgement: {why}");
        }
    }
}

fn write_json(report: &Report, path: &str) -> Result<(), Failure> {
    let json = serde_json::to_string_pretty(report).context("JSON")? + "\n";
    if path == "-" {
        print!("{json}");
        return Ok(());
    }
    Ok(std::fs::write(path, json).with_context(|| path.to_owned())?)
}
