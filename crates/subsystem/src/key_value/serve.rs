//! Carries out at its partition what a lane or a memcached connection of any reactor asks for.

use kv::Partition;
use memcached::{Executor, PIECE_BYTES};
use reactor::Io;
use wire::status::Status;

use crate::attached::Attachments;
use crate::key_value::execute::{self, KvOutcome};
use crate::key_value::log_waiters;
use crate::key_value::message::{KeyValueMessage, RemoteAnswers};
use crate::message::Message;
use crate::subsystem::NamespaceId;

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

/// The answer to memcached's clients once the namespace was removed.
const GONE: &[u8] = b"SERVER_ERROR the namespace is gone\r\n";

/// Carries out what another partition asks of this one.
pub(crate) fn serve(io: &mut impl Io<Message>, namespaces: &mut Attachments, message: KeyValueMessage) {
    let Some(message) = log_waiters::serve(io, namespaces, message) else { return };
    match message {
        KeyValueMessage::Run { from, namespace, batch } => {
            let mut answers = RemoteAnswers::with_capacity(batch.len());
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
                    answers.push(session, ticket, |bytes| bytes.extend_from_slice(GONE));
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
                None => answers.push(session, ticket, |bytes| bytes.extend_from_slice(GONE)),
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
                Some(partition) => execute::act(partition, &key, action, is_last),
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
