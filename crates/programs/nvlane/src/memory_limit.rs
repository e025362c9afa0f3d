//! The memory that namespaces ask for, against what this process may have.

use std::fs;

use linux::machine_memory_bytes;
use subsystem::config::TargetConfig;

use crate::human_size::HumanSize;

/// Memory that the process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MemoryLimit {
    bytes: u64,
    /// Whether a control group sets it, not the size of the machine.
    is_of_group: bool,
}

/// A warning if namespaces and buffers may take more memory than this process may have.
pub(crate) fn warning(config: &TargetConfig) -> Option<String> {
    warning_within(config, limit()?)
}

fn warning_within(config: &TargetConfig, limit: MemoryLimit) -> Option<String> {
    let namespaces = config.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
    let namespaces_bytes: u128 =
        namespaces.map(|namespace| u128::from(namespace.storage.memory_bytes())).sum();
    let buffers_bytes = config.reactors.threads.count() as u128 * config.reactors.pool_bytes as u128;
    if namespaces_bytes == 0 || namespaces_bytes + buffers_bytes <= u128::from(limit.bytes) {
        return None;
    }
    let holder = if limit.is_of_group { "its control group allows" } else { "this machine has" };
    Some(format!(
        "namespaces may take {} of memory, and buffers {}, but {holder} {}: the kernel would end the target before \
         they are full",
        HumanSize(namespaces_bytes),
        HumanSize(buffers_bytes),
        HumanSize(limit.bytes.into()),
    ))
}

fn limit() -> Option<MemoryLimit> {
    let machine = machine_memory_bytes()?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group_files(&groups).filter_map(|path| parse_limit(&fs::read_to_string(path).ok()?)).min();
    Some(match group {
        Some(bytes) if bytes < machine => MemoryLimit { bytes, is_of_group: true },
        _ => MemoryLimit { bytes: machine, is_of_group: false },
    })
}

/// Files with the memory limits of the control groups in `/proc/self/cgroup` and of those above them, versions 2 and 1.
fn group_files(groups: &str) -> impl Iterator<Item = String> {
    groups.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or(""), fields.next().unwrap_or(""));
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return Vec::new(),
        };
        let path = path.trim_end_matches('/');
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        ends.map(|end| format!("{root}{}/{file}", &path[..end])).collect()
    })
}

/// A limit; `None` for `max`.
fn parse_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use subsystem::config::{NamespaceConfig, SubsystemConfig, Threads};

    use super::*;

    #[test]
    fn the_limits_of_all_groups_above_a_process_count() {
        let files = |groups| group_files(groups).collect::<Vec<_>>();
        assert_eq!(files("0::/\n"), ["/sys/fs/cgroup/memory.max"]);
        assert_eq!(
            files("0::/system.slice/nvlane.service\n"),
            [
                "/sys/fs/cgroup/memory.max",
                "/sys/fs/cgroup/system.slice/memory.max",
                "/sys/fs/cgroup/system.slice/nvlane.service/memory.max",
            ]
        );
        let first_version = "9:cpu,cpuacct:/a\n8:memory:/pod:7\n1:name=systemd:/init\n";
        assert_eq!(
            files(first_version),
            [
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/pod:7/memory.limit_in_bytes",
            ]
        );
        assert_eq!((parse_limit("max\n"), parse_limit("1073741824\n")), (None, Some(1 << 30)));
    }

    #[test]
    fn namespaces_that_ask_for_more_than_there_is_are_told() {
        let mut subsystem = SubsystemConfig::new("nqn.2026-01.io.nvlane:memory".parse().unwrap());
        let specs = ["ram:2G", "kv:ram:1G", "kv:file:/no/such/file?memory=512M&size=8G", "null:1T"];
        subsystem.namespaces = specs.map(|spec| NamespaceConfig::new(spec.parse().unwrap())).into();
        let mut config = TargetConfig { subsystems: vec![subsystem], ..TargetConfig::default() };
        config.reactors.threads = Threads::Count(2);
        config.reactors.pool_bytes = 256 << 20;
        let exact = 4_u64 << 30;
        assert_eq!(warning_within(&config, MemoryLimit { bytes: exact, is_of_group: false }), None);
        let told =
            |is_of_group| warning_within(&config, MemoryLimit { bytes: exact - 1, is_of_group }).unwrap();
        assert!(
            told(false).contains("take 3.50 GiB of memory, and buffers 512 MiB, but this machine has 3.99")
        );
        assert!(told(true).contains("control group"));
        // Without namespaces in memory, the target takes the memory that it needs to run.
        config.subsystems[0].namespaces.drain(..3);
        assert_eq!(warning_within(&config, MemoryLimit { bytes: 1 << 20, is_of_group: true }), None);
    }
}
