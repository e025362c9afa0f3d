//! One key: the orders of its commands that explain every answer so far.

use std::collections::{BTreeMap, BTreeSet};

use super::Crash;
use super::pair::{Answer, Command, CommandOutcome, KeyState, Pair, Rules};
use crate::pair_settings::{MemoryPressure, PairDurability, PairSettings};

pub(crate) type Finding = String;

/// Commands on one key that may be pending when another one begins: the orders of more are too many.
const PENDING_COUNT_MAX: usize = 5;

/// As above with little memory: a command has four possible outcomes.
const PENDING_COUNT_MAX_UNDER_PRESSURE: usize = 3;

/// Explanations of the answers so far up to which another command begins: a read that waits while others change the key
/// may have found each of its values.
const CONFIGURATION_COUNT_MAX: usize = 300;

/// Time that may pass without a mark in the log, s.
const UNMARKED_S: i64 = 61;

/// Source of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A connection of the memcached protocol. It takes effect after the command `after`, which was sent there before.
    Connection { after: Option<u64>, is_answered: bool },
    /// A host, which may send it when the target is up again.
    Host,
    /// A batch of a host: it takes effect after the operation `after` of that batch on the same key.
    Batch { after: Option<u64> },
    /// A command that a host sends again after each reconnect: beside the first, any number of executions.
    Again,
}

impl Origin {
    /// The command that must have taken effect before.
    fn after(self) -> Option<u64> {
        match self {
            Self::Connection { after, .. } | Self::Batch { after } => after,
            Self::Host | Self::Again => None,
        }
    }

    /// Whether a host sends it, once.
    fn is_of_host(self) -> bool {
        matches!(self, Self::Host | Self::Batch { .. })
    }
}

/// Knowledge of a command's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Awaited,
    /// The client asked for none.
    Unwanted,
    /// None will come, known since then.
    Lost {
        since_ns: u64,
    },
    /// The target is down: it takes no effect any more, and an answer may be on its way.
    Under,
    /// As `Under`, and the effect that an answer reports may be gone with the target; a host may send the command
    /// again.
    Meaningless,
}

/// A command that is sent and not answered.
#[derive(Clone, Debug)]
struct Pending {
    command: Command,
    origin: Origin,
    reply: Reply,
    /// The log may have had no space for it.
    may_lack_space: bool,
}

/// One possible state of the key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Configuration {
    state: KeyState,
    /// Pending commands that have taken effect, and their outcomes.
    applied: Vec<(u64, CommandOutcome)>,
}

/// The last time of a state.
#[derive(Clone, Copy, Debug)]
struct Past {
    last_ns: u64,
    /// It is no longer in the way of the end of the process.
    is_written_over: bool,
}

/// One key's history.
pub(super) struct History {
    configurations: Vec<Configuration>,
    pending: Vec<Pending>,
    /// States that a crash may bring back: if answers wait for the log, only those from before a change that was
    /// refused for lack of space.
    past: BTreeMap<KeyState, Past>,
    keeps_past: bool,
    /// The log has no space, or may still have none.
    lacks_space: bool,
    /// CAS numbers of versions, and the versions that have them.
    cas_of: BTreeMap<u64, u64>,
    version_of: BTreeMap<u64, u64>,
    /// Commands that may be executed several times: each execution gives the version another CAS number.
    repeated: BTreeSet<u64>,
    rules: Rules,
}

impl History {
    pub(super) fn new(settings: &PairSettings) -> Self {
        Self {
            configurations: vec![Configuration { state: None, applied: Vec::new() }],
            pending: Vec::new(),
            past: BTreeMap::new(),
            keeps_past: matches!(settings.durability, PairDurability::Batch | PairDurability::None),
            lacks_space: false,
            cas_of: BTreeMap::new(),
            version_of: BTreeMap::new(),
            repeated: BTreeSet::new(),
            rules: Rules { value_bytes_max: settings.item_bytes_max, pressure: settings.pressure },
        }
    }

    pub(super) fn has_room(&self) -> bool {
        let count_max = match self.rules.pressure {
            MemoryPressure::None if !self.lacks_space => PENDING_COUNT_MAX,
            _ => PENDING_COUNT_MAX_UNDER_PRESSURE,
        };
        self.pending.len() < count_max && self.configurations.len() <= CONFIGURATION_COUNT_MAX
    }

    pub(super) fn pending_count(&self) -> usize {
        self.pending.iter().filter(|pending| pending.reply == Reply::Awaited).count()
    }

