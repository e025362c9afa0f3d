//! Pairs in memory with a count of the cache lines that operations touch: the code of a [`Processor`], compiled where
//! it is used.
//!
//! [`Processor`]: crate::Processor

use std::io;

use crate::counters::Counters;
use crate::pair::{Attributes, Stored};
use crate::pair_writer::PairWriter;
use crate::settings::Settings;
use crate::touches::{Counted, TouchCounts};

/// A partition in memory that counts the lines its operations touch.
pub struct CountedPairs {
    writer: PairWriter<Counted>,
    inline_bytes_max: usize,
}

// Inlined, so that only crates that count contain this code.
impl CountedPairs {
    /// An empty partition.
    ///
    /// # Errors
    /// The system's error when it refuses the memory.
    #[inline]
    pub fn new(settings: &Settings) -> io::Result<Self> {
        Ok(Self { writer: PairWriter::new(settings)?, inline_bytes_max: settings.inline_bytes_max })
    }

    /// Pairs held and work done.
    #[inline]
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.writer.allocator.pairs.counters
    }

    /// Lines touched by operations so far.
    #[inline]
    #[must_use]
    pub fn touches(&self) -> TouchCounts {
        self.writer.allocator.pairs.heap.memory.touches().counts()
    }

    /// Looks a key up. Returns the length of its value.
    #[inline]
    pub fn get(&mut self, key: &[u8]) -> Option<usize> {
        let pairs = &mut self.writer.allocator.pairs;
        let hash = pairs.table.hasher.hash(key);
        pairs.heap.memory.begin_operation();
        let place = pairs.find(hash, key)?;
        Some(pairs.heap.value(place).len())
    }

    /// Stores a value.
    #[inline]
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Stored {
        let pairs = &mut self.writer.allocator.pairs;
        let hash = pairs.table.hasher.hash(key);
        pairs.heap.memory.begin_operation();
        let found = pairs.find(hash, key);
        self.writer.put(hash, key, value, Attributes::default(), found, self.inline_bytes_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair::Condition;
    use crate::processor::Processor;
    use crate::settings::Eviction;

    /// In the tests of this crate a [`Processor`] counts, too.
    #[test]
    fn the_operations_are_those_of_a_processor() {
        for inline_bytes_max in [0, 12, 25] {
            let eviction = Eviction::None;
            let settings =
                Settings { memory_bytes: 1 << 20, inline_bytes_max, eviction, ..Settings::default() };
            let mut counted = CountedPairs::new(&settings).expect("memory");
            let mut processor = Processor::new(settings).expect("memory");
            let value = [7; 5000];
            let mut refused_count = 0;
            for number in 0..30_000u32 {
                let key = (number.wrapping_mul(0x9e37_79b1) >> 17).to_le_bytes();
                let length = if number.is_multiple_of(1000) { 5000 } else { number as usize % 18 };
                let hash = processor.hash(&key);
                let place = processor.find(hash, &key);
                assert_eq!(counted.get(&key), place.map(|place| processor.value(place).len()));
                let (value, attributes) = (&value[..length], Attributes::default());
                let stored = processor.store(hash, &key, value, attributes, Condition::Always);
                assert_eq!(counted.put(&key, value), stored);
                refused_count += u32::from(stored != Stored::Done);
                assert_eq!(counted.touches(), processor.touches(), "number {number}");
            }
            assert!(refused_count > 0, "the memory has filled");
            assert_eq!(counted.counters().pair_bytes, processor.counters().pair_bytes);
        }
    }
}
