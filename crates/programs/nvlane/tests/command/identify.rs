//! `nvlane identify`: a controller and its namespaces.

use crate::support::Target;

fn target() -> Target {
    Target::serving(&["ram:64M", "ram:16M?lba=512&uuid=11111111-2222-4333-8444-555555555555&readonly"])
}

/// The value of a field in the section of the output with this title.
fn fact<'a>(text: &'a str, title: &str, name: &str) -> &'a str {
    let part = &text[text.find(title).unwrap_or_else(|| panic!("{title} in {text}"))..];
    let line = part.lines().find(|line| line.trim_start().starts_with(&format!("{name}  ")));
    line.unwrap_or_else(|| panic!("{name} in {part}")).trim_start()[name.len()..].trim()
}

#[test]
fn the_text_tells_controller_and_namespaces() {
    let target = target();
    let text = target.ask(&["identify"]).text();
    assert_eq!(fact(&text, "Controller", "Subsystem"), target.nqn());
    assert_eq!(fact(&text, "Controller", "Model"), "nvlane");
    assert_eq!(fact(&text, "Controller", "Largest transfer"), "1 MiB");
    assert!(fact(&text, "Controller", "NVM commands").contains("write zeroes"));
    assert_eq!(fact(&text, "Namespace 1", "Size"), "64 MiB (16384 blocks of 4096 bytes)");
    assert_eq!(fact(&text, "Namespace 1", "Write protected"), "no");
    assert_eq!(fact(&text, "Namespace 2", "Size"), "16 MiB (32768 blocks of 512 bytes)");
    assert_eq!(fact(&text, "Namespace 2", "UUID"), "11111111-2222-4333-8444-555555555555");
    assert_eq!(fact(&text, "Namespace 2", "Write protected"), "yes");
    let link = "/dev/disk/by-id/nvme-uuid.11111111-2222-4333-8444-555555555555";
    assert_eq!(fact(&text, "Namespace 2", "Disk on Linux hosts"), link);
}

#[test]
fn json_has_the_names_that_scripts_know() {
    let target = target();
    // Digests on every PDU must not change the output.
    let report = target.ask(&["identify", "-H", "-I", "-o", "json"]).json();
    let controller = &report["controller"];
    assert_eq!((&controller["mn"], &controller["subnqn"]), (&"nvlane".into(), &target.nqn().into()));
    assert_eq!((&controller["sqes"], &controller["cqes"]), (&0x66.into(), &0x44.into()));
    assert_eq!(controller["transfer_bytes_max"], 1 << 20);
    assert!(controller["io_queues"].as_u64().unwrap() > 0);
    let namespaces = report["namespaces"].as_array().unwrap();
    assert_eq!(namespaces.len(), 2);
    let second = &namespaces[1];
    assert_eq!((&second["nsid"], &second["nsze"]), (&2.into(), &32768.into()));
    assert_eq!(second["lbafs"][0]["ds"], 9);
    assert_eq!(second["size_bytes"], 16 << 20);
    assert_eq!(second["uuid"], "11111111-2222-4333-8444-555555555555");
    assert_eq!(second["nguid"].as_str().unwrap().len(), 32);
}

/// Only block namespaces become disks.
#[test]
fn json_has_the_link_that_hosts_make_to_a_disk() {
    let target = Target::serving(&["kv:ram:64M", "ram:1M"]);
    let report = target.ask(&["identify", "-o", "json"]).json();
    let [keys, blocks] = &report["namespaces"].as_array().unwrap()[..] else { panic!("two: {report}") };
    let link = format!("/dev/disk/by-id/nvme-uuid.{}", blocks["uuid"].as_str().unwrap());
    assert_eq!((keys.get("by_id"), &blocks["by_id"]), (None, &link.as_str().into()));
    let list = target.ask(&["list", "-o", "json"]).json();
    let [keys, blocks] = &list["Devices"].as_array().unwrap()[..] else { panic!("two: {list}") };
    assert_eq!((keys.get("ById"), &blocks["ById"]), (None, &link.as_str().into()));
}

#[test]
fn one_namespace_is_chosen_by_option_or_address() {
    let target = target();
    let by_option = target.ask(&["identify", "-o", "json", "--namespace", "2"]).json();
    let address = format!("{}?ns=2", target.address);
    let by_address = crate::support::run(["identify", "-o", "json", &address]).json();
    assert_eq!(by_option["namespaces"], by_address["namespaces"]);
    assert_eq!(by_option["namespaces"][0]["nsid"], 2);
    assert_eq!(by_option["namespaces"].as_array().unwrap().len(), 1);
}

#[test]
fn a_discovery_controller_is_one_too() {
    let target = Target::serving(&["ram:1M"]);
    let address = format!("{}/nqn.2014-08.org.nvmexpress.discovery", target.place());
    let report = crate::support::run(["identify", "-o", "json", &address]).json();
    assert_eq!(report["controller"]["cntrltype"], 2);
    assert_eq!(report["namespaces"].as_array().unwrap().len(), 0);
}
