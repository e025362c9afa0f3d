//! Plans by each driver's rules: what is refused, what is proposed, and in which order the steps are.

use nvlane_adq::change::Change;
use nvlane_adq::config::{Config, InterruptDelay, PrioritySource, Side};
use nvlane_adq::control_group::Group;
use nvlane_adq::kernel::Kernel as _;
use nvlane_adq::netlink::filter::{Effect, End, Filter, IpVersion};
use nvlane_adq::plan::{Plan, Step};
use nvlane_adq::scaling::{Action, Flow, ListedRule, Scaling, Table};
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

fn commands(model: &Model, config: &Config) -> Vec<String> {
    let plan = Plan::new(config, &model.device, &model.state).unwrap();
    plan.steps.iter().map(|step| step.change.command("eth0")).collect()
}

#[test]
fn a_plan_with_contexts_has_its_steps_in_binding_order() {
    let mut model = Model::new("mlx5_core", 4, 64);
    model.carry_out(&Change::SetTable(Table::Entries(vec![0, 1]))).unwrap();
    let mut config = config(&["nvme:4=192.0.2.10:4420,[2001:db8::10]:4420", "memcached:2=*:11211"]);
    config.classes[0].interrupt_delay = Some(InterruptDelay { receive_us: 8, transmit_us: 0 });
    let commands = commands(&model, &config);
    let expected = [
        "ethtool -K eth0 rx-ntuple-filter on",
        "ethtool -X eth0 default",
        "ethtool -L eth0 combined 14",
        "ethtool -X eth0 equal 8",
        "ethtool -X eth0 context new start 8 equal 4",
        "ethtool -X eth0 context new start 12 equal 2",
        "ethtool -N eth0 flow-type tcp4 dst-ip 192.0.2.10 dst-port 4420 context ID  # of queues 8-11",
        "ethtool -N eth0 flow-type tcp6 dst-ip 2001:db8::10 dst-port 4420 context ID  # of queues 8-11",
        "ethtool -N eth0 flow-type tcp4 dst-port 11211 context ID  # of queues 12-13",
        "ethtool -N eth0 flow-type tcp6 dst-port 11211 context ID  # of queues 12-13",
        "ethtool --per-queue eth0 queue_mask 0x100 --coalesce adaptive-rx off rx-usecs 8 adaptive-tx off tx-usecs 0",
    ];
    assert_eq!(commands[..expected.len()], expected);
    assert_eq!(commands.len(), expected.len() + 3 + 14);
    // Packets of no connection take the queues of other traffic, one for each of the 8 processors.
    assert_eq!(commands[14], "cd /sys/class/net/eth0/queues/tx-0 && echo 1 > xps_cpus && echo 1 > xps_rxqs");
    assert_eq!(
        commands[22],
        "cd /sys/class/net/eth0/queues/tx-8 && echo 0 > xps_cpus && echo 100 > xps_rxqs"
    );
}

#[test]
fn contexts_have_bounds_of_the_driver_and_of_the_device() {
    let text = refusals(&Model::new("fbnic", 8, 16), &["a:1=*:1", "b:1=*:2"]);
    assert!(text.contains("fbnic has at most 1 classes besides"), "{text}");
    let text = refusals(&Model::new("sfc", 8, 16), &["a:1=*:1"]);
    assert!(text.contains("sfc matches a port only together with an address, not *:1"), "{text}");
    let mut down = Model::new("bnxt_en", 8, 16);
    down.device.is_up = false;
    let text = refusals(&down, &["a:1=*:1"]);
    assert!(
        text.contains("eth0 is down: bnxt_en makes RSS contexts only while")
            && text.contains("ip link set eth0 up")
    );
    let text = refusals(&Model::new("mlx5_core", 8, 64), &["a:40=*:1"]);
    assert!(text.contains("the RSS table of eth0 has 32 entries"), "{text}");
    let text = refusals(&Model::new("mlx5_core", 8, 64), &["a:1:1Gbit=*:1"]);
    assert!(text.contains("mlx5_core has no minimum rates"), "{text}");
    let mut fixed = Model::new("mlx5_core", 8, 8);
    fixed.state.features.get_mut("rx-ntuple-filter").unwrap().is_changeable = false;
    assert!(refusals(&fixed, &["a:1=*:1"]).contains("cannot turn rx-ntuple-filter on"));
    // The same driver on a kernel where it has no contexts.
    let mut old = Model::new("bnxt_en", 8, 8);
    old.state.scaling.contexts = None;
    let plan = Plan::new(&config(&["a:1=*:1"]), &old.device, &old.state).unwrap();
    assert!(plan.warnings[0].contains("isolates transmit queues only"), "{:?}", plan.warnings);
}

#[test]
fn contexts_and_rules_of_others_in_the_way_are_named() {
    let classes = ["a:2=192.0.2.1:1"];
    let with = |change: &dyn Fn(&mut Scaling)| {
        let mut model = Model::new("mlx5_core", 8, 8);
        change(&mut model.state.scaling);
        refusals(&model, &classes)
    };
    let rule = |flow, action| ListedRule { location: 7, flow, action };
    let text = with(&|scaling| scaling.contexts = Some([(3, vec![5, 6])].into()));
    assert!(text.contains("RSS context 3 of somebody spreads over queues of class \"a\""), "{text}");
    assert!(text.contains("(instead: ethtool -X eth0 context 3 delete)"), "{text}");
    let text = with(&|scaling| scaling.rules = vec![rule(None, Action::Queue(7))]);
    assert!(text.contains("rule 7 of somebody leads to queue 7 of class \"a\""), "{text}");
    let address = Some("192.0.2.1".parse().unwrap());
    let flow = Flow { version: IpVersion::V4, end: End::Destination, address, port: 1 };
    let text = with(&|scaling| scaling.rules = vec![rule(Some(flow), Action::Queue(0))]);
    assert!(text.contains("rule 7 of somebody steers port 1 of 192.0.2.1, traffic of class \"a\""), "{text}");
    let mut model = Model::new("hns3", 8, 8);
    model.state.scaling.rules = vec![rule(None, Action::Queue(0))];
    assert!(refusals(&model, &classes).contains("hns3 takes no classes beside n-tuple rules: 7"));
}

