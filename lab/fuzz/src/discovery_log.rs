//! The discovery log as a host reads it: in parts, while it changes, with any claimed number of entries.
//!
//! Input: one byte (bit 0: the service supports offsets), then the damage to each part that the host reads.

use std::sync::LazyLock;

use host::discovery::address_of;
use host_core::discovery_log::{ENTRY_COUNT_MAX, LogReader};
use wire::discovery::{DISCOVERY_RECORD_BYTES, DiscoveryEntry, DiscoveryHeader, DiscoveryLog};
use zerocopy::{FromBytes, IntoBytes};

use crate::input::Input;

/// Maximum length of a part.
const PART_BYTES_MAX: u64 = 16 * DISCOVERY_RECORD_BYTES as u64;

/// Maximum number of parts read: every entry by itself, for each restart, and a few more.
const PART_COUNT_MAX: u64 = 16 * ENTRY_COUNT_MAX;

/// The reader must end, keep its limits, and derive only valid addresses.
pub fn discovery_log(data: &[u8]) {
    let mut input = Input::new(data);
    let mut reader = LogReader::new(input.byte() & 1 != 0);
    for _ in 0..PART_COUNT_MAX {
        let Some(asked) = reader.next_part() else {
            // Each entry was checked with its part.
            assert!(reader.into_discovered().entries.len() as u64 <= ENTRY_COUNT_MAX);
            return;
        };
        let length = asked.length_bytes.min(PART_BYTES_MAX);
        if input.is_empty() {
            // Equivalent to the next part: with a large count there are many of them.
            if reader.on_part(part_of(&PAGE, length)).is_err() {
                return;
            }
            continue;
        }
        let mut part = part_of(&PAGE, length).to_vec();
        input.damage(&mut part);
        // Sometimes the part is shorter than requested.
        let cut = usize::from(input.byte());
        part.truncate(part.len() - cut.min(part.len()));
        let _ = DiscoveryLog::new(&part).map(|log| log.is_complete());
        // A part that begins with the header may be mistaken for one that does not.
        if let Ok((entries, _)) =
            <[DiscoveryEntry]>::ref_from_prefix_with_elems(&part, part.len() / DISCOVERY_RECORD_BYTES)
        {
            entries.iter().for_each(look_at);
        }
        if reader.on_part(&part).is_err() {
            return;
        }
    }
    panic!("it reads on and on");
}

/// The longest part, of a log with two entries.
static PAGE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let subsystem = "nqn.2026-01.io.nvlane:fuzz".parse().expect("a name");
    let mut page = DiscoveryHeader::new(1, 2).as_bytes().to_vec();
    for port in [4420, 4421] {
        page.extend(DiscoveryEntry::tcp([192, 0, 2, 1].into(), port, &subsystem).as_bytes());
    }
    page.resize(usize::try_from(PART_BYTES_MAX).expect("small"), 0);
    page
});

fn part_of(page: &[u8], length: u64) -> &[u8] {
    &page[..usize::try_from(length).expect("small")]
}

/// The service that the log is of.
static SERVICE: LazyLock<host::Address> = LazyLock::new(|| "[fe80::1%eth0]".parse().expect("an address"));

fn look_at(entry: &DiscoveryEntry) {
    let _ = (entry.ip(), entry.port(), entry.subsystem());
    if let Ok(address) = address_of(entry, &SERVICE) {
        let text = address.to_string();
        assert!(!text.chars().any(char::is_control), "{text:?} goes to a terminal");
        let again: host::Address = text.parse().expect("what we print we take");
        assert_eq!(again, address);
    }
}
