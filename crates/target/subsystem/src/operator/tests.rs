//! The checks of new connections while the steps of a reload are under way: observed where the control plane gets the
//! steps.

use std::cell::Cell;
use std::path::Path;

use reactor::Listener;
use security::hash::HashFunction;
use security::psk::Derivation;
use security::tls::{HostKeys, IdentityOffer, Policy};
use security::tls_key::TlsKey;

use super::*;
use crate::config::{ConfigFile, ListenerConfig, SecretSource, TlsKeySources};
use crate::names::listener_gate::Passage;
use crate::objects::step_error::StepError;
use crate::objects::subsystem::Access;

const DISKS: &str = "nqn.2026-01.io.nvlane:disks";
const HOST: &str = "nqn.2026-01.io.nvlane:host";

fn operator(config: &TargetConfig) -> Operator {
    let bind = |address| Listener::simulated(address).map_err(|error| error.to_string());
    Operator::start_with(config, 1, bind, 4096).unwrap_or_else(|problems| panic!("{problems:?}")).0
}

fn config(policy: Policy) -> TargetConfig {
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:4420\"\n[[subsystem]]\nnqn = \"{DISKS}\"\nhosts = \"any\"\n"
    );
    let mut config =
        ConfigFile::parse("nvlane.toml", &text).unwrap_or_else(|errors| panic!("{errors}")).config;
    config.listeners[0].tls = policy;
    config
}

fn key(byte: u8) -> TlsKey {
    TlsKey::new(Some(HashFunction::Sha256), vec![byte; 32].into()).expect("a key")
}

/// The same configuration with this key of all hosts, unless the listener has no use for it.
fn with_key(config: &TargetConfig, directory: &Path, byte: u8) -> TargetConfig {
    if config.listeners[0].tls == Policy::Off {
        return config.clone();
    }
    let path = directory.join("key");
    std::fs::write(&path, key(byte).to_text().as_str()).expect("a file");
    let mut config = config.clone();
    config.subsystems[0].tls_keys =
        TlsKeySources { others: Some(SecretSource::File(path)), ..TlsKeySources::default() };
    config
}

/// Which of these keys a host may use, with identities of both versions.
fn usable(gate: &ListenerGate, subsystem: &str, keys: &[u8]) -> Vec<u8> {
    let ring = gate.keyring();
    let is_usable = |byte: &&u8| {
        let keys = HostKeys { key: key(**byte), derivation: Derivation::Standard };
        let offered = keys.offer(
            IdentityOffer::Both,
            &HOST.parse().expect("a name"),
            &subsystem.parse().expect("a name"),
        );
        let found = |offered: &security::psk::TlsPsk| {
            ring.find(&offered.identity).is_some_and(|found| found.1.key.expose() == offered.key.expose())
        };
        offered.iter().any(found)
    };
    keys.iter().filter(is_usable).copied().collect()
}

/// Reloads. `look` is called while the steps are under way, and each step ends with `outcome`.
fn reload(
    operator: &mut Operator,
    wanted: &TargetConfig,
    outcome: &dyn Fn() -> Result<usize, StepError>,
    look: &dyn Fn(),
) -> Report {
    let seen = Cell::new(false);
    let report = operator.reload(wanted, &|order: Order| {
        let OrderKind::Apply(steps) = order.kind else { panic!("a reload applies steps") };
        look();
        seen.set(true);
        let outcomes = steps.iter().map(|_| outcome()).collect();
        order.answers.send(OrderAnswer::Applied(outcomes)).is_ok()
    });
    assert!(seen.get(), "steps were applied");
    report
}

