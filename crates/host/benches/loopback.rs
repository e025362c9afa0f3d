//! A lane over loopback against a minimal target in another thread: operations per second by depth, and from which size on it pays
//! to receive in place. Times of a machine, not a guard: compare only what one run prints.
//!
//! `cargo bench -p nvlane-host --bench loopback`, with `place` for the second table.
#![allow(clippy::cast_possible_truncation)]

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nvlane_host::{Address, Association, Command, Completion, HostIdentity, Lane, Options};
use proto::controller::Controller;
use proto::controller_queue::{Event, QueueSettings};
use proto::{ControllerQueue, Piece, Slot};
use wire::fabrics::{ConnectCommand, ConnectResult, PropertyGet, PropertySet};
use wire::feature::NumberOfQueues;
use wire::id::{Cntlid, Nsid};
use wire::identify::controller::IdentifyController;
use wire::identify::{Cns, IdentifyCommand};
use wire::opcode::{AdminOpcode, FabricsType};
use wire::property::{Cap, Vs};
use wire::sqe::Sqe;
use wire::status::Status;
use zerocopy::IntoBytes;

const NQN: &str = "nqn.2016-06.io.nvlane:bench";
static DATA: [u8; 1 << 20] = [7; 1 << 20];

/// What a payload of the target is: a page of its own, or this many bytes of `DATA`.
enum Payload {
    Own(Vec<u8>),
    Data,
}

