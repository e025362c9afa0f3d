//! SPDK's methods, as its own client calls them.

use serde_json::{Value, json};

use super::{Fixture, TOML, specs};

const B: &str = "nqn.2026-01.io.nvlane:b";

fn listen(port: &str) -> Value {
    json!({ "trtype": "tcp", "adrfam": "ipv4", "traddr": "127.0.0.1", "trsvcid": port })
}

#[test]
fn a_subsystem_is_made_and_removed_with_spdks_names() {
    let mut fixture = Fixture::new();
    fixture.done("nvmf_create_transport", json!({ "trtype": "TCP", "no_srq": false, "c2h_success": true, "zcopy": false, "max_io_size": 131_072 }));
    let malloc =
        json!({ "num_blocks": 2048, "block_size": 512, "md_interleave": false, "dif_is_head_of_md": false });
    assert_eq!(fixture.done("bdev_malloc_create", malloc), "Malloc0");
    assert_eq!(
        fixture.done("bdev_null_create", json!({ "name": "N", "num_blocks": 256, "block_size": 4096 })),
        "N"
    );
    fixture.done("nvmf_create_subsystem", json!({ "nqn": B, "serial_number": "S1", "allow_any_host": false, "ana_reporting": false, "passthrough": false, "enable_nssr": false, "max_namespaces": 32 }));
    let add = |bdev: &str| json!({ "nqn": B, "namespace": { "bdev_name": bdev, "no_auto_visible": false } });
    assert_eq!(fixture.done("nvmf_subsystem_add_ns", add("Malloc0")), 1);
    assert_eq!(fixture.done("nvmf_subsystem_add_ns", add("N")), 2);
    assert!(fixture.refused("nvmf_subsystem_add_ns", add("N")).message.contains("is a namespace already"));
    fixture.done(
        "nvmf_subsystem_add_listener",
        json!({ "nqn": B, "listen_address": listen("4555"), "secure_channel": false }),
    );
    fixture.done("nvmf_subsystem_add_host", json!({ "nqn": B, "host": "nqn.2026-01.io.nvlane:h" }));
    let shown = fixture.done("nvmf_get_subsystems", json!({}));
    assert_eq!(shown[0]["subtype"], "Discovery");
    assert_eq!(shown[2]["nqn"], B);
    assert_eq!(shown[2]["serial_number"], "S1");
    assert_eq!(shown[2]["allow_any_host"], false);
    assert_eq!(shown[2]["hosts"], json!([{ "nqn": "nqn.2026-01.io.nvlane:h" }]));
    assert_eq!(shown[2]["namespaces"][0]["bdev_name"], "Malloc0");
    let ports: Vec<_> = shown[2]["listen_addresses"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|at| at["trsvcid"].clone())
        .collect();
    assert_eq!(ports, ["4420", "4555"]);
    let bdevs = fixture.done("bdev_get_bdevs", json!({}));
    let names: Vec<_> = bdevs.as_array().expect("a list").iter().map(|bdev| bdev["name"].clone()).collect();
    assert_eq!(names, ["Malloc0", "N", "nqn.2026-01.io.nvlane:a/1", "nqn.2026-01.io.nvlane:a/2"]);
    assert_eq!(
        (&bdevs[0]["num_blocks"], &bdevs[0]["block_size"], &bdevs[0]["claimed"]),
        (&json!(2048), &json!(512), &json!(true))
    );
    // All of it is there after a restart, and has the same identities.
    let (restarted, dropped) = fixture.restarted(TOML);
    assert_eq!((restarted.config(), dropped.len()), (fixture.control.config(), 0));
    assert_eq!(restarted.names, fixture.control.names);
    fixture.done("nvmf_subsystem_allow_any_host", json!({ "nqn": B, "allow_any_host": true }));
    fixture.done("nvmf_subsystem_allow_any_host", json!({ "nqn": B, "allow_any_host": false }));
    fixture.done("nvmf_subsystem_remove_ns", json!({ "nqn": B, "nsid": 1 }));
    fixture.done("bdev_malloc_delete", json!({ "name": "Malloc0" }));
    // A bdev takes its namespace along.
    fixture.done("bdev_null_delete", json!({ "name": "N" }));
    assert_eq!(specs(fixture.control.config()), ["ram:1M", "null:1T"]);
    fixture.done("nvmf_subsystem_remove_listener", json!({ "nqn": B, "listen_address": listen("4555") }));
    fixture.done("nvmf_delete_subsystem", json!({ "nqn": B }));
    assert_eq!(fixture.control.differences(), []);
    assert!(fixture.control.names.is_empty());
}

