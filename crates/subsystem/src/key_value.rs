//! What the partitions of a key-value namespace say to one another.

use std::sync::Arc;

use kv::{Kept, Partition};
use memcached::{
    AnswerId, Executor, LargeStore, LongValue, Output, PIECE_BYTES, PartitionStats, RemoteBatch,
};
use reactor::{Chunk, Io};
use wire::kv::Key;
use wire::status::Status;

use crate::attached::Attachments;
use crate::kv_batch::PartOfBatch;
use crate::kv_io;
pub use crate::kv_io::{KvAction, KvOutcome};
use crate::kv_log;
use crate::message::Message;
use crate::subsystem::NamespaceId;

/// Between the partitions of a namespace.
#[derive(Debug)]
pub enum KeyValueMessage {
    /// Execute these.
    Run {
        /// Who asks.
        from: usize,
        /// Where.
        namespace: NamespaceId,
        /// What.
        batch: RemoteBatch,
    },
    /// They are executed.
    Answers(RemoteAnswers),
    /// Give memory for so many parts of a value that arrives.
    Reserve {
        /// Who asks.
        from: usize,
        /// Where.
        namespace: NamespaceId,
        /// For which of its sessions.
        session: u64,
        /// For how many.
        count: usize,
    },
    /// There it is; none if there is none.
    Room {
        /// As asked.
        session: u64,
        /// The memory.
        chunks: Vec<Chunk>,
    },
    /// Store a value that has arrived.
    StoreLarge {
        /// Who asks.
        from: usize,
        /// Where.
        namespace: NamespaceId,
        /// Which of its sessions.
        session: u64,
        /// As what.
        ticket: AnswerId,
        /// The command.
        store: LargeStore,
    },
    /// Give the next piece of a value that you keep.
    Fetch {
        /// Who asks.
        from: usize,
        /// Where.
        namespace: NamespaceId,
        /// For which of its sessions.
        session: u64,
        /// Which.
        kept: Arc<Kept>,
        /// From which byte on.
        offset: usize,
    },
    /// There it is; empty if there is none.
    Piece {
        /// As asked.
        session: u64,
        /// The piece.
        piece: Vec<u8>,
    },
    /// Carry out this command of a lane.
    Act {
        /// Who asks.
        from: usize,
        /// Where.
        namespace: NamespaceId,
        /// As what it runs there.
        ticket: store::Ticket,
        /// On which key.
        key: Key,
        /// What.
        action: KvAction,
    },
    /// It is carried out.
    Outcome(store::Ticket, KvOutcome),
    /// Carry out this part of a batch.
    RunPart {
        /// Who asks.
        from: usize,
        /// Where.
        namespace: NamespaceId,
        /// As what the batch runs there.
        ticket: store::Ticket,
        /// What.
        part: PartOfBatch,
    },
    /// It is carried out.
    PartOutcomes {
        /// As asked.
        ticket: store::Ticket,
        /// By whom.
        partition: usize,
        /// As of a Batch Collect.
        outcomes: Box<[u8]>,
    },
    /// Flush, if so told, and say what you hold.
    Ask {
        /// Who asks.
        from: usize,
        /// Of which namespace.
        namespace: NamespaceId,
        /// Which of its sessions.
        session: u64,
        /// As what.
        ticket: AnswerId,
        /// The time that the client gave, to flush at.
        flush: Option<i64>,
    },
    /// What was asked.
    Stats {
        /// As asked.
        session: u64,
        /// As asked.
        ticket: AnswerId,
        /// The answer.
        stats: Box<PartitionStats>,
    },
}

/// Answers to a batch, in its order.
#[derive(Debug, Default)]
pub struct RemoteAnswers {
    bytes: Vec<u8>,
    /// Session, ticket and where the answer ends.
    entries: Vec<(u64, AnswerId, usize)>,
    /// Values that belong into answers, each at this byte of all: none is the beginning of one.
    long: Vec<(usize, LongValue)>,
}

impl RemoteAnswers {
    /// Adds an answer that `write` appends.
    pub(crate) fn push(&mut self, session: u64, ticket: AnswerId, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.entries.push((session, ticket, self.bytes.len()));
    }

