//! Every fault at every step leaves the device as it was before; every kill is healed by removing.

use nvlane_adq::apply::{ApplyError, Removal, apply, remove};
use nvlane_adq::change::Change;
use nvlane_adq::config::{InterruptDelay, PrioritySource};
use nvlane_adq::control_group::Group;
use nvlane_adq::journal::JournalFile;
use nvlane_adq::kernel::Kernel;
use nvlane_adq::plan::Plan;
use nvlane_adq::scaling::{Action, ListedRule, Table};
use nvlane_adq::state::TransmitQueue;
use nvlane_adq::verify::{unknown, verify};

use crate::model::{Fault, Model, config, filter_of_others};

struct Bench {
    model: Model,
    plan: Plan,
    file: JournalFile,
    _directory: tempfile::TempDir,
}

/// A device of `driver` and a layout that uses every kind of change on it.
fn bench(driver: &str, has_filters_of_others: bool) -> Bench {
    let mut model = Model::new(driver, 4, 16);
    if has_filters_of_others {
        model.state.filter_holder = Some("clsact".into());
        model.state.filters = vec![filter_of_others()];
    }
    let mut config = config(&["nvme:4=192.0.2.10:4420,[2001:db8::10]:4420", "memcached:2=*:11211"]);
    config.other_queues = Some(8);
    config.classes[0].cores = vec![2, 3, 4, 5];
    config.classes[0].priority = PrioritySource::Program;
    config.classes[1].priority = PrioritySource::SockOps;
    if driver != "virtio_net" {
        config.classes[0].interrupt_delay = Some(InterruptDelay { receive_us: 500, transmit_us: 0 });
    }
    // Cores can be given only for queues that exist before the number of queues changes.
    model
        .carry_out(&Change::Channels(nvlane_adq::netlink::ethtool::Channels {
            combined: 15,
            ..Default::default()
        }))
        .unwrap();
    for queue in 0..15 {
        let users = TransmitQueue { receive_queues: "0".into(), cpus: format!("{:x}", 1u32 << queue) };
        model.carry_out(&Change::TransmitQueue { queue, users }).unwrap();
    }
    if model.state.scaling.contexts.is_some() {
        // Others have a context over queues of other traffic and a rule to it.
        model.state.scaling.contexts = Some([(1, vec![0, 1, 2, 3])].into());
        let rule = ListedRule { location: 1023, flow: None, action: Action::Context(1) };
        model.state.scaling.rules = vec![rule];
    }
    model.change_count = 0;
    let plan = Plan::new(&config, &model.device, &model.state).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = JournalFile::new(directory.path(), "eth0");
    Bench { model, plan, file, _directory: directory }
}

impl Bench {
    fn apply(&mut self) -> Result<(), ApplyError> {
        let before = self.model.state.clone();
        apply(&mut self.model, &self.plan, &before, &self.file, || false, |_, _| {})
    }

    fn assert_in_line(&self) {
        let journal = self.file.read().unwrap().unwrap();
        assert_eq!(verify(&journal, &self.model.device, &self.model.state), []);
    }
}

const DRIVERS: [&str; 6] = ["ice", "i40e", "hns3", "virtio_net", "mlx5_core", "bnxt_en"];

#[test]
fn a_layout_is_applied_verified_and_removed() {
    for driver in DRIVERS {
        for has_filters_of_others in [false, true] {
            let mut bench = bench(driver, has_filters_of_others);
            let before = bench.model.state.clone();
            bench.apply().unwrap();
            assert_ne!(bench.model.state, before);
            bench.assert_in_line();
            assert!(matches!(bench.apply(), Err(ApplyError::Recorded(_))));
            assert_eq!(remove(&mut bench.model, &bench.file).unwrap(), Removal::Restored);
            assert_eq!(bench.model.state, before, "{driver}");
            assert!(matches!(remove(&mut bench.model, &bench.file), Err(ApplyError::NotRecorded(_))));
        }
    }
}

#[test]
fn every_refusal_and_every_change_without_effect_is_taken_back() {
    for driver in DRIVERS {
        for has_filters_of_others in [false, true] {
            let step_count = bench(driver, has_filters_of_others).plan.steps.len();
            assert!(step_count > 15, "{driver}: {step_count} steps");
            for at in 0..step_count {
                for fault in [Fault::Refused(at), Fault::Ignored(at)] {
                    let mut bench = bench(driver, has_filters_of_others);
                    let before = bench.model.state.clone();
                    bench.model.fault = Some(fault);
                    let error = bench.apply().unwrap_err();
                    assert!(
                        matches!(error, ApplyError::Step { number, .. } if number == at + 1),
                        "{fault:?}: {error}"
                    );
                    assert_eq!(bench.model.state, before, "{driver} {fault:?}");
                    assert_eq!(bench.file.read().unwrap(), None);
                }
            }
        }
    }
}

