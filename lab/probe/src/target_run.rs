//! Runs rows against a target one after the other, with a neighbour beside them.

use std::time::{Duration, Instant};

use peer::finding::{About, Check, Finding, skipped};
use peer::trial;

use crate::finding::RowOutcome;
use crate::neighbour::Neighbour;
use crate::report::{Report, RowResult, ms};
use crate::rows::{self, Listed};
use crate::stillness::Stillness;
use crate::target::{Settings, Target};

/// Interval of health checks after a row.
const RECOVERY_POLL: Duration = Duration::from_millis(100);

/// Time limit for the release of a bad connection's resources.
const RECOVERY_LIMIT: Duration = Duration::from_secs(35);

/// Runs the rows with these names, or all. Calls `on_result` with each result.
pub fn run(settings: Settings, ids: &[String], on_result: &mut dyn FnMut(&RowResult)) -> Check<Report> {
    let peer = Target::new(settings).about("before any row")?;
    let chosen: Vec<_> = rows::all().filter(|listed| listed.words.is_among(ids)).collect();
    let mut results: Vec<Option<RowResult>> = vec![None; chosen.len()];
    let stillness = Stillness::watch();
    std::thread::scope(|scope| {
        let slow: Vec<_> = chosen
            .iter()
            .enumerate()
            .filter(|(_, listed)| listed.row.is_slow)
            .map(|(index, listed)| {
                let (peer, stillness) = (&peer, &stillness);
                (index, scope.spawn(move || try_row(peer, listed, stillness)))
            })
            .collect();
        let mut neighbour = peer.disk().ok().map(|disk| Neighbour::start(&peer, disk));
        for (index, listed) in chosen.iter().enumerate() {
            if listed.row.is_slow {
                continue;
            }
            let result = watched_row(&peer, &mut neighbour, listed, &stillness);
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

/// Runs a row, again if this machine stood still meanwhile, as its times are then meaningless.
fn try_row(peer: &Target, listed: &Listed, stillness: &Stillness) -> RowResult {
    let before = stillness.total();
    let result = try_once(peer, listed);
    let has_failed = !matches!(result.outcome, RowOutcome::Pass | RowOutcome::Skipped);
    if has_failed {
        Stillness::settle();
    }
    if has_failed && stillness.total() > before { try_once(peer, listed) } else { result }
}

/// Runs a row and checks that the target is healthy afterwards.
fn try_once(peer: &Target, listed: &Listed) -> RowResult {
    let Listed { words, row, is_in_clear } = listed;
    let start = Instant::now();
    if *is_in_clear && peer.is_tls_only {
        return RowResult::new(words, start.elapsed())
            .decided(&skipped("the target takes no connection in cleartext"));
    }
    trial::begin(peer.settings.row_limit * if row.is_slow { 4 } else { 1 });
    let check = (row.trial)(peer);
    let notes = trial::end();
    // The target may use its own time to recover.
    trial::begin(RECOVERY_LIMIT + peer.settings.host.patience);
    let check = match check {
        Err(Finding::Skipped(_)) => check,
        check => check.and_then(|()| recover(peer)),
    };
    drop(trial::end());
    RowResult { notes, ..RowResult::new(words, start.elapsed()) }.decided(&check)
}

/// [`try_row`], with a check of the neighbour.
fn watched_row(
    peer: &Target,
    neighbour: &mut Option<Check<Neighbour>>,
    listed: &Listed,
    stillness: &Stillness,
) -> RowResult {
    // Discards earlier pauses, which this row did not cause.
    let _ = neighbour.as_ref().and_then(|neighbour| neighbour.as_ref().ok()).map(Neighbour::report);
    let before = stillness.total();
    let result = try_row(peer, listed, stillness);
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
            // If the whole machine stood still, the pause is not the target's.
            let is_too_long = pause > peer.settings.pause_limit && stillness.total() == before;
            if is_too_long && result.outcome == RowOutcome::Pass {
                let what = format!("a neighbour's I/O paused for {} ms", ms(pause));
                return result.decided(&Err(Finding::Differs(what)));
            }
            result
        }
        Err(finding) => {
            // A new neighbour for the next row.
            *running = match peer.disk() {
                Ok(disk) => Neighbour::start(peer, disk),
                Err(finding) => Err(finding),
            };
            if result.outcome == RowOutcome::Pass { result.decided(&Err(finding)) } else { result }
        }
    }
}

/// Waits until the target is healthy, up to the time limit.
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
