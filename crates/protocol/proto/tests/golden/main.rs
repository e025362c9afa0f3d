//! Golden exchanges, written out byte by byte from the tables of wire §2, §5 and §6: a controller's answers to Linux,
//! and a host's answers to Linux and SPDK.

#![allow(clippy::cast_possible_truncation)]

#[path = "../harness/ends.rs"]
#[allow(dead_code)] // Each test program uses its part.
mod ends;
#[path = "../harness/pdus.rs"]
#[allow(dead_code)]
mod pdus;

mod controller;
mod host;

/// Parses bytes in hex, with comments. `5A*512` repeats a byte.
fn hex(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or_default();
        for word in line.split_whitespace() {
            let (byte, count) = word.split_once('*').unwrap_or((word, "1"));
            let byte = u8::from_str_radix(byte, 16).unwrap();
            bytes.extend(std::iter::repeat_n(byte, count.parse().unwrap()));
        }
    }
    bytes
}

/// Bytes as a table of 16 columns, so that a difference shows its place.
fn table(bytes: &[u8]) -> String {
    let rows = bytes.chunks(16).enumerate().map(|(row, chunk)| format!("{:5}: {chunk:02x?}\n", row * 16));
    rows.collect()
}

/// Feeds an end 3 bytes, then as many bytes at a time as it wants, 1000 at most. Returns the wanted lengths.
fn feed_what_is_wanted<E>(
    end: &mut E,
    bytes: &[u8],
    wanted_bytes: impl Fn(&E) -> usize,
    mut feed: impl FnMut(&mut E, &[u8], bool),
) -> Vec<usize> {
    assert_eq!(wanted_bytes(end), 8, "between PDUs, a common header");
    let (first, mut rest) = bytes.split_at(3);
    feed(end, first, false);
    let mut wanted = Vec::new();
    while !rest.is_empty() {
        let count = wanted_bytes(end);
        wanted.push(count);
        let (part, others) = rest.split_at(count.min(1000));
        feed(end, part, others.is_empty());
        rest = others;
    }
    wanted
}

#[track_caller]
fn assert_bytes(actual: &[u8], expected: &str) {
    let expected = hex(expected);
    assert!(actual == expected, "got\n{}expected\n{}", table(actual), table(&expected));
}
