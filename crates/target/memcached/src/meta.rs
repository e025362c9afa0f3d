//! The meta protocol: `mg`, `ms`, `md`, `ma`, `me`.

use memory::CHUNK_BYTES;

use crate::command::{Command, Mode, Verb};
use crate::execute::{Executor, LOG_FULL, Refusal};
use crate::number;
use crate::protocol::decode::{BAD_FLAG_OF_MA, BAD_LINE, flags};
use kv::{Attributes, Clock, Condition, ITEM_HEADER_BYTES, KeyHash, Marks, PairPlace, Stored};

const BAD_TOKEN: &[u8] = b"CLIENT_ERROR bad token in command line format\r\n";

/// The flags of a meta command.
#[derive(Default)]
struct Options {
    wants_value: bool,
    is_quiet: bool,
    /// `u`.
    leaves_unread: bool,
    /// `T`.
    exptime: Option<i64>,
    /// `N`.
    vivify: Option<i64>,
    /// `R`.
    recache: Option<i64>,
    /// `C`.
    cas: Option<u64>,
    /// `E`.
    new_cas: Option<u64>,
    /// `F`.
    flags: u32,
    /// `I`.
    invalidates: bool,
    /// `M`.
    mode: Option<u8>,
    /// `J`.
    initial: u64,
    /// `D`.
    delta: Option<u64>,
    /// `x`.
    drops_value: bool,
}

impl Options {
    fn read(extra: &[u8]) -> Result<Self, &'static [u8]> {
        const BAD_INITIAL: &[u8] = b"CLIENT_ERROR invalid numeric initial value\r\n";
        const BAD_CAS: &[u8] = b"CLIENT_ERROR CAS number of flag E is not one of 48 bits\r\n";
        const BAD_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta value\r\n";
        let mut options = Self::default();
        for (letter, token) in flags(extra) {
            let number = || number::parse(token).ok_or(BAD_TOKEN);
            let time = || number::parse_signed(token).ok_or(BAD_TOKEN);
            match letter {
                b'v' => options.wants_value = true,
                b'q' => options.is_quiet = true,
                b'T' => options.exptime = Some(time()?),
                b'N' => options.vivify = Some(time()?),
                b'R' => options.recache = Some(time()?),
                b'C' => options.cas = Some(number()?),
                b'E' => {
                    let cas = number().ok().filter(|&cas| cas <= kv::CAS_MAX);
                    // Number 0 is none.
                    options.new_cas = Some(cas.ok_or(BAD_CAS)?).filter(|&cas| cas != 0);
                }
                b'F' => {
                    let flags = number::parse(token).and_then(|flags| u32::try_from(flags).ok());
                    options.flags = flags.ok_or(BAD_LINE)?;
                }
                b'I' => options.invalidates = true,
                b'x' => options.drops_value = true,
                // Without a token, it names no mode.
                b'M' => options.mode = Some(token.first().copied().unwrap_or(0)),
                b'J' => options.initial = number::parse(token).ok_or(BAD_INITIAL)?,
                b'D' => options.delta = Some(number::parse(token).ok_or(BAD_DELTA)?),
                b'u' => options.leaves_unread = true,
                // Return flags, and flags that only proxies read.
                b'b' | b'c' | b'f' | b'h' | b'k' | b'l' | b'O' | b'P' | b'L' | b's' | b't' => {}
                _ => return Err(b"CLIENT_ERROR invalid flag\r\n"),
            }
        }
        Ok(options)
    }
}

/// A meta command.
struct Meta<'a> {
    hash: KeyHash,
    /// The key as it is stored.
    key: &'a [u8],
    command: &'a Command<'a>,
    options: Options,
}

/// The state of a pair that return flags report.
#[derive(Clone, Copy, Default)]
pub(crate) struct PairState {
    pub(crate) cas: u64,
    pub(crate) length: usize,
    pub(crate) attributes: Attributes,
    pub(crate) was_fetched: bool,
    /// Time since the last access if requested, s.
    pub(crate) idle_s: u32,
}

