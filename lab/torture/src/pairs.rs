//! The states allowed for one worker's keys, after answered changes and after changes with an unknown outcome.

use std::ops::RangeInclusive;

use load::random::Prng;

/// A value; `None` if the key does not exist.
pub(crate) type StoredValue = Option<Vec<u8>>;

/// Encoding of the number in a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Decimal digits, as memcached uses.
    Digits,
    /// Eight bytes, as the vendor command uses.
    Word,
}

impl Form {
    fn read(self, bytes: &[u8]) -> Option<u64> {
        match self {
            Self::Digits => std::str::from_utf8(bytes).ok()?.trim_end().parse().ok(),
            Self::Word => Some(u64::from_le_bytes(bytes.try_into().ok()?)),
        }
    }

    pub(crate) fn write(self, number: u64) -> Vec<u8> {
        match self {
            Self::Digits => number.to_string().into_bytes(),
            Self::Word => number.to_le_bytes().to_vec(),
        }
    }
}

/// An operation on a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    Set(Vec<u8>),
    Delete,
    Get,
    /// Adds to an existing counter.
    Add(u64),
}

/// Outcome of a deed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It was executed.
    Done,
    /// The value of a key.
    Found(StoredValue),
    /// The sum after an addition.
    Sum(u64),
    /// It was sent, and its outcome is unknown.
    Unknown,
    /// It was never sent.
    NotBegun,
    /// Refused for lack of memory while values wait for the file: nothing was changed.
    Full,
    /// Refused likewise, and the previous value was dropped, as memcached does.
    Gone,
    /// An outcome that is not allowed.
    Wrong(String),
}

/// A state, and the send that made it.
#[derive(Clone, Debug)]
struct Made {
    send: u64,
    state: StoredValue,
    /// The change was answered.
    is_answered: bool,
}

/// The states allowed for a key.
#[derive(Clone, Debug)]
struct Known {
    /// The durable state first, then the states since; the last is the current one, unless that is uncertain.
    states: Vec<Made>,
    /// Any of the states may be the current one.
    is_uncertain: bool,
}

/// The keys of one worker; no other worker changes them.
pub(crate) struct Ledger {
    first: u64,
    form: Form,
    /// Whether an answer means that its change is durable.
    settles: bool,
    known: Vec<Known>,
    version: u64,
    value_bytes_max: u64,
    /// The target may have been killed and restarted, so an answer may come from either process.
    is_between: bool,
    /// Number of the present send.
    send: u64,
    /// The first send that the restarted target may have executed.
    cut_at: Option<u64>,
    /// Of the keys read since a kill: the sends after which they were as read, and their numbers.
    spans: Vec<(RangeInclusive<u64>, usize)>,
    /// Of the keys read since a kill: the bytes of answered changes that are not there. Of each key, its last one counts.
    lost_bytes: u64,
}

/// The number of a worker's keys that are counters.
const COUNTER_COUNT: usize = 8;

impl Ledger {
    /// Keys that do not exist yet: `count` of them, from number `first` on.
    pub(crate) fn new(first: u64, count: usize, form: Form, settles: bool, value_bytes_max: u64) -> Self {
        let made = Made { send: 0, state: None, is_answered: true };
        let known = Known { states: vec![made], is_uncertain: false };
        Self {
            first,
            form,
            settles,
            known: vec![known; count],
            version: 0,
            value_bytes_max,
            is_between: false,
            send: 0,
            cut_at: None,
            spans: Vec::new(),
            lost_bytes: 0,
        }
    }

