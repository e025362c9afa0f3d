//! Progress of a study.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::rounds::Rounds;

/// Progress before a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Name of the experiment.
    pub experiment: &'a str,
    /// Name of the cell.
    pub cell: &'a str,
    /// Cells of this round that have been measured.
    pub turn: usize,
    /// Cells of a round.
    pub count: usize,
    /// Rounds that are complete.
    pub round: usize,
    /// Number of rounds planned.
    pub rounds: Rounds,
}

impl Step<'_> {
    /// Minimum and maximum number of measurements left.
    fn left(&self) -> (usize, usize) {
        let done = self.round * self.count + self.turn;
        let (min, max) = (self.rounds.min * self.count, self.rounds.max * self.count);
        // Beyond the minimum number of rounds, the current round still ends.
        let min = min.max((self.round + 1) * self.count);
        // Rounds for disturbed cells follow the maximum.
        let max = max.max((self.round + 1) * self.count);
        (min - done, max - done)
    }
}

/// Receiver of progress.
pub trait Progress {
    /// A cell is about to be measured.
    fn on_step(&mut self, step: &Step<'_>);

    /// All measurements are done.
    fn on_end(&mut self) {}
}

/// Shows no progress.
impl Progress for () {
    fn on_step(&mut self, _: &Step<'_>) {}
}

/// Time between two lines of [`Lines`].
const LINE_TIME: Duration = Duration::from_secs(5);

/// Progress as lines of text, for a pipe or a file: one at the beginning, then one every few seconds.
#[derive(Debug)]
pub struct Lines<Output> {
    output: Output,
    start: Instant,
    done: u32,
    next: Instant,
}

impl<Output: Write> Lines<Output> {
    /// Progress of a study that begins now.
    pub fn new(output: Output) -> Self {
        let now = Instant::now();
        Self { output, start: now, done: 0, next: now }
    }
}

impl<Output: Write> Progress for Lines<Output> {
    fn on_step(&mut self, step: &Step<'_>) {
        let now = Instant::now();
        if now >= self.next {
            // A failure to show progress is ignored.
            let _ = writeln!(self.output, "{}", line(step, self.done, self.start.elapsed()));
            self.next = now + LINE_TIME;
        }
        self.done += 1;
    }
}

/// Progress as one line on a terminal.
#[derive(Debug)]
pub struct Terminal {
    start: Instant,
    done: u32,
}

impl Terminal {
    /// Progress of a study that begins now.
    pub fn new() -> Self {
        Self { start: Instant::now(), done: 0 }
    }
}

impl Default for Terminal {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress for Terminal {
    fn on_step(&mut self, step: &Step<'_>) {
        let line = line(step, self.done, self.start.elapsed());
        let line = load::terminal::fitted(&line);
        self.done += 1;
        let mut screen = std::io::stderr().lock();
        // A failure to show progress is ignored.
        let _ = write!(screen, "\r\x1b[K{line}");
        let _ = screen.flush();
    }

    fn on_end(&mut self) {
        eprint!("\r\x1b[K");
    }
}

/// The line shown after `done` measurements that took `elapsed` in total.
fn line(step: &Step<'_>, done: u32, elapsed: Duration) -> String {
    let Step { experiment, cell, turn, count, round, rounds } = step;
    let of = if *round >= rounds.max {
        format!("beyond {}, for what was disturbed or has no verdict", rounds.max)
    } else if rounds.min == rounds.max {
        format!("of {}", rounds.max)
    } else {
        format!("of {} to {}", rounds.min, rounds.max)
    };
    let left = if done == 0 {
        String::new()
    } else {
        let each = elapsed / done;
        let time = |measurements: usize| each * u32::try_from(measurements).unwrap_or(u32::MAX);
        let (min, max) = step.left();
        if min == max {
            format!("  {} left", clock(time(min)))
        } else {
            format!("  {} to {} left", clock(time(min)), clock(time(max)))
        }
    };
    format!("{experiment}  round {} {of}  cell {} of {count}: {cell}{left}", round + 1, turn + 1)
}

/// Minutes and seconds.
pub(crate) fn clock(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(round: usize, turn: usize, rounds: Rounds) -> Step<'static> {
        Step { experiment: "ceiling", cell: "read qd1", turn, count: 4, round, rounds }
    }

    #[test]
    fn a_pipe_gets_a_line_at_once_and_then_one_now_and_then() {
        let mut progress = Lines::new(Vec::new());
        for turn in 0..4 {
            progress.on_step(&step(0, turn, Rounds::exactly(3)));
        }
        progress.next = Instant::now();
        progress.on_step(&step(1, 0, Rounds::exactly(3)));
        progress.on_end();
        let text = String::from_utf8(progress.output).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert_eq!(lines[0], "ceiling  round 1 of 3  cell 1 of 4: read qd1");
        assert!(lines[1].starts_with("ceiling  round 2 of 3  cell 1 of 4: read qd1  0:00 left"), "{text}");
        assert!(!text.contains(['\r', '\x1b']));
    }

    #[test]
    fn the_time_left_is_told_once_it_can_be_known() {
        let shown = |step: Step<'_>, done, seconds| line(&step, done, Duration::from_secs(seconds));
        assert_eq!(
            shown(step(0, 0, Rounds::USUAL), 0, 0),
            "ceiling  round 1 of 3 to 9  cell 1 of 4: read qd1"
        );
        assert_eq!(
            shown(step(1, 2, Rounds::USUAL), 6, 60),
            "ceiling  round 2 of 3 to 9  cell 3 of 4: read qd1  1:00 to 5:00 left"
        );
        assert_eq!(
            shown(step(4, 0, Rounds::USUAL), 16, 160),
            "ceiling  round 5 of 3 to 9  cell 1 of 4: read qd1  0:40 to 3:20 left"
        );
        assert_eq!(
            shown(step(3, 1, Rounds::exactly(3)), 13, 130),
            "ceiling  round 4 beyond 3, for what was disturbed or has no verdict  cell 2 of 4: read qd1  0:30 left"
        );
        assert_eq!(
            shown(step(2, 3, Rounds::exactly(3)), 11, 110),
            "ceiling  round 3 of 3  cell 4 of 4: read qd1  0:10 left"
        );
    }
}
