use proptest::prelude::*;

use super::*;
use crate::objects::rate_limit::RateLimits;

const SECOND_NS: u64 = 1_000_000_000;

/// Reactors that share meters, and the commands of each that wait and that have begun.
struct Reactors {
    meters: Vec<Arc<Meter>>,
    each: Vec<Throttle>,
    waiting: Vec<Vec<(LineKey, Ticket, Work)>>,
    begun: Vec<(u64, Work)>,
    /// The number that have begun on each.
    own: Vec<u64>,
    now_ns: u64,
    last: u64,
}

impl Reactors {
    fn new(limits: &[RateLimits], count: usize) -> Self {
        let meters: Vec<_> = limits.iter().filter_map(|limits| Meter::new(*limits)).collect();
        let mut each: Vec<Throttle> = (0..count).map(|_| Throttle::default()).collect();
        each.iter_mut().for_each(|throttle| throttle.replace(&meters, None));
        let waiting = vec![Vec::new(); count];
        Self { meters, each, waiting, begun: Vec::new(), own: vec![0; count], now_ns: SECOND_NS, last: 0 }
    }

    fn arrive(&mut self, reactor: usize, lane: u32, stages: Stages, work: Work) {
        let key = (lane, Nsid::new(1), work.is_write);
        let passed = self.each[reactor].passes(key, stages, work, self.now_ns);
        if stages.get(passed).copied().flatten().is_none() {
            self.own[reactor] += 1;
            return self.begun.push((self.now_ns, work));
        }
        self.last += 1;
        let ticket = Ticket(self.last);
        self.each[reactor].line_up(key, stages, (ticket, work, passed), 0);
        self.waiting[reactor].push((key, ticket, work));
    }

    fn release(&mut self, reactor: usize) -> Vec<LineKey> {
        let released = self.each[reactor].release(self.now_ns);
        let keys = released.into_iter().map(|Released { ticket, is_paid }| {
            assert!(is_paid);
            self.each[reactor].on_left(0);
            let waiting = &mut self.waiting[reactor];
            let at = waiting.iter().position(|(_, other, _)| *other == ticket).expect("it waits");
            let (key, _, work) = waiting.remove(at);
            assert!(waiting[..at].iter().all(|(other, ..)| *other != key), "overtaken in its line");
            self.own[reactor] += 1;
            self.begun.push((self.now_ns, work));
            key
        });
        keys.collect()
    }

    /// Lets time pass; each reactor wakes by its timer.
    fn pass(&mut self, until_ns: u64) {
        while self.now_ns < until_ns {
            let due =
                self.each.iter().filter(|throttle| throttle.has_waiting()).map(|throttle| throttle.next_ns);
            self.now_ns = due.min().unwrap_or(u64::MAX).clamp(self.now_ns + 1, until_ns);
            for reactor in 0..self.each.len() {
                self.release(reactor);
            }
        }
    }

    fn total(&self, quantity: usize) -> u64 {
        self.begun.iter().map(|(_, work)| work.amounts()[quantity]).sum()
    }
}

fn iops(iops: u64) -> RateLimits {
    RateLimits { iops: Some(iops), ..RateLimits::default() }
}

const READ: Work = Work { is_write: false, operations: 1, bytes: 4096 };
const WRITE: Work = Work { is_write: true, ..READ };

