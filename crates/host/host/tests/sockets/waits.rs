//! Targets that stop answering at any point: every wait ends within the limits of the caller's options, with an error
//! that names the unanswered step.

use std::future::Future;
use std::io::Read;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::target::{NQN, Reaction, Target, options};
use nvlane_host::{
    Address, Association, AsyncNamespace, BlockingNamespace, Error, Failure, Lane, Options,
    ReconnectSettings, discovery,
};
use wire::property::Property;

const MS: Duration = Duration::from_millis(1);

/// Much longer than any limit here, and than any busy machine needs: a longer wait counts as endless.
const ENDLESS: Duration = Duration::from_secs(30);

/// Options with short timeouts and a single attempt.
fn brief() -> Options {
    options()
        .with_connect_timeout(60 * MS)
        .with_command_timeout(60 * MS)
        .with_reconnect(ReconnectSettings::never())
        .tuned(|tuning| {
            tuning.admin_timeout = 120 * MS;
            tuning.close_timeout = 60 * MS;
        })
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Longer than anything here takes on the busiest machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Sleeps until something wakes this thread, or a time by which `what` must have ended.
fn park_until(until: Instant, what: &str) {
    let left = until.saturating_duration_since(Instant::now());
    assert!(!left.is_zero(), "{what} is pending after {LIMIT:?}");
    std::thread::park_timeout(left);
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    let until = Instant::now() + LIMIT;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        park_until(until, "the future");
    }
}

/// Polls `first` and `second` on this thread until `second` is done; returns its output.
fn until_second<A: Future, B: Future>(first: Pin<&mut A>, second: B) -> B::Output {
    let (mut first, mut second) = (first, std::pin::pin!(second));
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    let until = Instant::now() + LIMIT;
    loop {
        assert!(first.as_mut().poll(&mut context).is_pending(), "the first has ended");
        if let Poll::Ready(output) = second.as_mut().poll(&mut context) {
            return output;
        }
        park_until(until, "the second future");
    }
}

#[derive(Clone, Copy, Debug)]
enum Api {
    Blocking,
    Futures,
    Lane,
}

/// Connects, reads a block, and drops everything.
fn use_once(api: Api, address: &Address, options: Options) -> Result<(), Error> {
    match api {
        Api::Blocking => {
            let mut disk = BlockingNamespace::connect(address, options)?;
            disk.read_at(&mut [0; 512], 0)
        }
        Api::Futures => block_on(async {
            let disk = AsyncNamespace::connect(address, options).await?;
            disk.read_at(vec![0; 512], 0).await?;
            Ok(())
        }),
        Api::Lane => {
            let association = Association::connect(address, options)?;
            let namespace = association.addressed_namespace()?;
            let mut lane: Lane = association.lane()?;
            lane.submit(namespace.read(0, 1)?, Some(vec![0; 512]), 1).expect("room");
            let mut done = Vec::new();
            while lane.outstanding() > 0 {
                lane.wait(&mut done, ENDLESS);
            }
            let ended = done.remove(0).result.map(drop);
            ended.map_err(|failure| match (failure, lane.over()) {
                (Failure::Unreachable, Some(over)) => over.clone(),
                (failure, _) => Error::Failed { command: "Read", failure },
            })
        }
    }
}

const ALL: [Api; 3] = [Api::Blocking, Api::Futures, Api::Lane];

/// Runs a call against a target that falls silent after `pdus` PDUs and `bytes` bytes of the next one. Returns whether
/// the call failed for that reason.
fn ends_when_stalled(api: Api, pdus: u32, bytes: usize, options: Options) -> bool {
    let target = Target::of(|setup| setup.abort_works = false);
    target.stall_after(pdus, bytes);
    let start = Instant::now();
    let result = use_once(api, &target.address(), options);
    let took = start.elapsed();
    assert!(took < ENDLESS, "{api:?}: {pdus} PDUs and {bytes} bytes: {took:?}, {result:?}");
    match result {
        Ok(()) => false,
        Err(error) => {
            let text = error.to_string();
            let says_so = ["no answer", "deadline", "the command has not happened", "target is gone"];
            assert!(says_so.iter().any(|words| text.contains(words)), "{api:?}: {pdus}+{bytes}: {text}");
            assert!(
                text.contains(" ms") || text.contains("no answer in time"),
                "it says for how long: {text}"
            );
            true
        }
    }
}

