//! Lanes against a target in this process.

use std::time::{Duration, Instant};

use crate::target::{Reaction, Target, finish, options};
use nvlane_host::{
    BlockRange, Completion, DoorbellPolicy, EventDescriptor, Failure, HandedLanes, Lane, LaneClass,
    Namespace, Options, QueueMap, RefusedReason, Vectored,
};
use wire::pdu::{DataAlignment, Digests};
use wire::status::Status;

const SECOND: Duration = Duration::from_secs(1);

/// Waits for all outstanding commands.
fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|index| (seed * 31 + index * 7 + index / 251) as u8).collect()
}

fn lane(target: &Target, options: Options) -> (Lane, Namespace) {
    let association = target.connect(options);
    (association.lane().unwrap(), association.namespace(wire::id::Nsid::new(1)).unwrap())
}

#[test]
fn what_is_written_is_read_again() {
    let target = Target::new();
    let (mut lane, namespace) = lane(&target, options());
    assert_eq!((namespace.lba_bytes(), namespace.block_count()), (512, 8192));
    for (user, blocks) in [(1, 1), (2, 8), (3, 17), (4, 128), (5, 2048)] {
        let data = pattern(user as usize, blocks as usize * 512);
        lane.submit(namespace.write(100, blocks).unwrap(), Some(data.clone()), user).unwrap();
        assert!(finish(&mut lane)[0].is_ok());
        lane.submit(namespace.read(100, blocks).unwrap(), Some(vec![0; data.len()]), user).unwrap();
        let done = finish(&mut lane).remove(0);
        assert_eq!((done.user, done.result, done.received), (user, Ok(0), blocks * 512));
        assert!(done.buffer.unwrap() == data, "{blocks} blocks");
    }
    lane.submit(namespace.flush(), None, 9).unwrap();
    assert!(finish(&mut lane)[0].is_ok());
}

#[test]
fn every_combination_of_digests_alignment_and_splits_carries_the_data() {
    for digests in 0..4 {
        for (alignment, chunk, in_capsule, in_place) in
            [(0, usize::MAX, 8192, 64 << 10), (3, 1000, 0, 4096), (31, 7, 1024, 1), (1, 65536, 512, 512)]
        {
            let target = Target::of(|setup| {
                setup.chunk_bytes = chunk;
                setup.limits.alignment = DataAlignment::from_raw(alignment).unwrap();
                setup.limits.c2h_data_bytes = 6000;
                setup.limits.window_bytes = 5000;
                setup.identify.set_in_capsule_bytes(in_capsule);
            });
            let options = options().with_only_digests(Digests::from_bits_retain(digests)).tuned(|tuning| {
                tuning.alignment = DataAlignment::from_raw(alignment).unwrap();
                tuning.in_place_bytes = in_place;
            });
            let (mut lane, namespace) = lane(&target, options);
            let data = pattern(in_capsule as usize, 24 * 512);
            for start in 0..3 {
                lane.submit(namespace.write(start * 24, 24).unwrap(), Some(data.clone()), start).unwrap();
            }
            assert!(finish(&mut lane).iter().all(Completion::is_ok));
            for start in 0..3 {
                lane.submit(namespace.read(start * 24, 24).unwrap(), Some(vec![0; data.len()]), start)
                    .unwrap();
            }
            for done in finish(&mut lane) {
                assert!(done.is_ok() && done.buffer.unwrap() == data, "{digests} {alignment} {chunk}");
            }
        }
    }
}

#[test]
fn one_byte_at_a_time_is_enough() {
    for flow_control in [false, true] {
        let target = Target::of(|setup| setup.chunk_bytes = 1);
        let (mut lane, namespace) =
            lane(&target, options().with_digests().tuned(|tuning| tuning.flow_control = flow_control));
        let data = pattern(1, 2048);
        lane.submit(namespace.write(5, 4).unwrap(), Some(data.clone()), 1).unwrap();
        assert!(finish(&mut lane)[0].is_ok());
        lane.submit(namespace.read(5, 4).unwrap(), Some(vec![0; 2048]), 2).unwrap();
        lane.submit(namespace.flush(), None, 3).unwrap();
        let mut done = finish(&mut lane);
        assert!(done[1].is_ok() && done.remove(0).buffer.unwrap() == data);
    }
}

