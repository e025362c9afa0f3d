//! The reaction of each state machine to each event in each state, observed by driving it there.

#![allow(clippy::cast_possible_truncation)]

#[path = "harness/ends.rs"]
#[allow(dead_code)] // Each test program uses its part.
mod ends;
#[path = "harness/pdus.rs"]
#[allow(dead_code)]
mod pdus;

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ends::{ControllerEnd, HostEnd, Seen};
use nvlane_proto::async_events::AsyncEventQueue;
use nvlane_proto::controller::{Controller, ControllerState, PropertyEffect};
use nvlane_proto::controller_queue::QueueSettings;
use nvlane_proto::host_queue::{Completion, HostEvent, Transfer};
use nvlane_proto::keep_alive::KeepAlive;
use pdus::{DDGST, Dialect, IN_CAPSULE, LAST, READ, SUCCESS, TRANSPORT, WRITE, cqe, cut, pattern, sqe};
use wire::async_event::{AsyncEvent, AsyncEvents};
use wire::fabrics::{PropertyGet, PropertySet};
use wire::id::Nsid;
use wire::log::Lid;
use wire::property::{Cap, Cc, CommandSetSelection, Property, PropertySize, ShutdownNotification, Vs};
use wire::sqe::Sqe;
use wire::status::Status;

/// The first line of a panic.
fn mistake(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    format!("panics: {}", text.unwrap_or("?").lines().next().unwrap_or_default())
}

/// Names of the sent PDUs, with their significant fields.
fn sent(bytes: &[u8]) -> Vec<String> {
    let long = |pdu: &[u8], at: usize| u32::from_le_bytes(pdu[at..at + 4].try_into().unwrap());
    let name = |pdu: &[u8]| match pdu[0] {
        0x03 => format!("TermReq {}", pdu[8]),
        0x04 => "CapsuleCmd".into(),
        0x05 => format!("CapsuleResp {:#05x}", (u16::from_le_bytes([pdu[22], pdu[23]]) >> 1) & 0x7FF),
        0x06 => format!("H2CData {}+{}", long(pdu, 12), long(pdu, 16)),
        0x07 => format!("C2HData {}+{}", long(pdu, 12), long(pdu, 16)),
        0x09 => format!("R2T {}+{}", long(pdu, 12), long(pdu, 16)),
        other => format!("{other:#04x}"),
    };
    cut(bytes).into_iter().map(name).collect()
}

const CID: u16 = 9;
const DIALECT: Dialect = Dialect { digests: DDGST, alignment: 0 };

/// The state of a command at a controller.
#[derive(Clone, Copy, Debug)]
enum Phase {
    NotThere,
    CapsuleArriving,
    Executing,
    AwaitingData,
    DataArriving,
    HalfReceived,
    Received,
    Completed,
    Draining,
    DrainingArriving,
}

const PHASES: [Phase; 10] = [
    Phase::NotThere,
    Phase::CapsuleArriving,
    Phase::Executing,
    Phase::AwaitingData,
    Phase::DataArriving,
    Phase::HalfReceived,
    Phase::Received,
    Phase::Completed,
    Phase::Draining,
    Phase::DrainingArriving,
];

