//! Storage and addresses that a killed target still holds: the kernel completes its I/O after it was killed, and keeps locks
//! and listeners until then. The next target waits for them, so that none of that I/O lands after its own writes.
//!
//! ```text
//! a process that lives has it ─▶ a few seconds, then an error that names it
//! one that is being killed has it, or none that can be seen ─▶ as long as that lasts, with a line every few seconds
//! ```

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use reactor::Listener;
use store::holders::{self, Held};
use store::{OpenError, Store};

/// How long storage may stay in use by a process that lives: it may be about to end.
const LIVING_WAIT: Duration = Duration::from_secs(5);

/// How long storage may stay in use while no process is seen to have it, and some processes may not be visible.
const UNSEEN_WAIT: Duration = Duration::from_secs(30);

/// How long it may stay in use by a process that is being killed, or was. I/O of broken storage ends late, or never.
const DYING_WAIT: Duration = Duration::from_secs(600);

/// How long an address may stay in use by a process that lives.
pub(super) const ADDRESS_WAIT: Duration = Duration::from_secs(2);

/// Interval between log lines of a wait, and between searches for the process that holds the storage or address.
const TELL_INTERVAL: Duration = Duration::from_secs(5);
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// A wait for something in use.
struct Wait {
    begun: Instant,
    looked: Option<Instant>,
    told: Option<Instant>,
    limit: Duration,
}

impl Wait {
    fn new() -> Self {
        Self { begun: Instant::now(), looked: None, told: None, limit: LIVING_WAIT }
    }

    /// Sleeps a little; `false` if it has waited long enough for the holder: `None` is another program, of which
    /// nothing is known. `living`: how long a process that lives may keep it.
    fn goes_on(
        &mut self,
        what: &dyn std::fmt::Display,
        living: Duration,
        held: impl FnOnce() -> Option<Held>,
    ) -> bool {
        let now = Instant::now();
        if self.looked.is_none_or(|at| now - at >= LOOK_INTERVAL) {
            self.looked = Some(now);
            let held = held();
            self.limit = match &held {
                None | Some(Held::By(_)) => living,
                Some(Held::ByDying(_) | Held::Unseen { sees_all: true }) => DYING_WAIT,
                Some(Held::Unseen { sees_all: false }) => UNSEEN_WAIT,
            };
            if self.told.is_none_or(|at| now - at >= TELL_INTERVAL) {
                let by = match held {
                    None => "another program".into(),
                    Some(Held::By(holder)) => holder.to_string(),
                    Some(Held::ByDying(holder)) => format!("{holder}, which is being killed"),
                    Some(Held::Unseen { .. }) => {
                        "no process that can be seen: the kernel completes I/O of one that was killed".into()
                    }
                };
                let (waited_s, at_most_s) = ((now - self.begun).as_secs(), self.limit.as_secs());
                tracing::info!(%what, by, waited_s, at_most_s, "waiting until the storage is no longer in use");
                self.told = Some(now);
            }
        }
        if now - self.begun >= self.limit {
            return false;
        }
        let is_early = now - self.begun < Duration::from_secs(1);
        std::thread::sleep(Duration::from_millis(if is_early { 5 } else { 100 }));
        true
    }
}

/// Opens storage; waits for storage that is in use.
pub(super) fn open(open: impl Fn() -> Result<Store, OpenError>) -> Result<Store, OpenError> {
    let mut wait = Wait::new();
    loop {
        match open() {
            Err(error) => match error.path_in_use() {
                Some(path) if wait.goes_on(&path.display(), LIVING_WAIT, || held_storage(&error)) => {}
                _ => return Err(error),
            },
            opened => return opened,
        }
    }
}

/// The holder of storage; `None` if it is not a target, whose lock would name it: the kernel, or a program that the
/// error names.
fn held_storage(error: &OpenError) -> Option<Held> {
    match error {
        OpenError::Locked { path } => Some(holders::of_file(path)),
        _ => None,
    }
}

/// Listens on an address; waits for one that is in use.
pub(super) fn bind(address: SocketAddr) -> io::Result<Listener> {
    let mut wait = Wait::new();
    loop {
        match Listener::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if !wait.goes_on(&address, ADDRESS_WAIT, || held_address(address)) {
                    return Err(match held_address(address) {
                        Some(Held::By(holder)) => {
                            io::Error::new(error.kind(), format!("{error}, by {holder}"))
                        }
                        _ => error,
                    });
                }
            }
            bound => return bound,
        }
    }
}

