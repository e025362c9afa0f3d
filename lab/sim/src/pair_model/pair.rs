//! Effects of commands on a pair, and their answers.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use wire::kv::operation::AtomicOperation;

use super::operation::{self, Effect, Vector};
use crate::pair_settings::MemoryPressure;

/// A value and its attributes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pair {
    /// The command that made the value. Pairs are ordered by it first, which is quicker than by their values.
    pub(super) version: u64,
    pub(super) value: Rc<[u8]>,
    pub(super) flags: u32,
    /// Its expiry, s: the earliest and the latest, since the second in which it was set is not known.
    pub(super) expiry_s: Option<(i64, i64)>,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let start = String::from_utf8_lossy(&self.value[..self.value.len().min(12)]);
        write!(f, "{} bytes {start:?} by {}", self.value.len(), self.version)?;
        if let Some((low_s, high_s)) = self.expiry_s {
            write!(f, " until {low_s} to {high_s}")?;
        }
        Ok(())
    }
}

/// A key's pair, if there is one.
pub(super) type KeyState = Option<Pair>;

/// The condition of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    /// If the value still has this CAS number.
    Cas(u64),
}

/// The action of a command. Times are memcached's: seconds from now on, 0 for none, negative for the past.
#[derive(Clone)]
pub(crate) enum Action {
    Get,
    GetAndTouch {
        exptime: i64,
    },
    Store {
        mode: Mode,
        value: Rc<[u8]>,
        flags: u32,
        exptime: i64,
    },
    Delete {
        /// Whether the answer reports if there was a pair.
        is_told: bool,
    },
    Count {
        delta: u64,
        is_decrement: bool,
        /// The number that a missing counter begins with, and its time.
        create: Option<(u64, i64)>,
    },
    Touch {
        exptime: i64,
    },
    /// A number of 4 or 8 bytes is changed.
    Atomic(AtomicOperation),
    /// A command on a vector.
    Vector(Vector),
    /// All pairs are removed.
    Clear,
}

impl Action {
    /// Whether it may change the pair.
    pub(super) fn changes(&self) -> bool {
        match self {
            Self::Get => false,
            Self::Vector(vector) => vector.changes(),
            _ => true,
        }
    }
}

impl std::fmt::Debug for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Get => write!(f, "get"),
            Self::GetAndTouch { exptime } => write!(f, "get and touch {exptime}"),
            Self::Store { mode, value, exptime, .. } => {
                let start = String::from_utf8_lossy(&value[..value.len().min(12)]);
                write!(f, "{mode:?} of {} bytes {start:?} for {exptime} s", value.len())
            }
            Self::Delete { .. } => write!(f, "delete"),
            Self::Count { delta, is_decrement: false, .. } => write!(f, "add {delta}"),
            Self::Count { delta, is_decrement: true, .. } => write!(f, "subtract {delta}"),
            Self::Touch { exptime } => write!(f, "touch {exptime}"),
            Self::Atomic(operation) => write!(f, "{operation:?}"),
            Self::Vector(vector) => write!(f, "{vector:?}"),
            Self::Clear => write!(f, "flush_all"),
        }
    }
}

/// Bytes of a value that are retrieved together, or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// One after the other; none for all.
    pub(crate) ranges: Rc<[Range<u32>]>,
    /// Length that the value must have; 0: any.
    pub(crate) expected_bytes: u32,
    /// Room for them.
    pub(crate) room_bytes: u32,
}

impl Asked {
    /// The bytes of a value; `None` if it does not have them.
    pub(super) fn of(&self, value: &[u8]) -> Option<Vec<u8>> {
        let ranges = self.ranges.iter().map(|range| value.get(range.start as usize..range.end as usize));
        let bytes = match self.ranges.is_empty() {
            true => value.to_vec(),
            false => ranges.collect::<Option<Vec<_>>>()?.concat(),
        };
        let is_expected = self.expected_bytes == 0 || self.expected_bytes as usize == value.len();
        let fits = bytes.len() <= value.len().min(self.room_bytes as usize);
        (is_expected && fits).then_some(bytes)
    }
}

/// The content of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// There is a pair: its value, flags and CAS number, as far as they were asked for.
    Found {
        value: Option<Rc<[u8]>>,
        flags: Option<u32>,
        cas: Option<u64>,
    },
    /// There is a pair with a value of this length, which begins like this.
    Begins {
        length: u64,
        start: Rc<[u8]>,
    },
    /// There is a pair, of whose value of this length these bytes were asked for; with flags and CAS number likewise.
    Ranges {
        asked: Asked,
        length: u64,
        bytes: Rc<[u8]>,
        flags: Option<u32>,
        cas: Option<u64>,
    },
    /// There is a pair, whose value does not have what was asked for.
    OtherValue(Asked),
    Missing,
    /// Done; with the CAS number of the new value, if it was asked for.
    Done {
        cas: Option<u64>,
    },
    /// Done, as no answer says; its outcome is not reported.
    Silent,
    NotStored,
    /// The value has another CAS number.
    Exists,
    Number(u64),
    NotNumeric,
    TooLarge,
    NoMemory,
    /// The log has no space: the change may be made or not, and is not durable.
    NoSpace,
}

