//! The control socket and port of a target: their calls are carried out on the thread that reloads.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use command_line::exit::Failure;
use command_line::secret_argument::source_of;
use control::port::ControlPort;
use control::rpc::Call;
use control::socket::{ControlSocket, Service};
use control::trace::TraceRequest;
use control::{CallError, Control, Difference, Plant};
use serde_json::{Value, json};
use subsystem::audit::{Caller, Recorder};
use subsystem::config::{
    CONTROL_PORT, CallerName, ControlConfig, Problem, SecretSource, TargetConfig, listen_address,
};
use subsystem::operator::{ChangeOutcome, Outline, Report, ReportLine};
use subsystem::server::{Target, TraceError};
use wire::text::without_hidden;

use super::metrics_server::{LiveState, MetricsServer};
use super::pools::Pools;
use super::{Parts, Wake, log_report, warn_about_memory};

/// A call, and where its answer is waited for.
pub(super) struct WaitingCall {
    pub(super) call: Call,
    caller: Caller,
    answer: Sender<Result<Value, CallError>>,
}

impl WaitingCall {
    pub(super) fn answer(self, answer: Result<Value, CallError>) {
        // The caller may be gone.
        let _ = self.answer.send(answer);
    }
}

/// Parses `--control-tls`.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    listen_address(text, CONTROL_PORT)
}

/// Reads a value of `--control-key`; the error does not show it, as it may have a key.
pub(super) fn caller_key(text: &str) -> Result<(CallerName, SecretSource), String> {
    let (name, source) =
        text.split_once('=').ok_or("--control-key: write NAME=FILE, as in csi=/etc/nvlane/csi.key")?;
    let name = name.parse::<CallerName>().map_err(|error| format!("--control-key: {error}"))?;
    Ok((name, source_of(Path::new(source)).map_err(|failure| failure.to_string())?))
}

/// Where a target takes calls.
pub(super) struct Places {
    socket: Option<ControlSocket>,
    port: Option<ControlPort>,
}

impl Places {
    /// Opens the control socket and the port, if there are to be any.
    pub(super) fn open(config: &TargetConfig) -> Result<Self, Failure> {
        let ControlConfig { socket, tls, .. } = &config.control;
        let socket = socket.as_ref().map(|path| {
            let opened = ControlSocket::open(path);
            opened.map_err(|why| Failure::usage(format!("control socket {}: {why}", path.display())))
        });
        let port = tls.map(|address| {
            let callers = config.read_control_keys().map_err(|problems| Failure::usage(joined(&problems)))?;
            ControlPort::open(address, callers)
                .map_err(|why| Failure::usage(format!("control port {address}: {why}")))
        });
        Ok(Self { socket: socket.transpose()?, port: port.transpose()? })
    }

    /// Serves calls from now on.
    pub(super) fn serve(
        &self,
        target: &Target,
        metrics: &MetricsServer,
        wakes: &Sender<Wake>,
    ) -> anyhow::Result<()> {
        let live = Mutex::new(metrics.live_state());
        let calls = Calls { wakes: Mutex::new(wakes.clone()), live, recorder: target.recorder() };
        let calls = Arc::new(calls);
        if let Some(socket) = &self.socket {
            socket.serve(Arc::clone(&calls)).context("cannot start the thread of the control socket")?;
            tracing::info!(socket = %socket.path().display(), "control socket open for this user and root");
        }
        if let Some(port) = &self.port {
            port.serve(calls).context("cannot start the thread of the control port")?;
            tracing::info!(address = %port.address(), "control port open for callers with a key");
        }
        Ok(())
    }

    /// Takes the keys of callers as they are configured and stored now. Returns the change.
    pub(super) fn follow(&self, config: &TargetConfig) -> Option<ReportLine> {
        // With another address, the port stays as it is until the target is started again.
        let port = self.port.as_ref().filter(|_| config.control.tls.is_some())?;
        match config.read_control_keys() {
            Ok(callers) => port.replace(callers).then(|| {
                let text = "take the changed keys of the control port, and end its connections: done".into();
                ReportLine { outcome: ChangeOutcome::Done, text }
            }),
            Err(problems) => {
                let text = format!("take the keys of the control port: not done, {}", joined(&problems));
                Some(ReportLine { outcome: ChangeOutcome::Failed, text })
            }
        }
    }
}

fn joined(problems: &[Problem]) -> String {
    let messages: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
    messages.join("\n")
}

/// Adds the kept changes to the configuration.
pub(super) fn start(base: &TargetConfig, config_path: Option<&Path>) -> Result<Control, Failure> {
    let file = base.control.is_on().then(|| changes_file(base, config_path)).flatten();
    let started = Control::start(base, file.as_deref()).map_err(Failure::usage)?;
    for difference in &started.dropped {
        tracing::warn!("{}", dropped_line(difference));
    }
    Ok(started.control)
}

