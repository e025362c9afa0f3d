//! A device of a network namespace that the sysfs at `/sys` does not show. Needs root, `unshare`, `setpriv` and `ip`.

use std::process::Command;

use nvlane_adq::change::Change;
use nvlane_adq::kernel::Kernel as _;
use nvlane_adq::linux::{LinuxDevice, receive_queues_of_napi};
use nvlane_adq::state::TransmitQueue;

/// Runs one of the tests below in a network namespace of its own, whose `/sys` is still that of the machine. Skipped for
/// users who may not make one.
fn run_elsewhere(test: &str, prefix: &[&str]) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: a network namespace takes root");
        return;
    }
    let mut command = Command::new("unshare");
    command.arg("--net").args(prefix).arg(std::env::current_exe().unwrap());
    let output = command.args([test, "--exact", "--ignored", "--nocapture"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// A pair of virtual devices in this network namespace. Their names are no other test's: `/sys` has none of them.
fn add_devices() {
    let words =
        "link add far0 address 02:00:5e:10:00:01 numtxqueues 2 numrxqueues 2 type veth peer name far1";
    let added = Command::new("ip").args(words.split(' ')).status();
    assert!(added.unwrap().success());
}

#[test]
#[ignore = "runs in a network namespace of its own: the next test starts it"]
fn in_another_network_namespace() {
    add_devices();
    assert!(!std::path::Path::new("/sys/class/net/far0").exists(), "/sys is that of another namespace");
    let mut device = LinuxDevice::open("far0").unwrap();
    let facts = device.device().unwrap();
    assert_eq!((facts.identity.address.as_str(), facts.driver.as_str()), ("02:00:5e:10:00:01", "veth"));
    assert_eq!(receive_queues_of_napi("far0").unwrap().len(), 0);
    let before = device.state().unwrap();
    assert_eq!((before.transmit_queues.len(), before.receive_queue_count), (2, 2));
    // Settings that only sysfs has are read and written there.
    let users = TransmitQueue { cpus: "1".into(), ..before.transmit_queues[1].clone() };
    device.carry_out(&Change::TransmitQueue { queue: 1, users: users.clone() }).unwrap();
    assert_eq!(device.state().unwrap().transmit_queues[1], users);
    let known = LinuxDevice::open("eth7").unwrap_err().to_string();
    assert_eq!(known, "no interface eth7; there are far0, far1, lo");
}

#[test]
fn a_device_is_found_where_sys_shows_another_network_namespace() {
    run_elsewhere("in_another_network_namespace", &[]);
}

#[test]
#[ignore = "runs in a network namespace of its own: the next test starts it"]
fn in_another_network_namespace_without_the_privilege() {
    add_devices();
    for interface in ["far0", "lo"] {
        let refusal = LinuxDevice::open(interface).unwrap_err().to_string();
        assert!(refusal.contains("/sys shows the interfaces of another network namespace"), "{refusal}");
    }
    assert_eq!(receive_queues_of_napi("far0").unwrap().len(), 0, "for this netlink is enough");
}

#[test]
fn a_sysfs_of_another_network_namespace_is_refused_without_the_privilege_to_mount() {
    let dropped = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"];
    run_elsewhere("in_another_network_namespace_without_the_privilege", &dropped);
}
