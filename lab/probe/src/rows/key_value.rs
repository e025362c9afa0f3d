//! Section 10: key-value commands.

use std::collections::{HashMap, VecDeque};

use wire::identify::command_set::KvNamespace;
use wire::kv::{Key, KeyList, KvCommand, RetrieveOptions, StoreOptions};
use wire::opcode::KvOpcode;

use super::prelude::*;
use crate::rows::memcached::connect;
use crate::target::Store;

pub(super) const ROWS: &[TargetRow] = &[
    row("K1", key_lengths),
    row("K2", value_sizes),
    row("K3", options),
    row("K4", races),
    row("K5", lists),
    row("K6", similar_keys),
    row("K7", overwrites),
    row("K8", fill),
    row("K9", many_keys),
    row("K10", two_protocols),
];

/// Prefix of all keys that rows store.
const MARK: &[u8] = b"\xFEprobe";

/// A key of this row, unlike those of any other row.
fn key(row: u8, number: u32) -> Key {
    Key::new(&[MARK, &[row], &number.to_be_bytes()].concat()).expect("11 bytes")
}

/// A queue to the namespace, with helpers for its commands.
struct Values {
    store: Store,
    io: Queue,
}

impl Values {
    fn new(peer: &Target) -> Check<Self> {
        Ok(Self { store: peer.scratch_store()?, io: peer.io(Digests::empty())? })
    }

    /// Two queues of one controller.
    fn two(peer: &Target) -> Check<(Self, Self)> {
        let store = peer.scratch_store()?;
        let Association { admin, io, cntlid } = peer.associate(Digests::empty())?;
        let other = peer.host().connect_io(cntlid, 2, 32, Digests::empty())?;
        Ok((Self { store, io: io.keeping(admin) }, Self { store, io: other }))
    }

