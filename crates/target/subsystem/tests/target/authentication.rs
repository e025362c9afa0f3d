//! In-band authentication over real sockets: the gate of each queue, R2T for messages, the worker, secrets that change.
//! wire §22.1

use std::fs;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::{Duration, Instant};

use nvlane_subsystem::authentication::{GROUPS, RefusedAgain};
use nvlane_subsystem::config::{SecretSource, SecretSources, TimeoutConfig};
use nvlane_subsystem::server::Target;
use peer::queue::{Move, Queue};
use peer::raw_host::{RawHost, enable};
use security::fresh::{Fresh, RANDOM_BYTES};
use security::group::Group;
use security::hash::HashFunction;
use security::host::{HostAuthentication, HostFailure, HostSettings};
use security::message::Reason;
use security::names::Names;
use security::secret::Secret;
use security::secure_channel::SecureChannel;
use wire::fabrics::{AuthenticationCommand, ConnectResult};
use wire::id::{Cntlid, Nsid};
use wire::pdu::Digests;
use wire::property::Property;
use wire::sqe::Sqe;
use wire::status::Status;
use zerocopy::IntoBytes;

use crate::support;

const OLD: &str = "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
const ROOM: u32 = 4096;

fn secret(byte: u8) -> Secret {
    Secret::new(None, vec![byte; 32].into()).expect("a length that exists")
}

/// A target with two reactors whose hosts must have the secret in a file.
fn start(key: &Path) -> (Target, RawHost, nvlane_subsystem::config::TargetConfig) {
    start_with(key, &GROUPS)
}

/// The same with these groups.
fn start_with(key: &Path, groups: &[Group]) -> (Target, RawHost, nvlane_subsystem::config::TargetConfig) {
    let mut config = support::block_config(2, TimeoutConfig::default());
    let sources = SecretSources { host: SecretSource::File(key.into()), controller: None };
    config.subsystems[0].authentication.others = Some(sources);
    config.subsystems[0].authentication.groups = groups.to_vec();
    let target = Target::start(&config).expect("a target");
    let host = support::host(&target);
    (target, host, config)
}

fn authenticate(
    queue: &mut Queue,
    host: &RawHost,
    secret: &Secret,
    group: Group,
    in_capsule: bool,
) -> Result<(), HostFailure> {
    let settings = HostSettings {
        names: Names { host: host.nqn.as_str().parse().expect("a name"), subsystem: host.subsystem.clone() },
        host: secret.clone(),
        controller: None,
        hashes: vec![HashFunction::Sha384],
        groups: vec![group],
        secure_channel: SecureChannel::None,
    };
    let mut machine =
        HostAuthentication::new(settings, 9, Fresh::new(&[0x5A; RANDOM_BYTES], NonZeroU32::MIN));
    while machine.outcome().is_none() {
        if let Some(message) = machine.next_send() {
            let length = u32::try_from(message.len()).expect("short");
            let sqe = AuthenticationCommand::new(length).to_send_sqe();
            let data = if in_capsule { Move::InCapsule(&message) } else { Move::Asked(&message) };
            queue.must(sqe, data).expect("a Send succeeds");
        } else if machine.wants_receive() {
            let sqe = AuthenticationCommand::new(ROOM).to_receive_sqe();
            let answer = queue.must(sqe, Move::Back(ROOM)).expect("a Receive succeeds");
            assert_eq!(answer.data.len(), ROOM as usize);
            machine.on_receive(&answer.data);
        }
        if let Some(exponentiation) = machine.next_exponentiation() {
            machine.on_exponentiated(exponentiation.run());
        }
    }
    machine.outcome().expect("just seen").map(drop)
}

