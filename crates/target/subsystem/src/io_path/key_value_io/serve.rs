//! Serves the requests of memcached connections and NVMe commands of any reactor on this reactor's partition.

use kv::log::Failure;
use linux::Moment;
use memcached::{CollectiveRequest, PIECE_BYTES, PartitionStats};
use reactor::Io;
use wire::status::Status;

use crate::io_path::attached::{Attachments, Keys};
use crate::io_path::commands::Commands;
use crate::io_path::log_waiters::Refusal;
use crate::io_path::own_partition::{OwnKeys, OwnPartition};
use crate::io_path::store_access::StoreAccess;
use crate::messages::key_value::action::{KvAction, KvOutcome, Progress};
use crate::messages::key_value::message::{
    CommandReply, Copied, KeyValueMessage, MemcachedReply, PartitionRequest, RemoteAnswers, Work,
};
use crate::messages::key_value::perform::perform;
use crate::messages::message::Message;
use crate::objects::subsystem::NamespaceId;

/// The answer to the commands of a namespace that cannot serve.
fn refusal_of(namespaces: &mut Attachments, namespace: NamespaceId) -> Refusal {
    let refusal = namespaces.keys_of(namespace).and_then(|keys| keys.refusal());
    refusal.unwrap_or_else(|| Failure::Stopped.into())
}

/// The status of a command that a namespace cannot serve; one that has not been attached yet will.
fn refused_status(namespaces: &mut Attachments, namespace: NamespaceId) -> Status {
    let refusal = namespaces.keys_of(namespace).and_then(|keys| keys.refusal());
    refusal.map_or(Status::NAMESPACE_NOT_READY, |refusal| refusal.status)
}

/// The partition of a namespace, if it can serve, with its clock set.
fn partition_of(
    namespaces: &mut Attachments,
    namespace: NamespaceId,
    now: Moment,
) -> Option<OwnPartition<'_>> {
    let mut partition = namespaces.keys_of(namespace)?.partition()?;
    partition.set_now(now);
    Some(partition)
}

/// The partition of a namespace, whether its log has been read or not.
fn partition_unread_of(namespaces: &mut Attachments, namespace: NamespaceId) -> Option<OwnPartition<'_>> {
    Some(namespaces.keys_of(namespace)?.partition_unread())
}

/// The partition of a namespace as the memcached protocol sees it, if it can serve, with its clock set.
fn own_keys_of(namespaces: &mut Attachments, namespace: NamespaceId, now: Moment) -> Option<OwnKeys<'_>> {
    let mut own = namespaces.keys_of(namespace)?.own()?;
    own.partition.set_now(now);
    Some(own)
}

/// Serves a request, now or once the partition's log allows it.
pub(crate) fn serve(io: &mut impl Io<Message>, namespaces: &mut Attachments, request: PartitionRequest) {
    let Some(request) = namespaces.waiting_values.line_up(request) else { return };
    let request = match namespaces.keys_of(request.namespace).and_then(Keys::logged) {
        Some((waiters, mut keys)) => match waiters.take_in(io, &mut keys, request) {
            Some(request) => request,
            None => return,
        },
        None => request,
    };
    let PartitionRequest { from, namespace, work } = request;
    match work {
        Work::Execute(batch) => {
            let mut answers = RemoteAnswers::with_capacity(batch.len());
            if let Some(mut own) = own_keys_of(namespaces, namespace, io.moment()) {
                let mut executor = own.executor();
                let processor = &executor.partition.processor;
                batch.hashes().for_each(|hash| processor.prefetch(hash));
                batch.hashes().for_each(|hash| processor.prefetch_item(hash));
                let mut copied = Copied::default();
                batch.for_each(|session, ticket, hash, command| {
                    let executor = executor.reborrow();
                    answers.push_command(&mut copied, (session, ticket), executor, (hash, command));
                    if answers.is_full() {
                        io.post(from, MemcachedReply::Answers(std::mem::take(&mut answers)).into());
                    }
                });
            } else {
                let refusal = refusal_of(namespaces, namespace);
                batch.for_each(|session, ticket, _, _| {
                    answers.push_refused(session, ticket, refusal.answer);
                });
            }
            if !answers.is_empty() {
                io.post(from, MemcachedReply::Answers(answers).into());
            }
        }
        Work::Reserve { session, count } => {
            let partition = partition_unread_of(namespaces, namespace);
            let chunks = partition.and_then(|mut partition| partition.processor.take_chunks(count));
            io.post(from, MemcachedReply::Room { session, chunks: chunks.unwrap_or_default() }.into());
        }
        Work::Fetch { session, kept, offset } => {
            let partition = partition_unread_of(namespaces, namespace);
            let piece =
                partition.and_then(|mut partition| partition.processor.piece(&kept, offset, PIECE_BYTES));
            io.post(from, MemcachedReply::Piece { session, piece: piece.unwrap_or_default() }.into());
        }
        Work::StoreLarge { session, ticket, store } => {
            let mut answers = RemoteAnswers::default();
            if let Some(mut own) = own_keys_of(namespaces, namespace, io.moment()) {
                answers.push_executed(session, ticket, own.executor(), |executor, bytes| {
                    executor.execute_large(store, bytes);
                });
            } else {
                answers.push_refused(session, ticket, refusal_of(namespaces, namespace).answer);
            }
            io.post(from, MemcachedReply::Answers(answers).into());
        }
        Work::Collect { session, ticket, request } => {
            let own = own_keys_of(namespaces, namespace, io.moment());
            let stats = own.map(|mut own| own.executor().collect(request));
            namespaces.is_resizing |= matches!(request, CollectiveRequest::SetMemory { .. });
            let stats = Box::new(stats.unwrap_or_else(|| PartitionStats {
                refusal: request.changes_pairs().then(|| refusal_of(namespaces, namespace).answer),
                ..PartitionStats::default()
            }));
            io.post(from, MemcachedReply::Stats { session, ticket, stats }.into());
        }
        Work::Act { ticket, key, action } => {
            let next = io.reactor() + 1;
            let is_last = next == io.reactor_count();
            let ends_value = matches!(action, KvAction::Commit { .. });
            let outcome = if let Some(mut partition) = partition_of(namespaces, namespace, io.moment()) {
                perform(&mut partition, key.as_bytes(), action, is_last)
            } else {
                Ok(KvOutcome::new(refused_status(namespaces, namespace)))
            };
            match outcome {
                Ok(outcome) => io.post(from, CommandReply::Outcome(ticket, outcome).into()),
                Err(action) => {
                    let next = if action.continues_here() { io.reactor() } else { next };
                    let work = Work::Act { ticket, key, action };
                    io.post(next, PartitionRequest { from, namespace, work }.into());
                }
            }
            if ends_value && !namespaces.waiting_values.is_empty() {
                try_waiting(io, namespaces);
            }
        }
        Work::RunPart { ticket, part } => {
            let outcomes = if let Some(mut partition) = partition_of(namespaces, namespace, io.moment()) {
                part.run(&mut partition)
            } else {
                part.refused(refused_status(namespaces, namespace))
            };
            let partition = io.reactor();
            io.post(from, CommandReply::PartOutcomes { ticket, partition, outcomes }.into());
        }
    }
}