#[test]
fn handles_go_where_they_are_needed() {
    fn is_send<T: Send>() {}
    fn is_shared<T: Send + Sync + Clone>() {}
    is_send::<Lane>();
    is_send::<nvlane_host::LaneSet>();
    is_send::<nvlane_host::BlockingNamespace>();
    is_shared::<nvlane_host::Association>();
    is_shared::<nvlane_host::AsyncNamespace>();
    is_shared::<Namespace>();
    is_shared::<nvlane_host::Error>();
}

#[test]
fn large_reads_are_received_in_place() {
    let target = Target::new();
    let (mut lane, namespace) = lane(&target, options());
    target.state().memory[0].copy_from_slice(&pattern(3, 8192 * 512));
    for user in 0..4 {
        lane.submit(namespace.read(user * 2048, 2048).unwrap(), Some(vec![0; 1 << 20]), user).unwrap();
    }
    for (index, done) in finish(&mut lane).into_iter().enumerate() {
        assert!(done.buffer.unwrap() == target.state().memory[0][index << 20..(index + 1) << 20]);
    }
    let counters = lane.counters();
    // Half of each may have passed through the staging buffer with its header.
    assert!(counters.in_place_bytes >= 2 << 20, "{counters:?}");
}

#[test]
fn all_commands_on_blocks_do_what_they_say() {
    let target = Target::new();
    let (mut lane, namespace) = lane(&target, options());
    let data = pattern(1, 4096);
    let mut run = |command, buffer: Option<Vec<u8>>| {
        lane.submit(command, buffer, 0).unwrap();
        finish(&mut lane).remove(0).result
    };
    assert_eq!(run(namespace.write(0, 8).unwrap().fua(), Some(data.clone())), Ok(0));
    assert_eq!(run(namespace.compare(0, 8).unwrap(), Some(data.clone())), Ok(0));
    let differs = Failure::Status(Status::COMPARE_FAILURE);
    assert_eq!(run(namespace.compare(1, 8).unwrap(), Some(data.clone())), Err(differs));
    assert_eq!(run(namespace.verify(0, 8).unwrap(), None), Ok(0));
    let sources = [BlockRange { lba: 0, blocks: 2 }, BlockRange { lba: 6, blocks: 2 }];
    assert_eq!(run(namespace.copy(100, &sources).unwrap(), None), Ok(0));
    assert_eq!(run(namespace.write_zeroes(0, 2, true).unwrap(), None), Ok(0));
    assert_eq!(run(namespace.deallocate(&[BlockRange { lba: 2, blocks: 1 }]).unwrap(), None), Ok(0));
    let many: Vec<_> = (0..256).map(|index| BlockRange { lba: 1000 + index * 2, blocks: 1 }).collect();
    assert_eq!(run(namespace.deallocate(&many).unwrap(), None), Ok(0));
    let memory = target.state().memory[0].clone();
    assert!(memory[..3 * 512].iter().all(|&byte| byte == 0));
    assert_eq!(memory[3 * 512..8 * 512], data[3 * 512..]);
    assert_eq!(memory[100 * 512..102 * 512], data[..1024]);
    assert_eq!(memory[102 * 512..104 * 512], data[6 * 512..]);
}

#[test]
fn compare_and_write_is_one_pair() {
    let target = Target::new();
    let (mut lane, namespace) = lane(&target, options());
    let (old, new) = (vec![0; 512], pattern(5, 512));
    let pair = || namespace.compare_and_write(7, 1).unwrap();
    lane.submit_pair(pair(), [old.clone(), new.clone()], [1, 2]).unwrap();
    assert!(finish(&mut lane).iter().all(Completion::is_ok));
    assert_eq!(target.state().memory[0][7 * 512..8 * 512], new);
    lane.submit_pair(pair(), [old.clone(), old.clone()], [1, 2]).unwrap();
    let results: Vec<_> = finish(&mut lane).into_iter().map(|done| done.result.unwrap_err()).collect();
    assert_eq!(results, [Status::COMPARE_FAILURE, Status::ABORTED_FAILED_FUSED].map(Failure::Status));
    let (reason, _) = lane.submit_pair(pair(), [old.clone(), vec![0; 5]], [1, 2]).unwrap_err();
    assert_eq!(reason, RefusedReason::Length { expected: 512, given: 5 });
}

