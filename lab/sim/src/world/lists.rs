//! Lists of keys: whole ones, and in pages, each of which continues behind the last key of the one before.
//!
//! ```text
//! page ─▶ each key in it was there while the page was read; none but the last of the page before comes again
//! end  ─▶ a key that no page has had was absent at some time since the first one began
//! ```

use host_core::{Command as HostCommand, KeyValueNamespace};
use wire::kv::{Key, KeyList};

use super::pair_command::Walk;
use super::pairs::{Pairs, What};
use crate::coverage::Point;
use crate::pair_model::{Action, Answer, Origin};
use crate::pair_settings::MemoryPressure;
use crate::random::Random;
use crate::shared::Shared;

/// Room for all keys of a List, bytes.
const LIST_BYTES: u32 = 4096;

/// One List in pages among this number of other commands on keys.
const WALK_ONE_IN: u64 = 30;

/// Keys that are watched from the first page to the last: looks that are out for long have many explanations.
const WATCHED_COUNT: usize = 2;

/// The number of keys before a List, and the length before a key in it, bytes.
const COUNT_BYTES: u32 = 4;
const LENGTH_BYTES: u32 = 2;

/// Each key is listed, and some do not exist.
const FOUND: Answer = Answer::Found { value: None, flags: None, cas: None };

/// The keys of a List.
fn listed_keys(listed: &[u8]) -> Result<Vec<Key>, String> {
    let list = KeyList::new(listed).ok_or("a List came without its number of keys")?;
    let keys: Result<Vec<Key>, _> = list.collect();
    keys.map_err(|_| "a List is malformed".into())
}

impl Pairs {
    /// The keys that hosts can have.
    fn short_keys(&self) -> Vec<usize> {
        let is_short = |at: &usize| Key::new(self.model.name(*at).as_bytes()).is_some();
        (0..self.settings.key_count).filter(is_short).collect()
    }

    /// Begins to look at these keys.
    fn look(&mut self, keys: impl IntoIterator<Item = usize>, now_ns: u64) -> Vec<(usize, u64)> {
        let begin = |at| (at, self.model.begin(at, Action::Get, Origin::Host, now_ns));
        keys.into_iter().map(begin).collect()
    }

    fn lose_looks(&mut self, looks: &[(usize, u64)], now_ns: u64) {
        looks.iter().for_each(|&(key, id)| self.model.lose(key, id, now_ns));
    }

    /// A List of all keys that hosts can have, if a look at each can be judged.
    pub(super) fn list(
        &mut self,
        namespace: &KeyValueNamespace,
        now_ns: u64,
    ) -> Option<(HostCommand, Option<Vec<u8>>, What)> {
        let command = namespace.list(None, LIST_BYTES).ok()?;
        let keys = self.short_keys();
        if !keys.iter().all(|at| self.model.has_room(*at)) {
            return None;
        }
        let looks = self.look(keys, now_ns);
        Some((command, Some(vec![0xee; LIST_BYTES as usize]), What::List { looks }))
    }

    /// Judges the keys that a List has found; `None` if it has failed.
    pub(super) fn judge_list(
        &mut self,
        looks: &[(usize, u64)],
        listed: Option<&[u8]>,
        now_ns: u64,
    ) -> Result<(), String> {
        let Some(listed) = listed else {
            self.lose_looks(looks, now_ns);
            return Ok(());
        };
        let mut keys = listed_keys(listed)?;
        for &(key, id) in looks {
            let known = Key::new(self.model.name(key).as_bytes()).ok_or("no key of a host")?;
            let answer = match keys.iter().position(|other| *other == known) {
                Some(at) => {
                    keys.swap_remove(at);
                    FOUND
                }
                None => Answer::Missing,
            };
            self.model.end(key, id, &answer, now_ns)?;
        }
        match keys.first() {
            Some(key) => Err(format!("a List has {key:?} twice, or a key that was never stored")),
            None => Ok(()),
        }
    }

