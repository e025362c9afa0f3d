//! Processor time per operation, of ourselves and of a target on the same machine, from `/proc`.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ops::{Add, Sub};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Processor time and context switches so far. Only differences of two readings are meaningful.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTime {
    /// In user mode, ns. The kernel counts in ticks, mostly of 10 ms.
    pub user_ns: u64,
    /// In the kernel on the process's behalf, ns; what interrupts do for it is partly elsewhere.
    pub system_ns: u64,
    /// Times it gave the core up.
    pub voluntary_switches: u64,
    /// Times the core was taken from it.
    pub involuntary_switches: u64,
}

impl CpuTime {
    /// User and system time, ns.
    pub const fn total_ns(&self) -> u64 {
        self.user_ns.saturating_add(self.system_ns)
    }
}

impl Add for CpuTime {
    type Output = Self;

    /// The sum of both.
    fn add(self, other: Self) -> Self {
        Self {
            user_ns: self.user_ns + other.user_ns,
            system_ns: self.system_ns + other.system_ns,
            voluntary_switches: self.voluntary_switches + other.voluntary_switches,
            involuntary_switches: self.involuntary_switches + other.involuntary_switches,
        }
    }
}

impl Sub for CpuTime {
    type Output = Self;

    /// The use since an `earlier` reading.
    fn sub(self, earlier: Self) -> Self {
        Self {
            user_ns: self.user_ns.saturating_sub(earlier.user_ns),
            system_ns: self.system_ns.saturating_sub(earlier.system_ns),
            voluntary_switches: self.voluntary_switches.saturating_sub(earlier.voluntary_switches),
            involuntary_switches: self.involuntary_switches.saturating_sub(earlier.involuntary_switches),
        }
    }
}

/// Time of this process, all its threads.
///
/// # Errors
/// If `/proc` is not there or not as expected.
pub fn of_process() -> io::Result<CpuTime> {
    of_task_group(Path::new("/proc/self"))
}

/// Time of another process, all its threads.
///
/// # Errors
/// If it has ended.
pub fn of_pid(pid: u32) -> io::Result<CpuTime> {
    of_task_group(&PathBuf::from(format!("/proc/{pid}")))
}

/// Time of the calling thread.
///
/// # Errors
/// If `/proc` is not there or not as expected.
pub fn of_thread() -> io::Result<CpuTime> {
    let directory = Path::new("/proc/thread-self");
    let time = read_times(directory)?;
    Ok(with_switches(time, [read_switches(directory)?]))
}

/// The process's own `stat` covers its threads, also those that ended; `status` does not, so tasks are added up.
fn of_task_group(directory: &Path) -> io::Result<CpuTime> {
    let time = read_times(directory)?;
    let tasks = fs::read_dir(directory.join("task"))?.filter_map(Result::ok);
    // A thread may end between listing and reading.
    Ok(with_switches(time, tasks.filter_map(|task| read_switches(&task.path()).ok())))
}

fn read_times(directory: &Path) -> io::Result<(u64, u64)> {
    let text = fs::read_to_string(directory.join("stat"))?;
    let (user, system) = parse_stat(&text).ok_or_else(|| unexpected("stat"))?;
    let tick_ns = 1_000_000_000 / ticks_per_second();
    Ok((user * tick_ns, system * tick_ns))
}

fn read_switches(directory: &Path) -> io::Result<(u64, u64)> {
    let text = fs::read_to_string(directory.join("status"))?;
    parse_switches(&text).ok_or_else(|| unexpected("status"))
}

fn with_switches(times: (u64, u64), switches: impl IntoIterator<Item = (u64, u64)>) -> CpuTime {
    let (user_ns, system_ns) = times;
    let mut time = CpuTime { user_ns, system_ns, ..CpuTime::default() };
    for (voluntary, involuntary) in switches {
        time.voluntary_switches += voluntary;
        time.involuntary_switches += involuntary;
    }
    time
}

fn unexpected(file: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("/proc {file} has an unexpected form"))
}

/// User and system time in ticks from `/proc/PID/stat`.
pub fn parse_stat(text: &str) -> Option<(u64, u64)> {
    // The second field, the name, may contain anything but ends at the last parenthesis.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// Voluntary and involuntary context switches from `/proc/PID/status`.
pub fn parse_switches(text: &str) -> Option<(u64, u64)> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok();
    Some((field("voluntary_ctxt_switches:")?, field("nonvoluntary_ctxt_switches:")?))
}

/// Ticks per second in which `/proc` counts, as the kernel passed it to this process at its start; 100 if it did not.
pub fn ticks_per_second() -> u64 {
    fs::read("/proc/self/auxv").ok().and_then(|auxv| parse_auxv(&auxv)).unwrap_or(100)
}

/// The entry `AT_CLKTCK` of an auxiliary vector.
pub fn parse_auxv(auxv: &[u8]) -> Option<u64> {
    const AT_CLKTCK: usize = 17;
    let (words, _) = auxv.as_chunks::<{ size_of::<usize>() }>();
    let (entries, _) = words.as_chunks::<2>();
    let entry = entries.iter().find(|[name, _]| usize::from_ne_bytes(*name) == AT_CLKTCK)?;
    Some(usize::from_ne_bytes(entry[1]) as u64).filter(|&ticks| ticks > 0)
}