/// A controller with a command in this phase and another one beside it, and the transfer tag.
fn controller_in(phase: Phase) -> (ControllerEnd, u16) {
    let settings = QueueSettings { window_bytes: 64, ..QueueSettings::default() };
    let mut end = ControllerEnd::connected(settings, DIALECT, 1, 16);
    end.deliver(&DIALECT.command(sqe(0, 1, TRANSPORT, 0), &[]));
    let mut tag = 0;
    let mut ask = |end: &mut ControllerEnd| {
        let slot = end.deliver(&DIALECT.command(sqe(WRITE, CID, TRANSPORT, 64), &[]));
        end.queue.request_data(slot, vec![0; 64], 64);
        let r2t = end.sent();
        tag = u16::from_le_bytes([r2t[10], r2t[11]]);
        slot
    };
    let data = |tag, range: std::ops::Range<usize>, more| {
        DIALECT.h2c(CID, tag, range.start as u32, &pattern(64)[range], more)
    };
    match phase {
        Phase::NotThere => {}
        Phase::CapsuleArriving => {
            end.feed(&DIALECT.command(sqe(WRITE, CID, IN_CAPSULE, 64), &pattern(64))[..100]).unwrap();
        }
        Phase::Executing => {
            end.deliver(&DIALECT.command(sqe(WRITE, CID, TRANSPORT, 64), &[]));
        }
        Phase::AwaitingData => {
            ask(&mut end);
        }
        Phase::DataArriving => {
            ask(&mut end);
            end.feed(&data(tag, 0..64, LAST)[..40]).unwrap();
        }
        Phase::HalfReceived => {
            ask(&mut end);
            end.feed(&data(tag, 0..32, 0)).unwrap();
        }
        Phase::Received => {
            ask(&mut end);
            end.feed(&data(tag, 0..64, LAST)).unwrap();
        }
        Phase::Completed => {
            let slot = ask(&mut end);
            end.feed(&data(tag, 0..64, LAST)).unwrap();
            end.complete(slot, Status::SUCCESS);
            end.sent();
        }
        Phase::Draining => {
            let slot = ask(&mut end);
            end.complete(slot, Status::ABORT_REQUESTED);
            end.sent();
        }
        Phase::DrainingArriving => {
            let slot = ask(&mut end);
            end.feed(&data(tag, 0..64, LAST)[..40]).unwrap();
            end.complete(slot, Status::ABORT_REQUESTED);
            end.sent();
        }
    }
    (end, tag)
}

#[derive(Clone, Copy, Debug)]
enum ControllerEvent {
    SameCid,
    WholeData,
    FirstHalf,
    SecondHalf,
    RestOfPdu,
    CorruptData,
    RequestData,
    TakeBuffer,
    Complete,
    Place,
    Fail,
}

const CONTROLLER_EVENTS: [ControllerEvent; 11] = [
    ControllerEvent::SameCid,
    ControllerEvent::WholeData,
    ControllerEvent::FirstHalf,
    ControllerEvent::SecondHalf,
    ControllerEvent::RestOfPdu,
    ControllerEvent::CorruptData,
    ControllerEvent::RequestData,
    ControllerEvent::TakeBuffer,
    ControllerEvent::Complete,
    ControllerEvent::Place,
    ControllerEvent::Fail,
];

/// The reaction: events, PDUs, and the queue's view of the command afterwards.
fn controller_does(end: &mut ControllerEnd, tag: u16, event: ControllerEvent) -> String {
    let data = |range: std::ops::Range<usize>, more| {
        DIALECT.h2c(CID, tag, range.start as u32, &pattern(64)[range], more)
    };
    let feed = |end: &mut ControllerEnd, bytes: &[u8]| match end.feed(bytes) {
        Err(violation) => vec![format!("violation: {violation}")],
        Ok(seen) => seen
            .into_iter()
            .map(|seen| match seen {
                Seen::Initialised(_) => "initialised".into(),
                Seen::Command { .. } => "Command".into(),
                Seen::DataReceived { is_intact: true, .. } => "DataReceived".into(),
                Seen::DataReceived { .. } => "DataReceived, corrupt".into(),
                Seen::Refused { status, .. } => format!("Refused {:#05x}", status.code()),
            })
            .collect(),
    };
    let slot = end.queue.find(CID);
    let mut what = match event {
        ControllerEvent::SameCid => feed(end, &DIALECT.command(sqe(READ, CID, TRANSPORT, 64), &[])),
        ControllerEvent::WholeData => feed(end, &data(0..64, LAST)),
        ControllerEvent::FirstHalf => feed(end, &data(0..32, 0)),
        ControllerEvent::SecondHalf => feed(end, &data(32..64, LAST)),
        ControllerEvent::RestOfPdu => {
            let capsule = DIALECT.command(sqe(WRITE, CID, IN_CAPSULE, 64), &pattern(64));
            let is_capsule = tag == 0;
            let rest = if is_capsule { capsule[100..].to_vec() } else { data(0..64, LAST)[40..].to_vec() };
            if !end.queue.is_within_pdu() {
                return "-".into();
            }
            feed(end, &rest)
        }
        ControllerEvent::CorruptData => {
            let mut pdu = data(0..64, LAST);
            *pdu.last_mut().unwrap() ^= 1;
            feed(end, &pdu)
        }
        ControllerEvent::Place => {
            let place = end.queue.place().map(|place| place.len());
            vec![place.map_or("no place".into(), |length| format!("{length} bytes"))]
        }
        ControllerEvent::Fail => {
            end.queue.fail(nvlane_proto::Violation::Sequence);
            Vec::new()
        }
        ControllerEvent::RequestData | ControllerEvent::TakeBuffer | ControllerEvent::Complete => {
            let Some(slot) = slot else { return "-".into() };
            let queue = &mut end.queue;
            let outcome = catch_unwind(AssertUnwindSafe(|| match event {
                ControllerEvent::RequestData => queue.request_data(slot, vec![0; 64], 64),
                ControllerEvent::TakeBuffer => drop(queue.take_buffer(slot)),
                _ => queue.complete(slot, Status::SUCCESS, 0),
            }));
            outcome.err().map(|panic| mistake(&*panic)).into_iter().collect()
        }
    };
    what.extend(sent(&end.sent()));
    let after = match end.queue.find(CID) {
        None => "not there",
        Some(slot) if end.queue.awaits_data(slot) => "awaits data",
        Some(_) => "executes",
    };
    what.push(after.into());
    what.join(", ")
}

