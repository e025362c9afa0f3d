//! Ctrl-C and SIGTERM in commands that have something to tell before they end, and SIGXFSZ, which is to end none.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};

/// Sets a flag when we are asked to end, and lets everything that was measured be told.
#[derive(Debug)]
pub(crate) struct EndOnSignal {
    handlers: Vec<SigId>,
}

impl EndOnSignal {
    pub(crate) fn new(stops: &Arc<AtomicBool>) -> anyhow::Result<Self> {
        let handlers = [SIGINT, SIGTERM].map(|signal| {
            // The second time is for the impatient.
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(stops))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(stops)))
        });
        Ok(Self { handlers: handlers.into_iter().collect::<Result<_, _>>().context("signal handlers")? })
    }
}

impl Drop for EndOnSignal {
    fn drop(&mut self) {
        for handler in self.handlers.drain(..) {
            signal_hook::low_level::unregister(handler);
        }
    }
}

/// A write past the file size limit of the process fails and says so: without this, SIGXFSZ ends the process.
pub(crate) fn outlive_file_size_limit() {
    // A handler and not SIG_IGN, which commands of --run would inherit.
    if let Err(error) = signal_hook::flag::register(SIGXFSZ, Arc::default()) {
        tracing::warn!(%error, "no handler for SIGXFSZ: a file size limit (ulimit -f) may end this process");
    }
}
