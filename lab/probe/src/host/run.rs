//! Runs rows for hosts, one after the other.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use peer::fake_target::FakeTarget;
use peer::finding::{About, Check, differs, skipped};
use peer::session::Then;
use peer::stage::Setup;
use wire::pdu::Digests;

use crate::host::drive::{Ended, Host, Task};
use crate::host::rows::case::{Case, Right};
use crate::host::rows::{self, HostRow};
use crate::report::{Report, RowResult};

/// Runs the rows with these names, or all. Calls `on_result` with each result.
pub fn run(
    listen: SocketAddr,
    host: &Host,
    ids: &[String],
    on_result: &mut dyn FnMut(&RowResult),
) -> Check<Report> {
    check_healthy(listen, host).about("before any row")?;
    let peer = match host {
        Host::Library => "this project's host".to_owned(),
        Host::Command(words) => words.join(" "),
    };
    let mut report = Report { peer, rows: Vec::new() };
    for (words, row) in rows::all().filter(|(words, _)| words.is_among(ids)) {
        let start = Instant::now();
        let check = try_row(listen, host, row).and_then(|()| check_healthy(listen, host).about("afterwards"));
        let result = RowResult::new(&words, start.elapsed()).decided(&check);
        on_result(&result);
        report.rows.push(result);
    }
    Ok(report)
}

/// Runs the host against a target without a fault, where everything must work.
fn check_healthy(listen: SocketAddr, host: &Host) -> Check {
    let target = FakeTarget::start(listen, Setup::default(), Box::new(|_, _| Ok(Then::AsUsual)), false)?;
    let (address, subsystem) = (target.stage.address, target.stage.subsystem.clone());
    let ended = host.drive(address, &subsystem, Task::Io(Digests::empty()))?;
    target.end()?;
    match ended {
        Ended::Well => Ok(()),
        Ended::Failing(why) => differs(format!("a target without a fault: {why}")),
    }
}

/// Runs each case of a row. The row is skipped if none of its faults was injected.
fn try_row(listen: SocketAddr, host: &Host, row: &HostRow) -> Check {
    let mut done = 0;
    for case in (row.trial)()? {
        let name = case.name.clone();
        if try_case(listen, host, case).about(name)? {
            done += 1;
        }
    }
    if done == 0 { skipped("the host did nothing that triggers the fault") } else { Ok(()) }
}

/// Runs one case. Returns whether its fault was injected.
fn try_case(listen: SocketAddr, host: &Host, case: Case) -> Check<bool> {
    let target = FakeTarget::start(listen, Setup::default(), case.fault, case.is_once)?;
    let (address, subsystem) = (target.stage.address, target.stage.subsystem.clone());
    let ended = host.drive(address, &subsystem, case.task)?;
    let stage = Arc::clone(&target.stage);
    // Joins the session threads: the host may end before they have recorded the fault.
    target.end()?;
    if !stage.is_injected() {
        return Ok(false);
    }
    match (case.right, ended) {
        (Right::Fails, Ended::Well) => differs("the host reports success"),
        (Right::Survives, Ended::Failing(why)) => differs(format!("the host does not recover: {why}")),
        _ => Ok(true),
    }
}
