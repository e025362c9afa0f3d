//! Host and target over TLS: both cipher suites, all sizes, several reactors; what is refused, and how soon. wire §22.6

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use host::security::hash::HashFunction;
use host::security::psk::Derivation;
use host::security::tls::{Alert, Failure, HostKeys, IdentityOffer, Session};
use host::security::tls_key::TlsKey;
use host::{
    Address, Association, Error, Event, Lane, LaneSet, LinkError, Options, ReconnectSettings, discovery,
};
use peer::queue::Move;
use reactor::EngineKind;
use subsystem::config::{SecretSource, TargetConfig, TlsKeySources, TlsPolicy};
use tempfile::TempDir;
use wire::discovery::{SecureChannel, TcpSecurity};
use wire::id::Nsid;
use wire::nqn::Nqn;
use wire::pdu::Digests;
use wire::property::Property;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::raw::RawHost;
use crate::setup::{NQN, PATIENCE, Rig, address_of, engines, open, options};
use crate::tls_relay::TlsRelay;

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
    options().with_tls(tls).with_reconnect(ReconnectSettings::never())
}

/// A target with the key 1 for SHA-256.
fn rig(engine: EngineKind, keys: &Keys, policy: TlsPolicy) -> Rig {
    keys.write(&key(HashFunction::Sha256, 1));
    Rig::with(engine, &["ram:64M"], |config| keys.require(config, policy))
}

fn refused(rig: &Rig, options: Options) -> LinkError {
    let begun = Instant::now();
    let options = options.with_reconnect(ReconnectSettings::never());
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
                    Association::connect(&address_of(rig.socket_address()), options.with_lanes(2))
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
        assert!(matches!(&error, LinkError::Tls(Failure::Alert(Alert::DECRYPT_ERROR))), "{error}");
        rig.await_complaint("TLS failed");
        rig.await_complaint("TLS identity without a key");
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
        rig.await_complaint("in cleartext, where TLS is required");
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

/// A connection that was accepted in cleartext connects no queue once its listener requires TLS.
#[test]
fn a_connection_from_before_a_reload_connects_nothing_in_clear_after_it() {
    let keys = Keys::new();
    for engine in engines() {
        for before in [TlsPolicy::Off, TlsPolicy::Allowed] {
            keys.write(&key(HashFunction::Sha256, 1));
            let mut rig = Rig::with(engine, &["ram:4M"], |config| {
                if before != TlsPolicy::Off {
                    keys.require(config, before);
                }
            });
            let host = RawHost::dialler(&rig);
            let mut queue = host.queue(Digests::empty()).expect("initialised in cleartext");
            rig.reload(|config| keys.require(config, TlsPolicy::Required));
            let answer = host.connect_admin(&mut queue).err().map(|finding| finding.to_string());
            assert!(answer.as_ref().is_some_and(|finding| finding.contains("close")), "{answer:?}");
            let complaints = rig.state().connections.complaints;
            assert_eq!(complaints.get("in cleartext, where TLS is required"), Some(&1), "{complaints:?}");
            rig.await_quiet();
        }
    }
}

#[test]
fn discovery_with_tls_works_by_both_names_of_the_service() {
    let keys = Keys::new();
    let rig = rig(EngineKind::Epoll, &keys, TlsPolicy::Required);
    let unique: Nqn = rig.state().discovery_nqn.parse().expect("a name");
    assert!(!unique.is_discovery(), "another than the well-known one");
    let address = Address { subsystem: None, ..address_of(rig.socket_address()) };
    for name in [None, Some(Nqn::discovery()), Some(unique.clone())] {
        let address = Address { subsystem: name, ..address.clone() };
        let found = discovery::discover(&address, with(key(HashFunction::Sha256, 1))).expect("a log");
        let names: Vec<_> = found.entries.iter().filter_map(|entry| entry.subsystem().ok()).collect();
        assert!(names.contains(&unique) && names.iter().any(|name| name.as_str() == NQN), "{names:?}");
        for entry in &found.entries {
            assert_eq!(entry.tcp_security(), TcpSecurity::TLS_1_3);
            assert_eq!(entry.treq.secure_channel(), SecureChannel::REQUIRED);
        }
        let error =
            discovery::discover(&address, with(key(HashFunction::Sha256, 2))).expect_err("another key");
        assert!(error.to_string().contains("TLS"), "{error}");
        let error = discovery::discover(&address, options()).expect_err("in cleartext");
        assert!(error.to_string().contains("closed"), "{error}");
    }
}

/// The key is for one host and subsystem: Connect with other names is answered, counted, and ends the connection.
#[test]
fn a_connect_under_other_names_than_those_of_the_key_ends_the_connection() {
    let keys = Keys::new();
    for engine in engines() {
        let rig = rig(engine, &keys, TlsPolicy::Required);
        let own = RawHost::dialler(&rig);
        let other: Nqn = "nqn.2026-01.io.nvlane:other".parse().expect("a name");
        let others = [(other.clone(), own.subsystem.clone()), (own.nqn.clone(), other)];
        for (count, (nqn, subsystem)) in (1..).zip(others) {
            let keys = HostKeys { key: key(HashFunction::Sha256, 1), derivation: Derivation::Standard };
            let offer = keys.offer(IdentityOffer::Both, &own.nqn.clone().into(), &own.subsystem);
            let relay = TlsRelay::to_target(rig.socket_address(), Session::host(&offer).expect("a session"));
            let host = peer::raw_host::RawHost { address: relay.address, nqn, subsystem, ..own.clone() };
            let mut queue = host.queue(Digests::empty()).expect("initialised");
            let refusal = host.connect_admin(&mut queue).expect_err("refused").to_string();
            assert!(refusal.contains(&Status::CONNECT_INVALID_HOST.with_dnr().to_string()), "{refusal}");
            queue.link.expect_closed().expect("closed");
            drop(relay);
            let complaints = rig.state().connections.complaints;
            let reason = "Connect under other names than those of the TLS identity";
            assert_eq!(complaints.get(reason), Some(&count), "{complaints:?}");
        }
        rig.await_quiet();
    }
}

/// Forwards a connection. Once `withholds`, the last byte that the host sends does not arrive, and nothing behind it.
fn forward(to: SocketAddr, withholds: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        let (mut host, _) = listener.accept().expect("a host");
        let mut target = TcpStream::connect(to).expect("a target");
        let (mut from_target, mut to_host) =
            (target.try_clone().expect("a socket"), host.try_clone().expect("a socket"));
        thread::spawn(move || {
            let _ = io::copy(&mut from_target, &mut to_host);
            let _ = to_host.shutdown(Shutdown::Both);
        });
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = host.read(&mut buffer) {
            let is_last = withholds.load(Ordering::Acquire);
            let kept = usize::from(is_last);
            if target.write_all(&buffer[..count - kept]).is_err() {
                return;
            }
            if is_last {
                // Until the target ends the connection.
                let _ = host.read(&mut buffer);
                return;
            }
        }
    });
    address
}