/// Serves the values that need not wait for memory any more, in order. Called when a value has been stored, and at an interval, since
/// what frees memory on other reactors sends no message: a lost connection, or the end of a value's transfer to a host.
pub(crate) fn try_waiting(io: &mut impl Io<Message>, namespaces: &mut Attachments) {
    let mut blocked: Vec<NamespaceId> = Vec::new();
    for mut request in namespaces.waiting_values.take() {
        let namespace = request.namespace;
        let Work::Act { action: KvAction::Reserve { progress, length, count, .. }, .. } = &mut request.work
        else {
            continue;
        };
        *progress = Progress::Begins;
        // Without a namespace it is refused.
        let may_begin = match partition_unread_of(namespaces, namespace) {
            Some(partition) => partition.processor.may_begin(*length as usize, *count),
            None => true,
        };
        if may_begin && !blocked.contains(&namespace) {
            serve(io, namespaces, request);
        } else {
            blocked.push(namespace);
            namespaces.waiting_values.push(request);
        }
    }
}

/// Stops all logs.
pub(crate) fn stop_logs(commands: &mut Commands, io: &mut impl Io<Message>) {
    let (queues, reserve) = (&mut commands.queues, &mut commands.reserve);
    commands.namespaces.for_each(|at, attached| {
        if let Some((_, keys)) = attached.keys().and_then(Keys::logged) {
            keys.logged.stop(&mut StoreAccess { io: &mut *io, queues, reserve, at });
        }
    });
}

/// Whether no [stopped](stop_logs) log has anything left to do.
pub(crate) fn have_logs_stopped(namespaces: &mut Attachments) -> bool {
    let mut have_stopped = true;
    namespaces.for_each(|_, attached| {
        if let Some((_, keys)) = attached.keys().and_then(Keys::logged) {
            have_stopped &= keys.logged.has_stopped();
        }
    });
    have_stopped
}

/// Polls all logs and serves the requests that waited for them. Returns whether there was any work.
pub(crate) fn tend_logs(commands: &mut Commands, io: &mut impl Io<Message>) -> bool {
    let mut worked = false;
    let (queues, reserve) = (&mut commands.queues, &mut commands.reserve);
    let (mut entered, mut left, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    commands.namespaces.for_each(|at, attached| {
        let (id, is_removed) = (attached.id, attached.is_removed);
        let Some((waiters, mut keys)) = attached.keys().and_then(Keys::logged) else { return };
        let keys = &mut keys;
        if is_removed {
            keys.logged.stop(&mut StoreAccess { io: &mut *io, queues, reserve, at });
        }
        keys.logged.poll(&mut StoreAccess { io: &mut *io, queues, reserve, at });
        if let Some(failure) = keys.logged.failure() {
            worked |= !waiters.is_idle();
            waiters.give_up(io, keys, id, failure.into());
            if waiters.has_become_failed() {
                worked = true;
                failed.push((id, failure));
            }
        }
        worked |= waiters.follow_pause(io, keys, id);
        if keys.logged.is_full() {
            worked |= waiters.refuse_unsettled(io, keys);
        }
        worked |= waiters.has_become_ready(keys.logged.is_ready());
        if waiters.resume(io, keys, id) {
            keys.logged.poll(&mut StoreAccess { io: &mut *io, queues, reserve, at });
            worked = true;
        }
        worked |= waiters.post_settled(io, keys);
        let is_busy = keys.logged.is_busy() || is_removed && !keys.logged.has_stopped();
        match waiters.count_change(is_busy) {
            Some(true) => entered.push(at),
            Some(false) => left.push(at),
            None => {}
        }
    });
    for (id, failure) in failed {
        let own = io.reactor();
        for to in (0..io.reactor_count()).filter(|to| *to != own) {
            io.post(to, KeyValueMessage::Failed(id, failure).into());
        }
    }
    entered.into_iter().for_each(|at| commands.namespaces.begin(at));
    for at in left {
        commands.table_settled |= commands.namespaces.end(at);
    }
    worked
}
