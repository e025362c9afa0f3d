//! Strangers who know what a host sends in each Connect, and not its secret: they do not disturb it, and are not taken for it.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use host::security::group::Group;
use host::security::hash::HashFunction;
use host::security::secret::Secret;
use host::{Credentials, Options};
use peer::queue::Queue;
use peer::raw_host::RawHost;
use reactor::EngineKind;
use serde_json::Value;
use subsystem::config::{SecretSource, SecretSources};
use wire::id::Cntlid;
use wire::pdu::Digests;

use crate::setup::{NQN, PATIENCE, Rig, engines, open, options};

/// Seconds in which a connection that was answered with a TermReq is closed, and one more.
const TERMINATED_S: u64 = 6;

fn secret() -> Secret {
    Secret::new(Some(HashFunction::Sha256), vec![1; 32].into()).expect("a length that exists")
}

fn with_secret() -> Options {
    let credentials = Credentials { groups: vec![Group::Null], ..Credentials::new(secret(), None) };
    options().with_credentials(Some(Arc::new(credentials))).with_lanes(4)
}

/// A target whose hosts must authenticate, with an audit log.
fn rig(engine: EngineKind, directory: &Path) -> Rig {
    let key = directory.join("key");
    fs::write(&key, secret().to_text().as_str()).expect("a file");
    Rig::with(engine, &["ram:4M"], |config| {
        let sources = SecretSources { host: SecretSource::File(key), controller: None };
        config.subsystems[0].authentication.others = Some(sources);
        config.timeouts.pdu_ms = 1000;
        config.audit.file = Some(directory.join("audit"));
    })
}

/// One that says it is the host of the first controller. Returns it with that controller.
fn impostor(rig: &Rig) -> (RawHost, Cntlid) {
    let victim = rig.controllers().remove(0);
    let stranger = RawHost {
        address: rig.socket_address(),
        subsystem: NQN.parse().expect("a name"),
        nqn: victim.host.parse().expect("a name"),
        hostid: victim.hostid.parse::<wire::uuid::Uuid>().expect("an identifier").into(),
        patience: PATIENCE,
    };
    (stranger, Cntlid::new(victim.cntlid))
}

/// Opens an I/O queue of this controller, which is accepted.
fn intrude(stranger: &RawHost, cntlid: Cntlid, qid: u16) -> Queue {
    stranger.connect_io(cntlid, qid, 32, Digests::empty()).expect("accepted, without authentication")
}

/// hostile A21, A22, A23
#[test]
fn a_stranger_does_not_end_a_host_s_association_nor_keep_its_queues() {
    for engine in engines() {
        let directory = tempfile::tempdir().expect("a directory");
        let rig = rig(engine, directory.path());
        let association = rig.connect(with_secret());
        let mut namespace = open(&association, 1);
        namespace.write_at(&[7; 4096], 0).expect("a write");
        let (stranger, cntlid) = impostor(&rig);
        // One breaks the protocol and stays, one leaves a PDU unfinished, others hold all queues.
        let mut garbage = intrude(&stranger, cntlid, 2);
        garbage.link.send(&[0xff; 8]).expect("sent");
        let mut unfinished = intrude(&stranger, cntlid, 3);
        unfinished.link.send(&[0x04, 0, 0x48, 0, 0x48]).expect("sent");
        let held: Vec<Queue> = (1..=64).map(|qid| intrude(&stranger, cntlid, qid)).collect();
        let idle: Vec<Queue> = (0..8)
            .map(|_| {
                let mut queue = stranger.queue(Digests::empty()).expect("a connection");
                stranger.connect_admin(&mut queue).expect("accepted, without authentication");
                queue
            })
            .collect();
        assert_eq!(rig.controllers().len(), 1, "those that have not authenticated are none");
        let others: Vec<_> = (0..3).map(|_| open(&association, 1)).collect();
        let until = Instant::now() + Duration::from_secs(TERMINATED_S);
        let mut block = vec![0; 4096];
        while Instant::now() < until {
            namespace.read_at(&mut block, 0).expect("the host is served");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(block, [7; 4096]);
        garbage.link.expect_term_req(&[], &[]).ok();
        drop((garbage, unfinished, held, idle));
        // Nobody is told that the host has left; each stranger is named by its own address.
        let told_until = Instant::now() + PATIENCE;
        let failed = loop {
            let text = fs::read_to_string(directory.path().join("audit")).expect("a log");
            // The last line may be in writing.
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let lines: Vec<Value> =
                whole.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
            assert!(lines.iter().all(|line| line["event"] != "disconnected"), "{text}");
            let failed: Vec<Value> =
                lines.into_iter().filter(|line| line["event"] == "authentication_failed").collect();
            if failed.len() == 2 + 64 + 8 {
                break failed;
            }
            assert!(Instant::now() < told_until, "{failed:#?}");
            std::thread::sleep(Duration::from_millis(5));
        };
        for reason in ["PDU not complete in time", "invalid PDU header field"] {
            assert!(failed.iter().any(|line| line["reason"] == reason), "no {reason}: {failed:#?}");
        }
        drop((others, namespace, association));
        rig.await_quiet();
    }
}