    fn bring<'a>(&self, value: &'a [u8]) -> Move<'a> {
        match value.len() {
            0 => Move::None,
            length if length <= self.store.in_capsule_bytes as usize => Move::InCapsule(value),
            _ => Move::Asked(value),
        }
    }

    fn store_sqe(&self, key: &Key, value: &[u8], options: StoreOptions) -> Sqe {
        let length = u32::try_from(value.len()).expect("short");
        Sqe::kv_store(self.store.nsid, key, length, options)
    }

    fn put(&mut self, key: &Key, value: &[u8]) -> Check {
        let sqe = self.store_sqe(key, value, StoreOptions::empty());
        let data = self.bring(value);
        self.io.must(sqe, data).about(format!("Store of {key:?}")).map(drop)
    }

    /// The value of a key, truncated to the buffer; `None` if the key does not exist.
    fn get(&mut self, key: &Key, room: u32) -> Check<Option<Answer>> {
        let sqe = Sqe::kv_retrieve(self.store.nsid, key, room, RetrieveOptions::empty());
        let data = if room == 0 { Move::None } else { Move::Back(room) };
        let answer = self.io.run(sqe, data).about(format!("Retrieve of {key:?}"))?;
        expect_status(&answer, &[Status::SUCCESS, Status::KEY_DOES_NOT_EXIST])?;
        Ok(answer.status().is_success().then_some(answer))
    }

    /// Checks that the key has this value.
    fn holds(&mut self, key: &Key, value: &[u8]) -> Check {
        let Some(answer) = self.get(key, 4096)? else { return differs(format!("{key:?} is gone")) };
        holds(answer.data == value, format!("{key:?} has another value"))?;
        let size = answer.cqe.dw0() as usize;
        holds(size == value.len(), format!("{key:?} has {} bytes, {size} as is said", value.len()))
    }

    fn delete(&mut self, key: &Key) -> Check {
        let answer = self.io.run(Sqe::kv_delete(self.store.nsid, key), Move::None)?;
        // The target may report a missing key if the host requests it.
        expect_status(&answer, &[Status::SUCCESS, Status::KEY_DOES_NOT_EXIST]).about("Delete")
    }

    fn exists(&mut self, key: &Key) -> Check<bool> {
        let answer = self.io.run(Sqe::kv_exist(self.store.nsid, key), Move::None)?;
        expect_status(&answer, &[Status::SUCCESS, Status::KEY_DOES_NOT_EXIST]).about("Exist")?;
        Ok(answer.status().is_success())
    }

    /// One page of keys: complete keys, as many as the page claims, and nothing after them.
    fn page(&mut self, from: Option<&Key>, room: u32) -> Check<Vec<Key>> {
        let sqe = Sqe::kv_list(self.store.nsid, from, room);
        let data = self.io.must(sqe, Move::Back(room)).about(format!("List into {room} bytes"))?.data;
        let Some(list) = KeyList::new(&data) else {
            return differs(format!("a list of {} bytes", data.len()));
        };
        let count = list.left() as usize;
        let keys = list.collect::<Result<Vec<_>, _>>();
        let keys = keys.map_err(|error| peer::finding::Finding::Differs(error.to_string()))?;
        holds(keys.len() == count, format!("{} keys of {count}", keys.len()))?;
        let used = 4 + keys.iter().map(|key| (2 + key.as_bytes().len()).next_multiple_of(4)).sum::<usize>();
        let rest = data.get(used..).unwrap_or_default();
        holds(rest.iter().all(|byte| *byte == 0), "bytes behind the last key of a list: of its memory?")?;
        Ok(keys)
    }

    /// Lists all keys page by page, each with the number of times it appeared.
    fn all(&mut self, room: u32) -> Check<HashMap<Key, u32>> {
        let mut seen = HashMap::new();
        let mut from: Option<Key> = None;
        for _ in 0..10_000_000 / room {
            let keys = self.page(from.as_ref(), room)?;
            // A page starts with the last key of the previous one, which must not count twice.
            let skipped = usize::from(from.is_some() && keys.first() == from.as_ref());
            for key in &keys[skipped..] {
                *seen.entry(*key).or_insert(0) += 1;
            }
            match keys[skipped..].last() {
                Some(last) => from = Some(*last),
                None => return Ok(seen),
            }
        }
        differs("lists without end")
    }
}

impl Values {
    /// Deletes all keys with this prefix.
    fn delete_all(&mut self, mark: &[u8]) -> Check {
        for name in self.all(64 << 10)?.into_keys().filter(|name| name.as_bytes().starts_with(mark)) {
            self.delete(&name)?;
        }
        Ok(())
    }
}

fn key_lengths(peer: &Target) -> Check {
    let mut values = Values::new(peer)?;
    let nsid = values.store.nsid;
    for length in [0, 17, 18, 32, 127, 128, 254, 255] {
        let rights: &[Status] = match length {
            0 => &[Status::INVALID_KEY_SIZE],
            _ => &[Status::INVALID_KEY_SIZE, Status::INVALID_FIELD],
        };
        for opcode in [KvOpcode::STORE, KvOpcode::RETRIEVE, KvOpcode::DELETE, KvOpcode::EXIST, KvOpcode::LIST]
        {
            if length == 0 && opcode == KvOpcode::LIST {
                continue;
            }
            let moves = match opcode {
                KvOpcode::STORE => values.bring(&[7; 64]),
                KvOpcode::RETRIEVE | KvOpcode::LIST => Move::Back(64),
                _ => Move::None,
            };
            let size_bytes = if matches!(moves, Move::None) { 0 } else { 64 };
            let command = KvCommand { size_bytes, key_length: length, options: 0, key_field: [b'x'; 16] };
            let what = format!("{opcode} with a key of {length} bytes");
            values.io.must_end(command.to_sqe(opcode, nsid), moves, rights).about(what)?;
        }
    }
    Ok(())
}

