//! Both ends against each other over a connection that delays, cuts and changes what it carries. Neither end ever returns
//! anything but what the other has written, in order and from its begin; without damage it returns all of it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::rc::Rc;
use std::sync::LazyLock;

use memory::Segment;
use nvlane_security::hash::HashFunction;
use nvlane_security::tls::{ByteSocket, IdentityOffer, Session, Stream};
use proptest::prelude::*;
use reactor::{Received, Sent};

use crate::{host_keys, host_name, key, keyring, subsystem};

/// One direction of a connection.
#[derive(Default)]
struct Way {
    /// Everything that was sent, before any damage.
    sent: Vec<u8>,
    /// What has not arrived yet.
    on_the_way: VecDeque<u8>,
    /// What can be received.
    arrived: VecDeque<u8>,
    /// The sender has closed, or the connection is cut.
    has_end: bool,
    is_damaged: bool,
    capacity: usize,
}

/// A socket: receives from one way and sends on the other.
struct Socket {
    from: Rc<RefCell<Way>>,
    to: Rc<RefCell<Way>>,
}

impl ByteSocket for Socket {
    fn receive(&mut self, into: &mut [u8]) -> Received {
        let mut from = self.from.borrow_mut();
        let count = into.len().min(from.arrived.len());
        if count == 0 {
            let is_over = from.has_end && from.on_the_way.is_empty();
            return if is_over { Received::Ended } else { Received::Dry };
        }
        into.iter_mut().zip(from.arrived.drain(..count)).for_each(|(into, byte)| *into = byte);
        Received::Bytes(count)
    }

    fn send(&mut self, bytes: &[u8]) -> Sent {
        let mut to = self.to.borrow_mut();
        let count = bytes.len().min(to.capacity.saturating_sub(to.on_the_way.len()));
        if count == 0 {
            return Sent::Blocked;
        }
        // What is sent into a connection that is cut goes nowhere.
        if !to.has_end {
            to.on_the_way.extend(&bytes[..count]);
        }
        to.sent.extend_from_slice(&bytes[..count]);
        Sent::Bytes(count)
    }
}

/// One end, and what its user does.
struct End {
    is_host: bool,
    stream: Stream,
    socket: Socket,
    /// Written, and not taken by the stream yet.
    waiting: Vec<u8>,
    written: Vec<u8>,
    received: Vec<u8>,
    /// It has got the end, or an error, and has closed its socket.
    is_over: bool,
}

/// A place among others, whatever their number: 0 for the first, the maximum for the last.
#[derive(Clone, Copy, Debug)]
struct Index(u32);

impl Index {
    fn index(self, count: usize) -> usize {
        usize::try_from((u64::from(self.0) * count as u64) >> 32).expect("less than the count")
    }
}

fn index() -> impl Strategy<Value = Index> {
    any::<u32>().prop_map(Index)
}

/// What is done to bytes on the way. Places count from the first byte that has not arrived.
#[derive(Clone, Debug)]
enum Damage {
    Flip {
        at: Index,
        bit: u8,
    },
    Remove {
        at: Index,
        count: usize,
    },
    Repeat {
        at: Index,
        count: usize,
    },
    Insert {
        at: Index,
        bytes: Vec<u8>,
    },
    /// Whole records: removed, sent twice, exchanged with the next.
    RemoveRecord(Index),
    RepeatRecord(Index),
    SwapRecords(Index),
    /// In front of a record: one of the same direction from before, one of the other direction, one of another connection
    /// with the same key.
    Replay {
        at: Index,
        old: Index,
    },
    Reflect {
        at: Index,
        old: Index,
    },
    CrossConnection {
        at: Index,
        old: Index,
    },
}

