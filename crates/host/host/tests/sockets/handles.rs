//! Blocking and asynchronous namespace handles, cancellation, and discovery.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::target::{Reaction, Target, options};
use nvlane_host::discovery::{self, Discovery};
use nvlane_host::{
    Address, AsyncNamespace, BlockRange, BlockingNamespace, Command, DataBuffer, Error, Failure,
    InvalidCommand, Lane,
};
use wire::async_event::AsyncEvent;
use wire::discovery::{DiscoveryEntry, SubsystemType};
use wire::feature::Fid;
use wire::id::Nsid;
use wire::identify::capabilities::{Lpa, Oncs};
use wire::nqn::Nqn;
use wire::nvm::BlockCommand;
use wire::opcode::{AdminOpcode, NvmOpcode};
use wire::property::{Property, Vs};
use wire::sqe::{Fuse, Sqe};

const SECOND: Duration = Duration::from_secs(1);

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + index / 251) as u8).collect()
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < 60 * SECOND, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A minimal executor.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    let start = Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        assert!(start.elapsed() < 60 * SECOND, "the future hangs");
        std::thread::park_timeout(SECOND);
    }
}

/// Polls several futures concurrently until all are done.
fn join<T>(futures: Vec<Pin<Box<dyn Future<Output = T> + '_>>>) -> Vec<T> {
    let mut futures: Vec<_> = futures.into_iter().map(|future| (future, None)).collect();
    block_on(std::future::poll_fn(move |context| {
        for (future, output) in &mut futures {
            if output.is_none()
                && let Poll::Ready(value) = future.as_mut().poll(context)
            {
                *output = Some(value);
            }
        }
        match futures.iter().all(|(_, output)| output.is_some()) {
            true => Poll::Ready(futures.iter_mut().map(|(_, output)| output.take().unwrap()).collect()),
            false => Poll::Pending,
        }
    }))
}

#[test]
fn blocking_calls_move_any_length() {
    let target = Target::of(|setup| setup.identify.set_transfer_limit_bytes(Some(64 << 10), 4096));
    let mut disk = BlockingNamespace::connect(&target.address(), options()).unwrap();
    for length in [512, 4096, 65536, 66048, 3 << 20] {
        let data = pattern(length);
        disk.write_at(&data, 1024).unwrap();
        let mut back = vec![0; length];
        disk.read_at(&mut back, 1024).unwrap();
        assert!(back == data && disk.compare_at(&data, 1024).unwrap());
        back[length - 1] ^= 1;
        assert!(!disk.compare_at(&back, 1024).unwrap());
    }
    disk.write_durably_at(&[7; 512], 0).unwrap();
    disk.flush().unwrap();
    disk.verify(0, 1 << 20).unwrap();
    disk.write_zeroes(0, 1 << 20, true).unwrap();
    disk.deallocate(1 << 20, 1 << 20).unwrap();
    assert!(target.state().memory[0][..2 << 20].iter().all(|&byte| byte == 0));
    assert!(disk.compare_and_write_at(&[0; 512], &[9; 512], 512).unwrap());
    assert!(!disk.compare_and_write_at(&[0; 512], &[8; 512], 512).unwrap());
    assert_eq!(target.state().memory[0][512], 9);
}

/// wire §14
#[test]
fn only_durable_writes_have_fua() {
    let target = Target::new();
    let (seen, writes) = channel();
    target.script(move |command| {
        let control = BlockCommand::from_sqe(command.sqe).control;
        if command.qid > 0 && command.sqe.opcode == NvmOpcode::WRITE.raw() {
            seen.send(control.fua()).unwrap();
        }
        Reaction::Execute
    });
    let mut disk = BlockingNamespace::connect(&target.address(), options()).unwrap();
    disk.write_at(&[1; 8192], 0).unwrap();
    disk.write_durably_at(&[2; 8192], 0).unwrap();
    let disk = block_on(AsyncNamespace::connect(&target.address(), options())).unwrap();
    block_on(disk.write_at(vec![3; 8192], 0)).unwrap();
    block_on(disk.write_durably_at(vec![4; 8192], 0)).unwrap();
    assert_eq!(writes.try_iter().collect::<Vec<bool>>(), [false, true, false, true]);
}

