//! `watch`: a connection that gets a line for each event of the kinds it named, from all reactors.
//!
//! ```text
//! event ─▶ WatchLog of the reactor ─ turn end ─▶ lines for each watcher, in one message ─▶ its Session ─▶ output
//! ```
//!
//! A watcher that has not taken its last 256 KiB loses lines, and gets their number. Without watchers, an event costs a
//! look at one byte.

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::crawler::Crawler;
use crate::number;

/// Kinds of events, one bit each.
pub(crate) mod kind {
    /// Look-ups of keys.
    pub(crate) const FETCHERS: u8 = 1;
    /// Stores.
    pub(crate) const MUTATIONS: u8 = 2;
    /// Evictions.
    pub(crate) const EVICTIONS: u8 = 4;
    /// Connections that begin and end.
    pub(crate) const CONNEVENTS: u8 = 8;
    /// Removals by `delete` and `md`.
    pub(crate) const DELETIONS: u8 = 16;
    /// Kinds without events here.
    const NOTHING: u8 = 128;

    /// In memcached's order: a word selects the first name that begins with it.
    const NAMES: [(&[u8], u8); 10] = [
        (b"rawcmds", NOTHING),
        (b"evictions", EVICTIONS),
        (b"fetchers", FETCHERS),
        (b"mutations", MUTATIONS),
        (b"sysevents", NOTHING),
        (b"connevents", CONNEVENTS),
        (b"proxyreqs", NOTHING),
        (b"proxyevents", NOTHING),
        (b"proxyuser", NOTHING),
        (b"deletions", DELETIONS),
    ];

    /// The kind with a name, or with one that begins like this.
    pub(crate) fn of(word: &[u8]) -> Option<u8> {
        NAMES.iter().find(|(name, _)| name.starts_with(word)).map(|(_, kind)| *kind)
    }
}

/// Watchers at the same time, as in memcached.
const COUNT_MAX: usize = 20;
/// Bytes of lines that are on their way to a watcher: with more, it loses lines.
const PENDING_BYTES_MAX: usize = 256 << 10;
/// Bytes of events of a reactor in one turn: with more, they are dropped.
const LOG_BYTES_MAX: usize = 256 << 10;
/// The answer to `watch`.
const OK: &[u8] = b"OK\r\n";

/// The watchers of a target, of all its reactors.
#[derive(Debug, Default)]
pub struct Watchers {
    /// Kinds that any of them watches.
    kinds: AtomicU8,
    /// Changes with the list.
    version: AtomicU64,
    list: Mutex<Vec<Arc<Watcher>>>,
    /// Number of the last event.
    event_number: AtomicU64,
    written_count: AtomicU64,
    dropped_count: AtomicU64,
    skipped_count: AtomicU64,
    sent_count: AtomicU64,
    /// Which session has the dump of the crawler.
    pub(crate) crawler: Arc<Crawler>,
}

/// Counts of watchers and their lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WatchStats {
    pub(crate) watcher_count: u64,
    /// Events that were logged, and that were not for lack of room.
    pub(crate) written_count: u64,
    pub(crate) dropped_count: u64,
    /// Lines that watchers lost, and got.
    pub(crate) skipped_count: u64,
    pub(crate) sent_count: u64,
}

/// One watcher.
#[derive(Debug)]
struct Watcher {
    kinds: u8,
    /// Number of the last event before it.
    since: u64,
    reactor: usize,
    session: u64,
    /// Bytes on their way to it.
    pending_bytes: AtomicUsize,
    /// Lines lost since the last one that it got.
    skipped_count: AtomicU64,
}

impl Watchers {
    fn list(&self) -> MutexGuard<'_, Vec<Arc<Watcher>>> {
        self.list.lock().expect("no holder panics")
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Arc<Watcher>>)) {
        let mut list = self.list();
        change(&mut list);
        self.kinds.store(list.iter().fold(0, |kinds, watcher| kinds | watcher.kinds), Ordering::Release);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Whether there is a watcher.
    #[inline]
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.kinds.load(Ordering::Acquire) != 0
    }

    pub(crate) fn stats(&self) -> WatchStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        WatchStats {
            watcher_count: self.list().len() as u64,
            written_count: count(&self.written_count),
            dropped_count: count(&self.dropped_count),
            skipped_count: count(&self.skipped_count),
            sent_count: count(&self.sent_count),
        }
    }
}

/// The watcher that a session is, until it is dropped.
#[derive(Debug)]
pub(crate) struct Watching {
    watchers: Arc<Watchers>,
    watcher: Arc<Watcher>,
}

