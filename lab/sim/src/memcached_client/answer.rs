//! The answers that a client of the memcached protocol awaits, in order.

use super::binary::Request;
use crate::pair_model::{Answer, PairModel};

/// The part that was taken from the bytes that have arrived.
pub(super) enum Taken {
    /// More must arrive first.
    Nothing,
    /// This number of bytes; the command has a further answer.
    Part(usize),
    /// This number of bytes; the command is answered.
    Whole(usize),
    /// The namespace is not there.
    Gone,
}

/// The next expected answer on a connection.
#[derive(Debug)]
pub(super) enum Expected {
    /// Values of keys, as far as there are any, and `END`. The command of each key, and how many are answered.
    Values { commands: Vec<(usize, u64)>, done: usize, is_last_look: bool },
    /// One line about a key.
    Line { key: usize, command: u64 },
    /// The answer of a meta command, which repeats its opaque.
    Meta { key: usize, command: u64, opaque: u64 },
    /// `OK`, when all keys have been removed.
    Cleared { commands: Vec<(usize, u64)> },
    /// A line that does not depend on any key.
    Text(&'static str),
    /// The response to a request of the binary protocol.
    Binary(Request),
}

/// A line and the bytes after it, if all of it has arrived.
fn line(bytes: &[u8]) -> Result<Option<(&str, &[u8])>, String> {
    let Some(at) = bytes.windows(2).position(|two| two == b"\r\n") else { return Ok(None) };
    let text = std::str::from_utf8(&bytes[..at]);
    let text = text.map_err(|_| format!("a line of {:?}", String::from_utf8_lossy(&bytes[..at])))?;
    Ok(Some((text, &bytes[at + 2..])))
}

/// A value of this length and the end of its line, if all of it has arrived.
fn value(bytes: &[u8], length: usize) -> Result<Option<&[u8]>, String> {
    let Some(whole) = bytes.get(..length + 2) else { return Ok(None) };
    match whole.strip_suffix(b"\r\n") {
        Some(value) => Ok(Some(value)),
        None => Err(format!("a value of {length} bytes ends with {:?}", &whole[length..])),
    }
}

impl Expected {
    /// The commands that it answers.
    pub(super) fn commands(&self) -> Vec<(usize, u64)> {
        match self {
            Self::Values { commands, done, .. } => commands[*done..].to_vec(),
            Self::Cleared { commands } => commands.clone(),
            Self::Line { key, command } | Self::Meta { key, command, .. } => vec![(*key, *command)],
            Self::Binary(request) => request.commands.clone(),
            Self::Text(_) => Vec::new(),
        }
    }

    /// The key that it is the last look at.
    pub(super) fn last_look(&self) -> Option<usize> {
        match self {
            Self::Values { commands, is_last_look: true, .. }
            | Self::Binary(Request { commands, is_last_look: true, .. }) => Some(commands[0].0),
            _ => None,
        }
    }