#[test]
fn phases_of_a_command_at_a_controller() {
    let mut table = String::new();
    for phase in PHASES {
        for event in CONTROLLER_EVENTS {
            let is_arriving =
                matches!(phase, Phase::CapsuleArriving | Phase::DataArriving | Phase::DrainingArriving);
            // Within a PDU the next bytes belong to it, whatever they contain.
            if is_arriving
                && matches!(
                    event,
                    ControllerEvent::SameCid
                        | ControllerEvent::WholeData
                        | ControllerEvent::FirstHalf
                        | ControllerEvent::SecondHalf
                        | ControllerEvent::CorruptData
                )
            {
                continue;
            }
            let (mut end, tag) = controller_in(phase);
            let what = controller_does(&mut end, tag, event);
            if what != "-" {
                writeln!(table, "{phase:?} × {event:?}: {what}").unwrap();
            }
        }
    }
    insta::assert_snapshot!("command_at_controller", table);
}

/// The state of a command at a host.
#[derive(Clone, Copy, Debug)]
enum HostPhase {
    NotThere,
    Waiting,
    Leaving,
    Out,
    ReadBegun,
    WriteAsked,
    WriteHalfAsked,
    WriteSent,
    AnsweredWhileSending,
    Ended,
}

const HOST_PHASES: [HostPhase; 10] = [
    HostPhase::NotThere,
    HostPhase::Waiting,
    HostPhase::Leaving,
    HostPhase::Out,
    HostPhase::ReadBegun,
    HostPhase::WriteAsked,
    HostPhase::WriteHalfAsked,
    HostPhase::WriteSent,
    HostPhase::AnsweredWhileSending,
    HostPhase::Ended,
];

#[derive(Clone, Copy, Debug)]
enum HostInput {
    Success,
    Failure,
    FirstHalf,
    SecondHalf,
    AllWithSuccess,
    R2tForHalf,
    R2tForRest,
    Sent,
    Lost,
}

const HOST_INPUTS: [HostInput; 9] = [
    HostInput::Success,
    HostInput::Failure,
    HostInput::FirstHalf,
    HostInput::SecondHalf,
    HostInput::AllWithSuccess,
    HostInput::R2tForHalf,
    HostInput::R2tForRest,
    HostInput::Sent,
    HostInput::Lost,
];

/// Its cid.
const HOST_CID: u16 = 0x0400;

