//! Secure channel concatenation: which queues may ask for it, whose key it makes, and what follows. wire §22.3

use nvlane_subsystem::authentication::Authentication;
use nvlane_subsystem::config::TlsPolicy;
use nvlane_subsystem::lane_id::LaneId;
use nvlane_subsystem::message::{Channel, Step};
use security::group::Group;
use security::hash::HashFunction;
use security::host::{HostFailure, HostSettings};
use security::message::Reason;
use security::psk::IdentityVersion;
use security::secure_channel::SecureChannel;
use wire::fabrics::ConnectResult;
use wire::id::Cntlid;
use wire::nqn::DISCOVERY_NQN;
use wire::property::Property;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::authentication::{connect, generate, one_for_all, require, secrets, settings};
use crate::harness::{ConnectSpec, DISKS, HOST, OTHER_HOST, SECOND_NS, Target, host, nqn};

/// Secrets that were changed are accepted this long.
const OVERLAP_NS: u64 = 60 * SECOND_NS;

/// A target whose hosts must authenticate, on a listener with this policy.
fn target(policy: TlsPolicy) -> Target {
    let mut target = Target::new();
    target.listener = target.listen_with(true, true, policy);
    require(&mut target, one_for_all(7, 9));
    target
}

fn asks(name: &str, secure_channel: SecureChannel) -> HostSettings {
    HostSettings { secure_channel, ..settings(name, 7, Some(9), Group::Ffdhe2048) }
}

/// Has a host generate a key on this lane, and returns its identity.
fn identity(target: &mut Target, lane: LaneId, settings: HostSettings) -> Result<String, HostFailure> {
    let name = settings.names.host.clone();
    let psk = generate(target, lane, settings)?.expect("a key");
    Ok(psk.tls(IdentityVersion::One, name.as_str(), DISKS).expect("any names").identity)
}

/// Connects an admin queue over TLS with a generated key.
fn connect_with(target: &mut Target, name: &str, identity: &str) -> LaneId {
    target.channel = Channel::GeneratedKey(identity.into());
    let (lane, answer) = target.connect(&ConnectSpec::admin(host(name), DISKS));
    target.channel = Channel::Clear;
    assert_eq!((answer.status, answer.result >> 16), (Status::SUCCESS, 0), "no ATR");
    assert!(target.established[&lane].joined.is_some());
    lane
}

fn cntlid(target: &mut Target) -> Cntlid {
    Cntlid::new(target.state().subsystems[0].controllers[0].cntlid)
}

fn has_key(target: &Target, identity: &str) -> bool {
    target.generated.expire(target.now_ns);
    target.generated.find(identity).is_some()
}

#[test]
fn the_admin_queue_generates_a_key_where_the_listener_allows_tls() {
    let mut target = target(TlsPolicy::Allowed);
    let admin = connect(&mut target, HOST);
    let identity = identity(&mut target, admin, asks(HOST, SecureChannel::NewTlsPsk)).expect("a key");
    assert!(identity.starts_with(&format!("NVMe1G01 {HOST} {DISKS} ")), "{identity}");
    assert!(has_key(&target, &identity));
    // As Linux does: it enables the controller in cleartext before it connects again.
    target.enable(admin);
    target.property(admin, Property::VS);
    target.end(admin);
    let secured = connect_with(&mut target, HOST, &identity);
    target.enable(secured);
    let spec = ConnectSpec::io(host(HOST), DISKS, cntlid(&mut target), 1);
    target.channel = Channel::GeneratedKey(identity.into());
    let (io, answer) = target.connect(&spec);
    assert_eq!((answer.status, answer.result >> 16), (Status::SUCCESS, 0), "no ATR");
    assert!(target.established[&io].joined.is_some());
    let shown = target.state().subsystems[0].controllers[0].queues[0].authentication.clone();
    assert_eq!(shown.as_deref(), Some("TLS with a generated key"));
}

