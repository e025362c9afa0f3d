//! The writer of the audit log: takes events from the queue and appends lines to the file.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use super::file::open;
use super::line::{self, Line};
use super::queue::{Destination, Omitted, Queue, Work};

/// Interval between two lines that count omitted ones, between two attempts to open the file, and between two errors
/// in the target's own log.
const INTERVAL: Duration = Duration::from_secs(10);

/// Writes until the queue is closed.
pub(super) fn run(queue: &Queue) {
    // Signals belong to other threads.
    linux::block_signals();
    let mut output = Output::default();
    let mut told = Omitted::default();
    let mut summary_at = Instant::now();
    loop {
        let Work { events, mut destinations, omitted, is_last } = queue.wait(told, summary_at);
        // Events that were recorded before the log was ended have lines, too.
        let end = destinations.pop_if(|last| matches!(last, Destination::None));
        destinations.into_iter().for_each(|destination| output.replace(destination));
        let mut lines = Lines::default();
        for (time, event) in &events {
            lines.add(*time, event.name(), |line| event.write(line));
        }
        let (written, error) = output.write(&lines);
        // An event of the same batch may have been lost.
        let lost = lines.count() - written;
        queue.count(written as u64, lost as u64, error.as_deref());
        let omitted = Omitted { not_written: omitted.not_written + lost as u64, ..omitted };
        if omitted != told && (is_last || Instant::now() >= summary_at) {
            let mut summary = Lines::default();
            // Counted since the previous line of this kind.
            let since = omitted.since(told);
            summary.add(SystemTime::now(), "lines_omitted", |line| since.write(line));
            let (written, error) = output.write(&summary);
            queue.count(written as u64, 0, error.as_deref());
            if written > 0 {
                told = omitted;
            }
            summary_at = Instant::now() + INTERVAL;
        }
        end.into_iter().for_each(|destination| output.replace(destination));
        if is_last {
            return queue.end();
        }
    }
}

/// Lines to write in one call.
#[derive(Default)]
struct Lines {
    text: Vec<u8>,
    /// The end of each line in the text.
    ends: Vec<usize>,
}

impl Lines {
    fn add(&mut self, time: SystemTime, event: &str, fields: impl FnOnce(&mut Line<'_>)) {
        line::append(&mut self.text, time, event, fields);
        self.ends.push(self.text.len());
    }

    fn count(&self) -> usize {
        self.ends.len()
    }
}

/// The file, as far as it is open.
#[derive(Default)]
struct Output {
    path: Option<PathBuf>,
    file: Option<File>,
    /// The last line was cut off: the next one begins behind a line feed.
    is_torn: bool,
    open_at: Option<Instant>,
    /// When an error was last logged; `None` if the last write succeeded.
    failing_since: Option<Instant>,
}

impl Output {
    fn replace(&mut self, destination: Destination) {
        *self = match destination {
            Destination::None => Self::default(),
            Destination::File { path, file } => {
                // The file may be the same, with its line that was cut off.
                let is_torn = self.is_torn && self.path.as_ref() == Some(&path);
                let open_at = file.is_none().then(|| Instant::now() + INTERVAL);
                Self { path: Some(path), file, is_torn, open_at, failing_since: self.failing_since }
            }
        };
    }

    /// Writes lines. Returns how many were written, and why not all of them were.
    fn write(&mut self, lines: &Lines) -> (usize, Option<String>) {
        if lines.ends.is_empty() || self.path.is_none() {
            return (0, None);
        }
        let (written, result) = match self.opened() {
            Ok(()) => self.append(lines),
            Err(error) => (0, Err(error)),
        };
        let error = match result {
            Ok(()) => {
                if self.failing_since.take().is_some() {
                    tracing::info!("audit log writable again");
                }
                None
            }
            Err(error) => {
                self.log(&error);
                Some(error.to_string())
            }
        };
        (written, error)
    }

    /// Opens the file if it is not open, once in an interval.
    fn opened(&mut self) -> io::Result<()> {
        let (None, Some(path)) = (&self.file, &self.path) else { return Ok(()) };
        let now = Instant::now();
        if self.open_at.is_some_and(|open_at| now < open_at) {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "the file is not open"));
        }
        self.open_at = Some(now + INTERVAL);
        self.file = Some(open(path)?);
        Ok(())
    }

    fn append(&mut self, lines: &Lines) -> (usize, io::Result<()>) {
        let Some(file) = &mut self.file else { return (0, Ok(())) };
        if self.is_torn
            && let Err(error) = file.write_all(b"\n")
        {
            return (0, Err(error));
        }
        let (bytes, result) = write_as_far_as_possible(file, &lines.text);
        let written = lines.ends.iter().take_while(|end| **end <= bytes).count();
        self.is_torn = bytes != written.checked_sub(1).map_or(0, |last| lines.ends[last]);
        (written, result)
    }

    /// Logs an error, not more often than once in an interval.
    fn log(&mut self, error: &io::Error) {
        let now = Instant::now();
        if self.failing_since.is_some_and(|since| now < since + INTERVAL) {
            return;
        }
        self.failing_since = Some(now);
        let path = self.path.as_deref().map(|path| path.display().to_string()).unwrap_or_default();
        tracing::error!(%error, path, "cannot write the audit log: lines are dropped and counted");
    }
}

/// Writes bytes, and returns how many were written.
fn write_as_far_as_possible(file: &mut impl Write, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, Ok(()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn lines(count: usize) -> Lines {
        let mut lines = Lines::default();
        (0..count).for_each(|_| lines.add(SystemTime::now(), "started", |line| line.text("version", "1")));
        lines
    }

    fn output(path: &Path) -> Output {
        let mut output = Output::default();
        output.replace(Destination::File { path: path.to_owned(), file: open(path).ok() });
        output
    }

    /// Takes a number of bytes, then no more.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.0);
            self.0 -= taken;
            if taken == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(taken) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_was_written_before_the_storage_was_full_is_counted() {
        let lines = lines(3);
        for room in 0..lines.text.len() {
            let (written, result) = write_as_far_as_possible(&mut Full(room), &lines.text);
            assert_eq!((written, result.is_err()), (room, true));
        }
    }

    #[test]
    fn storage_that_is_full_loses_lines_and_says_why() {
        let (written, error) = output(Path::new("/dev/full")).write(&lines(3));
        assert_eq!(written, 0);
        assert!(error.expect("an error").contains("No space left"));
    }

    #[test]
    fn a_line_behind_one_that_was_cut_off_is_whole() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("audit");
        std::fs::write(&path, "{\"time\":\"20").expect("written");
        let mut output = output(&path);
        output.is_torn = true;
        assert_eq!(output.write(&lines(1)), (1, None));
        assert!(!output.is_torn);
        let text = std::fs::read_to_string(&path).expect("a file");
        let last = text.lines().last().expect("a line");
        assert!(serde_json::from_str::<serde_json::Value>(last).is_ok(), "{text}");
    }

    #[test]
    fn a_file_that_could_not_be_opened_is_tried_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("new/audit");
        let mut output = output(&path);
        assert_eq!(output.write(&lines(2)).0, 0, "not yet");
        std::fs::create_dir(path.parent().expect("a directory")).expect("made");
        output.open_at = Some(Instant::now());
        assert_eq!(output.write(&lines(2)), (2, None));
    }
}
