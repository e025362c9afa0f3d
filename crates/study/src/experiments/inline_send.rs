//! `inline-send`: who submits also sends, or hands over to a thread that does.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use host::Options;
use host::futures::{Failed, Namespace};
use load::histogram::Histogram;
use load::random::Prng;

use super::{IO_BYTES, bars};
use crate::bench::{Bench, us, values};
use crate::experiment::{About, Cell, Claim, Error, Experiment, Values};
use crate::figure::{Axis, Figure, Plot};
use crate::headline::{Headline, Headlines};
use crate::measured::Measured;
use crate::served::Served;

const DEPTHS: [u32; 2] = [1, 32];

/// The thread that submits owns the lane.
const INLINE: &str = "inline";
/// The thread that submits hands over to the lane's own thread, by its mailbox.
const HANDED_OVER: &str = "handed over";

/// Lanes driven by the submitting thread, and by one of their own.
#[derive(Debug, Default)]
pub(crate) struct InlineSend {
    served: Option<Served>,
}

impl Experiment for InlineSend {
    fn about(&self) -> About {
        About {
            name: "inline-send",
            title: "What does it save to send from the thread that submits?",
            method: "One lane, reads of 4 KiB, one and 32 in flight, the host's threads on one core, the target on another. Inline, the \
                     thread that submits owns the lane, sends itself and polls for the answer. Handed over, commands go through a \
                     mailbox to a thread that drives the lane, and their ends wake whoever awaits them.",
            claims: vec![
                Claim {
                    source: "Sagi Grimberg, NVMe over TCP optimisations (2021)",
                    says: "Sending from the submitter's context and completing in the poller's: 10 % less latency at depth 1.",
                    number: "10 %",
                    ours: "gain_qd1",
                },
                Claim {
                    source: "Sagi Grimberg, NVMe over TCP optimisations (2021)",
                    says: "The same at depth 32: 230,000 operations per second became 247,000.",
                    number: "1.07 times",
                    ours: "gain_qd32",
                },
            ],
            judged_by: "iops",
            columns: &["iops", "p50_us", "p99_us", "host_us", "target_us"],
        }
    }

    fn cells(&self) -> Vec<Cell> {
        let of = |depth: u32, sender| {
            Cell::new(cell_name(depth, sender)).with("depth", depth).with("sender", sender)
        };
        DEPTHS.into_iter().flat_map(|depth| [HANDED_OVER, INLINE].map(|sender| of(depth, sender))).collect()
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let served = match &mut self.served {
            Some(served) => served,
            none => none.insert(bench.serve()?),
        };
        let depth = cell.word("depth");
        if cell.text("sender") == INLINE {
            return Ok(values(&bench.run(served, bench.load("randread", None, IO_BYTES, depth))?.report));
        }
        let run = || hand_over(bench, served, depth);
        // In a thread of its own, whose core its children inherit.
        std::thread::scope(|scope| scope.spawn(run).join().expect("the load does not panic"))
    }

    fn headline(&self, measured: &Measured) -> Vec<Headline> {
        let mut headlines = Headlines::default();
        for depth in DEPTHS {
            let gain = measured.ratio(&cell_name(depth, INLINE), &cell_name(depth, HANDED_OVER), "iops");
            headlines.push(format!("gain_qd{depth}"), gain.map(|gain| gain.median), None);
        }
        headlines.into_vec()
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let figure = |title: &str, y: Axis, value: &str, note: &str| {
            let names = DEPTHS.map(|depth| format!("depth {depth}")).to_vec();
            let of =
                |sender: &str| bars(sender, measured, DEPTHS.map(|depth| cell_name(depth, sender)), value);
            let plot = Plot::bars("", names, y, [HANDED_OVER, INLINE].map(of).into());
            Figure { title: title.into(), note: note.into(), plot }
        };
        vec![
            figure("Speed", Axis::log("IOPS"), "iops", "Operations per second. Higher is better."),
            figure(
                "Latency",
                Axis::log("p50 µs"),
                "p50_us",
                "Half of the operations stay below. Lower is better.",
            ),
        ]
    }
}

fn cell_name(depth: u32, sender: &str) -> String {
    format!("qd{depth} {sender}")
}

type Read = Pin<Box<dyn Future<Output = Result<Vec<u8>, Failed<Vec<u8>>>>>>;

/// A read that is awaited, and whether it has called for a look.
struct Awaited {
    read: Read,
    begun: Instant,
    call: Arc<Call>,
    waker: Waker,
}

/// Wakes the thread that awaits.
struct Call {
    is_wanted: AtomicBool,
    thread: Thread,
}

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        self.is_wanted.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// A closed loop of reads that a lane's own thread carries out.
fn hand_over(bench: &Bench, served: &Served, depth: u32) -> Result<Values, Error> {
    if let Some(cores) = bench.cores {
        reactor::pin(cores.host).map_err(|error| Error::system("tie a thread to its core", error))?;
    }
    let depth_limit = u16::try_from(depth).unwrap_or(u16::MAX).min(Options::DEPTH_MAX);
    let disk = Namespace::connect(served.address(), Options { depth: depth_limit, ..Options::default() })?;
    let places = disk.info().size_bytes() / u64::from(IO_BYTES);
    let mut random = Prng::new(1);
    let mut begin = |buffer: Vec<u8>| -> Read {
        let (disk, place) = (disk.clone(), random.below(places) * u64::from(IO_BYTES));
        Box::pin(async move { disk.read_at(place, buffer).await })
    };
    let mut awaited: Vec<Awaited> = Vec::new();
    for _ in 0..depth {
        let call = Arc::new(Call { is_wanted: AtomicBool::new(true), thread: std::thread::current() });
        let read = begin(vec![0; IO_BYTES as usize]);
        awaited.push(Awaited { read, begun: Instant::now(), waker: Waker::from(Arc::clone(&call)), call });
    }
    let mut latency = Histogram::new();
    let (mut start, mut end) = (None, Instant::now() + bench.times.warm_up);
    loop {
        let now = Instant::now();
        if now >= end || bench.is_stopped() {
            let Some(start) = start else {
                (start, end) = (Some(now), now + bench.times.measure);
                latency.clear();
                continue;
            };
            let elapsed: Duration = now - start;
            #[allow(clippy::cast_precision_loss)] // A rate.
            let iops = latency.count() as f64 / elapsed.as_secs_f64();
            return Ok(Values::from([
                ("iops", iops),
                ("p50_us", us(latency.percentile(50.0))),
                ("p99_us", us(latency.percentile(99.0))),
            ]));
        }
        let mut is_any = false;
        for one in &mut awaited {
            while one.call.is_wanted.swap(false, Ordering::Acquire) {
                is_any = true;
                let Poll::Ready(result) = one.read.as_mut().poll(&mut Context::from_waker(&one.waker)) else {
                    continue;
                };
                let buffer = result.map_err(|failed| Error::from(failed.error))?;
                let now = Instant::now();
                latency.record(u64::try_from((now - one.begun).as_nanos()).unwrap_or(u64::MAX));
                (one.read, one.begun) = (begin(buffer), now);
                one.call.is_wanted.store(true, Ordering::Relaxed);
            }
        }
        if !is_any {
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }
}
