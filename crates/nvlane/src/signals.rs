//! Ctrl-C and SIGTERM in commands that have something to tell before they end.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM};

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