    fn position(&self, id: u64) -> Option<usize> {
        self.pending.iter().position(|pending| pending.command.id == id)
    }

    /// When a pending command began.
    pub(super) fn begin_ns(&self, id: u64) -> Option<u64> {
        self.position(id).map(|at| self.pending[at].command.begin_ns)
    }

    /// Whether there is a pair that no command changes, and that does not expire.
    pub(super) fn stays(&self) -> bool {
        let is_lasting = |state: &KeyState| state.as_ref().is_some_and(|pair| pair.expiry_s.is_none());
        self.pending.iter().all(|pending| !pending.command.action.changes())
            && self.configurations.iter().all(|one| is_lasting(&one.state))
    }

    /// Whether a pending command changes something.
    pub(super) fn is_change(&self, id: u64) -> bool {
        self.position(id).is_some_and(|at| self.pending[at].command.action.changes())
    }

    pub(super) fn begin(&mut self, command: Command, origin: Origin) {
        let reply = match origin {
            Origin::Connection { is_answered: false, .. } | Origin::Again => Reply::Unwanted,
            _ => Reply::Awaited,
        };
        if origin == Origin::Again {
            self.repeated.insert(command.id);
        }
        self.pending.push(Pending { command, origin, reply, may_lack_space: self.lacks_space });
    }

    /// Whether the log may have had no space for a command.
    pub(super) fn may_lack_space(&self, id: u64) -> bool {
        self.position(id).is_some_and(|at| self.pending[at].may_lack_space)
    }

    /// The log has no space, or may still have none, or has some.
    pub(super) fn set_lacks_space(&mut self, lacks_space: bool) {
        self.lacks_space = lacks_space;
        self.pending.iter_mut().for_each(|pending| pending.may_lack_space |= lacks_space);
    }

    /// Whether a pending command may take effect next.
    fn is_next(&self, pending: &Pending, configuration: &Configuration) -> bool {
        let has = |id| configuration.applied.iter().any(|(applied, _)| *applied == id);
        let is_first =
            pending.origin.after().is_none_or(|before| has(before) || self.position(before).is_none());
        let is_over = match pending.reply {
            Reply::Under => true,
            Reply::Meaningless => !pending.origin.is_of_host(),
            Reply::Awaited | Reply::Unwanted | Reply::Lost { .. } => false,
        };
        is_first && !is_over && (pending.origin == Origin::Again || !has(pending.command.id))
    }

