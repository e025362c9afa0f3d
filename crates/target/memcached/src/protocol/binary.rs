//! The binary protocol: a header of 24 bytes, extras, key, value.

use crate::binary_response::{
    EXISTS, INVALID, NO_MEMORY, NOT_FOUND, NOT_NUMERIC, NOT_STORED, SUCCESS, TOO_LARGE, UNKNOWN, refuse,
    respond,
};
use crate::command::{Command, Header, Mode, Verb};
use crate::execute::{Executor, Refusal};
use crate::protocol::decoded::Decoded;
use crate::settings::COPIED_BYTES_MAX;
use kv::{Attributes, Clock, Condition, KEY_BYTES_MAX, KeyHash, Stored};

/// First byte of a request.
pub(crate) const REQUEST: u8 = 0x80;
const HEADER_BYTES: usize = 24;

pub(crate) const VERSION: u8 = 0x0b;
pub(crate) const STAT: u8 = 0x10;

/// The operation of an opcode, quiet or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Get { gives_key: bool },
    Store(Mode),
    Delete,
    Arithmetic { is_decrement: bool },
    Touch,
    GetAndTouch { gives_key: bool },
}

fn op(opcode: u8) -> Option<(Op, bool)> {
    Some(match opcode {
        0x00 | 0x09 => (Op::Get { gives_key: false }, opcode == 0x09),
        0x0c | 0x0d => (Op::Get { gives_key: true }, opcode == 0x0d),
        0x01 | 0x11 => (Op::Store(Mode::Set), opcode == 0x11),
        0x02 | 0x12 => (Op::Store(Mode::Add), opcode == 0x12),
        0x03 | 0x13 => (Op::Store(Mode::Replace), opcode == 0x13),
        0x0e | 0x19 => (Op::Store(Mode::Append), opcode == 0x19),
        0x0f | 0x1a => (Op::Store(Mode::Prepend), opcode == 0x1a),
        0x04 | 0x14 => (Op::Delete, opcode == 0x14),
        0x05 | 0x15 => (Op::Arithmetic { is_decrement: false }, opcode == 0x15),
        0x06 | 0x16 => (Op::Arithmetic { is_decrement: true }, opcode == 0x16),
        0x1c => (Op::Touch, false),
        0x1d | 0x1e => (Op::GetAndTouch { gives_key: false }, opcode == 0x1e),
        0x23 | 0x24 => (Op::GetAndTouch { gives_key: true }, opcode == 0x24),
        _ => return None,
    })
}

/// Whether a request stores unconditionally: refused, it removes the old value.
pub(crate) fn is_set(opcode: u8) -> bool {
    matches!(op(opcode), Some((Op::Store(Mode::Set), _)))
}

impl Op {
    /// Length of the extras.
    fn extras(self) -> usize {
        match self {
            Self::Get { .. } | Self::Delete | Self::Store(Mode::Append | Mode::Prepend) => 0,
            Self::Store(_) => 8,
            Self::Arithmetic { .. } => 20,
            Self::Touch | Self::GetAndTouch { .. } => 4,
        }
    }
}

/// The first four bytes as a number; 0 if there are fewer.
fn word(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// The first eight bytes as a number; 0 if there are fewer.
fn double_word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// Takes one request off the input. Also returns how many bytes of it must be discarded after the answer.
pub(crate) fn decode<'a>(
    input: &mut &'a [u8],
    command: &mut Command<'a>,
    value_bytes_max: usize,
) -> (Decoded<'a>, Option<u64>) {
    let bytes = *input;
    if bytes.first().is_some_and(|&magic| magic != REQUEST) {
        return (Decoded::Close, None);
    }
    let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return (Decoded::More(HEADER_BYTES), None);
    };
    let opcode = head[1];
    let key_bytes = usize::from(u16::from_be_bytes([head[2], head[3]]));
    let extra_bytes = usize::from(head[4]);
    let body_bytes = word(&head[8..]) as usize;
    let header = Header { opcode, opaque: word(&head[12..]), cas: double_word(&head[16..]) };
    // Contradictory lengths: the start of the next request is unknown.
    let Some(value_bytes) = body_bytes.checked_sub(key_bytes.saturating_add(extra_bytes)) else {
        return (Decoded::Close, None);
    };
    if value_bytes > COPIED_BYTES_MAX.min(value_bytes_max) {
        let (decoded, discard) =
            decode_large((input, command), rest, header, (key_bytes, extra_bytes, value_bytes));
        if matches!(decoded, Decoded::Large { .. }) && value_bytes > value_bytes_max {
            let removes = is_set(header.opcode);
            command.verb = Verb::Refused { removes, is_memory: false, is_quiet: false, binary: Some(header) };
            return (Decoded::Command, Some(value_bytes as u64));
        }
        return (decoded, discard);
    }
    let Some((body, after)) = rest.split_at_checked(body_bytes) else {
        return (Decoded::More(HEADER_BYTES.saturating_add(body_bytes)), None);
    };
    *input = after;
    let (extra, rest) = body.split_at(extra_bytes);
    let (key, value) = rest.split_at(key_bytes);
    let decoded = match opcode {
        0x07 => Decoded::BinaryQuit(header),
        0x17 => Decoded::Quit,
        0x08 | 0x18 if matches!(extra_bytes, 0 | 4) && key.is_empty() && value.is_empty() => {
            let delay = if extra.is_empty() { 0 } else { word(extra).into() };
            Decoded::Flush { delay, is_quiet: opcode == 0x18, binary: Some(header) }
        }
        0x0a | VERSION if body.is_empty() => Decoded::Binary(header, SUCCESS),
        STAT if extra.is_empty() && value.is_empty() => Decoded::Stats { of: key, binary: Some(header) },
        0x1b => Decoded::Binary(header, SUCCESS),
        _ => match op(opcode) {
            None if matches!(opcode, 0x08 | 0x18 | 0x0a | VERSION | STAT) => Decoded::Binary(header, INVALID),
            None => Decoded::Binary(header, UNKNOWN),
            Some((op, _)) => {
                let takes_value = matches!(op, Op::Store(_));
                let is_valid = extra_bytes == op.extras()
                    && (1..=KEY_BYTES_MAX).contains(&key_bytes)
                    && (takes_value || value.is_empty());
                if is_valid {
                    let verb = Verb::Binary(header);
                    *command = Command { verb, key, value, extra, is_base64: false };
                    Decoded::Command
                } else {
                    Decoded::Binary(header, INVALID)
                }
            }
        },
    };
    (decoded, None)
}

