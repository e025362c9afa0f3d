//! Decoding of bytes to commands: lines of the classic and the meta protocol, packets of the binary one.
//!
//! ```text
//!            ┌── first byte 0x80 ──▶ Binary
//! Unknown ───┼── first byte 0 ─────▶ Close
//!            └── else ─────────────▶ Line ──get…──▶ Keys ──end of line──▶ Line
//!                                     └─refused value─▶ Discard ──all of it──▶ Line
//! ```

use crate::command::{Command, DumpForm, Mode, Verb};
use crate::number;
use crate::protocol::binary;
use crate::protocol::decoded::Decoded;
use crate::settings::COPIED_BYTES_MAX;
use crate::settings::ListenerSettings;
use crate::watch;
use kv::KEY_BYTES_MAX;

/// Longest line, bytes; a longer one closes the connection, unless it lists keys to get.
const LINE_BYTES_MAX: usize = 2048;
/// Shortest command line before its `\n`, bytes: `mn` and `\r`.
const LINE_BYTES_MIN: usize = 3;
/// Limits of the meta protocol: words of a line, and bytes of an opaque with its `O`.
const WORD_COUNT_MAX: usize = 20;
const OPAQUE_BYTES_MAX: usize = 32;

/// The largest level of `verbosity`.
const VERBOSITY_MAX: u64 = u32::MAX as u64;

/// Slab classes that memcached may have.
const SLAB_CLASS_COUNT: u32 = 64;

pub(crate) const BAD_LINE: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
/// The answer to all bad flags of `ma`.
pub(crate) const BAD_FLAG_OF_MA: &[u8] = b"CLIENT_ERROR invalid or duplicate flag\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unknown,
    Line,
    /// Within a line of keys.
    Keys {
        with_cas: bool,
        touch: Touch,
        key_count: u32,
    },
    /// In a line whose rest is discarded.
    SkipLine,
    /// In a value that is discarded.
    Discard {
        left: u64,
        /// Whether the protocol is the binary one.
        is_binary: bool,
    },
    Binary,
}

/// Whether a line of keys sets their expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Touch {
    No,
    /// The time is the next word.
    AllRequest,
    At(i64),
}

/// The decoder of one connection. A copy continues from the state when it was made.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    state: State,
    settings: ListenerSettings,
}

/// Words of a line.
struct Words<'a>(&'a [u8]);

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        while let [b' ', rest @ ..] = self.0 {
            self.0 = rest;
        }
        if self.0.is_empty() {
            return None;
        }
        let (word, rest) = self.0.split_at(first_space(self.0));
        self.0 = rest;
        Some(word)
    }
}

/// Position of the first space; the length if there is none. Words are short, so a call to `memchr` would cost more.
#[inline(always)]
fn first_space(text: &[u8]) -> usize {
    first(text, |sixteen| memory::equal_bytes(sixteen, b' '), |byte| byte == b' ')
}

/// Position of the first byte that is in no usual key; the length if there is none.
#[inline(always)]
fn key_end(text: &[u8]) -> usize {
    first(text, memory::controls, |byte| !is_of_key(byte))
}

/// Position of the first byte for which `is_it` holds. `marks` returns a bit for each such byte of sixteen, which are
/// checked together.
#[inline(always)]
fn first(text: &[u8], marks: impl Fn(&[u8; 16]) -> u32, is_it: impl Fn(u8) -> bool) -> usize {
    let (sixteens, rest) = text.as_chunks();
    for (at, sixteen) in sixteens.iter().enumerate() {
        let marked = marks(sixteen);
        if marked != 0 {
            return at.wrapping_mul(16).wrapping_add(marked.trailing_zeros() as usize);
        }
    }
    let found = rest.iter().position(|&byte| is_it(byte)).unwrap_or(rest.len());
    text.len().saturating_sub(rest.len()).saturating_add(found)
}

/// The key that text begins with, and the bytes after it; `None` if there is none, or it is longer than keys may be.
#[inline(always)]
fn key(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let window = text.get(..KEY_BYTES_MAX).unwrap_or(text);
    let (key, behind) = text.split_at(key_end(window));
    (!key.is_empty()).then_some((key, behind))
}

/// Whether usual keys contain this byte: no space, and no control character.
#[inline(always)]
fn is_of_key(byte: u8) -> bool {
    byte > b' ' && byte != 0x7f
}

