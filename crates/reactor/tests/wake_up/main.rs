//! The wake-up of a sleeping reactor, in every interleaving of a few threads and with every value that an atomic load
//! may return: no message, input or deadline is left behind by a reactor that sleeps.
//!
//! This test compiles `src/mailbox.rs` and `src/turn.rs` a second time, with loom's atomics and threads in place of the
//! standard ones, and with a model of the engine and of the reactor's sockets and timers.

use loom::thread;

use io::StopsAfter;
use mailbox::{Address, Bell, Mailbox};
use sync::Arc;
use turn::{Reactor, Settings};

// What `turn.rs` imports from its crate.
use model::{buffers, busy_poll, counter, engine, epoll, io, operation, reactor_io, ring, spin, wake};

#[path = "../../src/event.rs"]
#[allow(dead_code, unreachable_pub)]
mod event;
#[path = "../../src/mailbox.rs"]
#[allow(dead_code, unreachable_pub)]
mod mailbox;
mod model;
mod sync;
#[path = "../../src/turn.rs"]
#[allow(dead_code, unreachable_pub)]
mod turn;
#[path = "../../src/wait.rs"]
#[allow(dead_code, unreachable_pub)]
mod wait;

/// The turns of a reactor that has nothing else to do, until it has this many messages.
fn take_messages(mailbox: &Mailbox<u32>, count: usize) -> Vec<u32> {
    let mut taken = Vec::new();
    loop {
        taken.extend(std::iter::from_fn(|| mailbox.next_message()));
        if taken.len() >= count {
            return taken;
        }
        match mailbox.prepare_sleep() {
            Some(message) => taken.push(message),
            None => {
                let bell = mailbox.bell();
                bell.fd.wait(false);
                bell.reset();
                bell.announce_awake();
            }
        }
    }
}

/// Runs a model in every way in which no thread is interrupted more than three times.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn a_message_wakes_a_reactor_that_is_about_to_sleep() {
    explore(|| {
        let mailbox = Mailbox::new().expect("a model");
        let address = mailbox.address();
        let sender = thread::spawn(move || {
            address.post(1);
            address.post(2);
        });
        assert_eq!(take_messages(&mailbox, 2), [1, 2]);
        sender.join().expect("no panic");
    });
}

#[test]
fn messages_of_two_senders_wake_it() {
    explore(|| {
        let mailbox = Mailbox::new().expect("a model");
        let senders = [1, 2].map(|message| {
            let address = mailbox.address();
            thread::spawn(move || address.post(message))
        });
        let mut taken = take_messages(&mailbox, 2);
        taken.sort_unstable();
        assert_eq!(taken, [1, 2]);
        senders.into_iter().for_each(|sender| assert!(sender.join().expect("no panic")));
    });
}

/// What another thread does to a reactor.
type Act = fn(&Address<u32>, &Bell);

/// Runs a reactor until it stops, with a thread for each of `acts`. A reactor that sleeps for ever fails the model.
fn explore_turns(stops_after: StopsAfter, acts: &'static [Act]) {
    explore(move || {
        let mailbox = Mailbox::new().expect("a model");
        let start = |act: &'static Act| {
            let (address, bell) = (mailbox.address(), Arc::clone(mailbox.bell()));
            thread::spawn(move || act(&address, &bell))
        };
        let threads: Vec<_> = acts.iter().map(start).collect();
        let mut reactor = Reactor::new(&Settings::default(), mailbox, |_| stops_after).expect("a model");
        reactor.run().expect("a model");
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

const POST: Act = |address, _| assert!(address.post(1));
const SEND_INPUT: Act = |_, bell| bell.fd.send_input();

#[test]
fn a_turn_takes_each_message_before_it_sleeps_or_is_woken() {
    explore_turns(StopsAfter { message_count: 2, ..StopsAfter::default() }, &[POST, POST]);
}

#[test]
fn input_wakes_a_reactor_that_has_polled_the_socket_before() {
    explore_turns(
        StopsAfter { input_count: 1, message_count: 1, ..StopsAfter::default() },
        &[POST, SEND_INPUT],
    );
}

#[test]
fn a_sleep_ends_at_a_deadline_that_a_message_has_set() {
    explore_turns(StopsAfter { message_count: 1, timer_count: 1, ..StopsAfter::default() }, &[POST]);
}
