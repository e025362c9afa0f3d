//! Cores: the list of those this process may use, and pinning a thread to one.

use std::io;

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A list of cores as users write it: `0,2-5`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreList(Vec<usize>);

/// The error in a core list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoreListError {
    /// Neither a number nor a range.
    #[error("\"{0}\" is not a core number or range: write cores as 0,2-5")]
    Syntax(String),
    /// A range that runs backwards.
    #[error("the range {0}-{1} runs backwards")]
    Backwards(usize, usize),
    /// A core number that the kernel cannot name.
    #[error("core {0} is beyond the {1} that a thread can be pinned to")]
    TooLarge(usize, usize),
}

impl CoreList {
    /// The cores this process may run on.
    ///
    /// # Errors
    /// If the kernel does not report them.
    pub fn allowed() -> io::Result<Self> {
        let set = sched_getaffinity(None)?;
        Ok(Self((0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()))
    }

    /// The cores, in the order they were written, each once.
    #[must_use]
    pub fn cores(&self) -> &[usize] {
        &self.0
    }
}

impl std::str::FromStr for CoreList {
    type Err = CoreListError;

    fn from_str(text: &str) -> Result<Self, CoreListError> {
        let number = |part: &str| {
            let core: usize = part.trim().parse().map_err(|_| CoreListError::Syntax(text.into()))?;
            if core >= CpuSet::MAX_CPU {
                return Err(CoreListError::TooLarge(core, CpuSet::MAX_CPU));
            }
            Ok(core)
        };
        let mut cores = Vec::new();
        for part in text.split(',') {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if first > last {
                return Err(CoreListError::Backwards(first, last));
            }
            for core in first..=last {
                if !cores.contains(&core) {
                    cores.push(core);
                }
            }
        }
        Ok(Self(cores))
    }
}

impl std::fmt::Display for CoreList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, core) in self.0.iter().enumerate() {
            write!(f, "{}{core}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// Pins the calling thread to `core`.
///
/// # Errors
/// If the core does not exist or is not available to this process.
pub fn pin(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).map_err(|error| match (error, CoreList::allowed()) {
        (Errno::INVAL, Ok(now)) => io::Error::new(io::ErrorKind::InvalidInput, NoSuchCore { core, now }),
        (error, _) => error.into(),
    })
}

/// The error for a core that does not exist or is not available.
#[derive(Debug, thiserror::Error)]
#[error("there is no core {core} for this process, which runs on {now}")]
struct NoSuchCore {
    core: usize,
    now: CoreList,
}

/// Unpins the calling thread: it may run on all cores of its NUMA node that the process may use. Memory that it touches
/// first is on that node.
///
/// # Errors
/// If the kernel does not report the node; nothing has changed then.
pub fn spread_over_node() -> io::Result<()> {
    let own = CoreList::allowed()?;
    let Some(&core) = own.cores().first() else { return Err(io::ErrorKind::NotFound.into()) };
    let process = sched_getaffinity(Some(rustix::process::getpid()))?;
    let near = cores_near(core)?;
    let mut set = CpuSet::new();
    let wanted = near.cores().iter().filter(|&&core| process.is_set(core)).chain(own.cores());
    wanted.for_each(|&core| set.set(core));
    Ok(sched_setaffinity(None, &set)?)
}

/// The cores of one NUMA node.
fn cores_near(core: usize) -> io::Result<CoreList> {
    for entry in std::fs::read_dir(format!("/sys/devices/system/cpu/cpu{core}"))? {
        let name = entry?.file_name();
        let Some(node) = name.to_str().and_then(|name| name.strip_prefix("node")) else { continue };
        let list = std::fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist"))?;
        return list.trim().parse().map_err(io::Error::other);
    }
    // A kernel without nodes: all memory is equally close.
    CoreList::allowed()
}

/// Lowers the priority of the calling thread, and of threads that it starts, to about a tenth of a contended core.
///
/// # Errors
/// If the kernel does not allow it.
pub fn lower_priority() -> io::Result<()> {
    // On Linux this is the calling thread's.
    rustix::process::nice(10)?;
    Ok(())
}

/// Gives the calling thread, and threads that it starts, idle priority. There may be no way back.
///
/// # Errors
/// If the kernel does not allow it.
pub fn step_back() -> io::Result<()> {
    // SAFETY: all zeroes is a valid `sched_param`, and the only one for this policy.
    let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel only reads the parameters, which live until it returns.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_lists_read_as_users_write_them() {
        let list: CoreList = "0,2-4,3".parse().unwrap();
        assert_eq!(list.cores(), [0, 2, 3, 4]);
        assert_eq!(list.to_string(), "0,2,3,4");
        assert_eq!("4-2".parse::<CoreList>(), Err(CoreListError::Backwards(4, 2)));
        assert!(matches!("".parse::<CoreList>(), Err(CoreListError::Syntax(_))));
        assert!(matches!("0;1".parse::<CoreList>(), Err(CoreListError::Syntax(_))));
        assert!(matches!("99999".parse::<CoreList>(), Err(CoreListError::TooLarge(..))));
    }

    #[test]
    fn a_thread_can_be_tied_to_an_allowed_core() {
        let core = CoreList::allowed().unwrap().cores()[0];
        std::thread::spawn(move || {
            pin(core).unwrap();
            assert_eq!(CoreList::allowed().unwrap().cores(), [core]);
            assert!(pin(CpuSet::MAX_CPU).is_err());
            let past = CpuSet::MAX_CPU - 1;
            let why = pin(past).expect_err("more cores than anybody has").to_string();
            assert_eq!(why, format!("there is no core {past} for this process, which runs on {core}"));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_that_is_spread_has_the_cores_it_had_and_no_others_than_the_process() {
        let all = CoreList::allowed().unwrap();
        let core = all.cores()[0];
        std::thread::spawn(move || {
            pin(core).unwrap();
            spread_over_node().unwrap();
            let spread = CoreList::allowed().unwrap();
            assert!(spread.cores().contains(&core));
            assert!(spread.cores().iter().all(|core| all.cores().contains(core)));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_that_steps_back_runs_when_no_other_wants_to() {
        std::thread::spawn(|| {
            step_back().unwrap();
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let (_, fields) = stat.rsplit_once(')').unwrap();
            // The 41st field; the two before the split are the thread's number and its name.
            let policy = fields.split_ascii_whitespace().nth(38).unwrap();
            assert_eq!(policy.parse(), Ok(libc::SCHED_IDLE));
        })
        .join()
        .unwrap();
    }
}
