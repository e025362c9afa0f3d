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

/// Two configurations, and the number of steps between them.
fn before_and_after() -> (TargetConfig, TargetConfig, usize) {
    let before = config(Policy::Off);
    let mut after = before.clone();
    let address = "127.0.0.1:4421".parse().expect("an address");
    after.listeners.push(ListenerConfig { address, ..after.listeners[0].clone() });
    after.reactors.doorbell = "immediate".parse().expect("a policy");
    after.subsystems[0].access = Access::Only([HOST.parse().expect("a name")].into());
    let spec = "null:1G".parse().expect("a specification");
    after.subsystems[0].namespaces.push(crate::config::NamespaceConfig::new(spec));
    (before, after, 4)
}

#[test]
fn a_change_of_which_a_step_is_refused_is_taken_back() {
    let (before, after, step_count) = before_and_after();
    for refused in 0..step_count {
        let mut operator = operator(&before);
        let running = operator.running().clone();
        let orders = Cell::new(0);
        let outcome = operator.change(&before, &after, &|order: Order| {
            let OrderKind::Apply(steps) = order.kind else { panic!("a change applies steps") };
            let outcome = |at| match orders.get() == 0 && at == refused {
                true => Err(StepError::Stopping),
                false => Ok(0),
            };
            let outcomes: Vec<_> = (0..steps.len()).map(outcome).collect();
            // Those that were done are undone.
            assert_eq!(outcomes.len(), if orders.get() == 0 { step_count } else { step_count - 1 });
            orders.set(orders.get() + 1);
            order.answers.send(OrderAnswer::Applied(outcomes)).is_ok()
        });
        let report = outcome.expect_err("a step was refused").to_string();
        assert!(report.ends_with("not done, the target is stopping"), "{report}");
        assert_eq!((orders.get(), report.lines().count()), (2, 1));
        assert_eq!(*operator.running(), running);
        assert_eq!((operator.listeners().len(), operator.stores.len()), (1, 0));
    }
}

#[test]
fn a_change_that_cannot_be_prepared_orders_nothing() {
    let (before, mut after, _) = before_and_after();
    let mut operator = operator(&before);
    let running = operator.running().clone();
    let (gate, tag) = (Arc::clone(operator.gate()), operator.listeners()[0].tag);
    // Stricter at once, if the change came about.
    after.listeners[0].allow =
        crate::names::allow_list::AllowList::Only(vec!["10.0.0.0/8".parse().expect("a prefix")]);
    after.subsystems[0].namespaces[0].storage =
        "file:/no/such/directory/a?size=1M".parse().expect("a specification");
    let outcome = operator.change(&before, &after, &|_| panic!("nothing to order"));
    assert!(outcome.expect_err("no such directory").to_string().contains("not done"));
    assert_eq!(*operator.running(), running);
    assert!(gate.passage(tag, 0).is_some());
    assert!(gate.admits(tag, Some([192, 0, 2, 1].into())), "the listener asks for no more than before");
}

#[test]
fn a_change_leaves_what_a_reload_has_left_undone() {
    let (before, after, step_count) = before_and_after();
    let mut operator = operator(&before);
    let answer = |outcome: Result<usize, StepError>, steps: &Cell<usize>, order: Order| {
        let OrderKind::Apply(given) = order.kind else { panic!("steps are applied") };
        steps.set(given.len());
        order.answers.send(OrderAnswer::Applied(given.iter().map(|_| outcome).collect())).is_ok()
    };
    let steps = Cell::new(0);
    let report = operator.reload(&after, &|order| answer(Err(StepError::Stopping), &steps, order));
    assert_eq!((report.is_complete(), steps.get()), (false, step_count));
    let mut more = after.clone();
    more.reactors.placement = crate::names::placement_policy::PlacementPolicy::Cpu;
    more.limits.connection_count_max = 77;
    let report = operator.change(&after, &more, &|order| answer(Ok(0), &steps, order)).expect("done");
    assert_eq!(steps.get(), 1, "the new one only");
    assert_eq!(report.to_string(), "place lanes to come by cpu: done\nchange limits: takes a restart");
    // The next reload does the rest.
    operator.reload(&more, &|order| answer(Ok(0), &steps, order));
    assert_eq!(steps.get(), step_count);
}

#[test]
fn a_secret_that_is_gone_does_not_keep_its_host_from_being_removed() {
    let directory = tempfile::tempdir().expect("a directory");
    let before = with_key(&config(Policy::Required), directory.path(), 1);
    let mut operator = operator(&before);
    std::fs::remove_file(directory.path().join("key")).expect("there");
    let after = config(Policy::Off);
    let report = operator.change(&before, &after, &|order: Order| {
        let OrderKind::Apply(steps) = order.kind else { panic!("a change applies steps") };
        order.answers.send(OrderAnswer::Applied(steps.iter().map(|_| Ok(0)).collect())).is_ok()
    });
    assert!(report.expect("done").is_complete());
}