#[test]
fn a_limit_is_for_all_reactors_together() {
    for (limits, quantity, rate) in [
        (iops(50_000), 0, 50_000),
        (iops(700), 0, 700),
        (RateLimits { read_bytes_per_s: Some(100 << 20), ..RateLimits::default() }, 4, 100 << 20),
    ] {
        for lanes in [[1, 0], [1, 1], [4, 1], [12, 3]] {
            let mut reactors = Reactors::new(&[limits], 2);
            let count_max = (4 * rate + 4 * rate / 50) / READ.amounts()[quantity];
            // Each lane has 8 commands that wait, always.
            let fill = |reactors: &mut Reactors| {
                for (reactor, &lanes) in lanes.iter().enumerate() {
                    for lane in 0..lanes {
                        let key = (lane, Nsid::new(1), false);
                        let waits = |(other, ..): &&(LineKey, Ticket, Work)| *other == key;
                        while reactors.waiting[reactor].iter().filter(waits).count() < 8 {
                            reactors.arrive(reactor, lane, [Some(0), None, None], READ);
                            // Without a limit none would ever wait.
                            let count = reactors.begun.len() as u64;
                            assert!(count <= count_max, "more than {count_max} by {lanes:?}");
                        }
                    }
                }
            };
            fill(&mut reactors);
            reactors.own = vec![0; 2];
            let end_ns = reactors.now_ns + 4 * SECOND_NS;
            while reactors.now_ns < end_ns {
                let due = reactors.each.iter().filter(|throttle| throttle.has_waiting());
                let due = due.map(|throttle| throttle.next_ns).min().expect("some wait");
                reactors.now_ns = due.max(reactors.now_ns + 1);
                for reactor in 0..2 {
                    reactors.release(reactor);
                }
                fill(&mut reactors);
            }
            let (had, due) = (reactors.total(quantity), 4 * rate);
            assert!(had.abs_diff(due) <= due / 50, "{had} of {due} by {lanes:?}");
            if lanes[1] > 0 {
                let own = &reactors.own;
                let (share, fair) =
                    (own[0] as f64 / own[1] as f64, f64::from(lanes[0]) / f64::from(lanes[1]));
                assert!((0.8..1.25).contains(&(share / fair)), "{own:?} by {lanes:?}");
            }
        }
    }
}

#[test]
fn commands_below_a_limit_never_wait() {
    let mut reactors = Reactors::new(&[iops(10_000)], 2);
    for number in 0..50_000u32 {
        reactors.now_ns += SECOND_NS / 9000;
        reactors.arrive((number % 3 / 2) as usize, number % 5, [Some(0), None, None], READ);
    }
    assert!(reactors.waiting.iter().all(Vec::is_empty));
}

#[test]
fn lines_take_turns_whatever_they_have() {
    let mut reactors = Reactors::new(&[iops(1000)], 1);
    for (lane, count) in [(0, 400), (1, 3), (2, 3)] {
        (0..count).for_each(|_| reactors.arrive(0, lane, [Some(0), None, None], READ));
    }
    reactors.now_ns += 30 * SECOND_NS / 1000;
    let begun: Vec<u32> = reactors.release(0).into_iter().map(|(lane, ..)| lane).collect();
    assert!(begun.len() >= 9, "{begun:?}");
    assert_eq!(begun[..9], [0, 1, 2, 0, 1, 2, 0, 1, 2]);
}

#[test]
fn reads_and_writes_have_limits_of_their_own() {
    let limits = RateLimits { read_iops: Some(100), write_iops: Some(1000), ..RateLimits::default() };
    let mut reactors = Reactors::new(&[limits], 1);
    for _ in 0..500 {
        reactors.arrive(0, 0, [Some(0), None, None], READ);
        reactors.arrive(0, 1, [Some(0), None, None], WRITE);
    }
    reactors.pass(reactors.now_ns + SECOND_NS / 10);
    let written = reactors.begun.iter().filter(|(_, work)| work.is_write).count();
    let read = reactors.begun.len() - written;
    assert!((12..=13).contains(&read), "{read}: a burst of 10 ms, and 100 ms");
    assert!((109..=112).contains(&written), "{written}: writes do not wait for reads");
}