    /// Begins a send: its deeds take effect in any order, after those of all earlier sends.
    pub(crate) fn begin_send(&mut self) {
        self.send += 1;
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    pub(crate) fn key(&self, at: usize) -> host::Key {
        load::key_value::key(self.first + at as u64)
    }

    fn name(&self, at: usize) -> String {
        String::from_utf8_lossy(self.key(at).as_bytes()).into_owned()
    }

    /// Picks a deed for a key.
    pub(crate) fn deed(&mut self, at: usize, random: &mut Prng) -> Deed {
        if at < COUNTER_COUNT {
            let is_there = self.known[at].states.iter().all(|made| made.state.is_some());
            return match random.below(8) {
                _ if !is_there => Deed::Set(self.form.write(random.below(1000))),
                0 => Deed::Set(self.form.write(random.below(1000))),
                1 | 2 => Deed::Get,
                _ => Deed::Add(1 + random.below(9)),
            };
        }
        match random.below(20) {
            0 | 1 => Deed::Delete,
            2..8 => Deed::Get,
            _ => {
                // Mostly small values; some need several log writes.
                let length = match random.below(16) {
                    0..8 => 8 + random.below(100),
                    8..15 => 8 + random.below(8192),
                    _ => 8 + random.below(self.value_bytes_max - 8),
                };
                let mut value = vec![0; usize::try_from(length).expect("it fits memory")];
                self.version += 1;
                load::key_value::fill(self.first + at as u64, self.version, &mut value);
                Deed::Set(value)
            }
        }
    }

    /// Records the outcome of a deed.
    pub(crate) fn end(&mut self, at: usize, deed: &Deed, end: End) -> Result<(), String> {
        let wrong = |what: String| Err(format!("{} {}: {what}", self.name(at), shown(deed)));
        let send = self.send;
        match (deed, end) {
            (_, End::NotBegun) => {}
            // Unless answers wait for the file, stores may outrun it.
            (Deed::Set(_) | Deed::Add(_), End::Full) if !self.settles => {}
            (Deed::Set(_), End::Gone) if !self.settles => self.known[at].become_(send, None, false),
            (_, End::Wrong(what)) => return wrong(what),
            (Deed::Get, End::Unknown) => {}
            (Deed::Get, End::Found(state)) => return self.observe(at, &state),
            (Deed::Set(value), End::Done) => self.known[at].become_(send, Some(value.clone()), self.settles),
            (Deed::Set(value), End::Unknown) => self.known[at].perhaps(send, vec![Some(value.clone())]),
            (Deed::Delete, End::Done) => self.known[at].become_(send, None, self.settles),
            (Deed::Delete, End::Unknown) => self.known[at].perhaps(send, vec![None]),
            (Deed::Add(by), End::Sum(sum)) => {
                let form = self.form;
                let possible = self.known[at].possible();
                let before: Vec<u64> = possible.filter_map(|state| form.read(state.as_ref()?)).collect();
                if !before.iter().any(|number| number + by == sum) {
                    return wrong(format!("the sum is {sum}, it was one of {before:?}"));
                }
                self.known[at].become_(send, Some(form.write(sum)), self.settles);
            }
            (Deed::Add(by), End::Unknown) => {
                let form = self.form;
                let numbers = self.known[at].possible().filter_map(|state| form.read(state.as_ref()?));
                let sums = numbers.map(|number| Some(form.write(number + by))).collect();
                self.known[at].perhaps(send, sums);
            }
            (_, other) => return wrong(format!("it ended with {other:?}")),
        }
        Ok(())
    }

    /// Records the value read from a key.
    fn observe(&mut self, at: usize, found: &StoredValue) -> Result<(), String> {
        let known = &self.known[at];
        if !known.possible().any(|state| state == found) {
            let allowed: Vec<_> = known.possible().map(summary).collect();
            return Err(format!("{} holds {}, not one of {allowed:?}", self.name(at), summary(found)));
        }
        if known.is_uncertain && !self.is_between {
            // A value read after a restart came from the log.
            self.lost_bytes += known.lost_bytes(found);
            let last = known.states.last().map_or(0, |made| made.send);
            if last < self.cut_at.unwrap_or(self.send) {
                self.spans.extend(known.span(found).map(|span| (span, at)));
            }
            let made = Made { send: self.send, state: found.clone(), is_answered: true };
            self.known[at] = Known { states: vec![made], is_uncertain: false };
        }
        Ok(())
    }

    /// Whether the keys read since a kill show the effect of the first sends, up to one for each partition.
    pub(crate) fn judge_order(&mut self, partition_count: usize) -> Result<(), String> {
        self.cut_at = None;
        let mut spans = std::mem::take(&mut self.spans);
        spans.sort_unstable_by_key(|(span, _)| *span.end());
        // The fewest moments of which each span contains one: always the end of the first span without any.
        let mut moments: Vec<&(RangeInclusive<u64>, usize)> = Vec::new();
        for span in &spans {
            if moments.last().is_none_or(|(last, _)| span.0.start() > last.end()) {
                moments.push(span);
            }
        }
        if moments.len() <= partition_count {
            return Ok(());
        }
        let shown: Vec<_> = moments.iter().take(4).map(|(span, at)| (self.name(*at), span)).collect();
        let (count, moments) = (spans.len(), moments.len());
        Err(format!("{count} keys are from {moments} moments, in {partition_count} partitions: {shown:?}"))
    }

    /// Bytes of answered changes that the keys read since this was last asked do not have.
    pub(crate) fn take_lost_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.lost_bytes)
    }

    /// Records that everything answered so far is durable.
    pub(crate) fn flushed(&mut self) {
        for known in self.known.iter_mut().filter(|known| !known.is_uncertain) {
            known.states.drain(..known.states.len() - 1);
        }
    }

    /// Records that the target is being killed, and perhaps restarted, while answers arrive.
    pub(crate) fn cut(&mut self) {
        self.killed();
        self.is_between = true;
        self.cut_at.get_or_insert(self.send);
    }

    /// Records that the target has ended: only durable states are certain, and every value read from now on is durable.
    pub(crate) fn killed(&mut self) {
        self.is_between = false;
        for known in self.known.iter_mut().filter(|known| known.states.len() > 1) {
            known.is_uncertain = true;
        }
    }
}

