//! What a process uses: time on cores to the nanosecond, and memory of its own.

use std::fs;
use std::io;

use crate::experiment::Error;

/// Time that all threads of a process have spent on a core, ns. Finer than what its `stat` says, which counts in hundredths of
/// a second; threads that have ended are not in it.
pub(crate) fn run_ns(pid: u32) -> Result<u64, Error> {
    let read = || -> io::Result<u64> {
        let mut sum = 0;
        for task in fs::read_dir(format!("/proc/{pid}/task"))? {
            // A thread may end between listing and reading.
            if let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) {
                sum += parse_run_ns(&text).ok_or(io::ErrorKind::InvalidData)?;
            }
        }
        Ok(sum)
    };
    match read() {
        // A kernel that keeps no such account.
        Ok(0) | Err(_) => load::cpu::of_pid(pid)
            .map(|time| time.total_ns())
            .map_err(|error| Error::system("the target's processor time", error)),
        Ok(ns) => Ok(ns),
    }
}

/// First number of `/proc/PID/task/TID/schedstat`.
fn parse_run_ns(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// Memory that a process has for itself, bytes: what it has touched, without programs and files.
pub(crate) fn own_memory_bytes(pid: u32) -> Result<u64, Error> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"));
    let text = text.map_err(|error| Error::system("the target's memory", error))?;
    parse_own_memory_bytes(&text)
        .ok_or_else(|| Error::system("the target's memory", io::ErrorKind::InvalidData.into()))
}

fn parse_own_memory_bytes(text: &str) -> Option<u64> {
    let kib = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    Some((kib("Pss_Anon:")? + kib("Pss_Shmem:")?) * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_and_memory_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_run_ns("3876129 12 7\n"), Some(3_876_129));
        assert_eq!(parse_run_ns(""), None);
        let rollup = "00400000-7ffe [rollup]\nRss:  900 kB\nPss_Anon:            812 kB\nPss_File:  70 kB\nPss_Shmem: 4 kB\n";
        assert_eq!(parse_own_memory_bytes(rollup), Some(816 * 1024));
        assert_eq!(parse_own_memory_bytes("Rss: 900 kB\n"), None);
    }

    #[test]
    fn our_own_are_known() {
        let pid = std::process::id();
        assert!(run_ns(pid).unwrap() > 0);
        assert!(own_memory_bytes(pid).unwrap() > 4096);
    }
}
