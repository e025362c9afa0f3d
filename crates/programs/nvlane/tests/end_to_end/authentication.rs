//! Host and target authenticate each other: every hash function and group that both allow, wrong and missing secrets,
//! reconnects, changed secrets. wire §22.1

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use host::security::group::Group;
use host::security::hash::HashFunction;
use host::security::host::HostFailure;
use host::security::message::Reason;
use host::security::secret::Secret;
use host::{Association, Credentials, Error, Event, Lane, LinkError, Namespace, Options, ReconnectSettings};
use reactor::EngineKind;
use subsystem::authentication::RefusedAgain;
use subsystem::config::{SecretSource, SecretSources, TargetConfig};
use subsystem::state::QueueState;
use tempfile::TempDir;
use wire::id::Nsid;

use crate::setup::{PATIENCE, Rig, address_of, engines, open, options};

/// Files with the secrets of host and subsystem.
struct Keys {
    directory: TempDir,
}

impl Keys {
    fn new() -> Self {
        let keys = Self { directory: tempfile::tempdir().expect("a directory") };
        keys.write("host", 1);
        keys.write("controller", 2);
        keys
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, byte: u8) {
        fs::write(self.path(name), secret(byte).to_text().as_str()).expect("a file");
    }

    fn require(&self, config: &mut TargetConfig) {
        let source = |name| SecretSource::File(self.path(name));
        config.subsystems[0].authentication.others =
            Some(SecretSources { host: source("host"), controller: Some(source("controller")) });
    }
}

fn secret(byte: u8) -> Secret {
    Secret::new(Some(HashFunction::Sha256), vec![byte; 32].into()).expect("a length that exists")
}

fn credentials(host: u8, controller: Option<u8>) -> Credentials {
    Credentials { groups: vec![Group::Null], ..Credentials::new(secret(host), controller.map(secret)) }
}

fn with(credentials: Credentials) -> Options {
    options().with_credentials(Some(Arc::new(credentials))).with_reconnect(ReconnectSettings::default())
}

fn connect(rig: &Rig, options: Options) -> Result<Association, LinkError> {
    let options = options.with_reconnect(ReconnectSettings::never());
    Association::connect(&address_of(rig.socket_address()), options).map_err(|error| match error {
        Error::Link { cause, .. } => cause,
        other => panic!("{other}"),
    })
}

#[test]
fn every_hash_function_and_group_authenticates_both_ways() {
    let keys = Keys::new();
    let rig = Rig::with(EngineKind::Epoll, &["ram:4M"], |config| keys.require(config));
    for hash in HashFunction::ALL {
        for (group, controller) in [(Group::Null, None), (Group::Null, Some(2)), (Group::Ffdhe2048, Some(2))]
        {
            let offer = Credentials { hashes: vec![hash], groups: vec![group], ..credentials(1, controller) };
            let mut namespace = open(&connect(&rig, with(offer)).expect("authenticated"), 1);
            let mut block = vec![7; 4096];
            namespace.write_at(&block, 0).expect("a write");
            namespace.read_at(&mut block, 0).expect("a read");
            let ways = if controller.is_some() { ", both ways" } else { "" };
            let queues = rig.controllers().remove(0).queues;
            assert!(!queues.is_empty());
            for queue in queues {
                assert_eq!(queue.authentication, Some(format!("{hash}, {group}{ways}")));
            }
        }
    }
    // The target's first choice among all.
    let all = Credentials::new(secret(1), None);
    let _namespace = open(&connect(&rig, with(all)).expect("authenticated"), 1);
    let shown = |queue: &QueueState| queue.authentication.as_deref() == Some("SHA-512, ffdhe2048");
    assert!(rig.controllers().iter().flat_map(|controller| &controller.queues).any(shown));
}

#[test]
fn wrong_and_missing_secrets_are_refused_on_both_sides() {
    let keys = Keys::new();
    for engine in engines() {
        let mut rig = Rig::with(engine, &["ram:4M"], |config| keys.require(config));
        for (options, text) in [
            (options(), "the controller requires authentication: a secret is needed"),
            (
                with(credentials(3, None)),
                "authentication failed: the controller refused the host: authentication failed",
            ),
            (
                with(credentials(1, Some(3))),
                "authentication failed: the host refuses the controller: authentication failed",
            ),
        ] {
            let error = connect(&rig, options).expect_err(text);
            assert!(error.is_permanent());
            assert_eq!(error.to_string(), text);
        }
        rig.await_quiet();
        // A target that does not ask does not show its secret.
        rig.reload(|config| config.subsystems[0].authentication.others = None);
        connect(&rig, with(credentials(1, None))).expect("not asked");
        let error = connect(&rig, with(credentials(1, Some(2)))).expect_err("not shown");
        assert!(matches!(error, LinkError::ControllerNotAuthenticated), "{error}");
    }
}

#[test]
fn lanes_go_on_where_the_controller_has_asked_its_admin_queue_only() {
    let keys = Keys::new();
    for engine in engines() {
        let mut rig = Rig::with(engine, &["ram:4M"], |config| keys.require(config));
        let association =
            connect(&rig, with(credentials(1, Some(2)))).expect("both have shown their secrets");
        // From now on Connect demands nothing.
        rig.reload(|config| config.subsystems[0].authentication.others = None);
        let mut namespace = open(&association, 1);
        namespace.write_at(&[1; 4096], 0).expect("a lane that was not asked");
        let queues = rig.controllers().into_iter().flat_map(|controller| controller.queues);
        let asked: Vec<_> = queues.map(|queue| queue.authentication.is_some()).collect();
        assert_eq!(asked, [false], "the I/O queue");
    }
}