/// Time that all cores spent, in ticks, since the machine started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineTime {
    /// In user mode.
    pub user: u64,
    /// In the kernel for processes.
    pub system: u64,
    /// Idle, also while waiting for disks.
    pub idle: u64,
    /// In interrupt handlers.
    pub interrupt: u64,
    /// In deferred interrupt work, where received packets are handled.
    pub soft_interrupt: u64,
    /// Taken by the hypervisor for others.
    pub steal: u64,
}

impl MachineTime {
    /// All time, in ticks.
    pub const fn total(&self) -> u64 {
        self.user + self.system + self.idle + self.interrupt + self.soft_interrupt + self.steal
    }

    /// Time in which a core did anything, ns.
    pub fn busy_ns(&self) -> u64 {
        let ticks = self.total() - self.idle - self.steal;
        ticks.saturating_mul(1_000_000_000 / ticks_per_second())
    }

    /// Time since an `earlier` reading in which a core did anything, ns.
    pub fn busy_ns_since(&self, earlier: &Self) -> f64 {
        self.busy_ns().saturating_sub(earlier.busy_ns()) as f64
    }

    /// Of the time since an `earlier` reading, the percentage in deferred interrupt work and the one stolen.
    pub fn percent_since(&self, earlier: &Self) -> (f64, f64) {
        let total = self.total().saturating_sub(earlier.total()).max(1) as f64;
        let percent = |now: u64, then: u64| now.saturating_sub(then) as f64 * 100.0 / total;
        (percent(self.soft_interrupt, earlier.soft_interrupt), percent(self.steal, earlier.steal))
    }
}

/// Time of all cores together.
///
/// # Errors
/// If `/proc/stat` is not there or not as expected.
pub fn of_machine() -> io::Result<MachineTime> {
    parse_machine(&fs::read_to_string("/proc/stat")?).ok_or_else(|| unexpected("stat"))
}

/// The first line of `/proc/stat`.
pub fn parse_machine(text: &str) -> Option<MachineTime> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> = line.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
    let &[user, nice, system, idle, disk_wait, interrupt, soft_interrupt, steal, ..] = fields.as_slice()
    else {
        return None;
    };
    let (user, idle) = (user + nice, idle + disk_wait);
    Some(MachineTime { user, system, idle, interrupt, soft_interrupt, steal })
}

/// The process that listens on `address`, if it runs on this machine and we may look at its files.
///
/// # Errors
/// If `/proc/net` cannot be read.
pub fn pid_of_listener(address: SocketAddr) -> io::Result<Option<u32>> {
    // A listener on all addresses listens on this one too, if it is an address of this machine.
    if !is_local(address.ip()) {
        return Ok(None);
    }
    let sockets = read_sockets()?;
    let listens = |socket: &&Socket| socket.state == LISTEN && socket.local.port() == address.port();
    let exact = sockets.iter().filter(listens).find(|socket| same_ip(socket.local.ip(), address.ip()));
    let any = || sockets.iter().filter(listens).find(|socket| socket.local.ip().is_unspecified());
    Ok(exact.or_else(any).and_then(|socket| pid_of_inode(socket.inode)))
}

/// The process at the other end of our connection from `local` to `peer`, if it runs on this machine and we may
/// look at its files. A process that serves connections from a fixed file table of `io_uring` is not found so.
///
/// # Errors
/// If `/proc/net` cannot be read.
pub fn pid_of_peer(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<u32>> {
    let sockets = read_sockets()?;
    let same = |a: SocketAddr, b: SocketAddr| a.port() == b.port() && same_ip(a.ip(), b.ip());
    let other_end = sockets.iter().find(|socket| same(socket.local, peer) && same(socket.remote, local));
    Ok(other_end.and_then(|socket| pid_of_inode(socket.inode)))
}

/// Whether this machine has the address.
pub fn is_local(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

/// Whether two addresses are one, IPv4 in IPv6 clothes included.
fn same_ip(a: IpAddr, b: IpAddr) -> bool {
    a.to_canonical() == b.to_canonical()
}

/// One line of `/proc/net/tcp` or `/proc/net/tcp6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Our end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// The kernel's number of the state; 10 listens.
    pub state: u8,
    /// Number of the socket, 0 if no process holds it.
    pub inode: u64,
}

/// State of a listening socket.
const LISTEN: u8 = 10;

fn read_sockets() -> io::Result<Vec<Socket>> {
    let mut sockets = parse_sockets(&fs::read_to_string("/proc/net/tcp")?);
    // Absent where IPv6 is turned off.
    sockets.extend(parse_sockets(&fs::read_to_string("/proc/net/tcp6").unwrap_or_default()));
    Ok(sockets)
}

/// The sockets of `/proc/net/tcp` or `/proc/net/tcp6`.
pub fn parse_sockets(text: &str) -> Vec<Socket> {
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let &[_, local, remote, state, _, _, _, _, _, inode, ..] = fields.as_slice() else { return None };
        Some(Socket {
            local: parse_address(local)?,
            remote: parse_address(remote)?,
            state: u8::from_str_radix(state, 16).ok()?,
            inode: inode.parse().ok()?,
        })
    };
    text.lines().filter_map(parse).collect()
}

