//! Event trace of a run: a digest of all events, and a timeline of them if it is to be printed.

use linux::random::mix;

use crate::timeline::{About, Timeline};
use crate::wire_view::WireView;

/// The record of one run.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    /// The events, and the commands that go over the wire: kept if they are to be printed.
    kept: Option<(Timeline, WireView)>,
    pub(crate) digest: u64,
}

impl Trace {
    pub(crate) fn new(is_kept: bool) -> Self {
        Self { kept: is_kept.then(Default::default), digest: 0 }
    }

    /// Notes an event by its numbers.
    #[inline]
    pub(crate) fn note(&mut self, now_ns: u64, what: u64) {
        self.digest = mix(self.digest ^ now_ns.rotate_left(20) ^ what);
    }

    /// Records an event in words: where it happens, a colon, and what happens.
    pub(crate) fn tell(&mut self, now_ns: u64, about: About, line: impl FnOnce() -> String) {
        self.note(now_ns, 0x5a);
        if let Some((timeline, _)) = &mut self.kept {
            let line = line();
            let (place, text) = line.split_once(": ").unwrap_or(("", &line));
            timeline.add(now_ns, place.into(), about, text.into());
        }
    }

    /// The kept events, if there are any.
    pub(crate) fn kept(&mut self) -> Option<&mut (Timeline, WireView)> {
        self.kept.as_mut()
    }

    pub(crate) fn take_timeline(&mut self) -> Timeline {
        self.kept.take().map(|(timeline, _)| timeline).unwrap_or_default()
    }
}
