//! A target's log quotes host-supplied names so that the end of each name is unambiguous.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;
use std::time::Duration;

use crate::support::{Target, nvlane};
use peer::link::Link;
use peer::queue::{Move, Queue};
use wire::fabrics::{ConnectAttributes, ConnectCommand, ConnectData};
use wire::id::{Cntlid, Qid};
use wire::nqn::HostId;
use wire::pdu::{DataAlignment, Digests, IcReq};
use wire::status::Status;
use wire::zerocopy::{FromZeros, IntoBytes};

/// Sends a Connect with these names. Returns its status and the local address of the connection.
fn connect(place: &str, host: &[u8], subsystem: &str) -> (Status, SocketAddr) {
    let mut link = Link::connect(place.parse().unwrap(), Duration::from_secs(20)).unwrap();
    link.handshake(&IcReq::new(DataAlignment::NONE, Digests::empty(), 1)).unwrap();
    let local = link.stream().local_addr().unwrap();
    let mut data = ConnectData::new_zeroed();
    data.hostid = HostId::from_bytes([7; 16]);
    data.cntlid.set(Cntlid::DYNAMIC.get());
    data.hostnqn[..host.len()].copy_from_slice(host);
    data.subnqn[..subsystem.len()].copy_from_slice(subsystem.as_bytes());
    let command = ConnectCommand {
        recfmt: 0,
        qid: Qid::ADMIN,
        queue_entries: 32,
        attributes: ConnectAttributes::default(),
        kato_ms: 0,
        near_partition: None,
    };
    let answer = Queue::new(link, 32).run(command.to_sqe(), Move::InCapsule(data.as_bytes())).unwrap();
    (answer.status(), local)
}

/// A target, and the lines of its log.
struct Logged {
    target: Target,
    lines: std::io::Lines<BufReader<std::process::ChildStderr>>,
    /// Name of its subsystem.
    subsystem: String,
}

impl Logged {
    fn serving(hosts: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("nvlane.toml");
        let subsystem = "nqn.2026-01.io.nvlane:logged";
        let text = format!(
            "[[subsystem]]\nnqn = \"{subsystem}\"\nhosts = {hosts}\nnamespace = [{{ storage = \"ram:1M\" }}]\n"
        );
        std::fs::write(&config, text).unwrap();
        let mut command = nvlane();
        command.env("NVLANE_LOG", "info").stderr(Stdio::piped());
        command.args(["target", "--listen", "127.0.0.1:0", "--config"]).arg(&config);
        let mut target = Target::start(&mut command);
        let lines = BufReader::new(target.stderr().unwrap()).lines();
        Self { target, lines, subsystem: subsystem.to_owned() }
    }

    /// Waits for the next line about a Connect.
    fn next(&mut self) -> String {
        let is_about = |line: &String| line.contains("host connected") || line.contains("connect refused");
        self.lines.by_ref().map(|line| line.expect("UTF-8")).find(is_about).expect("a line")
    }
}