/// hostile T21
#[test]
fn the_rest_of_a_record_is_not_waited_for_without_end() {
    let keys = Keys::new();
    keys.write(&key(HashFunction::Sha256, 1));
    for engine in engines() {
        let rig = Rig::with(engine, &["ram:64M"], |config| {
            keys.require(config, TlsPolicy::Required);
            config.timeouts.pdu_ms = 500;
        });
        let own = RawHost::dialler(&rig);
        let host_keys = HostKeys { key: key(HashFunction::Sha256, 1), derivation: Derivation::Standard };
        let offer = host_keys.offer(IdentityOffer::Both, &own.nqn.clone().into(), &own.subsystem);
        let withholds = Arc::new(AtomicBool::new(false));
        let through = forward(rig.socket_address(), Arc::clone(&withholds));
        let relay = TlsRelay::to_target(through, Session::host(&offer).expect("a session"));
        let host = peer::raw_host::RawHost { address: relay.address, ..own.clone() };
        let mut queue = host.queue(Digests::empty()).expect("initialised");
        host.connect_admin(&mut queue).expect("connected");
        // An association that is silent between records stays.
        thread::sleep(Duration::from_millis(1500));
        queue.must(Sqe::property_get(Property::CAP), Move::None).expect("answered");
        withholds.store(true, Ordering::Release);
        let begun = Instant::now();
        queue.submit(Sqe::property_get(Property::CAP), Move::None).expect("sent");
        queue.link.expect_closed().expect("closed");
        assert!(begun.elapsed() < SOON, "after {:?}", begun.elapsed());
        let complaints = rig.state().connections.complaints;
        assert_eq!(complaints.get("TLS record not complete in time"), Some(&1), "{complaints:?}");
        drop(relay);
        rig.await_quiet();
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
    assert!(matches!(&error, LinkError::Tls(Failure::Alert(Alert::DECRYPT_ERROR))), "{error}");
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

/// A restarted target that does not have the key yet: the association comes back once it has, as after any lost connection.
#[test]
fn an_association_that_was_up_outlives_a_target_without_its_key() {
    let keys = Keys::new();
    for engine in engines() {
        for policy in [TlsPolicy::Required, TlsPolicy::Off] {
            keys.write(&key(HashFunction::Sha256, 1));
            let mut rig = Rig::with(engine, &["file:4M"], |config| keys.require(config, TlsPolicy::Required));
            let options = with(key(HashFunction::Sha256, 1)).with_reconnect(ReconnectSettings::default());
            let association = rig.connect(options);
            let (mut namespace, events) = (open(&association, 1), association.events());
            namespace.write_at(&pattern(8192, 1), 0).expect("a write");
            rig.stop();
            keys.write(&key(HashFunction::Sha256, 5));
            rig.config.listeners[0].tls = policy;
            if policy == TlsPolicy::Off {
                rig.config.subsystems[0].tls_keys = TlsKeySources::default();
            }
            rig.start();
            let until = Instant::now() + PATIENCE;
            let event =
                || events.recv_timeout(until.saturating_duration_since(Instant::now())).expect("events");
            let refused = |event: Event| {
                let Event::AttemptFailed { attempts: 2.., cause } = event else { return false };
                match policy {
                    TlsPolicy::Off => matches!(cause, LinkError::Tls(Failure::NotTls)),
                    _ => matches!(cause, LinkError::Tls(Failure::Alert(Alert::DECRYPT_ERROR))),
                }
            };
            while !refused(event()) {}
            assert!(association.over().is_none());
            keys.write(&key(HashFunction::Sha256, 1));
            rig.reload(|config| keys.require(config, TlsPolicy::Required));
            let mut read = vec![0; 8192];
            namespace.read_at(&mut read, 0).expect("a read");
            assert!(read == pattern(8192, 1));
        }
    }
}

/// The operator has removed the key: the association ends by its time limit, and the error has the last refusal.
#[test]
fn an_association_whose_key_was_removed_ends_by_its_time_limit() {
    let keys = Keys::new();
    let mut rig = rig(EngineKind::Epoll, &keys, TlsPolicy::Required);
    let give_up_after = Duration::from_millis(300);
    let reconnect = ReconnectSettings::default().with_give_up_after(Some(give_up_after));
    let association = rig.connect(with(key(HashFunction::Sha256, 1)).with_reconnect(reconnect));
    let mut namespace = open(&association, 1);
    keys.write(&key(HashFunction::Sha256, 5));
    rig.stop();
    rig.start();
    let begun = Instant::now();
    namespace.read_at(&mut [0; 4096], 0).expect_err("the association has ended");
    assert!(begun.elapsed() < SOON, "after {:?}", begun.elapsed());
    let over = association.over().expect("the association has ended");
    assert!(matches!(&*over, Error::GaveUp { attempts: 2.., .. }), "{over}");
    assert!(over.to_string().contains("TLS: the peer sent the TLS alert decrypt_error"), "{over}");
}

/// More lanes than are polled in turn: each is read when the kernel reports its socket, once for each change. What TLS left
/// there, because less than a record would have fitted, is no change.
#[test]
fn a_large_set_of_lanes_reads_what_tls_left_in_a_socket() {
    const LANES: usize = 9;
    let keys = Keys::new();
    let rig = rig(EngineKind::Epoll, &keys, TlsPolicy::Required);
    let options = with(key(HashFunction::Sha256, 1)).with_lanes(9);
    let association = Association::connect(&address_of(rig.socket_address()), options).expect("connected");
    let namespace = association.namespace(Nsid::new(1)).expect("a namespace");
    let lanes = (0..LANES).map(|_| association.lane().expect("a lane")).collect();
    let mut lanes: LaneSet<Vec<u8>> = LaneSet::new(lanes).expect("a set");
    let length = 1_u32 << 20;
    // What is left is read in the end, when a timer has the lane polled: after a second in each round.
    let shortest = (0..8).map(|_| {
        let begun = Instant::now();
        for index in 0..LANES {
            let command = namespace.read(0, length / namespace.lba_bytes()).expect("a read");
            lanes.submit(index, command, Some(vec![1; length as usize]), 0).expect("room");
        }
        let mut count = 0;
        while count < LANES {
            count += lanes.wait_with(&mut |_, completion| assert_eq!(completion.result, Ok(0)), SOON);
            assert!(begun.elapsed() < SOON, "{count} of {LANES} reads ended");
        }
        begun.elapsed()
    });
    let shortest = shortest.min().expect("rounds");
    assert!(shortest < Duration::from_millis(700), "{LANES} reads of 1 MiB take {shortest:?}");
}

#[test]
fn an_idle_lane_of_a_host_frees_the_buffers_of_tls_and_goes_on() {
    let keys = Keys::new();
    let rig = rig(EngineKind::Epoll, &keys, TlsPolicy::Required);
    let association =
        Association::connect(&address_of(rig.socket_address()), with(key(HashFunction::Sha256, 1)))
            .expect("connected");
    let namespace = association.namespace(Nsid::new(1)).expect("a namespace");
    let mut lane: Lane = association.lane().expect("a lane");
    let (mut completions, until) = (Vec::new(), Instant::now() + 3 * SOON);
    for released in 0..2 {
        for _ in 0..10 {
            let block = namespace.lba_bytes() as usize;
            lane.submit(namespace.read(0, 1).expect("a read"), Some(vec![1; block]), 0).expect("room");
            while lane.outstanding() > 0 {
                assert!(lane.wait(&mut completions, 3 * SOON) > 0, "a read does not end");
            }
            assert_eq!(lane.counters().tls_releases, released, "used lanes keep theirs");
        }
        while lane.counters().tls_releases == released {
            assert!(Instant::now() < until, "buffers of an idle lane are kept");
            std::thread::sleep(Duration::from_millis(20));
            lane.poll(&mut completions);
        }
    }
    assert!(completions.iter().all(|completion| completion.result == Ok(0)));
}

/// A target that knows keys by identities of version 0 only, and ends the handshake with an alert at any other, as SPDK's
/// does: a relay in front of a target. Counts the connections that it has ended so.
struct VersionZeroTarget {
    address: SocketAddr,
    refused: Arc<AtomicU32>,
}

impl VersionZeroTarget {
    fn before(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let refused = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&refused);
        // Ends with the test's process.
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let count = Arc::clone(&count);
                std::thread::spawn(move || {
                    let _ = relay(connection.expect("a connection"), target, &count);
                });
            }
        });
        Self { address, refused }
    }

    fn refused(&self) -> u32 {
        self.refused.load(Ordering::Relaxed)
    }
}