#[test]
fn reads_and_writes_share_what_both_need_by_their_lines() {
    let mut reactors = Reactors::new(&[iops(1000)], 1);
    for lane in 0..4 {
        let work = if lane == 0 { WRITE } else { READ };
        (0..300).for_each(|_| {
            reactors.arrive(0, lane, [Some(0), None, None], work);
        });
    }
    reactors.pass(reactors.now_ns + SECOND_NS / 5);
    reactors.begun.clear();
    for _ in 0..400 {
        reactors.pass(reactors.now_ns + SECOND_NS / 1000);
        // Those that come now do not go before those that wait.
        reactors.arrive(0, 5, [Some(0), None, None], READ);
    }
    let written = reactors.begun.iter().filter(|(_, work)| work.is_write).count();
    assert!((60..=120).contains(&written), "{written} of {}", reactors.begun.len());
}

#[test]
fn what_is_known_late_is_paid_by_those_behind() {
    let limits = RateLimits { bytes_per_s: Some(1 << 20), burst_ms: Some(1), ..RateLimits::default() };
    let mut reactors = Reactors::new(&[limits], 1);
    let nothing = Work { is_write: false, operations: 1, bytes: 0 };
    reactors.arrive(0, 0, [Some(0), None, None], nothing);
    reactors.each[0].debit([Some(0), None, None], Work { bytes: 1 << 20, ..nothing });
    reactors.arrive(0, 0, [Some(0), None, None], Work { bytes: 512, ..nothing });
    reactors.arrive(0, 0, [Some(0), None, None], Work { bytes: 512, ..nothing });
    assert_eq!(reactors.begun.len(), 2, "the lot that pays the debt begins at once");
    reactors.pass(2 * SECOND_NS - 2_000_000);
    assert_eq!(reactors.begun.len(), 2);
    reactors.pass(2 * SECOND_NS + 1_000_000);
    assert_eq!(reactors.begun.len(), 3);
}

#[test]
fn another_table_has_waiting_commands_begin_anew_and_keeps_the_rates() {
    let mut reactors = Reactors::new(&[iops(100)], 1);
    (0..5).for_each(|_| reactors.arrive(0, 0, [Some(0), None, None], READ));
    assert_eq!(reactors.begun.len(), 2);
    let meters = reactors.meters.clone();
    let throttle = &mut reactors.each[0];
    throttle.replace(&meters, None);
    let again: Vec<_> = throttle.release(reactors.now_ns).into_iter().map(|each| each.is_paid).collect();
    assert_eq!((again, throttle.waiting_count()), (vec![false; 3], 3));
    (0..3).for_each(|_| throttle.on_left(0));
    assert_eq!(throttle.passes((0, Nsid::new(1), false), [Some(0), None, None], READ, reactors.now_ns), 0);
    throttle.replace(&[], None);
    assert_eq!(throttle.passes((0, Nsid::new(1), false), [None, None, None], READ, reactors.now_ns), 0);
}

#[test]
fn a_guarantee_of_what_no_host_sees_has_a_window_too() {
    let mut throttle = Throttle::default();
    let meters: Vec<_> = Meter::new(iops(1000)).into_iter().collect();
    throttle.replace(&meters, Some((&[], &Arc::default())));
    let stages = [Some(0), Some(1), None];
    assert_eq!(throttle.passes((0, Nsid::new(1), false), stages, READ, SECOND_NS), 2);
    // One that is not there lets everything pass.
    throttle.replace(&meters, None);
    assert_eq!(throttle.passes((0, Nsid::new(1), false), stages, READ, SECOND_NS), 2);
}

#[derive(Clone, Debug)]
enum Op {
    Arrive { reactor: usize, lane: u32, stages: Stages, work: Work },
    Pass { us: u64 },
    Abort { reactor: usize, at: usize },
    End { reactor: usize, lane: u32 },
}

