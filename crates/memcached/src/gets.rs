//! Keys to `get`, many together: most of what most clients ask.
//!
//! ```text
//! take keys off their lines, fetch their buckets ─▶ say where their items are, fetch them ─▶ compare, answer
//! ```
//!
//! What nothing but a key is known of needs little room, and nothing that is carried out in between changes where the others are: what was seen
//! when items were fetched need not be looked for again.

use super::Command;
use super::decode::{Behind, next_get};
use super::session::{BATCH, ITEMS_AHEAD, Router, Session};
use kv::{Home, KeyHash, Place};

/// One of them.
#[derive(Clone, Copy)]
pub(super) struct Get<'a> {
    key: &'a [u8],
    hash: KeyHash,
    home: Home,
    /// Where its pair was seen.
    place: Option<Place>,
    /// What is behind it.
    behind: Behind,
    /// Bytes of the input behind it.
    left_bytes: usize,
}

impl Session {
    /// Takes keys to `get` off the input and answers them, as far as there are such and not too much is to be sent. Says whether there was one.
    #[inline]
    pub(super) fn run_gets<'a>(
        &mut self,
        router: &mut impl Router,
        input: &mut &'a [u8],
        gets: &mut Vec<Get<'a>>,
    ) -> bool {
        let processor = &router.executor().partition.processor;
        if processor.has_log() {
            return false;
        }
        let Some(mut behind) = self.decoder.behind_get() else { return false };
        let whole = *input;
        gets.clear();
        while gets.len() < BATCH
            && let Some((key, behind_it)) = next_get(input, behind)
        {
            if gets.is_empty() {
                gets.reserve((whole.len() / 16 + 1).min(BATCH));
            }
            behind = behind_it;
            let hash = processor.hash(key);
            let home = processor.prefetch_home(hash);
            gets.push(Get { key, hash, home, place: None, behind, left_bytes: input.len() });
        }
        if gets.is_empty() {
            return false;
        }
        let removed = processor.removed_count();
        let (own, count) = router.position();
        let mut fetched = 0;
        for at in 0..gets.len() {
            let processor = &router.executor().partition.processor;
            let until = gets.len().min(at + ITEMS_AHEAD);
            for get in &mut gets[fetched..until] {
                get.place = processor.prefetch_item_of(get.hash, get.home);
            }
            fetched = until;
            let get = &gets[at];
            let (key, hash) = (get.key, get.hash);
            let partition = if count == 1 { own } else { hash.partition(count) };
            if partition == own {
                let mut executor = router.executor();
                let place = get.place.filter(|_| executor.partition.processor.removed_count() == removed);
                let sink = self.sink();
                executor.get_ahead(hash, key, place, sink.bytes_mut());
                if !executor.service.sent.is_empty() {
                    sink.insert(executor.take_sent());
                }
            } else {
                let id = self.push_awaited(0);
                router.send(partition, id, hash, &Command { key, ..Command::NONE });
            }
            behind = get.behind;
            if behind == Behind::Line {
                self.sink().bytes_mut().extend_from_slice(b"END\r\n");
            }
            if self.is_full() {
                *input = &whole[whole.len() - get.left_bytes..];
                break;
            }
        }
        self.decoder.be_behind_get(behind);
        true
    }
}
