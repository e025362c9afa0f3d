//! The audit log of a running target: who was let in, who was not and why. docs/audit-log.md

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use host::security::group::Group;
use host::security::hash::HashFunction;
use host::security::psk::Derivation;
use host::security::secret::Secret;
use host::security::tls::HostKeys;
use host::security::tls_key::TlsKey;
use host::{Association, Credentials, HostIdentity, Options};
use peer::link::Link;
use peer::pdu::in_capsule;
use reactor::EngineKind;
use serde_json::Value;
use subsystem::access::HostRights;
use subsystem::config::{SecretSource, SecretSources, TargetConfig, TlsKeySources, TlsPolicy};
use subsystem::subsystem::Access;
use tempfile::TempDir;
use wire::fabrics::{ConnectAttributes, ConnectCommand, ConnectData};
use wire::id::{Cntlid, Qid};
use wire::nqn::HostId;
use zerocopy::IntoBytes;

use crate::setup::{NQN, PATIENCE, Rig, address_of, open, options};

const FRIEND: &str = "nqn.2026-01.io.nvlane:friend";
const STRANGER: &str = "nqn.2026-01.io.nvlane:stranger";

/// A target with an audit log.
struct Audited {
    rig: Rig,
    directory: TempDir,
}

impl Audited {
    fn new(change: impl FnOnce(&mut TargetConfig, &Path)) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let rig = Rig::with(EngineKind::Epoll, &["ram:4M"], |config| {
            config.audit.file = Some(directory.path().join("audit"));
            change(config, directory.path());
        });
        Self { rig, directory }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("audit")
    }

    /// The whole lines so far: the last one may be in writing.
    fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path()).expect("a log");
        assert!(text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\n')), "{text:?}");
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// Waits for the line of an event that satisfies the condition.
    fn await_line(&self, event: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            let lines = self.lines();
            if let Some(line) = lines.iter().find(|line| line["event"] == event && is_it(line)) {
                return line.clone();
            }
            assert!(Instant::now() < until, "no such {event}: {lines:#?}");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }

    fn connect(&self, options: Options) -> Result<Association, host::Error> {
        Association::connect(&address_of(self.rig.socket_address()), options)
    }
}

fn called(name: &str) -> Options {
    options().with_identity(Some(HostIdentity::of_name(name.parse().expect("a name"))))
}

fn write_key(path: &Path, text: &str) -> SecretSource {
    fs::write(path, text).expect("a file");
    SecretSource::File(path.to_owned())
}

#[test]
fn hosts_that_come_write_and_leave_have_lines() {
    let only = |host: &str| Access::Only([host.parse().expect("a name")].into());
    let audited = Audited::new(|config, _| {
        config.subsystems[0].namespaces[0].rights =
            HostRights { writable_by: only(FRIEND), ..HostRights::ALL };
    });
    let association = audited.connect(called(STRANGER)).expect("it may connect");
    let peer = audited.await_line("connected", |line| line["queue"] == 0);
    assert_eq!(
        (&peer["host"], &peer["subsystem"], &peer["tls"], &peer["must_authenticate"]),
        (&STRANGER.into(), &NQN.into(), &Value::Null, &false.into())
    );
    assert_eq!(peer["listener"], audited.rig.socket_address().to_string());
    assert!(peer["peer"].is_string() && peer["host_id"].is_string() && peer["time"].is_string());
    let mut namespace = open(&association, 1);
    audited.await_line("connected", |line| line["queue"] != 0 && line["host"] == STRANGER);
    namespace.write_at(&[1; 4096], 0).expect_err("it may only read");
    let refused = audited.await_line("write_refused", |_| true);
    assert_eq!((&refused["host"], &refused["namespace"]), (&STRANGER.into(), &1.into()));
    drop((namespace, association));
    let left = audited.await_line("disconnected", |_| true);
    assert_eq!((&left["host"], &left["reason"]), (&STRANGER.into(), &"host disconnected".into()));
    assert_eq!((&left["peer"], &left["controller"]), (&peer["peer"], &peer["controller"]));
}

