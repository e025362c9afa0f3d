//! `nvlane probe`: sends hostile input to any NVMe/TCP peer and checks its reaction.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use command_line::connection::Connection;
use command_line::exit::Ended;
use command_line::exit::{Failure, Kind};
use command_line::output;
use command_line::values::run_time;
use host::{Address, Options};
use peer::raw_host::RawHost;
use probe::document::Words;
use probe::finding::RowOutcome;
use probe::host::drive::Host;
use probe::report::RowResult;
use probe::target::{Removal, Settings};
use probe::{host as host_side, rows, target_run};
use wire::id::Nsid;

#[derive(Debug, Args)]
#[command(after_help = "\
A row passes if the target reacts as specified, I/O of another association continues, and a new association works afterwards. The \
exit code is 1 if a row does not pass. Rows that write are skipped unless --overwrite is given, which destroys \
the data of the namespace. Do not probe a target that others depend on.

Rows for features that the target does not offer (keys and values, authentication, TLS, reservations) check that it refuses them. Some \
need more than its address:
  nvlane probe ADDR --overwrite --memcached 127.0.0.1:11211 --target-log target.log \\
    --removable 2 --remove 'cp without.toml target.toml && nvlane reload --force --state state.json' \\
    --restore 'cp with.toml target.toml && nvlane reload --force --state state.json'
  nvlane probe ADDR/NQN --tls --tls-key tls.key      # rows T8 to T20: sessions, where the listener speaks TLS

The probe does not authenticate: rows that need more commands are skipped if the target requires authentication, and rows in \
cleartext if it requires TLS.

With --role host a fake target listens and injects faults, and a host connects to it: this program's own library, or any \
command, which finds the address in $NVLANE_ADDR and should connect, write and read:
  nvlane probe --role host
  nvlane probe --role host --listen 192.0.2.1:4420 --run 'my-host \"$NVLANE_ADDR\"'")]
pub(crate) struct ProbeArguments {
    #[command(flatten)]
    connection: Connection,
    /// Which side to probe.
    #[arg(long, value_name = "ROLE", default_value = "target")]
    role: Role,
    /// Where the fake target listens (--role host).
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Probe this command as a host instead of our own library (--role host). One word is a line for the shell.
    #[arg(long, value_name = "CMD", num_args = 1.., allow_hyphen_values = true)]
    run: Vec<String>,
    /// Only this row, such as P3. May be given several times.
    #[arg(long, value_name = "ID")]
    row: Vec<String>,
    /// List the rows without trying any.
    #[arg(long)]
    list: bool,
    /// Allow rows to overwrite the namespace: its data is lost.
    #[arg(long)]
    overwrite: bool,
    /// Seconds that one row may take, four times as long if it waits for the target's timers; a longer row counts as
    /// hanging.
    #[arg(long, value_name = "SECONDS", value_parser = run_time, default_value = "60")]
    row_timeout: Duration,
    /// Longest acceptable pause of the other association's I/O, ms.
    #[arg(long, value_name = "MS", default_value = "100")]
    pause: u64,
    /// Memcached listener of the key-value namespace (rows E1 to E13, K10).
    #[arg(long, value_name = "ADDR:PORT")]
    memcached: Option<SocketAddr>,
    /// A namespace other than the probed one, which may be removed during the run (row Q13).
    #[arg(long, value_name = "NSID", requires_all = ["remove", "restore"])]
    removable: Option<u32>,
    /// Shell command that removes the --removable namespace from the target.
    #[arg(long, value_name = "CMD", requires = "removable")]
    remove: Option<String>,
    /// Shell command that adds it again.
    #[arg(long, value_name = "CMD", requires = "removable")]
    restore: Option<String>,
    /// The target's log file, whose growth is checked (row R13).
    #[arg(long, value_name = "FILE")]
    target_log: Option<PathBuf>,
    /// Write JSON to this file, or to standard output instead of the table if it is -.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The probed side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    /// A target at an address.
    Target,
    /// A host that connects to us.
    Host,
}