#[test]
fn a_listener_that_is_to_require_tls_takes_nothing_in_clear_from_the_start_of_a_reload_on() {
    let directory = tempfile::tempdir().expect("a directory");
    for before in [Policy::Off, Policy::Allowed] {
        for is_applied in [true, false] {
            let mut operator = operator(&with_key(&config(before), directory.path(), 1));
            let (gate, tag) = (Arc::clone(operator.gate()), operator.listeners()[0].tag);
            assert!(gate.permits_clear(tag));
            let is_closed = || {
                assert!(!gate.permits_clear(tag), "{before}");
                assert!(matches!(gate.passage(tag, 0), Some(Passage::Tls(_))));
            };
            let wanted = with_key(&config(Policy::Required), directory.path(), 1);
            let outcome = || if is_applied { Ok(0) } else { Err(StepError::NoListener) };
            let report = reload(&mut operator, &wanted, &outcome, &is_closed);
            assert_eq!(report.is_complete(), is_applied, "{report}");
            is_closed();
        }
    }
}

#[test]
fn a_listener_that_is_to_allow_more_does_so_once_the_change_is_applied() {
    let directory = tempfile::tempdir().expect("a directory");
    for after in [Policy::Off, Policy::Allowed] {
        for is_applied in [true, false] {
            let mut operator = operator(&with_key(&config(Policy::Required), directory.path(), 1));
            let (gate, tag) = (Arc::clone(operator.gate()), operator.listeners()[0].tag);
            let wanted = with_key(&config(after), directory.path(), 1);
            let outcome = || if is_applied { Ok(0) } else { Err(StepError::NoListener) };
            reload(&mut operator, &wanted, &outcome, &|| assert!(!gate.permits_clear(tag), "{after}"));
            assert_eq!(gate.permits_clear(tag), is_applied, "{after}");
        }
    }
}

#[test]
fn a_new_listener_has_its_policy_before_it_listens() {
    let directory = tempfile::tempdir().expect("a directory");
    let before = with_key(&config(Policy::Required), directory.path(), 1);
    let mut operator = operator(&before);
    let gate = Arc::clone(operator.gate());
    let mut wanted = before.clone();
    let address = "127.0.0.1:4421".parse().expect("an address");
    wanted.listeners.push(ListenerConfig { address, ..wanted.listeners[0].clone() });
    let next = operator.next_tag;
    reload(&mut operator, &wanted, &|| Ok(0), &|| {
        assert!(matches!(gate.passage(next, 0), Some(Passage::Tls(_))) && !gate.permits_clear(next));
    });
}

/// Between the configurations only keys of both are known: a new key may come with a list of hosts that is not applied yet.
#[test]
fn a_changed_key_is_usable_once_the_other_changes_are_applied() {
    let directory = tempfile::tempdir().expect("a directory");
    let before = with_key(&config(Policy::Required), directory.path(), 1);
    let mut operator = operator(&before);
    let gate = Arc::clone(operator.gate());
    let discovery = operator.discovery_nqn().to_string();
    for subsystem in [DISKS, &discovery] {
        assert_eq!(usable(&gate, subsystem, &[1, 2]), [1]);
    }
    let mut wanted = with_key(&before, directory.path(), 2);
    wanted.subsystems[0].access = Access::Only([HOST.parse().expect("a name")].into());
    reload(&mut operator, &wanted, &|| Ok(0), &|| {
        for subsystem in [DISKS, &discovery] {
            assert_eq!(usable(&gate, subsystem, &[1, 2]), [0; 0]);
        }
    });
    for subsystem in [DISKS, &discovery] {
        assert_eq!(usable(&gate, subsystem, &[1, 2]), [2]);
    }
    // The same key: a host that connects meanwhile is served.
    wanted.subsystems[0].access = Access::Any;
    reload(&mut operator, &wanted, &|| Ok(0), &|| assert_eq!(usable(&gate, DISKS, &[1, 2]), [2]));
}

#[test]
fn a_reload_tells_of_changed_keys() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = |byte| with_key(&config(Policy::Required), directory.path(), byte);
    let mut operator = operator(&config(1));
    for (byte, lines) in [(1, vec![]), (2, vec!["change the keys of TLS: done"]), (2, vec![])] {
        let report = operator.reload(&config(byte), &|_| panic!("connected hosts stay"));
        assert_eq!(report.lines.iter().map(|line| line.text.as_str()).collect::<Vec<_>>(), lines, "{byte}");
        assert!(report.is_complete());
    }
}