fn host_in(phase: HostPhase, is_write: bool) -> HostEnd {
    let mut end = HostEnd::plain(DIALECT);
    end.queue.set_in_capsule_bytes(0);
    if matches!(phase, HostPhase::NotThere) {
        return end;
    }
    let transfer = if is_write {
        Transfer::ToController(pattern(64))
    } else {
        Transfer::FromController { buffer: vec![0; 64], is_exact: true }
    };
    assert!(end.queue.submit(Sqe::new(1, Nsid::new(1)), transfer, 7).is_ok());
    match phase {
        HostPhase::NotThere | HostPhase::Waiting => return end,
        HostPhase::Leaving => {
            end.queue.ring();
            end.queue.on_sent(10);
            return end;
        }
        _ => drop(end.sent()),
    }
    match phase {
        HostPhase::ReadBegun => drop(end.feed(&DIALECT.c2h(HOST_CID, 0, &pattern(64)[..32], 0)).unwrap()),
        HostPhase::WriteAsked => drop(end.feed(&DIALECT.r2t(HOST_CID, 3, 0, 64)).unwrap()),
        HostPhase::WriteHalfAsked | HostPhase::WriteSent => {
            let length = if matches!(phase, HostPhase::WriteSent) { 64 } else { 32 };
            end.feed(&DIALECT.r2t(HOST_CID, 3, 0, length)).unwrap();
            end.sent();
        }
        HostPhase::AnsweredWhileSending => {
            end.feed(&DIALECT.r2t(HOST_CID, 3, 0, 64)).unwrap();
            end.feed(&DIALECT.response(cqe(HOST_CID, 0, 0))).unwrap();
        }
        HostPhase::Ended => drop(end.feed(&DIALECT.response(cqe(HOST_CID, 0, 0x8004))).unwrap()),
        _ => {}
    }
    end
}

fn host_does(end: &mut HostEnd, input: HostInput) -> String {
    let data = |range: std::ops::Range<usize>, more| {
        DIALECT.c2h(HOST_CID, range.start as u32, &pattern(64)[range], more)
    };
    let mut what = Vec::new();
    let name = |completion: Completion<Vec<u8>>| {
        format!("Completed {:#05x}, {} received", completion.status.code(), completion.received)
    };
    let bytes = match input {
        HostInput::Success => DIALECT.response(cqe(HOST_CID, 0, 0)),
        HostInput::Failure => DIALECT.response(cqe(HOST_CID, 0, 0x8004)),
        HostInput::FirstHalf => data(0..32, 0),
        HostInput::SecondHalf => data(32..64, LAST),
        HostInput::AllWithSuccess => data(0..64, LAST | SUCCESS),
        HostInput::R2tForHalf => DIALECT.r2t(HOST_CID, 4, 0, 32),
        HostInput::R2tForRest => DIALECT.r2t(HOST_CID, 4, 32, 32),
        HostInput::Sent => {
            end.sent();
            Vec::new()
        }
        HostInput::Lost => {
            what.extend(end.queue.next_unfinished(Status::HOST_PATHING_ERROR).map(name));
            what.push(format!("{} outstanding", end.queue.outstanding()));
            return what.join(", ");
        }
    };
    let had = end.queue.caravan().waiting_bytes();
    let mut rest = &bytes[..];
    loop {
        match end.queue.next_event(&mut rest) {
            Ok(None) => break,
            Ok(Some(HostEvent::Completed(completion))) => what.push(name(completion)),
            Ok(Some(HostEvent::Initialised(_))) => unreachable!("a second handshake"),
            Err(violation) => {
                what.push(format!("violation: {violation}"));
                break;
            }
        }
    }
    if end.queue.caravan().waiting_bytes() > had {
        what.push(format!("{} bytes wait to leave", end.queue.caravan().waiting_bytes() - had));
    }
    what.push(format!("{} outstanding", end.queue.outstanding()));
    what.join(", ")
}

#[test]
fn phases_of_a_command_at_a_host() {
    let mut table = String::new();
    for is_write in [false, true] {
        for phase in HOST_PHASES {
            let is_of_reads = matches!(phase, HostPhase::ReadBegun);
            let is_of_writes = matches!(
                phase,
                HostPhase::WriteAsked
                    | HostPhase::WriteHalfAsked
                    | HostPhase::WriteSent
                    | HostPhase::AnsweredWhileSending
            );
            if is_of_reads && is_write || is_of_writes && !is_write {
                continue;
            }
            for input in HOST_INPUTS {
                let what = host_does(&mut host_in(phase, is_write), input);
                let kind = if is_write { "write" } else { "read" };
                writeln!(table, "{kind} {phase:?} × {input:?}: {what}").unwrap();
            }
        }
    }
    insta::assert_snapshot!("command_at_host", table);
}