/// Whether a word is a valid key: any bytes that are no space and no line end may be in one.
#[inline]
pub(crate) fn is_key(key: &[u8]) -> bool {
    (1..=KEY_BYTES_MAX).contains(&key.len())
}

impl Decoder {
    /// The decoder of a new connection.
    #[must_use]
    pub fn new(settings: ListenerSettings) -> Self {
        Self { state: State::Unknown, settings }
    }

    /// The decoder of a connection that has authenticated: the binary protocol is off.
    #[must_use]
    pub(crate) fn of_text(settings: ListenerSettings) -> Self {
        Self { state: State::Line, settings }
    }

    /// Discards the next `left` bytes.
    pub(crate) fn discard(&mut self, left: u64) {
        let is_binary = self.state == State::Binary;
        self.state = State::Discard { left, is_binary };
    }

    /// Takes the next command off `input`. After [`Decoded::More`] call it again with the same bytes and those that
    /// follow. A command on a key is written to `command` once: copying bytes that were just written in pieces costs
    /// more than the rest of decoding.
    pub fn next<'a>(&mut self, input: &mut &'a [u8], command: &mut Command<'a>) -> Decoded<'a> {
        loop {
            match self.state {
                State::Unknown => match input.first() {
                    None => return Decoded::More(1),
                    Some(&binary::REQUEST) => self.state = State::Binary,
                    // An NVMe host that connects to the wrong port sends an ICReq, and waits. wire §2.2
                    Some(0) => return Decoded::Close,
                    Some(_) => self.state = State::Line,
                },
                State::Line => {
                    let before = *input;
                    let decoded = self.line(input, command);
                    if let (State::Line, Decoded::More(_)) = (self.state, &decoded) {
                        *input = before;
                    }
                    return decoded;
                }
                State::Keys { with_cas, touch, key_count } => {
                    if let Some(decoded) = self.keys(input, command, with_cas, touch, key_count) {
                        return decoded;
                    }
                }
                State::SkipLine => match memchr::memchr(b'\n', input) {
                    Some(end) => {
                        let (_, rest) = input.split_at(end);
                        *input = rest.strip_prefix(b"\n").unwrap_or(rest);
                        self.state = State::Line;
                    }
                    None => {
                        *input = &[];
                        return Decoded::More(1);
                    }
                },
                State::Discard { left, is_binary } => {
                    let count = usize::try_from(left).map_or(input.len(), |left| left.min(input.len()));
                    (_, *input) = input.split_at(count);
                    let left = left.saturating_sub(count as u64);
                    if left > 0 {
                        self.state = State::Discard { left, is_binary };
                        return Decoded::More(1);
                    }
                    self.state = if is_binary { State::Binary } else { State::Line };
                }
                State::Binary => {
                    let (decoded, discard) = binary::decode(input, command, self.settings.value_bytes_max);
                    if let Some(left) = discard {
                        self.state = State::Discard { left, is_binary: true };
                    }
                    return decoded;
                }
            }
        }
    }

    fn line<'a>(&mut self, input: &mut &'a [u8], command: &mut Command<'a>) -> Decoded<'a> {
        let whole = *input;
        // Lines of keys may have any length, and their keys are taken as they come.
        if let Some((with_cas, touch, rest)) = keys_verb(whole) {
            *input = rest;
            self.state = State::Keys { with_cas, touch, key_count: 0 };
            return self.next(input, command);
        }
        if let Some((key, delta, rest)) = addition(whole) {
            *input = rest;
            let verb = Verb::Arithmetic { is_decrement: false, delta, is_quiet: false };
            *command = Command { verb, key, value: &[], extra: &[], is_base64: false };
            return Decoded::Command;
        }
        let window = whole.get(..LINE_BYTES_MAX).unwrap_or(whole);
        let Some(end) = memchr::memchr(b'\n', window) else {
            return if whole.len() >= LINE_BYTES_MAX {
                Decoded::Close
            } else {
                Decoded::More(whole.len().saturating_add(1))
            };
        };
        let (line, after) = whole.split_at(end);
        let is_too_short = line.len() < LINE_BYTES_MIN;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        *input = after.strip_prefix(b"\n").unwrap_or(after);
        let mut words = Words(line);
        if is_too_short {
            return Decoded::Answer(BAD_LINE);
        }
        // A line that begins with a space names no command.
        let name = if line.starts_with(b" ") { b"" } else { words.next().unwrap_or_default() };
        if let [b'm', letter @ (b'g' | b's' | b'd' | b'a' | b'e')] = name {
            return self.meta(*letter, &mut words, input, command, whole.len());
        }
        let mode = match name {
            b"set" | b"cas" => Some(Mode::Set),
            b"add" => Some(Mode::Add),
            b"replace" => Some(Mode::Replace),
            b"append" => Some(Mode::Append),
            b"prepend" => Some(Mode::Prepend),
            _ => None,
        };
        let is_quiet = line.trim_ascii_end().ends_with(b" noreply");
        if let Some(mode) = mode {
            let mode = (mode, name == b"cas", is_quiet);
            return self.store(mode, &mut words, input, command, whole.len());
        }
        plain(name, is_quiet, &mut words, line, command)
    }