    /// Applies a pending command to a configuration.
    fn apply<'a>(
        &'a self,
        pending: &'a Pending,
        configuration: &'a Configuration,
        now_s: i64,
    ) -> impl Iterator<Item = Configuration> + 'a {
        let version_of = |cas| self.version_of.get(&cas).copied();
        let (state, may_lack_space) = (&configuration.state, pending.may_lack_space);
        let outcomes = pending.command.outcomes(state, now_s, &self.rules, may_lack_space, version_of);
        outcomes.into_iter().map(|(state, outcome)| {
            let mut applied = configuration.applied.clone();
            if applied.iter().all(|(id, _)| *id != pending.command.id) {
                applied.push((pending.command.id, outcome));
                applied.sort_unstable_by_key(|(id, _)| *id);
            }
            Configuration { state, applied }
        })
    }

    /// Whether an answer fits an outcome of a command.
    fn fits(&self, outcome: &CommandOutcome, answer: &Answer) -> bool {
        match (outcome, answer) {
            (CommandOutcome::Found(pair), Answer::Found { value, flags, cas }) => {
                value.as_ref().is_none_or(|value| *value == pair.value)
                    && flags.is_none_or(|flags| flags == pair.flags)
                    && self.may_have(pair.version, *cas)
            }
            (CommandOutcome::Found(pair), Answer::Begins { length, start }) => {
                pair.value.len() as u64 == *length && pair.value.starts_with(start)
            }
            (CommandOutcome::Found(pair), Answer::Ranges { asked, length, bytes, flags, cas }) => {
                pair.value.len() as u64 == *length
                    && flags.is_none_or(|flags| flags == pair.flags)
                    && self.may_have(pair.version, *cas)
                    && asked.of(&pair.value).as_deref() == Some(&**bytes)
            }
            (CommandOutcome::Found(pair), Answer::OtherValue(asked)) => asked.of(&pair.value).is_none(),
            (CommandOutcome::Done(version), Answer::Done { cas }) => {
                version.is_none_or(|version| self.may_have(version, *cas))
            }
            (CommandOutcome::Done(_) | CommandOutcome::Number(_), Answer::Silent) => true,
            (CommandOutcome::Number(number), Answer::Number(answered)) => number == answered,
            (CommandOutcome::Missing, Answer::Missing)
            | (CommandOutcome::NotStored, Answer::NotStored)
            | (CommandOutcome::Exists, Answer::Exists)
            | (CommandOutcome::NotNumeric, Answer::NotNumeric)
            | (CommandOutcome::NoMemory, Answer::NoMemory)
            | (CommandOutcome::NoMemory | CommandOutcome::NoSpace, Answer::NoSpace) => true,
            _ => false,
        }
    }

    /// Whether a version may have this CAS number: one version has one number, and no other has it.
    fn may_have(&self, version: u64, cas: Option<u64>) -> bool {
        cas.is_none_or(|cas| match self.version_of.get(&cas) {
            Some(known) => *known == version,
            None => !self.cas_of.contains_key(&version),
        })
    }

    /// A CAS number is known to be that of a version.
    fn know_cas(&mut self, answer: &Answer, outcomes: &[CommandOutcome]) {
        let (Answer::Found { cas: Some(cas), .. }
        | Answer::Ranges { cas: Some(cas), .. }
        | Answer::Done { cas: Some(cas) }) = answer
        else {
            return;
        };
        let versions: BTreeSet<u64> = outcomes
            .iter()
            .filter_map(|outcome| match outcome {
                CommandOutcome::Found(pair) => Some(pair.version),
                CommandOutcome::Done(version) => *version,
                _ => None,
            })
            .collect();
        if let (Some(version), 1) = (versions.first(), versions.len())
            && !self.repeated.contains(version)
        {
            self.cas_of.insert(*version, *cas);
            self.version_of.insert(*cas, *version);
        }
    }

    pub(super) fn end(&mut self, id: u64, answer: &Answer, now_s: i64, now_ns: u64) -> Result<(), Finding> {
        let at = self.position(id).ok_or("a command that is not out was answered")?;
        if self.pending[at].reply == Reply::Meaningless {
            self.lose(id, now_ns);
            return Ok(());
        }
        let (mut found, mut outcomes) = (BTreeSet::new(), Vec::new());
        // It may have taken effect, and been seen by others, before the log had no space for it.
        let is_refused = self.pending[at].may_lack_space && *answer == Answer::NoSpace;
        let seen = self.reachable(Some(id), now_s);
        for configuration in &seen {
            let place = configuration.applied.iter().position(|(applied, _)| *applied == id);
            if let Some(place) = place
                && (is_refused || self.fits(&configuration.applied[place].1, answer))
            {
                let mut configuration = configuration.clone();
                outcomes.push(configuration.applied.remove(place).1);
                found.insert(configuration);
            }
        }
        if found.is_empty() {
            let states: BTreeSet<&KeyState> = self.configurations.iter().map(|one| &one.state).collect();
            let pending: Vec<&Pending> = self.pending.iter().collect();
            let action = &self.pending[at].command.action;
            let finding = format!(
                "{id}, {action:?}, is answered with {}, and may be in {states:?} with {pending:?}",
                brief(answer)
            );
            return Err(finding);
        }
        self.know_cas(answer, &outcomes);
        if self.is_change(id) && answer.reports_change() && !self.keeps_past {
            // It is durable, and with it everything from before. Its answer may be late: changes after it that found no
            // space may be undone.
            let lacks_space = self.pending.iter().any(|pending| pending.may_lack_space);
            let is_after = |state: &KeyState| state.as_ref().is_none_or(|pair| pair.version >= id);
            self.past.retain(|state, _| lacks_space && is_after(state));
        } else if self.keeps_past || self.pending.iter().any(|pending| pending.may_lack_space) {
            for configuration in seen {
                let past = Past { last_ns: now_ns, is_written_over: false };
                self.past.insert(configuration.state, past);
            }
        }
        self.pending.remove(at);
        self.configurations = found.into_iter().collect();
        self.forget_applied();
        Ok(())
    }

    /// The configurations that orders of pending commands lead to; orders end with the command `last`.
    fn reachable(&self, last: Option<u64>, now_s: i64) -> BTreeSet<Configuration> {
        let mut seen = BTreeSet::new();
        let mut left = self.configurations.clone();
        while let Some(configuration) = left.pop() {
            if seen.contains(&configuration) {
                continue;
            }
            let is_over = configuration.applied.iter().any(|(applied, _)| Some(*applied) == last);
            for pending in
                self.pending.iter().filter(|pending| !is_over && self.is_next(pending, &configuration))
            {
                left.extend(self.apply(pending, &configuration, now_s));
            }
            seen.insert(configuration);
        }
        seen
    }

    /// Commands without an answer that have taken effect in every configuration are over.
    fn forget_applied(&mut self) {
        let is_over = |pending: &&Pending| {
            let has = |one: &Configuration| one.applied.iter().any(|(id, _)| *id == pending.command.id);
            pending.origin != Origin::Again
                && matches!(pending.reply, Reply::Unwanted | Reply::Lost { .. })
                && self.configurations.iter().all(has)
        };
        let over: Vec<u64> = self.pending.iter().filter(is_over).map(|pending| pending.command.id).collect();
        over.into_iter().for_each(|id| self.drop_pending(id));
    }

    /// A command is no longer pending, whether it took effect or not.
    fn drop_pending(&mut self, id: u64) {
        self.pending.retain(|pending| pending.command.id != id);
        self.configurations.iter_mut().for_each(|one| one.applied.retain(|(applied, _)| *applied != id));
        self.configurations.sort_unstable();
        self.configurations.dedup();
    }

    pub(super) fn deny(&mut self, id: u64) -> Result<(), Finding> {
        if self.position(id).is_none() {
            return Ok(());
        }
        self.configurations.retain(|one| !one.applied.iter().any(|(applied, _)| *applied == id));
        if self.configurations.is_empty() {
            return Err(format!("{id} was refused, and its effect was seen"));
        }
        self.drop_pending(id);
        Ok(())
    }

    pub(super) fn unorder(&mut self, id: u64) {
        let Some(at) = self.position(id) else { return };
        if let Origin::Connection { after, .. } = &mut self.pending[at].origin {
            *after = None;
        }
    }

    pub(super) fn lose(&mut self, id: u64, now_ns: u64) {
        let Some(at) = self.position(id) else { return };
        let Pending { command, reply, origin, .. } = &self.pending[at];
        let is_over = *reply == Reply::Under || *reply == Reply::Meaningless && !origin.is_of_host();
        if is_over || !command.action.changes() {
            return self.drop_pending(id);
        }
        self.pending[at].reply = Reply::Lost { since_ns: now_ns };
        self.forget_applied();
    }

    pub(super) fn rule_out(&mut self, before_ns: u64, now_s: i64) {
        let is_over = |pending: &&Pending| match pending.reply {
            Reply::Lost { since_ns } => since_ns < before_ns,
            _ => false,
        };
        let over: Vec<u64> = self.pending.iter().filter(is_over).map(|pending| pending.command.id).collect();
        if over.is_empty() {
            return;
        }
        self.configurations = self.reachable(None, now_s).into_iter().collect();
        over.into_iter().for_each(|id| self.drop_pending(id));
    }

    /// States that were replaced before do not come back.
    pub(super) fn settle(&mut self, begin_ns: u64) {
        self.past.retain(|_, past| past.last_ns >= begin_ns);
    }

    /// States that were replaced before come back only if the power goes.
    pub(super) fn settle_process(&mut self, begin_ns: u64) {
        let replaced = self.past.values_mut().filter(|past| past.last_ns < begin_ns);
        replaced.for_each(|past| past.is_written_over = true);
    }

    /// Commands that are out may have begun before the wall clock was set, and end after it.
    pub(super) fn on_wall_set(&mut self, step_s: i64) {
        self.pending.iter_mut().for_each(|pending| pending.command.step_s += step_s);
    }

    /// Pairs that had not expired when the power went, at `cut_s`, may have lost the time that passes without a mark in
    /// the log, or if the wall clock was wrong at any time all that was left; or they have gained the time in which the
    /// power was off.
    pub(super) fn on_boot(&mut self, cut_s: i64, now_s: i64, is_wall_right: bool) {
        self.change_states(|state| {
            if let Some(Pair { expiry_s: Some((low_s, high_s)), .. }) = state
                && *high_s > cut_s
            {
                *low_s = if is_wall_right { low_s.saturating_sub(UNMARKED_S) } else { i64::MIN };
                *high_s += now_s - cut_s + 1;
            }
        });
    }

    /// Pairs may have lost all the time that was left.
    pub(super) fn on_wall_set_in_recovery(&mut self) {
        self.change_states(|state| {
            if let Some(Pair { expiry_s: Some((low_s, _)), .. }) = state {
                *low_s = i64::MIN;
            }
        });
    }

    fn change_states(&mut self, change: impl Fn(&mut KeyState)) {
        self.configurations.iter_mut().for_each(|one| change(&mut one.state));
        self.configurations.sort_unstable();
        self.configurations.dedup();
        for (mut state, past) in std::mem::take(&mut self.past) {
            change(&mut state);
            let known = self.past.entry(state).or_insert(past);
            known.last_ns = known.last_ns.max(past.last_ns);
            known.is_written_over &= past.is_written_over;
        }
    }

    pub(super) fn on_crash(&mut self, durability: PairDurability, crash: Crash, now_s: i64) {
        let reachable = self.reachable(None, now_s);
        if durability == PairDurability::Always {
            // Answers to commands that took effect before may be on their way.
            let mut configurations = reachable.clone();
            for state in std::mem::take(&mut self.past).into_keys() {
                let reverted = |one: &Configuration| Configuration { state: state.clone(), ..one.clone() };
                configurations.extend(reachable.iter().map(reverted));
            }
            return self.on_durable_crash(configurations);
        }
        let mut states: BTreeSet<KeyState> = BTreeSet::new();
        if durability == PairDurability::Memory {
            states.insert(None);
            self.cas_of.clear();
            self.version_of.clear();
            self.past.clear();
        } else {
            states.extend(reachable.into_iter().map(|configuration| configuration.state));
            let comes_back = |past: &Past| crash == Crash::PowerCut || !past.is_written_over;
            states.extend(self.past.extract_if(.., |_, past| comes_back(past)).map(|(state, _)| state));
            // The others come back if the power goes before the log is durable, such as at once after a kill.
        }
        let may_be_answered = |reply| !matches!(reply, Reply::Unwanted | Reply::Lost { .. });
        self.pending.retain(|pending| may_be_answered(pending.reply) || pending.origin == Origin::Again);
        for pending in self.pending.iter_mut().filter(|pending| pending.origin != Origin::Again) {
            pending.reply = Reply::Meaningless;
        }
        let configuration = |state| Configuration { state, applied: Vec::new() };
        self.configurations = states.into_iter().map(configuration).collect();
    }

    /// Changes that were answered have survived. Answers may be on their way, and hosts send commands again.
    fn on_durable_crash(&mut self, mut configurations: BTreeSet<Configuration>) {
        let may_be_answered = |reply| !matches!(reply, Reply::Unwanted | Reply::Lost { .. });
        self.pending.retain(|pending| may_be_answered(pending.reply) || pending.origin == Origin::Again);
        let without = |one: &Configuration, gone: &dyn Fn(u64) -> bool| {
            let applied = one.applied.iter().filter(|(id, _)| !gone(*id)).cloned().collect();
            Configuration { state: one.state.clone(), applied }
        };
        for pending in &mut self.pending {
            match pending.origin {
                Origin::Connection { .. } => pending.reply = Reply::Under,
                Origin::Host | Origin::Batch { .. } | Origin::Again => {
                    let is_it = |id| id == pending.command.id;
                    let again: Vec<_> = configurations.iter().map(|one| without(one, &is_it)).collect();
                    configurations.extend(again);
                }
            }
        }
        let is_unknown = |id| self.position(id).is_none();
        let known: BTreeSet<_> = configurations.iter().map(|one| without(one, &is_unknown)).collect();
        self.configurations = known.into_iter().collect();
    }
}

