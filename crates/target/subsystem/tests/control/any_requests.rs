//! Whatever hosts send, in whatever order lanes, reactors and the operator act: nothing panics, and every
//! command gets exactly one answer.

use nvlane_subsystem::controller::error_log::Failure;
use nvlane_subsystem::lane_id::LaneId;
use nvlane_subsystem::message::{
    LaneMessage, Message, OrderKind, ReactorMessage, Request, RequestKind, Step,
};
use nvlane_subsystem::subsystem::Access;
use proptest::prelude::*;
use wire::id::{Cntlid, Nsid, Qid};
use wire::property::{Cc, CommandSetSelection, Property};
use wire::sgl::Sgl;
use wire::sqe::{Sqe, SqeFlags};
use wire::status::Status;
use wire::zerocopy::FromBytes;

use crate::harness::{
    ConnectSpec, DISKS, HOST, OTHER_HOST, SECOND_NS, SERVICE, Shape, Target, add_namespace, host, nqn,
    subsystem,
};

/// Something that happens.
#[derive(Clone, Copy, Debug)]
enum Op {
    Connect { is_discovery: bool, is_other_host: bool, qid: u16, cntlid: Option<u16>, kato_ms: u32 },
    Known { lane: usize, opcode: u8, nsid: u32, cdw10: u32, cdw11: u32, offset: u32, length: u32, data: u16 },
    Configure { lane: usize, bits: u32 },
    Raw { lane: usize, bytes: [[u8; 32]; 2], data: u16 },
    Fail { lane: usize },
    Expel { lane: usize },
    End { lane: usize },
    Obey { which: usize },
    Pass { ms: u64, is_silent: bool },
    Reload { nsid: u8, which: u8 },
}

fn op() -> impl Strategy<Value = Op> {
    let nsid = prop_oneof![4 => 0u32..5, 1 => any::<u32>()];
    let known = (
        (any::<usize>(), prop::sample::select(vec![0x02u8, 0x06, 0x08, 0x09, 0x0A, 0x0C, 0x18])),
        (nsid, prop_oneof![3 => 0u32..0x90, 1 => any::<u32>()], prop_oneof![2 => 0u32..4, 1 => any::<u32>()]),
        (
            prop_oneof![3 => Just(0u32), 1 => any::<u32>()],
            prop_oneof![3 => Just(4096u32), 1 => any::<u32>()],
            0u16..520,
        ),
    );
    prop_oneof![
    4 => (any::<bool>(), any::<bool>(), 0u16..4, prop::option::weighted(0.3, any::<u16>()), 0u32..9000).prop_map(
        |(is_discovery, is_other_host, qid, cntlid, kato_ms)| Op::Connect {
            is_discovery,
            is_other_host,
            qid,
            cntlid,
            kato_ms
        }
    ),
    12 => known.prop_map(|((lane, opcode), (nsid, cdw10, cdw11), (offset, length, data))| Op::Known {
        lane, opcode, nsid, cdw10, cdw11, offset, length, data
    }),
    3 => (any::<usize>(), prop_oneof![Just(0x46_0001u32), Just(0x46_0000), Just(0x46_4001), any::<u32>()])
        .prop_map(|(lane, bits)| Op::Configure { lane, bits }),
    3 => (any::<usize>(), any::<[[u8; 32]; 2]>(), 0u16..1100)
        .prop_map(|(lane, bytes, data)| Op::Raw { lane, bytes, data }),
    1 => any::<usize>().prop_map(|lane| Op::Fail { lane }),
    1 => any::<usize>().prop_map(|lane| Op::Expel { lane }),
    2 => any::<usize>().prop_map(|lane| Op::End { lane }),
    6 => any::<usize>().prop_map(|which| Op::Obey { which }),
    2 => (0u64..9000, prop::bool::weighted(0.2)).prop_map(|(ms, is_silent)| Op::Pass { ms, is_silent }),
    2 => (0u8..8, any::<u8>()).prop_map(|(nsid, which)| Op::Reload { nsid, which }),
    ]
}

