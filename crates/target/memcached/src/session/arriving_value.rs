//! The long value that a session receives: room for it, its bytes, and its refusal.

use memory::Chunk;

use super::{Progress, Session};
use crate::command::{Command, Mode, Verb};
use crate::protocol::binary;
use crate::protocol::decode::bad_chunk;
use crate::router::Router;
use kv::KEY_BYTES_MAX;

impl Session {
    /// Consumes input that belongs to the arriving value. `None` once it is complete.
    pub(super) fn receive_value(&mut self, router: &mut impl Router, input: &mut &[u8]) -> Option<Progress> {
        let (own, _) = router.position();
        // The namespace may have been replaced, with other hashes for its keys: the value is then discarded.
        let incoming = self.incoming.as_ref()?;
        let key_hash =
            router.executor().partition.processor.hash(incoming.head().stored_key(&mut [0; KEY_BYTES_MAX]));
        if key_hash != incoming.hash() {
            self.incoming = None;
            self.is_closing = true;
            *input = &[];
            return Some(Progress::Close);
        }
        loop {
            let incoming = self.incoming.as_mut()?;
            if incoming.is_whole() {
                break;
            }
            if incoming.lacks_room() {
                if incoming.short_bytes_wanted() > 0 {
                    if self.lacks_buffer() {
                        return Some(Progress::Stalled);
                    }
                    self.incoming.as_mut()?.allocate_short();
                    continue;
                }
                let partition = incoming.partition;
                // With a log, memory may become free as more is written: the request takes the same path as for other
                // partitions.
                if partition != own || router.executor().partition.processor.has_log() {
                    let count = incoming.wanted();
                    if count > 0 {
                        router.reserve(partition, count);
                    }
                    return Some(Progress::Stalled);
                }
                match router.executor().partition.processor.take_chunks(1) {
                    Some(chunks) => incoming.on_room(chunks),
                    None => self.refuse_incoming(router),
                }
                continue;
            }
            if input.is_empty() {
                self.needed_bytes = 0;
                return Some(Progress::Open);
            }
            incoming.on_bytes(input);
            let count = incoming.wanted();
            if count > 0 && (incoming.partition != own || router.executor().partition.processor.has_log()) {
                router.reserve(incoming.partition, count);
            }
        }
        let incoming = self.incoming.take()?;
        let (partition, has_right_line_end) = (incoming.partition, incoming.has_right_line_end());
        let store = incoming.into_store();
        if !has_right_line_end {
            self.sink().bytes_mut().extend_from_slice(bad_chunk(store.verb()));
            return None;
        }
        if let Some(mut in_place) = router.in_place().filter(|_| self.queue.is_empty()) {
            let out = self.output.bytes_mut();
            in_place.on(partition, |mut executor| executor.execute_large(store, out));
            return None;
        }
        if partition == own && !router.executor().partition.processor.has_log() {
            let mut executor = router.executor();
            let sink = self.sink();
            executor.execute_large(store, sink.bytes_mut());
            return None;
        }
        let id = self.push_awaited(store.short_bytes().max(1), &store.head().verb);
        if partition == own {
            self.last_by_message = Some(id);
        }
        router.store_large(partition, id, store);
        None
    }

    /// Refuses the arriving value for lack of memory, and discards the rest of it.
    fn refuse_incoming(&mut self, router: &mut impl Router) {
        let Some(incoming) = self.incoming.take() else { return };
        self.decoder.discard(incoming.left());
        let partition = incoming.partition;
        let store = incoming.into_store();
        let (removes, binary) = match store.verb() {
            Verb::Store { mode: Mode::Set, cas: None, .. } | Verb::Meta(_) => (true, None),
            Verb::Binary(header) => (binary::is_set(header.opcode), Some(header)),
            _ => (false, None),
        };
        let verb = Verb::Refused { removes, is_memory: true, is_quiet: store.verb().is_silent(), binary };
        let hash = store.hash;
        store.with_command(|command, _| {
            let command = Command { verb, value: &[], ..*command };
            if let Some(mut in_place) = router.in_place().filter(|_| self.queue.is_empty()) {
                let out = self.output.bytes_mut();
                return in_place.on(partition, |mut executor| executor.execute(hash, &command, out));
            }
            if partition == router.position().0 && self.is_immediate(router, hash, &command) {
                Self::count_need(router, hash, command.key);
                return router.executor().execute(hash, &command, self.sink().bytes_mut());
            }
            let id = self.push_awaited(0, &verb);
            if partition == router.position().0 {
                self.last_by_message = Some(id);
            }
            router.send(partition, id, hash, &command);
        });
    }

    /// Handles memory for the arriving value; empty if there is none. Call [`resume`](Self::resume) afterwards.
    pub fn on_room(&mut self, router: &mut impl Router, chunks: Vec<Chunk>) {
        match &mut self.incoming {
            Some(_) if chunks.is_empty() => self.refuse_incoming(router),
            Some(incoming) => incoming.on_room(chunks),
            None => {}
        }
    }

    /// Memory of the arriving value into which the next bytes may be received directly.
    pub fn place(&mut self) -> Option<&mut [u8]> {
        if !self.backlog.is_empty() { None } else { self.incoming.as_mut()?.place() }
    }

    /// Accounts for `count` bytes received into [`place`](Self::place). Call it before passing the bytes that follow,
    /// even with a count of 0.
    pub fn on_placed(&mut self, count: usize) {
        if let Some(incoming) = &mut self.incoming {
            incoming.on_placed(count);
        }
    }
}
