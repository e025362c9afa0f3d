//! Host and target over TLS: both cipher suites, all sizes, several reactors; what is refused, and how soon. wire §22.6

use std::fs;
use std::io::{ErrorKind, IoSliceMut, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use host::security::hash::HashFunction;
use host::security::psk::Derivation;
use host::security::tls::{Alert, ByteSocket, Failure, HostKeys, Session, Stream};
use host::security::tls_key::TlsKey;
use host::{Association, Error, LinkError, Options, ReconnectSettings};
use peer::link::plain_request;
use peer::pdu::{Form, in_capsule};
use reactor::{EngineKind, Received, Segment, Sent};
use subsystem::config::{SecretSource, SubsystemConfig, TargetConfig, TlsKeySources, TlsPolicy};
use tempfile::TempDir;
use wire::cqe::Cqe;
use wire::fabrics::ConnectData;
use wire::id::Cntlid;
use wire::nqn::{HostId, Nqn};
use wire::status::Status;
use zerocopy::{FromBytes, IntoBytes};

use crate::raw::RawHost;
use crate::setup::{NQN, PATIENCE, Rig, address_of, engines, open, options};

/// A refusal must not take longer than this; the timeouts of connections are 10 s.
const SOON: Duration = Duration::from_secs(8);

/// A directory with keys.
struct Keys(TempDir);

impl Keys {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("key")
    }

    fn write(&self, key: &TlsKey) {
        fs::write(self.path(), key.to_text().as_str()).expect("a file");
    }

    /// The target speaks TLS by this policy, with the key in the file.
    fn require(&self, config: &mut TargetConfig, policy: TlsPolicy) {
        config.listeners[0].tls = policy;
        let others = Some(SecretSource::File(self.path()));
        config.subsystems[0].tls_keys = TlsKeySources { others, ..TlsKeySources::default() };
    }
}

fn key(hash: HashFunction, byte: u8) -> TlsKey {
    TlsKey::new(Some(hash), vec![byte; hash.digest_bytes()].into()).expect("a key")
}

fn with(key: TlsKey) -> Options {
    let tls = Some(Arc::new(HostKeys { key, derivation: Derivation::Standard }));
    Options { tls, reconnect: ReconnectSettings::never(), ..options() }
}

/// A target with the key 1 for SHA-256.
fn rig(engine: EngineKind, keys: &Keys, policy: TlsPolicy) -> Rig {
    keys.write(&key(HashFunction::Sha256, 1));
    Rig::with(engine, &["ram:64M"], |config| keys.require(config, policy))
}

fn refused(rig: &Rig, options: Options) -> LinkError {
    let begun = Instant::now();
    let options = Options { reconnect: ReconnectSettings::never(), ..options };
    let error = Association::connect(&address_of(rig.socket_address()), options).expect_err("refused");
    assert!(begun.elapsed() < SOON, "after {:?}: {error}", begun.elapsed());
    match error {
        Error::Link { cause, .. } => cause,
        other => panic!("{other}"),
    }
}

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from((at + seed) % 251).expect("a byte")).collect()
}

#[test]
fn data_of_all_sizes_travels_with_both_cipher_suites_and_engines() {
    let keys = Keys::new();
    for engine in engines() {
        for hash in [HashFunction::Sha256, HashFunction::Sha384] {
            keys.write(&key(hash, 1));
            let rig = Rig::with(engine, &["ram:64M"], |config| keys.require(config, TlsPolicy::Required));
            for options in [with(key(hash, 1)), with(key(hash, 1)).with_digests()] {
                let association =
                    Association::connect(&address_of(rig.socket_address()), Options { lanes: 2, ..options })
                        .expect("connected");
                let mut namespace = open(&association, 1);
                for (round, length) in
                    [4096, 8192, 16 << 10, 20 << 10, 128 << 10, 1 << 20, 5 << 20].into_iter().enumerate()
                {
                    let data = pattern(length, round);
                    namespace.write_at(&data, 4096).expect("a write");
                    let mut read = vec![0; length];
                    namespace.read_at(&mut read, 4096).expect("a read");
                    assert!(read == data, "{length} bytes");
                }
            }
        }
    }
}