/// hostile A1
#[test]
fn queues_do_nothing_before_their_host_has_authenticated() {
    let directory = tempfile::tempdir().expect("a directory");
    let key = directory.path().join("key");
    fs::write(&key, OLD).expect("a file");
    let old: Secret = OLD.parse().expect("a secret");
    let (target, host, _) = start(&key);
    let required = [Status::AUTHENTICATION_REQUIRED.with_dnr()];
    for (group, in_capsule) in [(Group::Null, true), (Group::Ffdhe2048, false)] {
        let mut admin = host.queue(Digests::empty()).expect("a connection");
        let answer = host.connect_admin(&mut admin).expect("accepted");
        let result = ConnectResult::from_bits(answer.cqe.dw0());
        assert!(result.authentication_required());
        let cntlid = Cntlid::new(result.cntlid());
        for sqe in [Sqe::property_get(Property::CAP), Sqe::keep_alive()] {
            admin.must_end(sqe, Move::None, &required).expect("refused");
        }
        authenticate(&mut admin, &host, &old, group, in_capsule).expect("authenticated");
        enable(&mut admin).expect("ready");
        let mut io = Queue::new(host.link(Digests::all()).expect("a connection"), 32);
        let (connect, data) = (host.connect_command(1, 32).to_sqe(), host.connect_data(cntlid));
        io.must(connect, Move::InCapsule(data.as_bytes())).expect("accepted");
        // Commands with and without data, and one whose data would have to be asked for.
        let one = Nsid::new(1);
        io.must_end(Sqe::read(one, 0, 1), Move::Back(512), &required).expect("refused");
        io.must_end(Sqe::write(one, 0, 1), Move::InCapsule(&[7; 512]), &required).expect("refused");
        io.must_end(Sqe::write(one, 0, 64), Move::Asked(&[7; 32768]), &required).expect("refused");
        io.must_end(Sqe::flush(one), Move::None, &required).expect("refused");
        authenticate(&mut io, &host, &old, group, in_capsule).expect("authenticated");
        let read = io.must(Sqe::read(one, 0, 1), Move::Back(512)).expect("a read");
        assert_eq!(read.data, [0; 512], "nothing was written");
        io.must(Sqe::write(one, 0, 1), Move::InCapsule(&[7; 512])).expect("a write");
        io.must(Sqe::write(one, 0, 1), Move::InCapsule(&[0; 512])).expect("a write");
        // Again, beside I/O.
        authenticate(&mut io, &host, &old, Group::Null, false).expect("authenticated");
        io.must(Sqe::read(one, 0, 1), Move::Back(512)).expect("a read");
    }
    let mut refused = host.queue(Digests::empty()).expect("a connection");
    host.connect_admin(&mut refused).expect("accepted");
    authenticate(&mut refused, &host, &secret(1), Group::Null, true).expect_err("another secret");
    refused.link.expect_closed().expect("the end");
    target.stop().expect("a good end");
}

/// The offer of a host with this group only.
fn offer(host: &RawHost, group: Group) -> Vec<u8> {
    let settings = HostSettings {
        names: Names { host: host.nqn.as_str().parse().expect("a name"), subsystem: host.subsystem.clone() },
        host: secret(1),
        controller: None,
        hashes: vec![HashFunction::Sha384],
        groups: vec![group],
        secure_channel: SecureChannel::None,
    };
    let fresh = Fresh::new(&[0x5A; RANDOM_BYTES], NonZeroU32::MIN);
    HostAuthentication::new(settings, 9, fresh).next_send().expect("an offer")
}

/// More hosts than may wait for one address have values computed that take 15 ms each. hostile A18
#[test]
fn a_crowd_with_the_largest_group_delays_no_host_with_the_smallest() {
    let directory = tempfile::tempdir().expect("a directory");
    let key = directory.path().join("key");
    fs::write(&key, OLD).expect("a file");
    let old: Secret = OLD.parse().expect("a secret");
    let (target, host, _) = start_with(&key, &Group::ALL);
    let message = offer(&host, Group::Ffdhe8192);
    let mut crowd: Vec<Queue> = (0..300)
        .map(|_| {
            let mut queue = host.queue(Digests::empty()).expect("a connection");
            host.connect_admin(&mut queue).expect("accepted");
            let length = u32::try_from(message.len()).expect("short");
            let sqe = AuthenticationCommand::new(length).to_send_sqe();
            queue.must(sqe, Move::InCapsule(&message)).expect("a Send succeeds");
            queue
        })
        .collect();
    // The last ones are too many.
    let last = crowd.last_mut().expect("300");
    last.link.expect_closed().expect("the end of one that is too much");
    for _ in 0..3 {
        let begin = Instant::now();
        let mut admin = host.queue(Digests::empty()).expect("a connection");
        host.connect_admin(&mut admin).expect("accepted");
        authenticate(&mut admin, &host, &old, Group::Ffdhe2048, true).expect("authenticated");
        // The crowd takes a multiple of that: 256 exponentiations, and builds for tests are slow.
        assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    }
    drop(crowd);
    target.stop().expect("a good end");
}

