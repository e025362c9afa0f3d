//! A long value that is arriving, received in place, and the command that it belongs to.
//!
//! A value of a mebibyte or more is received into chunks of its partition; a shorter one into a buffer of its length.

use memory::{CHUNK_BYTES, Chunk};

use crate::command::{Command, Verb};
use kv::KeyHash;

/// A store command whose value has arrived.
#[derive(Debug)]
pub struct LargeStore {
    /// Hash of its key.
    pub hash: KeyHash,
    verb: Verb,
    key: Box<[u8]>,
    extra: Box<[u8]>,
    is_base64: bool,
    length: usize,
    /// The value, if it has a mebibyte or more; the last chunk may be longer than needed.
    chunks: Vec<Chunk>,
    /// The value, if it is shorter.
    short: Vec<u8>,
}

impl LargeStore {
    pub(super) fn verb(&self) -> Verb {
        self.verb
    }

    /// Whether its value is shorter than a mebibyte.
    pub(super) fn is_short(&self) -> bool {
        self.length < CHUNK_BYTES
    }

    /// Length of the value after its whole mebibytes.
    #[must_use]
    pub fn rest_bytes(&self) -> usize {
        self.length % CHUNK_BYTES
    }

    /// Bytes of the value.
    #[must_use]
    pub fn value_bytes(&self) -> usize {
        self.length
    }

    /// Bytes of the value that are in no chunk.
    pub(super) fn short_bytes(&self) -> usize {
        self.short.len()
    }

    /// The command, with this value.
    fn command<'a>(&'a self, value: &'a [u8]) -> Command<'a> {
        let Self { verb, key, extra, is_base64, .. } = self;
        Command { verb: *verb, key, value, extra, is_base64: *is_base64 }
    }

    /// The command without its value.
    #[must_use]
    pub fn head(&self) -> Command<'_> {
        self.command(&[])
    }

    /// Calls `each` with the command, whose value is the part after the whole mebibytes, and with their chunks.
    pub(super) fn with_command(mut self, each: impl FnOnce(&Command<'_>, Vec<Chunk>)) {
        if self.is_short() {
            return each(&self.command(&self.short), Vec::new());
        }
        let mut chunks = std::mem::take(&mut self.chunks);
        let rest_bytes = self.length % CHUNK_BYTES;
        let whole = chunks.len() > self.length / CHUNK_BYTES;
        let last = if rest_bytes > 0 && whole { chunks.pop() } else { None };
        let rest = last.as_ref().map_or(&[][..], |chunk| &chunk[..rest_bytes]);
        each(&self.command(rest), chunks);
    }
}

/// An arriving value.
pub(super) struct Incoming {
    store: LargeStore,
    /// The partition of its key.
    pub(super) partition: usize,
    /// Bytes of the value received.
    filled: usize,
    /// The line end after it, as far as received, and its expected length.
    line_end: [u8; 2],
    line_end_filled: usize,
    line_end_bytes: usize,
    /// Chunks requested, including those received.
    requested_count: usize,
}

impl Incoming {
    pub(super) fn new(
        command: &Command<'_>,
        hash: KeyHash,
        partition: usize,
        length: usize,
        line_end_bytes: usize,
    ) -> Self {
        let store = LargeStore {
            hash,
            verb: command.verb,
            key: command.key.into(),
            extra: command.extra.into(),
            is_base64: command.is_base64,
            length,
            chunks: Vec::new(),
            short: Vec::new(),
        };
        Self {
            store,
            partition,
            filled: 0,
            line_end: [0; 2],
            line_end_filled: 0,
            line_end_bytes,
            requested_count: 0,
        }
    }

    /// The command without its value.
    pub(super) fn head(&self) -> Command<'_> {
        self.store.head()
    }

    /// Hash of the command's key.
    pub(super) fn hash(&self) -> KeyHash {
        self.store.hash
    }

    pub(super) fn is_whole(&self) -> bool {
        self.filled == self.store.length && self.line_end_filled == self.line_end_bytes
    }

    /// Whether the value is followed by the expected line end.
    pub(super) fn has_right_line_end(&self) -> bool {
        self.line_end_bytes == 0 || self.line_end == *b"\r\n"
    }

    /// Bytes still to be received.
    pub(super) fn left(&self) -> u64 {
        (self.store.length - self.filled + self.line_end_bytes - self.line_end_filled) as u64
    }

    /// Whether there is no memory for the next byte yet.
    pub(super) fn lacks_room(&self) -> bool {
        if self.store.is_short() {
            return self.store.short.is_empty();
        }
        self.filled < self.store.length && self.store.chunks.len() <= self.filled / CHUNK_BYTES
    }

    /// Size of the buffer that it needs; 0 if it comes in chunks, or has its buffer.
    pub(super) fn short_bytes_wanted(&self) -> usize {
        if self.store.is_short() && self.store.short.is_empty() { self.store.length } else { 0 }
    }

    /// Allocates the buffer of a shorter value.
    pub(super) fn allocate_short(&mut self) {
        self.store.short = vec![0; self.store.length];
    }

    /// The number of chunks to request now, one ahead of the input; they count as requested.
    pub(super) fn wanted(&mut self) -> usize {
        if self.store.is_short() {
            return 0;
        }
        let wanted = (self.filled / CHUNK_BYTES + 2).min(self.store.length.div_ceil(CHUNK_BYTES));
        let count = wanted.saturating_sub(self.requested_count);
        self.requested_count += count;
        count
    }

    pub(super) fn on_room(&mut self, chunks: Vec<Chunk>) {
        self.store.chunks.extend(chunks);
        self.requested_count = self.requested_count.max(self.store.chunks.len());
    }

    /// The memory for the next bytes of the value.
    pub(super) fn place(&mut self) -> Option<&mut [u8]> {
        let (at, within) = (self.filled / CHUNK_BYTES, self.filled % CHUNK_BYTES);
        let left = self.store.length - self.filled;
        if self.store.is_short() {
            return self.store.short.get_mut(self.filled..).filter(|_| left > 0);
        }
        let chunk = self.store.chunks.get_mut(at).filter(|_| left > 0)?;
        Some(&mut chunk[within..CHUNK_BYTES.min(within + left)])
    }

    pub(super) fn on_placed(&mut self, count: usize) {
        self.filled += count;
    }

    /// Consumes bytes of `input` that belong to the value, as far as there is room.
    pub(super) fn on_bytes(&mut self, input: &mut &[u8]) {
        if let Some(place) = self.place() {
            let count = place.len().min(input.len());
            let (taken, rest) = input.split_at(count);
            memory::copy_bytes(&mut place[..count], taken);
            self.filled += count;
            *input = rest;
        }
        while self.filled == self.store.length
            && self.line_end_filled < self.line_end_bytes
            && let [byte, rest @ ..] = *input
        {
            self.line_end[self.line_end_filled] = *byte;
            self.line_end_filled += 1;
            *input = rest;
        }
    }

    pub(super) fn into_store(self) -> LargeStore {
        self.store
    }
}
