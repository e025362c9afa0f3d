//! Commands on keys and values. wire §23

use peer::queue::{Move, Queue};
use wire::id::Nsid;
use wire::kv::batch::{BatchCollect, BatchSubmit, Operation};
use wire::kv::{Key, KeyList, KvCommand, RetrieveOptions, StoreOptions};
use wire::opcode::KvOpcode;
use wire::sqe::Sqe;
use wire::status::Status;

use super::{Table, answer, io_queue, success_or};
use crate::setup::{Rig, engines};

const ONE: Nsid = Nsid::new(1);

/// A command whose key has this length; the field has no more than 16 bytes of it.
fn command(opcode: KvOpcode, key_length: u8, size_bytes: u32, options: u8) -> Sqe {
    KvCommand { size_bytes, key_length, options, key_field: *b"0123456789abcdef" }.to_sqe(opcode, ONE)
}

fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).expect("1 to 16 bytes")
}

/// The number of keys in a list of this size, and how many bytes of it came.
fn listed(io: &mut Queue, from: Option<&Key>, room: u32) -> (u32, usize) {
    let answer = answer(io, Sqe::kv_list(ONE, from, room), Move::Back(room));
    assert!(answer.status().is_success(), "{room} bytes: {}", answer.status());
    (KeyList::new(&answer.data).expect("a list").left(), answer.data.len())
}

#[test]
fn keys_have_1_to_16_bytes_in_every_command() {
    for engine in engines() {
        let rig = Rig::new(engine, &["kv:ram:16M"]);
        let mut io = io_queue(&rig);
        let mut table = Table::default();
        for length in [0, 1, 2, 15, 16, 17, 18, 127, 128, 254, 255] {
            let right = success_or((1..=16).contains(&length), Status::INVALID_KEY_SIZE);
            let in_list = if length == 0 { Status::SUCCESS } else { right };
            for (opcode, size, data, right) in [
                (KvOpcode::STORE, 4, Move::InCapsule(b"1234"), right),
                (KvOpcode::EXIST, 0, Move::None, right),
                (KvOpcode::RETRIEVE, 4, Move::Back(4), right),
                (KvOpcode::LIST, 64, Move::Back(64), in_list),
                (KvOpcode::DELETE, 0, Move::None, right),
            ] {
                let sqe = command(opcode, length, size, 0);
                table.row(&mut io, &format!("{opcode} with a key of {length} bytes"), (sqe, data), right);
            }
        }
        table.check();
    }
}

/// Beside blocks the limit is that of a transfer.
#[test]
fn a_value_has_up_to_kvvml_bytes_and_fills_as_much_of_a_buffer_as_there_is() {
    const LIMIT: u32 = 128 << 10;
    const TWO: Nsid = Nsid::new(2);
    for engine in engines() {
        let rig = Rig::with(engine, &["ram:1M", "kv:ram:16M"], |config| {
            config.limits.transfer_bytes_max = LIMIT;
        });
        let mut io = io_queue(&rig);
        let mut table = Table::default();
        let name = key("k");
        for length in [0, 1, LIMIT - 1, LIMIT, LIMIT + 1] {
            let value: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let fits = length <= LIMIT;
            let what = format!("{length} bytes of {LIMIT}");
            let right = success_or(fits, Status::INVALID_VALUE_SIZE);
            let data = if length == 0 { Move::None } else { Move::Asked(&value) };
            let store = Sqe::kv_store(TWO, &name, length, StoreOptions::empty());
            table.row(&mut io, &what, (store, data), right);
            for room in [0, 1, length.saturating_sub(1), length, length + 1] {
                if !fits {
                    break;
                }
                let sqe = Sqe::kv_retrieve(TWO, &name, room, RetrieveOptions::empty());
                let answer = answer(&mut io, sqe, if room == 0 { Move::None } else { Move::Back(room) });
                let count = room.min(length) as usize;
                assert_eq!((answer.cqe.dw0(), answer.data.len()), (length, count), "{what} into {room}");
                assert!(answer.data == value[..count], "{what} into {room}");
            }
        }
        table.check();
    }
}

