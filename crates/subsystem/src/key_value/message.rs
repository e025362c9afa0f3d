//! What the partitions of a key-value namespace say to one another.

use std::sync::Arc;

use kv::Kept;
use memcached::{AnswerId, Executor, LargeStore, LongValue, Output, PartitionStats, RemoteBatch};
use reactor::Chunk;
use wire::kv::Key;

use crate::key_value::batch::PartOfBatch;
use crate::key_value::execute::{KvAction, KvOutcome};
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
    /// No answers yet, with room for `count`.
    pub(crate) fn with_capacity(count: usize) -> Self {
        Self { entries: Vec::with_capacity(count), ..Self::default() }
    }

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
