//! The wake-up of a sleeping reactor, in every interleaving of a few threads and with every value that an atomic load
//! may return: no message, input or deadline is left behind by a reactor that sleeps.
//!
//! This test compiles `src/mailbox.rs` and `src/turn.rs` a second time, with loom's atomics and threads in place of the
//! standard ones, and with a model of the engine and of the reactor's sockets and timers.

use std::cell::RefCell;

use loom::thread;

use io::StopsAfter;
use mailbox::{Address, Bell, Mailbox};
use sync::Arc;
use turn::{Reactor, Settings};

// What `turn.rs` imports from its crate.
use model::{busy_poll, counter, engine, epoll, io, operation, reactor_io, ring, spin, wake};

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

thread_local! {
    /// Names of the threads of the model that runs, all of them on this thread, in the order in which they start.
    static THREADS: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

/// After a panic, names the threads that loom tells by number. A deadlock ends the process: what a stopped thread has
/// cannot be dropped.
fn name_threads_after_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            hook(panic);
            let names = THREADS.take().into_iter().enumerate();
            let names: Vec<_> = names.map(|(at, name)| format!("Id({at}) is {name}")).collect();
            if !names.is_empty() {
                eprintln!("{}; {}", names.join(", "), sync::last_sleep());
            }
        }));
    });
}

/// Runs a model in every way in which no thread is interrupted more than three times. Its threads are named in the order
/// in which they start, the model's own first.
fn explore(threads: &[&'static str], model: impl Fn() + Sync + Send + 'static) {
    name_threads_after_panics();
    THREADS.set(threads.to_vec());
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
    THREADS.take();
}

#[test]
fn a_message_wakes_a_reactor_that_is_about_to_sleep() {
    explore(&["the reactor", "a sender of two messages"], || {
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
    explore(&["the reactor", "the sender of message 1", "the sender of message 2"], || {
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

#[test]
#[ignore = "a deadlock, for the test below"]
fn a_reactor_that_waits_for_a_message_too_many() {
    explore(&["the reactor", "a sender of one message"], || {
        let mailbox = Mailbox::new().expect("a model");
        let address = mailbox.address();
        thread::spawn(move || address.post(1));
        take_messages(&mailbox, 2);
    });
}

#[test]
fn a_deadlock_is_told_with_the_names_of_the_threads() {
    let mut test = std::process::Command::new(std::env::current_exe().expect("this program"));
    test.args(["--exact", "--ignored", "--nocapture", "a_reactor_that_waits_for_a_message_too_many"]);
    let ended = test.output().expect("it runs");
    let told = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && told.contains("deadlock; threads"), "{told}");
    let names =
        "Id(0) is the reactor, Id(1) is a sender of one message; the last sleep, which watched the bell,";
    assert!(told.contains(names), "{told}");
}

/// The name of another thread, and what it does to a reactor.
type Act = (&'static str, fn(&Address<u32>, &Bell));

/// Runs a reactor until it stops, with a thread for each of `acts`. A reactor that sleeps for ever fails the model.
fn explore_turns(stops_after: StopsAfter, acts: &'static [Act]) {
    let threads: Vec<_> = std::iter::once("the reactor").chain(acts.iter().map(|(name, _)| *name)).collect();
    // Each of many runs maps the pool.
    let settings = Settings { pool_bytes: 1, ..Settings::default() };
    explore(&threads, move || {
        let mailbox = Mailbox::new().expect("a model");
        let start = |(_, act): &'static Act| {
            let (address, bell) = (mailbox.address(), Arc::clone(mailbox.bell()));
            thread::spawn(move || act(&address, &bell))
        };
        let threads: Vec<_> = acts.iter().map(start).collect();
        let mut reactor = Reactor::new(&settings, mailbox, |_| stops_after).expect("a model");
        reactor.run().expect("a model");
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

const POST: Act = ("a sender of a message", |address, _| assert!(address.post(1)));
const SEND_INPUT: Act = ("the peer of the socket", |_, bell| bell.fd.send_input());

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
