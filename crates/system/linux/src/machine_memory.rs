//! The memory of this machine.

use std::fs;

/// All memory that the kernel manages, bytes (`MemTotal` of `/proc/meminfo`); `None` if it cannot be read.
#[must_use]
pub fn machine_memory_bytes() -> Option<u64> {
    parse(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_in_bytes() {
        assert_eq!(parse("MemTotal:       24615104 kB\nMemFree: 1 kB\n"), Some(24_615_104 * 1024));
        assert_eq!(parse("MemFree: 1 kB\n"), None);
        assert!(machine_memory_bytes().is_some_and(|bytes| bytes > 1 << 26));
    }
}
