//! The states allowed for one worker's keys, after answered changes and after changes with an unknown outcome.

use load::random::Prng;

/// A value; `None` if the key does not exist.
pub(crate) type State = Option<Vec<u8>>;

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
    Found(State),
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

/// The states allowed for a key.
#[derive(Clone, Debug)]
struct Known {
    /// The durable state first, then the states since; the last is the current one, unless that is uncertain.
    states: Vec<State>,
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
}

/// The number of a worker's keys that are counters.
const COUNTER_COUNT: usize = 8;

impl Ledger {
    /// Keys that do not exist yet: `count` of them, from number `first` on.
    pub(crate) fn new(first: u64, count: usize, form: Form, settles: bool, value_bytes_max: u64) -> Self {
        let known = Known { states: vec![None], is_uncertain: false };
        let known = vec![known; count];
        Self { first, form, settles, known, version: 0, value_bytes_max, is_between: false }
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
            let is_there = self.known[at].states.iter().all(Option::is_some);
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
    ///
    /// # Errors
    /// The outcome is not allowed.
    pub(crate) fn end(&mut self, at: usize, deed: &Deed, end: End) -> Result<(), String> {
        let wrong = |what: String| Err(format!("{} {}: {what}", self.name(at), shown(deed)));
        match (deed, end) {
            (_, End::NotBegun) => {}
            // Unless answers wait for the file, stores may outrun it.
            (Deed::Set(_) | Deed::Add(_), End::Full) if !self.settles => {}
            (Deed::Set(_), End::Gone) if !self.settles => self.known[at].become_(None, false),
            (_, End::Wrong(what)) => return wrong(what),
            (Deed::Get, End::Unknown) => {}
            (Deed::Get, End::Found(state)) => return self.observe(at, &state),
            (Deed::Set(value), End::Done) => self.known[at].become_(Some(value.clone()), self.settles),
            (Deed::Set(value), End::Unknown) => self.known[at].perhaps(vec![Some(value.clone())]),
            (Deed::Delete, End::Done) => self.known[at].become_(None, self.settles),
            (Deed::Delete, End::Unknown) => self.known[at].perhaps(vec![None]),
            (Deed::Add(by), End::Sum(sum)) => {
                let form = self.form;
                let possible = self.known[at].possible();
                let before = possible.iter().flatten().filter_map(|bytes| form.read(bytes));
                if !before.clone().any(|number| number + by == sum) {
                    let before: Vec<_> = before.collect();
                    return wrong(format!("the sum is {sum}, it was one of {before:?}"));
                }
                self.known[at].become_(Some(form.write(sum)), self.settles);
            }
            (Deed::Add(by), End::Unknown) => {
                let form = self.form;
                let numbers = self.known[at].possible().iter().flatten().filter_map(|bytes| form.read(bytes));
                let sums = numbers.map(|number| Some(form.write(number + by))).collect();
                self.known[at].perhaps(sums);
            }
            (_, other) => return wrong(format!("it ended with {other:?}")),
        }
        Ok(())
    }

    /// Records the value read from a key.
    fn observe(&mut self, at: usize, found: &State) -> Result<(), String> {
        let known = &self.known[at];
        if !known.possible().contains(found) {
            let allowed: Vec<_> = known.possible().iter().map(summary).collect();
            return Err(format!("{} holds {}, not one of {allowed:?}", self.name(at), summary(found)));
        }
        if known.is_uncertain && !self.is_between {
            // A value read after a restart came from the log.
            self.known[at] = Known { states: vec![found.clone()], is_uncertain: false };
        }
        Ok(())
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
    fn possible(&self) -> &[State] {
        if self.is_uncertain { &self.states } else { &self.states[self.states.len() - 1..] }
    }

    fn become_(&mut self, state: State, is_settled: bool) {
        if is_settled {
            self.states.clear();
        }
        self.states.push(state);
        self.is_uncertain = false;
    }

    fn perhaps(&mut self, states: Vec<State>) {
        self.states.extend(states);
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
fn summary(state: &State) -> String {
    match state {
        None => "nothing".into(),
        Some(value) => {
            let first: Vec<_> = value.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            format!("{} bytes {}", value.len(), first.concat())
        }
    }
}