    /// `set <key> <flags> <exptime> <bytes> [<cas>] [noreply]`, and the value.
    fn store<'a>(
        &mut self,
        (mode, is_cas, is_quiet): (Mode, bool, bool),
        words: &mut Words<'a>,
        input: &mut &'a [u8],
        command: &mut Command<'a>,
        available: usize,
    ) -> Decoded<'a> {
        let mut word = || words.next().unwrap_or_default();
        let (key, flags, exptime, length) = (word(), word(), word(), word());
        let cas = is_cas.then(&mut word);
        let Some(length) = number::parse(length).filter(|&length| length <= VALUE_BYTES_LIMIT) else {
            return Decoded::Answer(BAD_LINE);
        };
        let value_with_end = length.saturating_add(VALUE_END.len() as u64);
        let flags = number::parse(flags).map(|flags| flags as u32);
        let exptime = number::parse_signed(exptime);
        let cas = cas.map(number::parse);
        let (Some(flags), Some(exptime), true, false) = (flags, exptime, is_key(key), cas == Some(None))
        else {
            self.state = State::Discard { left: value_with_end, is_binary: false };
            return refuse(is_quiet, BAD_LINE);
        };
        let cas = cas.flatten();
        let verb = Verb::Store { mode, cas, flags, exptime, is_quiet };
        if length > self.settings.value_bytes_max as u64 {
            self.state = State::Discard { left: value_with_end, is_binary: false };
            let removes = mode == Mode::Set && !is_cas;
            let verb = Verb::Refused { removes, is_memory: false, is_quiet, binary: None };
            *command = Command { verb, key, value: &[], extra: &[], is_base64: false };
            return Decoded::Command;
        }
        let length = length as usize;
        if length > COPIED_BYTES_MAX {
            *command = Command { verb, key, value: &[], extra: &[], is_base64: false };
            return Decoded::Large { length, has_line_end: true };
        }
        match value(input, length) {
            Value::More(missing) => Decoded::More(available.saturating_add(missing)),
            Value::Bad => Decoded::Answer(bad_chunk(verb)),
            Value::Whole(value) => {
                *command = Command { verb, key, value, extra: &[], is_base64: false };
                Decoded::Command
            }
        }
    }

    /// `m? <key> [<bytes>] <flags>*`, and for `ms` the value.
    fn meta<'a>(
        &mut self,
        letter: u8,
        words: &mut Words<'a>,
        input: &mut &'a [u8],
        command: &mut Command<'a>,
        available: usize,
    ) -> Decoded<'a> {
        let Some(key) = words.next() else { return Decoded::Answer(BAD_LINE) };
        let mut discard = None;
        if letter == b's' {
            let length = words.next().and_then(number::parse).filter(|&length| length <= VALUE_BYTES_LIMIT);
            let Some(length) = length else { return Decoded::Answer(BAD_LINE) };
            discard = Some(length);
        }
        let extra = words.0;
        let problem = check_flags(letter, extra).err();
        let is_base64 = Words(extra).any(|flag| flag == b"b");
        let (is_fine, bad_key): (bool, &[u8]) = if is_base64 {
            let is_fine = number::decode_base64(key, &mut [0; KEY_BYTES_MAX]).is_some();
            (is_fine, b"CLIENT_ERROR error decoding key\r\n")
        } else {
            (is_key(key), BAD_LINE)
        };
        let bad_key = if letter == b'a' { BAD_FLAG_OF_MA } else { bad_key };
        let problem = problem.or((!is_fine).then_some(bad_key));
        if let Some(problem) = problem {
            if let Some(length) = discard {
                self.state =
                    State::Discard { left: length.saturating_add(VALUE_END.len() as u64), is_binary: false };
            }
            return Decoded::Answer(problem);
        }
        let mut value_bytes: &[u8] = &[];
        let mut verb = Verb::Meta(letter);
        if let Some(length) = discard {
            if length > self.settings.value_bytes_max as u64 {
                self.state =
                    State::Discard { left: length.saturating_add(VALUE_END.len() as u64), is_binary: false };
                verb = Verb::Refused { removes: true, is_memory: false, is_quiet: false, binary: None };
            } else if length as usize > COPIED_BYTES_MAX {
                *command = Command { verb, key, value: &[], extra, is_base64 };
                return Decoded::Large { length: length as usize, has_line_end: true };
            } else {
                match value(input, length as usize) {
                    Value::More(missing) => return Decoded::More(available.saturating_add(missing)),
                    Value::Bad => return Decoded::Answer(bad_chunk(verb)),
                    Value::Whole(value) => value_bytes = value,
                }
            }
        }
        *command = Command { verb, key, value: value_bytes, extra, is_base64 };
        Decoded::Command
    }

    /// The next key of a line of keys; `None` if the input has ended and more may follow.
    fn keys<'a>(
        &mut self,
        input: &mut &'a [u8],
        command: &mut Command<'a>,
        with_cas: bool,
        touch: Touch,
        key_count: u32,
    ) -> Option<Decoded<'a>> {
        let mut rest = *input;
        while let [b' ', after @ ..] = rest {
            rest = after;
        }
        let window = rest.get(..KEY_BYTES_MAX + 3).unwrap_or(rest);
        let Some(end) = memchr::memchr2(b' ', b'\n', window) else {
            if window.len() > KEY_BYTES_MAX + 2 {
                self.state = State::SkipLine;
                *input = rest;
                return Some(Decoded::Answer(BAD_LINE));
            }
            *input = rest;
            return Some(Decoded::More(rest.len().saturating_add(1)));
        };
        let (mut key, behind) = rest.split_at(end);
        let is_last = behind.first() == Some(&b'\n');
        if is_last {
            key = key.strip_suffix(b"\r").unwrap_or(key);
        }
        *input = behind.get(1..).unwrap_or_default();
        // The time of `gat` comes before its keys.
        if touch == Touch::AllRequest {
            let Some(exptime) = number::parse_signed(key).filter(|_| !is_last) else {
                self.state = if is_last { State::Line } else { State::SkipLine };
                let answer = if is_last { BAD_LINE } else { b"CLIENT_ERROR invalid exptime argument\r\n" };
                return Some(Decoded::Answer(answer));
            };
            self.state = State::Keys { with_cas, touch: Touch::At(exptime), key_count };
            return None;
        }
        if key.is_empty() {
            self.state = State::Line;
            return Some(Decoded::Answer(if key_count == 0 { BAD_LINE } else { b"END\r\n" }));
        }
        if !is_key(key) {
            self.state = if is_last { State::Line } else { State::SkipLine };
            return Some(Decoded::Answer(BAD_LINE));
        }
        if is_last {
            // The end of the line is still to be answered.
            *input = behind;
        }
        self.state = State::Keys { with_cas, touch, key_count: key_count.saturating_add(1) };
        let touch = if let Touch::At(exptime) = touch { Some(exptime) } else { None };
        let verb = Verb::Get { with_cas, touch };
        *command = Command { verb, key, value: &[], extra: &[], is_base64: false };
        Some(Decoded::Command)
    }

    /// Takes the next key off a line of keys in the usual form: after one space, with more input after it, and without
    /// a time. Returns `false` in all other cases, which [`next`](Self::next) handles.
    #[inline(always)]
    pub fn next_key<'a>(&mut self, input: &mut &'a [u8], command: &mut Command<'a>) -> bool {
        let State::Keys { with_cas, touch: Touch::No, key_count } = self.state else { return false };
        let Some((key, behind)) = key(input.strip_prefix(b" ").unwrap_or(input)) else { return false };
        if !matches!(behind, [b' ', ..] | [b'\r', b'\n', ..]) {
            return false;
        }
        *input = behind;
        self.state = State::Keys { with_cas, touch: Touch::No, key_count: key_count.saturating_add(1) };
        let verb = Verb::Get { with_cas, touch: None };
        *command = Command { verb, key, value: &[], extra: &[], is_base64: false };
        true
    }

    /// The position of the next input, if a `get` key may follow: at the start of a line, or after a key of one. `None`
    /// otherwise.
    #[inline]
    pub(crate) fn get_position(&self) -> Option<GetPosition> {
        match self.state {
            State::Unknown | State::Line => Some(GetPosition::Line),
            State::Keys { with_cas: false, touch: Touch::No, key_count: 1.. } => Some(GetPosition::Key),
            _ => None,
        }
    }

    /// Sets that the next input follows a `get` key.
    #[inline]
    pub(crate) fn set_get_position(&mut self, behind: GetPosition) {
        self.state = match behind {
            GetPosition::Line => State::Line,
            GetPosition::Key => State::Keys { with_cas: false, touch: Touch::No, key_count: 1 },
        };
    }
}

