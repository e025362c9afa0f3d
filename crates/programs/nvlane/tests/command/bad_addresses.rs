//! Failures to reach a target are reported in one line that says how to fix them.

use peer::session::{Event, Then};
use wire::pdu::Digests;

use crate::support::{Ended, Target, answering, nvlane, run, strange_target};

#[test]
fn an_address_that_is_none_says_how_to_write_one() {
    for (address, hint) in [
        ("1.2.3/nqn.2026-01.io.nvlane:x", "nor an IP address"),
        ("::1", "[::1]"),
        ("host:port/nqn.2026-01.io.nvlane:x", "1 to 65535"),
        ("192.0.2.1:4420:nqn.2026-01.io.nvlane:x", "write HOST:PORT/NQN"),
        ("nqn.2026-01.io.nvlane:x", "HOST[:PORT]/nqn.2026-01.io.nvlane:x"),
        ("http://host/nqn.2026-01.io.nvlane:x", "nvme+tcp://"),
        ("host?disk=1", "ns=NUMBER"),
        ("trtype:rdma traddr:192.0.2.1", "only TCP"),
    ] {
        let line = run(["identify", address]).complaint(2);
        assert!(line.contains(hint), "{line}");
    }
    assert!(run(["identify"]).complaint(2).contains("NVLANE_ADDR"));
}

#[test]
fn options_that_cannot_be_are_one_line() {
    for arguments in [
        ["--timeout", "soon", "127.0.0.1"],
        ["--timeout", "0", "127.0.0.1"],
        ["--hostnqn", "me", "127.0.0.1"],
        ["--hostid", "me", "127.0.0.1"],
    ] {
        let line = run(["discover"].into_iter().chain(arguments)).complaint(2);
        assert!(line.contains(arguments[0]), "{line}");
    }
}

#[test]
fn a_name_that_does_not_resolve_is_a_target_out_of_reach() {
    let line = run(["identify", "nowhere.invalid/nqn.2026-01.io.nvlane:x"]).complaint(4);
    assert!(line.contains("cannot resolve the name") && line.contains("spelled"), "{line}");
}

#[test]
fn a_closed_port_asks_whether_the_target_runs() {
    for (verb, address) in [("identify", "127.0.0.1:1/nqn.2026-01.io.nvlane:x"), ("discover", "127.0.0.1:1")]
    {
        let line = run([verb, address]).complaint(4);
        assert!(line.contains("is the target running"), "{line}");
    }
}

#[test]
fn the_port_of_memcacheds_clients_is_told_from_one_of_nvme_at_once() {
    let line = Ended::of(
        nvlane()
            .args(["target", "--listen", "127.0.0.1:0", "--memcached", "127.0.0.1:0", "--namespace"])
            .args(["kv:ram:16M", "--run"])
            .arg("$NVLANE identify $NVLANE_MEMCACHED/nqn.2026-01.io.nvlane:x")
            .env("NVLANE", env!("CARGO_BIN_EXE_nvlane")),
    )
    .complaint(4);
    assert!(line.contains("the target closed the connection during handshake"), "{line}");
    assert!(line.contains("is this an NVMe/TCP port?"), "{line}");
}

#[test]
fn an_unknown_subsystem_says_where_to_look() {
    let target = Target::serving(&["ram:1M"]);
    let address = format!("{}/nqn.2026-01.io.nvlane:other", target.place());
    for verb in ["identify", "list", "smart-log"] {
        let line = run([verb, &address]).complaint(4);
        assert!(line.contains("no subsystem nqn.2026-01.io.nvlane:other"), "{line}");
        assert!(line.contains("`nvlane discover`"), "{line}");
    }
}

#[test]
fn a_host_that_is_not_let_in_learns_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("nvlane.toml");
    let friend = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555";
    let stranger = "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-4333-8444-555555555555";
    let text = format!(
        "[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:disk\"\nhosts = [\"{friend}\"]\n\
         namespace = [{{ storage = \"ram:1M\" }}]\n"
    );
    std::fs::write(&config, text).unwrap();
    let target = Target::configured(&config);
    let line = target.ask(&["identify", "--hostnqn", stranger]).complaint(4);
    assert!(line.contains(&format!("the target must allow our host name, {stranger}")), "{line}");
    target.ask(&["identify", "--hostnqn", friend]).text();
}

#[test]
fn a_discovery_service_where_a_subsystem_is_meant_says_so() {
    let target = Target::serving(&["ram:1M"]);
    let address = format!("{}/nqn.2014-08.org.nvmexpress.discovery", target.place());
    for (command, code) in [
        (&["perf", &address, "-t", "1"][..], 4),
        (&["kv", "list", &address], 4),
        (&["smart-log", &address], 1),
    ] {
        let line = run(command).complaint(code);
        assert!(line.contains("it is a discovery service: `nvlane discover` lists the subsystems"), "{line}");
    }
}

#[test]
fn a_port_without_tls_is_told_once() {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("tls.key");
    let key = key.to_str().unwrap();
    assert_eq!(run(["keys", "generate", "--tls", "--out", key]).code, 0);
    let target = Target::serving(&["ram:1M"]);
    let line = target.ask(&["identify", "--tls", "--tls-key", key]).complaint(4);
    assert!(
        line.ends_with("TLS: the peer does not speak TLS; leave out --tls to connect unencrypted"),
        "{line}"
    );
}

#[test]
fn an_unknown_namespace_lists_those_that_are_there() {
    let target = Target::serving(&["ram:1M", "ram:1M"]);
    let line = target.ask(&["identify", "--namespace", "7"]).complaint(4);
    assert!(line.ends_with("has no namespace 7; there are 1, 2"), "{line}");
    let line = run(["list", &format!("{}?ns=7", target.address)]).complaint(4);
    assert!(line.ends_with("has no namespace 7; there are 1, 2"), "{line}");
}

#[test]
fn something_else_than_a_target_is_told_from_one() {
    for answer in [&b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"[..], b""] {
        let (_target, address) = strange_target(move |session, _| {
            session.send(answer);
            Then::End
        });
        let line = run(["identify", &address]).complaint(4);
        assert!(line.contains("is this an NVMe/TCP port?"), "{line}");
    }
}

#[test]
fn one_that_never_answers_is_waited_for_as_long_as_asked() {
    let (_target, address) = answering(0);
    let line = run(["identify", "--timeout", "0.3", &address]).complaint(4);
    assert!(line.contains("no answer to handshake in 300 ms; is this an NVMe/TCP port?"), "{line}");
}

#[test]
fn digests_that_are_not_agreed_to_are_said() {
    let (_target, address) = strange_target(|session, event| {
        let Event::IcReq(request) = event else { return Then::AsUsual };
        let mut response = session.end.limits.ic_resp(request);
        response.dgst = Digests::empty();
        session.end.shake(response);
        Then::GoOn
    });
    let line = run(["identify", "-H", &address]).complaint(4);
    assert!(line.contains("does not accept the requested digests"), "{line}");
}
