//! Streams cut and damaged in every way: a cut changes nothing; damage never causes a panic, and with both digests no
//! altered PDU has an effect. wire §4.3

#![allow(clippy::cast_possible_truncation)]

#[path = "../harness/ends.rs"]
#[allow(dead_code)] // Each test program uses its part.
mod ends;
#[path = "../harness/pdus.rs"]
#[allow(dead_code)]
mod pdus;

mod to_controller;
mod to_host;

use pdus::Dialect;
use proptest::prelude::*;

/// Negotiated parameters, up to padding and both digests.
fn dialect() -> impl Strategy<Value = Dialect> {
    (0u8..4, prop_oneof![Just(0u8), 1u8..32]).prop_map(|(digests, alignment)| Dialect { digests, alignment })
}

/// A repeatable source of small random decisions.
#[derive(Clone, Debug)]
struct Choice(u64);

impl Choice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % limit
    }

    /// A cut: mostly short, sometimes long.
    fn cut(&mut self) -> usize {
        let limit = [1, 8, 80, 4000, 100_000][self.below(5)];
        1 + self.below(limit)
    }
}

/// Damage to a stream.
#[derive(Clone, Copy, Debug)]
enum Damage {
    /// A bit is flipped.
    Flip,
    /// A byte becomes another.
    Set(u8),
    /// Bytes are removed.
    Cut(usize),
    /// Bytes are inserted.
    Insert(usize, u8),
    /// Bytes are duplicated.
    Repeat(usize),
    /// Two runs of bytes are swapped.
    Swap(usize),
}

impl Damage {
    fn any() -> impl Strategy<Value = (Self, prop::sample::Index)> {
        let length = || prop_oneof![1usize..5, 1usize..200];
        let damage = prop_oneof![
            3 => Just(Self::Flip),
            3 => any::<u8>().prop_map(Self::Set),
            1 => length().prop_map(Self::Cut),
            1 => (length(), any::<u8>()).prop_map(|(length, byte)| Self::Insert(length, byte)),
            1 => length().prop_map(Self::Repeat),
            1 => length().prop_map(Self::Swap),
        ];
        (damage, any::<prop::sample::Index>())
    }

    fn apply(self, stream: &mut Vec<u8>, at: prop::sample::Index) {
        if stream.is_empty() {
            return;
        }
        let at = at.index(stream.len());
        let run = |length: usize| at..(at + length).min(stream.len());
        match self {
            Self::Flip => stream[at] ^= 1 << (at % 8),
            Self::Set(byte) => stream[at] = byte,
            Self::Cut(length) => drop(stream.drain(run(length))),
            Self::Insert(length, byte) => drop(stream.splice(at..at, std::iter::repeat_n(byte, length))),
            Self::Repeat(length) => {
                let again = stream[run(length)].to_vec();
                stream.splice(at..at, again);
            }
            Self::Swap(length) => {
                let end = (at + 2 * length).min(stream.len());
                let middle = at + (end - at) / 2;
                stream[at..end].rotate_left(middle - at);
            }
        }
    }
}