#[test]
fn blocking_calls_refuse_what_cannot_be() {
    let target = Target::of(|setup| setup.identify.set_oncs(Oncs::empty()));
    let mut disk = BlockingNamespace::connect(&target.address(), options()).unwrap();
    let unaligned = disk.read_at(&mut [0; 512], 100).unwrap_err();
    assert!(matches!(unaligned, Error::Command(InvalidCommand::Unaligned { .. })), "{unaligned}");
    let beyond = disk.write_at(&[0; 512], 8192 * 512).unwrap_err();
    assert!(matches!(beyond, Error::Command(InvalidCommand::OutOfRange { .. })), "{beyond}");
    assert!(disk.verify(0, 512).unwrap_err().to_string().contains("does not support Verify"));
    assert!(matches!(disk.read_at(&mut [], 0), Err(Error::Command(InvalidCommand::Empty))));
}

#[test]
fn blocking_calls_go_on_after_a_reconnect_and_tell_failures() {
    let target = Target::new();
    let mut disk = BlockingNamespace::connect(&target.address(), options()).unwrap();
    target.drop_connections();
    disk.read_at(&mut [0; 512], 0).unwrap();
    let unflushed = disk.flush().unwrap_err();
    assert!(matches!(unflushed, Error::Failed { failure: Failure::Unflushed, .. }));
    disk.flush().unwrap();
    let mut options = options();
    options.reconnect.give_up_after = Some(Duration::from_millis(20));
    let mut disk = BlockingNamespace::connect(&target.address(), options).unwrap();
    target.set_open(false);
    target.drop_connections();
    let error = disk.read_at(&mut [0; 512], 0).unwrap_err();
    assert!(matches!(error, Error::GaveUp { .. }), "{error}");
    let error = disk.write_at(&[0; 1 << 20], 0).unwrap_err();
    assert!(matches!(error, Error::GaveUp { .. }), "{error}");
}

#[test]
fn namespaces_are_found_without_a_list_or_descriptors() {
    for vs in [Vs::from_bits(0x0001_0000), Vs::V1_3, Vs::V2_0] {
        let target = Target::of(|setup| {
            (setup.vs, setup.namespaces) = (vs, vec![100, 0, 200]);
        });
        let association = target.connect(options());
        let blocks: Vec<_> =
            association.namespaces().iter().map(|info| info.geometry.unwrap().block_count).collect();
        assert_eq!(blocks, [100, 200]);
        let mut address = target.address();
        address.nsid = Some(Nsid::new(3));
        assert_eq!(BlockingNamespace::connect(&address, options()).unwrap().namespace().block_count(), 200);
    }
}

#[test]
fn a_controller_tells_what_it_is_asked() {
    let target = Target::new();
    let association = target.connect(options());
    let identify = association.identify_controller().unwrap();
    assert_eq!((identify.model().to_string(), identify.cntlid().get()), ("nvlane test".into(), 1));
    assert_eq!(association.identify_namespace(Nsid::new(1)).unwrap().nsze.get(), 8192);
    assert_eq!(association.active_namespaces(Nsid::NONE).unwrap(), [Nsid::new(1)]);
    assert_eq!(association.smart_log(Nsid::ALL).unwrap().temperature.get(), 300);
    assert!(association.error_log(64).unwrap().is_empty());
    target.state().features.insert(Fid::TEMPERATURE_THRESHOLD.raw(), 0x400);
    assert_eq!(association.feature(Fid::TEMPERATURE_THRESHOLD, Nsid::NONE).unwrap(), 0x400);
    assert_eq!(association.property(Property::VS).unwrap(), u64::from(Vs::V1_4.bits()));
    let failed = association.property(Property::CRTO).unwrap_err();
    // Without DNR, which is how nvme-cli recognizes an unsupported property.
    assert!(!failed.is_permanent() && failed.to_string().contains("invalid field"), "{failed}");
}

