//! The descriptor limit and table of this process: each connection takes one descriptor.

use std::io;
use std::os::fd::RawFd;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the descriptor limit of this process, and of processes it starts, to the user's maximum, and returns it. The
/// usual limit is for programs that use `select`.
pub fn allow_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let all = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let allowed = if setrlimit(Resource::Nofile, all).is_ok() { limit.maximum } else { limit.current };
    allowed.unwrap_or(u64::MAX)
}

/// Advice to append to `error` if it reports too many descriptors.
pub fn remedy(error: &io::Error) -> Option<String> {
    match Errno::from_io_error(error)? {
        Errno::MFILE => {
            let limit = getrlimit(Resource::Nofile)
                .current
                .map_or_else(|| "any".to_owned(), |limit| limit.to_string());
            Some(format!(
                "; this process may have {limit} files and connections open: raise that (ulimit -n, LimitNOFILE= of a \
                 systemd unit)"
            ))
        }
        Errno::NFILE => {
            Some("; the machine may have no more files open: raise fs.file-max (sysctl)".to_owned())
        }
        _ => None,
    }
}

/// Sizes the kernel's descriptor table for `count` descriptors, as far as they are allowed. Otherwise the table is
/// doubled when it is full, and the accept that needs it stalls for 10 to 40 ms while all cores synchronise.
pub fn reserve_descriptors(count: u64) {
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let Ok(last) = RawFd::try_from(count.min(allowed).saturating_sub(1)) else { return };
    // Optional: without it the table grows on demand.
    let Ok(any) = eventfd(0, EventfdFlags::CLOEXEC) else { return };
    if let Err(error) = rustix::io::fcntl_dupfd_cloexec(&any, last) {
        tracing::debug!(%error, count, "cannot size the descriptor table");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_descriptors_come_with_the_limit_and_how_to_raise_it() {
        let limit = getrlimit(Resource::Nofile).current.map_or("any".to_owned(), |limit| limit.to_string());
        let hint = remedy(&Errno::MFILE.into()).expect("a remedy");
        assert!(hint.contains(&format!("may have {limit} files")) && hint.contains("LimitNOFILE="), "{hint}");
        assert!(remedy(&Errno::NFILE.into()).expect("a remedy").contains("fs.file-max"));
        assert_eq!(remedy(&Errno::PIPE.into()), None);
    }

    #[test]
    fn what_is_allowed_stays_allowed() {
        let count = allow_descriptors();
        assert!(count > 2, "standard streams at least");
        assert_eq!(allow_descriptors(), count);
    }

    #[test]
    fn room_is_made_without_taking_any() {
        let size = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
            line.trim().parse::<u64>().unwrap()
        };
        let count = allow_descriptors().min(4096);
        reserve_descriptors(count);
        assert!(size() >= count, "{} of {count}", size());
    }
}