impl Answer {
    /// Whether this answer reports a change that was made.
    pub(super) fn reports_change(&self) -> bool {
        matches!(self, Self::Done { .. } | Self::Number(_) | Self::Silent)
    }
}

/// The outcome of a command in a state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CommandOutcome {
    Found(Pair),
    Missing,
    /// Done, and the value has this version now, if there is one.
    Done(Option<u64>),
    NotStored,
    Exists,
    Number(u64),
    NotNumeric,
    NoMemory,
    NoSpace,
}

/// A command in a model.
#[derive(Clone, Debug)]
pub(super) struct Command {
    pub(super) id: u64,
    pub(super) action: Action,
    /// When it began, s.
    pub(super) begin_s: i64,
    pub(super) begin_ns: u64,
    /// By how much the wall clock was set since then, s.
    pub(super) step_s: i64,
}

/// Conditions of outcomes beside the state of the key.
pub(super) struct Rules {
    /// The longest value, bytes.
    pub(super) value_bytes_max: usize,
    pub(super) pressure: MemoryPressure,
}

/// Length of the longest value that may be a number, bytes: longer ones are stored in pieces.
const WHOLE_BYTES_MAX: usize = 4096;

/// The longest value that may be a vector, bytes.
const VECTOR_BYTES_MAX: usize = 1 << 20;

impl Command {
    /// The expiry that a time stands for, unless it has passed.
    fn expiry_s(&self, exptime: i64, now_s: i64) -> Option<Option<(i64, i64)>> {
        match exptime {
            0 => Some(None),
            ..0 => None,
            _ => Some(Some((self.begin_s + exptime - self.step_s, now_s + exptime + self.step_s))),
        }
    }

    /// Its possible outcomes in a state, up to `now_s`; `may_lack_space` if the log may have had no space for it.
    /// `version_of` returns the version that has a CAS number.
    pub(super) fn outcomes(
        &self,
        state: &KeyState,
        now_s: i64,
        rules: &Rules,
        may_lack_space: bool,
        version_of: impl Fn(u64) -> Option<u64>,
    ) -> Vec<(KeyState, CommandOutcome)> {
        let mut outcomes = Vec::new();
        let mut may_be_absent = true;
        if let Some(pair) = state {
            if pair.expiry_s.is_none_or(|(_, high_s)| self.begin_s < high_s) {
                self.on_present(pair, now_s, rules, version_of, &mut outcomes);
            }
            may_be_absent = rules.pressure == MemoryPressure::Evicts
                || pair.expiry_s.is_some_and(|(low_s, _)| low_s <= now_s);
        }
        if may_be_absent {
            outcomes.push(self.on_absent(now_s));
        }
        if rules.pressure != MemoryPressure::None
            && !matches!(self.action, Action::Get | Action::GetAndTouch { .. } | Action::Touch { .. })
            && !matches!(self.action, Action::Delete { .. } | Action::Clear)
        {
            outcomes.extend([(None, CommandOutcome::NoMemory), (state.clone(), CommandOutcome::NoMemory)]);
        }
        if may_lack_space {
            let states = outcomes.iter().map(|(state, _)| state).chain([state]);
            let states: BTreeSet<KeyState> = states.cloned().collect();
            outcomes.extend(states.into_iter().map(|state| (state, CommandOutcome::NoSpace)));
        }
        outcomes
    }

    /// The pair that a new value makes.
    fn stored(&self, value: &Rc<[u8]>, flags: u32, exptime: i64, now_s: i64) -> (KeyState, CommandOutcome) {
        let expiry_s = self.expiry_s(exptime, now_s);
        let pair =
            expiry_s.map(|expiry_s| Pair { value: Rc::clone(value), flags, expiry_s, version: self.id });
        (pair, CommandOutcome::Done(Some(self.id)))
    }