#[test]
fn a_name_cannot_pass_for_further_fields() {
    let mut logged = Logged::serving("\"any\"");
    let name = b"nqn.x\" cntlid=1 reason=\"none";
    let (status, peer) = connect(logged.target.place(), name, &logged.subsystem);
    assert_eq!(status, Status::SUCCESS);
    let line = logged.next();
    assert!(line.contains(r#" host="nqn.x\" cntlid=1 reason=\"none" subsystem="#), "{line}");
    assert!(line.contains(&format!(" peer={peer} ")), "{line}");
    assert!(!line.contains("host=nqn"), "{line}");
}

#[test]
fn a_name_that_hides_text_is_refused_and_shown_with_escapes() {
    let mut logged = Logged::serving("\"any\"");
    for (name, shown) in [
        ("nqn.a\u{202e}b\u{2028}c", r#"host="nqn.a\u{202e}b\u{2028}c""#),
        ("nqn.a\x1b[2Jb\nforged", r#"host="nqn.a\u{1b}[2Jb\nforged""#),
    ] {
        let (status, peer) = connect(logged.target.place(), name.as_bytes(), &logged.subsystem);
        assert_eq!(status, Status::CONNECT_INVALID_PARAMETERS.with_dnr());
        let line = logged.next();
        assert!(line.contains(shown), "{line}");
        assert!(line.contains("parameter=\"host name\"") && line.contains(&format!("peer={peer}")), "{line}");
        assert!(!line.chars().any(wire::text::is_hidden), "{line}");
    }
    let (_, _) = connect(logged.target.place(), b"nqn.\xff", &logged.subsystem);
    let line = logged.next();
    assert!(line.contains(r#"host="nqn.\xff""#), "{line}");
    // NQNs of requested subsystems are host-supplied too.
    connect(logged.target.place(), b"h", "nqn.2026-01.io.nvlane:none qid=7");
    let line = logged.next();
    assert!(line.contains(r#"subsystem="nqn.2026-01.io.nvlane:none qid=7""#), "{line}");
}

#[test]
fn a_host_without_a_name_connects_where_any_may_and_is_named_as_such_where_not() {
    let mut open = Logged::serving("\"any\"");
    assert_eq!(connect(open.target.place(), b"", &open.subsystem).0, Status::SUCCESS);
    let line = open.next();
    assert!(line.contains("host connected") && line.contains(" host=\"\" "), "{line}");
    let mut closed = Logged::serving("[\"blktests-host\"]");
    let (status, peer) = connect(closed.target.place(), b"", &closed.subsystem);
    assert_eq!(status, Status::CONNECT_INVALID_HOST.with_dnr());
    let line = closed.next();
    assert!(line.contains("host NQN is empty") && line.contains(&format!("peer={peer}")), "{line}");
    assert!(line.contains("hostid=07070707-0707-0707-0707-070707070707"), "{line}");
    assert_eq!(connect(closed.target.place(), b"blktests-host", &closed.subsystem).0, Status::SUCCESS);
}

/// What a command writes to a standard error that is the journal: a file that the variable names.
fn in_the_journal(arguments: &[&str]) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    let metadata = file.as_file().metadata().unwrap();
    let mut command = nvlane();
    command.env("JOURNAL_STREAM", format!("{}:{}", metadata.dev(), metadata.ino())).args(arguments);
    command.stderr(file.reopen().unwrap()).status().unwrap();
    std::fs::read_to_string(file.path()).unwrap()
}

#[test]
fn lines_for_the_journal_have_priorities_and_no_time() {
    let target = ["target", "--listen", "127.0.0.1:0", "--namespace", "ram:1M", "--log", "info"];
    let said = in_the_journal(&[&target[..], &["--run", "true"]].concat());
    assert!(said.contains("<6> INFO ready "), "{said}");
    assert!(said.lines().all(|line| line.starts_with("<6>") || line.starts_with("<4>")), "{said}");
    let json = in_the_journal(&[&target[..], &["--log-format", "json", "--run", "true"]].concat());
    assert!(json.lines().all(|line| line.starts_with("<6>{") || line.starts_with("<4>{")), "{json}");
    let failure = in_the_journal(&["target", "--config", "/nowhere"]);
    assert!(failure.starts_with("<3>nvlane: /nowhere: "), "{failure}");
    // Another file has whole lines, whatever the variable says.
    let mut command = nvlane();
    command.env("JOURNAL_STREAM", "1:1").args(target).args(["--run", "true"]).stderr(Stdio::piped());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.lines().all(|line| line.starts_with("20")), "{said}");
}

#[test]
fn the_logged_command_for_hosts_has_what_they_are_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (secret, key) = (at("host.key"), at("tls.key"));
    for arguments in
        [&["keys", "generate", "--out", &secret][..], &["keys", "generate", "--tls", "--out", &key]]
    {
        assert!(nvlane().args(arguments).status().unwrap().success());
    }
    let mut command = nvlane();
    command.args(["target", "--listen", "127.0.0.1:0", "--nqn", "nqn.2026-01.io.nvlane:x", "--log", "info"]);
    command.args([
        "--namespace",
        "ram:1M",
        "--tls",
        "required",
        "--tls-key",
        &key,
        "--dhchap-secret",
        &secret,
    ]);
    let output = command.args(["--run", "true"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let options = format!(" -n nqn.2026-01.io.nvlane:x --tls --dhchap-secret \"$(cat {secret})\"\n");
    assert!(said.contains(&options), "{said}");
    let insert = format!("--subsysnqn=nqn.2026-01.io.nvlane:x --keydata=\"$(cat {key})\"\n");
    assert!(said.contains(&insert), "{said}");
}
