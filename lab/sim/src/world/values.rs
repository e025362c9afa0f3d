//! Values whose key is in the data of another command: two commands each, or three. docs/kv-commands.md §7
//!
//! ```text
//! Store Data, or Collect ─▶ ends with the outcome, which is judged as that of one command
//! Submit                 ─▶ fails, while the first waits: the host cancels the first
//! Store Flags            ─▶ when the value was sent; at times at once, which may be too early: then again
//! ```
//!
//! Some hosts make slips: a Submit that must be refused with the command that waits for it, a second command with the
//! same tag, flags that nobody waits for.

use std::ops::Range;
use std::rc::Rc;

use host_core::{Command as HostCommand, Completion, Failure, KeyValueNamespace};
use memory::CHUNK_BYTES;
use wire::kv::batch::StoreAttributes;
use wire::kv::value::{FLAGS_FOLLOW, RetrieveSubmit, StoreSubmit};
use wire::sqe::Sqe;
use wire::status::Status;

use super::open_value::{End, Flags, OpenValue, Part, Work};
use super::pair_command::{Verb, draw_mode};
use super::pairs::{NSID, OwnKeys, PairCommand, Pairs, What, explanation, unexplained};
use super::{Stage, World};
use crate::coverage::Point;
use crate::pair_model::{Action, Answer, Asked, Origin, value};
use crate::pair_settings::PairDurability;
use crate::random::Random;
use crate::user_buffer::UserBuffer;

/// One value of this number is sent with a slip.
const SLIP_ONE_IN: u64 = 10;

/// The flags of one value of this number are not sent, where commands may take long.
const FORGOTTEN_ONE_IN: u64 = 12;

/// Bytes of a value that the target's limits leave for its key.
const LONG_KEY_BYTES: usize = 200;

/// A value that is about to be sent: its commands in order.
struct Draft {
    open: OpenValue,
    commands: Vec<(Part, HostCommand, Option<UserBuffer>)>,
}

/// A Submit that a library would not send, and the status with which it must be refused.
fn wrong_submit(
    sqe: Sqe,
    data: Vec<u8>,
    status: Status,
) -> (HostCommand, Option<UserBuffer>, Option<Status>) {
    (HostCommand::raw_to_controller(sqe, data.len() as u32), Some(data.into()), Some(status))
}

impl Pairs {
    /// The longest value that a host stores by two commands, bytes.
    fn paired_bytes_max(&self, namespace: &KeyValueNamespace) -> usize {
        let most = self.settings.item_bytes_max - LONG_KEY_BYTES;
        most.min(namespace.paired_value_bytes_max() as usize)
    }

