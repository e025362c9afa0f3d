//! Secure channel concatenation over sockets: a secret alone leads to TLS on all queues. wire §22.1

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use host::security::hash::HashFunction;
use host::security::host::HostFailure;
use host::security::message::Reason;
use host::security::secret::Secret;
use host::{
    Address, Association, ControllerError, Credentials, DiscoveryEntry, Error, LinkError, Options,
    ReconnectSettings,
};
use peer::queue::{Move, Queue};
use subsystem::config::{SecretSource, SecretSources, TargetConfig, TlsPolicy};
use tempfile::TempDir;
use wire::discovery::{SecureChannel, TcpSecurity};
use wire::fabrics::ConnectResult;
use wire::id::Cntlid;
use wire::pdu::Digests;
use wire::property::Property;
use wire::sqe::Sqe;
use wire::status::Status;
use zerocopy::IntoBytes;

use crate::raw::RawHost;
use crate::setup::{NQN, Rig, address_of, engines, open, options};

/// Files with the secrets of host and subsystem.
struct Keys(TempDir);

impl Keys {
    fn new() -> Self {
        let keys = Self(tempfile::tempdir().expect("a directory"));
        keys.write("host", 1);
        keys.write("controller", 2);
        keys
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, byte: u8) {
        fs::write(self.path(name), secret(byte).to_text().as_str()).expect("a file");
    }

    /// Hosts must authenticate, on a listener with this policy.
    fn require(&self, config: &mut TargetConfig, policy: TlsPolicy) {
        let source = |name| SecretSource::File(self.path(name));
        config.listeners[0].tls = policy;
        config.subsystems[0].authentication.others =
            Some(SecretSources { host: source("host"), controller: Some(source("controller")) });
    }
}

fn secret(byte: u8) -> Secret {
    Secret::new(Some(HashFunction::Sha256), vec![byte; 32].into()).expect("a length that exists")
}

fn concat(host: u8, controller: Option<u8>) -> Options {
    with(Credentials::new(secret(host), controller.map(secret)))
}

fn with(credentials: Credentials) -> Options {
    let reconnect = ReconnectSettings::default();
    options()
        .with_credentials(Some(Arc::new(credentials)))
        .with_concat(true)
        .with_lanes(2)
        .with_reconnect(reconnect)
}

fn connect(rig: &Rig, options: Options) -> Result<Association, LinkError> {
    let options = options.with_reconnect(ReconnectSettings::never());
    Association::connect(&address_of(rig.socket_address()), options).map_err(|error| match error {
        Error::Link { cause, .. } => cause,
        other => panic!("{other}"),
    })
}

/// Whether all I/O queues of the target have TLS with a generated key.
fn all_have_generated_keys(rig: &Rig) -> bool {
    let controllers = rig.controllers();
    let mut queues = controllers.iter().flat_map(|controller| &controller.queues).peekable();
    assert!(queues.peek().is_some());
    queues.all(|queue| queue.authentication.as_deref() == Some("TLS with a generated key"))
}

#[test]
fn a_secret_alone_leads_to_tls_on_all_queues() {
    let keys = Keys::new();
    for engine in engines() {
        let rig = Rig::with(engine, &["ram:16M"], |config| keys.require(config, TlsPolicy::Allowed));
        for hash in [HashFunction::Sha256, HashFunction::Sha384] {
            for controller in [Some(2), None] {
                let credentials = Credentials::new(secret(1), controller.map(secret));
                let options = with(Credentials { hashes: vec![hash, HashFunction::Sha512], ..credentials });
                let association = connect(&rig, options).expect("connected");
                let mut namespace = open(&association, 1);
                let data: Vec<u8> = (0..1 << 20).map(|at: u32| at.to_le_bytes()[1]).collect();
                namespace.write_at(&data, 4096).expect("a write");
                let mut read = vec![0; data.len()];
                namespace.read_at(&mut read, 4096).expect("a read");
                assert!(read == data);
                assert!(all_have_generated_keys(&rig));
            }
        }
        // Programs of one host have a key each.
        let all: Vec<_> = (0..3).map(|_| connect(&rig, concat(1, Some(2))).expect("connected")).collect();
        for association in &all {
            open(association, 1).write_at(&[1; 4096], 0).expect("a write");
        }
    }
}

#[test]
fn what_stands_in_the_way_is_said() {
    let keys = Keys::new();
    for engine in engines() {
        let mut rig = Rig::with(engine, &["ram:4M"], |config| keys.require(config, TlsPolicy::Off));
        let error = connect(&rig, concat(1, Some(2))).expect_err("no TLS there");
        let refused = HostFailure::Refused(Reason::SecureChannel);
        assert!(matches!(&error, LinkError::Authentication(failure) if *failure == refused), "{error}");
        assert!(error.is_permanent());
        rig.reload(|config| config.listeners[0].tls = TlsPolicy::Allowed);
        for (options, reason) in [
            (concat(3, None), HostFailure::Refused(Reason::Failed)),
            (concat(1, Some(3)), HostFailure::Refuses(Reason::Failed)),
        ] {
            let error = connect(&rig, options).expect_err("another secret");
            assert!(matches!(&error, LinkError::Authentication(failure) if *failure == reason), "{error}");
        }
        let mut without = concat(1, Some(2));
        without.credentials = None;
        let error = connect(&rig, without).expect_err("no secret");
        assert_eq!(error.to_string(), "the controller requires authentication: a secret is needed");
    }
}

#[test]
fn a_target_that_does_not_authenticate_has_no_secure_channel() {
    let rig = Rig::new(engines()[0], &["ram:4M"]);
    let error = connect(&rig, concat(1, None)).expect_err("not asked");
    assert!(matches!(error, LinkError::NoSecureChannel) && error.is_permanent(), "{error}");
}