    fn on_present(
        &self,
        pair: &Pair,
        now_s: i64,
        rules: &Rules,
        version_of: impl Fn(u64) -> Option<u64>,
        outcomes: &mut Vec<(KeyState, CommandOutcome)>,
    ) {
        let touched = |exptime| {
            let expiry_s = self.expiry_s(exptime, now_s)?;
            Some(Pair { expiry_s, ..pair.clone() })
        };
        let same = Some(pair.clone());
        let outcome = match &self.action {
            Action::Get => (same, CommandOutcome::Found(pair.clone())),
            Action::GetAndTouch { exptime } => (touched(*exptime), CommandOutcome::Found(pair.clone())),
            Action::Touch { exptime } => (touched(*exptime), CommandOutcome::Done(Some(pair.version))),
            Action::Delete { .. } | Action::Clear => (None, CommandOutcome::Done(None)),
            Action::Store { mode: Mode::Set | Mode::Replace, value, flags, exptime } => {
                self.stored(value, *flags, *exptime, now_s)
            }
            Action::Store { mode: Mode::Add, .. } => (same, CommandOutcome::NotStored),
            Action::Store { mode: mode @ (Mode::Append | Mode::Prepend), value, .. } => {
                let parts = if *mode == Mode::Append { [&pair.value, value] } else { [value, &pair.value] };
                let value: Rc<[u8]> = parts.into_iter().flat_map(|part| part.iter().copied()).collect();
                match value.len() > rules.value_bytes_max {
                    true => (same, CommandOutcome::NotStored),
                    false => (
                        Some(Pair { value, version: self.id, ..pair.clone() }),
                        CommandOutcome::Done(Some(self.id)),
                    ),
                }
            }
            Action::Store { mode: Mode::Cas(cas), value, flags, exptime } => {
                let version = version_of(*cas);
                if version.is_none() {
                    outcomes.push((same.clone(), CommandOutcome::Exists));
                }
                match version.is_none_or(|version| version == pair.version) {
                    true => self.stored(value, *flags, *exptime, now_s),
                    false => (same, CommandOutcome::Exists),
                }
            }
            Action::Atomic(operation) => match operation::atomic(operation, &pair.value) {
                None => (same, CommandOutcome::NotNumeric),
                Some((before, after)) => {
                    // A value that stays as it was keeps its CAS number; one that is stored anew has another one.
                    let value: Rc<[u8]> = after.to_le_bytes()[..pair.value.len()].into();
                    let changed = Some(Pair { value, version: self.id, ..pair.clone() });
                    (
                        if operation.took_effect(before) { changed } else { same },
                        CommandOutcome::Number(before),
                    )
                }
            },
            Action::Vector(_) if pair.value.len() > VECTOR_BYTES_MAX => (same, CommandOutcome::NotNumeric),
            Action::Vector(vector) => match vector.effect(&pair.value) {
                None => (same, CommandOutcome::NotNumeric),
                Some(Effect::Changed { value, fetches }) => {
                    let length = CommandOutcome::Number(value.len() as u64);
                    let outcome = if fetches { CommandOutcome::Found(pair.clone()) } else { length };
                    (Some(Pair { value, version: self.id, ..pair.clone() }), outcome)
                }
                Some(Effect::Element(element)) => (same, CommandOutcome::Number(element)),
                Some(Effect::Bytes(value)) => (same, CommandOutcome::Found(Pair { value, ..pair.clone() })),
            },
            Action::Count { delta, is_decrement, .. } => match number_of(&pair.value) {
                None => (same, CommandOutcome::NotNumeric),
                Some(number) => {
                    let number = if *is_decrement {
                        number.saturating_sub(*delta)
                    } else {
                        number.wrapping_add(*delta)
                    };
                    // A shorter number keeps its room.
                    let value = format!("{number:<width$}", width = pair.value.len()).into_bytes().into();
                    (Some(Pair { value, version: self.id, ..pair.clone() }), CommandOutcome::Number(number))
                }
            },
        };
        outcomes.push(outcome);
    }

    fn on_absent(&self, now_s: i64) -> (KeyState, CommandOutcome) {
        match &self.action {
            Action::Store { mode: Mode::Set | Mode::Add, value, flags, exptime } => {
                self.stored(value, *flags, *exptime, now_s)
            }
            Action::Store { mode: Mode::Replace | Mode::Append | Mode::Prepend, .. } => {
                (None, CommandOutcome::NotStored)
            }
            Action::Count { create: Some((initial, exptime)), .. } => {
                let value: Rc<[u8]> = initial.to_string().into_bytes().into();
                let (pair, _) = self.stored(&value, 0, *exptime, now_s);
                (pair, CommandOutcome::Number(*initial))
            }
            Action::Clear | Action::Delete { is_told: false } => (None, CommandOutcome::Done(None)),
            Action::Atomic(operation) if let Some(initial) = operation::initial(operation) => {
                let value: Rc<[u8]> = initial.into();
                let (before, after) = operation::atomic(operation, &value).expect("its own width");
                let value = after.to_le_bytes()[..value.len()].into();
                let pair = Pair { value, flags: 0, expiry_s: None, version: self.id };
                (Some(pair), CommandOutcome::Number(before))
            }
            _ => (None, CommandOutcome::Missing),
        }
    }
}

/// The number that a value begins with: after white space and a sign, up to white space, a zero byte or the end.
fn number_of(value: &[u8]) -> Option<u64> {
    if value.len() > WHOLE_BYTES_MAX {
        return None;
    }
    let text = value.trim_ascii_start();
    let is_negative = text.first() == Some(&b'-');
    let digits = text.strip_prefix(b"-").or_else(|| text.strip_prefix(b"+")).unwrap_or(text);
    let is_end = |byte: &u8| *byte == 0 || byte.is_ascii_whitespace();
    let digits = &digits[..digits.iter().position(is_end).unwrap_or(digits.len())];
    let is_number = digits.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()?;
    (!is_negative || number == 0).then_some(number)
}