/// hostile A6
#[test]
fn other_queues_and_listeners_permit_none() {
    let refused = Err(HostFailure::Refused(Reason::SecureChannel));
    let mut off = target(TlsPolicy::Off);
    let admin = connect(&mut off, HOST);
    assert_eq!(identity(&mut off, admin, asks(HOST, SecureChannel::NewTlsPsk)), refused);
    assert!(off.ended.contains(&admin));
    let mut target = target(TlsPolicy::Allowed);
    let admin = connect(&mut target, HOST);
    assert_eq!(
        identity(&mut target, admin, asks(HOST, SecureChannel::ReplaceTlsPsk)),
        refused,
        "in cleartext"
    );
    let admin = connect(&mut target, HOST);
    assert_eq!(
        generate(&mut target, admin, asks(HOST, SecureChannel::None)).map(|key| key.is_some()),
        Ok(false)
    );
    target.enable(admin);
    let cntlid = cntlid(&mut target);
    let (io, answer) = target.connect(&ConnectSpec::io(host(HOST), DISKS, cntlid, 1));
    assert_eq!(answer.status, Status::SUCCESS, "in cleartext, which is allowed");
    assert_eq!(identity(&mut target, io, asks(HOST, SecureChannel::NewTlsPsk)), refused, "an I/O queue");
    // TLS with a configured key: the host authenticates as well, and has nothing to replace.
    target.channel = Channel::ConfiguredKey;
    for asked in [SecureChannel::NewTlsPsk, SecureChannel::ReplaceTlsPsk] {
        let admin = connect(&mut target, HOST);
        assert_eq!(identity(&mut target, admin, asks(HOST, asked)), refused);
    }
    assert_eq!(target.generated.count(), 0);
}

#[test]
fn no_queue_in_clear_belongs_to_a_controller_with_a_secure_channel() {
    let mut target = target(TlsPolicy::Allowed);
    let admin = connect(&mut target, HOST);
    let identity = identity(&mut target, admin, asks(HOST, SecureChannel::NewTlsPsk)).expect("a key");
    target.enable(admin);
    let refused = Status::CONNECT_INVALID_HOST.with_dnr();
    let io = |target: &mut Target, channel: Channel| {
        let spec = ConnectSpec::io(host(HOST), DISKS, cntlid(target), 1);
        target.channel = channel;
        let (lane, answer) = target.connect(&spec);
        target.channel = Channel::Clear;
        target.end(lane);
        answer.status
    };
    assert_eq!(io(&mut target, Channel::Clear), refused, "the secure channel is yet to be set up");
    target.end(admin);
    let secured = connect_with(&mut target, HOST, &identity);
    target.enable(secured);
    assert_eq!(io(&mut target, Channel::Clear), refused);
    assert_eq!(io(&mut target, Channel::GeneratedKey(identity.as_str().into())), Status::SUCCESS);
    target.end(secured);
    target.channel = Channel::ConfiguredKey;
    let configured = connect(&mut target, HOST);
    generate(&mut target, configured, asks(HOST, SecureChannel::None)).expect("authenticated");
    target.enable(configured);
    assert_eq!(io(&mut target, Channel::Clear), refused);
    assert_eq!(io(&mut target, Channel::ConfiguredKey), Status::SUCCESS);
}

#[test]
fn a_listener_that_demands_a_key_permits_in_clear_only_the_admin_queue_that_generates_it() {
    let mut target = target(TlsPolicy::Concatenated);
    target.channel = Channel::ClearForKey;
    let (admin, answer) = target.connect(&ConnectSpec::admin(host(HOST), DISKS));
    let result = ConnectResult::from_bits(u32::try_from(answer.result).expect("dword 0"));
    assert_eq!(answer.status, Status::SUCCESS);
    assert!(result.authentication_required() && result.secure_channel_required());
    // Nothing but authentication before the key, and none that generates no key.
    assert_eq!(
        target.ask(admin, Sqe::property_get(Property::VS)).status,
        Status::AUTHENTICATION_REQUIRED.with_dnr()
    );
    let refused = Err(HostFailure::Refused(Reason::SecureChannel));
    assert_eq!(identity(&mut target, admin, asks(HOST, SecureChannel::None)), refused);
    assert!(target.ended.contains(&admin) && target.generated.count() == 0);
    // No I/O queue, no host without a secret, no discovery.
    let (admin, _) = target.connect(&ConnectSpec::admin(host(HOST), DISKS));
    let made = identity(&mut target, admin, asks(HOST, SecureChannel::NewTlsPsk)).expect("a key");
    target.enable(admin);
    let refused = Status::CONNECT_INVALID_HOST.with_dnr();
    let io = ConnectSpec::io(host(HOST), DISKS, cntlid(&mut target), 1);
    let discovery = ConnectSpec::admin(host(HOST), DISCOVERY_NQN);
    for spec in [io, discovery] {
        assert_eq!(target.connect(&spec).1.status, refused);
    }
    require(&mut target, Authentication { others: None, ..one_for_all(7, 9) });
    assert_eq!(target.connect(&ConnectSpec::admin(host(OTHER_HOST), DISKS)).1.status, refused);
    // With the key as on any listener.
    require(&mut target, one_for_all(7, 9));
    target.end(admin);
    let secured = connect_with(&mut target, HOST, &made);
    target.enable(secured);
}

