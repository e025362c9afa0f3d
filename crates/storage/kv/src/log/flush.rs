//! Flushes: where writes are not durable, a flush makes all changes durable that were written before it began.

/// What was written, and the flush that makes it durable.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    state: State,
    /// All changes up to this one are written, but not necessarily durable.
    pub(super) written: u64,
    /// A flush is wanted once all changes up to this one are written; 0: none.
    wanted: u64,
    /// Whether a flush is wanted regardless.
    is_wanted_now: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Nothing was written since the last flush, or each write is durable.
    #[default]
    Flushed,
    Unflushed,
    /// A flush is under way. Nothing is written meanwhile.
    Flushing,
}

impl Flushes {
    /// Whether anything was written since the last flush began.
    pub(super) fn is_unflushed(&self) -> bool {
        self.state == State::Unflushed
    }

    /// Whether a flush is under way.
    pub(super) fn is_flushing(&self) -> bool {
        self.state == State::Flushing
    }

    /// Has a flush begin once all changes up to this one are written.
    pub(super) fn want(&mut self, change: u64) {
        self.wanted = change;
    }

    /// Has a flush begin as soon as anything is unflushed.
    pub(super) fn want_now(&mut self) {
        self.is_wanted_now = true;
    }

    /// A write is complete.
    pub(super) fn on_written(&mut self, is_durable: bool) {
        self.state = if is_durable { State::Flushed } else { State::Unflushed };
    }

    /// Begins a flush if one is due.
    pub(super) fn begin_if_due(&mut self) -> bool {
        let is_wanted = self.is_wanted_now || self.wanted > 0 && self.written >= self.wanted;
        let is_due = self.is_unflushed() && is_wanted;
        if is_due {
            (self.state, self.is_wanted_now) = (State::Flushing, false);
        }
        is_due
    }

    /// Begins a flush, unless one is under way.
    pub(super) fn begin(&mut self) -> bool {
        std::mem::replace(&mut self.state, State::Flushing) != State::Flushing
    }

    /// A flush could not be started.
    pub(super) fn put_back(&mut self) {
        (self.state, self.is_wanted_now) = (State::Unflushed, true);
    }

    /// A flush has ended.
    pub(super) fn end(&mut self) {
        if self.is_flushing() {
            self.state = State::Flushed;
        }
    }

    /// All changes that were written are durable.
    pub(super) fn on_durable(&mut self) {
        if self.written >= self.wanted {
            self.wanted = 0;
        }
    }
}
