//! A target of a spread: up, or lost while a thread connects to it again.
//!
//! ```text
//! Lost ──(attempt of its thread succeeds)──▶ Up ──(connection lost, or silent)──▶ Lost
//!   └──(attempt fails: delay, doubled, with jitter)──┘
//! ```

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use host_core::duration::ns;
use host_core::reconnect::{Backoff, ReconnectSettings};
use proto::host_queue::DataBuffer;

use super::settings::SpreadTarget;
use crate::association::Association;
use crate::error::Error;
use crate::lane::Lane;
use crate::options::Options;
use crate::value_pairs::PairBuffer;
use crate::value_targets::ValueTarget;

/// Longest delay between attempts: how long a target that is back stays unused.
const DELAY_MAX: Duration = Duration::from_secs(2);

/// The lanes of a target.
pub(super) type Lanes<B> = Vec<Lane<PairBuffer<B>>>;

/// News of a target's thread: the number of the target, and the end of an attempt.
pub(super) type News<B> = (usize, Attempt<B>);

/// The end of an attempt to connect.
pub(super) enum Attempt<B> {
    Connected(Box<ValueTarget>, Lanes<B>),
    Failed(Error),
}

/// A target, and how it is.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) target: SpreadTarget,
    pub(super) is_up: bool,
    /// Times that it was lost.
    pub(super) loss_count: u64,
    /// Why it was lost, or the last attempt failed.
    pub(super) cause: Option<Arc<Error>>,
    /// It was lost since the last flush.
    pub(super) is_unflushed: bool,
    backoff: Backoff,
    start: Instant,
    /// Ends the thread that connects when it is dropped.
    stop: Option<Sender<()>>,
}

impl Member {
    /// A target that is not connected.
    pub(super) fn new(target: SpreadTarget, options: &Options) -> Self {
        let settings = options.reconnect.with_give_up_after(None);
        let settings = settings.with_delay_max(settings.delay_max.min(DELAY_MAX));
        Self {
            target,
            is_up: false,
            loss_count: 0,
            cause: None,
            is_unflushed: false,
            backoff: Backoff::new(settings, options.tuning.seed()),
            start: Instant::now(),
            stop: None,
        }
    }

    fn now_ns(&self) -> u64 {
        ns(self.start.elapsed())
    }

    /// The target is connected.
    pub(super) fn on_up(&mut self) {
        self.backoff.on_up(self.now_ns());
        (self.is_up, self.cause, self.stop) = (true, None, None);
    }

    /// The target is lost. Returns how long to wait before the first attempt.
    pub(super) fn on_lost(&mut self, cause: Option<Arc<Error>>) -> Duration {
        (self.is_up, self.cause, self.is_unflushed) = (false, cause, true);
        self.loss_count += 1;
        let now_ns = self.now_ns();
        let due_ns = self.backoff.on_lost(now_ns).unwrap_or(now_ns);
        Duration::from_nanos(due_ns.saturating_sub(now_ns))
    }

    /// Whether a thread connects to it.
    pub(super) fn is_connecting(&self) -> bool {
        self.stop.is_some()
    }

    /// Starts the thread that connects, after a delay, until an attempt succeeds. It drops what is left of the target
    /// before.
    pub(super) fn connect<B: DataBuffer + Send + 'static>(
        &mut self,
        number: usize,
        options: &Options,
        delay: Duration,
        news: &Sender<News<B>>,
        left: Option<(ValueTarget, Lanes<B>)>,
    ) {
        let (stop, stopped) = channel();
        let connector = Connector {
            number,
            target: self.target.clone(),
            options: options.clone().with_reconnect(ReconnectSettings::never()),
            backoff: self.backoff.clone(),
            start: self.start,
            news: news.clone(),
            stopped,
        };
        let thread = std::thread::Builder::new().name("nvlane-spread".into());
        // Without a thread the next call tries again.
        self.stop = thread.spawn(move || connector.run(delay, left)).ok().map(|_| stop);
    }
}

/// The thread that connects.
struct Connector<B> {
    number: usize,
    target: SpreadTarget,
    options: Options,
    backoff: Backoff,
    start: Instant,
    news: Sender<News<B>>,
    stopped: Receiver<()>,
}

impl<B: DataBuffer> Connector<B> {
    fn run(mut self, mut delay: Duration, left: Option<(ValueTarget, Lanes<B>)>) {
        if let Some((target, lanes)) = left {
            // An orderly shutdown would wait for a target that does not answer.
            target.association.detach();
            drop(lanes);
        }
        while self.stopped.recv_timeout(delay) == Err(RecvTimeoutError::Timeout) {
            match self.attempt() {
                Ok((target, lanes)) => {
                    tracing::info!(target = self.target.name, "target of a spread is up");
                    // If the spread is gone, the lanes are dropped here.
                    let _ = self.news.send((self.number, Attempt::Connected(Box::new(target), lanes)));
                    return;
                }
                Err(error) => {
                    tracing::info!(target = self.target.name, %error, "attempt to connect to a target of a spread failed");
                    if self.news.send((self.number, Attempt::Failed(error))).is_err() {
                        return;
                    }
                }
            }
            let now_ns = ns(self.start.elapsed());
            let due_ns = self.backoff.on_failed(now_ns).unwrap_or(now_ns);
            delay = Duration::from_nanos(due_ns.saturating_sub(now_ns));
        }
    }

    fn attempt(&self) -> Result<(ValueTarget, Lanes<B>), Error> {
        let association = Association::connect(&self.target.address, self.options.clone())?;
        let namespace = association.addressed_key_value()?;
        let lanes = association.every_lane()?;
        Ok((ValueTarget { namespace, association }, lanes))
    }
}
