//! Bytes that the simulated kernel was given by reference: it reads them again when it gives notice, as a
//! retransmission does.
//!
//! They are read by address through the process's own memory file, and not by way of the payload, which may be freed by
//! then: a kernel does not know either who owns the pages that it holds.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use reactor::Segment;

/// What a zero-copy send referred to.
pub(crate) struct SentBytes {
    /// Address and length of each piece.
    places: Vec<(usize, usize)>,
    /// The bytes as they were sent.
    expected: Vec<u8>,
}

impl SentBytes {
    /// The first `count` bytes of what was sent.
    pub(crate) fn new(segments: &[Segment<'_>], mut count: usize) -> Self {
        let mut sent = Self { places: Vec::new(), expected: Vec::with_capacity(count) };
        let total = count;
        for segment in segments {
            let length = segment.len().min(count);
            sent.places.push((segment.address(), length));
            segment.append_to(&mut sent.expected);
            count -= length;
            if count == 0 {
                break;
            }
        }
        sent.expected.truncate(total);
        sent
    }

    /// Reads the bytes once more.
    ///
    /// # Errors
    /// What is there that was not sent, and where.
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
            if let Some(at) = found.iter().zip(sent).position(|(found, sent)| found != sent) {
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
        let sent = SentBytes::new(&[Segment::new(&head), Segment::new(&data)], 74);
        assert_eq!(sent.check(), Ok(()));
        data[50] = 3;
        assert_eq!(sent.check(), Ok(()), "the send ended before that byte");
        data[49] = 3;
        let finding = sent.check().unwrap_err();
        assert!(finding.starts_with("byte 49 of a piece of 50 bytes"), "{finding}");
    }
}