impl Watching {
    /// Makes a session of a reactor a watcher of some kinds, and appends the answer. `None` if there are too many.
    pub(crate) fn begin(
        watchers: &Arc<Watchers>,
        kinds: u8,
        (reactor, session): (usize, u64),
        out: &mut Vec<u8>,
    ) -> Option<Self> {
        let watcher = Arc::new(Watcher {
            kinds,
            since: watchers.event_number.load(Ordering::Acquire),
            reactor,
            session,
            pending_bytes: AtomicUsize::new(OK.len()),
            skipped_count: AtomicU64::new(0),
        });
        let mut is_added = false;
        watchers.change(|list| {
            is_added = list.len() < COUNT_MAX;
            if is_added {
                list.push(Arc::clone(&watcher));
            }
        });
        out.extend_from_slice(if is_added { OK } else { b"WATCHER_TOO_MANY log watcher limit reached\r\n" });
        is_added.then(|| Self { watchers: Arc::clone(watchers), watcher })
    }

    /// The watcher has taken `count` bytes.
    pub(crate) fn on_sent(&self, count: usize) {
        // The last answer of a session that is refused was not pending.
        let less = |bytes: usize| Some(bytes.saturating_sub(count));
        let _ = self.watcher.pending_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.watchers.change(|list| list.retain(|watcher| !Arc::ptr_eq(watcher, &self.watcher)));
    }
}

/// Events of one turn of a reactor, for the watchers of any reactor.
#[derive(Debug, Default)]
pub struct WatchLog {
    watchers: Arc<Watchers>,
    version: u64,
    list: Vec<Arc<Watcher>>,
    /// Kinds that are watched.
    kinds: u8,
    /// The events without their time.
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    kind: u8,
    number: u64,
    /// Where it ends in the bytes.
    end: usize,
}

impl WatchLog {
    /// An empty log for these watchers.
    #[must_use]
    pub fn new(watchers: Arc<Watchers>) -> Self {
        Self { watchers, ..Self::default() }
    }

    pub(crate) fn watchers(&self) -> &Arc<Watchers> {
        &self.watchers
    }

    /// Notices watchers that have come or gone. Call it before events.
    #[inline]
    pub fn follow(&mut self) {
        if self.watchers.version.load(Ordering::Acquire) != self.version {
            self.read_list();
        }
    }

    #[cold]
    fn read_list(&mut self) {
        let list = self.watchers.list();
        self.version = self.watchers.version.load(Ordering::Acquire);
        self.list.clone_from(&list);
        self.kinds = self.watchers.kinds.load(Ordering::Acquire);
        if self.kinds == 0 {
            (self.bytes, self.entries) = (Vec::new(), Vec::new());
        }
    }