/// The listener on an address; `None` if there is none: a socket that is only bound, or one of another network
/// namespace that is not visible here.
fn held_address(address: SocketAddr) -> Option<Held> {
    let tables =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let inodes: Vec<&str> =
        tables.iter().flat_map(|table| table.lines()).filter_map(|line| listening(line, address)).collect();
    let held = inodes.iter().map(|inode| holders::of_link(&format!("socket:[{inode}]")));
    held.max_by_key(|held| matches!(held, Held::By(_)))
}

/// The inode of a listener in a line of /proc/net/tcp, if it could have the address.
fn listening(line: &str, address: SocketAddr) -> Option<&str> {
    // "  0: 0100007F:1144 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 12345 …"
    let mut words = line.split_whitespace().skip(1);
    let (ip, port) = words.next()?.split_once(':')?;
    if u16::from_str_radix(port, 16).ok()? != address.port() || words.nth(1)? != "0A" {
        return None;
    }
    let is_any = |ip: &str| ip.bytes().all(|digit| digit == b'0');
    let wanted: String = match address {
        // Words in the byte order of the machine.
        SocketAddr::V4(address) => format!("{:08X}", u32::from_ne_bytes(address.ip().octets())),
        SocketAddr::V6(address) => address
            .ip()
            .octets()
            .as_chunks::<4>()
            .0
            .iter()
            .map(|word| format!("{:08X}", u32::from_ne_bytes(*word)))
            .collect(),
    };
    (is_any(ip) || is_any(&wanted) || ip == wanted).then(|| words.nth(5))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_sockets_says_who_listens() {
        let line = format!(
            "   0: {:08X}:1144 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 12345 1 0",
            u32::from_ne_bytes([127, 0, 0, 1])
        );
        let of = |address: &str| listening(&line, address.parse().unwrap());
        assert_eq!((of("127.0.0.1:4420"), of("0.0.0.0:4420")), (Some("12345"), Some("12345")));
        assert_eq!((of("127.0.0.1:4421"), of("127.0.0.2:4420"), of("[::1]:4420")), (None, None, None));
        let connected = line.replace(" 0A ", " 01 ");
        assert_eq!(listening(&connected, "127.0.0.1:4420".parse().unwrap()), None);
        let here = std::net::TcpListener::bind("[::1]:0").unwrap();
        let held = held_address(here.local_addr().unwrap());
        assert!(matches!(&held, Some(Held::By(holder)) if holder.pid == std::process::id()), "{held:?}");
    }

    /// A lock that stays although the process that took it has ended, as with I/O of a killed target.
    #[test]
    fn storage_is_waited_for_as_long_as_a_process_that_has_ended_locks_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4096).unwrap();
        let path = file.into_temp_path();
        let mut keeper = std::process::Command::new("sh")
            .args(["-c", "exec 9<\"$1\"; flock 9; echo; exec sleep 7", "sh"])
            .arg(&path)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Read::read_exact(keeper.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let spec: store::Spec = format!("file:{}", path.display()).parse().unwrap();
        let begun = Instant::now();
        let refused = spec.open(false).err().expect("it is locked");
        assert!(matches!(held_storage(&refused), Some(Held::Unseen { .. })), "{refused}");
        open(|| spec.open(false)).unwrap();
        assert!(begun.elapsed() > LIVING_WAIT);
        keeper.wait().unwrap();
    }

    #[test]
    fn what_a_living_process_has_is_not_waited_for_long() {
        let file = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        std::fs::write(&file, vec![0; 4096]).unwrap();
        let spec: store::Spec = format!("file:{}", file.display()).parse().unwrap();
        let opened = spec.open(false).unwrap();
        let begun = Instant::now();
        let refused = open(|| spec.open(false)).err().expect("it is locked");
        assert!(refused.path_in_use().is_some() && begun.elapsed() < 2 * LIVING_WAIT);
        drop(opened);
    }

    #[test]
    fn what_a_living_process_listens_on_is_refused_with_its_name() {
        let here = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let begun = Instant::now();
        let refused = bind(here.local_addr().unwrap()).unwrap_err().to_string();
        assert!(refused.contains(&format!("(process {})", std::process::id())), "{refused}");
        assert!(begun.elapsed() < LIVING_WAIT + ADDRESS_WAIT);
    }
}