fn value_sizes(peer: &Target) -> Check {
    let mut values = Values::new(peer)?;
    let name = key(2, 0);
    if let Some(length) = values.store.value_bytes_max.checked_add(4) {
        let sqe = Sqe::kv_store(values.store.nsid, &name, length, StoreOptions::empty());
        let cid = values.io.cid();
        values.io.send(sqe.with_cid(cid).with_data(Sgl::transport(length)), &[])?;
        let answer = values.io.finish(cid, &[]).about(format!("a value of {length} bytes"))?;
        expect_status(&answer, &[Status::INVALID_VALUE_SIZE]).about(format!("a value of {length} bytes"))?;
    }
    // Longer than the data pointer's buffer.
    let sqe = Sqe::kv_store(values.store.nsid, &name, 512, StoreOptions::empty());
    let rights = [Status::DATA_SGL_LENGTH_INVALID, Status::INVALID_FIELD];
    values.io.must_end(sqe, Move::InCapsule(&[1; 64]), &rights).about("512 bytes out of 64")?;
    let sqe = Sqe::kv_retrieve(values.store.nsid, &name, 512, RetrieveOptions::empty());
    for length in [0_u32, 4, 997, 1000, 3000] {
        let value: Vec<u8> = (0..length).map(|at| at.to_le_bytes()[0] ^ 0x35).collect();
        values.put(&name, &value)?;
        for room in [0, 1, 4, 512, 996, 1000, 4096] {
            let Some(answer) = values.get(&name, room)? else { return differs("a value is gone") };
            let fits = room.min(length) as usize;
            let what = format!("{length} bytes into {room}");
            holds(answer.data == value[..fits], format!("{what}: {} bytes", answer.data.len()))?;
            holds(answer.cqe.dw0() == length, format!("{what}: it states {}", answer.cqe.dw0()))?;
        }
        values.io.must_end(sqe, Move::Back(64), &rights).about("512 bytes into 64")?;
    }
    values.delete(&name)
}

fn options(peer: &Target) -> Check {
    let mut values = Values::new(peer)?;
    let name = key(3, 0);
    values.put(&name, &[1; 64])?;
    // Mutually exclusive options, and every reserved bit.
    for options in [0x03, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFB] {
        let sqe = values.store_sqe(&name, &[2; 64], StoreOptions::from_bits_retain(options));
        let data = values.bring(&[2; 64]);
        values
            .io
            .must_end(sqe, data, &[Status::INVALID_FIELD])
            .about(format!("Store with options {options:#04x}"))?;
        values.holds(&name, &[1; 64])?;
    }
    values.delete(&name)?;
    let sqe = values.store_sqe(&name, &[2; 64], StoreOptions::MUST_EXIST);
    let data = values.bring(&[2; 64]);
    values.io.must_end(sqe, data, &[Status::KEY_DOES_NOT_EXIST]).about("a key that must exist").map(drop)
}

fn races(peer: &Target) -> Check {
    let (mut one, mut other) = Values::two(peer)?;
    let name = key(4, 0);
    for round in 0..200_u8 {
        one.delete(&name)?;
        let contents = [vec![round; 64], vec![!round; 64]];
        let mut cids = [0; 2];
        for ((values, content), cid) in [&mut one, &mut other].into_iter().zip(&contents).zip(&mut cids) {
            let sqe = values.store_sqe(&name, content, StoreOptions::MUST_NOT_EXIST);
            let data = values.bring(content);
            *cid = values.io.submit(sqe, data)?;
        }
        let answers = [one.io.finish(cids[0], &contents[0])?, other.io.finish(cids[1], &contents[1])?];
        let mut winner = None;
        for (answer, content) in answers.iter().zip(&contents) {
            expect_status(answer, &[Status::SUCCESS, Status::KEY_EXISTS])?;
            if answer.status().is_success() {
                holds(winner.replace(content).is_none(), "two have stored what must not exist")?;
            }
        }
        let Some(winner) = winner else { return differs("no Store of a missing key succeeded") };
        one.holds(&name, winner).about("the winner's")?;
        // One deletes while the other stores only if the key exists: in either order the key is gone afterwards.
        let content = [round; 64];
        let sqe = other.store_sqe(&name, &content, StoreOptions::MUST_EXIST);
        let data = other.bring(&content);
        let stored = other.io.submit(sqe, data)?;
        one.delete(&name)?;
        let answer = other.io.finish(stored, &content)?;
        expect_status(&answer, &[Status::SUCCESS, Status::KEY_DOES_NOT_EXIST])?;
        holds(!one.exists(&name)?, "a key is there that was deleted")?;
    }
    Ok(())
}