#[test]
fn another_key_is_refused_at_once_on_both_sides() {
    let keys = Keys::new();
    for engine in engines() {
        let rig = rig(engine, &keys, TlsPolicy::Required);
        let error = refused(&rig, with(key(HashFunction::Sha256, 2)));
        assert!(matches!(&error, LinkError::Tls(Failure::Alert(Alert::DECRYPT_ERROR))), "{error}");
        assert!(error.is_permanent());
        assert_eq!(error.to_string(), "TLS: the peer sent the TLS alert decrypt_error");
        let error = refused(&rig, with(key(HashFunction::Sha384, 1)));
        assert!(matches!(&error, LinkError::Tls(Failure::Alert(Alert::UNKNOWN_PSK_IDENTITY))), "{error}");
        let complaints = rig.state().connections.complaints;
        assert_eq!(complaints.get("TLS failed"), Some(&1), "{complaints:?}");
        assert_eq!(complaints.get("TLS identity without a key"), Some(&1), "{complaints:?}");
        rig.await_quiet();
    }
}

#[test]
fn a_host_in_clear_is_refused_where_tls_is_required_and_served_where_it_is_allowed() {
    let keys = Keys::new();
    for engine in engines() {
        let mut rig = rig(engine, &keys, TlsPolicy::Required);
        let error = refused(&rig, options());
        assert!(matches!(&error, LinkError::Closed { .. } | LinkError::Socket(_)), "{error}");
        let complaints = rig.state().connections.complaints;
        assert_eq!(complaints.get("in clear, where TLS is required"), Some(&1), "{complaints:?}");
        rig.reload(|config| config.listeners[0].tls = TlsPolicy::Allowed);
        for options in [options(), with(key(HashFunction::Sha256, 1))] {
            let association =
                Association::connect(&address_of(rig.socket_address()), options).expect("connected");
            let mut namespace = open(&association, 1);
            let data = pattern(300 << 10, 3);
            namespace.write_at(&data, 0).expect("a write");
            let mut read = vec![0; data.len()];
            namespace.read_at(&mut read, 0).expect("a read");
            assert!(read == data);
        }
    }
}

#[test]
fn a_host_with_tls_is_refused_by_a_listener_in_clear() {
    for engine in engines() {
        let rig = Rig::new(engine, &["ram:4M"]);
        let error = refused(&rig, with(key(HashFunction::Sha256, 1)));
        assert!(matches!(&error, LinkError::Tls(Failure::NotTls)), "{error}");
        assert_eq!(error.to_string(), "TLS: the peer does not speak TLS");
    }
}

#[test]
fn a_key_is_for_the_host_that_it_is_configured_for() {
    let keys = Keys::new();
    keys.write(&key(HashFunction::Sha256, 1));
    let host = options().identity.expect("an identity").nqn;
    let configure = |config: &mut TargetConfig, name: &str| {
        config.listeners[0].tls = TlsPolicy::Required;
        let hosts = [(name.parse().expect("a name"), SecretSource::File(keys.path()))];
        config.subsystems[0].tls_keys = TlsKeySources { hosts: hosts.into(), others: None };
    };
    let mut rig = Rig::with(EngineKind::Epoll, &["ram:4M"], |config| configure(config, host.as_str()));
    drop(
        Association::connect(&address_of(rig.socket_address()), with(key(HashFunction::Sha256, 1)))
            .expect("connected"),
    );
    rig.reload(|config| configure(config, "nqn.2014-08.org.nvmexpress:uuid:another"));
    let error = refused(&rig, with(key(HashFunction::Sha256, 1)));
    assert!(matches!(&error, LinkError::Tls(Failure::Alert(Alert::UNKNOWN_PSK_IDENTITY))), "{error}");
}

