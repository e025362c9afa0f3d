//! A target that behaves well until its fault triggers: a listener and one thread for each connection.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::finding::{Check, Finding};
use crate::session::{Event, Session, Then};
use crate::stage::{Setup, Stage};

/// Decides for each event whether to inject the fault. Any result but `Ok(Then::AsUsual)` counts as injected.
pub type Fault = Box<dyn Fn(&mut Session<'_>, &Event) -> Check<Then> + Send + Sync>;

/// A listening fake target. It ends when dropped.
#[derive(Debug)]
pub struct FakeTarget {
    /// State shared with its sessions.
    pub stage: Arc<Stage>,
    findings: Arc<Mutex<Vec<Finding>>>,
    thread: Option<JoinHandle<()>>,
}

/// What the threads of a target need.
struct Service {
    stage: Arc<Stage>,
    fault: Fault,
    is_once: bool,
    findings: Arc<Mutex<Vec<Finding>>>,
}

impl FakeTarget {
    /// Listens on `listen`. The fault is injected once in all (`is_once`), or at every trigger.
    ///
    /// # Errors
    /// [`Finding::Skipped`] if the address cannot be listened on.
    pub fn start(listen: SocketAddr, setup: Setup, fault: Fault, is_once: bool) -> Check<Self> {
        let failed = |error: std::io::Error| Finding::Skipped(format!("cannot listen on {listen}: {error}"));
        let listener = TcpListener::bind(listen).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let stage = Arc::new(Stage::new(listener.local_addr().map_err(failed)?, setup));
        let findings = Arc::default();
        let service = Service { stage: Arc::clone(&stage), fault, is_once, findings: Arc::clone(&findings) };
        let thread = std::thread::spawn(move || accept(&listener, &service));
        Ok(Self { stage, findings, thread: Some(thread) })
    }

    /// Ends the target and joins its threads.
    ///
    /// # Errors
    /// The first thing that a session found wrong with the host.
    pub fn end(mut self) -> Check {
        self.stop();
        let findings = self.findings.lock().unwrap_or_else(PoisonError::into_inner);
        findings.first().cloned().map_or(Ok(()), Err)
    }

    fn stop(&mut self) {
        self.stage.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for FakeTarget {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Service {
    /// Injects the fault if it is due.
    fn react(&self, session: &mut Session<'_>, event: &Event) -> Check<Then> {
        if self.is_once && self.stage.is_injected() {
            return Ok(Then::AsUsual);
        }
        let then = (self.fault)(session, event);
        if !matches!(then, Ok(Then::AsUsual)) {
            self.stage.mark();
        }
        then
    }
}

fn accept(listener: &TcpListener, service: &Service) {
    std::thread::scope(|scope| {
        while !service.stage.is_over() {
            let Ok((stream, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(2));
                continue;
            };
            if !service.stage.is_open() {
                continue;
            }
            let _ = stream.set_nonblocking(false);
            scope.spawn(move || {
                let mut session = Session::new(stream, &service.stage);
                if let Err(finding) = session.serve(&|session, event| service.react(session, event)) {
                    service.stage.mark();
                    service.findings.lock().unwrap_or_else(PoisonError::into_inner).push(finding);
                }
            });
        }
    });
}