    /// Whether any events are watched.
    #[inline(always)]
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.kinds != 0
    }

    /// Whether events of a kind are watched.
    #[inline]
    pub(crate) fn watches(&self, kind: u8) -> bool {
        self.kinds & kind != 0
    }

    /// Logs an event, of which `write` appends the fields, if its kind is watched.
    pub(crate) fn log(&mut self, kind: u8, write: impl FnOnce(&mut Vec<u8>)) {
        if !self.watches(kind) {
            return;
        }
        let number = self.watchers.event_number.fetch_add(1, Ordering::AcqRel) + 1;
        if self.bytes.len() > LOG_BYTES_MAX {
            self.watchers.dropped_count.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.watchers.written_count.fetch_add(1, Ordering::Relaxed);
        write(&mut self.bytes);
        self.entries.push(Entry { kind, number, end: self.bytes.len() });
    }

    /// Counts events that could not be logged.
    pub(crate) fn count_dropped(&self, count: u64) {
        self.watchers.dropped_count.fetch_add(count, Ordering::Relaxed);
    }

    /// Passes to `post` the reactor and the session of each watcher, and its lines of the events since the last call.
    /// `unix_us` is the time, Unix time in microseconds.
    pub fn flush(&mut self, unix_us: u64, mut post: impl FnMut(usize, u64, Vec<u8>)) {
        if self.entries.is_empty() {
            return;
        }
        let time = format!("ts={}.{} gid=", unix_us / 1_000_000, unix_us % 1_000_000);
        for watcher in &self.list {
            let lines = self.lines_for(watcher, time.as_bytes());
            if !lines.is_empty() {
                watcher.pending_bytes.fetch_add(lines.len(), Ordering::AcqRel);
                post(watcher.reactor, watcher.session, lines);
            }
        }
        self.entries.clear();
        self.bytes.clear();
    }

    fn lines_for(&self, watcher: &Watcher, time: &[u8]) -> Vec<u8> {
        let pending_bytes = watcher.pending_bytes.load(Ordering::Acquire);
        let (mut lines, mut start) = (Vec::new(), 0);
        let (mut sent_count, mut skipped_count) = (0, 0);
        for entry in &self.entries {
            let event = &self.bytes[start..entry.end];
            start = entry.end;
            if entry.kind & watcher.kinds == 0 || entry.number <= watcher.since {
                continue;
            }
            // Once a line is lost, so are the later ones of this turn.
            if skipped_count > 0 || pending_bytes + lines.len() > PENDING_BYTES_MAX {
                skipped_count += 1;
                continue;
            }
            let lost_count = watcher.skipped_count.swap(0, Ordering::AcqRel);
            if lost_count > 0 {
                lines.extend_from_slice(b"skipped=");
                number::push(&mut lines, lost_count);
                lines.push(b'\n');
            }
            sent_count += 1;
            lines.extend_from_slice(time);
            number::push(&mut lines, entry.number);
            lines.push(b' ');
            lines.extend_from_slice(event);
            lines.push(b'\n');
        }
        watcher.skipped_count.fetch_add(skipped_count, Ordering::AcqRel);
        self.watchers.skipped_count.fetch_add(skipped_count, Ordering::Relaxed);
        self.watchers.sent_count.fetch_add(sent_count, Ordering::Relaxed);
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(log: &mut WatchLog, kind: u8, text: &[u8]) {
        log.follow();
        log.log(kind, |out| out.extend_from_slice(text));
    }

    fn lines(log: &mut WatchLog) -> Vec<(usize, u64, String)> {
        let mut lines = Vec::new();
        log.flush(5_000_007, |reactor, session, text| {
            lines.push((reactor, session, String::from_utf8(text).expect("text")));
        });
        lines
    }

    #[test]
    fn watchers_get_what_they_watch_from_then_on() {
        let watchers = Arc::<Watchers>::default();
        let mut log = WatchLog::new(Arc::clone(&watchers));
        event(&mut log, kind::FETCHERS, b"nobody sees it");
        assert!(!log.is_watched() && lines(&mut log).is_empty());
        let mut out = Vec::new();
        let one = Watching::begin(&watchers, kind::FETCHERS, (0, 7), &mut out).expect("the first");
        event(&mut log, kind::FETCHERS, b"a");
        event(&mut log, kind::MUTATIONS, b"b");
        let both = Watching::begin(&watchers, kind::FETCHERS | kind::MUTATIONS, (1, 8), &mut out);
        event(&mut log, kind::MUTATIONS, b"c");
        assert_eq!(out, b"OK\r\nOK\r\n");
        let (first, second) = ("ts=5.7 gid=1 a\n".to_owned(), "ts=5.7 gid=2 c\n".to_owned());
        assert_eq!(lines(&mut log), [(0, 7, first), (1, 8, second)]);
        drop(one);
        drop(both);
        event(&mut log, kind::FETCHERS, b"d");
        assert!(!watchers.is_watched() && lines(&mut log).is_empty());
        let counts = WatchStats { written_count: 2, sent_count: 2, ..WatchStats::default() };
        assert_eq!(watchers.stats(), counts);
    }

    #[test]
    fn who_takes_nothing_loses_lines_and_is_told_how_many() {
        let watchers = Arc::<Watchers>::default();
        let mut log = WatchLog::new(Arc::clone(&watchers));
        let watching = Watching::begin(&watchers, kind::FETCHERS, (0, 1), &mut Vec::new()).expect("room");
        let text = [b'x'; 1000];
        let mut taken = 0;
        for _ in 0..1000 {
            event(&mut log, kind::FETCHERS, &text);
            taken += lines(&mut log).first().map_or(0, |(_, _, lines)| lines.len());
        }
        assert!((PENDING_BYTES_MAX..PENDING_BYTES_MAX + 2000).contains(&taken));
        let skipped_count = watchers.stats().skipped_count;
        assert_eq!(skipped_count + watchers.stats().sent_count, 1000);
        watching.on_sent(taken);
        event(&mut log, kind::FETCHERS, b"next");
        let (_, _, last) = lines(&mut log).pop().expect("there is room");
        assert_eq!(last, format!("skipped={skipped_count}\nts=5.7 gid=1001 next\n"));
        // More in one turn than a log holds.
        for _ in 0..400 {
            event(&mut log, kind::FETCHERS, &text);
        }
        assert!(watchers.stats().dropped_count > 100);
    }

    #[test]
    fn there_are_not_too_many() {
        let watchers = Arc::<Watchers>::default();
        let mut out = Vec::new();
        let mut all: Vec<_> = (0..=20)
            .map(|session| Watching::begin(&watchers, kind::FETCHERS, (0, session), &mut out))
            .collect();
        assert!(all.pop().expect("the last").is_none() && out.ends_with(b"limit reached\r\n"));
        all.pop();
        assert!(Watching::begin(&watchers, kind::FETCHERS, (0, 1), &mut out).is_some());
        assert!(kind::of(b"e") == Some(kind::EVICTIONS) && kind::of(b"x").is_none());
    }
}