fn cap() -> Cap {
    Cap::from_bits(0).with_queue_entries_max(128).with_css_nvm(true).with_css_csi(true)
}

fn cc(en: bool, shn: ShutdownNotification) -> Cc {
    Cc::from_bits(0).with_en(en).with_shn(shn).with_iosqes(6).with_iocqes(4)
}

fn set(value: u64) -> PropertySet {
    PropertySet { size: PropertySize::FOUR, property: Property::CC, value }
}

#[test]
fn life_of_a_controller() {
    use ShutdownNotification as Shn;
    // The way into each state from a new controller: writes of CC, and whether the shutdown is done.
    let states: [(&str, &[Cc], bool); 6] = [
        ("disabled", &[], false),
        ("ready", &[cc(true, Shn::NONE)], false),
        ("shutting down", &[cc(true, Shn::NONE), cc(true, Shn::NORMAL)], false),
        ("shut down", &[cc(true, Shn::NONE), cc(true, Shn::NORMAL)], true),
        ("disabled, shutting down", &[cc(false, Shn::NORMAL)], false),
        ("disabled, shut down", &[cc(false, Shn::NORMAL)], true),
    ];
    let writes = [
        ("nothing", cc(false, Shn::NONE)),
        ("enable", cc(true, Shn::NONE)),
        ("shut down", cc(true, Shn::NORMAL)),
        ("shut down abruptly", cc(true, Shn::ABRUPT)),
        ("disable and shut down", cc(false, Shn::NORMAL)),
        ("enable with large pages", cc(true, Shn::NONE).with_mps(1)),
        ("enable with another arbitration", cc(true, Shn::NONE).with_ams(1)),
        ("enable with small commands", cc(true, Shn::NONE).with_iosqes(5)),
        ("enable with large completions", cc(true, Shn::NONE).with_iocqes(5)),
        ("enable with early readiness", cc(true, Shn::NONE).with_crime(true)),
        ("enable with all command sets", Cc::from_bits(cc(true, Shn::NONE).bits() | 6 << 4)),
        ("enable with admin commands only", Cc::from_bits(cc(true, Shn::NONE).bits() | 7 << 4)),
        ("enable with command set 3", Cc::from_bits(cc(true, Shn::NONE).bits() | 3 << 4)),
    ];
    let mut table = String::new();
    for (name, path, is_done) in states {
        let reached = || {
            let mut controller = Controller::new(cap(), Vs::V2_0);
            for cc in path {
                controller.on_property_set(set(cc.bits().into())).unwrap();
            }
            if is_done {
                controller.shut_down_done();
            }
            controller
        };
        let describe = |controller: &Controller| {
            let csts = controller.csts();
            let is_ready = controller.is_ready();
            assert_eq!(is_ready, controller.state() == ControllerState::Ready);
            assert_eq!(csts.rdy(), controller.cc().en(), "CSTS.RDY follows CC.EN");
            let value = controller.on_property_get(get(Property::CSTS, PropertySize::FOUR));
            assert_eq!(value, Ok(csts.bits().into()));
            format!("{:?}, CSTS {:#x}", controller.state(), csts.bits())
        };
        writeln!(table, "{name}: {}", describe(&reached())).unwrap();
        for (write, cc) in writes {
            let mut controller = reached();
            let before = controller.cc();
            let effect = controller.on_property_set(set(cc.bits().into()));
            if effect.is_err() {
                assert_eq!(controller.cc(), before, "nothing changes");
            }
            let effect = effect.map_or_else(
                |status| format!("refused {:#05x}", status.code()),
                |effect| format!("{effect:?}"),
            );
            writeln!(table, "{name} × {write}: {effect}, {}", describe(&controller)).unwrap();
        }
        let mut controller = reached();
        controller.shut_down_done();
        writeln!(table, "{name} × shut_down_done: {}", describe(&controller)).unwrap();
    }
    insta::assert_snapshot!("controller_life", table);
}

