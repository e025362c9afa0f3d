//! A target that is right until a misdeed is due: a listener, a thread for each connection, and what they share.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use peer::finding::{Check, Finding};
use wire::nqn::Nqn;

use crate::host::session::{BLOCK_BYTES, BLOCK_COUNT, Event, Session, Then};

/// Does something wrong at the right moment, and looks at what the host does then.
pub(crate) type Misdeed = Box<dyn Fn(&mut Session<'_>, &Event) -> Check<Then> + Send + Sync>;

/// What all connections of the false target share.
pub(crate) struct Stage {
    pub(crate) address: SocketAddr,
    pub(crate) subsystem: Nqn,
    misdeed: Misdeed,
    /// It is done once, or each time.
    is_once: bool,
    was_done: AtomicBool,
    is_over: AtomicBool,
    pdu_count: AtomicU64,
    cntlid: AtomicU64,
    content: Mutex<Vec<u8>>,
    findings: Mutex<Vec<Finding>>,
}

impl Stage {
    /// Does what is wrong, if it is time for it: whatever does anything but as usual is the misdeed.
    pub(crate) fn misdeed(&self, session: &mut Session<'_>, event: &Event) -> Check<Then> {
        if self.is_once && self.was_done() {
            return Ok(Then::AsUsual);
        }
        let then = (self.misdeed)(session, event);
        if !matches!(then, Ok(Then::AsUsual)) {
            self.was_done.store(true, Ordering::SeqCst);
        }
        then
    }

    /// The misdeed is being done: it cannot be told by what follows.
    pub(crate) fn mark(&self) {
        self.was_done.store(true, Ordering::SeqCst);
    }

    pub(crate) fn was_done(&self) -> bool {
        self.was_done.load(Ordering::SeqCst)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    pub(crate) fn count_pdu(&self) {
        self.pdu_count.fetch_add(1, Ordering::SeqCst);
    }

    /// PDUs that hosts have sent.
    pub(crate) fn pdu_count(&self) -> u64 {
        self.pdu_count.load(Ordering::SeqCst)
    }

    /// The controller's id.
    pub(crate) fn cntlid(&self) -> u16 {
        u16::try_from(self.cntlid.load(Ordering::SeqCst) & 0x7FFF).expect("masked")
    }

    fn content(&self) -> std::sync::MutexGuard<'_, Vec<u8>> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn read(&self, start: usize, length: usize) -> Vec<u8> {
        self.content()[start..start + length].to_vec()
    }

    pub(crate) fn write(&self, start: usize, data: &[u8]) {
        self.content()[start..start + data.len()].copy_from_slice(data);
    }

    fn findings(&self) -> std::sync::MutexGuard<'_, Vec<Finding>> {
        self.findings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A false target that listens.
pub(crate) struct FalseTarget {
    pub(crate) stage: Arc<Stage>,
    thread: Option<JoinHandle<()>>,
}

impl FalseTarget {
    pub(crate) fn start(listen: SocketAddr, misdeed: Misdeed, is_once: bool) -> Check<Self> {
        let failed = |error: std::io::Error| Finding::Skipped(format!("cannot listen on {listen}: {error}"));
        let listener = TcpListener::bind(listen).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let stage = Arc::new(Stage {
            address: listener.local_addr().map_err(failed)?,
            subsystem: "nqn.2026-01.io.nvlane:false".parse().expect("well formed"),
            misdeed,
            is_once,
            was_done: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            pdu_count: AtomicU64::new(0),
            cntlid: AtomicU64::new(1),
            content: Mutex::new(vec![0; usize::try_from(BLOCK_COUNT).expect("few") * BLOCK_BYTES as usize]),
            findings: Mutex::new(Vec::new()),
        });
        let shared = Arc::clone(&stage);
        let thread = std::thread::spawn(move || accept(&listener, &shared));
        Ok(Self { stage, thread: Some(thread) })
    }

    /// Ends it, and says what it found wrong with the host.
    pub(crate) fn end(mut self) -> Check {
        self.stop();
        let first = self.stage.findings().first().cloned();
        first.map_or(Ok(()), Err)
    }

    fn stop(&mut self) {
        self.stage.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for FalseTarget {
    fn drop(&mut self) {
        self.stop();
    }
}

fn accept(listener: &TcpListener, stage: &Arc<Stage>) {
    let mut sessions = Vec::new();
    while !stage.is_over() {
        match listener.accept() {
            Ok((stream, _)) => {
                let stage = Arc::clone(stage);
                let _ = stream.set_nonblocking(false);
                sessions.push(std::thread::spawn(move || {
                    if let Err(finding) = Session::new(stream, &stage).serve() {
                        stage.mark();
                        stage.findings().push(finding);
                    }
                }));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
    for session in sessions {
        let _ = session.join();
    }
}