impl Known {
    /// The possible current states.
    fn possible(&self) -> impl Iterator<Item = &StoredValue> {
        let first = if self.is_uncertain { 0 } else { self.states.len() - 1 };
        self.states[first..].iter().map(|made| &made.state)
    }

    /// The sends after which the key may have been in this state, from the first to the last.
    fn span(&self, state: &StoredValue) -> Option<RangeInclusive<u64>> {
        let first = self.states.iter().position(|made| made.state == *state)?;
        let last = self.states.iter().rposition(|made| made.state == *state)?;
        let end = self.states.get(last + 1).map_or(u64::MAX, |next| next.send);
        Some(self.states[first].send..=end)
    }

    /// Bytes of the last answered change after this state, if there is one.
    fn lost_bytes(&self, found: &StoredValue) -> u64 {
        let at = self.states.iter().rposition(|made| made.state == *found);
        let later = &self.states[at.map_or(0, |at| at + 1)..];
        let lost = later.iter().rfind(|made| made.is_answered);
        lost.map_or(0, |made| made.state.as_ref().map_or(0, Vec::len) as u64)
    }

    fn become_(&mut self, send: u64, state: StoredValue, is_settled: bool) {
        if is_settled {
            self.states.clear();
        }
        self.states.push(Made { send, state, is_answered: true });
        self.is_uncertain = false;
    }

    fn perhaps(&mut self, send: u64, states: Vec<StoredValue>) {
        self.states.extend(states.into_iter().map(|state| Made { send, state, is_answered: false }));
        self.is_uncertain = true;
    }
}

fn shown(deed: &Deed) -> String {
    match deed {
        Deed::Set(value) => format!("set to {} bytes", value.len()),
        Deed::Delete => "deleted".into(),
        Deed::Get => "read".into(),
        Deed::Add(by) => format!("increased by {by}"),
    }
}

/// A short form of a value: its length and version.
fn summary(state: &StoredValue) -> String {
    match state {
        None => "nothing".into(),
        Some(value) => {
            let first: Vec<_> = value.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            format!("{} bytes {}", value.len(), first.concat())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four keys are set in one send each, and two sends later again; after the kill the target has some of these.
    fn judge(found: [u8; 4], partition_count: usize) -> Result<(), String> {
        let mut ledger = Ledger::new(0, 5, Form::Digits, false, 1000);
        for version in 1..=2 {
            for at in 0..4 {
                ledger.begin_send();
                ledger.end(at, &Deed::Set(vec![version]), End::Done).unwrap();
            }
        }
        ledger.begin_send();
        ledger.end(4, &Deed::Delete, End::Unknown).unwrap();
        ledger.killed();
        for (at, version) in found.into_iter().enumerate() {
            let state = Some(vec![version]).filter(|_| version > 0);
            ledger.end(at, &Deed::Get, End::Found(state)).unwrap();
        }
        ledger.judge_order(partition_count)
    }

    #[test]
    fn what_a_kill_took_is_counted_by_the_last_answered_change_of_each_key() {
        let mut ledger = Ledger::new(0, 3, Form::Digits, false, 1000);
        let set = |ledger: &mut Ledger, at, length, end| {
            ledger.begin_send();
            ledger.end(at, &Deed::Set(vec![7; length]), end).unwrap();
        };
        for at in 0..3 {
            set(&mut ledger, at, 1, End::Done);
        }
        ledger.flushed();
        for (at, length, end) in
            [(0, 10, End::Done), (0, 20, End::Done), (1, 30, End::Done), (2, 40, End::Unknown)]
        {
            set(&mut ledger, at, length, end);
        }
        ledger.killed();
        for (at, length) in [(0, 1), (1, 30), (2, 1)] {
            ledger.end(at, &Deed::Get, End::Found(Some(vec![7; length]))).unwrap();
        }
        assert_eq!(ledger.take_lost_bytes(), 20);
        assert_eq!(ledger.take_lost_bytes(), 0);
    }

    #[test]
    fn survivors_are_from_one_moment_in_each_partition() {
        for found in [[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [2, 2, 1, 1], [2, 2, 2, 2]] {
            assert_eq!(judge(found, 1), Ok(()), "{found:?}");
        }
        for found in [[0, 1, 1, 1], [1, 1, 1, 2], [2, 1, 2, 1], [2, 2, 2, 0]] {
            assert!(judge(found, 1).is_err(), "{found:?}");
            assert_eq!(judge(found, 2), Ok(()), "{found:?}");
        }
        assert!(judge([0, 1, 2, 2], 1).is_err() && judge([2, 0, 1, 2], 2).is_err());
    }
}
