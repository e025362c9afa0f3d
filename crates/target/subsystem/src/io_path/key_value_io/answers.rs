//! The answers of partitions to the commands of this reactor.

use memory::Payload;
use reactor::Io;
use store::Ticket;
use wire::kv::batch::collect_result;
use wire::status::Status;

use super::large::ArrivingValues;
use super::value::clamped;
use crate::io_path::commands::Commands;
use crate::io_path::running::Step;
use crate::messages::key_value::action::KvOutcome;
use crate::messages::key_value::message::CommandReply;
use crate::messages::message::Message;

/// A partition has replied to a command of a lane of this reactor.
pub(crate) fn on_reply(commands: &mut Commands, io: &mut impl Io<Message>, reply: CommandReply) {
    match reply {
        CommandReply::Outcome(ticket, outcome) => on_outcome(commands, io, ticket, outcome),
        CommandReply::PartOutcomes { ticket, partition, outcomes } => {
            on_part_outcomes(commands, ticket, partition, outcomes);
        }
    }
}

fn on_outcome(commands: &mut Commands, io: &mut impl Io<Message>, ticket: Ticket, outcome: KvOutcome) {
    match commands.running.get_mut(ticket).map(|running| &running.step) {
        Some(Step::Arriving(_)) => return ArrivingValues { commands, io }.on_outcome(ticket, outcome),
        Some(Step::Retrieving(_)) => return on_retrieved(commands, ticket, outcome),
        Some(_) => {}
        // An aborted Store in parts.
        None => return,
    }
    let rest = Payload::Heap(outcome.data);
    let data = match outcome.chunks {
        Some((chunks, length)) => Some((Payload::Chunks(chunks, Box::new(rest)), length)),
        None if !rest.is_empty() => {
            let length = u32::try_from(rest.len()).expect("at most the transfer limit");
            Some((rest, length))
        }
        None => None,
    };
    commands.end(ticket, outcome.status, outcome.result, data);
}

/// A partition has executed its part of a batch. The last one completes the batch.
fn on_part_outcomes(commands: &mut Commands, ticket: Ticket, partition: usize, outcomes: Box<[u8]>) {
    let Some(running) = commands.running.get_mut(ticket) else { return };
    let Step::Scattered(scattered) = &mut running.step else {
        unreachable!("a batch waits for all of its parts")
    };
    scattered.outcomes[partition] = outcomes;
    scattered.left_count -= 1;
    if scattered.left_count > 0 {
        return;
    }
    let (data, failed_count) = scattered.gathered();
    let (collect, count) = (scattered.collect, scattered.owners.len());
    let count = u32::try_from(count).expect("at most the operations of a batch");
    let length = u32::try_from(data.len()).expect("at most the transfer limit");
    let payload = Some((Payload::Heap(data), length));
    commands.end(collect, Status::SUCCESS, collect_result(length, count), payload);
    commands.end(ticket, Status::SUCCESS, collect_result(failed_count, count), None);
}

/// The partition of a key with a log has looked up the value of a Retrieve Submit.
fn on_retrieved(commands: &mut Commands, ticket: Ticket, outcome: KvOutcome) {
    let Some(running) = commands.running.get_mut(ticket) else { return };
    let Step::Retrieving(retrieving) = &running.step else { unreachable!("just matched") };
    let (collect, value_bytes) = (retrieving.collect, outcome.result);
    let mut status = outcome.status;
    let mut data = None;
    if status.is_success() {
        match retrieving.data_bytes(value_bytes) {
            Ok(data_bytes) => {
                let rest = Payload::Heap(outcome.data);
                let value = match outcome.chunks {
                    Some((chunks, _)) => Payload::Chunks(chunks, Box::new(rest)),
                    None => rest,
                };
                data = Some((retrieving.cut(value), data_bytes));
            }
            Err(refusal) => status = refusal,
        }
    }
    let data_bytes = data.as_ref().map_or(0, |(_, data_bytes)| *data_bytes);
    let result = if status.is_success() { collect_result(data_bytes, clamped(value_bytes)) } else { 0 };
    let version_and_flags = if status.is_success() { outcome.version_and_flags } else { 0 };
    commands.end(collect, status, result, data.filter(|_| data_bytes > 0));
    commands.end(ticket, status, version_and_flags, None);
}