#[test]
fn every_kill_while_applying_and_removing_is_healed_by_removing() {
    for driver in DRIVERS {
        let step_count = bench(driver, true).plan.steps.len();
        for at in 0..step_count {
            let mut bench = bench(driver, true);
            let before = bench.model.state.clone();
            bench.model.fault = Some(Fault::KilledAfter(at));
            assert!(matches!(bench.apply(), Err(ApplyError::NotUndone { .. })));
            bench.model.revive();
            // Killed once more, while removing.
            bench.model.change_count = 0;
            bench.model.fault = Some(Fault::KilledAfter(at % 5));
            let _ = remove(&mut bench.model, &bench.file);
            bench.model.revive();
            if bench.file.read().unwrap().is_some() {
                assert_eq!(remove(&mut bench.model, &bench.file).unwrap(), Removal::Restored);
            }
            assert_eq!(bench.model.state, before, "{driver} killed after {at}");
        }
    }
}

#[test]
fn an_interrupt_between_steps_takes_everything_back() {
    let mut bench = bench("ice", false);
    let before = bench.model.state.clone();
    let asked = std::cell::Cell::new(0);
    let is_interrupted = || {
        asked.set(asked.get() + 1);
        asked.get() > 6
    };
    let error =
        apply(&mut bench.model, &bench.plan, &before, &bench.file, is_interrupted, |_, _| {}).unwrap_err();
    assert!(matches!(error, ApplyError::Interrupted(7)), "{error}");
    assert_eq!(bench.model.state, before);
}

#[test]
fn what_others_have_done_since_stays() {
    let mut bench = bench("ice", false);
    bench.apply().unwrap();
    bench.model.state.filters.push(filter_of_others());
    assert_eq!(remove(&mut bench.model, &bench.file).unwrap(), Removal::Restored);
    assert_eq!(bench.model.state.filters, [filter_of_others()]);
    assert_eq!(bench.model.state.filter_holder.as_deref(), Some("clsact"));
}

#[test]
fn drift_is_named_and_a_restart_ends_a_layout() {
    let mut bench = bench("virtio_net", false);
    bench.apply().unwrap();
    let journal = bench.file.read().unwrap().unwrap();

    let mut drifted = bench.model.clone();
    drifted
        .carry_out(&Change::Channels(nvlane_adq::netlink::ethtool::Channels {
            combined: 14,
            ..Default::default()
        }))
        .unwrap();
    let deviations = verify(&journal, &drifted.device, &drifted.state);
    assert!(
        deviations.iter().any(|deviation| deviation.what.contains("map from priorities")),
        "{deviations:?}"
    );

    let mut opposed = bench.model.clone();
    opposed.device.opponents.push("irqbalance".into());
    let deviations = verify(&journal, &opposed.device, &opposed.state);
    assert_eq!(deviations.len(), 1);
    let what = "new since the layout was applied: irqbalance moves interrupts to other processors (`grep";
    assert!(deviations[0].what.starts_with(what), "{deviations:?}");

    let mut restarted = Model::new("virtio_net", 15, 16);
    restarted.device.identity.boot = "2".into();
    let fresh = restarted.state.clone();
    assert!(verify(&journal, &restarted.device, &restarted.state)[0].what.contains("restarted"));
    assert_eq!(remove(&mut restarted, &bench.file).unwrap(), Removal::EndedWithBoot);
    assert_eq!(restarted.state, fresh);
    assert_eq!(restarted.change_count, 0);
}

#[test]
fn a_damaged_record_is_named_and_nothing_is_touched() {
    let mut bench = bench("ice", false);
    bench.apply().unwrap();
    let text = std::fs::read_to_string(bench.file.path()).unwrap();
    let applied = bench.model.state.clone();
    for cut in (0..text.len()).step_by(97) {
        std::fs::write(bench.file.path(), &text[..cut]).unwrap();
        let error = remove(&mut bench.model, &bench.file).unwrap_err();
        assert!(error.to_string().contains("damaged"), "{error}");
        assert_eq!(bench.model.state, applied);
    }
}