#[test]
fn futures_run_under_any_executor() {
    let target = Target::new();
    let disk = block_on(AsyncNamespace::connect(&target.address(), options().with_lanes(2))).unwrap();
    block_on(async {
        let data = pattern(8 << 10);
        disk.write_at(data.clone(), 0).await.unwrap();
        assert_eq!(disk.read_at(vec![0; 8 << 10], 0).await.unwrap(), data);
        assert!(disk.compare_at(data.clone(), 0).await.unwrap().0);
        assert!(!disk.compare_at(data, 512).await.unwrap().0);
        disk.write_durably_at(vec![1; 512], 0).await.unwrap();
        disk.flush().await.unwrap();
        disk.write_zeroes(0, 4096, false).await.unwrap();
        disk.deallocate(&[BlockRange { lba: 8, blocks: 8 }]).await.unwrap();
        assert!(disk.compare_and_write_at(vec![0; 512], vec![5; 512], 0).await.unwrap());
        assert!(!disk.compare_and_write_at(vec![0; 512], vec![6; 512], 0).await.unwrap());
        let failed = disk.read_at(vec![0; 512], 1).await.unwrap_err();
        assert!(matches!(failed.error, Error::Command(_)) && failed.buffer.is_some());
    });
    assert_eq!(target.state().memory[0][0], 5);
}