fn op() -> impl Strategy<Value = Op> {
    let work = (any::<bool>(), 1u64..4, prop_oneof![Just(0u64), Just(4096), 1u64..200_000]);
    let work = work.prop_map(|(is_write, operations, bytes)| Work { is_write, operations, bytes });
    let stages = prop_oneof![
        Just([Some(0), Some(1), None]),
        Just([Some(1), None, None]),
        Just([Some(0), None, None]),
        Just([Some(0), Some(2), None]),
    ];
    prop_oneof![
        6 => (0usize..2, 0u32..4, stages, work).prop_map(|(reactor, lane, stages, work)| {
            // The stages of a line are always the same.
            let stages = if lane == 0 { [Some(0), Some(1), None] } else if lane == 1 { [Some(2), None, None] } else { stages };
            let lane = lane * 8 + stages[0].unwrap_or(7) * 2 + u32::from(stages[1].is_some());
            Op::Arrive { reactor, lane, stages, work }
        }),
        3 => (1u64..5000).prop_map(|us| Op::Pass { us }),
        1 => (0usize..2, 0usize..50).prop_map(|(reactor, at)| Op::Abort { reactor, at }),
        1 => (0usize..2, 0u32..32).prop_map(|(reactor, lane)| Op::End { reactor, lane }),
    ]
}

proptest! {
    /// No quantity of a meter is ever exceeded by more than its burst and what lots allow, and what waits is begun in the
    /// end, in the order of its line.
    #[test]
    fn rates_are_kept_and_every_command_begins(
        rates in proptest::collection::vec((50u64..20_000, 100_000u64..50_000_000), 3),
        ops in proptest::collection::vec(op(), 1..150),
    ) {
        let limits: Vec<RateLimits> = rates.iter().map(|&(operations, bytes)| RateLimits {
            iops: Some(operations), bytes_per_s: Some(bytes), burst_ms: Some(5), ..RateLimits::default()
        }).collect();
        let mut reactors = Reactors::new(&limits, 2);
        let begin_ns = reactors.now_ns;
        let mut aborted = [0u64; 2];
        let (mut arrived, mut lost) = (0usize, 0usize);
        for op in ops {
            match op {
                Op::Arrive { reactor, lane, stages, work } => {
                    arrived += 1;
                    reactors.arrive(reactor, lane, stages, work);
                }
                Op::Pass { us } => reactors.pass(reactors.now_ns + us * 1000),
                Op::Abort { reactor, at } => {
                    if at < reactors.waiting[reactor].len() {
                        let (key, ticket, work) = reactors.waiting[reactor].remove(at);
                        reactors.each[reactor].forget(key, ticket, 0);
                        aborted = [aborted[0] + work.operations, aborted[1] + work.bytes];
                        lost += 1;
                    }
                }
                Op::End { reactor, lane } => {
                    let (ended, left): (Vec<_>, Vec<_>) =
                        reactors.waiting[reactor].drain(..).partition(|((of, ..), ..)| *of == lane);
                    reactors.waiting[reactor] = left;
                    for (key, ticket, _) in ended {
                        reactors.each[reactor].forget(key, ticket, 0);
                        lost += 1;
                    }
                }
            }
        }
        reactors.pass(reactors.now_ns + 600 * SECOND_NS);
        prop_assert!(reactors.waiting.iter().all(Vec::is_empty), "some wait for ever");
        prop_assert_eq!(reactors.begun.len() + lost, arrived);
        prop_assert!(reactors.each.iter().all(|throttle| throttle.lines.is_empty() && !throttle.has_waiting()));
        let most = rates.iter().map(|&(operations, bytes)| [operations, bytes]).fold([0; 2], |sum: [u64; 2], each| {
            [sum[0] + each[0], sum[1] + each[1]]
        });
        // Over all meters together: each command passes one of them at least.
        let last_ns = reactors.begun.iter().map(|(at_ns, _)| *at_ns).max().unwrap_or(begin_ns);
        let time_us = (last_ns - begin_ns) / 1000;
        for (most, quantity, largest) in [(most[0], 0, 4), (most[1], 3, 200_000)] {
            let allowed = most * (time_us + 5_000 + 2 * 4_000) / 1_000_000 + 3 * 3 * largest;
            let had = reactors.total(quantity);
            prop_assert!(had <= allowed, "{had} of {allowed} in {time_us} us");
        }
    }
}