    fn draw_store(
        &mut self,
        place: (usize, usize),
        (namespace, tag, in_capsule_bytes): (&KeyValueNamespace, u32, usize),
        key: usize,
        choice: &mut Random,
        now_ns: u64,
    ) -> Option<Draft> {
        let high = self.paired_bytes_max(namespace);
        let length = match choice.one_in(2) {
            true => self.draw_length(choice, high),
            false if self.settings.has_chunks() => choice.between(1, high as u64) as usize,
            false => choice.scaled(1, high as u64) as usize,
        };
        let content: Rc<[u8]> = value(self.model.next_id, length);
        let (mode, options) = draw_mode(choice);
        let ttl_s = if choice.one_in(4) { choice.between(1, 8) as u32 } else { 0 };
        let flags = self.model.next_id as u32 | u32::from(choice.one_in(2)) << 31;
        let follows = length > in_capsule_bytes && namespace.takes_flags_later() && choice.one_in(2);
        let name = self.model.name(key);
        let name = name.as_bytes();
        let made = match follows {
            true => namespace.store_flags_later(tag, name, length as u32, (options, ttl_s)),
            false => {
                let attributes = StoreAttributes { ttl_s, flags };
                namespace.store_long(tag, name, length as u32, (options, attributes))
            }
        };
        let [first, mut submit] = made.ok()?;
        let (mut slip, mut submit_data) = (None, None);
        if choice.one_in(SLIP_ONE_IN) {
            let right = StoreSubmit::from_sqe(submit.sqe());
            let data = [&flags.to_le_bytes(), name].concat();
            let is_in_capsule = length <= in_capsule_bytes;
            let (wrong, data, status) = match choice.below(5) {
                0 => (StoreSubmit { tag: !tag, ..right }, data, Status::COMMAND_SEQUENCE_ERROR),
                1 => {
                    (StoreSubmit { value_bytes: right.value_bytes ^ 1, ..right }, data, Status::INVALID_FIELD)
                }
                2 if is_in_capsule => (
                    StoreSubmit { options: right.options | FLAGS_FOLLOW, ..right },
                    data,
                    Status::INVALID_FIELD,
                ),
                3 => (StoreSubmit { key_bytes: 251, ..right }, [7; 4 + 251].into(), Status::INVALID_KEY_SIZE),
                _ => (StoreSubmit { options: 1 << 5, ..right }, data, Status::INVALID_FIELD),
            };
            (submit, submit_data, slip) = wrong_submit(wrong.to_sqe(NSID), data, status);
        }
        let action = Action::Store { mode, value: Rc::clone(&content), flags, exptime: ttl_s.into() };
        let id = self.model.begin(key, action, Origin::Host, now_ns);
        let mut open = OpenValue::new(place, (key, id), Work::Store { length });
        let buffer = UserBuffer::from(content.to_vec());
        open.sent_bytes = Rc::clone(&buffer.sent_bytes);
        open.wanted_flags = flags;
        open.slip = slip;
        open.has_duplicate = choice.one_in(SLIP_ONE_IN);
        open.has_other_flags = choice.one_in(SLIP_ONE_IN);
        let mut commands = vec![(Part::First, first.clone(), Some(buffer))];
        if open.has_duplicate {
            commands.push((Part::Duplicate, first, Some(content.to_vec().into())));
        }
        commands.push((Part::Submit, submit, submit_data));
        if follows {
            let is_early = choice.one_in(4);
            open.flags = if is_early { Flags::Sent { is_early } } else { Flags::Due };
            if is_early {
                commands.push((Part::Flags, namespace.store_flags(tag, flags), None));
            }
        } else if open.has_other_flags {
            commands.push((Part::OtherFlags, namespace.store_flags(tag, !flags), None));
        }
        Some(Draft { open, commands })
    }

    fn draw_retrieve(
        &mut self,
        place: (usize, usize),
        (namespace, tag): (&KeyValueNamespace, u32),
        key: usize,
        choice: &mut Random,
        now_ns: u64,
    ) -> Option<Draft> {
        let high = self.paired_bytes_max(namespace);
        let length = self.draw_length(choice, high);
        let range = |choice: &mut Random| {
            let start = if choice.one_in(3) { 0 } else { choice.below(length as u64) as u32 };
            let longest = if choice.one_in(2) { 8 } else { length as u64 };
            start..start + choice.below(longest) as u32
        };
        let count = if choice.one_in(2) { 0 } else { choice.scaled(1, 5) };
        let ranges: Rc<[Range<u32>]> = (0..count).map(|_| range(choice)).collect();
        let expected_bytes = if choice.one_in(4) { length as u32 } else { 0 };
        let room_bytes = if choice.one_in(4) { length } else { self.settings.item_bytes_max } as u32;
        let room_bytes = room_bytes.min(namespace.paired_value_bytes_max());
        let name = self.model.name(key);
        let name = name.as_bytes();
        let made = namespace.retrieve_ranges(tag, name, &ranges, (expected_bytes, room_bytes));
        let [first, mut submit] = made.ok()?;
        let (mut slip, mut submit_data) = (None, None);
        if choice.one_in(SLIP_ONE_IN) {
            let (right, mut data) = RetrieveSubmit::new(tag, name, &ranges, expected_bytes)?;
            let (sqe, status) = match choice.below(3) {
                0 => (RetrieveSubmit { tag: !tag, ..right }.to_sqe(NSID), Status::COMMAND_SEQUENCE_ERROR),
                1 => {
                    data.push(0);
                    let data_bytes = data.len() as u32;
                    (RetrieveSubmit { data_bytes, ..right }.to_sqe(NSID), Status::INVALID_FIELD)
                }
                // The other kind of Submit.
                _ => {
                    let store =
                        StoreSubmit { value_bytes: room_bytes, key_bytes: 1, options: 0, tag, ttl_s: 0 };
                    data = vec![7; 5];
                    (store.to_sqe(NSID), Status::COMMAND_SEQUENCE_ERROR)
                }
            };
            (submit, submit_data, slip) = wrong_submit(sqe, data, status);
        }
        let id = self.model.begin(key, Action::Get, Origin::Host, now_ns);
        let mut open =
            OpenValue::new(place, (key, id), Work::Retrieve(Asked { ranges, expected_bytes, room_bytes }));
        open.slip = slip;
        open.has_duplicate = choice.one_in(SLIP_ONE_IN);
        let room = || Some(UserBuffer::from(vec![0xee; room_bytes as usize]));
        let mut commands = vec![(Part::First, first.clone(), room())];
        if open.has_duplicate {
            commands.push((Part::Duplicate, first, room()));
        }
        commands.push((Part::Submit, submit, submit_data));
        Some(Draft { open, commands })
    }