    /// Adds the answer of an executor to a command that `execute` has it carry out.
    pub(crate) fn push_executed(
        &mut self,
        session: u64,
        ticket: AnswerId,
        mut executor: Executor<'_>,
        execute: impl FnOnce(&mut Executor<'_>, &mut Vec<u8>),
    ) {
        execute(&mut executor, &mut self.bytes);
        self.long.extend(executor.take_sent());
        self.entries.push((session, ticket, self.bytes.len()));
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The same questions, all answered with this.
    pub(crate) fn refused(&self, answer: &[u8]) -> Self {
        let mut refused = Self::default();
        self.for_each(|session, ticket, _, _| {
            refused.push(session, ticket, |bytes| bytes.extend_from_slice(answer));
        });
        refused
    }

    /// Calls `each` with session, ticket, answer, and the values that belong into it.
    pub fn for_each(&self, mut each: impl FnMut(u64, AnswerId, &[u8], &[(usize, LongValue)])) {
        let (mut start, mut long) = (0, &self.long[..]);
        for &(session, ticket, end) in &self.entries {
            let (own, rest) = long.split_at(long.iter().take_while(|(at, _)| *at <= end).count());
            each(session, ticket, &self.bytes[start..end], own);
            (start, long) = (end, rest);
        }
    }

    /// Calls `each` with session, ticket and answer as it is sent.
    pub(crate) fn for_each_output(&self, mut each: impl FnMut(u64, AnswerId, Output)) {
        let mut start = 0;
        self.for_each(|session, ticket, answer, long| {
            let mut output = Output::from(answer.to_vec());
            if !long.is_empty() {
                output.insert(long.iter().map(|(at, value)| (at - start, value.clone())));
            }
            start += answer.len();
            each(session, ticket, output);
        });
    }
}

/// The partition of a namespace, if it serves.
fn partition_of(namespaces: &mut Attachments, namespace: NamespaceId) -> Option<&mut Partition> {
    namespaces.keys_of(namespace)?.partition()
}

/// The partition of a namespace, whether its log was read or not.
fn partition_unread_of(namespaces: &mut Attachments, namespace: NamespaceId) -> Option<&mut Partition> {
    Some(namespaces.keys_of(namespace)?.partition_unread())
}

/// The partition of a namespace as memcached's clients see it, if it serves, its clock set.
fn executor_of(namespaces: &mut Attachments, namespace: NamespaceId) -> Option<Executor<'_>> {
    let executor = namespaces.keys_of(namespace)?.executor()?;
    executor.partition.set_now(store::unix_s());
    Some(executor)
}

/// Carries out what another partition asks of this one.
pub(crate) fn serve(io: &mut impl Io<Message>, namespaces: &mut Attachments, message: KeyValueMessage) {
    let Some(message) = kv_log::serve(io, namespaces, message) else { return };
    match message {
        KeyValueMessage::Run { from, namespace, batch } => {
            let mut answers =
                RemoteAnswers { entries: Vec::with_capacity(batch.len()), ..RemoteAnswers::default() };
            match executor_of(namespaces, namespace) {
                Some(mut executor) => {
                    let processor = &executor.partition.processor;
                    batch.hashes().for_each(|hash| processor.prefetch(hash));
                    batch.hashes().for_each(|hash| processor.prefetch_item(hash));
                    batch.for_each(|session, ticket, hash, command| {
                        answers.push_executed(session, ticket, executor.reborrow(), |executor, bytes| {
                            executor.execute(hash, command, bytes);
                        });
                    });
                }
                // The namespace is being removed.
                None => batch.for_each(|session, ticket, _, _| {
                    answers.bytes.extend_from_slice(b"SERVER_ERROR the namespace is gone\r\n");
                    answers.entries.push((session, ticket, answers.bytes.len()));
                }),
            }
            io.post(from, Message::KeyValue(Box::new(KeyValueMessage::Answers(answers))));
        }
        KeyValueMessage::Reserve { from, namespace, session, count } => {
            let partition = partition_unread_of(namespaces, namespace);
            let chunks = partition.and_then(|partition| partition.processor.take_chunks(count));
            let room = KeyValueMessage::Room { session, chunks: chunks.unwrap_or_default() };
            io.post(from, Message::KeyValue(Box::new(room)));
        }
        KeyValueMessage::Fetch { from, namespace, session, kept, offset } => {
            let partition = partition_unread_of(namespaces, namespace);
            let piece = partition.and_then(|partition| partition.processor.piece(&kept, offset, PIECE_BYTES));
            let piece = KeyValueMessage::Piece { session, piece: piece.unwrap_or_default() };
            io.post(from, Message::KeyValue(Box::new(piece)));
        }
        KeyValueMessage::StoreLarge { from, namespace, session, ticket, store } => {
            let mut answers = RemoteAnswers::default();
            match executor_of(namespaces, namespace) {
                Some(executor) => {
                    answers.push_executed(session, ticket, executor, |executor, bytes| {
                        executor.execute_large(store, bytes);
                    });
                }
                None => answers.push(session, ticket, |bytes| {
                    bytes.extend_from_slice(b"SERVER_ERROR the namespace is gone\r\n");
                }),
            }
            io.post(from, Message::KeyValue(Box::new(KeyValueMessage::Answers(answers))));
        }
        KeyValueMessage::Ask { from, namespace, session, ticket, flush } => {
            let mut stats = Box::default();
            if let Some(mut executor) = executor_of(namespaces, namespace) {
                if let Some(delay) = flush {
                    executor.flush(delay);
                }
                *stats = executor.stats();
            }
            let answer = KeyValueMessage::Stats { session, ticket, stats };
            io.post(from, Message::KeyValue(Box::new(answer)));
        }
        KeyValueMessage::Act { from, namespace, ticket, key, action } => {
            let next = io.reactor() + 1;
            let is_last = next == io.reactor_count();
            let outcome = match partition_of(namespaces, namespace) {
                Some(partition) => kv_io::act(partition, &key, action, is_last),
                None => Ok(KvOutcome::new(Status::NAMESPACE_NOT_READY)),
            };
            let (to, message) = match outcome {
                Ok(outcome) => (from, KeyValueMessage::Outcome(ticket, outcome)),
                Err(action) => (next, KeyValueMessage::Act { from, namespace, ticket, key, action }),
            };
            io.post(to, Message::KeyValue(Box::new(message)));
        }
        KeyValueMessage::RunPart { from, namespace, ticket, part } => {
            let outcomes = part.run(partition_of(namespaces, namespace));
            let partition = io.reactor();
            let answer = KeyValueMessage::PartOutcomes { ticket, partition, outcomes };
            io.post(from, Message::KeyValue(Box::new(answer)));
        }
        KeyValueMessage::Answers(_)
        | KeyValueMessage::Room { .. }
        | KeyValueMessage::Piece { .. }
        | KeyValueMessage::Stats { .. }
        | KeyValueMessage::Outcome(..)
        | KeyValueMessage::PartOutcomes { .. } => unreachable!("answers are for those who asked"),
    }
}