#[derive(Clone, Debug)]
enum Op {
    Write {
        by_host: bool,
        length: usize,
        segment: usize,
    },
    Receive {
        by_host: bool,
        room: usize,
    },
    /// This number of bytes arrives.
    Deliver {
        to_host: bool,
        count: usize,
    },
    UpdateKey {
        by_host: bool,
    },
    Shrink {
        by_host: bool,
    },
    Damage {
        to_host: bool,
        damage: Damage,
    },
    /// The connection ends here in this direction: nothing behind what is on the way arrives any more.
    Cut {
        to_host: bool,
        kept: Index,
    },
    Close {
        by_host: bool,
    },
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 1..40_usize, 3 => 40..5000_usize, 1 => 16_000..17_000_usize, 1 => 17_000..70_000_usize]
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = index;
    prop_oneof![
        (at(), 0..8_u8).prop_map(|(at, bit)| Damage::Flip { at, bit }),
        (at(), 1..40_usize).prop_map(|(at, count)| Damage::Remove { at, count }),
        (at(), 1..40_usize).prop_map(|(at, count)| Damage::Repeat { at, count }),
        (at(), prop::collection::vec(any::<u8>(), 1..40))
            .prop_map(|(at, bytes)| Damage::Insert { at, bytes }),
        // Records without encryption: an alert, a change of cipher suite, a handshake message, data; empty and too long.
        (at(), prop_oneof![Just(20_u8), Just(21), Just(22), Just(23)], 0..3_u8).prop_map(
            |(at, kind, length)| {
                let bytes = match length {
                    0 => vec![kind, 3, 3, 0, 0],
                    1 => vec![kind, 3, 3, 0, 2, 1, 0],
                    _ => [&[kind, 3, 3, 0x42, 0][..], &[0; 0x4200]].concat(),
                };
                Damage::Insert { at, bytes }
            }
        ),
        at().prop_map(Damage::RemoveRecord),
        at().prop_map(Damage::RepeatRecord),
        at().prop_map(Damage::SwapRecords),
        (at(), at()).prop_map(|(at, old)| Damage::Replay { at, old }),
        (at(), at()).prop_map(|(at, old)| Damage::Reflect { at, old }),
        (at(), at()).prop_map(|(at, old)| Damage::CrossConnection { at, old }),
    ]
}

fn op(with_damage: bool) -> impl Strategy<Value = Op> {
    let hurts = u32::from(with_damage);
    let end = || any::<bool>();
    prop_oneof![
        6 => (end(), length(), prop_oneof![1..50_usize, 50..70_000_usize])
            .prop_map(|(by_host, length, segment)| Op::Write { by_host, length, segment }),
        10 => (end(), length()).prop_map(|(by_host, room)| Op::Receive { by_host, room }),
        10 => (end(), length()).prop_map(|(to_host, count)| Op::Deliver { to_host, count }),
        1 => end().prop_map(|by_host| Op::UpdateKey { by_host }),
        1 => end().prop_map(|by_host| Op::Shrink { by_host }),
        2 * hurts => (end(), damage()).prop_map(|(to_host, damage)| Op::Damage { to_host, damage }),
        hurts => (end(), index()).prop_map(|(to_host, kept)| Op::Cut { to_host, kept }),
        hurts => end().prop_map(|by_host| Op::Close { by_host }),
    ]
}

/// The records of a stream that begin at or behind `from`, if they are whole.
fn records(stream: &[u8], from: usize) -> Vec<std::ops::Range<usize>> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some([_, _, _, high, low]) = stream.get(at..at + 5) {
        let end = at + 5 + usize::from(u16::from_be_bytes([*high, *low]));
        if end > stream.len() {
            break;
        }
        if at >= from {
            found.push(at..end);
        }
        at = end;
    }
    found
}

fn insert(bytes: &mut Vec<u8>, at: usize, inserted: &[u8]) {
    bytes.splice(at..at, inserted.iter().copied());
}

/// Everything that both ends of another connection with the same key have sent: to the host, to the target.
static ELSEWHERE: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
    let mut pair = Pair::new(usize::MAX);
    for by_host in [true, false] {
        pair.apply(&Op::Write { by_host, length: 500, segment: 500 });
        pair.settle();
        pair.apply(&Op::Write { by_host, length: 30, segment: 500 });
        pair.settle();
    }
    [pair.ways[0].borrow().sent.clone(), pair.ways[1].borrow().sent.clone()]
});

