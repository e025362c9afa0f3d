//! Messages about keys and values: requests to a partition, and its replies.

use std::sync::Arc;

use kv::log::Failure;
use kv::{Kept, KeyHash};
use memcached::{
    AnswerId, CollectiveRequest, Command, ConnectionStats, Executor, LargeStore, LongValue, Output,
    PartitionStats, Refusal, RemoteBatch,
};
use memory::Chunk;
use store::Ticket;

use crate::messages::key_value::action::{KvAction, KvOutcome};
use crate::messages::key_value::batch_part::PartOfBatch;
use crate::messages::key_value::key_name::KeyName;
use crate::objects::subsystem::NamespaceId;

/// A message about keys and values.
#[derive(Debug)]
pub enum KeyValueMessage {
    /// To a partition.
    Request(PartitionRequest),
    /// To a reactor: describe your memcached connections. Reply: [`MemcachedReply::Connections`].
    Connections {
        /// The reactor that asks.
        from: usize,
        /// The requesting session.
        session: u64,
        /// Identifies the answer.
        ticket: AnswerId,
    },
    /// From a partition to a memcached connection.
    ToMemcached(MemcachedReply),
    /// From a partition to a command of an NVMe lane.
    ToCommand(CommandReply),
    /// From a partition to all other reactors: its log has failed.
    Failed(NamespaceId, Failure),
}

/// A request of a connection or a command of any reactor to a partition.
#[derive(Debug)]
pub struct PartitionRequest {
    /// The reactor that gets the reply.
    pub from: usize,
    /// The namespace of the partition.
    pub namespace: NamespaceId,
    /// The requested work.
    pub work: Work,
}

/// The work requested from a partition.
#[derive(Debug)]
pub enum Work {
    /// Execute memcached commands. Reply: [`MemcachedReply::Answers`].
    Execute(RemoteBatch),
    /// Reserve memory for parts of a value that a memcached connection receives. Reply: [`MemcachedReply::Room`].
    Reserve {
        /// The session that receives.
        session: u64,
        /// Number of parts.
        count: usize,
    },
    /// Store a value that a memcached connection has received. Reply: [`MemcachedReply::Answers`].
    StoreLarge {
        /// The session that received it.
        session: u64,
        /// Identifies the answer.
        ticket: AnswerId,
        /// The command.
        store: LargeStore,
    },
    /// Copy the next piece of a value that is being sent. Reply: [`MemcachedReply::Piece`].
    Fetch {
        /// The session that sends.
        session: u64,
        /// The value.
        kept: Arc<Kept>,
        /// First byte of the piece.
        offset: usize,
    },
    /// Carry out a request to all partitions. Reply: [`MemcachedReply::Stats`].
    Collect {
        /// The requesting session.
        session: u64,
        /// Identifies the answer.
        ticket: AnswerId,
        /// The request.
        request: CollectiveRequest,
    },
    /// Perform the action of an NVMe command. Reply: [`CommandReply::Outcome`].
    Act {
        /// The command.
        ticket: Ticket,
        /// Its key.
        key: KeyName,
        /// The action.
        action: KvAction,
    },
    /// Execute the operations of a batch that are on this partition. Reply: [`CommandReply::PartOutcomes`].
    RunPart {
        /// The Batch Submit.
        ticket: Ticket,
        /// The operations.
        part: PartOfBatch,
    },
}

/// A reply of a partition to a memcached connection.
#[derive(Debug)]
pub enum MemcachedReply {
    /// Answers to commands.
    Answers(RemoteAnswers),
    /// Memory for parts of a value; empty if there is none.
    Room {
        /// As requested.
        session: u64,
        /// The memory.
        chunks: Vec<Chunk>,
    },
    /// Lines for a session that watches.
    Watched {
        /// The session.
        session: u64,
        /// The lines.
        lines: Vec<u8>,
    },
    /// The next piece of a value; empty if the value is gone.
    Piece {
        /// As requested.
        session: u64,
        /// The piece.
        piece: Vec<u8>,
    },
    /// Connections of a reactor.
    Connections {
        /// As requested.
        session: u64,
        /// As requested.
        ticket: AnswerId,
        /// The connections.
        connections: Vec<ConnectionStats>,
    },
    /// Counts of the partition.
    Stats {
        /// As requested.
        session: u64,
        /// As requested.
        ticket: AnswerId,
        /// The counts.
        stats: Box<PartitionStats>,
    },
}

/// A reply of a partition to a command of an NVMe lane.
#[derive(Debug)]
pub enum CommandReply {
    /// The outcome of its action.
    Outcome(Ticket, KvOutcome),
    /// The outcomes of a part of its batch.
    PartOutcomes {
        /// As requested.
        ticket: Ticket,
        /// The partition.
        partition: usize,
        /// The outcomes, as of a Batch Collect.
        outcomes: Box<[u8]>,
    },
}

impl From<PartitionRequest> for KeyValueMessage {
    fn from(request: PartitionRequest) -> Self {
        Self::Request(request)
    }
}

