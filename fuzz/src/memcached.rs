//! memcached's protocols: the answers must not depend on how the input is cut, with one partition or several.
//!
//! Input: one byte (how the stream is cut, 0 for byte by byte), then the stream.

use std::sync::Arc;

use kv::{Kept, KeyHash, Partition, Processor, Settings};
use memcached::{
    AnswerId, Command, Executor, LargeStore, ListenerSettings, ListenerStats, Output, Progress, RemoteBatch,
    Router, Service, Session,
};

use crate::input::Input;

/// Memory of a partition: small, so that it fills up.
const MEMORY_BYTES: usize = 1 << 20;

/// Maximum value length, so that inputs soon contain longer values.
const VALUE_BYTES_MAX: usize = 8192;

/// Piece size in which retained values are fetched, bytes.
const PIECE_BYTES: usize = 1000;

/// Unix time of the whole run, s.
const NOW_S: i64 = 1_700_000_000;

/// Maximum answer bytes per input byte: a get of a key takes six bytes and returns one value.
const ANSWER_BYTES_MAX: usize = VALUE_BYTES_MAX + 4096;

/// All partitions on one thread; a command for another partition is answered when it is polled.
struct Partitions {
    all: Vec<(Partition, Service)>,
    sent: Vec<Sent>,
}

enum Sent {
    To(usize, RemoteBatch),
    ToAll(AnswerId, Option<i64>),
    Reserve(usize, usize),
    Large(usize, AnswerId, LargeStore),
    Fetch(usize, Arc<Kept>, usize),
}

impl Router for Partitions {
    fn executor(&mut self) -> Executor<'_> {
        self.at(0)
    }

    fn position(&self) -> (usize, usize) {
        (0, self.all.len())
    }

    fn send(&mut self, to: usize, id: AnswerId, hash: KeyHash, command: &Command<'_>) {
        let mut batch = RemoteBatch::default();
        batch.push(0, id, hash, command);
        self.sent.push(Sent::To(to, batch));
    }

    fn send_all(&mut self, id: AnswerId, flush: Option<i64>, _: bool) {
        self.sent.push(Sent::ToAll(id, flush));
    }

    fn reserve(&mut self, to: usize, count: usize) {
        self.sent.push(Sent::Reserve(to, count));
    }

    fn store_large(&mut self, to: usize, id: AnswerId, store: LargeStore) {
        self.sent.push(Sent::Large(to, id, store));
    }

    fn fetch(&mut self, to: usize, kept: Arc<Kept>, offset: usize) {
        self.sent.push(Sent::Fetch(to, kept, offset));
    }

    fn listener_stats(&self) -> ListenerStats {
        ListenerStats { thread_count: 1, ..ListenerStats::default() }
    }
}

impl Partitions {
    fn new(count: usize) -> Self {
        let listener = ListenerSettings { value_bytes_max: VALUE_BYTES_MAX, allows_flush: true };
        let partition = |_| {
            let settings = Settings { memory_bytes: MEMORY_BYTES, ..Settings::default() };
            let processor = Processor::new(settings).expect("a little memory");
            (Partition::new(processor, NOW_S), Service::new(listener))
        };
        Self { all: (0..count).map(partition).collect(), sent: Vec::new() }
    }

    fn at(&mut self, at: usize) -> Executor<'_> {
        let (partition, service) = &mut self.all[at];
        service.on(partition)
    }

    fn deliver(&mut self, session: &mut Session) {
        for sent in std::mem::take(&mut self.sent) {
            match sent {
                Sent::To(to, batch) => batch.for_each(|_, id, hash, command| {
                    let mut answer = Vec::new();
                    self.at(to).execute(hash, command, &mut answer);
                    let mut answer = Output::from(answer);
                    answer.insert(self.at(to).take_sent());
                    session.on_reply(id, answer);
                }),
                Sent::Reserve(to, count) => {
                    let room = self.all[to].0.processor.take_chunks(count);
                    session.on_room(self, room.unwrap_or_default());
                }
                Sent::Large(to, id, store) => {
                    let mut answer = Vec::new();
                    self.at(to).execute_large(store, &mut answer);
                    session.on_reply(id, answer.into());
                }
                Sent::Fetch(to, kept, offset) => {
                    let piece = self.all[to].0.processor.piece(&kept, offset, PIECE_BYTES);
                    assert!(session.on_piece(piece.unwrap_or_default()), "a piece of what is kept");
                }
                Sent::ToAll(id, flush) => {
                    for at in 1..self.all.len() {
                        if let Some(delay) = flush {
                            self.at(at).flush(delay);
                        }
                        let stats = self.at(at).stats();
                        session.on_stats(self, id, &stats);
                    }
                }
            }
        }
    }
}

/// Feeds a stream whole, cut, and byte by byte: the answers must be equal. With two partitions nothing may panic and
/// every command must be answered.
pub fn memcached(data: &[u8]) {
    let mut input = Input::new(data);
    let cut = usize::from(input.byte());
    let stream = input.rest();
    let whole = talk(1, stream, usize::MAX);
    let (pieces, _) = talk(1, stream, cut.max(1));
    let answers_differ = whole.0 != pieces;
    // Statistics also count reads of the socket.
    let counts_itself =
        stream.windows(4).any(|window| window.eq_ignore_ascii_case(b"stat")) || stream.contains(&0x80);
    assert!(counts_itself || !answers_differ, "cut into {cut}, it is answered otherwise");
    talk(2, stream, cut.max(1));
}

fn talk(partitions: usize, stream: &[u8], cut: usize) -> (Vec<u8>, bool) {
    let mut partitions = Partitions::new(partitions);
    let settings = *partitions.all[0].1.settings();
    let mut session = Session::new(settings);
    let mut answers = Vec::new();
    for piece in stream.chunks(cut) {
        let mut progress = session.on_bytes(&mut partitions, piece);
        loop {
            partitions.deliver(&mut session);
            answers.extend_from_slice(session.output());
            session.on_sent(session.output().len());
            if progress != Progress::Stalled {
                break;
            }
            progress = session.resume(&mut partitions);
        }
        assert!(!session.is_awaiting(), "an answer that will never come");
        if progress == Progress::Close {
            return (answers, true);
        }
    }
    assert!(answers.len() <= stream.len().saturating_mul(ANSWER_BYTES_MAX));
    (answers, false)
}