fn brief(answer: &Answer) -> String {
    match answer {
        Answer::Found { value: Some(value), flags, cas } => {
            let start = String::from_utf8_lossy(&value[..value.len().min(12)]);
            format!("{} bytes {start:?}, flags {flags:?}, cas {cas:?}", value.len())
        }
        Answer::Ranges { asked, length, bytes, flags, cas } => {
            let start = String::from_utf8_lossy(&bytes[..bytes.len().min(12)]);
            let count = bytes.len();
            format!("{count} bytes {start:?} of {length}, {asked:?}, flags {flags:?}, cas {cas:?}")
        }
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair_model::{Action, Mode};

    fn command(id: u64, action: Action) -> Command {
        Command { id, action, begin_s: 0, begin_ns: 0, step_s: 0 }
    }

    fn set(id: u64, value: &str) -> Command {
        let value = value.as_bytes().into();
        command(id, Action::Store { mode: Mode::Set, value, flags: 0, exptime: 0 })
    }

    /// Whether a read may find this value with this CAS number.
    fn may_find(history: &mut History, id: u64, value: &str, cas: u64) -> bool {
        history.begin(command(id, Action::Get), Origin::Host);
        let answer = Answer::Found { value: Some(value.as_bytes().into()), flags: None, cas: Some(cas) };
        let is_explained = history.end(id, &answer, 0, 0).is_ok();
        history.lose(id, 0);
        is_explained
    }

    const DONE: Answer = Answer::Done { cas: None };

    /// A store that was executed three times, each time after another one.
    fn executed_three_times() -> History {
        let settings = (0..).find_map(|seed| PairSettings::draw(seed, 1)).expect("one of four has pairs");
        let mut history =
            History::new(&PairSettings { pressure: MemoryPressure::None, item_bytes_max: 100, ..settings });
        history.begin(set(1, "store"), Origin::Host);
        history.begin(set(2, "store"), Origin::Again);
        for round in 1..4 {
            assert!(may_find(&mut history, 10 * round, "store", 100 + round), "execution {round}");
            history.begin(set(10 * round + 1, "other"), Origin::Host);
            history.end(10 * round + 1, &DONE, 0, 0).unwrap();
            assert!(may_find(&mut history, 10 * round + 2, "other", 200 + round));
            assert!(!may_find(&mut history, 10 * round + 3, "other", 300), "a version has one CAS number");
        }
        history
    }

    /// A change that was answered late, while another one after it has found no space.
    #[test]
    fn a_change_without_space_may_be_undone_up_to_one_that_is_durable() {
        let mut random = crate::random::Random::new(1, 40);
        let settings = std::iter::from_fn(|| Some(random.below(u64::MAX)))
            .find_map(|seed| {
                PairSettings::draw(seed, 1).filter(|settings| {
                    settings.durability == PairDurability::Always && settings.pressure == MemoryPressure::None
                })
            })
            .expect("most have such a log");
        let found_after = |value: &str| {
            let mut history = History::new(&settings);
            history.set_lacks_space(true);
            history.begin(set(1, "first"), Origin::Host);
            history.end(1, &DONE, 0, 0).unwrap();
            history.begin(set(2, "second"), Origin::Host);
            history.begin(command(3, Action::Delete { is_told: true }), Origin::Host);
            history.begin(command(4, Action::Get), Origin::Host);
            history.end(4, &Answer::Missing, 0, 0).unwrap();
            history.end(2, &DONE, 0, 0).unwrap();
            history.end(3, &Answer::NoSpace, 0, 0).unwrap();
            history.on_crash(PairDurability::Always, Crash::PowerCut, 0);
            may_find(&mut history, 5, value, 1)
        };
        assert!(found_after("second"), "the removal is undone");
        assert!(!found_after("first"), "what is durable has replaced it");
    }

    #[test]
    fn what_the_kernel_has_written_over_comes_back_if_the_power_goes_after_a_kill() {
        let settings = (0..).find_map(|seed| {
            PairSettings::draw(seed, 1).filter(|settings| settings.durability == PairDurability::None)
        });
        let found_after = |crashes: &[Crash]| {
            let mut history = History::new(settings.as_ref().expect("many have such a log"));
            for (id, value) in [(1, "first"), (2, "second")] {
                history.begin(set(id, value), Origin::Host);
                history.end(id, &DONE, 0, 0).unwrap();
            }
            history.settle_process(1);
            crashes.iter().for_each(|crash| history.on_crash(PairDurability::None, *crash, 0));
            may_find(&mut history, 3, "first", 1)
        };
        assert!(!found_after(&[Crash::Kill]) && found_after(&[Crash::PowerCut]));
        assert!(found_after(&[Crash::Kill, Crash::PowerCut]));
    }

    #[test]
    fn a_command_that_is_sent_again_may_be_executed_after_each_reconnect() {
        let mut history = executed_three_times();
        history.lose(2, 5);
        history.end(1, &DONE, 0, 0).unwrap();
        assert!(may_find(&mut history, 50, "store", 150), "of a connection that was lost");
        history.begin(set(51, "other"), Origin::Host);
        history.end(51, &DONE, 0, 0).unwrap();
        history.rule_out(6, 0);
        assert!(may_find(&mut history, 52, "other", 250));
        assert!(!may_find(&mut history, 53, "store", 153), "long after it ended");
    }

    #[test]
    fn a_command_is_executed_once_without_a_reconnect() {
        assert!(executed_three_times().deny(2).is_err());
    }
}
