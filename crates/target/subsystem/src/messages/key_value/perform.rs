//! Performs the actions of NVMe commands on a partition.

use kv::{Begun, ChunkList, KeyHash, ListPosition, PairPlace, Partition, Processor};
use memory::CHUNK_BYTES;
use wire::kv::batch::Operation;
use wire::kv::value::retrieve_result;
use wire::kv::{Key, KeyListWriter, StoreOptions};
use wire::opcode::KvOpcode;
use wire::status::Status;

use crate::messages::key_value::action::{KvAction, KvOutcome, Progress};
use crate::messages::key_value::operation::{
    Done, Effort, VECTOR_BYTES_MAX, attributes, condition, operate, status_of,
};
use crate::objects::key_rights::KeyScope;

/// A value in chunks, cut to the host's buffer.
#[derive(Debug)]
pub(crate) struct LongValue {
    pub(crate) chunks: ChunkList,
    /// Bytes of the whole value.
    pub(crate) length: usize,
    /// Bytes to send.
    pub(crate) data_bytes: usize,
    /// Its version and flags.
    pub(crate) version_and_flags: u64,
}

impl LongValue {
    /// The value of a key, if it has chunks.
    #[inline]
    pub(crate) fn find(
        partition: &mut Partition,
        hash: KeyHash,
        key: &[u8],
        room_bytes: usize,
    ) -> Option<Self> {
        let processor = &mut partition.processor;
        let place = processor.find(hash, key)?;
        let chunks = processor.chunks(place)?.clone();
        processor.touch(place);
        let length = processor.value_bytes(place);
        let version_and_flags = version_and_flags(processor, place);
        Some(Self { chunks, length, data_bytes: length.min(room_bytes), version_and_flags })
    }

    /// Bytes to send from behind the chunks.
    pub(crate) fn rest_bytes(&self) -> usize {
        self.data_bytes.saturating_sub(self.chunks.len() * CHUNK_BYTES)
    }

    /// Copies the bytes behind the chunks.
    pub(crate) fn copy_rest(&self, partition: &mut Partition, hash: KeyHash, key: &[u8], into: &mut [u8]) {
        let Some(place) = partition.processor.find(hash, key) else { return };
        let value = partition.processor.value(place);
        let (mut from, mut at) = (self.chunks.len() * CHUNK_BYTES, 0);
        while at < into.len() {
            let part = value.part(from);
            let count = part.len().min(into.len() - at);
            into[at..at + count].copy_from_slice(&part[..count]);
            (from, at) = (from + count, at + count);
        }
    }
}

/// The result of a Retrieve Submit for the pair at a place. docs/kv-commands.md §7.1
pub(crate) fn version_and_flags(processor: &Processor, place: PairPlace) -> u64 {
    let is_long = processor.chunks(place).is_some();
    // 0 is no version.
    let version = if is_long { (processor.present_cas(place).unwrap_or(0) & 0xffff_ffff).max(1) } else { 0 };
    retrieve_result(version, processor.attributes(place).flags)
}