#[test]
fn pairs_wait_until_there_is_room_for_both() {
    let target = Target::of(|setup| setup.cap = setup.cap.with_queue_entries_max(4));
    let (mut lane, namespace) = lane(&target, options().with_depth(40));
    for user in 0..10 {
        lane.submit(namespace.read(0, 1).unwrap(), Some(vec![0; 512]), 100 + user).unwrap();
        let pair = namespace.compare_and_write(user, 1).unwrap();
        lane.submit_pair(pair, [vec![0; 512], vec![1; 512]], [2 * user, 2 * user + 1]).unwrap();
    }
    assert_eq!(finish(&mut lane).iter().filter(|done| done.is_ok()).count(), 30);
    let target = Target::of(|setup| setup.cap = setup.cap.with_queue_entries_max(2));
    let association = target.connect(options());
    let mut single = association.lane::<Vec<u8>>().unwrap();
    let pair = association.addressed_namespace().unwrap().compare_and_write(0, 1).unwrap();
    let (reason, _) = single.submit_pair(pair, [vec![0; 512], vec![1; 512]], [1, 2]).unwrap_err();
    assert_eq!(reason, RefusedReason::Full, "it could never end");
}

#[test]
fn a_list_of_buffers_is_one_transfer() {
    let target = Target::new();
    let association = target.connect(options());
    let mut lane = association.lane::<Vectored<Vec<u8>>>().unwrap();
    let namespace = association.addressed_namespace().unwrap();
    let data = pattern(2, 8192);
    let cut = |data: &[u8]| {
        Vectored::new(vec![data[..100].to_vec(), data[100..5000].to_vec(), data[5000..].to_vec()])
    };
    lane.submit(namespace.write(0, 16).unwrap(), Some(cut(&data)), 0).unwrap();
    assert!(finish(&mut lane)[0].is_ok());
    lane.submit(namespace.read(0, 16).unwrap(), Some(cut(&vec![0; 8192])), 0).unwrap();
    assert_eq!(finish(&mut lane).remove(0).buffer.unwrap().into_pieces().concat(), data);
}

#[test]
fn a_lane_takes_no_more_than_its_depth() {
    let target = Target::new();
    let (mut lane, namespace) = lane(&target, options().with_depth(4));
    target.script(|_| Reaction::Hold);
    for user in 0..4 {
        lane.submit(namespace.read(0, 1).unwrap(), Some(vec![0; 512]), user).unwrap();
    }
    let refused = lane.submit(namespace.read(0, 1).unwrap(), Some(vec![7; 512]), 4).unwrap_err();
    assert_eq!((refused.reason, refused.buffer.unwrap()[0]), (RefusedReason::Full, 7));
    let refused = lane.submit(namespace.read(0, 2).unwrap(), Some(vec![0; 512]), 4).unwrap_err();
    assert_eq!(refused.reason, RefusedReason::Full);
    assert_eq!(lane.wait(&mut Vec::new(), Duration::from_millis(5)), 0);
}

#[test]
fn a_controller_that_takes_fewer_commands_makes_them_wait() {
    let target = Target::of(|setup| setup.cap = setup.cap.with_queue_entries_max(5));
    let (mut lane, namespace) = lane(&target, options().with_depth(64));
    assert_eq!(lane.depth(), 4);
    for user in 0..64 {
        lane.submit(namespace.read(user, 1).unwrap(), Some(vec![0; 512]), user).unwrap();
    }
    assert_eq!(finish(&mut lane).iter().filter(|done| done.is_ok()).count(), 64);
}

