//! Configurations of other targets.

use subsystem::config::ConfigFile;

use crate::import::import;

const NVMETCLI: &str = r#"{
  "hosts": [{ "nqn": "nqn.2014-08.org.nvmexpress:uuid:1", "dhchap_key": "DHHC-1:00:c2VjcmV0:" }],
  "ports": [
    { "addr": { "adrfam": "ipv4", "traddr": "192.0.2.1", "treq": "not specified", "trsvcid": "4420", "trtype": "tcp" },
      "portid": 1, "referrals": [{ "addr": { "traddr": "192.0.2.2", "trsvcid": "8009", "trtype": "tcp" }, "enable": 1, "name": "r" }],
      "subsystems": ["nqn.2026-01.io.nvlane:old"] },
    { "addr": { "traddr": "192.0.2.1", "trsvcid": "4420", "trtype": "rdma" }, "portid": 2, "subsystems": [] }
  ],
  "subsystems": [{
    "allowed_hosts": ["nqn.2014-08.org.nvmexpress:uuid:1"],
    "attr": { "allow_any_host": "0", "serial": "0123456789", "version": "1.3", "model": "Linux", "cntlid_min": "1", "cntlid_max": "100" },
    "namespaces": [
      { "ana_grpid": 2, "device": { "nguid": "ef90689c-6c46-d44c-89c1-4067801309a8", "path": "/dev/nvme0n1", "uuid": "00000000-0000-0000-0000-000000000000" }, "enable": 1, "nsid": 1 },
      { "device": { "path": "/srv/a?b.img", "uuid": "91fdba0d-f87b-4c25-b80f-db7be1418b9e" }, "enable": 1, "nsid": 3 },
      { "device": { "path": "/dev/sdz" }, "enable": 0, "nsid": 4 }
    ],
    "nqn": "nqn.2026-01.io.nvlane:old"
  }]
}"#;

#[test]
fn a_configuration_of_nvmetcli_is_carried_over() {
    let imported = import(NVMETCLI).expect("imported");
    let config = ConfigFile::parse("x", &imported.toml).unwrap_or_else(|errors| panic!("{errors}")).config;
    assert_eq!(config.listeners[0].address.to_string(), "192.0.2.1:4420");
    assert_eq!(config.listeners.len(), 1);
    assert_eq!(config.discovery.referrals.len(), 1);
    let subsystem = &config.subsystems[0];
    assert_eq!((subsystem.serial.as_deref(), subsystem.model.as_str()), (Some("0123456789"), "Linux"));
    assert_eq!(subsystem.cntlids, 1..=100);
    let storage: Vec<String> =
        subsystem.namespaces.iter().map(|namespace| namespace.storage.to_string()).collect();
    assert_eq!(storage, ["device:/dev/nvme0n1", "file:/srv/a%3Fb.img"]);
    assert!(subsystem.namespaces[0].nguid.is_some() && subsystem.namespaces[0].uuid.is_none());
    assert!(subsystem.namespaces[1].uuid.is_some());
    let left_out = imported.left_out.join("\n");
    for part in [
        "secret of host",
        "port 2: transport rdma",
        "namespace 1: ana_grpid",
        "namespace 4: it is not enabled",
    ] {
        assert!(left_out.contains(part), "{part}: {left_out}");
    }
    assert_eq!(imported.left_out.len(), 4);
    assert!(!left_out.contains("c2VjcmV0") && !imported.toml.contains("c2VjcmV0"));
}

