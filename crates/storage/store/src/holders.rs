//! Processes that hold a file, device or socket: whether they live, and their names.
//!
//! A process that was killed holds its files and sockets until the kernel has completed its I/O. With io_uring that may
//! end after the process itself: then something is held, and no process has it.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Link of the first process namespace of the machine: from there all processes are seen.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// `PF_EXITING` in the flags of /proc/PID/stat.
const EXITING: u32 = 0x4;

/// The bit of SIGKILL in sets of signals.
const KILL: u64 = 1 << 8;

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// Its command, as the kernel keeps it: at most 15 bytes.
    pub name: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {})", self.name.escape_debug(), self.pid)
    }
}

/// The holder of a file, device or socket in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// A process that lives.
    By(Holder),
    /// A process that is being killed.
    ByDying(Holder),
    /// No process that can be seen from here.
    Unseen {
        /// Whether all processes of the machine can be seen from here.
        sees_all: bool,
    },
}

/// The process that has locked a file, or has it open for writing. May read much of /proc.
#[must_use]
pub fn of_file(path: &Path) -> Held {
    let lockers = std::fs::metadata(path).map_or_else(|_| Vec::new(), |metadata| lockers(metadata.ino()));
    most_alive(lockers.into_iter().chain(openers(path, true)), is_in_first_namespace())
}

/// The process that has a descriptor with this link, such as `socket:[123]`. May read much of /proc.
#[must_use]
pub fn of_link(link: &str) -> Held {
    let sees_all = is_in_first_namespace() && rustix::process::geteuid().is_root();
    most_alive(openers(Path::new(link), false), sees_all)
}

/// The other processes that live and have a file open for writing.
#[must_use]
pub fn writers(path: &Path) -> Vec<Holder> {
    let living = openers(path, true).filter(|pid| *pid != std::process::id() && !is_dying(*pid));
    living.map(named).collect()
}

/// Signals that wait for a process: those that are blocked, and SIGKILL until it has ended; a bit each, from signal 1.
#[must_use]
pub fn pending_signals(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let sets = text.lines().filter_map(|line| line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:")));
    sets.filter_map(|set| u64::from_str_radix(set.trim(), 16).ok()).fold(0, |all, set| all | set)
}

/// The first living process, else a dying one. `sees_all`: whether `pids` can include every process.
fn most_alive(pids: impl Iterator<Item = u32>, sees_all: bool) -> Held {
    let mut dying = None;
    for pid in pids {
        if !is_dying(pid) {
            return Held::By(named(pid));
        }
        dying = dying.or_else(|| Some(named(pid)));
    }
    dying.map_or(Held::Unseen { sees_all }, Held::ByDying)
}

/// Whether this process is in the first process namespace: in tables of the kernel it sees all processes.
fn is_in_first_namespace() -> bool {
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link == Path::new(FIRST_PID_NAMESPACE))
}

fn named(pid: u32) -> Holder {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    Holder {
        pid,
        name: name.map_or_else(|_| "a program of another user".to_owned(), |name| name.trim_end().to_owned()),
    }
}

/// Whether a process has ended, or will end in any case.
fn is_dying(pid: u32) -> bool {
    // A process that exists and cannot be seen belongs to another user.
    let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return !exists(pid) };
    // The name in brackets may contain anything, brackets too. State and flags are the first and the seventh after it.
    let Some((_, fields)) = text.rsplit_once(')') else { return true };
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let is_gone = matches!(fields.first(), Some(&("Z" | "X" | "x")));
    let flags = fields.get(6).and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
    is_gone || flags & EXITING != 0 || pending_signals(pid) & KILL != 0
}

/// Whether there is a process of this number, visible to this process or not.
fn exists(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::getpriority_process(Some(pid)) != Err(rustix::io::Errno::SRCH))
}

/// Processes with a flock on a file of this number, on whichever file system.
fn lockers(inode: u64) -> Vec<u32> {
    // "1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF", with "->" in front of waiters.
    let text = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let locker = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        (words.next()? == "FLOCK").then_some(())?;
        let pid = words.nth(2)?.parse().ok()?;
        let place = words.next()?.rsplit_once(':')?.1.parse::<u64>().ok()?;
        // The lock of a process that has ended names it still.
        (place == inode && exists(pid)).then_some(pid)
    };
    text.lines().filter_map(locker).collect()
}

/// Processes with a descriptor that leads to `path`; `writing`: that can be written. Only those whose descriptors this
/// process may see.
fn openers(path: &Path, writing: bool) -> impl Iterator<Item = u32> {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(move |pid| {
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut leading =
            descriptors.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|link| link == path));
        leading.any(|entry| !writing || is_writable(*pid, &entry.file_name().to_string_lossy()))
    })
}

fn is_writable(pid: u32, descriptor: &str) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}")).unwrap_or_default();
    let flags =
        text.lines().find_map(|line| u32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
    // O_WRONLY is 1, O_RDWR is 2.
    flags.is_some_and(|flags| flags & 3 != 0)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// A process that has a file open for writing, with a lock if `command` says so.
    fn holder(command: &str, path: &Path) -> std::process::Child {
        let script = format!("exec 9>>\"$1\"; {command} echo; exec sleep 60");
        let mut child =
            Command::new("sh").args(["-c", &script, "sh"]).arg(path).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said).unwrap();
        child
    }

    #[test]
    fn a_process_that_has_a_file_is_found_and_so_is_its_end() {
        let file = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        assert!(matches!(of_file(&file), Held::Unseen { .. }));
        for command in ["", "flock 9;"] {
            let mut child = holder(command, &file);
            let found = Held::By(Holder { pid: child.id(), name: "sleep".into() });
            let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
            // The shell may not have become sleep yet.
            while of_file(&file) != found && std::time::Instant::now() < until {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            assert_eq!(of_file(&file), found);
            assert_eq!(writers(&file).len(), 1);
            child.kill().unwrap();
            // A zombie has nothing open any more, and nothing is to be waited for.
            while matches!(of_file(&file), Held::ByDying(_)) {}
            assert!(matches!(of_file(&file), Held::Unseen { .. }));
            assert!(writers(&file).is_empty() && is_dying(child.id()));
            child.wait().unwrap();
        }
        let own = std::fs::File::options().append(true).open(&file).unwrap();
        assert!(matches!(of_file(&file), Held::By(holder) if holder.pid == std::process::id()));
        assert!(writers(&file).is_empty(), "its own do not count");
        drop(own);
    }

    #[test]
    fn a_blocked_signal_is_seen() {
        assert_eq!(pending_signals(std::process::id()) & KILL, 0);
        assert_eq!(pending_signals(0), 0);
    }
}