#[test]
fn hns3_takes_powers_of_two_and_a_preference_for_each_filter() {
    let text = refusals(&Model::new("hns3", 8, 16), &["a:4=*:1", "b:3=*:2"]);
    assert!(text.contains("class \"b\" has 3 queues: hns3 takes powers of two (instead: 2 or 4"), "{text}");
    let mut config = config(&["a:4=*:1"]);
    config.classes[0].priority = PrioritySource::Program;
    let commands = commands(&Model::new("hns3", 8, 16), &config);
    let filters: Vec<_> = commands.iter().filter(|command| command.contains("hw_tc")).collect();
    assert!(
        filters[0].contains("protocol ip prio 5 ") && filters[1].contains("protocol ipv6 prio 6 "),
        "{filters:?}"
    );
}

#[test]
fn delays_of_interrupts_are_those_of_the_device() {
    let delay = |receive_us| Some(InterruptDelay { receive_us, transmit_us: 0 });
    let mut config = config(&["a:1=*:1", "b:1=*:2"]);
    config.classes[0].interrupt_delay = delay(8);
    let plan = |driver, config: &Config| {
        let model = Model::new(driver, 8, 16);
        Plan::new(config, &model.device, &model.state)
    };
    let one_for_all = plan("bnxt_en", &config).unwrap();
    assert!(one_for_all.warnings.iter().any(|warning| warning.contains("all queues alike")));
    let is_moderation = |step: &&Step| matches!(step.change, Change::Moderation { queue: None, .. });
    assert_eq!(one_for_all.steps.iter().filter(is_moderation).count(), 1);
    let none = plan("virtio_net", &config).unwrap_err()[0].to_string();
    assert!(none.contains("virtio_net delays no interrupts (instead: leave interrupt_delay out)"), "{none}");
    config.classes[1].interrupt_delay = delay(16);
    let two = plan("bnxt_en", &config).unwrap_err()[0].to_string();
    assert!(two.contains("classes \"a\" and \"b\" want different delays"), "{two}");
    assert!(plan("ice", &config).is_ok());
}

#[test]
fn what_changes_the_device_behind_a_layout_is_named_with_what_tells() {
    let mut model = Model::new("virtio_net", 4, 4);
    model.device.opponents = vec!["NetworkManager".into(), "DCB in the firmware".into()];
    let plan = Plan::new(&config(&["nvme:2=*:4420"]), &model.device, &model.state).unwrap();
    let warnings = plan.warnings.join("\n");
    assert!(warnings.contains("at each activation (`nmcli -f tc,ethtool connection show"), "{warnings}");
    assert!(warnings.contains("nmcli device set eth0 managed no"), "{warnings}");
    assert!(
        warnings.contains("`dcb dcbx show dev eth0` tells): dcb dcbx set dev eth0 host ieee"),
        "{warnings}"
    );
}

#[test]
fn a_program_of_sockets_comes_last_and_needs_a_control_group() {
    let mut model = Model::new("virtio_net", 4, 4);
    let mut config = config(&["cache:2=192.0.2.10:11211,[2001:db8::10]:11211"]);
    config.classes[0].priority = PrioritySource::SockOps;
    let plan = Plan::new(&config, &model.device, &model.state).unwrap();
    let Some(Step { change: Change::AttachProgram(program), .. }) = plan.steps.last() else {
        panic!("{:?}", plan.steps.last())
    };
    assert_eq!((program.group.as_str(), program.rules.len(), program.rules[0].priority), ("/cgroup", 2, 1));
    assert!(!plan.steps.iter().any(|step| matches!(step.change, Change::AddFilter(_) | Change::AddClsact)));
    assert_eq!(plan.groups(), ["/cgroup"]);
    // Another interface with the same classes has a program of its own.
    model.device.identity.interface = "eth1".into();
    let other = Plan::new(&config, &model.device, &model.state).unwrap();
    let Some(Step { change: Change::AttachProgram(other), .. }) = other.steps.last() else { panic!() };
    assert_ne!(other.name, program.name);
    assert!(program.name.len() <= 15);

    let refusal = |model: &Model, config: &Config| {
        Plan::new(config, &model.device, &model.state).unwrap_err()[0].to_string()
    };
    config.cgroup = Some("/none".into());
    model.state.groups.insert("/none".into(), Group::Unusable("it is no control group".into()));
    let text = refusal(&model, &config);
    assert!(text.contains("/none: it is no control group (instead: priority = \"filter\")"), "{text}");
    config.cgroup = None;
    model.device.cgroup = None;
    assert!(refusal(&model, &config).contains("none is mounted"));
    // Contexts need no priority.
    let contexts = Model::new("mlx5_core", 8, 16);
    let plan = Plan::new(&config, &contexts.device, &contexts.state).unwrap();
    assert!(plan.groups().is_empty());
}
