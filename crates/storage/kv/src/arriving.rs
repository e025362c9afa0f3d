//! Values that are arriving: the memory that each begins with, counted so that the rest stays for their ends and for other pairs.
//!
//! A value begins only if its first chunks, and those that all arriving values began with, have room together. A value that is
//! alone begins in any case. The chunks that a long value takes later are not counted: a host that announces values and sends
//! none holds the first chunks alone.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memory::{CHUNK_BYTES, Chunk};

/// What all arriving values of a partition began with.
#[derive(Debug, Default)]
pub(crate) struct ArrivingBytes(Arc<AtomicUsize>);

/// The memory that an arriving value began with, counted until this is dropped, on any thread.
pub struct ArrivingShare {
    bytes: usize,
    of: Arc<AtomicUsize>,
}

/// The beginning of a value's arrival.
#[derive(Debug)]
pub enum Begun {
    /// It arrives into these chunks.
    Arrives(Vec<Chunk>, ArrivingShare),
    /// What is missing is held by values that are arriving or being sent: the value may begin once some have ended.
    Waits,
    /// There is no memory for it.
    NoMemory,
}

/// Memory that a value begins with, bytes: chunks, and what the part behind its last whole mebibyte, which is received into one, is
/// copied to.
pub(crate) fn bytes_to_begin(value_bytes: usize, count: usize) -> usize {
    count * CHUNK_BYTES + value_bytes % CHUNK_BYTES
}

impl ArrivingBytes {
    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn share(&self, bytes: usize) -> ArrivingShare {
        self.0.fetch_add(bytes, Ordering::AcqRel);
        ArrivingShare { bytes, of: Arc::clone(&self.0) }
    }
}

impl Drop for ArrivingShare {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl fmt::Debug for ArrivingShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ArrivingShare({} bytes)", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair::{Attributes, Condition, Stored};
    use crate::processor::Processor;
    use crate::settings::{Eviction, Settings};

    const QUARTER: usize = CHUNK_BYTES / 4;

    fn processor(eviction: Eviction) -> Processor {
        let settings = Settings { memory_bytes: 4 * CHUNK_BYTES, eviction, ..Settings::default() };
        Processor::new(settings).expect("memory")
    }

    fn begun(processor: &mut Processor, value_bytes: usize) -> (Vec<Chunk>, ArrivingShare) {
        match processor.begin(value_bytes, 1) {
            Begun::Arrives(chunks, share) => (chunks, share),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_value_waits_for_those_that_are_arriving() {
        let mut processor = processor(Eviction::Clock);
        let first = begun(&mut processor, QUARTER);
        let second = begun(&mut processor, QUARTER);
        assert!(!processor.may_begin(QUARTER, 1));
        assert!(matches!(processor.begin(QUARTER, 1), Begun::Waits));
        drop(first);
        let third = begun(&mut processor, QUARTER);
        drop((second, third));
        // What a long value has not taken yet keeps no other from beginning.
        let long = begun(&mut processor, 3 * CHUNK_BYTES);
        let other = begun(&mut processor, QUARTER);
        assert!(matches!(processor.begin(QUARTER, 1), Begun::Waits));
        drop((long, other));
    }

    #[test]
    fn a_value_waits_for_chunks_that_are_read() {
        let mut processor = processor(Eviction::Clock);
        let hash = processor.hash(b"key");
        let store = |processor: &mut Processor, chunks: Vec<Chunk>| {
            processor.store_chunks(hash, b"key", chunks, &[], Attributes::default(), Condition::Always)
        };
        let chunks = processor.take_chunks(3).expect("memory");
        assert_eq!(store(&mut processor, chunks), Stored::Done);
        let place = processor.find(hash, b"key").expect("stored");
        let read = processor.chunks(place).cloned();
        assert!(matches!(processor.begin(CHUNK_BYTES, 1), Begun::Waits), "its readers hold its memory");
        drop(read);
        begun(&mut processor, CHUNK_BYTES);
    }

    #[test]
    fn no_memory_is_no_reason_to_wait() {
        let mut processor = processor(Eviction::None);
        for number in 0..100_u8 {
            let hash = processor.hash(&[number]);
            let value = [0; QUARTER];
            processor.store(hash, &[number], &value, Attributes::default(), Condition::Always);
        }
        assert!(matches!(processor.begin(CHUNK_BYTES, 1), Begun::NoMemory));
    }
}