/// An address as `/proc/net` writes it: 32-bit words in the machine's byte order, then the port.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |digits: &str| u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes);
    let ip = match ip.len() {
        8 => Ipv4Addr::from(word(ip)?).into(),
        32 => {
            let mut bytes = [0; 16];
            for (i, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(ip.get(i * 8..i * 8 + 8)?)?);
            }
            Ipv6Addr::from(bytes).into()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// The process that holds the socket open.
fn pid_of_inode(inode: u64) -> Option<u32> {
    let name = format!("socket:[{inode}]");
    let holds = |process: &Path| {
        let files = fs::read_dir(process.join("fd")).ok()?;
        files
            .flatten()
            .find(|file| fs::read_link(file.path()).is_ok_and(|link| link.as_os_str() == name.as_str()))
    };
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|_| inode != 0).find(|pid| holds(Path::new(&format!("/proc/{pid}"))).is_some())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_process_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let stat = "1234 (a) b (c) S 1 1234 1234 0 -1 4194560 5180 0 3 0 217 95 12 13 20 0 4 0 8811 1 2 3";
        assert_eq!(parse_stat(stat), Some((217, 95)));
        assert_eq!(parse_stat("1234 (a) S 1"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn switches_are_read_from_status() {
        let status = "Name:\tx\nThreads:\t4\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t7\n";
        assert_eq!(parse_switches(status), Some((150, 7)));
        assert_eq!(parse_switches("Name:\tx\n"), None);
    }

    #[test]
    fn the_tick_is_read_from_the_auxiliary_vector() {
        let auxv: Vec<u8> =
            [6usize, 4096, 17, 250, 0, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(parse_auxv(&auxv), Some(250));
        assert_eq!(parse_auxv(&auxv[..20]), None);
    }

    #[test]
    fn machine_time_tells_steal_and_soft_interrupts() {
        let before = parse_machine("cpu  100 0 50 800 10 0 30 10 0 0\ncpu0 1 2 3\n").unwrap();
        let after = parse_machine("cpu  150 0 70 890 10 0 60 20 0 0\n").unwrap();
        assert_eq!(before.total(), 1_000);
        assert_eq!(after.percent_since(&before), (15.0, 5.0));
        assert_eq!(after.busy_ns_since(&before), 100.0 * 1e9 / ticks_per_second() as f64);
        assert_eq!(parse_machine("cpu  1 2 3\n"), None);
    }

    #[test]
    fn sockets_are_read_in_both_families() {
        #[cfg(target_endian = "little")]
        let text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            \x20  0: 0100007F:1144 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4242 1 0\n\
            \x20  1: 0100007F:1144 0100007F:D431 01 00000000:00000000 00:00000000 00000000  1000        0 4243 1 0\n\
            \x20  2: 00000000000000000000000001000000:1F49 00000000000000000000000000000000:0000 0A 00:0 00:0 00 0 0 9 1\n";
        let sockets = parse_sockets(text);
        let told: Vec<String> =
            sockets.iter().map(|s| format!("{} {} {} {}", s.local, s.remote, s.state, s.inode)).collect();
        assert_eq!(
            told,
            [
                "127.0.0.1:4420 0.0.0.0:0 10 4242",
                "127.0.0.1:4420 127.0.0.1:54321 1 4243",
                "[::1]:8009 [::]:0 10 9"
            ]
        );
    }

    #[test]
    fn our_own_listener_and_peer_are_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stream = TcpStream::connect(address).unwrap();
        let _accepted = listener.accept().unwrap();
        assert_eq!(pid_of_listener(address).unwrap(), Some(std::process::id()));
        assert_eq!(pid_of_peer(stream.local_addr().unwrap(), address).unwrap(), Some(std::process::id()));
    }

    #[test]
    fn a_listener_on_all_addresses_is_found_by_one_of_ours_only() {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(pid_of_listener(([127, 0, 0, 1], port).into()).unwrap(), Some(std::process::id()));
        assert_eq!(pid_of_listener(([192, 0, 2, 1], port).into()).unwrap(), None);
    }

    #[test]
    fn work_shows_in_the_time_of_thread_and_process() {
        let (process, thread) = (of_process().unwrap(), of_thread().unwrap());
        let start = Instant::now();
        let mut used = CpuTime::default();
        // Ticks are coarse and the machine may be busy with others: wait until it shows, not for a time.
        while used.total_ns() < 20_000_000 && start.elapsed() < Duration::from_secs(60) {
            std::hint::black_box((0..1_000_000).fold(0u64, |a, b| a ^ b));
            used = of_thread().unwrap() - thread;
        }
        assert!(used.total_ns() >= 20_000_000);
        assert!((of_process().unwrap() - process).total_ns() >= 20_000_000);
        assert!(of_pid(std::process::id()).unwrap().total_ns() >= used.total_ns());
    }
}