pub(crate) fn probe(arguments: &ProbeArguments) -> Ended {
    check_rows(arguments)?;
    if arguments.list {
        output::write(list(arguments))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::check_file(arguments.json.as_deref())?;
    let report = match arguments.role {
        Role::Target => target_run::run(settings(arguments)?, &arguments.row, &mut on_result),
        Role::Host => {
            let host = match &arguments.run[..] {
                [] => Host::Library,
                command => Host::Command(command.to_vec()),
            };
            host_side::run::run(arguments.listen, &host, &arguments.row, &mut on_result)
        }
    };
    let kind = match arguments.role {
        // Nothing hostile was sent before the first row: the target is unreachable.
        Role::Target => Kind::Unreachable,
        Role::Host => Kind::Failed,
    };
    let report = report.map_err(|finding| Failure::new(kind, finding))?;
    let json = || serde_json::to_string_pretty(&report);
    output::tell(|| report.to_string(), json, arguments.json.as_deref())?;
    Ok(ExitCode::from(u8::from(!report.is_good())))
}

/// Prints a line for each row that does not pass, as soon as it ends.
fn on_result(result: &RowResult) {
    if matches!(result.outcome, RowOutcome::Differs | RowOutcome::Hangs | RowOutcome::Dies) {
        let finding = result.finding.as_deref().unwrap_or_default();
        eprintln!("{} {}: {finding}", result.words.id, result.outcome);
    }
}

fn settings(arguments: &ProbeArguments) -> Result<Settings, Failure> {
    let connection = &arguments.connection;
    let (address, options): (Address, Options) = connection.subsystem()?;
    let Some(subsystem) = address.subsystem.clone().filter(|_| !address.is_discovery()) else {
        let error = host::Error::NoSubsystem { address: address.to_string() };
        return Err(Failure::from(error));
    };
    let resolved = address.resolve().with_context(|| address.host.to_string())?;
    let identity = options.identity.expect("always given");
    Ok(Settings {
        host: RawHost {
            address: *resolved.first().context("no address")?,
            subsystem,
            nqn: identity.nqn,
            hostid: identity.id,
            patience: options.tuning.admin_timeout,
        },
        nsid: address.nsid,
        row_limit: arguments.row_timeout,
        may_overwrite: arguments.overwrite,
        pause_limit: Duration::from_millis(arguments.pause),
        memcached: arguments.memcached,
        removal: removal(arguments),
        log: arguments.target_log.clone(),
        tls: options.tls,
    })
}

fn removal(arguments: &ProbeArguments) -> Option<Removal> {
    let (remove, restore) = (arguments.remove.clone()?, arguments.restore.clone()?);
    Some(Removal { nsid: Nsid::new(arguments.removable?), remove, restore })
}

fn rows_of(role: Role) -> Vec<Words> {
    match role {
        Role::Target => rows::words().collect(),
        Role::Host => host_side::rows::words().collect(),
    }
}

fn check_rows(arguments: &ProbeArguments) -> Result<(), Failure> {
    let known = rows_of(arguments.role);
    let is_known = |id: &String| known.iter().any(|row| row.id.eq_ignore_ascii_case(id));
    match arguments.row.iter().find(|id| !is_known(id)) {
        Some(id) => Err(Failure::usage(format!("--row {id}: no such row; --list has them"))),
        None => Ok(()),
    }
}

fn list(arguments: &ProbeArguments) -> String {
    let mut text = String::new();
    let mut title = String::new();
    for row in rows_of(arguments.role).into_iter().filter(|row| row.is_among(&arguments.row)) {
        if row.section != title {
            text.push_str(&format!("{}\n", row.section));
            title = row.section;
        }
        text.push_str(&format!("  {:4} {}: {}\n", row.id, row.sent, row.right));
        if let Some(why) = row.judgement {
            text.push_str(&format!("       our judgement: {why}\n"));
        }
    }
    text
}