/// Silent at and within every PDU: nothing at all, half an ICResp, ICResp only, up to Connect, …, all but the read.
#[test]
fn a_target_that_falls_silent_at_any_pdu_is_not_waited_for_longer_than_asked() {
    std::thread::scope(|scope| {
        for api in ALL {
            for bytes in [0, 12] {
                scope.spawn(move || {
                    let stalled =
                        (0..60).take_while(|&pdus| ends_when_stalled(api, pdus, bytes, brief())).count();
                    assert!((12..59).contains(&stalled), "{api:?}: {stalled} PDUs of a bring-up and a read");
                });
            }
        }
    });
}

/// With a deadline the other timeouts may be long, and attempts to reconnect continue until the deadline.
#[test]
fn a_deadline_ends_everything() {
    std::thread::scope(|scope| {
        for api in ALL {
            scope.spawn(move || {
                for pdus in [0, 1, 2, 5, 12, 14, 15] {
                    let patient = Options::default().with_reconnect(ReconnectSettings::default());
                    let deadline = Some(100 * MS);
                    let options = patient.with_identity(options().identity).with_deadline(deadline);
                    ends_when_stalled(api, pdus, 0, options);
                }
            });
        }
    });
    // The target is gone for good: without the deadline attempts to reconnect would continue for ten minutes.
    let target = Target::new();
    let options = options().with_deadline(Some(400 * MS));
    let mut disk = BlockingNamespace::connect(&target.address(), options).unwrap();
    drop(target);
    let until = Instant::now() + LIMIT;
    let error = loop {
        assert!(Instant::now() < until, "reads succeed without a target");
        match disk.read_at(&mut [0; 512], 0) {
            Ok(()) => std::thread::yield_now(),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("the deadline of 400 ms has passed during"), "{error}");
}

/// Everything but I/O is answered.
#[test]
fn a_target_that_answers_everything_but_io_costs_the_command_timeout() {
    for api in ALL {
        let target = Target::of(|setup| setup.abort_works = false);
        target.script(|seen| if seen.qid == 0 { Reaction::Execute } else { Reaction::Hold });
        let start = Instant::now();
        let error = use_once(api, &target.address(), brief()).unwrap_err();
        assert!(start.elapsed() < ENDLESS);
        let Error::Failed { failure, .. } = error else { panic!("{api:?}: {error}") };
        assert_eq!(failure, Failure::TimedOut, "{api:?}");
    }
}

#[test]
fn connecting_holds_up_no_other_task_and_ends_with_its_future() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::from(silent.local_addr().unwrap()).with_subsystem(NQN.parse().unwrap());
    let target = Target::new();
    let patient = options().with_connect_timeout(Duration::from_secs(3600));
    let mut waiting = Box::pin(AsyncNamespace::<Vec<u8>>::connect(&address, patient));
    let disk = until_second(waiting.as_mut(), async {
        let disk = AsyncNamespace::connect(&target.address(), options()).await.unwrap();
        disk.write_at(vec![1; 4096], 0).await.unwrap();
        disk
    });
    let (mut socket, _) = silent.accept().unwrap();
    drop(waiting);
    socket.set_read_timeout(Some(ENDLESS)).unwrap();
    let mut bytes = Vec::new();
    // An ICReq, and then the end of the connection by a FIN or a reset.
    let _ = socket
        .read_to_end(&mut bytes)
        .map_err(|error| assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset));
    assert_eq!(bytes.first().copied().unwrap_or(0), 0, "an ICReq");
    block_on(disk.close());
    target.await_ends(&target.connections());
}