fn lists(peer: &Target) -> Check {
    let mut values = Values::new(peer)?;
    let keys: Vec<_> = (0..50).map(|number| key(5, number)).collect();
    for name in &keys {
        values.put(name, b"listed")?;
    }
    // A list needs room for two keys of maximum length to make progress.
    for room in [44, 64, 512, 4096] {
        let seen = values.all(room).about(format!("pages of {room} bytes"))?;
        for name in &keys {
            let count = seen.get(name).copied().unwrap_or(0);
            holds(count == 1, format!("pages of {room} bytes: {name:?} comes {count} times"))?;
        }
    }
    // From a missing key the target may start anywhere.
    values.page(Some(&key(5, 1_000_000)), 512).about("from a key that is not there")?;
    values
        .page(Some(&Key::new(&[0xFF; 16]).expect("16 bytes")), 512)
        .about("from the last key there can be")?;
    let none = values.page(None, 4).about("no room for a key")?;
    holds(none.is_empty(), "a key within 4 bytes")?;
    for room in [0, 1, 3] {
        let sqe = Sqe::kv_list(values.store.nsid, None, room);
        let moves = if room == 0 { Move::None } else { Move::Back(room) };
        let rights = [
            Status::INVALID_FIELD,
            Status::INVALID_VALUE_SIZE,
            Status::DATA_SGL_LENGTH_INVALID,
            Status::SUCCESS,
        ];
        let answer = values.io.must_end(sqe, moves, &rights).about(format!("List into {room} bytes"))?;
        holds(answer.data.len() <= room as usize, "more than there is room for")?;
    }
    keys.iter().try_for_each(|name| values.delete(name))
}

fn similar_keys(peer: &Target) -> Check {
    let mut values = Values::new(peer)?;
    let mut names: Vec<Vec<u8>> = (1..=16).map(|length| vec![0; length]).collect();
    names.extend((1..=16).map(|length| vec![0xFF; length]));
    names.extend((1..=16).map(|length| b"prefix\0prefix\xFFok"[..length].to_vec()));
    names.extend([&b"a"[..], b"a\0", b"a\0\0", b"\0a", b"A", b" ", b"\r\n", b"a b"].map(<[u8]>::to_vec));
    let keys: Vec<_> = names.iter().filter_map(|name| Key::new(name)).collect();
    let value = |name: &Key| [name.as_bytes(), &[u8::try_from(name.as_bytes().len()).expect("16")]].concat();
    for name in &keys {
        values.put(name, &value(name))?;
    }
    for name in &keys {
        values.holds(name, &value(name))?;
        // Bytes after the key are not part of it.
        let sqe = Sqe::kv_exist(values.store.nsid, name);
        let mut command = KvCommand::from_sqe(&sqe);
        command.key_field[name.as_bytes().len()..].fill(0xEE);
        let sqe = command.to_sqe(KvOpcode::EXIST, values.store.nsid);
        values.io.must(sqe, Move::None).about(format!("{name:?} with bytes after it"))?;
    }
    for (index, name) in keys.iter().enumerate() {
        values.delete(name)?;
        holds(!values.exists(name)?, format!("{name:?} is there after its Delete"))?;
        if let Some(next) = keys.get(index + 1) {
            values.holds(next, &value(next)).about(format!("after Delete of {name:?}"))?;
        }
    }
    Ok(())
}