/// Performs the action of another reactor's command on this partition, whose clock is set. `Err` if it must be continued,
/// [here](KvAction::continues_here) or on the next partition.
pub(crate) fn perform(
    partition: &mut Partition,
    key: &[u8],
    action: KvAction,
    is_last: bool,
) -> Result<KvOutcome, KvAction> {
    Ok(match action {
        KvAction::Operate { opcode, options, kind, room_bytes, operand } => {
            let hash = partition.processor.hash(key);
            if opcode == KvOpcode::RETRIEVE
                && let Some(large) = LongValue::find(partition, hash, key, room_bytes as usize)
            {
                let mut data = vec![0; large.rest_bytes()];
                large.copy_rest(partition, hash, key, &mut data);
                let data_bytes = u32::try_from(large.data_bytes).expect("at most the room");
                return Ok(KvOutcome {
                    result: large.length as u64,
                    version_and_flags: large.version_and_flags,
                    data: data.into(),
                    chunks: Some((large.chunks, data_bytes)),
                    ..KvOutcome::new(Status::SUCCESS)
                });
            }
            let mut asked = 0;
            let room = match partition.processor.find(hash, key) {
                Some(place) => {
                    if opcode == KvOpcode::RETRIEVE && kind != 0 {
                        asked = version_and_flags(&partition.processor, place);
                    }
                    partition.processor.value_bytes(place).min(room_bytes as usize)
                }
                None => 0,
            };
            let mut data = vec![0; room];
            let operation = Operation { opcode, options, kind, room_bytes, key, operand: &operand };
            let mut effort = Effort { vector_bytes: VECTOR_BYTES_MAX, scratch: &mut Vec::new() };
            let Done { status, result, data_bytes } =
                operate(&mut partition.processor, hash, &operation, &mut data, &mut effort);
            data.truncate(data_bytes);
            let result = own_result(opcode, result);
            KvOutcome { result, version_and_flags: asked, data: data.into(), ..KvOutcome::new(status) }
        }
        action @ (KvAction::Reserve { .. } | KvAction::Commit { .. }) => {
            return store_in_parts(partition, key, action);
        }
        KvAction::Flush if !is_last => return Err(KvAction::Flush),
        KvAction::Flush => KvOutcome::new(Status::SUCCESS),
        KvAction::List { from, mut keys, scope, room } => {
            let (next, has_room) = list(partition, from, &mut keys, scope.as_deref(), room);
            if has_room && (next.is_some() || !is_last) {
                return Err(KvAction::List { from: next.unwrap_or_default(), keys, scope, room });
            }
            KvOutcome { data: written(&keys, room), ..KvOutcome::new(Status::SUCCESS) }
        }
    })
}

/// Performs one step of a Store in parts, at the partition of its key. `Err` if the value waits for memory that others hold.
fn store_in_parts(partition: &mut Partition, key: &[u8], action: KvAction) -> Result<KvOutcome, KvAction> {
    let processor = &mut partition.processor;
    let hash = processor.hash(key);
    let success = || KvOutcome::new(Status::SUCCESS);
    let no_memory = || KvOutcome::new(Status::CAPACITY_EXCEEDED.with_dnr());
    let invalid = || Ok(KvOutcome::new(Status::INVALID_FIELD.with_dnr()));
    Ok(match action {
        KvAction::Reserve { progress, options, length, count } => {
            let Some(condition) = StoreOptions::from_bits(options).and_then(condition) else {
                return invalid();
            };
            // A value that will be refused need not be sent.
            if let Err(refusal) = processor.would_store(hash, key, length as usize, condition) {
                return Ok(KvOutcome::new(status_of(refusal)));
            }
            if progress == Progress::Begun {
                let room = processor.take_chunks(count);
                return Ok(room.map_or_else(no_memory, |room| KvOutcome { room, ..success() }));
            }
            match processor.begin(length as usize, count) {
                Begun::Arrives(room, share) => KvOutcome { room, share: Some(share), ..success() },
                Begun::Waits => {
                    return Err(KvAction::Reserve { progress: Progress::Waits, options, length, count });
                }
                Begun::NoMemory => no_memory(),
            }
        }
        KvAction::Commit { options, length, attributes: given, mut chunks, share } => {
            let Some(condition) = StoreOptions::from_bits(options).and_then(condition) else {
                return invalid();
            };
            let rest_bytes = length as usize % CHUNK_BYTES;
            let last = if rest_bytes == 0 { None } else { chunks.pop() };
            let rest = last.as_ref().map_or(&[][..], |chunk| &chunk[..rest_bytes]);
            let attributes = attributes(processor, given);
            let stored = processor.store_chunks(hash, key, chunks, rest, attributes, condition);
            drop((last, share));
            KvOutcome::new(status_of(stored))
        }
        _ => unreachable!("steps of a Store"),
    })
}