#[test]
fn another_transaction_replaces_the_key() {
    let mut target = target(TlsPolicy::Allowed);
    let admin = connect(&mut target, HOST);
    let mut identities = Vec::new();
    for _ in 0..2 {
        let made = identity(&mut target, admin, asks(HOST, SecureChannel::NewTlsPsk)).expect("a key");
        identities.push(made);
    }
    let [first, second] = &identities[..] else { unreachable!("two") };
    assert!(first != second && !has_key(&target, first) && has_key(&target, second));
    target.end(admin);
    let secured = connect_with(&mut target, HOST, second);
    // A key that is replaced is that of the connection; the same request as in cleartext makes no sense there.
    let third = identity(&mut target, secured, asks(HOST, SecureChannel::ReplaceTlsPsk)).expect("a key");
    assert!(!has_key(&target, second) && has_key(&target, &third));
    // What fails changes no key, and ends the association.
    let wrong = HostSettings { host: secrets(8, None).host, ..asks(HOST, SecureChannel::ReplaceTlsPsk) };
    for (asked, reason) in
        [(asks(HOST, SecureChannel::NewTlsPsk), Reason::SecureChannel), (wrong, Reason::Failed)]
    {
        let secured = connect_with(&mut target, HOST, &third);
        assert_eq!(identity(&mut target, secured, asked), Err(HostFailure::Refused(reason)));
        assert!(has_key(&target, &third) && target.ended.contains(&secured));
    }
}

#[test]
fn a_reload_that_changes_a_secret_ends_the_key_with_the_secret() {
    let mut target = target(TlsPolicy::Allowed);
    let hosts = [(HOST.parse().expect("a name"), secrets(7, Some(9)))].into();
    let both = Authentication { hosts, ..one_for_all(7, 9) };
    require(&mut target, both.clone());
    let identities = [HOST, OTHER_HOST].map(|name| {
        let admin = connect(&mut target, name);
        identity(&mut target, admin, asks(name, SecureChannel::NewTlsPsk)).expect("a key")
    });
    // Choices change no secret.
    require(&mut target, Authentication { hashes: vec![HashFunction::Sha256], ..both.clone() });
    target.pass(OVERLAP_NS + SECOND_NS);
    assert!(identities.iter().all(|identity| has_key(&target, identity)));
    let hosts = [(HOST.parse().expect("a name"), secrets(5, Some(9)))].into();
    require(&mut target, Authentication { hosts, ..both });
    // One that the former secret makes meanwhile ends with it, too.
    let admin = connect(&mut target, HOST);
    let late = identity(&mut target, admin, asks(HOST, SecureChannel::NewTlsPsk)).expect("for a while");
    let all = [&identities[0], &identities[1], &late];
    assert!(all.iter().all(|identity| has_key(&target, identity)));
    target.pass(OVERLAP_NS + SECOND_NS);
    assert_eq!(all.map(|identity| has_key(&target, identity)), [false, true, false]);
}

#[test]
fn a_removed_subsystem_has_no_keys() {
    let mut target = target(TlsPolicy::Allowed);
    let admin = connect(&mut target, HOST);
    let identity = identity(&mut target, admin, asks(HOST, SecureChannel::NewTlsPsk)).expect("a key");
    target.apply(vec![Step::RemoveSubsystem(nqn(DISKS))]);
    target.pass(2 * SECOND_NS);
    assert!(!has_key(&target, &identity));
}