    /// The answer of the first command; `None` if there is none.
    fn answer_of_value(&self, open: &OpenValue) -> Result<Option<Answer>, String> {
        let result = match open.first {
            Some(Ok(result)) => Ok(result),
            Some(Err((failure, _))) => Err(failure.status()),
            None => return Err("a value is judged before its end".into()),
        };
        if open.slip.is_some() {
            return if result.is_ok() { Err("a Submit with a slip was executed".into()) } else { Ok(None) };
        }
        let Work::Retrieve(asked) = &open.work else {
            return Ok(self.answer((open.key, open.id), Verb::Store, result, None));
        };
        let is = |other: Status| matches!(result, Err(Some(status)) if status.is(other));
        let Ok(result) = result else {
            let missing = is(Status::KEY_DOES_NOT_EXIST).then_some(Answer::Missing);
            let other = is(Status::INVALID_VALUE_SIZE).then(|| Answer::OtherValue(asked.clone()));
            return Ok(missing.or(other));
        };
        let (bytes, length) = (result as u32 as usize, result >> 32);
        if bytes != open.received.len() {
            return Err(format!("{} bytes came, and {bytes} by the result", open.received.len()));
        }
        let (mut flags, mut cas) = (None, None);
        if let Some(Ok(result)) = open.submit {
            let version = result & 0xffff_ffff;
            flags = Some((result >> 32) as u32);
            cas = Some(version).filter(|version| *version > 0);
            if cas.is_some() && (length as usize) < CHUNK_BYTES {
                return Err(format!("a value of {length} bytes has version {version}"));
            }
        }
        Ok(Some(Answer::Ranges {
            asked: asked.clone(),
            length,
            bytes: Rc::clone(&open.received),
            flags,
            cas,
        }))
    }
}

impl World {
    /// Submits the commands of a value, if they can be judged.
    pub(super) fn submit_value(
        &mut self,
        place: (usize, usize),
        namespace: &KeyValueNamespace,
        choice: &mut Random,
    ) {
        let (host, lane) = place;
        let now_ns = self.shared.now_ns;
        let own: Option<OwnKeys> = self.own_keys(lane, namespace);
        let in_capsule_bytes = self.shared.scenario.target.limits.in_capsule_bytes as usize;
        let Some(pairs) = &mut self.pairs else { return };
        let key = pairs.own_key(choice.below(pairs.settings.key_count as u64) as usize, own);
        if !pairs.model.has_room(key) {
            return;
        }
        let value = self.commands.next;
        let tag = value as u32;
        let draft = match choice.one_in(2) {
            true => pairs.draw_store(place, (namespace, tag, in_capsule_bytes), key, choice, now_ns),
            false => pairs.draw_retrieve(place, (namespace, tag), key, choice, now_ns),
        };
        let Some(Draft { mut open, commands }) = draft else {
            return self.shared.find("a namespace of the target has no values of two commands");
        };
        let numbers = value..;
        open.out = commands.iter().map(|(part, ..)| *part).zip(numbers).collect();
        self.shared.say(|| format!("host {host} lane {lane}: value {value} is {open:?}"));
        pairs.values.insert(value, open);
        for (part, command, buffer) in commands {
            self.submit_one_on_key(place, command, buffer, What::Value { part, value });
        }
    }

