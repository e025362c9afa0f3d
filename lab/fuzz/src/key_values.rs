//! Key-value commands on two queues, compared with a map.
//!
//! Input: entries of opcode, options, key (length and bytes), and the length of the value or buffer. Values are derived
//! from a counter, so that all differ.

use std::collections::BTreeMap;

use proto::handshake::HostOffer;
use proto::host_queue::Transfer;
use wire::kv::{Key, KeyList, KvCommand, RetrieveOptions, StoreOptions};
use wire::opcode::KvOpcode;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::input::Input;
use crate::raw_host::{self, KEYS, Queue};

/// Commands that one input may submit.
const COMMAND_COUNT_MAX: usize = 128;

/// Maximum length of a value; short enough that none is evicted.
const VALUE_BYTES_MAX: u16 = 4096;

/// Store, Retrieve, List, Delete and Exist must match operations on a map, whatever the other fields contain.
pub fn key_values(data: &[u8]) {
    let mut input = Input::new(data);
    let mut target = raw_host::target();
    let (_admin, cntlid) = Queue::admin(&mut target, HostOffer::default(), usize::MAX);
    let mut queue = Queue::io(&mut target, HostOffer::default(), usize::MAX, cntlid);
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut stamp = 0u8;
    for _ in 0..COMMAND_COUNT_MAX {
        if input.is_empty() {
            break;
        }
        let (verb, options) = (input.byte(), input.byte());
        let key_length = input.byte() % 18;
        let name = input.bytes(key_length.into()).to_vec();
        let length = usize::from(input.word() % VALUE_BYTES_MAX);
        let Some(key) = Key::new(&name) else {
            // A key that is empty or too long for the command must be refused.
            let length_said = if name.is_empty() { 0 } else { key_length };
            refuse(&mut queue, &mut target, verb, length_said);
            continue;
        };
        let mut call = |sqe: Sqe, transfer| {
            queue.submit(sqe, transfer);
            let mut ended = queue.exchange(&mut target);
            assert_eq!(ended.len(), 1, "one command, one answer");
            ended.remove(0)
        };
        let known = model.get(&name);
        match verb % 5 {
            0 => {
                stamp = stamp.wrapping_add(1);
                let value = vec![stamp; length];
                let options = StoreOptions::from_bits_truncate(options & 3);
                let size = u32::try_from(length).expect("16 bits");
                let transfer =
                    if length == 0 { Transfer::None } else { Transfer::ToController(value.clone()) };
                let completion = call(Sqe::kv_store(KEYS, &key, size, options), transfer);
                let must_exist = options.contains(StoreOptions::MUST_EXIST);
                let must_not_exist = options.contains(StoreOptions::MUST_NOT_EXIST);
                let is_stored = completion.status.is_success();
                let is_possible = match known {
                    _ if must_exist && must_not_exist => false,
                    Some(_) => !must_not_exist,
                    None => !must_exist,
                };
                assert_eq!(is_stored, is_possible, "{}", completion.status);
                if is_stored {
                    model.insert(name, value);
                }
            }
            1 => {
                let size = u32::try_from(length).expect("16 bits");
                let transfer = match length {
                    0 => Transfer::None,
                    length => Transfer::FromController { buffer: vec![0; length], is_exact: false },
                };
                let completion = call(Sqe::kv_retrieve(KEYS, &key, size, RetrieveOptions::empty()), transfer);
                match known {
                    None => {
                        assert!(completion.status.is(Status::KEY_DOES_NOT_EXIST), "{}", completion.status);
                    }
                    Some(value) => {
                        assert!(completion.status.is_success(), "{}", completion.status);
                        assert_eq!(completion.result & 0xffff_ffff, value.len() as u64, "the whole length");
                        let read = completion.buffer.unwrap_or_default();
                        let count = value.len().min(length);
                        assert_eq!(read.get(..count), value.get(..count));
                        assert!(read.iter().skip(count).all(|byte| *byte == 0), "bytes of something else");
                    }
                }
            }
            2 => {
                let size = u32::try_from(length.max(4)).expect("16 bits");
                let transfer = Transfer::FromController { buffer: vec![0; length.max(4)], is_exact: false };
                let completion = call(Sqe::kv_list(KEYS, Some(&key), size), transfer);
                if completion.status.is_success() {
                    let buffer = completion.buffer.expect("the one that was given");
                    for listed in KeyList::new(&buffer[..completion.received as usize]).expect("a list") {
                        let listed = listed.expect("no key is cut");
                        assert!(model.contains_key(listed.as_bytes()), "a key that was never stored");
                    }
                }
            }
            3 => {
                let completion = call(Sqe::kv_delete(KEYS, &key), Transfer::None);
                // Also of a missing key. wire §23
                assert!(completion.status.is_success(), "{}", completion.status);
                model.remove(&name);
            }
            _ => {
                let completion = call(Sqe::kv_exist(KEYS, &key), Transfer::None);
                assert_eq!(completion.status.is_success(), known.is_some(), "{}", completion.status);
            }
        }
    }
    target.end();
}

/// A command with an invalid key.
fn refuse(queue: &mut Queue, target: &mut crate::reactor::MemoryReactor, verb: u8, key_length: u8) {
    let opcode = match verb % 4 {
        0 => KvOpcode::STORE,
        1 => KvOpcode::RETRIEVE,
        2 => KvOpcode::DELETE,
        _ => KvOpcode::EXIST,
    };
    let command = KvCommand { size_bytes: 0, key_length, options: 0, key_field: [b'k'; 16] };
    queue.submit(command.to_sqe(opcode, KEYS), Transfer::None);
    for completion in queue.exchange(target) {
        assert!(completion.status.is(Status::INVALID_KEY_SIZE), "{}", completion.status);
    }
}