struct Pair {
    /// To the host, to the target.
    ways: [Rc<RefCell<Way>>; 2],
    host: End,
    target: End,
}

impl Pair {
    fn new(capacity: usize) -> Self {
        let ways = [0, 1].map(|_| Rc::new(RefCell::new(Way { capacity, ..Way::default() })));
        let end = |is_host: bool, stream| {
            let own = usize::from(!is_host);
            let socket = Socket { from: Rc::clone(&ways[own]), to: Rc::clone(&ways[1 - own]) };
            let [waiting, written, received] = [(); 3].map(|()| Vec::new());
            End { is_host, stream, socket, waiting, written, received, is_over: false }
        };
        let offer =
            host_keys(key(HashFunction::Sha256, 1)).offer(IdentityOffer::Both, &host_name(), &subsystem());
        let host = end(true, Stream::new(Session::host(&offer).expect("a session")));
        let target = end(false, Stream::new(Session::target(keyring([key(HashFunction::Sha256, 1)]))));
        Self { ways, host, target }
    }

    fn end(&mut self, is_host: bool) -> &mut End {
        if is_host { &mut self.host } else { &mut self.target }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Write { by_host, length, segment } => self.end(*by_host).write(*length, *segment),
            Op::Receive { by_host, room } => self.end(*by_host).receive(*room),
            Op::Deliver { to_host, count } => {
                let way = &mut *self.ways[usize::from(!to_host)].borrow_mut();
                let count = (*count).min(way.on_the_way.len());
                way.arrived.extend(way.on_the_way.drain(..count));
            }
            Op::UpdateKey { by_host } => {
                let end = self.end(*by_host);
                if end.stream.established().is_some() && !end.is_over {
                    end.stream.update_key().expect("a session that lives");
                }
            }
            Op::Shrink { by_host } => self.end(*by_host).stream.shrink(),
            Op::Damage { to_host, damage } => self.damage(*to_host, damage),
            Op::Cut { to_host, kept } => {
                let way = &mut *self.ways[usize::from(!to_host)].borrow_mut();
                way.on_the_way.truncate(kept.index(way.on_the_way.len() + 1));
                (way.has_end, way.is_damaged) = (true, true);
            }
            Op::Close { by_host } => self.end(*by_host).close(),
        }
    }

    fn damage(&mut self, to_host: bool, damage: &Damage) {
        let other = self.ways[usize::from(to_host)].borrow().sent.clone();
        let way = &mut *self.ways[usize::from(!to_host)].borrow_mut();
        // Once only: places of records are those of what was sent.
        if way.is_damaged || way.on_the_way.is_empty() {
            return;
        }
        let begin = way.sent.len() - way.on_the_way.len();
        let mut bytes: Vec<u8> = way.on_the_way.iter().copied().collect();
        let whole = records(&way.sent, begin);
        let record = |at: &Index| {
            let record = whole.get(at.index(whole.len().max(1)))?;
            Some(record.start - begin..record.end - begin)
        };
        let copied = |from: &[u8], old: &Index| {
            let records = records(from, 0);
            let record = records.get(old.index(records.len().max(1)))?;
            Some(from[record.clone()].to_vec())
        };
        match damage {
            Damage::Flip { at, bit } => {
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << bit;
            }
            Damage::Remove { at, count } => {
                let at = at.index(bytes.len());
                let end = (at + count).min(bytes.len());
                bytes.drain(at..end);
            }
            Damage::Repeat { at, count } => {
                let at = at.index(bytes.len());
                let end = (at + count).min(bytes.len());
                bytes.extend_from_within(at..end);
                bytes[at..].rotate_right(end - at);
            }
            Damage::Insert { at, bytes: inserted } => {
                let at = at.index(bytes.len() + 1);
                insert(&mut bytes, at, inserted);
            }
            Damage::RemoveRecord(at) => {
                let Some(record) = record(at) else { return };
                bytes.drain(record);
            }
            Damage::RepeatRecord(at) => {
                let Some(record) = record(at) else { return };
                let copy = bytes[record.clone()].to_vec();
                insert(&mut bytes, record.end, &copy);
            }
            Damage::SwapRecords(at) => {
                let Some(first) = record(at) else { return };
                let Some(next) = whole.iter().find(|next| next.start - begin == first.end) else { return };
                bytes[first.start..next.end - begin].rotate_left(first.len());
            }
            Damage::Replay { at, old }
            | Damage::Reflect { at, old }
            | Damage::CrossConnection { at, old } => {
                let from = match damage {
                    Damage::Replay { .. } => &way.sent,
                    Damage::Reflect { .. } => &other,
                    _ => &ELSEWHERE[usize::from(!to_host)],
                };
                let Some((record, copy)) = record(at).zip(copied(from, old)) else { return };
                insert(&mut bytes, record.start, &copy);
            }
        }
        way.on_the_way = bytes.into();
        way.is_damaged = true;
    }

    /// Changes with everything that is sent, delivered or received.
    fn progress(&self) -> impl PartialEq + use<> {
        let sent = [0, 1].map(|to| {
            let way = self.ways[to].borrow();
            (way.sent.len(), way.on_the_way.len(), way.has_end)
        });
        let ends = [&self.host, &self.target];
        (sent, ends.map(|end| (end.received.len(), end.waiting.len(), end.is_over)))
    }

    /// Delivers and receives until nothing comes any more.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            let before = self.progress();
            for is_host in [true, false] {
                self.apply(&Op::Deliver { to_host: is_host, count: usize::MAX });
                let end = self.end(is_host);
                end.receive(70_000);
                end.write(0, 70_000);
            }
            if self.progress() == before {
                return;
            }
        }
        panic!("it never ends");
    }

    /// What must hold at any time.
    fn check(&self) {
        for (from, to) in [(&self.host, &self.target), (&self.target, &self.host)] {
            assert!(from.written.starts_with(&to.received), "other data than was written");
        }
    }
}