#[test]
fn a_table_that_somebody_has_set_comes_back() {
    for kill_at in [None, Some(0), Some(1), Some(2), Some(3), Some(4), Some(5), Some(6), Some(9)] {
        let mut model = Model::new("mlx5_core", 4, 16);
        model.carry_out(&Change::SetTable(Table::Entries(vec![0, 0, 1, 3]))).unwrap();
        model.change_count = 0;
        let before = model.state.clone();
        let config = config(&["nvme:4=192.0.2.10:4420", "memcached:2=*:11211"]);
        let plan = Plan::new(&config, &model.device, &model.state).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = JournalFile::new(directory.path(), "eth0");
        model.fault = kill_at.map(Fault::KilledAfter);
        let result = apply(&mut model, &plan, &before, &file, || false, |_, _| {});
        assert_eq!(result.is_err(), kill_at.is_some(), "{result:?}");
        if result.is_ok() {
            assert_eq!(verify(&file.read().unwrap().unwrap(), &model.device, &model.state), []);
        }
        model.revive();
        assert_eq!(remove(&mut model, &file).unwrap(), Removal::Restored);
        assert_eq!(model.state, before, "killed after {kill_at:?}");
    }
}

#[test]
fn lost_contexts_and_rules_are_named() {
    let mut bench = bench("mlx5_core", false);
    bench.apply().unwrap();
    bench.assert_in_line();
    let journal = bench.file.read().unwrap().unwrap();
    let deviations = |change: &dyn Fn(&mut Model)| {
        let mut drifted = bench.model.clone();
        change(&mut drifted);
        let deviations = verify(&journal, &drifted.device, &drifted.state);
        deviations.into_iter().map(|deviation| deviation.what).collect::<Vec<_>>().join("\n")
    };
    let text = deviations(&|model| model.state.scaling.rules.retain(|rule| rule.flow.is_none()));
    assert!(text.contains("the rule for port 4420 of 192.0.2.10 is missing"), "{text}");
    let text = deviations(&|model| model.state.scaling.contexts = Some(std::collections::BTreeMap::new()));
    assert!(text.contains("no RSS context spreads over the queues 8 to 11"), "{text}");
    assert!(text.contains("leads to RSS context 2"), "{text}");
    let text = deviations(&|model| model.carry_out(&Change::SetTable(Table::Default)).unwrap());
    assert_eq!(text, "other traffic is spread otherwise: over 15 of the queues 0 to 14");
    let text = deviations(&|model| {
        let wanted = nvlane_adq::moderation::Moderation::default();
        model.carry_out(&Change::Moderation { queue: Some(9), wanted }).unwrap();
    });
    assert_eq!(
        text,
        "queue 9 delays interrupts by 0 µs (receive) and 0 µs (transmit) instead of 500 µs (receive) and 0 µs (transmit)"
    );
}

#[test]
fn a_program_that_is_gone_is_named_and_one_that_cannot_be_read_is_no_verdict() {
    let mut bench = bench("ice", false);
    bench.apply().unwrap();
    let journal = bench.file.read().unwrap().unwrap();
    let with = |group: Group| {
        let mut state = bench.model.state.clone();
        state.groups.insert("/cgroup".into(), group);
        let texts = |deviations: Vec<nvlane_adq::verify::Deviation>| {
            deviations.into_iter().map(|deviation| deviation.what).collect::<Vec<_>>().join("\n")
        };
        (texts(verify(&journal, &bench.model.device, &state)), texts(unknown(&journal, &state)))
    };
    let (found, unread) = with(Group::Programs(vec!["of_others".into()]));
    assert!(
        found.starts_with("the sock_ops program nvlane_") && found.ends_with("is not attached to /cgroup"),
        "{found}"
    );
    assert_eq!(unread, "");
    let (found, _) = with(Group::Unusable("No such file or directory".into()));
    assert!(found.ends_with("is attached to /cgroup: No such file or directory"), "{found}");
    let (found, unread) = with(Group::Hidden);
    assert_eq!(found, "");
    assert!(unread.contains("/cgroup cannot be read: it takes root"), "{unread}");
}

#[test]
fn a_program_that_could_not_be_found_again_is_not_attached() {
    let mut bench = bench("virtio_net", false);
    bench.model.state.groups.insert("/cgroup".into(), Group::Hidden);
    let before = bench.model.state.clone();
    let error = bench.apply().unwrap_err();
    assert!(matches!(&error, ApplyError::Hidden { .. }), "{error}");
    assert!(error.to_string().contains("priority = \"filter\""), "{error}");
    assert_eq!((bench.model.state, bench.model.change_count), (before, 0));
    assert_eq!(bench.file.read().unwrap(), None);
}