#[test]
fn a_wrong_buffer_is_refused_before_anything_is_sent() {
    let target = Target::new();
    let (mut lane, namespace) = lane(&target, options());
    for (command, buffer, expected, given) in [
        (namespace.read(0, 1).unwrap(), Some(vec![0; 511]), 512, 511),
        (namespace.read(0, 1).unwrap(), None, 512, 0),
        (namespace.flush(), Some(vec![0; 512]), 0, 512),
    ] {
        let refused = lane.submit(command, buffer, 0).unwrap_err();
        assert_eq!(refused.reason, RefusedReason::Length { expected, given });
    }
    assert_eq!(lane.outstanding(), 0);
}

#[test]
fn several_lanes_are_waited_for_together() {
    for lanes in [3, 12] {
        let target = Target::of(|setup| setup.queue_pairs = 12);
        let association = target.connect(options().with_lanes(lanes));
        let namespace = association.addressed_namespace().unwrap();
        let mut set = association.lanes::<Vec<u8>>().unwrap();
        let mut counts = vec![0; usize::from(lanes)];
        for round in 0..20 {
            for (index, lane) in set.lanes_mut().iter_mut().enumerate() {
                let lba = index as u64 * 20 + round;
                lane.submit(namespace.write(lba, 1).unwrap(), Some(vec![index as u8; 512]), round).unwrap();
            }
            if round % 5 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            while set.outstanding() > usize::from(lanes) / 2 {
                let seen = set.wait_with(
                    &mut |index, done| {
                        assert!(done.is_ok());
                        counts[index] += 1;
                    },
                    SECOND,
                );
                assert!(seen > 0);
            }
        }
        while set.outstanding() > 0 {
            let ended = set.wait_with(&mut |index, _| counts[index] += 1, 60 * SECOND);
            assert!(ended > 0, "none of {} commands ends", set.outstanding());
        }
        assert_eq!(counts, vec![20; usize::from(lanes)]);
        let extra = association.lane::<Vec<u8>>();
        assert!(matches!(extra, Err(nvlane_host::Error::TooFewQueues { .. })), "all queues are in use");
        drop(set);
        assert!(association.lane::<Vec<u8>>().is_ok(), "numbers are used again");
    }
}

#[test]
fn an_immediate_doorbell_sends_each_command_at_once() {
    let target = Target::new();
    let (mut lane, namespace) =
        lane(&target, options().tuned(|tuning| tuning.doorbell = DoorbellPolicy::Immediate));
    let before = lane.counters().sends;
    for user in 0..4 {
        lane.submit(namespace.read(0, 1).unwrap(), Some(vec![0; 512]), user).unwrap();
    }
    assert_eq!(lane.counters().sends - before, 4);
    finish(&mut lane);
    lane.set_doorbell(DoorbellPolicy::Turn);
    let before = lane.counters().sends;
    for user in 0..4 {
        lane.submit(namespace.read(0, 1).unwrap(), Some(vec![0; 512]), user).unwrap();
    }
    finish(&mut lane);
    assert_eq!(lane.counters().sends - before, 1, "one caravan");
}

#[test]
fn what_finds_its_lane_idle_leaves_at_once_if_wished() {
    let target = Target::new();
    let (mut lane, namespace) = lane(&target, options().tuned(|tuning| tuning.inline_send = true));
    let before = lane.counters().sends;
    for (user, sends) in [(0, 1), (1, 1), (2, 1)] {
        lane.submit(namespace.read(0, 1).unwrap(), Some(vec![0; 512]), user).unwrap();
        assert_eq!(lane.counters().sends - before, sends, "after {user}");
    }
    assert_eq!(finish(&mut lane).len(), 3);
    assert_eq!(lane.counters().sends - before, 2, "the rest in one caravan");
}