#[test]
fn the_largest_groups_are_used_only_if_they_are_configured() {
    let directory = tempfile::tempdir().expect("a directory");
    let key = directory.path().join("key");
    fs::write(&key, OLD).expect("a file");
    let old: Secret = OLD.parse().expect("a secret");
    for (groups, group, expected) in [
        (&GROUPS[..], Group::Ffdhe4096, Ok(())),
        (&GROUPS, Group::Ffdhe6144, Err(HostFailure::Refused(Reason::Group))),
        (&GROUPS, Group::Ffdhe8192, Err(HostFailure::Refused(Reason::Group))),
        (&[Group::Ffdhe8192], Group::Ffdhe8192, Ok(())),
    ] {
        let (target, host, _) = start_with(&key, groups);
        let mut admin = host.queue(Digests::empty()).expect("a connection");
        host.connect_admin(&mut admin).expect("accepted");
        assert_eq!(authenticate(&mut admin, &host, &old, group, true), expected, "{group}");
        target.stop().expect("a good end");
    }
}

#[test]
fn a_reload_reads_secrets_again_and_connected_hosts_stay() {
    let directory = tempfile::tempdir().expect("a directory");
    let key = directory.path().join("key");
    fs::write(&key, OLD).expect("a file");
    let old: Secret = OLD.parse().expect("a secret");
    let (mut target, host, mut config) = start(&key);
    let connect = |secret: &Secret| {
        let mut admin = host.queue(Digests::empty()).expect("a connection");
        host.connect_admin(&mut admin).expect("accepted");
        authenticate(&mut admin, &host, secret, Group::Null, true).map(|()| admin)
    };
    let mut before = connect(&old).expect("authenticated");
    assert!(connect(&secret(1)).is_err());
    fs::write(&key, secret(1).to_text().as_str()).expect("a file");
    assert_eq!(
        target.reload(&config).to_string(),
        "change the secrets of nqn.2026-01.io.nvlane:tested: done"
    );
    assert_eq!(target.reload(&config).lines.len(), 0);
    enable(&mut before).expect("ready");
    for secret in [&old, &secret(1)] {
        connect(secret).expect("authenticated");
    }
    // One that is connected authenticates again with either, too.
    for secret in [&old, &secret(1)] {
        authenticate(&mut before, &host, secret, Group::Null, true).expect("authenticated again");
    }
    // Without an overlap the former ends at once.
    config.timeouts.secret_overlap_ms = 0;
    fs::write(&key, secret(2).to_text().as_str()).expect("a file");
    assert!(target.reload(&config).is_complete());
    assert!(connect(&secret(1)).is_err());
    // Who was connected before stays, but shows a present secret if it authenticates again: else it is kept only if the
    // configuration says so.
    let refused = Err(HostFailure::Refused(Reason::Failed));
    let mut evicted = connect(&secret(2)).expect("authenticated");
    assert_eq!(authenticate(&mut evicted, &host, &secret(1), Group::Null, true), refused);
    evicted.link.expect_closed().expect("the end");
    config.subsystems[0].authentication.refused_again = RefusedAgain::Keep;
    assert!(target.reload(&config).is_complete());
    for (secret, outcome) in [(&old, refused), (&secret(1), refused), (&secret(2), Ok(()))] {
        assert_eq!(authenticate(&mut before, &host, secret, Group::Null, true), outcome);
        before.must(Sqe::keep_alive(), Move::None).expect("in use");
    }
    // A file that is gone changes nothing.
    fs::remove_file(&key).expect("removed");
    let report = target.reload(&config);
    assert!(!report.is_complete() && report.to_string().starts_with("nothing changed: file:"), "{report}");
    connect(&secret(2)).expect("authenticated");
    // Without secrets no host is asked to authenticate.
    config.subsystems[0].authentication.others = None;
    config.subsystems[0].authentication.refused_again = RefusedAgain::Disconnect;
    let report = target.reload(&config);
    assert!(report.is_complete(), "{report}");
    assert_eq!(authenticate(&mut before, &host, &secret(2), Group::Null, true), refused);
    before.must(Sqe::keep_alive(), Move::None).expect("in use");
    host.associate(Digests::empty(), 32).expect("an association");
    target.stop().expect("a good end");
}