const SPDK: &str = r#"{
  "subsystems": [
    { "subsystem": "keyring", "config": [{ "method": "keyring_file_add_key", "params": { "name": "k", "path": "/etc/k" } }] },
    { "subsystem": "bdev", "config": [
      { "method": "bdev_set_options", "params": { "bdev_io_pool_size": 65535 } },
      { "method": "bdev_malloc_create", "params": { "name": "Malloc0", "num_blocks": 131072, "block_size": 512, "physical_block_size": 512, "uuid": "91fdba0d-f87b-4c25-b80f-db7be1418b9e", "optimal_io_boundary": 0, "md_size": 0, "dif_type": 0, "dif_is_head_of_md": false } },
      { "method": "bdev_rbd_create", "params": { "name": "Rbd0" } },
      { "method": "bdev_wait_for_examine" }
    ] },
    { "subsystem": "nvmf", "config": [
      { "method": "nvmf_set_config", "params": { "discovery_filter": "match_any" } },
      { "method": "nvmf_create_transport", "params": { "trtype": "TCP", "max_queue_depth": 128, "c2h_success": true } },
      { "method": "nvmf_create_subsystem", "params": { "nqn": "nqn.2026-01.io.nvlane:spdk", "allow_any_host": false, "serial_number": "S", "model_number": "M", "max_namespaces": 32, "min_cntlid": 1, "max_cntlid": 65519, "ana_reporting": true } },
      { "method": "nvmf_subsystem_add_host", "params": { "nqn": "nqn.2026-01.io.nvlane:spdk", "host": "nqn.2026-01.io.nvlane:h", "dhchap_key": "k" } },
      { "method": "nvmf_subsystem_add_ns", "params": { "nqn": "nqn.2026-01.io.nvlane:spdk", "namespace": { "nsid": 2, "bdev_name": "Malloc0", "nguid": "91FDBA0DF87B4C25B80FDB7BE1418B9E", "uuid": "91fdba0d-f87b-4c25-b80f-db7be1418b9e", "no_auto_visible": false, "anagrpid": 1 } } },
      { "method": "nvmf_subsystem_add_ns", "params": { "nqn": "nqn.2026-01.io.nvlane:spdk", "namespace": { "nsid": 3, "bdev_name": "Rbd0" } } },
      { "method": "nvmf_subsystem_add_listener", "params": { "nqn": "nqn.2026-01.io.nvlane:spdk", "listen_address": { "trtype": "TCP", "adrfam": "IPv4", "traddr": "192.0.2.1", "trsvcid": "4420" }, "secure_channel": false } }
    ] }
  ]
}"#;

#[test]
fn a_configuration_of_spdk_is_carried_over() {
    let imported = import(SPDK).expect("imported");
    let config = ConfigFile::parse("x", &imported.toml).unwrap_or_else(|errors| panic!("{errors}")).config;
    assert_eq!(config.listeners[0].address.to_string(), "192.0.2.1:4420");
    let subsystem = &config.subsystems[0];
    assert_eq!((subsystem.serial.as_deref(), subsystem.model.as_str()), (Some("S"), "M"));
    assert_eq!(subsystem.authentication.hosts.len(), 1);
    let storage: Vec<String> =
        subsystem.namespaces.iter().map(|namespace| namespace.storage.to_string()).collect();
    assert_eq!(storage, ["ram:64M?lba=512&uuid=91fdba0d-f87b-4c25-b80f-db7be1418b9e"]);
    assert_eq!(subsystem.namespaces[0].nsid.map(wire::id::Nsid::get), Some(2));
    let left_out = imported.left_out.join("\n");
    for part in [
        "bdev_rbd_create: nvlane has nothing",
        "without ana_reporting = true",
        "nvmf_subsystem_add_ns nqn.2026-01.io.nvlane:spdk: no bdev Rbd0",
    ] {
        assert!(left_out.contains(part), "{part}: {left_out}");
    }
    assert_eq!(imported.left_out.len(), 3, "{left_out}");
}

#[test]
fn other_files_are_refused() {
    for (text, why) in [
        ("nonsense", "it is no JSON"),
        ("{}", "it is no configuration of nvmetcli"),
        ("[]", "it is no configuration of nvmetcli"),
        (
            "{\"ports\":[],\"subsystems\":[{\"nqn\":\"disks\"}]}",
            "no subsystem could be carried over\nsubsystem disks: ",
        ),
    ] {
        assert!(import(text).expect_err("refused").contains(why), "{text}");
    }
}
