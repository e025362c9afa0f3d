//! The running target, through its control socket, and the ports that one would need.

use serde_json::Value;

use super::finding::Finding;
use super::network::is_listened_at;
use super::{Subject, shell};
use crate::human_size::HumanSize;

pub(super) fn examine(subject: &mut Subject) -> Vec<Finding> {
    const CHECK: &str = "target";
    let mut findings = Vec::new();
    let is_running = match &subject.target {
        None => {
            findings.push(
                Finding::note(CHECK, "no control socket is known: a running target was not looked at")
                    .by("nvlane doctor --control SOCKET"),
            );
            false
        }
        Some((socket, Err(why))) => {
            let finding = Finding::note(CHECK, format!("no target answers: {why}"));
            findings.push(
                finding
                    .because("it may have another socket, or does not run")
                    .by(format!("ls -l {}", shell(socket))),
            );
            false
        }
        Some((_, Ok(_))) => true,
    };
    if is_running {
        let pid = subject.pid().map_or_else(String::new, |pid| format!(", process {pid}"));
        match subject.call("state") {
            Ok(state) => {
                findings.push(Finding::ok(CHECK, format!("it runs{pid}")));
                findings.extend(of_state(&state));
                // A target of an earlier version has none.
                findings.extend(subject.call("pool_list").iter().flat_map(of_pools));
            }
            Err(why) => findings.push(
                Finding::error(CHECK, format!("it runs{pid}, and does not answer: {why}"))
                    .because("a reactor may hang in storage")
                    .change("look for what it waits for")
                    .by("cat /proc/$(pidof nvlane)/task/*/stack    # as root"),
            ),
        }
    } else {
        findings.extend(ports(subject));
    }
    findings
}

