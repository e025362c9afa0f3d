//! Ctrl-C and SIGTERM in commands that report before they end, and SIGXFSZ, which must not end any.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};

/// Sets a flag on the first signal, so that the command ends with its report.
#[derive(Debug)]
pub struct EndOnSignal {
    handlers: Vec<SigId>,
}

impl EndOnSignal {
    /// Handles both signals until this value is dropped.
    ///
    /// # Errors
    /// The handlers cannot be installed.
    pub fn new(stops: &Arc<AtomicBool>) -> anyhow::Result<Self> {
        let handlers = [SIGINT, SIGTERM].map(|signal| {
            // A second signal ends the process at once.
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

/// Makes writes past the file size limit of the process fail with an error instead of ending it with SIGXFSZ.
pub fn outlive_file_size_limit() {
    // A handler, because commands of --run would inherit SIG_IGN.
    if let Err(error) = signal_hook::flag::register(SIGXFSZ, Arc::default()) {
        tracing::warn!(%error, "no handler for SIGXFSZ: a file size limit (ulimit -f) may end this process");
    }
}