#[test]
fn a_host_generates_another_key_after_a_restart_and_keeps_its_own_through_a_reload() {
    let keys = Keys::new();
    for engine in engines() {
        let mut rig = Rig::with(engine, &["file:4M"], |config| keys.require(config, TlsPolicy::Allowed));
        let mut namespace = rig.open(concat(1, Some(2)));
        namespace.write_at(&[1; 4096], 0).expect("a write");
        // The keys of before are gone.
        rig.stop();
        rig.start();
        let mut block = vec![0; 4096];
        namespace.read_at(&mut block, 0).expect("a read");
        assert_eq!(block, [1; 4096]);
        assert!(all_have_generated_keys(&rig));
        // Other secrets: connected hosts stay.
        keys.write("host", 5);
        rig.reload(|_| {});
        namespace.write_at(&[2; 4096], 0).expect("a write");
        connect(&rig, concat(5, Some(2))).expect("the new secret");
        connect(&rig, concat(1, Some(2))).expect("the former secret, for a while");
        keys.write("host", 1);
    }
}

/// wire §22.1
#[test]
fn a_listener_that_demands_a_key_serves_no_queue_in_clear_without_one() {
    let keys = Keys::new();
    for engine in engines() {
        let rig = Rig::with(engine, &["ram:4M"], |config| keys.require(config, TlsPolicy::Concatenated));
        let association = connect(&rig, concat(1, Some(2))).expect("a host that generates a key");
        let mut namespace = open(&association, 1);
        namespace.write_at(&[3; 4096], 0).expect("a write");
        let mut block = vec![0; 4096];
        namespace.read_at(&mut block, 0).expect("a read");
        assert!(block == [3; 4096] && all_have_generated_keys(&rig));
        // A host of ours learns what is asked of it; another one, that no other authentication counts.
        for options in [concat(1, Some(2)).with_concat(false), options()] {
            let error = connect(&rig, options).expect_err("in cleartext");
            let asked = LinkError::Controller(ControllerError::SecureChannelRequired);
            assert_eq!(error.to_string(), asked.to_string());
            assert!(error.is_permanent());
        }
        let host = RawHost::dialler(&rig);
        let mut admin = host.queue(Digests::empty()).expect("initialised in cleartext");
        let answer = host.connect_admin(&mut admin).expect("an admin queue");
        let result = ConnectResult::from_bits(answer.cqe.dw0());
        assert!(result.authentication_required() && result.secure_channel_required());
        let status =
            |queue: &mut Queue, sqe, data: Move<'_>| queue.run(sqe, data).expect("an answer").status();
        let before_the_key = status(&mut admin, Sqe::property_get(Property::CAP), Move::None);
        assert_eq!(before_the_key, Status::AUTHENTICATION_REQUIRED.with_dnr());
        let mut io = host.queue(Digests::empty()).expect("initialised in cleartext");
        let connect = host.connect_command(1, 32).to_sqe();
        let data = host.connect_data(Cntlid::new(result.cntlid()));
        let refused = status(&mut io, connect, Move::InCapsule(data.as_bytes()));
        assert_eq!(refused, Status::CONNECT_INVALID_HOST.with_dnr());
        let service = Address { subsystem: None, ..address_of(rig.socket_address()) };
        let error = host::discovery::discover(&service, concat(1, Some(2))).expect_err("in cleartext");
        assert!(error.to_string().contains("Connect"), "{error}");
    }
}

/// Associations stay, as they do with a listener that requires TLS; their hosts connect no further queue in cleartext.
#[test]
fn a_reload_that_demands_a_key_leaves_associations_and_lets_in_no_further_queue() {
    let keys = Keys::new();
    for engine in engines() {
        let mut rig = Rig::with(engine, &["ram:4M"], |config| keys.require(config, TlsPolicy::Allowed));
        let clear = concat(1, Some(2)).with_concat(false);
        let association = connect(&rig, clear.clone()).expect("in cleartext, which is allowed");
        let mut namespace = open(&association, 1);
        let host = RawHost::dialler(&rig);
        let mut admin = host.queue(Digests::empty()).expect("initialised in cleartext");
        rig.reload(|config| config.listeners[0].tls = TlsPolicy::Concatenated);
        namespace.write_at(&[4; 4096], 0).expect("a write");
        let answer = host.connect_admin(&mut admin).expect("accepted before the reload");
        assert!(ConnectResult::from_bits(answer.cqe.dw0()).secure_channel_required());
        connect(&rig, clear.clone()).expect_err("in cleartext");
        connect(&rig, concat(1, Some(2))).expect("with a generated key");
        rig.reload(|config| config.listeners[0].tls = TlsPolicy::Allowed);
        connect(&rig, clear).expect("in cleartext again");
    }
}

/// The discovery service does not authenticate: it is asked in cleartext.
#[test]
fn discovery_is_asked_in_clear() {
    let keys = Keys::new();
    let rig = Rig::with(engines()[0], &["ram:4M"], |config| keys.require(config, TlsPolicy::Allowed));
    let mut service = address_of(rig.socket_address());
    service.subsystem = None;
    let found = host::discovery::discover(&service, concat(1, Some(2))).expect("the log");
    let is_ours = |entry: &&DiscoveryEntry| entry.subsystem().is_ok_and(|name| name.as_str() == NQN);
    let entry = found.entries.iter().find(is_ours).expect("the subsystem");
    // A host that begins in cleartext is no mistake there.
    assert_eq!(entry.tcp_security(), TcpSecurity::TLS_1_3);
    assert_eq!(entry.treq.secure_channel(), SecureChannel::NOT_REQUIRED);
}