/// Decodes the next request, whose value is long.
#[cold]
fn decode_large<'a>(
    (input, command): (&mut &'a [u8], &mut Command<'a>),
    body: &'a [u8],
    header: Header,
    (key_bytes, extra_bytes, value_bytes): (usize, usize, usize),
) -> (Decoded<'a>, Option<u64>) {
    let is_valid = matches!(op(header.opcode), Some((op @ Op::Store(_), _)) if op.extras() == extra_bytes)
        && (1..=KEY_BYTES_MAX).contains(&key_bytes);
    let front_bytes = extra_bytes.saturating_add(key_bytes);
    if !is_valid {
        *input = body;
        return (Decoded::Binary(header, INVALID), Some(front_bytes.saturating_add(value_bytes) as u64));
    }
    let Some((front, rest)) = body.split_at_checked(front_bytes) else {
        return (Decoded::More(HEADER_BYTES.saturating_add(front_bytes)), None);
    };
    *input = rest;
    let (extra, key) = front.split_at(extra_bytes);
    *command = Command { verb: Verb::Binary(header), key, value: &[], extra, is_base64: false };
    (Decoded::Large { length: value_bytes, has_line_end: false }, None)
}

fn status_of(stored: Stored) -> u16 {
    match stored {
        Stored::Done => SUCCESS,
        Stored::Exists => EXISTS,
        Stored::NotFound => NOT_FOUND,
        Stored::NoMemory | Stored::LogFull => NO_MEMORY,
        Stored::TooLarge => TOO_LARGE,
    }
}

