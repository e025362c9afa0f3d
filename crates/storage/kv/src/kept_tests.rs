//! Kept values: they stay readable and unchanged, and their memory is freed.

use crate::kept::Kept;
use crate::pair::{Attributes, Condition, Stored};
use crate::processor::Processor;
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
    // Far more in total than fits in memory.
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