#[test]
fn a_changed_key_is_for_new_connections_and_a_connected_host_stays() {
    let keys = Keys::new();
    let mut rig = rig(EngineKind::Epoll, &keys, TlsPolicy::Required);
    let association =
        Association::connect(&address_of(rig.socket_address()), with(key(HashFunction::Sha256, 1)))
            .expect("connected");
    let mut namespace = open(&association, 1);
    keys.write(&key(HashFunction::Sha256, 5));
    rig.reload(|_| {});
    namespace.write_at(&pattern(8192, 1), 0).expect("still connected");
    let error = refused(&rig, with(key(HashFunction::Sha256, 1)));
    assert!(matches!(error, LinkError::Tls(Failure::Alert(_))), "{error}");
    drop(
        Association::connect(&address_of(rig.socket_address()), with(key(HashFunction::Sha256, 5)))
            .expect("connected"),
    );
}

/// A socket of the system that waits.
struct Waiting(TcpStream);

impl ByteSocket for Waiting {
    fn receive(&mut self, into: &mut [u8]) -> Received {
        loop {
            return match self.0.read(into) {
                Ok(0) => Received::Ended,
                Ok(count) => Received::Bytes(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => Received::Failed(error),
            };
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Sent {
        match self.0.write(bytes) {
            Ok(count) => Sent::Bytes(count),
            Err(error) => Sent::Failed(error),
        }
    }
}

/// A host that shows the key 1 as `known`, and then connects as `named` to `subsystem`. Returns what it is answered.
fn connect_as(rig: &Rig, known: &Nqn, named: &Nqn, subsystem: &Nqn) -> Status {
    let keys = HostKeys { key: key(HashFunction::Sha256, 1), derivation: Derivation::Standard };
    let session =
        Session::host(&keys.offer(&known.clone().into(), &NQN.parse().expect("a name"))).expect("a session");
    let mut stream = Stream::new(session);
    let socket = TcpStream::connect(rig.socket_address()).expect("connected");
    socket.set_read_timeout(Some(PATIENCE)).expect("an option of sockets");
    let mut socket = Waiting(socket);
    assert!(stream.handshake(&mut socket).expect("the key is right"));
    let mut exchange = |bytes: &[u8], answer: &mut [u8]| {
        let sent = stream.send(&[Segment::new(bytes)], &mut socket);
        assert!(matches!(sent, Sent::Bytes(count) if count == bytes.len()), "{sent:?}");
        let mut have = 0;
        while have < answer.len() {
            let received = stream.receive(&mut [IoSliceMut::new(&mut answer[have..])], &mut socket);
            let Received::Bytes(count) = received else { panic!("{received:?}") };
            have += count;
        }
    };
    exchange(plain_request().as_bytes(), &mut [0; 128]);
    let sqe = RawHost::dialler(rig).connect_command(0, 32).to_sqe();
    let data = ConnectData::new(HostId::from_bytes([7; 16]), Cntlid::DYNAMIC, subsystem, named);
    let mut response = [0; 24];
    exchange(&in_capsule(Form::PLAIN, sqe, data.as_bytes()).seal(), &mut response);
    Cqe::read_from_bytes(&response[8..]).expect("an entry").status()
}

#[test]
fn a_connect_names_the_host_and_the_subsystem_whose_key_was_shown() {
    let keys = Keys::new();
    let (other_host, other_subsystem) =
        ("nqn.2026-01.io.nvlane:another-host", "nqn.2026-01.io.nvlane:another");
    let (own, subsystem) = (options().identity.expect("an identity").nqn, NQN.parse().expect("a name"));
    for engine in engines() {
        keys.write(&key(HashFunction::Sha256, 1));
        let rig = Rig::with(engine, &["ram:4M"], |config| {
            keys.require(config, TlsPolicy::Required);
            let other = config.subsystems[0].clone();
            let nqn = other_subsystem.parse().expect("a name");
            config.subsystems.push(SubsystemConfig { nqn, namespaces: Vec::new(), ..other });
        });
        assert_eq!(connect_as(&rig, &own, &own, &subsystem), Status::SUCCESS);
        let refused = Status::CONNECT_INVALID_HOST.with_dnr();
        assert_eq!(connect_as(&rig, &own, &other_host.parse().expect("a name"), &subsystem), refused);
        assert_eq!(connect_as(&rig, &own, &own, &other_subsystem.parse().expect("a name")), refused);
        let complaints = rig.state().connections.complaints;
        assert_eq!(complaints.get("Connect under other names than those of the TLS identity"), Some(&2));
    }
}