#[test]
fn lanes_authenticate_again_after_a_loss_with_the_secret_they_have() {
    let keys = Keys::new();
    for engine in engines() {
        let mut rig = Rig::with(engine, &["file:4M"], |config| keys.require(config));
        let association = rig.connect(with(credentials(1, Some(2))));
        let (mut namespace, events) = (open(&association, 1), association.events());
        namespace.write_at(&[1; 4096], 0).expect("a write");
        rig.stop();
        rig.start();
        let mut block = vec![0; 4096];
        namespace.read_at(&mut block, 0).expect("a read");
        assert_eq!(block, [1; 4096]);
        // Other secrets: the association goes on, and new ones may still have the former.
        keys.write("host", 5);
        rig.reload(|_| {});
        namespace.write_at(&[2; 4096], 0).expect("a write");
        connect(&rig, with(credentials(1, Some(2)))).expect("for a while");
        connect(&rig, with(credentials(5, Some(2)))).expect("the new one");
        // A restart knows the new ones only: the association is refused until its own is back.
        rig.stop();
        rig.start();
        let error = connect(&rig, with(credentials(1, None))).expect_err("the former secret");
        assert!(matches!(error, LinkError::Authentication(_)), "{error}");
        let until = Instant::now() + PATIENCE;
        let event = || events.recv_timeout(until.saturating_duration_since(Instant::now())).expect("events");
        let refused = |event: Event| {
            matches!(event, Event::AttemptFailed { attempts: 2.., cause: LinkError::Authentication(_) })
        };
        while !refused(event()) {}
        keys.write("host", 1);
        rig.reload(|_| {});
        namespace.read_at(&mut block, 0).expect("a read");
        assert_eq!(block, [2; 4096]);
    }
}

/// Reads with one lane of depth 1 until it has authenticated `count` times.
fn read_until_authenticated(lane: &mut Lane, namespace: &Namespace, count: u64) {
    let until = Instant::now() + PATIENCE;
    let (mut buffer, mut completions) = (vec![0; 4096], Vec::new());
    while lane.counters().authentications < count {
        assert!(Instant::now() < until, "{:?}", lane.counters());
        lane.submit(namespace.read(0, 1).expect("a block"), Some(buffer), 1).expect("room for one");
        while completions.is_empty() {
            lane.wait(&mut completions, PATIENCE);
        }
        let completion = completions.pop().expect("the read");
        assert!(completion.is_ok(), "{completion:?}");
        buffer = completion.buffer.expect("the buffer");
        assert_eq!(buffer[..8], [7; 8]);
    }
}

/// At an interval, on the admin queue and on a lane that never has room: refusals leave the queues in use if the target says
/// so, and else end the association; a controller that cannot show its secret loses it, too.
#[test]
fn queues_in_use_authenticate_again() {
    for engine in engines() {
        let keys = Keys::new();
        let mut rig = Rig::with(engine, &["ram:4M?lba=4096"], |config| {
            keys.require(config);
            config.timeouts.secret_overlap_ms = 0;
            config.subsystems[0].authentication.refused_again = RefusedAgain::Keep;
        });
        let options = with(credentials(1, Some(2)))
            .with_depth(1)
            .with_command_timeout(Duration::from_secs(4))
            .with_reauthenticate(Some(Duration::from_millis(50)));
        let association = rig.connect(options);
        let events = association.events();
        open(&association, 1).write_at(&[7; 4096], 0).expect("a write");
        let namespace = association.namespace(Nsid::new(1)).expect("a namespace");
        let mut lane = association.lane().expect("a lane");
        read_until_authenticated(&mut lane, &namespace, 3);
        assert!(events.try_iter().all(|event| !matches!(event, Event::AuthenticationFailed { .. })));

        keys.write("host", 5);
        rig.reload(|_| {});
        let until = Instant::now() + PATIENCE;
        let event = || events.recv_timeout(until.saturating_duration_since(Instant::now())).expect("events");
        let Event::AuthenticationFailed { cause } = event() else { panic!("the admin queue is refused") };
        let refused = LinkError::Authentication(HostFailure::Refused(Reason::Failed));
        assert_eq!(cause.to_string(), refused.to_string());
        let before = lane.counters().authentications;
        keys.write("host", 1);
        rig.reload(|_| {});
        read_until_authenticated(&mut lane, &namespace, before + 2);
        assert_eq!(lane.counters().losses, 0);

        keys.write("host", 5);
        rig.reload(|config| config.subsystems[0].authentication.refused_again = RefusedAgain::Disconnect);
        while !matches!(event(), Event::Down { .. }) {}
        keys.write("host", 1);
        rig.reload(|_| {});
        let before = lane.counters().authentications;
        read_until_authenticated(&mut lane, &namespace, before + 2);

        keys.write("controller", 9);
        rig.reload(|_| {});
        let lost = |event: Event| {
            let refuses = |cause: &LinkError| {
                matches!(cause, LinkError::Authentication(HostFailure::Refuses(Reason::Failed)))
            };
            match event {
                Event::Down { cause } => {
                    assert!(refuses(&cause), "{cause}");
                    true
                }
                _ => false,
            }
        };
        while !lost(event()) {}
    }
}