/// The position of a `get` key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GetPosition {
    /// At the start of a line.
    Line,
    /// After another key of its line.
    Key,
}

/// Takes a `get` key off the bytes, and the end of its line if it is the last. Returns the key and the position after
/// it. `None` in all unusual cases, which [`next`](Decoder::next) handles.
#[inline(always)]
pub(crate) fn next_get<'a>(input: &mut &'a [u8], behind: GetPosition) -> Option<(&'a [u8], GetPosition)> {
    let rest = match behind {
        GetPosition::Line => input.strip_prefix(b"get ")?,
        GetPosition::Key => input.strip_prefix(b" ")?,
    };
    let (key, rest) = key(rest)?;
    match rest {
        [b' ', ..] => {
            *input = rest;
            Some((key, GetPosition::Key))
        }
        [b'\r', b'\n', rest @ ..] => {
            *input = rest;
            Some((key, GetPosition::Line))
        }
        _ => None,
    }
}

/// The verb of a line of keys, and the rest of the line.
#[inline]
fn keys_verb(input: &[u8]) -> Option<(bool, Touch, &[u8])> {
    if input.first() != Some(&b'g') {
        return None;
    }
    for (name, with_cas, touch) in [
        (&b"get "[..], false, Touch::No),
        (b"gets ", true, Touch::No),
        (b"gat ", false, Touch::AllRequest),
        (b"gats ", true, Touch::AllRequest),
    ] {
        if let Some(rest) = input.strip_prefix(name) {
            return Some((with_cas, touch, rest));
        }
    }
    None
}