#[test]
fn parameters_that_cannot_be_followed_are_refused() {
    let mut fixture = Fixture::new();
    for (method, params, code, message) in [
        ("nvmf_create_transport", json!({ "trtype": "RDMA" }), -32602, "nvlane speaks TCP"),
        (
            "nvmf_create_transport",
            json!({ "trtype": "TCP", "dif_insert_or_strip": true }),
            -32602,
            "dif_insert_or_strip: nvlane does not offer this",
        ),
        ("nvmf_create_subsystem", json!({ "nqn": B, "ana_reporting": true }), -32602, "ana_reporting"),
        (
            "nvmf_create_subsystem",
            json!({ "nqn": B, "serial_numbr": "x" }),
            -32602,
            "did you mean serial_number?",
        ),
        ("nvmf_create_subsystem", json!({ "nqn": "disks" }), -32602, "subsystem.nqn"),
        ("nvmf_delete_subsystem", json!({ "nqn": B }), -19, "no subsystem"),
        (
            "nvmf_subsystem_add_ns",
            json!({ "nqn": "nqn.2026-01.io.nvlane:a", "namespace": { "bdev_name": "X" } }),
            -19,
            "no bdev X",
        ),
        (
            "nvmf_subsystem_remove_listener",
            json!({ "nqn": "nqn.2026-01.io.nvlane:a", "listen_address": listen("4420") }),
            -32602,
            "leads to all subsystems",
        ),
        (
            "nvmf_subsystem_add_listener",
            json!({ "nqn": "nqn.2026-01.io.nvlane:a", "listen_address": { "trtype": "TCP", "traddr": "host" } }),
            -32602,
            "no IP address",
        ),
        (
            "nvmf_subsystem_add_host",
            json!({ "nqn": "nqn.2026-01.io.nvlane:a", "host": "h", "dhchap_key": "k" }),
            -32602,
            "keyring_file_add_key",
        ),
        ("bdev_malloc_create", json!({ "num_blocks": 0, "block_size": 512 }), -32602, "no size"),
        (
            "bdev_malloc_create",
            json!({ "num_blocks": 8, "block_size": 512, "md_size": 8 }),
            -32602,
            "md_size",
        ),
        ("bdev_malloc_create", json!({ "num_blocks": 8, "block_size": 500 }), -32602, "lba"),
        ("bdev_malloc_create", json!({ "num_blocks": u64::MAX, "block_size": 512 }), -32602, "no size"),
        ("bdev_aio_create", json!({ "filename": "/no/such", "name": "A" }), -32602, "No such file"),
        ("bdev_get_bdevs", json!({ "name": "X" }), -19, "no bdev X"),
    ] {
        let error = fixture.refused(method, params.clone());
        assert!(error.message.contains(message), "{method} {params}: {}", error.message);
        assert_eq!(error.code, code, "{method}: {}", error.message);
    }
}

#[test]
fn limits_of_a_bdev_are_those_of_its_namespace() {
    let mut fixture = Fixture::new();
    let limit = |name: &str, values: Value| {
        let mut params = json!({ "name": name });
        params.as_object_mut().expect("a table").extend(values.as_object().expect("a table").clone());
        params
    };
    let shown = |fixture: &mut Fixture, name: &str| {
        fixture.done("bdev_get_bdevs", json!({ "name": name }))[0]["assigned_rate_limits"].clone()
    };
    fixture.done("bdev_malloc_create", json!({ "name": "M", "num_blocks": 2048, "block_size": 512 }));
    fixture
        .done("bdev_set_qos_limit", limit("M", json!({ "rw_ios_per_sec": 20_000, "w_mbytes_per_sec": 100 })));
    let nqn = "nqn.2026-01.io.nvlane:a";
    fixture.done("nvmf_subsystem_add_ns", json!({ "nqn": nqn, "namespace": { "bdev_name": "M" } }));
    let limits = |fixture: &Fixture, at: usize| fixture.control.config().subsystems[0].namespaces[at].limits;
    assert_eq!(
        (limits(&fixture, 2).iops, limits(&fixture, 2).write_bytes_per_s),
        (Some(20_000), Some(100 << 20))
    );
    assert_eq!(
        shown(&mut fixture, "M"),
        json!({ "rw_ios_per_sec": 20_000, "rw_mbytes_per_sec": 0, "r_mbytes_per_sec": 0, "w_mbytes_per_sec": 100 })
    );
    let (restarted, dropped) = fixture.restarted(TOML);
    assert_eq!((restarted.config(), dropped.len()), (fixture.control.config(), 0));
    assert_eq!(restarted.names, fixture.control.names);
    // 0 is no limit; what is not named stays.
    fixture.done("bdev_set_qos_limit", limit("M", json!({ "rw_ios_per_sec": 0 })));
    assert_eq!((limits(&fixture, 2).iops, limits(&fixture, 2).write_bytes_per_s), (None, Some(100 << 20)));
    // One that was configured otherwise.
    fixture.done("bdev_set_qos_limit", limit("nqn.2026-01.io.nvlane:a/2", json!({ "r_mbytes_per_sec": 5 })));
    assert_eq!(limits(&fixture, 1).read_bytes_per_s, Some(5 << 20));
    assert_eq!(fixture.refused("bdev_set_qos_limit", limit("X", json!({ "rw_ios_per_sec": 1 }))).code, -19);
    let none = fixture.refused("bdev_set_qos_limit", limit("M", json!({})));
    assert!(none.message.contains("rw_ios_per_sec"), "{}", none.message);
    fixture.done("bdev_malloc_delete", json!({ "name": "M" }));
    fixture.done("bdev_set_qos_limit", limit("nqn.2026-01.io.nvlane:a/2", json!({ "r_mbytes_per_sec": 0 })));
    assert_eq!(fixture.control.differences(), []);
    assert!(fixture.control.names.is_empty());
}

