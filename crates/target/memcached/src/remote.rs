//! Commands for another partition, many in one message.

use crate::answer::AnswerId;
use crate::command::{Command, Verb};
use kv::KeyHash;

/// Commands for one partition, in order, with their keys and values.
#[derive(Debug, Default)]
pub struct RemoteBatch {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    /// The session of the sender.
    session: u64,
    id: AnswerId,
    hash: KeyHash,
    verb: Verb,
    is_base64: bool,
    key_end: usize,
    value_end: usize,
    extra_end: usize,
}

impl RemoteBatch {
    /// Adds a command of a session.
    pub fn push(&mut self, session: u64, id: AnswerId, hash: KeyHash, command: &Command<'_>) {
        self.bytes.extend_from_slice(command.key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(command.value);
        let value_end = self.bytes.len();
        self.bytes.extend_from_slice(command.extra);
        let extra_end = self.bytes.len();
        let (verb, is_base64) = (command.verb, command.is_base64);
        self.entries.push(Entry { session, id, hash, verb, is_base64, key_end, value_end, extra_end });
    }

    /// Number of commands.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The hashes of the keys, in order.
    pub fn hashes(&self) -> impl Iterator<Item = KeyHash> {
        self.entries.iter().map(|entry| entry.hash)
    }

    /// Calls `each` with session, id, hash and command, in order.
    pub fn for_each(&self, mut each: impl FnMut(u64, AnswerId, KeyHash, &Command<'_>)) {
        let mut start = 0;
        for entry in &self.entries {
            let command = Command {
                verb: entry.verb,
                key: &self.bytes[start..entry.key_end],
                value: &self.bytes[entry.key_end..entry.value_end],
                extra: &self.bytes[entry.value_end..entry.extra_end],
                is_base64: entry.is_base64,
            };
            start = entry.extra_end;
            each(entry.session, entry.id, entry.hash, &command);
        }
    }
}