impl End {
    fn close(&mut self) {
        if !self.is_over {
            self.is_over = true;
            self.stream.close(&mut self.socket);
            self.socket.to.borrow_mut().has_end = true;
        }
    }

    /// Writes `length` bytes more, and has the stream take what waits.
    fn write(&mut self, length: usize, segment: usize) {
        if self.stream.established().is_none() || self.is_over {
            return;
        }
        let more = (self.written.len()..).take(length).map(|at| u8::try_from(at % 251).expect("a byte"));
        let before = self.written.len();
        self.written.extend(more);
        self.waiting.extend_from_slice(&self.written[before..]);
        let segments: Vec<_> = self.waiting.chunks(segment).map(Segment::new).collect();
        match self.stream.send(&segments, &mut self.socket) {
            Sent::Bytes(count) => drop(self.waiting.drain(..count)),
            Sent::Blocked => {}
            Sent::Failed(_) => self.fail(),
        }
    }

    /// Negotiates, or receives until the stream has nothing more.
    fn receive(&mut self, room: usize) {
        if self.is_host && self.stream.established().is_none() && !self.is_over {
            if self.stream.handshake(&mut self.socket).is_err() {
                self.fail();
            }
            return;
        }
        let mut buffer = vec![0; room];
        while !self.is_over {
            let (first, second) = buffer.split_at_mut(room / 2);
            let into = &mut [IoSliceMut::new(first), IoSliceMut::new(second)];
            match self.stream.receive(into, &mut self.socket) {
                Received::Bytes(count) => {
                    assert!((1..=room).contains(&count));
                    self.received.extend_from_slice(&buffer[..count]);
                    let is_emptied = self.socket.from.borrow().arrived.is_empty();
                    let asks_again = count == room || self.stream.has_input() || self.stream.may_have_more();
                    assert!(asks_again || is_emptied, "{count} of {room} bytes, and the socket has more");
                    if !asks_again {
                        return;
                    }
                }
                Received::Dry => {
                    assert!(self.socket.from.borrow().arrived.is_empty() && !self.stream.has_input());
                    return;
                }
                Received::Ended => self.close(),
                Received::Failed(_) => self.fail(),
            }
        }
    }