    /// The next page of a lane's List in pages, or the first one of a new one.
    pub(super) fn next_page(
        &mut self,
        lane: (usize, usize),
        namespace: &KeyValueNamespace,
        choice: &mut Random,
        now_ns: u64,
    ) -> Option<(HostCommand, Vec<u8>, What)> {
        let keys = self.short_keys();
        let has_room =
            self.settings.pressure == MemoryPressure::None && keys.iter().all(|at| self.model.has_room(*at));
        let is_new = match self.walks.get(&lane) {
            Some(walk) if walk.is_out => return None,
            Some(_) => false,
            None if !has_room || !choice.one_in(WALK_ONE_IN) => return None,
            None => true,
        };
        // Later pages have half of their room for the last key of the page before.
        let length_max = keys.iter().map(|at| self.model.name(*at).len() as u32).max()?;
        let key_bytes = (LENGTH_BYTES + length_max).next_multiple_of(4);
        let room_bytes = COUNT_BYTES + key_bytes * choice.between(2, 4) as u32;
        if is_new {
            let first = choice.below(keys.len() as u64) as usize;
            let watched = keys.iter().cycle().skip(first).take(WATCHED_COUNT.min(keys.len()));
            let number = self.model.next_id;
            let watched = self.look(watched.copied(), now_ns);
            self.walks.insert(lane, Walk { number, watched, ..Walk::default() });
        }
        let walk = self.walks.get_mut(&lane)?;
        let command = namespace.list(walk.last.as_ref(), room_bytes).ok()?;
        walk.is_out = true;
        let number = walk.number;
        let unseen: Vec<usize> = keys.into_iter().filter(|key| !walk.seen.contains(key)).collect();
        let looks = self.look(unseen, now_ns);
        Some((command, vec![0xee; room_bytes as usize], What::Page { walk: number, looks }))
    }

    /// The target is down: the next one has its keys in another order.
    pub(super) fn end_walks(&mut self, now_ns: u64) {
        for walk in std::mem::take(&mut self.walks).into_values() {
            self.lose_looks(&walk.watched, now_ns);
        }
    }

    /// Judges the keys of a page, and those that none has had if it is the last; `None` if it has failed.
    pub(super) fn judge_page(
        &mut self,
        shared: &mut Shared,
        lane: (usize, usize),
        (number, looks): (u64, &[(usize, u64)]),
        listed: Option<&[u8]>,
    ) -> Result<(), String> {
        let now_ns = shared.now_ns;
        // It has ended with the target, and another one may have begun.
        let is_current = self.walks.get(&lane).is_some_and(|walk| walk.number == number);
        let walk = if is_current { self.walks.remove(&lane) } else { None };
        let Some(listed) = listed else {
            self.lose_looks(looks, now_ns);
            self.lose_looks(&walk.map_or(Vec::new(), |walk| walk.watched), now_ns);
            return Ok(());
        };
        let listed = listed_keys(listed)?;
        let at_of = |key: &Key| self.model.named(key.as_bytes());
        let found: Option<Vec<usize>> = listed.iter().map(at_of).collect();
        let found = found.ok_or_else(|| format!("a List has a key that was never stored: {listed:?}"))?;
        let is_twice = (1..found.len()).any(|at| found[..at].contains(&found[at]));
        let last = walk.as_ref().and_then(|walk| walk.last);
        let mut new = found.clone();
        if last.is_some() && listed.first() == last.as_ref() {
            new.remove(0);
        }
        for &(key, id) in looks {
            match new.contains(&key) {
                true => self.model.end(key, id, &FOUND, now_ns)?,
                false => self.model.lose(key, id, now_ns),
            }
        }
        let Some(mut walk) = walk else { return Ok(()) };
        if is_twice || new.iter().any(|key| walk.seen.contains(key)) {
            return Err(format!("a page has {listed:?}, some of which came before: {:?}", walk.seen));
        }
        let (watched, left) = walk.watched.into_iter().partition(|(key, _)| new.contains(key));
        let watched: Vec<(usize, u64)> = watched;
        for (key, id) in watched {
            self.model.end(key, id, &FOUND, now_ns)?;
        }
        walk.watched = left;
        if new.is_empty() {
            shared.coverage.reach(Point::Form(match walk.seen.len() {
                0 => "List in pages without a key",
                _ => "List in pages",
            }));
            for (key, id) in walk.watched {
                self.model.end(key, id, &Answer::Missing, now_ns)?;
            }
            return Ok(());
        }
        walk.seen.extend(new);
        walk.last = listed.last().copied();
        walk.is_out = false;
        self.walks.insert(lane, walk);
        Ok(())
    }
}
