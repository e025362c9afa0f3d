//! Payloads that a caravan refers to, behind its headers.

use std::ops::Range;
use std::sync::Arc;

use crate::buffers::Buffer;
use crate::chunks::{CHUNK_BYTES, Chunk};
use crate::memory::{MemoryRef, STRIPE_BYTES};
use crate::payload_ranges::PayloadRanges;
use crate::segment::Segment;

/// The data behind a header: owned bytes, a range of a namespace, or zeroes.
#[derive(Debug)]
pub enum Payload {
    /// A buffer of the pool, freed once sent.
    Buffer(Buffer),
    /// A range of a RAM namespace, read when it is sent.
    Memory(MemoryRef),
    /// This many zero bytes.
    Zeroes(usize),
    /// Bytes on the heap: control data, and answers of other reactors.
    Heap(Box<[u8]>),
    /// The rest of a range of a RAM namespace of which a part is sent.
    Torn(Box<Torn>),
    /// Whole chunks, and the bytes behind them, all unchanging.
    Chunks(Arc<Vec<Chunk>>, Box<Payload>),
    /// Ranges of a payload that never changes, one after the other.
    Ranges(Box<PayloadRanges>),
}

/// The rest of a range in a namespace, made by [`Payload::rest`].
#[derive(Debug)]
pub struct Torn {
    /// The rest of the block that the send stopped in, as it was then.
    kept: Box<[u8]>,
    /// The blocks behind it.
    behind: Option<MemoryRef>,
}

/// Source of zeroes to send: small enough for the first-level cache.
static ZEROES: [u8; 16 * 1024] = [0; 16 * 1024];

impl Payload {
    /// Bytes in the payload.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Buffer(buffer) => buffer.len(),
            Self::Memory(memory) => memory.len(),
            Self::Zeroes(length) => *length,
            Self::Heap(bytes) => bytes.len(),
            Self::Torn(torn) => torn.kept.len() + torn.behind.as_ref().map_or(0, MemoryRef::len),
            Self::Chunks(chunks, rest) => chunks.len() * CHUNK_BYTES + rest.len(),
            Self::Ranges(ranges) => ranges.len(),
        }
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether its bytes never change: only such a payload may be sent without a copy. A payload that refers to memory
    /// of a namespace is not stable.
    #[inline]
    #[must_use]
    pub fn is_stable(&self) -> bool {
        match self {
            Self::Buffer(_) | Self::Zeroes(_) | Self::Heap(_) | Self::Ranges(_) => true,
            Self::Memory(_) => false,
            Self::Torn(torn) => torn.behind.is_none(),
            Self::Chunks(_, rest) => rest.is_stable(),
        }
    }

    /// The longest contiguous piece that starts at `range.start` and does not pass `range.end`.
    ///
    /// # Panics
    /// If the range is not within the payload.
    #[inline]
    #[must_use]
    pub fn segment(&self, range: Range<usize>) -> Segment<'_> {
        match self {
            Self::Buffer(buffer) => Segment::new(&buffer[range]),
            Self::Memory(memory) => memory.segment(range),
            Self::Zeroes(length) => {
                assert!(range.end <= *length, "{range:?} past {length} zeroes");
                Segment::new(&ZEROES[..range.len().min(ZEROES.len())])
            }
            Self::Heap(bytes) => Segment::new(&bytes[range]),
            Self::Torn(torn) => torn.segment(range),
            Self::Chunks(chunks, rest) => segment_of_chunks(chunks, rest, range),
            Self::Ranges(ranges) => ranges.segment(range),
        }
    }

    /// The replacement of a payload that is sent up to `range.start`; `None` if its bytes never change. A block sent
    /// half old and half new would be corrupt, so the rest of it is copied now: up to the next possible end of a block,
    /// and no further, since the copy may be held for long.
    ///
    /// # Panics
    /// If the range is not within the payload.
    #[must_use]
    pub fn rest(&self, range: Range<usize>) -> Option<Self> {
        let (memory, range) = match self {
            Self::Memory(memory) => (memory, range),
            Self::Torn(torn) if range.start > torn.kept.len() => {
                let behind = torn.behind.as_ref()?;
                (behind, range.start - torn.kept.len()..range.end - torn.kept.len())
            }
            Self::Chunks(chunks, rest) => {
                let whole = chunks.len() * CHUNK_BYTES;
                let start = range.start.checked_sub(whole)?;
                return rest.rest(start..range.end - whole);
            }
            Self::Torn(_) | Self::Buffer(_) | Self::Zeroes(_) | Self::Heap(_) | Self::Ranges(_) => {
                return None;
            }
        };
        // Both kinds begin where a block does, and the rest may do so as well.
        if range.start.is_multiple_of(STRIPE_BYTES) {
            return None;
        }
        let boundary = range.start.next_multiple_of(STRIPE_BYTES).min(range.end);
        let kept = memory.to_bytes(range.start..boundary);
        let behind = (boundary < range.end).then(|| memory.part(boundary..range.end));
        Some(Self::Torn(Box::new(Torn { kept, behind })))
    }

    /// Calls `each` with the bytes of `range`, in order, in one or more pieces. For digests.
    ///
    /// # Panics
    /// If the range is not within the payload, or the payload refers to memory that may still change:
    /// digests are computed over bytes we own.
    pub fn for_each_piece(&self, range: Range<usize>, mut each: impl FnMut(&[u8])) {
        match self {
            Self::Buffer(buffer) => each(&buffer[range]),
            Self::Heap(bytes) => each(&bytes[range]),
            Self::Zeroes(_) => {
                let mut left = range.len();
                while left > 0 {
                    let piece = left.min(ZEROES.len());
                    each(&ZEROES[..piece]);
                    left -= piece;
                }
            }
            Self::Chunks(chunks, rest) => {
                let (mut at, whole) = (range.start, chunks.len() * CHUNK_BYTES);
                while at < range.end.min(whole) {
                    let within = at % CHUNK_BYTES;
                    let end = CHUNK_BYTES.min(within + range.end - at);
                    each(&chunks[at / CHUNK_BYTES][within..end]);
                    at += end - within;
                }
                if at < range.end {
                    rest.for_each_piece(at - whole..range.end - whole, each);
                }
            }
            Self::Ranges(ranges) => {
                let mut at = range.start;
                while at < range.end {
                    let part = ranges.within(at..range.end);
                    at += part.len();
                    ranges.of().for_each_piece(part, &mut each as &mut dyn FnMut(&[u8]));
                }
            }
            Self::Memory(_) | Self::Torn(_) => {
                panic!("a digest over namespace memory could differ from what is sent")
            }
        }
    }
}