#[test]
fn a_poll_ends_however_much_there_is_to_write() {
    // Limit of one turn: the rest of one caravan may follow, and received completions may have released more.
    const POLL_BYTES_MAX: u64 = 2 * ((512 << 10) + (64 << 10));
    let target = Target::new();
    let (mut lane, namespace) = lane(&target, options());
    for user in 0..4 {
        lane.submit(namespace.write(user * 2048, 2048).unwrap(), Some(vec![7; 1 << 20]), user).unwrap();
    }
    let (mut completions, start) = (Vec::new(), Instant::now());
    while completions.len() < 4 {
        let before = lane.counters().sent_bytes;
        lane.poll(&mut completions);
        let sent = lane.counters().sent_bytes - before;
        assert!(sent <= POLL_BYTES_MAX, "{sent} bytes in one poll");
        assert!(start.elapsed() < 30 * SECOND);
    }
    assert!(completions.iter().all(Completion::is_ok) && lane.counters().sent_bytes > 4 << 20);
}

#[test]
fn commands_take_lanes_of_their_class() {
    use LaneClass::{Default as Any, Poll, Read};
    for (queues, used) in [
        (QueueMap { default: 1, read: 2, poll: 1 }, vec![(Any, 20), (Read, 10), (Read, 10), (Poll, 20)]),
        (QueueMap { default: 1, read: 0, poll: 0 }, vec![(Any, 60)]),
        (
            QueueMap { default: 1, read: 4, poll: 4 },
            [vec![(Any, 20)], vec![(Read, 5); 4], vec![(Poll, 5); 4]].concat(),
        ),
    ] {
        let target = Target::of(|setup| setup.queue_pairs = 12);
        let association = target.connect(options().with_queues(queues));
        assert_eq!(association.queues(), queues);
        let namespace = association.addressed_namespace().unwrap();
        let mut set = association.lanes::<Vec<u8>>().unwrap();
        for round in 0..10 {
            let (read, write) = (namespace.read(round, 1).unwrap(), namespace.write(round, 1).unwrap());
            let commands = [(read.clone(), true), (write.clone(), true), (read.clone(), true)];
            let polled = [(read.polled(), true), (write.polled(), true), (namespace.flush(), false)];
            for (command, has_data) in commands.into_iter().chain(polled) {
                let lane = set.next_lane(&command);
                set.submit(lane, command, has_data.then(|| vec![1; 512]), round).unwrap();
            }
            while set.outstanding() > 0 {
                assert!(set.wait_with(&mut |_, done| assert!(done.is_ok()), SECOND) > 0);
            }
        }
        let counted: Vec<_> =
            set.lanes().iter().map(|lane| (lane.class(), lane.counters().commands)).collect();
        assert_eq!(counted, used, "{queues}");
        let numbers: Vec<_> = set.lanes().iter().map(Lane::number).collect();
        assert_eq!(numbers, (1..=queues.count()).collect::<Vec<_>>());
        if queues.poll > 0 {
            let one_more = association.lane_of::<Vec<u8>>(Poll);
            assert!(matches!(one_more, Err(nvlane_host::Error::NoLane { class: Poll, .. })));
        }
    }
}

#[test]
fn a_call_takes_the_lane_of_its_class() {
    let target = Target::of(|setup| setup.queue_pairs = 3);
    let association = target.connect(options().with_queues("default=1,read=1,poll=1".parse().unwrap()));
    let namespace = association.addressed_namespace().unwrap();
    let mut disk = nvlane_host::BlockingNamespace::new(&association, namespace).unwrap();
    let mut block = vec![7; 512];
    disk.write_at(&block, 512).unwrap();
    disk.read_at(&mut block, 512).unwrap();
    assert_eq!((block[0], disk.lane_mut().counters().commands), (7, 1), "the read went elsewhere");
    disk.set_polled(true);
    disk.write_at(&block, 0).unwrap();
    disk.set_polled(false);
    disk.flush().unwrap();
    assert_eq!(disk.lane_mut().counters().commands, 2, "what was polled for went elsewhere");
}

