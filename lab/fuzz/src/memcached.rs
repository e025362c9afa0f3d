//! memcached's protocols: the answers must not depend on how the input is cut, with one partition or several.
//!
//! Input: one byte (how the stream is cut, 0 for byte by byte), then the stream.

use kv::Settings;
use memcached::partitions::Partitions;
use memcached::{ListenerSettings, Progress, Session};

use crate::input::Input;

/// Memory of a partition: small, so that it fills up.
const MEMORY_BYTES: usize = 1 << 20;

/// Maximum value length, so that inputs soon contain longer values.
const VALUE_BYTES_MAX: usize = 8192;

/// Maximum answer bytes per input byte: a get of a key takes six bytes and returns one value.
const ANSWER_BYTES_MAX: usize = VALUE_BYTES_MAX + 4096;

/// Feeds a stream whole, cut, and byte by byte: the answers must be equal. With several partitions, by message or in
/// place, nothing may panic and every command must be answered.
pub fn memcached(data: &[u8]) {
    let mut input = Input::new(data);
    let cut = usize::from(input.byte());
    let stream = input.rest();
    let whole = talk(partitions(1), stream, usize::MAX);
    let (pieces, _) = talk(partitions(1), stream, cut.max(1));
    let answers_differ = whole.0 != pieces;
    // Statistics also count reads of the socket.
    let counts_itself =
        stream.windows(4).any(|window| window.eq_ignore_ascii_case(b"stat")) || stream.contains(&0x80);
    assert!(counts_itself || !answers_differ, "cut into {cut}, it is answered otherwise");
    talk(partitions(2), stream, cut.max(1));
    talk(partitions(3).in_place(&settings()), stream, cut.max(1));
}

const LISTENER: ListenerSettings = ListenerSettings { value_bytes_max: VALUE_BYTES_MAX, allows_flush: true };

fn settings() -> Settings {
    Settings { memory_bytes: MEMORY_BYTES, ..Settings::default() }
}

fn partitions(count: usize) -> Partitions {
    Partitions::new(count, &settings(), LISTENER)
}

fn talk(mut partitions: Partitions, stream: &[u8], cut: usize) -> (Vec<u8>, bool) {
    // The first command of a client that authenticates.
    let authenticates = stream.starts_with(b"set auth ");
    let mut session = if authenticates { Session::authenticating(LISTENER) } else { Session::new(LISTENER) };
    let mut answers = Vec::new();
    for piece in stream.chunks(cut) {
        let mut progress = session.on_bytes(&mut partitions, piece);
        loop {
            partitions.deliver(&mut session);
            answers.extend_from_slice(session.output());
            session.on_sent(session.output().len());
            if progress != Progress::Stalled {
                break;
            }
            progress = session.resume(&mut partitions);
        }
        assert!(!session.is_awaiting(), "an answer that will never come");
        if progress == Progress::Close {
            return (answers, true);
        }
    }
    assert!(answers.len() <= stream.len().saturating_mul(ANSWER_BYTES_MAX));
    (answers, false)
}