impl Torn {
    #[cold]
    fn segment(&self, range: Range<usize>) -> Segment<'_> {
        let kept = self.kept.len();
        match &self.behind {
            Some(behind) if range.start >= kept => behind.segment(range.start - kept..range.end - kept),
            _ => Segment::new(&self.kept[range.start..range.end.min(kept)]),
        }
    }
}

#[cold]
fn segment_of_chunks<'a>(chunks: &'a [Chunk], rest: &'a Payload, range: Range<usize>) -> Segment<'a> {
    let whole = chunks.len() * CHUNK_BYTES;
    if range.start >= whole {
        return rest.segment(range.start - whole..range.end - whole);
    }
    let within = range.start % CHUNK_BYTES;
    let end = CHUNK_BYTES.min(within + range.len());
    Segment::new(&chunks[range.start / CHUNK_BYTES][within..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunks::Chunks;
    use crate::mapping::page_bytes;
    use crate::memory::Memory;

    #[test]
    fn chunks_and_what_follows_them_are_one_run_of_bytes() {
        let mut source = Chunks::new(2, 2).unwrap();
        assert!(source.open() && source.open());
        let mut chunks = vec![source.take().unwrap(), source.take().unwrap()];
        chunks[0].fill(1);
        chunks[1].fill(2);
        let rest = Payload::Heap(vec![3; 10].into());
        let payload = Payload::Chunks(Arc::new(chunks), Box::new(rest));
        assert_eq!(payload.len(), 2 * CHUNK_BYTES + 10);
        for range in [
            0..payload.len(),
            5..9,
            CHUNK_BYTES - 1..CHUNK_BYTES + 1,
            2 * CHUNK_BYTES - 3..2 * CHUNK_BYTES + 4,
        ] {
            let expected: Vec<u8> = range.clone().map(|at| (at / CHUNK_BYTES) as u8 + 1).collect();
            let (mut at, mut sent, mut digested) = (range.start, Vec::new(), Vec::new());
            while at < range.end {
                let segment = payload.segment(at..range.end);
                segment.append_to(&mut sent);
                at += segment.len();
            }
            payload.for_each_piece(range, |piece| digested.extend_from_slice(piece));
            assert!(sent == expected && digested == expected);
        }
    }

    fn bytes(payload: &Payload) -> Vec<u8> {
        let (mut at, mut seen) = (0, Vec::new());
        while at < payload.len() {
            let segment = payload.segment(at..payload.len());
            segment.append_to(&mut seen);
            at += segment.len();
        }
        seen
    }

    #[test]
    fn what_is_left_of_an_interrupted_block_stays_as_it_was_and_no_more() {
        let length = 4 * STRIPE_BYTES;
        let memory = Memory::new(length, false, false, page_bytes()).unwrap().attach().unwrap();
        memory.copy_in(0, &vec![1; length]).unwrap();
        let whole = Payload::Memory(memory.refer(0, length).unwrap());
        let sent = STRIPE_BYTES + 100;
        let rest = whole.rest(sent..length).unwrap();
        memory.copy_in(0, &vec![2; length]).unwrap();
        let expected = [vec![1; STRIPE_BYTES - 100], vec![2; 2 * STRIPE_BYTES]].concat();
        assert_eq!((rest.len(), bytes(&rest) == expected), (length - sent, true));
        // Interrupted where it is kept, it stays; behind that, the same again.
        assert!(rest.rest(10..rest.len()).is_none());
        let again = rest.rest(STRIPE_BYTES - 100 + 5..rest.len()).unwrap();
        memory.copy_in(0, &vec![3; length]).unwrap();
        let expected = [vec![2; STRIPE_BYTES - 5], vec![3; STRIPE_BYTES]].concat();
        assert!(bytes(&again) == expected);
        let last = again.rest(2 * STRIPE_BYTES - 10..again.len()).unwrap();
        assert!(bytes(&last) == [3; 5]);
        assert!(Payload::Zeroes(10).rest(5..10).is_none());
    }

    #[test]
    fn only_payloads_without_namespace_memory_are_stable() {
        let length = 2 * STRIPE_BYTES;
        let memory = Memory::new(length, false, false, page_bytes()).unwrap().attach().unwrap();
        let refer = || Payload::Memory(memory.refer(0, length).unwrap());
        let buffer = crate::buffers::Pool::new(1).unwrap().take(10).unwrap();
        for payload in [Payload::Buffer(buffer), Payload::Zeroes(10), Payload::Heap(vec![1; 10].into())] {
            assert!(payload.is_stable(), "{payload:?}");
        }
        assert!(!refer().is_stable());
        // Interrupted in the first block: the second one may still change. In the second: all that is left was copied.
        let rest = refer().rest(100..length).unwrap();
        assert!(!rest.is_stable() && rest.len() == length - 100);
        let last = refer().rest(STRIPE_BYTES + 100..length).unwrap();
        assert!(last.is_stable());
        // Behind chunks it is judged, and replaced, like any other.
        let mut source = Chunks::new(1, 1).unwrap();
        assert!(source.open());
        let chunks = Arc::new(vec![source.take().unwrap()]);
        assert!(Payload::Chunks(Arc::clone(&chunks), Box::new(last)).is_stable());
        let mixed = Payload::Chunks(chunks, Box::new(refer()));
        assert!(!mixed.is_stable());
        assert!(mixed.rest(5..mixed.len()).is_none(), "stopped in a chunk");
        let rest = mixed.rest(CHUNK_BYTES + 5..mixed.len()).unwrap();
        assert_eq!(rest.len(), length - 5);
    }

    #[test]
    fn zeroes_of_any_length_come_in_pieces() {
        let payload = Payload::Zeroes(100_000);
        assert_eq!(bytes(&payload), vec![0; 100_000]);
        let mut length = 0;
        payload.for_each_piece(5..99_000, |piece| length += piece.len());
        assert_eq!(length, 98_995);
    }
}
