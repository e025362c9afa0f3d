//! Progress line on a terminal while a load runs, once a second. Ctrl-C ends the load, not the report.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use command_line::signals::EndOnSignal;
use load::report::{Sample, text};
use load::runner::Observer;
use load::terminal;
use load::workload::{Workload, format_bytes};

/// Progress of a run, shown if standard error is a terminal.
#[derive(Debug)]
pub(crate) struct Live {
    is_seen: bool,
    stops: Arc<AtomicBool>,
    _handlers: Option<EndOnSignal>,
    total_s: Option<u64>,
    /// Whether a line is on the screen that the next one replaces.
    is_within_line: bool,
}

impl Live {
    pub(crate) fn new(workload: &Workload) -> anyhow::Result<Self> {
        let stops = Arc::new(AtomicBool::new(false));
        let handlers = EndOnSignal::new(&stops)?;
        let mut live = Self::ended_by(stops, workload);
        live._handlers = Some(handlers);
        Ok(live)
    }

    /// For one of several loads that end together.
    pub(crate) fn ended_by(stops: Arc<AtomicBool>, workload: &Workload) -> Self {
        Self {
            is_seen: std::io::stderr().is_terminal(),
            _handlers: None,
            stops,
            total_s: workload.stop.runtime.map(|runtime| runtime.as_secs()),
            is_within_line: false,
        }
    }

    /// Clears the line.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.is_within_line) {
            // The terminal may be gone.
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    fn show(&mut self, line: &str) {
        let line = terminal::fitted(line);
        let mut screen = std::io::stderr().lock();
        // A failure to show progress is ignored.
        let _ = write!(screen, "\r\x1b[K{line}");
        let _ = screen.flush();
        self.is_within_line = true;
    }
}

impl Observer for Live {
    fn on_fill(&mut self, done_bytes: u64, total_bytes: u64) {
        if self.is_seen {
            let percent = done_bytes * 100 / total_bytes.max(1);
            let (done, total) = (format_bytes(done_bytes & !0xF_FFFF), format_bytes(total_bytes));
            self.show(&format!("filling: {percent} % ({done} of {total})"));
        }
    }

    fn on_sample(&mut self, sample: &Sample) {
        if self.is_seen {
            let of = self.total_s.map_or_else(String::new, |total_s| format!("/{total_s}"));
            self.show(&text::live_line(sample, &of));
        }
    }

    fn stops(&mut self) -> bool {
        self.stops.load(Ordering::Relaxed)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.clear();
    }
}
