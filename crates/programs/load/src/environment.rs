//! The environment of a result: facts to know before comparing it with another.

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::net::sockopt;
use serde::{Deserialize, Serialize};

use crate::cpu::is_local;

/// The machine, its settings, and this program. Unknown values are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    /// Version of nvlane.
    pub nvlane_version: String,
    /// Commit it was built from, if the build knew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The command line, arguments with blanks in quotes.
    pub command_line: String,
    /// When it was collected, ms since 1970.
    pub unix_ms: u64,
    /// The same as text, in UTC.
    pub date: String,
    /// Kernel release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Instruction set.
    pub architecture: String,
    /// Name of the processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_model: Option<String>,
    /// Cores that this process may use.
    pub core_count: usize,
    /// Whether this is a virtual machine.
    pub virtual_machine: bool,
    /// Whether a program executes its instructions (QEMU without KVM): its figures compare with no other machine's.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub emulated: bool,
    /// Frequency governor of the first core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub governor: Option<String>,
    /// The kernel's mitigations of processor faults, in short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mitigations: Option<String>,
    /// Memory of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Default congestion control of TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<String>,
    /// The interface towards the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<Interface>,
    /// Disturbance of an idle loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Jitter>,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Largest packet, bytes.
    pub mtu: u32,
}

/// Disturbance of a loop that only reads the clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Jitter {
    /// Duration of the loop, ns.
    pub duration_ns: u64,
    /// The longest time between two looks, ns.
    pub gap_ns_max: u64,
    /// Percent of the time that passed in gaps of more than a microsecond.
    pub lost_percent: f64,
}

impl Environment {
    /// Collects everything, looking for disturbances for `jitter` (some 20 ms will do), with the interface that
    /// leads to `target`.
    pub fn collect(target: Option<IpAddr>, jitter: Duration) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self {
            nvlane_version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: option_env!("NVLANE_COMMIT").map(str::to_owned),
            command_line: quote(std::env::args()),
            unix_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            date: Date::from_unix(now.as_secs()).to_string(),
            kernel: read("/proc/sys/kernel/osrelease"),
            architecture: std::env::consts::ARCH.to_owned(),
            cpu_model: parse_cpu_model(&cpuinfo),
            core_count: std::thread::available_parallelism().map_or(1, usize::from),
            virtual_machine: parse_is_virtual(&cpuinfo),
            emulated: parse_is_emulated(&cpuinfo),
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            mitigations: read_mitigations(),
            memory_bytes: linux::machine_memory_bytes(),
            congestion_control: read("/proc/sys/net/ipv4/tcp_congestion_control"),
            interface: target.and_then(interface_towards),
            jitter: Some(measure_jitter(jitter)),
        }
    }
}

impl Environment {
    /// Version of this program, with the commit if the build knew it.
    #[must_use]
    pub fn version() -> String {
        let commit = option_env!("NVLANE_COMMIT").map_or(String::new(), |commit| format!(" ({commit})"));
        format!("{}{commit}", env!("CARGO_PKG_VERSION"))
    }

    /// The kind of machine, in a word or two.
    pub fn machine(&self) -> &'static str {
        match (self.emulated, self.virtual_machine) {
            (true, _) => "emulated",
            (false, true) => "virtual",
            (false, false) => "bare metal",
        }
    }
}