    /// A session that has failed stays so, and has nothing more.
    fn fail(&mut self) {
        assert!(self.stream.failure().is_some(), "no socket has failed");
        let count = self.received.len();
        for room in [1, 70_000] {
            let mut buffer = vec![0; room];
            let received = self.stream.receive(&mut [IoSliceMut::new(&mut buffer)], &mut self.socket);
            assert!(matches!(received, Received::Failed(_)), "{received:?} after a failure");
        }
        assert!(!self.stream.has_input() && self.received.len() == count);
        self.close();
    }
}

fn run(ops: &[Op], capacity: usize, is_negotiated: bool) -> Pair {
    let mut pair = Pair::new(capacity);
    if is_negotiated {
        pair.settle();
        assert!(pair.host.stream.established().is_some() && pair.target.stream.established().is_some());
    }
    for op in ops {
        pair.apply(op);
        pair.check();
    }
    pair.settle();
    pair.check();
    pair
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Cuts alone change nothing: all of it arrives, both ways, and neither end fails.
    #[test]
    fn everything_arrives_however_it_is_cut(
        ops in prop::collection::vec(op(false), 1..60),
        capacity in prop_oneof![100..2000_usize, 2000..200_000_usize],
        is_negotiated: bool,
    ) {
        let pair = run(&ops, capacity, is_negotiated);
        for (from, to) in [(&pair.host, &pair.target), (&pair.target, &pair.host)] {
            prop_assert!(from.stream.established().is_some() && !from.is_over);
            prop_assert!(from.waiting.is_empty() && to.received == from.written);
        }
    }

    /// Whatever is done to it on the way: no altered data, and every end of the connection is seen.
    #[test]
    fn damage_never_alters_data_and_ends_are_seen(
        ops in prop::collection::vec(op(true), 1..60),
        capacity in prop_oneof![1000..200_000_usize],
        is_negotiated: bool,
    ) {
        let mut pair = run(&ops, capacity, is_negotiated);
        // What waits for the rest of a record, or for nothing, learns of the end.
        for way in &pair.ways {
            way.borrow_mut().has_end = true;
        }
        pair.settle();
        pair.check();
        prop_assert!(pair.host.is_over && pair.target.is_over);
    }
}

/// A record in the wrong place is refused, also if it is one of this direction, of the other one, or of another connection
/// with the same key.
#[test]
fn records_that_are_moved_end_the_session() {
    let (first, last) = (Index(0), Index(u32::MAX));
    for to_host in [true, false] {
        for damage in [
            Damage::RepeatRecord(first),
            Damage::SwapRecords(first),
            Damage::RemoveRecord(first),
            Damage::Reflect { at: first, old: last },
            Damage::Replay { at: first, old: last },
            Damage::CrossConnection { at: first, old: last },
        ] {
            let mut pair = Pair::new(usize::MAX);
            pair.settle();
            for (by_host, length) in [(true, 100), (false, 100)] {
                pair.apply(&Op::Write { by_host, length, segment: 1000 });
                pair.settle();
            }
            for length in [200, 300, 400] {
                pair.apply(&Op::Write { by_host: !to_host, length, segment: 1000 });
            }
            pair.apply(&Op::Damage { to_host, damage: damage.clone() });
            assert!(pair.ways[usize::from(!to_host)].borrow().is_damaged, "{damage:?}");
            pair.settle();
            pair.check();
            let end = pair.end(to_host);
            assert!(end.stream.failure().is_some(), "{damage:?}");
            let expected = if matches!(damage, Damage::RepeatRecord(_)) { 300 } else { 100 };
            assert_eq!(end.received.len(), expected, "{damage:?}");
        }
    }
}