#[test]
fn many_futures_run_at_once_and_more_than_the_lanes_take() {
    let target = Target::new();
    let options = options().with_lanes(2).with_depth(8);
    let disk = block_on(AsyncNamespace::<Vec<u8>>::connect(&target.address(), options)).unwrap();
    let writes = (0..200u64).map(|block| {
        let disk = disk.clone();
        let write = async move { disk.write_at(vec![block as u8; 512], block * 512).await.is_ok() };
        Box::pin(write) as Pin<Box<dyn Future<Output = bool>>>
    });
    assert!(join(writes.collect()).into_iter().all(|is_ok| is_ok));
    assert!((0..200).all(|block| target.state().memory[0][block * 512] == block as u8));
    let threads: Vec<_> = (0..3u64)
        .map(|thread| {
            let disk = disk.clone();
            std::thread::spawn(move || {
                for block in 0..30 {
                    let data = block_on(disk.read_at(vec![0; 512], (thread * 30 + block) * 512)).unwrap();
                    assert_eq!(data[0], (thread * 30 + block) as u8);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_long_transfer_is_cut_for_the_controller() {
    let target = Target::of(|setup| setup.identify.set_transfer_limit_bytes(Some(16 << 10), 4096));
    let disk = block_on(AsyncNamespace::connect(&target.address(), options())).unwrap();
    let data = pattern(100 << 10);
    block_on(disk.write_at(data.clone(), 512)).unwrap();
    assert!(block_on(disk.read_at(vec![0; 100 << 10], 512)).unwrap() == data);
}

#[test]
fn a_reconnect_is_told_to_flushes_once_for_all_lanes() {
    let target = Target::new();
    let options = options().with_lanes(3);
    let disk = block_on(AsyncNamespace::<Vec<u8>>::connect(&target.address(), options)).unwrap();
    block_on(disk.flush()).unwrap();
    target.drop_connections();
    wait_for("the association comes back", || {
        block_on(disk.read_at(vec![0; 512], 0)).unwrap();
        disk.association().controller().cntlid.get() == 2
    });
    let results: Vec<_> = (0..6).map(|_| block_on(disk.flush())).collect();
    assert!(matches!(results[0], Err(Error::Failed { failure: Failure::Unflushed, .. })));
    assert!(results[1..].iter().all(Result::is_ok));
}

/// A buffer that blocks its lane's thread when it is sent, until the other end of the channel is dropped.
#[derive(Debug)]
struct GatedBuffer {
    bytes: Vec<u8>,
    gate: Option<(Sender<()>, Receiver<()>)>,
}

impl GatedBuffer {
    fn open() -> Self {
        Self { bytes: vec![0; 512], gate: None }
    }

    /// Returns the buffer, a channel that reports that the thread is blocked, and the sender whose drop releases it.
    fn closed() -> (Self, Receiver<()>, Sender<()>) {
        let (entered_sender, entered) = channel();
        let (release, released) = channel();
        (Self { bytes: vec![0; 512], gate: Some((entered_sender, released)) }, entered, release)
    }
}

impl DataBuffer for GatedBuffer {
    fn length(&self) -> usize {
        self.bytes.len()
    }

    fn part(&self, offset: usize) -> &[u8] {
        if let Some((entered, released)) = &self.gate {
            let _ = entered.send(());
            let _ = released.recv();
        }
        &self.bytes[offset..]
    }

    fn part_mut(&mut self, offset: usize) -> &mut [u8] {
        &mut self.bytes[offset..]
    }
}

#[test]
fn no_flush_succeeds_until_a_future_has_told_of_the_loss() {
    let target = Target::new();
    let disk = block_on(AsyncNamespace::<GatedBuffer>::connect(&target.address(), options())).unwrap();
    target.drop_connections();
    wait_for("the association comes back", || {
        block_on(disk.read_at(GatedBuffer::open(), 0)).unwrap();
        disk.association().controller().cntlid.get() == 2
    });
    let is_told =
        |result: Result<(), Error>| matches!(result, Err(Error::Failed { failure: Failure::Unflushed, .. }));
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    // The lane's thread is blocked, so it completes the first flush only after the second was polled.
    let (buffer, entered, release) = GatedBuffer::closed();
    let mut write = Box::pin(disk.write_at(buffer, 0));
    assert!(write.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    entered.recv().unwrap();
    let mut first = Box::pin(disk.flush());
    assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(release);
    // The lane completes them in order.
    assert!(is_told(block_on(disk.flush())), "the first has ended, and its caller does not know yet");
    assert!(is_told(block_on(first)));
    block_on(disk.flush()).unwrap();
    block_on(write).unwrap();
}

/// Holds commands of lanes from now on, and reports each arrival.
fn hold_commands(target: &Target) -> Receiver<()> {
    let (sender, arrived) = channel();
    target.script(move |seen| {
        if seen.qid == 0 {
            return Reaction::Execute;
        }
        let _ = sender.send(());
        Reaction::Hold
    });
    arrived
}

#[test]
fn a_dropped_future_aborts_its_command() {
    let target = Target::new();
    let disk = block_on(AsyncNamespace::<Vec<u8>>::connect(&target.address(), options())).unwrap();
    let arrived = hold_commands(&target);
    let mut read = Box::pin(disk.read_at(vec![0; 512], 0));
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    assert!(read.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    arrived.recv().unwrap();
    drop(read);
    wait_for("an Abort is sent", || target.state().admin_seen.contains(&AdminOpcode::ABORT.raw()));
    target.obey();
    assert!(block_on(disk.read_at(vec![0; 512], 0)).is_ok(), "the lane works on");
}

#[test]
fn futures_end_when_the_target_is_gone() {
    let target = Target::new();
    let mut options = options();
    options.reconnect.give_up_after = Some(Duration::from_millis(20));
    let disk = block_on(AsyncNamespace::<Vec<u8>>::connect(&target.address(), options)).unwrap();
    let arrived = hold_commands(&target);
    target.set_open(false);
    let dropper = std::thread::spawn({
        let address = target.address;
        move || {
            arrived.recv().unwrap();
            target.drop_connections();
            (address, target)
        }
    });
    let failed = block_on(disk.read_at(vec![3; 512], 0)).unwrap_err();
    assert!(matches!(failed.error, Error::GaveUp { .. }), "{}", failed.error);
    assert_eq!(failed.buffer.unwrap(), vec![3; 512]);
    assert!(block_on(disk.write_at(vec![3; 512], 0)).is_err());
    drop(dropper.join().unwrap());
}

#[test]
fn a_lane_cancels_what_waits_and_aborts_what_is_out() {
    let target = Target::new();
    let association = target.connect(options());
    let mut lane: Lane = association.lane().unwrap();
    let namespace = association.addressed_namespace().unwrap();
    target.script(|seen| if seen.qid > 0 { Reaction::Hold } else { Reaction::Execute });
    lane.submit(namespace.read(0, 1).unwrap(), Some(vec![4; 512]), 1).unwrap();
    lane.ring();
    let mut completions = Vec::new();
    lane.wait(&mut completions, Duration::from_millis(10));
    assert!(!lane.cancel(7), "no such command");
    assert!(lane.cancel(1));
    while lane.outstanding() > 0 {
        assert!(lane.wait(&mut completions, 60 * SECOND) > 0, "the cancelled read does not end");
    }
    assert_eq!(completions[0].result, Err(Failure::Cancelled));
    assert_eq!(completions.remove(0).buffer.unwrap().len(), 512);
    // While the association is down no command is on the wire, so it ends at once.
    target.set_open(false);
    target.drop_connections();
    wait_for("the loss is seen", || {
        lane.poll(&mut Vec::new());
        !lane.is_live()
    });
    lane.submit(namespace.read(0, 1).unwrap(), Some(vec![4; 512]), 2).unwrap();
    assert!(lane.cancel(2));
    assert_eq!(lane.poll(&mut completions), 1);
    assert_eq!(completions[0].result, Err(Failure::Cancelled));
    // Neither half of a fused pair is sent alone.
    for half in [3, 4] {
        let [first, second] = [
            Sqe::compare(namespace.nsid(), 0, 1).with_fuse(Fuse::FIRST),
            Sqe::write(namespace.nsid(), 0, 1).with_fuse(Fuse::SECOND),
        ];
        let pair = [first, second].map(|sqe| Command::raw_to_controller(sqe, 512));
        lane.submit_pair(pair, [vec![0; 512], vec![1; 512]], [3, 4]).unwrap();
        assert!(lane.cancel(half));
        completions.clear();
        assert_eq!(lane.poll(&mut completions), 2);
        assert!(completions.iter().all(|end| end.result == Err(Failure::Cancelled)), "{completions:?}");
        assert_eq!(lane.outstanding(), 0);
    }
}

/// hostile H13
#[test]
fn the_buffer_of_a_cancelled_command_stays_until_the_controller_has_answered() {
    let target = Target::of(|setup| setup.abort_works = false);
    let association = target.connect(options());
    let mut lane: Lane = association.lane().unwrap();
    let namespace = association.addressed_namespace().unwrap();
    target.state().memory[0][..512].fill(0x77);
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    target.script(move |seen| {
        if seen.qid > 0 && seen.sqe.opcode == NvmOpcode::READ.raw() {
            // Answers late, aborted or not.
            let _ = receiver.recv();
        }
        Reaction::Execute
    });
    lane.submit(namespace.read(0, 1).unwrap(), Some(vec![0; 512]), 1).unwrap();
    lane.ring();
    lane.cancel(1);
    let mut completions = Vec::new();
    assert_eq!(lane.wait(&mut completions, Duration::from_millis(30)), 0, "still the controller's");
    sender.send(()).unwrap();
    while lane.outstanding() > 0 {
        assert!(lane.wait(&mut completions, 60 * SECOND) > 0, "the read that was answered does not end");
    }
    assert_eq!(completions[0].result, Ok(0), "it was not stopped");
    assert_eq!(completions.remove(0).buffer.unwrap(), vec![0x77; 512]);
}

fn discovery_target(entries: Vec<DiscoveryEntry>) -> Target {
    let target = Target::of(|setup| setup.identify.lpa = Lpa::EXTENDED_DATA);
    target.state().entries = entries;
    target
}

fn entry(port: u16, name: &str) -> DiscoveryEntry {
    let nqn: Nqn = format!("nqn.2016-06.io.nvlane:{name}").parse().unwrap();
    DiscoveryEntry::tcp([127, 0, 0, 1].into(), port, &nqn)
}

#[test]
fn a_discovery_log_of_any_length_is_read() {
    for count in [0, 1, 40] {
        let target = discovery_target((0..count).map(|index| entry(4420 + index, "disk")).collect());
        let found = discovery::discover(&Address::from(target.address), options()).unwrap();
        let ports: Vec<_> = found.entries.iter().map(|entry| entry.port().unwrap()).collect();
        assert_eq!(ports, (4420..4420 + count).collect::<Vec<_>>());
    }
}

#[test]
fn a_persistent_connection_tells_of_changes() {
    let target = discovery_target(vec![entry(4420, "one")]);
    let discovery = Discovery::connect(&Address::from(target.address), options()).unwrap();
    assert_eq!(discovery.log().unwrap().entries.len(), 1);
    assert!(!discovery.wait(Duration::from_millis(5)).unwrap());
    target.state().entries.push(entry(4421, "two"));
    target.state().generation += 1;
    target.raise(AsyncEvent::DISCOVERY_CHANGE);
    assert!(discovery.wait(60 * SECOND).unwrap());
    assert_eq!(discovery.log().unwrap().entries.len(), 2);
    target.drop_connections();
    assert!(discovery.wait(60 * SECOND).unwrap(), "it may have changed while we were away");
}

/// hostile H16
#[test]
fn referrals_are_followed_once_each() {
    let (first, second) = (discovery_target(vec![]), discovery_target(vec![]));
    let referral = |to: &Target| {
        let mut entry = DiscoveryEntry::tcp(to.address.ip(), to.address.port(), &Nqn::discovery());
        entry.subtype = SubsystemType::REFERRAL;
        entry
    };
    let nowhere = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut entry = entry(listener.local_addr().unwrap().port(), "gone");
        entry.subtype = SubsystemType::REFERRAL;
        entry
    };
    // Both services refer to both, including themselves.
    first.state().entries = vec![referral(&first), referral(&second), nowhere, entry(4420, "one")];
    second.state().entries = vec![referral(&first), referral(&second), entry(4420, "two")];
    let survey = discovery::survey(&Address::from(first.address), &options()).unwrap();
    assert_eq!((survey.services.len(), survey.failures.len(), survey.is_cut), (2, 1, false));
}

/// hostile H16
#[test]
fn referrals_are_followed_eight_deep_and_to_64_services() {
    let targets: Vec<Target> = (0..10).map(|_| discovery_target(vec![])).collect();
    let referral = |address: std::net::SocketAddr| {
        let mut entry = DiscoveryEntry::tcp(address.ip(), address.port(), &Nqn::discovery());
        entry.subtype = SubsystemType::REFERRAL;
        entry
    };
    for pair in targets.windows(2) {
        pair[0].state().entries = vec![referral(pair[1].address)];
    }
    let survey = |at: usize| discovery::survey(&Address::from(targets[at].address), &options()).unwrap();
    for (first, is_cut) in [(0, true), (1, false)] {
        let survey = survey(first);
        assert_eq!((survey.services.len(), survey.failures.len(), survey.is_cut), (9, 0, is_cut));
    }
    // Services that are gone count as well.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for (count, is_cut) in [(63, false), (64, true)] {
        let gone = (1..=count).map(|at| referral(([127, 0, 99, at], port).into()));
        targets[9].state().entries = gone.collect();
        let survey = survey(9);
        assert_eq!((survey.services.len(), survey.failures.len(), survey.is_cut), (1, 63, is_cut));
    }
}
