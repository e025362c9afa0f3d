//! Runs rows against a target, one after the other, with a neighbour beside them.

use std::time::{Duration, Instant};

use peer::finding::{About, Check, Finding};
use peer::trial;

use crate::finding::Outcome;
use crate::neighbour::Neighbour;
use crate::report::{Report, RowResult, ms};
use crate::row::{Row, Section};
use crate::rows;
use crate::stillness::Stillness;
use crate::target::{Settings, Target};

/// How often a target that has just been hurt is asked whether it is healthy again.
const RECOVERY_POLL: Duration = Duration::from_millis(100);

/// By when all resources of a bad connection are back.
const RECOVERY_LIMIT: Duration = Duration::from_secs(35);

/// Runs the rows with these names, or all. `on_result` hears of each as it is decided.
///
/// # Errors
/// The target cannot be used before anything hostile is sent.
pub fn run(settings: Settings, ids: &[String], on_result: &mut dyn FnMut(&RowResult)) -> Check<Report> {
    let peer = Target::new(settings).about("before any row")?;
    let wanted = |row: &Row| ids.is_empty() || ids.iter().any(|id| id.eq_ignore_ascii_case(row.id));
    let chosen: Vec<_> = rows::all().filter(|(_, row)| wanted(row)).collect();
    let mut results: Vec<Option<RowResult>> = vec![None; chosen.len()];
    let stillness = Stillness::watch();
    std::thread::scope(|scope| {
        let slow: Vec<_> = chosen
            .iter()
            .enumerate()
            .filter(|(_, (_, row))| row.is_slow)
            .map(|(index, (section, row))| {
                let (peer, stillness) = (&peer, &stillness);
                (index, scope.spawn(move || try_row(peer, section, row, stillness)))
            })
            .collect();
        let mut neighbour = peer.disk().ok().map(|disk| Neighbour::start(&peer, disk));
        for (index, (section, row)) in chosen.iter().enumerate() {
            if row.is_slow {
                continue;
            }
            let result = watched_row(&peer, &mut neighbour, section, row, &stillness);
            on_result(&result);
            results[index] = Some(result);
        }
        for (index, thread) in slow {
            let result = thread.join().expect("a row does not panic");
            on_result(&result);
            results[index] = Some(result);
        }
    });
    let mut report = Report { peer: peer.settings.host.address.to_string(), rows: Vec::new() };
    report.rows.extend(results.into_iter().flatten());
    Ok(report)
}

/// Tries a row; once more if this machine stood still meanwhile, as then nothing follows from a time that has passed.
fn try_row(peer: &Target, section: &Section, row: &Row, stillness: &Stillness) -> RowResult {
    let before = stillness.total();
    let result = try_once(peer, section, row);
    let has_failed = !matches!(result.outcome, Outcome::Pass | Outcome::Skipped);
    if has_failed {
        Stillness::settle();
    }
    if has_failed && stillness.total() > before { try_once(peer, section, row) } else { result }
}

/// Tries a row, and whether the target is as it was afterwards.
fn try_once(peer: &Target, section: &Section, row: &Row) -> RowResult {
    let start = Instant::now();
    trial::begin(peer.settings.row_limit * if row.is_slow { 4 } else { 1 });
    let check = (row.check)(peer);
    let notes = trial::end();
    // The target has time of its own to recover.
    trial::begin(RECOVERY_LIMIT + peer.settings.host.patience);
    let check = match check {
        Err(Finding::Skipped(_)) => check,
        check => check.and_then(|()| recover(peer)),
    };
    drop(trial::end());
    let result = RowResult {
        id: row.id.into(),
        section: format!("{} {}", section.number, section.title),
        sent: row.sent.into(),
        right: row.right.into(),
        judgement: row.judgement.map(Into::into),
        outcome: Outcome::Pass,
        finding: None,
        notes,
        elapsed_ms: ms(start.elapsed()),
        neighbour_pause_ms: None,
    };
    result.decided(&check)
}

/// The same, with an eye on the neighbour.
fn watched_row(
    peer: &Target,
    neighbour: &mut Option<Check<Neighbour>>,
    section: &Section,
    row: &Row,
    stillness: &Stillness,
) -> RowResult {
    // What happened before is not this row's doing.
    let _ = neighbour.as_ref().and_then(|neighbour| neighbour.as_ref().ok()).map(Neighbour::report);
    let before = stillness.total();
    let result = try_row(peer, section, row, stillness);
    let Some(running) = neighbour else { return result };
    let pause = match running {
        Ok(running) => running.report(),
        Err(finding) => Err(finding.clone()),
    };
    match pause {
        Ok(pause) => {
            let result = RowResult { neighbour_pause_ms: Some(ms(pause)), ..result };
            if pause > peer.settings.pause_limit {
                Stillness::settle();
            }
            // What stands still with the whole machine is not the target.
            let is_too_long = pause > peer.settings.pause_limit && stillness.total() == before;
            if is_too_long && result.outcome == Outcome::Pass {
                let what = format!("a neighbour's I/O paused for {} ms", ms(pause));
                return result.decided(&Err(Finding::Differs(what)));
            }
            result
        }
        Err(finding) => {
            // A new one for the next row.
            *running = match peer.disk() {
                Ok(disk) => Neighbour::start(peer, disk),
                Err(finding) => Err(finding),
            };
            if result.outcome == Outcome::Pass { result.decided(&Err(finding)) } else { result }
        }
    }
}

/// The target must be healthy again in time.
fn recover(peer: &Target) -> Check {
    let start = Instant::now();
    loop {
        match peer.check_healthy() {
            Ok(()) => return Ok(()),
            Err(Finding::Differs(_)) if start.elapsed() < RECOVERY_LIMIT => {
                std::thread::sleep(RECOVERY_POLL);
            }
            Err(finding) => return Err(finding.about("a new association afterwards")),
        }
    }
}