/// A file without the blanks around its text.
fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// A command line that a shell takes back, as far as blanks and quotes go.
fn quote(arguments: impl Iterator<Item = String>) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+?&[]".contains(c);
    let quoted = arguments.map(|argument| {
        if !argument.is_empty() && argument.chars().all(plain) {
            argument
        } else {
            format!("'{}'", argument.replace('\'', r"'\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// The processor's name from `/proc/cpuinfo`; some architectures give none.
pub fn parse_cpu_model(cpuinfo: &str) -> Option<String> {
    let value = |name: &str| {
        let line =
            cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    value("model name").or_else(|| value("Model")).or_else(|| value("Hardware"))
}

/// Whether `/proc/cpuinfo` shows a hypervisor.
pub fn parse_is_virtual(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|line| line.split_ascii_whitespace().any(|flag| flag == "hypervisor"))
}

/// Whether `/proc/cpuinfo` shows the processor that QEMU emulates.
pub fn parse_is_emulated(cpuinfo: &str) -> bool {
    parse_cpu_model(cpuinfo).is_some_and(|model| model.starts_with("QEMU TCG"))
}

fn read_mitigations() -> Option<String> {
    let entries = fs::read_dir("/sys/devices/system/cpu/vulnerabilities").ok()?;
    let mut states: Vec<(String, String)> = entries
        .flatten()
        .filter_map(|entry| {
            Some((entry.file_name().into_string().ok()?, fs::read_to_string(entry.path()).ok()?))
        })
        .collect();
    states.sort();
    Some(summarize_mitigations(&states))
}

/// One line about names of faults and the kernel's words on each.
pub fn summarize_mitigations(states: &[(String, String)]) -> String {
    let named = |prefix: &str| {
        let of_kind = states.iter().filter(|(_, state)| state.starts_with(prefix));
        of_kind.map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(" ")
    };
    let parts = [("mitigated", named("Mitigation")), ("vulnerable", named("Vulnerable"))];
    let told: Vec<String> = parts
        .into_iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(what, names)| format!("{what}: {names}"))
        .collect();
    if told.is_empty() { "none needed".to_owned() } else { told.join("; ") }
}

/// The interface by which packets to `target` leave.
pub fn interface_towards(target: IpAddr) -> Option<Interface> {
    let name = if is_local(target) {
        // Packets to this machine never leave it.
        "lo".to_owned()
    } else {
        match target.to_canonical() {
            IpAddr::V4(target) => parse_route(&read("/proc/net/route")?, target)?,
            IpAddr::V6(target) => parse_route_v6(&read("/proc/net/ipv6_route")?, target.into())?,
        }
    };
    let mtu = mtu_towards(target).ok()?;
    Some(Interface { name, mtu })
}

/// The largest packet to `target`, bytes. Asked of a socket: the interfaces at `/sys` may be those of another network
/// namespace.
fn mtu_towards(target: IpAddr) -> io::Result<u32> {
    // No packet is sent.
    const ANY_PORT: u16 = 9;
    let (any, mtu_of): (IpAddr, fn(&UdpSocket) -> _) = match target.to_canonical() {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), |socket| sockopt::ip_mtu(socket)),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), |socket| sockopt::ipv6_mtu(socket)),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect((target.to_canonical(), ANY_PORT))?;
    Ok(mtu_of(&socket)?)
}

/// The interface of the narrowest route to `target` in `/proc/net/route`.
pub fn parse_route(routes: &str, target: Ipv4Addr) -> Option<String> {
    let target = u32::from_ne_bytes(target.octets());
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let &[name, destination, _, _, _, _, _, mask, ..] = fields.as_slice() else { return None };
        let word = |digits: &str| u32::from_str_radix(digits, 16).ok();
        let (destination, mask) = (word(destination)?, word(mask)?);
        (target & mask == destination).then(|| (mask.count_ones(), name.to_owned()))
    };
    narrowest(routes.lines().filter_map(parse))
}

/// The interface of the narrowest route to `target` in `/proc/net/ipv6_route`.
pub fn parse_route_v6(routes: &str, target: u128) -> Option<String> {
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (&destination, &length, &name) = (fields.first()?, fields.get(1)?, fields.last()?);
        let destination = u128::from_str_radix(destination, 16).ok()?;
        let length = u32::from_str_radix(length, 16).ok()?;
        let mask = u128::MAX.checked_shl(128u32.checked_sub(length)?).unwrap_or(0);
        // The kernel's own "unreachable" entry sits on the loopback and covers everything.
        let real = !(length == 0 && name == "lo");
        (real && target & mask == destination).then(|| (length, name.to_owned()))
    };
    narrowest(routes.lines().filter_map(parse))
}

/// The first of those with the longest prefix.
fn narrowest(routes: impl Iterator<Item = (u32, String)>) -> Option<String> {
    let mut best: Option<(u32, String)> = None;
    for route in routes {
        if best.as_ref().is_none_or(|best| route.0 > best.0) {
            best = Some(route);
        }
    }
    best.map(|(_, name)| name)
}

/// Reads the clock for `duration` and records the gaps.
pub fn measure_jitter(duration: Duration) -> Jitter {
    const GAP: Duration = Duration::from_micros(1);
    let start = Instant::now();
    let (mut last, mut longest, mut lost) = (start, Duration::ZERO, Duration::ZERO);
    while last - start < duration {
        let now = Instant::now();
        let gap = now - last;
        longest = longest.max(gap);
        if gap > GAP {
            lost += gap;
        }
        last = now;
    }
    let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let whole = (last - start).max(Duration::from_nanos(1));
    Jitter {
        duration_ns: ns(last - start),
        gap_ns_max: ns(longest),
        lost_percent: lost.as_secs_f64() * 100.0 / whole.as_secs_f64(),
    }
}

/// A moment in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    year: u64,
    /// From 1.
    month: usize,
    /// From 1.
    day: u64,
    /// From 0, Thursday.
    weekday: usize,
    second_of_day: u64,
}

impl Date {
    /// Of seconds since 1970.
    pub const fn from_unix(seconds: u64) -> Self {
        let (mut days, second_of_day) = (seconds / 86_400, seconds % 86_400);
        let weekday = (days % 7) as usize;
        let mut year = 1970;
        while days >= Self::days_of_year(year) {
            days -= Self::days_of_year(year);
            year += 1;
        }
        let mut month = 1;
        while days >= Self::days_of_month(year, month) {
            days -= Self::days_of_month(year, month);
            month += 1;
        }
        Self { year, month, day: days + 1, weekday, second_of_day }
    }

    const fn days_of_year(year: u64) -> u64 {
        if Self::is_leap(year) { 366 } else { 365 }
    }

    const fn is_leap(year: u64) -> bool {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    }

    const fn days_of_month(year: u64, month: usize) -> u64 {
        match month {
            2 if Self::is_leap(year) => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        }
    }

