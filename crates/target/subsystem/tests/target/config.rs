//! The configuration file: its meaning, and the errors reported for mistakes.

use nvlane_subsystem::access::{HostRights, Right};
use nvlane_subsystem::authentication::RefusedAgain;
use nvlane_subsystem::config::{
    ConfigFile, ListenerConfig, NamespaceConfig, SecretSources, SubsystemConfig, TargetConfig, Threads,
    TimeoutConfig, TlsPolicy,
};
use nvlane_subsystem::identity::TargetIdentity;
use nvlane_subsystem::machine::Machine;
use nvlane_subsystem::rate_limit::RateLimits;
use nvlane_subsystem::subsystem::Access;
use proptest::prelude::*;
use proto::receive::Receive;
use proto::zero_copy::Policy as ZeroCopy;
use reactor::EngineKind;
use wire::id::Nsid;

const EXAMPLE: &str = include_str!("../../examples/nvlane.toml");

fn config(text: &str) -> TargetConfig {
    ConfigFile::parse("nvlane.toml", text).unwrap_or_else(|errors| panic!("{errors}")).config
}

fn errors(text: &str) -> String {
    ConfigFile::parse("nvlane.toml", text).expect_err("something is wrong").to_string()
}

/// The text with every commented key in force that has a value.
fn uncommented(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let key = line.strip_prefix("# ").filter(|rest| {
            let name = rest.split_once(" = ").map_or("", |(name, _)| name);
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        });
        let is_table = line.starts_with("# [[");
        let is_placeholder = line.contains("\"...\"");
        let is_alternative = line.contains("cores = ");
        match key {
            Some(key) if !is_placeholder && !is_alternative => lines.push(key.to_owned()),
            _ if is_table => lines.push(line[2..].to_owned()),
            _ => lines.push(line.to_owned()),
        }
    }
    lines.join("\n")
}

#[test]
fn the_example_says_what_it_means() {
    let config = config(EXAMPLE);
    assert_eq!(config.reactors, nvlane_subsystem::config::ReactorConfig::default());
    assert_eq!(config.limits, nvlane_subsystem::limits::Limits::default());
    let addresses: Vec<_> = config.listeners.iter().map(|listener| listener.address.to_string()).collect();
    assert_eq!(addresses, ["0.0.0.0:4420", "0.0.0.0:8009"]);
    assert_eq!((config.listeners[0].subsystems, config.listeners[1].subsystems), (true, false));
    assert_eq!(config.subsystems.len(), 2);
    let disks = &config.subsystems[0];
    assert_eq!(disks.access, Access::Any);
    let storage: Vec<_> = disks.namespaces.iter().map(|namespace| namespace.storage.to_string()).collect();
    assert_eq!(storage, ["ram:256M", "file:/var/lib/nvlane/disk.img?size=10G&lba=512", "kv:ram:1G"]);
    assert!(matches!(&config.subsystems[1].access, Access::Only(hosts) if hosts.len() == 2));
}

#[test]
fn what_the_example_shows_as_defaults_is_valid_and_mostly_the_default() {
    let shown = config(&uncommented(EXAMPLE));
    let short = config(EXAMPLE);
    assert_eq!(shown.limits, short.limits);
    assert_eq!(shown.timeouts, short.timeouts);
    assert_eq!(
        (
            shown.reactors.engine,
            shown.reactors.pool_bytes,
            shown.reactors.placement,
            shown.reactors.busy_poll
        ),
        (
            short.reactors.engine,
            short.reactors.pool_bytes,
            short.reactors.placement,
            short.reactors.busy_poll
        )
    );
    assert_eq!(
        (shown.reactors.receive, shown.reactors.in_place_bytes, shown.reactors.zero_copy),
        (short.reactors.receive, short.reactors.in_place_bytes, short.reactors.zero_copy)
    );
    assert_eq!(shown.reactors.threads, Threads::Count(4));
    assert_eq!(shown.discovery.referrals.len(), 1);
    let [memcached] = &shown.memcached[..] else { panic!("a memcached listener") };
    assert!(
        memcached.authenticates() && memcached.allow.prefixes().is_some_and(|prefixes| prefixes.len() == 3)
    );
    assert_eq!(shown.subsystems[0].cntlids, short.subsystems[0].cntlids);
    assert_eq!(shown.subsystems[0].model, short.subsystems[0].model);
    let [first, _, keys] = &shown.subsystems[0].namespaces[..] else { panic!("three namespaces") };
    assert_eq!(keys.rights.keys.prefixes().expect("prefixes").len(), 2);
    assert_eq!(
        first.nguid,
        Some([0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF].repeat(2).try_into().unwrap())
    );
}

#[test]
fn an_empty_file_is_a_target_on_loopback_without_subsystems() {
    let config = config("");
    assert_eq!(config.listeners, ListenerConfig::usual([127, 0, 0, 1].into()));
    assert!(config.subsystems.is_empty());
}

#[test]
fn a_command_line_makes_the_same_as_a_file() {
    let mut subsystem = SubsystemConfig::new("nqn.2026-01.io.nvlane:x".parse().unwrap());
    subsystem.namespaces.push(NamespaceConfig::new("ram:1G?lba=512".parse().unwrap()));
    let built = TargetConfig {
        listeners: ListenerConfig::usual([127, 0, 0, 1].into()),
        subsystems: vec![subsystem],
        ..TargetConfig::default()
    };
    let read = config(
        r#"
        [[subsystem]]
        nqn = "nqn.2026-01.io.nvlane:x"
        hosts = "any"
        namespace = [{ storage = "ram:1G?lba=512" }]
        "#,
    );
    assert_eq!(built, read);
    assert_eq!(built.check(), []);
}

#[test]
fn the_former_name_of_contended_s_is_read() {
    let former = config("[timeouts]\npressed_s = 3\n");
    assert_eq!(former.timeouts.contended_ms, 3000);
}