    /// Room that a lane keeps for flags.
    pub(super) fn flags_due(&self, place: (usize, usize)) -> u16 {
        let is_due = |open: &&OpenValue| open.place == place && open.flags == Flags::Due;
        let values = self.pairs.iter().flat_map(|pairs| pairs.values.values());
        values.filter(is_due).count() as u16
    }

    /// Sends the flags of values that were sent. Returns whether there are any.
    pub(super) fn submit_flags(&mut self, host: usize, lane: usize) -> bool {
        let Some(namespace) = self.hosts[host].pairs else { return false };
        let Some(pairs) = &self.pairs else { return false };
        let is_due = |open: &OpenValue| open.place == (host, lane) && open.is_due();
        let due: Vec<u64> =
            pairs.values.iter().filter(|(_, open)| is_due(open)).map(|(value, _)| *value).collect();
        let may_forget = self.progress.stage == Stage::Work && !self.shared.scenario.is_prompt;
        let mut has_sent = false;
        for value in due {
            let core = &self.hosts[host].lanes[lane].core;
            if core.is_ended() || !core.has_room(1) {
                break;
            }
            let has_more_room = core.has_room(2);
            let number = self.commands.next;
            let Some(open) = self.pairs.as_mut().and_then(|pairs| pairs.values.get_mut(&value)) else {
                break;
            };
            if may_forget && Random::of(self.shared.scenario.chance, 99, &[value]).one_in(FORGOTTEN_ONE_IN) {
                open.flags = Flags::Forgotten;
                let until_ns = self.shared.now_ns + 2 * self.shared.scenario.hosts.command_timeout_ns;
                let actor = self.hosts[host].lanes[lane].actor;
                self.shared.slow_actor_until("flags that do not come", actor, u64::MAX, until_ns);
                self.shared.reach_event("flags of a value that do not come");
                continue;
            }
            open.flags = Flags::Sent { is_early: false };
            open.out.insert(Part::Flags, number);
            let has_other = std::mem::take(&mut open.has_other_flags) && has_more_room;
            if has_other {
                open.out.insert(Part::OtherFlags, number + 1);
            }
            let flags = namespace.store_flags(value as u32, open.wanted_flags);
            let what = |part| What::Value { part, value };
            self.submit_one_on_key((host, lane), flags.clone(), None, what(Part::Flags));
            if has_other {
                self.submit_one_on_key((host, lane), flags, None, what(Part::OtherFlags));
            }
            has_sent = true;
        }
        has_sent
    }