fn overwrites(peer: &Target) -> Check {
    let (mut writer, mut reader) = Values::two(peer)?;
    let name = key(7, 0);
    let limit = writer.store.value_bytes_max.min(64 << 10);
    let value = |round: u32| vec![round.to_le_bytes()[0]; (limit / 2 + (round % 64) * limit / 128) as usize];
    writer.put(&name, &value(0))?;
    for round in 1..200 {
        let sqe = Sqe::kv_retrieve(reader.store.nsid, &name, limit, RetrieveOptions::empty());
        let before = reader.io.submit(sqe, Move::Back(limit))?;
        let content = value(round);
        let under_way = if round % 8 == 7 {
            writer.io.submit(Sqe::kv_delete(writer.store.nsid, &name), Move::None)?
        } else {
            let sqe = writer.store_sqe(&name, &content, StoreOptions::empty());
            let data = writer.bring(&content);
            writer.io.submit(sqe, data)?
        };
        let during = reader.io.submit(sqe, Move::Back(limit))?;
        for cid in [before, during] {
            let answer = reader.io.finish(cid, &[])?;
            expect_status(&answer, &[Status::SUCCESS, Status::KEY_DOES_NOT_EXIST])?;
            if answer.status().is_success() {
                let is_old = round > 1 && answer.data == value(round - 1) || answer.data == value(round);
                holds(is_old || round == 1 && answer.data == value(0), "a value that was never stored")?;
                holds(answer.cqe.dw0() as usize == answer.data.len(), "the size is not the value's")?;
            }
        }
        let answer = writer.io.finish(under_way, &content)?;
        expect_status(&answer, &[Status::SUCCESS])?;
    }
    writer.delete(&name)
}

/// Maximum size of a namespace that a row fills.
const FILL_BYTES_MAX: u64 = 1 << 30;

fn fill(peer: &Target) -> Check {
    let mut values = Values::new(peer)?;
    if values.store.size_bytes > FILL_BYTES_MAX {
        return skipped("the namespace is larger than what is filled from here, 1 GiB");
    }
    let length = values.store.value_bytes_max.min(256 << 10);
    let value = vec![0x88; length as usize];
    let most = u32::try_from(values.store.size_bytes / u64::from(length)).unwrap_or(u32::MAX) * 5 / 4 + 4;
    let mut count = 0;
    let mut is_full = false;
    while count < most && !is_full {
        let sqe = values.store_sqe(&key(8, count), &value, StoreOptions::empty());
        let data = values.bring(&value);
        let answer = values.io.run(sqe, data)?;
        expect_status(&answer, &[Status::SUCCESS, Status::CAPACITY_EXCEEDED]).about("a Store when full")?;
        is_full = !answer.status().is_success();
        count += 1;
    }
    holds(count > 1, "nothing fits")?;
    // Existing keys can be deleted, listed and overwritten, and freed space can be used again.
    let last = key(8, count - 2);
    if is_full {
        holds(!values.exists(&key(8, count - 1))?, "a key is there whose Store has failed")?;
    }
    values.delete(&last).about("when full")?;
    holds(!values.exists(&last)?, "a key is there after its Delete")?;
    values.page(None, 4096).about("when full")?;
    for number in 0..count {
        values.delete(&key(8, number)).about("when full")?;
    }
    values.put(&last, b"room again").about("after all was deleted")?;
    values.holds(&last, b"room again")?;
    values.delete(&last)
}