/// nvmet takes any there, since older hosts leave them zero, and newer ones do not. wire §7
#[test]
fn sizes_of_entries_mean_nothing_without_io_queues() {
    for css in [CommandSetSelection::NVM, CommandSetSelection::ALL] {
        let bare = Cc::default().with_css(css).with_en(true);
        for cc in [bare, bare.with_iosqes(6).with_iocqes(4), bare.with_iosqes(1)] {
            let mut discovery = Controller::without_io_queues(cap(), Vs::V2_0);
            assert_eq!(
                discovery.on_property_set(set(cc.bits().into())),
                Ok(PropertyEffect::Enabled),
                "{cc:?}"
            );
        }
        let mut controller = Controller::new(cap(), Vs::V2_0);
        assert!(controller.on_property_set(set(bare.bits().into())).is_err(), "an I/O controller has some");
    }
}

/// wire §7
#[test]
fn ready_timeouts_are_there_if_cap_says_so() {
    let crto = get(Property::CRTO, PropertySize::FOUR);
    assert_eq!(Controller::new(cap(), Vs::V2_0).on_property_get(crto), Err(Status::INVALID_FIELD));
    let cap = cap().with_ready_timeout_ms(15_000).with_crwms(true);
    assert_eq!(Controller::new(cap, Vs::V2_0).on_property_get(crto), Ok(30));
}

fn get(property: Property, size: PropertySize) -> PropertyGet {
    PropertyGet { property, size }
}

#[test]
fn properties_are_read_and_written_as_the_table_says() {
    // wire §6.4, §7
    let mut table = String::new();
    let properties = [
        Property::CAP,
        Property::VS,
        Property::CC,
        Property::CSTS,
        Property::NSSR,
        Property::CRTO,
        Property::from_raw(0x04),
        Property::from_raw(0xFFFF_FFFF),
    ];
    for property in properties {
        for size in [PropertySize::FOUR, PropertySize::EIGHT, PropertySize::from_raw(7)] {
            let mut controller = Controller::new(cap(), Vs::V2_0);
            let status = |status: Status| format!("refused {:#05x}, dnr {}", status.code(), status.dnr());
            let read = controller.on_property_get(get(property, size));
            let read = read.map_or_else(status, |value| format!("{value:#x}"));
            let written = controller.on_property_set(PropertySet { size, property, value: 0x0046_0001 });
            let written = written.map_or_else(status, |effect| format!("{effect:?}"));
            let raw = property.raw();
            writeln!(table, "{raw:#x}, size {}: get {read}; set {written}", size.raw()).unwrap();
        }
    }
    let mut controller = Controller::new(cap(), Vs::V2_0);
    assert_eq!(controller.cap(), cap());
    let upper_half = controller.on_property_set(set(0xFFFF_FFFF_0046_0001));
    assert_eq!(upper_half, Ok(PropertyEffect::Enabled), "reserved with a property of 4 bytes");
    insta::assert_snapshot!("properties", table);
}