#[test]
fn closing_and_dropping_take_no_longer_than_asked() {
    for drops in [false, true] {
        let target = Target::new();
        let association = target.connect(brief());
        let lane: Lane = association.lane().unwrap();
        target.stall_after(0, 0);
        let start = Instant::now();
        if drops {
            drop(lane);
            drop(association);
        } else {
            association.close();
        }
        assert!((50 * MS..ENDLESS).contains(&start.elapsed()), "{:?}", start.elapsed());
    }
    // Dropping a task's last handle does not wait at all, although the target would have an hour to answer.
    let target = Target::new();
    let options = options().tuned(|tuning| tuning.close_timeout = Duration::from_secs(3600));
    let disk = block_on(AsyncNamespace::<Vec<u8>>::connect(&target.address(), options)).unwrap();
    target.stall_after(0, 0);
    let start = Instant::now();
    drop(disk);
    assert!(start.elapsed() < ENDLESS);
}

#[test]
fn what_waits_for_a_lost_association_ends_when_asked() {
    let target = Target::new();
    let settings = options().tuned(|tuning| {
        tuning.admin_timeout = 200 * MS;
        tuning.fast_io_fail = Some(150 * MS);
    });
    let association = target.connect(settings);
    let namespace = association.addressed_namespace().unwrap();
    let mut lane: Lane = association.lane().unwrap();
    target.set_open(false);
    target.drop_connections();
    let mut done = Vec::new();
    let until = Instant::now() + LIMIT;
    while lane.is_live() {
        assert!(Instant::now() < until, "the lane is live though its connection is gone");
        lane.poll(&mut done);
        std::thread::yield_now();
    }
    lane.submit(namespace.write(0, 1).unwrap(), Some(vec![1; 512]), 1).unwrap();
    lane.submit(namespace.read(0, 1).unwrap(), Some(vec![1; 512]), 2).unwrap();
    while lane.outstanding() > 0 {
        assert!(lane.wait(&mut done, ENDLESS) > 0, "a wait without an end");
    }
    for completion in &done {
        let Err(Failure::NoConnection { waited }) = completion.result else { panic!("{completion:?}") };
        assert!(waited.duration() >= 150 * MS && completion.buffer.is_some());
    }
    // At once from then on, until the target is back.
    lane.submit(namespace.read(0, 1).unwrap(), Some(vec![1; 512]), 3).unwrap();
    assert_eq!(lane.wait(&mut done, ENDLESS), 1);
    let error = association.property(Property::VS).unwrap_err().to_string();
    assert!(
        error.contains("no connection to the target for 200 ms: the command has not happened"),
        "{error}"
    );
    // A new lane waits no longer than commands do.
    let start = Instant::now();
    let error = association.lane::<Vec<u8>>().unwrap_err().to_string();
    assert!(error.contains("the association is lost, and was not connected again in 150 ms"), "{error}");
    assert!((150 * MS..ENDLESS).contains(&start.elapsed()), "{:?}", start.elapsed());
    target.set_open(true);
    let until = Instant::now() + LIMIT;
    while !lane.is_live() {
        assert!(Instant::now() < until, "the lane is not live though the target is back");
        lane.poll(&mut done);
        std::thread::yield_now();
    }
    done.clear();
    lane.submit(namespace.write(0, 1).unwrap(), Some(vec![1; 512]), 4).unwrap();
    assert_eq!(lane.wait(&mut done, ENDLESS), 1);
    assert!(done[0].is_ok());
}

#[test]
fn discovery_and_admin_commands_end_when_asked() {
    let target = Target::new();
    for pdus in 0..9 {
        target.stall_after(pdus, 0);
        let address = Address::from(target.address);
        let start = Instant::now();
        let error = discovery::discover(&address, brief()).err();
        assert!(start.elapsed() < ENDLESS);
        assert!(error.is_some() || pdus > 5, "{pdus}");
    }
    target.stall_after(0, 0);
    let patient = options().with_deadline(Some(50 * MS));
    let error = discovery::survey(&Address::from(target.address), &patient).unwrap_err().to_string();
    assert!(error.contains("deadline of 50 ms") || error.contains("deadline of 49 ms"), "{error}");

    let target = Target::new();
    // The connect has to succeed, also on a busy machine.
    let association = target.connect(brief().with_connect_timeout(10_000 * MS));
    target.stall_after(0, 0);
    let start = Instant::now();
    assert!(association.property(Property::CAP).is_err());
    assert!(start.elapsed() < ENDLESS);
}