struct World {
    target: Target,
    /// Lanes that have not ended.
    lanes: Vec<LaneId>,
}

impl World {
    fn lane(&mut self, which: usize) -> Option<LaneId> {
        self.lanes.retain(|lane| !self.target.ended.contains(lane));
        self.lanes.get(which % self.lanes.len().max(1)).copied()
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Connect { is_discovery, is_other_host, qid, cntlid, kato_ms } => {
                let host = host(if is_other_host { OTHER_HOST } else { HOST });
                let name = if is_discovery { SERVICE } else { DISKS };
                // As a rule a controller that is there.
                let known = self.target.state().subsystems.first().and_then(|subsystem| {
                    subsystem.controllers.last().map(|controller| Cntlid::new(controller.cntlid))
                });
                let mut spec = ConnectSpec::admin(host, name);
                spec.command.kato_ms = kato_ms;
                spec.command.qid = Qid::new(qid);
                if qid > 0 {
                    spec.cntlid = cntlid.map(Cntlid::new).or(known).unwrap_or(Cntlid::DYNAMIC);
                }
                let lane = self.target.lane();
                self.lanes.push(lane);
                self.target.send(lane, spec.command.to_sqe(), &spec.data());
            }
            Op::Known { lane, opcode, nsid, cdw10, cdw11, offset, length, data } => {
                let Some(lane) = self.lane(lane) else { return };
                let mut sqe = Sqe::new(opcode, Nsid::new(nsid)).with_data(Sgl::transport(length));
                sqe.cdw10.set(cdw10);
                sqe.cdw11.set(cdw11);
                sqe.cdw12.set(offset);
                self.target.send(lane, sqe, &vec![0; data.into()]);
            }
            Op::Configure { lane, bits } => {
                let Some(lane) = self.lane(lane) else { return };
                self.target.send(lane, Sqe::property_set(Property::CC, bits.into()), &[]);
            }
            Op::Raw { lane, bytes, data } => {
                let Some(lane) = self.lane(lane) else { return };
                let mut sqe = Sqe::read_from_bytes(bytes.as_flattened()).unwrap();
                sqe.flags = SqeFlags::SGL;
                self.target.send(lane, sqe, &vec![bytes[0][0]; data.into()]);
            }
            Op::Fail { lane } => {
                let Some(lane) = self.lane(lane) else { return };
                let failure =
                    Failure { qid: Qid::new(1), cid: 1, status: Status::WRITE_FAULT, nsid: 1, lba: 1 };
                let kind = RequestKind::Failures(vec![failure]);
                self.target.control.on_request(self.target.now_ns, Request { lane, kind });
                self.target.settle();
            }
            Op::Expel { lane } => {
                let Some(lane) = self.lane(lane) else { return };
                self.target.expel(lane);
            }
            Op::End { lane } => {
                let Some(lane) = self.lane(lane) else { return };
                self.target.end(lane);
            }
            Op::Obey { which } => self.obey(which),
            Op::Pass { ms, is_silent } => {
                for _ in 0..ms / 1000 {
                    if !is_silent {
                        let established = self.target.established.values();
                        let joined = established.filter_map(|lane| lane.joined.as_ref());
                        joined.for_each(|joined| joined.association.on_sign(self.target.now_ns));
                    }
                    self.target.pass(SECOND_NS);
                }
            }
            Op::Reload { nsid, which } => self.reload(nsid, which),
        }
    }

    /// Acts upon one of the messages that wait.
    fn obey(&mut self, which: usize) {
        if self.target.messages.is_empty() {
            return;
        }
        let at = which % self.target.messages.len();
        let (reactor, message) = self.target.messages.remove(at);
        match message {
            Message::Lane(LaneMessage::End(lane)) if self.target.ended.contains(&lane) => {}
            Message::Lane(LaneMessage::End(lane)) => self.target.end(lane),
            Message::Reactor(ReactorMessage::Table(table)) => {
                self.target.control.on_table_in_use(u16::try_from(reactor).unwrap(), table.version);
            }
            Message::Reactor(ReactorMessage::Flush { asked_by, .. }) => {
                self.target.control.on_flushed(asked_by);
            }
            Message::Lane(LaneMessage::Abort { asked_by, .. }) => {
                self.target.control.on_aborted(asked_by, which.is_multiple_of(2));
            }
            _ => {}
        }
        self.target.settle();
    }

    fn reload(&mut self, nsid: u8, which: u8) {
        let id = Nsid::new(nsid.into());
        let step = match which % 7 {
            0 => add_namespace(nsid.max(1), Shape::blocks(512, 8)),
            1 => Step::RemoveNamespace { subsystem: nqn(DISKS), nsid: id },
            2 => Step::ReplaceNamespace {
                subsystem: nqn(DISKS),
                nsid: id,
                namespace: crate::harness::namespace(nsid, Shape::blocks(512, 9)),
            },
            3 => Step::RemoveSubsystem(nqn(DISKS)),
            4 => Step::AddSubsystem(subsystem(DISKS, Access::Any)),
            5 => Step::SetAccess(nqn(DISKS), Access::Only([nqn(HOST).into()].into())),
            _ => Step::SetAccess(nqn(DISKS), Access::Any),
        };
        self.target.order(OrderKind::Apply(vec![step]));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_command_gets_exactly_one_answer(
        ops in prop::collection::vec(op(), 1..150),
        lanes_end: bool,
        tables_are_taken: bool,
        flushes_are_done: bool,
        stops_at in prop::option::weighted(0.2, 0usize..120),
    ) {
        let mut target = Target::new();
        let mut lanes = Vec::new();
        for (name, subnqn, queues) in [(HOST, DISKS, 2), (OTHER_HOST, DISKS, 1), (HOST, SERVICE, 0)] {
            let association = target.ready(host(name), subnqn, queues);
            lanes.push(association.admin);
            lanes.extend(association.io);
        }
        target.habits = crate::harness::Habits { lanes_end, tables_are_taken, flushes_are_done };
        let mut world = World { target, lanes };
        for (at, op) in ops.into_iter().enumerate() {
            if stops_at == Some(at) {
                world.target.order(OrderKind::Stop { grace_ms: 1000 });
            }
            world.run(op);
        }
        // `settle` has seen to it that no answer came twice, or for nothing. Now everything that may still
        // come does.
        world.target.habits = crate::harness::Habits { lanes_end: true, tables_are_taken: true, flushes_are_done: true };
        while !world.target.messages.is_empty() {
            world.obey(0);
        }
        world.target.pass(60 * SECOND_NS);
        while !world.target.messages.is_empty() {
            world.obey(0);
        }
        // What is open now are events, which wait for something to happen: they end when the host resets its
        // controller.
        world.lane(0);
        for lane in world.lanes.clone() {
            let cc = Cc::new(CommandSetSelection::NVM);
            world.target.send(lane, Sqe::property_set(Property::CC, cc.bits().into()), &[]);
            world.target.send(lane, Sqe::property_set(Property::CC, cc.with_en(true).bits().into()), &[]);
            world.target.send(lane, Sqe::property_set(Property::CC, cc.bits().into()), &[]);
        }
        prop_assert_eq!(world.target.open.len(), 0);
        // With the last lane everything is forgotten.
        world.lane(0);
        for lane in world.lanes.clone() {
            world.target.end(lane);
        }
        let state = world.target.state();
        prop_assert!(state.discovery_controllers.is_empty() && state.waiting_connect_count == 0);
        prop_assert!(state.subsystems.iter().all(|subsystem| subsystem.controllers.is_empty()));
    }
}