#[test]
fn asynchronous_events() {
    type Queue = AsyncEventQueue<u8>;
    let enabled = || {
        let mut queue = Queue::default();
        queue.enable(AsyncEvents::NAMESPACE_ATTRIBUTE | AsyncEvents::ANA);
        queue
    };
    const EVENT: AsyncEvent = AsyncEvent::NAMESPACE_ATTRIBUTE;
    let states: [(&str, &dyn Fn() -> Queue); 7] = [
        ("new", &Queue::default),
        ("enabled", &enabled),
        ("request waits", &|| {
            let mut queue = enabled();
            queue.on_request(1).unwrap();
            queue
        }),
        ("event waits", &|| {
            let mut queue = enabled();
            queue.raise(EVENT);
            queue
        }),
        ("told", &|| {
            let mut queue = enabled();
            queue.on_request(1).unwrap();
            queue.raise(EVENT);
            queue.next_completion().unwrap();
            queue
        }),
        ("told, request waits", &|| {
            let mut queue = enabled();
            queue.on_request(1).unwrap();
            queue.raise(EVENT);
            queue.next_completion().unwrap();
            queue.on_request(1).unwrap();
            queue
        }),
        ("requests full", &|| {
            let mut queue = enabled();
            (1..=4).for_each(|request| queue.on_request(request).unwrap());
            queue
        }),
    ];
    type Act = dyn Fn(&mut Queue) -> String;
    let acts: [(&str, &Act); 12] = [
        ("request", &|queue| match queue.on_request(9) {
            Ok(()) => "taken".into(),
            Err(status) => format!("refused {:#05x}", status.code()),
        }),
        ("abort", &|queue| format!("was there {}", queue.abort(|request| *request == 1).is_some())),
        ("raise", &|queue| {
            queue.raise(EVENT);
            String::new()
        }),
        ("raise twice", &|queue| {
            queue.raise(EVENT);
            queue.raise(EVENT);
            String::new()
        }),
        ("raise another", &|queue| {
            queue.raise(AsyncEvent::ANA_CHANGE);
            String::new()
        }),
        ("raise a disabled one", &|queue| {
            queue.raise(AsyncEvent::DISCOVERY_CHANGE);
            String::new()
        }),
        ("raise one that cannot be disabled", &|queue| {
            queue.raise(AsyncEvent::PERSISTENT_INTERNAL_ERROR);
            String::new()
        }),
        ("read the log, raise", &|queue| {
            queue.on_log_taken(Lid::CHANGED_NAMESPACES);
            queue.on_log_read(Lid::CHANGED_NAMESPACES);
            queue.raise(EVENT);
            String::new()
        }),
        ("read the log and retain, raise", &|queue| {
            queue.on_log_taken(Lid::CHANGED_NAMESPACES);
            queue.raise(EVENT);
            String::new()
        }),
        ("read the log", &|queue| {
            queue.on_log_taken(Lid::CHANGED_NAMESPACES);
            queue.on_log_read(Lid::CHANGED_NAMESPACES);
            String::new()
        }),
        ("read the log in two parts, raise between", &|queue| {
            queue.on_log_taken(Lid::CHANGED_NAMESPACES);
            queue.raise(EVENT);
            queue.on_log_read(Lid::CHANGED_NAMESPACES);
            String::new()
        }),
        ("disable all", &|queue| {
            queue.enable(AsyncEvents::empty());
            String::new()
        }),
    ];
    let mut table = String::new();
    for (state, reach) in &states {
        for (name, act) in &acts {
            let mut queue = reach();
            let mut what = vec![act(&mut queue)];
            while let Some((request, event)) = queue.next_completion() {
                what.push(format!("completes {request} with {:#08x}", event.bits()));
            }
            what.push(format!("enabled {:#x}, requests {:?}", queue.enabled().bits(), queue.reset()));
            assert_eq!((queue.enabled(), queue.next_completion()), (AsyncEvents::empty(), None));
            what.retain(|part| !part.is_empty());
            writeln!(table, "{state} × {name}: {}", what.join(", ")).unwrap();
        }
    }
    insta::assert_snapshot!("async_events", table);
}

#[test]
fn keep_alive() {
    const MS: u64 = 1_000_000;
    let start = 100_000 * MS;
    let mut table = String::new();
    for (state, timeout_ms, at_ms) in [
        ("no timeout", 0, 1_000_000),
        ("in time", 5000, 4999),
        ("late within grace", 5000, 6999),
        ("expired", 5000, 7000),
        ("long expired", 5000, 1_000_000),
        ("rounded up", 4001, 6999),
    ] {
        let now = start + at_ms * MS;
        let describe = |keep_alive: &KeepAlive| {
            let deadline = keep_alive.deadline_ns().map(|at| (at - start) / MS);
            format!(
                "timeout {} ms, deadline {deadline:?} ms, expired {}",
                keep_alive.timeout_ms(),
                keep_alive.is_expired(now)
            )
        };
        let new = KeepAlive::new(timeout_ms, start);
        writeln!(table, "{state}: {}", describe(&new)).unwrap();
        let mut signed = new;
        signed.on_sign(now);
        writeln!(table, "{state} × sign: {}", describe(&signed)).unwrap();
        let mut late = new;
        late.on_sign(start - MS);
        writeln!(table, "{state} × sign of before: {}", describe(&late)).unwrap();
        for other_ms in [0, 1, 10_000] {
            let mut changed = new;
            changed.set_timeout(other_ms, now);
            writeln!(table, "{state} × timeout of {other_ms} ms: {}", describe(&changed)).unwrap();
        }
    }
    insta::assert_snapshot!("keep_alive", table);
}