/// Size of a list of keys in the format for hosts, bytes.
fn list_bytes(keys: &[Key]) -> usize {
    4 + keys.iter().map(|key| (2 + key.as_bytes().len()).next_multiple_of(4)).sum::<usize>()
}

/// Appends this partition's keys that the host may use, until the list is full or the time is used up. Returns where it
/// continues, unless these were all, and whether there is room for more.
fn list(
    partition: &Partition,
    from: ListPosition,
    keys: &mut Vec<Key>,
    scope: Option<&KeyScope>,
    room: usize,
) -> (Option<ListPosition>, bool) {
    let mut used = list_bytes(keys);
    let mut has_room = true;
    let next = partition.processor.list(from, |key| {
        // A List has no room for longer keys: hosts name these in the data of commands.
        let Some(key) = Key::new(key) else { return true };
        if scope.is_some_and(|scope| !scope.contains(key.as_bytes())) {
            return true;
        }
        used += list_bytes(&[key]) - 4;
        has_room = used <= room;
        if has_room {
            keys.push(key);
        }
        has_room
    });
    (next, has_room)
}

/// The outcome of a List of these keys, in this order, as far as there is room.
pub(crate) fn listed(all: &[Box<[u8]>], scope: Option<&KeyScope>, room: usize) -> KvOutcome {
    let mut used = list_bytes(&[]);
    let keys = all.iter().filter_map(|key| Key::new(key));
    let allowed = keys.filter(|key| scope.is_none_or(|scope| scope.contains(key.as_bytes())));
    let fitting = allowed.take_while(|key| {
        used += list_bytes(&[*key]) - 4;
        used <= room
    });
    KvOutcome { data: written(&fitting.collect::<Vec<_>>(), room), ..KvOutcome::new(Status::SUCCESS) }
}

fn written(keys: &[Key], room: usize) -> Box<[u8]> {
    let mut data = vec![0; list_bytes(keys).min(room)];
    if let Some(mut writer) = KeyListWriter::new(&mut data) {
        for key in keys {
            let fits = writer.push(key);
            debug_assert!(fits, "counted before");
        }
        let _ = writer.finish();
    }
    data.into()
}

/// The result of a single command: Exist has none by the standard. wire §23
pub(crate) fn own_result(opcode: KvOpcode, result: u64) -> u64 {
    if opcode == KvOpcode::EXIST { 0 } else { result }
}

#[cfg(test)]
mod tests {
    use kv::{Attributes, Condition, Settings, Stored};
    use linux::Moment;

    use super::*;

    /// Keys that no host can address are passed over in several messages, and the keys among them are all listed.
    #[test]
    fn a_list_over_keys_of_others_is_continued_on_the_same_partition() {
        let mut partition =
            Partition::new(Processor::new(Settings::default()).expect("memory"), Moment::default());
        let processor = &mut partition.processor;
        let mut put = |key: &[u8]| {
            let hash = processor.hash(key);
            processor.store(hash, key, b"", Attributes::default(), Condition::Always)
        };
        for number in 0..30_000 {
            assert_eq!(put(format!("longer than any host's key {number}").as_bytes()), Stored::Done);
        }
        for number in 0..100 {
            assert_eq!(put(format!("{number}").as_bytes()), Stored::Done);
        }
        let key = b"any";
        let mut action =
            KvAction::List { from: ListPosition::default(), keys: Vec::new(), scope: None, room: 4096 };
        let mut again_count = 0;
        let outcome = loop {
            match perform(&mut partition, key, action, true) {
                Ok(outcome) => break outcome,
                Err(rest) => {
                    assert!(rest.continues_here());
                    (action, again_count) = (rest, again_count + 1);
                }
            }
        };
        assert!(again_count >= 4, "{again_count}");
        assert_eq!(outcome.data[..4], 100u32.to_le_bytes());
    }
}