fn many_keys(peer: &Target) -> Check {
    let (mut values, mut other) = Values::two(peer)?;
    let mark = [MARK, &[9]].concat();
    other.delete_all(&mark).about("what is left of another time")?;
    let start = Instant::now();
    let mut under_way: VecDeque<u16> = VecDeque::new();
    let mut count = 0_u32;
    let mut is_full = false;
    while start.elapsed() < Duration::from_secs(3) && !is_full {
        while under_way.len() < 24 {
            let content = count.to_le_bytes();
            let sqe = values.store_sqe(&key(9, count), &content, StoreOptions::empty());
            let data = values.bring(&content);
            under_way.push_back(values.io.submit(sqe, data)?);
            count += 1;
        }
        let cid = under_way.pop_front().expect("filled");
        let answer = values.io.finish(cid, &[])?;
        expect_status(&answer, &[Status::SUCCESS, Status::CAPACITY_EXCEEDED])?;
        is_full = !answer.status().is_success();
    }
    for cid in under_way {
        expect_status(&values.io.finish(cid, &[])?, &[Status::SUCCESS, Status::CAPACITY_EXCEEDED])?;
    }
    let seen = other.all(64 << 10).about(format!("{count} keys"))?;
    let mut found = 0;
    for (name, times) in &seen {
        holds(*times == 1, format!("{name:?} comes {times} times"))?;
        found += u32::from(name.as_bytes().starts_with(&mark));
    }
    holds(found <= count, format!("{found} keys of {count}"))?;
    let (mut admin, _) = peer.admin(Digests::empty())?;
    let command = IdentifyCommand { cns: Cns::COMMAND_SET_NAMESPACE, ..IdentifyCommand::default() };
    let command = IdentifyCommand { csi: wire::id::Csi::KV, ..command };
    let page = admin.must(command.to_sqe(values.store.nsid), Move::Back(IDENTIFY_BYTES))?.data;
    let namespace = KvNamespace::read_from_bytes(&page).expect("4096 bytes");
    let (used, size) = (namespace.nuse.get(), namespace.nsze.get());
    holds(used <= size, format!("{used} bytes in use of {size}"))?;
    other.delete_all(&mark)
}

fn two_protocols(peer: &Target) -> Check {
    let mut values = Values::new(peer)?;
    let mut client = connect(peer)?;
    // Memcached keys are printable.
    let (text, name) = ("probe-k10", Key::new(b"probe-k10").expect("9 bytes"));
    for round in 0..100_u32 {
        let content = format!("round {round}").into_bytes();
        values.put(&name, &content)?;
        holds(client.get(text)?.as_ref() == Some(&content), "memcached has another value than was stored")?;
        let answer = client.set(text, &content[1..])?;
        holds(answer == "STORED", format!("memcached's set: {answer}"))?;
        values.holds(&name, &content[1..])?;
        // Both concurrently: one of the values is last, and both protocols return it.
        let sqe = values.store_sqe(&name, b"nvme's own", StoreOptions::empty());
        let data = values.bring(b"nvme's own");
        let cid = values.io.submit(sqe, data)?;
        let answer = client.set(text, b"memcached's")?;
        holds(answer == "STORED", format!("memcached's set: {answer}"))?;
        expect_status(&values.io.finish(cid, b"nvme's own")?, &[Status::SUCCESS])?;
        let Some(there) = client.get(text)? else { return differs("a key is gone that two have stored") };
        holds([&b"nvme's own"[..], b"memcached's"].contains(&&there[..]), "a value that was never stored")?;
        values.holds(&name, &there)?;
        // One of them creates the key: the other must see it.
        values.delete(&name)?;
        holds(client.get(text)?.is_none(), "memcached has a key that was deleted")?;
        let sqe = values.store_sqe(&name, b"nvme's own", StoreOptions::MUST_NOT_EXIST);
        let cid = values.io.submit(sqe, values.bring(b"nvme's own"))?;
        let added = client.line(&format!("add {text} 0 0 2\r\nmc\r\n"))?;
        let answer = values.io.finish(cid, b"nvme's own")?;
        expect_status(&answer, &[Status::SUCCESS, Status::KEY_EXISTS])?;
        let winners = u8::from(answer.status().is_success()) + u8::from(added == "STORED");
        holds(winners == 1, format!("{winners} have created one key"))?;
        let deleted = client.line(&format!("delete {text}\r\n"))?;
        holds(deleted == "DELETED", format!("memcached's delete: {deleted}"))?;
        holds(!values.exists(&name)?, "a key is there that memcached has deleted")?;
    }
    Ok(())
}
