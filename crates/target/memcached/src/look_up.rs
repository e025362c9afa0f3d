//! Look-ups that change nothing but the marks of use of a pair, so that several threads may execute them in one partition
//! at the same time.

use kv::{KeyHash, PairPlace, Partition, Seen};

use crate::command::{Command, Verb};
use crate::counters::CommandCounters;
use crate::execute::{Executor, Service, push_value_line};
use crate::meta::{PairState, push_head, push_line};
use crate::protocol::decode::flags;

/// A look-up of one key.
#[derive(Clone, Copy)]
pub(crate) struct LookUp<'a> {
    command: &'a Command<'a>,
    form: Form,
}

#[derive(Clone, Copy)]
enum Form {
    /// `get`, `gets`.
    Get { with_cas: bool },
    /// `mg`.
    Meta(MetaFlags),
}

/// The flags of an `mg` that only looks up, beside those that its answer repeats.
#[derive(Clone, Copy, Default)]
struct MetaFlags {
    wants_value: bool,
    is_quiet: bool,
    /// `u`.
    leaves_unread: bool,
    wants_cas: bool,
    /// `h`, `l`: what the marks of use tell.
    wants_use: bool,
}

/// What a look-up found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookedUp {
    /// It is answered.
    Answered {
        /// The pair, if it is yet to be marked as read.
        touch_due: Option<PairPlace>,
    },
    /// The answer needs a change, or a value in parts: the command is to be executed.
    NotAnswered,
}

impl<'a> LookUp<'a> {
    /// The look-up of a command; `None` if it may change a pair, or is refused.
    #[inline]
    pub(crate) fn of(command: &'a Command<'a>) -> Option<Self> {
        let form = match command.verb {
            Verb::Get { with_cas, touch: None } => Form::Get { with_cas },
            Verb::Meta(b'g') if !command.is_base64 => Form::Meta(MetaFlags::read(command.extra)?),
            _ => return None,
        };
        Some(Self { command, form })
    }

    /// The command.
    #[inline]
    pub(crate) fn command(&self) -> &'a Command<'a> {
        self.command
    }

    /// Whether its answer tells which look-ups came before it.
    #[inline]
    pub(crate) fn tells_use(&self) -> bool {
        matches!(self.form, Form::Meta(MetaFlags { wants_use: true, .. }))
    }

    /// Looks up, and appends the answer.
    #[inline]
    pub(crate) fn run(
        &self,
        partition: &Partition,
        hash: KeyHash,
        service: &mut Service,
        out: &mut Vec<u8>,
    ) -> LookedUp {
        let (counters, copied_bytes_max) = (&mut service.counters, service.copied_bytes_max);
        let key = self.command.key;
        let (place, flags, value, is_touch_due) = match partition.processor.see(hash, key, None) {
            Seen::Whole { place, flags, value, is_touch_due } if value.len() <= copied_bytes_max => {
                (place, flags, value, is_touch_due)
            }
            Seen::Absent => {
                self.answer_miss(partition, counters, out);
                return LookedUp::Answered { touch_due: None };
            }
            Seen::Whole { .. } | Seen::Other => return LookedUp::NotAnswered,
        };
        let cas = if self.wants_cas() {
            // A pair in the index moves out of it to get a number.
            let Some(cas) = partition.processor.present_cas(place) else { return LookedUp::NotAnswered };
            Some(cas)
        } else {
            None
        };
        let leaves_unread = match self.form {
            Form::Get { .. } => {
                push_value_line(out, key, flags, value.len(), cas);
                false
            }
            Form::Meta(of) => {
                let Some(state) = state(partition, place, value.len(), cas, of) else {
                    return LookedUp::NotAnswered;
                };
                counters.meta_count += 1;
                push_head(self.command, of.wants_value, &state, partition.processor.now_s(), out);
                out.extend_from_slice(b"\r\n");
                of.leaves_unread
            }
        };
        (counters.get_count, counters.get_hit_count) = (counters.get_count + 1, counters.get_hit_count + 1);
        if !matches!(self.form, Form::Meta(MetaFlags { wants_value: false, .. })) {
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
        LookedUp::Answered { touch_due: (is_touch_due && !leaves_unread).then_some(place) }
    }

    #[inline]
    fn wants_cas(&self) -> bool {
        match self.form {
            Form::Get { with_cas } => with_cas,
            Form::Meta(of) => of.wants_cas,
        }
    }

    fn answer_miss(&self, partition: &Partition, counters: &mut CommandCounters, out: &mut Vec<u8>) {
        counters.get_count += 1;
        counters.get_miss_count += 1;
        if let Form::Meta(of) = self.form {
            counters.meta_count += 1;
            if !of.is_quiet {
                push_line(b"EN", self.command, None, partition.processor.now_s(), out);
            }
        }
    }
}

impl Executor<'_> {
    /// Answers a look-up that changes nothing but the marks of use of its pair. `false` if the command is something else.
    pub(crate) fn look_up(&mut self, hash: KeyHash, command: &Command<'_>, out: &mut Vec<u8>) -> bool {
        let Some(look_up) = LookUp::of(command) else { return false };
        match look_up.run(self.partition, hash, self.service, out) {
            LookedUp::Answered { touch_due } => {
                if let Some(place) = touch_due {
                    self.partition.processor.touch(place);
                }
                true
            }
            LookedUp::NotAnswered => false,
        }
    }
}

impl MetaFlags {
    /// The flags, if none of them changes a pair or is unknown.
    #[inline]
    fn read(extra: &[u8]) -> Option<Self> {
        let mut read = Self::default();
        for (letter, _) in flags(extra) {
            match letter {
                b'v' => read.wants_value = true,
                b'q' => read.is_quiet = true,
                b'u' => read.leaves_unread = true,
                b'c' => read.wants_cas = true,
                b'h' | b'l' => read.wants_use = true,
                b'b' | b'f' | b'k' | b'L' | b'O' | b'P' | b's' | b't' => {}
                _ => return None,
            }
        }
        Some(read)
    }
}

/// The state that return flags report; `None` if to report it changes the pair.
#[inline]
fn state(
    partition: &Partition,
    place: PairPlace,
    length: usize,
    cas: Option<u64>,
    of: MetaFlags,
) -> Option<PairState> {
    let processor = &partition.processor;
    let marks = processor.marks(place);
    // The answer for a stale pair changes it: its client wins the right to store it anew. A pair that is stored in the index has
    // no marks of use, and is moved to memory of its own to get them.
    if marks.is_stale || marks.is_won || of.wants_use && !of.leaves_unread && place.item().is_none() {
        return None;
    }
    let idle_s = match processor.last_access_s(place) {
        Some(at_s) if of.wants_use => processor.now_s().saturating_sub(at_s),
        _ => 0,
    };
    let (attributes, was_fetched) = (processor.attributes(place), marks.is_fetched);
    Some(PairState { cas: cas.unwrap_or(0), length, attributes, was_fetched, idle_s })
}