#[test]
fn reactors_and_limits_are_read() {
    let config = config(
        r#"
        [reactors]
        cores = "0,2-3"
        engine = "epoll"
        pool = 134217728
        receive = "pdu"
        in_place = "32K"
        zero_copy = "128K"
        [limits]
        transfer = "256K"
        in_capsule = 4096
        h2c_data = "8K"
        window = "64K"
        windows = 4
        alignment = 128
        io_queues = 8
        connections = 100
        memcached_connections = 20
        memcached_connections_per_address = 10
        [timeouts]
        send_s = 5
        data_s = 6
        contended_s = 2
        stop_s = 1
        memcached_idle_s = 60
        [[listener]]
        address = "::1"
        [[listener]]
        address = "127.0.0.1"
        subsystems = false
        advertise = "[2001:db8::1]:9000"
        "#,
    );
    assert!(matches!(&config.reactors.threads, Threads::Cores(cores) if cores.cores() == [0, 2, 3]));
    assert_eq!(config.reactors.engine, Some(EngineKind::Epoll));
    assert_eq!(config.reactors.pool_bytes, 128 << 20);
    assert_eq!((config.reactors.receive, config.reactors.in_place_bytes), (Receive::Pdu, 32 << 10));
    assert_eq!(config.reactors.zero_copy, ZeroCopy::From(128 << 10));
    assert_eq!((config.limits.transfer_bytes_max, config.limits.in_capsule_bytes), (256 << 10, 4096));
    assert_eq!((config.limits.h2c_data_bytes_max, config.limits.window_bytes_max), (8192, 65_536));
    assert_eq!((config.limits.window_count_max, config.limits.data_alignment.bytes()), (4, 128));
    assert_eq!((config.limits.io_queue_count_max, config.limits.connection_count_max), (8, 100));
    let limits = &config.limits;
    let of_memcached =
        (limits.memcached_connection_count_max, limits.memcached_connection_count_per_address_max);
    assert_eq!(of_memcached, (20, 10));
    let timeouts = TimeoutConfig {
        send_ms: 5000,
        data_ms: 6000,
        contended_ms: 2000,
        stop_ms: 1000,
        memcached_idle_ms: 60_000,
        ..TimeoutConfig::default()
    };
    assert_eq!(config.timeouts, timeouts);
    let addresses: Vec<_> = config.listeners.iter().map(|listener| listener.address.to_string()).collect();
    assert_eq!(addresses, ["[::1]:4420", "127.0.0.1:8009"], "the usual port of what they serve");
    let advertised = config.listeners[1].advertise.unwrap();
    assert_eq!((advertised.ip.to_string(), advertised.port), ("2001:db8::1".into(), Some(9000)));
}

