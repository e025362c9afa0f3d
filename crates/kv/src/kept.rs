//! Values that are kept as they are for whoever sends them piece by piece, also from other reactors. What keeps a value is let go
//! of by dropping it, wherever that is; its partition alone reads the value.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::key::KeyHash;
use crate::pins::Pin;
use crate::place::Place;
use crate::processor::Processor;

/// A value that stays as it is until this is dropped, whatever becomes of its key.
pub struct Kept {
    /// Until it is dropped.
    pin: Option<Pin>,
    hash: KeyHash,
    length: usize,
    returned: Arc<Returned>,
}

/// What was let go of and its partition does not know of yet.
#[derive(Default)]
pub(crate) struct Returned {
    pins: Mutex<Vec<Pin>>,
    count: AtomicUsize,
}

impl Kept {
    /// Which of `count` partitions has it.
    #[must_use]
    pub fn partition(&self, count: usize) -> usize {
        self.hash.partition(count)
    }

    /// Bytes of the value.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the value has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut pins = self.returned.pins.lock().unwrap_or_else(PoisonError::into_inner);
        pins.extend(self.pin.take());
        self.returned.count.store(pins.len(), Ordering::Release);
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kept({} bytes)", self.length)
    }
}

impl Processor {
    /// Keeps the value at a place; `None` if the pair lies in the index.
    pub fn keep(&mut self, place: Place) -> Option<Kept> {
        self.let_go();
        let hash = self.hash_of_item(place.item()?);
        let length = self.value(place).len();
        let pin = self.pin(place)?;
        Some(Kept { pin: Some(pin), hash, length, returned: Arc::clone(&self.returned) })
    }

    /// Up to `count` bytes of a kept value from `offset` on. `None` if it is not this partition that keeps it, or it has no more.
    #[must_use]
    pub fn piece(&mut self, kept: &Kept, offset: usize, count: usize) -> Option<Vec<u8>> {
        self.let_go();
        let pin = kept.pin.as_ref().filter(|_| Arc::ptr_eq(&kept.returned, &self.returned))?;
        let value = self.pinned(pin);
        let end = kept.length.min(offset.checked_add(count)?);
        let mut piece = Vec::with_capacity(end.checked_sub(offset).filter(|&length| length > 0)?);
        while offset + piece.len() < end {
            let at = offset + piece.len();
            let part = value.part(at);
            piece.extend_from_slice(&part[..part.len().min(end - at)]);
        }
        Some(piece)
    }

    /// Ends what was let go of. Says whether that may have freed memory.
    pub(crate) fn let_go(&mut self) -> bool {
        if self.returned.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let returned = Arc::clone(&self.returned);
        let mut pins = returned.pins.lock().unwrap_or_else(PoisonError::into_inner);
        returned.count.store(0, Ordering::Release);
        let mut has_freed = false;
        for pin in pins.drain(..) {
            has_freed |= self.unpin(pin);
        }
        has_freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair::{Attributes, Condition, Stored};
    use crate::settings::{Eviction, Settings};

    const KEY: &[u8] = b"key";

    fn processor() -> Processor {
        let settings = Settings { memory_bytes: 4 << 20, eviction: Eviction::None, ..Settings::default() };
        Processor::new(settings).expect("memory")
    }

    fn store(processor: &mut Processor, value: &[u8]) -> Stored {
        let hash = processor.hash(KEY);
        processor.store(hash, KEY, value, Attributes::default(), Condition::Always)
    }

    fn keep(processor: &mut Processor) -> Kept {
        let place = processor.find(processor.hash(KEY), KEY).expect("stored");
        processor.keep(place).expect("outside of the index")
    }

    #[test]
    fn what_is_kept_is_read_as_it_was_and_its_memory_comes_back() {
        let mut processor = processor();
        let value = |round: u8| -> Vec<u8> { (0..700_001u32).map(|at| (at / 7) as u8 ^ round).collect() };
        // Far more in all than there is memory for.
        for round in 0..40 {
            assert_eq!(store(&mut processor, &value(round)), Stored::Done, "round {round}");
            let kept = keep(&mut processor);
            assert_eq!(store(&mut processor, &value(round ^ 0x80)), Stored::Done);
            let mut read = Vec::new();
            while let Some(piece) = processor.piece(&kept, read.len(), 100_000) {
                assert!(piece.len() <= 100_000);
                read.extend_from_slice(&piece);
            }
            assert!(read == value(round), "round {round}");
            std::thread::spawn(move || drop(kept)).join().expect("dropped");
        }
        let hash = processor.hash(KEY);
        assert!(processor.delete(hash, KEY));
        assert_eq!(store(&mut processor, &vec![1; 3 << 20]), Stored::Done, "nothing is kept any more");
    }

    #[test]
    fn another_partition_has_nothing_of_it() {
        let (mut one, mut other) = (processor(), processor());
        for processor in [&mut one, &mut other] {
            assert_eq!(store(processor, &vec![1; 200_000]), Stored::Done);
        }
        let kept = keep(&mut one);
        assert!(other.piece(&kept, 0, 10).is_none());
        assert!(one.piece(&kept, 0, usize::MAX).is_some_and(|piece| piece.len() == 200_000));
        assert!(one.piece(&kept, 200_000, 10).is_none());
        assert!(one.piece(&kept, 1, usize::MAX).is_none());
    }
}