/// `incr <key> <delta>` in its usual form: the key, the number, and the bytes after the line. All other forms are
/// decoded word by word.
#[inline]
fn addition(input: &[u8]) -> Option<(&[u8], u64, &[u8])> {
    const DIGIT_COUNT_MAX: usize = 19;
    let rest = input.strip_prefix(b"incr ")?;
    let window = rest.get(..KEY_BYTES_MAX + 1).unwrap_or(rest);
    let (key, behind) = rest.split_at_checked(first_space(window))?;
    let mut rest = behind.strip_prefix(b" ")?;
    let (mut delta, mut count) = (0u64, 0usize);
    while let [digit @ b'0'..=b'9', after @ ..] = rest {
        // Nineteen digits cannot overflow.
        delta = delta.wrapping_mul(10).wrapping_add(digit.wrapping_sub(b'0').into());
        count = count.wrapping_add(1);
        rest = after;
        if count > DIGIT_COUNT_MAX {
            return None;
        }
    }
    let rest = rest.strip_prefix(b"\r\n")?;
    // A line end in the key is the end of this line.
    let is_usual = is_key(key) && key.iter().fold(true, |all, &byte| all & is_of_key(byte));
    (count > 0 && is_usual).then_some((key, delta, rest))
}

/// The bytes that end a value.
const VALUE_END: &[u8] = b"\r\n";

/// The longest value that a line may announce, as in memcached, bytes.
const VALUE_BYTES_LIMIT: u64 = i32::MAX as u64 - 2;

enum Value<'a> {
    Whole(&'a [u8]),
    Bad,
    /// This many bytes are missing.
    More(usize),
}