fn relay(mut host: TcpStream, target: SocketAddr, refused: &AtomicU32) -> io::Result<()> {
    let mut header = [0; 5];
    host.read_exact(&mut header)?;
    let mut hello = vec![0; usize::from(u16::from_be_bytes([header[3], header[4]]))];
    host.read_exact(&mut hello)?;
    if hello.windows(6).any(|bytes| bytes == b"NVMe1R") {
        refused.fetch_add(1, Ordering::Relaxed);
        // A fatal internal_error.
        return host.write_all(&[21, 3, 3, 0, 2, 2, 80]);
    }
    let mut target = TcpStream::connect(target)?;
    target.write_all(&header)?;
    target.write_all(&hello)?;
    let (mut from_host, mut to_target) = (host.try_clone()?, target.try_clone()?);
    std::thread::spawn(move || {
        let _ = io::copy(&mut from_host, &mut to_target);
        let _ = to_target.shutdown(std::net::Shutdown::Both);
    });
    let _ = io::copy(&mut target, &mut host);
    host.shutdown(std::net::Shutdown::Both)
}

#[test]
fn a_target_that_ends_the_handshake_at_version_1_gets_version_0() {
    let keys = Keys::new();
    for engine in engines() {
        let mut rig = rig(engine, &keys, TlsPolicy::Required);
        let target = VersionZeroTarget::before(rig.socket_address());
        let options =
            with(key(HashFunction::Sha256, 1)).with_lanes(3).with_reconnect(ReconnectSettings::default());
        let association = Association::connect(&address_of(target.address), options).expect("connected");
        let mut namespace = open(&association, 1);
        namespace.write_at(&pattern(8192, 1), 0).expect("a write");
        assert_eq!(target.refused(), 1, "one attempt of the admin queue, and none of lanes");
        // What was accepted is offered first when it reconnects.
        rig.stop();
        rig.start();
        // A read: a write that the relay takes before its host learns of the loss is interrupted.
        namespace.read_at(&mut vec![0; 8192], 0).expect("a read after a restart");
        assert_eq!(target.refused(), 1);
        drop((namespace, association));
        // A wrong key is refused under both.
        let address = address_of(target.address);
        let error = Association::connect(&address, with(key(HashFunction::Sha256, 2))).expect_err("refused");
        assert!(error.to_string().contains("decrypt_error"), "{error}");
        assert_eq!(target.refused(), 2);
    }
}
