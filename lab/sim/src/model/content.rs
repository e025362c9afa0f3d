//! The content that the simulator writes into a block, so that a read of it identifies the write it saw.

use linux::random::mix;

use crate::finding::Finding;

/// The value of a block: 0 for zeroes.
pub(crate) type Value = u64;

/// The identification in a content: the block it was written for, and its value.
pub(crate) type Content = (u64, Value);

/// A block begins with its value, and the block that it was written for.
const HEAD_BYTES: usize = 16;

/// Fills a block with the only content of a value there.
pub(crate) fn fill(block: &mut [u8], lba: u64, value: Value) {
    if value == 0 {
        return block.fill(0);
    }
    let (head, body) = block.split_at_mut(HEAD_BYTES);
    head[..8].copy_from_slice(&value.to_le_bytes());
    head[8..].copy_from_slice(&lba.to_le_bytes());
    for (word, content) in body.as_chunks_mut().0.iter_mut().zip(body_of(value)) {
        *word = content.to_le_bytes();
    }
}

/// The block that a block's content was written for, and its value.
pub(crate) fn content_of(block: &[u8], lba: u64) -> Result<Content, Finding> {
    let (head, body) = block.split_at(HEAD_BYTES);
    let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
    let value = word(0);
    if value == 0 {
        // Without an early end, so that the compiler compares several words at once.
        return match block.as_chunks().0.iter().fold(0, |all, word| all | u64::from_le_bytes(*word)) {
            0 => Ok((lba, 0)),
            _ => Err(format!("block {lba}: begins with zeroes and goes on with something else")),
        };
    }
    let words = body.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
    let difference = words.clone().zip(body_of(value)).fold(0, |all, (word, content)| all | (word ^ content));
    if difference == 0 {
        return Ok((word(8), value));
    }
    let at = words.zip(body_of(value)).take_while(|(word, content)| word == content).count();
    Err(format!("block {lba}: {value:#x} up to byte {}, then something else", HEAD_BYTES + at * 8))
}

/// The words behind a block's head: each identifies its value, and its place.
fn body_of(value: Value) -> impl Iterator<Item = u64> {
    let first = mix(value);
    (0..u64::from(u16::MAX)).map(move |at: u64| first.wrapping_add(at << 48 | at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_stand_for_their_values() {
        let mut block = vec![0; 512];
        assert_eq!(content_of(&block, 3), Ok((3, 0)));
        fill(&mut block, 3, 77);
        assert_eq!(content_of(&block, 3), Ok((3, 77)));
        assert_eq!(content_of(&block, 4), Ok((3, 77)), "misdirected, or copied");
        block[400] ^= 1;
        assert!(content_of(&block, 3).is_err());
    }
}