/// Takes a value and the end of its line.
#[inline]
fn value<'a>(input: &mut &'a [u8], length: usize) -> Value<'a> {
    let whole = length.saturating_add(VALUE_END.len());
    let Some((value, rest)) = input.split_at_checked(whole) else {
        return Value::More(whole.saturating_sub(input.len()));
    };
    *input = rest;
    match value.strip_suffix(VALUE_END) {
        Some(value) => Value::Whole(value),
        None => Value::Bad,
    }
}

/// The answer to an error of a classic command: none with `noreply`, which silences errors as well.
fn refuse<'a>(is_quiet: bool, answer: &'static [u8]) -> Decoded<'a> {
    Decoded::Answer(if is_quiet { b"" } else { answer })
}

/// The answer to a store whose value is not followed by a line end.
pub(crate) fn bad_chunk(verb: Verb) -> &'static [u8] {
    if verb.is_silent() { b"" } else { b"CLIENT_ERROR bad data chunk\r\n" }
}

/// Decodes the commands of a line without a value. A line with too few words is answered in spite of `noreply`.
fn plain<'a>(
    name: &[u8],
    is_quiet: bool,
    words: &mut Words<'a>,
    line: &[u8],
    command: &mut Command<'a>,
) -> Decoded<'a> {
    let mut word = || words.next().unwrap_or_default();
    let mut on_key = |verb: Verb, key| {
        if !is_key(key) {
            return refuse(verb.is_silent(), BAD_LINE);
        }
        *command = Command { verb, key, value: &[], extra: &[], is_base64: false };
        Decoded::Command
    };
    match name {
        b"mn" => Decoded::Answer(b"MN\r\n"),
        b"get" | b"gets" | b"gat" | b"gats" => Decoded::Answer(BAD_LINE),
        b"delete" => {
            let (key, second, third) = (word(), word(), word());
            // The only word is a key, whatever it is.
            let is_quiet = is_quiet && !second.is_empty();
            if !matches!(second, b"" | b"0" | b"noreply") || !matches!(third, b"" | b"noreply") {
                let text = b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
                return refuse(is_quiet, text);
            }
            on_key(Verb::Delete { is_quiet }, key)
        }
        b"incr" | b"decr" => {
            let (key, delta) = (word(), word());
            if delta.is_empty() {
                return Decoded::Answer(BAD_LINE);
            }
            let Some(delta) = number::parse(delta) else {
                return refuse(is_quiet, b"CLIENT_ERROR invalid numeric delta argument\r\n");
            };
            on_key(Verb::Arithmetic { is_decrement: name == b"decr", delta, is_quiet }, key)
        }
        b"touch" => {
            let (key, exptime) = (word(), word());
            if exptime.is_empty() {
                return Decoded::Answer(BAD_LINE);
            }
            let Some(exptime) = number::parse_signed(exptime) else {
                return refuse(is_quiet, b"CLIENT_ERROR invalid exptime argument\r\n");
            };
            on_key(Verb::Touch { exptime, is_quiet }, key)
        }
        b"flush_all" => {
            let delay = match word() {
                b"" | b"noreply" => Some(0),
                delay => number::parse_signed(delay),
            };
            match delay {
                Some(delay) => Decoded::Flush { delay, is_quiet, binary: None },
                None => refuse(is_quiet, b"CLIENT_ERROR invalid exptime argument\r\n"),
            }
        }
        b"verbosity" => match number::parse(word()) {
            Some(..=VERBOSITY_MAX) => refuse(is_quiet, b"OK\r\n"),
            _ => refuse(is_quiet, BAD_LINE),
        },
        b"version" => Decoded::Version,
        b"stats" => match (word(), word()) {
            (b"detail", b"off") => Decoded::Answer(b"OK\r\n"),
            // Nothing is counted by prefix.
            (b"detail", b"dump") => Decoded::Answer(b"END\r\n"),
            (b"detail", b"on") => Decoded::Answer(b"CLIENT_ERROR stats detail not supported\r\n"),
            (b"detail", _) => Decoded::Answer(b"CLIENT_ERROR usage: stats detail on|off|dump\r\n"),
            (b"cachedump", class) => cachedump(class, word()),
            (of, _) => Decoded::Stats { of, binary: None },
        },
        b"quit" => Decoded::Quit,
        b"shutdown" => refuse(is_quiet, b"SERVER_ERROR: shutdown not enabled\r\n"),
        b"cache_memlimit" => match number::parse(word()) {
            Some(megabytes) => Decoded::Limit { megabytes, is_quiet },
            None => refuse(is_quiet, b"ERROR\r\n"),
        },
        b"lru_crawler" => match (word(), word()) {
            (b"metadump", b"all" | b"hash" | b"1") => Decoded::Dump(DumpForm::Fields),
            (b"mgdump", b"all" | b"hash" | b"1") => Decoded::Dump(DumpForm::Commands),
            (b"metadump" | b"mgdump", class) if !class.is_empty() => {
                Decoded::Answer(b"BADCLASS invalid class id\r\n")
            }
            _ => refuse(is_quiet, b"CLIENT_ERROR not supported\r\n"),
        },
        b"lru" | b"slabs" => refuse(is_quiet, b"CLIENT_ERROR not supported\r\n"),
        b"watch" => {
            let mut kinds = words.map(watch::kind::of);
            match kinds.next() {
                None => Decoded::Watch(watch::kind::FETCHERS),
                Some(first) => match kinds.try_fold(first.unwrap_or(0), |all, kind| Some(all | kind?)) {
                    Some(all) if first.is_some() => Decoded::Watch(all),
                    _ => Decoded::Answer(b"ERROR\r\n"),
                },
            }
        }
        // HTTP, as from a browser tricked into posting here.
        _ if Words(line).last().is_some_and(|word| word.starts_with(b"HTTP/")) => Decoded::Close,
        _ => refuse(is_quiet, b"ERROR\r\n"),
    }
}