impl From<MemcachedReply> for KeyValueMessage {
    fn from(reply: MemcachedReply) -> Self {
        Self::ToMemcached(reply)
    }
}

impl From<CommandReply> for KeyValueMessage {
    fn from(reply: CommandReply) -> Self {
        Self::ToCommand(reply)
    }
}

/// The session of a memcached connection: `number` is that of the connection.
pub(crate) fn session_of(generation: u32, number: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(number)
}

/// The number of the connection of a session: among all connections that are open, no other has it.
pub(crate) fn connection_number(session: u64) -> u32 {
    u32::try_from(session & 0xffff_ffff).expect("masked")
}

/// Answers to a batch of commands, in order.
#[derive(Debug, Default)]
pub struct RemoteAnswers {
    bytes: Vec<u8>,
    /// Session, ticket and end of each answer.
    entries: Vec<(u64, AnswerId, usize)>,
    /// Values to insert into answers, each with its offset in all answers; none is at the start of an answer.
    long: Vec<(usize, LongValue)>,
    /// Commands that are refused instead, by their places among the answers, in order.
    refusals: Vec<(usize, Refusal)>,
}

/// Bytes copied so far for the answers of one batch to one session.
#[derive(Debug, Default)]
pub(crate) struct Copied {
    session: u64,
    bytes: usize,
}

/// A message is full once it has this many bytes of answers: its receiver copies them, and holds at most twice this.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Once this many bytes of answers are on their way to a session, further values are [fetched](Work::Fetch) as they are
/// sent instead of copied: a session requests answers without knowing their length.
const SESSION_BYTES_MAX: usize = 256 << 10;

impl Copied {
    /// Whether many bytes are on their way to a session.
    fn is_much(&mut self, session: u64) -> bool {
        if self.session != session {
            *self = Self { session, bytes: 0 };
        }
        self.bytes > SESSION_BYTES_MAX
    }
}

impl RemoteAnswers {
    /// Creates an empty list with room for `count`.
    pub(crate) fn with_capacity(count: usize) -> Self {
        Self { entries: Vec::with_capacity(count), ..Self::default() }
    }

    /// Adds an answer that `write` appends.
    pub(crate) fn push(&mut self, session: u64, ticket: AnswerId, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.entries.push((session, ticket, self.bytes.len()));
    }

    /// Adds a refusal.
    pub(crate) fn push_refused(&mut self, session: u64, ticket: AnswerId, refusal: Refusal) {
        self.refusals.push((self.entries.len(), refusal));
        self.push(session, ticket, |_| {});
    }

    /// Whether they fill a message.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() >= MESSAGE_BYTES_MAX
    }

    /// Executes a command and adds its answer.
    pub(crate) fn push_command(
        &mut self,
        copied: &mut Copied,
        (session, ticket): (u64, AnswerId),
        executor: Executor<'_>,
        (hash, command): (KeyHash, &Command<'_>),
    ) {
        let is_sparing = copied.is_much(session);
        let before = self.bytes.len();
        self.push_executed(session, ticket, executor, |executor, bytes| {
            if is_sparing {
                executor.execute_sparing(hash, command, bytes);
            } else {
                executor.execute(hash, command, bytes);
            }
        });
        copied.bytes += self.bytes.len() - before;
    }

    /// Adds the executor's answer to a command that `execute` runs.
    pub(crate) fn push_executed(
        &mut self,
        session: u64,
        ticket: AnswerId,
        mut executor: Executor<'_>,
        execute: impl FnOnce(&mut Executor<'_>, &mut Vec<u8>),
    ) {
        executor.service.begin_client(|| connection_number(session));
        execute(&mut executor, &mut self.bytes);
        self.long.extend(executor.take_long_values());
        self.entries.push((session, ticket, self.bytes.len()));
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The same commands, all refused. A quiet one has no answer if it succeeds, and one if it is refused; the session
    /// knows which never have any.
    pub(crate) fn refused(&self, refusal: Refusal) -> Self {
        let mut refused = Self::default();
        self.for_each_output(|session, ticket, outcome| {
            refused.push_refused(session, ticket, outcome.err().unwrap_or(refusal));
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

    /// Calls `each` with session, ticket and answer as it is sent, or refusal.
    pub(crate) fn for_each_output(&self, mut each: impl FnMut(u64, AnswerId, Result<Output, Refusal>)) {
        let (mut start, mut place) = (0, 0);
        let mut refusals = self.refusals.iter().peekable();
        self.for_each(|session, ticket, answer, long| {
            let refusal = refusals.next_if(|(refused, _)| *refused == place);
            place += 1;
            if let Some((_, refusal)) = refusal {
                return each(session, ticket, Err(*refusal));
            }
            let mut output = Output::from(answer.to_vec());
            if !long.is_empty() {
                output.insert(long.iter().map(|(at, value)| (at - start, value.clone())));
            }
            start += answer.len();
            each(session, ticket, Ok(output));
        });
    }
}