impl Executor<'_> {
    /// Executes a meta command. `key` is the key as it is stored.
    pub(crate) fn meta(
        &mut self,
        letter: u8,
        hash: KeyHash,
        key: &[u8],
        command: &Command<'_>,
        out: &mut Vec<u8>,
    ) {
        self.service.counters.meta_count += 1;
        let meta = match Options::read(command.extra) {
            Ok(options) => Meta { hash, key, command, options },
            Err(_) if letter == b'a' => return out.extend_from_slice(BAD_FLAG_OF_MA),
            Err(problem) => return out.extend_from_slice(problem),
        };
        match letter {
            b'g' => self.meta_get(&meta, out),
            b's' => self.meta_set(&meta, out),
            b'd' => self.meta_delete(&meta, out),
            b'a' => self.meta_arithmetic(&meta, out),
            _ => self.meta_debug(&meta, out),
        }
    }

    fn answer(&self, name: &[u8], command: &Command<'_>, state: Option<&PairState>, out: &mut Vec<u8>) {
        push_line(name, command, state, self.partition.processor.now_s(), out);
    }

    /// The requested state of a pair, and its place. The CAS number only if requested, because a pair in the index moves
    /// out of it for that.
    fn state(&mut self, meta: &Meta<'_>) -> Option<(PairState, PairPlace)> {
        let &Meta { hash, key, command, ref options } = meta;
        let wants = |letter| flags(command.extra).any(|(other, _)| other == letter);
        let place = self.partition.processor.find(hash, key)?;
        let was_fetched = self.partition.processor.marks(place).is_fetched;
        let attributes = self.partition.processor.attributes(place);
        let length = self.partition.processor.value(place).len();
        let idle_s = if wants(b'l') { self.idle_s(place) } else { 0 };
        if (wants(b'h') || wants(b'l')) && !options.leaves_unread && place.item().is_none() {
            self.partition.processor.set_marks(hash, key, Marks { is_fetched: true, ..Marks::default() });
        }
        let cas = if wants(b'c') { self.partition.processor.cas(hash, key).unwrap_or(0) } else { 0 };
        let place = if place.item().is_some() { place } else { self.partition.processor.find(hash, key)? };
        Some((PairState { cas, length, attributes, was_fetched, idle_s }, place))
    }

    /// Time since the last access to a pair, s; 0 for one in the index.
    fn idle_s(&self, place: PairPlace) -> u32 {
        let now_s = self.partition.processor.now_s();
        self.partition.processor.last_access_s(place).map_or(0, |at_s| now_s.saturating_sub(at_s))
    }

    fn meta_get(&mut self, meta: &Meta<'_>, out: &mut Vec<u8>) {
        let &Meta { hash, key, command, ref options } = meta;
        self.service.counters.get_count += 1;
        self.service.counters.touch_count += u64::from(options.exptime.is_some());
        let mut is_new = false;
        // With a time in the past the pair is in this answer, and then removed.
        let mut ends = false;
        let mut found = self.partition.processor.find(hash, key);
        if found.is_none() {
            self.service.counters.get_miss_count += 1;
            if let Some(exptime) = options.vivify {
                let expiry_s = self.expiry(exptime);
                ends = expiry_s == Clock::EXPIRED_S;
                let attributes = Attributes { flags: 0, expiry_s: if ends { 0 } else { expiry_s } };
                let stored = self.partition.processor.store(hash, key, &[], attributes, Condition::Absent);
                is_new = stored == Stored::Done;
                if let Some(cas) = options.new_cas {
                    self.partition.processor.set_cas(hash, key, cas);
                }
                found = self.partition.processor.find(hash, key);
            }
        } else {
            self.service.counters.get_hit_count += 1;
        }
        let Some(place) = found else {
            if !options.is_quiet {
                self.answer(b"EN", command, None, out);
            }
            return;
        };
        let marks = self.partition.processor.marks(place);
        let mut is_won = is_new;
        if let Some(exptime) = options.exptime {
            self.service.counters.touch_hit_count += 1;
            let expiry_s = self.expiry(exptime);
            ends = expiry_s == Clock::EXPIRED_S;
            if !ends {
                self.partition.processor.set_expiry(hash, key, expiry_s);
            }
        }
        if let Some(recache) = options.recache
            && !is_new
            && !marks.is_won
        {
            let expiry_s = self.partition.processor.attributes(place).expiry_s;
            is_won |= expiry_s != 0 && expiry_s < self.expiry(recache);
        }
        // Not to a client that has the value.
        let wants_value = options.wants_value
            && options.cas.is_none_or(|cas| self.partition.processor.cas(hash, key) != Some(cas));
        let Some((mut state, place)) = self.state(meta) else {
            return self.answer(b"EN", command, None, out);
        };
        if ends {
            state.attributes.expiry_s = self.partition.processor.now_s();
        }
        push_head(command, wants_value, &state, self.partition.processor.now_s(), out);
        if marks.is_won {
            out.extend_from_slice(b" Z");
        }
        if marks.is_stale {
            out.extend_from_slice(b" X");
            is_won |= !marks.is_won;
        }
        if is_won {
            out.extend_from_slice(b" W");
        }
        out.extend_from_slice(b"\r\n");
        if wants_value {
            self.push_value(place, out);
            out.extend_from_slice(b"\r\n");
        }
        if ends {
            self.partition.processor.delete(hash, key);
            return;
        }
        if !options.leaves_unread {
            self.partition.processor.touch(place);
        }
        if is_won {
            let is_fetched = marks.is_fetched || !is_new && !options.leaves_unread;
            self.partition.processor.set_marks(hash, key, Marks { is_fetched, is_won: true, ..marks });
        }
    }

    fn meta_set(&mut self, meta: &Meta<'_>, out: &mut Vec<u8>) {
        let &Meta { hash, key, command, ref options } = meta;
        self.service.counters.set_count += 1;
        let mode = match options.mode {
            None | Some(b'S') => Mode::Set,
            Some(b'E') => Mode::Add,
            Some(b'A') => Mode::Append,
            Some(b'P') => Mode::Prepend,
            Some(b'R') => Mode::Replace,
            Some(_) => return out.extend_from_slice(b"CLIENT_ERROR invalid mode for ms M token\r\n"),
        };
        let attributes = (options.flags, options.exptime.unwrap_or(0));
        let extends = mode.extends();
        // Number 0 is that of no value: a set expects it in vain, an extension does not expect it.
        let mut cas = options.cas.filter(|&cas| mode != Mode::Add && !(extends && cas == 0));
        let mut stale = None;
        // A number older than the value's: with `I` it is stored all the same, and remains as stale as it is old.
        if let Some(expected) = cas
            && options.invalidates
            && expected != 0
            && !extends
            && let Some(now) = self.partition.processor.cas(hash, key)
            && expected < now
            && let Some(place) = self.partition.processor.find(hash, key)
        {
            cas = None;
            let marks = Marks { is_stale: true, is_fetched: false, ..self.partition.processor.marks(place) };
            stale = Some((marks, self.partition.processor.attributes(place).expiry_s));
        }
        let mut length = command.value.len() + self.service.arrived_chunks.len() * CHUNK_BYTES;
        let mut stored = self.store_value(hash, key, mode, command.value, attributes, cas);
        if extends && stored == Stored::NotFound {
            cas = None;
            if let Some(exptime) = options.vivify {
                let attributes = (options.flags, exptime);
                stored = self.store_value(hash, key, Mode::Add, command.value, attributes, None);
            }
        }
        if cas.is_some() {
            match stored {
                Stored::Done => self.service.counters.cas_hit_count += 1,
                Stored::NotFound => self.service.counters.cas_miss_count += 1,
                _ => self.service.counters.cas_bad_count += 1,
            }
        }
        let name: &[u8] = match stored {
            Stored::Done => b"HD",
            _ if mode.is_too_long(stored) => b"NS",
            Stored::Exists if cas.is_some() => b"EX",
            Stored::NotFound if cas.is_some() => b"NF",
            Stored::Exists | Stored::NotFound => b"NS",
            Stored::NoMemory => {
                return out.extend_from_slice(b"SERVER_ERROR out of memory storing object\r\n");
            }
            Stored::LogFull => return out.extend_from_slice(LOG_FULL),
            Stored::TooLarge => {
                return out.extend_from_slice(b"SERVER_ERROR object too large for cache\r\n");
            }
        };
        if stored == Stored::Done {
            if let Some(cas) = options.new_cas {
                self.partition.processor.set_cas(hash, key, cas);
            }
            if let Some((marks, expiry_s)) = stale {
                self.partition.processor.set_expiry(hash, key, expiry_s);
                self.partition.processor.set_marks(hash, key, marks);
            }
            if options.is_quiet {
                return;
            }
            if extends && let Some(place) = self.partition.processor.find(hash, key) {
                length = self.partition.processor.value_bytes(place);
            }
        }
        let wants_cas = flags(command.extra).any(|(letter, _)| letter == b'c');
        let cas = if wants_cas && stored == Stored::Done {
            self.partition.processor.cas(hash, key).unwrap_or(0)
        } else {
            0
        };
        let state = PairState { cas, length, ..PairState::default() };
        self.answer(name, command, Some(&state), out);
    }

    fn meta_delete(&mut self, meta: &Meta<'_>, out: &mut Vec<u8>) {
        let &Meta { hash, key, command, ref options } = meta;
        let found = self.partition.processor.find(hash, key);
        let condition = options.cas.map_or(Condition::Present, Condition::Unchanged);
        let name: &[u8] = match self.partition.processor.check(found, condition) {
            Err(Stored::NotFound) => {
                self.service.counters.delete_miss_count += 1;
                b"NF"
            }
            Err(_) => {
                self.service.counters.delete_miss_count += 1;
                b"EX"
            }
            Ok(()) => {
                let place = found.expect("present");
                self.service.counters.delete_hit_count += u64::from(!options.invalidates);
                if options.drops_value {
                    let cas = options.new_cas.or_else(|| self.partition.processor.cas(hash, key));
                    let place = self.partition.processor.find(hash, key).unwrap_or(place);
                    let expiry_s = self.expiry(options.exptime.unwrap_or(0));
                    let attributes = Attributes { flags: options.flags, expiry_s };
                    self.partition.processor.put(hash, key, &[], attributes, Some(place));
                    if let Some(cas) = cas {
                        self.partition.processor.set_cas(hash, key, cas);
                    }
                }
                if options.invalidates || options.drops_value {
                    if let (Some(exptime), false) = (options.exptime, options.drops_value) {
                        let expiry_s = self.expiry(exptime);
                        self.partition.processor.set_expiry(hash, key, expiry_s);
                    }
                    if options.invalidates {
                        // It gets a new number, so that a client with the old one does not take it for valid.
                        let new_cas =
                            options.new_cas.or_else(|| self.partition.processor.next_cas(hash, key));
                        if let Some(cas) = new_cas {
                            self.partition.processor.set_cas(hash, key, cas);
                        }
                        let marks = Marks { is_stale: true, ..Marks::default() };
                        self.partition.processor.set_marks(hash, key, marks);
                    }
                } else {
                    self.partition.processor.remove(hash, place);
                }
                if options.is_quiet {
                    return;
                }
                b"HD"
            }
        };
        self.answer(name, command, None, out);
    }

    fn meta_arithmetic(&mut self, meta: &Meta<'_>, out: &mut Vec<u8>) {
        let &Meta { hash, key, command, ref options } = meta;
        let is_decrement = match options.mode {
            None | Some(b'I' | b'+') => false,
            Some(b'D' | b'-') => true,
            Some(_) => return out.extend_from_slice(b"CLIENT_ERROR invalid mode for ma M token\r\n"),
        };
        let create = options.vivify.map(|exptime| (options.initial, exptime));
        let delta = options.delta.unwrap_or(1);
        let cas = options.cas.filter(|&cas| cas != 0);
        let name: &[u8] = match self.arithmetic(hash, key, is_decrement, delta, create, cas) {
            Ok(number) => {
                if let Some(cas) = options.new_cas {
                    self.partition.processor.set_cas(hash, key, cas);
                }
                if let Some(exptime) = options.exptime {
                    let expiry_s = self.expiry(exptime);
                    self.partition.processor.set_expiry(hash, key, expiry_s);
                }
                if options.is_quiet {
                    return;
                }
                // With a time in the past the pair is gone; its remaining time is 0, not unlimited.
                let gone = Attributes { flags: 0, expiry_s: self.partition.processor.now_s() };
                let state = self
                    .state(meta)
                    .map_or(PairState { attributes: gone, ..PairState::default() }, |(state, _)| state);
                if options.wants_value {
                    let digits = number::Digits::new(number);
                    let state = PairState { length: digits.len(), ..state };
                    push_head(command, true, &state, self.partition.processor.now_s(), out);
                    out.extend_from_slice(b"\r\n");
                    digits.append_to(out);
                    out.extend_from_slice(b"\r\n");
                } else {
                    self.answer(b"HD", command, Some(&state), out);
                }
                return;
            }
            Err(Refusal::NotNumeric) => {
                return out
                    .extend_from_slice(b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n");
            }
            Err(Refusal::Stored(Stored::NotFound)) => b"NF",
            Err(Refusal::Stored(Stored::Exists)) => b"EX",
            Err(Refusal::Stored(_)) => return out.extend_from_slice(b"SERVER_ERROR out of memory\r\n"),
        };
        self.answer(name, command, None, out);
    }

    fn meta_debug(&mut self, meta: &Meta<'_>, out: &mut Vec<u8>) {
        let &Meta { hash, key, command, .. } = meta;
        let Some(place) = self.partition.processor.find(hash, key) else {
            return out.extend_from_slice(b"EN\r\n");
        };
        let expiry_s = self.partition.processor.attributes(place).expiry_s;
        let marks = self.partition.processor.marks(place);
        let size = self.partition.processor.value(place).len() + key.len() + ITEM_HEADER_BYTES;
        let idle_s = self.idle_s(place);
        let cas = self.partition.processor.cas(hash, key).unwrap_or(0);
        out.extend_from_slice(b"ME ");
        out.extend_from_slice(command.key);
        out.extend_from_slice(b" exp=");
        match expiry_s {
            0 => out.extend_from_slice(b"-1"),
            _ => number::push(out, expiry_s.saturating_sub(self.partition.processor.now_s()).into()),
        }
        push_item_fields(out, idle_s.into(), cas, marks, size);
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends the answer of a meta command that has no value.
pub(crate) fn push_line(
    name: &[u8],
    command: &Command<'_>,
    state: Option<&PairState>,
    now_s: u32,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(name);
    push_flags(command, state, now_s, out);
    out.extend_from_slice(b"\r\n");
}

/// Appends the begin of the answer about a pair: its name, the length of the value if that follows, and the return flags.
pub(crate) fn push_head(
    command: &Command<'_>,
    wants_value: bool,
    state: &PairState,
    now_s: u32,
    out: &mut Vec<u8>,
) {
    if wants_value {
        out.extend_from_slice(b"VA ");
        number::push(out, state.length as u64);
    } else {
        out.extend_from_slice(b"HD");
    }
    push_flags(command, Some(state), now_s, out);
}

/// Appends the return flags that the command has, in the order of the request.
fn push_flags(command: &Command<'_>, state: Option<&PairState>, now_s: u32, out: &mut Vec<u8>) {
    let known: &[u8] = match command.verb {
        Verb::Meta(b's') => b"Okcs",
        Verb::Meta(b'a') => b"Okct",
        _ => b"Okcfshlt",
    };
    for (letter, token) in flags(command.extra).filter(|(letter, _)| known.contains(letter)) {
        match (letter, state) {
            (b'O', _) => {
                out.extend_from_slice(b" O");
                out.extend_from_slice(token);
            }
            (b'k', _) => {
                out.extend_from_slice(b" k");
                out.extend_from_slice(command.key);
                if command.is_base64 {
                    out.extend_from_slice(b" b");
                }
            }
            (b'c', Some(state)) => push_flag(out, b'c', state.cas),
            (b'f', Some(state)) => push_flag(out, b'f', state.attributes.flags.into()),
            (b's', Some(state)) => push_flag(out, b's', state.length as u64),
            (b'h', Some(state)) => push_flag(out, b'h', state.was_fetched.into()),
            (b'l', Some(state)) => push_flag(out, b'l', state.idle_s.into()),
            (b't', Some(state)) => match state.attributes.expiry_s {
                0 => out.extend_from_slice(b" t-1"),
                expiry_s => push_flag(out, b't', expiry_s.saturating_sub(now_s).into()),
            },
            _ => {}
        }
    }
}

/// Appends the fields of an item that `me` and a dump have in common; `access` is the time since the last access, or
/// that of it. Items of all sizes are in one class.
pub(crate) fn push_item_fields(out: &mut Vec<u8>, access: u64, cas: u64, marks: Marks, size: usize) {
    out.extend_from_slice(b" la=");
    number::push(out, access);
    out.extend_from_slice(b" cas=");
    number::push(out, cas);
    out.extend_from_slice(if marks.is_fetched { b" fetch=yes" } else { b" fetch=no" });
    out.extend_from_slice(b" cls=1 size=");
    number::push(out, size as u64);
}

fn push_flag(out: &mut Vec<u8>, letter: u8, number: u64) {
    out.extend_from_slice(&[b' ', letter]);
    number::push(out, number);
}