impl Executor<'_> {
    /// Executes a binary command that has a key.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        reason = "counters, and a key that was just found"
    )]
    pub(crate) fn binary(
        &mut self,
        header: Header,
        hash: KeyHash,
        key: &[u8],
        command: &Command<'_>,
        out: &mut Vec<u8>,
    ) {
        let Some((op, is_quiet)) = op(header.opcode) else { return refuse(out, header, UNKNOWN) };
        let extra = command.extra;
        match op {
            Op::Get { gives_key } => self.binary_get(header, hash, key, gives_key, is_quiet, None, out),
            Op::GetAndTouch { gives_key } => {
                let exptime = i64::from(word(extra));
                self.binary_get(header, hash, key, gives_key, is_quiet, Some(exptime), out);
            }
            Op::Store(mode) => {
                let condition = (header.cas != 0).then_some(header.cas);
                let (flags, exptime) = if extra.is_empty() {
                    (0, 0)
                } else {
                    (word(extra), i64::from(word(extra.get(4..).unwrap_or_default())))
                };
                self.service.counters.set_count += 1;
                let stored = self.store_value(hash, key, mode, command.value, (flags, exptime), condition);
                let status = match (stored, mode) {
                    (Stored::NotFound, Mode::Append | Mode::Prepend) => NOT_STORED,
                    _ if mode.is_too_long(stored) => NOT_STORED,
                    _ => status_of(stored),
                };
                self.binary_end(header, hash, key, is_quiet, status, out);
            }
            Op::Delete => {
                let place = self.partition.processor.find(hash, key);
                let condition =
                    if header.cas == 0 { Condition::Present } else { Condition::Unchanged(header.cas) };
                let status = match self.partition.processor.check(place, condition) {
                    Ok(()) => {
                        self.service.counters.delete_hit_count += 1;
                        self.partition.processor.remove(hash, place.expect("present"));
                        SUCCESS
                    }
                    Err(stored) => {
                        self.service.counters.delete_miss_count += u64::from(stored == Stored::NotFound);
                        status_of(stored)
                    }
                };
                match status {
                    SUCCESS if is_quiet => {}
                    SUCCESS => respond(out, header, SUCCESS, &[], &[], &[], 0),
                    _ => refuse(out, header, status),
                }
            }
            Op::Arithmetic { is_decrement } => {
                let (delta, initial, exptime) = (
                    double_word(extra),
                    double_word(extra.get(8..).unwrap_or_default()),
                    word(extra.get(16..).unwrap_or_default()),
                );
                let create = (exptime != u32::MAX).then_some((initial, i64::from(exptime)));
                let condition = (header.cas != 0).then_some(header.cas);
                match self.arithmetic(hash, key, is_decrement, delta, create, condition) {
                    Ok(_) if is_quiet => {}
                    Ok(number) => {
                        let cas = self.partition.processor.cas(hash, key).unwrap_or(0);
                        respond(out, header, SUCCESS, &[], &[], &number.to_be_bytes(), cas);
                    }
                    Err(refusal) => {
                        let status = match refusal {
                            Refusal::NotNumeric => NOT_NUMERIC,
                            Refusal::Stored(stored) => status_of(stored),
                        };
                        refuse(out, header, status);
                    }
                }
            }
            Op::Touch => {
                self.service.counters.touch_count += 1;
                let expiry_s = self.expiry(i64::from(word(extra)));
                // Of the pair before, which may expire at once.
                let cas = self.partition.processor.cas(hash, key).unwrap_or(0);
                let place = self.partition.processor.find(hash, key);
                let flags = place.map_or(0, |place| self.partition.processor.attributes(place).flags);
                if self.partition.processor.set_expiry(hash, key, expiry_s) {
                    self.service.counters.touch_hit_count += 1;
                    respond(out, header, SUCCESS, &flags.to_be_bytes(), &[], &[], cas);
                } else {
                    refuse(out, header, NOT_FOUND);
                }
            }
        }
    }

    fn binary_end(
        &mut self,
        header: Header,
        hash: KeyHash,
        key: &[u8],
        is_quiet: bool,
        status: u16,
        out: &mut Vec<u8>,
    ) {
        match status {
            SUCCESS if is_quiet => {}
            SUCCESS => {
                let cas = self.partition.processor.cas(hash, key).unwrap_or(0);
                respond(out, header, SUCCESS, &[], &[], &[], cas);
            }
            _ => refuse(out, header, status),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what the four commands differ in")]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "counters, and places in our own answer, whose header was just pushed"
    )]
    fn binary_get(
        &mut self,
        header: Header,
        hash: KeyHash,
        key: &[u8],
        gives_key: bool,
        is_quiet: bool,
        touch: Option<i64>,
        out: &mut Vec<u8>,
    ) {
        self.service.counters.get_count += 1;
        self.service.counters.touch_count += u64::from(touch.is_some());
        if self.partition.processor.find(hash, key).is_none() {
            self.service.counters.get_miss_count += 1;
            match (is_quiet, gives_key) {
                (true, _) => {}
                (false, true) => respond(out, header, NOT_FOUND, &[], key, &[], 0),
                (false, false) => refuse(out, header, NOT_FOUND),
            }
            return;
        }
        self.service.counters.get_hit_count += 1;
        let expiry_s = touch.map(|exptime| self.expiry(exptime));
        self.service.counters.touch_hit_count += u64::from(touch.is_some());
        // With a time in the past the pair is in this answer, and then removed.
        let ends = expiry_s == Some(Clock::EXPIRED_S);
        if let (Some(expiry_s), false) = (expiry_s, ends) {
            self.partition.processor.set_expiry(hash, key, expiry_s);
        }
        let cas = self.partition.processor.cas(hash, key).unwrap_or(0);
        // It may have left the index to get a CAS number.
        let Some(place) = self.partition.processor.find(hash, key) else {
            return refuse(out, header, NOT_FOUND);
        };
        self.partition.processor.touch(place);
        let Attributes { flags, .. } = self.partition.processor.attributes(place);
        let start = out.len();
        let given_key = if gives_key { key } else { &[] };
        respond(out, header, SUCCESS, &flags.to_be_bytes(), given_key, &[], cas);
        let noted_bytes = self.push_value(place, out);
        let body_bytes = (out.len() - start - HEADER_BYTES + noted_bytes) as u32;
        out[start + 8..start + 12].copy_from_slice(&body_bytes.to_be_bytes());
        if ends {
            self.partition.processor.delete(hash, key);
        }
    }
}
