//! Streams cut and damaged in every way: a cut changes nothing; damage never causes a panic, and with both digests no
//! altered PDU has an effect. wire §4.3

#![allow(clippy::cast_possible_truncation)]

#[path = "../harness/ends.rs"]
#[allow(dead_code)] // Each test program uses its part.
mod ends;
#[path = "../harness/pdus.rs"]
#[allow(dead_code)]
mod pdus;
#[path = "../harness/random.rs"]
mod random;

mod to_controller;
mod to_host;

use pdus::{Dialect, cut, header_length};
use proptest::prelude::*;
use random::Choice;
use wire::digest::data_digest;

/// Negotiated parameters, up to padding and both digests.
fn dialect() -> impl Strategy<Value = Dialect> {
    (0u8..4, prop_oneof![Just(0u8), 1u8..32]).prop_map(|(digests, alignment)| Dialect { digests, alignment })
}

/// An end of a queue pair whose peer's stream a test plays.
trait Driver {
    /// Takes bytes in and answers what they bring; nothing after a violation.
    fn feed(&mut self, input: &[u8]);
    /// The memory that the next bytes belong to, if there is one.
    fn place(&mut self) -> Option<&mut [u8]>;
    /// The first `count` bytes of the place have been received.
    fn on_placed(&mut self, count: usize);
    /// Bytes to read before the next part of a PDU.
    fn wanted_bytes(&self) -> usize;
    /// Takes what there is to send.
    fn send(&mut self) -> Vec<u8>;

    /// Plays parts, with the answers to each taken before the next: whole, or cut and partly placed.
    fn play(&mut self, parts: &[Vec<u8>], mut cuts: Option<&mut Choice>) {
        for part in parts {
            let mut rest = &part[..];
            while !rest.is_empty() {
                let count = cuts.as_mut().map_or(rest.len(), |cuts| cuts.cut(rest.len()));
                let (mut chunk, others) = rest.split_at(count);
                rest = others;
                if cuts.as_mut().is_some_and(|cuts| cuts.below(2) == 0)
                    && let Some(place) = self.place()
                {
                    let count = place.len().min(chunk.len());
                    let (placed, others) = chunk.split_at(count);
                    place[..count].copy_from_slice(placed);
                    self.on_placed(count);
                    chunk = others;
                }
                self.feed(chunk);
                if cuts.as_mut().is_some_and(|cuts| cuts.below(3) == 0) {
                    self.send();
                }
            }
            self.send();
        }
    }

    /// Plays parts to a reader that reads no more than is wanted: it never reads past a PDU, and needs at most five
    /// reads for one.
    fn play_as_wanted(&mut self, parts: &[Vec<u8>]) {
        for part in parts {
            for pdu in cut(part) {
                let (mut rest, mut read_count) = (pdu, 0);
                while !rest.is_empty() {
                    let wanted = self.wanted_bytes();
                    assert!((1..=rest.len()).contains(&wanted), "{wanted} of {}", rest.len());
                    let (chunk, others) = rest.split_at(wanted);
                    self.feed(chunk);
                    (rest, read_count) = (others, read_count + 1);
                }
                assert!(read_count <= 5);
            }
            self.send();
        }
    }
}

/// Arbitrary bytes that begin as a PDU of this kind. With `has_header` the common header is right, so that the rest is
/// examined.
fn arbitrary_pdu(dialect: Dialect, kind: u8, has_header: bool, mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(first) = bytes.first_mut() {
        *first = kind;
    }
    if has_header && bytes.len() >= 76 {
        let hlen = header_length(kind);
        let data = vec![0; if hlen == 128 { 0 } else { bytes.len() }];
        let good = dialect.pdu(kind, 0, &vec![0; hlen - 8], &data);
        bytes[..8].copy_from_slice(&good[..8]);
    }
    bytes
}

/// Whether `data` consists of runs of bytes that `stream` sends with a right digest behind each. Damage that moves bytes
/// can put such a run, with its digest, in the place of another one of the same length, be it data or a header: no
/// digest tells the two apart.
fn has_right_digests(data: &[u8], dialect: Dialect, stream: &[u8]) -> bool {
    assert_eq!(dialect.digests, 3, "every run has a digest");
    let mut runs: Vec<&[u8]> = Vec::new();
    for pdu in cut(stream) {
        let hlen = header_length(pdu[0]);
        runs.push(&pdu[..hlen]);
        if pdu.len() > dialect.prefix(hlen as u8) {
            let (data, digest) =
                pdu[dialect.pdo(hlen as u8)..].split_last_chunk().expect("data has a digest");
            if u32::from_le_bytes(*digest) == data_digest(data) {
                runs.push(data);
            }
        }
    }
    // Where a sequence of runs may end.
    let mut ends = vec![false; data.len() + 1];
    ends[0] = true;
    for start in 0..data.len() {
        if ends[start] {
            for run in runs.iter().filter(|run| data[start..].starts_with(run)) {
                ends[start + run.len()] = true;
            }
        }
    }
    ends[data.len()]
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
