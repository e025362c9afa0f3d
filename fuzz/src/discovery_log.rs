//! The discovery log as a host reads it: part by part, while it changes, with as many entries as it claims.
//!
//! Input: one byte (bit 0: the service takes offsets), then the damage done to each part that is asked for.

use host::discovery::{ENTRY_COUNT_MAX, LogReader, address_of};
use wire::discovery::{DISCOVERY_RECORD_BYTES, DiscoveryEntry, DiscoveryHeader, DiscoveryLog};
use zerocopy::IntoBytes;

use crate::input::Input;

/// Parts of this length at most are sent.
const PART_BYTES_MAX: u64 = 16 * DISCOVERY_RECORD_BYTES as u64;

/// Parts that a reader may ask for: all entries one by one, for as often as it begins anew, and a few.
const PART_COUNT_MAX: u64 = 16 * ENTRY_COUNT_MAX;

/// A reader comes to an end, keeps its limits, and makes addresses only of what can be one.
pub fn discovery_log(data: &[u8]) {
    let mut input = Input::new(data);
    let mut reader = LogReader::new(input.byte() & 1 != 0);
    for _ in 0..PART_COUNT_MAX {
        let Some(asked) = reader.next_part() else {
            let found = reader.into_discovered();
            assert!(found.entries.len() as u64 <= ENTRY_COUNT_MAX);
            found.entries.iter().for_each(look_at);
            return;
        };
        let mut part = page(asked.length_bytes.min(PART_BYTES_MAX));
        input.damage(&mut part);
        // Now and then it is shorter than asked for.
        let cut = usize::from(input.byte());
        part.truncate(part.len() - cut.min(part.len()));
        if let Some(log) = DiscoveryLog::new(&part) {
            log.entries.iter().for_each(look_at);
            let _ = log.is_complete();
        }
        if reader.on_part(&part).is_err() {
            return;
        }
    }
    panic!("it reads on and on");
}

fn page(length: u64) -> Vec<u8> {
    let subsystem = "nqn.2026-01.io.nvlane:fuzz".parse().expect("a name");
    let mut page = DiscoveryHeader::new(1, 2).as_bytes().to_vec();
    for port in [4420, 4421] {
        page.extend(DiscoveryEntry::tcp([192, 0, 2, 1].into(), port, &subsystem).as_bytes());
    }
    page.resize(usize::try_from(length).expect("small"), 0);
    page
}

fn look_at(entry: &DiscoveryEntry) {
    let _ = (entry.ip(), entry.port(), entry.subsystem());
    if let Ok(address) = address_of(entry) {
        let text = address.to_string();
        assert!(!text.chars().any(char::is_control), "{text:?} goes to a terminal");
        let again: host::Address = text.parse().expect("what we print we take");
        assert_eq!(again, address);
    }
}
