//! Bytes that the simulated kernel was given by reference: it reads them when they arrive, and again when it gives
//! notice, as a retransmission does.
//!
//! They are read by address through the process's own memory file, and not by way of the payload, which may be freed by
//! then: a kernel does not know either who owns the pages that it holds.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use memory::Segment;

/// The memory that a zero-copy send referred to.
#[derive(Debug)]
pub(crate) struct SentBytes {
    /// Address and length of each piece.
    places: Vec<(usize, usize)>,
    /// The bytes as they were sent.
    expected: Vec<u8>,
}

impl SentBytes {
    /// The first bytes of a send, which are these.
    pub(crate) fn new(segments: &[Segment<'_>], bytes: &[u8]) -> Self {
        let (mut places, mut count) = (Vec::new(), bytes.len());
        for segment in segments {
            let length = segment.len().min(count);
            places.push((segment.address(), length));
            count -= length;
            if count == 0 {
                break;
            }
        }
        Self { places, expected: bytes.to_vec() }
    }

    /// Reads a part of the bytes where they lie.
    pub(crate) fn read(&self, mut start: usize, mut length: usize) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::with_capacity(length);
        for &(address, piece_bytes) in &self.places {
            let count = piece_bytes.saturating_sub(start).min(length);
            let from = bytes.len();
            bytes.resize(from + count, 0);
            let read = own_memory().read_exact_at(&mut bytes[from..], (address + start) as u64);
            read.map_err(|error| format!("{count} bytes at {address:#x} are gone on their way: {error}"))?;
            (start, length) = (start.saturating_sub(piece_bytes), length - count);
            if length == 0 {
                break;
            }
        }
        Ok(bytes)
    }

    /// Reads the bytes once more.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut expected = &self.expected[..];
        let mut found = Vec::new();
        for &(address, length) in &self.places {
            let (sent, rest) = expected.split_at(length);
            expected = rest;
            found.resize(length, 0);
            if let Err(error) = own_memory().read_exact_at(&mut found, address as u64) {
                return Err(format!("{length} bytes at {address:#x} are gone before their notice: {error}"));
            }
            if found != sent
                && let Some(at) = found.iter().zip(sent).position(|(found, sent)| found != sent)
            {
                let (sent, found) = (sent[at], found[at]);
                let bytes = self.expected.len();
                return Err(format!(
                    "byte {at} of a piece of {length} bytes, in a zero-copy send of {bytes}, was {sent:#04x} and is {found:#04x} before the notice"
                ));
            }
        }
        Ok(())
    }
}

fn own_memory() -> &'static File {
    static MEMORY: OnceLock<File> = OnceLock::new();
    MEMORY.get_or_init(|| File::open("/proc/self/mem").expect("a process may read its own memory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_before_the_notice_is_seen_and_one_behind_what_was_taken_is_not() {
        let (head, mut data) = (vec![1; 24], vec![2; 100]);
        let bytes = [&head[..], &data[..50]].concat();
        let sent = SentBytes::new(&[Segment::new(&head), Segment::new(&data)], &bytes);
        assert_eq!(sent.check(), Ok(()));
        data[50] = 3;
        assert_eq!(sent.check(), Ok(()), "the send ended before that byte");
        assert_eq!(sent.read(20, 10), Ok(vec![1, 1, 1, 1, 2, 2, 2, 2, 2, 2]));
        assert_eq!(sent.read(24, 26), Ok(vec![2; 26]));
        data[49] = 3;
        assert_eq!(sent.read(72, 2), Ok(vec![2, 3]), "as it is now");
        let finding = sent.check().unwrap_err();
        assert!(finding.starts_with("byte 49 of a piece of 50 bytes"), "{finding}");
    }
}
