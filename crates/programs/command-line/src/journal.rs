//! Standard error that is systemd's journal: each line begins with its priority, which the journal reads and removes
//! (sd-daemon(3)).

use std::io::stderr;
use std::sync::LazyLock;

use rustix::fs::{Stat, fstat};
use tracing::Level;

/// Names the journal's socket, by device and inode.
const VARIABLE: &str = "JOURNAL_STREAM";

static IS_STDERR: LazyLock<bool> = LazyLock::new(|| {
    let stream = std::env::var(VARIABLE).unwrap_or_default();
    fstat(stderr()).is_ok_and(|stat| is_named(&stream, &stat))
});

/// Whether standard error is the journal. The variable alone does not say so: child processes inherit it.
pub(crate) fn is_stderr() -> bool {
    *IS_STDERR
}

fn is_named(stream: &str, stat: &Stat) -> bool {
    stream == format!("{}:{}", stat.st_dev, stat.st_ino)
}

/// The prefix of a line of this level; empty outside of the journal.
pub(crate) fn prefix(level: Level) -> &'static str {
    if is_stderr() { priority(level) } else { "" }
}

fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_is_known_by_device_and_inode() {
        let stat = rustix::fs::stat("/proc/self").unwrap();
        let (device, inode) = (stat.st_dev, stat.st_ino);
        assert!(is_named(&format!("{device}:{inode}"), &stat));
        for other in [String::new(), format!("{device}:{}", inode + 1), format!("{device}"), "x:y".to_owned()]
        {
            assert!(!is_named(&other, &stat), "{other}");
        }
    }
}