/// The file that keeps changes; `None` if there is no place for one.
pub(crate) fn changes_file(config: &TargetConfig, config_path: Option<&Path>) -> Option<PathBuf> {
    if let Some(path) = &config.control.changes {
        return Some(path.clone());
    }
    // Of several, the first: systemd separates them by colons.
    let state = std::env::var_os("STATE_DIRECTORY");
    let directory = state.as_ref().and_then(|paths| std::env::split_paths(paths).next());
    if let Some(directory) = directory.filter(|path| path.is_absolute()) {
        return Some(directory.join("changes.json"));
    }
    let mut name = OsString::from(config_path?);
    name.push(".changes");
    std::path::absolute(PathBuf::from(name)).ok()
}

/// What is said of a kept change that does not fit any more.
pub(super) fn dropped_line(difference: &Difference) -> String {
    format!(
        "the configuration says something else of {} by now: its control change is dropped",
        difference.title()
    )
}

/// Hands calls over to the main thread.
struct Calls {
    wakes: Mutex<Sender<Wake>>,
    /// What people watch is not asked of the main thread, which may be busy with a reload.
    live: Mutex<LiveState>,
    recorder: Recorder,
}

impl Service for Calls {
    fn perform(&self, call: Call, caller: &Caller) -> Result<Value, CallError> {
        if call.is_live() {
            let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
            return live.ask().map_err(CallError::refused);
        }
        let (answer, received) = channel();
        let waiting = WaitingCall { call, caller: caller.clone(), answer };
        let sent = self.wakes.lock().unwrap_or_else(PoisonError::into_inner).send(Wake::Call(waiting));
        sent.map_err(|_| CallError::ending())?;
        received.recv().unwrap_or_else(|_| Err(CallError::ending()))
    }

    fn refuse(&self, caller: Caller) {
        self.recorder.control_refused(caller);
    }

    fn refuse_peer(&self, peer: SocketAddr, reason: &str) {
        self.recorder.control_peer_refused(peer, reason);
    }
}

/// The running target, its metrics and its pools.
struct Running<'a> {
    target: &'a mut Target,
    metrics: &'a mut MetricsServer,
    pools: &'a mut Pools,
}

impl Plant for Running<'_> {
    fn change(
        &mut self,
        before: &TargetConfig,
        wanted: &TargetConfig,
        is_forced: bool,
    ) -> Result<Report, Report> {
        let refused = self.pools.refusals(&wanted.pools);
        if !refused.is_empty() {
            return Err(Report { lines: refused });
        }
        warn_about_memory(wanted);
        let moved = match before.metrics == wanted.metrics {
            true => None,
            false => self.metrics.follow(&wanted.metrics),
        };
        if let Some(line) = moved.as_ref().filter(|line| line.outcome == ChangeOutcome::Failed) {
            return Err(Report { lines: vec![line.clone()] });
        }
        self.target.keep_used(!is_forced);
        let changed = self.target.change(before, wanted);
        match (changed, moved) {
            (Ok(mut report), moved) => {
                report.lines.extend(moved);
                report.lines.extend(self.pools.follow(&wanted.pools));
                Ok(report)
            }
            (Err(report), moved) => {
                if moved.is_some() {
                    self.metrics.follow(&before.metrics);
                }
                Err(report)
            }
        }
    }

    fn running(&self) -> Option<&Outline> {
        Some(self.target.running())
    }

    fn bound(&self, address: &str) -> Option<String> {
        let listeners = self.target.listeners().iter();
        let mut found = listeners.filter(|listener| listener.config.address.to_string() == address);
        found.next().map(|listener| listener.address.to_string())
    }

    fn look_after_storage(&mut self) {
        log_report("storage", &self.target.look_after_storage());
    }

    fn state(&self) -> Option<Value> {
        serde_json::to_value(self.target.state()?).ok()
    }

    fn trace(&mut self, request: TraceRequest) -> Result<Value, CallError> {
        let refused = |error: TraceError| CallError::refused(error.to_string());
        match request {
            TraceRequest::Start(settings) => {
                let id = self.target.tracer().start(*settings).map_err(refused)?;
                Ok(json!({ "id": id }))
            }
            TraceRequest::Take { id, count, ends } => {
                let traced = self.target.tracer().take(id, count, ends).map_err(refused)?;
                Ok(json!({
                    "events": traced.events,
                    "lost": traced.lost_count,
                    "goes_on": traced.goes_on,
                    "silent_reactors": traced.silent_count,
                    "start_unix_us": traced.start_unix_us,
                }))
            }
        }
    }
}

/// Carries out a call, and records it if it is a change.
pub(super) fn perform(
    waiting: &WaitingCall,
    Parts { control, target, metrics, pools, .. }: &mut Parts,
) -> Result<Value, CallError> {
    let WaitingCall { call, caller, .. } = waiting;
    let mut running = Running { target, metrics, pools };
    let answer = control.perform(call, &mut running);
    if call.is_change() {
        let object = call.object();
        let (method, object) = (&call.method, without_hidden(&object, false));
        let refusal = answer.as_ref().err().map(|error| error.message.as_str());
        target.recorder().control_changed(caller, method, &object, refusal);
        match refusal {
            None => tracing::info!(
                %caller,
                revision = control.revision(),
                "control: {method} {object}"
            ),
            Some(why) => tracing::warn!(
                %caller,
                "control: {method} {object} refused: {why}"
            ),
        }
    }
    answer
}
