//! Limits of the process: descriptors, locked memory, and those of its control group.

use linux::CoreList;
use reactor::Features;
use rustix::process::{Resource, getrlimit};
use subsystem::config::TargetConfig;

use super::Machine;
use super::finding::Finding;
use crate::human_size::HumanSize;
use crate::memory_limit;
use crate::serve::descriptor_count;

/// Locked memory with which a ring of the full size is made, bytes.
const LOCKED_BYTES: u64 = 8 << 20;

pub(super) fn examine(machine: &Machine, config: Option<&TargetConfig>, target: Option<u32>) -> Vec<Finding> {
    let usual = TargetConfig::default();
    let known = config.unwrap_or(&usual);
    // Those of a service are set by its unit.
    let of_target = |name| limit_of(machine, target?, name);
    let files = of_target("Max open files").unwrap_or_else(|| getrlimit(Resource::Nofile).maximum);
    let locked = of_target("Max locked memory").unwrap_or_else(|| Features::probe().locked_bytes_limit);
    let mut findings = vec![descriptors(files, descriptor_count(known)), locked_memory(locked)];
    findings.push(match config.and_then(memory_limit::warning) {
        Some(warning) => Finding::warning("memory", warning)
            .change("take smaller namespaces or buffers, or allow the service more memory")
            .by("systemctl set-property nvlane MemoryMax=SIZE"),
        None => Finding::ok("memory", "namespaces and buffers fit"),
    });
    let reactor_count = known.reactors.threads.count();
    findings.extend(processor(machine, reactor_count));
    findings.push(cores(reactor_count));
    findings
}

/// The greatest value of a limit of another process, `Some(None)` if it has none; `None` if that cannot be seen.
fn limit_of(machine: &Machine, pid: u32, name: &str) -> Option<Option<u64>> {
    let limits = machine.read(&format!("/proc/{pid}/limits"))?;
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().nth(1)? {
        "unlimited" => Some(None),
        number => Some(Some(number.parse().ok()?)),
    }
}

fn descriptors(allowed: Option<u64>, needed: u64) -> Finding {
    const CHECK: &str = "descriptors";
    let shown = allowed.map_or_else(|| "unlimited".to_owned(), |allowed| allowed.to_string());
    if allowed.is_none_or(|allowed| allowed >= needed) {
        return Finding::ok(CHECK, format!("{shown} (RLIMIT_NOFILE), {needed} needed at most"));
    }
    Finding::warning(
        CHECK,
        format!("{shown} (RLIMIT_NOFILE), and the limits of connections allow for {needed}"),
    )
    .because("connections beyond are not accepted")
    .change("allow more, or lower connections and memcached_connections in [limits]")
    .by(format!("ulimit -Hn {needed}    # LimitNOFILE={needed} in the unit: systemctl edit nvlane"))
}

fn locked_memory(allowed: Option<u64>) -> Finding {
    const CHECK: &str = "locked memory";
    match allowed {
        None => Finding::ok(CHECK, "unlimited (RLIMIT_MEMLOCK)"),
        Some(bytes) if bytes >= LOCKED_BYTES => Finding::ok(CHECK, format!("{} (RLIMIT_MEMLOCK)", HumanSize(bytes.into()))),
        Some(bytes) => Finding::note(CHECK, format!("{} (RLIMIT_MEMLOCK)", HumanSize(bytes.into())))
            .because("rings of io_uring are made smaller, buffers are not registered, and zero-copy sends become plain ones")
            .change("allow more")
            .by("ulimit -Hl unlimited    # LimitMEMLOCK=infinity in the unit: systemctl edit nvlane"),
    }
}

/// The processor time of the control group, against the reactors.
fn processor(machine: &Machine, reactor_count: usize) -> Option<Finding> {
    const CHECK: &str = "processor time";
    let groups = machine.read("/proc/self/cgroup")?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?.trim_end_matches('/');
    let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
    // Hundredths of a core.
    let of_group = |end: usize| {
        let text = machine.read(&format!("/sys/fs/cgroup{}/cpu.max", path.get(..end)?))?;
        let (quota, period) = text.split_once(' ')?;
        (quota.parse::<u64>().ok()?.checked_mul(100)?).checked_div(period.parse::<u64>().ok()?)
    };
    let Some(hundredths) = ends.filter_map(of_group).min() else {
        return Some(Finding::ok(CHECK, "not limited by a control group"));
    };
    let cores = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    if hundredths >= reactor_count as u64 * 100 {
        return Some(Finding::ok(CHECK, format!("{cores} cores for {reactor_count} reactors")));
    }
    Some(
        Finding::warning(CHECK, format!("the control group has {cores} cores for {reactor_count} reactors"))
            .because(
                "a reactor that has used up its time stands still for up to a period, and so do its commands",
            )
            .change("take fewer reactors, or allow the service more time")
            .by(format!("systemctl set-property nvlane CPUQuota={}%", reactor_count * 100)),
    )
}

fn cores(reactor_count: usize) -> Finding {
    const CHECK: &str = "cores";
    let allowed = CoreList::allowed().map_or(0, |list| list.cores().len());
    if reactor_count <= allowed || allowed == 0 {
        return Finding::ok(CHECK, format!("{allowed} for {reactor_count} reactors"));
    }
    Finding::warning(CHECK, format!("{allowed} for {reactor_count} reactors"))
        .because("reactors that share a core wait for each other")
        .change("take at most one reactor per core")
        .by(format!("nvlane ctl reactor set --count {allowed}    # and restart"))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::tests::machine;
    use super::*;

    #[test]
    fn limits_are_compared_with_what_is_needed() {
        assert_eq!(descriptors(Some(1024), 5000).level, Level::Warning);
        assert_eq!(descriptors(Some(5000), 5000).level, Level::Ok);
        assert_eq!(descriptors(None, 5000).level, Level::Ok);
        assert_eq!(locked_memory(Some(64 << 10)).level, Level::Note);
        assert_eq!(locked_memory(None).level, Level::Ok);
        let limits = "Limit Soft Limit Hard Limit Units\nMax open files            1024                 4096                 files\n\
            Max locked memory         unlimited            unlimited            bytes\n";
        let (_keep, machine) = machine(&[("proc/7/limits", limits)]);
        let of = |pid, name| limit_of(&machine, pid, name);
        assert_eq!(of(7, "Max open files"), Some(Some(4096)));
        assert_eq!(of(7, "Max locked memory"), Some(None));
        assert_eq!((of(8, "Max open files"), of(7, "Max files")), (None, None));
    }

    #[test]
    fn the_least_quota_of_all_groups_above_counts() {
        let files = [
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/cpu.max", "150000 100000"),
            ("sys/fs/cgroup/a/b/cpu.max", "max 100000"),
        ];
        let (_keep, machine_) = machine(&files);
        let finding = processor(&machine_, 2).expect("a finding");
        assert_eq!(finding.level, Level::Warning);
        assert!(finding.what.contains("1.50 cores for 2 reactors"), "{}", finding.what);
        assert_eq!(processor(&machine_, 1).expect("a finding").level, Level::Ok);
        let (_keep, machine_) = machine(&files[..1]);
        assert_eq!(processor(&machine_, 64).expect("a finding").level, Level::Ok);
    }
}