#[test]
fn lanes_are_handed_over_to_threads_of_their_own() {
    let target = Target::of(|setup| setup.queue_pairs = 2);
    let association = target.connect(options().with_lanes(2).with_depth(4));
    let namespace = association.addressed_namespace().unwrap();
    let lanes = association.lanes::<Vec<u8>>().unwrap().into_lanes();
    let mut handed = HandedLanes::new(lanes).unwrap();
    for user in 0..40 {
        let write = namespace.write(user, 1).unwrap();
        handed.submit(user as usize % 2, write, Some(vec![user as u8; 512]), user).unwrap();
    }
    let refused = handed.submit(0, namespace.flush(), Some(vec![0; 512]), 40).unwrap_err();
    assert_eq!(refused.reason, RefusedReason::Length { expected: 0, given: 512 });
    let mut count = 0;
    while handed.outstanding() > 0 {
        let mut each = |lane: usize, done: Completion<Vec<u8>>| {
            assert!(done.is_ok() && lane == done.user as usize % 2);
            count += 1;
        };
        assert!(handed.wait_with(&mut each, SECOND) > 0);
    }
    assert_eq!((count, handed.wait_with(&mut |_, _| {}, SECOND)), (40, 0));
    let counted: Vec<_> = handed.into_lanes().iter().map(|lane| lane.counters().completions).collect();
    assert_eq!(counted, [20, 20]);
}

/// Waits until a descriptor is readable, at most this time.
fn is_readable(descriptor: &EventDescriptor, time: Duration) -> bool {
    let mut polled = [rustix::event::PollFd::new(descriptor, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&time.try_into().unwrap())).unwrap() > 0
}

/// Polls a lane whenever its descriptor is readable, until nothing is outstanding and the descriptor stays quiet.
fn serve(lane: &mut Lane, descriptor: &mut EventDescriptor) -> (Vec<Completion<Vec<u8>>>, u32) {
    let (mut done, mut polls, start) = (Vec::new(), 0, Instant::now());
    loop {
        descriptor.arm(lane);
        let patience = if lane.outstanding() > 0 { 10 * SECOND } else { Duration::from_millis(20) };
        if !is_readable(descriptor, patience) {
            assert_eq!(lane.outstanding(), 0, "the descriptor reports nothing");
            return (done, polls);
        }
        lane.poll(&mut done);
        polls += 1;
        assert!(start.elapsed() < 30 * SECOND, "the descriptor stays readable");
    }
}

#[test]
fn an_event_descriptor_says_when_to_poll() {
    let target = Target::new();
    let (mut lane, namespace) = lane(&target, options().with_depth(64));
    let mut descriptor = EventDescriptor::new(&mut lane).unwrap();
    assert!(serve(&mut lane, &mut descriptor).0.is_empty());
    for is_rung in [true, false] {
        for user in 0..64 {
            let data = pattern(user as usize, 8 * 512);
            lane.submit(namespace.write(user * 8, 8).unwrap(), Some(data), user).unwrap();
        }
        if is_rung {
            lane.ring();
        }
        let (done, polls) = serve(&mut lane, &mut descriptor);
        assert!(done.len() == 64 && done.iter().all(Completion::is_ok));
        assert!(polls < 1000, "{polls} polls for 64 commands");
    }
    // The lane reconnects, by messages of its association and a new socket.
    target.drop_connections();
    lane.submit(namespace.read(8, 8).unwrap(), Some(vec![0; 8 * 512]), 7).unwrap();
    let (done, _) = serve(&mut lane, &mut descriptor);
    assert!(done[0].is_ok() && done[0].buffer.as_ref().unwrap() == &pattern(1, 8 * 512));
}

#[test]
fn an_event_descriptor_reports_the_timeout_of_a_command() {
    let target = Target::new();
    let brief = options().with_command_timeout(Duration::from_millis(50));
    let (mut lane, namespace) = lane(&target, brief);
    let mut descriptor = EventDescriptor::new(&mut lane).unwrap();
    target.script(|seen| if seen.qid > 0 { Reaction::Hold } else { Reaction::Execute });
    lane.submit(namespace.write(0, 1).unwrap(), Some(vec![0; 512]), 1).unwrap();
    lane.ring();
    let (done, polls) = serve(&mut lane, &mut descriptor);
    assert!(done.len() == 1 && !done[0].is_ok(), "{:?}", done[0].result);
    assert!(polls < 100, "{polls} polls for one command");
}