/// Four bytes for the number of keys, and for each key its length in two bytes and padding to a dword.
#[test]
fn a_list_has_as_many_keys_as_fit() {
    for engine in engines() {
        let rig = Rig::new(engine, &["kv:ram:16M"]);
        let mut io = io_queue(&rig);
        for (name, entry) in [
            ("k", 4),
            ("kk", 4),
            ("kkk", 8),
            ("0123456789abcd", 16),
            ("0123456789abcde", 20),
            ("0123456789abcdef", 20),
        ] {
            let stored =
                answer(&mut io, Sqe::kv_store(ONE, &key(name), 0, StoreOptions::empty()), Move::None);
            assert!(stored.status().is_success());
            let whole = 4 + entry;
            for room in [4, whole - 1, whole, whole + 1, 2 * whole] {
                let right = if room >= whole { (1, whole as usize) } else { (0, 4) };
                let (count, bytes) = listed(&mut io, None, room);
                assert_eq!((count, bytes.min(right.1)), right, "{name} in {room} bytes");
            }
            answer(&mut io, Sqe::kv_delete(ONE, &key(name)), Move::None);
        }
        let mut table = Table::default();
        for room in [0, 1, 3, 4] {
            let data = if room == 0 { Move::None } else { Move::Back(room) };
            let right = success_or(room == 4, Status::INVALID_FIELD);
            table.row(
                &mut io,
                &format!("a list in {room} bytes"),
                (Sqe::kv_list(ONE, None, room), data),
                right,
            );
        }
        table.check();
    }
}

/// Bits 0 to 2 of Store, of which two exclude each other. The other commands ignore theirs.
#[test]
fn options_are_those_that_there_are() {
    let rig = Rig::new(engines()[0], &["kv:ram:16M"]);
    let mut io = io_queue(&rig);
    let mut table = Table::default();
    table.row(
        &mut io,
        "a key",
        (command(KvOpcode::STORE, 8, 4, 0), Move::InCapsule(b"1234")),
        Status::SUCCESS,
    );
    for options in 0..=u8::MAX {
        let right = match options {
            0 | 1 | 4 | 5 => Status::SUCCESS,
            2 | 6 => Status::KEY_EXISTS,
            _ => Status::INVALID_FIELD,
        };
        let store = (command(KvOpcode::STORE, 8, 4, options), Move::InCapsule(b"1234"));
        table.row(&mut io, &format!("Store with options {options:#x}"), store, right);
        let retrieve = (command(KvOpcode::RETRIEVE, 8, 4, options), Move::Back(4));
        let right = Status::SUCCESS;
        table.row(&mut io, &format!("Retrieve with options {options:#x}"), retrieve, right);
    }
    table.check();
}

/// docs/kv-commands.md §4
#[test]
fn a_batch_has_up_to_1024_operations() {
    for engine in engines() {
        let rig = Rig::new(engine, &["kv:ram:16M"]);
        let mut io = io_queue(&rig);
        for count in [1u16, 2, 1023, 1024, 1025] {
            let mut data = Vec::new();
            for _ in 0..count {
                assert!(Operation::new(KvOpcode::EXIST, &key("none")).append_to(&mut data));
            }
            let outcome_bytes = u32::from(count) * 16;
            let collect = BatchCollect { buffer_bytes: outcome_bytes, tag: 1 }.to_sqe(ONE);
            let submit = BatchSubmit {
                data_bytes: data.len() as u32,
                count,
                tag: 1,
                outcome_bytes,
                ..BatchSubmit::default()
            }
            .to_sqe(ONE);
            let collect = io.submit(collect, Move::Back(outcome_bytes)).expect("sent");
            let submit = io.submit(submit, Move::Asked(&data)).expect("sent");
            let answers = io.finish_all(&[(collect, &[]), (submit, &data)]).expect("answered");
            for answer in answers {
                let right = success_or(count <= 1024, Status::INVALID_FIELD);
                assert!(answer.status().is(right), "{count} operations: {}", answer.status());
            }
        }
    }
}
