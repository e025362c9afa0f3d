//! Processor time, to the nanosecond, and private memory of a process.

use std::fs;
use std::io;

use crate::error::{Doing, Error};

/// Processes of this machine with one of these names.
pub(crate) fn named(names: &[&str]) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let found = processes.filter_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(process.path().join("comm")).ok()?;
        names.contains(&name.trim_end()).then_some(pid)
    });
    found.collect()
}

/// Processor time of all live threads of a process, ns. `/proc/PID/stat` counts in hundredths of a second, but includes
/// threads that have ended.
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
        // A kernel without schedstat.
        Ok(0) | Err(_) => {
            load::cpu::of_pid(pid).map(|time| time.total_ns()).doing("the target's processor time")
        }
        Ok(ns) => Ok(ns),
    }
}

/// First number of `/proc/PID/task/TID/schedstat`.
fn parse_run_ns(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// Number of times that the threads of a process have given up a processor, by themselves or not.
pub(crate) fn context_switches(pid: u32) -> Result<u64, Error> {
    let read = || -> io::Result<u64> {
        let mut sum = 0;
        for task in fs::read_dir(format!("/proc/{pid}/task"))? {
            // A thread may end between listing and reading.
            if let Ok(text) = fs::read_to_string(task?.path().join("status")) {
                sum += parse_context_switches(&text);
            }
        }
        Ok(sum)
    };
    read().doing("the target's context switches")
}

fn parse_context_switches(text: &str) -> u64 {
    let counts = text.lines().filter_map(|line| line.split_once("ctxt_switches:"));
    counts.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum()
}

/// Private memory of a process, bytes: touched pages, without programs and files.
pub(crate) fn own_memory_bytes(pid: u32) -> Result<u64, Error> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).doing("the target's memory")?;
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

/// Memory of a process in mappings of less than 1 GiB, bytes: of a target with a large RAM namespace, everything but
/// the namespace.
pub(crate) fn small_mappings_bytes(pid: u32) -> Result<u64, Error> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).doing("the target's memory")?;
    Ok(parse_small_mappings_bytes(&text))
}

fn parse_small_mappings_bytes(text: &str) -> u64 {
    let kib =
        |line: &str, name| line.strip_prefix(name)?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok();
    let (mut sum, mut size) = (0, 0);
    for line in text.lines() {
        if let Some(of) = kib(line, "Size:") {
            size = of;
        }
        if let Some(resident) = kib(line, "Rss:").filter(|_| size < 1 << 20) {
            sum += resident;
        }
    }
    sum * 1024
}

/// Memory available to new programs (`MemAvailable`), bytes.
pub(crate) fn available_bytes() -> Result<u64, Error> {
    let text = fs::read_to_string("/proc/meminfo").doing("free memory")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB"));
    let kib = line.and_then(|kib| kib.trim().parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| Error::system("free memory", io::ErrorKind::InvalidData.into()))
}

/// Packets received by busy polling so far, in the network namespace of a process.
pub(crate) fn busy_polled_packets(pid: u32) -> Option<u64> {
    parse_counter(&fs::read_to_string(format!("/proc/{pid}/net/netstat")).ok()?, "BusyPollRxPackets")
}

/// One counter of `/proc/net/netstat`: a line of names, then a line of numbers.
fn parse_counter(text: &str, name: &str) -> Option<u64> {
    let lines: Vec<&str> = text.lines().collect();
    lines.chunks_exact(2).find_map(|pair| {
        let index = pair[0].split_ascii_whitespace().position(|word| word == name)?;
        pair[1].split_ascii_whitespace().nth(index)?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found_by_its_name() {
        let name = fs::read_to_string("/proc/self/comm").expect("it has one");
        assert!(named(&["another", name.trim_end()]).contains(&std::process::id()));
        assert!(named(&["no such program"]).is_empty());
    }

    #[test]
    fn time_and_memory_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_run_ns("3876129 12 7\n"), Some(3_876_129));
        assert_eq!(parse_run_ns(""), None);
        let status = "Name:\tnvlane\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n";
        assert_eq!(parse_context_switches(status), 695);
        let rollup = "00400000-7ffe [rollup]\nRss:  900 kB\nPss_Anon:            812 kB\nPss_File:  70 kB\nPss_Shmem: 4 kB\n";
        assert_eq!(parse_own_memory_bytes(rollup), Some(816 * 1024));
        assert_eq!(parse_own_memory_bytes("Rss: 900 kB\n"), None);
    }

    #[test]
    fn mappings_of_a_namespace_are_told_from_others() {
        let smaps = "7f00-7f01 rw-p 00000000 00:00 0\nSize:  9437184 kB\nRss:  4000000 kB\n\
                     7f02-7f03 rw-p 00000000 00:00 0\nSize: 65536 kB\nRss: 70 kB\nPss: 70 kB\n";
        assert_eq!(parse_small_mappings_bytes(smaps), 70 << 10);
    }

    #[test]
    fn our_own_are_known() {
        let pid = std::process::id();
        assert!(small_mappings_bytes(pid).unwrap() > 4096 && available_bytes().unwrap() > 4096);
        assert!(run_ns(pid).unwrap() > 0);
        assert!(own_memory_bytes(pid).unwrap() > 4096);
    }

    #[test]
    fn a_counter_is_found_below_its_name() {
        let text = "TcpExt: SyncookiesSent BusyPollRxPackets\nTcpExt: 3 71\nIpExt: InNoRoutes\nIpExt: 9\n";
        assert_eq!(parse_counter(text, "BusyPollRxPackets"), Some(71));
        assert_eq!(parse_counter(text, "InNoRoutes"), Some(9));
        assert_eq!(parse_counter(text, "None"), None);
    }
}