#[test]
fn refusals_say_who_and_why() {
    let mut audited = Audited::new(|config, _| {
        config.subsystems[0].access = Access::Only([FRIEND.parse().expect("a name")].into());
    });
    audited.connect(called(STRANGER)).expect_err("it is not listed");
    let line = audited.await_line("connect_refused", |_| true);
    assert_eq!(
        (&line["host"], &line["status"]),
        (&STRANGER.into(), &"connect invalid host".into()),
        "{line}"
    );
    let elsewhere = address_of(audited.rig.socket_address())
        .with_subsystem("nqn.2026-01.io.nvlane:elsewhere".parse().expect("a name"));
    Association::connect(&elsewhere, called(FRIEND)).expect_err("no such subsystem");
    let line = audited.await_line("connect_refused", |line| line["host"] == FRIEND);
    assert_eq!(line["parameter"], "subsystem name", "{line}");
    assert_eq!(line["subsystem"], "nqn.2026-01.io.nvlane:elsewhere");
    let _association = audited.connect(called(FRIEND)).expect("it is listed");
    audited.rig.reload(|config| config.subsystems[0].access = Access::Only([].into()));
    audited.await_line("disconnected", |line| line["reason"] == "host no longer allowed");
}

#[test]
fn names_with_any_bytes_stay_on_their_line() {
    let audited = Audited::new(|_, _| {});
    let connect = |name: &[u8]| {
        let mut link =
            Link::over(TcpStream::connect(audited.rig.socket_address()).expect("it listens"), PATIENCE)
                .expect("a connection");
        link.handshake(&peer::link::plain_request()).expect("a handshake");
        let subsystem = NQN.parse().expect("a name");
        let host = FRIEND.parse().expect("a name");
        let mut data = ConnectData::new(
            HostId::from(wire::uuid::Uuid::from_bytes([9; 16])),
            Cntlid::DYNAMIC,
            &subsystem,
            &host,
        );
        data.hostnqn = [0; 256];
        data.hostnqn[..name.len()].copy_from_slice(name);
        let command = ConnectCommand {
            recfmt: 0,
            qid: Qid::ADMIN,
            queue_entries: 32,
            attributes: ConnectAttributes::default(),
            kato_ms: 0,
            near_partition: None,
        };
        let draft = in_capsule(link.form, command.to_sqe(), data.as_bytes());
        link.send(&draft.seal()).expect("sent");
        // Held until the answer is here.
        drop(link.receive());
    };
    connect(b"nqn.evil\r\n{\"event\":\"connected\"}\x1b[2J\x7f\"\\");
    connect(b"nqn.\xff\xfe\x80evil");
    connect("nqn.\u{202e}\u{1f525}live".as_bytes());
    connect(&[b'a'; 256]);
    let until = Instant::now() + PATIENCE;
    while audited.lines().len() < 5 {
        assert!(Instant::now() < until, "{:#?}", audited.lines());
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let hosts: Vec<Value> = audited.lines().iter().map(|line| line["host"].clone()).collect();
    for host in ["nqn.evil\r\n{\"event\":\"connected\"}\x1b[2J\x7f\"\\", "nqn.\u{fffd}\u{fffd}\u{fffd}evil"] {
        assert!(hosts.contains(&host.into()), "{hosts:?}");
    }
    assert!(hosts.iter().any(|host| host.as_str().is_some_and(|host| host.len() == 256)));
}

#[test]
fn authentication_and_tls_are_told_and_no_secret_is() {
    let secret = |byte| Secret::new(Some(HashFunction::Sha256), vec![byte; 32].into()).expect("a secret");
    let key = |byte| TlsKey::new(Some(HashFunction::Sha256), vec![byte; 32].into()).expect("a key");
    let audited = Audited::new(|config, directory| {
        let [host, controller] = [("host", 1), ("controller", 2)]
            .map(|(name, byte)| write_key(&directory.join(name), secret(byte).to_text().as_str()));
        let subsystem = &mut config.subsystems[0];
        subsystem.authentication.others = Some(SecretSources { host, controller: Some(controller) });
        let others = Some(write_key(&directory.join("tls"), key(3).to_text().as_str()));
        subsystem.tls_keys = TlsKeySources { others, ..TlsKeySources::default() };
        config.listeners[0].tls = TlsPolicy::Required;
    });
    let with = |host_byte, tls_byte| {
        called(FRIEND)
            .with_credentials(Some(Arc::new(Credentials {
                groups: vec![Group::Ffdhe2048],
                ..Credentials::new(secret(host_byte), Some(secret(2)))
            })))
            .with_tls(Some(Arc::new(HostKeys { key: key(tls_byte), derivation: Derivation::Standard })))
    };
    let association = audited.connect(with(1, 3)).expect("it knows both keys");
    let line = audited.await_line("authenticated", |_| true);
    assert_eq!(
        (&line["hash"], &line["group"], &line["both_ways"]),
        (&"SHA-512".into(), &"ffdhe2048".into(), &true.into())
    );
    let line = audited.await_line("connected", |_| true);
    assert_eq!((&line["tls"]["identity_version"], &line["must_authenticate"]), (&1.into(), &true.into()));
    assert_eq!(line["tls"]["cipher"], "TLS_AES_128_GCM_SHA256");
    drop(association);
    audited.connect(with(7, 3)).expect_err("another secret");
    let line = audited.await_line("authentication_failed", |_| true);
    assert_eq!(line["host"], FRIEND);
    audited.connect(with(1, 7)).expect_err("another key");
    let line = audited.await_line("connection_refused", |line| line["reason"] == "TLS failed");
    assert!(line["detail"].as_str().is_some_and(|detail| detail.contains(FRIEND)), "{line}");
    audited.connect(called(FRIEND)).expect_err("in cleartext");
    audited.await_line("connection_refused", |line| {
        line["reason"].as_str().is_some_and(|reason| reason.starts_with("in cleartext"))
    });
    let text = fs::read_to_string(audited.path()).expect("a log");
    for secret in ["DHHC-1", "NVMeTLSkey-1", "AQEBAQ", "AgICAg", "AwMDAw"] {
        assert!(!text.contains(secret), "{secret}");
    }
}

#[test]
fn a_log_that_cannot_be_written_does_not_stop_the_target() {
    let rig = Rig::with(EngineKind::Epoll, &["ram:4M"], |config| {
        config.audit.file = Some("/dev/full".into());
    });
    let mut namespace = rig.open(options());
    namespace.write_at(&[1; 4096], 0).expect("a write");
    let until = Instant::now() + PATIENCE;
    let audit = || rig.state().audit.expect("there is a log");
    // The start, the admin queue, the queue of the namespace.
    while audit().not_written_count < 3 {
        assert!(Instant::now() < until, "{:?}", audit());
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert!(audit().error.is_some_and(|error| error.contains("No space left")));
    assert_eq!(audit().written_count, 0);
}

#[test]
fn a_reload_begins_moves_and_ends_the_log() {
    let mut audited = Audited::new(|_, _| {});
    let (first, second) = (audited.path(), audited.directory.path().join("second"));
    fs::rename(&first, audited.directory.path().join("rotated")).expect("renamed");
    audited.rig.reload(|_| {});
    drop(audited.connect(called(FRIEND)).expect("connected"));
    audited.await_line("disconnected", |_| true);
    audited.rig.reload(|config| config.audit.file = Some(second.clone()));
    drop(audited.connect(called(STRANGER)).expect("connected"));
    let until = Instant::now() + PATIENCE;
    while !fs::read_to_string(&second).expect("a log").contains("disconnected") {
        assert!(Instant::now() < until, "no line in the new file");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    audited.rig.reload(|config| config.audit.file = None);
    assert_eq!(audited.rig.state().audit, None);
    let size = second.metadata().expect("a log").len();
    drop(audited.connect(called(FRIEND)).expect("connected"));
    assert_eq!(audited.rig.stop(), 0);
    assert_eq!(second.metadata().expect("a log").len(), size, "nothing is written any more");
}