#[test]
fn namespaces_without_a_number_take_the_lowest_free_ones() {
    let config = config(
        r#"
        [[subsystem]]
        nqn = "nqn.2026-01.io.nvlane:x"
        hosts = "any"
        namespace = [
            { storage = "file:/a" },
            { storage = "ram:1G", nsid = 2 },
            { storage = "ram:2G" },
            { storage = "null:1G?uuid=11111111-2222-3333-4444-555555555555" },
        ]
        "#,
    );
    let machine = Machine::named("0123456789abcdef0123456789abcdef");
    let identity = TargetIdentity::new(machine, "a", "127.0.0.1:4420".parse().unwrap());
    let resolved = config.resolve(&identity);
    let subsystem = resolved.values().next().unwrap();
    let shown: Vec<_> = subsystem
        .namespaces
        .iter()
        .map(|(nsid, namespace)| format!("{nsid} {} {}", namespace.spec, namespace.uuid))
        .collect();
    insta::assert_snapshot!(shown.join("\n"), @r"
    1 file:/a 0925b444-ed9a-569f-8a87-b82314174be3
    2 ram:1G 0860d6fb-67cd-5b78-8a97-352436d7c45b
    3 ram:2G 4b2b31c6-8862-505c-943f-184c2825c651
    4 null:1G?uuid=11111111-2222-3333-4444-555555555555 11111111-2222-3333-4444-555555555555
    ");
    assert!(
        subsystem.namespaces[&Nsid::new(2)].is_numbered && !subsystem.namespaces[&Nsid::new(1)].is_numbered
    );
    assert_eq!(subsystem.serial.len(), 20);
}

/// A file with one subsystem, and these lines in it.
fn subsystem(lines: &str) -> String {
    format!("[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:x\"\nhosts = \"any\"\n{lines}\n")
}

#[test]
fn mistyped_words_come_with_what_was_probably_meant() {
    for (text, meant) in [
        ("[[listener]]\naddress = 0.0.0.0:4420\n".to_owned(), "write \"0.0.0.0:4420\""),
        ("[[listener]]\naddress = \"::\"\nallow = [10.0.0.0/8]\n".to_owned(), "write \"10.0.0.0/8\""),
        ("[[listeners]]\naddress = \"::\"\n".to_owned(), "did you mean `listener`?"),
        ("[[listener]]\nadress = \"::\"\n".to_owned(), "did you mean `address`?"),
        ("[reactors]\ncore = \"0-3\"\n".to_owned(), "did you mean `cores`?"),
        ("[reactors]\ncores = 4\n".to_owned(), "invalid type: integer `4`, expected text in quotes"),
        ("[[namespace]]\nstorage = \"ram:1G\"\n".to_owned(), "part of a subsystem: [[subsystem.namespace]]"),
        (subsystem("[[subsystem.namespaces]]\nstorage = \"ram:1G\""), "did you mean `namespace`?"),
        (subsystem("namespace = \"ram:1G\""), "write [[subsystem.namespace]]"),
        (subsystem("namespace = [\"ram:1G\"]"), "expected a table; write [[subsystem.namespace]]"),
        (subsystem("[[subsystem.namespace]]\nstorage = ram:1G"), "text must be in quotes: write \"ram:1G\""),
        (subsystem("host = [\"nqn.2026-01.io.nvlane:h\"]"), "did you mean `hosts`"),
        (subsystem("host = \"any\""), "did you mean `hosts`"),
        (subsystem("dhchap_secret = DHHC-1:00:c2VjcmV0:"), "a secret is not written here, but where it is"),
        (subsystem("").replace("\"any\"", "any"), "text must be in quotes: write \"any\""),
        (subsystem("").replace("any", "all"), "write \"any\" for all hosts, or a list of host NQNs"),
        (subsystem("").replace("any", "nqn.2026-01.io.nvlane:h"), "write [\"nqn.2026-01.io.nvlane:h\"]"),
    ] {
        let said = errors(&text);
        assert!(said.contains(meant) && !said.contains("c2VjcmV0"), "{text}{said}");
    }
}

#[test]
fn mistakes_are_said_with_line_and_column() {
    let mistakes = [
        // No TOML, unknown keys, wrong types.
        "[reactors\n".to_owned(),
        "[[listener]]\nadress = \"0.0.0.0\"\n".to_owned(),
        "[listener]\naddress = \"0.0.0.0\"\n".to_owned(),
        "subsystems = []\n".to_owned(),
        "[limits]\nio_queues = \"many\"\n".to_owned(),
        "[limits]\nio_queues = -1\n".to_owned(),
        "[reactors]\npool = true\n".to_owned(),
        "[[subsystem]]\nhosts = \"any\"\n".to_owned(),
        subsystem("[[subsystem.namespace]]\nnsid = 1\n"),
        // Values that make no sense by themselves.
        "[reactors]\ncores = \"0-x\"\n".to_owned(),
        "[reactors]\ncores = \"0\"\ncount = 2\n".to_owned(),
        "[reactors]\ncount = 0\n".to_owned(),
        "[reactors]\nengine = \"kqueue\"\n".to_owned(),
        "[reactors]\nplacement = \"numa\"\n".to_owned(),
        "[reactors]\nbusy_poll_us = 20000\n".to_owned(),
        "[reactors]\nprefer_busy_poll = true\n".to_owned(),
        "[reactors]\nbusy_poll_us = 50\nbusy_poll_budget = 0\n".to_owned(),
        "[reactors]\npool = \"64Q\"\n".to_owned(),
        "[reactors]\npool = \"1M\"\n".to_owned(),
        "[limits]\ntransfer = \"100K\"\n".to_owned(),
        "[limits]\ntransfer = \"8G\"\n".to_owned(),
        "[limits]\nin_capsule = 1000\n".to_owned(),
        "[limits]\nh2c_data = 4094\n".to_owned(),
        "[limits]\nwindow = \"8M\"\n".to_owned(),
        "[limits]\nwindows = 5\n".to_owned(),
        "[limits]\nalignment = 132\n".to_owned(),
        "[limits]\nqueue_entries = 4096\n".to_owned(),
        "[limits]\nio_queues = 0\n".to_owned(),
        "[timeouts]\npdu_s = 0\n".to_owned(),
        "[[listener]]\naddress = \"localhost:4420\"\n".to_owned(),
        "[[listener]]\naddress = \"0.0.0.0\"\nadvertise = \"0.0.0.0\"\n".to_owned(),
        "[[listener]]\naddress = \"0.0.0.0\"\nsubsystems = false\ndiscovery = false\n".to_owned(),
        "listener = []\n".to_owned(),
        "[discovery]\nnqn = \"nqn.2014-08.org.nvmexpress.discovery\"\n".to_owned(),
        "[discovery]\nnqn = \"discovery\"\n".to_owned(),
        subsystem("serial = \"\""),
        subsystem("serial = \"123456789012345678901\""),
        subsystem("model = \"ünlane\""),
        subsystem("cntlids = [0, 5]"),
        subsystem("cntlids = [5, 4]"),
        subsystem("cntlids = [5]"),
        subsystem("namespace = [{ storage = \"disk:1G\" }]"),
        subsystem("namespace = [{ storage = \"ram:1G?lba=1000\" }]"),
        subsystem("namespace = [{ storage = \"ram:1G\", nsid = 0 }]"),
        subsystem("namespace = [{ storage = \"ram:1G\", nsid = 1025 }]"),
        subsystem("namespace = [{ storage = \"ram:1G\", uuid = \"12\" }]"),
        subsystem("namespace = [{ storage = \"ram:1G\", uuid = \"00000000-0000-0000-0000-000000000000\" }]"),
        subsystem("namespace = [{ storage = \"ram:1G\", nguid = \"00000000000000000000000000000000\" }]"),
        subsystem(
            "namespace = [{ storage = \"ram:1G?uuid=11111111-2222-3333-4444-555555555555\", uuid = \"21111111-2222-3333-4444-555555555555\" }]",
        ),
        "[[subsystem]]\nnqn = \"disks\"\nhosts = \"any\"\n".to_owned(),
        "[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:x\"\n".to_owned(),
        "[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:x\"\nhosts = \"nqn.2026-01.io.nvlane:h\"\n".to_owned(),
        "[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:x\"\nhosts = [\"a\\u001b\"]\n".to_owned(),
        "[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:x\"\nhosts = 5\n".to_owned(),
        "[[subsystem]]\nnqn = \"nqn.2014-08.org.nvmexpress.discovery\"\nhosts = \"any\"\n".to_owned(),
    ];
    let shown: Vec<String> = mistakes.iter().map(|text| errors(text)).collect();
    insta::assert_snapshot!(shown.join("\n"), @r#"
    nvlane.toml:1:10: unclosed table, expected `]`
    nvlane.toml:2:1: unknown key `adress`, expected one of `address`, `advertise`, `subsystems`, `discovery`, `doorbell`, `tls`, `allow`; did you mean `address`?
    nvlane.toml:1:1: a table where a list of tables is expected: write [[name]]
    nvlane.toml:1:1: unknown key `subsystems`, expected one of `machine`, `reactors`, `limits`, `timeouts`, `discovery`, `listener`, `memcached`, `pool`, `subsystem`, `audit`, `control`, `metrics`, `log`; did you mean `subsystem`?
    nvlane.toml:2:13: invalid type: string "many", expected a number from 0 to 65535
    nvlane.toml:2:13: invalid value: integer `-1`, expected a number from 0 to 65535
    nvlane.toml:2:8: expected a size: a number of bytes, or text such as "64M"
    nvlane.toml:1:1: missing key `nqn`
    nvlane.toml:4:1: missing key `storage`
    nvlane.toml:2:9: "0-x" is not a core number or range: write cores as 0,2-5
    nvlane.toml:3:9: cores says already how many there are: leave one of them out
    nvlane.toml:2:9: count is 0: take 1 to 1024
    nvlane.toml:2:10: there is no engine "kqueue": write auto, uring or epoll
    nvlane.toml:2:13: "numa" is no placement policy: write load, napi, cpu or queue
    nvlane.toml:2:16: busy_poll_us is 20000: take 0 to 10000
    nvlane.toml:2:20: prefer_busy_poll says how to poll, but busy_poll_us is 0: set it, or leave this out
    nvlane.toml:3:20: busy_poll_budget is 0: take 1 to 1024
    nvlane.toml:2:8: no size ends in 'Q': use K, M, G or T, as in 64M
    nvlane.toml:2:8: a pool of 1M is too small for transfers as large as allowed: take 4M or more
    nvlane.toml:2:12: transfer is 100K: take a power of two from 8K to 4M
    nvlane.toml:2:12: 8G is more than this can be
    nvlane.toml:2:14: in_capsule is 1000: take a multiple of 16 up to 64K
    nvlane.toml:2:12: h2c_data is 4094: take a multiple of 4 from 4096 to 4M
    nvlane.toml:2:10: window is 8388608: take a multiple of 4 from 4 to 4M
    nvlane.toml:2:11: windows is 5: take 1 to 4
    nvlane.toml:2:13: alignment is 132: take a multiple of 4 from 4 to 128
    nvlane.toml:2:17: queue_entries is 4096: take 16 to 1024
    nvlane.toml:2:13: io_queues is 0: take 1 to 1024
    nvlane.toml:2:9: pdu_s is 0: no peer could meet it, take 1 or more
    nvlane.toml:2:11: "localhost:4420" is no address: write IP or IP:PORT, as in 192.0.2.1:4420 or [::]:4420
    nvlane.toml:3:13: hosts cannot connect to a wildcard: advertise an address of its own
    nvlane.toml:2:11: the listener on 0.0.0.0:8009 leads to nothing: turn on subsystems or discovery
    nvlane.toml: there is no listener: add one, so that hosts can connect
    nvlane.toml:2:7: this is the name of every discovery service, which this one answers to anyway: give it one of its own, or none
    nvlane.toml:2:7: name does not begin with "nqn.": write nqn.YYYY-MM.reverse.domain:name
    nvlane.toml:4:10: serial is "": take 1 to 20 printable ASCII characters
    nvlane.toml:4:10: serial is "123456789012345678901": take 1 to 20 printable ASCII characters
    nvlane.toml:4:9: model is "ünlane": take 1 to 40 printable ASCII characters
    nvlane.toml:4:11: controller ids 0 to 5: take a range within 1 to 65519
    nvlane.toml:4:11: controller ids 5 to 4: take a range within 1 to 65519
    nvlane.toml:4:11: invalid length 1, expected two numbers, as in [1, 65519]
    nvlane.toml:4:26: namespace 'disk:1G', character 1: there is no 'disk': expected ram:SIZE, null:SIZE, file:PATH, device:PATH, pool:DIR/VOLUME, rbd:POOL/IMAGE, nbd://HOST/EXPORT, vhost-user:SOCKET, kv:ram:SIZE, kv:file:PATH or kv:rados:POOL
    nvlane.toml:4:26: namespace 'ram:1G?lba=1000', character 12: expected a power of two from 512 to 65536
    nvlane.toml:4:43: nsid is 0: take 1 to 1024
    nvlane.toml:4:43: nsid is 1025: take 1 to 1024
    nvlane.toml:4:43: not a UUID: expected 32 hexadecimal digits, with hyphens as 8-4-4-4-12 or none
    nvlane.toml:4:43: a uuid of zeroes identifies nothing: leave it out to have one made
    nvlane.toml:4:44: an nguid of zeroes identifies nothing: leave it out to have one made
    nvlane.toml:4:85: the storage says another uuid: leave one of them out
    nvlane.toml:2:7: name does not begin with "nqn.": write nqn.YYYY-MM.reverse.domain:name
    nvlane.toml:1:1: who may connect is not said: add hosts = "any", or a list of host NQNs
    nvlane.toml:3:9: "nqn.2026-01.io.nvlane:h" is neither "any" nor a list: write ["nqn.2026-01.io.nvlane:h"]
    nvlane.toml:3:9: host "a\u{1b}": byte 1 of the name begins a character that does not print
    nvlane.toml:3:9: expected "any" or a list of host NQNs
    nvlane.toml:2:7: nqn.2014-08.org.nvmexpress.discovery is the name of the discovery service: give the subsystem another one
    "#);
}

#[test]
fn contradictions_are_found_across_the_file() {
    let text = r#"
[[listener]]
address = "192.0.2.1:4420"
[[listener]]
address = "0.0.0.0:4420"
[[listener]]
address = "[::]:4420"
[[discovery.referral]]
address = "192.0.2.1:4420"
[[subsystem]]
nqn = "nqn.2026-01.io.nvlane:x"
hosts = "any"
namespace = [{ storage = "ram:1G", nsid = 1 }, { storage = "ram:1G", nsid = 1 }]
[[subsystem]]
nqn = "nqn.2026-01.io.nvlane:x"
hosts = "any"
"#;
    insta::assert_snapshot!(errors(text), @r"
    nvlane.toml:5:11: the listeners on 192.0.2.1:4420 and 0.0.0.0:4420 overlap: remove one of them
    nvlane.toml:9:11: the referral to 192.0.2.1:4420 leads back to this target: remove it
    nvlane.toml:13:77: nqn.2026-01.io.nvlane:x has two namespaces 1: give one another number
    nvlane.toml:15:7: there are two subsystems nqn.2026-01.io.nvlane:x: rename or remove one
    ");
    let text = r#"
[[subsystem]]
nqn = "nqn.2026-01.io.nvlane:x"
hosts = "any"
namespace = [
    { storage = "file:/a", uuid = "11111111-2222-3333-4444-555555555555" },
    { storage = "file:/b?readonly", uuid = "11111111-2222-3333-4444-555555555555" },
    { storage = "file:/b?readonly" },
]
[[subsystem]]
nqn = "nqn.2026-01.io.nvlane:y"
hosts = "any"
namespace = [
    { storage = "file:/a?lba=512" },
    { storage = "ram:1G", nguid = "11111111222233334444555555555555" },
]
"#;
    insta::assert_snapshot!(errors(text), @r"
    nvlane.toml:7:44: nqn.2026-01.io.nvlane:x namespace 2 has the uuid of nqn.2026-01.io.nvlane:x namespace 1: hosts would take them for one
    nvlane.toml:14:17: nqn.2026-01.io.nvlane:y namespace 1 and nqn.2026-01.io.nvlane:x namespace 1 have the same storage: two would destroy each other's data, unless both are readonly
    nvlane.toml:15:35: nqn.2026-01.io.nvlane:y namespace 2 has the nguid of nqn.2026-01.io.nvlane:x namespace 1: hosts would take them for one
    ");
    let text = "[[listener]]\naddress = \"0.0.0.0\"\nsubsystems = false\n";
    insta::assert_snapshot!(errors(&format!("{text}{}", subsystem(""))), @"nvlane.toml:2:11: no listener leads to subsystems: turn subsystems on for one of them");
}

#[test]
fn keys_of_certain_hosts_are_not_opened_to_memcached_by_accident() {
    let text = |more: &str| {
        format!(
            "memcached = [\"127.0.0.1:11211\"]\n[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:x\"\n\
             hosts = [\"nqn.2026-01.io.nvlane:h\"]\n{more}namespace = [{{ storage = \"kv:ram:1G\" }}]\n"
        )
    };
    insta::assert_snapshot!(errors(&text("")), @r#"nvlane.toml:4:9: nqn.2026-01.io.nvlane:x is for certain hosts only, but the memcached listener on 127.0.0.1:11211 opens keys to anyone who reaches it: write memcached = "any" beside hosts if that is meant, or serve one of them from a target of its own"#);
    insta::assert_snapshot!(errors(&text("memcached = \"nqn.2026-01.io.nvlane:h\"\n")), @r#"nvlane.toml:5:13: "nqn.2026-01.io.nvlane:h" names a host, and the memcached protocol has no host names: write "any", or leave it out"#);
    assert!(config(&text("memcached = \"any\"\n")).subsystems[0].opens_to_memcached);
    let blocks = text("").replace("kv:ram:1G", "ram:1G")
        + "[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:y\"\nhosts = \"any\"\n";
    config(&(blocks + "namespace = [{ storage = \"kv:ram:1G\" }]\n"));
}

#[test]
fn port_8009_is_for_discovery_unless_it_is_said() {
    let listener =
        |more: &str| config(&format!("[[listener]]\naddress = \"0.0.0.0:8009\"\n{more}")).listeners.remove(0);
    assert_eq!(listener(""), ListenerConfig::new("0.0.0.0:8009".parse().unwrap()));
    assert!(!listener("").subsystems && listener("").discovery);
    assert!(listener("subsystems = true\n").subsystems);
}

#[test]
fn positions_count_characters() {
    let text = "# ä\n[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:ä\" ; hosts = 1\n";
    insta::assert_snapshot!(errors(text), @"nvlane.toml:3:33: unexpected key or value, expected newline, `#`");
}

#[test]
fn storage_is_looked_at_and_not_touched() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().display();
    std::fs::write(directory.path().join("odd"), [0; 1000]).unwrap();
    std::fs::write(directory.path().join("small"), [0; 4096]).unwrap();
    let text = format!(
        "[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:x\"\nhosts = \"any\"\nnamespace = [\n\
         {{ storage = \"file:{place}/new?size=1M\" }},\n\
         {{ storage = \"file:{place}/small?size=1M\" }},\n\
         {{ storage = \"ram:1M\" }},\n\
         {{ storage = \"file:{place}/missing\" }},\n\
         {{ storage = \"file:{place}/nowhere/new?size=1M\" }},\n\
         {{ storage = \"file:{place}/odd\" }},\n\
         {{ storage = \"file:{place}\" }},\n\
         {{ storage = \"ram:5000\" }},\n\
         {{ storage = \"kv:ram:1M\" }},\n\
         {{ storage = \"kv:file:{place}/pairs?size=3M\" }},\n]\n\
         [reactors]\ncount = 5\n"
    );
    let file = ConfigFile::parse("nvlane.toml", &text).unwrap();
    let errors = file.inspect().expect_err("most of it is wrong").to_string();
    insta::assert_snapshot!(errors.replace(&place.to_string(), "/place"), @r"
    nvlane.toml:8:13: /place/missing does not exist: add size= to have it made
    nvlane.toml:9:13: /place/nowhere/new does not exist: make its directory first, with mkdir -p
    nvlane.toml:10:13: /place/odd has 1000 bytes, not a multiple of its block size 4096: make it 4096
    nvlane.toml:11:13: /place is a directory: name a file in it
    nvlane.toml:12:13: the RAM namespace has 5000 bytes, not a multiple of its block size 4096: make it 8192
    nvlane.toml:13:13: 1M of memory, divided among 5 threads, is too little for keys and values: take 1280K or more
    nvlane.toml:14:13: /place/pairs has 3M: it needs at least 3888K
    ");
    assert!(!directory.path().join("new").exists());
    assert_eq!(std::fs::read(directory.path().join("small")).unwrap().len(), 4096);
}

#[test]
fn a_file_that_is_not_there_is_said_to_be_so() {
    let error = ConfigFile::read("/nonexistent/nvlane.toml".as_ref()).expect_err("there is none");
    insta::assert_snapshot!(error, @"/nonexistent/nvlane.toml: cannot be read: No such file or directory (os error 2)");
}

proptest! {
    /// The example with something overwritten is read or refused, but never breaks the reader, and each
    /// refusal says where.
    #[test]
    fn no_text_is_too_strange(at: prop::sample::Index, text in "[\\[\\]a-z0-9=\"., \n#]{0,12}", length in 0usize..40) {
        let start = EXAMPLE.floor_char_boundary(at.index(EXAMPLE.len()));
        let end = EXAMPLE.floor_char_boundary((start + length).min(EXAMPLE.len()));
        let broken = format!("{}{text}{}", &EXAMPLE[..start], &EXAMPLE[end..]);
        if let Err(errors) = ConfigFile::parse("f", &broken) {
            prop_assert!(!errors.0.is_empty());
            for error in errors.0 {
                prop_assert!(!error.message.contains('\n'), "{}", error);
            }
        }
    }
}

#[test]
fn references_to_secrets_are_read_and_mistakes_named() {
    let with =
        |lines: &str| format!("[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:a\"\nhosts = \"any\"\n{lines}\n");
    let text = with(
        "dhchap_secret = \"file:/k/all\"\ndhchap_ctrl_secret = \"credential:own\"\ndhchap_hash = [\"sha384\", \"sha256\"]\n\
         dhchap_dhgroup = [\"null\"]\nrefused_reauthentication = \"keep\"\n[[subsystem.host]]\nnqn = \"nqn.2026-01.io.nvlane:h\"\ndhchap_secret = \"env:KEY\"",
    );
    let config = config(&text);
    let authentication = &config.subsystems[0].authentication;
    let shown = |sources: &SecretSources| {
        (sources.host.to_string(), sources.controller.as_ref().map(ToString::to_string))
    };
    assert_eq!(
        authentication.others.as_ref().map(shown),
        Some(("file:/k/all".into(), Some("credential:own".into())))
    );
    let host = "nqn.2026-01.io.nvlane:h".parse().unwrap();
    assert_eq!(authentication.hosts.get(&host).map(shown), Some(("env:KEY".into(), None)));
    assert_eq!(
        authentication.hashes.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["SHA-384", "SHA-256"]
    );
    assert_eq!((authentication.groups.len(), authentication.refused_again), (1, RefusedAgain::Keep));
    for (lines, part) in [
        ("dhchap_secret = \"DHHC-1:00:AAAA:\"", "put it into a file"),
        ("dhchap_secret = \"/k\"", "expected file:PATH, env:NAME, credential:NAME or keyring:NAME"),
        ("dhchap_ctrl_secret = \"file:/k\"", "add dhchap_secret"),
        ("dhchap_hash = [\"md5\"]", "no hash function \"md5\": take some of sha512, sha384, sha256"),
        ("dhchap_dhgroup = []", "no group is left"),
        ("refused_reauthentication = \"kept\"", "\"kept\" is neither \"disconnect\" nor \"keep\""),
        (
            "refused_reauthentication = \"keep\"",
            "refused_reauthentication = \"keep\" is for hosts that authenticate, and none has a secret: add dhchap_secret, or \
             leave it out",
        ),
        (
            "[[subsystem.host]]\nnqn = \"a\"\ndhchap_secret = \"env:A\"\n[[subsystem.host]]\nnqn = \"a\"\ndhchap_secret = \"env:B\"",
            "there twice",
        ),
        ("[[subsystem.host]]\nnqn = \"a\"", "add dhchap_secret, tls_key or a rate limit"),
        ("tls_key = \"NVMeTLSkey-1:01:AAAA:\"", "put it into a file"),
        (
            "[[subsystem.host]]\nnqn = \"a\"\ntls_key = \"env:A\"\n[[subsystem.host]]\nnqn = \"a\"\ntls_key = \"env:B\"",
            "there twice",
        ),
    ] {
        let error = errors(&with(lines));
        assert!(error.contains(part), "{error}");
        assert!(!error.contains("AAAA"), "{error}");
    }
}

#[test]
fn listeners_with_tls_and_keys_belong_together() {
    let text = |listener: &str, keys: &str| {
        format!(
            "[[listener]]\naddress = \"127.0.0.1\"\n{listener}\n[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:a\"\nhosts = \"any\"\n\
             {keys}\n[[subsystem.namespace]]\nstorage = \"ram:1M\"\n"
        )
    };
    let keys = "tls_key = \"file:/k/all\"\n[[subsystem.host]]\nnqn = \"h\"\ntls_key = \"credential:h\"\n";
    let config = config(&text("tls = \"required\"", keys));
    assert_eq!(config.listeners[0].tls, TlsPolicy::Required);
    let sources = &config.subsystems[0].tls_keys;
    assert_eq!(sources.others.as_ref().map(ToString::to_string), Some("file:/k/all".into()));
    let hosts: Vec<_> = sources.hosts.iter().map(|(host, source)| format!("{host} {source}")).collect();
    assert_eq!(hosts, ["h credential:h"]);
    assert!(config.subsystems[0].authentication.hosts.is_empty());
    assert!(errors(&text("tls = \"allowed\"", "")).contains("no host has a key"));
    assert!(errors(&text("", keys)).contains("no listener speaks TLS"));
    assert!(errors(&text("tls = \"on\"", keys)).contains("write off, allowed, concatenated or required"));
}

#[test]
fn a_listener_that_demands_generated_keys_has_hosts_that_can_generate_one() {
    let text = |listener: &str, subsystem: &str| {
        format!(
            "[[listener]]\naddress = \"127.0.0.1\"\n{listener}\n[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:a\"\nhosts = \"any\"\n\
             {subsystem}\n[[subsystem.namespace]]\nstorage = \"ram:1M\"\n"
        )
    };
    let (listener, secret) = ("tls = \"concatenated\"", "dhchap_secret = \"file:/k/host\"");
    let config = config(&text(listener, secret));
    assert_eq!(config.listeners[0].tls, TlsPolicy::Concatenated);
    let warnings: Vec<_> = config.warnings().into_iter().map(|warning| warning.message).collect();
    assert!(
        matches!(&warnings[..], [warning] if warning.contains("no host can ask for discovery")),
        "{warnings:?}"
    );
    let apart = text(listener, secret) + "[[listener]]\naddress = \"127.0.0.1:8009\"\n";
    assert!(self::config(&apart).warnings().is_empty());
    for (listener, subsystem, part) in [
        (listener, "", "no host has a key"),
        (listener, "tls_key = \"file:/k/all\"", "no host has one: add dhchap_secret"),
        (
            listener,
            "dhchap_secret = \"file:/k/host\"\ndhchap_hash = [\"sha512\"]",
            "with sha256 or sha384: add one of them",
        ),
        (
            listener,
            "dhchap_secret = \"file:/k/host\"\ndhchap_dhgroup = [\"null\"]",
            "with a Diffie-Hellman group: add ffdhe2048",
        ),
        (
            "tls = \"concatenated\"\nsubsystems = false\n[[listener]]\naddress = \"127.0.0.2\"",
            secret,
            "on a listener for discovery alone",
        ),
    ] {
        let errors = errors(&text(listener, subsystem));
        assert!(errors.contains(part), "{subsystem}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
}

#[test]
fn secrets_of_hosts_that_protect_nothing_are_found() {
    let with = |hosts: &str, secret: &str| {
        let text = format!(
            "[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:a\"\nhosts = {hosts}\n{secret}\n[[subsystem.host]]\n\
             nqn = \"h\"\ndhchap_secret = \"env:KEY\"\n[[subsystem.namespace]]\nstorage = \"ram:1M\"\n"
        );
        ConfigFile::parse("nvlane.toml", &text).map_or_else(|errors| errors.to_string(), |_| String::new())
    };
    assert!(with("\"any\"", "").contains("any other name connects without a secret"));
    assert!(with("[\"i\"]", "").contains("h has a secret, but is not in hosts"));
    assert_eq!(with("\"any\"", "dhchap_secret = \"env:ALL\""), "");
    assert_eq!(with("[\"h\", \"i\"]", ""), "");
}

/// A file with one subsystem of the hosts a and b, and these keys of its second namespace.
fn rights_text(hosts: &str, keys: &str) -> String {
    format!(
        "[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:x\"\nhosts = {hosts}\n[[subsystem.namespace]]\nstorage = \"ram:1G\"\n\
         [[subsystem.namespace]]\nstorage = \"ram:2G\"\n{keys}\n"
    )
}

#[test]
fn rights_of_hosts_are_read() {
    let of =
        |keys: &str| config(&rights_text("[\"a\", \"b\"]", keys)).subsystems[0].namespaces[1].rights.clone();
    assert_eq!(of(""), HostRights::ALL);
    assert_eq!(of("hosts = \"any\"\nwrite_hosts = \"any\""), HostRights::ALL);
    let rights = of("hosts = [\"a\", \"b\"]\nwrite_hosts = [\"a\"]");
    let right = |rights: &HostRights, host: &str| rights.of(&host.parse().unwrap());
    assert_eq!(["a", "b", "c"].map(|host| right(&rights, host)), [Right::Write, Right::Read, Right::None]);
    assert_eq!(right(&of("hosts = []"), "a"), Right::None);
    assert_eq!(right(&of("write_hosts = []"), "a"), Right::Read);
}

#[test]
fn rights_of_hosts_that_other_lists_keep_out_are_mistakes() {
    let mistakes = [
        rights_text("[\"a\", \"b\"]", "hosts = [\"a\", \"c\"]"),
        rights_text("[\"a\", \"b\"]", "write_hosts = [\"d\"]"),
        rights_text("[\"a\", \"b\"]", "hosts = [\"a\"]\nwrite_hosts = [\"b\"]"),
        // Several at once.
        rights_text("[\"a\", \"b\"]", "hosts = [\"c\"]\nwrite_hosts = [\"c\", \"e\"]"),
        rights_text("\"any\"", "hosts = \"a\""),
        rights_text("\"any\"", "write_hosts = [\"\"]"),
        rights_text("\"any\"", "readers = [\"a\"]"),
        format!("memcached = [\"127.0.0.1:11211\"]\n{}", rights_text("\"any\"", "write_hosts = [\"a\"]"))
            .replace("ram:2G", "kv:ram:2G"),
    ];
    let shown: Vec<String> = mistakes.iter().map(|text| errors(text)).collect();
    insta::assert_snapshot!(shown.join("\n"), @r#"
    nvlane.toml:8:9: c is in hosts of namespace 2, but not in hosts of nqn.2026-01.io.nvlane:x: add it there, or remove it here
    nvlane.toml:8:15: d is in write_hosts of namespace 2, but not in hosts of nqn.2026-01.io.nvlane:x: add it there, or remove it here
    nvlane.toml:9:15: b is in write_hosts of namespace 2, but not in hosts of the namespace: add it there, or remove it here
    nvlane.toml:8:9: c is in hosts of namespace 2, but not in hosts of nqn.2026-01.io.nvlane:x: add it there, or remove it here
    nvlane.toml:9:15: e is in write_hosts of namespace 2, but not in hosts of the namespace: add it there, or remove it here
    nvlane.toml:8:9: "a" is neither "any" nor a list: write "any" for all hosts, or a list of host NQNs
    nvlane.toml:8:15: host "": name is empty
    nvlane.toml:8:1: unknown key `readers`, expected one of `nsid`, `storage`, `uuid`, `nguid`, `hosts`, `write_hosts`, `key_prefixes`, `iops`, `read_iops`, `write_iops`, `bytes_per_s`, `read_bytes_per_s`, `write_bytes_per_s`, `burst_ms`, `min_iops`; did you mean `read_iops`?
    nvlane.toml:9:15: a namespace of nqn.2026-01.io.nvlane:x is for certain hosts only, but the memcached listener on 127.0.0.1:11211 opens keys to anyone who reaches it: write memcached = "any" in the subsystem if that is meant, or serve one of them from a target of its own
    "#);
    // A subsystem for any host has no list that they could miss.
    config(&rights_text("\"any\"", "hosts = [\"a\"]\nwrite_hosts = [\"a\"]"));
}

#[test]
fn a_configuration_is_written_as_it_is_read() {
    let rich = "machine = \"m\"\nmemcached = [\"127.0.0.1:11211\", { address = \"unix:/m?mode=0660\", users = \"file:/u\" }]\n\
        [reactors]\ncores = \"0-1\"\nengine = \"epoll\"\ndoorbell = \"fixed:4,8192,20\"\nspin = \"never\"\nplacement = \"queue\"\n\
        busy_poll_us = 50\nprefer_busy_poll = true\nbusy_poll_budget = 9\nreceive = \"pdu\"\nin_place = 20000\nzero_copy = \"64K\"\n\
        pool = \"96M\"\n[limits]\ntransfer = \"2M\"\nin_capsule = 4096\nwindows = 3\nalignment = 8\nconnections = 77\n\
        [timeouts]\npdu_s = 7\nsecret_overlap_s = 0\n[audit]\nfile = \"/a\"\n[control]\nsocket = \"/c\"\nchanges = \"/d\"\ntls = \"192.0.2.1\"\ntls_keys = { csi = \"file:/k\", ops = \"env:O\" }\n[metrics]\naddress = \"127.0.0.1:9\"\nlive_page = \"any\"\n\
        [log]\nslow = \"1500us\"\n\
        [discovery]\nnqn = \"nqn.2026-01.io.nvlane:d\"\n[[discovery.referral]]\naddress = \"192.0.2.1\"\n\
        [[listener]]\naddress = \"[::1]\"\nadvertise = \"192.0.2.9:7\"\ndoorbell = \"turn\"\nallow = [\"10.0.0.0/8\", \"192.0.2.7\"]\ntls = \"required\"\n\
        [[listener]]\naddress = \"127.0.0.1:8009\"\nsubsystems = true\ndiscovery = false\n\
        [[pool]]\nname = \"p\"\ndir = \"/p\"\nquota = \"1T\"\nspace_low = \"5%\"\n\
        [[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:x\"\nserial = \"S\"\nmodel = \"M\"\nhosts = [\"b\", \"a\"]\nmemcached = \"any\"\n\
        cntlids = [2, 9]\ndoorbell = \"immediate\"\ndhchap_secret = \"env:S\"\ndhchap_hash = [\"sha384\"]\n\
        dhchap_dhgroup = [\"ffdhe2048\", \"null\"]\nrefused_reauthentication = \"keep\"\n\
        [[subsystem.host]]\nnqn = \"a\"\ndhchap_secret = \"file:/s\"\ndhchap_ctrl_secret = \"keyring:c\"\n\
        [[subsystem.host]]\nnqn = \"b\"\ntls_key = \"file:/k\"\nread_iops = 5\nmin_iops = 3\n\
        [[subsystem.namespace]]\nstorage = \"file:/f?size=1G&lba=512&readonly\"\nuuid = \"01234567-89ab-cdef-0123-456789abcdef\"\n\
        hosts = [\"a\"]\nwrite_hosts = []\n\
        [[subsystem.namespace]]\nnsid = 7\nstorage = \"kv:ram:1G?evict=none\"\nkey_prefixes = { a = [\"x/\", \"\"] }\n\
        iops = 9\nbytes_per_s = 1000000\nwrite_bytes_per_s = \"1M\"\nburst_ms = 7\n\
        [[subsystem.namespace]]\nstorage = \"pool:p/v\"\n";
    for text in [EXAMPLE.to_owned(), uncommented(EXAMPLE), rich.to_owned()] {
        let read = config(&text);
        let written = read.to_toml().to_string();
        assert_eq!(config(&written), read, "{written}");
        assert_eq!(config(&written).to_toml().to_string(), written);
    }
    let written = config(rich).to_toml();
    // Every table that the reader knows.
    let known = errors("no_such_key = 1");
    for key in known.split('`').skip(3).step_by(2) {
        assert!(written.contains_key(key), "{key} is not written: {known}");
    }
    assert_eq!(written["subsystem"][0]["namespace"][0].get("nsid"), None, "its number was not given");
    assert_eq!(config(rich).namespace_numbers(), [[1, 7, 2].map(Nsid::new)]);
    let storage = written["subsystem"][0]["namespace"][2]["storage"].as_str();
    assert_eq!(storage, Some("pool:/p/v"), "the name of a pool stands for its directory");
}

#[test]
fn rate_limits_are_read() {
    let keys = "iops = 20000\nread_bytes_per_s = \"100M\"\nburst_ms = 5\nmin_iops = 7";
    let text = format!("{}[[subsystem.host]]\nnqn = \"a\"\nwrite_iops = 8\n", rights_text("\"any\"", keys));
    let subsystem = config(&text).subsystems.remove(0);
    let limits = RateLimits {
        iops: Some(20_000),
        read_bytes_per_s: Some(100 << 20),
        burst_ms: Some(5),
        min_iops: Some(7),
        ..RateLimits::default()
    };
    assert_eq!(subsystem.namespaces[1].limits, limits);
    assert!(subsystem.namespaces[0].limits.is_none());
    assert_eq!(limits.to_string(), "iops 20000, read_bytes_per_s 100M, burst_ms 5, min_iops 7");
    let of_host = RateLimits { write_iops: Some(8), ..RateLimits::default() };
    assert_eq!(subsystem.host_limits, [("a".parse().unwrap(), of_host)].into());
    let mistakes = [
        rights_text("\"any\"", "iops = 0"),
        rights_text("\"any\"", "bytes_per_s = \"1K\""),
        rights_text("\"any\"", "bytes_per_s = \"1X\""),
        rights_text("\"any\"", "iops = 5\nmin_iops = 6"),
        rights_text("\"any\"", "iops = 5\nburst_ms = 0"),
        rights_text("\"any\"", "min_iops = 5\nburst_ms = 7"),
        rights_text(
            "\"any\"",
            "[[subsystem.host]]\nnqn = \"a\"\niops = 1\n[[subsystem.host]]\nnqn = \"a\"\niops = 2",
        ),
        rights_text("\"any\"", "[[subsystem.host]]\nnqn = \"a\""),
    ];
    let shown: Vec<String> = mistakes.iter().map(|text| errors(text)).collect();
    insta::assert_snapshot!(shown.join("\n"), @r#"
    nvlane.toml:8:8: iops is 0: take 1 or more, or leave it out for no limit
    nvlane.toml:8:15: bytes_per_s is 1K: take 64K or more, or leave it out for no limit
    nvlane.toml:8:15: no size ends in 'X': use K, M, G or T, as in 64M
    nvlane.toml:9:12: min_iops is 6, and iops only 5: take no more than that
    nvlane.toml:9:12: burst_ms is 0: take 1 to 10000
    nvlane.toml:9:12: burst_ms is that of a limit: add one, such as iops, or leave it out
    nvlane.toml:12:7: this host is there twice: remove one
    nvlane.toml:9:7: nothing is said of this host: add dhchap_secret, tls_key or a rate limit
    "#);
}

#[test]
fn key_prefixes_of_hosts_are_read() {
    let of = |keys: &str| {
        let text = rights_text("[\"a\", \"b\"]", keys).replace("ram:2G", "kv:ram:2G");
        config(&text).subsystems[0].namespaces[1].rights.keys.prefixes()
    };
    assert_eq!(of(""), None);
    let prefixes = of("key_prefixes = { a = [\"x/\", \"y\"], b = [\"\"] }").unwrap();
    assert_eq!(prefixes["a"], ["x/", "y"]);
    assert_eq!(prefixes["b"], [""]);
    assert_eq!(of("[subsystem.namespace.key_prefixes]\na = []").unwrap()["a"], [""; 0]);
}

#[test]
fn key_prefixes_that_cannot_be_are_mistakes() {
    let of = |keys: &str| rights_text("[\"a\", \"b\"]", keys).replace("ram:2G", "kv:ram:2G");
    let mistakes = [
        of("key_prefixes = { c = [\"x\"] }"),
        of("hosts = [\"a\"]\nkey_prefixes = { b = [\"x\"] }"),
        of("key_prefixes = { a = [\"longer than a key\"] }"),
        of("key_prefixes = { \"\" = [\"x\"] }"),
        of("key_prefixes = { a = \"x\" }"),
        of("key_prefixes = [\"x\"]"),
        rights_text("\"any\"", "key_prefixes = { a = [\"x\"] }"),
        format!("memcached = [\"127.0.0.1:11211\"]\n{}", of("key_prefixes = { a = [\"x\"] }"))
            .replace("hosts = [\"a\", \"b\"]", "hosts = \"any\""),
    ];
    let shown: Vec<String> = mistakes.iter().map(|text| errors(text)).collect();
    insta::assert_snapshot!(shown.join("\n"), @r#"
    nvlane.toml:8:16: c is in key_prefixes of namespace 2, but not in hosts of nqn.2026-01.io.nvlane:x: add it there, or remove it here
    nvlane.toml:9:16: b is in key_prefixes of namespace 2, but not in hosts of the namespace: add it there, or remove it here
    nvlane.toml:8:16: host "a": prefix "longer than a key" has 17 bytes, but keys of NVMe hosts have at most 16
    nvlane.toml:8:16: host "": name is empty
    nvlane.toml:8:22: invalid type: string "x", expected a list
    nvlane.toml:8:16: invalid type: list, expected a map
    nvlane.toml:8:16: namespace 2 has blocks, and no keys: remove key_prefixes
    nvlane.toml:9:16: a namespace of nqn.2026-01.io.nvlane:x is for certain hosts only, but the memcached listener on 127.0.0.1:11211 opens keys to anyone who reaches it: write memcached = "any" in the subsystem if that is meant, or serve one of them from a target of its own
    "#);
}

#[test]
fn names_without_proof_and_open_listeners_are_warned_of() {
    let warnings = |text: &str| {
        let file = ConfigFile::parse("nvlane.toml", text).unwrap_or_else(|errors| panic!("{errors}"));
        file.located(&file.config.warnings()).to_string()
    };
    let text = |listener: &str, hosts: &str, keys: &str, more: &str| {
        format!("[[listener]]\naddress = {listener}\n{}{more}\n", rights_text(hosts, keys))
    };
    let rights = "hosts = [\"a\"]\nwrite_hosts = [\"a\"]";
    let host = |key: &str| format!("[[subsystem.host]]\nnqn = \"a\"\n{key} = \"file:/k\"");
    let local = "\"127.0.0.1\"";
    let (secret, key) = (host("dhchap_secret"), host("tls_key"));
    let shared = |hosts: &str, keys: &str| {
        text(local, hosts, keys, "").replace("[[subsystem]]", "[[subsystem]]\ndhchap_secret = \"file:/k\"")
    };
    let shown = [
        text(local, "[\"a\"]", "", ""),
        text(local, "[\"a\"]", rights, ""),
        text(local, "\"any\"", rights, ""),
        shared("[\"a\"]", rights),
        // TLS that hosts may do without proves nothing.
        text("\"127.0.0.1\"\ntls = \"allowed\"", "[\"a\"]", "", &key),
        text("\"0.0.0.0\"", "\"any\"", "", ""),
        text(
            "\"[::]\"\ntls = \"allowed\"",
            "\"any\"",
            "",
            "[[subsystem.host]]\nnqn = \"a\"\ntls_key = \"file:/k\"",
        ),
    ]
    .map(|text| warnings(&text));
    insta::assert_snapshot!(shown.join("\n"), @r#"
    nvlane.toml:5:9: a is listed, but any host may call itself so without a secret or a key: give it a secret of its own (dhchap_secret in [[subsystem.host]]), or a tls_key of its own where listeners require TLS
    nvlane.toml:5:9: a is listed, but any host may call itself so without a secret or a key: give it a secret of its own (dhchap_secret in [[subsystem.host]]), or a tls_key of its own where listeners require TLS
    nvlane.toml:10:9: a is listed, but any host may call itself so without a secret or a key: give it a secret of its own (dhchap_secret in [[subsystem.host]]), or a tls_key of its own where listeners require TLS
    nvlane.toml:11:9: a is listed, but every host with the same secret or key may call itself so: give it a secret of its own (dhchap_secret in [[subsystem.host]]), or a tls_key of its own where listeners require TLS
    nvlane.toml:6:9: a is listed, but any host may call itself so without a secret or a key: give it a secret of its own (dhchap_secret in [[subsystem.host]]), or a tls_key of its own where listeners require TLS
    nvlane.toml:2:11: anyone who reaches the listener on 0.0.0.0:4420 may use nqn.2026-01.io.nvlane:x: give hosts a secret (dhchap_secret), or require TLS (tls = "required", tls_key)
    nvlane.toml:2:11: anyone who reaches the listener on [::]:4420 may use nqn.2026-01.io.nvlane:x: give hosts a secret (dhchap_secret), or require TLS (tls = "required", tls_key)
    "#);
    let quiet = [
        text(local, "\"any\"", "", ""),
        text(local, "[\"a\"]", rights, &secret),
        text("\"0.0.0.0\"\ntls = \"required\"", "[\"a\"]", rights, &key),
        text("\"0.0.0.0\"\nsubsystems = false\n[[listener]]\naddress = \"127.0.0.1\"", "\"any\"", "", ""),
        shared("\"any\"", ""),
        shared("[\"a\"]", ""),
    ];
    assert_eq!(quiet.map(|text| warnings(&text)), [const { String::new() }; 6]);
}