    fn clock(self) -> String {
        let (minute, second) = (self.second_of_day / 60, self.second_of_day % 60);
        format!("{:02}:{:02}:{second:02}", minute / 60, minute % 60)
    }

    /// In the manner of C's `ctime`, as fio's JSON has it.
    pub fn ctime(self) -> String {
        const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
        const MONTHS: [&str; 12] =
            ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let (weekday, month) = (WEEKDAYS[self.weekday], MONTHS[self.month - 1]);
        format!("{weekday} {month} {:2} {} {}", self.day, self.clock(), self.year)
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:02}-{:02}T{}Z", self.year, self.month, self.day, self.clock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_collected_without_a_failure() {
        let environment = Environment::collect(Some([127, 0, 0, 1].into()), Duration::from_millis(1));
        assert!(environment.core_count >= 1);
        assert!(environment.kernel.is_some());
        assert_eq!(environment.interface.unwrap().name, "lo");
        assert!(environment.jitter.unwrap().duration_ns >= 1_000_000);
    }

    #[test]
    fn dates_are_right_around_leap_days_and_years() {
        for (seconds, date, ctime) in [
            (0, "1970-01-01T00:00:00Z", "Thu Jan  1 00:00:00 1970"),
            (951_782_399, "2000-02-28T23:59:59Z", "Mon Feb 28 23:59:59 2000"),
            (951_782_400, "2000-02-29T00:00:00Z", "Tue Feb 29 00:00:00 2000"),
            (1_735_689_599, "2024-12-31T23:59:59Z", "Tue Dec 31 23:59:59 2024"),
            (4_107_542_400, "2100-03-01T00:00:00Z", "Mon Mar  1 00:00:00 2100"),
        ] {
            assert_eq!(Date::from_unix(seconds).to_string(), date);
            assert_eq!(Date::from_unix(seconds).ctime(), ctime);
        }
    }

    #[test]
    fn the_processor_is_named_on_several_architectures() {
        let x86 = "processor\t: 0\nmodel\t\t: 207\nmodel name\t: Some Processor @ 2.30GHz\nflags\t\t: fpu hypervisor\n";
        assert_eq!(parse_cpu_model(x86).as_deref(), Some("Some Processor @ 2.30GHz"));
        assert!(parse_is_virtual(x86) && !parse_is_emulated(x86));
        assert!(parse_is_emulated("processor\t: 0\nmodel name\t: QEMU TCG CPU version 2.5+\n"));
        let arm = "processor\t: 0\nBogoMIPS\t: 108.00\nModel\t\t: Some Board\n";
        assert_eq!(parse_cpu_model(arm).as_deref(), Some("Some Board"));
        assert!(!parse_is_virtual(arm));
        assert_eq!(parse_cpu_model(""), None);
    }

    #[test]
    fn mitigations_are_summed_up() {
        let states = |states: &[(&str, &str)]| {
            let owned: Vec<_> =
                states.iter().map(|&(name, state)| (name.to_owned(), state.to_owned())).collect();
            summarize_mitigations(&owned)
        };
        assert_eq!(
            states(&[
                ("l1tf", "Not affected\n"),
                ("retbleed", "Vulnerable\n"),
                ("spectre_v2", "Mitigation: X\n")
            ]),
            "mitigated: spectre_v2; vulnerable: retbleed"
        );
        assert_eq!(states(&[("l1tf", "Not affected\n")]), "none needed");
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn the_narrowest_route_wins() {
        let routes = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
            eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
            eth1\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        assert_eq!(parse_route(routes, [192, 0, 2, 9].into()).as_deref(), Some("eth1"));
        assert_eq!(parse_route(routes, [198, 51, 100, 1].into()).as_deref(), Some("eth0"));
        assert_eq!(parse_route("", [198, 51, 100, 1].into()), None);
    }

    #[test]
    fn routes_of_ipv6_are_read_and_the_unreachable_one_is_none() {
        let zero = "00000000000000000000000000000000";
        let line = |destination: &str, length: &str, name: &str| {
            format!("{destination} {length} {zero} 00 {zero} 00000100 00000001 00000000 00000001 {name}\n")
        };
        let routes = [
            line("fd000000000000000000000000000000", "40", "eth1"),
            line(zero, "00", "eth0"),
            line(zero, "00", "lo"),
        ]
        .concat();
        let address = |text: &str| u128::from(text.parse::<std::net::Ipv6Addr>().unwrap());
        assert_eq!(parse_route_v6(&routes, address("fd00::5")).as_deref(), Some("eth1"));
        assert_eq!(parse_route_v6(&routes, address("2001:db8::1")).as_deref(), Some("eth0"));
        assert_eq!(parse_route_v6(&line(zero, "00", "lo"), address("2001:db8::1")), None);
    }

    #[test]
    fn a_command_line_is_quoted_where_a_shell_needs_it() {
        let arguments = ["nvlane", "perf", "a b", "it's", "ns=1"].map(str::to_owned).into_iter();
        assert_eq!(quote(arguments), r"nvlane perf 'a b' 'it'\''s' ns=1");
    }
}