    /// A command of a value has ended.
    pub(super) fn on_value_completion(
        &mut self,
        (number, part, value): (u64, Part, u64),
        command: &PairCommand,
        (has_lost, cause): (bool, Option<&'static str>),
        completion: Completion<Vec<u8>>,
    ) {
        let Completion { result, received, buffer, .. } = completion;
        let has_waited =
            self.shared.now_ns - command.begin_ns >= self.shared.scenario.hosts.command_timeout_ns;
        let is_cancelled = self.commands.cancelled.contains(&value);
        let of_pairs = self.shared.scenario.pairs.as_ref();
        let has_log = of_pairs.is_some_and(|pairs| pairs.durability != PairDurability::Memory);
        let is_of_log = has_log && self.may_be_reading(command.begin_ns);
        let Some(pairs) = &mut self.pairs else { return };
        let Some(mut open) = pairs.values.remove(&value) else {
            return self.shared.find(format!("command {number} ends after its value"));
        };
        open.out.remove(&part);
        let end = result.map_err(|failure| (failure, cause));
        let is_over = has_lost || has_waited || is_cancelled || open.first.is_some();
        let judged = match part {
            Part::First => {
                let buffer = buffer.unwrap_or_default();
                let is_read = matches!(open.work, Work::Retrieve(_));
                open.received = if is_read {
                    buffer.get(..received as usize).unwrap_or_default().into()
                } else {
                    Rc::default()
                };
                // The log is read for longer than a Submit waits that has succeeded.
                let is_refused = |failure: Failure| {
                    let status = failure.status().filter(|status| status.dnr());
                    status.is_some_and(|status| status.is(Status::NAMESPACE_NOT_READY))
                };
                let is_explained = is_of_log && open.submit.is_none_or(|submit| submit.is_ok());
                open.first = Some(end.map_err(|(failure, cause)| {
                    let of_log = (is_explained && is_refused(failure)).then_some("its log is being read");
                    (failure, cause.or(of_log))
                }));
                Ok(())
            }
            Part::Submit => {
                open.submit = Some(end);
                open.may_miss_first = is_over;
                Ok(())
            }
            Part::Duplicate => self.judge_duplicate(&open, end),
            Part::Flags => self.judge_flags(&mut open, end, is_over),
            Part::OtherFlags => self.judge_other_flags(&open, end),
        };
        let judged = judged.and_then(|()| self.judge_value(&mut open));
        if let Err(finding) = judged {
            return self.shared.find(format!("value {value}: {finding}"));
        }
        // A first one whose Submit was refused, or never arrived, and a second one, may be left waiting.
        let to_cancel = match open.submit {
            None => [None, None],
            Some(Ok(_)) => [open.out.get(&Part::Duplicate).copied(), None],
            Some(Err(_)) => [Part::Duplicate, Part::First].map(|part| open.out.get(&part).copied()),
        };
        if !open.out.is_empty() {
            let pairs = self.pairs.as_mut().expect("as above");
            pairs.values.insert(value, open);
        }
        for number in to_cancel.into_iter().flatten() {
            if self.commands.cancelled.insert(number) {
                self.cancel(number, command.host, command.lane);
            }
        }
    }

    fn reach_end(&mut self, command: &'static str, end: End, cause: &'static str) {
        let outcome = end.map_err(|(failure, _)| failure).into();
        self.shared.coverage.reach(Point::End { command, outcome, cause });
    }

    /// A second command with the tag of a waiting one is refused.
    fn judge_duplicate(&mut self, open: &OpenValue, end: End) -> Result<(), String> {
        let Err((failure, cause)) = end else {
            // The first one had ended before.
            return match open.first {
                Some(Err(_)) => Ok(()),
                _ => Err("two commands with one tag were executed".into()),
            };
        };
        let is = |other: Status| failure.status().is_some_and(|status| status.is(other));
        let is_refused_too = OpenValue::status(open.submit).is_some_and(is);
        let cause = cause
            .or_else(|| is(Status::COMMAND_SEQUENCE_ERROR).then_some("its tag is in use"))
            .or_else(|| is_refused_too.then_some("its Submit was refused"))
            .or_else(|| open.first.is_some_and(|first| first.is_err()).then_some("in place of the first"))
            .ok_or_else(|| unexplained("a second command with one tag", Err(failure)))?;
        self.reach_end("command with a tag in use", end, cause);
        Ok(())
    }

    fn judge_flags(&mut self, open: &mut OpenValue, end: End, is_over: bool) -> Result<(), String> {
        let Flags::Sent { is_early } = open.flags else { return Err("flags end that were not sent".into()) };
        let Err((failure, cause)) = end else {
            open.flags = Flags::Taken;
            self.reach_end("Store Flags", end, "done");
            return Ok(());
        };
        let is_refused = failure.status().is_some_and(|status| status.is(Status::COMMAND_SEQUENCE_ERROR));
        let cause = cause
            .or_else(|| (is_refused && is_early).then_some("sent before the value is received"))
            .or_else(|| (is_refused && is_over).then_some("its value has ended"))
            .ok_or_else(|| unexplained("Store Flags", Err(failure)))?;
        if is_early || !is_refused {
            open.flags = Flags::Due;
        }
        self.reach_end("Store Flags", end, cause);
        Ok(())
    }

    /// Flags for a value that has some, or waits for none, are refused.
    fn judge_other_flags(&mut self, open: &OpenValue, end: End) -> Result<(), String> {
        let Err((failure, cause)) = end else {
            return match open.flags {
                Flags::Due | Flags::Sent { .. } => Ok(()),
                Flags::Known | Flags::Taken | Flags::Forgotten => {
                    Err("flags were taken by a value that has some".into())
                }
            };
        };
        let is_refused = failure.status().is_some_and(|status| status.is(Status::COMMAND_SEQUENCE_ERROR));
        let cause = cause
            .or_else(|| is_refused.then_some("nothing waits for them"))
            .ok_or_else(|| unexplained("Store Flags", Err(failure)))?;
        self.reach_end("Store Flags", end, cause);
        Ok(())
    }

    /// Judges a value once its outcome is known: as soon as it is stored, or when both commands have ended.
    fn judge_value(&mut self, open: &mut OpenValue) -> Result<(), String> {
        let now_ns = self.shared.now_ns;
        let Some(pairs) = self.pairs.as_mut().filter(|_| !open.is_judged) else { return Ok(()) };
        let is_stored = matches!((&open.work, open.first), (Work::Store { .. }, Some(Ok(_))));
        if is_stored && open.slip.is_none() && !open.is_stored_told {
            if matches!(open.flags, Flags::Due | Flags::Forgotten) {
                return Err("a value is stored whose flags were not sent".into());
            }
            open.is_stored_told = true;
            pairs.model.end(open.key, open.id, &Answer::Done { cas: None }, now_ns)?;
        }
        let (Some(first), Some(submit)) = (open.first, open.submit) else { return Ok(()) };
        open.is_judged = true;
        let answer = pairs.answer_of_value(open)?;
        let [first_name, submit_name] = open.names();
        let [first_status, submit_status] = [first, submit].map(|end| OpenValue::status(Some(end)));
        let is_slip = |failure: Failure| {
            let both = failure.status().zip(open.slip);
            both.is_some_and(|(status, slip)| status.is(slip))
        };
        let is_same = |one: Option<Status>, other: Option<Status>| {
            one.zip(other).is_some_and(|(one, other)| one.is(other))
        };
        let submit_cause = match submit {
            Ok(_) if open.slip.is_some() => return Err("a Submit with a slip was executed".into()),
            Ok(_) => "done",
            Err((failure, cause)) => {
                // One behind a duplicate may be sent again before the first.
                let is_alone =
                    failure.status().is_some_and(|status| status.is(Status::COMMAND_SEQUENCE_ERROR))
                        && (open.may_miss_first || open.has_duplicate);
                let of_answer = answer.as_ref().filter(|_| is_same(first_status, submit_status));
                cause
                    .or_else(|| is_slip(failure).then_some("a slip"))
                    .or_else(|| is_alone.then_some("its first command has ended"))
                    .or_else(|| of_answer.map(explanation))
                    .ok_or_else(|| unexplained(submit_name, Err(failure)))?
            }
        };
        let first_cause = match (&answer, first) {
            (Some(answer), _) => explanation(answer),
            (None, Err((failure, cause))) => cause
                .or_else(|| is_same(first_status, submit_status).then_some("its Submit was refused"))
                .ok_or_else(|| unexplained(first_name, Err(failure)))?,
            (None, Ok(result)) => return Err(unexplained(first_name, Ok(result))),
        };
        let is_aborted = first_status.is_some_and(|status| status.is(Status::ABORT_REQUESTED));
        let was_refused = submit.is_err_and(|(failure, _)| !failure.may_have_happened());
        let never_was =
            first.is_err_and(|(failure, _)| !failure.may_have_happened() && failure.status().is_none());
        match answer {
            _ if open.is_stored_told => {}
            Some(answer) => pairs.model.end(open.key, open.id, &answer, now_ns)?,
            None if !open.has_duplicate && (is_aborted || was_refused || never_was) => {
                pairs.model.deny(open.key, open.id)?;
            }
            None => pairs.model.lose(open.key, open.id, now_ns),
        }
        if let Work::Store { length } = open.work
            && first.is_ok()
            && length > CHUNK_BYTES
        {
            self.shared.coverage.reach(Point::Form("value stored in several parts"));
        }
        self.reach_end(first_name, first, first_cause);
        self.reach_end(submit_name, submit, submit_cause);
        Ok(())
    }
}
