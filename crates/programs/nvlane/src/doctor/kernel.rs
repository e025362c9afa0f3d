//! The kernel: its version, io_uring, clock, huge pages, TLS.

use reactor::{EngineKind, Features};
use store::Source;
use subsystem::config::TargetConfig;

use super::Machine;
use super::finding::{Finding, Level};

/// Oldest supported kernel.
const OLDEST: (u32, u32) = (6, 1);

/// Clock sources that are read without a system call.
const FAST_CLOCKS: [&str; 4] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];

pub(super) fn examine(machine: &Machine, config: Option<&TargetConfig>) -> Vec<Finding> {
    let ring = Features::probe().ring.map(drop).map_err(|error| error.to_string());
    let engine = config.and_then(|config| config.reactors.engine);
    let found = [
        version(machine),
        Some(io_uring(machine, ring, engine)),
        clock_source(machine),
        clock(machine),
        huge_pages(machine, config),
        kernel_tls(machine),
    ];
    found.into_iter().flatten().collect()
}

fn version(machine: &Machine) -> Option<Finding> {
    const CHECK: &str = "kernel";
    let release = machine.read("/proc/sys/kernel/osrelease")?;
    let mut numbers =
        release.split(|part: char| !part.is_ascii_digit()).map(|number| number.parse::<u32>().ok());
    let (major, minor) = (numbers.next()??, numbers.next()??);
    Some(if (major, minor) >= OLDEST {
        Finding::ok(CHECK, format!("Linux {release}"))
    } else {
        let (major, minor) = OLDEST;
        Finding::error(CHECK, format!("Linux {release} is older than {major}.{minor}"))
            .because("nvlane is tested on Linux 6.1 and later; io_uring of older kernels lacks what it uses")
            .change(format!("install Linux {major}.{minor} or later, and boot it"))
            .by("apt-get install linux-image-amd64 && reboot")
    })
}

fn io_uring(machine: &Machine, ring: Result<(), String>, engine: Option<EngineKind>) -> Finding {
    const CHECK: &str = "io_uring";
    let Err(error) = ring else { return Finding::ok(CHECK, "available") };
    let level = match engine {
        Some(EngineKind::Uring) => Level::Error,
        Some(EngineKind::Epoll) => Level::Note,
        None => Level::Warning,
    };
    let why = match level {
        Level::Error => "the configuration asks for engine = \"uring\": the target does not start",
        Level::Note => "the configuration asks for engine = \"epoll\", which needs none",
        _ => "the target uses epoll and threads for storage instead, which takes more of a core per command",
    };
    let is_filtered = machine.read("/proc/self/status").is_some_and(|status| {
        status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2"))
    });
    let (what, change, command) = match machine.number("/proc/sys/kernel/io_uring_disabled") {
        Some(2) => (
            "forbidden for all processes (kernel.io_uring_disabled = 2)",
            "allow it",
            "sysctl -w kernel.io_uring_disabled=0",
        ),
        Some(1) => (
            "forbidden for unprivileged processes (kernel.io_uring_disabled = 1)",
            "allow it, or name a group of the target's user in kernel.io_uring_group",
            "sysctl -w kernel.io_uring_group=$(getent group nvlane | cut -d: -f3)",
        ),
        _ if is_filtered => (
            "forbidden by a system call filter, as of a container engine",
            "run the container with a profile that allows io_uring_setup, io_uring_enter and io_uring_register",
            "podman run --security-opt seccomp=unconfined ...",
        ),
        _ => (
            "not available",
            "allow io_uring and enough locked memory",
            "grep io_uring_setup /proc/kallsyms; ulimit -l",
        ),
    };
    Finding::new(level, CHECK, format!("{what}: {error}")).because(why).change(change).by(command)
}

fn clock_source(machine: &Machine) -> Option<Finding> {
    const CHECK: &str = "clock source";
    const DIRECTORY: &str = "/sys/devices/system/clocksource/clocksource0";
    let current = machine.read(&format!("{DIRECTORY}/current_clocksource"))?;
    if FAST_CLOCKS.contains(&current.as_str()) {
        return Some(Finding::ok(CHECK, current));
    }
    let available = machine.read(&format!("{DIRECTORY}/available_clocksource")).unwrap_or_default();
    let fast = available.split(' ').find(|source| FAST_CLOCKS.contains(source));
    let finding = Finding::warning(CHECK, format!("{current} is slow to read"))
        .because("each turn of a reactor reads the clock: microseconds per turn in place of some 20 ns");
    Some(match fast {
        Some(fast) => {
            finding.change(format!("use {fast}")).by(format!("echo {fast} > {DIRECTORY}/current_clocksource"))
        }
        None => finding
            .change("find out why the kernel does not trust the tsc")
            .by("dmesg | grep -i -e tsc -e clocksource"),
    })
}

