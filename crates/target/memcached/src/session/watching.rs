//! Sessions that watch.

use super::Session;
use crate::router::Router;
use crate::watch::Watching;

impl Session {
    /// Makes the session a watcher. Answers before its first line could not be distinguished from lines.
    pub(crate) fn begin_watch(&mut self, router: &mut impl Router, kinds: u8) {
        let is_first = self.waiting_bytes() == 0;
        let (address, out) = ((router.position().0, router.session()), self.sink().bytes_mut());
        if !is_first {
            return out.extend_from_slice(b"ERROR cannot pipeline other commands before watch\r\n");
        }
        let executor = router.executor();
        self.watching = Watching::begin(executor.service.watch.watchers(), kinds, address, out);
    }

    /// Whether it is a watcher.
    #[must_use]
    pub fn is_watching(&self) -> bool {
        self.watching.is_some()
    }

    /// Lines for the watcher.
    pub fn on_watched(&mut self, lines: &[u8]) {
        if self.watching.is_some() {
            self.output.bytes_mut().extend_from_slice(lines);
        }
    }
}