/// One connection of a target that holds nothing and answers everything.
fn serve(mut stream: TcpStream) {
    stream.set_nodelay(true).expect("a socket");
    stream.set_nonblocking(true).expect("a socket");
    let mut queue = ControllerQueue::<Vec<u8>, Payload>::new(QueueSettings::default());
    let cap = Cap::from_bits(0).with_queue_entries_max(1024).with_ready_timeout_ms(1000).with_css_nvm(true);
    let mut properties = Controller::new(cap, Vs::V1_4);
    let (mut staging, mut is_admin, mut idle) = (vec![0; 256 << 10], true, Instant::now());
    loop {
        match stream.read(&mut staging) {
            Ok(0) => return,
            Ok(count) => {
                idle = Instant::now();
                let mut input = &staging[..count];
                while let Ok(Some(event)) = queue.next_event(&mut input) {
                    match event {
                        Event::Command { slot, sqe, .. } => {
                            execute(&mut queue, &mut properties, &mut is_admin, slot, &sqe);
                        }
                        Event::DataReceived { slot, .. } => {
                            drop(queue.take_buffer(slot));
                            queue.complete(slot, Status::SUCCESS, 0);
                        }
                        _ => {}
                    }
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // Spins under load, and leaves the core to others without it.
                if idle.elapsed() > Duration::from_millis(if is_admin { 1 } else { 50 }) {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
            Err(_) => return,
        }
        if !send(&mut stream, &mut queue) {
            return;
        }
    }
}

fn send(stream: &mut TcpStream, queue: &mut ControllerQueue<Vec<u8>, Payload>) -> bool {
    while queue.caravan().ring() || queue.caravan().is_leaving() {
        let pieces: Vec<_> = queue
            .caravan()
            .pieces()
            .take(512)
            .map(|piece| match piece {
                Piece::Bytes(bytes) => IoSlice::new(bytes),
                Piece::Payload(Payload::Own(page), range) => IoSlice::new(&page[range]),
                Piece::Payload(Payload::Data, range) => IoSlice::new(&DATA[range]),
            })
            .collect();
        match stream.write_vectored(&pieces) {
            Ok(count) => queue.caravan().on_sent(count, drop),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
            Err(_) => return false,
        }
    }
    true
}

fn execute(
    queue: &mut ControllerQueue<Vec<u8>, Payload>,
    properties: &mut Controller,
    is_admin: &mut bool,
    slot: Slot,
    sqe: &Sqe,
) {
    if !*is_admin {
        // A read or a write, by the direction of its data.
        let wire::sgl::DataPointer::Transport { length } = sqe.dptr.classify() else {
            return queue.complete(slot, Status::SUCCESS, 0);
        };
        return match sqe.opcode & 3 {
            1 => queue.request_data(slot, vec![0; length as usize], length),
            _ => queue.complete_with_data(slot, Payload::Data, length, 0, |_, _| 0),
        };
    }
    let mut result = 0;
    match (AdminOpcode::from_raw(sqe.opcode), sqe.fctype()) {
        (AdminOpcode::FABRICS, FabricsType::CONNECT) => {
            let connect = ConnectCommand::from_sqe(sqe);
            *is_admin = connect.qid.is_admin();
            queue.establish(connect.queue_entries as u16, connect.attributes.disable_sq_flow_control());
            result = u64::from(ConnectResult::from_bits(0).with_cntlid(1).bits());
        }
        (AdminOpcode::FABRICS, FabricsType::PROPERTY_GET) => {
            result = properties.on_property_get(PropertyGet::from_sqe(sqe)).expect("a property");
        }
        (AdminOpcode::FABRICS, _) => {
            properties.on_property_set(PropertySet::from_sqe(sqe)).expect("a property");
        }
        (AdminOpcode::SET_FEATURES, _) => result = NumberOfQueues::pairs(8).bits().into(),
        (AdminOpcode::ASYNC_EVENT_REQUEST, _) => return,
        (AdminOpcode::IDENTIFY, _) => {
            let mut page = vec![0; 4096];
            if IdentifyCommand::from_sqe(sqe).cns == Cns::CONTROLLER {
                let mut identify = IdentifyController::fabrics();
                identify.set_cntlid(Cntlid::new(1));
                identify.set_in_capsule_bytes(8192);
                page.copy_from_slice(identify.as_bytes());
            }
            return queue.complete_with_data(slot, Payload::Own(page), 4096, 0, |_, _| 0);
        }
        _ => {}
    }
    queue.complete(slot, Status::SUCCESS, result);
}

fn target() -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = Address::from(listener.local_addr().expect("bound"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.expect("a connection");
            std::thread::spawn(move || serve(stream));
        }
    });
    address.with_subsystem(NQN.parse().expect("a name"))
}

/// Commands per second and the median time of one, us.
fn run(lane: &mut Lane, depth: usize, bytes: u32, is_write: bool, time: Duration) -> (f64, f64) {
    let mut buffers = vec![vec![0u8; bytes as usize]; depth];
    let mut completions: Vec<Completion<Vec<u8>>> = Vec::with_capacity(depth);
    let (mut count, mut times, start) = (0u64, Vec::new(), Instant::now());
    let mut sent = Instant::now();
    while start.elapsed() < time || lane.outstanding() > 0 {
        if start.elapsed() < time {
            while let Some(buffer) = buffers.pop() {
                let command = match is_write {
                    true => Command::raw_to_controller(Sqe::write(Nsid::new(1), 0, 1), bytes).idempotent(),
                    false => Command::raw_from_controller(Sqe::read(Nsid::new(1), 0, 1), bytes).read_only(),
                };
                lane.submit(command, Some(buffer), count).expect("room");
            }
            if depth == 1 {
                sent = Instant::now();
            }
        }
        lane.wait(&mut completions, Duration::from_secs(1));
        for completion in completions.drain(..) {
            assert!(completion.is_ok());
            buffers.extend(completion.buffer);
            count += 1;
        }
        if depth == 1 {
            times.push(sent.elapsed());
        }
    }
    times.sort_unstable();
    let median = times.get(times.len() / 2).map_or(0.0, |time| time.as_nanos() as f64 / 1000.0);
    (count as f64 / start.elapsed().as_secs_f64(), median)
}

fn options() -> Options {
    let identity = HostIdentity::from_uuid("11111111-2222-3333-4444-555555555555".parse().expect("an id"));
    Options { identity: Some(identity), ..Options::default() }.tuned(|tuning| tuning.spin = Duration::MAX)
}

fn main() {
    let address = target();
    if std::env::args().any(|arg| arg == "place") {
        println!("GiB/s of reads at depth 8, received through staging and in place");
        for kib in [8, 16, 32, 64, 128, 256, 1024] {
            let mut best = [0f64; 2];
            // Interleaved: this machine is faster at some times than at others.
            for _ in 0..4 {
                for (place, best) in best.iter_mut().enumerate() {
                    let in_place_bytes = if place == 1 { 4096 } else { u32::MAX };
                    let options = options().tuned(|tuning| tuning.in_place_bytes = in_place_bytes);
                    let association = Association::connect(&address, options).expect("connected");
                    let mut lane = association.lane().expect("a lane");
                    let (rate, _) = run(&mut lane, 8, kib << 10, false, Duration::from_millis(300));
                    *best = best.max(rate * f64::from(kib) / f64::from(1 << 20));
                }
            }
            println!("{kib:5} KiB {:8.2} {:8.2}", best[0], best[1]);
        }
        return;
    }
    println!("4 KiB, thousands of commands per second (median us at depth 1); both sides spin");
    for (name, is_write) in [("read", false), ("write", true)] {
        for depth in [1, 4, 32, 128] {
            let association = Association::connect(&address, options()).expect("connected");
            let mut lane = association.lane().expect("a lane");
            run(&mut lane, depth, 4096, is_write, Duration::from_millis(200));
            let (rate, median) = run(&mut lane, depth, 4096, is_write, Duration::from_secs(1));
            let counters = lane.counters();
            let per_send = counters.commands as f64 / counters.sends as f64;
            println!(
                "{name:5} depth {depth:3} {:8.1} ({median:.1} us), {per_send:.1} commands per send",
                rate / 1000.0
            );
        }
    }
}