/// Ports of the configuration that another process has.
fn ports(subject: &Subject) -> Vec<Finding> {
    const CHECK: &str = "ports";
    let Some(config) = subject.config() else { return Vec::new() };
    let memcached = config.memcached.iter().filter_map(|listener| listener.address.ip());
    let all = config
        .listeners
        .iter()
        .map(|listener| listener.address)
        .chain(memcached)
        .chain(config.metrics.address);
    let used = all.filter(|address| address.port() != 0 && is_listened_at(&subject.machine, *address));
    let finding = |address: std::net::SocketAddr| {
        Finding::note(CHECK, format!("a process listens at {address}"))
            .because("if it is not this target, the target does not start")
            .change("end that process, or take another port")
            .by(format!("ss -ltnp 'sport = :{}'", address.port()))
    };
    let found: Vec<Finding> = used.map(finding).collect();
    if found.is_empty() { vec![Finding::ok(CHECK, "those of the configuration are free")] } else { found }
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn of_state(state: &Value) -> Vec<Finding> {
    let mut findings = Vec::new();
    for subsystem in list(state, "subsystems") {
        for namespace in list(subsystem, "namespaces") {
            let name =
                format!("{} namespace {}", subsystem["nqn"].as_str().unwrap_or("?"), namespace["nsid"]);
            if let Some(closed) = namespace.get("closed").filter(|closed| !closed.is_null()) {
                let why = closed.as_str().map_or_else(|| closed.to_string(), str::to_owned);
                findings.push(
                    Finding::error("namespace", format!("{name} is closed: {why}"))
                        .because("every command on it ends with Namespace Not Ready")
                        .change("repair its storage, then have it opened again")
                        .by("nvlane ctl reload"),
                );
            } else if namespace["write_protected"] == true {
                findings.push(
                    Finding::error("namespace", format!("{name}: its storage has become read-only"))
                        .because("writes fail; a file system turns read-only when its disk fails")
                        .change("repair its storage, then have it opened again")
                        .by("nvlane ctl reload"),
                );
            } else if namespace["full"] == true {
                findings.push(
                    Finding::error("namespace", format!("{name}: its storage has no space left"))
                        .because("writes to blocks without space end with Capacity Exceeded")
                        .change("make room, or grow the file system")
                        .by("df -h    # and nvlane ctl pool list"),
                );
            }
        }
    }
    let waited: u64 =
        list(state, "reactors").filter_map(|reactor| reactor["buffers"]["waited_count"].as_u64()).sum();
    if waited > 0 {
        findings.push(
            Finding::note("buffers", format!("{waited} commands have waited for a buffer since the start"))
                .because("more data was in flight than pool has buffers for")
                .change("take a larger pool, if the number grows")
                .by("nvlane ctl reactor set --pool 256M    # and restart"),
        );
    }
    if let Some(error) = state["audit"]["error"].as_str() {
        findings.push(
            Finding::error("audit log", format!("it cannot be written: {error}"))
                .because("lines about connects and refusals are lost")
                .change("make room, or give the target's user the right to write")
                .by("kill -USR2 $(pidof nvlane)    # opens it again"),
        );
    }
    findings
}

/// Pools of volumes, as the target lists them.
fn of_pools(pools: &Value) -> Vec<Finding> {
    let mut findings = Vec::new();
    for pool in list(pools, "objects") {
        let name = pool["name"].as_str().unwrap_or("?");
        if let Some(error) = pool["error"].as_str() {
            findings.push(
                Finding::error("pool", format!("{name} cannot be read: {error}"))
                    .because("its volumes cannot be listed, made or changed")
                    .change("mount its file system, or give the target's user its directory")
                    .by("nvlane ctl pool list"),
            );
        } else if pool["is_low"] == true {
            let [left, total] =
                ["left", "total"].map(|key| HumanSize(pool[key].as_u64().unwrap_or(0).into()));
            findings.push(
                Finding::warning("pool", format!("{name} has {left} of {total} left"))
                    .because("writes end with Capacity Exceeded once there is none")
                    .change("delete volumes or snapshots, have hosts deallocate (fstrim), or grow the file system or quota")
                    .by("nvlane ctl volume list; nvlane ctl snapshot list"),
            );
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_closed_full_or_failing_is_found() {
        let state = json!({
            "subsystems": [{ "nqn": "nqn.x", "namespaces": [
                { "nsid": 1, "closed": null }, { "nsid": 2, "closed": "a flush has failed" },
                { "nsid": 3, "closed": null, "write_protected": false, "full": true },
                { "nsid": 4, "closed": null, "write_protected": true, "full": false },
            ] }],
            "reactors": [{ "buffers": { "waited_count": 3 } }, { "buffers": { "waited_count": 4 } }],
            "audit": { "error": "No space left on device" },
        });
        let shown: String = of_state(&state).iter().map(ToString::to_string).collect();
        for text in [
            "error    namespace: nqn.x namespace 2 is closed: a flush has failed",
            "error    namespace: nqn.x namespace 3: its storage has no space left",
            "error    namespace: nqn.x namespace 4: its storage has become read-only",
            "7 commands have waited",
            "No space left",
        ] {
            assert!(shown.contains(text), "{shown}");
        }
        assert!(!shown.contains("namespace 1") && of_state(&json!({})).is_empty());
    }

    #[test]
    fn pools_with_little_space_and_without_their_directory_are_found() {
        let pools = json!({ "objects": [
            { "name": "fast", "error": null, "left": 20480, "total": 1 << 30, "is_low": true },
            { "name": "slow", "error": null, "left": 1 << 30, "total": 1 << 30, "is_low": false },
            { "name": "gone", "error": "No such file or directory" },
        ] });
        let shown: String = of_pools(&pools).iter().map(ToString::to_string).collect();
        for text in [
            "warning  pool: fast has 20 KiB of 1 GiB left",
            "error    pool: gone cannot be read: No such file",
        ] {
            assert!(shown.contains(text), "{shown}");
        }
        assert!(!shown.contains("slow") && of_pools(&json!({})).is_empty());
    }
}
