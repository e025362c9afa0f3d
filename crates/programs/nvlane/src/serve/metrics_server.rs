//! The metrics of a target in its process: what the HTTP server has from the target, and from the main thread.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use metrics::live::{Live, LiveMaker};
use metrics::{Process, Reloads, Scrape, Server, Source};
use serde_json::Value;
use subsystem::config::{LivePage, METRICS_PORT, MetricsConfig, PoolState, listen_address};
use subsystem::operator::{ChangeOutcome, ReportLine};
use subsystem::server::Observer;
use subsystem::state::Detail;

/// How long the reactors have to answer: one that does not is stuck.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// Parses `--metrics`.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    listen_address(text, METRICS_PORT)
}

/// The server, if there is one.
pub(super) struct MetricsServer {
    server: Option<Server>,
    /// As configured: a bound address has another port if that is 0.
    address: Option<SocketAddr>,
    live_page: LivePage,
    shared: Arc<Shared>,
}

/// What the server's thread reads.
struct Shared {
    phase: Mutex<Phase>,
    process: Mutex<Process>,
    live_page: Mutex<LivePage>,
}

/// The phase of the target.
enum Phase {
    Starting,
    Serving(Box<Observer>),
    Ending,
}

impl MetricsServer {
    /// Serves at the configured address, if there is one.
    ///
    /// # Errors
    /// Why the server cannot listen.
    pub(super) fn start(config: &MetricsConfig) -> Result<Self, String> {
        let started_unix_s = unix_s();
        let process = Process {
            version: env!("CARGO_PKG_VERSION"),
            started_unix_s,
            reloads: Reloads { complete_unix_s: started_unix_s, ..Reloads::default() },
            pools: Vec::new(),
        };
        let shared = Arc::new(Shared {
            phase: Mutex::new(Phase::Starting),
            process: Mutex::new(process),
            live_page: Mutex::new(config.live_page),
        });
        let server = config.address.map(|address| serve(address, &shared)).transpose()?;
        Ok(Self { server, address: config.address, live_page: config.live_page, shared })
    }

    /// Hosts can connect: the target has started.
    pub(super) fn begin(&self, observer: Observer) {
        *lock(&self.shared.phase) = Phase::Serving(Box::new(observer));
    }

    /// The target is ending.
    pub(super) fn begin_end(&self) {
        *lock(&self.shared.phase) = Phase::Ending;
    }

    /// The pools were looked at.
    pub(super) fn note_pools(&self, pools: &[PoolState]) {
        lock(&self.shared.process).pools = pools.to_vec();
    }

    /// A reload has ended.
    pub(super) fn note_reload(&self, is_complete: bool) {
        let reloads = &mut lock(&self.shared.process).reloads;
        reloads.is_last_complete = Some(is_complete);
        if is_complete {
            reloads.complete_count += 1;
            reloads.complete_unix_s = unix_s();
        } else {
            reloads.incomplete_count += 1;
        }
    }

    /// The data of the live page, for callers of the control socket.
    pub(super) fn live_state(&self) -> LiveState {
        LiveState { source: OfTarget::new(&self.shared), last: None }
    }

    /// Serves at another address, or nowhere, or for others, if that is configured now. Returns the change.
    pub(super) fn follow(&mut self, config: &MetricsConfig) -> Option<ReportLine> {
        let shown = (self.live_page != config.live_page).then(|| {
            self.live_page = config.live_page;
            *lock(&self.shared.live_page) = config.live_page;
            let text = format!("show the live page to {}: done", whom(config.live_page));
            ReportLine { outcome: ChangeOutcome::Done, text }
        });
        if self.address == config.address {
            return shown;
        }
        let Some(address) = config.address else {
            (self.server, self.address) = (None, None);
            let text = "end the metrics server: done".into();
            return Some(ReportLine { outcome: ChangeOutcome::Done, text });
        };
        Some(match serve(address, &self.shared) {
            Ok(server) => {
                (self.server, self.address) = (Some(server), Some(address));
                let text = format!("serve metrics at {address}: done");
                ReportLine { outcome: ChangeOutcome::Done, text }
            }
            Err(why) => {
                let text = format!("serve metrics at {address}: not done, {why}");
                ReportLine { outcome: ChangeOutcome::Failed, text }
            }
        })
    }
}

fn serve(address: SocketAddr, shared: &Arc<Shared>) -> Result<Server, String> {
    let server = Server::start(address, OfTarget::new(shared))
        .map_err(|error| format!("cannot listen on {address} for metrics: {error}"))?;
    tracing::info!(address = %server.address(), "serving metrics");
    Ok(server)
}

/// Those who see the live page.
fn whom(live_page: LivePage) -> &'static str {
    match live_page {
        LivePage::Loopback => "users of this machine",
        LivePage::Any => "everyone",
        LivePage::Off => "nobody",
    }
}

/// The data of the live page, with a memory of which objects were in it.
pub(super) struct LiveState {
    source: OfTarget,
    last: Option<(Instant, Result<Value, String>)>,
}

/// Callers within this time get the same data.
const LIVE_AGE_MAX: Duration = Duration::from_millis(50);

impl LiveState {
    /// The data, as JSON.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn ask(&mut self) -> Result<Value, String> {
        if let Some((at, last)) = &self.last
            && at.elapsed() < LIVE_AGE_MAX
        {
            return last.clone();
        }
        let live = self.source.live();
        let value = live.and_then(|live| serde_json::to_value(live).map_err(|error| error.to_string()));
        self.last = Some((Instant::now(), value.clone()));
        value
    }
}

/// The source of the server.
struct OfTarget {
    shared: Arc<Shared>,
    live: LiveMaker,
}

impl OfTarget {
    fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), live: LiveMaker::default() }
    }
}

impl Source for OfTarget {
    fn live(&mut self) -> Result<Live, String> {
        let observed = match &mut *lock(&self.shared.phase) {
            Phase::Serving(observer) => observer.lanes(ANSWER_TIME),
            phase => return Err(phase.text().into()),
        };
        let (target, lanes) = observed.map_err(|error| error.to_string())?;
        let process = lock(&self.shared.process).clone();
        Ok(self.live.make(&process, &target, &lanes))
    }

    fn live_page(&self) -> LivePage {
        *lock(&self.shared.live_page)
    }

    fn scrape(&mut self) -> Result<Scrape, String> {
        let begun = Instant::now();
        let target = match &mut *lock(&self.shared.phase) {
            Phase::Serving(observer) => observer.state(Detail::Sums, Some(ANSWER_TIME)),
            phase => return Err(phase.text().into()),
        };
        let target = target.map_err(|error| error.to_string())?;
        let took = begun.elapsed();
        Ok(Scrape { target, process: lock(&self.shared.process).clone(), took })
    }

    fn readiness(&self) -> Result<(), String> {
        match &*lock(&self.shared.phase) {
            Phase::Serving(_) => Ok(()),
            phase => Err(phase.text().into()),
        }
    }

    fn is_between(&self) -> bool {
        !matches!(*lock(&self.shared.phase), Phase::Serving(_))
    }
}

impl Phase {
    fn text(&self) -> &'static str {
        match self {
            Self::Starting => "the target is starting",
            Self::Serving(_) => "the target serves",
            Self::Ending => "the target is ending",
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