/// `stats cachedump <class> <limit>`: all pairs are in class 1.
fn cachedump<'a>(class: &[u8], limit: &[u8]) -> Decoded<'a> {
    if limit.is_empty() {
        return Decoded::Answer(b"CLIENT_ERROR bad command line\r\n");
    }
    let number = |word| number::parse(word).and_then(|number| u32::try_from(number).ok());
    match (number(class), number(limit)) {
        (Some(1), Some(limit)) => {
            Decoded::Dump(DumpForm::Items { left: Some(limit).filter(|limit| *limit > 0) })
        }
        (Some(..SLAB_CLASS_COUNT), Some(_)) => Decoded::Answer(b"END\r\n"),
        (Some(_), Some(_)) => Decoded::Answer(b"CLIENT_ERROR Illegal slab id\r\n"),
        _ => Decoded::Answer(BAD_LINE),
    }
}

/// Checks the flags of a meta command, as far as that is possible without their meaning.
fn check_flags(letter: u8, flags: &[u8]) -> Result<(), &'static [u8]> {
    let duplicate: &[u8] = match letter {
        b'a' => BAD_FLAG_OF_MA,
        _ => b"CLIENT_ERROR duplicate flag\r\n",
    };
    let fixed_count = if letter == b's' { 3 } else { 2 };
    let mut seen = 0u128;
    for (at, flag) in (fixed_count..).zip(Words(flags)) {
        if at >= WORD_COUNT_MAX {
            return Err(b"CLIENT_ERROR options flags are too long\r\n");
        }
        let Some(&letter) = flag.first() else { continue };
        if letter >= 0x7f || seen >> letter & 1 == 1 {
            return Err(duplicate);
        }
        seen |= 1 << letter;
        if letter == b'O' && flag.len() > OPAQUE_BYTES_MAX {
            return Err(b"CLIENT_ERROR opaque token too long\r\n");
        }
    }
    Ok(())
}

/// The flags of a meta command, in order: letter and token.
pub(crate) fn flags(extra: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    Words(extra).filter_map(|word| word.split_first().map(|(&letter, token)| (letter, token)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_first_space_is_found(text in prop::collection::vec(prop_oneof![Just(b' '), Just(b'!'), any::<u8>()], 0..40)) {
            let found = text.iter().position(|&byte| byte == b' ').unwrap_or(text.len());
            prop_assert_eq!(first_space(&text), found);
        }

        #[test]
        fn a_key_ends_at_the_first_byte_that_is_in_none(text in prop::collection::vec(prop_oneof![3 => b'!'..=b'~', 1 => any::<u8>()], 0..40)) {
            let end = text.iter().position(|&byte| byte <= b' ' || byte == 0x7f).unwrap_or(text.len());
            prop_assert_eq!(key_end(&text), end);
        }
    }
}