#[test]
fn the_list_of_hosts_counts_again_when_not_any_host_may_connect() {
    let mut fixture = Fixture::new();
    let nqn = "nqn.2026-01.io.nvlane:a";
    let allow = |is_any: bool| json!({ "nqn": nqn, "allow_any_host": is_any });
    let hosts = |fixture: &mut Fixture| {
        let shown = fixture.done("nvmf_get_subsystems", json!({ "nqn": nqn }));
        (shown[0]["allow_any_host"] == true, shown[0]["hosts"].clone())
    };
    fixture.done("nvmf_subsystem_allow_any_host", allow(true));
    assert_eq!(hosts(&mut fixture), (true, json!([{ "nqn": "h1" }])));
    fixture.done("nvmf_subsystem_add_host", json!({ "nqn": nqn, "host": "h2" }));
    fixture.refused("nvmf_subsystem_add_host", json!({ "nqn": nqn, "host": "h2" }));
    fixture.done("nvmf_subsystem_remove_host", json!({ "nqn": nqn, "host": "h1" }));
    fixture.done("nvmf_subsystem_allow_any_host", allow(true));
    assert_eq!(hosts(&mut fixture), (true, json!([{ "nqn": "h2" }])));
    fixture.done("nvmf_subsystem_allow_any_host", allow(false));
    assert_eq!(hosts(&mut fixture), (false, json!([{ "nqn": "h2" }])));
    assert!(
        fixture
            .refused("nvmf_subsystem_remove_host", json!({ "nqn": nqn, "host": "h1" }))
            .message
            .contains("no host h1")
    );
    assert!(fixture.control.names.is_empty());
}

#[test]
fn keys_are_named_by_their_files() {
    let mut fixture = Fixture::new();
    fixture.done("keyring_file_add_key", json!({ "name": "k", "path": "/etc/k" }));
    fixture.done(
        "nvmf_subsystem_add_host",
        json!({ "nqn": "nqn.2026-01.io.nvlane:a", "host": "h2", "dhchap_key": "k" }),
    );
    let host = fixture.done("show", json!({ "noun": "key", "name": "h2" }));
    assert_eq!(host["values"]["dhchap_secret"], "file:/etc/k");
    fixture.done("nvmf_subsystem_remove_host", json!({ "nqn": "nqn.2026-01.io.nvlane:a", "host": "h2" }));
    fixture.done("keyring_file_remove_key", json!({ "name": "k" }));
    assert_eq!(fixture.control.differences(), []);
}

#[test]
fn a_client_learns_what_is_served() {
    let mut fixture = Fixture::new();
    let methods = fixture.done("rpc_get_methods", json!({ "current": false, "include_aliases": false }));
    assert!(methods.as_array().expect("a list").contains(&json!("nvmf_create_subsystem")));
    assert!(
        fixture.done("spdk_get_version", json!({}))["version"]
            .as_str()
            .expect("text")
            .starts_with("nvlane v")
    );
    assert_eq!(fixture.done("framework_wait_init", json!({})), true);
    assert_eq!(fixture.done("nvmf_get_transports", json!({}))[0]["trtype"], "TCP");
    let listeners = fixture.done("nvmf_subsystem_get_listeners", json!({ "nqn": "nqn.2026-01.io.nvlane:a" }));
    assert_eq!(listeners[0]["address"]["trsvcid"], "4420");
}
