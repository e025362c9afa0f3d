//! Memory of more than 4 GiB, of which only regions on both sides of that are used.

use std::collections::HashMap;

use linux::random::SplitMix64;

use crate::pair::{Attributes, Condition, Stored};
use crate::processor::Processor;
use crate::regions::{REGION_BYTES, UNIT_BYTES};
use crate::settings::Settings;

/// Regions of 4 GiB.
const APART: u32 = ((1 << 32) / REGION_BYTES as u64) as u32;
/// Used regions from the first address on, and from 4 GiB on.
const USED_COUNT: u32 = 20;
/// The first unit beyond.
const BOUNDARY: u32 = ((1 << 32) / UNIT_BYTES as u64) as u32;

const KEY_COUNT: u64 = 400;
const LENGTHS: [usize; 6] = [5, 60, 700, 3000, 9000, 30_000];

/// An address that is cut would be that of another pair: regions beyond have one below.
#[test]
#[cfg_attr(miri, ignore = "takes 5 GiB of addresses")]
fn pairs_beyond_4_gib_are_apart_from_those_below() {
    let settings = Settings { memory_bytes: 5 << 30, ..Settings::default() };
    let mut processor = Processor::new(settings).expect("memory");
    processor.pairs_mut().heap.regions.keep_free(|region| region % APART < USED_COUNT);
    let (mut random, mut stored) = (SplitMix64::new(3), HashMap::new());
    let (mut below, mut beyond, mut gone) = (0, 0, 0);
    for number in 0..8000_u64 {
        let name = random.below(KEY_COUNT).to_le_bytes();
        let hash = processor.hash(&name);
        match random.below(8) {
            0 => {
                let had = processor.delete(hash, &name);
                assert!(stored.remove(&name).is_some() || !had, "{name:?}");
            }
            1..5 => {
                let length = LENGTHS[random.below(6) as usize];
                let value: Vec<u8> = (number + 1).to_le_bytes().into_iter().cycle().take(length).collect();
                let done = processor.store(hash, &name, &value, Attributes::default(), Condition::Always);
                assert_eq!(done, Stored::Done);
                stored.insert(name, value);
            }
            _ => {
                let Some(place) = processor.find(hash, &name) else {
                    // Evicted.
                    gone += u32::from(stored.remove(&name).is_some());
                    continue;
                };
                assert!(Some(&processor.value(place).to_vec()) == stored.get(&name), "{name:?}");
                match place.item() {
                    Some(unit) if unit >= BOUNDARY => beyond += 1,
                    Some(_) => below += 1,
                    None => {}
                }
            }
        }
    }
    assert!(below > 100 && beyond > 100 && gone > 10, "{below} below, {beyond} beyond, {gone} evicted");
}