fn clock(machine: &Machine) -> Option<Finding> {
    const CHECK: &str = "clock";
    let has = |path: &str| machine.root.join(path.trim_start_matches('/')).exists();
    if has("/run/systemd/timesync/synchronized") {
        return Some(Finding::ok(CHECK, "synchronised by systemd-timesyncd"));
    }
    let daemons = [
        ("/run/chrony", "chrony"),
        ("/run/chrony/chronyd.pid", "chrony"),
        ("/run/ntpd.pid", "ntpd"),
        ("/run/ptp4l", "ptp4l"),
    ];
    if let Some((_, name)) = daemons.iter().find(|(path, _)| has(path)) {
        return Some(Finding::ok(CHECK, format!("{name} runs")));
    }
    Some(
        Finding::note(CHECK, "no daemon that synchronises it is seen from here")
            .because("certificates are valid between dates, and lines of the audit log have times")
            .change("synchronise the clock of the machine")
            .by("timedatectl set-ntp true"),
    )
}

fn huge_pages(machine: &Machine, config: Option<&TargetConfig>) -> Option<Finding> {
    const CHECK: &str = "huge pages";
    let text = machine.read("/sys/kernel/mm/transparent_hugepage/enabled")?;
    let mode = text.split(['[', ']']).nth(1)?;
    if mode != "never" {
        return Some(Finding::ok(CHECK, format!("transparent huge pages: {mode}")));
    }
    let in_memory = |source: &Source| {
        matches!(
            source,
            Source::Memory { .. }
                | Source::KeyValue { .. }
                | Source::KeyValueFile { .. }
                | Source::KeyValueRados(_)
        )
    };
    let namespaces =
        config.into_iter().flat_map(|config| &config.subsystems).flat_map(|subsystem| &subsystem.namespaces);
    let has_any = namespaces.into_iter().any(|namespace| in_memory(&namespace.storage.source));
    let level = if has_any { Level::Warning } else { Level::Note };
    Some(
        Finding::new(level, CHECK, "transparent huge pages are off")
            .because("namespaces and keys in memory then take small pages, and more of a core per command")
            .change("allow them where a program asks for them")
            .by("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"),
    )
}

fn kernel_tls(machine: &Machine) -> Option<Finding> {
    const CHECK: &str = "kernel TLS";
    let available = machine.read("/proc/sys/net/ipv4/tcp_available_ulp")?;
    Some(if available.split(' ').any(|name| name == "tls") {
        Finding::ok(CHECK, "available; the target encrypts in user space and does not use it")
    } else {
        Finding::note(CHECK, "not loaded; the target encrypts in user space and does not need it")
            .because("the Linux host (nvme connect --tls) needs it, if this machine is one")
            .change("load the module")
            .by("modprobe tls")
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::machine;
    use super::*;

    #[test]
    fn an_old_kernel_is_an_error_and_a_new_one_is_none() {
        for (release, level) in [
            ("6.1.0-25-amd64", Level::Ok),
            ("6.12.9", Level::Ok),
            ("7.0.0-rc1", Level::Ok),
            ("5.15.0-generic", Level::Error),
        ] {
            let (_keep, machine) = machine(&[("proc/sys/kernel/osrelease", release)]);
            assert_eq!(version(&machine).expect("a finding").level, level, "{release}");
        }
    }

    #[test]
    fn a_refused_ring_is_explained_by_who_refuses_it() {
        let refused = || Err("Operation not permitted".to_owned());
        for (files, word) in [
            (&[("proc/sys/kernel/io_uring_disabled", "2\n")][..], "for all processes"),
            (&[("proc/sys/kernel/io_uring_disabled", "1\n")], "io_uring_group"),
            (&[("proc/self/status", "Name:\tnvlane\nSeccomp:\t2\n")], "seccomp"),
            (&[], "ulimit -l"),
        ] {
            let (_keep, machine) = machine(files);
            let finding = io_uring(&machine, refused(), None);
            assert_eq!(finding.level, Level::Warning);
            assert!(finding.to_string().contains(word), "{finding}");
        }
        let (_keep, machine) = machine(&[]);
        assert_eq!(io_uring(&machine, refused(), Some(EngineKind::Uring)).level, Level::Error);
        assert_eq!(io_uring(&machine, refused(), Some(EngineKind::Epoll)).level, Level::Note);
        assert_eq!(io_uring(&machine, Ok(()), None).level, Level::Ok);
    }

    #[test]
    fn a_slow_clock_source_comes_with_the_fast_one() {
        const AT: &str = "sys/devices/system/clocksource/clocksource0/";
        let current = format!("{AT}current_clocksource");
        let available = format!("{AT}available_clocksource");
        let (_keep, machine_) = machine(&[(&current, "hpet"), (&available, "tsc hpet acpi_pm")]);
        let finding = clock_source(&machine_).expect("a finding");
        assert_eq!(finding.level, Level::Warning);
        assert!(finding.command.expect("a command").starts_with("echo tsc > /sys/"));
        let (_keep, machine_) = machine(&[(&current, "tsc")]);
        assert_eq!(clock_source(&machine_).expect("a finding").level, Level::Ok);
    }

    #[test]
    fn huge_pages_matter_where_namespaces_are_in_memory() {
        let (_keep, machine) =
            machine(&[("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]")]);
        assert_eq!(huge_pages(&machine, None).expect("a finding").level, Level::Note);
        let text = "[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:x\"\nhosts = \"any\"\nnamespace = [{ storage = \"ram:1M\" }]\n";
        let config = subsystem::config::ConfigFile::parse("x", text).expect("a configuration").config;
        assert_eq!(huge_pages(&machine, Some(&config)).expect("a finding").level, Level::Warning);
    }
}
