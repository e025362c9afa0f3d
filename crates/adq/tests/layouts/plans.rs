//! Plans by each driver's rules: what is refused, what is proposed, and in which order the steps are.

use nvlane_adq::change::Change;
use nvlane_adq::config::{PrioritySource, Side};
use nvlane_adq::netlink::filter::{Effect, End, Filter};
use nvlane_adq::plan::Plan;
use nvlane_adq::state::RootDiscipline;

use crate::model::{Model, config, rate};

fn refusals(model: &Model, classes: &[&str]) -> String {
    let refusals = Plan::new(&config(classes), &model.device, &model.state).unwrap_err();
    refusals.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_plan_has_its_steps_in_binding_order() {
    let model = Model::new("ice", 4, 64);
    let mut config = config(&["nvme:4:1Gbit:10Gbit=192.0.2.10:4420,[2001:db8::10]:4420"]);
    config.classes[0].priority = PrioritySource::Program;
    let plan = Plan::new(&config, &model.device, &model.state).unwrap();
    let commands: Vec<_> = plan.steps.iter().map(|step| step.change.command("eth0")).collect();
    let expected = [
        "ethtool -K eth0 hw-tc-offload on",
        "ethtool --set-priv-flags eth0 fw-lldp-agent off",
        "ethtool --set-priv-flags eth0 channel-pkt-inspect-optimize off",
        "ethtool -L eth0 combined 12",
        "tc qdisc add dev eth0 root handle ad00: mqprio num_tc 2 map 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 queues 8@0 4@8 \
         hw 1 mode channel shaper bw_rlimit min_rate 0 1Gbit max_rate 0 10Gbit",
        "tc qdisc add dev eth0 clsact",
        "tc filter add dev eth0 ingress protocol ip prio 44288 handle 1 flower dst_ip 192.0.2.10 ip_proto tcp dst_port 4420 skip_sw hw_tc 1",
        "tc filter add dev eth0 ingress protocol ipv6 prio 44290 handle 1 flower dst_ip 2001:db8::10 ip_proto tcp dst_port 4420 skip_sw hw_tc 1",
        "cd /sys/class/net/eth0/queues/tx-0 && echo 0 > xps_cpus && echo 1 > xps_rxqs",
    ];
    assert_eq!(commands[..expected.len()], expected);
    assert_eq!(commands.len(), 8 + 12);
    assert!(plan.steps.iter().all(|step| !step.reason.is_empty()));
    assert_eq!(plan.warnings, [""; 0]);
}

#[test]
fn ice_takes_powers_of_two_and_steps_of_half_a_megabit() {
    let model = Model::new("ice", 4, 64);
    let text = refusals(&model, &["a:3=*:1", "b:4=*:2"]);
    assert!(text.contains("class \"a\" has 3 queues") && text.contains("(instead: 2 or 4 queues)"), "{text}");
    let text = refusals(&model, &["a:4:750kbit=*:1"]);
    assert!(text.contains("steps of 500kbit") && text.contains("(instead: 1Mbit)"), "{text}");
    let text = refusals(&model, &["a:4:60Gbit=*:1", "b:4:60Gbit=*:2"]);
    assert!(text.contains("120Gbit together, above the link's 100Gbit"), "{text}");
    let mut largest_is_odd = config(&["a:12=*:1", "b:4=*:2"]);
    largest_is_odd.other_queues = Some(8);
    assert!(Plan::new(&largest_is_odd, &model.device, &model.state).is_ok());
}

#[test]
fn drivers_without_a_kind_of_rates_say_so() {
    let text = refusals(&Model::new("i40e", 4, 64), &["a:4:1Gbit=*:1"]);
    assert!(text.contains("i40e has no minimum rates"), "{text}");
    let text = refusals(&Model::new("virtio_net", 4, 8), &["a:4::1Gbit=*:1"]);
    assert!(text.contains("virtio_net has no maximum rates (instead: leave the maximum rate out)"), "{text}");
    let many: Vec<_> = (1..=4).map(|class| format!("c{class}:1=*:{class}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    assert!(refusals(&Model::new("iavf", 16, 16), &many).contains("at most 3 classes"));
}

#[test]
fn what_the_device_is_can_refuse_a_layout() {
    let classes = ["a:2=*:1"];
    let with = |change: &dyn Fn(&mut Model)| {
        let mut model = Model::new("virtio_net", 4, 4);
        change(&mut model);
        refusals(&model, &classes)
    };
    assert!(with(&|model| model.device.lower = Some("eth1".into())).contains("instead: --interface eth1"));
    assert!(with(&|model| model.device.master = Some("bond0".into())).contains("take eth0 out of bond0"));
    let fq = |model: &mut Model| {
        model.state.root = Some(RootDiscipline { kind: "fq".into(), handle: 0x1_0000, mqprio: None });
    };
    assert!(with(&fq).contains("is fq and was set by somebody (instead: tc qdisc del dev eth0 root)"));
    assert!(refusals(&Model::new("virtio_net", 1, 1), &classes).contains("has one queue pair"));
    assert!(refusals(&Model::new("virtio_net", 2, 2), &classes).contains("leave none for other traffic"));
    let mut without_offload = Model::new("ice", 8, 8);
    without_offload.state.features.get_mut("hw-tc-offload").unwrap().is_changeable = false;
    assert!(refusals(&without_offload, &classes).contains("cannot turn hw-tc-offload on"));
}

#[test]
fn an_initiator_matches_the_other_end() {
    let model = Model::new("ice", 8, 8);
    let mut config = config(&["nvme:4=192.0.2.10:4420"]);
    config.side = Side::Initiator;
    config.classes[0].priority = PrioritySource::Filter;
    let plan = Plan::new(&config, &model.device, &model.state).unwrap();
    let filters: Vec<Filter> = plan
        .steps
        .iter()
        .filter_map(|step| if let Change::AddFilter(filter) = &step.change { Some(*filter) } else { None })
        .collect();
    let ends: Vec<_> = filters.iter().map(|filter| (filter.effect, filter.end)).collect();
    assert_eq!(ends, [(Effect::ReceiveClass(1), End::Source), (Effect::Priority(1), End::Destination)]);
}

#[test]
fn software_isolates_transmit_queues_only_and_says_so() {
    let model = Model::new("virtio_net", 4, 4);
    let mut config = config(&["nvme:2=*:4420"]);
    config.classes[0].priority = PrioritySource::Program;
    let plan = Plan::new(&config, &model.device, &model.state).unwrap();
    assert!(plan.warnings[0].contains("isolates transmit queues only"), "{:?}", plan.warnings);
    assert!(!plan.steps.iter().any(|step| matches!(step.change, Change::AddFilter(_) | Change::AddClsact)));
    assert_eq!(plan.layout.queue_count(), 4);
    assert_eq!(rate("1Gbit").bytes(), 125_000_000);
}