    /// Takes an answer, or a part of one, from the beginning of `bytes`.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        model: &mut PairModel,
        cas_seen: &mut [Option<u64>],
        now_ns: u64,
    ) -> Result<Taken, String> {
        let Some((text, rest)) = line(bytes)? else { return Ok(Taken::Nothing) };
        if text == "SERVER_ERROR the namespace is gone" {
            return Ok(Taken::Gone);
        }
        let whole = |rest: &[u8]| Ok(Taken::Whole(bytes.len() - rest.len()));
        if text == "SERVER_ERROR out of space" {
            for (key, command) in self.commands() {
                model.end(key, command, &Answer::NoSpace, now_ns)?;
            }
            return whole(rest);
        }
        let words: Vec<&str> = text.split(' ').collect();
        match self {
            Self::Binary(_) => Err("a line in the binary protocol".into()),
            Self::Text(expected) => {
                let is_it = text == *expected
                    || expected.ends_with('*') && text.starts_with(expected.trim_end_matches('*'));
                if !is_it {
                    return Err(format!("{text:?} instead of {expected:?}"));
                }
                whole(rest)
            }
            Self::Cleared { commands } => {
                if text != "OK" {
                    return Err(format!("{text:?} instead of OK"));
                }
                for (key, command) in commands {
                    model.end(*key, *command, &Answer::Done { cas: None }, now_ns)?;
                }
                whole(rest)
            }
            Self::Line { key, command } => {
                model.end(*key, *command, &simple(text)?, now_ns)?;
                whole(rest)
            }
            Self::Values { commands, done, .. } => {
                let next = |key: &str| {
                    let is_it = |(other, _): &(usize, u64)| *model.name(*other) == *key;
                    commands[*done..].iter().position(is_it)
                };
                if let ["VALUE", key, flags, length, cas @ ..] = &words[..] {
                    let Some(at) = next(key) else {
                        return Err(format!("a value of {key}, which is not asked for, or not now"));
                    };
                    let Some(value) = value(rest, number(length)? as usize)? else {
                        return Ok(Taken::Nothing);
                    };
                    // Keys without a line have no value.
                    for (key, command) in &commands[*done..*done + at] {
                        model.end(*key, *command, &Answer::Missing, now_ns)?;
                    }
                    let (key, command) = commands[*done + at];
                    let cas = cas.first().map(|cas| number(cas)).transpose()?;
                    cas_seen[key] = cas.or(cas_seen[key]);
                    let flags = Some(number(flags)? as u32);
                    let answer = Answer::Found { value: Some(value.into()), flags, cas };
                    model.end(key, command, &answer, now_ns)?;
                    *done += at + 1;
                    return Ok(Taken::Part(bytes.len() - rest.len() + value.len() + 2));
                }
                if text != "END" {
                    return Err(format!("{text:?} instead of values"));
                }
                for (key, command) in &commands[*done..] {
                    model.end(*key, *command, &Answer::Missing, now_ns)?;
                }
                whole(rest)
            }
            Self::Meta { key, command, opaque } => {
                let has_flags = ["VA", "HD", "EN", "NF", "NS", "EX"].contains(&words[0]);
                let words = if has_flags { &words[..] } else { &words[..1] };
                let flag = |letter: char| {
                    words.iter().skip(1).find_map(|word| word.strip_prefix(letter)).map(number).transpose()
                };
                if let Some(echo) = flag('O')?
                    && echo != *opaque
                {
                    return Err(format!("{text:?} in the place of the answer with opaque {opaque}"));
                }
                // A value that has expired at once has none.
                let (cas, flags) = (flag('c')?.filter(|cas| *cas != 0), flag('f')?.map(|flags| flags as u32));
                cas_seen[*key] = cas.or(cas_seen[*key]);
                let (answer, rest) = match words[0] {
                    "VA" => {
                        let Some(value) = value(rest, number(words[1])? as usize)? else {
                            return Ok(Taken::Nothing);
                        };
                        let answer = Answer::Found { value: Some(value.into()), flags, cas };
                        (answer, &rest[value.len() + 2..])
                    }
                    "HD" => (Answer::Done { cas }, rest),
                    "EN" | "NF" => (Answer::Missing, rest),
                    "NS" => (Answer::NotStored, rest),
                    "EX" => (Answer::Exists, rest),
                    _ => (simple(text)?, rest),
                };
                model.end(*key, *command, &answer, now_ns)?;
                whole(rest)
            }
        }
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}

/// The meaning of a line.
fn simple(text: &str) -> Result<Answer, String> {
    Ok(match text {
        "STORED" | "DELETED" | "TOUCHED" => Answer::Done { cas: None },
        "NOT_STORED" => Answer::NotStored,
        "EXISTS" => Answer::Exists,
        "NOT_FOUND" => Answer::Missing,
        "CLIENT_ERROR cannot increment or decrement non-numeric value" => Answer::NotNumeric,
        "SERVER_ERROR object too large for cache" => Answer::TooLarge,
        "SERVER_ERROR out of memory storing object"
        | "SERVER_ERROR out of memory"
        | "SERVER_ERROR log is full, the rest is headroom for cleaning" => Answer::NoMemory,
        _ => Answer::Number(number(text)?),
    })
}
